//! Exchanges the text of a mapping as a whole.
//!
//! A thread that blocks SIGTRAP must not hit a trap, and a trap costs microseconds. So text is not
//! written where threads run it: a copy with the changes is made elsewhere, and moved over the old
//! text.
//!
//! ```text
//!   1  mmap       the same part of the same file, anywhere: private, read and execute,
//!                 with the advice, the locks and the protection key of the old mapping
//!   2  write      each page that is to differ from the file: no thread runs there
//!   3  hold       calls that change mappings (`process/call_gate.rs`)
//!   4  compare    with the old text and its rights, for what the program or a uprobe has changed
//!   5  mremap     over the old text, while no held call may give up waiting
//!   6  membarrier where invalidation is broadcast, the move interrupts no processor
//! ```
//!
//! A program that patches itself makes text writable, writes it, and takes the right back. While it
//! has the right, text is not moved: the new text is not writable.
//!
//! A thread that fetches an instruction during the move gets it from the old page, or waits in the
//! kernel for the new one. So each instruction is entirely the old one or the new one, and a thread
//! in the middle of several instructions continues in bytes that trap there
//! (`fgraph_x86_64::text_write`).
//!
//! Pages differ from the file because of this change, or because of earlier ones: text relocations,
//! earlier patches, another tool's bytes. `/proc/self/pagemap` shows the private pages. A private
//! page that equals the file's again is left out, so text without watched functions takes no
//! memory. A process that has changed its user may open neither that list nor `/proc/self/mem`: all
//! pages are compared there, and the new text is made writable while no thread runs it.
//!
//! Many private pages are moved in parts, because threads that fault wait for the whole move. All
//! parts are cut from one mapping: only then does the kernel join them again, and `/proc/self/maps`
//! has the same lines as before.
//!
//! # Safety
//!
//! The unsafe code maps a file, and moves parts of that mapping over text with the same bytes,
//! while the loader lock keeps the module loaded.

use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use core::time::Duration;
use std::fs::File;
use std::os::fd::AsRawFd as _;

use super::changed_text::{ChangedText, PageMap};
use super::text_writer::{Text, protect};
use crate::arch::move_text::{self, Move, MoveText};
use crate::arch::text_write::{Text as _, TextWrite};
use crate::os::maps::FileMapping;
use crate::os::{self, PAGE, memory};
use crate::process::call_gate::{self, Closed};

/// The number of pages in one part of a move that differ from the file. The kernel takes about half
/// a microsecond for each.
const PART: usize = 2048;

/// The time that the exchange waits for a program that is changing the text itself. The loader lock
/// is held, and no library can be loaded.
const PATIENCE: Duration = Duration::from_millis(50);

/// Nanoseconds that the longest move took.
static LONGEST_MOVE: AtomicU64 = AtomicU64::new(0);

/// New text for a mapping; its parts replace the old text one after the other.
#[derive(Debug)]
pub(crate) struct TextExchange {
    old: FileMapping,
    file: File,
    pagemap: PageMap,
    changed: ChangedText,
    /// The address of the new mapping, as if all of it were still there.
    new: usize,
    /// The address up to which the old text was exchanged.
    done: usize,
    move_text: MoveText,
}

/// The reason that text was not exchanged completely.
#[derive(Debug)]
pub(crate) enum ExchangeError {
    /// The kernel refuses it, or another tool keeps changing the text. A part of the text may have
    /// been exchanged.
    Refused,
    /// The kernel has removed the old text and not put the new one there. The file is mapped there,
    /// and its private pages could not be rewritten, with this system error number.
    Lost(i32),
}

impl TextExchange {
    /// Maps new text for the mapping around `address`. Returns `None` if that is impossible,
    /// because:
    ///
    /// - the memory is not a file's, or the file no longer has its path;
    /// - `/proc` is not visible;
    /// - the new text cannot get the advice, the locks and the protection key of the old one.
    ///
    /// `address` must be in the text of a module that stays loaded for as long as this is used.
    pub(crate) fn begin(address: usize) -> Option<Self> {
        let old = text_at(address)?;
        let move_text = mover()?;
        let file = File::open(&old.path).ok()?;
        let pagemap = PageMap::open();
        can_be_mapped(&file, &old).then_some(())?;
        let changed = ChangedText::new(&old, &pagemap)?;
        // SAFETY: a new mapping at an address of the system's choice.
        let new = unsafe {
            libc::mmap(
                ptr::null_mut(),
                old.range.len(),
                libc::PROT_READ | libc::PROT_EXEC,
                libc::MAP_PRIVATE,
                file.as_raw_fd(),
                old.offset as i64,
            )
        };
        if new == libc::MAP_FAILED {
            return None;
        }
        let this = Self {
            done: old.range.start,
            new: new.expose_provenance(),
            old,
            file,
            pagemap,
            changed,
            move_text,
        };
        // A path may lead to another file: after `chroot`, or if the file was replaced.
        let mapped = FileMapping::at(this.new)?;
        let is_same = mapped.file == this.old.file;
        (is_same && this.keep_advice().is_some()).then_some(this)
    }

