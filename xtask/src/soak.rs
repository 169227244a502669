//! `cargo xtask soak`: the tests that take minutes, or that need luck to fail.

use std::io;
use std::process::Command;
use std::time::Instant;

use clap::Args;
use fgraph_chores::cargo;

/// Options of the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Run only tests with this in their names
    #[arg(value_name = "NAME")]
    filter: Option<String>,
}

/// The packages that have tests which `cargo test` ignores.
const PACKAGES: [&str; 2] = ["fgraph", "xtask"];

/// Runs what `cargo test` ignores, optimized, also in the lab. Fails where one of the tests fails.
pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let start = Instant::now();
    let workspace = cargo::workspace();
    let mut here = tests();
    here.args(PACKAGES.iter().flat_map(|package| ["--package", package]));
    let mut lab = tests();
    lab.arg("--manifest-path")
        .arg(workspace.join("lab/Cargo.toml"));
    lab.arg("--target-dir").arg(cargo::target());
    let mut is_good = true;
    for mut command in [here, lab] {
        // One after the other: each of them uses all processors.
        command.args(["--", "--ignored", "--test-threads=1"]);
        command.args(&options.filter);
        is_good &= command.current_dir(&workspace).status()?.success();
    }
    println!("{:.0} s", start.elapsed().as_secs_f64());
    Ok(is_good)
}

/// Returns the command that runs tests of all programs, optimized.
fn tests() -> Command {
    let mut command = Command::new(cargo::program());
    command.args(["test", "--release", "--no-fail-fast", "--tests"]);
    command
}
