//! The entry trampoline: call through, do not hijack.
//!
//! A site jumps to its stub, the stub loads the address of the site's record into r11 and jumps
//! here. We save what a callee may read, offer the entry to the users, and then
//!
//! - jump to the body, when nobody wants the return: the return address was never touched;
//! - or *call* the body, when somebody does. Its `ret` comes back to us, predicted, because it pairs
//!   with our call; we offer the return to the users and return ourselves, predicted, because our
//!   `ret` pairs with the caller's call.
//!
//! The machine stack, with S the address of the return address:
//!
//! ```text
//!             at entry            while the users are asked        while the body runs
//!
//!   S+8   stack arguments        stack arguments                  stack arguments
//!   S     return address <- rsp  return address                   return point     <- rsp
//!   S-8                          caller's rbx    <- rbx           the body's own frame
//!                                (aligned to 64)
//!                                EntryRegs       <- rsp           rbp = the shadow frame
//! ```
//!
//! While the body runs, the return address and the caller's rbp are the first two words of the
//! shadow frame, and rbp points to them. The body, like any function, preserves rbp: when it returns,
//! rbp *is* the frame, without a look-up. And since the frame begins like any frame record, a
//! walker of frame pointers gets through.
//!
//! # Unwind information
//!
//! It is right at every instruction, because a profiler's signal may arrive at any. There are three
//! stretches:
//!
//! | stretch | CFA | rbp | rbx | return address | rsp |
//! |---|---|---|---|---|---|
//! | before `push rbx`, and the last `ret` and `jmp` | rsp+8 | as is | as is | CFA-8 | CFA |
//! | until rbp becomes the frame | rbx+16 | as is | CFA-16 | CFA-8 | CFA |
//! | from there until rbp is the caller's again | \[rbp+24\]+16 | \[rbp+0\] | \[rbp+24\]-8, then as is | \[rbp+8\] | \[rbp+24\]+8 |
//!
//! In the third the CFA is 8 above the stack pointer that the caller gets back. That looks odd, and
//! must be so: libgcc knows a frame by its CFA and takes two frames with the same one for the same
//! frame, so the CFA must differ from our caller's, which is at most at its own stack pointer; and
//! gdb takes a stack whose CFAs do not ascend to be corrupt, so it must not be lower.
//!
//! The personality routine is called when an unwinder that cleans up (a panic, a C++ exception,
//! `pthread_exit`, a cancellation) goes through the return point; it tells the users.
//!
//! # Which registers
//!
//! A site with a NOP made by the compiler may rely on the ABI: rdi rsi rdx rcx r8 r9, rax (count of
//! vector arguments), r10 (static chain) and the vector arguments 0 to 7 survive, r11 is free. Vector
//! registers are saved as wide as they are in use, with plain moves: fxsave, xsave, and even asking
//! xgetbv what is in use, cost several times what the moves do (`docs/design.md`).

use core::arch::{asm, global_asm};
use core::ffi::c_void;
use core::mem::offset_of;
use core::sync::atomic::{AtomicUsize, Ordering};

use fgraph_core::counters::LiveCounters;
use fgraph_core::dispatch::{self, FGRAPH};
use fgraph_core::frame::Frame;
use fgraph_core::grace::Mark;
use fgraph_core::regs::{EntryRegs, Link, ReturnRegs};
use fgraph_core::site::Site;
use fgraph_core::thread::Thread;

/// Makes the calling thread's state at its first hit.
///
/// The argument is an address on its machine stack; null means that it cannot be traced.
pub type Attach = extern "C" fn(stack: usize) -> *const Thread;

/// Ends the process: a return address is in doubt. The arguments are the frame and the stack pointer.
pub type Abort = extern "C" fn(frame: *const Frame, stack_pointer: usize) -> !;

static ATTACH: AtomicUsize = AtomicUsize::new(0);
static ABORT: AtomicUsize = AtomicUsize::new(0);

/// The state of a thread whose own is being made.
static ATTACHING: Thread = Thread::always_inside();

// One word of thread-local storage, in the initial-exec model: two plain loads from anywhere, also
// in a signal handler and in a shared library, where `thread_local!` may call the allocator.
global_asm!(
    ".pushsection .tbss.fgraph_thread, \"awT\", @nobits",
    ".p2align 3",
    ".globl fgraph_thread",
    ".hidden fgraph_thread",
    ".type fgraph_thread, @object",
    ".size fgraph_thread, 8",
    "fgraph_thread:",
    ".zero 8",
    ".popsection",
);

