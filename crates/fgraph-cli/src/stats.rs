//! Counts of calls, and their times.

use crate::json::Times;
use crate::text::time;

/// The counts of calls. Times are in nanoseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stats {
    pub(crate) hits: u64,
    /// Calls among these with known times.
    timed: u64,
    /// Calls among these whose ends were lost.
    pub(crate) ends_lost: u64,
    /// Time in calls; nested calls of the same function count once.
    pub(crate) total: u64,
    /// Time in calls, without the calls inside them.
    pub(crate) own: u64,
    /// The sum of the times of all calls.
    sum: u64,
    pub(crate) max: u64,
    times: Histogram,
}

impl Stats {
    /// Counts a call.
    #[inline]
    pub(crate) fn add(&mut self, took: u64, own: u64, is_outermost: bool) {
        self.hits += 1;
        self.timed += 1;
        self.own = self.own.saturating_add(own);
        self.sum = self.sum.saturating_add(took);
        if is_outermost {
            self.total = self.total.saturating_add(took);
        }
        self.max = self.max.max(took);
        self.times.add(took);
    }

    /// Counts a call whose end was lost: it took at least these times.
    pub(crate) fn add_lost(&mut self, ran: u64, own: u64, is_outermost: bool) {
        self.hits += 1;
        self.ends_lost += 1;
        self.own = self.own.saturating_add(own);
        if is_outermost {
            self.total = self.total.saturating_add(ran);
        }
    }

    /// Counts a call with an unknown time.
    pub(crate) fn add_untimed(&mut self) {
        self.hits += 1;
    }

    /// Returns the times for JSON.
    pub(crate) fn to_json(&self) -> Times {
        let known = |time: u64| (self.timed != 0).then_some(time);
        let percentile = |thousandth| known(self.percentile(thousandth));
        Times {
            calls: self.hits,
            ends_missing: self.ends_lost,
            self_ns: self.own,
            total_ns: self.total,
            average_ns: known(self.average()),
            p50_ns: percentile(500),
            p95_ns: percentile(950),
            p99_ns: percentile(990),
            max_ns: known(self.max),
        }
    }

    /// Returns one of the times as text; `-` if no call has a known time.
    pub(crate) fn text(&self, nanoseconds: u64) -> String {
        if self.timed == 0 && self.hits != 0 && nanoseconds == 0 {
            return "-".to_owned();
        }
        time(nanoseconds)
    }

    /// Returns the average time of the calls with known times.
    pub(crate) fn average(&self) -> u64 {
        self.sum.checked_div(self.timed).unwrap_or(0)
    }

    /// Returns the time within which this part of a thousand calls ended, of those with known
    /// times; up to 3 % too high.
    pub(crate) fn percentile(&self, thousandth: u64) -> u64 {
        self.times.percentile(self.timed, thousandth).min(self.max)
    }
}

/// The number of calls by their times, in steps of at most 3 %.
#[derive(Clone, Debug, Default)]
struct Histogram(Vec<u32>);

/// Each power of two has 2^5 steps.
const BITS: u32 = 5;

impl Histogram {
    #[inline]
    fn add(&mut self, time: u64) {
        let step = step(time);
        match self.0.get_mut(step) {
            Some(count) => *count = count.saturating_add(1),
            None => {
                self.0.resize(step + 1, 0);
                self.0[step] = 1;
            }
        }
    }

    fn percentile(&self, calls: u64, thousandth: u64) -> u64 {
        let wanted = u128::from(calls) * u128::from(thousandth) / 1000;
        let mut seen = 0;
        for (step, &count) in self.0.iter().enumerate() {
            seen += u128::from(count);
            if count != 0 && seen >= wanted {
                return highest(step);
            }
        }
        0
    }
}

/// Returns the step of a time.
#[inline]
fn step(time: u64) -> usize {
    let shift = (u64::BITS - time.leading_zeros()).saturating_sub(BITS + 1);
    ((shift as usize) << BITS) + (time >> shift) as usize
}

/// Returns the longest time of a step.
fn highest(step: usize) -> u64 {
    let shift = (step >> BITS).saturating_sub(1) as u32;
    let within = (step - ((shift as usize) << BITS)) as u128;
    u64::try_from(((within + 1) << shift) - 1).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_hold_times_that_differ_by_a_thirtieth() {
        let times = (0..4000).chain((12..64).flat_map(|bit| [1 << bit, (1 << bit) - 1, u64::MAX]));
        for time in times {
            let highest = highest(step(time));
            assert!(highest >= time, "{time}");
            assert_eq!(step(highest), step(time), "{time}");
            assert!(highest - time <= time / 30 + 1, "{time} {highest}");
        }
    }

    #[test]
    fn percentiles_are_those_of_the_calls() {
        let mut stats = Stats::default();
        assert_eq!(stats.percentile(500), 0);
        for time in 1..=1000 {
            stats.add(time * 1000, time, true);
        }
        for (thousandth, expected) in [(500, 500_000), (950, 950_000), (990, 990_000)] {
            let found = stats.percentile(thousandth);
            let off = found.abs_diff(expected);
            assert!(
                found >= expected && off <= expected / 30,
                "{thousandth} {found}"
            );
        }
        assert_eq!(stats.percentile(1000), 1_000_000);
        stats.add_untimed();
        assert_eq!((stats.hits, stats.percentile(1000)), (1001, 1_000_000));
        assert_eq!(stats.average(), 500_500);
    }
}
