//! Ready-made users of fgraph. Each watches the functions that a filter selects, and several of
//! them work on one program at once.
//!
//! - [`probe`]: closures at the entry and the return of functions; fault injection;
//! - [`profiler`]: where the time goes, for each function, caller and thread.
//! - [`recorder`]: every call as it happens, to be read while the program runs.
//!
//! Their callbacks neither allocate nor lock nor panic, so starting one is safe with every filter,
//! also one that selects the allocator or the handlers of signals. What they gather can be read at
//! any time, while the program runs.

#![warn(missing_docs)]

pub mod probe;
pub mod profiler;
pub mod recorder;
mod support;
mod tracer;

pub use tracer::Tracer;
