//! The assembly of the trampolines: one text, from which every variant is made.
//!
//! | variant | survives entry and return | sites |
//! |---|---|---|
//! | plain | what the ABI lets a callee read | with a compiler-made NOP |
//! | preserve | every general register, vector registers 0 to 15 | relocated |
//! | preserve all | and vector registers 16 to 31 and the opmasks | relocated, where code may use these |
//! | entry only | as the one of the latter two it goes with | relocated, never called through a frame |
//!
//! Each has a twin that can hold cancellation off while users are asked and told, and look at who
//! calls (`caller_check.rs`).
//!
//! `save.rs` has the moves that save registers, and `table.rs` the addresses.
//!
//! A call that only fast-path users want takes the fast path (`fast_path.rs`), in the middle of the
//! trampolines; the code that calls the dispatch is separate.
//!
//! Local labels end in the number of their trampoline (`{v}`), because all of them are one text to
//! the assembler. Comments say at each label what the registers hold "at this point".

use core::arch::global_asm;
use core::mem::offset_of;

use fgraph_core::MAX_USERS;
use fgraph_core::counters::LiveCounters;
use fgraph_core::fast_path::MAX_FRAME;
use fgraph_core::fgraph::{FGRAPH, Fgraph};
use fgraph_core::frame::{Frame, HEADER, LIST_LEN, REPLACED, TRAILER};
use fgraph_core::grace::HazardSlot;
use fgraph_core::order::{List, Listing, Order};
use fgraph_core::registration::Header;
use fgraph_core::regs::{EntryRegs, Link, ReturnRegs};
use fgraph_core::shadow::ShadowStack;
use fgraph_core::site::Site;
use fgraph_core::slot::Slots;
use fgraph_core::thread::Thread;

use super::caller_check::{
    ATTACH_CHECKED, CHECKS, enter_checked, enter_only_checked, leave_checked,
};
use super::calls::{ABORT, ATTACH, DISTANCES, enter, enter_only, is_stale, leave};
use super::current::ATTACHING;
use super::host;
use super::personality::personality;
use super::save::Machine;
use super::table::{STRETCHES, Stretch};
use super::variant::Variant;

/// Tells the users of a return. rsp points to the room in which the results are stored, rbp to the
/// frame, and r8 to the thread's state, if it has one; afterwards rcx is the true return address,
/// and r8 the state.
/// Leaves through `deferred` if the thread is inside already. `$stack` tells the local labels of
/// the two copies in a trampoline apart.
macro_rules! leave_call {
    ($stack:literal, $moves:tt, $opmask:tt, $wide:ident) => {
        concat!(
            point_r9!(),
            store_beyond!("r9 + 64*14", $opmask),
            if_wide_results!($wide, $stack),
            store_results!($moves),
            // At this point: rsp is the ReturnRegs, rbp the frame, r9 the saved vectors; the
            // results and what the caller may rely on are stored.
            label!("results_stored", $stack),
            "mov rcx, r8\n",
            "test rcx, rcx\n",
            jump!("jz", "first_hit_at_return", $stack),
            "cmp qword ptr [rcx + {entered_sp}], 0\n",
            jump!("jne", "inside_at_return", $stack),
            // At this point: as before, and rcx is this thread's state.
            label!("call_leave", $stack),
            // From here on what a signal handler calls is not traced.
            "mov [rcx + {entered_sp}], rsp\n",
            "mov [rsp + {result_frame}], rbp\n",
            "mov rdi, rsp\n",
            "mov rsi, rbp\n",
            "mov rdx, rcx\n",
            zero_upper!($wide),
            "call {leave}\n",
            point_r9!(),
            if_widened_results!($wide, $stack),
            load_results!($moves),
            load_saved_results!($moves),
            // At this point: rax is this thread's state, vector registers 0 to 15 are as the caller
            // is to see them.
            label!("results_loaded", $stack),
            load_beyond!("r9 + 64*14", $opmask),
            "mov r8, rax\n",
            ".if {preserve}\n",
            "mov rsi, [rsp + {saved_int}]\n",
            "mov rdi, [rsp + {saved_int} + 8]\n",
            "mov r9, [rsp + {saved_int} + 16]\n",
            "mov r10, [rsp + {saved_int} + 24]\n",
            "mov r11, [rsp + {saved_int} + 32]\n",
            ".endif\n",
            "mov rax, [rsp + {result}]\n",
            "mov rdx, [rsp + {result} + 8]\n",
            "mov rcx, [rbp + 8]\n",
        )
    };
}

