//! The interface of a format.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::io;

use fgraph_analysis::calls::{Counts, Functions, ThreadId, Visitor, one_line};
use fgraph_trace::clock::Clock;
use fgraph_trace::names::{Names, process_id};
use fgraph_trace::pairing::Ending;
use fgraph_trace::schedule::{Schedule, State};

use crate::names::{process_name, thread_name};

/// Converts a time of the monotonic clock to nanoseconds since 1970.
#[cfg(feature = "fleet")]
pub(crate) fn date(clock: &Clock, time: u64) -> u64 {
    let first = clock.first();
    let since = time.wrapping_sub(first.monotonic);
    first.realtime.wrapping_add(since)
}

/// A format, which gets the calls of threads.
pub(crate) trait Output: Visitor<Error = io::Error> + Send {
    /// Sets the name of the machine.
    fn set_host(&mut self, host: &str) {
        let _ = host;
    }

    /// Returns the bytes that the events so far take at the end, beside those that are written.
    fn waiting(&self) -> u64 {
        0
    }

    /// Ends the output; every call has ended.
    fn finish(self: Box<Self>, trace: &Trace<'_>) -> io::Result<()>;
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

/// Facts that are known at the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trace<'a> {
    pub(crate) threads: &'a [ThreadId],
    pub(crate) functions: &'a Functions,
    /// The command line of the recorded program; empty if it is unknown.
    pub(crate) command: &'a [String],
    pub(crate) names: &'a Names,
    pub(crate) clock: &'a Clock,
    /// The earliest and the latest time, by the monotonic clock; 0 if there was no event.
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) schedule: Option<&'a Schedule>,
    /// The state whose time counts; `None` if all counts.
    pub(crate) measured: Option<State>,
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

    /// Returns the command line in one line of text; `None` if it is unknown.
    pub(crate) fn command_line(&self) -> Option<String> {
        (!self.command.is_empty()).then(|| one_line(&self.command.join(" ")))
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
        let name = |thread: &ThreadId| {
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

impl Summary {
    pub(crate) fn of(counts: &Counts, unknown_threads: u64) -> Self {
        Self {
            events: counts.events,
            calls: counts.calls,
            marks: counts.marks,
            lost: counts.lost,
            stray_returns: counts.stray_returns,
            missing_returns: counts.missing_returns,
            open_calls: counts.open_calls,
            unknown_threads,
        }
    }
}
