//! The state of each thread, the machine stacks on which it runs, and aborts.

pub(crate) mod abort;
pub(crate) mod spare_stacks;
pub(crate) mod stack_bounds;
mod state;
pub(crate) mod untraced;
pub(crate) mod watched;

pub use state::set_shadow_stack_size;
pub(crate) use state::*;

use fgraph_core::Fgraph;

/// The state that threads, users and dispatch share in this process.
// SAFETY: this crate is the one runtime of the process.
pub(crate) static FGRAPH: &Fgraph = unsafe { fgraph_core::FGRAPH.get() };
