//! The command `fgraph`.
//!
//! Each subcommand is a file under `commands/`. Those that show a recording take it as a
//! [`Source`](fgraph_trace::Source), and keep nothing in memory that grows with its events.

#![allow(
    dead_code,
    reason = "the helpers of subcommands that are still to come"
)]

mod commands;
mod error;
mod input;
mod output;
mod text;

use std::process::ExitCode;

use clap::Parser;

use crate::commands::Command;
use crate::output::Color;

/// Watch the functions of any program: record their calls, and look at what was recorded
#[derive(Debug, Parser)]
#[command(name = "fgraph", version, after_help = error::EXIT_CODES)]
struct Cli {
    /// Whether to use colours; `auto` is for terminals, unless NO_COLOR is set
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    color: Color,
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    output::set_color(cli.color);
    match commands::run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if let Some(message) = error.message() {
                eprintln!("fgraph: {message}");
            }
            error.exit_code()
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
