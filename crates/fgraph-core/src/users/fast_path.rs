//! The callbacks of fast-path users, which the machine layer calls itself.
//!
//! [`dispatch`] handles users of any kind. If all users that want a call are [fast-path
//! users](crate::users::eligible), the machine layer does the same on a shorter path: it iterates
//! over the slots, maintains the hazard slots and the frame, and calls these functions.

use core::ptr;

use super::chain;
use crate::MAX_USERS;
use crate::call::{Entry, Return};
use crate::dispatch;
use crate::frame::{self, Frame};
use crate::ops::{FgraphOps, MAX_DATA_SIZE};
use crate::registration::{Catch, Header, Registration};
use crate::regs::{EntryRegs, ReturnRegs};
use crate::thread::Thread;

/// Bytes that a frame has at most: records of all users, with the largest data, and their list.
pub const MAX_FRAME: usize =
    frame::HEADER + MAX_USERS * frame::record_len(MAX_DATA_SIZE) + frame::LIST_LEN;

/// The result of a dispatched entry, in the registers with which the machine layer continues.
#[repr(C)]
#[derive(Debug)]
pub struct EntryEnd {
    /// The current end of the frame, after the user's record; null if the user does not want the
    /// return.
    end: *mut u8,
    /// The thread's state.
    thread: *const Thread,
}

/// Dispatches an entry to a user. `end` is the current end of the frame under construction at the
/// top of the thread's shadow stack.
pub type FastEntry = unsafe extern "C" fn(
    regs: *mut EntryRegs,
    end: *mut u8,
    thread: &Thread,
    user: *const Header,
) -> EntryEnd;

/// Dispatches a return to a user, whose data is at `data`. The parameters are in the registers in
/// which the machine layer has the values anyway.
pub type FastRet = unsafe extern "C" fn(
    regs: *mut ReturnRegs,
    data: *mut u8,
    frame: *mut Frame,
    user: *const Header,
    thread: &Thread,
);

/// The stub's entry function, which is never called: the stub is younger than any call.
pub(crate) unsafe extern "C" fn stub_entry(
    _regs: *mut EntryRegs,
    _end: *mut u8,
    thread: &Thread,
    _stub: *const Header,
) -> EntryEnd {
    EntryEnd {
        end: ptr::null_mut(),
        thread,
    }
}

/// The stub's return function, which is never called, either.
pub(crate) unsafe extern "C" fn stub_ret(
    _regs: *mut ReturnRegs,
    _data: *mut u8,
    _frame: *mut Frame,
    _stub: *const Header,
    _thread: &Thread,
) {
}

/// Calls the entry callback of a `T`, and stores its data in a record at `end`.
///
/// # Safety
///
/// The contract of [`dispatch::enter`] holds; `end` must be the current end of the frame under
/// construction; `user` must be the header of a `Registration<T>` of a fast-path user that the
/// thread's hazard slot names.
pub(crate) unsafe extern "C" fn entry<T: FgraphOps, C: Catch>(
    regs: *mut EntryRegs,
    end: *mut u8,
    thread: &Thread,
    user: *const Header,
) -> EntryEnd {
    // SAFETY: the caller keeps the same contract.
    let end = unsafe { ask::<T, C>(regs, end, thread, user) };
    EntryEnd { end, thread }
}

/// Dispatches an entry to a user, and returns the end of the frame after its record; null if it
/// does not want the return.
///
/// # Safety
///
/// The contract of [`entry`] holds.
#[inline(always)]
unsafe fn ask<T: FgraphOps, C: Catch>(
    regs: *mut EntryRegs,
    end: *mut u8,
    thread: &Thread,
    user: *const Header,
) -> *mut u8 {
    // SAFETY: the header is the first field of the registration, which the caller guarantees.
    let registration = unsafe { &*user.cast::<Registration<T>>() };
    let header = registration.header();
    let size = const { size_of::<T::Data>() };
    if size != 0 && !thread.shadow.fits(end, frame::record_len(size)) {
        dispatch::count_unreserved(thread, header);
        return ptr::null_mut();
    }
    let errno = dispatch::errno(thread);
    let mut call = Entry::new(regs, thread, user, errno);
    // The data is stored inside the closure, as in `registration::entry`.
    let asked = C::catch(|| match registration.ops().entry(&mut call) {
        Some(data) => {
            if size != 0 {
                // SAFETY: the record fits, and frames end at addresses fit for any data.
                unsafe { end.cast::<T::Data>().write(data) };
            }
            true
        }
        None => false,
    });
    if chain::errno(call.handed_on()) != chain::errno(errno) {
        dispatch::put_errno_back(thread, call.handed_on());
    }
    match asked {
        Ok(true) if size != 0 => {
            let before = thread.push_record(header.keeper(), end);
            // SAFETY: the record fits.
            unsafe { frame::close_record(end, size, header.slot, before) }
        }
        Ok(true) => end,
        Ok(false) => ptr::null_mut(),
        Err(panic) => {
            dispatch::panicked(header, panic);
            ptr::null_mut()
        }
    }
}

/// Calls the return callback of a `T` with its data.
///
/// # Safety
///
/// The contract of [`dispatch::leave`] holds; the frame must be the newest, and `data`, if there is
/// any, the start of the user's record in it; `user` must be the header of a `Registration<T>` of a
/// fast-path user that the thread's hazard slot names and that has accepted the call.
pub(crate) unsafe extern "C" fn ret<T: FgraphOps, C: Catch>(
    regs: *mut ReturnRegs,
    data: *mut u8,
    frame: *mut Frame,
    user: *const Header,
    thread: &Thread,
) {
    // SAFETY: the header is the first field of the registration, which the caller guarantees.
    let registration = unsafe { &*user.cast::<Registration<T>>() };
    let header = registration.header();
    let size = const { size_of::<T::Data>() };
    let data = if size == 0 {
        ptr::dangling::<T::Data>()
    } else {
        // SAFETY: the caller guarantees the record.
        unsafe { thread.pop_record(header.keeper(), data, size) };
        data.cast()
    };
    // SAFETY: the entry has written the data there.
    let data = unsafe { data.read() };
    let errno = dispatch::errno(thread);
    let mut call = Return::new(regs, thread, frame, 0, user, errno);
    let told = C::catch(|| registration.ops().ret(&mut call, data));
    if chain::errno(call.handed_on()) != chain::errno(errno) {
        dispatch::put_errno_back(thread, call.handed_on());
    }
    if let Err(panic) = told {
        dispatch::panicked(header, panic);
    }
}
