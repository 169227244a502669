//! Lets readers read several words at once without a lock, while one writer changes them.
//!
//! ```text
//!   writer                               reader
//!     version = odd                        v = version, again if odd
//!     (Release fence)                      read the words
//!     change the words                     (Acquire fence)
//!     version = even, the next one         again if version != v
//! ```
//!
//! The words are atomics themselves. A reader that has loaded one of the new words sees the odd
//! version after its fence, and reads all words again. The Linux kernel calls this a sequence lock.

use crate::primitive::{AtomicU64, Ordering, const_unless_loom, fence};

/// Twice the number of changes; odd during a change.
#[derive(Debug)]
pub struct Version(AtomicU64);

/// The state of the writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// It will finish, or has finished.
    AtWork,
    /// It has ended, possibly in the middle of a change.
    Gone,
}

impl Version {
    const_unless_loom! {
        /// Starts with no change.
        pub fn new() -> Self {
            Self(AtomicU64::new(0))
        }
    }

    /// Returns true during a change, or after a writer has ended in the middle of one.
    pub fn is_odd(&self) -> bool {
        !self.0.load(Ordering::Relaxed).is_multiple_of(2)
    }

    /// Returns the result of `look`, which reads the words between two changes. `look` runs again,
    /// after `pause`, for as long as a change interferes. Returns `None` if `pause` says that the
    /// writer has ended in the middle of its change.
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
            // The words are read before the version is checked again.
            fence(Ordering::Acquire);
            match found {
                Some(found) if self.0.load(Ordering::Relaxed) == version => return Some(found),
                // The writer may have finished its change, and then ended.
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

    /// Changes the words with `work`. Only one thread at a time may call this.
    pub fn rewrite(&self, work: impl FnOnce()) {
        let version = self.0.load(Ordering::Relaxed);
        self.0.store(version + 1, Ordering::Relaxed);
        // Release: no reader sees a change together with the even version before it.
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
