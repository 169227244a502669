//! The missing events, by thread and time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};

use fgraph_trace::clock::Clock;
use fgraph_trace::names::{Names, process_id};

use crate::text::{grouped, time};

/// The missing events of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Their number.
    pub events: u64,
    /// Ticks of the last event before the first loss.
    pub from: u64,
    /// Ticks of the first event after the last loss.
    pub to: u64,
}

/// The missing events of a recording.
#[derive(Debug, Default)]
pub struct Losses {
    /// By process and thread.
    pub threads: BTreeMap<(u32, u32), Loss>,
    /// The number of calls with missing ends.
    pub calls: u64,
    /// Threads without an event since their last loss.
    open: HashSet<(u32, u32)>,
}

/// The most threads that are named.
const SHOWN: usize = 3;

impl Losses {
    /// Adds missing events of a thread between two times. If it has events afterwards, the loss
    /// lasts until the first of these: [`resume`](Self::resume).
    #[cold]
    pub fn add(&mut self, thread: (u32, u32), events: u64, from: u64, to: u64) {
        let first = Loss {
            events: 0,
            from,
            to,
        };
        let loss = self.threads.entry(thread).or_insert(first);
        loss.events = loss.events.saturating_add(events);
        loss.to = to;
        self.open.insert(thread);
    }

    /// Notes an event of a thread, which ends a loss before it. To be called for each.
    #[inline]
    pub fn resume(&mut self, thread: (u32, u32), time: u64) {
        if !self.open.is_empty() {
            self.end(thread, time);
        }
    }

    #[cold]
    fn end(&mut self, thread: (u32, u32), time: u64) {
        if self.open.remove(&thread)
            && let Some(loss) = self.threads.get_mut(&thread)
        {
            loss.to = loss.to.max(time);
        }
    }

    /// Returns the number of all missing events.
    pub fn events(&self) -> u64 {
        let events = self.threads.values().map(|loss| loss.events);
        events.fold(0, u64::saturating_add)
    }

    /// Returns the losses of each thread, most first: a line for each of the first few. Times count
    /// from `first`, in ticks. Names of threads are hostile text.
    pub fn lines(&self, names: &Names, clock: &Clock, first: u64) -> Vec<String> {
        let mut threads: Vec<_> = self.threads.iter().collect();
        threads.sort_by_key(|(thread, loss)| (Reverse(loss.events), **thread));
        let rest = threads.len().saturating_sub(SHOWN);
        let since = |ticks: u64| time(clock.nanoseconds(ticks.saturating_sub(first)));
        let line = |(&(process, thread), loss): (&(u32, u32), &Loss)| {
            let name = names.thread(process, thread).unwrap_or_default();
            let [from, to] = [loss.from, loss.to].map(since);
            let (process, events) = (process_id(process), grouped(loss.events));
            let line = format!("{events} of {name} {process}/{thread}, {from} to {to}");
            line.replace("  ", " ")
        };
        let mut lines: Vec<String> = threads.into_iter().take(SHOWN).map(line).collect();
        if rest > 0 {
            lines.push(format!("and of {rest} other threads"));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use fgraph_trace::clock::{Anchor, ClockKind};

    use super::*;

    #[test]
    fn losses_are_told_by_thread_and_time() {
        let clock = Clock::new(ClockKind::Monotonic, Anchor::default(), 1_000_000_000);
        let mut losses = Losses::default();
        assert!(losses.lines(&Names::default(), &clock, 0).is_empty());
        losses.add((9, 1), 5, 2_000, 3_000);
        losses.add((9, 2), 7, 1_000, 2_500);
        losses.add((9, 1), 4, 8_000, 8_000);
        losses.resume((9, 1), 9_000);
        losses.resume((9, 7), 9_500);
        let expected = [
            "9 of 9/1, 1.000 us to 8.000 us",
            "7 of 9/2, 0 ns to 1.500 us",
        ];
        assert_eq!(losses.lines(&Names::default(), &clock, 1_000), expected);
        for thread in 3..7 {
            losses.add((9, thread), 1, 0, 0);
        }
        let lines = losses.lines(&Names::default(), &clock, 1_000);
        assert_eq!(lines.len(), SHOWN + 1);
        assert_eq!(lines[SHOWN], "and of 3 other threads");
        assert_eq!(losses.events(), 20);
    }
}
