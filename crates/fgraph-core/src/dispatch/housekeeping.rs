//! Finds dead frames and drops them.

use core::ptr;

use super::lost;
use crate::fgraph::FGRAPH;
use crate::frame::Frame;
use crate::shadow::ShadowStack;
use crate::thread::Thread;

/// Returns true if a call at `return_slot_addr` is on the stack that the thread was last seen on,
/// and no frame there is in its way. Drops the dead frames. `tail` tells whether the call returns
/// to our trampoline.
pub fn is_clear(thread: &Thread, return_slot_addr: usize, tail: bool) -> bool {
    if !thread.is_on_stack(return_slot_addr) {
        return false;
    }
    if !thread.is_thread_stack() {
        return make_way(thread, &thread.shadow, return_slot_addr, tail).is_some();
    }
    // SAFETY: the newest frame, or the sentinel.
    let newest = unsafe { (*thread.shadow.newest()).return_slot_addr };
    // A tail call is where the newest frame is. Any other call above that may be on another stack.
    if return_slot_addr > newest && (FGRAPH.0.stacks().is_alternate)(return_slot_addr) {
        return false;
    }
    let dropped = |word| lost::dropped(thread, word);
    let shadow = &thread.shadow;
    shadow.drop_gone(return_slot_addr, tail, |_| true, dropped)
}

/// Drops the frames on a spare stack, which the thread has taken, that are in the way of a call at
/// `return_slot_addr` and surely dead. Gives the place of the newest that is left, or `None` if one
/// that may live is in the way.
pub fn make_way(
    thread: &Thread,
    shadow: &ShadowStack,
    return_slot_addr: usize,
    tail: bool,
) -> Option<usize> {
    // Calls of another stack may be another thread's, or lie between calls that go on here.
    let is_current = ptr::eq(shadow, &raw const thread.shadow);
    let lost = |word| match is_current {
        true => lost::dropped(thread, word),
        false => lost::lost(thread, word),
    };
    let is_clear = shadow.drop_gone(return_slot_addr, tail, is_gone, lost);
    // SAFETY: the newest frame, or the sentinel.
    is_clear.then(|| unsafe { (*shadow.newest()).return_slot_addr })
}

/// Drops all frames on a spare stack, which the thread has taken, that are surely dead; whether
/// none is left.
pub fn drop_gone(thread: &Thread, shadow: &ShadowStack) -> bool {
    let lost = |word| lost::lost(thread, word);
    while !shadow.is_empty() && shadow.drop_newest_if(is_gone, lost) {}
    shadow.is_empty()
}

/// Ends what a thread that is gone has left in the middle: the calls that it was in are lost.
/// `false` if another thread uses its own stack still: it has taken it, and nothing there is
/// touched, or it tells of the return of a call there, whose frame it writes to when it is done.
pub fn abandon(thread: &Thread) -> bool {
    thread.leave_stack();
    thread.set_deferred(ptr::null_mut());
    if !thread.thread_stack.claim.take(thread) {
        return false;
    }
    let shadow = &thread.thread_stack.shadow;
    let lost = |word| lost::lost(thread, word);
    while !shadow.is_empty() && shadow.drop_newest_if(|_| true, lost) {}
    let is_ended = shadow.is_empty();
    thread.thread_stack.claim.give_back(thread);
    is_ended
}

/// Returns true if a call is surely over.
pub(super) fn is_gone(frame: &Frame) -> bool {
    (FGRAPH.0.stacks().is_gone)(frame.return_slot_addr, frame.return_address)
}
