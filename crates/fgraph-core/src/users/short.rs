//! The callbacks of a user that is alone with a call, for the machine layer to call itself.
//!
//! [`dispatch`] asks and tells any number of users of any kind. Where one user
//! wants a call, and it is [scalar](crate::users::scalar), the machine layer does the same on a
//! shorter way: it keeps the marks and the frame, and calls these.

use core::ptr;

use super::chain;
use crate::call::{Entry, Return};
use crate::dispatch;
use crate::frame::{self, Frame, HEADER};
use crate::ops::FgraphOps;
use crate::registration::{Catch, Header, Registration};
use crate::regs::{EntryRegs, ReturnRegs};
use crate::thread::Thread;

/// What a user has said of a call, in the registers that the machine layer goes on with.
#[repr(C)]
#[derive(Debug)]
pub struct Asked {
    /// The end of the frame with the user's record; null if the user declines.
    end: *mut u8,
    /// The thread's state.
    thread: *const Thread,
}

/// Asks a user.
pub type ShortEntry = unsafe extern "C" fn(
    regs: *mut EntryRegs,
    frame: *mut Frame,
    thread: &Thread,
    user: *const Header,
) -> Asked;

/// Tells a user.
pub type ShortRet = unsafe extern "C" fn(
    regs: *mut ReturnRegs,
    thread: &Thread,
    frame: *mut Frame,
    user: *const Header,
);

/// The stub's entry function, which is never called: the stub is younger than any call.
pub(crate) unsafe extern "C" fn stub_entry(
    _regs: *mut EntryRegs,
    _frame: *mut Frame,
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
    _thread: &Thread,
    _frame: *mut Frame,
    _stub: *const Header,
) {
}

/// Calls the entry callback of a `T`, and keeps its data behind `frame`, which is being built.
///
/// # Safety
///
/// As for [`dispatch::enter`]; `user` must be the header of a `Registration<T>`, which the thread's
/// mark names, and which is scalar.
pub(crate) unsafe extern "C" fn entry<T: FgraphOps, C: Catch>(
    regs: *mut EntryRegs,
    frame: *mut Frame,
    thread: &Thread,
    user: *const Header,
) -> Asked {
    // SAFETY: handed on.
    let end = unsafe { ask::<T, C>(regs, frame, thread, user) };
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
    frame: *mut Frame,
    thread: &Thread,
    user: *const Header,
) -> *mut u8 {
    // SAFETY: the header is the first field of the registration, which the caller vouches for.
    let registration = unsafe { &*user.cast::<Registration<T>>() };
    let header = registration.header();
    let size = const { size_of::<T::Data>() };
    let end = frame.cast::<u8>().wrapping_add(HEADER);
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
            let before = thread.push_record(header.slot, header.stamp, end);
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
/// As for [`dispatch::leave`]; the frame must be the newest, with the record of no other user;
/// `user` must be the header of a `Registration<T>`, which the thread's mark names, which is scalar
/// and has accepted the call.
pub(crate) unsafe extern "C" fn ret<T: FgraphOps, C: Catch>(
    regs: *mut ReturnRegs,
    thread: &Thread,
    frame: *mut Frame,
    user: *const Header,
) {
    // SAFETY: as in `entry`.
    let registration = unsafe { &*user.cast::<Registration<T>>() };
    let header = registration.header();
    let data = if const { size_of::<T::Data>() } == 0 {
        ptr::dangling::<T::Data>()
    } else {
        let data = frame.cast::<u8>().wrapping_add(HEADER);
        // SAFETY: the user's record is the first and only one of the frame.
        unsafe { thread.pop_record(header.slot, data, size_of::<T::Data>()) };
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
