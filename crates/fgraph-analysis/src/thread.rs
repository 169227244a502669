//! Threads as answers name them.

use std::fmt;

use fgraph_trace::names::{Names, process_id};
use serde::Serialize;

use crate::calls::{self, write_thread};

/// A thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Thread {
    /// The id of its process.
    pub process: u32,
    /// Its id.
    pub thread: u32,
    /// The name; empty if it is unknown.
    pub name: String,
}

impl Thread {
    /// Returns a thread of the process with this [number](fgraph_trace::names::process_number).
    #[must_use]
    pub fn of(names: &Names, process: u32, thread: u32) -> Self {
        let name = names.thread(process, thread).unwrap_or_default();
        Self {
            process: process_id(process),
            thread,
            name: name.to_owned(),
        }
    }
}

/// Writes its name, if that is known, and its ids. Text from the program is in it unescaped.
impl fmt::Display for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_thread(f, &self.name, self.process, self.thread)
    }
}

impl From<&calls::Thread> for Thread {
    fn from(thread: &calls::Thread) -> Self {
        Self {
            process: process_id(thread.process),
            thread: thread.id,
            name: thread.name.clone(),
        }
    }
}
