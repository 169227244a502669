//! Call paths with weights as events, for exports that add up the times of calls.

use fgraph_trace::Source;
use fgraph_trace::clock::{Anchor, Clock, ClockKind};
use fgraph_trace::event::What;
use fgraph_trace::names::{Description, DescriptionKind, Names};
use fgraph_trace::source::{Event, SourceError, Upcoming};

/// Calls whose times are weights: those of each path begin in each other, last that long, and end.
#[derive(Debug)]
pub(super) struct Weights {
    names: Names,
    clock: Clock,
    events: Vec<(u64, u32, What<'static>)>,
    next: usize,
}

impl Weights {
    /// Makes a source with the names of these processes.
    pub(super) fn new<'p>(processes: impl Iterator<Item = (u32, &'p str)>) -> Self {
        let mut names = Names::default();
        for (process, name) in processes {
            names.add(Description {
                kind: DescriptionKind::Process,
                fields: [process.into(), 0, 0, 0],
                texts: [name.to_owned(), String::new()],
            });
        }
        Self {
            names,
            clock: Clock::new(ClockKind::Monotonic, Anchor::default(), 1_000_000_000),
            events: Vec::new(),
            next: 0,
        }
    }

    /// Adds a path, the outermost call first.
    pub(super) fn add<'c>(
        &mut self,
        process: u32,
        calls: impl Iterator<Item = (u32, &'c str, &'c str)>,
        weight: u64,
    ) {
        let begin = self.events.last().map_or(0, |(time, ..)| *time);
        let mut functions = Vec::new();
        for (function, name, module) in calls {
            self.names.add(Description {
                kind: DescriptionKind::Function,
                fields: [process.into(), function.into(), 0, 0],
                texts: [name.to_owned(), module.to_owned()],
            });
            functions.push(function);
            self.events.push((begin, process, What::entry(function)));
        }
        let end = begin.saturating_add(weight);
        for function in functions.into_iter().rev() {
            self.events.push((end, process, What::returned(function)));
        }
    }
}

impl Source for Weights {
    fn next(&mut self) -> Result<Option<Event<'_>>, SourceError> {
        let event = self.events.get(self.next);
        self.next += 1;
        Ok(event.map(|&(time, process, what)| Event::new(time, process, process, what)))
    }

    fn upcoming(&self) -> Option<Upcoming<'_>> {
        let event = self.events.get(self.next);
        event.map(|&(time, _, what)| Upcoming::new(time, what))
    }

    fn is_over(&self) -> bool {
        self.next >= self.events.len()
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn names(&self) -> &Names {
        &self.names
    }
}
