//! Measures one row of `cargo xtask scale` at one size: `scale ROW SIZE traced|untraced DIRECTORY`.
//! Prints a number, of nanoseconds or of bytes. The directory has the libraries.

mod rows;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use rows::Place;

fn main() -> ExitCode {
    match measure() {
        Ok(value) => {
            println!("{value}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> Result<u64, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [row, size, traced, directory] = &arguments[..] else {
        return Err("usage: scale ROW SIZE traced|untraced DIRECTORY".into());
    };
    let place = Place {
        size: size.parse()?,
        is_traced: traced == "traced",
        directory: PathBuf::from(directory),
    };
    rows::measure(row, &place)
}
