//! Helpers for tests of the dispatch.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64};

use fgraph_core::registration::Catch;
use fgraph_core::site::SiteName;
use fgraph_core::site::module;
use fgraph_core::{Module, Site};

/// Catches panics of callbacks, and forgets what they say.
pub(crate) struct StdCatch;

impl Catch for StdCatch {
    fn catch<R>(call: impl FnOnce() -> R) -> Result<R, *mut ()> {
        catch_unwind(AssertUnwindSafe(call)).map_err(|_| ptr::dangling_mut())
    }
}

static MODULE: Module = module("/model", &());

/// A site of its own, of a function that does not exist.
pub(crate) fn site() -> &'static Site {
    Box::leak(Box::new(Site {
        entry: 0x1000,
        body: 0x1005,
        interest: AtomicU16::new(0),
        lead: 0,
        state: AtomicU8::new(0),
        inner: [0; 4],
        name: SiteName::new("function"),
        index: 0,
        module: &MODULE,
        stub: 0,
        runtime: AtomicU64::new(0),
    }))
}
