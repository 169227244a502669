//! Exchanging a page of text as a whole.
//!
//! A thread that blocks SIGTRAP must not meet a trap. So what such threads may run is not written
//! where it is: the page is made anew elsewhere, with the changes, and moved over the old one.
//!
//! ```text
//!   1  map        the same page of the same file, anywhere: private, read-only, executable
//!   2  write      what the text has now, with the changes: no thread runs there
//!   3  mremap     over the text
//! ```
//!
//! A thread that fetches an instruction meanwhile has it from the old page, or waits in the kernel
//! for the new one: while the old page goes, every processor forgets where it was, and the new one
//! is there before a thread that waits looks again. So each instruction is the old one or the new
//! one as a whole. That is enough where nothing but one instruction is exchanged for another one:
//! no thread can be in the middle.
//!
//! The new page is of the same file as the old one, so `/proc/self/maps`, debuggers and profilers
//! see what they have seen before, but for a mapping that is in several parts.
//!
//! # Safety
//!
//! The unsafe code maps a page, and moves it over a page of text whose bytes it has, while the
//! loader lock keeps the module loaded.

use core::ptr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use super::text_writer::Text;
use crate::arch::poke::Text as _;
use crate::os::PAGE;
use crate::os::maps::MappedText;

/// The files that the text of the process is from.
#[derive(Debug)]
pub(crate) struct TextPages {
    all: Vec<MappedText>,
    /// The one that was opened last.
    file: Option<(PathBuf, File)>,
}

impl TextPages {
    /// Those of now.
    pub(crate) fn now() -> Self {
        Self {
            all: MappedText::all(),
            file: None,
        }
    }

    /// Changes the page at `address`. `change` gets a copy, and says whether it has made changes.
    ///
    /// Returns whether the page was exchanged. If not, it is as it was: `change` has said no, the
    /// text is of no file that is still there, or the kernel forbids it.
    ///
    /// `address` must be the start of a page of a loaded module's text, which stays loaded.
    pub(crate) fn exchange(
        &mut self,
        text: &mut Text,
        address: usize,
        change: impl FnOnce(&mut [u8; PAGE]) -> bool,
    ) -> bool {
        let Some((file, offset)) = self.file(address) else {
            return false;
        };
        // SAFETY: a new mapping.
        let new = unsafe {
            let rights = libc::PROT_READ | libc::PROT_EXEC;
            let null = ptr::null_mut();
            libc::mmap(null, PAGE, rights, libc::MAP_PRIVATE, file, offset as i64)
        };
        if new == libc::MAP_FAILED {
            return false;
        }
        let mut bytes = [0; PAGE];
        let is_made = text.read(address, &mut bytes).is_ok()
            && change(&mut bytes)
            && text.write(new.addr(), &bytes).is_ok();
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let place = ptr::without_provenance_mut::<libc::c_void>(address);
        // SAFETY: the page that is replaced has the same bytes, but for the changes.
        if is_made && unsafe { libc::mremap(new, PAGE, PAGE, flags, place) } == place {
            return true;
        }
        // SAFETY: mapped above, and not moved.
        unsafe { libc::munmap(new, PAGE) };
        false
    }

    /// The file that is mapped at `address`, and where in it that is.
    fn file(&mut self, address: usize) -> Option<(i32, usize)> {
        let (path, offset) = MappedText::place(&self.all, address)?;
        if self.file.as_ref().is_none_or(|(open, _)| open != path) {
            self.file = Some((path.to_owned(), File::open(path).ok()?));
        }
        let (_, file) = self.file.as_ref()?;
        Some((file.as_raw_fd(), offset))
    }
}
