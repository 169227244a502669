//! A frame of the shadow stack: one traced call whose return some user wants.
//!
//! ```text
//!            +----------------------+
//!   frame +0 | frame pointer        | \  of the caller, for unwinders
//!         +8 | return address       | /
//!        +16 | site                 |    which function
//!        +24 | return_slot_addr     |    where on the machine stack the return address stood
//!        +32 | epoch       | bitmap |    48 bits: newest registration at entry; 16 bits: who wants
//!            |                      |    the return, slot 0 in the highest bit
//!        +40 | previous             |    the frame before; null in the sentinel
//!        +48 | depth    | tail | len |   traced calls going on while this frame is the newest;
//!            |                      |    its place in a row of tail calls, and whether the body
//!            |                      |    was replaced; bytes of the frame and its records, divided
//!            |                      |    by 16
//!        +56 | replaced_by          |    by whom, if it was
//!            +----------------------+
//!        +64 | data of user i       |    with the trailer a multiple   \
//!            | size | i | before    |    of 32 bytes                    | one record for each
//!            +----------------------+                                   | accepting user with
//!            | data of user j > i   |                                   | data, in slot order
//!            | size | j | before    |                                  /
//!            +----------------------+
//!        end                             the next frame, or the top
//! ```
//!
//! Returns are dispatched from the last slot to the first. So the trailer follows the data, where
//! it is found from the end, and the bitmap has the last slot in the lowest bit, which machines
//! find fastest.
//!
//! Example: users 0 (no data) and 3 (24 bytes) accepted a call at epoch 7: `bitmap` is `0x9000`,
//! the word at +32 is `0x7_9000`, the data of user 3 is at +64, its trailer `{size: 32, slot: 3}`
//! at +96, the end at +112.
//!
//! If a user that wants the call is [out of order](crate::order), the records are in the order in
//! which the users were asked, and a list of these users is behind them; `tail` says so.
//!
//! The oldest frame of a stack is a *sentinel*, which belongs to no call. Its `return_slot_addr` is
//! above any address and its bitmap is empty, so it is never found dead and no user gets its
//! return.

use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::MAX_USERS;
use crate::claim;
use crate::machine::Stack;
use crate::order::List;
use crate::site::Site;

/// The fixed part of a frame.
#[repr(C, align(16))]
#[derive(Debug)]
pub struct Frame {
    /// The caller's frame pointer.
    pub frame_pointer: usize,
    /// The return address of the traced function.
    pub return_address: usize,
    /// The site of the called function.
    pub site: *const Site,
    /// The address of the return slot on the machine stack.
    pub return_slot_addr: usize,
    /// Epoch and bitmap.
    pub(crate) word: u64,
    /// The previous frame on the same shadow stack; null in the sentinel.
    pub(crate) previous: *mut Self,
    /// Traced calls in progress while this frame is the newest: older ones, and this one until it
    /// is unwound; 0 in the sentinel. Each frame has its own count: a single shared count would
    /// make each call wait for the store of the previous one.
    pub(crate) depth: u32,
    /// The position among frames with the same `return_slot_addr`, which tail calls have: 7 in the
    /// first, then 6, and so on down to 1; 0 if there is only one. [`REPLACED`] and [`ORDERED`] are
    /// stored in the same byte.
    pub tail: u8,
    /// Bytes from the frame's start to the end of its records, divided by 16; lowest byte first.
    len: [u8; 3],
    /// Valid with [`REPLACED`]: the epoch of the user that has replaced the body, and
    /// [`REDIRECTED`] if it has redirected the call to another function.
    pub(crate) replaced_by: u64,
}

/// The bit in `Frame::replaced_by` of a call that goes to another function. Epochs have 48 bits.
pub(crate) const REDIRECTED: u64 = 1 << 63;

/// The bits of [`Frame::tail`] that count.
pub(crate) const TAIL: u8 = 7;
/// The bit in [`Frame::tail`] that says that the body does not run.
pub const REPLACED: u8 = 0x80;
/// The bit in [`Frame::tail`] that says that the list of the users that were asked is behind the
/// records.
pub const ORDERED: u8 = 0x40;

