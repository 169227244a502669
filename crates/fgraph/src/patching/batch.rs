//! A batch of sites whose text is changed together.
//!
//! # Uprobes
//!
//! A uprobe at a patched function (`perf probe`, `bpftrace`) replaces the first byte of the jump
//! with an `int3`. When it is removed, the kernel writes the *file's* byte there: the function's
//! own first byte, before the rest of our jump. These bytes are not an instruction of ours.
//!
//! ```text
//!   jump            e9 rr rr rr rr
//!   uprobe comes    cc rr rr rr rr    runs the file's first instruction elsewhere, goes on behind
//!   uprobe goes     48 rr rr rr rr    rubbish, unless the first instruction is this byte alone
//! ```
//!
//! Both cases are recognised when a site is restored: with a uprobe, all of its own bytes except
//! the first are restored, which the kernel will restore itself. [`Batch::mend`] repairs a site
//! that is to stay patched. A kernel with support for it may replace a NOP of five bytes by a call,
//! and later by a NOP again. From 2026 on kernels do so at a NOP of ten bytes, over our jump in its
//! first five:
//!
//! ```text
//!   jump            e9 rr rr rr rr 00 00 00 00 00
//!   uprobe is hit   48 8d 64 24 80 e8 rr rr rr rr    lea -0x80(%rsp), %rsp; call
//!   uprobe goes     eb 08 64 24 80 e8 rr rr rr rr    jumps over the slot
//! ```
//!
//! Nothing of the jump is left then, so there is nothing to restore. The NOP's own first bytes are
//! a NOP before any other five, too: these are its displacement.

use core::ops::Range;
use core::sync::atomic::Ordering;
use core::{iter, ptr};
use std::time::Duration;

use crate::arch::stub::SITE_LEN;
use crate::arch::text_write::{self, Content, INT3, Skip, TextWrite, TextWriteError};
use crate::arch::{punned_jump, stub};
use fgraph_core::site::Site;

use super::{blocked, signals};
use crate::code::text_exchange::{ExchangeError, TextExchange};
use crate::code::text_writer::Text;
use crate::os::{self, PAGE};
use crate::report::error::{Error, RefusalReason, RefusedFunction};
use crate::sites::{self, OFF, ON};

/// The number of sites that are written at once. Meanwhile no library can be loaded or unloaded,
/// and calls of them may trap: for a few milliseconds.
const PIECE: usize = 1024;

/// The reason that a site was not changed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Obstacle {
    /// Other bytes are there.
    Found([u8; SITE_LEN]),
    /// A thread could trap there, which blocks all signals.
    Trap,
}

/// The reason, for each site of a piece that was not changed.
pub(crate) type Changed = Vec<Option<Obstacle>>;

