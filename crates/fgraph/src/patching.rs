//! From what the users want to text that is patched.

pub(crate) mod batch;
mod blocked;
pub(crate) mod signals;
pub(crate) mod writer;
