//! `fgraph man`: manual pages.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use fgraph_trace::place;

use crate::error::Error;
use crate::output::Out;

/// Write the manual page to standard output, or the pages of all subcommands to a directory
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fgraph man | man -l -
  fgraph man ~/.local/share/man/man1")]
pub(crate) struct Args {
    /// The directory for the pages
    directory: Option<PathBuf>,
}

fn page(command: clap::Command) -> Vec<u8> {
    let mut text = Vec::new();
    // Writing to a vector does not fail.
    _ = clap_mangen::Man::new(command).render(&mut text);
    text
}

fn write(directory: &Path, name: &str, command: clap::Command) -> Result<(), Error> {
    let path = directory.join(format!("{name}.1"));
    place::write(&path, page(command)).map_err(|error| Error::Write { path, error })
}

/// Writes them.
pub(crate) fn run(args: Args) -> Result<(), Error> {
    let mut command = super::Cli::command();
    let Some(directory) = args.directory else {
        let mut out = Out::new();
        out.text(&String::from_utf8_lossy(&page(command)))?;
        return out.finish();
    };
    fs::create_dir_all(&directory).map_err(|error| Error::Write {
        path: directory.clone(),
        error: match error.kind() {
            io::ErrorKind::AlreadyExists => io::ErrorKind::NotADirectory.into(),
            _ => error,
        },
    })?;
    command.build();
    for subcommand in command.get_subcommands() {
        if subcommand.get_name() == "help" {
            continue;
        }
        let name = format!("fgraph-{}", subcommand.get_name());
        write(&directory, &name, subcommand.clone())?;
    }
    write(&directory, "fgraph", command)
}
