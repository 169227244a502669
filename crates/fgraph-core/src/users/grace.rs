//! Epochs, marks and the grace period.
//!
//! *Epoch.* Every registration gets a number of its own, counted up. A frame records the newest
//! number at its entry. A slot that is younger than the frame is not called for that frame, neither
//! at entry nor at return, so a user gets the returns of exactly those entries that it accepted,
//! however often its index changes hands meanwhile.
//!
//! *Mark.* A thread that is about to call a user writes the user's slot index into its own mark
//! with a plain store, and clears the mark when it is done. A mark counts only while its thread is
//! inside fgraph, which it says by a store before and one afterwards: so a thread that calls one
//! user over and over may leave its mark as it is.
//!
//! *Grace period.* To take a user away, the writer puts the stub into the slot, makes every thread
//! pass a full fence (the heavy barrier), and waits until no mark names the slot. After that no
//! callback of that user runs or will ever run:
//!
//! ```text
//!   thread                               writer
//!     mark = k                             slot[k] = stub
//!     (light barrier)                      heavy barrier
//!     r = slot[k]                          wait while any mark == k
//!     call r                               free what was in slot[k]
//! ```
//!
//! Either the thread's mark was stored before the heavy barrier, then the writer sees it and waits;
//! or the thread's load comes after it, then it loads the stub. The readers pay one plain store.

use crate::primitive::{AtomicU64, Ordering};

pub use crate::mark::{Mark, Marked};

/// The number of the newest registration, and which users are enabled: one word, because every call
/// reads both. Its lowest 16 bits say who is enabled, a bit for each slot; the rest is the number,
/// where a frame keeps it, too.
#[derive(Debug)]
pub struct Epoch(AtomicU64);

const NUMBER_SHIFT: u32 = 64 - Epoch::BITS;
const ENABLED: u64 = (1 << NUMBER_SHIFT) - 1;

impl Epoch {
    /// The bits that a frame keeps of an epoch; 2^48 registrations outlast the process.
    pub const BITS: u32 = 48;

    /// The epoch before any registration, with all users enabled.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self(AtomicU64::new(ENABLED))
    }

    /// The epoch before any registration, with all users enabled.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self(AtomicU64::new(ENABLED))
    }

    /// The number of the newest registration.
    #[inline(always)]
    pub fn now(&self) -> u64 {
        // Relaxed is enough: a stale number makes a frame older than it is, and an older frame only
        // skips more of the slots that are being published at this moment.
        self.0.load(Ordering::Relaxed) >> NUMBER_SHIFT
    }

    /// The number of the newest registration as a frame keeps it, and the users that are enabled, a
    /// bit for each slot.
    #[inline(always)]
    pub fn stamp_and_enabled(&self) -> (u64, u16) {
        // Relaxed, as in `now`.
        let word = self.0.load(Ordering::Relaxed);
        (word & !ENABLED, word as u16)
    }

    /// The number for a new registration. It must be taken after the grace period of the slot's
    /// former owner, and before the slot is published.
    pub fn advance(&self) -> u64 {
        (self.0.fetch_add(1 << NUMBER_SHIFT, Ordering::Relaxed) >> NUMBER_SHIFT) + 1
    }

    /// Says whether the user in `slot` gets the calls that begin from now on.
    pub fn set_enabled(&self, slot: usize, enabled: bool) {
        let bit = 1 << slot;
        debug_assert!(bit & ENABLED != 0);
        // Relaxed: a call that begins in another thread at this moment may find it or not.
        match enabled {
            true => self.0.fetch_or(bit, Ordering::Relaxed),
            false => self.0.fetch_and(!bit, Ordering::Relaxed),
        };
    }

    /// Whether the user in `slot` gets the calls that begin now.
    pub fn is_enabled(&self, slot: usize) -> bool {
        self.0.load(Ordering::Relaxed) & 1 << slot != 0
    }
}

impl Default for Epoch {
    fn default() -> Self {
        Self::new()
    }
}

/// Waits until none of `marks` names slot `index`.
///
/// `marks` is asked for its first mark after `heavy`. It must not have looked at a list of threads
/// before, or it could miss one that came meanwhile.
///
/// `heavy` must make every running thread of the process pass a full fence before it returns;
/// `pause` is called each time a mark is found set, and may say that the thread is gone (`false`).
pub fn wait<'a, M: Marked + 'a>(
    index: usize,
    marks: impl Iterator<Item = &'a M>,
    heavy: impl FnOnce(),
    mut pause: impl FnMut(&'a M) -> bool,
) {
    heavy();
    for mark in marks {
        while mark.is_in(index) && pause(mark) {}
    }
}

/// Whether [`wait`] would not have to wait. `is_alive` says of a mark that names the slot whether
/// its thread is there; the heavy barrier must have passed.
pub fn is_over<'a, M: Marked + 'a>(
    index: usize,
    mut marks: impl Iterator<Item = &'a M>,
    mut is_alive: impl FnMut(&'a M) -> bool,
) -> bool {
    marks.all(|mark| !mark.is_in(index) || !is_alive(mark))
}
