//! The index of a text's words.

use std::collections::HashMap;

use crate::text;

/// Number of times that each word occurs.
#[derive(Default)]
pub(crate) struct Index {
    counts: HashMap<String, usize>,
}

impl Index {
    /// The index of a text.
    #[inline(never)]
    pub(crate) fn build(text: &str) -> Self {
        let mut index = Self::default();
        for line in text.lines() {
            index.add_line(line);
        }
        index
    }

    #[inline(never)]
    fn add_line(&mut self, line: &str) {
        for word in text::words(line) {
            *self.counts.entry(word).or_default() += 1;
        }
    }

    /// Adds another index.
    #[inline(never)]
    pub(crate) fn merge(&mut self, other: Self) {
        for (word, count) in other.counts {
            *self.counts.entry(word).or_default() += count;
        }
    }

    /// Prints that the index is ready. Only the main thread may call it.
    #[inline(never)]
    pub(crate) fn publish(&self) {
        std::hint::black_box(&self.counts);
    }

    /// The words that occur most often, with how often.
    pub(crate) fn most_frequent(&self, how_many: usize) -> Vec<(&str, usize)> {
        let mut words: Vec<_> = self
            .counts
            .iter()
            .map(|(word, &count)| (word.as_str(), count))
            .collect();
        words.sort_unstable_by_key(|&(word, count)| (std::cmp::Reverse(count), word));
        words.truncate(how_many);
        words
    }
}
