//! What a program does, as it happens.

use std::sync::Arc;

use fgraph_trace::clock::Clock;
use fgraph_trace::event::What;
use fgraph_trace::names::Names;
use fgraph_trace::source::{SourceError, Upcoming};
use fgraph_trace::{Event, Live, Source};

use super::{Launched, NAP, interrupt::Interrupts};
use crate::error::Error;
use crate::output::Out;

/// What a tool in a program has found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) process: u32,
    pub(crate) thread: u32,
    pub(crate) words: Vec<u64>,
    /// How many such things are missing here; then there are no words.
    pub(crate) lost: u64,
}

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

    /// Waits a moment for events, and ends them when the program has ended.
    pub(crate) fn wait(&mut self) {
        self.launched.give_back_rings();
        self.launched.wait_for(NAP);
        if self.launched.is_over(self.interrupts) {
            self.launched.stop();
        }
    }

    /// The next thing that a tool has found; `None` at the end. `out` is written before it waits.
    pub(crate) fn find(&mut self, out: &mut Out) -> Result<Option<Found>, Error> {
        let failed = |error| Error::source("the rings", error);
        loop {
            if !self.is_ready().map_err(failed)? {
                out.flush()?;
            }
            let Some(event) = self.next().map_err(failed)? else {
                return Ok(None);
            };
            let (process, thread) = (event.process, event.thread);
            let (words, lost) = match event.what {
                What::Mark([_, words @ ..]) => (words.to_vec(), 0),
                What::Lost { events } => (Vec::new(), events),
                _ => continue,
            };
            return Ok(Some(Found {
                process,
                thread,
                words,
                lost,
            }));
        }
    }

    /// Whether the next event is there without waiting.
    pub(crate) fn is_ready(&mut self) -> Result<bool, SourceError> {
        self.live.is_ready()
    }
}

impl Source for Events<'_> {
    fn next(&mut self) -> Result<Option<Event<'_>>, SourceError> {
        while !self.live.is_ready()? && !self.live.is_over() {
            self.wait();
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
