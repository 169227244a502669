//! The watchdog of interrupts: how late they are, and how long their handlers take.

use core::sync::atomic::{AtomicU64, Ordering};

use fgraph_core::{Entry, FgraphOps, Return};

use crate::clock;
use crate::serial::println;

/// The watchdog, for functions whose first argument is the delay in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Latency {
    interrupts: AtomicU64,
    sum: AtomicU64,
    /// The longest delay, and the longest handler.
    latest: AtomicU64,
    longest: AtomicU64,
}

impl Latency {
    /// Returns the number of interrupts.
    pub(crate) fn interrupts(&self) -> u64 {
        self.interrupts.load(Ordering::Relaxed)
    }

    /// Returns the longest delay in nanoseconds.
    pub(crate) fn latest(&self) -> u64 {
        self.latest.load(Ordering::Relaxed)
    }

    /// Prints the delays.
    pub(crate) fn print(&self) {
        let interrupts = self.interrupts().max(1);
        println!(
            "~ interrupts {interrupts}, average delay {} ns, longest {} ns, longest handler {} ns",
            self.sum.load(Ordering::Relaxed) / interrupts,
            self.latest(),
            self.longest.load(Ordering::Relaxed)
        );
    }
}

impl FgraphOps for Latency {
    type Data = u64;

    fn entry(&self, call: &mut Entry<'_, u64>) -> Option<u64> {
        let late = call.arg(0)?;
        self.interrupts.fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(late, Ordering::Relaxed);
        self.latest.fetch_max(late, Ordering::Relaxed);
        Some(clock::now())
    }

    fn ret(&self, _call: &mut Return<'_, u64>, start: u64) {
        let took = clock::now().saturating_sub(start);
        self.longest.fetch_max(took, Ordering::Relaxed);
    }
}
