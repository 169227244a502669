//! Places of sub-buffers in their ring: each takes the lowest place that is free when it is opened.
//!
//! A ring grows by a place only if its reader has given back none of the earlier ones. So it takes
//! as much memory as its reader lags behind, and reuses the same few pages. A ring begins with one
//! word for each possible sub-buffer; the place of sub-buffer *n* is in the word *n* mod *count*:
//!
//! ```text
//!   number     20   21   22   23   24      20 is given back before 23 is opened,
//!   place       0    1    2    0    1      21 before 24
//! ```
//!
//! A reader that finds the place of another sub-buffer there, or none, finds another state in the
//! sub-buffer. In the mode *overwrite*, sub-buffer *n* is at place *n* mod *count*, and these words
//! are unused.

use super::layout::MAX_SUB_BUFFERS;
use super::{Mode, Rings};
use crate::primitive::{AtomicU64, Ordering, Step, is_taken};

impl Rings {
    /// Returns the sub-buffer of a ring with a number; `None` if there is no such ring, or it
    /// cannot be mapped. Neither allocates nor locks.
    pub(super) fn sub_buffer(&self, index: u32, number: u64) -> Option<&[AtomicU64]> {
        let place = match self.geometry.mode {
            Mode::Overwrite => self.geometry.place(number),
            // Relaxed: the load of the number of sub-buffers, with acquire, has synchronized with
            // this store.
            Mode::Drop | Mode::Block => self.place(index, number)?.load(Ordering::Relaxed) as usize,
        };
        // Another process may have written any value.
        self.sub_buffer_at(index, place % self.geometry.sub_buffers as usize)
    }

    /// Finds a place for sub-buffer `head`, and publishes it for readers.
    ///
    /// `consumed` is the number of sub-buffers that were given back, loaded with acquire. Returns
    /// `None` if there is no room, or it cannot be mapped. Neither allocates nor locks.
    pub(super) fn make_place(&self, index: u32, head: u64, consumed: u64) -> Option<&[AtomicU64]> {
        if self.geometry.mode == Mode::Overwrite {
            return self.sub_buffer_at(index, self.geometry.place(head));
        }
        let (place, words) = self.free_place(index, head, consumed)?;
        if is_taken(Step::Place) {
            // Relaxed: the number of sub-buffers is stored later, with release.
            self.place(index, head)?
                .store(place as u64, Ordering::Relaxed);
        }
        Some(words)
    }

    /// Returns the lowest free place, and its words.
    pub(super) fn free_place(
        &self,
        index: u32,
        head: u64,
        consumed: u64,
    ) -> Option<(usize, &[AtomicU64])> {
        let count = self.geometry.sub_buffers as usize;
        let consumed = if is_taken(Step::Room) { consumed } else { head };
        if head.wrapping_sub(consumed) >= count as u64 {
            return None;
        }
        let mut taken = [0_u64; MAX_SUB_BUFFERS / 64];
        for number in consumed..head {
            let place = self.place(index, number)?.load(Ordering::Relaxed) as usize % count;
            taken[place / 64] |= 1 << (place % 64);
        }
        let at = taken.iter().position(|&word| word != u64::MAX)?;
        // Fewer than `count` places are taken, so the index is less than `count`.
        let place = 64 * at + taken[at].trailing_ones() as usize;
        Some((place, self.sub_buffer_at(index, place)?))
    }

    /// Returns the word that holds the place of a sub-buffer.
    fn place(&self, index: u32, number: u64) -> Option<&AtomicU64> {
        // These words are mapped with the first sub-buffer.
        self.ring(index, 0)?.get(self.geometry.place(number))
    }

    fn sub_buffer_at(&self, index: u32, place: usize) -> Option<&[AtomicU64]> {
        let range = self.geometry.sub_buffer(place);
        self.ring(index, range.end)?.get(range)
    }

    /// Returns the words of a ring, at least up to `end`.
    fn ring(&self, index: u32, end: usize) -> Option<&[AtomicU64]> {
        let index = (index < self.geometry.rings).then_some(index as usize + 1)?;
        self.memory.part(index, &self.geometry.part(index), end)
    }
}
