//! The arena of shadow stacks and return points, and the function that gives a task its state.

use core::ptr;
use core::slice;

use fgraph_core::points::KINDS;
use fgraph_core::thread::Thread;
use fgraph_x86_64::cpu;
use fgraph_x86_64::trampoline::{self, Abort, Trampolines, points};

use crate::memory::{self, PAGE, Use};
use crate::tasks::{self, TASKS};

use super::contexts::{self, CONTEXTS};
use super::state::{ARENA, FGRAPH, SHADOW, SPAN, STACKS, STATES, shadow_of};

/// Bytes of all shadow stacks.
const SHADOWS: usize = (TASKS + CONTEXTS) * SHADOW;

const _: () = assert!(SHADOWS <= SPAN);

/// Makes the arena, and sets the trampolines up, which call `abort` if a frame and the stack do not
/// belong together.
pub(super) fn prepare(abort: Abort) -> Trampolines {
    // SAFETY: `attach` returns the running task's state. Nothing else uses the arena's addresses,
    // which are a multiple of four spans; the pages of return points are complete before they are
    // executable.
    unsafe {
        let trampolines = trampoline::install(attach, abort);
        assert!(cpu::vector_bytes() == 16, "the kernel enables SSE only");
        points::set_span(SPAN);
        memory::map_new(ARENA, SHADOWS);
        for kind in 0..KINDS {
            let page = memory::frame();
            let bytes = slice::from_raw_parts_mut(memory::direct(page) as *mut u8, PAGE);
            points::write(kind, &trampolines, bytes);
            for offset in (0..SHADOWS).step_by(PAGE) {
                memory::map_sealed(ARENA + (kind + 1) * SPAN + offset, page, Use::Code);
            }
        }
        assert!(FGRAPH.points.add(ARENA));
        FGRAPH.set_stacks(&STACKS);
        STATES.iter().for_each(|state| FGRAPH.threads.push(state));
        contexts::prepare();
        trampolines
    }
}

/// Makes the state of the task whose storage is in use. The trampoline calls it at a task's first
/// traced call; null if the task cannot be traced.
extern "C" fn attach() -> *const Thread {
    // By the storage: an NMI may come where the processor has announced the next task already.
    let Some(task) = tasks::of_storage() else {
        return contexts::of_storage().map_or(ptr::null(), ptr::from_ref);
    };
    let state = &STATES[task];
    if !state.claim(tasks::number(task), &FGRAPH.watched) {
        return ptr::null();
    }
    let stack = tasks::stack(task);
    // SAFETY: the task's own part of the arena.
    unsafe { state.reset_thread_stack(shadow_of(task), SHADOW) };
    state.thread_stack.set_bounds(stack.start, stack.end);
    state.enter_thread_stack();
    state.errno.set(state.no_errno());
    state.vector_bytes.set(16);
    state
}
