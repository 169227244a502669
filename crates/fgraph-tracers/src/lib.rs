//! Ready-made users of fgraph. Each watches the functions that a filter selects, and several can
//! work on one program at once.
//!
//! - [`heap`]: the functions of allocators, for a recorder of them;
//! - [`locks`]: orders of locks that can deadlock, the longest holds and waits;
//! - [`outliers`]: the slowest calls, with all calls inside them;
//! - [`probe`]: closures at the entry and the return of functions; fault injection;
//! - [`profiler`]: where the time goes, for each function, caller and thread;
//! - [`recorder`]: every call as it happens, to be read while the program runs;
//! - [`stack`]: the deepest stack of each thread, and the size of each call on it;
//! - [`syscalls`]: the system calls of the program;
//! - [`threads`]: functions that are called on the wrong thread;
//! - [`trigger`]: reports to the readers of rings that a function was called, or took long;
//! - [`watchdog`]: calls that take too long, while they still run.
//!
//! With the feature `states`, `scheduling` has the states of threads, which recordings can contain.
//!
//! [`registry`] holds tracers by their names, and [`control`] offers the files of tracefs.
//!
//! The callbacks neither allocate nor lock nor panic. Starting a tracer is therefore safe with
//! every filter, even one that selects the allocator or signal handlers. Results can be read at any
//! time, while the program runs.

#![warn(missing_docs)]

pub mod control;
pub mod heap;
pub mod locks;
pub mod outliers;
pub mod probe;
pub mod profiler;
pub mod recorder;
pub mod registry;
#[cfg(feature = "states")]
pub mod scheduling;
pub mod stack;
mod support;
pub mod syscalls;
pub mod threads;
mod tracer;
pub mod trigger;
pub mod watchdog;

pub use support::caller::Caller;
pub use support::looking::look_lazily;
pub use tracer::Tracer;

/// The samples of the package's README are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
