//! Chores of the workspace, and the way to the measuring programs of `lab/`: `cargo xtask help`
//! lists both.

mod book;
mod cost;
mod diff_test;
mod dist;
mod fuzz;
mod kernel;
mod lab;
mod patch_test;
mod recover_test;
mod reliability;
mod report;
mod soak;
mod tidy;
mod victim;
mod why_test;

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser};
use fgraph_chores::lab::COMMANDS;
use fgraph_chores::{commands, exit_code};

/// Chores of the fgraph workspace.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

commands! {
    /// Build the book of docs/ with an example in it, and check its links
    Book => book,
    /// Measure what a traced call costs, and patching
    Cost => cost,
    /// Record pairs of the same build, and of builds that differ in one function, and compare them
    DiffTest => diff_test,
    /// Make a tarball and a Debian package of the command, and try them
    Dist => dist,
    /// Give a reader of hostile bytes inputs that libFuzzer makes, on stable Rust
    Fuzz => fuzz,
    /// Run a kernel in QEMU that traces itself, and compare what it prints
    Kernel => kernel,
    /// Patch a program while its threads run, and see whether anything goes wrong
    PatchTest => patch_test,
    /// Kill a recorded program at random moments, and compare its core files with gdb's backtraces
    RecoverTest => recover_test,
    /// Run hostile programs untraced and traced, and see whether they do the same
    Reliability => reliability,
    /// Run the tests that `cargo test` ignores, because they take minutes
    Soak => soak,
    /// Check what no compiler checks: layers, lengths of lines, words, names of files
    Tidy => tidy,
    /// Record generated programs that are slow for one reason each, and see whether it is named
    WhyTest => why_test,
}

fn main() -> ExitCode {
    let args: Vec<OsString> = env::args_os().skip(1).collect();
    if lab::is_meant(&args) {
        return exit_code(Err(lab::become_it(&args)));
    }
    // The lab's are among them only to be listed.
    let listed = COMMANDS.map(|(name, about)| clap::Command::new(name).about(about));
    let matches = Cli::command().subcommands(listed).get_matches();
    match Cli::from_arg_matches(&matches) {
        Ok(cli) => exit_code(cli.command.run()),
        Err(error) => error.exit(),
    }
}