    /// Gives the new text the advice of the old one; `None` if that is impossible.
    fn keep_advice(&self) -> Option<()> {
        let advice = self.changed.given();
        if !advice.can_be_given() {
            return None;
        }
        let new = self.new..self.new + self.old.range.len();
        if !advice.is_locked() {
            // All new mappings of the program may be locked (`mlockall`).
            // SAFETY: our own mapping.
            unsafe { libc::munlock(ptr::without_provenance(new.start), new.len()) };
        }
        advice.give(new)
    }

    /// Returns the addresses of the mapping's text.
    pub(crate) fn range(&self) -> Range<usize> {
        self.old.range.clone()
    }

    /// Returns the number of pages that may differ from the file.
    pub(crate) fn private_pages(&self) -> Option<usize> {
        let private = self.pagemap.private(self.done..self.old.range.end)?;
        Some(private.iter().filter(|&&is_private| is_private).count())
    }

    /// Exchanges the text up to `end`, or the mapping's end, with the new bytes of `writes`, whose
    /// old bytes are there. `writes` are sorted, and `is_cut_before` returns true for an index
    /// before which the text may be cut. `before_move` is called before each part is moved.
    ///
    /// # Errors
    ///
    /// Fails with an [`ExchangeError`].
    pub(crate) fn advance(
        &mut self,
        text: &mut Text,
        end: usize,
        writes: &[TextWrite],
        is_cut_before: impl Fn(usize) -> bool,
        before_move: impl Fn(),
    ) -> Result<(), ExchangeError> {
        let end = end.min(self.old.range.end) / PAGE * PAGE;
        let mut rest = writes;
        while self.done < end {
            let first = writes.len() - rest.len();
            let cut = |at: usize| is_cut_before(first + at);
            let Some((part, count)) = self.part(self.done..end, rest, cut) else {
                return Err(ExchangeError::Refused);
            };
            let (writes, others) = rest.split_at(count);
            self.exchange(text, part, writes, &before_move)?;
            rest = others;
        }
        Ok(())
    }

    /// Exchanges the text of `part`, once the program is not changing it.
    fn exchange(
        &mut self,
        text: &mut Text,
        part: Range<usize>,
        writes: &[TextWrite],
        before_move: impl Fn(),
    ) -> Result<(), ExchangeError> {
        let start = os::now();
        loop {
            self.write(text, &part, writes)
                .ok_or(ExchangeError::Refused)?;
            before_move();
            let held = call_gate::hold_mappings();
            // Only pages that have changed since are written again. The rights are last: with a
            // bare system call they change at any time.
            let is_ready = held.is_some()
                && self.is_text(&part)
                && self.write(text, &part, writes).is_some()
                && self.is_written(text, &part, writes)
                && self.is_text(&part);
            if let Some(held) = held.filter(|held| is_ready && held.lock()) {
                return self.replace(text, part, held);
            }
            if os::now() - start >= PATIENCE {
                return Err(ExchangeError::Refused);
            }
            os::nap();
        }
    }

    /// Returns true if `part` is still mapped to the same part of the file, and is not writable.
    fn is_text(&self, part: &Range<usize>) -> bool {
        FileMapping::at(part.start).is_some_and(|now| {
            let is_whole = now.range.start <= part.start && part.end <= now.range.end;
            let offset = |of: &FileMapping| of.offset.wrapping_sub(of.range.start);
            is_whole
                && offset(&now) == offset(&self.old)
                && now.file == self.old.file
                && now.protection == self.old.protection
        })
    }

