//! What a program does, as it happens.

use std::sync::Arc;

use fgraph_trace::clock::Clock;
use fgraph_trace::names::Names;
use fgraph_trace::source::{SourceError, Upcoming};
use fgraph_trace::{Event, Live, Source};

use super::{Launched, NAP, interrupt::Interrupts};
use crate::error::Error;

/// The events of a program until it ends: a source that waits for the next one.
#[derive(Debug)]
pub(crate) struct Events<'l> {
    live: Live,
    launched: &'l mut Launched,
    interrupts: &'l Interrupts,
}

impl<'l> Events<'l> {
    pub(crate) fn new(
        launched: &'l mut Launched,
        interrupts: &'l Interrupts,
    ) -> Result<Self, Error> {
        let live = Live::consume(Arc::clone(launched.rings()));
        Ok(Self {
            live: live.map_err(|busy| Error::Nothing(busy.to_string()))?,
            launched,
            interrupts,
        })
    }

    /// Whether the next event is there without waiting.
    pub(crate) fn is_ready(&mut self) -> Result<bool, SourceError> {
        self.live.is_ready()
    }
}

impl Source for Events<'_> {
    fn next(&mut self) -> Result<Option<Event<'_>>, SourceError> {
        while !self.live.is_ready()? && !self.live.is_over() {
            self.launched.give_back_rings();
            self.launched.wait_for(NAP);
            if self.launched.is_over(self.interrupts) {
                self.launched.stop();
            }
        }
        self.live.next()
    }

    fn upcoming(&self) -> Option<Upcoming<'_>> {
        self.live.upcoming()
    }

    fn is_over(&self) -> bool {
        self.live.is_over()
    }

    fn clock(&self) -> &Clock {
        self.live.clock()
    }

    fn names(&self) -> &Names {
        self.live.names()
    }
}