/// The calling thread's state; null before its first hit.
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
/// The state must be this thread's own, and stay so.
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

/// Moves of the vector registers `$n` to their slots.
macro_rules! store {
    ($base:literal, $mov:literal, $reg:literal, $width:literal $(, $n:literal)*) => {
        concat!($($mov, " ", $width, " ptr [rsp + {", $base, "} + 64*", $n, "], ", $reg, $n, "\n"),*)
    };
}

/// Moves of the vector registers `$n` from their slots.
macro_rules! load {
    ($base:literal, $mov:literal, $reg:literal, $width:literal $(, $n:literal)*) => {
        concat!($($mov, " ", $reg, $n, ", ", $width, " ptr [rsp + {", $base, "} + 64*", $n, "]\n"),*)
    };
}

/// Tells the users of a return. rsp points to room for the results, rbp to the frame; afterwards rcx
/// is the true return address, and r8 the thread's state. Leaves through 60 if the thread is inside
/// already.
macro_rules! leave_call {
    ($mov:literal, $reg:literal, $width:literal, $bytes:literal, $if_wide_result:expr, $if_was_wide_result:expr) => {
        concat!(
            "mov [rsp + {result}], rax\n",
            "mov [rsp + {result} + 8], rdx\n",
            $if_wide_result,
            "\n",
            store!("result_vector", $mov, $reg, $width, 0, 1),
            // And clears `unwinding`, which follows.
            "mov qword ptr [rsp + {result_width}], ",
            $bytes,
            "\n",
            "91:\n",
            "mov rcx, qword ptr [rip + fgraph_thread@GOTTPOFF]\n",
            "mov rcx, fs:[rcx]\n",
            "test rcx, rcx\n",
            "jz 60f\n",
            "cmp qword ptr [rcx + {inside}], 0\n",
            "jne 96f\n",
            "94:\n",
            // From here on what a signal handler calls is not traced.
            "mov [rcx + {inside}], rsp\n",
            "mov [rsp + {result_thread}], rcx\n",
            "mov [rsp + {result_frame}], rbp\n",
            "mov rdi, rsp\n",
            "mov rsi, rbp\n",
            "mov rdx, rcx\n",
            "call {leave}\n",
            $if_was_wide_result,
            "\n",
            load!("result_vector", $mov, $reg, $width, 0, 1),
            "93:\n",
            "mov r8, rax\n",
            "mov rax, [rsp + {result}]\n",
            "mov rdx, [rsp + {result} + 8]\n",
            "mov rcx, [rbp + 8]\n",
        )
    };
}

/// What `leave_call` needs seldom; stands behind it.
macro_rules! leave_aside {
    ($full_mov:literal, $full_reg:literal, $full_width:literal, $full_bytes:literal) => {
        concat!(
            // A result is wide.
            "90:\n",
            store!("result_vector", $full_mov, $full_reg, $full_width, 0, 1),
            "mov qword ptr [rsp + {result_width}], ",
            $full_bytes,
            "\n",
            "jmp 91b\n",
            "92:\n",
            load!("result_vector", $full_mov, $full_reg, $full_width, 0, 1),
            "jmp 93b\n",
            // The thread is inside fgraph when a body is back. If the mark is on the thread's own stack,
            // and deeper than this call, then a signal handler has left a callback by siglongjmp: the
            // mark is stale.
            "96:\n",
            "mov rax, [rcx + {inside}]\n",
            "cmp rax, {internal}\n",
            "je 60f\n",
            "cmp rax, [rbp + {slot}]\n",
            "jae 60f\n",
            "sub rax, [rcx + {stack_low}]\n",
            "cmp rax, [rcx + {stack_span}]\n",
            "jae 60f\n",
            "mov dword ptr [rcx + {mark}], {no_mark}\n",
            "jmp 94b\n",
        )
    };
}

