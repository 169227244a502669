//! The x86-64 part of fgraph: everything that knows an x86 byte.
//!
//! | module | holds |
//! |---|---|
//! | [`nop`] | which bytes at a function's entry may be patched |
//! | [`relocate`] | moving the first instructions of a function that has no NOP out of the way |
//! | [`unwind`] | unwind information for the instructions that were moved |
//! | [`high`] | who may keep values in the registers that only AVX-512 has |
//! | [`kept`] | which functions have a caller that counts on more registers than the ABI promises |
//! | [`stub`] | the stubs between sites and trampoline, one per site, and their unwind information |
//! | [`poke`] | the protocol that changes sites while threads run through them |
//! | [`pun`] | jumps whose operand traps where a thread may go on in the middle of it |
//! | [`trap`] | what a thread does that meets the breakpoint of a half-written site |
//! | [`trampoline`] | the entry trampoline, the return point, their unwind information |
//! | [`cpu`] | what the machine has |
//!
//! [`nop`], [`kept`], [`relocate`], [`stub`], [`pun`] and [`poke`] plan: bytes in, bytes out, no access to the
//! running program but through what the caller hands them.

#![no_std]
#![warn(missing_docs)]

extern crate alloc;

pub mod cpu;
pub mod high;
pub mod kept;
pub mod nop;
pub mod poke;
pub mod pun;
pub mod relocate;
pub mod stub;
pub mod trampoline;
pub mod trap;
pub mod unwind;
