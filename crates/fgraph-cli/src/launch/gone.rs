//! Frees the rings of processes that have ended.

use std::collections::HashSet;

use fgraph_trace::names::process_id;
use fgraph_trace::ring::Rings;

use super::process::has_ended;

/// Frees rings whose processes have ended.
#[derive(Debug, Default)]
pub(super) struct Gone {
    /// Processes that existed at the last check. One that never did may have an id of another
    /// namespace, so nothing is known about its end.
    alive: HashSet<u32>,
    /// Processes that existed at a check and have ended.
    ended: HashSet<u32>,
}

impl Gone {
    /// Returns true if the process of a ring is known to have ended.
    pub(super) fn has(&self, process: u32) -> bool {
        self.ended.contains(&process) || self.alive.contains(&process) && has_ended(process)
    }

    /// Checks all rings, with three system calls for each ring with a process.
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
                self.ended.insert(process);
                // SAFETY: the process with the writer is gone.
                unsafe { rings.give_back(index) };
            }
        }
    }
}
