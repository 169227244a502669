//! States for interrupts that come while the interrupted task is in fgraph: in a callback, say.
//!
//! A state has one frame under construction, so calls of such an interrupt would only be counted.
//! Each processor therefore has states of its own, and the interrupt changes to one of them, as a
//! switch of tasks does:
//!
//! ```text
//!   task               callback of the task ............... goes on
//!   interrupt            fs = state 0,  calls ....... fs = the task's
//!   NMI in a callback of that    fs = state 1,  calls  fs = state 0
//! ```
//!
//! The stack is still the task's. Interrupts are disabled, so the task is not switched meanwhile.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use fgraph_core::dispatch;
use fgraph_core::thread::Thread;
use fgraph_x86_64::trampoline;

use crate::cpu::{self, PROCESSORS};
use crate::tasks::{self, STORAGE, TASKS};

use super::state::{self, FGRAPH, SHADOW};

/// The most interrupts on top of each other that have a state: one, and NMIs where a breakpoint has
/// let another one come.
const LEVELS: usize = 4;
/// The number of all states.
pub(super) const CONTEXTS: usize = PROCESSORS * LEVELS;
/// The id of the first state; no task gets that far.
const FIRST_ID: u32 = 1 << 30;

// SAFETY: a state is used by the processor's interrupt of its level, after `prepare`.
static STATES: [Thread; CONTEXTS] = [const { unsafe { Thread::new() } }; CONTEXTS];

/// The thread-local storage of each state.
static STORAGES: [[AtomicU64; STORAGE / 8]; CONTEXTS] =
    [const { [const { AtomicU64::new(0) }; STORAGE / 8] }; CONTEXTS];

/// The number of states of each processor that are in use.
static LEVEL: [AtomicUsize; PROCESSORS] = [const { AtomicUsize::new(0) }; PROCESSORS];

/// Gives the states their shadow stacks, which are behind those of the tasks.
pub(super) fn prepare() {
    for (nth, state) in STATES.iter().enumerate() {
        assert!(state.claim(FIRST_ID + nth as u32, &FGRAPH.watched));
        // SAFETY: this part of the arena is only for this state.
        unsafe { state.reset_thread_stack(state::shadow_of(TASKS + nth), SHADOW) };
        state.errno.set(state.no_errno());
        state.vector_bytes.set(16);
        FGRAPH.threads.push(state);
    }
}

fn thread_pointer(nth: usize) -> usize {
    (&raw const STORAGES[nth]).addr() + STORAGE - 16
}

/// Returns the state whose storage the running processor uses.
pub(super) fn of_storage() -> Option<&'static Thread> {
    let storage = cpu::thread_pointer();
    let nth = (0..CONTEXTS).find(|&nth| thread_pointer(nth) == storage)?;
    Some(&STATES[nth])
}

/// Returns true if a state with this id is one of these, which last as long as the kernel.
pub(crate) fn has(id: u32) -> bool {
    (FIRST_ID..FIRST_ID + CONTEXTS as u32).contains(&id)
}

/// Runs `work`, the calls of an interrupt, with interrupts disabled.
pub(crate) fn run<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: null, or the state that the storage in use leads to.
    let interrupted = unsafe { trampoline::current().as_ref() };
    let is_inside = |state: &Thread| state.entered_sp.load(Ordering::Relaxed) != 0;
    if !interrupted.is_some_and(is_inside) {
        return work();
    }
    let processor = cpu::number();
    let level = LEVEL[processor].fetch_add(1, Ordering::Relaxed);
    let result = match level < LEVELS {
        true => run_with(processor * LEVELS + level, work),
        false => work(),
    };
    LEVEL[processor].fetch_sub(1, Ordering::Relaxed);
    result
}

fn run_with<R>(nth: usize, work: impl FnOnce() -> R) -> R {
    let state = &STATES[nth];
    let stack = tasks::stack(tasks::current());
    state.leave_stack();
    state.thread_stack.set_bounds(stack.start, stack.end);
    state.enter_thread_stack();
    let storage = cpu::thread_pointer();
    // SAFETY: the state is that of this interrupt, which is over when the storage is as before.
    unsafe {
        cpu::set_thread_pointer(thread_pointer(nth));
        let result = work();
        cpu::set_thread_pointer(storage);
        result
    }
}

/// Ends the interrupts of the running processor, whose stack is lost.
pub(crate) fn end_all() {
    let processor = cpu::number();
    let used = LEVEL[processor].swap(0, Ordering::Relaxed).min(LEVELS);
    for state in &STATES[processor * LEVELS..][..used] {
        dispatch::abandon(state);
        state.hazard_slot.clear();
        // Release pairs with the Acquire of the grace period: the callback has ended.
        state.entered_sp.store(0, Ordering::Release);
    }
}
