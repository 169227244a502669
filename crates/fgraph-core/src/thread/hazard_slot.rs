//! A thread's hazard slot: the slot of the user whose callback it runs, for threads that wait for
//! its end.

use crate::MAX_USERS;
use crate::primitive::{AtomicU32, Ordering, const_unless_loom};

/// A hazard slot: the slot of the user whose callback the thread runs.
#[derive(Debug)]
pub struct HazardSlot(AtomicU32);

impl HazardSlot {
    /// The value that names no user: the index of the stub after the slots.
    pub const NONE: u32 = MAX_USERS as u32;

    const_unless_loom! {
        /// Makes the hazard slot of a thread that is in no dispatch.
        pub fn new() -> Self {
            Self(AtomicU32::new(Self::NONE))
        }
    }

    /// Announces that the thread is about to call slot `index`.
    #[inline(always)]
    pub fn set(&self, index: usize) {
        // Release: the store also ends the previous slot's callback, see `clear`.
        self.0.store(index as u32, Ordering::Release);
    }

    /// Returns the slot that was set last.
    #[inline(always)]
    pub fn get(&self) -> u32 {
        // Relaxed: only the thread that set it reads it here.
        self.0.load(Ordering::Relaxed)
    }

    /// Announces that the thread is in no callback.
    #[inline(always)]
    pub fn clear(&self) {
        // Release pairs with the Acquire in `is`: the callback's effects happen before the user's
        // value is returned.
        self.0.store(Self::NONE, Ordering::Release);
    }

    /// Returns true if the thread is, or is about to be, in a callback of slot `index`.
    pub fn is(&self, index: usize) -> bool {
        self.0.load(Ordering::Acquire) == index as u32
    }

    /// Returns true if the thread is in a callback of any user.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed) != Self::NONE
    }
}

/// A value that has a thread's hazard slot.
pub trait HasHazardSlot {
    /// Returns true if the thread is, or is about to be, in a callback of slot `index`.
    fn is_in(&self, index: usize) -> bool;
}

impl HasHazardSlot for HazardSlot {
    fn is_in(&self, index: usize) -> bool {
        self.is(index)
    }
}

impl Default for HazardSlot {
    fn default() -> Self {
        Self::new()
    }
}
