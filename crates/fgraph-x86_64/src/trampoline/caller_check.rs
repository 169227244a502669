//! Caller-checking trampolines, which also disable cancellation during dispatch.
//!
//! A cancelled thread (`pthread_cancel`) is unwound from where it is: from the next function that
//! is a cancellation point, for example `write`; or from any instruction, if it has requested that
//! (`PTHREAD_CANCEL_ASYNCHRONOUS`). A callback cannot be unwound that way, because the code that
//! catches its panics catches this, too, and aborts. So where threads may be cancelled, calls go
//! through twins of the trampolines that disable cancellation during dispatch. The same twins check
//! the caller if there is code that must not meet another return address
//! ([`callers`](fgraph_core::callers)). A word says which of these is needed ([`CHECKS`]); while
//! none is, the twins take the fast path like other trampolines.
//!
//! ```text
//!   entry trampoline -> enter_checked:  disable -> dispatch -> restore
//!   return point     -> leave_checked:  disable -> dispatch -> restore
//!                                                                      ^
//!                       a cancellation that came meanwhile acts here, or at the next
//!                       cancellation point
//! ```
//!
//! A cancellation that acts here is like one at the first instruction of the body, or at the first
//! after the call. One that acts before cancellation is disabled, or after it is restored, unwinds
//! through the trampolines' code, and through these functions. They have nothing to clean up, and
//! so no table of landing pads, in which an unwinder would not find the interrupted instruction.
//!
//! Between the two calls of the C library and the trampoline the thread is marked as inside, so
//! none of this is traced.

use core::arch::asm;
use core::ffi::c_int;
use core::mem::{self, offset_of};
use core::ptr;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use fgraph_core::dispatch;
use fgraph_core::frame::Frame;
use fgraph_core::regs::{EntryRegs, ReturnRegs, return_address_at};
use fgraph_core::site::Site;
use fgraph_core::thread::{Cancellation, Thread};

use super::{calls, host};

const PTHREAD_CANCEL_ENABLE: c_int = 0;
const PTHREAD_CANCEL_DISABLE: c_int = 1;
const PTHREAD_CANCEL_DEFERRED: c_int = 0;
const PTHREAD_CANCEL_ASYNCHRONOUS: c_int = 1;

/// The signal that the C library sends to cancelled threads.
const SIGCANCEL: c_int = 32;

/// The required checks, one bit each; 0 if there is none.
pub(super) static CHECKS: AtomicU8 = AtomicU8::new(0);

/// There is code that must not meet another return address than its own.
const CALLERS: u8 = 1;
/// Threads may be cancelled without a call of [`expect_cancellation`] before.
const UNANNOUNCED: u8 = 2;
/// Threads are cancelled.
const CANCELLED: u8 = 4;

/// Declares that there is code that must not meet another return address than its own.
pub(super) fn look_at_callers() {
    CHECKS.fetch_or(CALLERS, Ordering::Relaxed);
}

/// Sets if threads may be cancelled without a call of [`expect_cancellation`] before.
pub(super) fn set_unannounced(may_be: bool) {
    match may_be {
        true => CHECKS.fetch_or(UNANNOUNCED, Ordering::Relaxed),
        false => CHECKS.fetch_and(!UNANNOUNCED, Ordering::Relaxed),
    };
}

/// Declares that threads are cancelled from now on.
pub(super) fn expect_cancellation() {
    CHECKS.fetch_or(CANCELLED, Ordering::Relaxed);
}

/// Returns true if cancellation must be disabled. Call it while `thread` is marked: then a thread
/// that expects cancellation, makes a heavy barrier and waits until the thread is not marked knows
/// that cancellation is disabled from then on.
#[inline(always)]
fn is_needed(thread: &Thread) -> bool {
    // This holds even if cancellation was disabled for a callback that was left with `siglongjmp`,
    // or when the thread's state was made.
    CHECKS.load(Ordering::Relaxed) & (UNANNOUNCED | CANCELLED) != 0
        || thread.saved_cancel.get().is_some()
}

