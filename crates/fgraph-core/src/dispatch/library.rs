//! From a library that has come or gone, and from functions that are selected, to a user.

use super::user_of;
use crate::frame;
use crate::ops::LibraryEvent;
use crate::registration::Header;
use crate::site::Function;
use crate::thread::Thread;

/// Calls the user in `slot` for a library, if it is not younger than `epoch`.
///
/// # Safety
///
/// `thread` must be the running thread's state, marked as inside, in no callback.
pub unsafe fn dispatch_library(thread: &Thread, slot: usize, epoch: u64, event: &LibraryEvent<'_>) {
    // SAFETY: handed on; the registration stays during the call.
    unsafe { deliver(thread, slot, epoch, |user| user.call_library(event)) };
}

/// Calls the user in `slot` for functions that its filter has come to select, if it is not younger
/// than `epoch`.
///
/// # Safety
///
/// The contract is that of [`dispatch_library`].
pub unsafe fn dispatch_selected(thread: &Thread, slot: usize, epoch: u64, functions: &[Function]) {
    // SAFETY: as in `dispatch_library`.
    unsafe { deliver(thread, slot, epoch, |user| user.call_selected(functions)) };
}

/// # Safety
///
/// The contract is that of [`dispatch_library`].
unsafe fn deliver(thread: &Thread, slot: usize, epoch: u64, how: impl FnOnce(&Header)) {
    if let Some(header) = user_of(thread, slot, frame::stamp(epoch)) {
        // SAFETY: the hazard slot keeps the registration until it is cleared.
        how(unsafe { &*header });
    }
    thread.hazard_slot.clear();
}
