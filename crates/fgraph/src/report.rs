//! Errors, refusals, and the methods of tracing, as callers of the library get them.

pub(crate) mod analysis;
pub(crate) mod error;
pub(crate) mod functions;
