//! Relocates the prologue of a function, to make room for a jump.
//!
//! A function without a NOP is traced by writing `jmp stub` over its first five bytes. The
//! displaced instructions have to run elsewhere: this module computes the relocated prologue for
//! another address. It reads bytes and writes bytes; nothing is patched here.
//!
//! ```text
//!   original                                  relocated prologue
//!   +---+                                     +---+
//!   | a |  boundary 0      \                  | a |          as it is
//!   +---+                   |  five bytes     +---+------+
//!   |  b  |  boundary 1     |  of jmp         |    b'    |   rip-relative operand adjusted
//!   +---+-+--+              |                 +----+-----+-----+
//!   |   c    |  boundary 4 /                  |       c'       |  short branch made near
//!   +--------+                                +----------------+
//!   |  rest  |  <---------------------------- | jmp rest       |
//!   +--------+                                +----------------+
//! ```
//!
//! # Duties of the patcher
//!
//! A thread may be at a boundary within the five bytes, or arrive there. The patcher makes sure
//! that the jump has an `int3` at each of [`Window::boundaries`] except the first, and that a
//! thread that traps there continues at [`Relocated::resume`].
//!
//! # Guarantees of the relocated prologue
//!
//! - Every register, flag and word of the stack is the same after every displaced instruction.
//! - A called function sees the same return address: a displaced `call` pushes the original's
//!   address and jumps. The return is not predicted then, and faults if the processor keeps a
//!   shadow stack: see [`Window::call`].
//! - The caller's frame can be found: [`Relocated::rows`].
//!
//! A prologue for which these cannot be kept is refused with a [`RelocateError`].
//!
//! # Loops
//!
//! A branch from the body back to the entry would make a call of every round of a loop, and a
//! branch to another boundary of the five bytes would trap. If such a loop is small, makes no calls
//! and cannot be entered in another way, the window is extended to contain the loop, and the
//! relocated prologue loops within itself. A jump to an entry that begins to set up the frame is
//! not a loop but a tail call of the function by itself, and counts as a call.

mod branches;
mod convention;
mod encode;
mod error;
mod exits;
mod inbound_branches;
mod operand;
mod own_frame;
mod paths;
mod plan;
mod stack_effect;
mod window;

pub use branches::first_jump;
pub use convention::Convention;
pub use encode::Relocated;
pub use error::RelocateError;
pub use exits::{Exit, exits, is_instruction, slot_of};
pub use inbound_branches::{InboundBranch, branches_to};
pub use own_frame::is_misled_by_a_call;
pub use plan::{plan, plan_again, plan_breakpoint, plan_short};
pub use window::{Code, Window};

#[cfg(test)]
mod tests;
