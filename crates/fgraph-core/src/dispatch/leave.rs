//! From the return of a traced function to the users that accepted its entry.

use core::ptr;

use super::{errno, housekeeping, lost, ordered, put_errno_back};
use crate::claim;
use crate::fgraph::FGRAPH;
use crate::frame::{self, Frame, ORDERED};
use crate::machine::{self, Stack};
use crate::regs::{RETURN_DEFERRED, RETURN_UNWINDING, ReturnRegs};
use crate::stop;
use crate::thread::Thread;
use crate::users::chain::{TELLS_BY_LIST, TO_GO};

/// Gives a return to the users that accepted its entry, in reverse order, and removes the frame.
/// Returns the thread's state.
///
/// # Safety
///
/// `regs` must hold the results of the call that is back now in the running thread, `thread` be the
/// thread's state, and `frame` what [`super::enter()`] returned for it; `regs` must name the
/// frame; the thread must be marked as inside.
#[inline(always)]
pub unsafe fn leave(regs: *mut ReturnRegs, frame: *mut Frame, thread: &Thread) -> *const Thread {
    if thread.shadow.newest() != frame {
        // SAFETY: handed on.
        return unsafe { leave_slowly(regs, frame, thread) };
    }
    // SAFETY: handed on.
    unsafe { end(regs, frame, thread) }
}

/// [`leave`] for a frame that is not the newest of the stack that the thread was last seen on.
///
/// # Safety
///
/// The contract of [`leave`] holds.
#[cold]
#[inline(never)]
unsafe extern "C" fn leave_slowly(
    regs: *mut ReturnRegs,
    frame: *mut Frame,
    thread: &Thread,
) -> *const Thread {
    if !thread.shadow.holds(frame) && !follow(thread, frame) {
        // SAFETY: handed on.
        return unsafe { end_deferred(regs, frame, thread) };
    }
    if thread.is_thread_stack() && !thread.shadow.has(frame) {
        // It was dropped. The return address in it may still be right, and nothing else of it is
        // used.
        stop::stop(stop::STRAY_FRAME);
        return thread;
    }
    let dropped = |word| lost::dropped(thread, word);
    let is_gone = |above: &Frame| thread.is_thread_stack() || housekeeping::is_gone(above);
    let is_newest = thread.shadow.drop_above(frame, is_gone, dropped);
    // SAFETY: handed on.
    unsafe {
        if is_newest {
            end(regs, frame, thread)
        } else {
            end_deferred(regs, frame, thread)
        }
    }
}

/// Moves the thread to the stack that holds `frame`; `false` if another thread has taken it.
pub(super) fn follow(thread: &Thread, frame: *const Frame) -> bool {
    // SAFETY: states are never unmapped.
    let thread_stack: &'static Stack = unsafe { &*ptr::from_ref(&thread.thread_stack) };
    let stack = if thread_stack.shadow.holds(frame) {
        thread_stack
    } else {
        // SAFETY: it is on a spare stack, whose frames are not dropped while they may live, or on
        // another thread's own, which that thread is not on.
        unsafe { machine::holder(frame) }
    };
    let is_ours = stack.claim.take(thread);
    if is_ours {
        thread.leave_stack();
        thread.enter_stack(stack);
    }
    is_ours
}

/// Tells the users of a frame that stays where it is, because others above it may live or another
/// thread has the stack. The machine layer reads it once more afterwards, so it is given up only
/// when the thread comes to the next such case.
///
/// # Safety
///
/// The contract of [`leave`] holds.
pub(super) unsafe fn end_deferred(
    regs: *mut ReturnRegs,
    frame: *mut Frame,
    thread: &Thread,
) -> *const Thread {
    // SAFETY: the caller vouches for frame and registers.
    unsafe {
        let Some(word) = claim::begin_return(frame::shared_word(frame)) else {
            return thread;
        };
        (*regs).how |= RETURN_DEFERRED;
        thread.set_deferred(frame);
        tell(regs, frame, thread, word)
    }
}

/// Tells the first user.
///
/// # Safety
///
/// The contract of [`leave`] holds, and the frame is the newest.
#[inline(always)]
unsafe fn end(regs: *mut ReturnRegs, frame: *mut Frame, thread: &Thread) -> *const Thread {
    // SAFETY: the frame is on the stack; the rest handed on.
    unsafe { tell(regs, frame, thread, (*frame).word) }
}

