//! Epochs, hazard slots and the grace period.
//!
//! *Epoch.* Every registration gets a number from a counter. A frame records the newest number at
//! its entry. A slot that is younger than the frame is not called for that frame, neither at entry
//! nor at return. So a user gets the returns of exactly the entries that it accepted, however often
//! its slot changes owners meanwhile.
//!
//! *Hazard slot.* A thread that is about to call a user stores the user's slot index in its own
//! hazard slot with a plain store, and clears the hazard slot at the end. A hazard slot counts only
//! while its thread is inside fgraph, which the thread announces by a store before and another one
//! after. So a thread that calls one user repeatedly may leave its hazard slot unchanged.
//!
//! *Grace period.* To remove a user, the writer stores the stub in the slot, makes every thread
//! execute a full fence (the heavy barrier), and waits until no hazard slot names the slot. After
//! that no callback of that user runs or will ever run:
//!
//! ```text
//!   thread                               writer
//!     hazard = k                           slot[k] = stub
//!     (light barrier)                      heavy barrier
//!     r = slot[k]                          wait while any hazard == k
//!     call r                               free what was in slot[k]
//! ```
//!
//! Either the thread stored its hazard slot before the heavy barrier: then the writer sees it and
//! waits. Or the thread's load comes after the barrier: then it loads the stub. Readers pay one
//! plain store.

use crate::primitive::{AtomicU64, Ordering, const_unless_loom};

pub use crate::hazard_slot::{HasHazardSlot, HazardSlot};

/// The number of the newest registration, and the enabled users, in one word, because every call
/// reads both. The lowest 16 bits are the enabled users, one bit for each slot. The rest is the
/// number, in the same place as in a frame.
#[derive(Debug)]
pub struct Epoch(AtomicU64);

const NUMBER_SHIFT: u32 = 64 - Epoch::BITS;
const ENABLED: u64 = (1 << NUMBER_SHIFT) - 1;

impl Epoch {
    /// The number of bits that a frame keeps of an epoch; 2^48 registrations outlast the process.
    pub const BITS: u32 = 48;

    const_unless_loom! {
        /// Starts before any registration, with all users enabled.
        pub fn new() -> Self {
            Self(AtomicU64::new(ENABLED))
        }
    }

    /// Returns the number of the newest registration.
    #[inline(always)]
    pub fn now(&self) -> u64 {
        // Relaxed is enough: a stale number makes a frame older than it is, and an older frame only
        // skips more of the slots that are being published at this moment.
        self.0.load(Ordering::Relaxed) >> NUMBER_SHIFT
    }

    /// Returns the number of the newest registration in the encoding of frames, and the enabled
    /// users, one bit for each slot.
    #[inline(always)]
    pub fn stamp_and_enabled(&self) -> (u64, u16) {
        // Relaxed is enough, as in `now`.
        let word = self.0.load(Ordering::Relaxed);
        (word & !ENABLED, word as u16)
    }

    /// Returns the number for a new registration. Call it after the grace period of the slot's
    /// former owner, and before the slot is published.
    pub fn advance(&self) -> u64 {
        (self.0.fetch_add(1 << NUMBER_SHIFT, Ordering::Relaxed) >> NUMBER_SHIFT) + 1
    }

    /// Sets if the user in `slot` gets the calls that begin from now on.
    pub fn set_enabled(&self, slot: usize, enabled: bool) {
        let bit = 1 << slot;
        debug_assert!(bit & ENABLED != 0);
        // Relaxed: a call that begins in another thread at this moment may or may not find the
        // change.
        match enabled {
            true => self.0.fetch_or(bit, Ordering::Relaxed),
            false => self.0.fetch_and(!bit, Ordering::Relaxed),
        };
    }

    /// Returns true if the user in `slot` gets the calls that begin now.
    pub fn is_enabled(&self, slot: usize) -> bool {
        self.0.load(Ordering::Relaxed) & 1 << slot != 0
    }
}

impl Default for Epoch {
    fn default() -> Self {
        Self::new()
    }
}

/// Waits until none of `hazard_slots` names slot `index`.
///
/// The first of `hazard_slots` is taken after `heavy`. The iterator must not have read a list of
/// threads before, or it could miss a thread that was added meanwhile.
///
/// `heavy` must make every running thread of the process execute a full fence before it returns.
/// `pause` is called each time a hazard slot is found set, and returns `false` if the thread is
/// gone.
pub fn wait<'a, M: HasHazardSlot + 'a>(
    index: usize,
    hazard_slots: impl Iterator<Item = &'a M>,
    heavy: impl FnOnce(),
    mut pause: impl FnMut(&'a M) -> bool,
) {
    heavy();
    for hazard_slot in hazard_slots {
        while hazard_slot.is_in(index) && pause(hazard_slot) {}
    }
}

/// Returns true if [`wait`] would not wait. `is_alive` returns true if the thread of a hazard slot
/// that names the slot exists. The heavy barrier must be over.
pub fn is_over<'a, M: HasHazardSlot + 'a>(
    index: usize,
    mut hazard_slots: impl Iterator<Item = &'a M>,
    mut is_alive: impl FnMut(&'a M) -> bool,
) -> bool {
    hazard_slots.all(|hazard_slot| !hazard_slot.is_in(index) || !is_alive(hazard_slot))
}
