//! From a library that has come or gone to a user.

use crate::fgraph::FGRAPH;
use crate::frame;
use crate::ops::LibraryEvent;
use crate::thread::Thread;

/// Tells the user in `slot` of a library, if it is not younger than `epoch`.
///
/// # Safety
///
/// `thread` must be the running thread's state, marked as inside, in no callback.
pub unsafe fn tell_of_library(thread: &Thread, slot: usize, epoch: u64, event: &LibraryEvent<'_>) {
    let header = FGRAPH.0.slots.acquire(&thread.mark, slot);
    // SAFETY: the mark keeps the registration until it is cleared.
    unsafe {
        if !frame::younger((*header).stamp, frame::stamp(epoch)) {
            (*header).tell(event);
        }
    }
    thread.mark.clear();
}
