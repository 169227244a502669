//! Rings of processes that have ended, for others.

use std::collections::HashSet;

use fgraph_trace::names::process_id;
use fgraph_trace::ring::Rings;

use super::process::has_ended;

/// Gives rings back whose processes have ended.
#[derive(Debug, Default)]
pub(super) struct Gone {
    /// Processes that were there when it was looked last. One that never was may have an id of
    /// another namespace, so nothing is known of its end.
    alive: HashSet<u32>,
}

impl Gone {
    /// Looks at all rings, with three system calls for each that a process has.
    pub(super) fn give_back(&mut self, rings: &Rings) {
        let before = std::mem::take(&mut self.alive);
        for (index, ring) in (0..).zip(rings.counts()) {
            let process = process_id(ring.process);
            if process == 0 || self.alive.contains(&process) {
                continue;
            }
            if !has_ended(process) {
                self.alive.insert(process);
            } else if before.contains(&process) {
                // SAFETY: the process that has the writer is gone.
                unsafe { rings.give_back(index) };
            }
        }
    }
}
