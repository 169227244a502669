//! Decides which thread may change a shadow stack, and which thread dispatches a return.
//!
//! *Claim.* One thread at a time adds frames to a [stack](crate::machine) and drops frames from it.
//! It gives the stack back when it goes elsewhere; no other thread takes the stack away.
//!
//! *Word.* A call may return in a thread that does not have the claim on the stack of its frame.
//! That thread dispatches the return, and leaves the frame to the stack's owner, who may take the
//! frame for dead and drop it at the same moment. The frame's word decides: one of the two gets its
//! users, and the frame is not dropped while they are called.
//!
//! ```text
//!           begin_return               end_return
//!   users ----------------> RETURNING ------------> 0
//!     |                                             |
//!     +------------------- end -------------------->+--- the frame may be dropped
//! ```
//!
//! If the call was unwound, UNWOUND replaces the 0 until the frame is certainly dead.

use core::ptr;

use crate::primitive::{AtomicPtr, AtomicU64, Ordering, const_unless_loom};

/// The bits of a frame's word that name the users that want the return.
pub(crate) const USERS: u64 = 0xffff;

/// The word while the return is dispatched: no registration has the epoch 0, and a frame with it
/// has no users.
const RETURNING: u64 = USERS;

/// The word of an unwound frame on a machine stack that several threads may use. It looks like a
/// word with a user, so that the frame is not dropped before its place on the machine stack is
/// written again. Until then the unwinder may read the frame.
pub(crate) const UNWOUND: u64 = 1;

/// Ends a frame, unless its return is being dispatched: no user wants it any more. Returns its
/// word.
pub fn end(word: &AtomicU64) -> Option<u64> {
    let ended = |word| (word != RETURNING).then_some(0);
    // Acquire pairs with the Release of `end_return`: the dispatching thread has read the frame.
    word.fetch_update(Ordering::Acquire, Ordering::Acquire, ended)
        .ok()
}

/// Marks the return of a frame as being dispatched, and returns the frame's word; `None` if no user
/// wants the return.
pub fn begin_return(word: &AtomicU64) -> Option<u64> {
    let is_wanted = |word| word & USERS != 0 && word != RETURNING && word != UNWOUND;
    let wanted = |word| is_wanted(word).then_some(RETURNING);
    word.fetch_update(Ordering::Acquire, Ordering::Relaxed, wanted)
        .ok()
}

/// Marks the return of a frame as dispatched, so that the frame is no longer needed.
pub fn end_return(word: &AtomicU64) {
    word.store(0, Ordering::Release);
}

/// Marks an unwound frame as dispatched; the unwinder may still need the frame.
pub fn note_unwound(word: &AtomicU64) {
    word.store(UNWOUND, Ordering::Release);
}

/// The owner of a stack, represented by an address.
#[derive(Debug)]
pub struct Claim(AtomicPtr<()>);

impl Claim {
    const_unless_loom! {
        /// A claim without an owner.
        pub fn new() -> Self {
            Self(AtomicPtr::new(ptr::null_mut()))
        }
    }

    /// Takes the claim, unless it has an owner.
    pub fn take<T>(&self, who: *const T) -> bool {
        let who = who.cast_mut().cast();
        // Acquire pairs with the Release in `give_back`: the frames are in the state in which that
        // thread left them.
        let taken =
            self.0
                .compare_exchange(ptr::null_mut(), who, Ordering::Acquire, Ordering::Relaxed);
        // A signal handler that left with `siglongjmp` may have skipped giving it back.
        taken.is_ok() || taken == Err(who)
    }

    /// Passes a claim of the caller to another owner.
    pub fn hand_to<T>(&self, who: *const T) {
        self.0.store(who.cast_mut().cast(), Ordering::Release);
    }

    /// Gives the claim back if `who` is the owner.
    pub fn give_back<T>(&self, who: *const T) {
        let _ = self.0.compare_exchange(
            who.cast_mut().cast(),
            ptr::null_mut(),
            Ordering::Release,
            Ordering::Relaxed,
        );
    }
}

impl Default for Claim {
    fn default() -> Self {
        Self::new()
    }
}
