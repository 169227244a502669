//! The machine-independent part of fgraph.
//!
//! A part of [`fgraph`](https://docs.rs/fgraph) and not meant to be used by itself: what is public
//! here is so for the crates of fgraph, and may change with any version. Use what `fgraph` exports.
//!
//! Here are the users and their slots, the epochs that keep a new owner of a slot from getting the
//! returns of the previous one, the grace period after which a user may be dropped, the shadow
//! stack with its frames, and the dispatch of entries and returns to the users. There is no system
//! call, no assembly but for one load and, on the path of a traced call, no allocation; the machine
//! layer saves the registers and calls [`dispatch::enter`] and [`dispatch::leave`], and the runtime
//! above finds functions and patches them.
//!
//! Each folder uses only those below it:
//!
//! | module | holds |
//! |---|---|
//! | [`dispatch`] | from a hit to the callbacks, and from a return |
//! | [`stop`] | the permanent stop |
//! | [`fgraph`](mod@fgraph) | what threads, users and dispatch share |
//! | [`users`] | what a user implements and sees, the slots, epochs and the grace period |
//! | [`regs`] | the registers of a call, as they are saved |
//! | [`thread`](mod@thread) | the state of each thread, its counters, and the list of all |
//! | [`stacks`] | machine stacks, each with a shadow stack and its frames |
//! | `callers` | whose calls are traced with their returns |
//! | [`site`] | one traced place, its function and its interest mask |
//! | [`snapshot`] | a value that is replaced while others read it |
//! | [`primitive`] | atomics, of `core` or of loom |
//!
//! One arrow points up: a user's entry function ends by jumping to the next user's, which
//! [`dispatch`] finds.
//!
//! The idea of many users over one shadow stack is the Linux kernel's `fgraph_ops`
//! (`kernel/trace/fgraph.c`); the code and the protocols below are our own.

#![no_std]
#![warn(missing_docs)]

extern crate alloc;
#[cfg(test)]
extern crate std;

#[cfg(not(loom))]
pub mod callers;
pub mod primitive;
pub mod site;
pub mod snapshot;
pub mod stacks;
pub mod thread;
pub mod users;

#[cfg(not(loom))]
pub mod dispatch;
#[cfg(not(loom))]
pub mod fgraph;
#[cfg(not(loom))]
pub mod regs;
#[cfg(not(loom))]
pub mod stop;

pub use site::MAX_USERS;
pub use stacks::{claim, version};
pub use thread::{free, mark, owner};
pub use users::{grace, scalar, slot};

#[cfg(not(loom))]
pub use stacks::{frame, machine, shadow};
#[cfg(not(loom))]
pub use thread::{counters, stack_provider};
#[cfg(not(loom))]
pub use users::{call, ops, per_thread, recycled, registration, replacement, short, write};

#[cfg(not(loom))]
pub use call::{Entry, Return};
#[cfg(not(loom))]
pub use counters::Counters;
#[cfg(not(loom))]
pub use fgraph::{FGRAPH, Fgraph, Guarded};
#[cfg(not(loom))]
pub use ops::{FgraphOps, LibraryEvent};
#[cfg(not(loom))]
pub use per_thread::PerThread;
#[cfg(not(loom))]
pub use recycled::{Recycle, Recycled};
#[cfg(not(loom))]
pub use registration::UserId;
pub use site::{Function, Module, Site};
#[cfg(not(loom))]
pub use write::{EntryWriter, Outcome, ReturnWriter, WriteError};
