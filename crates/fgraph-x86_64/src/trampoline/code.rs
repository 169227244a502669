//! The assembly of the trampolines: one text, from which every variant is made.
//!
//! | variant | survives entry and return | sites |
//! |---|---|---|
//! | plain | what the ABI lets a callee read | with a compiler-made NOP |
//! | preserve | every general register, vector registers 0 to 15 | relocated |
//! | preserve all | and vector registers 16 to 31 and the opmasks | relocated, where code may use these |
//! | entry only | as the one of the latter two it goes with | relocated, never called through a frame |
//!
//! Each has a twin that holds cancellation off while users are asked and told (`held.rs`).
//!
//! The registers beyond those that the callbacks see are kept behind their records:
//!
//! ```text
//!   rsp while the users are asked         rsp while they are told
//!   +0    EntryRegs, vectors 0 to 7       +0    ReturnRegs, vectors 0 and 1
//!   +640  vectors 8 to 15                 +176  rsi rdi r9 r10 r11
//!   +1152 vectors 16 to 31, opmasks       +216  bytes of each vector that are kept
//!   ...   bytes of each vector that               (to a multiple of 64)
//!         are kept                        r9    vectors 2 to 15
//!         (64, up to S-8 or below)        ...   vectors 16 to 31, opmasks
//!                                               (32, up to S or S+8)
//! ```
//!
//! How wide the other vectors are kept is not what the record says of those that the callbacks see: a
//! callback that asks for all bytes of an argument has the record filled up with zeros.
//!
//! Three registers are kept where they stay in reach until the last instruction: in the red zone
//! below the return address, whose place is S. At entry the stub has put the caller's r11 at S-16;
//! when it is back in its register the body's address takes its place, for the jump or call through
//! memory. At return rcx is at S-8 and r8 at S-16: with the latter's value the thread's mark is
//! cleared when everything else is in place. A signal handler that comes then is traced, and uses
//! neither the frame, which nobody needs any more, nor the 128 bytes below S.

use core::arch::global_asm;
use core::ffi::c_void;
use core::mem::offset_of;

use fgraph_core::counters::LiveCounters;
use fgraph_core::frame::Frame;
use fgraph_core::grace::Mark;
use fgraph_core::regs::{EntryRegs, Link, ReturnRegs, Vector};
use fgraph_core::site::Site;
use fgraph_core::thread::Thread;

use super::held::{ATTACH_HELD, enter_held, enter_only_held, leave_held};
use super::{
    ABORT, ATTACH, ATTACHING, Trampolines, enter, enter_only, is_stale, leave, personality,
};

/// Stores numbered vector registers, each at `$place`, where `\n` stands for the number.
macro_rules! store {
    ($place:expr, ($mov:literal, $reg:literal, $width:literal, $bytes:literal), $numbers:literal) => {
        concat!(
            ".irp n,", $numbers, "\n", $mov, " ", $width, " ptr [", $place, "], ", $reg, "\\n\n",
            ".endr\n",
        )
    };
}

/// Undoes `store`.
macro_rules! load {
    ($place:expr, ($mov:literal, $reg:literal, $width:literal, $bytes:literal), $numbers:literal) => {
        concat!(
            ".irp n,", $numbers, "\n", $mov, " ", $reg, "\\n, ", $width, " ptr [", $place, "]\n",
            ".endr\n",
        )
    };
}

/// Where an argument that the callbacks see is kept.
macro_rules! arg {
    () => {
        "rsp + {vector} + 64*\\n"
    };
}

/// Where a result that the callbacks see is kept.
macro_rules! result {
    () => {
        "rsp + {result_vector} + 64*\\n"
    };
}

/// Where another of the first 16 vector registers is kept at entry: densely, because the processor
/// writes two words of one cache line at once.
macro_rules! kept_arg {
    (($mov:literal, $reg:literal, $width:literal, $bytes:literal)) => {
        concat!("rsp + {kept_vectors} + ", $bytes, "*(\\n - 8)")
    };
}

/// And at return.
macro_rules! kept_result {
    (($mov:literal, $reg:literal, $width:literal, $bytes:literal)) => {
        concat!("r9 + ", $bytes, "*(\\n - 2)")
    };
}

/// Notes how wide vectors are stored.
macro_rules! note {
    ($size:literal, $place:literal, ($mov:literal, $reg:literal, $width:literal, $bytes:literal)) => {
        concat!("mov ", $size, " ptr [rsp + {", $place, "}], ", $bytes, "\n")
    };
}

/// Looks whether vectors are stored so wide.
macro_rules! compare {
    ($place:literal, ($mov:literal, $reg:literal, $width:literal, $bytes:literal)) => {
        concat!("cmp dword ptr [rsp + {", $place, "}], ", $bytes, "\n")
    };
}

/// Stores the vector arguments, and the others of the first 16 registers where they must survive.
macro_rules! store_args {
    ($moves:tt) => {
        concat!(
            store!(arg!(), $moves, "0,1,2,3,4,5,6,7"),
            ".if {preserve}\n",
            store!(kept_arg!($moves), $moves, "8,9,10,11,12,13,14,15"),
            note!("dword", "kept_width", $moves),
            ".endif\n",
            note!("dword", "width", $moves),
        )
    };
}

/// Loads the vector arguments.
macro_rules! load_args {
    ($moves:tt) => {
        load!(arg!(), $moves, "0,1,2,3,4,5,6,7")
    };
}

/// Loads the others that `store_args` stored.
macro_rules! load_kept_args {
    ($moves:tt) => {
        concat!(
            ".if {preserve}\n",
            load!(kept_arg!($moves), $moves, "8,9,10,11,12,13,14,15"),
            ".endif\n",
        )
    };
}

