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
//!
//! To list the users of a call takes as long as to call several. So a thread keeps the list of the
//! last such call with the users and the ranks that it was made of ([`Listing`]).

use core::cell::Cell;
use core::mem::offset_of;
use core::sync::atomic::compiler_fence;

use crate::MAX_USERS;
use crate::primitive::{AtomicU32, AtomicU64, Ordering, const_unless_loom, fence};

/// Bits of a slot in the ranks.
const SLOT_BITS: usize = 4;
/// These bits.
const SLOT: u64 = (1 << SLOT_BITS) - 1;

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
    /// No ranks: of no slot.
    pub(crate) const NONE: Self = Self(0);

    /// Makes ranks of all slots, each once, the first to be asked first.
    pub fn new(slots: [u8; MAX_USERS]) -> Self {
        let slots = slots.iter().rev();
        Self(slots.fold(0, |ranks, &slot| ranks << SLOT_BITS | u64::from(slot)))
    }

    /// Lists the slots of `users`, which has a bit for each, by rank.
    pub(crate) fn list(self, users: u64) -> List {
        let (mut slots, mut len) = (0, 0);
        for rank in 0..MAX_USERS {
            let slot = self.0 >> (rank * SLOT_BITS) & SLOT;
            let is_in = users >> slot & 1;
            // Without a branch: one is wrong as often as not.
            slots |= (slot * is_in) << (len * SLOT_BITS as u64);
            len += is_in;
        }
        List { slots, len }
    }
}

/// The slots of the users of a call, in the order in which they are asked.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List {
    /// Four bits each, the first in the lowest bits.
    slots: u64,
    len: u64,
}

impl List {
    /// Offset in a list of the slots.
    pub const SLOTS: usize = offset_of!(Self, slots);
    /// Offset in a list of their number.
    pub const LEN: usize = offset_of!(Self, len);

    /// Makes an empty list.
    pub(crate) const fn new() -> Self {
        Self { slots: 0, len: 0 }
    }

    /// Returns the slot at a place; `None` behind the last.
    #[inline(always)]
    pub(crate) fn slot(self, place: u64) -> Option<usize> {
        let slot = (self.slots >> (place * SLOT_BITS as u64 % 64) & SLOT) as usize;
        (place < self.len).then_some(slot)
    }

    /// Returns the number of slots.
    #[inline(always)]
    pub(crate) fn len(self) -> u64 {
        self.len
    }
}

/// The list of the last call of a thread that was dispatched to its users by their ranks.
#[repr(C)]
#[derive(Debug)]
pub struct Listing {
    users: Cell<u64>,
    ranks: Cell<Ranks>,
    list: Cell<List>,
}

impl Listing {
    /// Offset in a listing of the users that are listed, a bit for each slot.
    pub const USERS: usize = offset_of!(Self, users);
    /// Offset in a listing of the ranks by which they are.
    pub const RANKS: usize = offset_of!(Self, ranks);
    /// Offset in a listing of the [`List`].
    pub const LIST: usize = offset_of!(Self, list);

    /// Lists no users.
    pub(crate) const fn new() -> Self {
        Self {
            users: Cell::new(0),
            ranks: Cell::new(Ranks::NONE),
            list: Cell::new(List::new()),
        }
    }

    /// Returns the list.
    pub(crate) fn get(&self) -> List {
        self.list.get()
    }

    /// Lists `users` by these ranks, if it does not yet.
    #[inline]
    pub(crate) fn renew(&self, ranks: Ranks, users: u64) {
        if (self.users.get(), self.ranks.get()) != (users, ranks) {
            // The users last, and none meanwhile: a signal handler may leave by `siglongjmp`.
            self.users.set(0);
            compiler_fence(Ordering::SeqCst);
            self.ranks.set(ranks);
            self.list.set(ranks.list(users));
            compiler_fence(Ordering::SeqCst);
            self.users.set(users);
        }
    }
}

impl Order {
    /// Offset in an order of the users that are out of order, a bit for each slot.
    pub const OUT_OF_ORDER: usize = offset_of!(Self, out_of_order);
    /// Offset in an order of the ranks.
    pub const RANKS: usize = offset_of!(Self, ranks);

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
        self.ranks.store(ranks.0, Ordering::Relaxed);
        // Release, before the next advance of the epoch: pairs with the fence behind the load of
        // the epoch in `Fgraph::wanting`. A call that may be given to the user finds both.
        fence(Ordering::Release);
    }

    /// Returns true if the user in `slot` is out of order.
    pub fn is_out_of_order(&self, slot: usize) -> bool {
        self.counts_for(1 << slot)
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
    fn slots_are_listed_by_rank() {
        let slots = [3, 1, 0, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 14];
        let listed = |users| {
            let list = Ranks::new(slots).list(users);
            let places: std::vec::Vec<_> = (0..20).map_while(|place| list.slot(place)).collect();
            assert_eq!(places.len() as u64, list.len());
            places
        };
        assert_eq!(listed(0xffff), slots.map(usize::from));
        assert_eq!(listed(0b1101), [3, 0, 2]);
        assert_eq!(listed(0xc000), [15, 14]);
        assert_eq!(listed(0), [0; 0]);
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