/// One entry trampoline, which moves vector registers with `$mov`.
macro_rules! trampoline {
    (
        $name:literal, $return_point:literal,
        ($mov:literal, $reg:literal, $width:literal, $bytes:literal),
        ($full_mov:literal, $full_reg:literal, $full_width:literal, $full_bytes:literal),
        $if_wide:expr, $if_was_wide:expr, $if_wide_result:expr, $if_was_wide_result:expr
    ) => {
        global_asm!(
            ".pushsection fgraph_text, \"ax\", @progbits",
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ", @function"),
            concat!(".globl ", $return_point),
            concat!(".hidden ", $return_point),
            ".p2align 6",
            concat!($name, ":"),
            ".cfi_startproc",
            ".cfi_personality 0x1b, {personality}",
            ".cfi_remember_state",
            "push rbx",
            ".cfi_def_cfa_offset 16",
            ".cfi_offset rbx, -16",
            "mov rbx, rsp",
            ".cfi_def_cfa_register rbx",
            // gcc calls local functions without aligning the stack; the vector slots want 64.
            "and rsp, -64",
            "sub rsp, {entry_regs}",
            "mov [rsp + {int}], rdi",
            "mov [rsp + {int} + 8], rsi",
            "mov [rsp + {int} + 16], rdx",
            "mov [rsp + {int} + 24], rcx",
            "mov [rsp + {int} + 32], r8",
            "mov [rsp + {int} + 40], r9",
            "mov [rsp + {scratch}], rax",
            "mov [rsp + {scratch} + 8], r10",
            "mov [rsp + {site}], r11",
            "mov rdx, qword ptr [rip + fgraph_thread@GOTTPOFF]",
            "mov rdx, fs:[rdx]",
            "test rdx, rdx",
            "jz 20f",
            "cmp qword ptr [rdx + {inside}], 0",
            "jne 30f",
            // From here on what a signal handler calls is not traced.
            "23:",
            "mov [rdx + {inside}], rsp",
            $if_wide,
            store!("vector", $mov, $reg, $width, 0, 1, 2, 3, 4, 5, 6, 7),
            concat!("mov dword ptr [rsp + {width}], ", $bytes),
            "22:",
            "mov [rsp + {link}], rbx",
            "mov [rsp + {thread}], rdx",
            "mov rdi, rsp",
            "mov rsi, r11",
            "lea rcx, [rbx + 8]",
            "call {enter}",
            $if_was_wide,
            load!("vector", $mov, $reg, $width, 0, 1, 2, 3, 4, 5, 6, 7),
            "83:",
            "mov rdi, [rsp + {int}]",
            "mov rsi, [rsp + {int} + 8]",
            "mov rdx, [rsp + {int} + 16]",
            "mov r8, [rsp + {int} + 32]",
            "mov r9, [rsp + {int} + 40]",
            "mov r10, [rsp + {scratch} + 8]",
            "mov r11, [rsp + {site}]",
            "test rax, rax",
            "jz 40f",
            // What the body must not see any more moves into the frame.
            "mov rcx, [rbx + 8]",
            "mov [rax], rbp",
            "mov [rax + 8], rcx",
            ".cfi_remember_state",
            "mov rbp, rax",
            // DW_CFA_def_cfa_expression, 5 bytes: breg6(rbp) +24, deref, plus_uconst 16.
            ".cfi_escape 0x0f, 5, 0x76, {slot}, 0x06, 0x23, 16",
            // DW_CFA_expression rip (16), 2 bytes: breg6 +8.
            ".cfi_escape 0x10, 16, 2, 0x76, 8",
            // DW_CFA_expression rbp (6), 2 bytes: breg6 +0.
            ".cfi_escape 0x10, 6, 2, 0x76, 0",
            // DW_CFA_val_expression rsp (7), 5 bytes: breg6 +24, deref, plus_uconst 8.
            ".cfi_escape 0x16, 7, 5, 0x76, {slot}, 0x06, 0x23, 8",
            // DW_CFA_expression rbx (3), 5 bytes: breg6 +24, deref, lit8, minus.
            ".cfi_escape 0x10, 3, 5, 0x76, {slot}, 0x06, 0x38, 0x1c",
            "mov rax, [rsp + {scratch}]",
            "mov rcx, [rsp + {int} + 24]",
            // Pops the caller's rbx and the return address. For an unwinder that comes by before the
            // next line, rbx stays readable in the red zone.
            "lea rsp, [rbx + 16]",
            "mov rbx, [rbx]",
            ".cfi_same_value rbx",
            // Pushes our return point where the return address stood.
            "call qword ptr [r11 + {body}]",
            concat!($return_point, ":"),
            // Nobody but a broken body can come back with another rbp or another stack.
            "lea rcx, [rsp - 8]",
            "cmp rcx, [rbp + {slot}]",
            "jne 50f",
            // The slot is 8 above a multiple of 16 if the caller has kept to the ABI. Then rsp can
            // be put back by adding a constant; from memory it would have to wait for a load.
            "test cl, 8",
            "jz 51f",
            "sub rsp, {return_regs}",
            leave_call!($mov, $reg, $width, $bytes, $if_wide_result, $if_was_wide_result),
            "add rsp, {return_regs} - 8",
            "52:",
            // S, with the true return address in its old place. The frame is not on the shadow
            // stack any more, but nothing is traced, and so nothing written there, until `inside` is
            // cleared.
            "mov [rsp], rcx",
            "mov rbp, [rbp]",
            ".cfi_restore_state",
            ".cfi_restore_state",
            ".cfi_remember_state",
            "mov qword ptr [r8 + {inside}], 0",
            "ret",
            ".cfi_restore_state",
            ".cfi_remember_state",
            ".cfi_escape 0x0f, 5, 0x76, {slot}, 0x06, 0x23, 16",
            ".cfi_escape 0x10, 16, 2, 0x76, 8",
            ".cfi_escape 0x10, 6, 2, 0x76, 0",
            ".cfi_escape 0x16, 7, 5, 0x76, {slot}, 0x06, 0x23, 8",
            leave_aside!($full_mov, $full_reg, $full_width, $full_bytes),
            ".cfi_restore_state",
            ".cfi_remember_state",
            ".cfi_def_cfa rbx, 16",
            ".cfi_offset rbx, -16",
            // First hit of this thread. Until its state is made, its hits count as missed.
            "20:",
            "mov rcx, qword ptr [rip + fgraph_thread@GOTTPOFF]",
            "lea rdx, [rip + {attaching}]",
            "mov fs:[rcx], rdx",
            store!("vector", $full_mov, $full_reg, $full_width, 0, 1, 2, 3, 4, 5, 6, 7),
            concat!("mov dword ptr [rsp + {width}], ", $full_bytes),
            "lea rdi, [rbx + 8]",
            "call qword ptr [rip + {attach}]",
            "mov rcx, qword ptr [rip + fgraph_thread@GOTTPOFF]",
            "mov fs:[rcx], rax",
            "mov r11, [rsp + {site}]",
            "mov rdx, rax",
            "test rax, rax",
            "jz 24f",
            "mov [rdx + {inside}], rsp",
            "jmp 22b",
            "24:",
            load!("vector", $full_mov, $full_reg, $full_width, 0, 1, 2, 3, 4, 5, 6, 7),
            "mov rdi, [rsp + {int}]",
            "mov rsi, [rsp + {int} + 8]",
            "mov r8, [rsp + {int} + 32]",
            "mov r9, [rsp + {int} + 40]",
            "mov r10, [rsp + {scratch} + 8]",
            "mov r11, [rsp + {site}]",
            "jmp 33f",
            // Some vector argument is wide. Only the trampoline for AVX-512 comes here, and to 82, 90 and
            // 92.
            "80:",
            store!("vector", $full_mov, $full_reg, $full_width, 0, 1, 2, 3, 4, 5, 6, 7),
            concat!("mov dword ptr [rsp + {width}], ", $full_bytes),
            "jmp 22b",
            "82:",
            load!("vector", $full_mov, $full_reg, $full_width, 0, 1, 2, 3, 4, 5, 6, 7),
            "jmp 83b",
            // The thread is inside fgraph already. If it is not in fgraph's own code, and the mark and
            // this call are both on the thread's own stack, and the mark is the deeper one, then a
            // signal handler has left a callback by siglongjmp: the mark is stale.
            "30:",
            "mov rax, [rdx + {inside}]",
            "cmp rax, {internal}",
            "je 31f",
            "cmp rbx, rax",
            "jb 31f",
            "sub rax, [rdx + {stack_low}]",
            "cmp rax, [rdx + {stack_span}]",
            "jae 31f",
            "mov rax, rbx",
            "sub rax, [rdx + {stack_low}]",
            "cmp rax, [rdx + {stack_span}]",
            "jae 31f",
            // So it seems. But an alternate signal stack may lie within the thread's own.
            "mov [rsp + {thread}], rdx",
            store!("vector", $full_mov, $full_reg, $full_width, 0, 1, 2, 3, 4, 5, 6, 7),
            concat!("mov dword ptr [rsp + {width}], ", $full_bytes),
            "mov rdi, rdx",
            "lea rsi, [rbx + 8]",
            "call {is_own_stack}",
            "mov rdx, [rsp + {thread}]",
            "mov r11, [rsp + {site}]",
            "test al, al",
            "jz 35f",
            "mov dword ptr [rdx + {mark}], {no_mark}",
            "mov [rdx + {inside}], rsp",
            "jmp 22b",
            "35:",
            load!("vector", $full_mov, $full_reg, $full_width, 0, 1, 2, 3, 4, 5, 6, 7),
            "mov rdi, [rsp + {int}]",
            "mov rsi, [rsp + {int} + 8]",
            "mov r8, [rsp + {int} + 32]",
            "mov r9, [rsp + {int} + 40]",
            "mov r10, [rsp + {scratch} + 8]",
            // Count the call, for the thread and for each user that wants the function. Locked,
            // because `ATTACHING` is shared.
            "31:",
            "movzx eax, word ptr [r11 + {interest}]",
            "test eax, eax",
            "jz 33f",
            "lock inc qword ptr [rdx + {total_missed}]",
            "32:",
            "bsf ecx, eax",
            "shl ecx, 6",
            "lock inc qword ptr [rdx + rcx + {user_missed}]",
            "lea ecx, [rax - 1]",
            "and eax, ecx",
            "jnz 32b",
            "33:",
            "mov rdx, [rsp + {int} + 16]",
            // Not traced, or nobody wants the return: on to the body as if nothing had been.
            "40:",
            "mov rax, [rsp + {scratch}]",
            "mov rcx, [rsp + {int} + 24]",
            "mov rsp, rbx",
            ".cfi_def_cfa_register rsp",
            "pop rbx",
            ".cfi_restore_state",
            ".cfi_remember_state",
            "jmp qword ptr [r11 + {body}]",
            ".cfi_restore_state",
            ".cfi_escape 0x0f, 5, 0x76, {slot}, 0x06, 0x23, 16",
            ".cfi_escape 0x10, 16, 2, 0x76, 8",
            ".cfi_escape 0x10, 6, 2, 0x76, 0",
            ".cfi_escape 0x16, 7, 5, 0x76, {slot}, 0x06, 0x23, 8",
            "50:",
            "mov rdi, rbp",
            "mov rsi, rsp",
            "and rsp, -64",
            "call qword ptr [rip + {abort}]",
            "ud2",
            // The caller's stack was not aligned: as above, but rsp comes from the frame.
            "51:",
            "and rsp, -16",
            "sub rsp, {return_regs}",
            leave_call!($mov, $reg, $width, $bytes, $if_wide_result, $if_was_wide_result),
            "mov rsp, [rbp + {slot}]",
            "jmp 52b",
            leave_aside!($full_mov, $full_reg, $full_width, $full_bytes),
            // The thread is inside fgraph: a callback has switched stacks. Return to the caller and leave
            // the frame to be dropped as a dead one.
            "60:",
            "mov rax, [rsp + {result}]",
            "mov rsp, [rbp + {slot}]",
            "mov rcx, [rbp + 8]",
            "mov [rsp], rcx",
            "mov rbp, [rbp]",
            ".cfi_def_cfa rsp, 8",
            ".cfi_offset rip, -8",
            ".cfi_same_value rbp",
            ".cfi_restore rsp",
            "ret",
            ".cfi_endproc",
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
            personality = sym personality,
            enter = sym enter,
            leave = sym leave,
            is_own_stack = sym is_own_stack,
            attach = sym ATTACH,
            abort = sym ABORT,
            attaching = sym ATTACHING,
            entry_regs = const size_of::<EntryRegs>(),
            return_regs = const size_of::<ReturnRegs>(),
            vector = const offset_of!(EntryRegs, vector),
            int = const offset_of!(EntryRegs, int),
            scratch = const offset_of!(EntryRegs, scratch),
            site = const offset_of!(EntryRegs, site),
            link = const offset_of!(EntryRegs, link),
            thread = const offset_of!(EntryRegs, thread),
            result_vector = const offset_of!(ReturnRegs, vector),
            result = const offset_of!(ReturnRegs, int),
            result_frame = const offset_of!(ReturnRegs, frame),
            result_thread = const offset_of!(ReturnRegs, thread),
            width = const offset_of!(EntryRegs, width),
            result_width = const offset_of!(ReturnRegs, width),
            inside = const offset_of!(Thread, inside),
            internal = const Thread::INTERNAL,
            stack_low = const offset_of!(Thread, stack_low),
            stack_span = const offset_of!(Thread, stack_span),
            mark = const offset_of!(Thread, mark),
            no_mark = const Mark::NONE,
            total_missed = const offset_of!(Thread, total) + offset_of!(LiveCounters, missed),
            user_missed = const offset_of!(Thread, users) + offset_of!(LiveCounters, missed),
            interest = const offset_of!(Site, interest),
            body = const offset_of!(Site, body),
            slot = const offset_of!(Frame, slot),
        );
    };
}

