//! The n-grams (short pieces) of a module's names. They show quickly that a filter selects none of
//! the names, because a name that matches a glob has every piece of the glob between its wildcards.
//!
//! ```text
//!   main -> \0main\0 -> of 3 bytes: \0ma mai ain in\0 -> two bits of a word each
//!                       of 6 bytes: \0main\0          -> two bits of a word
//! ```
//!
//! Pieces of 6 bytes distinguish names in a library of many functions; pieces of 3 are for globs
//! with less text. A piece may seem to be present because others have its bits: then all names must
//! be checked. The set takes 8 to 16 bytes for each function.

/// The lengths of the n-grams, in bytes.
const LENS: [usize; 2] = [3, 6];

/// Stands before and after a name. No name contains it.
pub const END: char = '\0';

/// The n-grams of all names, as a Bloom filter; see the module documentation.
#[derive(Debug)]
pub struct NgramBloom {
    /// The words; their number is a power of two.
    words: Box<[u64]>,
}

impl NgramBloom {
    /// Makes an empty set, sized for a number of functions.
    pub fn new(functions: usize) -> Self {
        Self {
            words: vec![0; functions.next_power_of_two()].into(),
        }
    }

    /// Adds the n-grams of a name.
    pub fn add(&mut self, name: &str) {
        // Before the name there are only ends.
        let mut last = 0;
        for byte in name.bytes().chain([END as u8]) {
            last = last << 8 | u64::from(byte);
            for len in LENS {
                let (word, bits) = self.place(last, len);
                self.words[word] |= bits;
            }
        }
    }

    /// Returns true if a name may contain `text`, in which [`END`] stands for the start or end of
    /// the name.
    pub fn may_contain(&self, text: &str) -> bool {
        let [short, long] = LENS;
        let len = if text.len() < long { short } else { long };
        text.as_bytes().windows(len).all(|piece| {
            let all = |piece, &byte| piece << 8 | u64::from(byte);
            let (word, bits) = self.place(piece.iter().fold(0, all), len);
            self.words[word] & bits == bits
        })
    }

    /// Returns the bits for the last `len` bytes of `last`, and the index of their word.
    fn place(&self, last: u64, len: usize) -> (usize, u64) {
        let piece = last & (u64::MAX >> (64 - 8 * len));
        // The upper bits of such a product depend on the whole piece.
        let hash = piece.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let word = (hash >> 32) as usize & (self.words.len() - 1);
        (word, 1 << (hash >> 58) | 1 << (hash >> 52 & 63))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(names: &[&str]) -> NgramBloom {
        let mut ngrams = NgramBloom::new(64);
        names.iter().for_each(|name| ngrams.add(name));
        ngrams
    }

    #[test]
    fn every_part_of_a_name_is_found() {
        for name in ["", "a", "main", "app::Index::build", "naïve→"] {
            let ngrams = of(&["other", name]);
            let whole = format!("{END}{name}{END}");
            for (from, _) in whole.char_indices() {
                for (to, _) in whole[from..].char_indices() {
                    assert!(ngrams.may_contain(&whole[from..from + to]), "{name}");
                }
            }
            assert!(ngrams.may_contain(&whole));
        }
    }

    #[test]
    fn runs_in_no_name_are_found_missing() {
        let ngrams = of(&["__libc_start_main", "main_arena", "fnmatch"]);
        assert!(ngrams.may_contain("main"));
        assert!(!ngrams.may_contain("\0main\0"));
        assert!(!ngrams.may_contain("fn_"));
        assert!(!ngrams.may_contain("start_arena"));
        // Pieces of two bytes are not stored.
        assert!(ngrams.may_contain("xx"));
    }
}