/// Stores the vector results, and the others of the first 16 registers where they must survive.
macro_rules! store_results {
    ($moves:tt) => {
        concat!(
            store!(result!(), $moves, "0,1"),
            ".if {preserve}\n",
            store!(
                kept_result!($moves),
                $moves,
                "2,3,4,5,6,7,8,9,10,11,12,13,14,15"
            ),
            note!("dword", "kept_result_width", $moves),
            ".endif\n",
            // And clears `how`, which follows.
            note!("qword", "result_width", $moves),
        )
    };
}

/// Loads the vector results.
macro_rules! load_results {
    ($moves:tt) => {
        load!(result!(), $moves, "0,1")
    };
}

/// Loads the others that `store_results` stored.
macro_rules! load_kept_results {
    ($moves:tt) => {
        concat!(
            ".if {preserve}\n",
            load!(
                kept_result!($moves),
                $moves,
                "2,3,4,5,6,7,8,9,10,11,12,13,14,15"
            ),
            ".endif\n",
        )
    };
}

/// Stores what only AVX-512 has, where it must survive, at `$place`: vector registers 16 to 31 and the
/// opmasks.
macro_rules! store_beyond {
    ($place:literal, ($opmask_mov:literal, $opmask_width:literal)) => {
        concat!(
            ".if {beyond}\n",
            store!(
                concat!($place, " + 64*(\\n - 16)"),
                ("vmovups", "zmm", "zmmword", 64),
                "16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31"
            ),
            store!(
                concat!($place, " + 64*16 + 8*\\n"),
                ($opmask_mov, "k", $opmask_width, 8),
                "0,1,2,3,4,5,6,7"
            ),
            ".endif\n",
        )
    };
}

/// Undoes `store_beyond`.
macro_rules! load_beyond {
    ($place:literal, $opmask:tt) => {
        load_beyond!(
            $place,
            $opmask,
            "16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
            "0,1,2,3,4,5,6,7"
        )
    };
    ($place:literal, ($opmask_mov:literal, $opmask_width:literal), $vectors:literal, $opmasks:literal) => {
        concat!(
            ".if {beyond}\n",
            load!(
                concat!($place, " + 64*(\\n - 16)"),
                ("vmovups", "zmm", "zmmword", 64),
                $vectors
            ),
            load!(
                concat!($place, " + 64*16 + 8*\\n"),
                ($opmask_mov, "k", $opmask_width, 8),
                $opmasks
            ),
            ".endif\n",
        )
    };
}

/// Makes r9 point to where vector registers are kept at return: at a multiple of their width, which the
/// machine stack does not promise.
macro_rules! point_r9 {
    () => {
        ".if {preserve}
         lea r9, [rsp + {kept_results} + 63]
         and r9, -64
         .endif
        "
    };
}

/// Tells the users of a return. rsp points to room for the results, rbp to the frame; afterwards rcx
/// is the true return address, and r8 the thread's state. Leaves through 60 if the thread is inside
/// already.
macro_rules! leave_call {
    ($moves:tt, $opmask:tt, $if_wide_result:expr, $if_was_wide_result:expr) => {
        concat!(
            "mov [rsp + {result}], rax\n",
            "mov [rsp + {result} + 8], rdx\n",
            ".if {preserve}\n",
            "mov [rsp + {kept_int}], rsi\n",
            "mov [rsp + {kept_int} + 8], rdi\n",
            "mov [rsp + {kept_int} + 16], r9\n",
            "mov [rsp + {kept_int} + 24], r10\n",
            "mov [rsp + {kept_int} + 32], r11\n",
            ".endif\n",
            point_r9!(),
            store_beyond!("r9 + 64*14", $opmask),
            $if_wide_result,
            "\n",
            store_results!($moves),
            "91:\n",
            "mov rcx, qword ptr [rip + fgraph_thread@GOTTPOFF]\n",
            "mov rcx, fs:[rcx]\n",
            "test rcx, rcx\n",
            "jz 98f\n",
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
            point_r9!(),
            $if_was_wide_result,
            "\n",
            load_results!($moves),
            load_kept_results!($moves),
            "93:\n",
            load_beyond!("r9 + 64*14", $opmask),
            "mov r8, rax\n",
            ".if {preserve}\n",
            "mov rsi, [rsp + {kept_int}]\n",
            "mov rdi, [rsp + {kept_int} + 8]\n",
            "mov r9, [rsp + {kept_int} + 16]\n",
            "mov r10, [rsp + {kept_int} + 24]\n",
            "mov r11, [rsp + {kept_int} + 32]\n",
            ".endif\n",
            "mov rax, [rsp + {result}]\n",
            "mov rdx, [rsp + {result} + 8]\n",
            "mov rcx, [rbp + 8]\n",
        )
    };
}

