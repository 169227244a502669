//! Prints what fgraph costs on this machine: one run, one table. See `docs/cost.md`.
//!
//! The exit code says whether it could be measured, never whether it is fast.

mod json;
mod measure;
mod table;
mod verdict;

use std::process::ExitCode;

use fgraph_bench::whole::{self, Whole};
use measure::Figures;

fn main() -> ExitCode {
    let mut json = false;
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--json" => json = true,
            whole::ARGUMENT => return print_whole(),
            _ => {
                eprintln!("error: unknown argument `{argument}`; there is only --json");
                return ExitCode::from(2);
            }
        }
    }
    match Figures::measure() {
        Ok(figures) if json => println!("{}", json::object(&figures)),
        Ok(figures) => print!("{}", table::Table(&figures)),
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// This process is one of those that are traced as a whole.
fn print_whole() -> ExitCode {
    match Whole::measure() {
        Ok(whole) => println!("{whole}"),
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