/// The rare cases of `leave_call`, placed after it.
macro_rules! leave_aside {
    ($stack:literal, $moves:tt, $full_moves:tt, $opmask:tt) => {
        concat!(
            // A coroutine has come to a thread that has not hit anything yet. As at `first_hit`.
            // At this point: as at `results_stored`.
            label!("first_hit_at_return", $stack),
            block_signals!("result_thread"),
            "mov rcx, qword ptr [rip + fgraph_thread@GOTTPOFF]\n",
            "cmp qword ptr fs:[rcx], 0\n",
            jump!("jne", "attached_at_return", $stack),
            "lea rdx, [rip + {attaching}]\n",
            "mov fs:[rcx + 8], rsp\n",
            "mov fs:[rcx], rdx\n",
            store_results!($full_moves),
            "call qword ptr [rip + {attach}]\n",
            "mov rcx, qword ptr [rip + fgraph_thread@GOTTPOFF]\n",
            "mov fs:[rcx], rax\n",
            "mov r8, rax\n",
            point_r9!(),
            "test r8, r8\n",
            jump!("jz", "not_attached_at_return", $stack),
            "mov [r8 + {entered_sp}], rsp\n",
            unblock_signals!("result_thread"),
            "mov rcx, r8\n",
            jump!("jmp", "call_leave", $stack),
            label!("not_attached_at_return", $stack),
            unblock_signals!("result_thread"),
            load_results!($full_moves),
            load_saved_results!($full_moves),
            load_beyond!("r9 + 64*14", $opmask),
            load_saved_int!(),
            "jmp .Ldeferred_{v}\n",
            // A signal handler has hit a site first.
            label!("attached_at_return", $stack),
            unblock_signals!("result_thread"),
            load_saved_int!(),
            "mov r8, qword ptr [rip + fgraph_thread@GOTTPOFF]\n",
            "mov r8, fs:[r8]\n",
            jump!("jmp", "results_stored", $stack),
            // A result is wide.
            // At this point: rsp is the room for the ReturnRegs, r9 that for vectors, rbp the
            // frame.
            label!("wide_results", $stack),
            store_results!($full_moves),
            jump!("jmp", "results_stored", $stack),
            // Or a callback has made the results wide: that makes the other registers no wider.
            // At this point: rax is this thread's state, rsp the ReturnRegs, r9 the saved vectors.
            label!("widened_results", $stack),
            load_results!($full_moves),
            ".if {preserve}\n",
            compare!("saved_result_width", $full_moves),
            jump!("jne", "narrow_saved_results", $stack),
            ".endif\n",
            load_saved_results!($full_moves),
            jump!("jmp", "results_loaded", $stack),
            ".if {preserve}\n",
            label!("narrow_saved_results", $stack),
            load_saved_results!($moves),
            jump!("jmp", "results_loaded", $stack),
            ".endif\n",
            // The thread is inside fgraph when a body is back. If `entered_sp` and this call are on
            // the stack that the thread was last seen on, and `entered_sp` is deeper, then a signal
            // handler has left a callback by siglongjmp: `entered_sp` is stale.
            // At this point: as at `call_leave`.
            label!("inside_at_return", $stack),
            "mov rax, [rcx + {entered_sp}]\n",
            "cmp rax, {untraced}\n",
            "jbe .Ldeferred_{v}\n",
            "mov rdx, [rbp + {return_slot_addr}]\n",
            "cmp rax, rdx\n",
            "jae .Ldeferred_{v}\n",
            "sub rax, [rcx + {stack_low}]\n",
            "cmp rax, [rcx + {stack_span}]\n",
            "jae .Ldeferred_{v}\n",
            "sub rdx, [rcx + {stack_low}]\n",
            "cmp rdx, [rcx + {stack_span}]\n",
            "jae .Ldeferred_{v}\n",
            "mov dword ptr [rcx + {hazard_slot}], {no_hazard}\n",
            "mov dword ptr [rcx + {listed}], 0\n",
            "mov qword ptr [rcx + {entry_only}], 0\n",
            jump!("jmp", "call_leave", $stack),
        )
    };
}

/// The unwind rules where a register is the frame, whose `DW_OP_breg` is `$frame`: the third row of
/// the table in `trampoline.rs`, but for rbp.
///
/// They are spelled in bytes because the assembler has no words for expressions. An expression
/// works on a stack of addresses, as the comments show it.
macro_rules! cfi_frame {
    ($frame:literal) => {
        concat!(
            ".cfi_escape 0x0f, 30, ", // DW_CFA_def_cfa_expression, of 30 bytes
            $frame,
            ", {return_slot_addr}", // DW_OP_breg: frame + return_slot_addr
            ", 0x06",               // DW_OP_deref: S
            ", 0x23, 8, ",          // DW_OP_plus_uconst: S + 8
            $frame,
            ", {tail}",    // DW_OP_breg: S + 8, frame + tail
            ", 0x06",      // DW_OP_deref, as Valgrind knows no DW_OP_deref_size
            ", 0x37",      // DW_OP_lit7
            ", 0x1a",      // DW_OP_and: S + 8, the lowest three bits of `tail`
            ", 0x22",      // DW_OP_plus: the CFA, but in the first of tail calls
            ", 0x77, 0, ", // DW_OP_breg7: ..., rsp
            $frame,
            ", {return_slot_addr}", // DW_OP_breg: ..., rsp, frame + return_slot_addr
            ", 0x06",               // DW_OP_deref: ..., rsp, S
            ", 0x23, 8",            // DW_OP_plus_uconst: ..., rsp, S + 8
            ", 0x2e, ",             // DW_OP_ne: ..., 1 if another frame has moved rsp
            $frame,
            ", {tail}",                    // DW_OP_breg: ..., 0 or 1, frame + tail
            ", 0x06",                      // DW_OP_deref
            ", 0x37",                      // DW_OP_lit7
            ", 0x1a",                      // DW_OP_and: ..., 0 or 1, the bits of `tail`
            ", 0x37",                      // DW_OP_lit7
            ", 0x29",                      // DW_OP_eq: ..., 0 or 1, 1 in the first of tail calls
            ", 0x1a",                      // DW_OP_and: ..., 1 if both
            ", 0x37",                      // DW_OP_lit7
            ", 0x1e",                      // DW_OP_mul: ..., 7 if both
            ", 0x1c",                      // DW_OP_minus: the CFA
            "\n.cfi_escape 0x10, 16, 2, ", // DW_CFA_expression, of the return address, 2 bytes:
            $frame,
            ", 8",                        // DW_OP_breg: it is stored at frame + 8
            "\n.cfi_escape 0x16, 7, 5, ", // DW_CFA_val_expression, of rsp, 5 bytes:
            $frame,
            ", {return_slot_addr}", // DW_OP_breg: frame + return_slot_addr
            ", 0x06",               // DW_OP_deref: S
            ", 0x23, 8",            // DW_OP_plus_uconst: its value is S + 8
        )
    };
}

