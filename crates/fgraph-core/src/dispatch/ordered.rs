//! A call that is given to its users by their [ranks](crate::order), not by their slots.
//!
//! The users are listed when the call is entered. The frame keeps the list behind the records, and
//! the return is told to its users in the reverse order, even if other ranks hold by then. The
//! machine layer does the same on its fast path, if the thread has the list already.
//!
//! The users' functions are the ones that other calls have. They go on with
//! [`entry_next`](super::enter::entry_next) and [`return_next`](super::leave::return_next), which
//! find no users to go, and come back here.

use super::enter::end_entry;
use super::leave::told_all;
use super::{errno, user_of};
use crate::fgraph::FGRAPH;
use crate::frame::{self, Frame, LIST_LEN};
use crate::regs::{EntryRegs, ReturnRegs};
use crate::thread::Thread;
use crate::users::chain::{ACCEPTED, PLACE, PLACE_SHIFT, TELLS_BY_LIST, TO_GO};

/// Lists `users`, which has a bit for each slot, and asks the first.
///
/// # Safety
///
/// The contract of [`entry_next`](super::enter::entry_next) holds; these users want the call.
#[cold]
#[inline(never)]
pub(super) unsafe extern "C" fn ask(
    regs: *mut EntryRegs,
    thread: &Thread,
    users: u64,
    end: *mut u8,
    word: u64,
) -> *mut Frame {
    thread.listing.renew(FGRAPH.0.order.ranks(), users);
    // SAFETY: handed on.
    unsafe { ask_next(regs, thread, errno(thread), end, word) }
}

/// Asks the next user of the thread's list, or ends the entry. The lowest bits of `word` are the
/// place of that user.
///
/// # Safety
///
/// The contract of [`entry_next`](super::enter::entry_next) holds; the list is this call's.
#[cold]
#[inline(never)]
pub(super) unsafe extern "C" fn ask_next(
    regs: *mut EntryRegs,
    thread: &Thread,
    users: u64,
    mut end: *mut u8,
    mut word: u64,
) -> *mut Frame {
    let list = thread.listing.get();
    while let Some(slot) = list.slot(word & TO_GO) {
        word += 1;
        // The place in the word makes no difference: a stamp has none.
        let Some(header) = user_of(thread, slot, word) else {
            continue;
        };
        // SAFETY: the hazard slot keeps the registration until it is set to the next or cleared.
        let user = unsafe { &*header };
        // With room for the list: this user may be the last that accepts.
        if thread.shadow.fits(end, user.record_len() + LIST_LEN) {
            // SAFETY: the registers are this call's; the function is of this registration.
            return unsafe { (user.entry)(regs, thread, users, end, word, header) };
        }
        super::count_unreserved(thread, user);
    }
    let has_accepted = users & ACCEPTED != 0;
    if has_accepted {
        // SAFETY: there was room for it behind each record.
        end = unsafe { frame::close_list(end, list) };
    }
    // SAFETY: handed on.
    let frame = unsafe { end_entry(thread, users, end) };
    if has_accepted {
        // SAFETY: just put on the shadow stack.
        unsafe { Frame::set_ordered(frame) };
    }
    frame
}

/// Tells the last user of the list that ends at `end`.
///
/// # Safety
///
/// The contract of [`return_next`](super::leave::return_next) holds; the frame is ordered, and this
/// is its end.
#[cold]
#[inline(never)]
pub(super) unsafe extern "C" fn tell(
    regs: *mut ReturnRegs,
    thread: &Thread,
    end: *mut u8,
    word: u64,
) -> *const Thread {
    // SAFETY: a list is there, behind the records.
    let len = unsafe { frame::list_ending_at(end) }.len();
    let users = errno(thread) | len << PLACE_SHIFT;
    // SAFETY: handed on.
    unsafe { tell_next(regs, thread, users, end.wrapping_sub(LIST_LEN), word) }
}

/// Tells the user before the place in `users`, or ends the return.
///
/// # Safety
///
/// The contract of [`return_next`](super::leave::return_next) holds; the frame is ordered.
#[cold]
#[inline(never)]
pub(super) unsafe extern "C" fn tell_next(
    regs: *mut ReturnRegs,
    thread: &Thread,
    mut users: u64,
    end: *mut u8,
    word: u64,
) -> *const Thread {
    // SAFETY: the caller vouches for the registers, and that the frame has a list.
    let list = unsafe { frame::list_ending_at(Frame::end((*regs).frame)) };
    while users & PLACE != 0 {
        users -= 1 << PLACE_SHIFT;
        let Some(slot) = list.slot((users & PLACE) >> PLACE_SHIFT) else {
            break;
        };
        if word & u64::from(frame::bit(slot as u32)) == 0 {
            continue;
        }
        if let Some(header) = user_of(thread, slot, word) {
            let users = users | TELLS_BY_LIST;
            // SAFETY: the hazard slot keeps the registration. The registers are this return's; the
            // function is of this registration, which accepted the entry. Its record is before
            // those of the users that were told.
            return unsafe { ((*header).ret)(regs, thread, users, end, word, header) };
        }
    }
    // SAFETY: handed on.
    unsafe { told_all(regs, thread, users) }
}
