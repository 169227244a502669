//! Turns the events of threads into calls that begin and end in pairs.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::io;

use fgraph_trace::clock::Clock;
use fgraph_trace::event::{What, mark_text};
use fgraph_trace::names::{FunctionTypes, Names, executed_before, process_id};
pub(crate) use fgraph_trace::pairing::Ending;
use fgraph_trace::pairing::{Change, Pairing};
use fgraph_trace::schedule::{self, Schedule};
use fgraph_trace::{Source, source::SourceError};

use crate::symbols::{Symbol, Symbols, one_line, process_name, thread_name};

/// Thread of the source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Thread {
    /// Index of the thread, from 0 in the order of first occurrence.
    pub(crate) index: usize,
    /// [Number](fgraph_trace::names::process_number) of its process.
    pub(crate) process: u32,
    pub(crate) id: u32,
}

impl Thread {
    /// Returns the kernel id of its process.
    pub(crate) fn process_id(&self) -> u32 {
        process_id(self.process)
    }

    /// Returns the number of programs that its process had executed before.
    pub(crate) fn executed_before(&self) -> u32 {
        executed_before(self.process)
    }
}

/// Place and time of an event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At<'a> {
    pub(crate) thread: Thread,
    /// Time by the monotonic clock, in nanoseconds. It never goes back within a thread.
    pub(crate) time: u64,
    /// Nanoseconds that its thread has spent up to now in the state whose time counts; the time if
    /// all counts.
    pub(crate) measured: u64,
    pub(crate) symbols: &'a Symbols,
    pub(crate) names: &'a Names,
    pub(crate) clock: &'a Clock,
    /// Name of the machine; empty if it is not known.
    #[cfg_attr(not(feature = "fleet"), expect(dead_code, reason = "no format has it"))]
    pub(crate) host: &'a str,
}

impl At<'_> {
    /// Converts a time of the monotonic clock to nanoseconds since 1970.
    #[cfg(feature = "fleet")]
    pub(crate) fn date(&self, time: u64) -> u64 {
        let first = self.clock.first();
        let since = time.wrapping_sub(first.monotonic);
        first.realtime.wrapping_add(since)
    }
}

/// Ways in which calls end, in the order of their numbers.
pub(crate) const ENDINGS: [Ending; 5] = [
    Ending::Returned,
    Ending::Unwound,
    Ending::Lost,
    Ending::Open,
    Ending::EntryOnly,
];

/// Returns the name of an ending in all formats.
pub(crate) fn ending_name(ending: Ending) -> &'static str {
    match ending {
        Ending::Returned => "returned",
        Ending::Unwound => "unwound",
        Ending::Lost => "missing",
        Ending::Open => "open",
        Ending::EntryOnly => "entry_only",
    }
}

/// Call that has ended, at the time of the accompanying [`At`]. A call whose end is lost has ended
/// at some time from then on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) symbol: Symbol,
    /// Function of the call around it.
    pub(crate) caller: Option<Symbol>,
    pub(crate) begin: u64,
    /// Nanoseconds that it certainly ran, with the calls in it.
    pub(crate) ran: u64,
    /// Nanoseconds that it certainly ran, without the calls in it.
    pub(crate) own: u64,
    /// The parts of `ran` and `own` in which the thread had the state whose time counts.
    pub(crate) measured: Measured,
    /// Number of calls around it.
    pub(crate) depth: usize,
    pub(crate) ending: Ending,
}

/// Nanoseconds of a call in the state whose time counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) ran: u64,
    pub(crate) own: u64,
}

impl Call {
    /// Returns the nanoseconds with the calls in it; `None` if its end is lost.
    pub(crate) fn duration(&self) -> Option<u64> {
        (self.ending != Ending::Lost).then_some(self.ran)
    }
}

/// Recorded arguments or result of a call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Values<'a> {
    /// Words as recorded.
    pub(crate) words: &'a [u64],
    /// Values by their types, as text without control characters, each with its name.
    pub(crate) typed: Vec<(String, String)>,
}

impl<'a> Values<'a> {
    fn arguments(words: &'a [u64], values: &[u64], types: Option<&FunctionTypes>) -> Self {
        let mut typed = Vec::new();
        if let Some(types) = types.filter(|_| !values.is_empty()) {
            let each = types.layout.each_argument(values);
            for (place, (name, value)) in each.into_iter().enumerate() {
                let name = match name {
                    "" => format!("argument{place}"),
                    name => one_line(name),
                };
                typed.push((name, value));
            }
        }
        Self { words, typed }
    }

