//! The tracer's count for each thread: accepted entries that have not returned.
//!
//! In the initial-exec model, as fgraph's own word: `thread_local!` may call the allocator, which
//! may be what is being traced.
//!
//! # Safety
//!
//! The unsafe code reads and writes the thread's own storage.

use core::arch::{asm, global_asm};

global_asm!(
    ".pushsection .tbss.reliability_depth, \"awT\", @nobits",
    ".p2align 3",
    ".globl reliability_depth",
    ".hidden reliability_depth",
    ".type reliability_depth, @object",
    ".size reliability_depth, 8",
    "reliability_depth:",
    ".zero 8",
    ".popsection",
);

/// Entries of this thread that have not returned.
pub(crate) fn depth() -> u64 {
    let depth;
    // SAFETY: reads one word of this thread's own storage.
    unsafe {
        asm!(
            "mov {depth}, qword ptr [rip + reliability_depth@GOTTPOFF]",
            "mov {depth}, qword ptr fs:[{depth}]",
            depth = out(reg) depth,
            options(nostack, preserves_flags, readonly),
        );
    }
    depth
}

/// Sets it.
pub(crate) fn set_depth(depth: u64) {
    // SAFETY: writes one word of this thread's own storage.
    unsafe {
        asm!(
            "mov {place}, qword ptr [rip + reliability_depth@GOTTPOFF]",
            "mov qword ptr fs:[{place}], {depth}",
            place = out(reg) _,
            depth = in(reg) depth,
            options(nostack, preserves_flags),
        );
    }
}
