//! Small calls of the operating system that cannot fail, or whose failure tells enough.
//!
//! # Safety
//!
//! The unsafe code calls libc functions that take no pointers, or pointers to live locals.

pub(crate) mod advice;
pub(crate) mod maps;
pub(crate) mod membarrier;
pub(crate) mod memory;
pub(crate) mod signal_mask;
pub(crate) mod status;
mod trap_stack;

use core::ptr;
use core::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::arch::cpu;

/// Returns the calling thread's `errno`.
pub(crate) fn errno() -> i32 {
    // SAFETY: always valid in the calling thread.
    unsafe { *libc::__errno_location() }
}

/// Returns the distance of `errno` from the thread pointer, which is the same in all threads: the C
/// library has it in the data that each thread has from its start.
pub(crate) fn errno_offset() -> i64 {
    // SAFETY: takes no arguments.
    let place = unsafe { libc::__errno_location() }.addr();
    place.wrapping_sub(cpu::thread_pointer()) as i64
}

/// Returns the kernel's id of the calling thread.
pub(crate) fn thread_id() -> u32 {
    // SAFETY: takes no arguments.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// Returns true in the thread with which the process began.
pub(crate) fn is_main_thread() -> bool {
    // SAFETY: takes no arguments.
    thread_id() == unsafe { libc::getpid() }.cast_unsigned()
}

/// Returns the kernel's id of the process.
pub(crate) fn process_id() -> u32 {
    // SAFETY: takes no arguments.
    unsafe { libc::getpid() }.cast_unsigned()
}

/// Returns the kernel's id of the thread to which the calling thread's block belongs, as the C
/// library stores it there: in the child of `vfork`, that is a thread of the parent. `None` if it
/// stores none.
pub(crate) fn thread_of_block() -> Option<u32> {
    let mut clock = 0;
    // SAFETY: the calling thread's own handle, and a live local.
    let error = unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &mut clock) };
    // The kernel's clock id of a thread is the complement of the thread's id, before three bits.
    (error == 0).then_some(!(clock >> 3) as u32)
}

/// Returns true if the process has a thread `id`.
pub(crate) fn thread_exists(id: u32) -> bool {
    thread_exists_in(process_id(), id)
}

/// Returns true if a process has a thread `id`.
pub(crate) fn thread_exists_in(process: u32, id: u32) -> bool {
    // SAFETY: signal 0 is not sent, only checked.
    let failed = unsafe { libc::syscall(libc::SYS_tgkill, process, id, 0) != 0 };
    // The kernel returns EINVAL for numbers that cannot be an id.
    !(failed && [libc::ESRCH, libc::EINVAL].contains(&errno()))
}

/// Lets other threads run for a moment, including those of lower priority. It is no cancellation
/// point.
pub(crate) fn nap() {
    pause(Duration::from_micros(20));
}

/// Does the same as [`nap`] for the given time, which a signal handler ends. `thread::sleep` would
/// sleep for the rest then, which the kernel rounds up each time: it may never return in a thread
/// that gets signals again and again.
pub(crate) fn pause(time: Duration) {
    let moment = libc::timespec {
        tv_sec: time.as_secs() as libc::time_t,
        tv_nsec: time.subsec_nanos().into(),
    };
    // SAFETY: the kernel reads the live local.
    unsafe { libc::syscall(libc::SYS_nanosleep, &moment, ptr::null::<libc::timespec>()) };
}

/// Wakes all threads that wait for a futex of this process.
pub(crate) fn wake_all(futex: &AtomicU32) {
    const WAKE: i32 = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: a live word; the kernel uses only its address.
    unsafe { libc::syscall(libc::SYS_futex, futex, WAKE, i32::MAX) };
}

/// Returns the time since a fixed moment, through a system call: the C library's function reads the
/// processor's counter, which the program may have forbidden this thread to do (`PR_SET_TSC`).
pub(crate) fn now() -> Duration {
    read_clock(libc::CLOCK_MONOTONIC).unwrap_or_default()
}

/// Returns the time that a thread of this process has run; the longest of all if it is gone.
pub(crate) fn processor_time(thread: u32) -> Duration {
    /// The kernel's names for the clock of a thread, and for the one with the highest resolution.
    const PER_THREAD: i32 = 4;
    const SCHED: i32 = 2;
    let clock = !thread.cast_signed() << 3 | PER_THREAD | SCHED;
    read_clock(clock).unwrap_or(Duration::MAX)
}

fn read_clock(clock: libc::clockid_t) -> Option<Duration> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes to the live local.
    let status = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, &mut time) };
    (status == 0).then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// The size of a page in bytes.
pub(crate) const PAGE: usize = 4096;
