//! Facts about the source of events.

use fgraph_trace::Source;
use fgraph_trace::clock::Clock;
use fgraph_trace::names::Names;
use fgraph_trace::schedule::Schedule;

/// Facts about events that their source knows.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The names known so far.
    pub names: &'a Names,
    /// The clock of the events.
    pub clock: &'a Clock,
    /// The states of threads, if they are known.
    pub schedule: Option<&'a Schedule>,
}

impl<'a> Context<'a> {
    /// Returns what `source` knows.
    #[inline]
    pub fn of(source: &'a impl Source) -> Self {
        Self {
            names: source.names(),
            clock: source.clock(),
            schedule: source.schedule(),
        }
    }
}
