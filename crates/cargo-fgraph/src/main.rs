//! `cargo fgraph`: builds a whole dependency graph with functions that fgraph can watch.
//!
//! Every function gets a NOP of five bytes at its entry and a place in the section
//! `__patchable_function_entries`, with a stable compiler and unchanged sources. One program plays
//! several parts:
//!
//! ```text
//!   cargo fgraph build            this program, as a subcommand of cargo:  cli, probe, driver
//!     +- cargo build
//!          +- cargo-fgraph rustc …     this program, as cargo's wrapper of the compiler:  wrapper
//!          |    +- rustc …             pass one: which functions will there be?   symbols
//!          |    +- rustc …             pass two: the crate, with a list of those that get a NOP
//!          +- cargo-fgraph rustc …
//! ```
//!
//! For `record`, `live` and `top` it is also cargo's runner, which starts the built program under
//! the command `fgraph`:  runner
//!
//! `diff` does that with two versions of the workspace:  diff, git, janitor
//!
//! rustc has no stable option for this, but passes options on to LLVM. One of LLVM's passes,
//! `forceattrs`, reads attributes of functions from a file, and `patchable-function-entry=5` is
//! such an attribute. It wants the functions by their symbols, hence the first pass.

#![forbid(unsafe_code)]

mod cli;
mod complaints;
mod diff;
mod driver;
mod error;
mod git;
mod hash;
mod invocation;
mod janitor;
mod probe;
mod runner;
mod select;
mod symbols;
mod wrapper;

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

use cli::Request;
use error::Error;

fn main() -> ExitCode {
    let args: Vec<OsString> = env::args_os().skip(1).collect();
    let done = if janitor::is_called(&args) {
        janitor::run(&args)
    } else if runner::is_called(&args) {
        runner::run(&args)
    } else if wrapper::is_called(&args) {
        wrapper::run(&args)
    } else {
        subcommand(args)
    };
    done.unwrap_or_else(|error| {
        eprintln!("cargo-fgraph: {error}");
        error.exit_code()
    })
}

/// Handles the arguments behind `cargo fgraph`, or behind the name of this program.
fn subcommand(mut args: Vec<OsString>) -> Result<ExitCode, Error> {
    if args.first().is_some_and(|first| first == wrapper::NAME) {
        args.remove(0);
    }
    match cli::parse(args)? {
        Request::Help(text) => print!("{text}"),
        Request::Version => println!("cargo-fgraph {}", env!("CARGO_PKG_VERSION")),
        Request::Run(build) => return driver::run(&build),
        Request::Compare(build, comparison) => return diff::run(&build, &comparison),
    }
    Ok(ExitCode::SUCCESS)
}
