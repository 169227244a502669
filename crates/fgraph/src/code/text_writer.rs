//! Writes to the program's text.
//!
//! Through `/proc/self/mem` the kernel writes to pages that are mapped read-only, without changing
//! their protection: no page is ever writable and executable, and no mapping is split. Without
//! `/proc`, or if the kernel forbids it, the protection is changed during the write.
//!
//! # Safety
//!
//! The unsafe code reads and writes text of the program at addresses of the write protocol: inside
//! functions of loaded modules, or in the four bytes after one, while the loader lock keeps the
//! modules loaded.

use core::arch::asm;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;

use crate::arch::text_write;
use crate::os::maps::protection_at;
use crate::os::{self, PAGE, membarrier};

/// The way in which text is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TextMethod {
    /// Through `/proc/self/mem`.
    ProcMem,
    /// By making the page writable during the write.
    Mprotect,
}

impl fmt::Display for TextMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ProcMem => "/proc/self/mem",
            Self::Mprotect => "mprotect",
        })
    }
}

/// True once `/proc/self/mem` was refused; it is not tried again.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// The text of this process.
#[derive(Debug)]
pub(crate) struct Text {
    /// Opened for each batch, because after a fork an old one would refer to the parent's memory.
    memory: Option<File>,
    /// True if there was a debugger when it was opened for more than one site.
    is_debugged: bool,
    /// True if no other thread runs, and none starts while it is written.
    pub(crate) is_alone: bool,
    /// True if the program may change the bytes between two sites while these are written.
    pub(crate) is_changing: bool,
}

impl Text {
    pub(crate) fn open() -> Self {
        Self::open_for(1)
    }

    /// Opens the text for a change of `sites` sites.
    pub(crate) fn open_for(sites: usize) -> Self {
        // Bytes between two sites are written only if there are several.
        let is_debugged = sites > 1 && os::status::is_debugged();
        if REFUSED.load(Ordering::Relaxed) {
            return Self {
                memory: None,
                is_debugged,
                is_alone: false,
                is_changing: false,
            };
        }
        // `/proc/self` belongs to the main thread, which may have ended before the others.
        let memory = OpenOptions::new().write(true).open("/proc/thread-self/mem");
        // An error such as a lack of file descriptors may go away.
        if let Err(error) = &memory
            && matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::PermissionDenied
            )
        {
            REFUSED.store(true, Ordering::Relaxed);
        }
        Self {
            memory: memory.ok(),
            is_debugged,
            is_alone: false,
            is_changing: false,
        }
    }

    /// Returns the way in which text is written in this process, as far as it is known.
    pub(crate) fn method() -> TextMethod {
        if REFUSED.load(Ordering::Relaxed) {
            TextMethod::Mprotect
        } else {
            TextMethod::ProcMem
        }
    }

    /// Returns true if text was written only through `/proc/self/mem` until now.
    pub(crate) fn is_direct(&self) -> bool {
        self.memory.is_some()
    }

    /// Makes the pages writable for the write. They get the rights back that they had: a program
    /// that patches itself may have made them writable.
    fn write_unprotected(mut address: usize, mut bytes: &[u8]) -> Result<(), i32> {
        const TEXT: i32 = libc::PROT_READ | libc::PROT_EXEC;
        /// Pages that are written at once, with a bit for each.
        const AT_ONCE: usize = u32::BITS as usize;
        while !bytes.is_empty() {
            let first = address & !(PAGE - 1);
            let len = bytes.len().min(first + AT_ONCE * PAGE - address);
            let pages = (first..address + len).step_by(PAGE);
            let is_writable = |page| matches!(protection_at(page), Ok(Some(now)) if now.writable);
            let mut mask = 0_u32;
            for (nth, page) in pages.clone().enumerate() {
                mask |= u32::from(!is_writable(page)) << nth;
            }
            let protect = |rights| {
                let changed = pages.clone().enumerate();
                let mut changed = changed.filter(|(nth, _)| mask >> nth & 1 != 0);
                changed.try_for_each(|(_, page)| protect(page, PAGE, rights))
            };
            // Still executable, because other threads run in it.
            protect(TEXT | libc::PROT_WRITE)?;
            // SAFETY: the pages are writable since the call above.
            unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, len) };
            protect(TEXT)?;
            address += len;
            bytes = &bytes[len..];
        }
        Ok(())
    }
}

