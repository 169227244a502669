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

/// Asks the user. Goes to `ask_all` where the long way must be taken, and to `declined` if the user
/// declines; else ends with the frame in rax.
///
/// At the start: as at `mark`, and the thread is marked.
macro_rules! ask_one {
    () => {
        ".if {twin}
         cmp byte ptr [rip + {care}], 0
         jne .Lask_all_{v}
         .endif
         test r8d, dword ptr [rip + {fgraph} + {scalar}]
         jnz .Lask_all_{v}
         # A signal handler may have been on another stack since that was looked for.
         lea r10, [rbx + 8]
         mov rax, r10
         sub rax, [rdx + {stack_low}]
         cmp rax, [rdx + {stack_span}]
         jae .Lask_all_{v}
         mov rax, [rdx + {newest}]
         cmp r10, [rax + {return_slot_addr}]
         jae .Lask_all_{v}
         mov rsi, [rdx + {top}]
         cmp rsi, [rdx + {last}]
         ja .Lask_all_{v}
         # The mark stays as it is between calls, and counts only while the thread is inside: so it
         # names the same user at most calls. No fence before the slot is read, see `grace`.
         mov edi, [rdx + {mark}]
         .Lmarked_entry_{v}:
         lea rcx, [rip + {fgraph} + {slots}]
         mov rcx, [rcx + rdi*8]
         # That user, and no other one?
         cmp r8d, [rcx + {wanted}]
         jne .Lmark_entry_{v}
         cmp [rcx + {stamp}], r9
         ja .Lask_all_{v}
         # What is known of the call goes into the frame. Its word has the user already: nobody
         # reads it before the frame is on the stack.
         mov [rsi + {frame_site}], r11
         mov [rsi + {return_slot_addr}], r10
         add r9, [rcx + {bit}]
         mov [rsi + {word}], r9
         # The user's function: the registers, the frame, the thread, the user.
         mov rdi, rsp
         call qword ptr [rcx + {short_entry}]
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
         .if {twin}
         mov [rdx + {asked}], rax
         .endif
         mov qword ptr [rdx + {entered_sp}], 0
        "
    };
}

/// What is aside of `ask_one`: the mark names another user than the call's, or the user declines.
///
/// Ends at `untraced`, with the registers that are as the body is to see them there.
macro_rules! ask_one_aside {
    () => {
        "# At this point: as where `ask_one` has read the mark.
         .Lmark_entry_{v}:
         lea eax, [r8 - 1]
         test eax, r8d
         jnz .Lask_all_{v}
         bsf eax, r8d
         cmp eax, edi
         je .Lask_all_{v}
         mov edi, eax
         mov [rdx + {mark}], edi
         jmp .Lmarked_entry_{v}
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
macro_rules! tell_one {
    () => {
        "cmp qword ptr [r8 + {entered_sp}], 0
         jne .Ltell_all_{v}
         movzx eax, word ptr [rbp + {word}]
         test word ptr [rip + {fgraph} + {scalar} + 2], ax
         jnz .Ltell_all_{v}
         # From here on what a signal handler calls is not traced.
         mov [r8 + {entered_sp}], rsp
         # One may have been on another stack since it was looked whose frame is the newest: then
         # the thread has the shadow stack of that one.
         cmp rbp, [r8 + {newest}]
         jne .Lnot_short_{v}
         .if {twin}
         cmp byte ptr [rip + {care}], 0
         jne .Lnot_short_{v}
         .endif
         # The user that the mark names, and no other one?
         mov edx, [r8 + {mark}]
         .Lmarked_return_{v}:
         lea rcx, [rip + {fgraph} + {slots}]
         mov rcx, [rcx + rdx*8]
         cmp rax, [rcx + {bit}]
         jne .Lmark_return_{v}
         mov rax, [rbp + {word}]
         cmp [rcx + {stamp}], rax
         ja .Lnot_short_{v}
         # The user's function: the registers, the thread, the frame, the user.
         mov rdi, rsp
         mov rsi, r8
         mov rdx, rbp
         call qword ptr [rcx + {short_ret}]
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

/// What is aside of `tell_one`: the mark names another user than the frame's. Ends where there is
/// none for whom the short way is, and the thread is still marked.
macro_rules! tell_one_aside {
    () => {
        ".Lmark_return_{v}:
         lea ecx, [rax - 1]
         test eax, ecx
         jnz .Lnot_short_{v}
         # The last slot has the lowest bit.
         bsr ecx, eax
         jz .Lnot_short_{v}
         xor ecx, 15
         cmp ecx, edx
         je .Lnot_short_{v}
         mov edx, ecx
         mov [r8 + {mark}], edx
         jmp .Lmarked_return_{v}
        "
    };
}
