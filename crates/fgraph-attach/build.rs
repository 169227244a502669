//! Adds `fgraph_attach::testing` where this workspace builds the crate.
//!
//! `.cargo/config.toml` of the workspace sets the variable, as for `crates/fgraph/build.rs`. A
//! feature would reach every crate of a build as soon as one of them asked for it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=FGRAPH_TESTING");
    println!("cargo:rustc-check-cfg=cfg(fgraph_testing)");
    if std::env::var_os("FGRAPH_TESTING").is_some_and(|value| !value.is_empty()) {
        println!("cargo:rustc-cfg=fgraph_testing");
    }
}
