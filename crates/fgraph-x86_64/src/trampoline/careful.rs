//! Trampolines that hold cancellation off, and look at who calls.
//!
//! A thread that is cancelled (`pthread_cancel`) is unwound from where it is: from the next
//! function that is a cancellation point, `write` for one; or from any instruction, if it has asked
//! for that (`PTHREAD_CANCEL_ASYNCHRONOUS`). A callback cannot be unwound so, because what catches
//! its panics catches this as well, and aborts. So where threads may be cancelled, calls go through
//! twins of the trampolines that disable cancellation while the users are asked and told. The same
//! twins look at who calls, where there is code whose calls may not be misled
//! ([`callers`](fgraph_core::callers)). A word says which of this is needed ([`CARE`]); while
//! nothing is, the twins take the short way as other trampolines do.
//!
//! ```text
//!   entry trampoline -> enter_carefully:  disable -> ask  -> restore
//!   return point     -> leave_carefully:  disable -> tell -> restore
//!                                                                 ^
//!                       a cancellation that came meanwhile acts here, or at the next
//!                       cancellation point
//! ```
//!
//! One that acts here is like one at the first instruction of the body, or at the first after the
//! call. One that acts before cancellation is disabled, or after it is restored, goes through the
//! trampolines' code, and through these functions: they have nothing to clean up, and so no table
//! of what to do where, in which an unwinder would miss the instruction that was interrupted.
//!
//! Between the two calls to the C library and the trampoline the thread is marked as inside, so
//! nothing of this is traced.

use core::arch::asm;
use core::ffi::{c_int, c_long};
use core::mem::{self, offset_of};
use core::ptr;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use fgraph_core::dispatch;
use fgraph_core::frame::Frame;
use fgraph_core::regs::{EntryRegs, ReturnRegs, return_address_at};
use fgraph_core::site::Site;
use fgraph_core::thread::{Cancellation, Thread};

unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int;
    fn syscall(number: c_long, ...) -> c_long;
}

const PTHREAD_CANCEL_ENABLE: c_int = 0;
const PTHREAD_CANCEL_DISABLE: c_int = 1;
const PTHREAD_CANCEL_DEFERRED: c_int = 0;
const PTHREAD_CANCEL_ASYNCHRONOUS: c_int = 1;

/// What the C library sends to threads that are cancelled.
const SIGCANCEL: c_int = 32;

/// What is to be heeded, a bit for each; nothing if 0.
pub(super) static CARE: AtomicU8 = AtomicU8::new(0);

/// There is code whose calls may not be misled.
const CALLERS: u8 = 1;
/// Threads may be cancelled without a call of [`expect_cancellation`] before.
const UNANNOUNCED: u8 = 2;
/// Threads are cancelled.
const CANCELLED: u8 = 4;

/// Says that there is code whose calls may not be misled.
pub(super) fn look_at_callers() {
    CARE.fetch_or(CALLERS, Ordering::Relaxed);
}

/// Says whether threads may be cancelled without a call of [`expect_cancellation`] before.
pub(super) fn set_unannounced(may_be: bool) {
    match may_be {
        true => CARE.fetch_or(UNANNOUNCED, Ordering::Relaxed),
        false => CARE.fetch_and(!UNANNOUNCED, Ordering::Relaxed),
    };
}

/// Says that threads are cancelled from now on.
pub(super) fn expect_cancellation() {
    CARE.fetch_or(CANCELLED, Ordering::Relaxed);
}

/// Whether cancellation is to be held off. To be asked while `thread` is marked, so that who
/// expects cancellation, makes a heavy barrier and waits until the thread is not marked, knows that
/// it is held off from then on.
#[inline(always)]
fn is_needed(thread: &Thread) -> bool {
    // Also where it was held off for a callback that was left by `siglongjmp`, or when the thread's
    // state was made.
    CARE.load(Ordering::Relaxed) & (UNANNOUNCED | CANCELLED) != 0
        || thread.saved_cancel.get().is_some()
}

