//! The code of guarded stubs for a thread that is near the end of its stack.
//!
//! Some runtimes survive an overflow of the stack only if the fault comes in their own code: OCaml
//! looks for the faulting instruction. The stubs of such code are guarded
//! (`emit/stub/guarded.rs`): a thread whose stack pointer is below [`StackEnd::near`] comes here,
//! and the body runs untraced. Nothing is written here unless there is certainly room:
//!
//! ```text
//!   low                                   low + TIGHT                     near
//!    |   registers are saved in              |   registers are saved        |   to the trampoline
//!    |   thread-local storage                |   in the red zone            |
//! ```
//!
//! Below `TIGHT` no signal handler runs on the same stack meanwhile, and uses that storage, too:
//! the kernel needs more for its frame.
//!
//! There the fault may come in the displaced instructions, which are not in the program's text any
//! more. So the kernel is made to write to the lowest word that they may use. If it cannot, the
//! fault is made in the function's text: by a `ret` there, with the stack pointer at that word.

use core::arch::global_asm;
use core::mem::offset_of;

use fgraph_core::counters::LiveCounters;
use fgraph_core::fgraph::{FGRAPH, Fgraph};
use fgraph_core::site::Site;
use fgraph_core::thread::{StackEnd, Thread};

use super::calls::RT_SIGPROCMASK;
use super::current::{SCRATCH, STACK_END};
use super::variant::Variant;
use crate::stub::guarded::{DEPTH, FAULT, RECORD, STUB};

/// Counts the call, for the thread and for each user that wants it. At this point r11 is the stub
/// and rdx the thread's state. Changes rax and rcx, and leaves the site in r11.
macro_rules! count_overrun {
    ($part:literal) => {
        concat!(
            "mov r11, [r11 + {record}]\n",
            "movzx eax, word ptr [r11 + {interest}]\n",
            "and eax, dword ptr [rip + {fgraph} + {epoch}]\n",
            "and eax, dword ptr [rdx + {watching}]\n",
            "jz .Lcounted_",
            $part,
            "\ninc qword ptr [rdx + {total} + {overrun}]\n",
            ".Leach_",
            $part,
            ":\nbsf ecx, eax\n",
            "shl ecx, 6\n",
            "inc qword ptr [rdx + rcx + {users} + {overrun}]\n",
            "lea ecx, [rax - 1]\n",
            "and eax, ecx\n",
            "jnz .Leach_",
            $part,
            "\n.Lcounted_",
            $part,
            ":\n",
        )
    };
}

/// Loads the registers that are saved in thread-local storage, to which r11 leads.
macro_rules! load_scratch {
    () => {
        "mov rax, fs:[r11 + {scratch} + 8]
         mov rcx, fs:[r11 + {scratch} + 16]
         mov rdx, fs:[r11 + {scratch} + 24]
         mov rsi, fs:[r11 + {scratch} + 32]
         mov rdi, fs:[r11 + {scratch} + 40]
         mov r10, fs:[r11 + {scratch} + 48]"
    };
}

