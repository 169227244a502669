//! Maps memory, and reads memory that may not be mapped.
//!
//! # Safety
//!
//! The unsafe code makes new mappings, and makes the kernel read or forget memory.

use core::ptr;

use fgraph_core::per_thread::Memory;

use super::{PAGE, errno};

/// Maps `len` bytes of zeros; `None` if there is no memory.
pub(crate) fn map(len: usize) -> Option<*mut u8> {
    map_with(len, libc::PROT_READ | libc::PROT_WRITE)
}

/// Maps `len` bytes of zeros with the rights of `protection`; `None` if there is no memory.
pub(crate) fn map_with(len: usize, protection: i32) -> Option<*mut u8> {
    // SAFETY: a new mapping.
    let memory = unsafe {
        libc::mmap(
            ptr::null_mut(),
            len.next_multiple_of(PAGE),
            protection,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    (memory != libc::MAP_FAILED).then_some(memory.cast())
}

/// The functions that map memory for the storage of callbacks.
pub(crate) static MAPPINGS: Memory = Memory {
    map,
    unmap: |memory, len| {
        // SAFETY: the caller has mapped it.
        unsafe { libc::munmap(memory.cast(), len.next_multiple_of(PAGE)) };
    },
};

/// Maps `len` bytes of zeros at `place`, if nothing is there.
///
/// # Errors
///
/// Fails with the system's error number; `EEXIST` if something is mapped there.
pub(crate) fn map_at(place: usize, len: usize, protection: i32) -> Result<usize, i32> {
    // SAFETY: the call fails if something is mapped there.
    let got = unsafe {
        libc::mmap(
            ptr::without_provenance_mut(place),
            len,
            protection,
            libc::MAP_PRIVATE
                | libc::MAP_ANONYMOUS
                | libc::MAP_FIXED_NOREPLACE
                | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if got == libc::MAP_FAILED {
        return Err(errno());
    }
    if got.addr() == place {
        return Ok(got.expose_provenance());
    }
    // A kernel before 4.17 treats the flag as a hint.
    // SAFETY: the range was just mapped.
    unsafe { libc::munmap(got, len) };
    Err(libc::EEXIST)
}

/// Gives the memory of a shadow stack back to the system, except for the part in a page that it
/// shares with other data.
pub(crate) fn forget(base: *mut u8, len: usize) {
    let touched = base.addr().next_multiple_of(PAGE);
    let len = (base.addr() + len).saturating_sub(touched);
    // SAFETY: the caller's own memory, whose content is no longer needed.
    unsafe { libc::madvise(touched as *mut _, len, libc::MADV_DONTNEED) };
}

/// Reads the word at an address that may not be mapped, or returns the error of the system call.
pub(crate) fn peek(address: usize) -> Result<usize, i32> {
    let mut word = [0; size_of::<usize>()];
    read(address, &mut word).map(|()| usize::from_ne_bytes(word))
}

/// Reads from an address that may not be mapped, or returns the error of the system call.
pub(crate) fn read(address: usize, into: &mut [u8]) -> Result<(), i32> {
    let local = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    let remote = libc::iovec {
        iov_base: ptr::without_provenance_mut(address),
        iov_len: into.len(),
    };
    // SAFETY: the kernel writes to the local only.
    let read = unsafe {
        let process = libc::getpid();
        libc::syscall(
            libc::SYS_process_vm_readv,
            process,
            &local,
            1_usize,
            &remote,
            1_usize,
            // The sixth argument is on the stack, where the upper half of a smaller value would be
            // left undefined.
            0_usize,
        )
    };
    if usize::try_from(read) == Ok(into.len()) {
        Ok(())
    } else {
        Err(errno())
    }
}
