//! Small calls to the operating system that cannot fail, or whose failure says all.
//!
//! # Safety
//!
//! The unsafe code calls libc functions that take no pointers, or pointers to live locals.

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

/// Whether the process has a thread `id`.
pub(crate) fn thread_exists(id: u32) -> bool {
    // SAFETY: signal 0 is not sent, only checked.
    unsafe {
        let process = libc::getpid();
        libc::syscall(libc::SYS_tgkill, process, id, 0) == 0 || errno() != libc::ESRCH
    }
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
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, core::ptr::null_mut());
        result
    }
}