/// A site that a user wants and that could not be changed, with the reason.
pub(crate) type FailedSite = (&'static Site, RefusedFunction);

/// The sites to be changed, each with its change.
#[derive(Debug)]
pub(crate) struct Batch {
    sites: Vec<&'static Site>,
    writes: Vec<TextWrite>,
}

impl Batch {
    /// Plans the writes for the `sites` whose state differs from `is_wanted`.
    pub(crate) fn plan(mut sites: Vec<&'static Site>, is_wanted: impl Fn(&Site) -> bool) -> Self {
        sites.retain(|site| is_wanted(site) != is_on(site));
        sites.sort_unstable_by_key(|site| site.entry);
        sites.dedup_by_key(|site| site.entry);
        let writes = sites.iter().map(|site| write_of(site)).collect();
        Self { sites, writes }
    }

    /// Plans the writes for the `sites` that no longer jump to their stub, because a uprobe was
    /// removed. Call it while no module can be unloaded.
    pub(crate) fn mend(sites: impl Iterator<Item = &'static Site>) -> Self {
        let mut text = Text::open();
        let broken = sites.filter(|site| is_on(site)).filter_map(|site| {
            let mut write = write_of(site);
            let mut found = write.old.bytes;
            text_write::Text::read(&mut text, site.entry, &mut found[..write.len]).ok()?;
            let original = write.new;
            let is_whole = found[..write.len] == original.bytes[..write.len];
            let is_broken = found == after_uprobe(&write, original.bytes[0])
                || found == SKIPPED && is_nop_of_ten(&original);
            write.new = write.old;
            write.old = match is_whole {
                true => original,
                false => Content::one(found),
            };
            (is_whole || is_broken).then_some((site, write))
        });
        let mut broken: Vec<_> = broken.collect();
        broken.sort_unstable_by_key(|(site, _)| site.entry);
        let (sites, writes) = broken.into_iter().unzip();
        Self { sites, writes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sites.is_empty()
    }

    /// Returns the number of sites.
    pub(crate) fn len(&self) -> usize {
        self.sites.len()
    }

    /// Installs the handlers for the traps of the batch.
    pub(crate) fn take_signals(&self) -> Result<(), Error> {
        let invalid = |write: &TextWrite| {
            let ends = [write.old, write.new].map(|content| content.bytes[SITE_LEN - 1]);
            !is_of_one_instruction(write) && ends.into_iter().any(punned_jump::is_invalid)
        };
        Ok(signals::ensure(self.writes.iter().any(invalid))?)
    }

    /// Returns true if a thread may trap at its sites when it is written. If each site exchanges
    /// one instruction for another one, no thread can be inside.
    pub(crate) fn leaves_traps(&self) -> bool {
        let leaves_none = |write: &TextWrite| write.len != 1 && is_of_one_instruction(write);
        !self.writes.iter().all(leaves_none)
    }

    /// Makes sure that no thread that blocks the traps of the batch hits one when its text is
    /// exchanged. Returns true if none hits one when it is written in place either.
    pub(crate) fn check_signals(&self) -> Result<bool, Error> {
        let is_anywhere = self.adds_breakpoints();
        self.check(|address| is_anywhere || is_inside(&self.writes, address))
    }

    /// Makes sure that no thread blocks the traps of the batch.
    pub(crate) fn check_all_signals(&self) -> Result<(), Error> {
        self.check(|_| true).map(|_| ())
    }

    /// Makes sure that no thread that blocks the traps may be at an address for which `is_inside`
    /// returns true. Returns true if no thread blocks them.
    fn check(&self, is_inside: impl Fn(usize) -> bool) -> Result<bool, Error> {
        let blocked = |thread| Error::SignalBlocked { thread };
        let is_checked = blocked::unmask_everywhere(is_inside).map_err(blocked)?;
        // This thread is safe while it patches; afterwards it is like any other.
        match self.adds_breakpoints() && signals::blocked_here() {
            true => Err(blocked(os::thread_id())),
            false => Ok(is_checked),
        }
    }

    /// Returns true if calls of a site will trap permanently.
    fn adds_breakpoints(&self) -> bool {
        let mut all = self.writes.iter().zip(&self.sites);
        all.any(|(write, site)| write.len == 1 && !is_on(site))
    }

    /// Splits its sites into pieces that are written one after the other.
    ///
    /// No two pieces have sites on the same page, so the text of each can be exchanged separately.
    /// A padding jump and its function are in one piece: otherwise the short jump would lead to a
    /// NOP for a moment.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        let (mut sites, mut writes) = (&self.sites[..], &self.writes[..]);
        let mut pages_of_module = None;
        iter::from_fn(move || {
            let module = sites.first()?.module;
            let is_in = |site: &&'static Site| ptr::eq(site.module, module);
            let is_apart = |at: usize| {
                let end = writes[at - 1].address + writes[at - 1].len - 1;
                !sites::is_padding_jump(sites[at - 1]) && end / PAGE < writes[at].address / PAGE
            };
            let of_module = sites.iter().take_while(|site| is_in(site)).count();
            let len = (PIECE..of_module).find(|&at| is_apart(at));
            let len = len.unwrap_or(of_module);
            let pages = *pages_of_module.get_or_insert_with(|| pages(&writes[..of_module]));
            if len == of_module {
                pages_of_module = None;
            }
            let piece = Piece {
                sites: &sites[..len],
                writes: &writes[..len],
                pages_of_module: pages,
                limit: match len < of_module {
                    true => writes[len].address,
                    false => usize::MAX,
                },
            };
            (sites, writes) = (&sites[len..], &writes[len..]);
            Some(piece)
        })
    }
}

/// Returns the number of pages that contain first bytes of `writes`.
fn pages(writes: &[TextWrite]) -> usize {
    let page = |write: &TextWrite| write.address / PAGE;
    writes.chunk_by(|a, b| page(a) == page(b)).count()
}

/// Sites of one module that are written at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'a> {
    sites: &'a [&'static Site],
    writes: &'a [TextWrite],
    /// The number of pages in its module with a site of the batch.
    pages_of_module: usize,
    /// The address of the next piece's first site, if that is in the same module.
    limit: usize,
}

