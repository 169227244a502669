//! Findings of callbacks, in memory that was allocated before.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Findings of `N` words each, up to a number; further ones are only counted.
#[derive(Debug)]
pub(crate) struct Reports<const N: usize> {
    slots: Box<[Slot<N>]>,
    /// Number of findings.
    count: AtomicUsize,
}

#[derive(Debug)]
struct Slot<const N: usize> {
    is_ready: AtomicBool,
    words: [AtomicUsize; N],
}

impl<const N: usize> Reports<N> {
    pub(crate) fn new(room: usize) -> Self {
        let slot = || Slot {
            is_ready: AtomicBool::new(false),
            words: [const { AtomicUsize::new(0) }; N],
        };
        Self {
            slots: (0..room).map(|_| slot()).collect(),
            count: AtomicUsize::new(0),
        }
    }

    /// Adds a finding.
    pub(crate) fn push(&self, words: [usize; N]) {
        let nth = self.count.fetch_add(1, Ordering::Relaxed);
        if let Some(slot) = self.slots.get(nth) {
            for (place, word) in slot.words.iter().zip(words) {
                place.store(word, Ordering::Relaxed);
            }
            // Release: pairs with the Acquire in `iter`, so the words are visible.
            slot.is_ready.store(true, Ordering::Release);
        }
    }

    /// Iterates over the findings, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = [usize; N]> {
        let ready = |slot: &&Slot<N>| slot.is_ready.load(Ordering::Acquire);
        let words = |slot: &Slot<N>| slot.words.each_ref().map(|w| w.load(Ordering::Relaxed));
        self.slots.iter().filter(ready).map(words)
    }

    /// Returns the number of findings that had no room.
    pub(crate) fn dropped(&self) -> usize {
        let count = self.count.load(Ordering::Relaxed);
        count.saturating_sub(self.slots.len())
    }
}

/// Set of words, up to a number.
#[derive(Debug)]
pub(crate) struct Met {
    /// Hash table with open addressing, a power of two in size; 0 marks a free slot.
    slots: Box<[AtomicUsize]>,
}

impl Met {
    /// Creates a set for `room` words, a power of two.
    pub(crate) fn new(room: usize) -> Self {
        let slots = (0..room.next_power_of_two()).map(|_| AtomicUsize::new(0));
        Self {
            slots: slots.collect(),
        }
    }

    /// Returns the place of a word that is not 0, and true if the word is new; `None` if there is
    /// no room for it.
    pub(crate) fn meet(&self, word: usize) -> Option<(usize, bool)> {
        let mask = self.slots.len() - 1;
        let mixed = (word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let start = (mixed >> 32) as usize & mask;
        for step in 0..self.slots.len().min(64) {
            let place = (start + step) & mask;
            let slot = self.slots.get(place)?;
            let found = match slot.load(Ordering::Relaxed) {
                0 => slot.compare_exchange(0, word, Ordering::Relaxed, Ordering::Relaxed),
                found => Err(found),
            };
            match found {
                Ok(_) => return Some((place, true)),
                Err(found) if found == word => return Some((place, false)),
                Err(_) => {}
            }
        }
        None
    }

    /// Returns the word at a place; 0 if there is none.
    pub(crate) fn get(&self, place: usize) -> usize {
        let slot = self.slots.get(place);
        slot.map_or(0, |slot| slot.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_without_room_are_counted() {
        let reports = Reports::<2>::new(3);
        (0..5).for_each(|n| reports.push([n, n * n]));
        assert_eq!(reports.iter().collect::<Vec<_>>(), [[0, 0], [1, 1], [2, 4]]);
        assert_eq!(reports.dropped(), 2);
    }

    #[test]
    fn a_word_is_met_first_once() {
        let met = Met::new(256);
        let mut places = Vec::new();
        for word in 1..=128 {
            let (place, is_first) = met.meet(word * 64).unwrap();
            assert!(is_first);
            assert_eq!(met.meet(word * 64), Some((place, false)));
            assert_eq!(met.get(place), word * 64);
            places.push(place);
        }
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 128);
        let full = Met::new(1);
        assert!(full.meet(1).is_some() && full.meet(2).is_none());
    }
}
