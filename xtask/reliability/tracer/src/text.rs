//! The program's own text: it must be the same bytes after tracing as before.
//!
//! # Safety
//!
//! The unsafe code reads the executable segments of the program, which stay mapped.

use core::ffi::{c_int, c_void};
use core::slice;

/// A checksum (FNV-1a) of the program's executable segments.
pub(crate) fn checksum() -> u64 {
    let mut sum = 0xcbf2_9ce4_8422_2325;
    // SAFETY: the function takes what it is given here.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut sum).cast()) };
    sum
}

/// Adds the text of the first module, which is the program, and ends the iteration.
unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _size: usize, sum: *mut c_void) -> c_int {
    // SAFETY: the dynamic linker passes a module whose headers and segments are mapped, and
    // `checksum` its sum. Other threads may be changing the text, but not now that no user comes or
    // goes.
    unsafe {
        let info = &*info;
        let sum = &mut *sum.cast::<u64>();
        for header in slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) {
            if header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0 {
                let text = (info.dlpi_addr + header.p_vaddr) as *const u8;
                for &byte in slice::from_raw_parts(text, header.p_memsz as usize) {
                    *sum = (*sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
                }
            }
        }
    }
    1
}
