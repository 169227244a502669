//! Small calls to the operating system that cannot fail, or whose failure says all.
//!
//! # Safety
//!
//! The unsafe code calls libc functions that take no pointers, or pointers to live locals.

pub(crate) mod maps;
pub(crate) mod membarrier;
pub(crate) mod memory;

use core::ptr;

use crate::arch::trampoline::HELD_OFF;

/// The calling thread's `errno`.
pub(crate) fn errno() -> i32 {
    // SAFETY: always valid in the calling thread.
    unsafe { *libc::__errno_location() }
}

/// The kernel's id of the calling thread.
pub(crate) fn thread_id() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// Whether the calling thread is the one that the process began with.
pub(crate) fn is_main_thread() -> bool {
    // SAFETY: no arguments.
    thread_id() == unsafe { libc::getpid() }.cast_unsigned()
}

/// The kernel's id of the process.
pub(crate) fn process_id() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::getpid() }.cast_unsigned()
}

/// The kernel's id of the thread that the calling thread's block is of, as the C library notes it
/// there: in the child of `vfork`, that is a thread of the parent. `None` if it notes none.
pub(crate) fn thread_of_block() -> Option<u32> {
    let mut clock = 0;
    // SAFETY: the calling thread's own block, and a live local.
    let error = unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &mut clock) };
    // The kernel's clock of a thread has the complement of its id in front of three bits.
    (error == 0).then_some(!(clock >> 3) as u32)
}

/// Whether the process has a thread `id`.
pub(crate) fn thread_exists(id: u32) -> bool {
    thread_exists_in(process_id(), id)
}

/// Whether a process has a thread `id`.
pub(crate) fn thread_exists_in(process: u32, id: u32) -> bool {
    // SAFETY: signal 0 is not sent, only checked.
    let failed = unsafe { libc::syscall(libc::SYS_tgkill, process, id, 0) != 0 };
    // The kernel calls what cannot be an id invalid.
    !(failed && [libc::ESRCH, libc::EINVAL].contains(&errno()))
}

/// Whether a debugger has attached to the calling thread, as far as `/proc` says.
pub(crate) fn is_debugged() -> bool {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let tracer = status
        .lines()
        .find_map(|line| line.strip_prefix("TracerPid:"));
    tracer.is_some_and(|tracer| tracer.trim() != "0")
}

/// Lets others run for a moment, also those of a lower priority. This is no cancellation point.
pub(crate) fn nap() {
    let moment = libc::timespec {
        tv_sec: 0,
        tv_nsec: 20_000,
    };
    // SAFETY: reads the local.
    unsafe { libc::syscall(libc::SYS_nanosleep, &moment, ptr::null::<libc::timespec>()) };
}

/// The size of a page in bytes.
pub(crate) const PAGE: usize = 4096;

/// Runs `work` in which this thread may meet a trap: SIGTRAP and SIGILL are not blocked meanwhile.
pub(crate) fn with_traps<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: the sets are initialised by sigemptyset and by the first call.
    unsafe {
        let mut set: libc::sigset_t = core::mem::zeroed();
        let mut before: libc::sigset_t = core::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTRAP);
        libc::sigaddset(&mut set, libc::SIGILL);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, &mut before);
        let result = work();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut());
        result
    }
}

/// Runs `work` with all signals blocked, so that no handler can leave it in the middle; but for
/// those of traps and faults, which it may meet like all code.
pub(crate) fn without_signals<R>(work: impl FnOnce() -> R) -> R {
    let mut before = 0u64;
    let mask = |how: i32, set: *const u64, old: *mut u64| {
        // The kernel's set. The C library's function would leave out signals of its own.
        // SAFETY: live locals of the size that the kernel is told.
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, set, old, size_of::<u64>()) }
    };
    mask(libc::SIG_BLOCK, &HELD_OFF, &mut before);
    let result = work();
    mask(libc::SIG_SETMASK, &before, ptr::null_mut());
    result
}
