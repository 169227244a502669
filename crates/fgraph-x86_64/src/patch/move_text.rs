//! Code that moves a mapping over text, and that is not in that text.
//!
//! `mremap` unmaps the old text before it moves the new one there. If the move failed after that,
//! no code in the text could run any more, not even the caller. So code that the caller has copied
//! to a page of its own makes the two system calls: if the text is gone, this code maps the file
//! there before it returns.
//!
//! The kernel holds its memory lock for the whole move: a thread that fetches an instruction
//! meanwhile gets it from the old page, or waits for the new one.

use core::arch::global_asm;
use core::ffi::c_void;
use core::mem::offset_of;
use core::slice;

/// The arguments and the results of the code.
#[derive(Debug)]
#[repr(C)]
pub struct Move {
    /// The address of the new text.
    pub from: usize,
    /// The length in bytes, a multiple of the page size.
    pub len: usize,
    /// The address of the old text.
    pub to: usize,
    /// The descriptor of the text's file.
    pub file: usize,
    /// The offset of the old text in the file.
    pub offset: usize,
    /// The result of `mremap`: `to`, or the negative number of an error.
    pub moved: usize,
    /// The result of the `mmap` after a failed `mremap`: `to` if the text was gone, an error if it
    /// was still there.
    pub mapped: usize,
}

/// The type of the copied [`code`].
///
/// # Safety
///
/// The fields of the [`Move`] must be valid. The two texts must not overlap. Code that threads may
/// run must be the same in both, except where threads may meet either version.
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
    // Fails if the old text is still mapped.
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

/// Returns the bytes of the code, which may be copied anywhere: call the copy as a [`MoveText`].
#[must_use]
pub fn code() -> &'static [u8] {
    let (start, end) = (
        &raw const fgraph_x86_64_move_text,
        &raw const fgraph_x86_64_move_text_end,
    );
    // SAFETY: the bounds of the assembly above, which is in one section and is only read.
    unsafe { slice::from_raw_parts(start.cast(), end.addr() - start.addr()) }
}
