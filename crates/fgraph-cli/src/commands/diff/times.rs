//! Times of calls, with and without those that took unusually long.
//!
//! A thread that is interrupted in a call, for milliseconds, makes that call longer than a thousand
//! others of its function. Such calls hide changes of a few percent in all others. Therefore calls
//! above a limit may also count as the mean of the others. Nearly all calls are below the limit.

/// The part of a function's calls that may exceed the limit: one of this number.
const EXCEPTIONS: u64 = 10;

/// Number of a range of times: a quarter of those with the same number of binary digits.
type Range = u8;

/// The number of ranges: 4 for each number of digits.
const RANGES: usize = 4 * 64;

/// Calls whose times are in the same range.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Part {
    range: Range,
    calls: u64,
    /// Nanoseconds.
    sum: u64,
}

/// Times of a function's calls in one recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Times {
    /// A part for each range with a call.
    parts: Vec<Part>,
}

/// The longest range of a function's times that is not unusual.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Limit(Range);

/// Returns the range of a time.
fn range(time: u64) -> Range {
    // The highest digit, and the two that follow it.
    let digits = u64::BITS - (time | 1).leading_zeros();
    let next = match digits {
        1 | 2 => time << (3 - digits),
        _ => time >> (digits - 3),
    };
    ((digits - 1) * 4) as u8 + (next & 3) as u8
}

impl Times {
    /// Adds a call, in nanoseconds.
    pub(super) fn add(&mut self, time: u64) {
        let range = range(time);
        match self.parts.iter().position(|part| part.range == range) {
            Some(at) => {
                self.parts[at].calls += 1;
                self.parts[at].sum += time;
                // Frequent ranges move to the front, where they are found first.
                self.parts.swap(at, at.saturating_sub(1));
            }
            None => self.parts.push(Part {
                range,
                calls: 1,
                sum: time,
            }),
        }
    }

    /// Returns the sum in nanoseconds.
    pub(super) fn sum(&self) -> f64 {
        self.parts.iter().map(|part| part.sum as f64).sum()
    }

    /// Returns the sum in nanoseconds, in which calls above the limit count as the mean of the
    /// others, if there are others.
    pub(super) fn usual_sum(&self, Limit(limit): Limit) -> f64 {
        let (mut all, mut usual, mut sum) = (0, 0, 0);
        for part in &self.parts {
            all += part.calls;
            if part.range <= limit {
                usual += part.calls;
                sum += part.sum;
            }
        }
        match usual {
            0 => self.sum(),
            usual => sum as f64 * all as f64 / usual as f64,
        }
    }
}

impl Limit {
    /// Returns a limit that at most a tenth of the calls in these recordings exceeds. It is at
    /// least a quarter longer than any of the others.
    pub(super) fn of<'t>(all: impl Iterator<Item = &'t Times>) -> Self {
        let mut calls = [0; RANGES];
        for part in all.flat_map(|times| &times.parts) {
            calls[usize::from(part.range)] += part.calls;
        }
        let most = calls.iter().sum::<u64>() / EXCEPTIONS;
        let mut above = 0;
        let exceeds = |calls: &&u64| {
            above += **calls;
            above <= most
        };
        let exceptions = calls.iter().rev().take_while(exceeds).count();
        // The range of the others, and two more.
        let others = (RANGES - exceptions).saturating_sub(1);
        Self((others + 2).min(RANGES - 1) as Range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(all: &[u64]) -> Times {
        let mut times = Times::default();
        all.iter().for_each(|&time| times.add(time));
        times
    }

    #[test]
    fn an_interrupted_call_counts_as_the_others() {
        let mut calls = vec![100; 39];
        calls.push(4_000_000);
        let interrupted = times(&calls);
        let limit = Limit::of([&interrupted, &times(&[100; 40])].into_iter());
        assert_eq!(interrupted.sum(), 4_003_900.0);
        assert_eq!(interrupted.usual_sum(limit), 4000.0);
        assert_eq!(times(&[100; 40]).usual_sum(limit), 4000.0);
        // A time that is a quarter longer than the others is not above the limit.
        assert_eq!(times(&[100, 125]).usual_sum(limit), 225.0);
        assert_eq!(times(&[100, 200]).usual_sum(limit), 200.0);
        // A recording may have nothing else.
        assert_eq!(times(&[4_000_000]).usual_sum(limit), 4_000_000.0);
    }

    #[test]
    fn ranges_grow_with_times() {
        let times = [0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 1 << 32, u64::MAX];
        let ranges = times.map(range);
        assert_eq!(ranges, [0, 0, 4, 6, 8, 9, 11, 12, 12, 13, 128, 255]);
    }

    #[test]
    fn long_calls_that_are_no_exception_count_in_full() {
        let calls = times(&[0, 100, 200, 4_000_000]);
        let limit = Limit::of([&calls].into_iter());
        assert_eq!(calls.usual_sum(limit), calls.sum());
        let none = Times::default();
        assert_eq!(none.usual_sum(Limit::of([&none].into_iter())), 0.0);
    }
}
