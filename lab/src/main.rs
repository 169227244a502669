//! Programs that measure fgraph and compare it with others: `cargo xtask help` lists them.

mod attach_test;
mod coverage;
mod ecosystem;
mod generated;
mod hook;
mod mcp_test;
mod mutants;
mod overhead;
mod package_test;
mod pictures;
mod python_test;
mod recipes;
mod roots;
mod same_trees;
mod scale;
mod spawn_test;
mod start;
mod versus;

use std::process::ExitCode;

use clap::Parser;
use fgraph_chores::{commands, exit_code};

/// Programs that measure fgraph and compare it with others.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

commands! {
    /// Attach to a hostile program and detach, many times, and see whether anything goes wrong
    AttachTest => attach_test,
    /// Count which functions of programs and libraries can be traced
    Coverage => coverage,
    /// Run programs of others, and tests of crates, while all their functions are traced
    Ecosystem => ecosystem,
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
    /// Make the pictures of exports that are in docs/pictures
    Pictures => pictures,
    /// Record CPython's own tests, and compare the events with those of sys.setprofile
    PythonTest => python_test,
    /// Run the recipes of docs/recipes, and see whether each names the cause that it has planted
    Recipes => recipes,
    /// Run tests in other Debian releases, with their C library, linker and compiler
    Roots => roots,
    /// Record programs of a directory with fgraph and, built with -pg, with uftrace, and compare
    SameTrees => same_trees,
    /// Measure what grows with the size of the traced program
    Scale => scale,
    /// Attach to programs that start processes and detach, and see whether any process dies
    SpawnTest => spawn_test,
    /// Measure what recording adds to the start of programs
    Start => start,
    /// Measure what a watched call costs with fgraph, and with others that watch calls
    Versus => versus,
}

fn main() -> ExitCode {
    exit_code(Cli::parse().command.run())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use fgraph_chores::lab::COMMANDS;

    use super::*;

    #[test]
    fn xtask_knows_each_program_and_its_description() {
        let cli = Cli::command();
        let about = |command: &clap::Command| command.get_about().unwrap().to_string();
        let programs = cli.get_subcommands().map(|it| (it.get_name(), about(it)));
        let known = COMMANDS.map(|(name, about)| (name, about.to_owned()));
        assert_eq!(programs.collect::<Vec<_>>(), known);
    }
}
