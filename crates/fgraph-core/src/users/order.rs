//! The order in which the users of a call are asked.
//!
//! Users are asked by their slots, the first slot first, as long as each user is in a slot between
//! those of the users with lower and with higher priorities. A user for which no such slot is free
//! is *out of order*: if it wants a call, all users of that call are asked by their *ranks*
//! (`dispatch/ordered.rs`).
//!
//! ```text
//!   slot        0     1     2    ...   15       users 5 and 7 have slots in their order;
//!   priority    5     7     6                   6 came last, and is out of order
//!
//!   rank        0     1     2    ...   15
//!   slot        0     2     1     any others
//! ```
//!
//! A call that only users in order want costs the same, whoever is out of order.

use crate::MAX_USERS;
use crate::primitive::{AtomicU32, AtomicU64, Ordering, const_unless_loom, fence};

/// Bits of a slot in the ranks.
const SLOT_BITS: usize = 4;

const _: () = assert!(MAX_USERS << SLOT_BITS == 16 * 16 && u64::BITS as usize == 16 * SLOT_BITS);

/// The users that are out of order, and the ranks of all slots.
#[derive(Debug)]
pub struct Order {
    out_of_order: AtomicU32,
    ranks: AtomicU64,
}

/// The slots by rank, four bits each, the first rank in the lowest bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranks(u64);

impl Ranks {
    /// Makes ranks of all slots, each once, the first to be asked first.
    pub fn new(slots: [u8; MAX_USERS]) -> Self {
        let slots = slots.iter().rev();
        Self(slots.fold(0, |ranks, &slot| ranks << SLOT_BITS | u64::from(slot)))
    }

    /// Makes ranks from [`bits`](Self::bits).
    #[inline(always)]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns the ranks as one word.
    #[inline(always)]
    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    /// Takes the slots up to the first of `users`, which has a bit for each slot and must not be
    /// empty. Returns that slot.
    #[inline(always)]
    pub(crate) fn take_first_of(&mut self, users: u64) -> usize {
        loop {
            let slot = self.0 as usize % MAX_USERS;
            self.0 >>= SLOT_BITS;
            if users & 1 << slot != 0 || self.0 == 0 {
                return slot;
            }
        }
    }
}

impl Order {
    const_unless_loom! {
        /// Starts with all users in order.
        pub fn new() -> Self {
            Self {
                out_of_order: AtomicU32::new(0),
                ranks: AtomicU64::new(0),
            }
        }
    }

    /// Sets if the next user of `slot`, which must be empty, is out of order, and the ranks with
    /// it. Users that stay must keep their order.
    pub fn set(&self, slot: usize, is_out_of_order: bool, ranks: Ranks) {
        let bit = 1 << slot;
        debug_assert!(slot < MAX_USERS);
        match is_out_of_order {
            true => self.out_of_order.fetch_or(bit, Ordering::Relaxed),
            false => self.out_of_order.fetch_and(!bit, Ordering::Relaxed),
        };
        self.ranks.store(ranks.bits(), Ordering::Relaxed);
        // Release, before the next advance of the epoch: pairs with the fence behind the load of
        // the epoch in `Fgraph::wanting`. A call that may be given to the user finds both.
        fence(Ordering::Release);
    }

    /// Returns true if the user in `slot` is out of order.
    pub fn is_out_of_order(&self, slot: usize) -> bool {
        self.out_of_order.load(Ordering::Relaxed) & 1 << slot != 0
    }

    /// Returns true if a call that `users` want, a bit for each slot, is given to them by their
    /// ranks. The epoch must have been read before, with an Acquire fence after it.
    #[inline(always)]
    pub fn counts_for(&self, users: u64) -> bool {
        u64::from(self.out_of_order.load(Ordering::Relaxed)) & users != 0
    }

    /// Returns the ranks.
    pub fn ranks(&self) -> Ranks {
        Ranks(self.ranks.load(Ordering::Relaxed))
    }
}

impl Default for Order {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn slots_are_taken_by_rank_and_others_are_passed_over() {
        let slots = [3, 1, 0, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 14];
        let mut ranks = Ranks::new(slots);
        assert_eq!(ranks, Ranks::from_bits(ranks.bits()));
        for (users, slot) in [
            (0b1111, 3),
            (0b111, 1),
            (0b100, 2),
            (0xc000, 15),
            (0x4000, 14),
        ] {
            assert_eq!(ranks.take_first_of(users), slot);
        }
    }

    #[test]
    fn only_calls_of_users_that_are_out_of_order_are_ordered() {
        let order = Order::new();
        assert!(!order.counts_for(0xffff));
        order.set(3, true, Ranks::new(core::array::from_fn(|slot| slot as u8)));
        assert!(order.is_out_of_order(3) && !order.is_out_of_order(2));
        assert!(order.counts_for(0b1001) && !order.counts_for(0b0111));
        order.set(3, false, order.ranks());
        assert!(!order.counts_for(0xffff));
    }
}