/// What `leave_call` needs seldom; stands behind it.
macro_rules! leave_aside {
    ($moves:tt, $full_moves:tt, $opmask:tt) => {
        concat!(
            // A coroutine has come to a thread that has not hit anything yet.
            "98:\n",
            "mov rcx, qword ptr [rip + fgraph_thread@GOTTPOFF]\n",
            "lea rdx, [rip + {attaching}]\n",
            "mov fs:[rcx], rdx\n",
            store_results!($full_moves),
            "call qword ptr [rip + {attach}]\n",
            "mov rcx, qword ptr [rip + fgraph_thread@GOTTPOFF]\n",
            "mov fs:[rcx], rax\n",
            "mov rcx, rax\n",
            point_r9!(),
            "test rcx, rcx\n",
            "jnz 94b\n",
            load_results!($full_moves),
            load_kept_results!($full_moves),
            load_beyond!("r9 + 64*14", $opmask),
            ".if {preserve}\n",
            "mov rsi, [rsp + {kept_int}]\n",
            "mov rdi, [rsp + {kept_int} + 8]\n",
            "mov r8, [rbp + {slot}]\n",
            "mov r8, [r8 - 16]\n",
            "mov r10, [rsp + {kept_int} + 24]\n",
            "mov r11, [rsp + {kept_int} + 32]\n",
            ".endif\n",
            "jmp 60f\n",
            // A result is wide.
            "90:\n",
            store_results!($full_moves),
            "jmp 91b\n",
            // Or a callback has made the results wide: that makes the other registers no wider.
            "92:\n",
            load_results!($full_moves),
            ".if {preserve}\n",
            compare!("kept_result_width", $full_moves),
            "jne 97f\n",
            ".endif\n",
            load_kept_results!($full_moves),
            "jmp 93b\n",
            ".if {preserve}\n",
            "97:\n",
            load_kept_results!($moves),
            "jmp 93b\n",
            ".endif\n",
            // The thread is inside fgraph when a body is back. If the mark is on the stack that the
            // thread was last seen on, and deeper than this call, then a signal handler has left a
            // callback by siglongjmp: the mark is stale.
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

/// Compares the running thread with the one whose state rdx is, which takes a system call. Changes rax and rcx.
macro_rules! is_own {
    () => {
        "mov eax, {gettid}
         syscall
         mov r11, [rsp + {site}]
         cmp eax, [rdx + {id}]"
    };
}

/// Counts the call, for the thread and for each user that wants the function. Locked, because `ATTACHING`
/// is shared.
macro_rules! count {
    ($counter:literal) => {
        concat!(
            "movzx eax, word ptr [r11 + {interest}]\n",
            "test eax, eax\n",
            "jz 33f\n",
            "lock inc qword ptr [rdx + {total} + {",
            $counter,
            "}]\n",
            "32:\n",
            "bsf ecx, eax\n",
            "shl ecx, 6\n",
            "lock inc qword ptr [rdx + rcx + {users} + {",
            $counter,
            "}]\n",
            "lea ecx, [rax - 1]\n",
            "and eax, ecx\n",
            "jnz 32b\n",
        )
    };
}

/// One entry trampoline, which keeps what `$keeps` says and asks the users with `$enter`. It moves vector
/// registers with `$moves`, or with `$full_moves` where that is not wide enough.
macro_rules! trampoline {
    (
        $name:literal, $return_point:literal, $suffix:literal, $keeps:ident,
        ($enter:ident, $leave:ident, $attach:ident),
        $moves:tt, $full_moves:tt, $opmask:tt,
        $if_wide:expr, $if_was_wide:expr, $if_wide_result:expr, $if_was_wide_result:expr
    ) => {
        global_asm!(
            ".pushsection fgraph_text, \"ax\", @progbits",
            concat!(".globl ", $name, $suffix),
            concat!(".hidden ", $name, $suffix),
            concat!(".type ", $name, $suffix, ", @function"),
            concat!(".globl ", $return_point, $suffix),
            concat!(".hidden ", $return_point, $suffix),
            // Right before the code: the stretches of it in which rbp is the frame.
            ".p2align 6",
            ".skip 64 - {stretches}",
            ".if {returns}",
            ".irp label,71f,72f,73f,74f,75f,76f",
            ".long \\label - 70f",
            ".endr",
            ".else",
            ".skip {stretches}",
            ".endif",
            "70:",
            concat!($name, $suffix, ":"),
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
            "sub rsp, {entry_room}",
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
            // Not on the machine stack that the thread was last seen on? Then it may be another thread.
            "lea rcx, [rbx + 8]",
            "sub rcx, [rdx + {stack_low}]",
            "cmp rcx, [rdx + {stack_span}]",
            "jae 36f",
            // From here on what a signal handler calls is not traced.
            "23:",
            "mov [rdx + {inside}], rsp",
            store_beyond!("rsp + {kept_beyond}", $opmask),
            $if_wide,
            store_args!($moves),
            "22:",
            "mov [rsp + {link}], rbx",
            "mov [rsp + {thread}], rdx",
            "mov rdi, rsp",
            "mov rsi, r11",
            "lea rcx, [rbx + 8]",
            "call {enter}",
            $if_was_wide,
            load_args!($moves),
            load_kept_args!($moves),
            "83:",
            load_beyond!("rsp + {kept_beyond}", $opmask),
            "mov rdi, [rsp + {int}]",
            "mov rsi, [rsp + {int} + 8]",
            "mov rdx, [rsp + {int} + 16]",
            "mov r8, [rsp + {int} + 32]",
            "mov r9, [rsp + {int} + 40]",
            "mov r10, [rsp + {scratch} + 8]",
            "mov r11, [rsp + {site}]",
            ".if {returns}",
            "test rax, rax",
            "jz 40f",
            // What the body must not see any more moves into the frame.
            "mov rcx, [rbx + 8]",
            "mov [rax], rbp",
            "mov [rax + 8], rcx",
            ".cfi_remember_state",
            "mov rbp, rax",
            "71:",
            // DW_CFA_def_cfa_expression, 11 bytes: breg6(rbp) +24, deref, plus_uconst 16, breg6 +52,
            // deref, lit7, and, minus. Valgrind knows no deref_size.
            ".cfi_escape 0x0f, 11, 0x76, {slot}, 0x06, 0x23, 16, 0x76, {tail}, 0x06, 0x37, 0x1a, 0x1c",
            // DW_CFA_expression rip (16), 2 bytes: breg6 +8.
            ".cfi_escape 0x10, 16, 2, 0x76, 8",
            // DW_CFA_expression rbp (6), 2 bytes: breg6 +0.
            ".cfi_escape 0x10, 6, 2, 0x76, 0",
            // DW_CFA_val_expression rsp (7), 5 bytes: breg6 +24, deref, plus_uconst 8.
            ".cfi_escape 0x16, 7, 5, 0x76, {slot}, 0x06, 0x23, 8",
            // DW_CFA_expression rbx (3), 5 bytes: breg6 +24, deref, lit8, minus.
            ".cfi_escape 0x10, 3, 5, 0x76, {slot}, 0x06, 0x38, 0x1c",
            ".if {preserve}",
            // The place of the caller's r11 takes the body's address.
            "mov rcx, [r11 + {body}]",
            "mov r11, [rbx - 8]",
            "mov [rbx - 8], rcx",
            ".endif",
            "mov rax, [rsp + {scratch}]",
            "mov rcx, [rsp + {int} + 24]",
            // Pops the caller's rbx and the return address. For an unwinder that comes by before the
            // next line, rbx stays readable in the red zone.
            "lea rsp, [rbx + 16]",
            "mov rbx, [rbx]",
            ".cfi_same_value rbx",
            // Pushes our return point where the return address stood.
            ".if {preserve}",
            "call qword ptr [rsp - 24]",
            ".else",
            "call qword ptr [r11 + {body}]",
            ".endif",
            concat!($return_point, $suffix, ":"),
            ".if {preserve}",
            "mov [rsp - 16], rcx",
            "mov [rsp - 24], r8",
            ".endif",
            // Nobody but a broken body can come back with another rbp or another stack.
            "lea rcx, [rsp - 8]",
            "cmp rcx, [rbp + {slot}]",
            "jne 50f",
            // The slot is 8 above a multiple of 16 if the caller has kept to the ABI. Then rsp can
            // be put back by adding a constant; from memory it would have to wait for a load.
            "test cl, 8",
            "jz 51f",
            "sub rsp, {return_room}",
            leave_call!(
                $moves, $opmask, $if_wide_result, $if_was_wide_result
            ),
            "add rsp, {return_room} - 8",
            "52:",
            // S, with the true return address in its old place. The frame is not on the shadow
            // stack any more, but nothing is traced, and so nothing written there, until `inside` is
            // cleared.
            "mov [rsp], rcx",
            "72:",
            "mov rbp, [rbp]",
            ".cfi_restore_state",
            ".cfi_restore_state",
            ".cfi_remember_state",
            "mov qword ptr [r8 + {inside}], 0",
            ".if {preserve}",
            "mov rcx, [rsp - 8]",
            "mov r8, [rsp - 16]",
            ".endif",
            "ret",
            ".cfi_restore_state",
            ".cfi_remember_state",
            ".cfi_escape 0x0f, 11, 0x76, {slot}, 0x06, 0x23, 16, 0x76, {tail}, 0x06, 0x37, 0x1a, 0x1c",
            ".cfi_escape 0x10, 16, 2, 0x76, 8",
            ".cfi_escape 0x10, 6, 2, 0x76, 0",
            ".cfi_escape 0x16, 7, 5, 0x76, {slot}, 0x06, 0x23, 8",
            "73:",
            leave_aside!(
                $moves, $full_moves, $opmask
            ),
            "74:",
            ".else",
            "jmp 40f",
            ".endif",
            ".cfi_restore_state",
            ".cfi_remember_state",
            ".cfi_def_cfa rbx, 16",
            ".cfi_offset rbx, -16",
            // First hit of this thread. Until its state is made, its hits count as missed.
            "20:",
            "mov rcx, qword ptr [rip + fgraph_thread@GOTTPOFF]",
            "lea rdx, [rip + {attaching}]",
            "mov fs:[rcx], rdx",
            store_beyond!("rsp + {kept_beyond}", $opmask),
            store_args!($full_moves),
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
            load_args!($full_moves),
            load_kept_args!($full_moves),
            load_beyond!("rsp + {kept_beyond}", $opmask),
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
            store_args!($full_moves),
            "jmp 22b",
            // Or a callback has made the arguments wide: that makes the other registers no wider.
            "82:",
            load_args!($full_moves),
            ".if {preserve}",
            compare!("kept_width", $full_moves),
            "jne 84f",
            ".endif",
            load_kept_args!($full_moves),
            "jmp 83b",
            ".if {preserve}",
            "84:",
            load_kept_args!($moves),
            "jmp 83b",
            ".endif",
            // The thread is inside fgraph already. If it is not in fgraph's own code, and the mark is
            // deeper than this call, then a signal handler may have left a callback by siglongjmp: the
            // mark is stale. Or it runs on another stack.
            "30:",
            "mov rax, [rdx + {inside}]",
            "cmp rax, {internal}",
            "je 31f",
            "cmp rbx, rax",
            "jb 31f",
            is_own!(),
            "jne 31f",
            "mov rax, [rdx + {inside}]",
            "mov [rsp + {thread}], rdx",
            store_beyond!("rsp + {kept_beyond}", $opmask),
            store_args!($full_moves),
            "mov rdi, rdx",
            "mov rsi, rax",
            "lea rdx, [rbx + 8]",
            "call {is_stale}",
            "mov rdx, [rsp + {thread}]",
            "mov r11, [rsp + {site}]",
            "test al, al",
            "jz 35f",
            "mov dword ptr [rdx + {mark}], {no_mark}",
            "mov [rdx + {inside}], rsp",
            "jmp 22b",
            "35:",
            load_args!($full_moves),
            load_kept_args!($full_moves),
            load_beyond!("rsp + {kept_beyond}", $opmask),
            "mov rdi, [rsp + {int}]",
            "mov rsi, [rsp + {int} + 8]",
            "mov r8, [rsp + {int} + 32]",
            "mov r9, [rsp + {int} + 40]",
            "mov r10, [rsp + {scratch} + 8]",
            "31:",
            count!("missed"),
            "jmp 33f",
            // A state is its thread's alone. But a process may be made that shares memory and the block of the
            // thread, `clone` with CLONE_VM alone, and goes on beside it: only the kernel can tell them apart.
            "36:",
            is_own!(),
            "je 23b",
            count!("foreign"),
            "33:",
            "mov rdx, [rsp + {int} + 16]",
            // Not traced, or nobody wants the return: on to the body as if nothing had been.
            "40:",
            ".if {preserve}",
            "mov rcx, [r11 + {body}]",
            "mov r11, [rbx - 8]",
            "mov [rbx - 8], rcx",
            ".endif",
            "mov rax, [rsp + {scratch}]",
            "mov rcx, [rsp + {int} + 24]",
            "mov rsp, rbx",
            ".cfi_def_cfa_register rsp",
            "pop rbx",
            ".cfi_restore_state",
            ".cfi_remember_state",
            ".if {preserve}",
            "jmp qword ptr [rsp - 16]",
            ".else",
            "jmp qword ptr [r11 + {body}]",
            ".endif",
            ".cfi_restore_state",
            ".if {returns}",
            ".cfi_escape 0x0f, 11, 0x76, {slot}, 0x06, 0x23, 16, 0x76, {tail}, 0x06, 0x37, 0x1a, 0x1c",
            ".cfi_escape 0x10, 16, 2, 0x76, 8",
            ".cfi_escape 0x10, 6, 2, 0x76, 0",
            ".cfi_escape 0x16, 7, 5, 0x76, {slot}, 0x06, 0x23, 8",
            "75:",
            "50:",
            "mov rdi, rbp",
            "mov rsi, rsp",
            "and rsp, -64",
            "call qword ptr [rip + {abort}]",
            "ud2",
            // The caller's stack was not aligned: as above, but rsp comes from the frame.
            "51:",
            "and rsp, -16",
            "sub rsp, {return_room}",
            leave_call!(
                $moves, $opmask, $if_wide_result, $if_was_wide_result
            ),
            "mov rsp, [rbp + {slot}]",
            "jmp 52b",
            leave_aside!(
                $moves, $full_moves, $opmask
            ),
            // The thread is inside fgraph: a callback has switched stacks. Return to the caller and leave
            // the frame to be dropped as a dead one.
            "60:",
            "mov rax, [rsp + {result}]",
            "mov rdx, [rsp + {result} + 8]",
            // What was in use before.
            load_beyond!("r9 + 64*14", $opmask, "16,17", "1"),
            ".if {preserve}",
            "mov r9, [rsp + {kept_int} + 16]",
            ".endif",
            "mov rsp, [rbp + {slot}]",
            "mov rcx, [rbp + 8]",
            "mov [rsp], rcx",
            "76:",
            "mov rbp, [rbp]",
            ".cfi_def_cfa rsp, 8",
            ".cfi_offset rip, -8",
            ".cfi_same_value rbp",
            ".cfi_restore rsp",
            ".if {preserve}",
            "mov rcx, [rsp - 8]",
            ".endif",
            "ret",
            ".endif",
            ".cfi_endproc",
            concat!(".size ", $name, $suffix, ", . - ", $name, $suffix),
            ".popsection",
            personality = sym personality,
            enter = sym $enter,
            preserve = const $keeps.preserve as u32,
            beyond = const $keeps.beyond as u32,
            returns = const $keeps.returns as u32,
            leave = sym $leave,
            stretches = const STRETCHES * size_of::<Stretch>(),
            is_stale = sym is_stale,
            attach = sym $attach,
            abort = sym ABORT,
            attaching = sym ATTACHING,
            entry_room = const $keeps.entry_room(),
            return_room = const $keeps.return_room(),
            kept_width = const $keeps.kept_width(),
            kept_result_width = const $keeps.kept_result_width(),
            kept_int = const $keeps.kept_int(),
            kept_vectors = const $keeps.kept_vectors(),
            kept_beyond = const $keeps.kept_beyond(),
            kept_results = const $keeps.kept_results(),
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
            stack_low = const offset_of!(Thread, low),
            stack_span = const offset_of!(Thread, span),
            mark = const offset_of!(Thread, mark),
            no_mark = const Mark::NONE,
            gettid = const GETTID,
            id = const Thread::ID,
            total = const offset_of!(Thread, total),
            users = const offset_of!(Thread, users),
            missed = const offset_of!(LiveCounters, missed),
            foreign = const offset_of!(LiveCounters, foreign),
            interest = const offset_of!(Site, interest),
            body = const offset_of!(Site, body),
            slot = const offset_of!(Frame, slot),
            tail = const offset_of!(Frame, tail),
        );
    };
}

/// Goes to the wide moves if they are needed.
///
/// The trampolines of machines with AVX-512 look whether any of the vector registers has a bit set
/// above the lowest 128, and save no more than those if not, because wide stores and loads take longer.
/// The loads of 128 bits clear the rest, whatever the callbacks have left there.
///
/// zmm16, zmm17 and k1 are free under the ABI, not promised by the variant, or kept before.
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
    (any_of_16, $wide:literal) => {
        concat!(
            "vmovdqa64 zmm16, zmm0
             vmovdqa64 zmm17, zmm3
             vpternlogq zmm16, zmm1, zmm2, 0xfe
             vpternlogq zmm17, zmm4, zmm5, 0xfe
             vpternlogq zmm16, zmm6, zmm7, 0xfe
             vpternlogq zmm17, zmm8, zmm9, 0xfe
             vpternlogq zmm16, zmm10, zmm11, 0xfe
             vpternlogq zmm17, zmm12, zmm13, 0xfe
             vpternlogq zmm16, zmm14, zmm15, 0xfe
             vporq zmm16, zmm16, zmm17
             vptestmq k1, zmm16, zmm16
             kmovw ecx, k1
             test cl, 0xfc
             jnz ",
            $wide
        )
    };
}

/// A variant, and its twin that holds cancellation off while the users are asked and told.
macro_rules! both {
    (
        $name:literal, $return_point:literal, $keeps:ident, ($enter:ident, $held:ident), $($moves:tt)*
    ) => {
        trampoline!($name, $return_point, "", $keeps, ($enter, leave, ATTACH), $($moves)*);
        trampoline!($name, $return_point, "_held", $keeps, ($held, leave_held, ATTACH_HELD), $($moves)*);
    };
}

/// For machines without AVX.
macro_rules! sse {
    ($name:literal, $return_point:literal, $keeps:ident, $enter:tt) => {
        both!(
            $name,
            $return_point,
            $keeps,
            $enter,
            ("movups", "xmm", "xmmword", 16),
            ("movups", "xmm", "xmmword", 16),
            ("kmovw", "word"),
            "",
            "",
            "",
            ""
        );
    };
}

/// For machines with AVX.
macro_rules! avx {
    ($name:literal, $return_point:literal, $keeps:ident, $enter:tt) => {
        both!(
            $name,
            $return_point,
            $keeps,
            $enter,
            ("vmovups", "ymm", "ymmword", 32),
            ("vmovups", "ymm", "ymmword", 32),
            ("kmovw", "word"),
            "",
            "",
            "",
            ""
        );
    };
}

/// For machines with AVX-512.
macro_rules! avx512 {
    (
        $name:literal, $return_point:literal, $keeps:ident, $enter:tt,
        $opmask:tt, $if_wide:expr, $if_wide_result:expr
    ) => {
        both!(
            $name,
            $return_point,
            $keeps,
            $enter,
            ("vmovups", "xmm", "xmmword", 16),
            ("vmovups", "zmm", "zmmword", 64),
            $opmask,
            $if_wide,
            "cmp dword ptr [rsp + {width}], 16
jne 82f",
            $if_wide_result,
            "cmp dword ptr [rsp + {result_width}], 16
jne 92f"
        );
    };
    ($name:literal, $return_point:literal, $keeps:ident, $enter:tt, $opmask:tt) => {
        avx512!(
            $name,
            $return_point,
            $keeps,
            $enter,
            $opmask,
            wide!(any_of_16, "80f"),
            wide!(any_of_16, "90f")
        );
    };
}

/// What a variant keeps beside what all of them do, and whether it calls bodies.
struct Keeps {
    /// What the stub has done with r11, vector registers 8 to 15, every general register at return.
    preserve: bool,
    /// What only AVX-512 has.
    beyond: bool,
    /// The body is called if somebody wants the return.
    returns: bool,
}

/// The system call.
const GETTID: u32 = 186;

const PLAIN: Keeps = Keeps {
    preserve: false,
    beyond: false,
    returns: true,
};
const PRESERVE: Keeps = Keeps {
    preserve: true,
    beyond: false,
    returns: true,
};
const PRESERVE_ALL: Keeps = Keeps {
    preserve: true,
    beyond: true,
    returns: true,
};
const ENTRY_ONLY: Keeps = Keeps {
    returns: false,
    ..PRESERVE
};
const ENTRY_ONLY_ALL: Keeps = Keeps {
    returns: false,
    ..PRESERVE_ALL
};

/// Bytes of a vector register.
const VECTOR: usize = size_of::<Vector>();
/// Bytes of what only AVX-512 has.
const BEYOND: usize = 16 * VECTOR + 8 * 8;

impl Keeps {
    /// Bytes on the stack while the users are asked: the last may be the caller's r11.
    const fn entry_room(&self) -> usize {
        if self.preserve {
            self.kept_width() + 64
        } else {
            size_of::<EntryRegs>()
        }
    }

    /// Where vector registers 8 to 15 are kept at entry.
    const fn kept_vectors(&self) -> usize {
        size_of::<EntryRegs>()
    }

    /// Where at entry that is kept which only AVX-512 has.
    const fn kept_beyond(&self) -> usize {
        self.kept_vectors() + 8 * VECTOR
    }

    /// Where it is noted how wide vector registers 8 to 15 are kept at entry.
    const fn kept_width(&self) -> usize {
        self.kept_beyond() + if self.beyond { BEYOND } else { 0 }
    }

    /// Bytes on the stack while the users are told: in the last 32 are the two words below the return
    /// address.
    const fn return_room(&self) -> usize {
        if self.preserve {
            let vectors = 14 * VECTOR + if self.beyond { BEYOND } else { 0 };
            self.kept_results() + 64 + vectors + 32
        } else {
            // Beside S, where our return point must be seen for as long as the frame is on a shadow stack: another
            // thread may look there whether the call goes on.
            size_of::<ReturnRegs>() + 16
        }
    }

    /// Where general registers are kept at return.
    const fn kept_int(&self) -> usize {
        size_of::<ReturnRegs>()
    }

    /// Where it is noted how wide vector registers 2 to 15 are kept at return.
    const fn kept_result_width(&self) -> usize {
        self.kept_int() + 5 * 8
    }

    /// Behind which, at the next multiple of 64, vector registers are kept at return.
    const fn kept_results(&self) -> usize {
        self.kept_result_width() + 8
    }
}

sse!(
    "fgraph_entry_sse",
    "fgraph_return_sse",
    PLAIN,
    (enter, enter_held)
);
avx!(
    "fgraph_entry_avx",
    "fgraph_return_avx",
    PLAIN,
    (enter, enter_held)
);
avx512!(
    "fgraph_entry_avx512",
    "fgraph_return_avx512",
    PLAIN,
    (enter, enter_held),
    ("kmovw", "word"),
    wide!(args),
    wide!(results)
);

sse!(
    "fgraph_preserve_sse",
    "fgraph_preserve_sse_return",
    PRESERVE,
    (enter, enter_held)
);
avx!(
    "fgraph_preserve_avx",
    "fgraph_preserve_avx_return",
    PRESERVE,
    (enter, enter_held)
);
avx512!(
    "fgraph_preserve_avx512",
    "fgraph_preserve_avx512_return",
    PRESERVE,
    (enter, enter_held),
    ("kmovw", "word")
);
avx512!(
    "fgraph_preserve_all",
    "fgraph_preserve_all_return",
    PRESERVE_ALL,
    (enter, enter_held),
    ("kmovq", "qword")
);
avx512!(
    "fgraph_preserve_all_f",
    "fgraph_preserve_all_f_return",
    PRESERVE_ALL,
    (enter, enter_held),
    ("kmovw", "word")
);

sse!(
    "fgraph_entry_only_sse",
    "fgraph_entry_only_sse_return",
    ENTRY_ONLY,
    (enter_only, enter_only_held)
);
avx!(
    "fgraph_entry_only_avx",
    "fgraph_entry_only_avx_return",
    ENTRY_ONLY,
    (enter_only, enter_only_held)
);
avx512!(
    "fgraph_entry_only_avx512",
    "fgraph_entry_only_avx512_return",
    ENTRY_ONLY,
    (enter_only, enter_only_held),
    ("kmovw", "word")
);
avx512!(
    "fgraph_entry_only_all",
    "fgraph_entry_only_all_return",
    ENTRY_ONLY_ALL,
    (enter_only, enter_only_held),
    ("kmovq", "qword")
);
avx512!(
    "fgraph_entry_only_all_f",
    "fgraph_entry_only_all_f_return",
    ENTRY_ONLY_ALL,
    (enter_only, enter_only_held),
    ("kmovw", "word")
);

/// Declares variants: entry and return point, and those of the twin.
macro_rules! declare {
    ($($name:ident $held:ident)*) => {
        unsafe extern "C" {
            $(fn $name(); fn $held();)*
        }
    };
}

declare! {
    fgraph_entry_sse fgraph_entry_sse_held
    fgraph_return_sse fgraph_return_sse_held
    fgraph_entry_avx fgraph_entry_avx_held
    fgraph_return_avx fgraph_return_avx_held
    fgraph_entry_avx512 fgraph_entry_avx512_held
    fgraph_return_avx512 fgraph_return_avx512_held
    fgraph_preserve_sse fgraph_preserve_sse_held
    fgraph_preserve_sse_return fgraph_preserve_sse_return_held
    fgraph_preserve_avx fgraph_preserve_avx_held
    fgraph_preserve_avx_return fgraph_preserve_avx_return_held
    fgraph_preserve_avx512 fgraph_preserve_avx512_held
    fgraph_preserve_avx512_return fgraph_preserve_avx512_return_held
    fgraph_preserve_all fgraph_preserve_all_held
    fgraph_preserve_all_return fgraph_preserve_all_return_held
    fgraph_preserve_all_f fgraph_preserve_all_f_held
    fgraph_preserve_all_f_return fgraph_preserve_all_f_return_held
    fgraph_entry_only_sse fgraph_entry_only_sse_held
    fgraph_entry_only_avx fgraph_entry_only_avx_held
    fgraph_entry_only_avx512 fgraph_entry_only_avx512_held
    fgraph_entry_only_all fgraph_entry_only_all_held
    fgraph_entry_only_all_f fgraph_entry_only_all_f_held
}

// Where an unwinder goes that has taken a frame of ours for the one that catches: with rsp and rbp as at
// the return point, and the exception in rax. The frame is still on the shadow stack; its users are told
// when the unwinder comes by again.
global_asm!(
    ".pushsection fgraph_text, \"ax\", @progbits",
    ".globl fgraph_catch",
    ".hidden fgraph_catch",
    ".type fgraph_catch, @function",
    ".globl fgraph_resumed",
    ".hidden fgraph_resumed",
    "fgraph_catch:",
    ".cfi_startproc",
    ".cfi_personality 0x1b, {personality}",
    ".cfi_escape 0x0f, 11, 0x76, {slot}, 0x06, 0x23, 16, 0x76, {tail}, 0x06, 0x37, 0x1a, 0x1c",
    ".cfi_escape 0x10, 16, 2, 0x76, 8",
    ".cfi_escape 0x10, 6, 2, 0x76, 0",
    ".cfi_escape 0x16, 7, 5, 0x76, {slot}, 0x06, 0x23, 8",
    // Anywhere but where the caller's is; aligned.
    "sub rsp, 32",
    "and rsp, -16",
    "mov rdi, rax",
    "call {resume}",
    "fgraph_resumed:",
    "ud2",
    ".cfi_endproc",
    ".size fgraph_catch, . - fgraph_catch",
    ".popsection",
    personality = sym personality,
    resume = sym _Unwind_Resume,
    slot = const offset_of!(Frame, slot),
    tail = const offset_of!(Frame, tail),
);

unsafe extern "C" {
    fn fgraph_catch();
    fn fgraph_resumed();
    fn _Unwind_Resume(exception: *mut c_void) -> !;
}

/// Where an unwinder is led to that is to come back to a frame with another stack pointer.
pub(super) fn catch() -> usize {
    fgraph_catch as *const () as usize
}

/// Where it finds that frame.
pub(super) fn resumed() -> usize {
    fgraph_resumed as *const () as usize
}

/// An address of a variant, and the one that it is of its twin.
macro_rules! twins {
    ($name:ident, $held:ident) => {
        [$name as *const () as usize, $held as *const () as usize]
    };
}

/// See [`Trampolines::of`].
pub(super) fn trampolines(vector_bytes: u32, opmask_bytes: u32, held: bool) -> Trampolines {
    type Twins = [usize; 2];
    let [plain, preserve, preserve_all]: [[Twins; 2]; 3];
    let [entry_only, entry_only_all]: [Twins; 2];
    match (vector_bytes, opmask_bytes) {
        (64, opmask_bytes) => {
            plain = [
                twins!(fgraph_entry_avx512, fgraph_entry_avx512_held),
                twins!(fgraph_return_avx512, fgraph_return_avx512_held),
            ];
            preserve = [
                twins!(fgraph_preserve_avx512, fgraph_preserve_avx512_held),
                twins!(
                    fgraph_preserve_avx512_return,
                    fgraph_preserve_avx512_return_held
                ),
            ];
            entry_only = twins!(fgraph_entry_only_avx512, fgraph_entry_only_avx512_held);
            if opmask_bytes == 8 {
                preserve_all = [
                    twins!(fgraph_preserve_all, fgraph_preserve_all_held),
                    twins!(fgraph_preserve_all_return, fgraph_preserve_all_return_held),
                ];
                entry_only_all = twins!(fgraph_entry_only_all, fgraph_entry_only_all_held);
            } else {
                preserve_all = [
                    twins!(fgraph_preserve_all_f, fgraph_preserve_all_f_held),
                    twins!(
                        fgraph_preserve_all_f_return,
                        fgraph_preserve_all_f_return_held
                    ),
                ];
                entry_only_all = twins!(fgraph_entry_only_all_f, fgraph_entry_only_all_f_held);
            }
        }
        (32, _) => {
            plain = [
                twins!(fgraph_entry_avx, fgraph_entry_avx_held),
                twins!(fgraph_return_avx, fgraph_return_avx_held),
            ];
            preserve = [
                twins!(fgraph_preserve_avx, fgraph_preserve_avx_held),
                twins!(fgraph_preserve_avx_return, fgraph_preserve_avx_return_held),
            ];
            entry_only = twins!(fgraph_entry_only_avx, fgraph_entry_only_avx_held);
            (preserve_all, entry_only_all) = (preserve, entry_only);
        }
        _ => {
            plain = [
                twins!(fgraph_entry_sse, fgraph_entry_sse_held),
                twins!(fgraph_return_sse, fgraph_return_sse_held),
            ];
            preserve = [
                twins!(fgraph_preserve_sse, fgraph_preserve_sse_held),
                twins!(fgraph_preserve_sse_return, fgraph_preserve_sse_return_held),
            ];
            entry_only = twins!(fgraph_entry_only_sse, fgraph_entry_only_sse_held);
            (preserve_all, entry_only_all) = (preserve, entry_only);
        }
    }
    let this = usize::from(held);
    Trampolines {
        plain: plain[0][this],
        preserve: preserve[0][this],
        preserve_all: preserve_all[0][this],
        entry_only: entry_only[this],
        entry_only_all: entry_only_all[this],
        return_points: [plain, preserve, preserve_all].map(|[_, point]| point[this]),
        vector_bytes,
    }
}

/// How many stretches of a variant's code there are in which rbp is the frame.
const STRETCHES: usize = 3;

/// One of them: its start and its end, in bytes from the start of the code.
type Stretch = [u32; 2];

/// Whether rbp is the frame at `address` in the variant at `start`.
///
/// # Safety
///
/// `start` must be the address of one.
pub(super) unsafe fn has_frame(start: usize, address: usize) -> bool {
    // SAFETY: the stretches stand right before the code.
    let stretches = unsafe { (start as *const [Stretch; STRETCHES]).sub(1).read() };
    let offset = address.wrapping_sub(start);
    let is_in = |[from, to]: [u32; 2]| (from as usize..to as usize).contains(&offset);
    stretches.into_iter().any(is_in)
}

// What the assembly takes for granted.
const _: () = assert!(
    size_of::<LiveCounters>() == 1 << 6,
    "the missed loop shifts by 6"
);
const _: () = assert!(
    offset_of!(EntryRegs, vector).is_multiple_of(64)
        && PRESERVE_ALL.entry_room().is_multiple_of(64)
);
const _: () = assert!(PRESERVE_ALL.return_room().is_multiple_of(16));
const _: () = assert!(offset_of!(ReturnRegs, how) == offset_of!(ReturnRegs, width) + 4);
const _: () = assert!(offset_of!(Frame, frame_pointer) == 0);
const _: () = assert!(offset_of!(Frame, return_address) == 8);
const _: () = assert!(
    offset_of!(Frame, slot) < 64 && offset_of!(Frame, tail) < 64,
    "one byte of LEB128 in the unwind rules"
);
const _: () = assert!(offset_of!(Link, return_address) == 8);
