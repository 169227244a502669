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

/// Runs what `cargo test` ignores, optimized. Fails where one of the tests fails.
pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let start = Instant::now();
    let mut command = Command::new(cargo::program());
    command.args(["test", "--release", "--no-fail-fast", "--tests"]);
    command.args(PACKAGES.iter().flat_map(|package| ["--package", package]));
    // One after the other: each of them uses all processors.
    command.args(["--", "--ignored", "--test-threads=1"]);
    command.args(&options.filter);
    let status = command.current_dir(cargo::workspace()).status()?;
    println!("{:.0} s", start.elapsed().as_secs_f64());
    Ok(status.success())
}
