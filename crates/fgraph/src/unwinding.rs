//! Unwinding through stubs, relocated prologues and trampolines, and other functions of modules
//! that are redirected to fgraph.

pub(crate) mod arenas;
pub(crate) mod cancellation;
pub(crate) mod libgcc;
pub(crate) mod registry;
pub(crate) mod rows;
pub(crate) mod shared_stack;
mod slot;
pub(crate) mod stack_pointer;
