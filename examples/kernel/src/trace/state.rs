//! The state and the shadow stack of each task, in fixed memory.
//!
//! A task gets its state at its first traced call, by `attach`, which the trampoline calls with
//! interrupts disabled. All shadow stacks are in one arena:
//!
//! ```text
//!   ffffa000_00000000          + 1 MiB          + 2 MiB          + 3 MiB
//!     | task 0 | task 1 | ...   | points, kind 0 | points, kind 1 | points, kind 2 |
//! ```
//!
//! The return points of a kind are one page, which is mapped beside each page of frames.

use core::sync::atomic::Ordering;

use fgraph_core::dispatch;
use fgraph_core::stack_provider::{Position, StackProvider};
use fgraph_core::thread::Thread;
use fgraph_core::{Counters, Fgraph};
use fgraph_x86_64::trampoline;

use crate::tasks::{self, TASKS};

/// The state that tasks, users and dispatch share.
// SAFETY: this is the kernel's one runtime.
pub(crate) static FGRAPH: &Fgraph = unsafe { fgraph_core::FGRAPH.get() };

// SAFETY: a state is used by its task, which has claimed it and given it memory, or by the one that
// frees the ended task.
pub(super) static STATES: [Thread; TASKS] = [const { unsafe { Thread::new() } }; TASKS];

/// The arena, a multiple of four spans.
pub(super) const ARENA: usize = 0xffff_a000_0000_0000;
/// Bytes of all shadow stacks, rounded up to a power of two.
pub(super) const SPAN: usize = 1 << 20;
/// Bytes of a task's shadow stack: room for 500 calls without data.
pub(super) const SHADOW: usize = 32 << 10;

/// The kernel's functions for machine stacks: each task has one.
pub(super) static STACKS: StackProvider = StackProvider {
    find: |_, _, _| false,
    is_alternate: |_| false,
    are_on_one: |thread, low, high| {
        thread.thread_stack.contains(low) && thread.thread_stack.contains(high)
    },
    is_gone: |_, _| true,
    caller: |thread, position| {
        let (low, span) = (thread.low.get(), thread.span.get());
        let pointer = position.frame_pointer;
        let is_on_stack = pointer.wrapping_sub(low) < span.saturating_sub(16);
        if !is_on_stack || pointer < position.stack_pointer || !pointer.is_multiple_of(8) {
            return None;
        }
        // SAFETY: two words of the running task's stack.
        let [frame_pointer, address] = unsafe { *(pointer as *const [usize; 2]) };
        (address != 0).then_some(Position {
            address,
            stack_pointer: pointer + 16,
            frame_pointer,
        })
    },
};

/// Returns the memory of a shadow stack: those of tasks come first.
pub(super) fn shadow_of(nth: usize) -> *mut u8 {
    (ARENA + nth * SHADOW) as *mut u8
}

/// Ends the calls of the tasks that have ended, and lets their places be used again. Returns the
/// numbers of tasks that have ended, and of those that a fault has ended.
pub(crate) fn reap() -> (u64, u64) {
    let (mut ended, mut by_fault) = (0, 0);
    while let Some((task, is_by_fault)) = tasks::ended() {
        let state = &STATES[task];
        if state.id() != 0 {
            // The task is gone, and no other runs on its stack.
            assert!(dispatch::abandon(state));
            assert!(state.release(tasks::number(task)));
        }
        tasks::free(task);
        ended += 1;
        by_fault += u64::from(is_by_fault);
    }
    (ended, by_fault)
}

/// Returns true if the running task is in a callback.
pub(super) fn is_in_callback() -> bool {
    // SAFETY: null, or the task's own state.
    let state = unsafe { trampoline::current().as_ref() };
    // The hazard slot of a task that is not inside is stale.
    let is_inside = |state: &Thread| state.entered_sp.load(Ordering::Relaxed) > Thread::UNTRACED;
    state.is_some_and(|state| is_inside(state) && state.hazard_slot.is_set())
}

/// Drops the frames of the running task, as a kernel with a defect might: their calls then return
/// through frames that are not there.
pub(crate) fn lose_frames() {
    // SAFETY: the task's own state.
    if let Some(state) = unsafe { trampoline::current().as_ref() } {
        dispatch::abandon(state);
    }
}

/// Returns the counts of untraced calls of all tasks and interrupts.
pub(crate) fn counters() -> Counters {
    FGRAPH.counters()
}
