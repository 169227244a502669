//! The states of threads over time: running on a processor, waiting for one, or blocked.
//!
//! A recorder gets them from the kernel. If the kernel reports each [switch](Change::Switch) of a
//! processor from one thread to another, they are exact. If it refuses, the recorder takes
//! [samples](Change::Sample) of the time that each thread has spent in each state, and the time
//! between two samples is divided evenly.

use std::collections::BTreeMap;

/// The state of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum State {
    /// It runs on a processor.
    Running = 0,
    /// It could run, but other threads have the processors.
    Runnable = 1,
    /// It waits for something else than a processor: time, input, a lock.
    Blocked = 2,
}

impl State {
    /// All states.
    pub const ALL: [Self; 3] = [Self::Running, Self::Runnable, Self::Blocked];
}

/// News of a thread's state. Times are in ticks of the recording's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The thread has this state from now on.
    Switch {
        /// The time of the change.
        time: u64,
        /// The new state.
        state: State,
        /// The processor on which the thread runs from now on, or ran until now.
        cpu: Option<u32>,
    },
    /// The time that the thread has spent in two of the states since its beginning.
    Sample {
        /// The time of the sample.
        time: u64,
        /// Ticks on processors.
        running: u64,
        /// Ticks in which it waited for a processor.
        runnable: u64,
    },
}

impl Change {
    /// Returns the time of the change or of the sample.
    #[must_use]
    pub const fn time(&self) -> u64 {
        let (Self::Switch { time, .. } | Self::Sample { time, .. }) = *self;
        time
    }
}

/// The ticks that a thread has spent in each state up to some moment. Only differences between two
/// of one thread have a meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Ticks on processors.
    pub running: u64,
    /// Ticks in which it waited for a processor.
    pub runnable: u64,
    /// Ticks in which it waited for something else.
    pub blocked: u64,
}

impl Times {
    /// Returns the ticks in one state.
    #[must_use]
    pub const fn of(&self, state: State) -> u64 {
        match state {
            State::Running => self.running,
            State::Runnable => self.runnable,
            State::Blocked => self.blocked,
        }
    }

    /// Returns the ticks since an earlier moment.
    #[must_use]
    pub const fn since(&self, earlier: &Self) -> Self {
        Self {
            running: self.running.saturating_sub(earlier.running),
            runnable: self.runnable.saturating_sub(earlier.runnable),
            blocked: self.blocked.saturating_sub(earlier.blocked),
        }
    }
}

/// A time during which a thread did not change its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Interval {
    /// Its first tick.
    pub from: u64,
    /// The first tick after it.
    pub to: u64,
    /// The state; `None` between two samples, where the thread may have had several.
    pub state: Option<State>,
    /// The processor of a running thread, or the last one of another.
    pub cpu: Option<u32>,
}

/// A moment of a thread, with the time in each state up to it.
#[derive(Clone, Copy, Debug)]
struct Point {
    time: u64,
    running: u64,
    runnable: u64,
    /// The state from now on; `None` for a sample.
    state: Option<State>,
    /// The processor plus 1; 0 if it is unknown.
    cpu: u32,
}

impl Point {
    /// Returns the times at a later moment, if the state does not change.
    fn at(&self, time: u64, next: Option<&Self>) -> Times {
        let since = time.saturating_sub(self.time);
        let (mut running, mut runnable) = (self.running, self.runnable);
        match (self.state, next) {
            (Some(State::Running), _) => running = running.saturating_add(since),
            (Some(State::Runnable), _) => runnable = runnable.saturating_add(since),
            (Some(State::Blocked), _) => {}
            (None, Some(next)) => {
                let all = next.time.saturating_sub(self.time).max(1);
                let part = |from: u64, to: u64| {
                    let part = u128::from(to.saturating_sub(from)) * u128::from(since);
                    from.saturating_add((part / u128::from(all)) as u64)
                };
                running = part(running, next.running);
                runnable = part(runnable, next.runnable);
            }
            // The recorder takes a last sample at its end, so little is missing.
            (None, None) => running = running.saturating_add(since),
        }
        let off = running.saturating_add(runnable);
        Times {
            running,
            runnable,
            blocked: time.saturating_sub(off),
        }
    }

    /// Returns the times before a thread's first point.
    fn before(&self, time: u64) -> Times {
        // A switch away from the processor is the end of running, and a switch to it is the end of
        // waiting. A thread whose first sample is the first point has run until it.
        let has_run = self.state != Some(State::Running);
        let ago = if has_run {
            self.time.saturating_sub(time)
        } else {
            0
        };
        let running = self.running.saturating_sub(ago);
        Times {
            running,
            runnable: self.runnable,
            blocked: time.saturating_sub(running.saturating_add(self.runnable)),
        }
    }
}

