//! Events of traced calls, from the thread that makes them to the person who looks at them.
//!
//! A traced thread writes *events* of 8 bytes to a [ring](ring::Rings) of its own, in memory that
//! other threads and processes share. Readers take them from there while the program runs, or from
//! a recording: both are a [`Source`], which gives the events of all threads in the order of time,
//! with the names of functions and threads. What shows events, as the text of a
//! [function graph](graph), needs only a `Source`, and cannot tell where it comes from.
//!
//! This crate knows nothing of patching, and nothing of the process that it runs in: it builds
//! wherever Rust's standard library does.
#![warn(missing_docs)]

pub mod clock;
pub mod event;
pub mod graph;
pub mod live;
pub mod names;
pub mod pairing;
pub mod primitive;
pub mod recording;
pub mod ring;
pub mod source;
#[cfg(all(target_os = "linux", target_arch = "x86_64", not(miri)))]
mod system_call;
pub mod values;

pub use live::{Live, Snapshot};
pub use recording::Recording;
pub use source::{Event, Source};
