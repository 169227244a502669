//! A call that is given to its users by their [ranks](crate::order), not by their slots.
//!
//! Each user that accepts it gets a record in the frame, also one without data, so that the records
//! say in which order the users were asked: they are told of the return in the reverse order, even
//! if other ranks hold by then.
//!
//! The users' functions are the ones that other calls have. They go on with
//! [`entry_next`](super::enter::entry_next) and [`return_next`](super::leave::return_next), which
//! find no users to go, and come back here.

use core::ptr;

use super::enter::end_entry;
use super::leave::told_all;
use crate::fgraph::FGRAPH;
use crate::frame::{self, Frame, HEADER, ORDERED, Record};
use crate::regs::{EntryRegs, ReturnRegs};
use crate::thread::Thread;
use crate::users::chain::{ACCEPTED_SHIFT, TELLS_BY_RECORD, TO_GO};

/// Asks the first of the users in `word`, which has a bit for each slot below the epoch.
///
/// # Safety
///
/// The contract of [`entry_next`](super::enter::entry_next) holds, but for `word`.
#[cold]
#[inline(never)]
pub(super) unsafe extern "C" fn ask_first(
    regs: *mut EntryRegs,
    thread: &Thread,
    users: u64,
    end: *mut u8,
    word: u64,
) -> *mut Frame {
    thread.set_ranks(FGRAPH.0.order.ranks());
    // SAFETY: handed on.
    unsafe { ask_next(regs, thread, users, end, word) }
}

/// Goes on after the user that the hazard slot names: closes its record if it has accepted without
/// data, and asks the next user.
///
/// # Safety
///
/// The contract of [`entry_next`](super::enter::entry_next) holds; `word` also has the users that
/// have not answered, that one among them.
#[cold]
#[inline(never)]
pub(super) unsafe extern "C" fn asked(
    regs: *mut EntryRegs,
    thread: &Thread,
    users: u64,
    mut end: *mut u8,
    word: u64,
) -> *mut Frame {
    let slot = thread.hazard_slot.get();
    let has_accepted = users >> ACCEPTED_SHIFT & u64::from(frame::bit(slot)) != 0;
    // SAFETY: the frame that is being built is at the top, and closed records up to `end`.
    let newest = unsafe { last(thread.shadow.top().cast(), end) };
    if has_accepted && newest.is_none_or(|newest| newest.slot != slot) {
        // SAFETY: `ask_next` has seen that such a record fits.
        end = unsafe { frame::close_record(end, 0, slot, ptr::null_mut()) };
    }
    // SAFETY: handed on.
    unsafe { ask_next(regs, thread, users, end, word & !(1 << slot)) }
}

/// Asks the next of the users in `word`, or ends the entry.
///
/// # Safety
///
/// The contract of [`ask_first`] holds; the thread has the ranks of this call.
unsafe fn ask_next(
    regs: *mut EntryRegs,
    thread: &Thread,
    users: u64,
    end: *mut u8,
    mut word: u64,
) -> *mut Frame {
    let mut ranks = thread.ranks();
    while word & TO_GO != 0 {
        let slot = ranks.take_first_of(word & TO_GO);
        let header = FGRAPH.0.slots.acquire(&thread.hazard_slot, slot);
        // SAFETY: the hazard slot keeps the registration until it is set to the next or cleared.
        let user = unsafe { &*header };
        // The users in the word make no difference: a stamp has none.
        if !frame::younger(user.stamp, word) {
            if thread.shadow.fits(end, frame::record_len(0)) {
                thread.set_ranks(ranks);
                // SAFETY: the registers are this call's; the function is of this registration, and
                // asks for its data to fit.
                return unsafe { (user.entry)(regs, thread, users, end, word, header) };
            }
            super::count_unreserved(thread, user);
        }
        word &= !(1 << slot);
    }
    // SAFETY: handed on.
    let frame = unsafe { end_entry(thread, users, end) };
    if !frame.is_null() {
        // SAFETY: just put on the shadow stack.
        unsafe { (*frame).tail |= ORDERED };
    }
    frame
}

/// Tells the last of the users whose records end at `end`, or ends the return.
///
/// # Safety
///
/// The contract of [`return_next`](super::leave::return_next) holds; the frame is ordered.
#[cold]
#[inline(never)]
pub(super) unsafe extern "C" fn tell_next(
    regs: *mut ReturnRegs,
    thread: &Thread,
    users: u64,
    mut end: *mut u8,
    word: u64,
) -> *const Thread {
    // SAFETY: the caller vouches for the registers, and for the frame and its records.
    while let Some(record) = unsafe { last((*regs).frame, end) } {
        let header = FGRAPH
            .0
            .slots
            .acquire(&thread.hazard_slot, record.slot as usize);
        // SAFETY: the hazard slot keeps the registration.
        let user = unsafe { &*header };
        if !frame::younger(user.stamp, word) {
            let users = users | TELLS_BY_RECORD;
            // SAFETY: the registers are this return's; the function is of this registration, which
            // accepted the entry and whose record is the last before `end`.
            return unsafe { (user.ret)(regs, thread, users, end, word, header) };
        }
        end = record.data;
    }
    // SAFETY: handed on.
    unsafe { told_all(regs, thread, users) }
}

/// Goes on after the user that the hazard slot names.
///
/// # Safety
///
/// The contract of [`tell_next`] holds.
#[cold]
#[inline(never)]
pub(super) unsafe extern "C" fn told(
    regs: *mut ReturnRegs,
    thread: &Thread,
    users: u64,
    mut end: *mut u8,
    word: u64,
) -> *const Thread {
    // A user with data has gone back over its record itself.
    // SAFETY: the caller vouches for the registers, and for the frame and its records.
    if let Some(record) = unsafe { last((*regs).frame, end) }
        && record.slot == thread.hazard_slot.get()
    {
        end = record.data;
    }
    // SAFETY: handed on.
    unsafe { tell_next(regs, thread, users, end, word) }
}

/// Returns the last record of a frame that ends at or before `end`.
///
/// # Safety
///
/// `end` must be the end of the frame's fixed part or of one of its closed records.
unsafe fn last(frame: *mut Frame, end: *mut u8) -> Option<Record> {
    let first = frame.cast::<u8>().wrapping_add(HEADER);
    // SAFETY: the bytes between the fixed part and the end are records.
    (end > first).then(|| unsafe { Record::ending_at(end) })
}
