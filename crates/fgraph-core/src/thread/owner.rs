//! The owner of a state and the users that watch its thread, in one word: so the owner cannot
//! change between the two.
//!
//! ```text
//!   bits 0 to 30    the kernel's id of the thread; 0: nobody's
//!   bit 31          the state is reserved for this thread, which has none yet
//!   bits 32 to 47   the users that watch the thread, a bit for each slot
//!   bits 48 to 63   how often the users were set
//! ```
//!
//! *Filters by thread.* The users that watch a thread are in the word of its state, and for threads
//! without a state in [`Watched`]. There is one writer at a time. It takes three steps, and a
//! thread that needs a state takes three, too:
//!
//! ```text
//!   writer                                thread X
//!     count and reserve a state for each    a state is reserved for X: take that
//!       thread of the filter without one    claim a state, with the users of `Watched`
//!     change `Watched`                      a state is reserved for X now: take that instead
//!     set the users in all states
//! ```
//!
//! Either X has claimed its state before the writer reaches it: then the writer sets it. Or X
//! claims it afterwards: then X finds the state that was reserved. X claims with the value that
//! `Watched` has at that moment: if the writer had changed `Watched` and set this state in between,
//! the count in the word would differ. Everything is sequentially consistent.

use crate::primitive::{AtomicU32, AtomicU64, Ordering, const_unless_loom};

const RESERVED: u32 = 1 << 31;
const USERS_SHIFT: u32 = 32;
const COUNT_SHIFT: u32 = 48;

/// The number of counts of reserved states; a model has fewer.
const COUNTS: usize = if cfg!(loom) { 1 } else { 64 };

/// The users that watch threads without a state, and counts of reserved states.
#[derive(Debug)]
pub struct Watched {
    /// The users, one bit for each slot.
    users: AtomicU32,
    /// Counts by a hash of the thread's id, so that few threads look for a state that is not
    /// reserved for them.
    reserved: [AtomicU32; COUNTS],
}

impl Watched {
    /// Starts with all users watching, and no state reserved.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self {
            users: AtomicU32::new(0xffff),
            reserved: [const { AtomicU32::new(0) }; COUNTS],
        }
    }

    /// Starts with all users watching, and no state reserved.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self {
            users: AtomicU32::new(0xffff),
            reserved: core::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    /// Counts a state that is about to be [reserved](Owner::reserve_for) for thread `id`.
    pub fn count_reserved(&self, id: u32) {
        self.reserved_for(id).fetch_add(1, Ordering::SeqCst);
    }

    /// Returns true if a state may be reserved for thread `id`.
    pub fn may_be_reserved(&self, id: u32) -> bool {
        self.reserved_for(id).load(Ordering::SeqCst) != 0
    }

    fn reserved_for(&self, id: u32) -> &AtomicU32 {
        &self.reserved[id as usize % COUNTS]
    }

    /// Returns true if the user in `slot` watches threads without a state.
    pub fn is_set(&self, slot: usize) -> bool {
        self.users.load(Ordering::SeqCst) & 1 << slot != 0
    }

    /// Sets if the user in `slot` watches threads without a state.
    pub fn set(&self, slot: usize, does: bool) {
        let bit = 1 << slot;
        match does {
            true => self.users.fetch_or(bit, Ordering::SeqCst),
            false => self.users.fetch_and(!bit, Ordering::SeqCst),
        };
    }
}

impl Default for Watched {
    fn default() -> Self {
        Self::new()
    }
}

/// The word of a state.
#[derive(Debug)]
pub struct Owner(AtomicU64);

impl Owner {
    /// Offset in the word of the users.
    pub const USERS: usize = USERS_SHIFT as usize / 8;

    const_unless_loom! {
        /// Starts without an owner, watched by all users.
        pub fn new() -> Self {
            Self(AtomicU64::new(0xffff << USERS_SHIFT))
        }
    }

    /// Returns the owner's thread id; 0 for none.
    pub fn id(&self) -> u32 {
        self.0.load(Ordering::Relaxed) as u32 & !RESERVED
    }

    /// Returns true if the thread has not taken the state yet.
    pub fn is_reserved(&self) -> bool {
        self.0.load(Ordering::Relaxed) as u32 & RESERVED != 0
    }

    /// Returns the users that watch the thread, one bit for each slot.
    #[inline(always)]
    pub fn users(&self) -> u16 {
        // Relaxed: a concurrent change of a filter may or may not apply to this call.
        (self.0.load(Ordering::Relaxed) >> USERS_SHIFT) as u16
    }

