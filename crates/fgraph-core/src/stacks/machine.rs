//! Machine stacks, each with its own shadow stack.
//!
//! A thread starts on one machine stack, its thread stack. But it may run on others: on the
//! alternate stack of its signal handlers, and on those of coroutines, which move from thread to
//! thread. The runtime makes *spare* shadow stacks for these.
//!
//! ```text
//!    thread 1 --on--> stack of thread 1          thread 2 --on-----+   stack of thread 2
//!                                                                  v
//!    spare, of nobody    spare, of nobody    spare, taken by 2 <---+   (a coroutine's)
//! ```
//!
//! A thread keeps a copy of the stack on which it was last seen in its own state, for fast access.
//! It uses the copy until a call, or a return, shows that it is on another stack: the return slot
//! is outside of the bounds, or the frame is not the newest.
//!
//! *Ownership of frames.* The bounds of a thread stack are known. The end of a coroutine's stack is
//! not: one mapping may hold several of them. So a spare stack may come to hold frames of more than
//! one machine stack, and nothing that must not fail is concluded from an address there:
//!
//! - Only the thread that has *claimed* a stack adds or removes frames. It gives the stack back
//!   when the thread is seen elsewhere, and nobody takes it away. Thread stacks are claimed, too: a
//!   thread may continue with the context that another one began.
//! - A call returns to the return point of its frame. If the frame is in a stack that another
//!   thread has claimed, or older than frames that may be alive, the return is dispatched, and the
//!   frame is left for later.
//! - A frame in the way is dropped only if it is certainly dead: its return slot no longer holds
//!   our return point, or is the return slot of the current call. If the frame may be alive, the
//!   call takes another spare stack.

use core::cell::Cell;

use crate::claim::Claim;
use crate::frame::Frame;
use crate::shadow::ShadowStack;

/// A machine stack, as far as it is known.
#[repr(C)]
#[derive(Debug)]
pub struct Stack {
    /// The lowest address of the stack.
    pub low: Cell<usize>,
    /// The size in bytes; 0 while it is unknown.
    pub span: Cell<usize>,
    /// The frames of the calls in progress; out of date while a thread is on the stack.
    pub shadow: ShadowStack,
    /// The claim of the thread that may change it.
    pub claim: Claim,
    shared: Cell<bool>,
}

// SAFETY: only the thread with the claim uses the cells, and the claim synchronizes the threads.
unsafe impl Sync for Stack {}

impl Stack {
    /// Makes a stack without bounds or memory.
    ///
    /// # Safety
    ///
    /// Only the thread that has the claim may use it, and only after its shadow stack has memory.
    pub const unsafe fn new() -> Self {
        Self {
            low: Cell::new(0),
            span: Cell::new(0),
            shadow: ShadowStack::new(),
            claim: Claim::new(),
            shared: Cell::new(false),
        }
    }

    /// Returns true if an address is within the bounds.
    #[inline(always)]
    pub fn contains(&self, address: usize) -> bool {
        address.wrapping_sub(self.low.get()) < self.span.get()
    }

    /// Returns true if other spare stacks are for the same memory.
    pub fn is_shared(&self) -> bool {
        self.shared.get()
    }

    /// Sets if other spare stacks are for the same memory. Then frames here may belong to several
    /// machine stacks; another thread may run on one of them, and no call here certainly encloses
    /// another.
    pub fn set_shared(&self, shared: bool) {
        self.shared.set(shared);
    }

    /// Sets the bounds. No thread may be on the stack.
    pub fn set_bounds(&self, low: usize, end: usize) {
        self.low.set(low);
        self.span.set(end - low);
    }
}

/// Returns the stack that holds `frame`.
///
/// # Safety
///
/// `frame` must be a frame on a stack, not yet dropped.
pub(crate) unsafe fn holder(mut frame: *const Frame) -> &'static Stack {
    // SAFETY: the frames older than a live one stay, and the sentinel is the last.
    unsafe {
        while !(*frame).previous.is_null() {
            frame = (*frame).previous;
        }
        &*((*frame).return_address as *const Stack)
    }
}