global_asm!(
    ".pushsection fgraph_text, \"ax\", @progbits",
    ".globl fgraph_near_end",
    ".hidden fgraph_near_end",
    ".type fgraph_near_end, @function",
    ".p2align 4",
    // At this point: rsp is the place of the return address, r11 the stub's address; the caller's
    // r11 is at rsp-8; all else is the caller's. Below `TIGHT` the carry flag is set, and the
    // stub's address is in the first scratch word, too.
    "fgraph_near_end:",
    ".cfi_startproc",
    "jb .Ltight_near_end",
    "mov [rsp - 16], rax",
    "mov rax, qword ptr [rip + fgraph_thread@GOTTPOFF]",
    "cmp rsp, fs:[rax + {low}]",
    "jb .Lother_stack_near_end",
    "mov [rsp - 24], rcx",
    "mov [rsp - 32], rdx",
    "mov rdx, fs:[rax]",
    count_overrun!("near_end"),
    "mov rcx, [rsp - 24]",
    "mov rdx, [rsp - 32]",
    "mov rax, [rsp - 16]",
    // At this point: r11 is the site, the caller's r11 is at rsp-8; all else is the caller's.
    ".Lbody_near_end:",
    "mov r11, [r11 + {body}]",
    "xchg r11, [rsp - 8]",
    "jmp qword ptr [rsp - 8]",
    // The end is that of another stack: on to the trampoline.
    ".Lother_stack_near_end:",
    "mov rax, [rsp - 16]",
    "lea r11, [r11 + {stub}]",
    "xchg r11, [rsp - 8]",
    "jmp qword ptr [rsp - 8]",
    ".Ltight_near_end:",
    "mov r11, qword ptr [rip + fgraph_thread@GOTTPOFF]",
    "mov fs:[r11 + {scratch} + 8], rax",
    "mov fs:[r11 + {scratch} + 16], rcx",
    "mov fs:[r11 + {scratch} + 24], rdx",
    "mov fs:[r11 + {scratch} + 32], rsi",
    "mov fs:[r11 + {scratch} + 40], rdi",
    "mov fs:[r11 + {scratch} + 48], r10",
    "mov rdx, fs:[r11]",
    "mov rdi, fs:[r11 + {scratch}]",
    "mov r11, rdi",
    count_overrun!("tight"),
    "movzx esi, byte ptr [rdi + {depth}]",
    "test esi, esi",
    "jz .Lgo_near_end",
    "neg rsi",
    "lea rdx, [rsp + rsi*8]",
    "movsxd rsi, dword ptr [rdi + {fault}]",
    "add rdi, rsi",
    "mov r11, qword ptr [rip + fgraph_thread@GOTTPOFF]",
    "mov fs:[r11 + {scratch} + 56], rdx",
    "mov fs:[r11 + {scratch} + 64], rdi",
    // Blocks no signals, and writes their mask.
    "mov eax, {rt_sigprocmask}",
    "xor edi, edi",
    "xor esi, esi",
    "mov r10d, 8",
    "syscall",
    "cmp eax, {efault}",
    "jne .Lgo_near_end",
    "mov r11, qword ptr [rip + fgraph_thread@GOTTPOFF]",
    load_scratch!(),
    ".cfi_remember_state",
    ".cfi_undefined rip",
    "mov rsp, fs:[r11 + {scratch} + 56]",
    "jmp qword ptr fs:[r11 + {scratch} + 64]",
    ".cfi_restore_state",
    ".Lgo_near_end:",
    "mov r11, qword ptr [rip + fgraph_thread@GOTTPOFF]",
    load_scratch!(),
    "mov r11, fs:[r11 + {scratch}]",
    "mov r11, [r11 + {record}]",
    "jmp .Lbody_near_end",
    ".cfi_endproc",
    ".size fgraph_near_end, . - fgraph_near_end",
    ".popsection",
    low = const STACK_END + offset_of!(StackEnd, low),
    scratch = const SCRATCH,
    record = const RECORD,
    stub = const STUB,
    depth = const DEPTH,
    fault = const FAULT,
    rt_sigprocmask = const RT_SIGPROCMASK,
    efault = const -14,
    body = const offset_of!(Site, body),
    interest = const offset_of!(Site, interest),
    fgraph = sym FGRAPH,
    epoch = const offset_of!(Fgraph, epoch),
    watching = const Thread::USERS,
    total = const offset_of!(Thread, total),
    users = const offset_of!(Thread, users),
    overrun = const offset_of!(LiveCounters, overrun),
);

/// Returns the address of the code to which guarded stubs jump near the end of a stack.
pub fn near_end() -> usize {
    unsafe extern "C" {
        fn fgraph_near_end();
    }
    fgraph_near_end as *const () as usize
}

const _: () = {
    let mut at = 0;
    while at < Variant::ALL.len() {
        // With what a count and a system call need, and the alignment.
        let room = Variant::ALL[at].save_set().entry_room() + 256;
        assert!(room <= StackEnd::ROOM);
        at += 1;
    }
};
