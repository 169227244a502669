//! Subcommands that this build leaves out. Each takes any arguments, and says how to get it.

use std::ffi::OsString;

use crate::error::Error;

// A doc comment would be the help of each subcommand.
#[derive(Debug, clap::Args)]
pub(crate) struct Any {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Says how to get `name`, which is also the name of its feature.
fn refuse<T>(name: &str, args: Any) -> Result<T, Error> {
    drop(args);
    Err(Error::not_built_in(name, name))
}

macro_rules! absent {
    ($name:ident, $is:literal, $returns:ty) => {
        #[cfg(not(feature = $is))]
        pub(crate) mod $name {
            use crate::commands::absent::{Any, refuse};
            use crate::error::Error;

            #[doc = concat!("Not in this build: build fgraph-cli with --features ", $is)]
            #[derive(Debug, clap::Args)]
            pub(crate) struct Args {
                #[command(flatten)]
                any: Any,
            }

            /// Says how to get it.
            pub(crate) fn run(args: Args) -> Result<$returns, Error> {
                refuse($is, args.any)
            }
        }
    };
}

absent!(completions, "completions", ());
absent!(man, "man", ());
absent!(mount, "mount", ());
absent!(tui, "tui", std::process::ExitCode);
