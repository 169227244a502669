//! How far recording is.

use fgraph_trace::ring::Rings;

/// What went through the rings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    pub(crate) calls: u64,
    pub(crate) lost: u64,
}

impl Counts {
    pub(crate) fn of(rings: &Rings) -> Self {
        let mut counts = Self {
            calls: 0,
            lost: rings.events_without_ring(),
        };
        for ring in rings.counts() {
            // An entry and an end.
            counts.calls = counts.calls.saturating_add(ring.written.div_ceil(2));
            counts.lost = counts.lost.saturating_add(ring.dropped);
        }
        counts
    }
}
