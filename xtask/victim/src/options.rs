//! The command line. `cargo xtask patch-test` writes it, and has the help.

use std::path::PathBuf;

use fgraph::testing::Skip;

use crate::functions::FUNCTIONS;

/// Options of a run.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) threads: usize,
    pub(crate) seconds: u64,
    pub(crate) sites: usize,
    pub(crate) users: usize,
    pub(crate) seed: u64,
    pub(crate) leave_out: Skip,
    /// A library to load and unload. With one, everything hostile is mixed.
    pub(crate) chaos: Option<PathBuf>,
    /// True if tracers are switched on and off as well.
    pub(crate) tracers: bool,
    /// The names of the hostile acts that are mixed; empty: all.
    pub(crate) acts: String,
}

impl Options {
    /// Reads pairs of name and value.
    pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            threads: 4,
            seconds: 10,
            sites: 2000,
            users: 16,
            seed: 1,
            leave_out: Skip::empty(),
            chaos: None,
            tracers: false,
            acts: String::new(),
        };
        while let Some(name) = args.next() {
            let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
            let number = || {
                let parsed = value.parse::<u64>();
                parsed.map_err(|error| format!("{name} {value}: {error}"))
            };
            match name.as_str() {
                "--threads" => options.threads = number()? as usize,
                "--seconds" => options.seconds = number()?,
                "--sites" => options.sites = number()? as usize,
                "--users" => options.users = number()? as usize,
                "--seed" => options.seed = number()?,
                "--chaos" => options.chaos = Some(value.into()),
                "--tracers" => options.tracers = number()? != 0,
                "--acts" => options.acts = value,
                "--leave-out" => options.leave_out = steps(&value)?,
                _ => return Err(format!("unknown option {name}")),
            }
        }
        if !(1..=FUNCTIONS.len()).contains(&options.sites) {
            return Err(format!("--sites must be 1 to {}", FUNCTIONS.len()));
        }
        if options.users > fgraph::MAX_USERS {
            return Err(format!("--users must be at most {}", fgraph::MAX_USERS));
        }
        Ok(options)
    }
}

/// Steps of the patching protocol, by name.
fn steps(text: &str) -> Result<Skip, String> {
    match text {
        "trap" => Ok(Skip::TRAP),
        "sync" => Ok(Skip::SYNC),
        "inner" => Ok(Skip::INNER),
        "trap+sync" => Ok(Skip::TRAP | Skip::SYNC),
        _ => Err(format!("--leave-out {text}: there is no such step")),
    }
}
