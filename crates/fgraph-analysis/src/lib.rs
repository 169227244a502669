//! The meaning of events: the calls of threads, their times, and what was lost.
//!
//! The events come from a [`Source`](fgraph_trace::Source): a recording, or rings of a running
//! program. This crate knows no terminal and no arguments, and starts no process.
//!
//! | question | answer |
//! |---|---|
//! | which calls did each thread make? | [`calls`], a [visitor](calls::Visitor) of them |
//! | why do some calls take longer? | [`why::Timeline`] |
//! | which calls took longest, and what was in them? | [`outliers`] |
//! | which locks can deadlock, or are held long? | [`locks::Locks`] |
//! | which tasks of async runtimes are polled long, or wait? | [`tasks::Tasks`] |
//! | which calls make the blocks of memory that live? | [`heap::Heap`] |
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod addresses;
pub mod calls;
pub mod heap;
pub mod locks;
pub mod losses;
pub mod numbers;
pub mod outliers;
pub mod overhead;
pub mod pairs;
pub mod python;
pub mod runtimes;
pub mod stats;
pub mod step;
pub mod tasks;
pub mod text;
pub mod thread;
pub mod tree;
pub mod waits;
pub mod why;