/// Disables cancellation; returns what is to be restored.
fn disable() -> Cancellation {
    let mut before = Cancellation {
        state: PTHREAD_CANCEL_DISABLE,
        kind: PTHREAD_CANCEL_DEFERRED,
    };
    // SAFETY: live locals.
    unsafe {
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut before.state);
        pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &mut before.kind);
    }
    // A signal may be on its way, or about to be sent, and its handler does not ask for the state;
    // and the C library sets the type itself while it waits in a system call.
    if before.kind == PTHREAD_CANCEL_ASYNCHRONOUS {
        change_mask(SIG_BLOCK);
    }
    before
}

/// Undoes [`disable`]. The thread may end in here.
///
/// # Safety
///
/// Nothing may be left to be done for the callers, up to the trampoline.
unsafe fn restore(before: Cancellation) {
    // SAFETY: no pointers are passed; the caller vouches for what is unwound.
    unsafe {
        if before.state == PTHREAD_CANCEL_ENABLE {
            pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, ptr::null_mut());
        }
        if before.kind == PTHREAD_CANCEL_ASYNCHRONOUS {
            change_mask(SIG_UNBLOCK);
            // Last, because the C library does not note that the thread was cancelled if it is the
            // state that lets a cancellation act.
            pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, ptr::null_mut());
        }
    }
}

/// [`disable`] for callbacks of `thread`.
fn hold(thread: &Thread) -> Cancellation {
    // A callback that a signal handler has left by `siglongjmp` has restored nothing, but the mask
    // of signals may be as before. So it is after the thread's state was made.
    let saved = thread.saved_cancel.get();
    if saved.is_some_and(|before| before.kind == PTHREAD_CANCEL_ASYNCHRONOUS) {
        change_mask(SIG_BLOCK);
    }
    let before = saved.unwrap_or_else(disable);
    thread.saved_cancel.set(Some(before));
    before
}

/// Undoes [`hold`].
///
/// # Safety
///
/// As for [`restore`].
unsafe fn release(thread: &Thread, before: Cancellation) {
    thread.saved_cancel.set(None);
    // SAFETY: handed on.
    unsafe { restore(before) };
}

const SIG_BLOCK: c_int = 0;
const SIG_UNBLOCK: c_int = 1;

/// Blocks the signal, or lets it come again: by a bare system call, as the C library's function
/// leaves it out.
fn change_mask(how: c_int) {
    const RT_SIGPROCMASK: c_long = 14;
    let set = 1u64 << (SIGCANCEL - 1);
    // SAFETY: a live local of the size that the kernel is told.
    unsafe {
        syscall(
            RT_SIGPROCMASK,
            how,
            &raw const set,
            ptr::null_mut::<u64>(),
            size_of::<u64>(),
        )
    };
}

/// [`super::ATTACH`], with cancellation held off until the users have been asked or told.
pub(super) static ATTACH_CAREFULLY: AtomicUsize = AtomicUsize::new(0);

/// Sets [`ATTACH_CAREFULLY`].
pub(super) fn install() {
    ATTACH_CAREFULLY.store(attach_carefully as *const () as usize, Ordering::Relaxed);
}

#[unsafe(link_section = "fgraph_text")]
unsafe extern "C-unwind" fn attach_carefully() -> *const Thread {
    let before = disable();
    // SAFETY: set before anything is patched.
    let attach: super::Attach = unsafe { mem::transmute(super::ATTACH.load(Ordering::Relaxed)) };
    let thread = attach();
    // SAFETY: null, or never unmapped.
    match unsafe { thread.as_ref() } {
        Some(thread) => thread.saved_cancel.set(Some(before)),
        // SAFETY: done.
        None => unsafe { restore(before) },
    }
    thread
}