/// The unwind rules where rbp is the frame: the third row of the table in `trampoline.rs`.
macro_rules! cfi_body_frame {
    () => {
        concat!(
            cfi_frame!("0x76"),
            "\n.cfi_escape 0x10, 6, 2", // DW_CFA_expression, of rbp, 2 bytes:
            ", 0x76, 0",                // DW_OP_breg6: it is stored at rbp + 0
        )
    };
}

/// Finds who wants the call: the users of the site that are enabled and watch the thread, whose
/// state rdx is. At this point r11 is the site. Leaves them in r8, and the flags by them; and in r9
/// the newest registration before they were read, as a frame keeps it: a user that takes a slot in
/// between is younger than the call. `Fgraph::wanting` does the same.
macro_rules! users_wanting {
    () => {
        "mov r9, qword ptr [rip + {fgraph} + {epoch}]
         movzx r8d, word ptr [r11 + {interest}]
         and r8d, r9d
         and r9, -0x10000
         and r8d, dword ptr [rdx + {watching}]"
    };
}

/// Counts the call, for the thread and for each user that wants it. Locked, because `ATTACHING` is
/// shared.
macro_rules! count {
    ($counter:literal) => {
        concat!(
            "movzx eax, word ptr [r11 + {interest}]\n",
            "and eax, dword ptr [rip + {fgraph} + {epoch}]\n",
            "and eax, dword ptr [rdx + {watching}]\n",
            "jz .Luntraced_{v}\n",
            "lock inc qword ptr [rdx + {total} + {",
            $counter,
            "}]\n",
            label!("each", $counter),
            "bsf ecx, eax\n",
            "shl ecx, 6\n",
            "lock inc qword ptr [rdx + rcx + {users} + {",
            $counter,
            "}]\n",
            "lea ecx, [rax - 1]\n",
            "and eax, ecx\n",
            jump!("jnz", "each", $counter),
        )
    };
}

/// Asks the users, any of them: saves all that their callbacks may change, and puts it back.
///
/// At the start: as at `set_inside`, and `entered_sp` is set. At the end rax is the frame or null.
macro_rules! dispatch_entry {
    ($moves:tt, $opmask:tt, $wide:ident) => {
        concat!(
            ".Ldispatch_entry_{v}:\n",
            store_beyond!("rsp + {saved_beyond}", $opmask),
            if_wide_args!($wide),
            "\n",
            store_args!($moves),
            // At this point: as before, and every register is saved that has to be; any other may
            // be used.
            ".Lcall_enter_{v}:
             mov [rsp + {frame_pointer}], rbp
             mov rdi, rsp
             mov rsi, r11
             lea rcx, [rbx + 8]
            ",
            zero_upper!($wide),
            "call {enter}\n",
            if_widened_args!($wide),
            "\n",
            load_args!($moves),
            load_saved_args!($moves),
            // At this point: rax is the frame or null, and vector registers 0 to 15 are as the body
            // is to see them.
            ".Largs_loaded_{v}:\n",
            load_beyond!("rsp + {saved_beyond}", $opmask),
        )
    };
}