    fn result(words: &'a [u64], values: &[u64], types: Option<&FunctionTypes>) -> Self {
        let result = types.and_then(|types| types.layout.result(values));
        let typed = result.map(|result| ("result".to_owned(), result.to_string()));
        Self {
            words,
            typed: typed.into_iter().collect(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.words.is_empty() && self.typed.is_empty()
    }
}

/// Output of a format for the steps of threads.
///
/// In each thread, every call that begins also ends, after the calls that have begun in it.
pub(crate) trait Sink: Send {
    /// Notes that a thread occurs for the first time.
    fn thread(&mut self, at: &At<'_>) -> io::Result<()> {
        let _ = at;
        Ok(())
    }

    fn begin(&mut self, at: &At<'_>, symbol: Symbol, arguments: &Values<'_>) -> io::Result<()>;

    fn end(&mut self, at: &At<'_>, call: &Call, result: &Values<'_>) -> io::Result<()>;

    /// Writes a text of the program.
    fn mark(&mut self, at: &At<'_>, text: &str) -> io::Result<()> {
        let _ = (at, text);
        Ok(())
    }

    /// Notes that events of the thread are missing here.
    fn lost(&mut self, at: &At<'_>, events: u64) -> io::Result<()> {
        let _ = (at, events);
        Ok(())
    }

    /// Ends the output; every call has ended.
    fn finish(self: Box<Self>, trace: &Trace<'_>) -> io::Result<()>;
}

/// Facts that are known at the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trace<'a> {
    pub(crate) threads: &'a [Thread],
    pub(crate) symbols: &'a Symbols,
    pub(crate) names: &'a Names,
    pub(crate) clock: &'a Clock,
    /// Name of the machine, as in [`At`].
    #[cfg_attr(not(feature = "fleet"), expect(dead_code, reason = "no format has it"))]
    pub(crate) host: &'a str,
    /// The earliest and the latest time, by the monotonic clock; 0 if there was no event.
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) schedule: Option<&'a Schedule>,
    /// The state whose time counts; `None` if all counts.
    pub(crate) measured: Option<schedule::State>,
    /// The measure that times stand for, and its unit, if they are none.
    pub(crate) weight: Option<(&'static str, &'static str)>,
    /// Ticks of the first event of each thread, and of its end as far as it is known.
    pub(crate) lives: &'a [(u64, u64)],
}

impl<'a> Trace<'a> {
    /// Returns the path of the program that was recorded first: a process describes its own file
    /// before its libraries.
    pub(crate) fn program(&self) -> Option<&'a str> {
        let program = self.names.modules().first();
        program.map(|module| module.path.as_str())
    }

    /// Returns the processes, in the order of first occurrence.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let mut all = Vec::new();
        let mut seen = HashSet::new();
        for thread in self.threads {
            if seen.insert(thread.process) {
                all.push(thread.process);
            }
        }
        all
    }

    /// Returns the processes by their ids, in the order of first occurrence, each with the names of
    /// the programs that it has executed one after another.
    pub(crate) fn process_ids(&self) -> Vec<(u32, String)> {
        let name = |number| (process_id(number), process_name(self.names, number));
        joined(self.processes().into_iter().map(name))
    }

    /// Returns the threads by the ids of their processes and their own, with the names of all
    /// programs.
    pub(crate) fn thread_ids(&self) -> Vec<((u32, u32), String)> {
        let name = |thread: &Thread| {
            let name = thread_name(self.names, thread.process, thread.id);
            ((thread.process_id(), thread.id), name)
        };
        joined(self.threads.iter().map(name))
    }
}

/// Returns each key once, with all its names.
fn joined<K: Copy + Eq + Hash>(all: impl Iterator<Item = (K, String)>) -> Vec<(K, String)> {
    let mut found: Vec<(K, Vec<String>)> = Vec::new();
    let mut places = HashMap::new();
    for (key, name) in all {
        let place = *places.entry(key).or_insert(found.len());
        if place == found.len() {
            found.push((key, Vec::new()));
        }
        let names = &mut found[place].1;
        if names.last() != Some(&name) {
            names.push(name);
        }
    }
    let join = |(key, names): (K, Vec<String>)| (key, names.join(", "));
    found.into_iter().map(join).collect()
}

