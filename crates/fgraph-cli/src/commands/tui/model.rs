//! The counts and events for the views; its size does not depend on the number of events.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};

use fgraph_analysis::calls::{
    self, Active, At, Call, Calls, Context, Function, Open, Step, Views, Visitor,
};
use fgraph_analysis::numbers::grown;
use fgraph_analysis::outliers::Slow;
use fgraph_analysis::stats::Stats;
use fgraph_analysis::tree::Tree;
use fgraph_trace::clock::Clock;
use fgraph_trace::event::What;
use fgraph_trace::graph::{FunctionGraph, Options, Parts, ResultFormat};
use fgraph_trace::names::Names;
use fgraph_trace::source::{SourceError, Upcoming};
use fgraph_trace::{Event, Source};
use std::convert::Infallible;

use crate::launch::thread_names::rename;
use crate::text::{cut, escaped, grouped};

/// The most columns of a line of the replay: deep calls are far to the right.
pub(super) const MAX_COLUMNS: usize = 500;
/// The number of events that are kept.
const KEPT: usize = 1 << 16;
/// The most branches of the graph; calls on further stacks are not in it.
const MAX_NODES: usize = 1 << 19;
/// The number of events that are searched for what follows in a thread.
const NEAR: usize = 64;
/// The fewest calls with which a function has a usual time.
const LEAST_CALLS: u64 = 10;
/// The node of a call that is not in the graph.
const NOWHERE: u32 = u32::MAX;

/// Counts of the recording.
pub(super) struct Model {
    pub(super) clock: Clock,
    first: u64,
    pub(super) followed: Calls<Views>,
    counted: Counted,
    /// The newest events, if they cannot be read again.
    pub(super) kept: Option<VecDeque<Kept>>,
    names_now: Names,
    descriptions: usize,
    /// True if there were more events since the last update.
    pub(super) has_more: bool,
    /// The times added for calls in progress: own time and total of lines, totals of nodes.
    open_lines: Vec<(usize, u64, u64)>,
    open_nodes: Vec<(u32, u64)>,
}

impl std::ops::Deref for Model {
    type Target = Counted;

    fn deref(&self) -> &Counted {
        &self.counted
    }
}

/// The counts of calls. A function's line is that of its name and module.
pub(super) struct Counted {
    clock: Clock,
    /// By slot.
    pub(super) line_of: Vec<usize>,
    by_name: HashMap<(String, String), usize>,
    /// By line.
    pub(super) names: Vec<String>,
    pub(super) stats: Vec<Stats>,
    slowest: Vec<Option<Slow>>,
    active: Active,
    /// Its nodes have lines for slots.
    pub(super) tree: Tree,
    /// For each thread, the node of each call in progress.
    places: Vec<Vec<u32>>,
}

impl Visitor for Counted {
    type Error = Infallible;

    fn function(&mut self, function: &Function) {
        let key = (function.name.clone(), function.module.clone());
        let next = self.names.len();
        let line = *self.by_name.entry(key).or_insert(next);
        self.line_of.push(line);
        if line == next {
            self.names.push(escaped(&function.name).into_owned());
            self.stats.push(Stats::default());
            self.slowest.push(None);
        }
    }

    fn enter(&mut self, at: &At<'_>, call: &Open) -> Result<(), Infallible> {
        let thread = at.thread.index;
        let places = grown(&mut self.places, thread);
        let line = self.line_of[call.data as usize];
        let place = match places.last().copied().unwrap_or(0) {
            NOWHERE => NOWHERE,
            parent if self.tree.nodes.len() < MAX_NODES => self.tree.child(parent, line as u32),
            parent => self
                .tree
                .known_child(parent, line as u32)
                .unwrap_or(NOWHERE),
        };
        places.push(place);
        self.active.begin(thread, line);
        Ok(())
    }

    fn exit(&mut self, at: &At<'_>, call: &Call) -> Result<(), Infallible> {
        let thread = at.thread.index;
        let took = self.clock.nanoseconds(call.ran);
        let line = self.line_of[call.slot as usize];
        let is_outermost = self.active.end(thread, line);
        calls::count(call, &self.clock, is_outermost, &mut self.stats[line]);
        if let Some(node) = self.places[thread].pop().filter(|&node| node != NOWHERE) {
            self.tree.add(node, took, self.clock.nanoseconds(call.own));
        }
        let slowest = &mut self.slowest[line];
        let is_slower = slowest.is_none_or(|slowest| call.ran > slowest.took);
        if is_slower && call.duration().is_some() {
            *slowest = Some(Slow::new(thread, at.around.len(), call));
        }
        Ok(())
    }
}

