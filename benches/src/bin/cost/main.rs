//! Measures the cost of fgraph on this machine: one run, one table. See `docs/cost.md`.
//!
//! The exit code says if it could be measured, never if it is fast.

mod json;
mod measure;
mod table;
mod verdict;

use std::error::Error;
use std::process::ExitCode;

use fgraph_bench::filters::{self, Changes};
use fgraph_bench::instructions;
use fgraph_bench::whole_process::{self, Whole};
use measure::Figures;
use serde::Serialize;

fn main() -> ExitCode {
    let mut json = false;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--json" => json = true,
            whole_process::ARGUMENT => return print_own(Whole::measure().map_err(Into::into)),
            filters::ARGUMENT => return print_own(Changes::measure()),
            instructions::ARGUMENT => {
                return print_own(instructions::make_calls(arguments).map(|()| ""));
            }
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

/// Prints in JSON the measurements of a process that was started for them.
fn print_own<T: Serialize>(measured: Result<T, Box<dyn Error>>) -> ExitCode {
    match measured.and_then(|figures| Ok(serde_json::to_string(&figures)?)) {
        Ok(figures) => println!("{figures}"),
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
