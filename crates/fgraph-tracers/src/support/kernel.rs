//! System calls that callbacks make.
//!
//! This module makes them itself, because the C library's functions may be traced: each of them
//! would count as a missed call. `errno` keeps its value.
//!
//! # Safety
//!
//! The unsafe code makes system calls. Each writes only where its wrapper says.

use core::arch::asm;
use core::ffi::CStr;
use core::ptr;
use core::sync::atomic::AtomicU32;
use std::time::Duration;

use fgraph_trace::clock::ClockKind;

/// Granularity of readable memory.
const PAGE: usize = 4096;

/// Makes a system call. Returns the kernel's result: -4095 to -1 for an error.
///
/// # Safety
///
/// The call with these arguments must do no harm to the program's memory.
unsafe fn call(number: libc::c_long, args: [usize; 6]) -> isize {
    let result;
    // SAFETY: the kernel changes these three registers, and only the memory that the caller vouches
    // for.
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

/// Maps new zeroed memory; `None` if there is none.
pub(crate) fn map(len: usize) -> Option<*mut u8> {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
    // SAFETY: the kernel chooses an address that is free, so no existing memory changes.
    let address = unsafe { call(libc::SYS_mmap, [0, len, protection, flags, usize::MAX, 0]) };
    (address > 0).then(|| ptr::with_exposed_provenance_mut(address as usize))
}

/// Unmaps memory.
///
/// # Safety
///
/// [`map`] has returned the memory for this length, and nothing refers to it any more.
pub(crate) unsafe fn unmap(memory: *mut u8, len: usize) {
    // SAFETY: nothing refers to the memory, as the caller says.
    unsafe {
        call(
            libc::SYS_munmap,
            [memory.expose_provenance(), len, 0, 0, 0, 0],
        )
    };
}

/// Fills `into` with memory of this process from `address` on, as far as it is readable, and
/// returns the number of bytes. The address may be arbitrary: the kernel checks whether there is
/// memory. It takes about half a microsecond.
///
/// `process` is the id of the process, or of one of its threads.
pub(crate) fn peek(process: u32, address: usize, into: &mut [u8]) -> usize {
    let mut filled = 0;
    // The kernel reads a piece completely or not at all, so each piece ends at a page boundary.
    while filled < into.len() {
        let Some(from) = address.checked_add(filled) else {
            break;
        };
        let len = (PAGE - from % PAGE).min(into.len() - filled);
        let remote = libc::iovec {
            iov_base: ptr::without_provenance_mut(from),
            iov_len: len,
        };
        let local = libc::iovec {
            iov_base: into[filled..].as_mut_ptr().cast(),
            iov_len: len,
        };
        let [local, remote] =
            [&raw const local, &raw const remote].map(<*const _>::expose_provenance);
        // SAFETY: the call writes only to `into`, whose piece has this length.
        let read = unsafe {
            call(
                libc::SYS_process_vm_readv,
                [process as usize, local, 1, remote, 1, 0],
            )
        };
        if read != len as isize {
            break;
        }
        filled += len;
    }
    filled
}

/// Fills `into` with the target of a symbolic link, cut if it is longer, and returns its length;
/// 0 if there is no such link.
pub(crate) fn read_link(path: &CStr, into: &mut [u8]) -> usize {
    let start = into.as_mut_ptr().expose_provenance();
    // SAFETY: the call reads a text that ends with a zero, and writes only to `into`, of this
    // length.
    let read = unsafe {
        call(
            libc::SYS_readlink,
            [
                path.as_ptr().expose_provenance(),
                start,
                into.len(),
                0,
                0,
                0,
            ],
        )
    };
    usize::try_from(read).unwrap_or(0)
}

/// Returns the processor that the thread runs on.
pub(crate) fn core() -> u32 {
    // SAFETY: `sched_getcpu` changes no memory.
    unsafe { libc::sched_getcpu() as u32 }
}

/// Writes to a file, and ignores errors.
pub(crate) fn write(file: i32, bytes: &[u8]) {
    let start = bytes.as_ptr().expose_provenance();
    // SAFETY: the call only reads the bytes of a valid slice.
    unsafe {
        call(
            libc::SYS_write,
            [file as usize, start, bytes.len(), 0, 0, 0],
        )
    };
}

/// Sleeps for a time, even if signals arrive.
pub(crate) fn sleep(time: Duration) {
    let mut rest = libc::timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    };
    let place = (&raw mut rest).expose_provenance();
    let is_interrupted = || {
        // SAFETY: the call reads the time at `place`, and writes the rest of it there.
        let result = unsafe { call(libc::SYS_nanosleep, [place, place, 0, 0, 0, 0]) };
        result == -(libc::EINTR as isize)
    };
    while is_interrupted() {}
}

