//! How unwinders find their way through stubs, copies and trampolines.

pub(crate) mod cancellation;
pub(crate) mod libgcc;
pub(crate) mod registry;
mod slot;
pub(crate) mod stack_pointer;
