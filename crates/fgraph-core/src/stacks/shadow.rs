//! The shadow stack: the frames of the traced calls in progress, oldest first.
//!
//! ```text
//!   base                             newest            top           last      limit
//!    | sentinel | frame |   ...   |  frame             |    untouched   |  HEADER |
//! ```
//!
//! It belongs to one machine stack ([`stack`](crate::machine)), and the thread that runs on that
//! stack uses it. A frame is *built* above the top, where nothing is in use, and becomes part of
//! the stack with `commit` when at least one user wants the return. So a call that no user wants
//! leaves no trace, and neither does a signal handler that leaves in the middle with `siglongjmp`.
//! Only one frame is built at a time: the thread is marked as inside fgraph meanwhile, so the calls
//! of a signal handler are not traced.
//!
//! *Dead frames.* A function left by `longjmp` never returns, and its frame stays behind. The
//! machine stack grows down, so a frame with a return slot *below* that of the current call is
//! dead. For an equal return slot there are two cases. Either the older call has jumped to the
//! newer one (a tail call), which then returns to our trampoline: both are alive. Or another call
//! has written the return slot again: the older frame is dead.
//!
//! *Unwound frames.* While a frame is unwound its return is dispatched, but its memory must stay
//! unchanged, because the unwinder still reads the caller's frame pointer from it. The frame only
//! loses its bitmap, and is dropped later as a dead frame. It also stays until the unwinder has
//! passed the next older frame, because the unwinder looks for the frame pointer where it was last
//! saved. Meanwhile a signal handler, or a function of the unwinder itself, may make traced calls.

use core::cell::Cell;
use core::mem::offset_of;
use core::ptr;
use core::sync::atomic::{Ordering, compiler_fence};

use crate::claim;
use crate::frame::{self, Frame, HEADER};
use crate::machine::Stack;
use crate::site::Site;

/// The frames of one machine stack.
#[repr(C)]
#[derive(Debug)]
pub struct ShadowStack {
    top: Cell<*mut u8>,
    /// The last address at which the fixed part of a frame fits.
    last: Cell<*mut u8>,
    newest: Cell<*mut Frame>,
    base: Cell<*mut u8>,
}

impl ShadowStack {
    /// Offset in a shadow stack of the address of its first frame.
    pub const BASE: usize = offset_of!(Self, base);
    /// Offset of the last address for a frame.
    pub const LAST: usize = offset_of!(Self, last);
    /// Offset of the end of the newest frame.
    pub const TOP: usize = offset_of!(Self, top);
    /// Offset of the newest frame's address, which may be null.
    pub const NEWEST: usize = offset_of!(Self, newest);

    /// Makes a shadow stack without memory.
    pub(crate) const fn new() -> Self {
        Self {
            top: Cell::new(ptr::null_mut()),
            last: Cell::new(ptr::null_mut()),
            newest: Cell::new(ptr::null_mut()),
            base: Cell::new(ptr::null_mut()),
        }
    }

    /// Makes this shadow stack of `stack` empty, with `len` bytes of memory at `base`.
    ///
    /// # Safety
    ///
    /// The bytes must be readable and writable, aligned to [`frame::FRAME_ALIGN`], at least
    /// [`frame::HEADER`] and at most 2^32 - 1, and not used otherwise for as long as the stack is
    /// used.
    pub unsafe fn reset(&self, base: *mut u8, len: usize, stack: *const Stack) {
        debug_assert!(base.addr().is_multiple_of(frame::FRAME_ALIGN));
        debug_assert!(len >= HEADER && u32::try_from(len).is_ok());
        let sentinel = base.cast::<Frame>();
        // SAFETY: the caller guarantees the memory.
        unsafe {
            sentinel.write(Frame::sentinel(stack));
        }
        self.base.set(base);
        self.newest.set(sentinel);
        self.top.set(base.wrapping_add(HEADER));
        self.last.set(base.wrapping_add(len - HEADER));
    }

    /// Takes over the frames of `other`, which must not be used meanwhile.
    pub(crate) fn copy_from(&self, other: &Self) {
        // Null in between: a signal handler that leaves here must not leave a newest frame of
        // another stack.
        self.newest.set(ptr::null_mut());
        compiler_fence(Ordering::SeqCst);
        self.top.set(other.top.get());
        self.last.set(other.last.get());
        self.base.set(other.base.get());
        compiler_fence(Ordering::SeqCst);
        self.newest.set(other.newest.get());
    }