/// Disables cancellation; returns the state to restore.
fn disable() -> Cancellation {
    let mut before = Cancellation {
        state: PTHREAD_CANCEL_DISABLE,
        kind: PTHREAD_CANCEL_DEFERRED,
        blocks: None,
    };
    // SAFETY: the C library writes to live locals.
    unsafe {
        host::set_cancel_state(PTHREAD_CANCEL_DISABLE, &mut before.state);
        host::set_cancel_type(PTHREAD_CANCEL_DEFERRED, &mut before.kind);
    }
    // A signal may be on its way, or about to be sent, and its handler does not check the state;
    // and the C library sets the type itself while it waits in a system call.
    if before.kind == PTHREAD_CANCEL_ASYNCHRONOUS {
        before.blocks = Some(change_mask(SIG_BLOCK));
    }
    before
}

/// Reverts [`disable`]. The thread may end in here.
///
/// # Safety
///
/// The callers, up to the trampoline, must have no work left to do.
unsafe fn restore(before: Cancellation) {
    // SAFETY: no pointers are passed; the caller guarantees that its frames can be unwound.
    unsafe {
        if before.state == PTHREAD_CANCEL_ENABLE {
            host::set_cancel_state(PTHREAD_CANCEL_ENABLE, ptr::null_mut());
        }
        if before.kind == PTHREAD_CANCEL_ASYNCHRONOUS {
            if before.blocks == Some(false) {
                change_mask(SIG_UNBLOCK);
            }
            // Last, because the C library does not note that the thread was cancelled if the change
            // of the state lets a cancellation act.
            host::set_cancel_type(PTHREAD_CANCEL_ASYNCHRONOUS, ptr::null_mut());
        }
    }
}

/// Calls [`disable`] for callbacks of `thread`.
fn disable_in(thread: &Thread) -> Cancellation {
    // A callback that a signal handler has left with `siglongjmp` has restored nothing, but the
    // signal mask may be as before. The same holds after the thread's state was made.
    let saved = thread.saved_cancel.get().map(|mut before| {
        if before.kind == PTHREAD_CANCEL_ASYNCHRONOUS {
            let blocks = change_mask(SIG_BLOCK);
            before.blocks.get_or_insert(blocks);
        }
        before
    });
    let before = saved.unwrap_or_else(disable);
    thread.saved_cancel.set(Some(before));
    before
}

/// Reverts [`disable_in`].
///
/// # Safety
///
/// The contract of [`restore`] holds.
unsafe fn restore_in(thread: &Thread, before: Cancellation) {
    thread.saved_cancel.set(None);
    // SAFETY: the caller keeps the same contract.
    unsafe { restore(before) };
}

const SIG_BLOCK: c_int = 0;
const SIG_UNBLOCK: c_int = 1;

/// Blocks or unblocks the signal with a bare system call, because the C library's function ignores
/// this signal. Returns true if it was blocked.
fn change_mask(how: c_int) -> bool {
    let (set, mut before) = (1u64 << (SIGCANCEL - 1), 0u64);
    host::change_signal_mask(how, &set, &mut before);
    before & set != 0
}

/// Calls [`calls::ATTACH`], with cancellation disabled until the end of the dispatch.
pub(super) static ATTACH_CHECKED: AtomicUsize = AtomicUsize::new(0);

/// Sets [`ATTACH_CHECKED`].
pub(super) fn install() {
    ATTACH_CHECKED.store(attach_checked as *const () as usize, Ordering::Relaxed);
}

#[unsafe(link_section = "fgraph_text")]
unsafe extern "C-unwind" fn attach_checked() -> *const Thread {
    let mut before = disable();
    // The trampoline has blocked all signals.
    before.blocks = None;
    // SAFETY: the word is set to such a function before anything is patched.
    let attach: calls::Attach = unsafe { mem::transmute(calls::ATTACH.load(Ordering::Relaxed)) };
    let thread = attach();
    // SAFETY: null, or a state that is never unmapped.
    match unsafe { thread.as_ref() } {
        Some(thread) => thread.saved_cancel.set(Some(before)),
        // SAFETY: there is no work left: the call is not traced.
        None => unsafe { restore(before) },
    }
    thread
}

