//! The 16 slots.
//!
//! ```text
//!   index      0      1      2            15     (16)
//!           +------+------+------+-   -+------+------+
//!   slots   |  A   | stub |  B   | ... | stub | stub |   one pointer each, never null
//!           +------+------+------+-   -+------+------+
//!   free    1, 7, 3, ..., 15                             least recently freed first
//! ```
//!
//! A slot always points to a registration that may be called: a free one holds the *stub*, whose
//! entry accepts nothing and whose return does nothing. So readers need not check if a slot is in
//! use. Free indices are reused in the order in which they were freed, as in the kernel, which
//! keeps an index unused for as long as possible. Correctness does not depend on that: see
//! [`grace::Epoch`](crate::grace::Epoch).

use core::ops::Range;

use crate::MAX_USERS;
use crate::grace::HazardSlot;
use crate::primitive::{AtomicPtr, Ordering, light_barrier};

/// The 16 slots; each points to a registration of type `H` or to the stub.
#[derive(Debug)]
pub struct Slots<H: 'static> {
    /// The slots, followed by the stub for hazard slots that name no slot.
    slots: [AtomicPtr<H>; MAX_USERS + 1],
    stub: *const H,
}

// SAFETY: the pointers lead to `H`, which is shared and so must be `Sync`; `stub` is never written.
unsafe impl<H: Sync> Sync for Slots<H> {}
// SAFETY: the pointers lead to `H`, which must be `Sync`; no field belongs to a thread.
unsafe impl<H: Sync> Send for Slots<H> {}

impl<H> Slots<H> {
    /// Offset in this type of the slots' pointers, the first one first.
    pub const POINTERS: usize = core::mem::offset_of!(Self, slots);

    /// Makes slots that all hold `stub`.
    #[cfg(not(loom))]
    pub const fn new(stub: &'static H) -> Self {
        let stub: *const H = stub;
        Self {
            slots: [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_USERS + 1],
            stub,
        }
        .fill()
    }

    #[cfg(not(loom))]
    const fn fill(mut self) -> Self {
        let mut index = 0;
        while index <= MAX_USERS {
            self.slots[index] = AtomicPtr::new(self.stub.cast_mut());
            index += 1;
        }
        self
    }

    /// Makes slots that all hold `stub`.
    #[cfg(loom)]
    pub fn new(stub: &'static H) -> Self {
        let stub: *const H = stub;
        Self {
            slots: core::array::from_fn(|_| AtomicPtr::new(stub.cast_mut())),
            stub,
        }
    }

    /// Returns true if `header` is the stub.
    #[inline(always)]
    pub fn is_stub(&self, header: *const H) -> bool {
        core::ptr::eq(header, self.stub)
    }

    /// Stores slot `index` in the thread's hazard slot, then reads the slot.
    ///
    /// The target of the pointer stays valid until the hazard slot is cleared or names another
    /// slot.
    #[inline(always)]
    pub fn acquire(&self, hazard: &HazardSlot, index: usize) -> *const H {
        hazard.set(index);
        // Pairs with the heavy barrier between `retire` and the wait of the grace period: either
        // the load below sees the stub, or the writer sees the hazard slot.
        light_barrier();
        // Acquire pairs with the Release in `publish`: the registration is complete.
        self.slots[index].load(Ordering::Acquire)
    }

    /// Publishes a registration: its callbacks may be called from now on.
    ///
    /// # Safety
    ///
    /// `header` must point to a registration that was made for this slot, and stay valid until a
    /// grace period has passed after the slot was retired.
    pub unsafe fn publish(&self, index: usize, header: *const H) {
        self.slots[index].store(header.cast_mut(), Ordering::Release);
    }

    /// Stores the stub in a slot. The previous target may be freed after a grace period.
    pub fn retire(&self, index: usize) {
        // The stub is never written, so it needs no Release; the grace period's heavy barrier
        // orders this store before the reads of the hazard slots.
        self.slots[index].store(self.stub.cast_mut(), Ordering::Release);
    }

