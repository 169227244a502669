//! What the runtime knows of machine stacks.

use crate::thread::Thread;

/// Where a function goes on when the call that it makes returns, and with which registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The address of the next instruction. For a function that a signal has interrupted, one more
    /// than where it is: so the byte before it belongs to the function in each case.
    pub address: usize,
    /// The stack pointer there.
    pub stack_pointer: usize,
    /// The frame pointer there.
    pub frame_pointer: usize,
}

/// What the runtime knows of machine stacks. Without it every thread has only its home.
#[derive(Clone, Copy, Debug)]
pub struct StackProvider {
    /// Makes the stack of a call whose return address stands at an address the thread's, one on
    /// which no frame is in its way; the last argument tells whether it is a tail call of a traced
    /// function. `false` if there is none.
    pub find: fn(&Thread, usize, bool) -> bool,
    /// Whether an address is on the alternate stack of the thread's signal handlers, which may lie
    /// within its home.
    pub is_alternate: fn(usize) -> bool,
    /// Whether two addresses, the lower one first, are on one machine stack of the thread.
    pub are_on_one: fn(&Thread, usize, usize) -> bool,
    /// Whether a call is surely over, told from where its return address stood and what that was.
    /// Our return point stands there while the call goes on, and still the return address when
    /// it is about to begin. The machine stack may be gone itself.
    pub is_gone: fn(usize, usize) -> bool,
    /// Where the caller of a function goes on, told from where the function does, on a machine
    /// stack of the running thread, whose state is given; `None` if that is not known.
    pub caller: fn(&Thread, Position) -> Option<Position>,
}

/// A provider for threads that have only their home.
pub(crate) static HOMES: StackProvider = StackProvider {
    find: |_, _, _| false,
    is_alternate: |_| false,
    are_on_one: |thread, low, high| thread.home.contains(low) && thread.home.contains(high),
    is_gone: |_, _| true,
    caller: |_, _| None,
};