/// One trampoline of a variant: `$twin` is 1 if it checks callers. It dispatches entries with
/// `$enter`. It moves vector registers with `$moves`, or with `$full_moves` where that is not wide
/// enough, which it finds out as `$wide` says.
macro_rules! trampoline {
    (
        $variant:ident, $machine:ident, $twin:literal, $name:literal, $suffix:literal,
        ($enter:ident, $leave:ident, $attach:ident),
        $moves:tt, $full_moves:tt, $opmask:tt, $wide:ident
    ) => {
        global_asm!(
            ".pushsection fgraph_text, \"ax\", @progbits",
            concat!(".globl ", $name, $suffix),
            concat!(".hidden ", $name, $suffix),
            concat!(".type ", $name, $suffix, ", @function"),
            ".if {twin}",
            concat!(".globl ", $name, "_return"),
            concat!(".hidden ", $name, "_return"),
            ".endif",
            // Right before the code: the stretches of it in which rbp is the frame.
            ".p2align 6",
            ".skip 64 - {stretches}",
            ".if {returns}",
            ".if {twin}",
            ".irp label,call_{v},call_end_{v},aside_{v},aside_end_{v},rare_{v},rare_end_{v}",
            ".long .L\\label - .Lstart_{v}",
            ".endr",
            ".else",
            ".skip {stretches} - 8",
            ".endif",
            ".long .Lgo_{v} - .Lstart_{v}, .Lgo_end_{v} - .Lstart_{v}",
            ".else",
            ".skip {stretches}",
            ".endif",
            // At this point: r11 is the site's record, rsp is S, the place of the return address;
            // all else is the caller's. Its r11 is at S-16, where the variant preserves it.
            ".Lstart_{v}:",
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
            "jz .Lfirst_hit_{v}",
            ".Lattached_{v}:",
            users_wanting!(),
            "jz .Luntraced_{v}",
            "cmp qword ptr [rdx + {entered_sp}], 0",
            "jne .Lalready_inside_{v}",
            // Not on the machine stack that the thread was last seen on, or near its end?
            "lea rcx, [rbx + 8]",
            "sub rcx, [rdx + {roomy_low}]",
            "cmp rcx, [rdx + {roomy_span}]",
            "jae .Lother_stack_{v}",
            // From here on what a signal handler calls is not traced.
            // At this point: rdx is this thread's state, r11 the site, rbx S-8, rsp the EntryRegs.
            // r8 the users that want the call, r9 the epoch as a frame keeps it. General registers
            // are saved, vector registers hold what the caller had in them.
            ".Lset_inside_{v}:",
            "mov [rdx + {entered_sp}], rsp",
            ".if {returns}",
            fast_entry_path!(),
            ".else",
            dispatch_entry!($moves, $opmask, $wide),
            ".endif",
            // At this point: rax is the frame, rsp the EntryRegs, rbx S-8; what the next lines do
            // not load is as the body is to see it. Where returns are not dispatched there is
            // no frame.
            ".Lentry_dispatched_{v}:",
            "mov rdi, [rsp + {int}]",
            "mov rsi, [rsp + {int} + 8]",
            "mov rdx, [rsp + {int} + 16]",
            "mov r8, [rsp + {int} + 32]",
            "mov r9, [rsp + {int} + 40]",
            "mov r10, [rsp + {scratch} + 8]",
            "mov r11, [rsp + {site}]",
            ".if {returns}",
            ".cfi_remember_state",
            // A user has replaced the body?
            "cmp r11, [rax + {frame_site}]",
            "jne .Lreplaced_{v}",
            // The frame's return point, from which the body is called, and the body.
            ".Lpoint_{v}:",
            "add rax, qword ptr [rip + {distances} + 8*{kind}]",
            "mov [rbx - 16], rax",
            ".if {preserve}",
            // The place of the caller's r11 takes the body's address.
            "mov rcx, [r11 + {body}]",
            "mov r11, [rbx - 8]",
            "mov [rbx - 8], rcx",
            ".endif",
            "mov rax, [rsp + {scratch}]",
            "mov rcx, [rsp + {int} + 24]",
            // Pops the caller's rbx and the return address, which both stay readable in the red
            // zone for an unwinder that comes by.
            "lea rsp, [rbx + 16]",
            ".cfi_def_cfa rsp, 0",
            "mov rbx, [rbx]",
            ".cfi_same_value rbx",
            // Pushes the return point where the return address stood.
            ".Lgo_{v}:",
            "jmp qword ptr [rsp - 32]",
            ".Lgo_end_{v}:",
            // Calls that began in any of the twins return to the one that can check more.
            ".if {twin}",
            // At this point: rcx is the frame, rsp is S+8; the results, and what the variant
            // preserves, are in their registers, but rcx: it is at S-8 where that is preserved.
            ".p2align 6",
            concat!($name, "_return:"),
            cfi_frame!("0x72"),
            ".cfi_same_value rbp",
            // The caller's rbp, as the body has left it. A collector that stops the thread from
            // here on looks at the machine stack.
            ".if {preserve}",
            "mov [rsp - 32], rbp",
            ".else",
            "mov [rsp - 16], rbp",
            ".endif",
            "mov rbp, rcx",
            ".Lcall_{v}:",
            cfi_body_frame!(),
            ".if {preserve}",
            "mov [rsp - 24], r8",
            ".endif",
            "mov r8, qword ptr [rip + fgraph_thread@GOTTPOFF]",
            "mov r8, fs:[r8]",
            "test r8, r8",
            "jz .Laside_{v}",
            // The newest frame, unless a coroutine has come back.
            "cmp rbp, [r8 + {newest}]",
            "jne .Laside_{v}",
            "lea rcx, [rsp - 8]",
            "cmp rcx, [rbp + {return_slot_addr}]",
            "jne .Llost_{v}",
            "test cl, 8",
            "jz .Lunaligned_{v}",
            "sub rsp, {return_room}",
            store_int!(),
            fast_return_path!(),
            "add rsp, {return_room} - 8",
            // At this point: rsp is S, rcx the true return address, r8 this thread's state, rbp the
            // frame; all else is as the caller is to see it.
            ".Lreturn_{v}:",
            // The frame is not on the shadow stack any more, but nothing is traced, and so nothing
            // written there, until `entered_sp` is cleared.
            "mov [rsp], rcx",
            ".Lcall_end_{v}:",
            // As the body has left it.
            ".if {preserve}",
            "mov rbp, [rsp - 24]",
            ".else",
            "mov rbp, [rsp - 8]",
            ".endif",
            ".cfi_restore_state",
            ".cfi_restore_state",
            ".cfi_remember_state",
            "mov qword ptr [r8 + {entered_sp}], 0",
            ".if {preserve}",
            "mov rcx, [rsp - 8]",
            "mov r8, [rsp - 16]",
            ".endif",
            "ret",
            ".cfi_restore_state",
            ".cfi_remember_state",
            cfi_body_frame!(),
            // At this point: rbp is the frame, r8 this thread's state or null; else as where the
            // body has returned to.
            ".Laside_{v}:",
            "lea rcx, [rsp - 8]",
            "cmp rcx, [rbp + {return_slot_addr}]",
            "jne .Llost_{v}",
            // `return_slot_addr` is 8 above a multiple of 16 if the caller has kept to the ABI.
            // Then rsp can be put back by adding a constant; from memory it would have to wait for
            // a load.
            "test cl, 8",
            "jz .Lunaligned_{v}",
            "sub rsp, {return_room}",
            store_int!(),
            "jmp .Ldispatch_return_{v}",
            fast_return_aside!(),
            // The user that has accepted the call is gone, or there is something to check, or
            // the frame is not the newest any more.
            ".Lnot_fast_{v}:",
            "mov qword ptr [r8 + {entered_sp}], 0",
            // At this point: r8 is this thread's state or null, rbp the frame, rsp the room for the
            // ReturnRegs, in which `store_int` has stored; vector registers are as at the return
            // point.
            ".Ldispatch_return_{v}:",
            leave_call!("aligned", $moves, $opmask, $wide),
            "add rsp, {return_room} - 8",
            "jmp .Lreturn_{v}",
            leave_aside!("aligned", $moves, $full_moves, $opmask),
            ".Laside_end_{v}:",
            ".else",
            ".cfi_restore_state",
            ".endif",
            ".else",
            "jmp .Lbody_{v}",
            ".endif",
            ".cfi_restore_state",
            ".cfi_remember_state",
            ".cfi_def_cfa rbx, 16",
            ".cfi_offset rbx, -16",
            ".if {returns}",
            ".Lreplaced_{v}:",
            "or byte ptr [rax + {tail}], {replaced}",
            "jmp .Lpoint_{v}",
            dispatch_entry!($moves, $opmask, $wide),
            "test rax, rax",
            "jnz .Lentry_dispatched_{v}",
            "jmp .Lno_frame_{v}",
            fast_entry_aside!(),
            ".Lno_frame_{v}:",
            "mov rdi, [rsp + {int}]",
            "mov rsi, [rsp + {int} + 8]",
            "mov r10, [rsp + {scratch} + 8]",
            "mov r11, [rsp + {site}]",
            "jmp .Luntraced_{v}",
            ".endif",
            // First hit of this thread. Until its state is made, its hits count as missed, and no
            // signal handler may leave it by siglongjmp: it would count them for ever.
            // At this point: as at `set_inside`, but rdx is null.
            ".Lfirst_hit_{v}:",
            block_signals!("link"),
            "mov r11, [rsp + {site}]",
            "mov rcx, qword ptr [rip + fgraph_thread@GOTTPOFF]",
            "cmp qword ptr fs:[rcx], 0",
            "jne .Lattached_by_handler_{v}",
            "lea rdx, [rip + {attaching}]",
            "mov fs:[rcx + 8], rsp",
            "mov fs:[rcx], rdx",
            store_beyond!("rsp + {saved_beyond}", $opmask),
            store_args!($full_moves),
            "call qword ptr [rip + {attach}]",
            "mov rcx, qword ptr [rip + fgraph_thread@GOTTPOFF]",
            "mov fs:[rcx], rax",
            "test rax, rax",
            "jz .Lnot_attached_{v}",
            "mov [rax + {entered_sp}], rsp",
            "mov [rsp + {thread}], rax",
            unblock_signals!("link"),
            "mov r11, [rsp + {site}]",
            "mov rdx, [rsp + {thread}]",
            users_wanting!(),
            "jmp .Lcall_enter_{v}",
            // A signal handler has hit a site first.
            ".Lattached_by_handler_{v}:",
            unblock_signals!("link"),
            "mov rdi, [rsp + {int}]",
            "mov rsi, [rsp + {int} + 8]",
            "mov r10, [rsp + {scratch} + 8]",
            "mov r11, [rsp + {site}]",
            "mov rdx, qword ptr [rip + fgraph_thread@GOTTPOFF]",
            "mov rdx, fs:[rdx]",
            "jmp .Lattached_{v}",
            ".Lnot_attached_{v}:",
            unblock_signals!("link"),
            load_args!($full_moves),
            load_saved_args!($full_moves),
            load_beyond!("rsp + {saved_beyond}", $opmask),
            "mov rdi, [rsp + {int}]",
            "mov rsi, [rsp + {int} + 8]",
            "mov r8, [rsp + {int} + 32]",
            "mov r9, [rsp + {int} + 40]",
            "mov r10, [rsp + {scratch} + 8]",
            "mov r11, [rsp + {site}]",
            "jmp .Luntraced_{v}",
            // Some vector argument is wide. Only the trampolines for AVX come here, and to the
            // other labels with `wide` and `widened`.
            // At this point: as at `set_inside`; `entered_sp` is set, and what only AVX-512 has is
            // saved.
            ".Lwide_args_{v}:",
            store_args!($full_moves),
            "jmp .Lcall_enter_{v}",
            // Or a callback has made the arguments wide: that makes the other registers no wider.
            // At this point: rax is the frame or null, rbx S-8, rsp the EntryRegs.
            ".Lwidened_args_{v}:",
            load_args!($full_moves),
            ".if {preserve}",
            compare!("saved_width", $full_moves),
            "jne .Lnarrow_saved_args_{v}",
            ".endif",
            load_saved_args!($full_moves),
            "jmp .Largs_loaded_{v}",
            ".if {preserve}",
            ".Lnarrow_saved_args_{v}:",
            load_saved_args!($moves),
            "jmp .Largs_loaded_{v}",
            ".endif",
            // The thread is inside fgraph already. If it is not in fgraph's own code, and
            // `entered_sp` is deeper than this call, then a signal handler may have left a callback
            // by siglongjmp: `entered_sp` is stale. Or it runs on another stack.
            // At this point: as at `set_inside`.
            ".Lalready_inside_{v}:",
            "mov rax, [rdx + {entered_sp}]",
            "cmp rax, {untraced}",
            "je .Luntraced_{v}",
            "cmp rax, {internal}",
            "je .Linternal_{v}",
            "cmp rbx, rax",
            "jb .Lmissed_{v}",
            is_own!(),
            "jne .Lmissed_{v}",
            "mov rax, [rdx + {entered_sp}]",
            "mov [rsp + {thread}], rdx",
            store_beyond!("rsp + {saved_beyond}", $opmask),
            store_args!($full_moves),
            "mov rdi, rdx",
            "mov rsi, rax",
            "lea rdx, [rbx + 8]",
            "call {is_stale}",
            "mov rdx, [rsp + {thread}]",
            "mov r11, [rsp + {site}]",
            "test al, al",
            "jz .Lnot_stale_{v}",
            users_wanting!(),
            "mov dword ptr [rdx + {hazard_slot}], {no_hazard}",
            "mov [rdx + {entered_sp}], rsp",
            "jmp .Lcall_enter_{v}",
            ".Lnot_stale_{v}:",
            load_args!($full_moves),
            load_saved_args!($full_moves),
            load_beyond!("rsp + {saved_beyond}", $opmask),
            "mov rdi, [rsp + {int}]",
            "mov rsi, [rsp + {int} + 8]",
            "mov r8, [rsp + {int} + 32]",
            "mov r9, [rsp + {int} + 40]",
            "mov r10, [rsp + {scratch} + 8]",
            // At this point: rdx is this thread's state, r11 the site, rbx S-8, rsp the EntryRegs;
            // all but rax, rcx, rdx, rbx and r11 is as the body is to see it.
            ".Lmissed_{v}:",
            count!("missed"),
            "jmp .Luntraced_{v}",
            // fgraph itself works in this thread. Or the thread's state was being made, deeper than
            // this call, and a handler of SIGTRAP or a fault has left that by siglongjmp. A handler
            // on another stack may be taken for that: it gets a state of its own, and the first one
            // replaces that.
            // At this point: as at `missed`.
            ".Linternal_{v}:",
            "lea rax, [rip + {attaching}]",
            "cmp rdx, rax",
            "jne .Lcount_internal_{v}",
            "mov rcx, qword ptr [rip + fgraph_thread@GOTTPOFF]",
            "cmp rsp, fs:[rcx + 8]",
            "jb .Lcount_internal_{v}",
            "mov qword ptr fs:[rcx], 0",
            "jmp .Lfirst_hit_{v}",
            ".Lcount_internal_{v}:",
            count!("internal_count"),
            "jmp .Luntraced_{v}",
            // Near the end of the machine stack a fault must come in the body, and callbacks use
            // more than that. Otherwise it may be another machine stack.
            // At this point: as at `set_inside`.
            ".Lother_stack_{v}:",
            "lea rcx, [rbx + 8]",
            "sub rcx, [rdx + {stack_low}]",
            "cmp rcx, [rdx + {stack_span}]",
            "jae .Lelsewhere_{v}",
            count!("overrun"),
            "jmp .Luntraced_{v}",
            // A state is its thread's alone. But a process may be made that shares memory and the
            // block of the thread, by `clone` with CLONE_VM alone, and goes on beside it: only the
            // kernel can tell them apart.
            // At this point: as at `set_inside`.
            ".Lelsewhere_{v}:",
            is_own!(),
            "je .Lset_inside_{v}",
            count!("no_shadow_stack"),
            ".Luntraced_{v}:",
            "mov rdx, [rsp + {int} + 16]",
            "mov r8, [rsp + {int} + 32]",
            "mov r9, [rsp + {int} + 40]",
            // Not traced, or no user wants the return: on to the body as if nothing had been.
            // At this point: r11 is the site, rbx S-8, rsp the EntryRegs; all but rax, rcx, rbx and
            // r11 is as the body is to see it.
            ".Lbody_{v}:",
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
            ".if {returns} && {twin}",
            cfi_body_frame!(),
            ".Lrare_{v}:",
            // The frame and the stack do not belong together.
            // At this point: as at `aside`.
            ".Llost_{v}:",
            "mov rdi, rbp",
            "mov rsi, rsp",
            "and rsp, -64",
            "call qword ptr [rip + {abort}]",
            "ud2",
            // The caller's stack was not aligned, so rsp comes from the frame.
            // At this point: as at `aside`.
            ".Lunaligned_{v}:",
            "and rsp, -16",
            "sub rsp, {return_room}",
            store_int!(),
            leave_call!("unaligned", $moves, $opmask, $wide),
            "mov rsp, [rbp + {return_slot_addr}]",
            "jmp .Lreturn_{v}",
            leave_aside!("unaligned", $moves, $full_moves, $opmask),
            // The thread is inside fgraph: a callback has switched stacks. Returns to the caller
            // and leaves the frame to be dropped as a dead one.
            // At this point: rbp is the frame, rsp the ReturnRegs, r9 the saved vectors; what the
            // next lines do not load is as the caller is to see it.
            ".Ldeferred_{v}:",
            "mov rax, [rsp + {result}]",
            "mov rdx, [rsp + {result} + 8]",
            // The parts that were in use before.
            load_beyond!("r9 + 64*14", $opmask, "16,17", "1"),
            ".if {preserve}",
            "mov r9, [rsp + {saved_int} + 16]",
            ".endif",
            "mov rsp, [rbp + {return_slot_addr}]",
            "mov rcx, [rbp + 8]",
            ".if {preserve}",
            "mov r8, [rsp - 24]",
            ".else",
            "mov r8, [rsp - 8]",
            ".endif",
            // From here on another thread may take the frame for dead, and its place.
            "mov [rsp], rcx",
            ".Lrare_end_{v}:",
            ".cfi_def_cfa rsp, 8",
            ".cfi_offset rip, -8",
            ".cfi_register rbp, r8",
            ".cfi_restore rsp",
            "mov rbp, r8",
            ".cfi_same_value rbp",
            ".if {preserve}",
            "mov rcx, [rsp - 8]",
            "mov r8, [rsp - 16]",
            ".endif",
            "ret",
            ".endif",
            ".cfi_endproc",
            concat!(".size ", $name, $suffix, ", . - ", $name, $suffix),
            ".popsection",
            v = const label_number(Variant::$variant, Machine::$machine, $twin),
            personality = sym personality,
            enter = sym $enter,
            preserve = const Variant::$variant.save_set().preserve as u32,
            beyond = const Variant::$variant.save_set().beyond as u32,
            returns = const Variant::$variant.returns() as u32,
            twin = const $twin,
            checks = sym CHECKS,
            dispatched = const offset_of!(Thread, dispatched),
            leave = sym $leave,
            stretches = const STRETCHES * size_of::<Stretch>(),
            is_stale = sym is_stale,
            attach = sym $attach,
            abort = sym ABORT,
            attaching = sym ATTACHING,
            entry_room = const Variant::$variant.save_set().entry_room(),
            return_room = const Variant::$variant.save_set().return_room(),
            saved_width = const Variant::$variant.save_set().saved_width(),
            saved_result_width = const Variant::$variant.save_set().saved_result_width(),
            saved_int = const Variant::$variant.save_set().saved_int(),
            saved_vectors = const Variant::$variant.save_set().saved_vectors(),
            saved_beyond = const Variant::$variant.save_set().saved_beyond(),
            saved_results = const Variant::$variant.save_set().saved_results(),
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
            frame_pointer = const offset_of!(EntryRegs, frame_pointer),
            result_width = const offset_of!(ReturnRegs, width),
            entered_sp = const offset_of!(Thread, entered_sp),
            internal = const Thread::INTERNAL,
            untraced = const Thread::UNTRACED,
            roomy_low = const offset_of!(Thread, roomy_low),
            roomy_span = const offset_of!(Thread, roomy_span),
            stack_low = const offset_of!(Thread, low),
            stack_span = const offset_of!(Thread, span),
            hazard_slot = const offset_of!(Thread, hazard_slot),
            no_hazard = const HazardSlot::NONE,
            listed = const offset_of!(Thread, listed),
            entry_only = const offset_of!(Thread, entry_only),
            gettid = const GETTID,
            rt_sigprocmask = const super::calls::RT_SIGPROCMASK,
            blocked_signals = sym BLOCKED_SIGNALS,
            id = const Thread::ID,
            watching = const Thread::USERS,
            fgraph = sym FGRAPH,
            epoch = const offset_of!(Fgraph, epoch),
            total = const offset_of!(Thread, total),
            users = const offset_of!(Thread, users),
            missed = const offset_of!(LiveCounters, missed),
            internal_count = const offset_of!(LiveCounters, internal),
            overrun = const offset_of!(LiveCounters, overrun),
            no_shadow_stack = const offset_of!(LiveCounters, no_shadow_stack),
            interest = const offset_of!(Site, interest),
            body = const offset_of!(Site, body),
            return_slot_addr = const offset_of!(Frame, return_slot_addr),
            previous = const Frame::PREVIOUS,
            tail = const offset_of!(Frame, tail),
            last = const offset_of!(Thread, shadow) + ShadowStack::LAST,
            newest = const offset_of!(Thread, shadow) + ShadowStack::NEWEST,
            top = const offset_of!(Thread, shadow) + ShadowStack::TOP,
            frame_site = const offset_of!(Frame, site),
            return_address = const offset_of!(Frame, return_address),
            word = const Frame::WORD,
            depth = const Frame::DEPTH,
            ordered = const Frame::ORDERED_BIT,
            slots = const offset_of!(Fgraph, slots) + Slots::<Header>::POINTERS,
            eligible = const offset_of!(Fgraph, eligible),
            out_of_order = const offset_of!(Fgraph, order) + Order::OUT_OF_ORDER,
            ranks = const offset_of!(Fgraph, order) + Order::RANKS,
            listed_users = const offset_of!(Thread, listing) + Listing::USERS,
            listed_ranks = const offset_of!(Thread, listing) + Listing::RANKS,
            list_slots = const offset_of!(Thread, listing) + Listing::LIST + List::SLOTS,
            list_places = const offset_of!(Thread, listing) + Listing::LIST + List::LEN,
            slots_in_frame = const List::SLOTS,
            places_in_frame = const List::LEN,
            list_len = const LIST_LEN,
            max_frame = const MAX_FRAME,
            max_users = const MAX_USERS,
            stamp = const Header::STAMP,
            bit = const Header::BIT,
            wanted = const Header::WANTED,
            header = const HEADER,
            trailer = const TRAILER,
            record_size = const Frame::RECORD_SIZE,
            record_slot = const Frame::RECORD_SLOT,
            record_before = const Frame::RECORD_BEFORE,
            first_bit = const Frame::FIRST_BIT,
            // State of the fast path's loops, in the room where the slow path saves vectors.
            to_enter = const offset_of!(EntryRegs, vector),
            end_so_far = const offset_of!(EntryRegs, vector) + 8,
            word_so_far = const offset_of!(EntryRegs, vector) + 16,
            to_return = const offset_of!(ReturnRegs, vector),
            records_to_return = const offset_of!(ReturnRegs, vector) + 8,
            slots_to_return = const offset_of!(ReturnRegs, vector) + 16,
            fast_entry = const Header::FAST_ENTRY,
            fast_ret = const Header::FAST_RET,
            distances = sym DISTANCES,
            kind = const Variant::$variant.save_set().kind(),
            replaced = const REPLACED,
        );
    };
}

