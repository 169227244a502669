//! The subcommands of `cargo xtask` and of the lab.

use std::io;
use std::process::ExitCode;

/// Makes the subcommands. The module of each has `Options`, and a function `run` that returns true
/// if all is well.
#[macro_export]
macro_rules! commands {
    ($($(#[$help:meta])* $name:ident => $module:ident,)*) => {
        #[derive(Debug, ::clap::Subcommand)]
        enum Command {
            $($(#[$help])* $name($module::Options),)*
        }

        impl Command {
            fn run(&self) -> std::io::Result<bool> {
                match self {
                    $(Self::$name(options) => $module::run(options),)*
                }
            }
        }
    };
}

/// Returns the exit code of a subcommand with this result.
pub fn exit_code(result: io::Result<bool>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}
