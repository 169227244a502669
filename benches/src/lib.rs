//! Cost of fgraph: the cases that `cargo xtask cost` and the criterion benches measure.
//!
//! | module | content |
//! |---|---|
//! | [`functions`] | the functions that are called, each with and without a NOP |
//! | [`users`] | the users that watch them |
//! | [`cases`] | the users of each case, and timing of calls |
//! | [`baseline`] | cost of calls by themselves |
//! | [`random_order`] | calls of eight functions in random order |
//! | [`instructions`] | number of instructions of a call |
//! | [`depth`] | depth of the stack at which calls are made |
//! | [`tracers`] | the users of `fgraph-tracers` |
//! | [`two_threads`] | calls on two threads at once |
//! | [`sites`] | 20,000 functions to patch, and timing of patching |
//! | [`whole_process`] | a process with all functions enumerated and traced |
//! | [`filters`] | changing filters in a process with very many functions |
//! | [`parent`] | a user's access to the data of the enclosing call |
//! | [`memory`] | memory of sites, stubs and threads |
//! | [`hijack`] | for comparison, a trampoline that replaces the return address |
//!
//! `docs/cost.md` explains the figures.

pub mod baseline;
pub mod cases;
pub mod depth;
pub mod filters;
pub mod functions;
pub mod hijack;
pub mod instructions;
pub mod memory;
pub mod parent;
pub mod random_order;
pub mod sites;
pub mod tracers;
pub mod two_threads;
pub mod users;
pub mod whole_process;

use std::error;
use std::process::{Command, Stdio};

use fgraph::{Error, FgraphOps, Handle, Options};
use serde::de::DeserializeOwned;

/// Runs this program for one measurement, and reads the figures that it prints in JSON.
fn figures_of<T: DeserializeOwned>(mut command: Command) -> Result<T, Box<dyn error::Error>> {
    let output = command.stderr(Stdio::inherit()).output()?;
    serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("{command:?}: {}: {error}", output.status).into())
}

/// Returns the nanoseconds for which this thread has run on a processor.
pub fn processor_time() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `clock_gettime` writes to a live local.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Registers a user for a measurement.
pub fn register<T: FgraphOps>(ops: T, filter: &str) -> Result<Handle<T>, Error> {
    register_with(ops, filter, &Options::new().allow_no_match())
}

/// Same as [`register`], with options.
pub fn register_with<T: FgraphOps>(
    ops: T,
    filter: &str,
    options: &Options,
) -> Result<Handle<T>, Error> {
    // SAFETY: the users of the benches do nothing, or add to atomics, which is allowed everywhere.
    unsafe { fgraph::register_with(ops, filter, options) }.map_err(|failed| failed.error)
}

/// The samples of the repository's README are tests. No package can hold them: that README is not
/// in any.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
