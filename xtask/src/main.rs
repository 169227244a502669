//! Chores of the workspace: `cargo xtask attach-test`, `book`, `cost`, `coverage`, `dist`,
//! `ecosystem`, `hook`, `mutants`, `overhead`, `package-test`, `patch-test`, `pictures`,
//! `reliability`, `roots`, `same-trees`, `scale`, `soak`, `spawn-test`, `start`, `tidy`, `versus`.

mod attach_test;
mod book;
mod cost;
mod coverage;
mod dist;
mod ecosystem;
mod hook;
mod json;
mod mutants;
mod overhead;
mod package_test;
mod patch_test;
mod pictures;
mod process;
mod reliability;
mod report;
mod roots;
mod same_trees;
mod scale;
mod soak;
mod spawn_test;
mod start;
mod tidy;
mod toolchain;
mod versus;
mod victim;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use fgraph_reliability::cargo;

/// Chores of the fgraph workspace.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Attach to a hostile program and detach, many times, and see whether anything goes wrong
    AttachTest(attach_test::Options),
    /// Build the book of docs/ with an example in it, and check its links
    Book(book::Options),
    /// Measure what a traced call costs, and patching
    Cost(cost::Options),
    /// Count which functions of programs and libraries can be traced
    Coverage(coverage::Options),
    /// Make a tarball and a Debian package of the command, and try them
    Dist(dist::Options),
    /// Run programs of others, and tests of crates, while all their functions are traced
    Ecosystem(ecosystem::Options),
    /// Trace all functions of programs that know nothing of it
    Hook(hook::Options),
    /// Change the code in small ways, and see whether the tests notice
    Mutants(mutants::Options),
    /// Measure what recording real programs costs them, and the recorder
    Overhead(overhead::Options),
    /// Package all crates, and install the command from the packages alone
    PackageTest(package_test::Options),
    /// Patch a program while its threads run, and see whether anything goes wrong
    PatchTest(patch_test::Options),
    /// Make the pictures of exports that are in docs/pictures
    Pictures(pictures::Options),
    /// Run hostile programs untraced and traced, and see whether they do the same
    Reliability(reliability::Options),
    /// Run tests in other Debian releases, with their C library, linker and compiler
    Roots(roots::Options),
    /// Record programs of a directory with fgraph and, built with -pg, with uftrace, and compare
    SameTrees(same_trees::Options),
    /// Measure what grows with the size of the traced program
    Scale(scale::Options),
    /// Run the tests that `cargo test` ignores, because they take minutes
    Soak(soak::Options),
    /// Attach to programs that start processes and detach, and see whether any process dies
    SpawnTest(spawn_test::Options),
    /// Measure what recording adds to the start of programs
    Start(start::Options),
    /// Check what no compiler checks: layers, lengths of lines, words, names of files
    Tidy(tidy::Options),
    /// Measure what a watched call costs with fgraph, and with others that watch calls
    Versus(versus::Options),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::AttachTest(options) => attach_test::run(&options),
        Command::Book(options) => book::run(&options),
        Command::Cost(options) => cost::run(&options),
        Command::Coverage(options) => coverage::run(&options),
        Command::Dist(options) => dist::run(&options),
        Command::Ecosystem(options) => ecosystem::run(&options),
        Command::Hook(options) => hook::run(&options),
        Command::Mutants(options) => mutants::run(&options),
        Command::Overhead(options) => overhead::run(&options),
        Command::PackageTest(options) => package_test::run(&options),
        Command::PatchTest(options) => patch_test::run(&options),
        Command::Pictures(options) => pictures::run(&options),
        Command::Reliability(options) => reliability::run(&options),
        Command::Roots(options) => roots::run(&options),
        Command::SameTrees(options) => same_trees::run(&options),
        Command::Scale(options) => scale::run(&options),
        Command::Soak(options) => soak::run(&options),
        Command::SpawnTest(options) => spawn_test::run(&options),
        Command::Start(options) => start::run(&options),
        Command::Tidy(options) => tidy::run(&options),
        Command::Versus(options) => versus::run(&options),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::from(2)
    })
}
