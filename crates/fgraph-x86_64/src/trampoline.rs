//! The entry trampoline, which calls the function's body instead of hijacking the return address.
//!
//! A site jumps to its stub, and the stub loads the address of the site's record into r11 and jumps
//! here. The trampoline saves the registers that a callee may read, dispatches the entry to the
//! users, and then
//!
//! - jumps to the body if no user wants the return: the return address was never changed;
//! - or jumps to the *return point* of the call's frame if a user does (`trampoline/points.rs`).
//!   That calls the body, whose `ret` comes back there, predicted, because it pairs with this call.
//!   The return point jumps to the return code of the trampoline, which dispatches the return and
//!   returns itself, predicted, because its `ret` pairs with the caller's call.
//!
//! The machine stack, with S the address of the return slot:
//!
//! ```text
//!             at entry            at dispatch of the entry         while the body runs
//!
//!   S+8   stack arguments        stack arguments                  stack arguments
//!   S     return address <- rsp  return address                   return point     <- rsp
//!   S-8                          caller's rbx    <- rbx           the body's own frame
//!                                (aligned to 64)
//!                                EntryRegs       <- rsp
//! ```
//!
//! A user may replace the body: then the site in the registers is another one after the dispatch,
//! and its operands are below S-8 (`trampoline/replaced.rs`).
//!
//! While the body runs, all registers are the caller's. The return address, in the return point,
//! says which frame it is: when the body returns, the frame is found without a lookup.
//!
//! A function that returns twice, or looks at its return address, must not be called from a return
//! point. For those there are entry-only variants, which dispatch the entry and then always
//! jump.
//!
//! # Unwind information
//!
//! It is right at every instruction, because a profiler's signal may arrive at any. There are these
//! stretches, with F the frame:
//!
//! | stretch | F | CFA | rbp | rbx | return address |
//! |---|---|---|---|---|---|
//! | before `push rbx`, and the last `ret` and `jmp` | | rsp+8 | | | CFA-8 |
//! | until the caller's rbx is loaded | | rbx+16 | | CFA-16 | CFA-8 |
//! | the jump to the return point | | rsp | | | CFA-8 |
//! | the return point | by rip | \[F+24\]+8 | | | \[F+8\] |
//! | the first instruction of the return code | rcx | \[F+24\]+8 | | | \[F+8\] |
//! | from there until rbp is the caller's again | rbp | \[F+24\]+8 | \[F+0\] | | \[F+8\] |
//!
//! Where there is a frame, the CFA is the stack pointer that the caller gets back, as for any
//! function. libunwind.so.8 uses the CFA as the stack pointer whatever the last column says.
//!
//! Tail calls of traced functions from one another have the same `return_slot_addr`. gdb takes a
//! stack for corrupt if CFAs do not ascend, or if two frames of one function have the same CFA. So
//! the lowest three bits of `tail` are added there: 7 in the frame that the caller has called, 6 in
//! the next, and so on. The stack pointer itself stays correct beside the CFA. In libunwind.so.8 it
//! does not, but that sees in the first frame that its stack pointer was moved by the second, and
//! does not add the 7 then: the caller gets the right one back.
//!
//! The personality routine runs when an unwinder that cleans up (a panic, a C++ exception,
//! `pthread_exit`, a cancellation) passes the return point; it dispatches the unwinding to the
//! users. A process may have several unwinders, and each understands only its own contexts; the
//! address of the call identifies the unwinder.
//!
//! libgcc recognizes the frame that catches by the CFA of the frame below it, LLVM's libunwind by
//! its stack pointer, and our frame has the same ones: the body returns to where our caller
//! continues. They take our frame for the one that catches, and abort if the personality routine
//! only lets them continue. So for such a frame we catch, with the stack pointer elsewhere, and
//! resume (`fgraph_catch`).
//!
//! # Preserved registers
//!
//! A site with a NOP made by the compiler may rely on the ABI: rdi rsi rdx rcx r8 r9, rax (number
//! of vector arguments), r10 (static chain) and the vector arguments 0 to 7 survive, r11 is free.
//! At the return only the results survive.
//!
//! At any other site the caller may know which registers the function does not change (gcc's
//! `-fipa-ra`), and keep values in all of them. For these sites there are variants of the
//! trampoline that preserve every register, including r11; `trampoline/save.rs` describes how. Only
//! the flags do not survive.
//!
//! Vector registers are saved in the width that is in use, with plain moves: fxsave, xsave, and
//! even reading the components in use with xgetbv, cost several times as much
//! (`docs/decisions/measured.md`). They are not saved for a call that only fast-path users want:
//! `trampoline/fast_path.rs`.

