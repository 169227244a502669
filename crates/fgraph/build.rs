//! Adds `fgraph::testing` where this workspace builds the crate.
//!
//! It has switches that leave out what keeps tracing safe. A feature would reach every crate of a
//! build as soon as one of them asked for it; the variable is set by `.cargo/config.toml` of the
//! workspace, and nowhere else.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=FGRAPH_TESTING");
    println!("cargo:rustc-check-cfg=cfg(fgraph_testing)");
    if std::env::var_os("FGRAPH_TESTING").is_some_and(|value| !value.is_empty()) {
        println!("cargo:rustc-cfg=fgraph_testing");
    }
}
