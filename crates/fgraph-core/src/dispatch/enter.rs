//! From the entry of a traced function to the users that want it.

use core::ptr;
use core::sync::atomic::AtomicU64;

use super::{clear_entered_sp, errno, housekeeping, lost, ordered, put_errno_back};
use crate::counters::LiveCounters;
use crate::fgraph::FGRAPH;
use crate::frame::{self, Frame, HEADER};
use crate::registration::Header;
use crate::regs::{EntryRegs, return_address_at};
use crate::site::Site;
use crate::thread::Thread;
use crate::users::chain::{ACCEPTED_SHIFT, TO_GO};

/// Offers an entry to `users`, a bit for each slot, and unmarks the thread; returns the frame to
/// leave through, or null when no user wants the return.
///
/// # Safety
///
/// `regs` must hold the registers of a call that the running thread makes to the function of
/// `site`, `thread` be the thread's state, and `return_slot_addr` where the return address stands;
/// `regs` must name the site; `users` and `stamp` must be what
/// [`Fgraph::wanting`](crate::Fgraph::wanting) gave for this call; the thread must be marked as
/// inside.
#[inline(always)]
pub unsafe fn enter(
    regs: *mut EntryRegs,
    site: &Site,
    thread: &Thread,
    return_slot_addr: usize,
    users: u64,
    stamp: u64,
) -> *mut Frame {
    // Rare cases are left to a function that is jumped to, so that nothing needs to be kept here.
    // The machine layer looks for the stack as well, but before the thread is marked: a signal
    // handler may have been on another one since.
    if !thread.has_room(return_slot_addr) || thread.shadow.has_dead(return_slot_addr) {
        // SAFETY: handed on.
        return unsafe { enter_slowly(regs, site, thread, return_slot_addr, users, stamp) };
    }
    // SAFETY: handed on.
    unsafe { begin(regs, site, thread, return_slot_addr, users, stamp) }
}

/// [`enter`] for a call on another stack than before, or one that shows frames to be dead.
///
/// # Safety
///
/// The contract of [`enter`] holds.
#[cold]
#[inline(never)]
unsafe extern "C" fn enter_slowly(
    regs: *mut EntryRegs,
    site: &Site,
    thread: &Thread,
    return_slot_addr: usize,
    users: u64,
    stamp: u64,
) -> *mut Frame {
    thread.set_deferred(ptr::null_mut());
    // SAFETY: the caller vouches for the place.
    let return_address = unsafe { return_address_at(return_slot_addr) };
    let tail = FGRAPH.0.is_return_point(return_address);
    if !housekeeping::is_clear(thread, return_slot_addr, tail)
        && !(FGRAPH.0.stacks().find)(thread, return_slot_addr, tail)
    {
        return no_shadow_stack(thread, users);
    }
    // SAFETY: handed on.
    let frame = unsafe { begin(regs, site, thread, return_slot_addr, users, stamp) };
    if !frame.is_null() {
        // Unwinders have to tell the frames of tail calls apart.
        // SAFETY: just put on the shadow stack.
        unsafe { thread.shadow.note_tail(frame) };
    }
    frame
}

/// Begins a frame and asks the first user.
///
/// # Safety
///
/// The contract of [`enter`] holds, and no frame is dead.
#[inline(always)]
unsafe fn begin(
    regs: *mut EntryRegs,
    site: &Site,
    thread: &Thread,
    return_slot_addr: usize,
    users: u64,
    stamp: u64,
) -> *mut Frame {
    // The frame takes all that is known of the call at once, so that it need not be handed on.
    let Some(frame) = thread.shadow.open(site, return_slot_addr, stamp) else {
        return overrun(thread, users);
    };
    // SAFETY: the frame is being built, and the caller vouches for the registers.
    unsafe { (*frame).frame_pointer = (*regs).frame_pointer };
    let end = frame.cast::<u8>().wrapping_add(HEADER);
    if FGRAPH.0.order.counts_for(users) {
        // SAFETY: handed on.
        return unsafe { ordered::ask(regs, thread, users, end, stamp) };
    }
    // SAFETY: handed on.
    unsafe { entry_next(regs, thread, users | errno(thread), end, stamp) }
}

