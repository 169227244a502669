//! The x86-64 part of fgraph: all code that depends on the processor's instructions.
//!
//! This crate is a part of [`fgraph`](https://docs.rs/fgraph) and is not meant to be used by
//! itself: its public items are public for the crates of fgraph only, and may change with any
//! version. Use what `fgraph` exports.
//!
//! A kernel takes the feature `no_std` in place of `std`. On targets without an operating system
//! the trampolines make no system calls and have no unwinder. [`clock::monotonic`], [`call_gate`],
//! [`move_text`], the handlers in [`trap`] and everything about cancellation are for processes.
//!
//! | module | holds |
//! |---|---|
//! | [`nop`] | the NOP at a function's entry that may be patched |
//! | [`relocate`] | relocation of the prologue of a function that has no NOP |
//! | [`unwind`] | unwind information for relocated prologues |
//! | [`evex`] | functions that may keep values in registers that exist only with AVX-512 |
//! | [`callee_preserved`] | functions whose callers rely on more than the ABI promises |
//! | [`system_calls`] | the system calls within functions that can be traced |
//! | [`system_call`] | the code that replaces such a system call |
//! | [`stub`] | the stubs between sites and trampoline, one per site, and their unwind information |
//! | [`text_write`] | the protocol that changes sites while threads run through them |
//! | [`move_text`] | code that moves a mapping over text |
//! | [`call_gate`] | gates before functions that must wait while text is changed |
//! | [`punned_jump`] | jumps whose operand traps if a thread continues in the middle of it |
//! | [`trap`] | the handling of threads that hit the breakpoint of a half-written site |
//! | [`trampoline`] | the entry trampoline, the return point, their unwind information |
//! | [`clock`] | clocks that a callback may read |
//! | [`saved_call`] | calls that change general registers only |
//! | [`cpu`] | features of the machine |
//!
//! [`nop`], [`callee_preserved`], [`relocate`], [`stub`], [`punned_jump`] and [`text_write`] only
//! plan: bytes in, bytes out, no access to the running program other than through their arguments.

#![no_std]
#![warn(missing_docs)]

extern crate alloc;

mod analyze;
pub mod clock;
pub mod cpu;
mod emit;
mod patch;
pub mod saved_call;
pub mod trampoline;

pub use analyze::{callee_preserved, evex, fast_path, nop, relocate, system_calls};
pub use emit::{punned_jump, stub, system_call, unwind};
pub use patch::{call_gate, move_text, text_write, trap};
