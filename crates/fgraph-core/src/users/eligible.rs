//! The fast-path users: their callbacks do not change the state that is saved for other users.
//! The machine layer saves vector registers and `errno` before it dispatches to users. It skips
//! this for a user whose callbacks' code was analyzed and shown not to change them, apart from
//! parts that are saved for this one user: a *fast-path user*.
//!
//! ```text
//!   thread                                  writer, registering in slot k
//!     read the epoch                          the slot is empty
//!     read whether the user in k is eligible    say whether it is eligible
//!     read slot k                             advance the epoch
//!     use it if not younger than the epoch    publish slot k
//! ```
//!
//! The bit of a slot is valid for the registration that the thread uses. The bit is changed for a
//! later registration only after the slot was emptied: a thread that reads the changed bit finds
//! the slot empty, or the later registration, which is younger than the epoch that the thread has
//! read. An earlier registration cannot be in the slot, which was published after the epoch was
//! advanced.

use crate::primitive::{AtomicU32, Ordering, const_unless_loom, fence};
use crate::site::MAX_USERS;

/// The slots of users that are not fast-path users, twice: in the lower half the lowest bit is for
/// the first slot, as in the users that want a call; in the upper half it is for the last slot, as
/// in frames.
#[derive(Debug)]
pub struct Eligible(AtomicU32);

impl Eligible {
    const_unless_loom! {
        /// Starts with no fast-path user.
        pub fn new() -> Self {
            Self(AtomicU32::new(u32::MAX))
        }
    }

    /// Sets if the next user of `slot`, which must be empty, is a fast-path user.
    pub fn set(&self, slot: usize, is_eligible: bool) {
        let bits = 1 << slot | 0x8000_0000 >> slot;
        debug_assert!(slot < MAX_USERS);
        match is_eligible {
            true => self.0.fetch_and(!bits, Ordering::Relaxed),
            false => self.0.fetch_or(bits, Ordering::Relaxed),
        };
        // Release, before the next advance of the epoch: pairs with the Acquire in `is_set`'s
        // callers, and with the order of loads in the trampolines.
        fence(Ordering::Release);
    }

    /// Returns true if the user in `slot` is a fast-path user. The epoch must have been read
    /// before.
    pub fn is_set(&self, slot: usize) -> bool {
        // Acquire: the slot is read afterwards.
        self.0.load(Ordering::Acquire) & 1 << slot == 0
    }
}

impl Default for Eligible {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_slot_has_a_bit_from_either_end() {
        let eligible = Eligible::new();
        eligible.set(0, true);
        eligible.set(3, true);
        assert_eq!(eligible.0.load(Ordering::Relaxed), !0x9000_0009);
        assert!(eligible.is_set(3) && !eligible.is_set(4));
        eligible.set(0, false);
        eligible.set(3, false);
        assert_eq!(eligible.0.load(Ordering::Relaxed), u32::MAX);
    }
}
