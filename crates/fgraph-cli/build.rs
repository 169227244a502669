//! Builds the agent, the library that is preloaded into programs, so that the command carries it
//! inside.

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::Command;

#[path = "build/trampoline_symbol.rs"]
mod trampoline_symbol;

/// What the outer build says of itself, and is not meant for this one.
const FOREIGN: [&str; 4] = [
    "CARGO_ENCODED_RUSTFLAGS",
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTFLAGS",
];

/// What the agent is made of, beside its own folder.
const PARTS: [&str; 7] = [
    "fgraph",
    "fgraph-agent",
    "fgraph-core",
    "fgraph-symbols",
    "fgraph-trace",
    "fgraph-tracers",
    "fgraph-x86_64",
];

fn main() {
    let variable = |name| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let out = variable("OUT_DIR");
    let out = Path::new(&out);
    let crates = Path::new(&variable("CARGO_MANIFEST_DIR")).join("..");
    for part in PARTS {
        for path in ["src", "Cargo.toml", "build.rs"] {
            let path = crates.join(part).join(path);
            if path.exists() {
                println!("cargo::rerun-if-changed={}", path.display());
            }
        }
    }
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    // Beside the folders of the profiles, so that all of them share it.
    let target = out.ancestors().nth(4).unwrap_or(out).join("agent");
    let mut cargo = Command::new(variable("CARGO"));
    FOREIGN.iter().for_each(|name| {
        cargo.env_remove(name);
    });
    let status = cargo
        .args(["build", "--release", "--quiet", "--target-dir"])
        .arg(&target)
        .args(["--config", "profile.release.strip=\"symbols\""])
        .arg("--manifest-path")
        .arg(crates.join("fgraph-agent/Cargo.toml"))
        .status()
        .expect("cargo runs");
    assert!(status.success(), "the agent does not build");
    let library = target.join("release/libfgraph_agent.so");
    let bytes = fs::read(library).expect("cargo has built it");
    let bytes = trampoline_symbol::add(&bytes).expect("the agent is an ELF file with sections");
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    fs::write(out.join("agent.so"), bytes).expect("the folder is ours");
    println!("cargo::rustc-env=AGENT_HASH={:016x}", hasher.finish());
}
