//! One frame of the shadow stack: a traced call whose return some user wants.
//!
//! ```text
//!            +----------------------+
//!   frame +0 | frame pointer        | \  of the caller: a frame record, so a walker of frame
//!         +8 | return address       | /  pointers goes from the body through here to the caller
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
//!        +64 | data of user i       |    rounded up to 16 bytes        \
//!            | size | i | before    |    a trailer of 16 bytes          | one record for each
//!            +----------------------+                                   | accepting user with
//!            | data of user j > i   |                                   | data, in slot order
//!            | size | j | before    |                                  /
//!            +----------------------+
//!        end                             the next frame, or the top
//! ```
//!
//! The returns are delivered last slot first. So the trailer stands behind the data, where it is
//! found from the end; and the bitmap has the last slot in the lowest bit, which machines find
//! fastest.
//!
//! Example: users 0 (no data) and 3 (24 bytes) accepted a call at epoch 7: `bitmap` is `0x9000`,
//! the word at +32 is `0x7_9000`, the data of user 3 is at +64, its trailer `{size: 32, slot: 3}`
//! at +96, the end at +112.
//!
//! The oldest frame of a stack is a *sentinel*, no call's frame: its `return_slot_addr` is above
//! any address and its bitmap empty, so it is never found dead and no user is told of it.

use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::claim;
use crate::machine::Stack;
use crate::site::Site;

/// The fixed part of a frame.
#[repr(C, align(16))]
#[derive(Debug)]
pub struct Frame {
    /// The caller's frame pointer.
    pub frame_pointer: usize,
    /// Where the traced function returns to.
    pub return_address: usize,
    /// The function that is called.
    pub site: *const Site,
    /// Where on the machine stack the return address stood.
    pub return_slot_addr: usize,
    /// Epoch and bitmap.
    pub(crate) word: u64,
    /// The frame before on the same shadow stack; null in the sentinel.
    pub(crate) previous: *mut Self,
    /// Traced calls going on while this frame is the newest: those beneath, and itself until it is
    /// unwound; 0 in the sentinel. Here and not in one place for all, which every call would have
    /// to wait for that the one before has written.
    pub(crate) depth: u32,
    /// The place among the frames with the same `return_slot_addr`, which tail calls have: 7 in the
    /// first of them, then 6, and so on down to 1; 0 where there is only one. Beside it
    /// [`REPLACED`].
    pub tail: u8,
    /// Bytes to the end of its records, divided by 16; the lowest byte first.
    len: [u8; 3],
    /// With [`REPLACED`]: the epoch of the user that has put something in the place of the body.
    pub(crate) replaced_by: u64,
}

/// The bits of [`Frame::tail`] that count.
pub(crate) const TAIL: u8 = 7;
/// The bit in [`Frame::tail`] that says that the body does not run.
pub const REPLACED: u8 = 0x80;

// `Frame::finish` writes them at once.
const _: () = assert!(
    core::mem::offset_of!(Frame, depth).is_multiple_of(8)
        && core::mem::offset_of!(Frame, tail) == core::mem::offset_of!(Frame, depth) + 4
        && core::mem::offset_of!(Frame, len) == core::mem::offset_of!(Frame, depth) + 5
);

/// Bytes of the fixed part.
pub const HEADER: usize = size_of::<Frame>();
/// Bytes of a record's trailer.
pub const TRAILER: usize = size_of::<Trailer>();
/// Alignment of frames and of every user's data.
pub const ALIGN: usize = 16;

const BITMAP_BITS: u32 = 16;
const BITMAP_MASK: u64 = claim::USERS;

const _: () = assert!(BITMAP_MASK == (1 << BITMAP_BITS) - 1);

const _: () = assert!(HEADER == 64 && TRAILER == ALIGN && HEADER.is_multiple_of(ALIGN));

/// Stands behind each user's data.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug)]
struct Trailer {
    /// Bytes of the data, rounded up.
    size: u32,
    /// The slot of the user whose data it is.
    slot: u32,
    /// The data of the record before this one on the list of its user's records.
    before: *mut u8,
}

/// The bit of a slot in the bitmap.
#[inline(always)]
pub(crate) const fn bit(slot: u32) -> u32 {
    0x8000 >> slot
}

/// The users in the word at +32, a bit for each slot, the lowest for the first.
pub(crate) const fn users(word: u64) -> u16 {
    // No registration has the epoch 0: what is marked with it has no users.
    if epoch(word) == 0 {
        return 0;
    }
    ((word & BITMAP_MASK) as u16).reverse_bits()
}

/// The slot of the lowest bit in a bitmap that is not empty.
#[inline(always)]
pub(crate) const fn last_slot(bitmap: u64) -> u32 {
    // The mask tells the compiler that it is one of 16.
    (15 - bitmap.trailing_zeros()) & 15
}

/// The word at +32 without any user: an epoch where the frame keeps it.
#[inline(always)]
pub(crate) const fn stamp(epoch: u64) -> u64 {
    epoch << BITMAP_BITS
}

