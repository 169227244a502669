//! Lanes of the states of threads.

use fgraph_analysis::calls::ThreadId;
use fgraph_trace::clock::Clock;
use fgraph_trace::schedule::{Interval, Schedule, State};

use crate::output::Trace;

/// Names of the states, in the order of [`State::ALL`].
pub(crate) const NAMES: [&str; 3] = ["running", "runnable", "blocked"];

/// A time in which a thread had one state, or, between two samples, several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Its begin and its end by the monotonic clock, in nanoseconds.
    pub(crate) begin: u64,
    pub(crate) end: u64,
    /// The state; `None` between two samples.
    pub(crate) state: Option<State>,
    /// The processor of a running thread, or the last one of another.
    pub(crate) cpu: Option<u32>,
    /// Nanoseconds in each state, in the order of [`State::ALL`].
    pub(crate) times: [u64; 3],
}

impl Span {
    fn of(interval: Interval, thread: u32, clock: &Clock, schedule: &Schedule) -> Self {
        let Interval { from, to, .. } = interval;
        let [begin, end] = [from, to].map(|ticks| clock.monotonic(ticks));
        let mut rest = end.saturating_sub(begin);
        let mut take = |ticks| {
            let time = clock.nanoseconds(ticks).min(rest);
            rest -= time;
            time
        };
        let times = match interval.state {
            Some(State::Running) => [rest, 0, 0],
            Some(State::Runnable) => [0, rest, 0],
            Some(State::Blocked) => [0, 0, rest],
            None => {
                let times = schedule.between(thread, from, to).unwrap_or_default();
                let (running, runnable) = (take(times.running), take(times.runnable));
                [running, runnable, rest]
            }
        };
        Self {
            begin,
            end,
            state: interval.state,
            cpu: interval.cpu,
            times,
        }
    }
}

impl Trace<'_> {
    /// Returns the states of a thread from its first event on: up to its last one, or, if it was in
    /// a call at the end, up to the end of the trace. Nothing is returned if they are not known.
    pub(crate) fn states(&self, thread: &ThreadId) -> impl Iterator<Item = Span> {
        let (first, last) = self.lives[thread.index];
        self.states_between(thread.id, first, last)
    }

    /// Returns the states of a thread between two times, in ticks.
    pub(crate) fn states_between(
        &self,
        thread: u32,
        first: u64,
        last: u64,
    ) -> impl Iterator<Item = Span> {
        let (clock, schedule) = (*self.clock, self.schedule);
        let spans = schedule.into_iter().flat_map(move |schedule| {
            let spans = schedule.intervals(thread, first, last);
            spans.map(move |interval| Span::of(interval, thread, &clock, schedule))
        });
        let mut spans = spans.peekable();
        // A thread without a switch has run all the time, if the states are exact.
        let is_known = schedule.is_some_and(|it| it.at(thread, first).is_some());
        let (begin, end) = (clock.monotonic(first), clock.monotonic(last));
        let whole = (is_known && spans.peek().is_none() && begin < end).then(|| Span {
            begin,
            end,
            state: Some(State::Running),
            cpu: None,
            times: [end - begin, 0, 0],
        });
        spans.chain(whole)
    }
}

/// Returns the nanoseconds in each state of one span after another, in which spans shorter than
/// `least` are joined with their neighbors.
pub(crate) fn joined(spans: impl Iterator<Item = Span>, least: u64) -> Vec<[u64; 3]> {
    let length = |times: &[u64; 3]| times.iter().sum::<u64>();
    let (mut all, mut short) = (Vec::new(), [0; 3]);
    for Span { times, .. } in spans {
        if length(&times) >= least && short != [0; 3] {
            all.push(std::mem::take(&mut short));
        }
        for (sum, time) in short.iter_mut().zip(times) {
            *sum += time;
        }
        if length(&short) >= least {
            all.push(std::mem::take(&mut short));
        }
    }
    if short != [0; 3] {
        all.push(short);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_states_are_joined_and_long_ones_stay() {
        let mut begin = 0;
        let spans = [
            [10, 0, 0],
            [0, 1, 0],
            [2, 0, 0],
            [0, 0, 90],
            [3, 0, 0],
            [0, 2, 0],
        ];
        let spans = spans.map(|times: [u64; 3]| {
            let end = begin + times.iter().sum::<u64>();
            let span = Span {
                begin,
                end,
                state: None,
                cpu: None,
                times,
            };
            begin = end;
            span
        });
        let found = joined(spans.into_iter(), 5);
        assert_eq!(found, [[10, 0, 0], [2, 1, 0], [0, 0, 90], [3, 2, 0]]);
        assert_eq!(joined(spans.into_iter(), 0).len(), spans.len());
    }
}
