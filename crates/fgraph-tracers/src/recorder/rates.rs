//! Finds functions that are called too often, and are no longer recorded.

use core::num::NonZeroU32;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use fgraph::Function;
use fgraph_trace::event::MAX_FUNCTIONS;

use crate::support::arena::Zeroed;
use crate::support::mapped::Mapped;

/// Call rates of functions, over all threads of the process. A child of `fork` counts anew.
#[derive(Debug)]
pub(super) struct Rates {
    limit: Limit,
    /// One rate for each function.
    rates: Mapped<[Rate; MAX_FUNCTIONS as usize]>,
}

/// Highest rate that is allowed.
#[derive(Clone, Copy, Debug)]
struct Limit {
    calls: u32,
    /// Ticks of the clock in which that number of calls may be made.
    ticks: u64,
}

/// Call rate of one function.
#[derive(Debug, Default)]
struct Rate {
    /// Number of calls since `begin`; from [`OFF`] on the function is switched off.
    calls: AtomicU32,
    /// Time of the first of them.
    begin: AtomicU64,
}

// SAFETY: zeros are valid atomics.
unsafe impl Zeroed for Rate {}

const OFF: u32 = 1 << 31;

/// Decision about a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The call is recorded.
    Recorded,
    /// The call exceeds the rate, and switches its function off.
    SwitchesOff,
    /// The call's function is switched off.
    Off,
}

impl Rates {
    /// Creates the rates for a limit of this many calls in this many ticks; `None` without memory.
    pub(super) fn new(calls: NonZeroU32, ticks: u64) -> Option<Self> {
        let calls = calls.get().min(OFF - 1);
        Some(Self {
            limit: Limit { calls, ticks },
            rates: Mapped::wiped_on_fork()?,
        })
    }

    /// Counts a call.
    #[inline]
    pub(super) fn count(&self, function: Function, now: impl FnOnce() -> u64) -> Verdict {
        let index = (function.index() % MAX_FUNCTIONS) as usize;
        self.rates[index].count(self.limit, now)
    }
}

impl Rate {
    fn count(&self, limit: Limit, now: impl FnOnce() -> u64) -> Verdict {
        // All accesses are Relaxed because nothing else depends on them. If threads count at once,
        // some calls may be missed.
        if self.calls.load(Ordering::Relaxed) >= OFF {
            return Verdict::Off;
        }
        let before = self.calls.fetch_add(1, Ordering::Relaxed);
        if (1..limit.calls).contains(&before) {
            return Verdict::Recorded;
        }
        let now = now();
        let took = now.saturating_sub(self.begin.load(Ordering::Relaxed));
        if before >= limit.calls && took < limit.ticks {
            return match self.calls.swap(OFF, Ordering::Relaxed) {
                OFF.. => Verdict::Off,
                _ => Verdict::SwitchesOff,
            };
        }
        self.begin.store(now, Ordering::Relaxed);
        self.calls.store(1, Ordering::Relaxed);
        Verdict::Recorded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_switched_off_at_the_first_call_that_is_too_much() {
        use Verdict::{Off, Recorded, SwitchesOff};
        let limit = Limit {
            calls: 3,
            ticks: 100,
        };
        for (times, expected) in [
            (&[5, 6, 7, 104][..], SwitchesOff),
            // The fourth call starts the next group.
            (&[5, 6, 7, 105, 106, 107], Recorded),
            (&[5, 6, 7, 105, 106, 107, 204], SwitchesOff),
            (&[5, 6, 7, 8, 1000], Off),
            // The clock of another processor is behind.
            (&[5, 6, 7, 4], SwitchesOff),
        ] {
            let rate = Rate::default();
            let verdicts: Vec<_> = times.iter().map(|&now| rate.count(limit, || now)).collect();
            let (last, before) = verdicts.split_last().unwrap();
            assert_eq!(*last, expected, "{times:?}");
            if expected != Off {
                assert!(before.iter().all(|it| *it == Recorded), "{times:?}");
            }
        }
    }
}