/// Calls [`calls::enter`], with cancellation disabled if that is needed, and without a frame
/// for a call by code that must not meet another return address.
#[unsafe(link_section = "fgraph_text")]
pub(super) unsafe extern "C-unwind" fn enter_checked(
    regs: *mut EntryRegs,
    site: &Site,
    thread: &Thread,
    return_slot_addr: usize,
    users: u64,
    stamp: u64,
) -> *mut Frame {
    let before = is_needed(thread).then(|| disable_in(thread));
    // The thread is marked meanwhile, so none of this is traced.
    // SAFETY: the trampoline passes the return slot of the call.
    let return_address = unsafe { return_address_at(return_slot_addr) };
    // SAFETY: the trampoline keeps the same contract.
    let frame = unsafe {
        match calls::FGRAPH.may_mislead(return_address) {
            true => calls::enter(regs, site, thread, return_slot_addr, users, stamp),
            false => calls::enter_only(regs, site, thread, return_slot_addr, users, stamp),
        }
    };
    match before {
        // SAFETY: there is no work left: the entry is dispatched.
        Some(before) => unsafe { restore_at_entry(regs, thread, frame, before) },
        None => thread.dispatched.set(frame),
    }
    frame
}

/// Calls [`calls::enter_only`], with cancellation disabled if that is needed.
#[unsafe(link_section = "fgraph_text")]
pub(super) unsafe extern "C-unwind" fn enter_only_checked(
    regs: *mut EntryRegs,
    site: &Site,
    thread: &Thread,
    return_slot_addr: usize,
    users: u64,
    stamp: u64,
) -> *mut Frame {
    let before = is_needed(thread).then(|| disable_in(thread));
    // SAFETY: the trampoline keeps the contract of `enter`; afterwards there is no work left.
    unsafe {
        let frame = calls::enter_only(regs, site, thread, return_slot_addr, users, stamp);
        if let Some(before) = before {
            restore_at_entry(regs, thread, frame, before);
        }
        frame
    }
}

/// Calls [`restore_in`] after the dispatch of an entry, when the thread is not marked any more.
///
/// # Safety
///
/// The contract of [`restore`] holds; `regs` must be the trampoline's registers, and `frame` its
/// result.
#[inline(always)]
unsafe fn restore_at_entry(
    regs: *mut EntryRegs,
    thread: &Thread,
    frame: *mut Frame,
    before: Cancellation,
) {
    // Marked as the trampoline has marked it: with its stack pointer. In assembly, because without
    // inlining any function called here would be traced. SAFETY: writes `entered_sp`.
    unsafe {
        asm!(
            "mov qword ptr [{thread} + {entered_sp}], {sp}",
            thread = in(reg) thread as *const Thread,
            entered_sp = const offset_of!(Thread, entered_sp),
            sp = in(reg) regs,
            options(nostack, preserves_flags),
        );
    }
    // For an unwinder, if the thread ends here, or before the body is called.
    thread.dispatched.set(frame);
    // SAFETY: the caller keeps the same contract.
    unsafe { restore_in(thread, before) };
    thread.entered_sp.store(0, Ordering::Release);
}

/// Calls [`calls::leave`], with cancellation disabled if that is needed.
#[unsafe(link_section = "fgraph_text")]
pub(super) unsafe extern "C-unwind" fn leave_checked(
    regs: *mut ReturnRegs,
    frame: *mut Frame,
    thread: &Thread,
) -> *const Thread {
    if !is_needed(thread) {
        // SAFETY: the trampoline keeps the same contract.
        return unsafe { calls::leave(regs, frame, thread) };
    }
    let before = disable_in(thread);
    // SAFETY: the trampoline keeps the contract of `leave`; no call is traced before the thread is
    // unmarked.
    let (result, was_popped) = unsafe {
        let result = dispatch::leave(regs, frame, thread);
        // An unwinder that may come reads the caller's registers in the frame.
        (result, thread.shadow.push_back(frame))
    };
    // SAFETY: there is no work left except for the frame, which may stay.
    unsafe { restore_in(thread, before) };
    if was_popped {
        thread.retract(frame);
    }
    result
}

/// Dispatches the unwinding of `frame` to the users, with cancellation disabled if that is needed.
///
/// # Safety
///
/// The contract of [`dispatch::unwind`] holds.
pub(super) unsafe fn unwind(thread: &Thread, frame: *mut Frame) {
    let before = is_needed(thread).then(|| disable_in(thread));
    // SAFETY: the caller keeps the same contract.
    unsafe { dispatch::unwind(thread, frame) };
    if let Some(before) = before {
        // SAFETY: there is no work left: the unwinding is dispatched.
        unsafe { restore_in(thread, before) };
    }
}
