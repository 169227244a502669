//! Builds the agent, the library that is preloaded into programs, so that the command carries it
//! inside.
//!
//! The agent's source is that of the dependency `fgraph-agent`, whose build script tells where it
//! is: `crates/fgraph-agent` in a checkout, a folder of cargo's registry or of vendored crates
//! elsewhere. From there it is copied first, because nothing may be written to such a folder.

use std::env;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::Compression;
use flate2::write::DeflateEncoder;

#[path = "build/trampoline_symbol.rs"]
mod trampoline_symbol;

/// Variables of the outer build that the agent's must not see.
const FOREIGN: [&str; 4] = [
    "CARGO_ENCODED_RUSTFLAGS",
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTFLAGS",
];

/// Flags of rustc for the agent, for builds that must not depend on where they run.
const RUSTFLAGS: &str = "FGRAPH_AGENT_RUSTFLAGS";

/// Variables by which `cargo xtask dist` makes the agent smaller.
const PROFILE: [&str; 2] = [
    "CARGO_PROFILE_RELEASE_CODEGEN_UNITS",
    "CARGO_PROFILE_RELEASE_LTO",
];

/// Programs may have an fgraph of their own: no symbol of the agent's is seen outside.
const LINK: &str = "link-arg=-Wl,-z,now,-z,start-stop-visibility=hidden";

/// Crates of the workspace that are in the agent.
const PARTS: [&str; 8] = [
    "fgraph",
    "fgraph-agent",
    "fgraph-core",
    "fgraph-protocol",
    "fgraph-symbols",
    "fgraph-trace",
    "fgraph-tracers",
    "fgraph-x86_64",
];

fn main() {
    let variable = |name| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let out = PathBuf::from(variable("OUT_DIR"));
    let mut source = PathBuf::from(variable("DEP_FGRAPH_AGENT_SOURCE"));
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-env-changed={RUSTFLAGS}");
    for variable in PROFILE {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    if is_in_checkout(&source) {
        watch(&source);
    } else {
        let own = out.join("source");
        copy(&source, &own).expect("the source of fgraph-agent can be copied");
        source = own;
    }
    // Beside the folders of the profiles, so that all of them share it.
    let target = out.ancestors().nth(4).unwrap_or(&out).join("agent");
    let mut cargo = Command::new(variable("CARGO"));
    FOREIGN.iter().for_each(|name| {
        cargo.env_remove(name);
    });
    // Leaves out the module that only this workspace's tests may use: an empty value wins over
    // cargo's configuration.
    cargo.env("FGRAPH_TESTING", "");
    if let Ok(flags) = env::var(RUSTFLAGS) {
        cargo.env("RUSTFLAGS", flags);
    }
    cargo
        .args(["rustc", "--lib", "--crate-type", "cdylib"])
        .args(["--release", "--quiet", "--target-dir"])
        .arg(&target)
        .args(["--config", "profile.release.strip=\"symbols\""])
        .arg("--manifest-path")
        .arg(source.join("Cargo.toml"));
    if source.join("Cargo.lock").exists() {
        cargo.arg("--locked");
    }
    let status = cargo.args(["--", "-C", LINK]).status().expect("cargo runs");
    assert!(status.success(), "the agent does not build");
    let library = target.join("release/libfgraph_agent.so");
    let bytes = fs::read(library).expect("cargo has built it");
    let bytes = trampoline_symbol::add(&bytes).expect("the agent is an ELF file with sections");
    let mut hasher = DefaultHasher::new();
    hasher.write(&bytes);
    println!("cargo::rustc-env=AGENT_HASH={:016x}", hasher.finish());
    println!("cargo::rustc-env=AGENT_LEN={}", bytes.len());
    compress(&bytes, &out.join("agent.so.deflate")).expect("the folder is ours");
}

fn compress(bytes: &[u8], path: &Path) -> io::Result<()> {
    let mut encoder = DeflateEncoder::new(File::create(path)?, Compression::default());
    encoder.write_all(bytes)?;
    encoder.finish()?;
    Ok(())
}

/// True if the manifest in `source` takes values from a workspace, which packages do not.
fn is_in_checkout(source: &Path) -> bool {
    let manifest = fs::read_to_string(source.join("Cargo.toml"));
    manifest
        .expect("a crate has a manifest")
        .contains(".workspace = true")
}

/// Makes cargo run this again when a file of the agent's crates changes.
fn watch(source: &Path) {
    for part in PARTS {
        for path in ["src", "Cargo.toml", "build.rs"] {
            let path = source.join("..").join(part).join(path);
            if path.exists() {
                println!("cargo::rerun-if-changed={}", path.display());
            }
        }
    }
}

/// Copies a package to `to`, as one that is in no workspace, wherever that is.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to.join("src"))?;
    let manifest = fs::read_to_string(from.join("Cargo.toml"))?;
    fs::write(to.join("Cargo.toml"), manifest + "\n[workspace]\n")?;
    for name in ["build.rs", "Cargo.lock"] {
        if from.join(name).exists() {
            fs::copy(from.join(name), to.join(name))?;
        }
    }
    for entry in fs::read_dir(from.join("src"))? {
        let entry = entry?;
        fs::copy(entry.path(), to.join("src").join(entry.file_name()))?;
    }
    Ok(())
}
