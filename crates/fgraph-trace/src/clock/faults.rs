//! Reading clocks in threads that get SIGSEGV where they read the processor's counter.
//!
//! A program asks for that by `PR_SET_TSC`, for one thread, which the threads and processes that it
//! makes inherit. The C library's `clock_gettime` reads the counter as well. The kernel may always.
//!
//! # Safety
//!
//! The unsafe code makes system calls that write to live locals.

use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::system_call::system_call;

static EXPECTED: AtomicBool = AtomicBool::new(false);

/// Reads clocks with care from now on.
pub(super) fn expect() {
    EXPECTED.store(true, Ordering::Relaxed);
}

/// Returns true if clocks are to be read with care.
#[inline(always)]
pub(super) fn are_expected() -> bool {
    // Relaxed: the thread that is about to get faults has set it itself, or was made by one that
    // has.
    EXPECTED.load(Ordering::Relaxed)
}

/// Runs `read`, which reads the counter, while the thread gets no fault for that.
///
/// All signals are blocked meanwhile, so that no handler of the program finds the counter readable.
#[cold]
pub(super) fn without(read: impl FnOnce() -> u64) -> u64 {
    let (all, mut before, mut mode) = (!0_u64, 0_u64, libc::PR_TSC_ENABLE);
    let change_mask = |how: i32, set: *const u64, before: *mut u64| {
        let (set, before) = (set.expose_provenance(), before.expose_provenance());
        // SAFETY: null, or live sets of the size that the kernel is told.
        unsafe {
            system_call(
                libc::SYS_rt_sigprocmask,
                [how as usize, set, before, size_of::<u64>(), 0],
            )
        };
    };
    let prctl = |option: i32, argument: usize| {
        // SAFETY: it writes to `mode`, or nothing.
        unsafe { system_call(libc::SYS_prctl, [option as usize, argument, 0, 0, 0]) };
    };
    change_mask(libc::SIG_BLOCK, &raw const all, &raw mut before);
    prctl(libc::PR_GET_TSC, (&raw mut mode).expose_provenance());
    // SAFETY: the kernel may have written it.
    let mode = unsafe { (&raw const mode).read_volatile() };
    prctl(libc::PR_SET_TSC, libc::PR_TSC_ENABLE as usize);
    let ticks = read();
    prctl(libc::PR_SET_TSC, mode as usize);
    change_mask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
    ticks
}

/// As the C library's `clock_gettime`, by a system call.
#[cold]
pub(super) fn clock_gettime(clock: libc::clockid_t, time: &mut libc::timespec) {
    let time = ptr::from_mut(time).expose_provenance();
    // SAFETY: the time is written to.
    unsafe { system_call(libc::SYS_clock_gettime, [clock as usize, time, 0, 0, 0]) };
}
