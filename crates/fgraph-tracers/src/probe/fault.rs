//! Fault injection: calls that fail as they are told.
//!
//! ```
//! use fgraph_tracers::probe::fault::Fault;
//!
//! let fault = Fault::skip(-1).errno(libc::ENOENT).every(2);
//! // SAFETY: `open` returns an `int`, and its callers must expect that it fails.
//! let faults = unsafe { fault.start("open:mod:libc.so* open64:mod:libc.so*") }?;
//! let opened = (0..4).filter(|_| std::fs::File::open("/proc/self/maps").is_ok());
//! assert_eq!((opened.count(), faults.injected()), (2, 2));
//! # Ok::<(), fgraph::Error>(())
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fgraph::{Error, IntoFilter};

use super::{Probe, probe};

/// How calls are made to fail, and which.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use = "it does nothing before it is started"]
pub struct Fault {
    result: i64,
    errno: Option<i32>,
    is_skipped: bool,
    when: When,
}

/// Which calls fail.
#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    /// The last of each so many.
    Every(u64),
    /// Those whose number among random numbers is below the limit.
    Random { limit: u64, seed: u64 },
}

impl Fault {
    /// The function does not run; its callers get `result`. All calls, unless it is said otherwise.
    pub const fn skip(result: i64) -> Self {
        Self {
            result,
            errno: None,
            is_skipped: true,
            when: When::Every(1),
        }
    }

    /// The function runs; its callers get `result` and not what it returns.
    pub const fn result(result: i64) -> Self {
        Self {
            is_skipped: false,
            ..Self::skip(result)
        }
    }

    /// The callers find this value in `errno`.
    pub const fn errno(mut self, errno: i32) -> Self {
        self.errno = Some(errno);
        self
    }

    /// The last of each `period` calls fails, counted in all threads together; with 0 none does.
    pub const fn every(mut self, period: u64) -> Self {
        self.when = When::Every(period);
        self
    }

    /// Each call fails with this probability, from 0 to 1. The same seed has the same calls fail,
    /// by their number among the calls of all threads.
    pub fn probability(mut self, probability: f64, seed: u64) -> Self {
        // Saturates: 1 and more is always, 0 and what is no number never.
        let limit = (probability * 2.0_f64.powi(64)) as u64;
        self.when = When::Random { limit, seed };
        self
    }

    /// Whether call number `nth`, counted from 0, fails.
    fn hits(&self, nth: u64) -> bool {
        match self.when {
            When::Every(period) => nth.wrapping_add(1).checked_rem(period) == Some(0),
            When::Random {
                limit: u64::MAX, ..
            } => true,
            When::Random { limit, seed } => random(seed, nth) < limit,
        }
    }

    /// Starts to have calls of the functions fail that `filter` selects.
    ///
    /// # Safety
    ///
    /// The callers of these functions may get the result, as [`fgraph::Entry::rewrite`] and
    /// [`fgraph::Return::rewrite`] say; for one that is [skipped](Self::skip) the program can do
    /// without what the function does.
    ///
    /// # Errors
    ///
    /// As for [`super::Builder::start`].
    pub unsafe fn start(self, filter: impl IntoFilter) -> Result<Faults, Error> {
        let counts = Arc::new(Counts::default());
        let [at_entry, at_return] = [(); 2].map(|()| Arc::clone(&counts));
        let probe = probe(filter)
            .on_entry(move |call| {
                if !self.hits(at_entry.calls.fetch_add(1, Ordering::Relaxed)) {
                    return None;
                }
                if !self.is_skipped {
                    return Some(());
                }
                // SAFETY: who starts this vouches for it.
                let mut writer = unsafe { call.rewrite() };
                if writer.skip(self.result).is_ok() {
                    self.errno.inspect(|errno| writer.set_errno(*errno));
                    at_entry.injected.fetch_add(1, Ordering::Relaxed);
                }
                None
            })
            .on_return(move |call, ()| {
                // SAFETY: who starts this vouches for it.
                let mut writer = unsafe { call.rewrite() };
                if writer.set_result(self.result as u64).is_ok() {
                    self.errno.inspect(|errno| writer.set_errno(*errno));
                    at_return.injected.fetch_add(1, Ordering::Relaxed);
                }
            });
        // SAFETY: the closures use atomics; for what they write the caller vouches.
        let probe = unsafe { probe.start() }?;
        Ok(Faults { probe, counts })
    }
}

/// The number at place `nth` of the random numbers of a seed (SplitMix64).
fn random(seed: u64, nth: u64) -> u64 {
    let gamma = 0x9e37_79b9_7f4a_7c15_u64;
    let mut z = seed.wrapping_add(nth.wrapping_add(1).wrapping_mul(gamma));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[derive(Debug, Default)]
struct Counts {
    calls: AtomicU64,
    injected: AtomicU64,
}

/// Calls that are made to fail; dropping it ends that.
#[must_use = "dropping it ends the faults"]
#[derive(Debug)]
pub struct Faults {
    probe: Probe,
    counts: Arc<Counts>,
}

impl Faults {
    /// Calls of the functions.
    pub fn calls(&self) -> u64 {
        self.counts.calls.load(Ordering::Relaxed)
    }

    /// Calls that were made to fail. One that another user has skipped already is not.
    pub fn injected(&self) -> u64 {
        self.counts.injected.load(Ordering::Relaxed)
    }

    /// The probe that does it.
    pub fn probe(&self) -> &Probe {
        &self.probe
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nth_call_fails_and_a_seed_chooses_as_often_as_it_says() {
        let fails = |fault: Fault, calls| (0..calls).filter(|&nth| fault.hits(nth)).count();
        assert_eq!(fails(Fault::skip(-1), 100), 100);
        assert_eq!(fails(Fault::skip(-1).every(7), 100), 14);
        assert_eq!(fails(Fault::skip(-1).every(0), 100), 0);
        let random = |probability, seed| Fault::skip(-1).probability(probability, seed);
        assert_eq!(fails(random(0.0, 1), 1000), 0);
        assert_eq!(fails(random(f64::NAN, 1), 1000), 0);
        assert_eq!(fails(random(1.0, 1), 1000), 1000);
        assert!((2800..3200).contains(&fails(random(0.3, 5), 10_000)));
        let chosen = |seed| (0..64).filter(move |&nth| random(0.5, seed).hits(nth));
        assert!(chosen(1).eq(chosen(1)) && !chosen(1).eq(chosen(2)));
    }
}
