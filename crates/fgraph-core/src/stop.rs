//! The permanent stop.
//!
//! When something does not add up that cannot be proved harmless, fgraph traces no more in this
//! process: every slot gets the stub, and stays so. Calls that are going on still return to where
//! they came from. The kernel's `ftrace_graph_stop()`.

use core::sync::atomic::{AtomicU32, Ordering, fence};

use crate::MAX_USERS;
use crate::fgraph::FGRAPH;

/// A call came back whose frame is not on its thread's shadow stack.
pub const STRAY_FRAME: u32 = 2;

static STOPPED: AtomicU32 = AtomicU32::new(0);

/// Stops for good, for the reason `code`, which is not 0. The first reason is kept.
#[cold]
pub fn stop(code: u32) {
    // SeqCst, as in `reason`: whoever publishes a slot looks afterwards. Either it sees the reason
    // and takes its slot back, or the stub comes after what it has published.
    let _ = STOPPED.compare_exchange(0, code, Ordering::SeqCst, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    for index in 0..MAX_USERS {
        FGRAPH.0.slots.retire(index);
    }
}

/// The reason of the stop; 0 if there was none.
pub fn reason() -> u32 {
    fence(Ordering::SeqCst);
    STOPPED.load(Ordering::SeqCst)
}