    /// Gives up all frames and the memory.
    pub(crate) fn close(&self) {
        self.copy_from(&Self::new());
    }

    /// Returns address and size of the stack's memory.
    pub fn memory(&self) -> (*mut u8, usize) {
        (
            self.base.get(),
            self.last.get().addr() + HEADER - self.base.get().addr(),
        )
    }

    /// Returns true if a frame is in this memory.
    pub(crate) fn holds(&self, frame: *const Frame) -> bool {
        (self.base.get().addr()..=self.last.get().addr()).contains(&frame.addr())
    }

    /// Returns the number of traced calls in progress.
    pub fn depth(&self) -> u32 {
        // SAFETY: the newest frame is a frame of this stack.
        unsafe { (*self.newest.get()).depth }
    }

    /// Returns true if there is no frame, not even of a call whose return no user wants.
    pub(crate) fn is_empty(&self) -> bool {
        // This holds without memory, too.
        self.newest.get().cast() == self.base.get()
    }

    /// Returns true if a frame in this memory is on the stack.
    pub(crate) fn has(&self, frame: *mut Frame) -> bool {
        let mut newest = self.newest.get();
        while newest > frame {
            // SAFETY: a frame of this stack that is newer than another one, so it is not the
            // sentinel.
            newest = unsafe { (*newest).previous };
        }
        newest == frame
    }

    /// Returns true if `frame`, which may be any pointer, is a frame of this stack.
    pub fn is_on(&self, frame: *mut Frame) -> bool {
        self.holds(frame) && self.has(frame)
    }

    /// Returns the newest frame, or the sentinel.
    #[inline(always)]
    pub fn newest(&self) -> *mut Frame {
        self.newest.get()
    }

    /// Returns the end of the newest frame.
    #[inline(always)]
    pub(crate) fn top(&self) -> *mut u8 {
        self.top.get()
    }

    /// Returns true if a call with this return slot may show that frames are dead.
    #[inline(always)]
    pub fn has_dead(&self, return_slot_addr: usize) -> bool {
        // SAFETY: the newest frame is a frame of this stack.
        return_slot_addr >= unsafe { (*self.newest.get()).return_slot_addr }
    }

    /// Removes the newest frame, which is dead.
    fn drop_newest(&self) {
        // SAFETY: both are frames of this stack, or the sentinel.
        unsafe {
            let depth = (*self.newest.get()).depth;
            self.pop();
            // Frames that an unwinder has passed stay together: the newest one has the number of
            // those left.
            let below = self.newest.get();
            if (*below).is_unwound() {
                (*below).depth = (*below).depth.min(depth);
            }
        }
    }

    /// Drops the frames in the way of a call with the return slot `return_slot_addr`: those not
    /// above it that are dead, because they have the same return slot or because `is_gone` says so.
    /// Returns `false` if a frame in the way may be alive, or another thread is dispatching its
    /// return.
    ///
    /// `tail` is true if the call returns to our trampoline. `lost` gets the word of each dropped
    /// frame.
    pub(crate) fn drop_gone(
        &self,
        return_slot_addr: usize,
        tail: bool,
        is_gone: impl Fn(&Frame) -> bool,
        mut lost: impl FnMut(u64),
    ) -> bool {
        loop {
            // SAFETY: the newest frame is a frame of this stack.
            let newest = unsafe { (*self.newest.get()).return_slot_addr };
            if return_slot_addr < newest || (return_slot_addr == newest && tail) {
                return true;
            }
            let is_gone =
                |frame: &Frame| frame.return_slot_addr == return_slot_addr || is_gone(frame);
            if !self.drop_newest_if(is_gone, &mut lost) {
                return false;
            }
        }
    }

    /// Drops the newest frame if no user wants its return any more, or if `is_gone` says that it is
    /// dead.
    pub(crate) fn drop_newest_if(
        &self,
        is_gone: impl Fn(&Frame) -> bool,
        mut lost: impl FnMut(u64),
    ) -> bool {
        let newest = self.newest.get();
        // SAFETY: the newest frame is a frame of this stack.
        let is_gone = unsafe { (*newest).bitmap() == 0 || is_gone(&*newest) };
        if !is_gone {
            return false;
        }
        // SAFETY: the newest frame is a frame of this stack.
        let ended = claim::end(unsafe { frame::shared_word(newest) });
        if let Some(word) = ended {
            lost(word);
            self.drop_newest();
        }
        ended.is_some()
    }

