//! The fast path through a trampoline, for calls that only [eligible](fgraph_core::eligible) users
//! want.
//!
//! ```text
//!   entry:    mark the thread, all eligible? ------- no ----> save vectors, dispatch::enter
//!             open the frame, call each user's entry
//!             put the frame on the shadow stack
//!   return:   all eligible? ------------------------ no ----> save vectors, dispatch::leave
//!             mark the thread, call each user's return
//!             take the frame from the shadow stack
//! ```
//!
//! The fast path does what [`dispatch`](fgraph_core::dispatch) does for all users, with the same
//! hazard slot and the same frame. It does not save vector registers and `errno`, which fast-path
//! users do not change. Unusual cases go to the slow path, from a point where nothing has happened
//! yet: the only user is gone, frames are dead, there is no room for a frame, or the thread is on
//! another stack or inside fgraph already.
//!
//! Most calls have one user, so the code for one user is straight. Several users are called in a
//! loop, which is separate code. So is the loop for calls with a user that is [out of
//! order](fgraph_core::order). It uses the list of users that the slow path has made for the last
//! such call of the thread. A call for other users takes the slow path, which lists them.
//!
//! The macros are used in each trampoline that calls bodies. Caller-checking trampolines take the
//! slow path while there is anything to check, which they find out after they have marked the
//! thread.
//!
//! A fast-path user may change the lowest 128 bits of some vector registers. It is called through a
//! [shim](shims), which saves only these registers.

use core::arch::naked_asm;

use fgraph_core::fast_path::{EntryEnd, FastEntry, FastRet};
use fgraph_core::frame::Frame;
use fgraph_core::registration::{Header, Shims};
use fgraph_core::regs::{EntryRegs, ReturnRegs};
use fgraph_core::thread::Thread;

/// Puts the frame that is being built on the shadow stack, and unmarks the thread. `$mark` may
/// change rsi, the frame's word with depth and length, before it is stored.
///
/// At the start: rax is the end of the frame, rdx this thread's state. At the end rax is the frame.
macro_rules! put_on_stack {
    ($mark:literal) => {
        concat!(
            "# The top first: a signal handler may leave between the two by siglongjmp, and the
             # newest frame must be beneath the top.
             mov rcx, [rdx + {newest}]
             mov rdi, [rdx + {top}]
             mov [rdx + {top}], rax
             mov esi, [rcx + {depth}]
             sub rax, rdi
             shl rax, 36
             lea rsi, [rsi + rax + 1]
             ",
            $mark,
            "
             mov [rdi + {depth}], rsi
             mov rax, [rbx + 8]
             mov [rdi + {return_address}], rax
             mov [rdi + {previous}], rcx
             mov [rdx + {newest}], rdi
             mov rax, rdi
             .if {twin}
             mov [rdx + {dispatched}], rax
             .endif
             mov qword ptr [rdx + {entered_sp}], 0
            "
        )
    };
}

/// Calls the users at entry. Goes to `dispatch_entry` where the slow path must be taken, and to
/// `no_return_requested` if no user requests the return; else ends with the frame in rax.
///
/// At the start: as at `set_inside`, and `entered_sp` is set.
macro_rules! fast_entry_path {
    () => {
        concat!(
            ".if {twin}
         cmp byte ptr [rip + {checks}], 0
         jne .Ldispatch_entry_{v}
         .endif
         test r8d, dword ptr [rip + {fgraph} + {eligible}]
         jnz .Ldispatch_entry_{v}
         # A signal handler may have been on another stack since that was looked for.
         lea r10, [rbx + 8]
         mov rax, r10
         sub rax, [rdx + {roomy_low}]
         cmp rax, [rdx + {roomy_span}]
         jae .Ldispatch_entry_{v}
         mov rax, [rdx + {newest}]
         cmp r10, [rax + {return_slot_addr}]
         jae .Ldispatch_entry_{v}
         mov rsi, [rdx + {top}]
         cmp rsi, [rdx + {last}]
         ja .Ldispatch_entry_{v}
         # The hazard slot stays as it is between calls, and counts only while the thread is inside:
         # so it names the same user at most calls. No fence before the slot is read, see `grace`.
         mov edi, [rdx + {hazard_slot}]
         .Lhazard_set_entry_{v}:
         lea rcx, [rip + {fgraph} + {slots}]
         mov rcx, [rcx + rdi*8]
         # That user, and no other one?
         cmp r8d, [rcx + {wanted}]
         jne .Lset_hazard_entry_{v}
         cmp [rcx + {stamp}], r9
         ja .Ldispatch_entry_{v}
         # The caller's frame pointer and what else is known of the call go into the frame. Its word
         # has the user already: nobody reads it before the frame is on the stack.
         mov [rsi], rbp
         mov [rsi + {frame_site}], r11
         mov [rsi + {return_slot_addr}], r10
         add r9, [rcx + {bit}]
         mov [rsi + {word}], r9
         # The user's function: the registers, the end of the frame, the thread, the user.
         mov rdi, rsp
         add rsi, {header}
         call qword ptr [rcx + {fast_entry}]
         test rax, rax
         jz .Lno_return_requested_{v}
         # At this point: rax is the end of the frame, rdx this thread's state.
         .Lreturn_requested_{v}:
",
            put_on_stack!("")
        )
    };
}

