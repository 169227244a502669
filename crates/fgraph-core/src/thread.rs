//! The state of each thread, its counters, and the list of all states.

pub mod free;
pub mod hazard_slot;
pub mod owner;

#[cfg(not(loom))]
pub mod counters;
#[cfg(not(loom))]
pub(crate) mod indices;
#[cfg(not(loom))]
mod list;
#[cfg(not(loom))]
pub(crate) mod parents;
#[cfg(not(loom))]
pub mod stack_provider;
#[cfg(not(loom))]
mod state;

#[cfg(not(loom))]
pub use list::Threads;
#[cfg(not(loom))]
pub use stack_provider::StackProvider;
#[cfg(not(loom))]
pub use state::{Cancellation, StackEnd, Thread};
