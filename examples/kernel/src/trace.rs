//! fgraph's runtime of this kernel: everything that the crate `fgraph` supplies in a process.
//!
//! | file | supplies |
//! |---|---|
//! | `attach.rs` | the arena of shadow stacks, and the function that gives a task its state |
//! | `state.rs` | the states, and the end of tasks |
//! | `contexts.rs` | states for interrupts that come in a callback |
//! | `functions.rs` | the list of functions, each with a site and a stub |
//! | `text.rs` | the writer of text |
//! | `control.rs` | users: registration, filters, the grace period |
//! | `filter.rs` | names and patterns |
//! | `backtrace.rs` | the calls that have led to a place |

mod attach;
pub(crate) mod backtrace;
pub(crate) mod contexts;
pub(crate) mod control;
mod filter;
pub(crate) mod functions;
pub(crate) mod state;
mod text;

use core::sync::atomic::{AtomicU64, Ordering};

use fgraph_core::frame::Frame;
use fgraph_x86_64::trampoline;

use crate::machine;
use crate::serial::println;

/// The places in fgraph at which interrupts have come.
#[derive(Debug)]
pub(crate) struct Places {
    /// In a trampoline or the dispatch.
    pub(crate) trampoline: AtomicU64,
    /// In a callback.
    pub(crate) callback: AtomicU64,
    /// While text was being written, on any processor.
    pub(crate) writing: AtomicU64,
}

impl Places {
    pub(crate) const fn new() -> Self {
        Self {
            trampoline: AtomicU64::new(0),
            callback: AtomicU64::new(0),
            writing: AtomicU64::new(0),
        }
    }

    /// Counts an interrupt of the code at an address, in the running task.
    pub(crate) fn count(&self, address: usize) {
        let places = [
            (&self.trampoline, trampoline::own_text().contains(&address)),
            (&self.callback, state::is_in_callback()),
            (&self.writing, text::is_being_written()),
        ];
        for (count, is_there) in places {
            count.fetch_add(u64::from(is_there), Ordering::Relaxed);
        }
    }
}

/// Ends the kernel: a frame and the stack do not belong together.
extern "C" fn abort(frame: *const Frame, stack_pointer: usize) -> ! {
    println!("FAIL: frame {frame:?} does not belong to the stack at {stack_pointer:#x}");
    backtrace::print_here(16);
    machine::leave(false)
}

/// Sets everything up. Returns the number of functions that can be traced.
pub(crate) fn prepare() -> usize {
    let trampolines = attach::prepare(abort);
    functions::prepare(&trampolines)
}
