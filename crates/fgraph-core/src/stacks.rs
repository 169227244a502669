//! Shadow stacks, their frames with the order of users in them, and the machine stacks that they
//! belong to.

pub mod claim;
pub mod order;
pub mod version;

#[cfg(not(loom))]
pub mod frame;
#[cfg(not(loom))]
pub mod machine;
#[cfg(not(loom))]
pub mod points;
#[cfg(not(loom))]
pub mod shadow;
