//! Tells the build scripts of crates that depend on this one where its source is.

use std::env;

fn main() {
    let source = env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    println!("cargo::metadata=source={source}");
    println!("cargo::rerun-if-changed=build.rs");
}
