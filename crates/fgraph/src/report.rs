//! What callers of the library are told: errors, refusals, and how functions are traced.

pub(crate) mod error;
pub(crate) mod functions;