/// Goes to the wide moves if they are needed.
///
/// The trampoline of machines with AVX-512 looks whether any of the vector registers has a bit set
/// above the lowest 128, and saves no more than those if not, because wide stores and loads take longer.
/// The loads of 128 bits clear the rest, whatever the callbacks have left there.
///
/// zmm16, zmm17 and k1 are free under the ABI.
macro_rules! wide {
    (args) => {
        "vmovdqa64 zmm16, zmm0
         vmovdqa64 zmm17, zmm3
         vpternlogq zmm16, zmm1, zmm2, 0xfe
         vpternlogq zmm17, zmm4, zmm5, 0xfe
         vpternlogq zmm16, zmm6, zmm7, 0xfe
         vporq zmm16, zmm16, zmm17
         vptestmq k1, zmm16, zmm16
         kmovw eax, k1
         test al, 0xfc
         jnz 80f"
    };
    (results) => {
        "vporq zmm16, zmm0, zmm1
         vptestmq k1, zmm16, zmm16
         kmovw ecx, k1
         test cl, 0xfc
         jnz 90f"
    };
}

trampoline!(
    "fgraph_entry_sse",
    "fgraph_return_sse",
    ("movups", "xmm", "xmmword", 16),
    ("movups", "xmm", "xmmword", 16),
    "",
    "",
    "",
    ""
);
trampoline!(
    "fgraph_entry_avx",
    "fgraph_return_avx",
    ("vmovups", "ymm", "ymmword", 32),
    ("vmovups", "ymm", "ymmword", 32),
    "",
    "",
    "",
    ""
);
trampoline!(
    "fgraph_entry_avx512",
    "fgraph_return_avx512",
    ("vmovups", "xmm", "xmmword", 16),
    ("vmovups", "zmm", "zmmword", 64),
    wide!(args),
    "cmp dword ptr [rsp + {width}], 16
jne 82f",
    wide!(results),
    "cmp dword ptr [rsp + {result_width}], 16
jne 92f"
);

