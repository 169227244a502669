//! Counts of calls, and their times.

use fgraph_trace::histogram;

use crate::text::time;

/// The counts of calls. Times are in nanoseconds.
#[derive(Clone, Debug, Default)]
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
        if self.times.len() <= step {
            self.times.resize(step + 1, 0);
        }
        self.times[step] = self.times[step].saturating_add(1);
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
}
