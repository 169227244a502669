//! The running thread's pointer to its state, in thread-local storage.
//!
//! # Safety
//!
//! The unsafe code reads and writes words of the running thread's own storage.

use core::arch::{asm, global_asm};
use core::mem::offset_of;
use core::ptr;

use fgraph_core::thread::{StackEnd, Thread};

/// The state of a thread whose own state is being made.
// SAFETY: only its counters are used, because it is always inside.
pub(super) static ATTACHING: Thread = unsafe { Thread::always_inside() };

// Words of thread-local storage, in the initial-exec model: two plain loads from anywhere,
// including a signal handler and a shared library, where `thread_local!` may call the allocator.
// The first word is the state. The second is the stack pointer at which making the state began: a
// call above it shows that a signal handler has left with `siglongjmp`. Then the end of the stack,
// and the words that `near_end.rs` uses.
global_asm!(
    ".pushsection .tbss.fgraph_thread, \"awT\", @nobits",
    ".p2align 3",
    ".globl fgraph_thread",
    ".hidden fgraph_thread",
    ".type fgraph_thread, @object",
    ".size fgraph_thread, {size}",
    "fgraph_thread:",
    ".zero {size}",
    ".popsection",
    size = const SCRATCH + 9 * size_of::<usize>(),
);

/// Offset in the thread-local storage of the end of the thread's stack.
pub(super) const STACK_END: usize = 16;
/// Offset of the scratch words of `near_end.rs`.
pub(super) const SCRATCH: usize = STACK_END + size_of::<StackEnd>();

/// Returns the offset from the thread pointer of the thread-local storage.
fn offset() -> usize {
    let offset;
    // SAFETY: reads a constant that the linker has stored.
    unsafe {
        asm!(
            "mov {offset}, qword ptr [rip + fgraph_thread@GOTTPOFF]",
            offset = out(reg) offset,
            options(nostack, preserves_flags, readonly),
        );
    }
    offset
}

/// Returns the [storage](crate::stub::guarded::Guard::storage) of guarded stubs.
///
/// # Panics
///
/// Panics if it is further than 2 GiB from the thread pointer: no linker puts it there.
pub fn guard_storage() -> [i32; 3] {
    let words = [offset_of!(StackEnd, near), offset_of!(StackEnd, low)];
    let [near, low] = words.map(|word| STACK_END + word);
    [near, low, SCRATCH].map(|word| {
        let at = offset().wrapping_add(word).cast_signed();
        i32::try_from(at).expect("beside the thread pointer")
    })
}

/// Returns the words of the calling thread that have the end of its stack.
pub fn stack_end() -> *const StackEnd {
    let at = crate::cpu::thread_pointer().wrapping_add(offset());
    ptr::with_exposed_provenance(at.wrapping_add(STACK_END))
}

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
