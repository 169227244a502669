//! Sets of indices.

use core::iter;

/// A set of indices below a limit, with one bit for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bits {
    words: Box<[u64]>,
}

impl Bits {
    /// Makes an empty set of indices below `len`.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self {
            words: vec![0; len.div_ceil(64)].into(),
        }
    }

    /// Makes room for the indices below `len`, if necessary.
    pub fn grow(&mut self, len: usize) {
        let words = len.div_ceil(64);
        if words > self.words.len() {
            let mut longer = core::mem::take(&mut self.words).into_vec();
            longer.resize(words, 0);
            self.words = longer.into();
        }
    }

    /// Inserts an index.
    ///
    /// # Panics
    ///
    /// Panics if it is not below the limit.
    pub fn insert(&mut self, index: usize) {
        self.words[index / 64] |= 1 << (index % 64);
    }

    /// Returns the number of bytes it takes.
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.words)
    }

    /// Returns true if an index is in the set.
    #[must_use]
    pub fn contains(&self, index: usize) -> bool {
        let word = self.words.get(index / 64);
        word.is_some_and(|word| word >> (index % 64) & 1 != 0)
    }

    /// Returns the number of indices in the set.
    #[must_use]
    pub fn count(&self) -> usize {
        let ones = self.words.iter().map(|word| word.count_ones() as usize);
        ones.sum()
    }

    /// Returns true if the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    /// Iterates over the indices, in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        let words = self.words.iter().enumerate();
        words.flat_map(|(at, &word)| {
            let rest = |&rest: &u64| Some(rest & (rest - 1)).filter(|&rest| rest != 0);
            let words = iter::successors(Some(word).filter(|&word| word != 0), rest);
            words.map(move |rest| 64 * at + rest.trailing_zeros() as usize)
        })
    }

    /// Inserts all indices of a set with the same limit.
    pub fn add(&mut self, other: &Self) {
        self.combine(other, |a, b| a | b);
    }

    /// Removes all indices of a set with the same limit.
    pub fn remove(&mut self, other: &Self) {
        self.combine(other, |a, b| a & !b);
    }

    /// Removes all indices that are not in a set with the same limit.
    pub fn retain(&mut self, other: &Self) {
        self.combine(other, |a, b| a & b);
    }

    /// Computes the symmetric difference with a set of the same limit.
    pub fn toggle(&mut self, other: &Self) {
        self.combine(other, |a, b| a ^ b);
    }

    fn combine(&mut self, other: &Self, combine: impl Fn(u64, u64) -> u64) {
        for (word, &other) in self.words.iter_mut().zip(&other.words) {
            *word = combine(*word, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(indices: &[usize]) -> Bits {
        let mut bits = Bits::new(200);
        indices.iter().for_each(|&index| bits.insert(index));
        bits
    }

    #[test]
    fn a_set_that_has_grown_has_what_it_had() {
        let mut bits = Bits::new(3);
        bits.insert(2);
        bits.grow(2);
        bits.grow(200);
        bits.insert(199);
        assert_eq!(bits, of(&[2, 199]));
    }

    #[test]
    fn indices_come_in_order_each_once() {
        let some = [0, 1, 63, 64, 127, 199];
        let bits = of(&some);
        assert_eq!(bits.iter().collect::<Vec<_>>(), some);
        assert_eq!(bits.count(), some.len());
        assert!((0..300).all(|index| bits.contains(index) == some.contains(&index)));
        assert!(!bits.is_empty() && Bits::new(200).is_empty() && Bits::new(0).is_empty());
    }

    #[test]
    fn sets_are_combined() {
        let combined = |combine: fn(&mut Bits, &Bits)| {
            let mut bits = of(&[1, 2, 100]);
            combine(&mut bits, &of(&[2, 100, 150]));
            bits.iter().collect::<Vec<_>>()
        };
        assert_eq!(combined(Bits::add), [1, 2, 100, 150]);
        assert_eq!(combined(Bits::remove), [1]);
        assert_eq!(combined(Bits::retain), [2, 100]);
        assert_eq!(combined(Bits::toggle), [1, 150]);
    }
}
