//! The short way through a trampoline: for a call that one user wants, which is
//! [scalar](fgraph_core::scalar).
//!
//! ```text
//!   entry:    mark the thread, one user? scalar? ----- no ----> save vectors, dispatch::enter
//!             open the frame, call the user's entry
//!             put the frame on the shadow stack
//!   return:   one user? scalar? ---------------------- no ----> save vectors, dispatch::leave
//!             mark the thread, call the user's return
//!             take the frame from the shadow stack
//! ```
//!
//! It does what [`dispatch`](fgraph_core::dispatch) does for any users, with the same marks and the
//! same frame, but without what one scalar user does not need: vector registers and `errno` are not
//! saved, and no chain of users is walked. Whatever is not as usual goes the long way, from where
//! nothing has happened yet: there is another user, the user has gone, frames are dead, there is no
//! room for a frame, the thread is on another stack or inside already.
//!
//! The two macros stand in each trampoline that calls bodies. The careful ones go the long way
//! while anything is to be heeded, which they look at after they have marked the thread.

/// Asks the user. Goes to `ask_all` where the long way must be taken; else ends at `asked`, with
/// the frame or null in rax.
///
/// At the start: as at `mark`, and the thread is marked.
macro_rules! ask_lone {
    () => {
        ".if {twin}
         cmp byte ptr [rip + {care}], 0
         jne .Lask_all_{v}
         .endif
         test r8d, dword ptr [rip + {fgraph} + {scalar}]
         jnz .Lask_all_{v}
         lea eax, [r8 - 1]
         test eax, r8d
         jnz .Lask_all_{v}
         # A signal handler may have been on another stack since that was looked for.
         lea rcx, [rbx + 8]
         mov rax, rcx
         sub rax, [rdx + {stack_low}]
         cmp rax, [rdx + {stack_span}]
         jae .Lask_all_{v}
         mov rax, [rdx + {newest}]
         cmp rcx, [rax + {return_slot_addr}]
         jae .Lask_all_{v}
         mov rax, [rdx + {top}]
         cmp rax, [rdx + {last}]
         ja .Lask_all_{v}
         # The mark, and then the slot: no fence, see `grace`. It is left as it is afterwards, and
         # names the same user at most calls: it counts only while the thread is inside.
         bsf edi, r8d
         cmp [rdx + {mark}], edi
         jne .Lmark_entry_{v}
         .Lmarked_entry_{v}:
         lea rsi, [rip + {fgraph} + {slots}]
         mov r10, [rsi + rdi*8]
         cmp [r10 + {stamp}], r9
         ja .Lask_all_{v}
         # What is known of the call goes into the frame. Its word has the user already: nobody
         # reads it before the frame is on the stack.
         mov [rax + {frame_site}], r11
         mov [rax + {return_slot_addr}], rcx
         add r9, [r10 + {bit}]
         mov [rax + {word}], r9
         # The user's function: the registers, the thread, the frame, the user.
         mov rdi, rsp
         mov rsi, rdx
         mov rdx, rax
         mov rcx, r10
         call qword ptr [r10 + {lone_entry}]
         mov rdx, qword ptr [rip + fgraph_thread@GOTTPOFF]
         mov rdx, fs:[rdx]
         test rax, rax
         jz .Ldeclined_{v}
         # The top first: a signal handler may leave between the two by siglongjmp, and the newest
         # frame must be beneath the top.
         mov rcx, [rdx + {newest}]
         mov rdi, [rdx + {top}]
         mov [rdx + {top}], rax
         mov esi, [rcx + {depth}]
         sub rax, rdi
         shl rax, 36
         lea rsi, [rsi + rax + 1]
         mov [rdi + {depth}], rsi
         mov rax, [rbx + 8]
         mov [rdi + {return_address}], rax
         mov [rdi + {previous}], rcx
         mov [rdx + {newest}], rdi
         mov rax, rdi
         .Ldeclined_{v}:
         .if {twin}
         mov [rdx + {asked}], rax
         .endif
         mov qword ptr [rdx + {entered_sp}], 0
        "
    };
}

/// Tells the user. Goes to `tell_all` where the long way must be taken; else ends as `leave_call`
/// does.
///
/// At the start: rbp is the frame, the newest; r8 this thread's state; rsp room for the ReturnRegs,
/// in which the results are stored, and what the caller may rely on of the general registers.
macro_rules! tell_lone {
    () => {
        "cmp qword ptr [r8 + {entered_sp}], 0
         jne .Ltell_all_{v}
         movzx eax, word ptr [rbp + {word}]
         test word ptr [rip + {fgraph} + {scalar} + 2], ax
         jnz .Ltell_all_{v}
         # One bit: what lies from it down is more than what lies beneath it. Also not none.
         lea ecx, [rax - 1]
         xor eax, ecx
         cmp eax, ecx
         jbe .Ltell_all_{v}
         # From here on what a signal handler calls is not traced.
         mov [r8 + {entered_sp}], rsp
         .if {twin}
         cmp byte ptr [rip + {care}], 0
         jne .Lnot_lone_{v}
         .endif
         # The last slot has the lowest bit.
         bsr eax, eax
         xor eax, 15
         cmp [r8 + {mark}], eax
         jne .Lmark_return_{v}
         .Lmarked_return_{v}:
         lea rcx, [rip + {fgraph} + {slots}]
         mov rcx, [rcx + rax*8]
         mov rax, [rbp + {word}]
         cmp [rcx + {stamp}], rax
         ja .Lnot_lone_{v}
         # The user's function: the registers, the thread, the frame, the user.
         mov rdi, rsp
         mov rsi, r8
         mov rdx, rbp
         call qword ptr [rcx + {lone_ret}]
         mov r8, qword ptr [rip + fgraph_thread@GOTTPOFF]
         mov r8, fs:[r8]
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
