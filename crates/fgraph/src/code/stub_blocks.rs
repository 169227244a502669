//! Blocks of memory for stubs that need particular addresses.
//!
//! A jump over several instructions has fixed bytes in its operand (see
//! [`crate::arch::punned_jump`]), so its stub must be at one of a few addresses, far below or above
//! its site. These are taken from blocks of 16 MB, which all modules share:
//!
//! ```text
//!   site - 0x34000000                                              site
//!    |<------------ 16 MB ----------->|                              |
//!   -+----------------+----------------+-------------- ... ----------+------
//!    |     block      |     block      |                           text
//!   -+----------------+----------------+-------------- ... ----------+------
//!
//!   block + 0      +--------------------------------------------+ --
//!                  | addresses of the entry trampolines         |   read as data
//!         + 64     | .eh_frame for the whole block              |
//!         + 4096   +--------------------------------------------+ --
//!                  |     | stub |        | stub | stub |        |   executed
//!                  +--------------------------------------------+ --
//! ```
//!
//! Every other block has its first page, with the header, in the middle: if only the last byte of a
//! site's distance is free, all its addresses have the same offset in their blocks, and the header
//! must not be there in all of them.
//!
//! A block is mapped as a whole, so that no other mapping gets between its stubs; pages that are
//! never written take no memory. Like all text it is never writable: stubs are written in the same
//! way as text. It is never unmapped, because a thread may be about to run a stub at any time.
//!
//! If a site has several possible addresses, multiples of a power of two are tried first, so that
//! the stubs of distant sites share few pages.
//!
//! # Safety
//!
//! The unsafe code maps memory where nothing is mapped, and registers permanent unwind information.

use core::ops::Range;
use core::ptr;
use std::collections::BTreeMap;

use crate::arch::punned_jump::{self, JumpTargets};
#[cfg(test)]
use crate::arch::stub;
use crate::arch::text_write::Text as _;
use crate::arch::trampoline::Trampolines;
use crate::code::arena;
use crate::code::text_writer::Text;
use crate::os::PAGE;
use crate::os::memory::map_at;

/// The size of a block, and the alignment of its address.
const BLOCK: usize = 1 << 24;

/// The number of addresses that are tried for one stub and one last byte of the distance.
const TRIES: usize = 1 << 12;

/// A mapped block.
#[derive(Debug)]
struct Block {
    base: usize,
    taken: Taken,
}

/// The used bytes of a block: stretches, by the offset of their first byte, each with the offset
/// after its last byte. No two of them are adjacent.
#[derive(Debug, Default)]
struct Taken(BTreeMap<u32, u32>);

impl Taken {
    /// Returns the last stretch with bytes before `end`.
    fn last_before(&self, end: usize) -> Option<Range<usize>> {
        let (&start, &end) = self.0.range(..end as u32).next_back()?;
        Some(start as usize..end as usize)
    }

    /// Adds bytes that are free.
    fn add(&mut self, bytes: Range<usize>) {
        let (mut start, mut end) = (bytes.start as u32, bytes.end as u32);
        if let Some(behind) = self.0.remove(&end) {
            end = behind;
        }
        if let Some(before) = self.last_before(bytes.start)
            && before.end == bytes.start
        {
            start = before.start as u32;
        }
        self.0.insert(start, end);
    }
}

impl Block {
    /// Maps the block at `base`, if nothing is there.
    fn map(base: usize, text: &mut Text, trampolines: &Trampolines) -> Option<Self> {
        map_at(base, BLOCK, libc::PROT_READ | libc::PROT_EXEC).ok()?;
        let place = StubBlocks::header(base);
        // libgcc ignores information for code that starts where the lower half of the address is 0.
        // The header is there then.
        let first = base + usize::from(base.trailing_zeros() >= u32::BITS);
        let header = arena::header(place, first, base + BLOCK - first, trampolines);
        if text.write(place, &header).is_err() {
            // SAFETY: the block was just mapped, and its address is not known elsewhere.
            unsafe { libc::munmap(ptr::without_provenance_mut(base), BLOCK) };
            return None;
        }
        arena::unwind_of_stubs(place).register();
        let mut taken = Taken::default();
        taken.add(place - base..place - base + PAGE);
        Some(Self { base, taken })
    }

    /// Takes `len` bytes at `address`, which is in the block.
    ///
    /// # Errors
    ///
    /// Fails with the next address at which they may all be free, if one of them is in use or not
    /// in the block.
    fn take(&mut self, address: usize, len: usize) -> Result<(), usize> {
        let offset = address - self.base;
        let end = offset + len;
        if end > BLOCK {
            return Err(self.base + BLOCK);
        }
        if let Some(taken) = self.taken.last_before(end)
            && taken.end > offset
        {
            return Err(self.base + taken.end);
        }
        self.taken.add(offset..end);
        Ok(())
    }
}

/// All blocks.
#[derive(Debug, Default)]
pub(crate) struct StubBlocks {
    /// Blocks by address divided by the size of a block; `None` where another mapping is.
    blocks: BTreeMap<usize, Option<Block>>,
    /// The places at which to continue searching, by the free bits and the start of the search.
    next: BTreeMap<(u32, usize), usize>,
}