/// The rare cases of `fast_entry_path`: the hazard slot names another user than the call's, there
/// are several, or none requests the return.
///
/// Ends at `untraced`, with the registers that are as the body is to see them there.
macro_rules! fast_entry_aside {
    () => {
        concat!(
            "# At this point: as where `fast_entry_path` has read the hazard slot.
         .Lset_hazard_entry_{v}:
         lea eax, [r8 - 1]
         test eax, r8d
         jnz .Lenter_each_{v}
         bsf eax, r8d
         cmp eax, edi
         je .Ldispatch_entry_{v}
         mov edi, eax
         mov [rdx + {hazard_slot}], edi
         jmp .Lhazard_set_entry_{v}
         # Several users. At this point: as at `set_hazard_entry`.
         .Lenter_each_{v}:
         test r8d, dword ptr [rip + {fgraph} + {out_of_order}]
         jnz .Lenter_ordered_{v}
         mov [rsi], rbp
         mov [rsi + {frame_site}], r11
         mov [rsi + {return_slot_addr}], r10
         mov [rsi + {word}], r9
         add rsi, {header}
         # At this point: r8 the users to call, rsi the end of the frame so far, r9 its word,
         # rdx this thread's state.
         .Lenter_next_{v}:
         # Some processors are slow at `bsf`. Processors without `tzcnt` take it for `bsf`.
         tzcnt edi, r8d
         lea eax, [r8 - 1]
         and eax, r8d
         mov [rsp + {to_enter}], eax
         mov [rsp + {end_so_far}], rsi
         mov [rdx + {hazard_slot}], edi
         lea rcx, [rip + {fgraph} + {slots}]
         mov rcx, [rcx + rdi*8]
         # The slot is empty, or the user has registered since the call began?
         cmp [rcx + {stamp}], r9
         ja .Lhas_entered_{v}
         add r9, [rcx + {bit}]
         mov [rsp + {word_so_far}], r9
         mov rdi, rsp
         call qword ptr [rcx + {fast_entry}]
         mov r9, [rsp + {word_so_far}]
         mov rsi, rax
         test rax, rax
         jz .Luser_requests_none_{v}
         .Lhas_entered_{v}:
         mov r8d, [rsp + {to_enter}]
         test r8d, r8d
         jnz .Lenter_next_{v}
         xor eax, eax
         test r9w, r9w
         jz .Lno_return_requested_{v}
         mov rcx, [rdx + {top}]
         mov [rcx + {word}], r9
         mov rax, rsi
         jmp .Lreturn_requested_{v}
         .Luser_requests_none_{v}:
         mov ecx, [rdx + {hazard_slot}]
         mov eax, {first_bit}
         shr eax, cl
         sub r9, rax
         mov rsi, [rsp + {end_so_far}]
         jmp .Lhas_entered_{v}
         # Several users, and one is out of order. The slow path must be taken if the thread
         # has listed other users, or by other ranks, or if there may be no room for all records.
         # At this point: as at `set_hazard_entry`.
         .Lenter_ordered_{v}:
         cmp r8, [rdx + {listed_users}]
         jne .Ldispatch_entry_{v}
         mov rax, [rip + {fgraph} + {ranks}]
         cmp rax, [rdx + {listed_ranks}]
         jne .Ldispatch_entry_{v}
         lea rax, [rsi + {max_frame}]
         cmp rax, [rdx + {last}]
         ja .Ldispatch_entry_{v}
         mov [rsi], rbp
         mov [rsi + {frame_site}], r11
         mov [rsi + {return_slot_addr}], r10
         mov [rsi + {word}], r9
         add rsi, {header}
         xor r8d, r8d
         # At this point: r8 is the place in the list, all else as at `enter_next`.
         .Lenter_place_{v}:
         mov rdi, [rdx + {list_slots}]
         lea ecx, [r8*4]
         shr rdi, cl
         and edi, 15
         inc r8d
         mov [rsp + {to_enter}], r8d
         mov [rsp + {end_so_far}], rsi
         mov [rdx + {hazard_slot}], edi
         lea rcx, [rip + {fgraph} + {slots}]
         mov rcx, [rcx + rdi*8]
         # The slot is empty, or the user has registered since the call began?
         cmp [rcx + {stamp}], r9
         ja .Lhas_entered_place_{v}
         add r9, [rcx + {bit}]
         mov [rsp + {word_so_far}], r9
         mov rdi, rsp
         call qword ptr [rcx + {fast_entry}]
         mov r9, [rsp + {word_so_far}]
         mov rsi, rax
         test rax, rax
         jz .Lplace_requests_none_{v}
         .Lhas_entered_place_{v}:
         mov r8d, [rsp + {to_enter}]
         cmp r8, [rdx + {list_places}]
         jb .Lenter_place_{v}
         xor eax, eax
         test r9w, r9w
         jz .Lno_return_requested_{v}
         # The list of the users, behind the records.
         mov rax, [rdx + {list_slots}]
         mov [rsi + {slots_in_frame}], rax
         mov [rsi + {places_in_frame}], r8
         mov dword ptr [rsi + {list_len} - {trailer} + {record_size}], {list_len} - {trailer}
         mov dword ptr [rsi + {list_len} - {trailer} + {record_slot}], {max_users}
         mov qword ptr [rsi + {list_len} - {trailer} + {record_before}], 0
         mov rcx, [rdx + {top}]
         mov [rcx + {word}], r9
         lea rax, [rsi + {list_len}]
         ",
            put_on_stack!("bts rsi, {ordered}"),
            "jmp .Lentry_dispatched_{v}
         .Lplace_requests_none_{v}:
         mov ecx, [rdx + {hazard_slot}]
         mov eax, {first_bit}
         shr eax, cl
         sub r9, rax
         mov rsi, [rsp + {end_so_far}]
         jmp .Lhas_entered_place_{v}
         .Lno_return_requested_{v}:
         .if {twin}
         mov [rdx + {dispatched}], rax
         .endif
         mov qword ptr [rdx + {entered_sp}], 0
        "
        )
    };
}

