//! Calls that are not traced, and calls that never return.

use core::sync::atomic::AtomicU64;

use super::{errno, put_errno_back, user_of};
use crate::MAX_USERS;
use crate::counters::{LiveCounters, bump};
use crate::frame;
use crate::registration::Header;
use crate::thread::Thread;

/// Counts a frame that was dropped, by its word, for those users who wanted the return and are
/// still there.
#[cold]
#[inline(never)]
pub(super) fn lost(thread: &Thread, word: u64) {
    each(thread, word, |_| ());
}

/// Counts a frame like [`lost`], and tells its users. It is the newest of the stack that the
/// running thread is on; `word` is what it had until now.
#[cold]
#[inline(never)]
pub(super) fn dropped(thread: &Thread, word: u64) {
    let frame = thread.shadow.newest();
    let users = errno(thread);
    // SAFETY: the frame is taken from the shadow stack after this; the hazard slot names the user,
    // which had its bit in the word and is not younger than the frame.
    each(thread, word, |user| unsafe {
        user.call_dropped(frame, thread)
    });
    put_errno_back(thread, users);
}

fn each(thread: &Thread, word: u64, tell: impl Fn(&Header)) {
    thread.forget_records();
    let users = frame::users(word);
    if users != 0 {
        bump(&thread.total.lost);
    }
    for slot in slots(users) {
        // The hazard slot keeps the slot from its next owner until this is counted.
        if let Some(header) = user_of(thread, slot, word) {
            bump(&thread.users[slot].lost);
            // SAFETY: the hazard slot keeps the registration.
            tell(unsafe { &*header });
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
