//! Small calls to the operating system that cannot fail, or whose failure says all.
//!
//! # Safety
//!
//! The unsafe code calls libc functions that take no pointers, or pointers to live locals.

pub(crate) mod advice;
pub(crate) mod maps;
pub(crate) mod membarrier;
pub(crate) mod memory;
pub(crate) mod status;
mod trap_stack;

use core::ptr;
use core::sync::atomic::AtomicU32;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use crate::arch::trampoline::HELD_OFF;
use status::ThreadStatus;
use trap_stack::TrapStack;

use crate::arch::cpu;

/// The calling thread's `errno`.
pub(crate) fn errno() -> i32 {
    // SAFETY: always valid in the calling thread.
    unsafe { *libc::__errno_location() }
}

/// How far `errno` is from the thread pointer, the same in all threads: the C library has it among
/// what each thread has from its start.
pub(crate) fn errno_offset() -> i64 {
    // SAFETY: no arguments.
    let place = unsafe { libc::__errno_location() }.addr();
    place.wrapping_sub(cpu::thread_pointer()) as i64
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
    ThreadStatus::own().is_debugged()
}

/// Whether the process has no thread but the calling one; `false` where `/proc` cannot be seen.
pub(crate) fn is_only_thread() -> bool {
    // Each thread is a directory in it, which counts as a link, as its own two names do.
    fs::metadata("/proc/self/task").is_ok_and(|tasks| tasks.nlink() == 3)
}

/// Whether no other process has the memory of this one (`clone` with `CLONE_VM`), which must have
/// one thread only; `false` where that cannot be told.
pub(crate) fn has_own_memory() -> bool {
    // SAFETY: these change nothing: the kernel refuses to part memory that is shared, and that
    // which is not need not be parted. A filter of system calls might kill who asks for that.
    unsafe {
        libc::prctl(libc::PR_GET_SECCOMP) == 0
            && libc::syscall(libc::SYS_unshare, libc::CLONE_VM) == 0
    }
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

/// Wakes all threads that wait for a futex of this process.
pub(crate) fn wake_all(futex: &AtomicU32) {
    const WAKE: i32 = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: a live word, whose address alone is used.
    unsafe { libc::syscall(libc::SYS_futex, futex, WAKE, i32::MAX) };
}

/// The time since some moment. The kernel is asked, as the C library's function reads the
/// processor's counter, which the program may have forbidden this thread to do (`PR_SET_TSC`).
pub(crate) fn now() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes to the local.
    unsafe { libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The size of a page in bytes.
pub(crate) const PAGE: usize = 4096;

/// Runs `work` in which this thread may meet a trap: no handler but those of traps and faults runs
/// meanwhile, as one might block them, and they have an alternate stack with room.
pub(crate) fn with_traps<R>(work: impl FnOnce() -> R) -> R {
    let traps = 1u64 << (libc::SIGTRAP - 1) | 1 << (libc::SIGILL - 1);
    let _stack = TrapStack::enter();
    let mut before = 0;
    change_mask(libc::SIG_BLOCK, &HELD_OFF, &mut before);
    change_mask(libc::SIG_UNBLOCK, &traps, ptr::null_mut());
    let result = work();
    change_mask(libc::SIG_SETMASK, &before, ptr::null_mut());
    result
}

/// Changes which signals the thread blocks. The set is the kernel's: the C library's function would
/// leave out signals of its own.
fn change_mask(how: i32, set: &u64, before: *mut u64) {
    // SAFETY: a live set of the size that the kernel is told; `before` is null or one, too.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, set, before, size_of::<u64>()) };
}

/// Runs `work` with all signals blocked, so that no handler can leave it in the middle; but for
/// those of traps and faults, which it may meet like all code.
pub(crate) fn without_signals<R>(work: impl FnOnce() -> R) -> R {
    let mut before = 0;
    change_mask(libc::SIG_BLOCK, &HELD_OFF, &mut before);
    let result = work();
    change_mask(libc::SIG_SETMASK, &before, ptr::null_mut());
    result
}
