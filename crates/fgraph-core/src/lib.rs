//! The machine-independent part of fgraph.
//!
//! This crate is a part of [`fgraph`](https://docs.rs/fgraph) and is not meant to be used by
//! itself: its public items are public for the crates of fgraph only, and may change with any
//! version. Use what `fgraph` exports.
//!
//! A kernel, which has no process for `fgraph`, uses this crate and `fgraph-x86_64` directly. The
//! page [fgraph in a kernel](mod@kernel) leads to a first trace, and says what of the two a kernel
//! may rely on.
//!
//! It contains:
//!
//! - the users and their slots;
//! - the epochs that keep a new owner of a slot from getting returns of the previous one;
//! - the grace period after which a user may be dropped;
//! - the shadow stack with its frames;
//! - the dispatch of entries and returns to the users.
//!
//! It makes no system calls, has no assembly except one load, and does not allocate on the path of
//! a traced call. The machine layer saves the registers and calls [`dispatch::enter`] and
//! [`dispatch::leave`]; the runtime above finds functions and patches them.
//!
//! Each folder uses only those below it:
//!
//! | module | holds |
//! |---|---|
//! | [`dispatch`] | dispatch of entries and returns to users |
//! | [`stop`] | the permanent stop |
//! | [`fgraph`](mod@fgraph) | the state that threads, users and dispatch share |
//! | [`users`] | the trait of users, their view of a call, the slots, epochs and the grace period |
//! | [`regs`] | the saved registers of a call |
//! | [`thread`](mod@thread) | the state of each thread, its counters, and the list of all |
//! | [`stacks`] | machine stacks, each with a shadow stack and its frames |
//! | [`kernel`](mod@kernel) | a page for kernels, and no code |
//! | `callers` | the callers whose calls are traced with their returns |
//! | [`site`] | one traced place, its function and its interest mask |
//! | [`snapshot`] | a value that is replaced while others read it |
//! | [`primitive`] | atomics, of `core` or of loom |
//!
//! One dependency points up: a user's entry function ends with a jump to the next user's, which
//! [`dispatch`] finds.
//!
//! The idea of several users on one shadow stack is that of the Linux kernel's `fgraph_ops`
//! (`kernel/trace/fgraph.c`); the code and the protocols below are our own.

#![no_std]
#![warn(missing_docs)]

extern crate alloc;
#[cfg(test)]
extern crate std;

#[cfg(not(loom))]
pub mod callers;
#[cfg(not(loom))]
#[doc = include_str!("../kernel.md")]
pub mod kernel {}
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
pub use stacks::{claim, order, version};
pub use thread::{free, hazard_slot, owner};
pub use users::{eligible, grace, slot};

#[cfg(not(loom))]
pub use stacks::{frame, machine, points, shadow};
#[cfg(not(loom))]
pub use thread::{counters, stack_provider};
#[cfg(not(loom))]
pub use users::{
    call, closures, fast_path, from_register, ops, per_thread, recycled, registration, replacement,
    write,
};

#[cfg(not(loom))]
pub use call::{Dropped, Entry, Return};
#[cfg(not(loom))]
pub use closures::{OnCall, OnEntry, on_call, on_entry};
#[cfg(not(loom))]
pub use counters::Counters;
#[cfg(not(loom))]
pub use fgraph::{FGRAPH, Fgraph, Guarded};
#[cfg(not(loom))]
pub use from_register::FromRegister;
#[cfg(not(loom))]
pub use ops::{DroppedOf, EntryOf, FgraphOps, LibraryEvent, ReturnOf};
#[cfg(not(loom))]
pub use per_thread::PerThread;
#[cfg(not(loom))]
pub use recycled::{Recycle, Recycled};
#[cfg(not(loom))]
pub use registration::UserId;
pub use site::{Function, Module, Site};
#[cfg(not(loom))]
pub use write::{EntryWriter, Outcome, ReturnWriter, WriteError};
