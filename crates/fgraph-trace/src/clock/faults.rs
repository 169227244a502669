//! Reading clocks in threads that get SIGSEGV where they read the processor's counter.
//!
//! A program asks for that by `PR_SET_TSC`, for one thread, which the threads and processes that it
//! makes inherit. The C library's `clock_gettime` reads the counter as well. The kernel may always.
//!
//! # Safety
//!
//! The unsafe code makes system calls that write to live locals.

use core::arch::asm;
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};

static EXPECTED: AtomicBool = AtomicBool::new(false);

/// Reads clocks with care from now on.
pub(super) fn expect() {
    EXPECTED.store(true, Ordering::Relaxed);
}

/// Whether to read clocks with care.
#[inline(always)]
pub(super) fn are_expected() -> bool {
    // Relaxed: the thread that is about to get faults has set it itself, or was made by one that
    // has.
    EXPECTED.load(Ordering::Relaxed)
}

/// Makes a system call with four arguments. The C library's function may be traced, and then no
/// trap may come while all signals are blocked.
///
/// # Safety
///
/// The call with these arguments must do no harm to the program's memory.
unsafe fn call(number: libc::c_long, args: [usize; 4]) {
    // SAFETY: the kernel changes these three registers, and what the caller vouches for.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => _,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
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
            call(
                libc::SYS_rt_sigprocmask,
                [how as usize, set, before, size_of::<u64>()],
            )
        };
    };
    let prctl = |option: i32, argument: usize| {
        // SAFETY: it writes to `mode`, or nothing.
        unsafe { call(libc::SYS_prctl, [option as usize, argument, 0, 0]) };
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

/// What `clock_gettime` gives, from the kernel.
#[cold]
pub(super) fn clock_gettime(clock: libc::clockid_t, time: &mut libc::timespec) {
    let time = ptr::from_mut(time).expose_provenance();
    // SAFETY: the time is written to.
    unsafe { call(libc::SYS_clock_gettime, [clock as usize, time, 0, 0]) };
}