/// The states of all threads of a recording.
///
/// A change takes 32 to 64 bytes of memory.
#[derive(Clone, Debug, Default)]
pub struct Schedule {
    threads: BTreeMap<u32, Vec<Point>>,
    is_sampled: bool,
    lost: u64,
}

/// The most memory that a change takes while a list of them grows, in bytes.
pub(crate) const CHANGE: usize = 3 * size_of::<Point>();

impl Schedule {
    /// Adds news of a thread. They come in the order of time; a time before the thread's last one
    /// counts as that one.
    pub fn add(&mut self, thread: u32, change: Change) {
        let points = self.threads.entry(thread).or_default();
        let time = points.last().map_or(0, |last| last.time).max(change.time());
        let point = match change {
            Change::Switch { state, cpu, .. } => {
                let times = match points.last() {
                    Some(last) => last.at(time, None),
                    None if state == State::Running => Times::default(),
                    None => Times {
                        running: time,
                        ..Times::default()
                    },
                };
                let cpu = cpu.map_or(0, |cpu| cpu.wrapping_add(1));
                if points.last().is_some_and(|last| last.state == Some(state)) {
                    // Two events of the kernel report one change.
                    return;
                }
                Point {
                    time,
                    running: times.running,
                    runnable: times.runnable,
                    state: Some(state),
                    cpu,
                }
            }
            Change::Sample {
                running, runnable, ..
            } => {
                self.is_sampled = true;
                // The kernel's times are not read at one moment: no time has two states.
                let (mut running, mut runnable) = (running, runnable);
                if let Some(last) = points.last() {
                    let mut rest = time - last.time;
                    for (now, before) in
                        [(&mut running, last.running), (&mut runnable, last.runnable)]
                    {
                        let more = now.saturating_sub(before).min(rest);
                        (*now, rest) = (before + more, rest - more);
                    }
                }
                Point {
                    time,
                    running,
                    runnable,
                    state: None,
                    cpu: 0,
                }
            }
        };
        points.push(point);
    }

    /// Counts changes that the kernel had no room to report. The state of a thread may be wrong
    /// until its next change.
    pub fn add_lost(&mut self, changes: u64) {
        self.lost = self.lost.saturating_add(changes);
    }

