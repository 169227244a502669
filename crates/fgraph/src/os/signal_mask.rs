//! Code during which a thread blocks signals, and all sets of them.
//!
//! A thread that changes the user or group of a process waits until all threads have handled
//! `SIGSETXID`, and holds a lock of the C library meanwhile. So no thread of ours blocks that
//! signal, and no other thread does while it runs functions of the C library that take locks.
//!
//! # Safety
//!
//! The unsafe code makes a system call with pointers to live locals.

use core::ptr;

use super::trap_stack::TrapStack;
use crate::arch::trampoline::{BLOCKED_SIGNALS, signal_set};

/// The signal by which the C library cancels a thread.
const SIGCANCEL: i32 = 32;
/// The signal by which the C library makes a thread change its user or group.
const SIGSETXID: i32 = 33;

/// Runs `work`, in which this thread may trap. Meanwhile only handlers of traps and faults run,
/// because another might block these signals, and they have an alternate stack with enough room.
/// The C library's handler runs too, which does neither: a thread that holds the lock for creating
/// threads waits until it has, and `work` may wait for that lock.
pub(crate) fn with_traps<R>(work: impl FnOnce() -> R) -> R {
    let unblocked = signal_set([libc::SIGTRAP, libc::SIGILL, SIGSETXID]);
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

/// While this exists, this thread blocks the signals that are sent to a process, and so do the
/// threads that it makes, permanently: handlers of the program do not run there. Faults and traps
/// stay unblocked: blocking them would end the process. So do the C library's own signals.
#[derive(Debug)]
pub(crate) struct Quiet(u64);

impl Quiet {
    pub(crate) fn new() -> Self {
        let (set, mut before) = (BLOCKED_SIGNALS & !signal_set([SIGCANCEL, SIGSETXID]), 0);
        change_mask(libc::SIG_BLOCK, &set, &mut before);
        Self(before)
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        change_mask(libc::SIG_SETMASK, &self.0, ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Returns for each of some signals if the thread blocks it.
    fn blocked() -> [bool; 5] {
        let mut blocked = 0;
        change_mask(libc::SIG_BLOCK, &0, &mut blocked);
        let signals = [
            libc::SIGTERM,
            libc::SIGTRAP,
            libc::SIGSEGV,
            SIGCANCEL,
            SIGSETXID,
        ];
        signals.map(|signal| blocked & signal_set([signal]) != 0)
    }

    #[test]
    fn only_code_that_waits_for_no_lock_blocks_the_signal_for_new_users() {
        assert_eq!(with_traps(blocked), [true, false, false, true, false]);
        assert_eq!(without_signals(blocked), [true, false, false, true, true]);
        let quiet = Quiet::new();
        let thread = thread::spawn(blocked);
        assert_eq!(blocked(), [true, false, false, false, false]);
        drop(quiet);
        assert_eq!(thread.join().unwrap(), [true, false, false, false, false]);
        assert_eq!(blocked(), [false; 5]);
    }
}
