//! Where each user finds its data of the enclosing calls.
//!
//! The records of one user on the stack that the thread is on form a list, newest first: the state
//! has the newest one for each slot, and each record's trailer the one before it.
//!
//! ```text
//!   newest[3] --> record of 3 (in the frame of f) --> record of 3 (in the frame of h) --> null
//!
//!   shadow stack, newest frame first:   f   g (not of 3)   g (not of 3)   h
//! ```
//!
//! The list of a user is made, by going through the frames, when the user first asks for an
//! enclosing call. From then on each entry that the user accepts puts its record on the list, and
//! each return takes it off. So asking costs the same whatever lies between, and a user that never
//! asks pays for one test.
//!
//! A list is *forgotten*, and made again when it is next needed, wherever frames go another way
//! than by their return: when dead frames are dropped, when the thread goes to another stack, when
//! a callback was left by `siglongjmp`, and when a return finds another record than its own on the
//! list. A list belongs to one registration, which its stamp tells: no other owner of the slot uses
//! it.

use core::cell::Cell;
use core::ptr;

use crate::MAX_USERS;
use crate::frame::{self, Frame, Record};
use crate::thread::Thread;

/// Whose records they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keeper {
    pub(crate) slot: u32,
    /// The slot's bit.
    pub(crate) bit: u32,
    /// The stamp of the registration.
    pub(crate) stamp: u64,
}

/// The list of one user's records.
#[derive(Debug)]
pub(super) struct Records {
    /// The stamp of the registration that the list is of.
    stamp: Cell<u64>,
    /// The data of the newest record; null if there is none.
    newest: Cell<*mut u8>,
}

impl Records {
    pub(super) const fn new() -> Self {
        Self {
            stamp: Cell::new(0),
            newest: Cell::new(ptr::null_mut()),
        }
    }
}

impl Thread {
    /// The list of a user, if there is one.
    #[inline(always)]
    fn records(&self, keeper: Keeper) -> Option<&Records> {
        if self.listed.get() & keeper.bit == 0 {
            return None;
        }
        let records = &self.records[keeper.slot as usize % MAX_USERS];
        (records.stamp.get() == keeper.stamp).then_some(records)
    }

    /// The newest data on the list of a user, null if the list is empty; `None` if there is no
    /// list.
    #[inline(always)]
    pub(crate) fn newest_record(&self, keeper: Keeper) -> Option<*mut u8> {
        self.records(keeper).map(|records| records.newest.get())
    }

    /// Puts the record with `data` on its user's list, if there is one, and gives the data of the
    /// one before it.
    #[inline(always)]
    pub(crate) fn push_record(&self, keeper: Keeper, data: *mut u8) -> *mut u8 {
        match self.records(keeper) {
            Some(records) => records.newest.replace(data),
            None => ptr::null_mut(),
        }
    }

    /// Takes the record with `data`, of a call that returns, from its user's list, if there is one.
    ///
    /// # Safety
    ///
    /// `data` must be that of a record in the slot of `keeper`, of `size` bytes.
    #[inline(always)]
    pub(crate) unsafe fn pop_record(&self, keeper: Keeper, data: *mut u8, size: usize) {
        if self.listed.get() & keeper.bit != 0 {
            let records = &self.records[keeper.slot as usize % MAX_USERS];
            if records.newest.get() == data {
                // SAFETY: the caller vouches for the record. What is on the list is on the stack
                // that the thread is on.
                records
                    .newest
                    .set(unsafe { frame::record_before(data, size) });
            } else {
                self.listed.set(self.listed.get() & !keeper.bit);
            }
        }
    }

    /// Lists the keeper's records in the frames from `frame` on, and gives the newest data.
    ///
    /// # Safety
    ///
    /// `frame` must be a frame, or the sentinel, of the stack that the thread is on, and not be
    /// newer than the call that is told now.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn list_records(&self, frame: *mut Frame, keeper: Keeper) -> *mut u8 {
        let mut newest = ptr::null_mut();
        let mut newer: Option<Record> = None;
        // SAFETY: the caller vouches for the frame, and those before it are on the same stack.
        unsafe {
            for frame in frame::accepted_by(frame, keeper.slot, keeper.stamp) {
                let Some(record) = frame::records(frame).find(|record| record.slot == keeper.slot)
                else {
                    continue;
                };
                match newer.replace(record) {
                    Some(newer) => newer.set_before(record.data),
                    None => newest = record.data,
                }
            }
            if let Some(oldest) = newer {
                oldest.set_before(ptr::null_mut());
            }
        }
        let records = &self.records[keeper.slot as usize % MAX_USERS];
        records.stamp.set(keeper.stamp);
        records.newest.set(newest);
        self.listed.set(self.listed.get() | keeper.bit);
        newest
    }

    /// Forgets all lists: some frame goes another way than by its return.
    pub(crate) fn forget_records(&self) {
        self.listed.set(0);
    }

    /// Removes `frame`, the newest, of a call that is not left through it after all. Does nothing
    /// when another is the newest.
    pub fn retract(&self, frame: *mut Frame) {
        let newest = self.shadow.newest();
        if newest == frame {
            // SAFETY: the newest frame of the stack that the thread is on.
            unsafe {
                for record in frame::records(newest) {
                    let records = &self.records[record.slot as usize % MAX_USERS];
                    if records.newest.get() == record.data {
                        records.newest.set(record.before());
                    }
                }
            }
            self.shadow.retract(newest);
        }
    }
}
