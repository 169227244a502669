//! The callbacks of scalar users, for the machine layer to call itself.
//!
//! [`dispatch`] asks and tells users of any kind. Where all that want a call are
//! [scalar](crate::users::scalar), the machine layer does the same on a shorter way: it goes
//! through the slots, keeps the marks and the frame, and calls these.

use core::ptr;

use super::chain;
use crate::call::{Entry, Return};
use crate::dispatch;
use crate::frame::{self, Frame};
use crate::ops::FgraphOps;
use crate::registration::{Catch, Header, Registration};
use crate::regs::{EntryRegs, ReturnRegs};
use crate::thread::Thread;

/// What a user has said of a call, in the registers that the machine layer goes on with.
#[repr(C)]
#[derive(Debug)]
pub struct Asked {
    /// The end of the frame so far, with the user's record; null if the user declines.
    end: *mut u8,
    /// The thread's state.
    thread: *const Thread,
}

/// Asks a user. `end` is that of the frame so far, which is being built at the top of the thread's
/// shadow stack.
pub type ShortEntry = unsafe extern "C" fn(
    regs: *mut EntryRegs,
    end: *mut u8,
    thread: &Thread,
    user: *const Header,
) -> Asked;

/// Tells a user, whose data is at `data`. The registers are those in which the machine layer has
/// the arguments anyway.
pub type ShortRet = unsafe extern "C" fn(
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
) -> Asked {
    Asked {
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

/// Calls the entry callback of a `T`, and keeps its data in a record at `end`.
///
/// # Safety
///
/// As for [`dispatch::enter`]; `end` must be the end so far of the frame that is being built;
/// `user` must be the header of a `Registration<T>`, which the thread's mark names, and which is
/// scalar.
pub(crate) unsafe extern "C" fn entry<T: FgraphOps, C: Catch>(
    regs: *mut EntryRegs,
    end: *mut u8,
    thread: &Thread,
    user: *const Header,
) -> Asked {
    // SAFETY: handed on.
    let end = unsafe { ask::<T, C>(regs, end, thread, user) };
    Asked { end, thread }
}

/// Asks a user, and returns the end of the frame with its record; null if it declines.
///
/// # Safety
///
/// As for [`entry`].
#[inline(always)]
unsafe fn ask<T: FgraphOps, C: Catch>(
    regs: *mut EntryRegs,
    end: *mut u8,
    thread: &Thread,
    user: *const Header,
) -> *mut u8 {
    // SAFETY: the header is the first field of the registration, which the caller vouches for.
    let registration = unsafe { &*user.cast::<Registration<T>>() };
    let header = registration.header();
    let size = const { size_of::<T::Data>() };
    if size != 0 && !thread.shadow.fits(end, frame::record_len(size)) {
        dispatch::count_unreserved(thread, header);
        return ptr::null_mut();
    }
    let errno = dispatch::errno(thread);
    let mut call = Entry::new(regs, thread, user, errno);
    // As in `registration::entry`.
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
/// As for [`dispatch::leave`]; the frame must be the newest, and `data`, if there is any, where the
/// user's record in it begins; `user` must be the header of a `Registration<T>`, which the thread's
/// mark names, which is scalar and has accepted the call.
pub(crate) unsafe extern "C" fn ret<T: FgraphOps, C: Catch>(
    regs: *mut ReturnRegs,
    data: *mut u8,
    frame: *mut Frame,
    user: *const Header,
    thread: &Thread,
) {
    // SAFETY: as in `entry`.
    let registration = unsafe { &*user.cast::<Registration<T>>() };
    let header = registration.header();
    let size = const { size_of::<T::Data>() };
    let data = if size == 0 {
        ptr::dangling::<T::Data>()
    } else {
        // SAFETY: the caller vouches for the record.
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
