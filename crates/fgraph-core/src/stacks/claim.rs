//! Who may change a shadow stack, and who tells of a return.
//!
//! *Claim.* One thread at a time adds frames to a [stack](crate::machine) and drops some. It
//! gives the stack back when it goes elsewhere; no other thread takes it away.
//!
//! *Word.* A call may come back in a thread that does not have the stack of its frame. It tells the
//! users, and leaves the frame to the owner of the stack, who may drop the frame at the same
//! moment, because it takes it for dead. The frame's word decides: one of the two gets its users,
//! and the frame is not dropped while they are told.
//!
//! ```text
//!           begin_return               end_return
//!   users ----------------> RETURNING ------------> 0
//!     |                                             |
//!     +------------------- end -------------------->+--- the frame may be dropped
//! ```
//!
//! If the call was unwound, UNWOUND takes the place of the 0 until the frame is surely dead.

use core::ptr;

use crate::primitive::{AtomicPtr, AtomicU64, Ordering};

/// The bits of a frame's word that say who wants the return.
pub(crate) const USERS: u64 = 0xffff;

/// The word while the users are told: no registration has the epoch 0, and a frame with it has no
/// users.
const RETURNING: u64 = USERS;

/// The word of an unwound frame on a machine stack that several threads may come to: as if it had a
/// user, so that it is not dropped before its place on the machine stack is written again. Until
/// then the unwinder may read it.
pub(crate) const UNWOUND: u64 = 1;

/// Ends a frame, unless its return is being told: no user wants it any more. Gives its word.
pub fn end(word: &AtomicU64) -> Option<u64> {
    let ended = |word| (word != RETURNING).then_some(0);
    // Acquire pairs with the Release of `end_return`: who has told the users has read the frame.
    word.fetch_update(Ordering::Acquire, Ordering::Acquire, ended)
        .ok()
}

/// Says that the return of a frame is being told, and gives its word; `None` if no user wants it.
pub fn begin_return(word: &AtomicU64) -> Option<u64> {
    let is_wanted = |word| word & USERS != 0 && word != RETURNING && word != UNWOUND;
    let wanted = |word| is_wanted(word).then_some(RETURNING);
    word.fetch_update(Ordering::Acquire, Ordering::Relaxed, wanted)
        .ok()
}

/// Says that the return of a frame was told, and that it is not needed any more.
pub fn end_return(word: &AtomicU64) {
    word.store(0, Ordering::Release);
}

/// Says that the users of a frame were told that it is unwound, and that the unwinder may need it
/// still.
pub fn note_unwound(word: &AtomicU64) {
    word.store(UNWOUND, Ordering::Release);
}

/// The owner of a stack, told by an address.
#[derive(Debug)]
pub struct Claim(AtomicPtr<()>);

impl Claim {
    /// A claim without an owner.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// A claim without an owner.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Takes it, unless it has an owner already.
    pub fn take<T>(&self, who: *const T) -> bool {
        let who = who.cast_mut().cast();
        // Acquire pairs with the Release in `give_back`: the frames are as that thread left them.
        let taken =
            self.0
                .compare_exchange(ptr::null_mut(), who, Ordering::Acquire, Ordering::Relaxed);
        // A signal handler that left by `siglongjmp` may have kept us from giving it back.
        taken.is_ok() || taken == Err(who)
    }

    /// Gives what the caller has taken to another.
    pub fn hand_to<T>(&self, who: *const T) {
        self.0.store(who.cast_mut().cast(), Ordering::Release);
    }

    /// Gives it back, if `who` has it.
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
