//! The progress of recording.

use std::io::Write;

use fgraph_trace::recording::Drain;
use fgraph_trace::ring::Rings;

/// Events that were taken out of the rings.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Drained {
    pub(crate) events: u64,
    /// The entries among them.
    pub(crate) entries: u64,
    /// Bytes of the recording.
    pub(crate) bytes: u64,
}

impl Drained {
    pub(crate) fn of<W: Write>(drain: &Drain<W>) -> Self {
        Self {
            events: drain.events(),
            entries: drain.entries(),
            bytes: drain.len(),
        }
    }
}

/// The counts of events that went through the rings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    pub(crate) calls: u64,
    pub(crate) lost: u64,
}

impl Counts {
    /// Half of the events that are still in the rings count as entries.
    pub(crate) fn of(rings: &Rings, drained: Drained) -> Self {
        let (mut events, mut lost) = (0_u64, rings.events_without_ring());
        for ring in rings.counts() {
            events = events.saturating_add(ring.written);
            lost = lost.saturating_add(ring.dropped);
        }
        let left = events.saturating_sub(drained.events);
        Self {
            calls: drained.entries.saturating_add(left.div_ceil(2)),
            lost,
        }
    }
}