/// Asks the next user, or ends the entry when there is none. `users` says which users are yet to be
/// asked and which have accepted, and what `errno` was.
///
/// A user's entry function calls this when it is done, so the users form a chain of jumps, and the
/// last one returns to the machine layer. That takes one jump for each user, where a loop takes a
/// call, a return, and the jump back; and nothing has to be kept in memory while a callback runs.
/// Where the compiler makes calls of the jumps, as it does in debug builds, the chain is at most 16
/// calls deep.
///
/// # Safety
///
/// `regs` and `thread` must be as for [`enter`], `end` the end so far of the frame that is being
/// built, `word` that frame's; if users are asked by rank, also the place of the next.
#[inline(always)]
pub(crate) unsafe fn entry_next(
    regs: *mut EntryRegs,
    thread: &Thread,
    mut users: u64,
    end: *mut u8,
    word: u64,
) -> *mut Frame {
    let to_go = users & TO_GO;
    if to_go != 0 {
        let index = to_go.trailing_zeros();
        users &= users - 1;
        let header = FGRAPH.0.slots.acquire(&thread.hazard_slot, index as usize);
        // SAFETY: the hazard slot keeps the registration until it is set to the next or cleared.
        let user = unsafe { &*header };
        if frame::younger(user.stamp, word) {
            // SAFETY: handed on.
            return unsafe { entry_another(regs, thread, users, end, word) };
        }
        // SAFETY: the registers are this call's; the function is of this registration, and asks
        // for its data to fit.
        return unsafe { (user.entry)(regs, thread, users, end, word, header) };
    }
    if word & TO_GO != 0 {
        // SAFETY: handed on.
        return unsafe { ordered::ask_next(regs, thread, users, end, word) };
    }
    // SAFETY: handed on.
    unsafe { end_entry(thread, users, end) }
}

/// Goes on after a user whose data found no room.
///
/// # Safety
///
/// The contract is that of [`entry_next`]; `user` must be the header of a registration that the
/// thread's hazard slot names.
#[cold]
#[inline(never)]
pub(crate) unsafe extern "C" fn unreserved(
    regs: *mut EntryRegs,
    thread: &Thread,
    users: u64,
    end: *mut u8,
    word: u64,
    user: *const Header,
) -> *mut Frame {
    // SAFETY: the hazard slot keeps the registration.
    super::count_unreserved(thread, unsafe { &*user });
    // SAFETY: handed on.
    unsafe { entry_next(regs, thread, users, end, word) }
}

/// Ends an entry: puts the frame on the shadow stack if any user has accepted.
///
/// # Safety
///
/// The contract of [`entry_next`] holds.
#[inline(always)]
pub(super) unsafe fn end_entry(thread: &Thread, users: u64, end: *mut u8) -> *mut Frame {
    thread.hazard_slot.clear();
    put_errno_back(thread, users);
    let accepted = (users >> ACCEPTED_SHIFT) as u16;
    let frame = if accepted == 0 {
        ptr::null_mut()
    } else {
        // SAFETY: the frame was opened for a call of this thread, `end` is behind its closed
        // records.
        unsafe {
            let frame = thread.shadow.top().cast::<Frame>();
            let return_address = return_address_at((*frame).return_slot_addr);
            thread.shadow.commit(accepted, return_address, end)
        }
    };
    clear_entered_sp(thread);
    frame
}

/// Goes on after a slot that is empty, or whose owner has registered since the call began.
///
/// # Safety
///
/// The contract of [`entry_next`] holds.
#[cold]
#[inline(never)]
unsafe extern "C" fn entry_another(
    regs: *mut EntryRegs,
    thread: &Thread,
    users: u64,
    end: *mut u8,
    word: u64,
) -> *mut Frame {
    // SAFETY: handed on.
    unsafe { entry_next(regs, thread, users, end, word) }
}

/// Ends an entry on a stack that is not the thread's own.
#[cold]
#[inline(never)]
extern "C" fn no_shadow_stack(thread: &Thread, users: u64) -> *mut Frame {
    not_traced(thread, users, |counters| &counters.no_shadow_stack)
}

/// Ends an entry that the shadow stack has no room for.
#[cold]
#[inline(never)]
extern "C" fn overrun(thread: &Thread, users: u64) -> *mut Frame {
    not_traced(thread, users, |counters| &counters.overrun)
}

fn not_traced(thread: &Thread, users: u64, which: fn(&LiveCounters) -> &AtomicU64) -> *mut Frame {
    lost::count(thread, users as u16, which);
    clear_entered_sp(thread);
    ptr::null_mut()
}
