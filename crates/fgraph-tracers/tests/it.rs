//! The behaviour of the tracers, one module for each, in one binary. Each scenario runs in a
//! process of its own.

mod answers;
mod control;
mod ending_threads;
mod locks;
mod many_threads;
mod outliers;
mod probe;
mod profiler;
mod recorder;
mod registry;
mod sqlite;
mod stack;
#[cfg(feature = "states")]
mod states;
mod syscalls;
mod threads;
mod types;
mod unoptimised;
mod watchdog;
