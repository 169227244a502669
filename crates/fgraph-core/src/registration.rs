//! A user with its type erased: what a slot points to.
//!
//! ```text
//!   Registration<T>
//!   +0   Header   entry, ret    functions that know T
//!                 stamp         the epoch as a frame keeps it, in the upper 48 bits; the stub's is
//!                               the largest, so it is younger than any frame
//!                 slot          its index
//!                 panicked
//!        ops      the user's value
//! ```

use core::ptr;
use core::sync::atomic::{AtomicU8, Ordering};

use crate::call::{Entry, Return};
use crate::dispatch;
use crate::frame;
use crate::grace::Epoch;
use crate::ops::{FgraphOps, MAX_DATA_ALIGN, MAX_DATA_SIZE};
use crate::regs::{EntryRegs, ReturnRegs};

/// What an entry function returns: the end of the frame that is being built, behind the user's
/// record if it has one; or null when the user does not get the return. A return function returns
/// where the user's record begins.
pub(crate) type End = *mut u8;
/// The user does not get the return.
const DECLINED: End = ptr::null_mut();

/// Calls a function and stops a panic that comes out of it.
///
/// Catching a panic takes `std`, which this crate does not have.
pub trait Catch {
    /// The result of `call`, or `None` if it panicked.
    fn catch<R>(call: impl FnOnce() -> R) -> Option<R>;
}

/// The part of a registration that does not depend on the user's type.
#[repr(C)]
#[derive(Debug)]
pub struct Header {
    pub(crate) entry: unsafe fn(*mut EntryRegs, End, *const Self) -> End,
    pub(crate) ret: unsafe fn(*mut ReturnRegs, End, *const Self) -> End,
    pub(crate) stamp: u64,
    pub(crate) slot: u32,
    panicked: AtomicU8,
}

impl Header {
    /// What a free slot points to.
    pub const STUB: Self = Self {
        entry: |_, _, _| DECLINED,
        ret: |_, end, _| end,
        stamp: frame::stamp((1 << Epoch::BITS) - 1),
        slot: 0,
        panicked: AtomicU8::new(0),
    };

    /// The number of this registration.
    pub fn epoch(&self) -> u64 {
        frame::epoch(self.stamp)
    }

    /// Whether a callback of this user has panicked.
    pub fn panicked(&self) -> bool {
        self.panicked.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn set_panicked(&self) {
        self.panicked.store(1, Ordering::Relaxed);
    }
}

/// A registered user.
#[repr(C)]
#[derive(Debug)]
pub struct Registration<T> {
    header: Header,
    ops: T,
}

impl<T: FgraphOps> Registration<T> {
    /// Makes a registration for slot `slot`, number `epoch`, whose panics are caught by `C`.
    pub fn new<C: Catch>(ops: T, slot: usize, epoch: u64) -> Self {
        const {
            assert!(
                size_of::<T::Data>() <= MAX_DATA_SIZE,
                "FgraphOps::Data is larger than 1024 bytes"
            );
            assert!(
                align_of::<T::Data>() <= MAX_DATA_ALIGN,
                "FgraphOps::Data is aligned to more than 16 bytes"
            );
        }
        Self {
            header: Header {
                entry: entry::<T, C>,
                ret: ret::<T, C>,
                stamp: frame::stamp(epoch),
                slot: slot as u32,
                panicked: AtomicU8::new(0),
            },
            ops,
        }
    }

    /// The part that a slot points to.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The user's value.
    pub fn ops(&self) -> &T {
        &self.ops
    }

    /// The user's value, back.
    pub fn into_ops(self) -> T {
        self.ops
    }
}

/// Calls the entry callback of a `T`, and keeps its data in a record at `end`.
///
/// # Safety
///
/// `regs` must hold a call's registers, `user` be the header of a `Registration<T>`; `end` must be
/// the end of the frame that is being built on the shadow stack of its thread.
unsafe fn entry<T: FgraphOps, C: Catch>(
    regs: *mut EntryRegs,
    end: End,
    user: *const Header,
) -> End {
    // SAFETY: the header is the first field of the registration, which the caller vouches for.
    let registration = unsafe { &*user.cast::<Registration<T>>() };
    let size = const { size_of::<T::Data>() };
    if size != 0 {
        // SAFETY: states of threads are never unmapped.
        let thread = unsafe { &*(*regs).thread };
        if !thread.shadow.fits(end, frame::record_len(size)) {
            dispatch::unreserved(thread, &registration.header);
            return DECLINED;
        }
    }
    match C::catch(|| registration.ops.entry(&mut Entry::new(regs, user))) {
        Some(Some(_)) if size == 0 => end,
        // SAFETY: the record fits, and frames end at addresses fit for any data.
        Some(Some(data)) => unsafe {
            end.cast::<T::Data>().write(data);
            frame::close_record(end, size, registration.header.slot)
        },
        Some(None) => DECLINED,
        None => {
            dispatch::panicked(&registration.header);
            DECLINED
        }
    }
}

/// Calls the return callback of a `T` with its data, from the last record before `end` that is its
/// own; returns the place of that record.
///
/// # Safety
///
/// `regs` must hold a return's context, `user` be the header of a `Registration<T>` whose `entry`
/// accepted the call; `end` must be the end of the frame or of one of its records that is not before
/// the user's own.
unsafe fn ret<T: FgraphOps, C: Catch>(regs: *mut ReturnRegs, end: End, user: *const Header) -> End {
    // SAFETY: as in `entry`.
    let registration = unsafe { &*user.cast::<Registration<T>>() };
    let place = if const { size_of::<T::Data>() } == 0 {
        end
    } else {
        // SAFETY: the user has a record in this frame, at or before `end`.
        unsafe { frame::last_record(end, registration.header.slot) }
    };
    let data = if const { size_of::<T::Data>() } == 0 {
        ptr::dangling::<T::Data>()
    } else {
        place.cast()
    };
    // SAFETY: `entry` has written the data there.
    let data = unsafe { data.read() };
    if C::catch(|| registration.ops.ret(&mut Return::new(regs, user), data)).is_none() {
        dispatch::panicked(&registration.header);
    }
    place
}
