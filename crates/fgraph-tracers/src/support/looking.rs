//! The part of a module that the tracers have looked at when they start.

use std::sync::atomic::{AtomicBool, Ordering};

use fgraph::Options;

/// True if only functions that filters mention are looked at.
static LAZY: AtomicBool = AtomicBool::new(false);

/// Says whether tracers that are started from now on in this process are registered with
/// [`Options::lazy_sites`]: the agent does in programs that may be over soon.
pub fn look_lazily(lazy: bool) {
    // Relaxed: the thread that says so starts the tracers.
    LAZY.store(lazy, Ordering::Relaxed);
}

/// The options that tracers are registered with.
pub(crate) fn options() -> Options {
    // Their filters may name functions of libraries that are loaded later.
    Options::new()
        .lazy_sites(LAZY.load(Ordering::Relaxed))
        .allow_no_match()
}