/// The epoch in the word at +32, or in a [`stamp`].
#[inline(always)]
pub(crate) const fn epoch(word: u64) -> u64 {
    word >> BITMAP_BITS
}

/// Whether a registration is younger than a frame, told from its stamp and the frame's word.
#[inline(always)]
pub(crate) const fn younger(stamp: u64, word: u64) -> bool {
    // The bitmap, in the low bits, makes no difference: a stamp has none.
    stamp > word
}

impl Frame {
    /// Where in a frame the address of the one before stands; that of a sentinel is null.
    pub const PREVIOUS: usize = core::mem::offset_of!(Self, previous);

    /// Where in a frame the epoch and the bitmap stand.
    pub const WORD: usize = core::mem::offset_of!(Self, word);
    /// Where in a record's trailer the bytes of the data stand.
    pub const RECORD_SIZE: usize = core::mem::offset_of!(Trailer, size);
    /// Where in a record's trailer the slot of its user stands.
    pub const RECORD_SLOT: usize = core::mem::offset_of!(Trailer, slot);
    /// The bit of the first slot in the bitmap; those of the others are lower.
    pub const FIRST_BIT: u32 = bit(0);
    /// Where in a frame depth, tail calls and length stand: the length from bit 36 on.
    pub const DEPTH: usize = core::mem::offset_of!(Self, depth);

    /// The sentinel of `stack`.
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

    /// Notes a frame's depth and its end, and that it is no tail call.
    ///
    /// # Safety
    ///
    /// The frame must be one that is being built.
    #[inline(always)]
    pub(crate) unsafe fn finish(frame: *mut Self, depth: u32, end: *mut u8) {
        // Lengths are multiples of 16.
        let len = (end.addr() - frame.addr()) as u64;
        // SAFETY: the caller vouches for the frame.
        unsafe {
            let place = (&raw mut (*frame).depth).cast::<u64>();
            place.write(len << 36 | u64::from(depth));
        }
    }

    /// The end of a frame's records.
    ///
    /// # Safety
    ///
    /// The frame must be on a shadow stack.
    #[inline(always)]
    pub(crate) unsafe fn end(frame: *mut Self) -> *mut u8 {
        // As `finish` writes it, so that the processor hands it on from there.
        // SAFETY: the caller vouches for the frame.
        let word = unsafe { (&raw const (*frame).depth).cast::<u64>().read() };
        let len = (word >> 36) as usize & !(ALIGN - 1);
        frame.cast::<u8>().wrapping_add(len)
    }

    /// The newest registration when the call was entered.
    #[inline(always)]
    pub(crate) const fn epoch(&self) -> u64 {
        epoch(self.word)
    }

    /// The epoch of the user that has put something in the place of the body.
    pub(crate) fn replaced_by(&self) -> Option<u64> {
        (self.tail & REPLACED != 0).then_some(self.replaced_by)
    }

    /// Whether it is unwound.
    pub(crate) const fn is_unwound(&self) -> bool {
        self.bitmap() == 0 || self.word == claim::UNWOUND
    }

    /// Who wants the return, a bit for each slot.
    #[inline(always)]
    pub(crate) const fn bitmap(&self) -> u16 {
        (self.word & BITMAP_MASK) as u16
    }
}

/// The word of a frame that another thread may look at, too: see [`claim`].
///
/// # Safety
///
/// The frame must be on a shadow stack for as long as the word is used.
pub(crate) unsafe fn shared_word<'a>(frame: *mut Frame) -> &'a AtomicU64 {
    // SAFETY: the caller vouches for the frame.
    unsafe { AtomicU64::from_ptr(&raw mut (*frame).word) }
}

/// Bytes that a record with `size` bytes of data takes.
#[inline(always)]
pub(crate) const fn record_len(size: usize) -> usize {
    size.next_multiple_of(ALIGN) + TRAILER
}

/// Writes the trailer of a record of `slot` that begins at `data`, and returns its end. `before` is
/// the record's successor on the list of its user's records, if it is on one.
///
/// # Safety
///
/// [`record_len`] bytes at `data` must be this thread's to write, and aligned to [`ALIGN`].
#[inline(always)]
pub(crate) unsafe fn close_record(
    data: *mut u8,
    size: usize,
    slot: u32,
    before: *mut u8,
) -> *mut u8 {
    let size = size.next_multiple_of(ALIGN);
    let trailer = data.wrapping_add(size);
    // SAFETY: in the record, which the caller vouches for.
    unsafe {
        trailer.cast::<Trailer>().write(Trailer {
            size: size as u32,
            slot,
            before,
        });
    }
    trailer.wrapping_add(TRAILER)
}

/// A user's data in a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) slot: u32,
    pub(crate) data: *mut u8,
    trailer: *mut Trailer,
}

impl Record {
    /// The record that ends at `end`.
    ///
    /// # Safety
    ///
    /// A closed record of a shadow stack must end there.
    #[inline(always)]
    unsafe fn ending_at(end: *mut u8) -> Self {
        let trailer = end.wrapping_sub(TRAILER).cast::<Trailer>();
        // SAFETY: a record ends with a trailer. `before` is not read: it belongs to the thread that
        // has the stack, which may not be this one.
        let (size, slot) = unsafe { ((*trailer).size, (*trailer).slot) };
        Self {
            slot,
            data: trailer.cast::<u8>().wrapping_sub(size as usize),
            trailer,
        }
    }

