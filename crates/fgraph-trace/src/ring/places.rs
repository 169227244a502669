//! Where in its ring a sub-buffer is: at the lowest place that is free when it is opened.
//!
//! A ring grows by a place only if its reader has not given back any of those before. So it takes
//! the memory that its reader lags behind, and the same few pages again and again. A ring begins
//! with a word for each sub-buffer that there may be, in which the place of number *n* is found at
//! *n* mod *count*:
//!
//! ```text
//!   number     20   21   22   23   24      20 is given back before 23 is opened,
//!   place       0    1    2    0    1      21 before 24
//! ```
//!
//! A reader that finds the place of another number there, or none, finds another state in the
//! sub-buffer. In the mode *overwrite* number *n* is at place *n* mod *count*, and no word is used.

use super::layout::MAX_SUB_BUFFERS;
use super::{Mode, Rings};
use crate::primitive::{AtomicU64, Ordering, Step, is_taken};

impl Rings {
    /// The sub-buffer of a ring with a number; `None` if there is no such ring, or it cannot be
    /// mapped. Neither allocates nor locks.
    pub(super) fn sub_buffer(&self, index: u32, number: u64) -> Option<&[AtomicU64]> {
        let place = match self.geometry.mode {
            Mode::Overwrite => self.geometry.place(number),
            // Relaxed: the count of sub-buffers, which was loaded with acquire, tells of it.
            Mode::Drop | Mode::Block => self.place(index, number)?.load(Ordering::Relaxed) as usize,
        };
        // Other processes may have written anything.
        self.sub_buffer_at(index, place % self.geometry.sub_buffers as usize)
    }

    /// Finds room for the sub-buffer with the number `head`, and says to readers where it is.
    ///
    /// `consumed` sub-buffers were given back, which was loaded with acquire. `None` if there is no
    /// room, or it cannot be mapped. Neither allocates nor locks.
    pub(super) fn make_place(&self, index: u32, head: u64, consumed: u64) -> Option<&[AtomicU64]> {
        if self.geometry.mode == Mode::Overwrite {
            return self.sub_buffer_at(index, self.geometry.place(head));
        }
        let (place, words) = self.free_place(index, head, consumed)?;
        if is_taken(Step::Place) {
            // Relaxed: the count of sub-buffers is stored later, with release.
            self.place(index, head)?
                .store(place as u64, Ordering::Relaxed);
        }
        Some(words)
    }

    /// The lowest place without a sub-buffer that was not given back, and its words.
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
        // Fewer than `count` are taken, so this is less.
        let place = 64 * at + taken[at].trailing_ones() as usize;
        Some((place, self.sub_buffer_at(index, place)?))
    }

    /// The word that says where the sub-buffer with a number is.
    fn place(&self, index: u32, number: u64) -> Option<&AtomicU64> {
        // These words are mapped with the first sub-buffer.
        self.ring(index, 0)?.get(self.geometry.place(number))
    }

    fn sub_buffer_at(&self, index: u32, place: usize) -> Option<&[AtomicU64]> {
        let range = self.geometry.sub_buffer(place);
        self.ring(index, range.end)?.get(range)
    }

    /// The words of a ring, up to `end` at least.
    fn ring(&self, index: u32, end: usize) -> Option<&[AtomicU64]> {
        let index = (index < self.geometry.rings).then_some(index as usize + 1)?;
        self.memory.part(index, &self.geometry.part(index), end)
    }
}