/// Counts of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Number of events that the source gave.
    pub events: u64,
    /// Number of calls that were exported, each once.
    pub calls: u64,
    /// Number of texts that the program wrote.
    pub marks: u64,
    /// Number of events that are missing according to the source.
    pub lost: u64,
    /// Number of returns of calls whose entry is not among the events. They are left out.
    pub stray_returns: u64,
    /// Number of calls whose end is not among the events, though a call around them ended, or
    /// events were lost.
    pub missing_returns: u64,
    /// Number of calls that are still running at the last event.
    pub open_calls: u64,
    /// Number of threads whose states are not known, if only the time in one state
    /// [counts](crate::Export::count_only). All time of their calls counts.
    pub unknown_threads: u64,
}

#[derive(Debug)]
struct State {
    thread: Thread,
    calls: Pairing<Symbol>,
    /// The same calls by the time in the state that counts, if that is not all.
    measured: Option<Pairing<Symbol>>,
    /// True if its states are not known.
    is_unknown: bool,
    /// Ticks of the first event, and of the last one at which it ran.
    life: (u64, u64),
}

/// A time of the monotonic clock, and the one in the state that counts, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Moment {
    time: u64,
    measured: u64,
}

/// Follows the calls of all threads.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    symbols: Symbols,
    threads: HashMap<(u32, u32), usize>,
    /// The number of the process that had each id last.
    processes: HashMap<u32, u32>,
    states: Vec<State>,
    /// Index of the thread of the previous event.
    recent: Option<usize>,
    /// Clock at the first event: if its rate is known better later, times would jump.
    clock: Option<Clock>,
    span: Option<(u64, u64)>,
    /// The latest time, in ticks.
    last_ticks: u64,
    /// The state whose time counts; `None` if all counts.
    measured: Option<schedule::State>,
    /// See [`Trace::weight`].
    weight: Option<(&'static str, &'static str)>,
    summary: Summary,
    host: String,
    words: Vec<u64>,
    values: Vec<u64>,
}

/// The words of an event are copied, to let the source look up names.
#[derive(Clone, Copy)]
enum Step {
    Entry(u32, bool),
    End(u32, Ending),
    Mark,
    Lost(u64, Option<u64>),
}

/// Reason why an export stops.
#[derive(Debug)]
pub(crate) enum CallsError {
    Source(SourceError),
    Sink(io::Error),
}

impl From<SourceError> for CallsError {
    fn from(error: SourceError) -> Self {
        Self::Source(error)
    }
}

impl From<io::Error> for CallsError {
    fn from(error: io::Error) -> Self {
        Self::Sink(error)
    }
}

impl Calls {
    pub(crate) fn count_only(&mut self, state: schedule::State) {
        self.measured = Some(state);
    }

    pub(crate) fn weigh(&mut self, kind: &'static str, unit: &'static str) {
        self.weight = Some((kind, unit));
    }

    pub(crate) fn set_host(&mut self, host: &str) {
        self.host = host.to_owned();
    }

    /// Passes the source's next event to `sink`; `false` if there is none now.
    pub(crate) fn next(
        &mut self,
        source: &mut impl Source,
        sink: &mut dyn Sink,
    ) -> Result<bool, CallsError> {
        let Some(event) = source.next()? else {
            return Ok(false);
        };
        self.words.clear();
        self.values.clear();
        self.values.extend_from_slice(event.values);
        let (ticks, process, id) = (event.time, event.process, event.thread);
        let step = match event.what {
            What::Entry {
                function,
                arguments,
                is_entry_only,
                ..
            } => {
                self.words.extend_from_slice(arguments);
                Step::Entry(function, is_entry_only)
            }
            What::Return { function, result } => {
                self.words.extend_from_slice(result);
                Step::End(function, Ending::Returned)
            }
            What::Unwound { function } => Step::End(function, Ending::Unwound),
            What::Dropped { function } => Step::End(function, Ending::Lost),
            What::Mark(words) => {
                self.words.extend_from_slice(words);
                Step::Mark
            }
            What::Lost { events, ends } => Step::Lost(events, ends),
        };
        self.step(source, sink, (process, id), ticks, step)?;
        Ok(true)
    }