impl StubBlocks {
    pub(crate) const fn new() -> Self {
        Self {
            blocks: BTreeMap::new(),
            next: BTreeMap::new(),
        }
    }

    /// Forgets the places at which to continue searching. The next searches begin at their start.
    pub(crate) fn forget_searches(&mut self) {
        self.next = BTreeMap::new();
    }

    /// Returns the address of the header for a stub at `place`.
    pub(crate) fn header(place: usize) -> usize {
        let index = place / BLOCK;
        index * BLOCK + index % 2 * (BLOCK / 2)
    }

    /// Iterates over the addresses of all headers.
    pub(crate) fn headers(&self) -> impl Iterator<Item = usize> {
        let blocks = self.blocks.values().flatten();
        blocks.map(|block| Self::header(block.base))
    }

    /// Takes `len` bytes for the stub of the site at `address`, with instruction starts `starts` in
    /// its five bytes; `None` if no address is left, or no memory.
    pub(crate) fn take(
        &mut self,
        address: usize,
        starts: u8,
        len: usize,
        text: &mut Text,
        trampolines: &Trampolines,
    ) -> Option<usize> {
        punned_jump::last_bytes(starts).find_map(|last| {
            let places = JumpTargets::new(address, starts, last)?;
            self.take_one_of(places, len, text, trampolines)
        })
    }

    fn take_one_of(
        &mut self,
        places: JumpTargets,
        len: usize,
        text: &mut Text,
        trampolines: &Trampolines,
    ) -> Option<usize> {
        // The stubs gather after multiples of the power of two that the addresses span.
        let span = (places.free() as usize + 1).next_power_of_two();
        let gather = places.lowest().next_multiple_of(span);
        let begin = places.at_or_above(gather);
        let key = (places.free(), begin.unwrap_or(gather));
        let mut from = self.next.get(&key).copied().unwrap_or(key.1);
        let mut wrapped = false;
        for _ in 0..TRIES {
            let Some(place) = places.at_or_above(from) else {
                if core::mem::replace(&mut wrapped, true) {
                    return None;
                }
                from = places.lowest();
                continue;
            };
            let header = Self::header(place);
            if (header..header + PAGE).contains(&place) {
                from = header + PAGE;
                continue;
            }
            let index = place / BLOCK;
            let block = self
                .blocks
                .entry(index)
                .or_insert_with(|| Block::map(index * BLOCK, text, trampolines));
            let Some(block) = block else {
                from = (index + 1) * BLOCK;
                continue;
            };
            match block.take(place, len) {
                Ok(()) => {
                    if !wrapped {
                        self.next.insert(key, place + 1);
                    }
                    return Some(place);
                }
                Err(next) => from = next,
            }
        }
        None
    }
}

/// Stubs that are not yet written to their places in blocks.
#[derive(Debug, Default)]
pub(crate) struct PlacedStubs {
    bytes: Vec<u8>,
    /// The place of each, and its range in `bytes`.
    all: Vec<(usize, Range<usize>)>,
}

impl PlacedStubs {
    /// Adds the stub for a place that was [taken](StubBlocks::take).
    pub(crate) fn add(&mut self, place: usize, stub: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(stub);
        self.all.push((place, start..self.bytes.len()));
    }