impl Model {
    /// Starts without counts. If events cannot be read again, the newest are kept: those of this
    /// process and its children.
    pub(super) fn new(clock: Clock, first: u64, kept: Option<u32>) -> Self {
        Self {
            clock,
            first,
            followed: Calls::default(),
            counted: Counted {
                clock,
                line_of: Vec::new(),
                by_name: HashMap::new(),
                names: Vec::new(),
                stats: Vec::new(),
                slowest: Vec::new(),
                active: Active::default(),
                tree: Tree::default(),
                places: Vec::new(),
            },
            kept: kept.map(|_| VecDeque::new()),
            names_now: Names::new(kept.unwrap_or(0)),
            descriptions: 0,
            has_more: true,
            open_lines: Vec::new(),
            open_nodes: Vec::new(),
        }
    }

    /// The time of the first event, in ticks.
    pub(super) fn first(&self) -> u64 {
        match (self.first, self.followed.span) {
            (0, Some((first, _))) => first,
            (first, _) => first,
        }
    }

    /// Processes the next event, if there is one.
    pub(super) fn take(&mut self, source: &mut impl Source) -> Result<bool, SourceError> {
        let Some(event) = source.next()? else {
            return Ok(false);
        };
        let step = Step::of(&event);
        if let Some(kept) = &mut self.kept {
            if kept.len() == KEPT {
                kept.pop_front();
            }
            kept.push_back(Kept::of(&event));
        }
        let context = Context::of(source);
        let Ok(()) = self.followed.step(step, &context, &mut self.counted);
        let descriptions = source.names().descriptions();
        if self.kept.is_some() && descriptions.len() != self.descriptions {
            for description in &descriptions[self.descriptions..] {
                self.names_now.add(description.clone());
            }
            self.descriptions = descriptions.len();
        }
        self.has_more = true;
        Ok(true)
    }

    /// Handles that nothing more comes.
    pub(super) fn end(&mut self) {
        self.forget_open();
        let context = Context {
            names: &self.names_now,
            clock: &self.clock,
            schedule: None,
        };
        let Ok(()) = self.followed.finish(&context, &mut self.counted);
        self.has_more = true;
    }

    fn forget_open(&mut self) {
        for (line, own, total) in self.open_lines.drain(..) {
            let stats = &mut self.counted.stats[line];
            stats.own = stats.own.saturating_sub(own);
            stats.total = stats.total.saturating_sub(total);
        }
        for (node, total) in self.open_nodes.drain(..) {
            let node = &mut self.counted.tree.nodes[node as usize];
            node.total = node.total.saturating_sub(total);
        }
    }

    /// Counts the times of calls in progress up to now.
    pub(super) fn refresh(&mut self) {
        self.forget_open();
        let Counted {
            line_of,
            stats,
            tree,
            places,
            ..
        } = &mut self.counted;
        self.followed
            .each_open(|thread, depth, call, is_outermost| {
                let [took, own] = [call.ran, call.own].map(|ticks| self.clock.nanoseconds(ticks));
                let line = line_of[call.slot as usize];
                let total = if is_outermost { took } else { 0 };
                stats[line].own += own;
                stats[line].total += total;
                self.open_lines.push((line, own, total));
                let node = places[thread].get(depth).copied().unwrap_or(NOWHERE);
                if node != NOWHERE {
                    tree.nodes[node as usize].total += took;
                    self.open_nodes.push((node, took));
                }
            });
        tree.sort();
        self.followed.threads.iter_mut().for_each(|thread| {
            if self.kept.is_some() {
                rename(thread);
            }
        });
        self.has_more = false;
    }

    /// Returns the counts of each function, by slot.
    pub(super) fn stats_by_slot(&self) -> Vec<Stats> {
        let lines = self.line_of.iter();
        lines.map(|&line| self.stats[line].clone()).collect()
    }

    /// Returns the slowest call of each function, beyond the median; the slowest first.
    pub(super) fn slow(&self, number: usize) -> Vec<Slow> {
        let each = self.slowest.iter().zip(&self.stats);
        let often = each.filter(|(_, stats)| stats.hits >= LEAST_CALLS);
        let mut slow: Vec<(u64, Slow)> = often
            .filter_map(|(slow, stats)| {
                let slow = (*slow)?;
                let took = self.clock.nanoseconds(slow.took);
                Some((took.saturating_sub(stats.percentile(500)), slow))
            })
            .collect();
        slow.sort_by_key(|(beyond, _)| Reverse(*beyond));
        slow.into_iter()
            .map(|(_, slow)| slow)
            .take(number)
            .collect()
    }

