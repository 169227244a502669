//! Code that moves a mapping over text, and that does not run in that text.
//!
//! `mremap` unmaps the old text before it moves the new one there. Were the move to fail after
//! that, nothing could run in the text any more, not even the caller. So the two system calls are
//! made by code that the caller has copied to a page of its own: if the text is gone, this maps
//! the file there before it returns.
//!
//! The kernel holds its lock of the memory for the whole move: a thread that fetches an
//! instruction meanwhile has it from the old page, or waits for the new one.

use core::arch::global_asm;
use core::ffi::c_void;
use core::mem::offset_of;
use core::slice;

/// What the code is told, and what it tells.
#[derive(Debug)]
#[repr(C)]
pub struct Move {
    /// Address of the new text.
    pub from: usize,
    /// Bytes of it, a multiple of the page size.
    pub len: usize,
    /// Address of the old text.
    pub to: usize,
    /// Descriptor of the file that the text is of.
    pub file: usize,
    /// Offset in the file of the old text.
    pub offset: usize,
    /// Result of `mremap`: `to`, or the negative number of an error.
    pub moved: usize,
    /// Result of the `mmap` after an `mremap` that failed: `to` if the text was gone. An error, if
    /// it was still there.
    pub mapped: usize,
}

/// The copied [`code`].
///
/// # Safety
///
/// The fields of the [`Move`] must say what they are said to be. The two texts must not overlap;
/// code that threads may run must be the same in both, but for what they may meet in either.
pub type MoveText = unsafe extern "sysv64" fn(*mut Move);

global_asm!(
    ".pushsection .rodata.fgraph_move_text,\"a\",@progbits",
    ".globl fgraph_x86_64_move_text",
    ".hidden fgraph_x86_64_move_text",
    "fgraph_x86_64_move_text:",
    "push rbx",
    "mov rbx, rdi",
    "mov rdi, [rbx + {from}]",
    "mov rsi, [rbx + {len}]",
    "mov rdx, rsi",
    // MREMAP_MAYMOVE | MREMAP_FIXED
    "mov r10d, 3",
    "mov r8, [rbx + {to}]",
    "mov eax, {mremap}",
    "syscall",
    "mov [rbx + {moved}], rax",
    // The kernel changes rax, rcx and r11 only.
    "cmp rax, r8",
    "je 2f",
    // Fails where the old text is still mapped.
    "mov rdi, r8",
    // PROT_READ | PROT_EXEC
    "mov edx, 5",
    // MAP_PRIVATE | MAP_FIXED_NOREPLACE
    "mov r10d, 0x100002",
    "mov r8, [rbx + {file}]",
    "mov r9, [rbx + {offset}]",
    "mov eax, {mmap}",
    "syscall",
    "mov [rbx + {mapped}], rax",
    "2:",
    "pop rbx",
    "ret",
    ".globl fgraph_x86_64_move_text_end",
    ".hidden fgraph_x86_64_move_text_end",
    "fgraph_x86_64_move_text_end:",
    ".popsection",
    from = const offset_of!(Move, from),
    len = const offset_of!(Move, len),
    to = const offset_of!(Move, to),
    file = const offset_of!(Move, file),
    offset = const offset_of!(Move, offset),
    moved = const offset_of!(Move, moved),
    mapped = const offset_of!(Move, mapped),
    mremap = const 25,
    mmap = const 9,
);

unsafe extern "C" {
    static fgraph_x86_64_move_text: c_void;
    static fgraph_x86_64_move_text_end: c_void;
}

/// The bytes of the code, which may be copied anywhere: it is called as a [`MoveText`].
#[must_use]
pub fn code() -> &'static [u8] {
    let (start, end) = (
        &raw const fgraph_x86_64_move_text,
        &raw const fgraph_x86_64_move_text_end,
    );
    // SAFETY: the assembly above, in one section, which is only read.
    unsafe { slice::from_raw_parts(start.cast(), end.addr() - start.addr()) }
}
