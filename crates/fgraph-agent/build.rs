//! How the agent is linked.

fn main() {
    // Programs may have an fgraph of their own: no symbol of ours is seen outside.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,now,-z,start-stop-visibility=hidden");
    println!("cargo::rerun-if-changed=build.rs");
}