/// A trampoline, and its caller-checking twin.
macro_rules! twins {
    (
        $variant:ident, $machine:ident, $name:literal,
        ($enter:ident, $checked:ident), $($moves:tt)*
    ) => {
        trampoline!(
            $variant, $machine, 0, $name, "",
            ($enter, leave, ATTACH),
            $($moves)*
        );
        trampoline!(
            $variant, $machine, 1, $name, "_checking",
            ($checked, leave_checked, ATTACH_CHECKED),
            $($moves)*
        );
    };
}

/// The trampolines of both kinds for one variant and one machine, with the moves of the machine.
/// The last word is the test for wide registers.
macro_rules! machine {
    ($variant:ident, Sse, $name:literal, $enter:tt, $wide:ident) => {
        twins!(
            $variant,
            Sse,
            $name,
            $enter,
            ("movups", "xmm", "xmmword", 16),
            ("movups", "xmm", "xmmword", 16),
            ("kmovw", "word"),
            $wide
        );
    };
    ($variant:ident, Avx, $name:literal, $enter:tt, $wide:ident) => {
        twins!(
            $variant,
            Avx,
            $name,
            $enter,
            ("vmovups", "xmm", "xmmword", 16),
            ("vmovups", "ymm", "ymmword", 32),
            ("kmovw", "word"),
            $wide
        );
    };
    ($variant:ident, Avx512F, $name:literal, $enter:tt, $wide:ident) => {
        twins!(
            $variant,
            Avx512F,
            $name,
            $enter,
            ("vmovups", "xmm", "xmmword", 16),
            ("vmovups", "zmm", "zmmword", 64),
            ("kmovw", "word"),
            $wide
        );
    };
    ($variant:ident, Avx512Bw, $name:literal, $enter:tt, $wide:ident) => {
        twins!(
            $variant,
            Avx512Bw,
            $name,
            $enter,
            ("vmovups", "xmm", "xmmword", 16),
            ("vmovups", "zmm", "zmmword", 64),
            ("kmovq", "qword"),
            $wide
        );
    };
}

