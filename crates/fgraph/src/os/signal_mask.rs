//! Code during which a thread blocks signals.
//!
//! # Safety
//!
//! The unsafe code makes a system call with pointers to live locals.

use core::ptr;

use super::trap_stack::TrapStack;
use crate::arch::trampoline::BLOCKED_SIGNALS;

/// The signal by which the C library makes a thread change its user or group.
const SIGSETXID: i32 = 33;

/// Runs `work`, in which this thread may trap. Meanwhile only handlers of traps and faults run,
/// because another might block these signals, and they have an alternate stack with enough room.
/// The C library's handler runs too, which does neither: a thread that holds the lock for creating
/// threads waits until it has, and `work` may wait for that lock.
pub(crate) fn with_traps<R>(work: impl FnOnce() -> R) -> R {
    let unblocked = [libc::SIGTRAP, libc::SIGILL, SIGSETXID];
    let unblocked = unblocked
        .iter()
        .fold(0, |set, signal| set | 1 << (signal - 1));
    let _stack = TrapStack::enter();
    let mut before = 0;
    change_mask(libc::SIG_BLOCK, &BLOCKED_SIGNALS, &mut before);
    change_mask(libc::SIG_UNBLOCK, &unblocked, ptr::null_mut());
    let result = work();
    change_mask(libc::SIG_SETMASK, &before, ptr::null_mut());
    result
}

/// Changes the signals that the thread blocks. The set is the kernel's: the C library's function
/// would leave out signals of its own.
fn change_mask(how: i32, set: &u64, before: *mut u64) {
    // SAFETY: a live set of the size that the kernel is told; `before` is null or a live set.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, set, before, size_of::<u64>()) };
}

/// Runs `work` with all signals blocked, except those of traps and faults, so that no handler can
/// leave it in the middle. It must not wait for a lock of the C library: the thread that has the
/// lock may wait for a handler.
pub(crate) fn without_signals<R>(work: impl FnOnce() -> R) -> R {
    let mut before = 0;
    change_mask(libc::SIG_BLOCK, &BLOCKED_SIGNALS, &mut before);
    let result = work();
    change_mask(libc::SIG_SETMASK, &before, ptr::null_mut());
    result
}
