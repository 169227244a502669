//! The library's public functions and handles.

pub(crate) mod anywhere;
pub(crate) mod fast_path;
pub(crate) mod functions;
pub(crate) mod generated;
pub(crate) mod handle;
pub(crate) mod into_filter;
pub(crate) mod saved_registers;
pub(crate) mod status;
pub(crate) mod symbols;
#[cfg(fgraph_testing)]
pub mod testing;
pub(crate) mod ticks;
