//! The command `fgraph`.
//!
//! Each subcommand is a file under `commands/`. Commands that show a recording take it as a
//! [`Source`](fgraph_trace::Source), and keep no data in memory that grows with its events.

#![cfg_attr(
    not(all(feature = "mount", feature = "tui")),
    allow(
        dead_code,
        reason = "subcommands that are left out use more of the shared modules"
    )
)]
// `println!` and the like panic where a terminal is gone.
#![deny(clippy::print_stderr, clippy::print_stdout)]

/// Writes a line to stderr; a failure to write is ignored.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

mod action;
mod awaits;
mod caches;
mod commands;
mod config;
mod debuginfod;
mod directory;
mod error;
mod inlined;
mod input;
mod json;
mod lanes;
mod launch;
mod losses;
mod off;
mod output;
mod places;
mod python;
mod runtimes;
#[cfg(feature = "tui")]
mod screen;
mod sources;
mod table;
mod target;
mod tasks;
mod text;
mod tree;
mod unmatched;
mod usage;
mod waits;

use std::process::ExitCode;

fn main() -> ExitCode {
    launch::inherited::heed();
    let done = config::parse().and_then(|cli| {
        output::set_color(cli.color);
        commands::run(cli.command)
    });
    match done {
        Ok(code) => code,
        Err(error) => {
            if let Some(message) = error.message() {
                say!("fgraph: {message}");
            }
            error.exit_code()
        }
    }
}