/// Tells the first of the users in `word`, the frame's when it was last shared.
///
/// # Safety
///
/// The contract of [`leave`] holds, and the frame is on a shadow stack.
#[inline(always)]
pub(super) unsafe fn tell(
    regs: *mut ReturnRegs,
    frame: *mut Frame,
    thread: &Thread,
    word: u64,
) -> *const Thread {
    // Not the top: a signal handler may have left a callback by `siglongjmp` after that was moved
    // for a frame that has not become the newest.
    // SAFETY: the frame is on the stack.
    let (end, is_ordered) = unsafe { (Frame::end(frame), (*frame).tail & ORDERED != 0) };
    // SAFETY: handed on.
    unsafe {
        match is_ordered {
            true => ordered::tell(regs, thread, end, word),
            false => return_next(regs, thread, word & TO_GO | errno(thread), end, word),
        }
    }
}

/// Tells the next user of a return, or ends the return when there is none. `users` says which users
/// are yet to be told, and what `errno` was; `end` is where the last of their records ends. A chain
/// of jumps, as [`entry_next`](super::enter::entry_next).
///
/// # Safety
///
/// `regs` and `thread` must be as for [`leave`], `word` the frame's.
#[inline(always)]
pub(crate) unsafe fn return_next(
    regs: *mut ReturnRegs,
    thread: &Thread,
    mut users: u64,
    end: *mut u8,
    word: u64,
) -> *const Thread {
    let to_go = users & TO_GO;
    if to_go != 0 {
        let index = frame::last_slot(to_go);
        users &= users - 1;
        let header = FGRAPH.0.slots.acquire(&thread.hazard_slot, index as usize);
        // SAFETY: the hazard slot keeps the registration.
        let user = unsafe { &*header };
        if frame::younger(user.stamp, word) {
            // SAFETY: handed on.
            return unsafe { return_another(regs, thread, users, end, word) };
        }
        // SAFETY: the registers are this return's; the function is of this registration, which
        // accepted the entry and wrote its record then; records stand in the order of the slots.
        return unsafe { (user.ret)(regs, thread, users, end, word, header) };
    }
    if users & TELLS_BY_LIST != 0 {
        // SAFETY: handed on.
        return unsafe { ordered::tell_next(regs, thread, users, end, word) };
    }
    // SAFETY: handed on.
    unsafe { told_all(regs, thread, users) }
}

/// Ends a return: takes the frame from the shadow stack.
///
/// # Safety
///
/// The contract of [`return_next`] holds.
#[inline(always)]
pub(super) unsafe fn told_all(regs: *mut ReturnRegs, thread: &Thread, users: u64) -> *const Thread {
    thread.hazard_slot.clear();
    put_errno_back(thread, users);
    // SAFETY: the caller vouches for the registers.
    if unsafe { (*regs).how } == 0 {
        thread.shadow.pop();
        return thread;
    }
    // SAFETY: handed on.
    unsafe { told_without_return(regs, thread) }
}

/// Ends a frame that stays where it is.
///
/// # Safety
///
/// The contract of [`return_next`] holds.
#[cold]
#[inline(never)]
unsafe extern "C" fn told_without_return(regs: *mut ReturnRegs, thread: &Thread) -> *const Thread {
    // SAFETY: the caller vouches for the registers; `unwind` has seen the frame on the stack.
    unsafe {
        let frame = (*regs).frame;
        if (*regs).how == RETURN_UNWINDING {
            thread.shadow.unwound(frame);
            if !thread.is_thread_stack() {
                claim::note_unwound(frame::shared_word(frame));
            }
        }
    }
    thread
}

/// Goes on after a slot whose former owner, which accepted the entry, is gone.
///
/// # Safety
///
/// The contract of [`return_next`] holds.
#[cold]
#[inline(never)]
unsafe extern "C" fn return_another(
    regs: *mut ReturnRegs,
    thread: &Thread,
    users: u64,
    end: *mut u8,
    word: u64,
) -> *const Thread {
    // SAFETY: handed on.
    unsafe { return_next(regs, thread, users, end, word) }
}