impl Piece<'_> {
    /// Returns the addresses of its text, from the first site to the last.
    pub(crate) fn range(self) -> Range<usize> {
        let last = self.writes[self.writes.len() - 1];
        self.writes[0].address..last.address + last.len
    }

    /// Splits it at `address`, where a mapping ends; the second part is `None` if no site is after
    /// that. Returns `None` if a site straddles the address, or if a padding jump is before it and
    /// its function after it.
    pub(crate) fn split_at(self, address: usize) -> Option<(Self, Option<Self>)> {
        let at = self.writes.partition_point(|write| write.address < address);
        let last = at.checked_sub(1)?;
        if self.writes[last].address + self.writes[last].len > address {
            return None;
        }
        if at == self.sites.len() {
            return Some((self, None));
        }
        let ((sites, later_sites), (writes, later_writes)) =
            (self.sites.split_at(at), self.writes.split_at(at));
        let within = Self {
            sites,
            writes,
            limit: address,
            ..self
        };
        let later = Self {
            sites: later_sites,
            writes: later_writes,
            ..self
        };
        (!sites::is_padding_jump(sites[last])).then_some((within, Some(later)))
    }

    /// Returns the number of pages in its module with a site of the batch.
    pub(crate) fn pages_of_module(self) -> usize {
        self.pages_of_module
    }

    /// Returns its first site.
    pub(crate) fn first_site(self) -> &'static Site {
        self.sites[0]
    }

    /// Returns the result that each site was changed.
    pub(crate) fn all_changed(self) -> Changed {
        vec![None; self.sites.len()]
    }

    /// Returns true if its module is one of the unloaded ones, given by their sites.
    pub(crate) fn is_gone(self, gone: &[&'static [Site]]) -> bool {
        let site = ptr::from_ref(self.sites[0]);
        gone.iter()
            .any(|sites| sites.as_ptr_range().contains(&site))
    }

    /// Writes all changes in place, except for sites at which no thread may trap if `spares_those`.
    /// Call it while no module can be unloaded.
    pub(crate) fn write(
        self,
        text: &mut Text,
        skip: Skip,
        spares_those: bool,
    ) -> (Result<usize, TextWriteError<i32>>, Changed) {
        let is_spared = |site: &Site| spares_those && sites::is_exchanged(site);
        let spared = self.sites.iter().map(|site| is_spared(site));
        let mut changed: Changed = spared
            .map(|is_spared| is_spared.then_some(Obstacle::Trap))
            .collect();
        let written = (0..self.writes.len()).filter(|&index| changed[index].is_none());
        let (written, writes): (Vec<usize>, Vec<TextWrite>) =
            written.map(|index| (index, self.writes[index])).unzip();
        let mut later = Vec::new();
        let refused = |index: usize, found| {
            let index = written[index];
            if is_done(&self.writes[index], found) {
                return;
            }
            match past_uprobe(&self.writes[index], found) {
                // Under a debugger's breakpoint, our jump comes back later.
                Some(write)
                    if (is_on(self.sites[index]) || found == SKIPPED)
                        && !(found[0] == INT3 && os::status::is_debugged()) =>
                {
                    later.push((index, write));
                }
                _ => changed[index] = Some(Obstacle::Found(found)),
            }
        };
        let mut result = text_write::apply_with(text, &writes, refused, skip);
        if let (Ok(done), false) = (&mut result, later.is_empty()) {
            let (indices, writes): (Vec<usize>, Vec<TextWrite>) = later.into_iter().unzip();
            let refused = |index: usize, found| {
                changed[indices[index]] = Some(Obstacle::Found(found));
            };
            match text_write::apply_with(text, &writes, refused, skip) {
                Ok(more) => *done += more,
                Err(error) => result = Err(error),
            }
        }
        (result, changed)
    }

    /// Waits, for a limited time, until no thread that blocks traps may be between two instructions
    /// that it displaces, and no process in the same memory either.
    pub(crate) fn wait_until_none_inside(self) {
        /// Far longer than a child of `vfork` takes to execute a program.
        const PATIENCE: Duration = Duration::from_millis(200);
        wait_until_none_inside(self.writes, PATIENCE);
    }

    /// Makes all changes by exchanging the text up to the next piece. Returns the number of sites
    /// that were changed. Call it while no module can be unloaded, and there is no debugger.
    pub(crate) fn exchange(
        self,
        text: &mut Text,
        exchange: &mut TextExchange,
    ) -> Result<(usize, Changed), ExchangeError> {
        let mut changed = self.all_changed();
        let (mut indices, mut writes) = (Vec::new(), Vec::new());
        for (index, write) in self.writes.iter().enumerate() {
            let mut found = write.old.bytes;
            // Reading text cannot fail.
            let _ = text_write::Text::read(text, write.address, &mut found[..write.len]);
            let change = match found == write.old.bytes {
                true => Some(*write),
                false => past_uprobe(write, found)
                    .filter(|_| is_on(self.sites[index]) || found == SKIPPED),
            };
            match change {
                Some(write) => {
                    indices.push(index);
                    writes.push(write);
                }
                None if is_done(write, found) => {}
                None => changed[index] = Some(Obstacle::Found(found)),
            }
        }
        if text_write::check::<()>(&writes).is_err() {
            return Err(ExchangeError::Refused);
        }
        let is_cut_before = |at: usize| match indices[at].checked_sub(1) {
            Some(before) => !sites::is_padding_jump(self.sites[before]),
            None => true,
        };
        // The loader lock is held, and no library can be loaded.
        const PATIENCE: Duration = Duration::from_millis(20);
        let before_move = || wait_until_none_inside(&writes, PATIENCE);
        exchange.advance(text, self.limit, &writes, is_cut_before, before_move)?;
        Ok((writes.len(), changed))
    }

    /// Records the result of writing. Returns the number of users' sites that now jump to their
    /// stub and did not before, and the sites that could not be changed.
    pub(crate) fn settle(self, changed: &Changed) -> (usize, Vec<FailedSite>) {
        let mut patched = 0;
        let mut refused = Vec::new();
        for (site, &obstacle) in self.sites.iter().zip(changed) {
            let reason = match obstacle {
                None if is_on(site) => {
                    site.state.store(OFF, Ordering::Relaxed);
                    continue;
                }
                None => {
                    site.state.store(ON, Ordering::Relaxed);
                    patched += usize::from(!is_ours(site));
                    continue;
                }
                // Under a debugger's breakpoint our jump may still be there; its stub finds that no
                // user wants the call.
                Some(Obstacle::Found([INT3, ..])) if is_on(site) => continue,
                // Another patcher has replaced it.
                Some(Obstacle::Found(_)) if is_on(site) => {
                    site.state.store(OFF, Ordering::Relaxed);
                    continue;
                }
                Some(Obstacle::Found(found)) => RefusalReason::Changed { found },
                // A later batch restores a jump that stays.
                Some(Obstacle::Trap) => RefusalReason::NotExchanged,
            };
            let refusal = RefusedFunction {
                name: fgraph_core::site::function_of(site).name().to_string(),
                module: site.module.path().to_owned(),
                address: site.entry,
                reason,
            };
            refused.push((*site, refusal));
        }
        (patched, refused)
    }
}

