//! Whose a state is, and which users watch its thread: in one word, so that a state never changes
//! hands between the two.
//!
//! ```text
//!   bits 0 to 30    the kernel's id of the thread; 0: nobody's
//!   bit 31          the state is reserved for this thread, which has none yet
//!   bits 32 to 47   the users that watch the thread, a bit for each slot
//!   bits 48 to 63   how often the users were set
//! ```
//!
//! *Filters by thread.* What a user watches is kept in the words of all states, and for threads
//! without a state in [`Watched`]. A writer, and there is one at a time, goes three steps; a thread
//! that needs a state goes three as well:
//!
//! ```text
//!   writer                                thread X
//!     count and reserve a state for each    a state is reserved for X: take that
//!       thread of the filter without one    claim a state, with the users of `Watched`
//!     change `Watched`                      a state is reserved for X now: take that instead
//!     set the users in all states
//! ```
//!
//! X has claimed its state before the writer comes to it, and then the writer sets it; or after,
//! and then X finds the state that was reserved. What X has claimed with is what is in `Watched`
//! when it claims: had the writer changed that and set this state in between, then the count in the
//! word would differ. Everything is sequentially consistent.

use crate::primitive::{AtomicU32, AtomicU64, Ordering};

const RESERVED: u32 = 1 << 31;
const USERS_SHIFT: u32 = 32;
const COUNT_SHIFT: u32 = 48;

/// Counts of reserved states; a model has fewer.
const COUNTS: usize = if cfg!(loom) { 1 } else { 64 };

/// The users that watch threads which have no state yet, and for how many threads a state is
/// reserved.
#[derive(Debug)]
pub struct Watched {
    /// A bit for each slot.
    users: AtomicU32,
    /// By the thread's id, so that few threads look for a state where none is reserved for them.
    reserved: [AtomicU32; COUNTS],
}

impl Watched {
    /// All do, and none is reserved.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self {
            users: AtomicU32::new(0xffff),
            reserved: [const { AtomicU32::new(0) }; COUNTS],
        }
    }

    /// All do, and none is reserved.
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

    /// Whether a state may be reserved for thread `id`.
    pub fn may_be_reserved(&self, id: u32) -> bool {
        self.reserved_for(id).load(Ordering::SeqCst) != 0
    }

    fn reserved_for(&self, id: u32) -> &AtomicU32 {
        &self.reserved[id as usize % COUNTS]
    }

    /// Whether the user in `slot` does.
    pub fn is_set(&self, slot: usize) -> bool {
        self.users.load(Ordering::SeqCst) & 1 << slot != 0
    }

    /// Says whether the user in `slot` does.
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
    /// Where in the word the users are.
    pub const USERS: usize = USERS_SHIFT as usize / 8;

    /// Nobody's, watched by all users.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0xffff << USERS_SHIFT))
    }

    /// Nobody's, watched by all users.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self(AtomicU64::new(0xffff << USERS_SHIFT))
    }

    /// The thread's id; 0: nobody's.
    pub fn id(&self) -> u32 {
        self.0.load(Ordering::Relaxed) as u32 & !RESERVED
    }

    /// Whether the thread has not taken the state yet.
    pub fn is_reserved(&self) -> bool {
        self.0.load(Ordering::Relaxed) as u32 & RESERVED != 0
    }

    /// The users that watch the thread, a bit for each slot.
    #[inline(always)]
    pub fn users(&self) -> u16 {
        // Relaxed: a filter that changes at this moment may or may not hold for this call.
        (self.0.load(Ordering::Relaxed) >> USERS_SHIFT) as u16
    }

    /// Takes the state for thread `id`, if it is nobody's.
    pub fn claim(&self, id: u32, watched: &Watched) -> bool {
        let mut word = self.0.load(Ordering::SeqCst);
        while word as u32 == 0 {
            let users = u64::from(watched.users.load(Ordering::SeqCst)) << USERS_SHIFT;
            let claimed = word >> COUNT_SHIFT << COUNT_SHIFT | users | u64::from(id);
            // The former owner's writes come first, as in `release`.
            match self.exchange(word, claimed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Makes a state that the calling thread has claimed one that is reserved for thread `id`. It
    /// must be [counted](Watched::count_reserved).
    pub fn reserve_for(&self, id: u32) {
        self.change(|_| Some(id | RESERVED));
    }

    /// Takes the state for thread `id`, if it is reserved for it.
    pub fn take_reserved(&self, id: u32, watched: &Watched) -> bool {
        self.end_reserved(id, id, watched)
    }

    /// Makes a state nobody's that is reserved for thread `id`.
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

    /// Makes the state of thread `id` nobody's.
    pub fn release(&self, id: u32) -> bool {
        self.change(|owner| (owner == id).then_some(0))
    }

    /// The thread goes by another id from now on.
    pub fn rename(&self, id: u32) {
        self.change(|_| Some(id));
    }

    /// Says whether the user in `slot` watches the thread, which `does` tells by the thread's id.
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

    /// Changes who the owner is, unless `to` says no.
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
    fn who_watches_a_thread_goes_with_the_thread() {
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
        // The next one is watched by those who watch new threads.
        watched.set(0, false);
        assert!(!watched.is_set(0) && watched.is_set(15));
        assert!(owner.claim(1, &watched));
        assert_eq!(owner.users(), 0xfffe);
    }
}
