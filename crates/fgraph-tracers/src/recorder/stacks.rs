//! Numbers for stacks: the return addresses of a call and of those around it.
//!
//! A stack is described to readers once; events then have its number. All threads of a process
//! share the table:
//!
//! ```text
//!   slots, by hash                words
//!   | 31 bits of the hash | o |-->| len | address | address | ... |
//!   | 0                       |     number: index of the first word
//! ```
//!
//! A slot never changes once it is set. Where the table or the readers' descriptions have no room,
//! a stack has no number.
//!
//! A child of `fork` finds an empty table, since numbers belong to a process.

use core::sync::atomic::{AtomicU64, Ordering};

use fgraph_trace::names::{DescriptionKind, packed_address};
use fgraph_trace::ring::Rings;

use super::fetch::MAX_STACK;
use crate::support::arena::Zeroed;
use crate::support::mapped::Mapped;

/// The numbers of a process's stacks.
#[derive(Debug)]
pub(super) struct Stacks(Mapped<Table>);

#[derive(Debug)]
struct Table {
    /// Words in use. The first word is not a stack, so that no number is 0.
    used: AtomicU64,
    slots: [AtomicU64; SLOTS],
    words: [AtomicU64; WORDS],
}

// SAFETY: zeros are valid atomics.
unsafe impl Zeroed for Table {}

/// A place for a stack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Free<'s> {
    slot: &'s AtomicU64,
    tag: u64,
}

const SLOTS: usize = 1 << 17;
const WORDS: usize = 1 << 21;
/// The most slots that are searched for a stack.
const PROBES: usize = 16;
/// Bits of a slot for the number.
const NUMBER_BITS: u32 = 32;
/// Characters of an address in a description.
const CHARACTERS: usize = packed_address(0).len();

impl Stacks {
    /// Creates an empty table; `None` without memory.
    pub(super) fn new() -> Option<Self> {
        Mapped::wiped_on_fork().map(Self)
    }

    /// Returns the number of a stack of a process, which readers know then.
    #[inline]
    pub(super) fn number(&self, stack: &[usize], process: u32, rings: &Rings) -> Option<u64> {
        match self.find(stack) {
            Ok(number) => Some(number),
            Err(free) => self.add(free?, stack, process, rings),
        }
    }

    /// Returns the number of a stack that has one, or else the place for it, if there is room.
    /// Callbacks on the fast path may call this.
    #[inline(always)]
    pub(super) fn find(&self, stack: &[usize]) -> Result<u64, Option<Free<'_>>> {
        let hash = hash(stack);
        // Never 0, which marks a free slot.
        let tag = hash >> NUMBER_BITS | 1;
        for probe in 0..PROBES {
            let slot = &self.0.slots[(hash as usize).wrapping_add(probe) % SLOTS];
            // Acquire: the words are written before.
            let found = slot.load(Ordering::Acquire);
            if found == 0 {
                return Err(Some(Free { slot, tag }));
            }
            let number = found & ((1 << NUMBER_BITS) - 1);
            if found >> NUMBER_BITS == tag && self.is_at(number, stack) {
                return Ok(number);
            }
        }
        Err(None)
    }

    /// True if this stack is at a number.
    #[inline(always)]
    fn is_at(&self, number: u64, stack: &[usize]) -> bool {
        let words = self.0.words.get(number as usize..).unwrap_or_default();
        let Some((len, words)) = words.split_first() else {
            return false;
        };
        // Relaxed: the slot was loaded with Acquire.
        len.load(Ordering::Relaxed) == stack.len() as u64
            && words.len() >= stack.len()
            && words
                .iter()
                .zip(stack)
                .all(|(word, address)| word.load(Ordering::Relaxed) == *address as u64)
    }

    /// Adds a stack at a free slot. If another thread takes the slot meanwhile, a stack may get a
    /// second number, and a number may be used once only.
    #[cold]
    #[inline(never)]
    fn add(&self, free: Free<'_>, stack: &[usize], process: u32, rings: &Rings) -> Option<u64> {
        let stack = &stack[..stack.len().min(MAX_STACK)];
        let Free { slot, tag } = free;
        let len = 1 + stack.len() as u64;
        let is_full = |used: u64| used + len >= WORDS as u64;
        // Relaxed: it distributes words, and nothing else.
        if is_full(self.0.used.load(Ordering::Relaxed)) {
            return None;
        }
        let number = 1 + self.0.used.fetch_add(len, Ordering::Relaxed);
        let words = self.0.words.get(number as usize..(number + len) as usize)?;
        let values = core::iter::once(stack.len()).chain(stack.iter().copied());
        for (word, value) in words.iter().zip(values) {
            word.store(value as u64, Ordering::Relaxed);
        }
        let mut text = [0; MAX_STACK * CHARACTERS];
        for (place, address) in text.chunks_exact_mut(CHARACTERS).zip(stack) {
            place.copy_from_slice(&packed_address(*address as u64));
        }
        let text = core::str::from_utf8(&text[..stack.len() * CHARACTERS]).ok()?;
        let fields = [process.into(), number, 0, 0];
        if !rings.describe(DescriptionKind::Stack, fields, [text, ""]) {
            return None;
        }
        // Release: a thread that finds the number finds its words, and its events come after the
        // description.
        let (release, relaxed) = (Ordering::Release, Ordering::Relaxed);
        let new = tag << NUMBER_BITS | number;
        _ = slot.compare_exchange(0, new, release, relaxed);
        Some(number)
    }
}

#[inline(always)]
fn hash(stack: &[usize]) -> u64 {
    let mut hash = 0_u64;
    for address in stack {
        hash = (hash.rotate_left(5) ^ *address as u64).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
    // The upper bits depend on all bits of the addresses.
    hash ^ hash >> 29
}

#[cfg(test)]
mod tests {
    use fgraph_trace::ring::RingOptions;

    use super::*;

    fn rings(table_bytes: u32) -> Rings {
        let options = RingOptions {
            rings: 1,
            table_bytes,
            ..RingOptions::default()
        };
        Rings::create(&options).unwrap()
    }

    #[test]
    fn each_stack_has_one_number() {
        let (rings, stacks) = (rings(1 << 20), Stacks::new().unwrap());
        let of = |stack: &[usize]| stacks.number(stack, 1, &rings);
        let numbers: Vec<_> = (0..1000)
            .map(|last| of(&[0x1234_5678, last]).unwrap())
            .collect();
        let mut distinct = numbers.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), 1000);
        for (last, number) in numbers.iter().enumerate() {
            assert_eq!(of(&[0x1234_5678, last]), Some(*number));
        }
        let parts = [of(&[]), of(&[7]), of(&[7, 7])];
        assert!(parts.iter().all(Option::is_some));
        assert!(parts[0] != parts[1] && parts[1] != parts[2]);
    }

    #[test]
    fn a_stack_that_readers_have_no_room_for_has_no_number() {
        let (rings, stacks) = (rings(4096), Stacks::new().unwrap());
        let found = (0..1000).map(|at| stacks.number(&[at; 40], 1, &rings));
        let found: Vec<_> = found.collect();
        assert!(found.first().unwrap().is_some() && found.last().unwrap().is_none());
        // Known ones keep theirs.
        assert_eq!(stacks.number(&[0; 40], 1, &rings), found[0]);
    }
}