/// Calls the users at return. Goes to `dispatch_return` where the slow path must be taken; else
/// ends as `leave_call` does.
///
/// At the start: rbp is the frame, the newest; r8 this thread's state; rsp room for the ReturnRegs,
/// in which the results are stored, and what the caller may rely on of the general registers.
macro_rules! fast_return_path {
    () => {
        "cmp qword ptr [r8 + {entered_sp}], 0
         jne .Ldispatch_return_{v}
         movzx eax, word ptr [rbp + {word}]
         test word ptr [rip + {fgraph} + {eligible} + 2], ax
         jnz .Ldispatch_return_{v}
         # From here on what a signal handler calls is not traced.
         mov [r8 + {entered_sp}], rsp
         # One may have been on another stack since it was looked whose frame is the newest: then
         # the thread has the shadow stack of that one.
         cmp rbp, [r8 + {newest}]
         jne .Lnot_fast_{v}
         .if {twin}
         cmp byte ptr [rip + {checks}], 0
         jne .Lnot_fast_{v}
         .endif
         # The user that the hazard slot names, and no other one?
         mov edx, [r8 + {hazard_slot}]
         .Lhazard_set_return_{v}:
         lea rcx, [rip + {fgraph} + {slots}]
         mov rcx, [rcx + rdx*8]
         cmp rax, [rcx + {bit}]
         jne .Lset_hazard_return_{v}
         mov rax, [rbp + {word}]
         cmp [rcx + {stamp}], rax
         ja .Lnot_fast_{v}
         # The user's function: the registers, its record, the frame, the user, the thread.
         mov rdi, rsp
         lea rsi, [rbp + {header}]
         mov rdx, rbp
         call qword ptr [rcx + {fast_ret}]
         mov r8, qword ptr [rip + fgraph_thread@GOTTPOFF]
         mov r8, fs:[r8]
         .Lreturn_dispatched_{v}:
         # The top last, for the same reason as at the entry.
         mov rax, [rbp + {previous}]
         mov [r8 + {newest}], rax
         mov [r8 + {top}], rbp
         .if {preserve}
         mov rsi, [rsp + {saved_int}]
         mov rdi, [rsp + {saved_int} + 8]
         mov r9, [rsp + {saved_int} + 16]
         mov r10, [rsp + {saved_int} + 24]
         mov r11, [rsp + {saved_int} + 32]
         .endif
         mov rax, [rsp + {result}]
         mov rdx, [rsp + {result} + 8]
         mov rcx, [rbp + 8]
        "
    };
}

