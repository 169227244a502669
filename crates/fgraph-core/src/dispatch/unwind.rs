//! From a call that is unwound to the users that accepted its entry.

use super::leave::{end_deferred, follow, tell};
use super::{housekeeping, lost};
use crate::frame::Frame;
use crate::regs::ReturnRegs;
use crate::stop;
use crate::thread::Thread;

/// Gives the end of a call that does not return, because it is unwound, to its users.
///
/// # Safety
///
/// `frame` must be what [`super::enter()`] returned for the call that is being unwound in the
/// running thread, whose state is `thread`; the thread must be marked as inside.
pub unsafe fn unwind(thread: &Thread, frame: *mut Frame) {
    let mut regs = ReturnRegs::unwinding(frame, thread);
    if !thread.shadow.holds(frame) && !follow(thread, frame) {
        // SAFETY: handed on.
        unsafe { end_deferred(&mut regs, frame, thread) };
        thread.leave_to_unwinder(frame);
    } else if thread.shadow.has(frame) {
        let dropped = |word| lost::dropped(thread, word);
        let is_gone = |above: &Frame| thread.is_thread_stack() || housekeeping::is_gone(above);
        thread.shadow.drop_above_unwound(frame, is_gone, dropped);
        // SAFETY: the frame is on the stack; the rest handed on.
        unsafe { tell(&mut regs, frame, thread, (*frame).word) };
    } else {
        stop::stop(stop::STRAY_FRAME);
    }
}
