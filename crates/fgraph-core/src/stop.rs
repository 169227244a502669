//! The permanent stop.
//!
//! When fgraph finds a contradiction that cannot be shown to be harmless, it stops tracing in this
//! process: every slot gets the stub permanently. Calls in progress still return to their callers.
//! It is the kernel's `ftrace_graph_stop()`.

use core::sync::atomic::{AtomicU32, Ordering, fence};

use crate::MAX_USERS;
use crate::fgraph::FGRAPH;

/// The reason for a stop: a call returned whose frame is not on its thread's shadow stack.
pub const STRAY_FRAME: u32 = 2;

static STOPPED: AtomicU32 = AtomicU32::new(0);

/// Stops permanently, for the reason `code`, which is not 0. The first reason is kept.
#[cold]
pub fn stop(code: u32) {
    // SeqCst here and in `reason`: a thread that publishes a slot checks the reason afterwards.
    // Either it sees the reason and clears its slot, or the stub is stored after the published
    // value.
    let _ = STOPPED.compare_exchange(0, code, Ordering::SeqCst, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    for index in 0..MAX_USERS {
        FGRAPH.0.slots.retire(index);
    }
}

/// Returns the reason of the stop; 0 if there was none.
pub fn reason() -> u32 {
    fence(Ordering::SeqCst);
    STOPPED.load(Ordering::SeqCst)
}
