//! Events of traced calls: writes, records and reads them.
//!
//! A traced thread writes *events* of 8 bytes to its own [ring](ring::Rings), in memory that other
//! threads and processes share. Readers take events from rings while the program runs, or from a
//! recording. Both are a [`Source`]: it gives the events of all threads in the order of time, with
//! the names of functions and threads. Views such as the [function graph](graph) need only a
//! `Source`, so they work on a running program and on a recording.
//!
//! This crate does not know about patching or about the process that it runs in: it builds wherever
//! Rust's standard library does.
#![warn(missing_docs)]

pub mod clock;
pub mod event;
pub mod graph;
pub mod histogram;
pub mod live;
pub mod names;
pub mod pairing;
#[cfg(target_os = "linux")]
pub mod place;
pub mod primitive;
pub mod recording;
pub mod ring;
pub mod schedule;
pub mod source;
#[cfg(all(target_os = "linux", target_arch = "x86_64", not(miri)))]
mod system_call;
pub mod text;
pub mod values;

pub use live::{Live, Snapshot};
pub use recording::Recording;
pub use source::{Event, Source};