mod calls;
mod current;
#[macro_use]
mod host;
mod personality;
#[macro_use]
mod fast_path;
#[macro_use]
mod save;
mod body;
mod caller_check;
mod near_end;
pub mod points;
mod replaced;
pub mod symbol_file;
mod table;
mod variant;

use core::ops::Range;
use core::sync::atomic::Ordering;

use fgraph_core::replacement;

use self::calls::{ABORT, ATTACH};
use self::personality::ENTRIES;
use crate::cpu;

pub use calls::{Abort, Attach, BLOCKED_SIGNALS, signal_set};
pub use current::{attaching, current, guard_storage, set_attaching, set_current, stack_end};
pub use fast_path::shims;
pub use near_end::near_end;
pub use personality::{
    GetGr, GetIp, MAX_UNWINDERS, SetGr, SetIp, Unwinder, add_unwinder, is_caught,
};
pub use table::Trampolines;
pub use variant::Variant;

/// Returns the bounds of the code that must never be traced, which the linker makes from the
/// section's name.
pub fn own_text() -> Range<usize> {
    unsafe extern "C" {
        #[link_name = "__start_fgraph_text"]
        static START: u8;
        #[link_name = "__stop_fgraph_text"]
        static STOP: u8;
    }
    (&raw const START).addr()..(&raw const STOP).addr()
}

/// Sets the trampolines up, and returns those that save the registers of this machine.
///
/// # Safety
///
/// `attach` must return the calling thread's own state, or null.
pub unsafe fn install(attach: Attach, abort: Abort) -> Trampolines {
    ATTACH.store(attach as usize, Ordering::Relaxed);
    ABORT.store(abort as usize, Ordering::Relaxed);
    caller_check::install();
    host::prepare_unwinder();
    let twins = [Trampolines::of, Trampolines::caller_checking_of];
    let [trampolines, checking] = twins.map(|of| of(cpu::vector_bytes(), cpu::opmask_bytes()));
    let starts = |these: Trampolines| Variant::CALLING.map(|variant| these.entry(variant));
    let starts = [trampolines, checking].into_iter().flat_map(starts);
    for (entry, start) in ENTRIES.iter().zip(starts) {
        entry.store(start, Ordering::Relaxed);
    }
    // SAFETY: the code that replaces bodies changes only the registers of the result.
    unsafe { replacement::set_bodies(replaced::bodies()) };
    trampolines
}

/// Declares that threads may be cancelled, and returns the trampolines that disable cancellation
/// during dispatch: always, until [`trust_announcements`].
///
/// # Safety
///
/// All stubs that are made from now on must lead to these.
pub unsafe fn disable_cancellation() -> Trampolines {
    caller_check::set_unannounced(true);
    Trampolines::caller_checking_of(cpu::vector_bytes(), cpu::opmask_bytes())
}

/// Declares that no thread is cancelled without a call of [`announce_cancellation`] before.
///
/// # Safety
///
/// The announcements must be complete: a callback in which a thread is cancelled would be unwound
/// in the middle.
pub unsafe fn trust_announcements() {
    caller_check::set_unannounced(false);
}

/// Announces that threads are cancelled from now on. Callbacks that are running may not be
/// shielded: wait for them, after a heavy barrier, before any thread is cancelled.
pub fn announce_cancellation() {
    caller_check::expect_cancellation();
}

/// Returns the caller-checking trampolines, which follow `callers` of
/// [`Fgraph`](fgraph_core::Fgraph).
pub fn look_at_callers() -> Trampolines {
    caller_check::look_at_callers();
    Trampolines::caller_checking_of(cpu::vector_bytes(), cpu::opmask_bytes())
}