/// Waits until no thread that blocks traps may be between two instructions that `writes` displace;
/// gives up after `patience`.
fn wait_until_none_inside(writes: &[TextWrite], patience: Duration) {
    if writes.iter().all(is_of_one_instruction) {
        return;
    }
    blocked::wait_until_none_inside(patience, |address| is_inside(writes, address));
}

/// Returns true if an address is within the bytes that one of `writes` changes, after the first
/// one.
fn is_inside(writes: &[TextWrite], address: usize) -> bool {
    let next = writes.partition_point(|write| write.address < address);
    let write = next.checked_sub(1).map(|at| writes[at]);
    write.is_some_and(|write| address < write.address + write.len)
}

/// Returns true if a write exchanges one instruction for another one.
fn is_of_one_instruction(write: &TextWrite) -> bool {
    (write.old.starts | write.new.starts) == 1
}

/// Returns true if a site is patched for fgraph itself: one of its hooks, or a padding jump.
pub(crate) fn is_ours(site: &Site) -> bool {
    let wanted = site.interest.load(Ordering::Relaxed) != 0;
    !wanted && (sites::is_hook(site) || sites::is_padding_jump(site))
}

/// Returns true if a site jumps to its stub.
pub(crate) fn is_on(site: &Site) -> bool {
    site.state.load(Ordering::Relaxed) == ON
}