    fn step(
        &mut self,
        source: &impl Source,
        sink: &mut dyn Sink,
        (process, id): (u32, u32),
        ticks: u64,
        step: Step,
    ) -> io::Result<()> {
        self.summary.events += 1;
        let clock = *self.clock.get_or_insert_with(|| *source.clock());
        let names = source.names();
        let index = match self.recent {
            Some(recent) if self.states[recent].is(process, id) => recent,
            _ => *self
                .threads
                .entry((process, id))
                .or_insert(self.states.len()),
        };
        self.recent = Some(index);
        let is_new = index == self.states.len();
        if is_new {
            let thread = Thread { index, process, id };
            self.states.push(State {
                thread,
                calls: Pairing::new(),
                measured: self.measured.map(|_| Pairing::new()),
                is_unknown: false,
                life: (ticks, ticks),
            });
        }
        self.last_ticks = self.last_ticks.max(ticks);
        if is_new && let Some(before) = self.processes.insert(process_id(process), process) {
            self.end_program(before, process, ticks, source, sink)?;
        }
        let state = &mut self.states[index];
        state.life.1 = state.life.1.max(ticks);
        let time = clock.monotonic(ticks).max(state.calls.last());
        let (start, end) = self.span.unwrap_or((time, time));
        self.span = Some((start.min(time), end.max(time)));
        let moment = state.moment(time, ticks, self.measured, source, &clock);
        let symbol = match step {
            // Before the steps use the symbols.
            Step::Entry(function, _) => Some(self.symbols.symbol(process, function, names)),
            _ => None,
        };
        let at = state.at(moment, &self.symbols, names, &clock, &self.host);
        if is_new {
            sink.thread(&at)?;
        }
        let before = state.last();
        let mut values = Values::default();
        let types = |function| names.types(process, function);
        match (step, symbol) {
            (Step::Entry(function, is_entry_only), Some(symbol)) => {
                values = Values::arguments(&self.words, &self.values, types(function));
                state.each(moment, |calls, time| match is_entry_only {
                    true => calls.enter_only(function, time, symbol),
                    false => calls.enter(function, time, symbol),
                });
            }
            (Step::Entry(..), None) => {}
            (Step::End(function, ending), _) => {
                values = Values::result(&self.words, &self.values, types(function));
                let is_open = state.each(moment, |calls, time| calls.exit(function, time, ending));
                self.summary.stray_returns += u64::from(!is_open);
            }
            (Step::Mark, _) => {
                self.summary.marks += 1;
                state.each(moment, Pairing::note);
                sink.mark(&at, &mark_text(&self.words))?;
            }
            (Step::Lost(_, ends), _) => state.each(moment, |calls, _| calls.lose(ends)),
        }
        state.settle(&at, before, &values, &mut self.summary, sink)?;
        if let Step::Lost(events, _) = step {
            self.summary.lost = self.summary.lost.saturating_add(events);
            state.each(moment, Pairing::note);
            sink.lost(&at, events)?;
        }
        Ok(())
    }

    /// Ends the calls of a program whose process has executed another one.
    fn end_program(
        &mut self,
        before: u32,
        process: u32,
        ticks: u64,
        source: &impl Source,
        sink: &mut dyn Sink,
    ) -> io::Result<()> {
        let clock = self.clock.unwrap_or(*source.clock());
        let time = clock.monotonic(ticks);
        if before == process {
            return Ok(());
        }
        for state in &mut self.states {
            if state.thread.process != before {
                continue;
            }
            state.live_on(ticks);
            let moment = state.moment(time, ticks, self.measured, source, &clock);
            state.each(moment, Pairing::finish);
            let end = state.last();
            let at = state.at(end, &self.symbols, source.names(), &clock, &self.host);
            state.settle(&at, end, &Values::default(), &mut self.summary, sink)?;
        }
        Ok(())
    }