    /// Stores the stub in a slot if it still holds `header`. Never panics: compilers would keep the
    /// panicking path in the code of otherwise [fast-path](crate::eligible) users.
    pub fn retire_if(&self, index: usize, header: *const H) {
        let Some(slot) = self.slots.get(index) else {
            return;
        };
        // A failure is fine: another thread has retired this registration already.
        let _ = slot.compare_exchange(
            header.cast_mut(),
            self.stub.cast_mut(),
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
    }
}

/// The index that is taken first. Lower ones are reserved, while others are free, for users that
/// must be called before all others.
pub const FIRST_TAKEN: usize = 4;

/// The free slot indices, least recently freed first.
#[derive(Debug)]
pub struct FreeIndices {
    ring: [u8; MAX_USERS],
    next: usize,
    len: usize,
}

impl FreeIndices {
    /// Starts with all indices free.
    pub const fn new() -> Self {
        let mut ring = [0; MAX_USERS];
        let mut at = 0;
        while at < MAX_USERS {
            ring[at] = ((at + FIRST_TAKEN) % MAX_USERS) as u8;
            at += 1;
        }
        Self {
            ring,
            next: 0,
            len: MAX_USERS,
        }
    }

    /// Takes the least recently freed index; `None` if all 16 are in use.
    pub fn take(&mut self) -> Option<usize> {
        self.take_from(0..MAX_USERS)
    }

    /// Takes the least recently freed index in `range`; `None` if all of these are in use.
    pub fn take_from(&mut self, range: Range<usize>) -> Option<usize> {
        let place = |at: usize| (self.next + at) % MAX_USERS;
        let fits = |&at: &usize| range.contains(&usize::from(self.ring[place(at)]));
        let found = (0..self.len).find(fits)?;
        let index = self.ring[place(found)];
        // Indices that were freed earlier keep their order.
        for at in (0..found).rev() {
            self.ring[(self.next + at + 1) % MAX_USERS] = self.ring[(self.next + at) % MAX_USERS];
        }
        self.next = (self.next + 1) % MAX_USERS;
        self.len -= 1;
        Some(usize::from(index))
    }

    /// Returns true if an index in `range` is free.
    pub fn has_one_in(&self, range: &Range<usize>) -> bool {
        let place = |at: usize| (self.next + at) % MAX_USERS;
        (0..self.len).any(|at| range.contains(&usize::from(self.ring[place(at)])))
    }

    /// Returns true if all 16 are in use.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Gives an index back.
    ///
    /// # Panics
    ///
    /// Panics if more indices are given back than were taken.
    pub fn give_back(&mut self, index: usize) {
        assert!(self.len < MAX_USERS, "slot {index} was not in use");
        self.ring[(self.next + self.len) % MAX_USERS] = index as u8;
        self.len += 1;
    }
}

impl Default for FreeIndices {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_freed_index_is_reused_last() {
        let mut free = FreeIndices::new();
        let order = |at: usize| Some((at + FIRST_TAKEN) % MAX_USERS);
        assert_eq!(free.take(), order(0));
        assert_eq!(free.take(), order(1));
        free.give_back(FIRST_TAKEN);
        for at in 2..MAX_USERS {
            assert_eq!(free.take(), order(at));
        }
        assert_eq!(free.take(), order(0));
        assert_eq!(free.take(), None);
    }

    #[test]
    fn an_index_is_taken_from_a_range_and_the_others_keep_their_order() {
        let mut free = FreeIndices::new();
        assert_eq!(free.take_from(0..2), Some(0));
        assert_eq!(free.take_from(0..2), Some(1));
        assert_eq!(free.take_from(0..2), None);
        assert_eq!(free.take_from(15..16), Some(15));
        let rest: [_; 13] = core::array::from_fn(|_| free.take().unwrap());
        assert_eq!(rest, [4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 2, 3]);
        assert_eq!(free.take(), None);
    }

    #[test]
    fn every_slot_starts_as_the_stub_and_returns_to_it() {
        static STUB: u32 = 0;
        static USER: u32 = 1;
        let slots = Slots::new(&STUB);
        let hazard = HazardSlot::new();
        for index in 0..MAX_USERS {
            assert!(slots.is_stub(slots.acquire(&hazard, index)));
        }
        // SAFETY: the registration is a static.
        unsafe { slots.publish(3, &USER) };
        assert!(core::ptr::eq(slots.acquire(&hazard, 3), &USER));
        slots.retire_if(3, &STUB);
        assert!(core::ptr::eq(slots.acquire(&hazard, 3), &USER));
        slots.retire_if(3, &USER);
        assert!(slots.is_stub(slots.acquire(&hazard, 3)));
    }
}