    /// Returns the options for replays.
    pub(super) fn options(&self) -> Options {
        Options {
            parts: (Parts::default() | Parts::ARGUMENTS)
                .with(Parts::THREAD, self.followed.threads.len() > 1),
            result: Some(ResultFormat::Kernel),
            ..Options::default()
        }
    }

    /// Returns the index of the kept event that begins a call.
    pub(super) fn find_kept(&self, begin: u64, thread: u32) -> Option<usize> {
        let mut kept = self.kept.as_ref()?.iter();
        kept.position(|event| event.time == begin && event.thread == thread)
    }

    /// Returns the lines of the kept events from this one on.
    pub(super) fn replay(&self, from: usize) -> Vec<String> {
        let Some(events) = &self.kept else {
            return Vec::new();
        };
        let mut source = Again {
            events,
            next: from,
            names: &self.names_now,
            clock: &self.clock,
        };
        let mut graph = FunctionGraph::new(self.options());
        let (mut text, mut lines) = (String::new(), Vec::new());
        if from == 0 && events.len() == KEPT {
            lines.push(format!("[the last {} events]", grouped(KEPT as u64)));
        }
        while let Ok(true) = graph.write_event(&mut source, &mut text) {
            lines.extend(text.lines().map(|line| cut(line, MAX_COLUMNS).into_owned()));
            text.clear();
        }
        lines
    }
}

/// An event that is kept.
#[derive(Debug)]
pub(super) struct Kept {
    time: u64,
    process: u32,
    thread: u32,
    cpu: Option<u32>,
    what: KeptWhat,
    /// The words that come with it.
    words: Box<[u64]>,
    values: Box<[u64]>,
}

#[derive(Clone, Copy, Debug)]
enum KeptWhat {
    Entry(u32, Option<u64>, bool),
    Return(u32),
    Unwound(u32),
    Dropped(u32),
    Mark,
    Lost(u64, Option<u64>),
}

impl Kept {
    fn of(event: &Event<'_>) -> Self {
        let (what, words): (_, &[u64]) = match event.what {
            What::Entry {
                function,
                arguments,
                caller,
                is_entry_only,
            } => (KeptWhat::Entry(function, caller, is_entry_only), arguments),
            What::Return { function, result } => (KeptWhat::Return(function), result),
            What::Unwound { function } => (KeptWhat::Unwound(function), &[]),
            What::Dropped { function } => (KeptWhat::Dropped(function), &[]),
            What::Mark(words) => (KeptWhat::Mark, words),
            What::Lost { events, ends } => (KeptWhat::Lost(events, ends), &[]),
        };
        Self {
            time: event.time,
            process: event.process,
            thread: event.thread,
            cpu: event.cpu,
            what,
            words: words.into(),
            values: event.values.into(),
        }
    }

    fn what(&self) -> What<'_> {
        match self.what {
            KeptWhat::Entry(function, caller, is_entry_only) => What::Entry {
                function,
                arguments: &self.words,
                caller,
                is_entry_only,
            },
            KeptWhat::Return(function) => What::Return {
                function,
                result: &self.words,
            },
            KeptWhat::Unwound(function) => What::Unwound { function },
            KeptWhat::Dropped(function) => What::Dropped { function },
            KeptWhat::Mark => What::Mark(&self.words),
            KeptWhat::Lost(events, ends) => What::Lost { events, ends },
        }
    }
}

/// Kept events, once more.
struct Again<'m> {
    events: &'m VecDeque<Kept>,
    next: usize,
    names: &'m Names,
    clock: &'m Clock,
}

impl Source for Again<'_> {
    fn next(&mut self) -> Result<Option<Event<'_>>, SourceError> {
        let kept = self.events.get(self.next);
        self.next += 1;
        Ok(kept.map(|kept| {
            let mut event = Event::new(kept.time, kept.process, kept.thread, kept.what());
            event.cpu = kept.cpu;
            event.values = &kept.values;
            event
        }))
    }

    fn upcoming(&self) -> Option<Upcoming<'_>> {
        let current = self.events.get(self.next.checked_sub(1)?)?;
        let is_same = |it: &&Kept| (it.process, it.thread) == (current.process, current.thread);
        let next = self.events.range(self.next..).take(NEAR).find(is_same)?;
        let mut upcoming = Upcoming::new(next.time, next.what());
        upcoming.values = &next.values;
        Some(upcoming)
    }

    fn is_over(&self) -> bool {
        self.next >= self.events.len()
    }

    fn clock(&self) -> &Clock {
        self.clock
    }

    fn names(&self) -> &Names {
        self.names
    }
}
