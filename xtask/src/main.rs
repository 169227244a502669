//! Chores of the workspace: `cargo xtask attach-test`, `book`, `cost`, `coverage`, `diff-test`,
//! `dist`, `ecosystem`, `fuzz`, `generated`, `hook`, `mcp-test`, `mutants`, `overhead`,
//! `package-test`, `patch-test`, `pictures`, `python-test`, `recipes`, `recover-test`,
//! `reliability`, `roots`, `same-trees`, `scale`, `soak`, `spawn-test`, `start`, `tidy`, `versus`,
//! `why-test`.

mod attach_test;
mod book;
mod cost;
mod coverage;
mod diff_test;
mod dist;
mod ecosystem;
mod fuzz;
mod generated;
mod hook;
mod mcp_test;
mod mutants;
mod overhead;
mod package_test;
mod patch_test;
mod pictures;
mod python_test;
mod recipes;
mod recover_test;
mod reliability;
mod report;
mod roots;
mod same_trees;
mod scale;
mod soak;
mod spawn_test;
mod start;
mod tidy;
mod versus;
mod victim;
mod why_test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Chores of the fgraph workspace.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Makes the subcommands. The module of each has `Options`, and a function `run` that returns true
/// if all is well.
macro_rules! commands {
    ($($(#[$help:meta])* $name:ident => $module:ident,)*) => {
        #[derive(Debug, Subcommand)]
        enum Command {
            $($(#[$help])* $name($module::Options),)*
        }

        impl Command {
            fn run(&self) -> std::io::Result<bool> {
                match self {
                    $(Self::$name(options) => $module::run(options),)*
                }
            }
        }
    };
}

commands! {
    /// Attach to a hostile program and detach, many times, and see whether anything goes wrong
    AttachTest => attach_test,
    /// Build the book of docs/ with an example in it, and check its links
    Book => book,
    /// Measure what a traced call costs, and patching
    Cost => cost,
    /// Count which functions of programs and libraries can be traced
    Coverage => coverage,
    /// Record pairs of the same build, and of builds that differ in one function, and compare them
    DiffTest => diff_test,
    /// Make a tarball and a Debian package of the command, and try them
    Dist => dist,
    /// Run programs of others, and tests of crates, while all their functions are traced
    Ecosystem => ecosystem,
    /// Give a reader of hostile bytes inputs that libFuzzer makes, on stable Rust
    Fuzz => fuzz,
    /// Record generated C programs, and compare their output and calls with runs of their own
    Generated => generated,
    /// Trace all functions of programs that know nothing of it
    Hook => hook,
    /// Ask ten questions on a large recording over the Model Context Protocol, and time the answers
    McpTest => mcp_test,
    /// Change the code in small ways, and see whether the tests notice
    Mutants => mutants,
    /// Measure what recording real programs costs them, and the recorder
    Overhead => overhead,
    /// Package all crates, and install the command from the packages alone
    PackageTest => package_test,
    /// Patch a program while its threads run, and see whether anything goes wrong
    PatchTest => patch_test,
    /// Make the pictures of exports that are in docs/pictures
    Pictures => pictures,
    /// Record CPython's own tests, and compare the events with those of sys.setprofile
    PythonTest => python_test,
    /// Run the recipes of docs/recipes, and see whether each names the cause that it has planted
    Recipes => recipes,
    /// Kill a recorded program at random moments, and compare its core files with gdb's backtraces
    RecoverTest => recover_test,
    /// Run hostile programs untraced and traced, and see whether they do the same
    Reliability => reliability,
    /// Run tests in other Debian releases, with their C library, linker and compiler
    Roots => roots,
    /// Record programs of a directory with fgraph and, built with -pg, with uftrace, and compare
    SameTrees => same_trees,
    /// Measure what grows with the size of the traced program
    Scale => scale,
    /// Run the tests that `cargo test` ignores, because they take minutes
    Soak => soak,
    /// Attach to programs that start processes and detach, and see whether any process dies
    SpawnTest => spawn_test,
    /// Measure what recording adds to the start of programs
    Start => start,
    /// Check what no compiler checks: layers, lengths of lines, words, names of files
    Tidy => tidy,
    /// Measure what a watched call costs with fgraph, and with others that watch calls
    Versus => versus,
    /// Record generated programs that are slow for one reason each, and see whether it is named
    WhyTest => why_test,
}

fn main() -> ExitCode {
    match Cli::parse().command.run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}
