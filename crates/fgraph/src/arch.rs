//! The interface to the processor: everything that a port to another processor supplies. This is
//! the only file that names that crate.
//!
//! No other code of this crate knows an instruction, a register or a calling convention.

#[cfg(fgraph_testing)]
pub use fgraph_x86_64::text_write::Skip;

/// Clocks that a callback may read.
pub(crate) mod clock {
    pub(crate) use fgraph_x86_64::clock::{begins, counter, has_steady_counter, monotonic};
}

/// Calls that change general registers only.
pub(crate) mod saved_call {
    pub(crate) use fgraph_x86_64::saved_call::{begins, call};
}

/// Features of the machine.
pub(crate) mod cpu {
    pub(crate) use fgraph_x86_64::cpu::{
        has_lahf, of_any_memory, opmask_bytes, thread_pointer, vector_bytes,
    };
}

/// Functions that use registers that exist only with the widest vector extension.
pub(crate) mod evex {
    pub(crate) use fgraph_x86_64::evex::uses_evex_across_calls;
}

/// The bytes at a function's entry that may be patched.
pub(crate) mod nop {
    pub(crate) use fgraph_x86_64::nop::{ENDBR64, find, last_of, last_with_room};
}

/// Relocation of a function's prologue.
pub(crate) mod relocate {
    pub(crate) use fgraph_x86_64::relocate::plan_again;
    pub(crate) use fgraph_x86_64::relocate::{
        Code, Convention, Exit, InboundBranch, RelocateError, Window, branches_to, exits,
        first_jump, is_instruction, is_misled_by_a_call, plan, plan_breakpoint, plan_short,
        slot_of,
    };
}

/// Analysis of callbacks that change only general registers, and parts of vector registers.
pub(crate) mod fast_path {
    pub(crate) use fgraph_x86_64::fast_path::{IneligibleReason, MOST, Memory, vectors};
}

/// Functions with a caller that relies on more preserved registers than the ABI promises.
pub(crate) mod callee_preserved {
    pub(crate) use fgraph_x86_64::callee_preserved::{Code, PreservingFunctions, Search};
}

/// System calls within functions that can be traced.
pub(crate) mod system_calls {
    pub(crate) use fgraph_x86_64::system_calls::{SystemCallError, find};
}

/// Code that replaces a system call within a function.
pub(crate) mod system_call {
    pub(crate) use fgraph_x86_64::system_call::{BODY, LEN, behind, encode, rows};
}

/// The code between a site and the trampoline.
pub(crate) mod stub {
    pub(crate) use fgraph_x86_64::stub::guarded::{Fault, GUARDED_STUB_LEN, Guard};
    pub(crate) use fgraph_x86_64::stub::{
        EH_FRAME_FDE, EH_FRAME_LEN, HEADER_EH_FRAME, HEADER_LEN, HEADER_NEAR_END, SITE_LEN,
        arena_window, eh_frame, jmp_rel8, jmp_rel32,
    };
}

/// Jumps that trap if a thread continues in the middle of them.
pub(crate) mod punned_jump {
    #[cfg(test)]
    pub(crate) use fgraph_x86_64::punned_jump::traps;
    pub(crate) use fgraph_x86_64::punned_jump::{JumpTargets, is_invalid, last_bytes};
}

/// Unwind information.
pub(crate) mod unwind {
    pub(crate) use fgraph_x86_64::unwind::{EH_FRAME_FDE, Row, Rows};
}

/// Changes sites while threads run through them.
pub(crate) mod text_write {
    pub(crate) use fgraph_x86_64::text_write::{
        Content, INT3, Skip, Text, TextWrite, TextWriteError, apply_with, check,
    };
}

/// Moves new text over the old one.
pub(crate) mod move_text {
    pub(crate) use fgraph_x86_64::move_text::{Move, MoveText, code};
}

/// Holds back functions that must wait while text is changed.
pub(crate) mod call_gate {
    pub(crate) use fgraph_x86_64::call_gate::{
        FUNCTIONS, Gate, MAPPINGS, SPAWNS, stand_at, thread_pointer,
    };
}

/// Handles threads that hit a half-written site.
pub(crate) mod trap {
    pub(crate) use fgraph_x86_64::trap::{
        CHAIN, CHAIN_OF_SIGILL, HandlerPtr, TRAP_RANGES, TrapRange, sigill_handler, sigtrap_handler,
    };

    #[cfg(fgraph_testing)]
    pub(crate) use fgraph_x86_64::trap::TRAPS;
}

/// The entry trampolines, their return points and their unwind information.
pub(crate) mod trampoline {
    pub(crate) use fgraph_x86_64::trampoline::{
        BLOCKED_SIGNALS, GetGr, GetIp, MAX_UNWINDERS, SetGr, SetIp, Trampolines, Unwinder, Variant,
        add_unwinder, announce_cancellation, attaching, current, disable_cancellation,
        guard_storage, install, is_caught, look_at_callers, near_end, own_text, points,
        set_attaching, set_current, shims, signal_set, stack_end, symbol_file, trust_announcements,
    };
}