/// The rare cases of `fast_return_path`: the hazard slot names another user than the frame's, or
/// there are several. Ends where no user is left for the fast path, and the thread is still
/// marked.
macro_rules! fast_return_aside {
    () => {
        ".Lset_hazard_return_{v}:
         lea ecx, [rax - 1]
         test eax, ecx
         jnz .Lreturn_each_{v}
         # The last slot has the lowest bit.
         bsr ecx, eax
         jz .Lnot_fast_{v}
         xor ecx, 15
         cmp ecx, edx
         je .Lnot_fast_{v}
         mov edx, ecx
         mov [r8 + {hazard_slot}], edx
         jmp .Lhazard_set_return_{v}
         # Several users. At this point: as at `set_hazard_return`, eax is who they are. The records
         # end where the frame does.
         .Lreturn_each_{v}:
         mov rsi, [rbp + {depth}]
         # The order of its records is not that of the slots?
         bt rsi, {ordered}
         jc .Lreturn_ordered_{v}
         shr rsi, 36
         and rsi, -16
         add rsi, rbp
         # At this point: eax is the users to call, rsi where the last of their records ends.
         .Lreturn_next_{v}:
         tzcnt ecx, eax
         lea edx, [rax - 1]
         and eax, edx
         xor ecx, 15
         mov [rsp + {to_return}], eax
         mov [r8 + {hazard_slot}], ecx
         # Does this user have a record? If there is no record at all, the length of the frame is
         # there, which is more than any slot.
         cmp [rsi - {trailer} + {record_slot}], ecx
         jne .Lno_record_{v}
         mov edx, [rsi - {trailer} + {record_size}]
         sub rsi, {trailer}
         sub rsi, rdx
         .Lno_record_{v}:
         mov [rsp + {records_to_return}], rsi
         lea rdx, [rip + {fgraph} + {slots}]
         mov rcx, [rdx + rcx*8]
         # Is the user gone that has accepted the call?
         mov rax, [rbp + {word}]
         cmp [rcx + {stamp}], rax
         ja .Lhas_returned_{v}
         mov rdi, rsp
         mov rdx, rbp
         call qword ptr [rcx + {fast_ret}]
         mov r8, qword ptr [rip + fgraph_thread@GOTTPOFF]
         mov r8, fs:[r8]
         .Lhas_returned_{v}:
         mov eax, [rsp + {to_return}]
         mov rsi, [rsp + {records_to_return}]
         test eax, eax
         jnz .Lreturn_next_{v}
         jmp .Lreturn_dispatched_{v}
         # Several users by the list behind their records, the last place first.
         # At this point: rsi is the frame's word with its length.
         .Lreturn_ordered_{v}:
         shr rsi, 36
         and rsi, -16
         lea rsi, [rbp + rsi - {list_len}]
         mov rax, [rsi + {slots_in_frame}]
         mov [rsp + {slots_to_return}], rax
         mov ecx, [rsi + {places_in_frame}]
         jmp .Lreturn_before_{v}
         # At this point: ecx is the place in the list, rsi where the last record to return ends.
         .Lreturn_place_{v}:
         mov [rsp + {to_return}], ecx
         mov rdx, [rsp + {slots_to_return}]
         shl ecx, 2
         shr rdx, cl
         and edx, 15
         # Has this user accepted the call?
         mov rax, [rbp + {word}]
         mov ecx, edx
         xor ecx, 15
         bt eax, ecx
         jnc .Lhas_returned_place_{v}
         mov [r8 + {hazard_slot}], edx
         # Does this user have a record? As above.
         cmp [rsi - {trailer} + {record_slot}], edx
         jne .Lno_record_of_place_{v}
         mov ecx, [rsi - {trailer} + {record_size}]
         sub rsi, {trailer}
         sub rsi, rcx
         .Lno_record_of_place_{v}:
         mov [rsp + {records_to_return}], rsi
         lea rcx, [rip + {fgraph} + {slots}]
         mov rcx, [rcx + rdx*8]
         # Is the user gone that has accepted the call?
         cmp [rcx + {stamp}], rax
         ja .Lhas_returned_place_{v}
         mov rdi, rsp
         mov rdx, rbp
         call qword ptr [rcx + {fast_ret}]
         mov r8, qword ptr [rip + fgraph_thread@GOTTPOFF]
         mov r8, fs:[r8]
         mov rsi, [rsp + {records_to_return}]
         .Lhas_returned_place_{v}:
         mov ecx, [rsp + {to_return}]
         .Lreturn_before_{v}:
         sub ecx, 1
         jnc .Lreturn_place_{v}
         jmp .Lreturn_dispatched_{v}
        "
    };
}