    /// Returns the first part of `range` that is moved at once, and the number of `writes` in it.
    fn part(
        &self,
        range: Range<usize>,
        writes: &[TextWrite],
        is_cut_before: impl Fn(usize) -> bool,
    ) -> Option<(Range<usize>, usize)> {
        let private = self.pagemap.private(range.clone())?;
        let (mut differing, mut next) = (0, 0);
        for (index, is_private) in private.into_iter().enumerate() {
            let page = range.start + index * PAGE;
            let reaches_into =
                |write: &TextWrite| write.address < page && write.address + write.len > page;
            let straddles = next > 0 && reaches_into(&writes[next - 1]);
            if differing >= PART && !straddles && (next == writes.len() || is_cut_before(next)) {
                return Some((range.start..page, next));
            }
            let before = next;
            while writes
                .get(next)
                .is_some_and(|write| write.address < page + PAGE)
            {
                next += 1;
            }
            differing += usize::from(is_private || straddles || next > before);
        }
        Some((range, writes.len()))
    }

    /// Copies the old text of `part` to the new text, with the new bytes of `writes`. Returns
    /// `None` if the new text cannot be written.
    fn write(&self, text: &mut Text, part: &Range<usize>, writes: &[TextWrite]) -> Option<()> {
        const TEXT: i32 = libc::PROT_READ | libc::PROT_EXEC;
        let new = self.new_at(self.done);
        // All of it: parts with other rights, or with other accounting, are not joined again.
        let protect_new = |rights| protect(new, self.old.range.end - self.done, rights).ok();
        let mut is_writable = false;
        for (page, writes) in self.differing(part, writes)? {
            let content = edited(text, page, writes);
            let at = self.new_at(page);
            let mut now = [0; PAGE];
            text.read(at, &mut now).ok()?;
            if content == now {
                continue;
            }
            if text.is_direct() {
                text.write(at, &content).ok()?;
                text.is_direct().then_some(())?;
                continue;
            }
            if !is_writable {
                protect_new(libc::PROT_READ | libc::PROT_WRITE)?;
                is_writable = true;
            }
            let at = ptr::with_exposed_provenance_mut::<u8>(at);
            // SAFETY: a page of our own mapping, which is writable since the call above.
            unsafe { ptr::copy_nonoverlapping(content.as_ptr(), at, PAGE) };
        }
        match is_writable {
            true => protect_new(TEXT),
            false => Some(()),
        }
    }

    /// Returns true if the new text of `part` is the old one, with the new bytes of `writes`.
    fn is_written(&self, text: &mut Text, part: &Range<usize>, writes: &[TextWrite]) -> bool {
        let mut is_same = |(page, writes)| {
            let mut new = [0; PAGE];
            text.read(self.new_at(page), &mut new).is_ok() && edited(text, page, writes) == new
        };
        let pages = self.differing(part, writes);
        pages.is_some_and(|pages| pages.into_iter().all(&mut is_same))
    }

    /// Returns the pages of `part` that may differ from the file, each with the writes on it.
    fn differing<'a>(
        &self,
        part: &Range<usize>,
        writes: &'a [TextWrite],
    ) -> Option<Vec<(usize, &'a [TextWrite])>> {
        let mut rest = writes;
        let private = self.pagemap.private(part.clone())?;
        let pages = private.into_iter().enumerate().map(|(index, is_private)| {
            let page = part.start + index * PAGE;
            while let [first, others @ ..] = rest
                && first.address + first.len <= page
            {
                rest = others;
            }
            let count = rest.partition_point(|write| write.address < page + PAGE);
            (page, &rest[..count], is_private)
        });
        let differing = pages.filter(|(_, writes, is_private)| *is_private || !writes.is_empty());
        Some(differing.map(|(page, writes, _)| (page, writes)).collect())
    }

    /// Moves the new text of `part` over the old one. Nothing is allocated while calls are `held`.
    fn replace(
        &mut self,
        text: &mut Text,
        part: Range<usize>,
        held: Closed,
    ) -> Result<(), ExchangeError> {
        let mut job = Move {
            from: self.new_at(part.start),
            len: part.len(),
            to: part.start,
            file: self.file.as_raw_fd() as usize,
            offset: self.old.offset + (part.start - self.old.range.start),
            moved: 0,
            mapped: 0,
        };
        let start = os::now();
        // SAFETY: a part of our own mapping, and text of a loaded module with the same bytes,
        // except for those that the write protocol may exchange.
        unsafe { (self.move_text)(&mut job) };
        let took = (os::now() - start).as_nanos() as u64;
        // Relaxed: a statistic without other data.
        LONGEST_MOVE.fetch_max(took, Ordering::Relaxed);
        if job.moved == job.to {
            drop(held);
            self.changed.note();
            self.done = part.end;
            return Ok(());
        }
        if job.mapped != job.to {
            if (job.mapped as isize) > 0 {
                // A kernel before 4.17 treats the address as a hint.
                // SAFETY: the range was just mapped, and its address is not known elsewhere.
                unsafe { libc::munmap(ptr::without_provenance_mut(job.mapped), part.len()) };
            }
            return Err(ExchangeError::Refused);
        }
        // The file's pages are there, and pages that differ are still in the new text.
        for page in part.clone().step_by(PAGE) {
            let (mut old, mut new) = ([0; PAGE], [0; PAGE]);
            let is_read = text
                .read(page, &mut old)
                .and(text.read(self.new_at(page), &mut new));
            is_read.map_err(ExchangeError::Lost)?;
            if old != new {
                text.write(page, &new).map_err(ExchangeError::Lost)?;
            }
        }
        drop(held);
        self.unmap(part.clone());
        // The text runs without the advice, too.
        let _ = self.changed.given().give(part.clone());
        self.done = part.end;
        Ok(())
    }

    /// Returns the address in the new mapping for an `address` in the old text.
    fn new_at(&self, address: usize) -> usize {
        self.new + (address - self.old.range.start)
    }

    fn unmap(&self, part: Range<usize>) {
        let new = ptr::without_provenance_mut(self.new_at(part.start));
        // SAFETY: a part of our own mapping that was not moved.
        unsafe { libc::munmap(new, part.len()) };
    }
}

