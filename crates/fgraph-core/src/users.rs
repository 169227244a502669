//! The trait of users, their view of a call, and the slots that lead to them.

pub mod eligible;
pub mod grace;
pub mod slot;

#[cfg(not(loom))]
pub mod call;
#[cfg(not(loom))]
pub(crate) mod chain;
#[cfg(not(loom))]
pub mod closures;
#[cfg(not(loom))]
pub mod fast_path;
#[cfg(not(loom))]
pub mod from_register;
#[cfg(not(loom))]
pub mod ops;
#[cfg(not(loom))]
pub mod per_thread;
#[cfg(not(loom))]
pub mod recycled;
#[cfg(not(loom))]
pub mod redirects;
#[cfg(not(loom))]
pub mod registration;
#[cfg(not(loom))]
pub mod replacement;
#[cfg(not(loom))]
pub mod write;
