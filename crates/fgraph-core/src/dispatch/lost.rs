//! Counting what is not traced, and whose return is never told.

use core::sync::atomic::AtomicU64;

use crate::MAX_USERS;
use crate::counters::{LiveCounters, bump};
use crate::fgraph::FGRAPH;
use crate::frame;
use crate::thread::Thread;

/// Counts a frame that was dropped, by its word, for those users who wanted the return and are
/// still there.
#[cold]
#[inline(never)]
pub(super) fn lost(thread: &Thread, word: u64) {
    thread.forget_records();
    let users = frame::users(word);
    if users != 0 {
        bump(&thread.total.lost);
    }
    for slot in slots(users) {
        // The hazard slot keeps the slot from its next owner until this is counted.
        let header = FGRAPH.0.slots.acquire(&thread.hazard_slot, slot);
        // SAFETY: the hazard slot keeps the registration.
        if !frame::younger(unsafe { (*header).stamp }, word) {
            bump(&thread.users[slot].lost);
        }
    }
    thread.hazard_slot.clear();
}

/// Counts one call, for the thread and for each of `users`, a bit for each slot; not if there are
/// none.
pub(super) fn count(thread: &Thread, users: u16, which: fn(&LiveCounters) -> &AtomicU64) {
    if users != 0 {
        bump(which(&thread.total));
    }
    for slot in slots(users) {
        bump(which(&thread.users[slot]));
    }
}

/// Counts like [`count`], for the user in `slot` alone. It is a separate function because callbacks
/// of fast-path users may come here: compilers make a jump table of a loop over one slot.
#[inline(always)]
pub(super) fn count_for(thread: &Thread, slot: usize, which: fn(&LiveCounters) -> &AtomicU64) {
    bump(which(&thread.total));
    bump(which(&thread.users[slot % MAX_USERS]));
}

/// The slots of `users`, a bit for each.
fn slots(users: u16) -> impl Iterator<Item = usize> {
    (0..MAX_USERS).filter(move |slot| users & (1 << slot) != 0)
}