impl Drop for TextExchange {
    fn drop(&mut self) {
        let rest = self.done..self.old.range.end;
        if !rest.is_empty() {
            self.unmap(rest);
        }
    }
}

/// Returns the longest time that the kernel took to move a part. Threads that fetched an
/// instruction there for the first time may have waited as long.
pub(crate) fn longest_move() -> Duration {
    Duration::from_nanos(LONGEST_MOVE.load(Ordering::Relaxed))
}

/// Returns true if all pages of a mapping are in `file`: one after its end cannot be read.
pub(super) fn can_be_mapped(file: &File, mapping: &FileMapping) -> bool {
    let end = (mapping.offset + mapping.range.len()) as u64;
    file.metadata()
        .is_ok_and(|file| file.len().next_multiple_of(PAGE as u64) >= end)
}

/// Returns the mapping of the text around `address`, once it is not writable; `None` if it stays
/// writable, cannot be read or run, or is no file's.
fn text_at(address: usize) -> Option<FileMapping> {
    let start = os::now();
    loop {
        let mapping = FileMapping::at(address)?;
        let rights = mapping.protection;
        if !rights.writable {
            return (rights.executable && rights.readable).then_some(mapping);
        }
        if os::now() - start >= PATIENCE {
            return None;
        }
        os::nap();
    }
}

/// Returns the text of the page at `page`, with the new bytes of `writes`.
fn edited(text: &mut Text, page: usize, writes: &[TextWrite]) -> [u8; PAGE] {
    let mut content = [0; PAGE];
    // Reading text cannot fail.
    let _ = text.read(page, &mut content);
    for write in writes {
        for (at, &byte) in write.new.bytes[..write.len].iter().enumerate() {
            let at = (write.address + at).wrapping_sub(page);
            if let Some(place) = content.get_mut(at) {
                *place = byte;
            }
        }
    }
    content
}

/// Returns the code that moves text, in a page of its own; `None` if there is no memory.
fn mover() -> Option<MoveText> {
    static PAGE_OF_CODE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
    let mut page = PAGE_OF_CODE.load(Ordering::Acquire);
    if page.is_null() {
        let rights = libc::PROT_READ | libc::PROT_EXEC;
        page = memory::map_with(PAGE, rights)?;
        // Like all text it is never writable.
        if Text::open().write(page.addr(), move_text::code()).is_err() {
            // SAFETY: the page was just mapped, and its address is not known elsewhere.
            unsafe { libc::munmap(page.cast(), PAGE) };
            return None;
        }
        // Release pairs with the Acquire above: the code is written before its address is stored.
        PAGE_OF_CODE.store(page, Ordering::Release);
    }
    // SAFETY: the page contains the code for this type, and is never unmapped.
    Some(unsafe { core::mem::transmute::<*mut u8, MoveText>(page) })
}
