//! The subcommands, each in a file of its own.

pub(crate) mod info;

use clap::Subcommand;

use crate::error::Error;

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Info(info::Args),
}

/// Does it.
pub(crate) fn run(command: Command) -> Result<(), Error> {
    match command {
        Command::Info(args) => info::run(args),
    }
}
