//! A program's events, as they happen.

use std::sync::Arc;

use fgraph_trace::clock::Clock;
use fgraph_trace::event::What;
use fgraph_trace::names::Names;
use fgraph_trace::source::{SourceError, Upcoming};
use fgraph_trace::{Event, Live, Source};
use fgraph_tracers::recorder::budget::Progress;

use super::call_sums::Tally;
use super::{Launched, NAP, interrupt::Interrupts};
use crate::error::Error;
use crate::input::ShownNames;
use crate::output::Out;

/// A finding of a tool in a program.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) process: u32,
    pub(crate) thread: u32,
    pub(crate) words: Vec<u64>,
    /// The number of missing findings here; then there are no words.
    pub(crate) lost: u64,
}

/// The events of a program until it ends: a source that waits for the next one.
#[derive(Debug)]
pub(crate) struct Events<'l> {
    live: Live,
    launched: &'l mut Launched,
    interrupts: &'l Interrupts,
    /// The number of events until the next check for the end.
    patience: u32,
    is_stopped: bool,
    /// The newest time, in ticks, of an event that is the program's own: when a process that
    /// continues is asked to end the agent's work there, its threads make calls for that.
    newest: u64,
    /// The names in a form that a terminal can show, for viewers: after an interrupt these do not
    /// want the rest.
    shown: Option<ShownNames>,
    is_cut: bool,
    /// Set if functions may be switched off.
    tally: Option<Tally>,
}

/// The number of events after which to check for the end, if the program never pauses.
const PATIENCE: u32 = 1 << 14;

impl<'l> Events<'l> {
    pub(crate) fn new(
        launched: &'l mut Launched,
        interrupts: &'l Interrupts,
    ) -> Result<Self, Error> {
        let live = Live::consume(Arc::clone(launched.rings()));
        let tally = launched.switching().map(|_| Tally::default());
        Ok(Self {
            tally,
            live: live.map_err(|busy| Error::Nothing(busy.to_string()))?,
            launched,
            interrupts,
            patience: PATIENCE,
            is_stopped: false,
            newest: u64::MAX,
            shown: None,
            is_cut: false,
        })
    }

    /// Prepares them for a viewer: an interrupt ends them without those that wait in the rings, and
    /// names have no control characters for a terminal.
    pub(crate) fn for_viewer(mut self) -> Self {
        self.shown = Some(ShownNames::new(self.launched.process()));
        self
    }

    /// Returns the program.
    pub(crate) fn launched(&self) -> &Launched {
        self.launched
    }

    /// Waits a moment for events, and ends them when the program has ended.
    pub(crate) fn wait(&mut self) {
        self.launched.wait_for(NAP);
        self.look();
    }

    /// Ends the events if the program has ended or was interrupted, or the time is over.
    fn look(&mut self) {
        self.patience = PATIENCE;
        self.launched.look();
        if let (Some(tally), Some(switching)) = (&self.tally, self.launched.switching()) {
            let calls = tally.calls.iter();
            switching.look(|| Progress {
                names: self.live.names(),
                calls: calls.map(|(&(process, function), &sum)| (process, function, sum)),
                shortest: tally.shortest,
            });
        }
        if !self.is_stopped && self.launched.is_over(self.interrupts) {
            self.is_cut = self.shown.is_some() && !self.launched.has_ended();
            if !self.launched.has_ended() {
                self.newest = self.clock().kind().now();
            }
            self.launched.stop();
            self.is_stopped = true;
        }
    }

    /// Returns the next finding of a tool; `None` at the end. `out` is written before it waits.
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
                What::Lost { events, .. } => (Vec::new(), events),
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

    /// Returns true if the next event is there without waiting.
    pub(crate) fn is_ready(&mut self) -> Result<bool, SourceError> {
        self.is_cut |= self.is_stopped
            && self
                .live
                .next_time()?
                .is_some_and(|time| time > self.newest);
        Ok(!self.is_cut && self.live.is_ready()?)
    }
}

impl Source for Events<'_> {
    fn next(&mut self) -> Result<Option<Event<'_>>, SourceError> {
        self.patience -= 1;
        if self.patience == 0 {
            self.look();
        }
        while !self.is_ready()? && !self.is_over() {
            self.wait();
        }
        if let Some(shown) = &mut self.shown {
            shown.learn(self.live.names());
        }
        if self.is_cut {
            return Ok(None);
        }
        let event = self.live.next()?;
        if let (Some(tally), Some(event)) = (&mut self.tally, &event) {
            tally.add(event);
        }
        Ok(event)
    }

    fn upcoming(&self) -> Option<Upcoming<'_>> {
        self.live.upcoming()
    }

    fn is_over(&self) -> bool {
        self.is_cut || self.live.is_over()
    }

    fn clock(&self) -> &Clock {
        self.live.clock()
    }

    fn names(&self) -> &Names {
        match &self.shown {
            Some(shown) => &shown.names,
            None => self.live.names(),
        }
    }
}