/// All trampolines: each variant that dispatches returns, and each that does not, by machine.
macro_rules! trampolines {
    ($($variant:ident $machine:ident $name:literal $wide:ident $enter:tt;)*) => {
        $(machine!($variant, $machine, $name, $enter, $wide);)*
    };
}

/// The number of the system call `gettid`.
const GETTID: u32 = 186;
/// The signals that are blocked while a thread's state is made, as a kernel signal set.
static BLOCKED_SIGNALS: u64 = super::calls::BLOCKED_SIGNALS;

/// Returns the number that ends the local labels of one trampoline.
const fn label_number(variant: Variant, machine: Machine, twin: u32) -> u32 {
    (variant as u32 * 4 + machine as u32) * 2 + twin
}

trampolines! {
    Plain Sse "fgraph_plain_sse" never (enter, enter_checked);
    Plain Avx "fgraph_plain_avx" ymm_by_abi (enter, enter_checked);
    Plain Avx512F "fgraph_plain_avx512" by_abi (enter, enter_checked);
    Preserve Sse "fgraph_preserve_sse" never (enter, enter_checked);
    Preserve Avx "fgraph_preserve_avx" ymm_by_all (enter, enter_checked);
    Preserve Avx512F "fgraph_preserve_avx512" by_all (enter, enter_checked);
    PreserveAll Avx512F "fgraph_preserve_all_avx512f" by_all (enter, enter_checked);
    PreserveAll Avx512Bw "fgraph_preserve_all_avx512bw" by_all (enter, enter_checked);
    EntryOnly Sse "fgraph_entry_only_sse" never (enter_only, enter_only_checked);
    EntryOnly Avx "fgraph_entry_only_avx" ymm_by_all (enter_only, enter_only_checked);
    EntryOnly Avx512F "fgraph_entry_only_avx512" by_all (enter_only, enter_only_checked);
    EntryOnlyAll Avx512F "fgraph_entry_only_all_avx512f" by_all (enter_only, enter_only_checked);
    EntryOnlyAll Avx512Bw "fgraph_entry_only_all_avx512bw" by_all (enter_only, enter_only_checked);
}

