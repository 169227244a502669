//! Reading several words at once without a lock, while one writer changes them.
//!
//! ```text
//!   writer                               reader
//!     version = odd                        v = version, again if odd
//!     (Release fence)                      read the words
//!     change the words                     (Acquire fence)
//!     version = even, the next one         again if version != v
//! ```
//!
//! The words are atomics themselves. A reader that has seen one of the new words sees the odd
//! version behind its fence, and reads all of them again. The Linux kernel calls it a sequence
//! lock.

use crate::primitive::{AtomicU64, Ordering, fence};

/// How often the words have changed, twice counted; odd while they change.
#[derive(Debug)]
pub struct Version(AtomicU64);

/// Whether who changes the words will come to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// It will, or has.
    AtWork,
    /// It has ended, whether in the middle or not.
    Gone,
}

impl Version {
    /// The words have not changed yet.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The words have not changed yet.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Whether the words change, or who changed them has ended in the middle.
    pub fn is_odd(&self) -> bool {
        !self.0.load(Ordering::Relaxed).is_multiple_of(2)
    }

    /// What `look` reads of the words as they are between two changes. `look` runs again, after
    /// `pause`, for as long as they change meanwhile. `None` if `pause` says that the writer is
    /// gone, in the middle of its change.
    pub fn read<R>(
        &self,
        mut look: impl FnMut() -> R,
        mut pause: impl FnMut() -> Writer,
    ) -> Option<R> {
        loop {
            // Acquire pairs with the last Release in `rewrite`: the words are of this version or
            // newer.
            let version = self.0.load(Ordering::Acquire);
            let found = version.is_multiple_of(2).then(&mut look);
            // What was read comes before the second look at the version.
            fence(Ordering::Acquire);
            match found {
                Some(found) if self.0.load(Ordering::Relaxed) == version => return Some(found),
                // It may have ended its change, and then itself.
                _ if pause() == Writer::Gone
                    && found.is_none()
                    && self.0.load(Ordering::Relaxed) == version =>
                {
                    return None;
                }
                _ => {}
            }
        }
    }

    /// Changes the words by `work`. No other thread may be in here.
    pub fn rewrite(&self, work: impl FnOnce()) {
        let version = self.0.load(Ordering::Relaxed);
        self.0.store(version + 1, Ordering::Relaxed);
        // Release, so that no reader sees a change and the even version before it.
        fence(Ordering::Release);
        work();
        self.0.store(version + 2, Ordering::Release);
    }

    /// Ends a change whose writer is gone, in a forked child.
    pub fn end_change(&self) {
        let version = self.0.load(Ordering::Relaxed);
        self.0.store(version.next_multiple_of(2), Ordering::Relaxed);
    }
}

impl Default for Version {
    fn default() -> Self {
        Self::new()
    }
}