/// Waits at most `time` until `word` is no longer `value` and its waiters are woken.
pub(crate) fn wait(word: &AtomicU32, value: u32, time: Duration) {
    let time = libc::timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos().into(),
    };
    let word = ptr::from_ref(word).expose_provenance();
    let time = (&raw const time).expose_provenance();
    let operation = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
    // SAFETY: the call only reads the word and the time, which are valid.
    unsafe {
        call(
            libc::SYS_futex,
            [word, operation, value as usize, time, 0, 0],
        )
    };
}

/// Wakes the threads that [`wait`] for a word.
pub(crate) fn wake_all(word: &AtomicU32) {
    let word = ptr::from_ref(word).expose_provenance();
    let operation = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
    // SAFETY: the call only uses the address of the word.
    unsafe {
        call(
            libc::SYS_futex,
            [word, operation, i32::MAX as usize, 0, 0, 0],
        )
    };
}

/// Makes a child of `fork` find zeros in memory of [`map`]; `false` if the kernel cannot.
pub(crate) fn wipe_on_fork(memory: *mut u8, len: usize) -> bool {
    let advice = libc::MADV_WIPEONFORK as usize;
    // SAFETY: the call changes only the child's view of the memory.
    let result = unsafe {
        call(
            libc::SYS_madvise,
            [memory.expose_provenance(), len, advice, 0, 0, 0],
        )
    };
    result == 0
}

/// Returns the kernel id of the process.
pub(crate) fn process() -> u32 {
    // SAFETY: the call changes nothing.
    unsafe { call(libc::SYS_getpid, [0; 6]) as u32 }
}

/// Returns the kernel id of the parent process.
pub(crate) fn parent() -> u32 {
    // SAFETY: the call changes nothing.
    unsafe { call(libc::SYS_getppid, [0; 6]) as u32 }
}

/// True if a process has no thread of this id any more.
pub(crate) fn is_gone(process: u32, thread: u32) -> bool {
    // SAFETY: signal 0 is never delivered.
    let result = unsafe {
        call(
            libc::SYS_tgkill,
            [process as usize, thread as usize, 0, 0, 0, 0],
        )
    };
    result == -(libc::ESRCH as isize)
}

/// Returns the name of the running thread; empty if the kernel does not report it.
pub(crate) fn thread_name(name: &mut [u8; 16]) -> &CStr {
    let place = name.as_mut_ptr().expose_provenance();
    // SAFETY: the call writes at most 16 bytes to an array of 16.
    unsafe {
        call(
            libc::SYS_prctl,
            [libc::PR_GET_NAME as usize, place, 0, 0, 0, 0],
        )
    };
    CStr::from_bytes_until_nul(name).unwrap_or_default()
}

/// Returns the time since a fixed moment in nanoseconds, on a clock that never goes back.
pub(crate) fn now() -> u64 {
    // The vDSO answers this without a system call.
    ClockKind::Monotonic.now()
}

/// Returns the thread's time on processors in nanoseconds; 0 if the kernel does not report it.
pub(crate) fn running() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let place = (&raw mut time).expose_provenance();
    let clock = libc::CLOCK_THREAD_CPUTIME_ID as usize;
    // SAFETY: the call writes a time to a place for one.
    unsafe { call(libc::SYS_clock_gettime, [clock, place, 0, 0, 0, 0]) };
    (time.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec as u64)
}

/// Returns the time between two readings of [`now`].
pub(crate) fn duration(nanoseconds: u64) -> Duration {
    Duration::from_nanos(nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_as_far_as_it_can_be() {
        let peek = |address, into: &mut [u8]| peek(process(), address, into);
        let mut into = [9; 64];
        for address in [0, 1, usize::MAX, usize::MAX - 63, 1 << 63, 4095] {
            assert_eq!(peek(address, &mut into), 0, "{address:#x}");
        }
        let text = *b"hello";
        assert_eq!(peek(text.as_ptr().addr(), &mut into[..5]), 5);
        assert_eq!(into[..5], text);
        let two = map(2 * PAGE).unwrap();
        // SAFETY: nothing refers to the second page, and both pages are unmapped once.
        unsafe {
            two.add(PAGE - 3).write_bytes(7, 3);
            unmap(two.add(PAGE), PAGE);
        }
        let end = two.addr() + PAGE;
        assert_eq!(peek(end - 3, &mut into), 3);
        assert_eq!(into[..3], [7; 3]);
        assert_eq!(peek(end - 64, &mut into), 64);
        assert_eq!(peek(end, &mut into), 0);
        // SAFETY: nothing refers to the page, which is unmapped once.
        unsafe { unmap(two, PAGE) };
    }
}
