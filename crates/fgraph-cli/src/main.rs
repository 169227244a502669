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
        $crate::output::remove_status();
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
mod generated;
mod inlined;
mod input;
mod json;
mod launch;
mod losses;
mod off;
mod output;
mod overhead;
mod places;
mod python;
#[cfg(feature = "tui")]
mod screen;
mod sources;
mod summary;
mod table;
mod target;
mod text;
mod unmatched;
mod usage;
mod waiting;

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
            error.say();
            error.exit_code()
        }
    }
}
