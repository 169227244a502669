//! The share of recording in the time that a view shows, and the options that make it smaller.

use std::collections::HashMap;
use std::iter;

use fgraph_analysis::calls::{Calls, Counts, Function, Views};
use fgraph_analysis::overhead::{percent, used};
use fgraph_trace::clock::Clock;
use fgraph_trace::schedule::Schedule;
use serde::{Deserialize, Serialize};

use crate::text::escaped;

/// The least share, in percent, that is said.
const SAID: u64 = 10;
/// The most functions that are named.
const NAMED: usize = 3;

/// The numbers of calls and the times of threads, by which the share is estimated.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Load {
    calls: u64,
    lost: u64,
    shortest: u64,
    /// Id, first and last tick of each thread.
    threads: Vec<(u32, u64, u64)>,
    /// Name, module and number of calls of each function, by slot.
    pub(crate) functions: Vec<(String, String, u64)>,
}

impl Load {
    /// Returns the load of calls that were followed.
    pub(crate) fn of(followed: &Calls<Views>) -> Self {
        let calls = followed.calls_of.iter().copied().chain(iter::repeat(0));
        let function = |(function, calls): (&Function, u64)| {
            let module = function.module_name().to_owned();
            (function.name.clone(), module, calls)
        };
        let threads = followed.threads.iter();
        Self {
            calls: followed.counts.calls,
            lost: followed.counts.lost,
            shortest: followed.counts.shortest,
            threads: threads.map(|it| (it.id, it.first, it.last)).collect(),
            functions: followed.functions.iter().zip(calls).map(function).collect(),
        }
    }

    /// Returns the part of their threads' processor time that recording calls took, in percent, and
    /// says it if it is large. Without states of threads it is a part of all their time. Functions
    /// for which `is_wanted` returns true are not left out to make it smaller.
    pub(crate) fn say(
        &self,
        clock: &Clock,
        schedule: Option<&Schedule>,
        is_wanted: impl Fn(&str, &str) -> bool,
    ) -> Option<u64> {
        let counts = Counts {
            calls: self.calls,
            lost: self.lost,
            shortest: self.shortest,
            ..Counts::default()
        };
        let percent = percent(&counts, clock, used(self.threads.iter().copied(), schedule))?;
        let mut calls: HashMap<&str, u64> = HashMap::new();
        for (name, module, count) in &self.functions {
            if !is_wanted(name, module) {
                *calls.entry(name).or_default() += count;
            }
        }
        let all = self.functions.iter().map(|(.., calls)| calls).sum();
        say_percent(percent, schedule, &most_called(calls, all).0);
        Some(percent)
    }
}

/// Does the same as [`Load::say`].
pub(crate) fn say(
    followed: &Calls<Views>,
    clock: &Clock,
    schedule: Option<&Schedule>,
    is_wanted: impl Fn(&str, &str) -> bool,
) -> Option<u64> {
    Load::of(followed).say(clock, schedule, is_wanted)
}

/// Says the share if it is large, with the functions without which it would be smaller.
pub(crate) fn say_percent(percent: u64, schedule: Option<&Schedule>, without: &[String]) {
    if percent >= SAID {
        let of = match schedule {
            Some(_) => "processor time",
            None => "time",
        };
        let options = without.iter().map(|name| format!("-N {} ", word(name)));
        let options: String = options.collect();
        let or = if options.is_empty() { "" } else { "or " };
        say!(
            "fgraph: recording took about {percent} % of this {of}; record with \
             {options}{or}--budget 20% for times closer to those of an untraced run"
        );
    }
}

/// Returns the fewest functions that make half of all calls, and the number of their calls; none if
/// these are many.
pub(crate) fn most_called(calls: HashMap<&str, u64>, all: u64) -> (Vec<String>, u64) {
    let mut calls: Vec<(&str, u64)> = calls.into_iter().collect();
    calls.sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    let (mut names, mut count) = (Vec::new(), 0);
    for (name, calls) in calls.into_iter().take(NAMED) {
        if 2 * count >= all {
            break;
        }
        names.push(name.to_owned());
        count += calls;
    }
    match 2 * count >= all && names.iter().all(|name| !name.is_empty()) {
        true => (names, count),
        false => (Vec::new(), 0),
    }
}

/// Returns a name as a word of a command line that selects this function alone.
pub(crate) fn word(name: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_:.".contains(c);
    let special = |c: char| [(!is_plain(c)).then_some('\\'), Some(c)];
    let pattern: String = name.chars().flat_map(special).flatten().collect();
    format!("'{}'", escaped(&pattern).replace('\'', r"'\''"))
}