// What the assembly takes for granted.
const _: () = assert!(
    size_of::<LiveCounters>() == 1 << 6,
    "the missed loop shifts by 6"
);
const _: () = assert!(
    offset_of!(EntryRegs, vector).is_multiple_of(64) && size_of::<EntryRegs>().is_multiple_of(64)
);
const _: () = assert!(offset_of!(ReturnRegs, unwinding) == offset_of!(ReturnRegs, width) + 4);
const _: () = assert!(offset_of!(Frame, frame_pointer) == 0);
const _: () = assert!(offset_of!(Frame, return_address) == 8);
const _: () = assert!(
    offset_of!(Frame, slot) < 64,
    "one byte of LEB128 in the unwind rules"
);
const _: () = assert!(offset_of!(Link, return_address) == 8);

unsafe extern "C" {
    fn fgraph_entry_sse();
    fn fgraph_return_sse();
    fn fgraph_entry_avx();
    fn fgraph_return_avx();
    fn fgraph_entry_avx512();
    fn fgraph_return_avx512();
}

/// The bounds of the code that must never be traced, made by the linker from the section's name.
pub fn own_text() -> core::ops::Range<usize> {
    unsafe extern "C" {
        #[link_name = "__start_fgraph_text"]
        static START: u8;
        #[link_name = "__stop_fgraph_text"]
        static STOP: u8;
    }
    (&raw const START).addr()..(&raw const STOP).addr()
}

