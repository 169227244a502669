//! The meaning of events: the calls of threads, their times, and what was lost.
//!
//! The events come from a [`Source`](fgraph_trace::Source): a recording, or rings of a running
//! program. This crate knows no terminal and no arguments, and starts no process.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod calls;
pub mod losses;
pub mod numbers;
pub mod stats;
pub mod step;
pub mod text;