    /// Drops the newest frames above `frame` for which `is_gone` returns true. Returns true if
    /// `frame` is the newest then.
    pub(crate) fn drop_above(
        &self,
        frame: *mut Frame,
        is_gone: impl Fn(&Frame) -> bool,
        mut lost: impl FnMut(u64),
    ) -> bool {
        while self.newest.get() > frame && self.drop_newest_if(&is_gone, &mut lost) {}
        self.newest.get() == frame
    }

    /// Begins a frame at the top, if its fixed part fits. The return address and the caller's frame
    /// pointer are left for the caller; there are no users yet.
    #[inline(always)]
    pub(crate) fn open(
        &self,
        site: *const Site,
        return_slot_addr: usize,
        stamp: u64,
    ) -> Option<*mut Frame> {
        let place = self.top.get();
        if place > self.last.get() {
            return None;
        }
        let frame = place.cast::<Frame>();
        // SAFETY: there is room, and nothing is in use above the top.
        unsafe {
            (*frame).site = site;
            (*frame).return_slot_addr = return_slot_addr;
            (*frame).word = stamp;
        }
        Some(frame)
    }

    /// Returns true if `len` bytes fit at `at`, an address after the fixed part of the frame under
    /// construction.
    #[inline(always)]
    pub(crate) fn fits(&self, at: *mut u8, len: usize) -> bool {
        self.last.get().addr() + HEADER - at.addr() >= len
    }

    /// Makes the frame that was built from the top to `end` the newest.
    ///
    /// # Safety
    ///
    /// A frame was [opened](Self::open), and `end` is the end of its closed records.
    #[inline(always)]
    pub(crate) unsafe fn commit(
        &self,
        bitmap: u16,
        return_address: usize,
        end: *mut u8,
    ) -> *mut Frame {
        let frame = self.top.get().cast::<Frame>();
        let newest = self.newest.get();
        // SAFETY: the caller guarantees the frame; `newest` is a frame of this stack.
        unsafe {
            // The bitmap is empty until now.
            (*frame).word += u64::from(bitmap);
            (*frame).return_address = return_address;
            (*frame).previous = newest;
            Frame::finish(frame, (*newest).depth + 1, end);
        }
        // A signal handler may leave between the two stores with `siglongjmp`. With the top stored
        // first, the newest frame is always below it; at worst some room is lost until an older
        // frame is popped.
        self.top.set(end);
        compiler_fence(Ordering::SeqCst);
        self.newest.set(frame);
        frame
    }

    /// Puts `frame` back if it was the last to be removed, without users, for the unwinder of the
    /// call that has just returned. Returns true if it was.
    ///
    /// # Safety
    ///
    /// It was on this stack or another one, and no frame was put there since it was removed.
    pub unsafe fn push_back(&self, frame: *mut Frame) -> bool {
        let was_last = self.top.get() == frame.cast();
        if was_last {
            // SAFETY: the memory is unchanged since the frame was removed.
            unsafe {
                (*frame).word = frame::stamp((*frame).epoch());
                self.top.set(Frame::end(frame));
            }
            compiler_fence(Ordering::SeqCst);
            self.newest.set(frame);
        }
        was_last
    }

    /// Stores the position of `frame` among tail calls, if it is one. See [`Frame::tail`].
    ///
    /// # Safety
    ///
    /// It must be on this stack.
    pub(crate) unsafe fn note_tail(&self, frame: *mut Frame) {
        // SAFETY: the caller guarantees the frame, which is not the oldest.
        unsafe {
            let previous = (*frame).previous;
            if (*previous).return_slot_addr == (*frame).return_slot_addr {
                if (*previous).tail & frame::TAIL == 0 {
                    (*previous).tail |= frame::TAIL;
                }
                (*frame).tail |= (((*previous).tail & frame::TAIL) - 1).max(1);
            }
        }
    }