    /// Returns true if no states are known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.threads.is_empty()
    }

    /// Returns true if the states are from samples.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        self.is_sampled
    }

    /// Returns the number of changes that the kernel had no room to report.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns the threads with known states, in no order.
    pub fn threads(&self) -> impl Iterator<Item = u32> {
        self.threads.keys().copied()
    }

    /// Returns the ticks that a thread has spent in each state up to `time`.
    ///
    /// A thread that is not among the [threads](Self::threads) has made no switch: it has run all
    /// the time, if the states are exact. For samples, `None` is returned.
    #[must_use]
    pub fn at(&self, thread: u32, time: u64) -> Option<Times> {
        let Some(points) = self.threads.get(&thread) else {
            return (!self.is_sampled && !self.is_empty()).then_some(Times {
                running: time,
                ..Times::default()
            });
        };
        let next = points.partition_point(|point| point.time <= time);
        match next.checked_sub(1).and_then(|last| points.get(last)) {
            Some(last) => Some(last.at(time, points.get(next))),
            None => points.first().map(|first| first.before(time)),
        }
    }

    /// Returns the same as [`at`](Self::at), in less time for a moment shortly after the last one.
    /// `near` is kept from one moment of the thread to the next one, and is 0 at first.
    #[inline]
    #[must_use]
    pub fn at_near(&self, thread: u32, time: u64, near: &mut usize) -> Option<Times> {
        let Some(points) = self.threads.get(&thread) else {
            return self.at(thread, time);
        };
        let is_past = |at: usize| points.get(at).is_some_and(|point| point.time <= time);
        let is_it = |next: usize| (next == 0 || is_past(next - 1)) && !is_past(next);
        if !is_it(*near) {
            *near = match is_it(*near + 1) {
                true => *near + 1,
                false => points.partition_point(|point| point.time <= time),
            };
        }
        match near.checked_sub(1).and_then(|last| points.get(last)) {
            Some(last) => Some(last.at(time, points.get(*near))),
            None => points.first().map(|first| first.before(time)),
        }
    }

    /// Returns the ticks that a thread has spent in each state between two moments; `None` like
    /// [`at`](Self::at).
    #[must_use]
    pub fn between(&self, thread: u32, from: u64, to: u64) -> Option<Times> {
        Some(self.at(thread, to)?.since(&self.at(thread, from)?))
    }

    /// Returns the states of a thread between two moments, in order and without gaps. Nothing is
    /// returned for a thread that is not among the [threads](Self::threads).
    pub fn intervals(&self, thread: u32, from: u64, to: u64) -> impl Iterator<Item = Interval> {
        let points = self.threads.get(&thread).map_or(&[][..], Vec::as_slice);
        let next = points.partition_point(|point| point.time <= from);
        let before = points.first().filter(|_| next == 0).map(|first| Interval {
            from,
            to: first.time.min(to),
            state: match first.state {
                Some(State::Running) => Some(State::Blocked),
                Some(_) => Some(State::Running),
                None => None,
            },
            cpu: match first.state {
                Some(State::Running) => None,
                _ => first.cpu.checked_sub(1),
            },
        });
        let points = points.get(next.saturating_sub(1)..).unwrap_or(&[]);
        let ends = points
            .iter()
            .skip(1)
            .map(|point| point.time)
            .chain([u64::MAX]);
        let after = points.iter().zip(ends).map(move |(point, end)| Interval {
            from: point.time.max(from),
            to: end.min(to),
            state: point.state,
            cpu: point.cpu.checked_sub(1),
        });
        let all = before.into_iter().chain(after);
        // The first one that begins too late is the last that is looked at.
        all.take_while(move |interval| interval.from < to)
            .filter(|interval| interval.from < interval.to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn switches(all: &[(u64, State)]) -> Schedule {
        let mut schedule = Schedule::default();
        for &(time, state) in all {
            let cpu = Some(3);
            schedule.add(7, Change::Switch { time, state, cpu });
        }
        schedule
    }

    fn between(schedule: &Schedule, from: u64, to: u64) -> (u64, u64, u64) {
        let times = schedule.between(7, from, to).unwrap();
        (times.running, times.runnable, times.blocked)
    }

    #[test]
    fn each_tick_belongs_to_the_state_that_the_thread_has_in_it() {
        let schedule = switches(&[
            (1000, State::Blocked),
            (1500, State::Running),
            (1600, State::Runnable),
            (1650, State::Running),
        ]);
        assert_eq!(between(&schedule, 900, 1000), (100, 0, 0));
        assert_eq!(between(&schedule, 900, 1200), (100, 0, 200));
        assert_eq!(between(&schedule, 900, 1700), (100 + 100 + 50, 50, 500));
        assert_eq!(between(&schedule, 5000, 6000), (1000, 0, 0));
        let states: Vec<_> = schedule
            .intervals(7, 900, 1620)
            .map(|it| (it.from, it.to, it.state.unwrap()))
            .collect();
        let expected = [
            (900, 1000, State::Running),
            (1000, 1500, State::Blocked),
            (1500, 1600, State::Running),
            (1600, 1620, State::Runnable),
        ];
        assert_eq!(states, expected);
        assert_eq!(schedule.intervals(7, 1100, 1200).count(), 1);
        assert_eq!(schedule.intervals(7, 6000, 6000).count(), 0);
        assert_eq!(schedule.intervals(8, 0, 6000).count(), 0);
    }

    #[test]
    fn a_thread_that_begins_with_a_switch_to_a_processor_was_blocked_before() {
        let schedule = switches(&[(1000, State::Running)]);
        assert_eq!(between(&schedule, 400, 1010), (10, 0, 600));
    }

    #[test]
    fn a_thread_without_a_switch_has_run() {
        let schedule = switches(&[(1000, State::Blocked)]);
        let times = schedule.between(8, 0, 5000).unwrap();
        assert_eq!((times.running, times.blocked), (5000, 0));
        assert_eq!(Schedule::default().at(8, 5000), None);
    }

    #[test]
    fn a_change_that_is_reported_twice_or_late_counts_once_and_in_order() {
        let schedule = switches(&[
            (1000, State::Blocked),
            (1003, State::Blocked),
            (1500, State::Running),
            (1400, State::Runnable),
            (1700, State::Running),
        ]);
        assert_eq!(between(&schedule, 1000, 1800), (100, 200, 500));
    }

    #[test]
    fn time_between_samples_is_divided_evenly() {
        let mut schedule = Schedule::default();
        for (time, running, runnable) in [(10_000, 500, 20), (12_000, 1500, 120)] {
            let sample = Change::Sample {
                time,
                running,
                runnable,
            };
            schedule.add(7, sample);
        }
        assert!(schedule.is_sampled());
        assert_eq!(between(&schedule, 10_000, 12_000), (1000, 100, 900));
        assert_eq!(between(&schedule, 10_500, 11_500), (500, 50, 450));
        assert_eq!(between(&schedule, 9_700, 10_000), (300, 0, 0));
        assert_eq!(between(&schedule, 12_000, 12_010), (10, 0, 0));
        assert_eq!(schedule.at(8, 10_000), None);
        let whole = schedule.intervals(7, 10_000, 12_000).next().unwrap();
        assert_eq!((whole.from, whole.to, whole.state), (10_000, 12_000, None));
    }
}
