//! `cargo xtask coverage`: the functions of programs and libraries that can be traced.

mod count;
mod find;

use std::io;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use fgraph_chores::cargo;
use serde_json::{Value, json};

use count::Count;

/// Options of the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Programs and libraries, by path or by name; six usual ones, unless given
    #[arg(value_name = "BINARY")]
    binaries: Vec<String>,
    /// List every function that cannot be traced
    #[arg(long)]
    all: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Number of names that are shown for each reason, unless all are requested.
const EXAMPLES: usize = 5;

/// Counts, and prints the counts. Fails only if a binary cannot be read.
pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let paths = if options.binaries.is_empty() {
        usual()?
    } else {
        let found = options.binaries.iter().map(|name| find::binary(name));
        found.collect::<io::Result<_>>()?
    };
    let start = Instant::now();
    let counts: Vec<Count> = paths
        .iter()
        .map(|path| Count::of(path))
        .collect::<io::Result<_>>()?;
    let elapsed = start.elapsed();
    let shown = if options.all { usize::MAX } else { EXAMPLES };
    if options.json {
        let binaries: Value = counts.iter().map(|count| count.json(shown)).collect();
        let ms = elapsed.as_millis() as u64;
        println!("{}", json!({ "binaries": binaries, "ms": ms }));
        return Ok(true);
    }
    println!("{}", count::HEAD);
    for count in &counts {
        println!("{count}");
    }
    println!("\ntotal time {} ms", elapsed.as_millis());
    for count in &counts {
        print!("{}", count.refusals(shown));
    }
    Ok(true)
}

/// Returns one of each kind: C libraries, a program at a fixed address, a command of this
/// workspace, and the library with rustc's code.
fn usual() -> io::Result<Vec<PathBuf>> {
    Ok(vec![
        find::binary("libc.so.6")?,
        find::binary("libsqlite3.so.0")?,
        find::binary("python3.11")?,
        cargo::build("cargo-fgraph")?,
        find::binary("cargo")?,
        find::binary("librustc_driver")?,
    ])
}