    /// Takes the state for thread `id`, if it has no owner.
    pub fn claim(&self, id: u32, watched: &Watched) -> bool {
        let mut word = self.0.load(Ordering::SeqCst);
        while word as u32 == 0 {
            let users = u64::from(watched.users.load(Ordering::SeqCst)) << USERS_SHIFT;
            let claimed = word >> COUNT_SHIFT << COUNT_SHIFT | users | u64::from(id);
            // The former owner's stores come first, as in `release`.
            match self.exchange(word, claimed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Reserves a state that the calling thread has claimed for thread `id`, which must be
    /// [counted](Watched::count_reserved).
    pub fn reserve_for(&self, id: u32) {
        self.change(|_| Some(id | RESERVED));
    }

    /// Takes the state for thread `id`, if it is reserved for it.
    pub fn take_reserved(&self, id: u32, watched: &Watched) -> bool {
        self.end_reserved(id, id, watched)
    }

    /// Releases a state that is reserved for thread `id`.
    pub fn cancel_reserved(&self, id: u32, watched: &Watched) -> bool {
        self.end_reserved(id, 0, watched)
    }

    fn end_reserved(&self, id: u32, to: u32, watched: &Watched) -> bool {
        let is_ended = self.change(|owner| (owner == id | RESERVED).then_some(to));
        if is_ended {
            watched.reserved_for(id).fetch_sub(1, Ordering::SeqCst);
        }
        is_ended
    }

    /// Releases the state of thread `id`.
    pub fn release(&self, id: u32) -> bool {
        self.change(|owner| (owner == id).then_some(0))
    }

    /// Changes the thread's id.
    pub fn rename(&self, id: u32) {
        self.change(|_| Some(id));
    }

    /// Sets if the user in `slot` watches the thread: the result of `does` for the thread's id.
    pub fn set_user(&self, slot: usize, does: impl Fn(u32) -> bool) {
        let bit = 1 << (USERS_SHIFT as usize + slot);
        let mut word = self.0.load(Ordering::SeqCst);
        loop {
            let set = match does(word as u32 & !RESERVED) {
                true => word | bit,
                false => word & !bit,
            };
            match self.exchange(word, set.wrapping_add(1 << COUNT_SHIFT)) {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }

    /// Changes the owner, unless `to` returns `None`.
    fn change(&self, to: impl Fn(u32) -> Option<u32>) -> bool {
        let mut word = self.0.load(Ordering::SeqCst);
        while let Some(owner) = to(word as u32) {
            let changed = word >> USERS_SHIFT << USERS_SHIFT | u64::from(owner);
            match self.exchange(word, changed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    fn exchange(&self, from: u64, to: u64) -> Result<u64, u64> {
        self.0
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst)
    }
}

impl Default for Owner {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_state_belongs_to_one_thread_at_a_time() {
        let (owner, watched) = (Owner::new(), Watched::new());
        assert!(owner.claim(7, &watched) && !owner.claim(8, &watched));
        assert_eq!((owner.id(), owner.is_reserved()), (7, false));
        assert!(!owner.release(8) && !owner.take_reserved(7, &watched));
        assert!(!owner.cancel_reserved(7, &watched));
        watched.count_reserved(8);
        owner.reserve_for(8);
        assert_eq!((owner.id(), owner.is_reserved()), (8, true));
        assert!(!owner.release(8) && !owner.claim(9, &watched));
        assert!(!owner.take_reserved(7, &watched) && watched.may_be_reserved(8));
        assert!(owner.take_reserved(8, &watched) && !owner.cancel_reserved(8, &watched));
        assert!(!watched.may_be_reserved(8));
        assert_eq!((owner.id(), owner.is_reserved()), (8, false));
        assert!(owner.release(8));
        assert_eq!(owner.id(), 0);
    }

    #[test]
    fn watchers_of_a_thread_move_with_the_thread() {
        let (owner, watched) = (Owner::new(), Watched::new());
        assert_eq!(owner.users(), 0xffff);
        assert!(owner.claim(7, &watched));
        owner.set_user(3, |id| id == 8);
        assert_eq!(owner.users(), 0xfff7);
        owner.set_user(15, |id| id == 8);
        owner.set_user(3, |id| id == 7);
        assert_eq!(owner.users(), 0x7fff);
        owner.rename(9);
        assert_eq!((owner.id(), owner.users()), (9, 0x7fff));
        assert!(owner.release(9));
        // The next owner is watched by the users that watch new threads.
        watched.set(0, false);
        assert!(!watched.is_set(0) && watched.is_set(15));
        assert!(owner.claim(1, &watched));
        assert_eq!(owner.users(), 0xfffe);
    }
}