// `Frame::finish` writes these fields with one store.
const _: () = assert!(
    core::mem::offset_of!(Frame, depth).is_multiple_of(8)
        && core::mem::offset_of!(Frame, tail) == core::mem::offset_of!(Frame, depth) + 4
        && core::mem::offset_of!(Frame, len) == core::mem::offset_of!(Frame, depth) + 5
);

/// Bytes of the fixed part.
pub const HEADER: usize = size_of::<Frame>();
/// Bytes of a record's trailer.
pub const TRAILER: usize = size_of::<Trailer>();
/// Alignment of every user's data.
pub const ALIGN: usize = 16;
/// Alignment of frames: each has a [return point](crate::points) of this many bytes.
pub const FRAME_ALIGN: usize = 32;

const BITMAP_BITS: u32 = 16;
const BITMAP_MASK: u64 = claim::USERS;

const _: () = assert!(BITMAP_MASK == (1 << BITMAP_BITS) - 1);

const _: () = assert!(HEADER == 64 && TRAILER == ALIGN && HEADER.is_multiple_of(FRAME_ALIGN));

/// The words after each user's data.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug)]
struct Trailer {
    /// Bytes of the data, [rounded up](data_len).
    size: u32,
    /// The slot of the user that owns the data.
    slot: u32,
    /// The data of the previous record on the list of the user's records.
    before: *mut u8,
}

/// Returns the bit of a slot in the bitmap.
#[inline(always)]
pub(crate) const fn bit(slot: u32) -> u32 {
    0x8000 >> slot
}

/// Returns the users in the word at +32, one bit for each slot, the lowest for the first.
pub(crate) const fn users(word: u64) -> u16 {
    // No registration has the epoch 0: a word with it has no users.
    if epoch(word) == 0 {
        return 0;
    }
    ((word & BITMAP_MASK) as u16).reverse_bits()
}

/// Returns the slot of the lowest bit in a bitmap that is not empty.
#[inline(always)]
pub(crate) const fn last_slot(bitmap: u64) -> u32 {
    // The mask lets the compiler know that the result is below 16.
    (15 - bitmap.trailing_zeros()) & 15
}

/// Returns the word at +32 without users: the epoch in its place.
#[inline(always)]
pub(crate) const fn stamp(epoch: u64) -> u64 {
    epoch << BITMAP_BITS
}

/// Returns the epoch in the word at +32, or in a [`stamp`].
#[inline(always)]
pub(crate) const fn epoch(word: u64) -> u64 {
    word >> BITMAP_BITS
}

/// Returns true if a registration with this stamp is younger than the frame with this word.
#[inline(always)]
pub(crate) const fn younger(stamp: u64, word: u64) -> bool {
    // The bitmap in the low bits makes no difference: a stamp has none.
    stamp > word
}

impl Frame {
    /// Offset in a frame of the previous frame's address, which is null in a sentinel.
    pub const PREVIOUS: usize = core::mem::offset_of!(Self, previous);

    /// Offset in a frame of the epoch and the bitmap.
    pub const WORD: usize = core::mem::offset_of!(Self, word);
    /// Offset in a trailer of the size of the data.
    pub const RECORD_SIZE: usize = core::mem::offset_of!(Trailer, size);
    /// Offset in a trailer of the user's slot.
    pub const RECORD_SLOT: usize = core::mem::offset_of!(Trailer, slot);
    /// Offset in a trailer of the previous record on the list of the user's records.
    pub const RECORD_BEFORE: usize = core::mem::offset_of!(Trailer, before);
    /// The bit of the first slot in the bitmap; those of later slots are lower.
    pub const FIRST_BIT: u32 = bit(0);
    /// Offset in a frame of the word with depth, tail position and length; the length starts at bit
    /// 36.
    pub const DEPTH: usize = core::mem::offset_of!(Self, depth);
    /// The bit of [`ORDERED`] in that word.
    pub const ORDERED_BIT: u32 = 8 * 4 + ORDERED.trailing_zeros();

