//! `cargo xtask hook`: whole programs are traced that know nothing of fgraph, and still do the
//! same.
//!
//! Programs of the toolchain run twice, once as they are and once with the library of
//! `xtask/preload`, which traces them. What they print and make must be the same.

mod figures;
mod jobs;

use std::io;

use clap::Args;
use serde_json::Value;
use tempfile::TempDir;

use crate::cargo;
use figures::Figures;
use jobs::Job;

/// Options of the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Users that trace at the same time
    #[arg(long, default_value_t = 1, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=16))]
    users: u32,
    /// Trace everything that is loaded, the C library and the dynamic linker included
    #[arg(long)]
    everything: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs all jobs. Fails where a traced program does not do what it does untraced; that hooking
/// takes long is no failure.
pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let library = cargo::build("fgraph-preload-test")?;
    let directory = TempDir::with_prefix("fgraph-hook-")?;
    let all: Vec<Figures> = Job::all(directory.path())?
        .iter()
        .map(|job| job.run(&library, options.users, options.everything))
        .collect::<io::Result<_>>()?;
    if options.json {
        println!("{}", all.iter().map(Figures::json).collect::<Value>());
    } else {
        print!("{}", figures::table(&all));
    }
    Ok(all.iter().all(Figures::is_good))
}
