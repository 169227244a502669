//! System calls that callbacks make.
//!
//! They are made here and not by the C library, whose functions may be traced themselves: each of
//! them would count as a call that was missed. `errno` stays as it is.
//!
//! # Safety
//!
//! The unsafe code makes system calls, each of which writes only where its wrapper says.

use core::arch::asm;
use core::ptr;
use std::time::Duration;

/// Makes a system call. The result is what the kernel returns: -4095 to -1 for an error.
///
/// # Safety
///
/// The call with these arguments must do no harm to the program's memory.
unsafe fn call(number: libc::c_long, args: [usize; 6]) -> isize {
    let result;
    // SAFETY: the kernel changes these three registers, and what the caller vouches for.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Maps fresh memory, all zeros; `None` if there is none.
pub(crate) fn map(len: usize) -> Option<*mut u8> {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
    // SAFETY: memory that is new harms nothing.
    let address = unsafe { call(libc::SYS_mmap, [0, len, protection, flags, usize::MAX, 0]) };
    (address > 0).then(|| ptr::with_exposed_provenance_mut(address as usize))
}

/// Gives memory back.
///
/// # Safety
///
/// [`map`] has given it, with this length, and nothing refers to it any more.
pub(crate) unsafe fn unmap(memory: *mut u8, len: usize) {
    // SAFETY: handed on.
    unsafe {
        call(
            libc::SYS_munmap,
            [memory.expose_provenance(), len, 0, 0, 0, 0],
        )
    };
}

/// Has a child of `fork` find zeros in memory that [`map`] has given; `false` if the kernel cannot.
pub(crate) fn wipe_on_fork(memory: *mut u8, len: usize) -> bool {
    let advice = libc::MADV_WIPEONFORK as usize;
    // SAFETY: it changes what a child finds, not what is here.
    let result = unsafe {
        call(
            libc::SYS_madvise,
            [memory.expose_provenance(), len, advice, 0, 0, 0],
        )
    };
    result == 0
}

/// The kernel's id of the process.
pub(crate) fn process() -> u32 {
    // SAFETY: it changes nothing.
    unsafe { call(libc::SYS_getpid, [0; 6]) as u32 }
}

/// The kernel's id of the parent process.
pub(crate) fn parent() -> u32 {
    // SAFETY: it changes nothing.
    unsafe { call(libc::SYS_getppid, [0; 6]) as u32 }
}

/// Whether a process has no thread of this id any more.
pub(crate) fn is_gone(process: u32, thread: u32) -> bool {
    // SAFETY: signal 0 is not sent.
    let result = unsafe {
        call(
            libc::SYS_tgkill,
            [process as usize, thread as usize, 0, 0, 0, 0],
        )
    };
    result == -(libc::ESRCH as isize)
}

/// The name of the running thread, with a zero behind it; empty if the kernel does not say.
pub(crate) fn thread_name(name: &mut [u8; 16]) -> &[u8] {
    let place = name.as_mut_ptr().expose_provenance();
    // SAFETY: it writes 16 bytes there.
    unsafe {
        call(
            libc::SYS_prctl,
            [libc::PR_GET_NAME as usize, place, 0, 0, 0, 0],
        )
    };
    name
}

/// The time since some moment, on a clock that never goes back, in nanoseconds.
pub(crate) fn now() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: it writes the time there. It is in the vDSO, so no system call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    (time.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec as u64)
}

/// The time between two readings of [`now`].
pub(crate) fn duration(nanoseconds: u64) -> Duration {
    Duration::from_nanos(nanoseconds)
}
