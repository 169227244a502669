//! The state of each thread, the machine stacks on which it runs, and aborts.

pub(crate) mod abort;
pub(crate) mod copies;
pub(crate) mod shadow_memory;
pub(crate) mod spare_stacks;
pub(crate) mod stack_bounds;
mod state;
pub(crate) mod untraced;
pub(crate) mod watched;

pub use state::set_shadow_stack_size;
pub(crate) use state::*;
