//! The cached rules for finding callers.
//!
//! Reading the rules for an address takes some hundred nanoseconds. The runtime, which can do that,
//! caches the most frequent kinds here, each in one word that is always read and written as a
//! whole:
//!
//! ```text
//!   bit 0   1                  2                  13            29                        63
//!       | 1 | from rbp or rsp | where rbp is saved | frame offset | address without its index |
//!       | 0 | 1               | 0                                 | ...                       |
//!
//! The second form is that of outermost functions. Offsets are in words; the return address is
//! directly below the frame.
//! ```

use core::sync::atomic::{AtomicU64, Ordering};

/// The cached rules of addresses; 0 where there are none.
static KNOWN: [AtomicU64; KNOWN_LEN] = [const { AtomicU64::new(0) }; KNOWN_LEN];
const KNOWN_LEN: usize = 4096;

/// The number of bits of an address in user space.
const ADDRESS_BITS: u32 = 47;
const INDEX_BITS: u32 = KNOWN_LEN.ilog2();
const TAG_BITS: u32 = ADDRESS_BITS - INDEX_BITS;
/// The number of bits of the frame's offset, in words.
const FRAME_BITS: u32 = 16;
/// The number of bits of the frame pointer's place, in words below the frame; 0 where it is kept.
const SAVED_BITS: u32 = 64 - TAG_BITS - FRAME_BITS - 1 - 1;

const _: () = assert!(KNOWN_LEN.is_power_of_two() && SAVED_BITS >= 8);

/// The rules for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rules {
    /// It has a caller.
    Caller {
        /// True if the frame is found by the frame pointer, otherwise by the stack pointer.
        by_frame_pointer: bool,
        /// Bytes from there to the frame.
        frame: usize,
        /// Bytes below the frame where the frame pointer is saved; 0 if it is kept.
        saved: usize,
    },
    /// It has no caller.
    Outermost,
}

/// The word for a function without a caller.
const OUTERMOST: u64 = 0b10;

impl Rules {
    /// Encodes the rules in the lower bits of a word; never 0.
    const fn pack(self) -> Option<u64> {
        match self {
            Self::Outermost => Some(OUTERMOST),
            Self::Caller {
                by_frame_pointer,
                frame,
                saved,
            } => {
                let (frame_words, saved_words) = (frame as u64 / 8, saved as u64 / 8);
                let fits = frame.is_multiple_of(8)
                    && saved.is_multiple_of(8)
                    && frame_words >> FRAME_BITS == 0
                    && saved_words >> SAVED_BITS == 0;
                let word = 1
                    | (by_frame_pointer as u64) << 1
                    | saved_words << 2
                    | frame_words << (2 + SAVED_BITS);
                if fits { Some(word) } else { None }
            }
        }
    }

    /// Decodes the rules that [`pack`](Self::pack) has encoded.
    #[inline(always)]
    const fn unpack(word: u64) -> Self {
        if word & 1 == 0 {
            return Self::Outermost;
        }
        let saved = word >> 2 & ((1 << SAVED_BITS) - 1);
        let frame = word >> (2 + SAVED_BITS) & ((1 << FRAME_BITS) - 1);
        Self::Caller {
            by_frame_pointer: word & 2 != 0,
            frame: 8 * frame as usize,
            saved: 8 * saved as usize,
        }
    }
}

/// Returns the cache slot of an address, and the tag that distinguishes it from other addresses
/// there.
#[inline(always)]
fn slot(address: usize) -> (&'static AtomicU64, u64) {
    let address = address as u64;
    // Functions of one program differ most in the lower bits.
    let index = (address ^ address >> INDEX_BITS) as usize % KNOWN_LEN;
    (&KNOWN[index], address >> INDEX_BITS)
}

/// Returns the rules for an address, if they are cached.
#[inline(always)]
#[must_use]
pub fn known(address: usize) -> Option<Rules> {
    let (slot, tag) = slot(address);
    // Relaxed: the word is the only data.
    let word = slot.load(Ordering::Relaxed);
    (word != 0 && word >> (64 - TAG_BITS) == tag).then(|| Rules::unpack(word))
}

/// Caches the rules for an address, if they fit into a word.
pub fn keep(address: usize, rules: Rules) {
    let (slot, tag) = slot(address);
    if let Some(word) = rules.pack().filter(|_| tag >> TAG_BITS == 0) {
        slot.store(tag << (64 - TAG_BITS) | word, Ordering::Relaxed);
    }
}

/// Drops all cached rules: another function may be at an address now.
pub fn forget_all() {
    for known in &KNOWN {
        known.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn rules_that_fit_into_a_word_come_back_from_it() {
        for (by_frame_pointer, frame, saved) in
            [(false, 8, 0), (true, 16, 16), (false, 8 * 0xffff, 8 * 0xff)]
        {
            let rules = Rules::Caller {
                by_frame_pointer,
                frame,
                saved,
            };
            let address = 0x7f12_3456_789a;
            keep(address, rules);
            assert_eq!(known(address), Some(rules));
            assert_eq!(known(address + (1 << INDEX_BITS)), None);
        }
        keep(0x1234, Rules::Outermost);
        assert_eq!(known(0x1234), Some(Rules::Outermost));
        forget_all();
        assert_eq!(known(0x1234), None);
    }

    #[test]
    fn rules_that_do_not_fit_are_not_kept() {
        for (frame, saved) in [(8 << FRAME_BITS, 0), (12, 0), (16, 8 << SAVED_BITS)] {
            let rules = Rules::Caller {
                by_frame_pointer: false,
                frame,
                saved,
            };
            assert_eq!(rules.pack(), None, "{rules:?}");
        }
    }
}
