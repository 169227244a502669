//! How unwinders find their way through stubs, copies and trampolines, and what else modules are
//! made to ask fgraph.

pub(crate) mod cancellation;
pub(crate) mod libgcc;
pub(crate) mod registry;
pub(crate) mod rows;
pub(crate) mod shared_stack;
mod slot;
pub(crate) mod stack_pointer;
