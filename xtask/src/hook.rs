//! `cargo xtask hook`: whole programs are traced that know nothing of fgraph, and still do the
//! same.
//!
//! Programs of the toolchain run twice, once as they are and once with the library of
//! `xtask/preload`, which traces them. What they print and make must be the same.

mod figures;
mod jobs;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs, process};

use clap::Args;

use crate::cargo;
use crate::json;
use figures::Figures;
use jobs::Job;

/// What the command line asks for.
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
pub(crate) fn run(options: &Options) -> io::Result<ExitCode> {
    let library = cargo::build("fgraph-preload-test")?;
    let directory = Directory::new()?;
    let all: Vec<Figures> = Job::all(&directory.0)?
        .iter()
        .map(|job| job.run(&library, options.users, options.everything))
        .collect::<io::Result<_>>()?;
    if options.json {
        println!("{}", json::array(all.iter().map(Figures::json)));
    } else {
        print!("{}", figures::table(&all));
    }
    Ok(if all.iter().all(Figures::is_good) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A directory for what is built, gone when this is dropped.
#[derive(Debug)]
struct Directory(PathBuf);

impl Directory {
    fn new() -> io::Result<Self> {
        let path = env::temp_dir().join(format!("fgraph-hook-{}", process::id()));
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // What is left lies among other temporary files.
        let _ = fs::remove_dir_all::<&Path>(&self.0);
    }
}
