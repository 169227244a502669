//! Decides for which callers calls are traced with their returns.
//!
//! The body of a traced call returns to the machine layer. That is wrong for code that looks for
//! its own return addresses on the machine stack, as runtimes do that walk the frames of code they
//! have compiled. And a frame is dropped when its place on the machine stack is reused, which is
//! wrong if stacks are copied away and come back. So in processes with such code, calls by that
//! code, or all calls, get entry callbacks only.
//!
//! ```text
//!   version   even | odd while the ranges are written
//!   len       how many ranges there are
//!   ranges    start, end | start, end | ...     by address, none overlaps another
//! ```
//!
//! Writers have a lock of their own. A reader that meets a writer does not wait, because it may be
//! a signal handler in the writer's thread: it treats the caller as one that must not meet our
//! return address.

use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering, fence};

/// The most ranges that can be listed; code in further ranges counts as code that must not meet our
/// return address.
pub const MAX_RANGES: usize = 2048;

/// The rule that all callers have their returns traced.
const ALL: u8 = 0;
/// The rule that callers in the listed ranges have their returns traced.
const LISTED: u8 = 1;
/// The rule that no caller has its returns traced.
const NONE: u8 = 2;

/// The callers whose calls are traced with their returns.
#[derive(Debug)]
pub struct Callers {
    rule: AtomicU8,
    version: AtomicUsize,
    len: AtomicUsize,
    ranges: [[AtomicUsize; 2]; MAX_RANGES],
}

impl Callers {
    /// Starts with all callers.
    pub(crate) const fn new() -> Self {
        Self {
            rule: AtomicU8::new(ALL),
            version: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            ranges: [const { [const { AtomicUsize::new(0) }; 2] }; MAX_RANGES],
        }
    }

    /// Restricts returns to callers whose code is in `ranges`, from now on. The ranges are in the
    /// order of addresses and do not overlap. Only one thread at a time may call this.
    pub fn list(&self, ranges: impl Iterator<Item = Range<usize>>) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        // Pairs with the fence of a reader: a reader that loads any of the following stores finds
        // the version odd, or changed.
        fence(Ordering::Release);
        let mut len = 0;
        for (range, place) in ranges.zip(&self.ranges) {
            place[0].store(range.start, Ordering::Relaxed);
            place[1].store(range.end, Ordering::Relaxed);
            len += 1;
        }
        self.len.store(len, Ordering::Relaxed);
        // Release: a reader that loads the even version reads these ranges.
        self.version.store(version + 2, Ordering::Release);
        let _ = self
            .rule
            .compare_exchange(ALL, LISTED, Ordering::Release, Ordering::Relaxed);
    }

    /// Traces no returns, from now on and permanently.
    pub fn list_none(&self) {
        self.rule.store(NONE, Ordering::Release);
    }

    /// Returns true if a call that returns to `return_address` is traced with its return.
    #[inline]
    pub fn may_be_misled(&self, return_address: usize) -> bool {
        // Acquire: pairs with the Release of `list`, before which the ranges are written.
        match self.rule.load(Ordering::Acquire) {
            ALL => true,
            LISTED => self.is_listed(return_address),
            _ => false,
        }
    }

    /// Returns true if some callers have their returns traced, and others do not.
    pub(crate) fn is_selective(&self) -> bool {
        self.rule.load(Ordering::Relaxed) == LISTED
    }

    fn is_listed(&self, address: usize) -> bool {
        // Acquire: the ranges are at least as new as this version.
        let version = self.version.load(Ordering::Acquire);
        let len = self.len.load(Ordering::Relaxed).min(MAX_RANGES);
        let [start, end] = [0, 1].map(|which: usize| {
            move |range: &[AtomicUsize; 2]| range[which].load(Ordering::Relaxed)
        });
        let ranges = &self.ranges[..len];
        let behind = ranges.partition_point(|range| start(range) <= address);
        let is_in = behind > 0 && address < end(&ranges[behind - 1]);
        // Pairs with the fence of `list`.
        fence(Ordering::Acquire);
        is_in && version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::iter;

    #[test]
    fn all_callers_may_be_misled_until_some_are_listed() {
        let callers = Callers::new();
        assert!(callers.may_be_misled(0) && callers.may_be_misled(usize::MAX));
        callers.list([16..32, 48..64].into_iter());
        for (address, is_listed) in [(15, false), (16, true), (31, true), (32, false), (63, true)] {
            assert_eq!(callers.may_be_misled(address), is_listed, "{address}");
        }
        callers.list(iter::once(48..64));
        assert!(!callers.may_be_misled(16) && callers.may_be_misled(48));
        callers.list_none();
        assert!(!callers.may_be_misled(48));
        callers.list(iter::once(48..64));
        assert!(!callers.may_be_misled(48), "for good");
    }

    #[test]
    fn a_caller_is_not_listed_while_the_ranges_are_written() {
        let callers = Callers::new();
        callers.list(iter::once(16..32));
        callers.list((0..2).map(|_| {
            assert!(!callers.may_be_misled(16));
            16..32
        }));
        assert!(callers.may_be_misled(16));
    }

    #[test]
    fn ranges_without_room_are_not_listed() {
        let callers = Callers::new();
        callers.list((0..MAX_RANGES + 1).map(|at| at * 2..at * 2 + 1));
        assert!(callers.may_be_misled(2 * (MAX_RANGES - 1)));
        assert!(!callers.may_be_misled(2 * MAX_RANGES));
    }
}
