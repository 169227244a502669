//! Sets of numbers.

use alloc::{vec, vec::Vec};

/// One bit for each number.
pub(super) struct BitSet(pub(super) Vec<u64>);

impl BitSet {
    pub(super) fn new(len: usize) -> Self {
        Self(vec![0; len.div_ceil(64)])
    }

    pub(super) fn set(&mut self, place: u32) {
        self.0[place as usize / 64] |= 1 << (place % 64);
    }

    pub(super) fn full(len: usize) -> Self {
        let mut bits = Self(vec![u64::MAX; len.div_ceil(64)]);
        if let Some(last) = bits.0.last_mut().filter(|_| !len.is_multiple_of(64)) {
            *last = (1 << (len % 64)) - 1;
        }
        bits
    }

    pub(super) fn has(&self, place: u32) -> bool {
        self.0[place as usize / 64] >> (place % 64) & 1 != 0
    }
}

/// A set of numbers that returns how many members are less than a number.
#[derive(Debug, Default)]
pub(super) struct RankedSet {
    words: Vec<u64>,
    /// The number of members before each word.
    before: Vec<u32>,
}

impl RankedSet {
    pub(super) fn new(BitSet(words): BitSet) -> Self {
        let mut all = 0;
        let before = words.iter().map(|word| {
            let before = all;
            all += word.count_ones();
            before
        });
        Self {
            before: before.collect(),
            words,
        }
    }

    /// Returns the number of members less than `number`; `None` if it is not in the set.
    pub(super) fn rank(&self, number: u32) -> Option<usize> {
        let (at, bit) = (number as usize / 64, 1 << (number % 64));
        let word = self.words.get(at)?;
        let less = word & (bit - 1);
        (word & bit != 0).then(|| (self.before[at] + less.count_ones()) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::{BitSet, RankedSet};

    #[test]
    fn a_number_knows_how_many_are_less() {
        let numbers = [0, 1, 63, 64, 130, 191];
        let mut bits = BitSet::new(200);
        numbers.iter().for_each(|&number| bits.set(number));
        let set = RankedSet::new(bits);
        for number in 0..300 {
            let rank = numbers.iter().position(|&one| one == number);
            assert_eq!(set.rank(number), rank, "{number}");
        }
    }
}