    /// Makes the sentinel of `stack`.
    pub(crate) fn sentinel(stack: *const Stack) -> Self {
        Self {
            frame_pointer: 0,
            return_address: stack.addr(),
            site: ptr::null(),
            return_slot_addr: usize::MAX,
            word: 0,
            previous: ptr::null_mut(),
            depth: 0,
            tail: 0,
            len: [0; 3],
            replaced_by: 0,
        }
    }

    /// Stores a frame's depth and its end, and that it is no tail call.
    ///
    /// # Safety
    ///
    /// The frame must be under construction.
    #[inline(always)]
    pub(crate) unsafe fn finish(frame: *mut Self, depth: u32, end: *mut u8) {
        // Lengths are multiples of 16.
        let len = (end.addr() - frame.addr()) as u64;
        // SAFETY: the caller guarantees that the frame is under construction.
        unsafe {
            let place = (&raw mut (*frame).depth).cast::<u64>();
            place.write(len << 36 | u64::from(depth));
        }
    }

    /// Stores that the list of the users that were asked is behind the records.
    ///
    /// # Safety
    ///
    /// The frame must be on a shadow stack.
    #[inline(always)]
    pub(crate) unsafe fn set_ordered(frame: *mut Self) {
        // Writes the word that `end` reads, so that the processor can forward the store.
        // SAFETY: the caller guarantees that the frame is on a shadow stack.
        unsafe { *(&raw mut (*frame).depth).cast::<u64>() |= 1 << Self::ORDERED_BIT };
    }

    /// Returns the end of a frame's records.
    ///
    /// # Safety
    ///
    /// The frame must be on a shadow stack.
    #[inline(always)]
    pub(crate) unsafe fn end(frame: *mut Self) -> *mut u8 {
        // Reads the same word that `finish` writes, so that the processor can forward the store.
        // SAFETY: the caller guarantees that the frame is on a shadow stack.
        let word = unsafe { (&raw const (*frame).depth).cast::<u64>().read() };
        let len = (word >> 36) as usize & !(ALIGN - 1);
        frame.cast::<u8>().wrapping_add(len)
    }

    /// Returns the newest epoch when the call was entered.
    #[inline(always)]
    pub(crate) const fn epoch(&self) -> u64 {
        epoch(self.word)
    }

    /// Returns the epoch of the user that has replaced the body.
    pub(crate) fn replaced_by(&self) -> Option<u64> {
        (self.tail & REPLACED != 0).then_some(self.replaced_by & !REDIRECTED)
    }

    /// True if the user with this epoch has redirected the call.
    pub(crate) fn is_redirected_by(&self, epoch: u64) -> bool {
        self.tail & REPLACED != 0 && self.replaced_by == epoch | REDIRECTED
    }

    /// Returns true if the frame is unwound.
    pub(crate) const fn is_unwound(&self) -> bool {
        self.bitmap() == 0 || self.word == claim::UNWOUND
    }

    /// Returns the users that want the return, one bit for each slot.
    #[inline(always)]
    pub(crate) const fn bitmap(&self) -> u16 {
        (self.word & BITMAP_MASK) as u16
    }
}

/// Returns the word of a frame that another thread may access, too: see [`claim`].
///
/// # Safety
///
/// The frame must be on a shadow stack for as long as the word is used.
pub(crate) unsafe fn shared_word<'a>(frame: *mut Frame) -> &'a AtomicU64 {
    // SAFETY: the caller guarantees that the frame stays on a shadow stack.
    unsafe { AtomicU64::from_ptr(&raw mut (*frame).word) }
}

/// Returns the number of bytes of a record with `size` bytes of data. Frames end where others may
/// begin.
#[inline(always)]
pub(crate) const fn record_len(size: usize) -> usize {
    (size + TRAILER).next_multiple_of(FRAME_ALIGN)
}

/// Returns the number of bytes from the start of a record with `size` bytes of data to its trailer.
#[inline(always)]
const fn data_len(size: usize) -> usize {
    record_len(size) - TRAILER
}

