//! Reads clocks in threads that get SIGSEGV when they read the processor's counter.
//!
//! A program requests that with `PR_SET_TSC` for one thread; the threads and processes that this
//! thread makes inherit it. The C library's `clock_gettime` reads the counter, too, and faults
//! there. The kernel may always read it.
//!
//! # Safety
//!
//! The unsafe code makes system calls that write to live locals.

use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::system_call::system_call;

static EXPECTED: AtomicBool = AtomicBool::new(false);

/// Makes all later readings avoid the fault.
pub(super) fn expect() {
    EXPECTED.store(true, Ordering::Relaxed);
}

/// Returns true if readings must avoid the fault.
#[inline(always)]
pub(super) fn are_expected() -> bool {
    // Relaxed: the thread that requests faults has stored this itself, or a thread from which it
    // inherits them has.
    EXPECTED.load(Ordering::Relaxed)
}

/// Runs `read`, which reads the counter, while the thread gets no fault for that.
///
/// All signals are blocked meanwhile: no signal handler of the program may find the counter
/// readable.
#[cold]
pub(super) fn without(read: impl FnOnce() -> u64) -> u64 {
    let (all, mut before, mut mode) = (!0_u64, 0_u64, libc::PR_TSC_ENABLE);
    let change_mask = |how: i32, set: *const u64, before: *mut u64| {
        let (set, before) = (set.expose_provenance(), before.expose_provenance());
        // SAFETY: the kernel gets null, or live signal sets of the size that it is told.
        unsafe {
            system_call(
                libc::SYS_rt_sigprocmask,
                [how as usize, set, before, size_of::<u64>(), 0],
            )
        };
    };
    let prctl = |option: i32, argument: usize| {
        // SAFETY: the call writes to the live local `mode`, or to nothing.
        unsafe { system_call(libc::SYS_prctl, [option as usize, argument, 0, 0, 0]) };
    };
    change_mask(libc::SIG_BLOCK, &raw const all, &raw mut before);
    prctl(libc::PR_GET_TSC, (&raw mut mode).expose_provenance());
    // SAFETY: `mode` is a live local; the read is volatile because the kernel may have written it.
    let mode = unsafe { (&raw const mode).read_volatile() };
    prctl(libc::PR_SET_TSC, libc::PR_TSC_ENABLE as usize);
    let ticks = read();
    prctl(libc::PR_SET_TSC, mode as usize);
    change_mask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
    ticks
}

/// Does the work of the C library's `clock_gettime` with a system call.
#[cold]
pub(super) fn clock_gettime(clock: libc::clockid_t, time: &mut libc::timespec) {
    let time = ptr::from_mut(time).expose_provenance();
    // SAFETY: the kernel writes to `time`, which is borrowed mutably.
    unsafe { system_call(libc::SYS_clock_gettime, [clock as usize, time, 0, 0, 0]) };
}