/// The body of a shim that saves the vector registers with these numbers, which are `$count`, and
/// calls the function at `$function` in the user's header.
macro_rules! shim {
    ($function:ident, $count:literal, $numbers:literal) => {
        naked_asm!(
            // At this point: rcx is the user, rsp 8 below a multiple of 16.
            ".cfi_startproc",
            "sub rsp, 16 * {count} + 8",
            ".cfi_adjust_cfa_offset 16 * {count} + 8",
            concat!(".irp n,", $numbers),
            "movaps [rsp + 16 * \\n], xmm\\n",
            ".endr",
            "call qword ptr [rcx + {function}]",
            concat!(".irp n,", $numbers),
            "movaps xmm\\n, [rsp + 16 * \\n]",
            ".endr",
            "add rsp, 16 * {count} + 8",
            ".cfi_adjust_cfa_offset -(16 * {count} + 8)",
            "ret",
            ".cfi_endproc",
            function = const Header::$function,
            count = const $count,
        )
    };
}

/// The shims of both kinds, for each number of vector registers.
macro_rules! shims {
    ($($module:ident: $count:literal, $numbers:literal;)*) => {
        $(
            mod $module {
                use crate::trampoline::fast_path::*;

                #[unsafe(naked)]
                #[unsafe(link_section = "fgraph_text")]
                pub(super) unsafe extern "C" fn entry(
                    _: *mut EntryRegs,
                    _: *mut u8,
                    _: &Thread,
                    _: *const Header,
                ) -> EntryEnd {
                    shim!(OWN_ENTRY, $count, $numbers);
                }

                #[unsafe(naked)]
                #[unsafe(link_section = "fgraph_text")]
                pub(super) unsafe extern "C" fn ret(
                    _: *mut ReturnRegs,
                    _: *mut u8,
                    _: *mut Frame,
                    _: *const Header,
                    _: &Thread,
                ) {
                    shim!(OWN_RET, $count, $numbers);
                }
            }
        )*

        /// Fast paths, each after the number of vector registers that it saves.
        const SHIMS: &[(usize, FastEntry, FastRet)] = &[
            $(($count, $module::entry, $module::ret),)*
        ];
    };
}

shims! {
    one: 1, "0";
    two: 2, "0,1";
    four: 4, "0,1,2,3";
    eight: 8, "0,1,2,3,4,5,6,7";
    sixteen: 16, "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15";
}

/// Returns the shims for a fast-path user whose entry and return function change this number of the
/// first vector registers.
pub fn shims([entry, ret]: [usize; 2]) -> Shims {
    let enough = |vectors| {
        SHIMS
            .iter()
            .find(move |(saved, ..)| vectors > 0 && *saved >= vectors)
    };
    Shims {
        entry: enough(entry).map(|(_, entry, _)| *entry),
        ret: enough(ret).map(|(.., ret)| *ret),
    }
}
