//! All functions of a process, libraries included, enumerated and traced.
//!
//! fgraph keeps its data about modules, so a process can be measured only once. Therefore another
//! process is started for it.

use core::hint::black_box;
use std::env;
use std::error::Error;
use std::process::Command;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::users::Declining;

/// Argument that makes the program [measure](Whole::measure) itself and print the result.
pub const ARGUMENT: &str = "--whole";

/// Times of enumerating and tracing all functions.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Whole {
    /// Number of functions.
    pub functions: usize,
    /// Number of functions that could be traced.
    pub traced: usize,
    /// Time of `fgraph::sites` in a process without data about its modules.
    pub list: Duration,
    /// The same, including the decision about each function.
    pub enumerate: Duration,
    /// `register` with a filter that selects everything, when the functions are known.
    pub register: Duration,
    /// `unregister` of that user.
    pub unregister: Duration,
}

impl Whole {
    /// Enumerates and traces all functions of this process.
    pub fn measure() -> Result<Self, fgraph::Error> {
        let start = Instant::now();
        let sites = fgraph::sites()?;
        let list = start.elapsed();
        let functions = sites.iter().map(black_box).fold(0, |all, _| all + 1);
        let enumerate = start.elapsed();
        drop(sites);
        let start = Instant::now();
        let user = crate::register(Declining, "*")?;
        let register = start.elapsed();
        let traced = user.report()?.traced;
        let start = Instant::now();
        drop(user);
        Ok(Self {
            functions,
            traced,
            list,
            enumerate,
            register,
            unregister: start.elapsed(),
        })
    }

    /// Returns the measurements of a process that runs this program with [`ARGUMENT`].
    pub fn in_another_process() -> Result<Self, Box<dyn Error>> {
        let mut command = Command::new(env::current_exe()?);
        command.arg(ARGUMENT);
        crate::figures_of(command)
    }

    /// Returns the shorter of each time.
    pub fn min(self, other: Self) -> Self {
        Self {
            list: self.list.min(other.list),
            enumerate: self.enumerate.min(other.enumerate),
            register: self.register.min(other.register),
            unregister: self.unregister.min(other.unregister),
            ..self
        }
    }

    /// Returns a time in ns divided by the number of functions.
    pub fn per_function(&self, time: Duration) -> f64 {
        time.as_secs_f64() * 1e9 / self.functions as f64
    }
}
