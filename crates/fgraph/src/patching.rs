//! Changes text according to the sites' interest masks.

pub(crate) mod batch;
mod blocked;
pub(crate) mod signals;
pub(crate) mod writer;