/// [`super::enter`], with cancellation held off where that is needed, and without a frame for a
/// call by code that may not be misled.
#[unsafe(link_section = "fgraph_text")]
pub(super) unsafe extern "C-unwind" fn enter_carefully(
    regs: *mut EntryRegs,
    site: &Site,
    thread: &Thread,
    return_slot_addr: usize,
    users: u64,
    stamp: u64,
) -> *mut Frame {
    let before = is_needed(thread).then(|| hold(thread));
    // While the thread is marked: nothing of this is traced.
    // SAFETY: the trampoline passes where it stands.
    let return_address = unsafe { return_address_at(return_slot_addr) };
    // SAFETY: handed on.
    let frame = unsafe {
        match super::FGRAPH.callers.may_be_misled(return_address) {
            true => super::enter(regs, site, thread, return_slot_addr, users, stamp),
            false => super::enter_only(regs, site, thread, return_slot_addr, users, stamp),
        }
    };
    match before {
        // SAFETY: done.
        Some(before) => unsafe { release_at_entry(regs, thread, frame, before) },
        None => thread.asked.set(frame),
    }
    frame
}

/// [`super::enter_only`], with cancellation held off where that is needed.
#[unsafe(link_section = "fgraph_text")]
pub(super) unsafe extern "C-unwind" fn enter_only_carefully(
    regs: *mut EntryRegs,
    site: &Site,
    thread: &Thread,
    return_slot_addr: usize,
    users: u64,
    stamp: u64,
) -> *mut Frame {
    let before = is_needed(thread).then(|| hold(thread));
    // SAFETY: as in `enter`; done.
    unsafe {
        let frame = super::enter_only(regs, site, thread, return_slot_addr, users, stamp);
        if let Some(before) = before {
            release_at_entry(regs, thread, frame, before);
        }
        frame
    }
}

/// [`release`] when the users have been asked, and the thread is not marked any more.
///
/// # Safety
///
/// As for [`restore`]; `regs` must be where the trampoline has the registers, and `frame` what it
/// gets.
#[inline(always)]
unsafe fn release_at_entry(
    regs: *mut EntryRegs,
    thread: &Thread,
    frame: *mut Frame,
    before: Cancellation,
) {
    // As the trampoline has marked it: with its stack pointer. In assembly, because where nothing
    // is inlined any function that were called for it would be traced. SAFETY: writes `entered_sp`.
    unsafe {
        asm!(
            "mov qword ptr [{thread} + {entered_sp}], {sp}",
            thread = in(reg) thread as *const Thread,
            entered_sp = const offset_of!(Thread, entered_sp),
            sp = in(reg) regs,
            options(nostack, preserves_flags),
        );
    }
    // For the unwinder that comes by if the thread ends here, or before the body is called.
    thread.asked.set(frame);
    // SAFETY: handed on.
    unsafe { release(thread, before) };
    thread.entered_sp.store(0, Ordering::Release);
}

/// [`super::leave`], with cancellation held off where that is needed.
#[unsafe(link_section = "fgraph_text")]
pub(super) unsafe extern "C-unwind" fn leave_carefully(
    regs: *mut ReturnRegs,
    frame: *mut Frame,
    thread: &Thread,
) -> *const Thread {
    if !is_needed(thread) {
        // SAFETY: handed on.
        return unsafe { super::leave(regs, frame, thread) };
    }
    let before = hold(thread);
    // SAFETY: as in `leave`; nothing is traced before the thread is unmarked.
    let (result, was_popped) = unsafe {
        let result = dispatch::leave(regs, frame, thread);
        // The unwinder, if it comes by, reads the caller's registers in the frame.
        (result, thread.shadow.push_back(frame))
    };
    // SAFETY: done but for the frame, which may stay.
    unsafe { release(thread, before) };
    if was_popped {
        thread.retract(frame);
    }
    result
}

/// Tells the users of `frame` that it is unwound, with cancellation held off where that is needed.
///
/// # Safety
///
/// As for [`dispatch::unwind`].
pub(super) unsafe fn unwind(thread: &Thread, frame: *mut Frame) {
    let before = is_needed(thread).then(|| hold(thread));
    // SAFETY: handed on.
    unsafe { dispatch::unwind(thread, frame) };
    if let Some(before) = before {
        // SAFETY: done.
        unsafe { release(thread, before) };
    }
}