    /// Writes all stubs, those of a page with one write.
    ///
    /// # Errors
    ///
    /// Fails with the system's error number.
    pub(crate) fn write(mut self, text: &mut Text) -> Result<(), i32> {
        self.all.sort_unstable_by_key(|&(place, _)| place);
        // The bytes between two stubs of a page stay unchanged, unless a debugger changes them
        // meanwhile.
        let is_shared = text.is_shared();
        let is_together =
            |&(a, _): &(usize, _), &(b, _): &(usize, _)| a / PAGE == b / PAGE && !is_shared;
        let mut page = Vec::new();
        for stubs in self.all.chunk_by(is_together) {
            let Some((first, last)) = stubs.first().zip(stubs.last()) else {
                continue;
            };
            let start = first.0;
            page.clear();
            page.resize(last.0 + last.1.len() - start, 0);
            if stubs.len() > 1 {
                text.read(start, &mut page)?;
            }
            for (place, bytes) in stubs {
                page[place - start..][..bytes.len()].copy_from_slice(&self.bytes[bytes.clone()]);
            }
            text.write(start, &page)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(places: &mut StubBlocks, address: usize, starts: u8) -> Option<usize> {
        let trampolines = Trampolines::NONE;
        places.take(address, starts, 24, &mut Text::open(), &trampolines)
    }

    /// Addresses below which nothing is mapped.
    fn site() -> usize {
        let local = 0_u8;
        (&raw const local).addr() / 2
    }

    #[test]
    fn stubs_do_not_overlap_and_jumps_to_them_trap_within() {
        let (mut places, site) = (StubBlocks::new(), site());
        let mut taken: Vec<usize> = Vec::new();
        for index in 0..3_000 {
            // All patterns but that of gcc's pad, which has one place only.
            let starts = (index * 2 % 30) as u8 | 1;
            let address = site + index * 48;
            let place = take(&mut places, address, starts);
            let place = place.unwrap_or_else(|| panic!("{index}: {starts:b}"));
            let jump = stub::jmp_rel32(address, place).unwrap();
            for at in (1..5).filter(|at| starts >> at & 1 != 0) {
                assert!(punned_jump::traps(at, jump[at]));
            }
            taken.push(place);
        }
        taken.sort_unstable();
        assert!(taken.windows(2).all(|pair| pair[0] + 24 <= pair[1]));
        let mut pages: Vec<usize> = taken.iter().map(|place| place / PAGE).collect();
        pages.dedup();
        assert!(pages.len() < 300, "{} pages", pages.len());
    }

    #[test]
    fn bytes_of_a_block_are_taken_once_and_the_next_place_is_behind_those_that_are() {
        const LEN: usize = 24;
        let mut block = Block {
            base: 7 * BLOCK,
            taken: Taken::default(),
        };
        let mut taken = vec![false; BLOCK];
        for round in 0..20_000 {
            let offset = round * 7_919 % 30_000 + (BLOCK - 30_000) * (round % 2);
            let bytes = offset..offset + LEN;
            let last = taken
                .get(bytes.clone())
                .map(|bytes| bytes.iter().rposition(|&is| is));
            let free = |from: usize| taken[from..].iter().position(|&is| !is);
            let expected = match last {
                None => Err(BLOCK),
                Some(Some(last)) => Err(free(offset + last).map_or(BLOCK, |it| offset + last + it)),
                Some(None) => Ok(()),
            };
            if expected.is_ok() {
                taken[bytes].fill(true);
            }
            let found = block.take(block.base + offset, LEN);
            assert_eq!(
                found.map_err(|next| next - block.base),
                expected,
                "{offset}"
            );
        }
        let stretches: Vec<_> = block.taken.0.iter().collect();
        assert!(stretches.windows(2).all(|pair| pair[0].1 < pair[1].0));
        let bytes: u32 = stretches.iter().map(|(start, end)| *end - *start).sum();
        assert_eq!(bytes as usize, taken.iter().filter(|&&is| is).count());
    }

    #[test]
    fn one_place_is_taken_once() {
        let (mut places, site) = (StubBlocks::new(), site() + (1 << 32));
        assert!(take(&mut places, site, 0b11111).is_some());
        // Other last bytes give other places.
        let others = punned_jump::last_bytes(0b11111).count() - 1;
        for _ in 0..others {
            assert!(take(&mut places, site, 0b11111).is_some());
        }
        assert_eq!(take(&mut places, site, 0b11111), None);
    }

    #[test]
    fn a_site_has_places_wherever_the_text_is() {
        let (mut places, site) = (StubBlocks::new(), (site() + (3 << 32)) & !(BLOCK - 1));
        // Only the last byte may be chosen, so at one of these all places are where headers begin.
        let distance = 0xcccccc + 5;
        for offset in [0, PAGE / 2, BLOCK / 2, BLOCK / 2 + PAGE - 1] {
            let site = site + offset.wrapping_sub(distance) % BLOCK;
            for starts in [0b01111, 0b11111] {
                assert!(take(&mut places, site, starts).is_some(), "{offset:x}");
            }
        }
    }

    #[test]
    fn foreign_mappings_are_left_alone() {
        let (mut places, site) = (StubBlocks::new(), (site() + (2 << 32)) & !0xff_ffff);
        let mut blocks = Vec::new();
        for last in punned_jump::last_bytes(0b10001) {
            let lowest = JumpTargets::new(site, 0b10001, last).unwrap().lowest();
            blocks.extend([lowest / BLOCK, lowest / BLOCK + 1]);
        }
        blocks.sort_unstable();
        blocks.dedup();
        let map = |block: &usize| map_at(block * BLOCK + PAGE, PAGE, libc::PROT_NONE).unwrap();
        let taken: Vec<usize> = blocks.iter().map(map).collect();
        assert_eq!(take(&mut places, site, 0b10001), None);
        for page in taken {
            // SAFETY: mapped above.
            unsafe { libc::munmap(ptr::without_provenance_mut(page), PAGE) };
        }
    }

    #[test]
    fn stubs_of_a_page_are_written_and_others_stay() {
        let (mut places, mut text) = (StubBlocks::new(), Text::open_for(9));
        let site = site() + (5 << 32);
        let taken = (0..300).map(|index| take(&mut places, site + index * 4096, 0b10011).unwrap());
        let taken: Vec<usize> = taken.collect();
        // The stubs that are written last are on both sides of the others.
        for parity in [1, 0] {
            let mut placed = PlacedStubs::default();
            let some = taken.iter().skip(parity).step_by(2);
            some.for_each(|&place| placed.add(place, &[1 + parity as u8; 24]));
            placed.write(&mut text).unwrap();
        }
        for (index, &place) in taken.iter().enumerate() {
            let mut found = [0; 24];
            crate::os::memory::read(place, &mut found).unwrap();
            assert_eq!(found, [1 + (index % 2) as u8; 24], "{place:#x}");
        }
    }
}
