//! The running thread's pointer to its state, in thread-local storage.
//!
//! # Safety
//!
//! The unsafe code reads and writes words of the running thread's own storage.

use core::arch::{asm, global_asm};

use fgraph_core::thread::Thread;

/// The state of a thread whose own state is being made.
// SAFETY: only its counters are used, because it is always inside.
pub(super) static ATTACHING: Thread = unsafe { Thread::always_inside() };

// Two words of thread-local storage, in the initial-exec model: two plain loads from anywhere,
// including a signal handler and a shared library, where `thread_local!` may call the allocator.
// The first word is the state. The second is the stack pointer at which making the state began: a
// call above it shows that a signal handler has left with `siglongjmp`.
global_asm!(
    ".pushsection .tbss.fgraph_thread, \"awT\", @nobits",
    ".p2align 3",
    ".globl fgraph_thread",
    ".hidden fgraph_thread",
    ".type fgraph_thread, @object",
    ".size fgraph_thread, 16",
    "fgraph_thread:",
    ".zero 16",
    ".popsection",
);

/// Returns the calling thread's state; null before its first hit.
#[inline(always)]
pub fn current() -> *const Thread {
    let thread;
    // SAFETY: reads one word of this thread's own storage.
    unsafe {
        asm!(
            "mov {thread}, qword ptr [rip + fgraph_thread@GOTTPOFF]",
            "mov {thread}, qword ptr fs:[{thread}]",
            thread = out(reg) thread,
            options(nostack, preserves_flags, readonly),
        );
    }
    thread
}

/// Sets the calling thread's state.
///
/// # Safety
///
/// The state must be this thread's own, and remain so.
pub unsafe fn set_current(thread: *const Thread) {
    // SAFETY: writes one word of this thread's own storage.
    unsafe {
        asm!(
            "mov {place}, qword ptr [rip + fgraph_thread@GOTTPOFF]",
            "mov qword ptr fs:[{place}], {thread}",
            place = out(reg) _,
            thread = in(reg) thread,
            options(nostack, preserves_flags),
        );
    }
}

/// Notes that the calling thread's state is being made, until it is [set](set_current): calls
/// deeper in the stack are not traced.
///
/// # Safety
///
/// The thread has no state, and gets one before this call's caller returns.
#[inline(always)]
pub unsafe fn set_attaching() {
    // SAFETY: writes two words of this thread's own storage; the state is always inside.
    unsafe {
        asm!(
            "mov {place}, qword ptr [rip + fgraph_thread@GOTTPOFF]",
            "mov qword ptr fs:[{place} + 8], rsp",
            "mov qword ptr fs:[{place}], {attaching}",
            place = out(reg) _,
            attaching = in(reg) &raw const ATTACHING,
            options(nostack, preserves_flags),
        );
    }
}

/// Returns the shared state of all threads whose own state is being made: their calls meanwhile are
/// counted here.
///
/// # Safety
///
/// Only its counters may be used.
pub unsafe fn attaching() -> &'static Thread {
    &ATTACHING
}