/// The first bytes of a NOP of ten bytes that an optimized uprobe is on, and that one was on.
const OPTIMIZED: [u8; SITE_LEN] = [0x48, 0x8d, 0x64, 0x24, 0x80];
const SKIPPED: [u8; SITE_LEN] = [0xeb, 0x08, 0x64, 0x24, 0x80];

/// Returns true if a NOP of ten bytes begins so: `nopw %cs:0(%rax,%rax,1)`.
fn is_nop_of_ten(content: &Content) -> bool {
    content.bytes == [0x66, 0x2e, 0x0f, 0x1f, 0x84]
}

/// Returns true if the bytes `found` show that `write` was made, or that an optimized uprobe has
/// removed the jump.
fn is_done(write: &TextWrite, found: [u8; SITE_LEN]) -> bool {
    let is_removed = is_nop_of_ten(&write.new) && [OPTIMIZED, SKIPPED].contains(&found);
    is_removed || found[..write.len] == write.new.bytes[..write.len]
}

/// Returns the bytes that a removed uprobe leaves where `write` is to be made: its rest, after
/// `first`.
fn after_uprobe(write: &TextWrite, first: u8) -> [u8; SITE_LEN] {
    let mut bytes = write.old.bytes;
    bytes[0] = first;
    bytes
}

/// Returns the change that restores a site instead of `write`, if there is a uprobe or was one.
fn past_uprobe(write: &TextWrite, found: [u8; SITE_LEN]) -> Option<TextWrite> {
    let mut write = *write;
    let is_there = found == after_uprobe(&write, INT3);
    let is_skipped = found == SKIPPED && is_nop_of_ten(&write.old);
    if !is_there && !is_skipped && found != after_uprobe(&write, write.new.bytes[0]) {
        return None;
    }
    write.old = Content::one(found);
    if is_there {
        write.new.bytes[0] = INT3;
    }
    Some(write)
}