/// Writes the trailer of a record of `slot` that begins at `data`, and returns its end. `before` is
/// the next older record on the list of the user's records, if the record is on one.
///
/// # Safety
///
/// This thread owns [`record_len`] bytes at `data`, which are aligned to [`FRAME_ALIGN`].
#[inline(always)]
pub(crate) unsafe fn close_record(
    data: *mut u8,
    size: usize,
    slot: u32,
    before: *mut u8,
) -> *mut u8 {
    let size = data_len(size);
    let trailer = data.wrapping_add(size);
    // SAFETY: the trailer is inside the record, which the caller guarantees.
    unsafe {
        trailer.cast::<Trailer>().write(Trailer {
            size: size as u32,
            slot,
            before,
        });
    }
    trailer.wrapping_add(TRAILER)
}

/// Bytes of the list of users in a frame. It has the form of a record, which belongs to no slot.
pub const LIST_LEN: usize = record_len(size_of::<List>());

const _: () = assert!(data_len(size_of::<List>()) == size_of::<List>());

/// Writes the list of the users that were asked at `end`, behind the records, and returns its end.
///
/// # Safety
///
/// This thread owns [`LIST_LEN`] bytes there, which are aligned to [`FRAME_ALIGN`].
#[inline(always)]
pub(crate) unsafe fn close_list(end: *mut u8, list: List) -> *mut u8 {
    // SAFETY: the caller guarantees the room.
    unsafe {
        end.cast::<List>().write(list);
        close_record(end, size_of::<List>(), MAX_USERS as u32, ptr::null_mut())
    }
}

/// Returns the list of users of a frame.
///
/// # Safety
///
/// `end` must be the end of a frame with a list.
#[inline(always)]
pub(crate) unsafe fn list_ending_at(end: *mut u8) -> List {
    // SAFETY: the list is the last in the frame.
    unsafe { end.wrapping_sub(LIST_LEN).cast::<List>().read() }
}

/// A user's data in a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) slot: u32,
    pub(crate) data: *mut u8,
    trailer: *mut Trailer,
}

impl Record {
    /// Returns the record that ends at `end`.
    ///
    /// # Safety
    ///
    /// `end` must be the end of a closed record on a shadow stack.
    #[inline(always)]
    unsafe fn ending_at(end: *mut u8) -> Self {
        let trailer = end.wrapping_sub(TRAILER).cast::<Trailer>();
        // SAFETY: a record ends with a trailer. `before` is not read: it belongs to the thread that
        // has the stack, which may be another one.
        let (size, slot) = unsafe { ((*trailer).size, (*trailer).slot) };
        Self {
            slot,
            data: trailer.cast::<u8>().wrapping_sub(size as usize),
            trailer,
        }
    }

    /// Returns the data of the next older record on the list of the user's records.
    ///
    /// # Safety
    ///
    /// The record must be on the stack on which this thread runs.
    pub(crate) unsafe fn before(self) -> *mut u8 {
        // SAFETY: the caller guarantees that the record is on this thread's stack.
        unsafe { (*self.trailer).before }
    }

    /// Links the record with the data `before`, or none, after this one in the list.
    ///
    /// # Safety
    ///
    /// The record must be on the stack on which this thread runs.
    pub(crate) unsafe fn set_before(self, before: *mut u8) {
        // SAFETY: the caller guarantees that the record is on this thread's stack.
        unsafe { (*self.trailer).before = before }
    }
}

/// Returns the same as [`Record::before`], for the record with `size` bytes of data at `data`.
///
/// # Safety
///
/// The record must be on the stack on which this thread runs.
#[inline(always)]
pub(crate) unsafe fn record_before(data: *mut u8, size: usize) -> *mut u8 {
    let trailer = data.wrapping_add(data_len(size));
    // SAFETY: the trailer follows the data, in the same record.
    unsafe { (*trailer.cast::<Trailer>()).before }
}

/// Returns the data of `slot`'s last record before `end`. Skips records of other slots, whose
/// owners are gone.
///
/// # Safety
///
/// Such a record must be in the frame, and `end` must be the end of the frame or of one of its
/// records.
#[inline(always)]
pub(crate) unsafe fn last_record(mut end: *mut u8, slot: u32) -> *mut u8 {
    loop {
        // SAFETY: there is another record before `end`.
        let record = unsafe { Record::ending_at(end) };
        end = record.data;
        if record.slot == slot {
            return end;
        }
    }
}