/// Called by the trampolines, see [`dispatch::enter`].
#[unsafe(link_section = "fgraph_text")]
unsafe extern "C" fn enter(
    regs: *mut EntryRegs,
    site: &Site,
    thread: &Thread,
    slot: usize,
) -> *mut Frame {
    // SAFETY: the trampoline passes the registers it has saved, the site that was hit, and the state
    // of this thread, which it has marked.
    unsafe { dispatch::enter(regs, site, thread, slot) }
}

/// Called by the trampolines when a mark seems to be stale.
#[unsafe(link_section = "fgraph_text")]
unsafe extern "C" fn is_own_stack(thread: &Thread, address: usize) -> bool {
    FGRAPH.is_own_stack(thread, address)
}

/// Called by the trampolines, see [`dispatch::leave`].
#[unsafe(link_section = "fgraph_text")]
unsafe extern "C" fn leave(
    regs: *mut ReturnRegs,
    frame: *mut Frame,
    thread: &Thread,
) -> *const Thread {
    // SAFETY: the trampoline passes the results it has saved, the frame that `enter` gave it, and the
    // state of this thread, which it has marked.
    unsafe { dispatch::leave(regs, frame, thread) }
}

unsafe extern "C" {
    fn _Unwind_GetGR(context: *mut c_void, register: i32) -> usize;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

/// The unwinder calls this for each trampoline frame that it goes through.
#[unsafe(link_section = "fgraph_text")]
unsafe extern "C" fn personality(
    _version: i32,
    actions: i32,
    _class: u64,
    _exception: *mut u8,
    context: *mut c_void,
) -> i32 {
    const CLEANUP_PHASE: i32 = 2;
    const CONTINUE_UNWIND: i32 = 8;
    const RBP: i32 = 6;
    // SAFETY: the unwinder passes its context.
    let at_return_point = unsafe { _Unwind_GetIP(context) } == FGRAPH.return_point();
    // SAFETY: null or the state of this thread, which is never unmapped.
    let thread = unsafe { current().as_ref() };
    if let Some(thread) = thread
        && actions & CLEANUP_PHASE != 0
        && at_return_point
    {
        // SAFETY: at the return point rbp is the frame, whose body is being unwound in this thread.
        unsafe {
            let frame = _Unwind_GetGR(context, RBP) as *mut Frame;
            if !is_inside(thread, (*frame).slot) {
                thread.mark.clear();
                thread.inside.store(Thread::INTERNAL, Ordering::Relaxed);
                dispatch::unwind(thread, frame);
                thread.inside.store(0, Ordering::Relaxed);
            }
        }
    }
    CONTINUE_UNWIND
}

/// Whether a thread is inside fgraph, and not only marked so by a callback that was left by siglongjmp,
/// when it comes to the frame of a call whose return address stood at `slot`. The same test as in
/// `leave_aside`.
fn is_inside(thread: &Thread, slot: usize) -> bool {
    match thread.inside.load(Ordering::Relaxed) {
        0 => false,
        Thread::INTERNAL => true,
        mark => !(mark < slot && thread.is_on_stack(mark)),
    }
}

/// An entry trampoline.
#[derive(Clone, Copy, Debug)]
pub struct Trampoline {
    /// Where the stubs jump to.
    pub entry: usize,
    /// Where a body returns to.
    pub return_point: usize,
    /// Bytes that it saves of each vector register.
    pub vector_bytes: u32,
}

/// Sets the trampolines up and returns the one that saves what this machine has.
pub fn install(attach: Attach, abort: Abort) -> Trampoline {
    ATTACH.store(attach as usize, Ordering::Relaxed);
    ABORT.store(abort as usize, Ordering::Relaxed);
    let trampoline = match crate::cpu::vector_bytes() {
        64 => Trampoline {
            entry: fgraph_entry_avx512 as *const () as usize,
            return_point: fgraph_return_avx512 as *const () as usize,
            vector_bytes: 64,
        },
        32 => Trampoline {
            entry: fgraph_entry_avx as *const () as usize,
            return_point: fgraph_return_avx as *const () as usize,
            vector_bytes: 32,
        },
        _ => Trampoline {
            entry: fgraph_entry_sse as *const () as usize,
            return_point: fgraph_return_sse as *const () as usize,
            vector_bytes: 16,
        },
    };
    FGRAPH.set_return_point(trampoline.return_point);
    trampoline
}

/// The state of all threads whose own is being made: what they call meanwhile is counted here.
pub fn attaching() -> &'static Thread {
    &ATTACHING
}
