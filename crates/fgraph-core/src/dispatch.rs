//! From a hit to the callbacks.
//!
//! The machine layer calls [`enter()`] at the entry of a traced function and [`leave()`] when its
//! body is back, or [`unwind()`] when an unwinder goes through it. It has marked the thread as
//! inside fgraph before, and `entered_sp` is cleared afterwards, so nothing in here is ever entered
//! twice by one thread: whatever the callbacks call, or a signal handler calls meanwhile, is not
//! traced.

mod backtrace;
mod enter;
mod housekeeping;
pub mod known_rules;
mod leave;
mod library;
mod lost;
mod ordered;
mod unwind;

use core::sync::atomic::Ordering;

use crate::fgraph::FGRAPH;
use crate::frame;
use crate::registration::Header;
use crate::thread::Thread;
use crate::users::chain;

pub use enter::enter;
pub(crate) use enter::{entry_next, unreserved};
pub use housekeeping::{abandon, drop_gone, is_clear, make_way};
pub use leave::leave;
pub(crate) use leave::return_next;
pub use library::{dispatch_library, dispatch_selected};
pub use unwind::unwind;

/// The thread's `errno`, where the word that is handed on has it.
#[inline(always)]
pub(crate) fn errno(thread: &Thread) -> u64 {
    // SAFETY: the runtime has set it to the thread's own, or to a cell of the state.
    let error = unsafe { *thread.errno.get() };
    chain::with_errno(0, error)
}

/// Undoes what the callbacks did to the thread's `errno`.
#[inline(always)]
pub(crate) fn put_errno_back(thread: &Thread, users: u64) {
    let errno = thread.errno.get();
    let error = chain::errno(users);
    // SAFETY: as in `errno`.
    unsafe {
        if *errno != error {
            *errno = error;
        }
    }
}

/// Returns the user in a slot; `None` if it is younger than the call with this frame's word. The
/// thread's hazard slot keeps the registration until it is set to another slot or cleared.
#[inline(always)]
fn user_of(thread: &Thread, slot: usize, word: u64) -> Option<*const Header> {
    let header = FGRAPH.0.slots.acquire(&thread.hazard_slot, slot);
    // SAFETY: the hazard slot keeps the registration.
    let stamp = unsafe { (*header).stamp };
    (!frame::younger(stamp, word)).then_some(header)
}

/// From here on what a signal handler calls may be traced.
#[inline(always)]
fn clear_entered_sp(thread: &Thread) {
    // Release, so that the frame is on the shadow stack before. The order matters to this thread
    // only.
    thread.entered_sp.store(0, Ordering::Release);
}

/// Counts a call that `user` misses because its data finds no room.
#[cold]
#[inline(never)]
pub(crate) extern "C" fn count_unreserved(thread: &Thread, user: &Header) {
    lost::count_for(thread, user.slot as usize, |counters| &counters.unreserved);
}

/// A callback panicked: the user is turned off.
#[cold]
#[inline(never)]
pub(crate) fn panicked(user: &Header, panic: *mut ()) {
    user.set_panic(panic);
    FGRAPH.0.slots.retire_if(user.slot as usize, user);
}
