//! The times when functions were not recorded, because that cost too much.

use std::cmp::Reverse;
use std::collections::HashMap;

use fgraph_analysis::calls::Function;
use fgraph_trace::clock::Clock;
use fgraph_trace::names::{Names, OffTime, process_id};
use serde::Serialize;

use crate::text::{named, time};

/// The most times of a function that are shown.
const SHOWN: usize = 3;

/// A function that was not recorded for some time.
#[derive(Debug)]
pub(crate) struct Off {
    /// Its name, which is hostile text.
    pub(crate) name: String,
    /// The file of its module, which is hostile text.
    pub(crate) module: String,
    times: Vec<OffTime>,
}

/// Such a time in JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct OffTimeView {
    /// The function, with its module.
    function: String,
    process: u32,
    /// Nanoseconds since the first event.
    from_ns: u64,
    /// Null if it was not recorded to the end.
    until_ns: Option<u64>,
}

/// Returns the functions that were not recorded for some time, in the order in which they were
/// switched off.
pub(crate) fn functions(names: &Names) -> Vec<Off> {
    let mut all: Vec<Off> = Vec::new();
    let mut known = HashMap::new();
    for &off in names.off_times() {
        let function = Function::of(names, off.process, off.function);
        let module = function.module_name().to_owned();
        let index = *known
            .entry((function.name.clone(), module.clone()))
            .or_insert(all.len());
        if index == all.len() {
            all.push(Off {
                name: function.name,
                module,
                times: Vec::new(),
            });
        }
        all[index].times.push(off);
    }
    all
}

/// Sorts functions by the time for which they were off, the longest first, and then by their calls,
/// of each process and function. The recording ends at `last`, in ticks.
pub(crate) fn sort(off: &mut [Off], last: u64, calls: &HashMap<(u32, u32), u64>) {
    off.sort_by_cached_key(|function| {
        let is_in = function.times.iter();
        let calls = is_in.map(|it| calls.get(&(it.process, it.function)));
        let most = calls.flatten().max().copied().unwrap_or(0);
        Reverse((function.ticks(last), most))
    });
}

impl Off {
    /// Returns its name with its module, which is hostile text.
    pub(crate) fn named(&self) -> String {
        named(&self.name, &self.module)
    }

    /// Returns the nanoseconds in which it was not recorded, in all processes, if the recording
    /// ends at a tick.
    pub(crate) fn nanoseconds(&self, clock: &Clock, last: u64) -> u64 {
        clock.nanoseconds(self.ticks(last))
    }

    fn ticks(&self, last: u64) -> u64 {
        let times = self.times.iter();
        let times = times.map(|it| it.until.unwrap_or(last).saturating_sub(it.from));
        times.fold(0, u64::saturating_add)
    }

    /// Returns its name and the first of its times, since `first` in ticks, which is hostile text.
    pub(crate) fn line(&self, clock: &Clock, first: u64) -> String {
        let since = |ticks: u64| time(clock.nanoseconds(ticks.saturating_sub(first)));
        let shown = self.times.iter().take(SHOWN).map(|it| match it.until {
            Some(until) => format!("{} to {}", since(it.from), since(until)),
            None => format!("from {} on", since(it.from)),
        });
        let shown: Vec<String> = shown.collect();
        let more = match self.times.len().saturating_sub(SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("{}: {}{more}", self.named(), shown.join(", "))
    }

    /// Returns its times for JSON.
    pub(crate) fn to_json(&self, clock: &Clock, first: u64) -> impl Iterator<Item = OffTimeView> {
        let since = move |ticks: u64| clock.nanoseconds(ticks.saturating_sub(first));
        self.times.iter().map(move |it| OffTimeView {
            function: self.named(),
            process: process_id(it.process),
            from_ns: since(it.from),
            until_ns: it.until.map(since),
        })
    }
}

#[cfg(test)]
mod tests {
    use fgraph_trace::clock::{Anchor, ClockKind};
    use fgraph_trace::names::{Description, DescriptionKind};

    use super::*;

    #[test]
    fn times_of_a_function_are_shown_together() {
        use DescriptionKind::{Function, SwitchedOff, SwitchedOn};
        let clock = Clock::new(ClockKind::Monotonic, Anchor::default(), 1_000_000_000);
        let mut names = Names::new(9);
        let mut add = |kind, fields, texts: [&str; 2]| {
            names.add(Description {
                kind,
                fields,
                texts: texts.map(str::to_owned),
            });
        };
        add(Function, [9, 1, 4096, 16], ["leaf", "/bin/program"]);
        add(SwitchedOff, [9, 1, 2_000, 0], ["", ""]);
        add(SwitchedOn, [9, 1, 5_000, 0], ["", ""]);
        add(SwitchedOff, [9, 1, 7_000, 0], ["", ""]);
        let off = functions(&names);
        let [off] = &off[..] else { panic!("{off:?}") };
        let line = "leaf [program]: 1.000 us to 4.000 us, from 6.000 us on";
        assert_eq!(off.line(&clock, 1_000), line);
        assert_eq!(off.nanoseconds(&clock, 9_000), 5_000);
        let until = off.to_json(&clock, 1_000).map(|it| it.until_ns);
        assert_eq!(until.collect::<Vec<_>>(), [Some(4_000), None]);
    }

    #[test]
    fn functions_that_were_off_longest_and_called_most_come_first() {
        let mut names = Names::new(9);
        let mut add = |kind, fields, name: &str| {
            names.add(Description {
                kind,
                fields,
                texts: [name, ""].map(str::to_owned),
            });
        };
        let all = ["short", "rare", "busy", "to the end"];
        for (index, name) in (1..).zip(all) {
            add(
                DescriptionKind::Function,
                [9, index, 4096 * index, 16],
                name,
            );
            add(DescriptionKind::SwitchedOff, [9, index, 100, 0], "");
        }
        for (index, until) in [(1, 200), (2, 500), (3, 500)] {
            add(DescriptionKind::SwitchedOn, [9, index, until, 0], "");
        }
        let mut all = functions(&names);
        let calls = HashMap::from([((9, 1), 1000), ((9, 2), 10), ((9, 3), 20)]);
        sort(&mut all, 600, &calls);
        let names: Vec<&str> = all.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["to the end", "busy", "rare", "short"]);
    }
}