/// Returns the change that a site needs.
fn write_of(site: &Site) -> TextWrite {
    let original = sites::original(site);
    let mut bytes = original.bytes;
    let len = sites::patched_len(site);
    match len {
        1 => bytes[0] = INT3,
        2 => bytes[..2]
            .copy_from_slice(&sites::short_jump(site).expect("the padding jump is before it")),
        _ => {
            let jump = stub::jmp_rel32(site.entry, site.stub);
            bytes = jump.expect("the stub was placed within reach");
        }
    }
    let patched = Content::one(bytes);
    let (old, new) = if is_on(site) {
        (patched, original)
    } else {
        (original, patched)
    };
    TextWrite {
        address: site.entry,
        len,
        old,
        new,
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU64};

    use fgraph_core::site::{self, Module, SiteName};

    use super::*;

    /// Makes `count` sites of a module; the one at `padding_jump` is the NOP before the next one.
    fn sites(first: usize, count: usize, padding_jump: usize) -> &'static [Site] {
        let module: &'static Module = Box::leak(Box::new(site::module("lib.so", &())));
        let site = |index| Site {
            entry: first + 16 * index,
            body: first + 16 * index + SITE_LEN,
            interest: AtomicU16::new(1),
            lead: 0,
            state: AtomicU8::new(OFF),
            inner: [0; 4],
            name: SiteName::new(""),
            index: index as u32,
            module,
            stub: first,
            runtime: AtomicU64::new(
                sites::Original {
                    bytes: [0x90; SITE_LEN],
                    patched_len: SITE_LEN as u8,
                    is_padding_jump: index == padding_jump,
                    is_system_call: false,
                    is_exchanged: false,
                }
                .to_word(),
            ),
        };
        (0..count).map(site).collect::<Vec<_>>().leak()
    }

    #[test]
    fn uprobes_are_recognized_by_the_bytes_that_they_leave() {
        const JUMP: [u8; SITE_LEN] = [0xe9, 1, 2, 3, 4];
        const PLAIN: [u8; SITE_LEN] = [0x48, 0x89, 0xe5, 0x53, 0x90];
        const TEN: [u8; SITE_LEN] = [0x66, 0x2e, 0x0f, 0x1f, 0x84];
        let write = |old, new| TextWrite {
            address: 16,
            len: SITE_LEN,
            old: Content::one(old),
            new: Content::one(new),
        };
        let after = |write: &TextWrite, found| {
            let change = past_uprobe(write, found);
            change.map(|change| (change.old.bytes, change.new.bytes))
        };
        // A jump to be removed, from displaced instructions.
        let off = write(JUMP, PLAIN);
        let there = [0xcc, 1, 2, 3, 4];
        let gone = [0x48, 1, 2, 3, 4];
        assert_eq!(
            after(&off, there),
            Some((there, [0xcc, 0x89, 0xe5, 0x53, 0x90]))
        );
        assert_eq!(after(&off, gone), Some((gone, PLAIN)));
        assert!(is_done(&off, PLAIN) && !is_done(&off, JUMP));
        // The bytes of optimized uprobes mean nothing where there is no NOP of ten bytes.
        for other in [OPTIMIZED, SKIPPED, [0; SITE_LEN]] {
            assert!(!is_done(&off, other) && after(&off, other).is_none());
        }
        // From a NOP of ten bytes the kernel has removed it.
        let off = write(JUMP, TEN);
        assert_eq!(
            after(&off, there),
            Some((there, [0xcc, 0x2e, 0x0f, 0x1f, 0x84]))
        );
        for removed in [TEN, OPTIMIZED, SKIPPED] {
            assert!(is_done(&off, removed), "{removed:x?}");
        }
        // A jump to be written waits for the end of the uprobe.
        let on = write(TEN, JUMP);
        assert!(!is_done(&on, OPTIMIZED) && after(&on, OPTIMIZED).is_none());
        assert_eq!(after(&on, SKIPPED), Some((SKIPPED, JUMP)));
    }

    #[test]
    fn a_piece_ends_with_a_page_and_does_not_part_a_padding_jump_from_its_function() {
        const ON_PAGE: usize = PAGE / 16;
        let [large, small] = [
            sites(1 << 20, 2 * PIECE, PIECE - 1),
            sites(1 << 30, 3, usize::MAX),
        ];
        let all: Vec<&Site> = large.iter().chain(small).collect();
        let batch = Batch::plan(all.clone(), |_| true);
        let pieces: Vec<_> = batch.pieces().collect();
        let lens: Vec<_> = pieces.iter().map(|piece| piece.sites.len()).collect();
        assert_eq!(lens, [PIECE + ON_PAGE, PIECE - ON_PAGE, 3]);
        let limits: Vec<_> = pieces.iter().map(|piece| piece.limit).collect();
        assert_eq!(
            limits,
            [large[PIECE + ON_PAGE].entry, usize::MAX, usize::MAX]
        );
        let pages: Vec<_> = pieces.iter().map(|piece| piece.pages_of_module).collect();
        assert_eq!(pages, [2 * PIECE / ON_PAGE, 2 * PIECE / ON_PAGE, 1]);
        let pairs = |piece: &Piece<'_>| piece.sites.iter().zip(piece.writes).count();
        assert_eq!(pieces.iter().map(pairs).sum::<usize>(), all.len());
        let written = pieces
            .iter()
            .flat_map(|piece| piece.sites.iter().zip(piece.writes));
        for ((site, write), expected) in written.zip(all) {
            assert!(ptr::eq(*site, expected) && write.address == site.entry);
        }
        let is_gone = |piece: &Piece<'_>| piece.is_gone(&[large]);
        assert_eq!(
            pieces.iter().map(is_gone).collect::<Vec<_>>(),
            [true, true, false]
        );
    }
}