    /// Removes the newest frame.
    #[inline(always)]
    pub(crate) fn pop(&self) {
        let frame = self.newest.get();
        // SAFETY: the newest frame is a frame of this stack.
        self.newest.set(unsafe { (*frame).previous });
        // The top last, so that the newest frame is always below it.
        compiler_fence(Ordering::SeqCst);
        self.top.set(frame.cast());
    }

    /// Removes `frame`, if it is the newest: its call is not left through it after all.
    pub fn retract(&self, frame: *mut Frame) {
        if self.newest.get() == frame && self.depth() != 0 {
            self.pop();
        }
    }

    /// Drops the newest frames above `frame` for which `is_gone` returns true, up to one that has
    /// been unwound. That frame and older ones stay until a call shows that they are dead: the
    /// unwinder still reads them, and so does a signal handler that takes a backtrace meanwhile.
    pub(crate) fn drop_above_unwound(
        &self,
        frame: *mut Frame,
        is_gone: impl Fn(&Frame) -> bool,
        mut lost: impl FnMut(u64),
    ) {
        while self.newest.get() > frame
            && !self.is_newest_unwound()
            && self.drop_newest_if(&is_gone, &mut lost)
        {}
    }

    fn is_newest_unwound(&self) -> bool {
        // SAFETY: the newest frame is a frame of this stack.
        unsafe { (*self.newest.get()).is_unwound() }
    }

    /// Ends `frame`, which is unwound, and keeps its memory: no user wants its return any more.
    ///
    /// # Safety
    ///
    /// It must be on this stack.
    pub(crate) unsafe fn unwound(&self, frame: *mut Frame) {
        // SAFETY: the caller guarantees the frame; the newest one is a frame of this stack.
        unsafe {
            if !(*frame).is_unwound() {
                (*frame).word = frame::stamp((*frame).epoch());
                (*frame).depth -= 1;
            }
            if self.is_newest_unwound() {
                (*self.newest.get()).depth = (*frame).depth;
            }
        }
    }
}

impl Default for ShadowStack {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::ShadowStack;
    use crate::frame::HEADER;
    use core::ptr;

    #[repr(align(32))]
    struct Memory([u8; 4 * HEADER]);

    #[test]
    fn only_the_newest_frame_is_retracted() {
        let mut memory = Memory([0; 4 * HEADER]);
        let stack = ShadowStack::new();
        // SAFETY: the memory outlives the stack's use.
        unsafe { stack.reset(memory.0.as_mut_ptr(), memory.0.len(), ptr::null()) };
        let push = |return_slot_addr| {
            let frame = stack.open(ptr::null(), return_slot_addr, 0).unwrap();
            // SAFETY: the frame was just opened, and has no records.
            unsafe { stack.commit(1, 0, frame.cast::<u8>().wrapping_add(HEADER)) }
        };
        let sentinel = stack.newest();
        let (older, newer) = (push(16), push(8));
        let top = stack.top();

        stack.retract(older);
        assert_eq!((stack.newest(), stack.top()), (newer, top));
        stack.retract(newer);
        assert_eq!((stack.newest(), stack.top()), (older, newer.cast()));
        stack.retract(newer);
        stack.retract(older);
        assert_eq!((stack.newest(), stack.top()), (sentinel, older.cast()));
        stack.retract(sentinel);
        assert_eq!((stack.newest(), stack.depth()), (sentinel, 0));
    }

    #[test]
    fn a_frame_that_was_just_removed_is_put_back_without_users() {
        let mut memory = Memory([0; 4 * HEADER]);
        let stack = ShadowStack::new();
        // SAFETY: the memory outlives the stack's use.
        unsafe { stack.reset(memory.0.as_mut_ptr(), memory.0.len(), ptr::null()) };
        let frame = stack.open(ptr::null(), 8, crate::frame::stamp(3)).unwrap();
        // SAFETY: the frame was just opened, without records; then removed, and nothing was put
        // there.
        unsafe {
            stack.commit(1, 0, frame.cast::<u8>().wrapping_add(HEADER));
            let top = stack.top();
            assert!(!stack.push_back(frame), "it is still there");
            stack.pop();
            assert!(!stack.is_on(frame));
            assert!(stack.push_back(frame));
            assert!(stack.is_on(frame));
            assert_eq!((stack.newest(), stack.top()), (frame, top));
            assert_eq!(((*frame).bitmap(), (*frame).epoch()), (0, 3));
        }
    }
}
