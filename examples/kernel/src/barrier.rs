//! The barrier between processors: each of them executes a full fence, and drops the instructions
//! that it has fetched.
//!
//! ```text
//!   caller                              other processor
//!     wanted += 1
//!     interrupt ------------------------> serialize
//!     wait until done = wanted <--------- done = wanted
//! ```
//!
//! It is the kernel's side of what `membarrier` is in a process: the fences of fgraph's readers are
//! for the compiler only, and rely on it. A task that does not run needs no interrupt: it was
//! switched out, and a processor switches tasks with the lock of the run queue.

use core::hint;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use crate::apic;
use crate::cpu::{self, PROCESSORS};

/// The processors that take part.
static STARTED: [AtomicBool; PROCESSORS] = [const { AtomicBool::new(false) }; PROCESSORS];
static WANTED: [AtomicU64; PROCESSORS] = [const { AtomicU64::new(0) }; PROCESSORS];
static DONE: [AtomicU64; PROCESSORS] = [const { AtomicU64::new(0) }; PROCESSORS];

/// Lets the running processor take part from now on.
pub(crate) fn join() {
    // Release pairs with the Acquire in `processors` and `run`: the processor takes interrupts.
    STARTED[cpu::number()].store(true, Ordering::Release);
}

/// Returns the number of processors that take part.
pub(crate) fn processors() -> usize {
    let started = STARTED.iter();
    started
        .filter(|started| started.load(Ordering::Acquire))
        .count()
}

/// Returns after every processor has executed a full fence and a serializing instruction since the
/// call. One task at a time calls it, with interrupts enabled.
pub(crate) fn run() {
    debug_assert!(cpu::interrupts_are_enabled());
    // All processors but this one. If the task moves from here, this processor has switched tasks.
    // That takes a lock, which is a fence, and writes a register of the processor, which
    // serializes.
    let own = cpu::number();
    let mut targets = [0; PROCESSORS];
    for other in (0..PROCESSORS).filter(|&other| other != own) {
        if STARTED[other].load(Ordering::Acquire) {
            // SeqCst: pairs with the load in `handle`; the caller's stores come before.
            targets[other] = WANTED[other].fetch_add(1, Ordering::SeqCst) + 1;
            apic::interrupt(other, apic::BARRIER);
        }
    }
    cpu::serialize();
    // Pairs with the fences of the other processors: the caller's stores before this are seen
    // there, or the caller sees what they have stored.
    fence(Ordering::SeqCst);
    for other in (0..PROCESSORS).filter(|&other| other != own) {
        // Acquire pairs with the Release in `handle`: what the processor did before is visible.
        while DONE[other].load(Ordering::Acquire) < targets[other] {
            hint::spin_loop();
        }
    }
}

/// Handles the interrupt.
pub(crate) fn handle() {
    let number = cpu::number();
    // SeqCst pairs with the addition in `run`.
    let wanted = WANTED[number].load(Ordering::SeqCst);
    // The fence that the caller of `run` relies on.
    fence(Ordering::SeqCst);
    cpu::serialize();
    // Release pairs with the Acquire in `run`.
    DONE[number].fetch_max(wanted, Ordering::Release);
}