    /// Ends the running calls, and the export.
    pub(crate) fn finish(
        mut self,
        source: &impl Source,
        mut sink: Box<dyn Sink>,
    ) -> io::Result<Summary> {
        let clock = self.clock.unwrap_or(*source.clock());
        let (start, end) = self.span.unwrap_or((0, 0));
        for state in &mut self.states {
            state.live_on(self.last_ticks);
            let end = state.moment(end, self.last_ticks, self.measured, source, &clock);
            state.each(end, Pairing::finish);
            let at = state.at(end, &self.symbols, source.names(), &clock, &self.host);
            state.settle(&at, end, &Values::default(), &mut self.summary, &mut *sink)?;
        }
        let unknown = self.states.iter().filter(|state| state.is_unknown);
        self.summary.unknown_threads = unknown.count() as u64;
        let threads: Vec<Thread> = self.states.iter().map(|state| state.thread).collect();
        let lives: Vec<(u64, u64)> = self.states.iter().map(|state| state.life).collect();
        sink.finish(&Trace {
            threads: &threads,
            symbols: &self.symbols,
            names: source.names(),
            clock: &clock,
            host: &self.host,
            start,
            end,
            schedule: source.schedule(),
            measured: self.measured,
            weight: self.weight,
            lives: &lives,
        })?;
        Ok(self.summary)
    }
}

impl State {
    fn is(&self, process: u32, id: u32) -> bool {
        (self.thread.process, self.thread.id) == (process, id)
    }

    /// Notes that a thread with calls in progress has run until a time, in ticks.
    fn live_on(&mut self, until: u64) {
        if !self.calls.calls().is_empty() {
            self.life.1 = self.life.1.max(until);
        }
    }

    /// Returns a time with the one in the state that counts.
    fn moment(
        &mut self,
        time: u64,
        ticks: u64,
        counts: Option<schedule::State>,
        source: &impl Source,
        clock: &Clock,
    ) -> Moment {
        let mut measured = time;
        if let Some(state) = counts {
            let schedule = source.schedule();
            match schedule.and_then(|it| it.at(self.thread.id, ticks)) {
                Some(times) => measured = clock.nanoseconds(times.of(state)),
                None => self.is_unknown = true,
            }
        }
        Moment { time, measured }
    }

    /// Returns the time of the last event.
    fn last(&self) -> Moment {
        let time = self.calls.last();
        let measured = self.measured.as_ref().map_or(time, Pairing::last);
        Moment { time, measured }
    }

    /// Passes an event on to the calls by both times.
    fn each<T>(&mut self, at: Moment, pass: impl Fn(&mut Pairing<Symbol>, u64) -> T) -> T {
        if let Some(calls) = &mut self.measured {
            pass(calls, at.measured);
        }
        pass(&mut self.calls, at.time)
    }

    fn at<'a>(
        &self,
        moment: Moment,
        symbols: &'a Symbols,
        names: &'a Names,
        clock: &'a Clock,
        host: &'a str,
    ) -> At<'a> {
        At {
            thread: self.thread,
            time: moment.time,
            measured: moment.measured,
            symbols,
            names,
            clock,
            host,
        }
    }

    /// Passes on the calls that a step at `at` has begun and ended. Calls whose ends are lost end
    /// at the previous step. `values` are the arguments or the result of the step's call.
    fn settle(
        &mut self,
        at: &At<'_>,
        before: Moment,
        values: &Values<'_>,
        summary: &mut Summary,
        sink: &mut dyn Sink,
    ) -> io::Result<()> {
        let nothing = Values::default();
        while let Some(change) = self.calls.change() {
            // Times make no difference to the order.
            let measured = self.measured.as_mut().and_then(Pairing::change);
            let calls = self.calls.calls();
            let around = calls.last().map(|call| call.data);
            let call = match change {
                Change::Began => {
                    summary.calls += 1;
                    if let Some(symbol) = around {
                        sink.begin(at, symbol, values)?;
                    }
                    continue;
                }
                Change::Ended(call) => call,
            };
            let (mut at, mut result) = (*at, &nothing);
            match call.ending {
                Ending::Returned | Ending::Unwound => result = values,
                Ending::Lost => {
                    summary.missing_returns += 1;
                    (at.time, at.measured) = (before.time, before.measured);
                }
                Ending::Open => summary.open_calls += 1,
                Ending::EntryOnly => {}
            }
            let (ran, own) = match measured {
                Some(Change::Ended(call)) => (call.ran, call.own),
                _ => (call.ran, call.own),
            };
            let call = Call {
                measured: Measured { ran, own },
                symbol: call.data,
                caller: around,
                begin: call.begin,
                ran: call.ran,
                own: call.own,
                depth: calls.len(),
                ending: call.ending,
            };
            sink.end(&at, &call, result)?;
        }
        Ok(())
    }
}
