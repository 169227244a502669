//! What fgraph costs: the cases that `cargo xtask cost` and the criterion benches measure.
//!
//! | module | holds |
//! |---|---|
//! | [`functions`] | the functions that are called, each with and without a NOP |
//! | [`users`] | the users that watch them |
//! | [`cases`] | who watches, and how calls are timed |
//! | [`baseline`] | what calls cost by themselves |
//! | [`instructions`] | how many instructions calls are |
//! | [`depth`] | where on the stack calls are made |
//! | [`tracers`] | the users of `fgraph-tracers` |
//! | [`two_threads`] | calls on two threads at once |
//! | [`sites`] | 20,000 functions to patch, and how patching is timed |
//! | [`whole_process`] | a process all of whose functions are enumerated and traced |
//! | [`filters`] | filters that change in a process of very many functions |
//! | [`parent`] | a user's look at the data of its enclosing call |
//! | [`memory`] | what memory sites, stubs and threads take |
//! | [`hijack`] | for comparison, a trampoline that replaces the return address |
//!
//! What the figures mean is in `docs/cost.md`.

pub mod baseline;
pub mod cases;
pub mod depth;
pub mod filters;
pub mod functions;
pub mod hijack;
pub mod instructions;
pub mod memory;
pub mod parent;
pub mod sites;
pub mod tracers;
pub mod two_threads;
pub mod users;
pub mod whole_process;

use fgraph::{Error, FgraphOps, Handle, Options};

/// Registers a user that is measured.
pub fn register<T: FgraphOps>(ops: T, filter: &str) -> Result<Handle<T>, Error> {
    register_with(ops, filter, &Options::new())
}

/// [`register`] with options.
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
