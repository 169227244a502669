//! Machine stacks, each with a shadow stack of its own.
//!
//! A thread has one machine stack from the start, its *home*. But it may run on others: on the
//! alternate stack of its signal handlers, and on those of coroutines, which go from thread to
//! thread. For those the runtime makes *spare* ones.
//!
//! ```text
//!    thread 1 --on--> home of 1                  thread 2 --on-----+   home of 2
//!                                                                  v
//!    spare, of nobody    spare, of nobody    spare, taken by 2 <---+   (a coroutine's)
//! ```
//!
//! A thread has copied to its own state, where it is reached soonest, the one that it was last seen
//! on, and uses it until a call, or a return, shows that it is on another: its place is not within
//! the bounds, or its frame is not the newest.
//!
//! *Whose frames.* The bounds of a thread's home are known. Where a coroutine's stack ends is not:
//! what is mapped as one piece may hold several of them. So a spare one may come to hold frames of
//! more than one machine stack, and nothing that must not fail follows from an address there:
//!
//! - Only the thread that has *taken* a stack adds frames to it or removes some. It is given back
//!   when the thread is seen elsewhere, and never taken away. Homes too are taken: a thread may go
//!   on with the context that another began with.
//! - A call that comes back finds its frame in rbp. If the frame is in a stack that another thread
//!   has taken, or beneath frames that may live, the users are told, and the frame is left to be
//!   dropped.
//! - A frame in the way is dropped only if it is surely dead: its place on the machine stack does
//!   not hold our return point any more, or is that of the call that is made now. If it may live,
//!   the call takes another spare stack.

use core::cell::Cell;

use crate::claim::Claim;
use crate::frame::Frame;
use crate::shadow::ShadowStack;

/// One machine stack, as far as it is known.
#[repr(C)]
#[derive(Debug)]
pub struct Stack {
    /// The lowest address of the stack.
    pub low: Cell<usize>,
    /// Bytes; 0 while it is not known.
    pub span: Cell<usize>,
    /// The frames of the calls going on, but while a thread is on it.
    pub shadow: ShadowStack,
    /// The thread that may change it.
    pub claim: Claim,
    shared: Cell<bool>,
}

// SAFETY: the cells are used by the thread that has taken it. The claim hands them on.
unsafe impl Sync for Stack {}

impl Stack {
    /// One without bounds or room.
    ///
    /// # Safety
    ///
    /// It must be used as the module says: by the thread that has taken it, and not before its
    /// shadow stack has memory.
    pub const unsafe fn new() -> Self {
        Self {
            low: Cell::new(0),
            span: Cell::new(0),
            shadow: ShadowStack::new(),
            claim: Claim::new(),
            shared: Cell::new(false),
        }
    }

    /// Whether an address is within the bounds.
    #[inline(always)]
    pub fn contains(&self, address: usize) -> bool {
        address.wrapping_sub(self.low.get()) < self.span.get()
    }

    /// Whether other spare stacks are for the same memory.
    pub fn is_shared(&self) -> bool {
        self.shared.get()
    }

    /// Notes whether other spare stacks are for the same memory. Then frames here may be of several
    /// machine stacks, of which another thread may run one, and no call here encloses another for
    /// sure.
    pub fn set_shared(&self, shared: bool) {
        self.shared.set(shared);
    }

    /// Sets the bounds. No thread may be on it.
    pub fn set_bounds(&self, low: usize, end: usize) {
        self.low.set(low);
        self.span.set(end - low);
    }
}

/// The stack that holds `frame`, which is on one of them.
///
/// # Safety
///
/// `frame` must be a frame that was not dropped.
pub(crate) unsafe fn holder(mut frame: *const Frame) -> &'static Stack {
    // SAFETY: the frames beneath one that was not dropped stay, and the sentinel is the last.
    unsafe {
        while !(*frame).previous.is_null() {
            frame = (*frame).previous;
        }
        &*((*frame).return_address as *const Stack)
    }
}