/// Iterates over the records of a frame, last first.
///
/// # Safety
///
/// `frame` must stay on a shadow stack during the iteration.
pub(crate) unsafe fn records(frame: *mut Frame) -> impl Iterator<Item = Record> {
    let first = frame.cast::<u8>().wrapping_add(HEADER);
    // SAFETY: the caller guarantees that the frame is on a shadow stack.
    let mut end = unsafe { Frame::end(frame) };
    core::iter::from_fn(move || {
        (end > first).then(|| {
            // SAFETY: the bytes between the header and the end are records.
            let record = unsafe { Record::ending_at(end) };
            end = record.data;
            record
        })
    })
}

/// Iterates over the frames from `frame` to the oldest whose return some user wants.
///
/// # Safety
///
/// `frame` must be null, or a frame of a shadow stack whose frames stay during the iteration.
pub(crate) unsafe fn going_on(frame: *mut Frame) -> impl Iterator<Item = *mut Frame> {
    let next = |frame: *mut Frame| (!frame.is_null()).then_some(frame);
    // SAFETY: the caller guarantees that the frames stay.
    let frames = core::iter::successors(next(frame), move |&frame| unsafe {
        next((*frame).previous)
    });
    // SAFETY: the caller guarantees that the frames stay. Relaxed: another thread may be
    // dispatching the return of the frame.
    frames.filter(|&frame| users(unsafe { shared_word(frame) }.load(Ordering::Relaxed)) != 0)
}

/// Returns the final return address of a call with the return slot `slot_addr` that holds
/// `address`. A call that was made by a jump, from the call of `frame`, returns to our trampoline,
/// and from there to the return address of that call.
///
/// # Safety
///
/// The contract of [`going_on`] holds.
pub(crate) unsafe fn behind_jumps(
    mut frame: *mut Frame,
    slot_addr: usize,
    mut address: usize,
) -> usize {
    // SAFETY: the caller guarantees that the frames stay.
    unsafe {
        while !frame.is_null() && (*frame).return_slot_addr == slot_addr {
            (address, frame) = ((*frame).return_address, (*frame).previous);
        }
    }
    address
}

/// Iterates over the final return addresses of the calls of [`going_on`], except those with the
/// return slot `slot_addr`. Calls that were made by a jump from each other count once.
///
/// # Safety
///
/// The contract of [`going_on`] holds.
pub(crate) unsafe fn callers(
    frame: *mut Frame,
    mut slot_addr: usize,
) -> impl Iterator<Item = usize> {
    // SAFETY: the caller keeps the same contract.
    let frames = unsafe { going_on(frame) };
    frames.filter_map(move |frame| {
        // SAFETY: the caller guarantees that the frames stay.
        let (frame, before) = unsafe { (&*frame, (*frame).previous) };
        let is_told = frame.return_slot_addr == slot_addr;
        slot_addr = frame.return_slot_addr;
        // SAFETY: the caller guarantees that the frames stay.
        let address = || unsafe { behind_jumps(before, slot_addr, frame.return_address) };
        (!is_told).then(address)
    })
}

/// Iterates over the frames of [`going_on`] whose return the registration with `stamp` in `slot`
/// wants.
///
/// # Safety
///
/// The contract of [`going_on`] holds.
pub(crate) unsafe fn accepted_by(
    frame: *mut Frame,
    slot: u32,
    stamp: u64,
) -> impl Iterator<Item = *mut Frame> {
    // SAFETY: the caller keeps the same contract.
    let frames = unsafe { going_on(frame) };
    frames.filter(move |&frame| {
        // SAFETY: the caller guarantees that the frames stay. Relaxed: another thread may be
        // dispatching the return of the frame.
        let word = unsafe { shared_word(frame) }.load(Ordering::Relaxed);
        word & u64::from(bit(slot)) != 0 && !younger(stamp, word)
    })
}