    /// The data of the record before this one on the list of its user's records.
    ///
    /// # Safety
    ///
    /// The record must be on the stack that this thread is on.
    pub(crate) unsafe fn before(self) -> *mut u8 {
        // SAFETY: the caller vouches for the record.
        unsafe { (*self.trailer).before }
    }

    /// Puts the record with the data `before`, or none, behind this one on the list.
    ///
    /// # Safety
    ///
    /// As for [`before`](Self::before).
    pub(crate) unsafe fn set_before(self, before: *mut u8) {
        // SAFETY: as in `before`.
        unsafe { (*self.trailer).before = before }
    }
}

/// As [`Record::before`], of the record with `size` bytes of data at `data`.
///
/// # Safety
///
/// As there.
#[inline(always)]
pub(crate) unsafe fn record_before(data: *mut u8, size: usize) -> *mut u8 {
    let trailer = data.wrapping_add(size.next_multiple_of(ALIGN));
    // SAFETY: the trailer is behind the data.
    unsafe { (*trailer.cast::<Trailer>()).before }
}

/// The data in the last record before `end` that is `slot`'s. Records of other slots, whose owners
/// are gone, are passed over.
///
/// # Safety
///
/// There must be such a record in the frame, and `end` be the end of the frame or of one of its
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

/// The records of a frame, last first.
///
/// # Safety
///
/// `frame` must be on a shadow stack while the records are looked at.
pub(crate) unsafe fn records(frame: *mut Frame) -> impl Iterator<Item = Record> {
    let first = frame.cast::<u8>().wrapping_add(HEADER);
    // SAFETY: the caller vouches for the frame.
    let mut end = unsafe { Frame::end(frame) };
    core::iter::from_fn(move || {
        (end > first).then(|| {
            // SAFETY: what is between the header and the end are records.
            let record = unsafe { Record::ending_at(end) };
            end = record.data;
            record
        })
    })
}

/// The frames from `frame` on, older ones last, whose return some user wants.
///
/// # Safety
///
/// `frame` must be null, or a frame of a shadow stack whose frames stay while they are looked at.
pub(crate) unsafe fn going_on(frame: *mut Frame) -> impl Iterator<Item = *mut Frame> {
    let next = |frame: *mut Frame| (!frame.is_null()).then_some(frame);
    // SAFETY: the caller vouches for the frames.
    let frames = core::iter::successors(next(frame), move |&frame| unsafe {
        next((*frame).previous)
    });
    // SAFETY: as above. Relaxed: another thread may be telling the return of the frame.
    frames.filter(|&frame| users(unsafe { shared_word(frame) }.load(Ordering::Relaxed)) != 0)
}

/// Where a call returns to in the end whose return address stood at `slot_addr` and was `address`:
/// a call that was made by a jump, from the call of `frame`, returns to our trampoline, and from
/// there to where that one does.
///
/// # Safety
///
/// As for [`going_on`].
pub(crate) unsafe fn behind_jumps(
    mut frame: *mut Frame,
    slot_addr: usize,
    mut address: usize,
) -> usize {
    // SAFETY: the caller vouches for the frames.
    unsafe {
        while !frame.is_null() && (*frame).return_slot_addr == slot_addr {
            (address, frame) = ((*frame).return_address, (*frame).previous);
        }
    }
    address
}

/// Where the calls of [`going_on`] return to in the end, but for those whose return address stood
/// at `slot_addr`; of calls that were made by a jump from each other, once.
///
/// # Safety
///
/// As for [`going_on`].
pub(crate) unsafe fn callers(
    frame: *mut Frame,
    mut slot_addr: usize,
) -> impl Iterator<Item = usize> {
    // SAFETY: handed on.
    let frames = unsafe { going_on(frame) };
    frames.filter_map(move |frame| {
        // SAFETY: the caller vouches for the frames.
        let (frame, before) = unsafe { (&*frame, (*frame).previous) };
        let is_told = frame.return_slot_addr == slot_addr;
        slot_addr = frame.return_slot_addr;
        // SAFETY: as above.
        let address = || unsafe { behind_jumps(before, slot_addr, frame.return_address) };
        (!is_told).then(address)
    })
}

/// Those of [`going_on`] whose return the registration with `stamp` in `slot` wants.
///
/// # Safety
///
/// As for [`going_on`].
pub(crate) unsafe fn accepted_by(
    frame: *mut Frame,
    slot: u32,
    stamp: u64,
) -> impl Iterator<Item = *mut Frame> {
    // SAFETY: handed on.
    let frames = unsafe { going_on(frame) };
    frames.filter(move |&frame| {
        // SAFETY: as above. Relaxed: another thread may be telling the return of the frame.
        let word = unsafe { shared_word(frame) }.load(Ordering::Relaxed);
        word & u64::from(bit(slot)) != 0 && !younger(stamp, word)
    })
}
