//! `cargo xtask cost`: what fgraph costs on this machine.

use std::env;
use std::io;
use std::path::Path;
use std::process::{Command, ExitCode};

use clap::Args;

/// What the command line asks for.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Builds the benches' `cost` and runs it. Fails only where it cannot be run: that something takes
/// long is no failure.
pub(crate) fn run(options: &Options) -> io::Result<ExitCode> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["run", "--release", "--quiet", "--package", "fgraph-bench"])
        .args(["--bin", "cost", "--"])
        .args(options.json.then_some("--json"))
        // The workspace's configuration gives functions their NOPs.
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .status()?;
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