/// Sets the rights of the `len` bytes of text at `start`, which are whole pages.
pub(super) fn protect(start: usize, len: usize, rights: i32) -> Result<(), i32> {
    let mut result = libc::SYS_mprotect as isize;
    // Not with `mprotect`, which may itself be a site of the batch and trap.
    // SAFETY: text of a loaded module, or new text of ours. The kernel changes rcx and r11.
    unsafe {
        asm!("syscall", inout("rax") result, in("rdi") start, in("rsi") len, in("rdx") rights,
            out("rcx") _, out("r11") _, options(nostack));
    }
    match result {
        0 => Ok(()),
        error => Err(-error as i32),
    }
}

impl text_write::Text for Text {
    type Error = i32;

    fn read(&mut self, address: usize, into: &mut [u8]) -> Result<(), i32> {
        // Not with `memcpy`, which may itself be a site of the batch and trap.
        // SAFETY: text of a loaded module, which is readable.
        unsafe {
            asm!("rep movsb", inout("rcx") into.len() => _, inout("rdi") into.as_mut_ptr() => _,
                inout("rsi") address => _, options(nostack, preserves_flags));
        }
        Ok(())
    }

    fn write(&mut self, address: usize, bytes: &[u8]) -> Result<(), i32> {
        let Some(memory) = &self.memory else {
            return Self::write_unprotected(address, bytes);
        };
        let mut written = libc::SYS_pwrite64 as isize;
        // Not with `pwrite`, which may itself be a site of the batch and trap.
        // SAFETY: the kernel reads the bytes, and checks the address. It changes rcx and r11.
        unsafe {
            asm!("syscall", inout("rax") written, in("rdi") memory.as_raw_fd(),
                in("rsi") bytes.as_ptr(), in("rdx") bytes.len(), in("r10") address,
                out("rcx") _, out("r11") _, options(nostack));
        }
        if written == bytes.len() as isize {
            return Ok(());
        }
        // A kernel that forbids it returns one of these errors and writes nothing. Other errors may
        // go away.
        if [libc::EPERM, libc::EACCES, libc::EIO]
            .map(|error| -(error as isize))
            .contains(&written)
        {
            REFUSED.store(true, Ordering::Relaxed);
        }
        self.memory = None;
        Self::write_unprotected(address, bytes)
    }

    fn sync(&mut self) -> Result<(), i32> {
        membarrier::sync_core().map_err(|error| match error {
            crate::Unsupported::Membarrier(errno) => errno,
            _ => libc::ENOSYS,
        })
    }

    fn is_shared(&self) -> bool {
        self.is_debugged || self.is_changing
    }

    fn is_alone(&self) -> bool {
        self.is_alone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::memory;

    #[test]
    fn a_write_that_fails_is_done_otherwise_and_is_no_refusal() {
        let page = memory::map(PAGE).unwrap().expose_provenance();
        // The kernel neither writes to a file that was opened for reading, nor forbids it.
        let mut text = Text {
            memory: Some(File::open("/proc/thread-self/mem").unwrap()),
            is_debugged: false,
            is_alone: false,
            is_changing: false,
        };
        text_write::Text::write(&mut text, page, &[0xcc, 0xc3]).unwrap();
        let mut written = [0; 2];
        text_write::Text::read(&mut text, page, &mut written).unwrap();
        assert_eq!(written, [0xcc, 0xc3]);
        assert!(text.memory.is_none());
        assert_eq!(Text::method(), TextMethod::ProcMem);
    }
}
