//! Counts of calls, and their times.

use fgraph_trace::histogram;

use crate::numbers::grown;
use crate::text::time;

/// The counts of calls. Times are in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Number of all calls.
    pub hits: u64,
    /// Calls among these with known times.
    pub timed: u64,
    /// Calls among these whose ends were lost.
    pub ends_lost: u64,
    /// Time in calls; nested calls of the same function count once.
    pub total: u64,
    /// Time in calls, without the calls inside them.
    pub own: u64,
    /// The sum of the times of all calls.
    sum: u64,
    /// The longest time of a call.
    pub max: u64,
    /// Number of calls in each step of times.
    times: Vec<u32>,
}

impl Stats {
    /// Counts a call.
    #[inline]
    pub fn add(&mut self, took: u64, own: u64, is_outermost: bool) {
        self.hits += 1;
        self.timed += 1;
        self.own = self.own.saturating_add(own);
        self.sum = self.sum.saturating_add(took);
        if is_outermost {
            self.total = self.total.saturating_add(took);
        }
        self.max = self.max.max(took);
        let step = histogram::bucket::<BITS>(took);
        let times = grown(&mut self.times, step);
        *times = times.saturating_add(1);
    }

    /// Counts a call whose end was lost: it took at least these times.
    pub fn add_lost(&mut self, ran: u64, own: u64, is_outermost: bool) {
        self.hits += 1;
        self.ends_lost += 1;
        self.own = self.own.saturating_add(own);
        if is_outermost {
            self.total = self.total.saturating_add(ran);
        }
    }

    /// Counts a call with an unknown time.
    pub fn add_untimed(&mut self) {
        self.hits += 1;
    }

    /// Returns one of the times as text; `-` if no call has a known time.
    pub fn text(&self, nanoseconds: u64) -> String {
        if self.timed == 0 && self.hits != 0 && nanoseconds == 0 {
            return "-".to_owned();
        }
        time(nanoseconds)
    }

    /// Returns the average time of the calls with known times.
    pub fn average(&self) -> u64 {
        self.sum.checked_div(self.timed).unwrap_or(0)
    }

    /// Returns all counts as numbers. [`of_numbers`](Self::of_numbers) makes the same counts from
    /// them.
    #[must_use]
    pub fn to_numbers(&self) -> Vec<u64> {
        let Self {
            hits,
            timed,
            ends_lost,
            total,
            own,
            sum,
            max,
            ref times,
        } = *self;
        let mut numbers = vec![hits, timed, ends_lost, total, own, sum, max];
        let steps = times.iter().enumerate().filter(|&(_, &count)| count != 0);
        numbers.extend(steps.flat_map(|(step, &count)| [step as u64, count.into()]));
        numbers
    }

    /// Makes counts from the numbers that [`to_numbers`](Self::to_numbers) returned for them.
    /// Returns `None` for other numbers.
    #[must_use]
    pub fn of_numbers(numbers: &[u64]) -> Option<Self> {
        let (&[hits, timed, ends_lost, total, own, sum, max], steps) =
            numbers.split_first_chunk()?;
        let (steps, []) = steps.as_chunks() else {
            return None;
        };
        let mut times = Vec::new();
        for &[step, count] in steps {
            let step = usize::try_from(step).ok()?;
            if step >= histogram::buckets::<BITS>() || step < times.len() {
                return None;
            }
            times.resize(step, 0);
            times.push(u32::try_from(count).ok()?);
        }
        Some(Self {
            hits,
            timed,
            ends_lost,
            total,
            own,
            sum,
            max,
            times,
        })
    }

    /// Returns the time within which this part of a thousand calls ended, of those with known
    /// times; up to 3 % too high.
    pub fn percentile(&self, thousandth: u64) -> u64 {
        let counts = self.times.iter().map(|&count| count.into());
        let found = histogram::percentile::<BITS>(counts, thousandth as f64 / 10.0);
        found.unwrap_or(0).min(self.max)
    }
}

/// Bits of the steps of times: at most 3 % each.
const BITS: u32 = 5;

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn counts_are_made_again_of_their_numbers() {
        let mut stats = Stats::default();
        assert_eq!(Stats::of_numbers(&stats.to_numbers()), Some(stats.clone()));
        for time in [0, 1, 70, 70, 5_000_000, u64::MAX] {
            stats.add(time, time / 2, time != 70);
        }
        stats.add_lost(5, 3, true);
        stats.add_untimed();
        let numbers = stats.to_numbers();
        assert_eq!(Stats::of_numbers(&numbers), Some(stats));
        assert_eq!(Stats::of_numbers(&numbers[1..]), None);
        assert_eq!(Stats::of_numbers(&numbers[..6]), None);
        let more = |step, count| Stats::of_numbers(&[&numbers[..], &[step, count]].concat());
        assert_eq!(more(7, 1), None);
        assert_eq!(more(u64::MAX, 1), None);
    }
}
