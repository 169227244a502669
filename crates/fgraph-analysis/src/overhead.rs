//! The share of recording in the time of threads.

use fgraph_trace::clock::Clock;
use fgraph_trace::schedule::Schedule;

use crate::calls::Counts;

/// The fewest calls whose cost is estimated.
const FEW: u64 = 1_000;
/// The nanoseconds that recording a call takes, least and most: clocks of processors may differ by
/// a call's time, and the shortest call may do work of its own.
const EACH: [u64; 2] = [40, 200];

/// Returns the processor time of threads between their first event and their last one, in ticks;
/// without states of threads, all of this time. A thread has its id, and the times of both events.
#[must_use]
pub fn used(threads: impl Iterator<Item = (u32, u64, u64)>, schedule: Option<&Schedule>) -> u64 {
    let used = threads.map(|(id, first, last)| {
        let times = schedule.and_then(|schedule| schedule.between(id, first, last));
        times.map_or(last - first, |times| times.running)
    });
    used.sum()
}

/// Returns the part of a time that recording calls took, in percent; `None` if that is unknown.
#[must_use]
pub fn percent(counts: &Counts, clock: &Clock, used: u64) -> Option<u64> {
    // Most calls have two events.
    let lost = counts.lost / 2;
    let is_unknown = counts.shortest == 0 && lost == 0;
    if counts.calls.saturating_add(lost) < FEW || is_unknown {
        return None;
    }
    // Twice: at the entry and at the end.
    let each = clock.nanoseconds(counts.shortest.saturating_mul(2));
    let each = each.clamp(EACH[0], EACH[1]);
    // Finding the buffer full takes longer than filling it.
    let cost = counts.calls as f64 * each as f64 + lost as f64 * EACH[1] as f64;
    let used = clock.nanoseconds(used).max(1) as f64;
    // A call may cost less than the estimate.
    Some((100.0 * cost / used).min(99.0) as u64)
}

#[cfg(test)]
mod tests {
    use fgraph_trace::clock::{Anchor, ClockKind};

    use super::*;

    #[test]
    fn the_share_is_of_processor_time() {
        let counts = Counts {
            calls: 10_000,
            shortest: 50,
            ..Counts::default()
        };
        let clock = Clock::new(ClockKind::Monotonic, Anchor::default(), 1_000_000_000);
        let of = |counts: &Counts, used| percent(counts, &clock, used);
        assert_eq!(of(&counts, 10_000_000), Some(10));
        for (shortest, percent) in [(1, 4), (1_000_000, 20)] {
            let odd = Counts { shortest, ..counts };
            assert_eq!(of(&odd, 10_000_000), Some(percent));
        }
        assert_eq!(of(&counts, 0), Some(99));
        let few = Counts {
            calls: 999,
            ..counts
        };
        assert_eq!(of(&few, 10_000_000), None);
        let unknown = Counts {
            shortest: 0,
            ..counts
        };
        assert_eq!(of(&unknown, 10_000_000), None);
        let lossy = Counts {
            calls: 10,
            lost: 20_000,
            ..counts
        };
        assert_eq!(of(&lossy, 10_000_000), Some(20));
        let without_durations = Counts {
            shortest: 0,
            ..lossy
        };
        assert_eq!(of(&without_durations, 10_000_000), Some(20));
    }
}
