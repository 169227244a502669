//! `cargo xtask cost`: measures the cost of fgraph on this machine.

mod outside;

use std::io;
use std::process::Command;

use clap::Args;
use fgraph_chores::cargo;

/// Options of the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Print one JSON object
    #[arg(long, conflicts_with = "outside")]
    json: bool,
    /// Compare calls in a program of the workspace with calls in one outside of it
    #[arg(long)]
    outside: bool,
    /// With --outside: build the program with other settings, too
    #[arg(long, requires = "outside")]
    settings: bool,
}

/// Builds the benches' `cost` and runs it. Fails only if it cannot be run: a slow result is no
/// failure.
pub(crate) fn run(options: &Options) -> io::Result<bool> {
    if options.outside {
        return outside::run(options.settings);
    }
    let status = Command::new(cargo::program())
        .args(["run", "--release", "--quiet", "--package", "fgraph-bench"])
        .args(["--bin", "cost", "--"])
        .args(options.json.then_some("--json"))
        .current_dir(cargo::workspace())
        .status()?;
    Ok(status.success())
}
