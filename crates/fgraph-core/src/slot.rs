//! The 16 slots.
//!
//! ```text
//!   index      0      1      2            15
//!           +------+------+------+-   -+------+
//!   slots   |  A   | stub |  B   | ... | stub |     one pointer each, never null
//!           +------+------+------+-   -+------+
//!   free    1, 7, 3, ..., 15                        least recently freed first
//! ```
//!
//! A slot always points to something that may be called: a free one holds the *stub*, whose entry
//! says no and whose return does nothing. So no reader needs to ask whether a slot is in use.
//! Free indices are handed out in the order in which they were freed, as in the kernel, which keeps
//! an index out of use for as long as possible. Correctness does not rest on that: see
//! [`grace::Epoch`](crate::grace::Epoch).

use crate::MAX_USERS;
use crate::grace::Mark;
use crate::primitive::{AtomicPtr, Ordering, light_barrier};

/// The 16 slots, each of which points to a registration of type `H` or to the stub.
#[derive(Debug)]
pub struct Slots<H: 'static> {
    slots: [AtomicPtr<H>; MAX_USERS],
    stub: *const H,
}

// SAFETY: the pointers lead to `H`, which is shared and so must be `Sync`; `stub` is never written.
unsafe impl<H: Sync> Sync for Slots<H> {}
// SAFETY: as above; nothing in it belongs to a thread.
unsafe impl<H: Sync> Send for Slots<H> {}

impl<H> Slots<H> {
    /// All slots hold `stub`.
    #[cfg(not(loom))]
    pub const fn new(stub: &'static H) -> Self {
        let stub: *const H = stub;
        Self {
            slots: [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_USERS],
            stub,
        }
        .fill()
    }

    #[cfg(not(loom))]
    const fn fill(mut self) -> Self {
        let mut index = 0;
        while index < MAX_USERS {
            self.slots[index] = AtomicPtr::new(self.stub.cast_mut());
            index += 1;
        }
        self
    }

    /// All slots hold `stub`.
    #[cfg(loom)]
    pub fn new(stub: &'static H) -> Self {
        let stub: *const H = stub;
        Self {
            slots: core::array::from_fn(|_| AtomicPtr::new(stub.cast_mut())),
            stub,
        }
    }

    /// Whether `header` is the stub.
    #[inline(always)]
    pub fn is_stub(&self, header: *const H) -> bool {
        core::ptr::eq(header, self.stub)
    }

    /// Marks the thread as being inside slot `index`, then reads the slot.
    ///
    /// What the pointer leads to stays valid until the mark is cleared or set to another slot.
    #[inline(always)]
    pub fn acquire(&self, mark: &Mark, index: usize) -> *const H {
        mark.set(index);
        // Pairs with the heavy barrier between `retire` and the wait of the grace period: either
        // the load below sees the stub, or the writer sees the mark.
        light_barrier();
        // Acquire pairs with the Release in `publish`: the registration is complete.
        self.slots[index].load(Ordering::Acquire)
    }

    /// Publishes a registration: from here on its callbacks may be called.
    pub fn publish(&self, index: usize, header: *const H) {
        self.slots[index].store(header.cast_mut(), Ordering::Release);
    }

    /// Puts the stub into a slot. What was there may be freed after a grace period.
    pub fn retire(&self, index: usize) {
        // Release is not needed for the stub, which is never written; the grace period's heavy
        // barrier orders this store before the reads of the marks.
        self.slots[index].store(self.stub.cast_mut(), Ordering::Release);
    }

    /// Puts the stub into a slot if it still holds `header`.
    pub fn retire_if(&self, index: usize, header: *const H) {
        // Failing is fine: somebody else has retired this registration already.
        let _ = self.slots[index].compare_exchange(
            header.cast_mut(),
            self.stub.cast_mut(),
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
    }
}

/// The free slot indices, least recently freed first.
#[derive(Debug)]
pub struct FreeIndices {
    ring: [u8; MAX_USERS],
    next: usize,
    len: usize,
}

impl FreeIndices {
    /// All indices are free.
    pub const fn new() -> Self {
        let mut ring = [0; MAX_USERS];
        let mut index = 0;
        while index < MAX_USERS {
            ring[index] = index as u8;
            index += 1;
        }
        Self {
            ring,
            next: 0,
            len: MAX_USERS,
        }
    }

    /// Takes the least recently freed index; `None` when all 16 are in use.
    pub fn take(&mut self) -> Option<usize> {
        if self.len == 0 {
            return None;
        }
        let index = self.ring[self.next];
        self.next = (self.next + 1) % MAX_USERS;
        self.len -= 1;
        Some(usize::from(index))
    }

    /// Gives an index back.
    ///
    /// # Panics
    ///
    /// When more indices come back than were taken.
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
        assert_eq!(free.take(), Some(0));
        assert_eq!(free.take(), Some(1));
        free.give_back(0);
        for index in 2..MAX_USERS {
            assert_eq!(free.take(), Some(index));
        }
        assert_eq!(free.take(), Some(0));
        assert_eq!(free.take(), None);
    }

    #[test]
    fn every_slot_starts_as_the_stub_and_returns_to_it() {
        static STUB: u32 = 0;
        static USER: u32 = 1;
        let slots = Slots::new(&STUB);
        let mark = Mark::new();
        for index in 0..MAX_USERS {
            assert!(slots.is_stub(slots.acquire(&mark, index)));
        }
        slots.publish(3, &USER);
        assert!(core::ptr::eq(slots.acquire(&mark, 3), &USER));
        slots.retire_if(3, &STUB);
        assert!(core::ptr::eq(slots.acquire(&mark, 3), &USER));
        slots.retire_if(3, &USER);
        assert!(slots.is_stub(slots.acquire(&mark, 3)));
    }
}