// Where an unwinder goes that has taken a frame of ours for the one that catches. The frame is
// still on the shadow stack; it is dispatched to its users when the unwinder comes by again.
global_asm!(
    ".pushsection fgraph_text, \"ax\", @progbits",
    ".globl fgraph_catch",
    ".hidden fgraph_catch",
    ".type fgraph_catch, @function",
    ".globl fgraph_resumed",
    ".hidden fgraph_resumed",
    // At this point: rsp and rbp are as at the return point, rax is the exception, rdx the frame.
    "fgraph_catch:",
    ".cfi_startproc",
    ".cfi_personality 0x1b, {personality}",
    cfi_frame!("0x71"),
    "mov rbp, rdx",
    cfi_body_frame!(),
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
    resume = sym host::resume,
    return_slot_addr = const offset_of!(Frame, return_slot_addr),
    tail = const offset_of!(Frame, tail),
);

unsafe extern "C" {
    fn fgraph_catch();
    fn fgraph_resumed();
}

/// Returns the address to which an unwinder is led so that it comes back to a frame with another
/// stack pointer.
pub(super) fn catch() -> usize {
    fgraph_catch as *const () as usize
}

/// Returns the address at which an unwinder that was led to [`catch`] finds that frame.
pub(super) fn resumed() -> usize {
    fgraph_resumed as *const () as usize
}

// Assumptions of the assembly.
const _: () = assert!(
    size_of::<LiveCounters>() == 1 << 6,
    "the missed loop shifts by 6"
);
const _: () = assert!(offset_of!(Frame, frame_pointer) == 0);
const _: () = assert!(offset_of!(Frame, return_address) == 8);
const _: () = assert!(
    offset_of!(Frame, return_slot_addr) < 64 && offset_of!(Frame, tail) < 64,
    "one byte of LEB128 in the unwind rules"
);
const _: () = assert!(offset_of!(Link, return_address) == 8);
