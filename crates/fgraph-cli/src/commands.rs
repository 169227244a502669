//! The subcommands, each in a file of its own.

pub(crate) mod info;
pub(crate) mod record;

use std::process::ExitCode;

use clap::Subcommand;

use crate::error::Error;

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Info(info::Args),
    Record(record::Args),
}

/// Does it, and says what the process ends with.
pub(crate) fn run(command: Command) -> Result<ExitCode, Error> {
    match command {
        Command::Info(args) => info::run(args),
        Command::Record(args) => return record::run(&args),
    }
    .map(|()| ExitCode::SUCCESS)
}
