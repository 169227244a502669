//! The runtime's functions for machine stacks.

use crate::thread::Thread;

/// The address and the registers with which a function continues after its current call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The address of the next instruction. For a function that a signal has interrupted, it is one
    /// more than the interrupted address, so that the byte before it belongs to the function in
    /// each case.
    pub address: usize,
    /// The stack pointer at that address.
    pub stack_pointer: usize,
    /// The frame pointer at that address.
    pub frame_pointer: usize,
}

/// The runtime's functions for machine stacks. Without them every thread has only its thread stack.
#[derive(Clone, Copy, Debug)]
pub struct StackProvider {
    /// Switches the thread to the shadow stack for a call, by the address of the call's return
    /// slot, and drops dead frames there. The last argument is true for a tail call of a traced
    /// function. Returns `false` if no shadow stack can be used.
    pub find: fn(&Thread, usize, bool) -> bool,
    /// Returns true if an address is on the alternate stack of the thread's signal handlers, which
    /// may be inside its thread stack.
    pub is_alternate: fn(usize) -> bool,
    /// Returns true if two addresses, the lower one first, are on one machine stack of the thread.
    pub are_on_one: fn(&Thread, usize, usize) -> bool,
    /// Returns true if a call is certainly over, from its return slot and its return address. The
    /// slot holds our return point while the call is in progress, and still the return address when
    /// it is about to begin. The machine stack itself may be gone.
    pub is_gone: fn(usize, usize) -> bool,
    /// Returns where the caller of a function continues, from the position of the function on a
    /// machine stack of the running thread, whose state is passed; `None` if that is unknown.
    pub caller: fn(&Thread, Position) -> Option<Position>,
}

/// The functions for threads that have only their thread stack.
pub(crate) static HOMES: StackProvider = StackProvider {
    find: |_, _, _| false,
    is_alternate: |_| false,
    are_on_one: |thread, low, high| {
        thread.thread_stack.contains(low) && thread.thread_stack.contains(high)
    },
    is_gone: |_, _| true,
    caller: |_, _| None,
};
