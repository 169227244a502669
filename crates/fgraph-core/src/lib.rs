//! The machine-independent part of fgraph.
//!
//! Here are the users and their slots, the epochs that keep a new owner of a slot from getting the
//! returns of the previous one, the grace period after which a user may be dropped, the shadow
//! stack with its frames, and the dispatch of entries and returns to the users. There is no system
//! call, no assembly and, on the path of a traced call, no allocation; the machine layer saves the
//! registers and calls [`dispatch::enter`] and [`dispatch::leave`], and the runtime above finds
//! functions and patches them.
//!
//! | module | holds |
//! |---|---|
//! | [`ops`] | [`FgraphOps`], what a user implements |
//! | [`call`] | [`Entry`] and [`Return`], what a callback sees |
//! | [`registration`] | a user with its type erased |
//! | [`slot`] | the 16 slots, the stub, the order in which free indices are taken |
//! | [`grace`] | epochs, marks, and the wait after which no callback of a user runs |
//! | [`site`] | one traced place, its function and its interest mask |
//! | [`frame`], [`shadow`] | the shadow stack |
//! | [`claim`] | who may change a shadow stack, and who tells of a return |
//! | [`stack`] | the machine stacks, each with a shadow stack |
//! | [`thread`] | what each thread of the program carries |
//! | [`counters`] | what was not traced, and why |
//! | [`regs`] | the registers of a call, as they are saved |
//! | [`dispatch`] | from a hit to the callbacks |
//! | [`stop`] | the permanent stop |
//! | [`primitive`] | atomics, of `core` or of loom |
//!
//! The idea of many users over one shadow stack is the Linux kernel's `fgraph_ops`
//! (`kernel/trace/fgraph.c`); the code and the protocols below are our own.

#![no_std]
#![warn(missing_docs)]

#[cfg(test)]
extern crate std;

pub mod claim;
pub mod grace;
pub mod primitive;
pub mod slot;

#[cfg(not(loom))]
pub mod call;
#[cfg(not(loom))]
pub mod counters;
#[cfg(not(loom))]
pub mod dispatch;
#[cfg(not(loom))]
pub mod frame;
#[cfg(not(loom))]
pub mod ops;
#[cfg(not(loom))]
pub mod registration;
#[cfg(not(loom))]
pub mod regs;
#[cfg(not(loom))]
pub mod shadow;
#[cfg(not(loom))]
pub mod site;
#[cfg(not(loom))]
pub mod stack;
#[cfg(not(loom))]
pub mod stop;
#[cfg(not(loom))]
pub mod thread;

#[cfg(not(loom))]
pub use call::{Entry, Return};
#[cfg(not(loom))]
pub use counters::Counters;
#[cfg(not(loom))]
pub use dispatch::{FGRAPH, Fgraph};
#[cfg(not(loom))]
pub use ops::FgraphOps;
#[cfg(not(loom))]
pub use site::{Function, Module, Site};

/// How many users may be registered at once.
pub const MAX_USERS: usize = 16;
