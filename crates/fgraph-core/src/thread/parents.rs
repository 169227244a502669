//! Finds a user's data of the enclosing calls.
//!
//! The records of one user on the thread's current stack form a list, newest first: the state has
//! the newest one for each slot, and each record's trailer the one before it.
//!
//! ```text
//!   newest[3] --> record of 3 (in the frame of f) --> record of 3 (in the frame of h) --> null
//!
//!   shadow stack, newest frame first:   f   g (not of 3)   g (not of 3)   h
//! ```
//!
//! The list of a user is built from the frames when the user first asks for an enclosing call. From
//! then on, each entry that the user accepts adds its record to the list, and each return removes
//! it. So a lookup costs the same however many calls lie between, and a user that makes no lookup
//! pays for one test.
//!
//! A list is *forgotten*, and rebuilt when it is next needed, wherever frames are removed other
//! than by their return: when dead frames are dropped, when the thread changes stacks, when a
//! callback was left with `siglongjmp`, and when a return finds a record other than its own first
//! on the list. A list belongs to one registration, which its stamp identifies: no other owner of
//! the slot uses it.

use core::cell::Cell;
use core::ptr;

use crate::MAX_USERS;
use crate::frame::{self, Frame, Record};
use crate::thread::Thread;

/// The owner of records.
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
    /// The stamp of the registration that owns the list.
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
    /// Returns the list of a user, if there is one.
    #[inline(always)]
    fn records(&self, keeper: Keeper) -> Option<&Records> {
        if self.listed.get() & keeper.bit == 0 {
            return None;
        }
        let records = &self.records[keeper.slot as usize % MAX_USERS];
        (records.stamp.get() == keeper.stamp).then_some(records)
    }

    /// Returns the newest data on the list of a user, null if the list is empty; `None` if there is
    /// no list.
    #[inline(always)]
    pub(crate) fn newest_record(&self, keeper: Keeper) -> Option<*mut u8> {
        self.records(keeper).map(|records| records.newest.get())
    }

    /// Adds the record with `data` to its user's list, if there is one, and returns the data of the
    /// record before it.
    #[inline(always)]
    pub(crate) fn push_record(&self, keeper: Keeper, data: *mut u8) -> *mut u8 {
        match self.records(keeper) {
            Some(records) => records.newest.replace(data),
            None => ptr::null_mut(),
        }
    }

    /// Removes the record with `data`, of a call that returns, from its user's list, if there is
    /// one.
    ///
    /// # Safety
    ///
    /// `data` must belong to a record in the slot of `keeper`, of `size` bytes.
    #[inline(always)]
    pub(crate) unsafe fn pop_record(&self, keeper: Keeper, data: *mut u8, size: usize) {
        if self.listed.get() & keeper.bit != 0 {
            let records = &self.records[keeper.slot as usize % MAX_USERS];
            if records.newest.get() == data {
                // SAFETY: the caller guarantees the record. Records on the list are on the thread's
                // current stack.
                records
                    .newest
                    .set(unsafe { frame::record_before(data, size) });
            } else {
                self.listed.set(self.listed.get() & !keeper.bit);
            }
        }
    }

    /// Lists the keeper's records in the frames from `frame` on, and returns the newest data.
    ///
    /// # Safety
    ///
    /// `frame` must be a frame, or the sentinel, of the thread's current stack, and not newer than
    /// the call that is being dispatched.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn list_records(&self, frame: *mut Frame, keeper: Keeper) -> *mut u8 {
        let mut newest = ptr::null_mut();
        let mut newer: Option<Record> = None;
        // SAFETY: the caller guarantees the frame, and older ones are on the same stack.
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

    /// Forgets all lists: some frame is removed other than by its return.
    pub(crate) fn forget_records(&self) {
        self.listed.set(0);
    }

    /// Removes `frame`, if it is the newest: its call is not left through it after all.
    pub fn retract(&self, frame: *mut Frame) {
        let newest = self.shadow.newest();
        if newest == frame {
            // SAFETY: it is the newest frame of the thread's current stack.
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
