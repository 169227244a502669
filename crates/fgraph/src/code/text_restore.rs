//! Gives up memory of text whose bytes equal the file's again.
//!
//! A page to which a jump was written is private to the process, even after the jump was removed.
//! If its bytes equal the file's, the kernel is told that it is no longer needed (`madvise`): the
//! next thread that runs there gets the file's page. The same is done for other pages of the file,
//! which were read to compare them with the plan. A process that has changed its user cannot ask
//! which of its pages are private: all of them are compared. The mapping stays the same, with all
//! of the program's settings. A page that differs from the file stays: another tool has written
//! there, or it has text relocations, or a jump that could not be removed.
//!
//! # Safety
//!
//! The unsafe code maps a file to read it, and makes the kernel forget pages that equal the file.

use core::ops::Range;
use core::ptr;
use std::fs::File;
use std::os::fd::AsRawFd as _;

use super::changed_text::{self, PageMap};
use super::text_exchange::can_be_mapped;
use super::text_writer::Text;
use crate::arch::text_write::Text as _;
use crate::os::maps::FileMapping;
use crate::os::{PAGE, signal_mask};
use crate::process::call_gate;

/// `MADV_DONTNEED_LOCKED` of Linux 5.18: like `MADV_DONTNEED`, also of locked memory.
const MADV_DONTNEED_LOCKED: i32 = 24;

/// The number of bytes of text that are compared at once. Calls that change mappings wait then.
const PART: usize = 512 * PAGE;

/// Makes the private pages in `range` with the file's bytes the file's pages again, and gives up
/// pages of the file. Call it while no module can be unloaded, and no other thread changes text.
///
/// All pages stay if the file no longer has its path, or `/proc` is not visible.
pub(crate) fn restore(range: Range<usize>) {
    let mut start = range.start;
    // There are several mappings if the program has given advice for a part of it.
    while let Some(mapping) = FileMapping::at(start).filter(|_| start < range.end) {
        if !mapping.protection.writable && mapping.protection.readable {
            let _ = restore_mapping(&mapping);
        }
        start = mapping.range.end;
    }
    changed_text::forget(&range);
}

fn restore_mapping(mapping: &FileMapping) -> Option<()> {
    let pagemap = PageMap::open();
    let file = match pagemap.private(mapping.range.clone())?.contains(&true) {
        true => Some(FileCopy::of(mapping)?),
        false => None,
    };
    let mut text = Text::open();
    for start in mapping.range.clone().step_by(PART) {
        let part = start..mapping.range.end.min(start + PART);
        // A program that patches itself must not write between comparison and loss.
        let Some(held) = call_gate::hold_mappings() else {
            continue;
        };
        let is_same =
            |now: FileMapping| now.range.end >= part.end && now.protection == mapping.protection;
        if !FileMapping::at(start).is_some_and(is_same) {
            continue;
        }
        let private = pagemap.private(part)?;
        let is_files = |(index, is_private): (usize, bool)| {
            let page = start + index * PAGE;
            let is_same = |file: &FileCopy| file.is_same(&mut text, mapping, page);
            !is_private || file.as_ref().is_some_and(is_same)
        };
        let is_files: Vec<bool> = private.into_iter().enumerate().map(is_files).collect();
        // No handler may run that leaves the gate locked, or waits for a call there.
        signal_mask::without_signals(|| {
            if !held.lock() {
                return;
            }
            let mut start = start;
            for pages in is_files.chunk_by(|a, b| a == b) {
                let end = start + pages.len() * PAGE;
                if pages[0] {
                    forget(start..end);
                }
                start = end;
            }
            drop(held);
        });
    }
    Some(())
}

/// Makes the kernel read the pages in `range` from their file when they are needed next.
fn forget(range: Range<usize>) {
    let start = ptr::without_provenance_mut(range.start);
    // SAFETY: the pages have the bytes of their file. Only this thread, which is changing text, and
    // other tools ever write to them.
    unsafe {
        if libc::madvise(start, range.len(), libc::MADV_DONTNEED) != 0
            && libc::madvise(start, range.len(), MADV_DONTNEED_LOCKED) == 0
        {
            // Locked pages are in memory.
            libc::madvise(start, range.len(), libc::MADV_POPULATE_READ);
        }
    }
}

/// A new mapping of the part of a file that a mapping is of, for reading.
#[derive(Debug)]
struct FileCopy {
    start: usize,
    len: usize,
}

impl FileCopy {
    /// Returns `None` if that is impossible, or the path of the mapping leads to another file.
    fn of(mapping: &FileMapping) -> Option<Self> {
        let file = File::open(&mapping.path).ok()?;
        can_be_mapped(&file, mapping).then_some(())?;
        let (len, offset) = (mapping.range.len(), mapping.offset as i64);
        let (read, private) = (libc::PROT_READ, libc::MAP_PRIVATE);
        // SAFETY: a new mapping at an address of the system's choice.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                read,
                private,
                file.as_raw_fd(),
                offset,
            )
        };
        let this = (start != libc::MAP_FAILED).then(|| Self {
            start: start.expose_provenance(),
            len,
        })?;
        let mapped = FileMapping::at(this.start)?;
        (mapped.file == mapping.file).then_some(this)
    }

    /// Returns true if the page at `page` of `mapping` has the file's bytes.
    fn is_same(&self, text: &mut Text, mapping: &FileMapping, page: usize) -> bool {
        let (mut own, mut files) = ([0; PAGE], [0; PAGE]);
        let copy = self.start + (page - mapping.range.start);
        text.read(page, &mut own).is_ok() && text.read(copy, &mut files).is_ok() && own == files
    }
}

impl Drop for FileCopy {
    fn drop(&mut self) {
        // SAFETY: `of` has mapped it, and no reference to it exists.
        unsafe { libc::munmap(ptr::without_provenance_mut(self.start), self.len) };
    }
}
