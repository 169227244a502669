//! The x86-64 part of fgraph: everything that knows an x86 byte.
//!
//! A part of [`fgraph`](https://docs.rs/fgraph) and not meant to be used by itself: what is public
//! here is so for the crates of fgraph, and may change with any version. Use what `fgraph` exports.
//!
//! | module | holds |
//! |---|---|
//! | [`nop`] | which bytes at a function's entry may be patched |
//! | [`relocate`] | moving the first instructions of a function that has no NOP out of the way |
//! | [`unwind`] | unwind information for the instructions that were moved |
//! | [`evex`] | who may keep values in the registers that only AVX-512 has |
//! | [`reliance`] | which functions have a caller that counts on more registers than the ABI promises |
//! | [`system_calls`] | which system calls within functions can be traced |
//! | [`system_call`] | what runs in the place of one |
//! | [`stub`] | the stubs between sites and trampoline, one per site, and their unwind information |
//! | [`poke`] | the protocol that changes sites while threads run through them |
//! | [`move_text`] | code that moves a mapping over text |
//! | [`spawn_gate`] | a gate before the functions that start processes in the same memory |
//! | [`punned_jump`] | jumps whose operand traps where a thread may go on in the middle of it |
//! | [`trap`] | what a thread does that meets the breakpoint of a half-written site |
//! | [`trampoline`] | the entry trampoline, the return point, their unwind information |
//! | [`clock`] | clocks that a callback may read |
//! | [`saved_call`] | calls that change general registers only |
//! | [`cpu`] | what the machine has |
//!
//! [`nop`], [`reliance`], [`relocate`], [`stub`], [`punned_jump`] and [`poke`] plan: bytes in,
//! bytes out, no access to the running program but through what the caller hands them.

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

pub use analyze::{evex, nop, reliance, relocate, scalar, system_calls};
pub use emit::{punned_jump, stub, system_call, unwind};
pub use patch::{move_text, poke, spawn_gate, trap};
