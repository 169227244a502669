//! Searching code for bytes, many at a time.
//!
//! Each interesting byte is frequent in code, so a search for one byte that restarts at each match
//! takes long. The patterns here are several bytes that are near to each other, and all of them are
//! compared before a match is reported.
//!
//! # Safety
//!
//! The unsafe code uses instructions that every processor has.

use core::arch::x86_64::{
    __m128i, _mm_and_si128, _mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8,
};

/// The number of places that are compared at once.
const STEP: usize = 16;

/// The bytes from one place on.
#[derive(Clone, Copy)]
pub(super) struct Block(__m128i);

/// A set of places in a block: bit *k* is for byte *k*.
pub(super) type Places = u32;

impl Block {
    /// Loads the bytes from `at` on, followed by zeros after the last.
    #[inline(always)]
    fn at(bytes: &[u8], at: usize) -> Self {
        let rest = bytes.get(at..).unwrap_or_default();
        let whole = rest.first_chunk().copied();
        let bytes: [u8; STEP] = whole.unwrap_or_else(|| {
            let mut bytes = [0; STEP];
            bytes[..rest.len()].copy_from_slice(rest);
            bytes
        });
        let [low, high] = [0, 8].map(|at| {
            let half = core::array::from_fn(|byte| bytes[at + byte]);
            i64::from_le_bytes(half)
        });
        // SAFETY: every x86-64 processor has SSE2.
        Self(unsafe { _mm_set_epi64x(high, low) })
    }

    /// Returns the places with this byte.
    #[inline(always)]
    pub(super) fn is(self, byte: u8) -> Places {
        self.is_like(byte, 0xff)
    }

    /// Returns the places whose bits in `mask` are those of `byte`.
    #[inline(always)]
    pub(super) fn is_like(self, byte: u8, mask: u8) -> Places {
        let (byte, mask) = (byte.cast_signed(), mask.cast_signed());
        // SAFETY: every x86-64 processor has SSE2.
        let places = unsafe {
            let bits = _mm_and_si128(self.0, _mm_set1_epi8(mask));
            _mm_movemask_epi8(_mm_cmpeq_epi8(bits, _mm_set1_epi8(byte)))
        };
        places.cast_unsigned()
    }
}

/// Returns the places in `bytes` that `is_one` reports. It gets the bytes from some place on, and
/// those `ahead` bytes after it; it may report any place after the last byte.
#[inline]
pub(super) fn places(
    bytes: &[u8],
    ahead: usize,
    is_one: impl Fn(Block, Block) -> Places,
) -> impl Iterator<Item = usize> {
    let mut next = 0;
    let (mut start, mut left): (usize, Places) = (0, 0);
    core::iter::from_fn(move || {
        while left == 0 {
            if next >= bytes.len() {
                return None;
            }
            start = next;
            left = is_one(Block::at(bytes, start), Block::at(bytes, start + ahead));
            let within = bytes.len() - start;
            if within < STEP {
                left &= (1 << within) - 1;
            }
            next += STEP;
        }
        let place = left.trailing_zeros() as usize;
        left &= left - 1;
        Some(start + place)
    })
}

#[cfg(test)]
mod tests {
    use super::places;
    use alloc::vec::Vec;

    #[test]
    fn each_place_is_found_once_and_in_order() {
        let mut state = 1_u32;
        for len in 0..100 {
            let mut byte = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8 & 0x13
            };
            let bytes: Vec<u8> = (0..len).map(|_| byte()).collect();
            for ahead in [1, 4, 20] {
                let found = places(&bytes, ahead, |here, there| {
                    here.is_like(0x11, 0xfd) & there.is(3)
                });
                let is_one = |&at: &usize| {
                    bytes[at] & 0xfd == 0x11 && bytes.get(at + ahead).is_some_and(|&one| one == 3)
                };
                let expected: Vec<usize> = (0..len).filter(is_one).collect();
                assert_eq!(found.collect::<Vec<_>>(), expected, "{len} {ahead}");
            }
        }
    }
}
