//! The calls that a user has redirected and that have not returned.
//!
//! A redirected call runs its target after the callbacks are over, so the grace period of the user
//! says nothing of it. The target may go away once the count here is zero and stays so:
//!
//! ```text
//!   thread, in the callback                 thread that unregisters the user
//!     calls += 1                              set CLOSED
//!     if CLOSED: calls -= 1, refuse           wait until calls is 0, then read lost
//!     put the target in the body's place      unregister the user, free the target
//!     ...
//!   at return, in the machine layer
//!     calls -= 1
//! ```
//!
//! `CLOSED` and `calls` are one word. Either the count is seen by the thread that waits, or
//! `CLOSED` by the one that redirects.
//!
//! Nobody hears of the return of a call that the user has redirected but not accepted: such a call
//! is *lost*, and the target may never go away.

use core::sync::atomic::{AtomicU64, Ordering};

/// Set while the user may not redirect calls.
const CLOSED: u64 = 1 << 63;

/// Counts of redirected calls.
#[derive(Debug)]
pub struct Redirects {
    /// Calls that have not returned, and [`CLOSED`].
    calls: AtomicU64,
    /// Calls whose return nobody hears of.
    lost: AtomicU64,
    /// True if the user's returns are counted off. If not, every call is lost.
    is_counted: bool,
}

impl Redirects {
    /// Redirected calls of a user whose returns are not counted.
    pub(crate) const fn new() -> Self {
        Self {
            calls: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            is_counted: false,
        }
    }

    /// Redirected calls of a user whose returns are counted.
    pub(crate) const fn counted() -> Self {
        Self {
            is_counted: true,
            ..Self::new()
        }
    }

    /// Counts a call that is about to be redirected. Returns false if it must not be.
    pub(crate) fn begin(&self) -> bool {
        self.count().fetch_add(1, Ordering::SeqCst);
        let is_open = self.calls.load(Ordering::SeqCst) & CLOSED == 0;
        if !is_open {
            self.cancel();
        }
        is_open
    }

    /// Undoes [`begin`](Self::begin) for a call that is not redirected after all.
    pub(crate) fn cancel(&self) {
        self.count().fetch_sub(1, Ordering::SeqCst);
    }

    /// Counts a call off that has returned.
    pub(crate) fn end(&self) {
        self.calls.fetch_sub(1, Ordering::SeqCst);
    }

    /// Notes that nobody will hear of the return of a call that has begun.
    #[cold]
    pub(crate) fn lose(&self) {
        if self.is_counted {
            // First, so that a thread that finds no calls finds the loss.
            self.lost.fetch_add(1, Ordering::SeqCst);
            self.end();
        }
    }

    /// Where a call that begins is counted.
    fn count(&self) -> &AtomicU64 {
        match self.is_counted {
            true => &self.calls,
            false => &self.lost,
        }
    }

    /// Forbids the user to redirect calls from now on, or allows it again.
    pub fn close(&self, is_closed: bool) {
        match is_closed {
            true => self.calls.fetch_or(CLOSED, Ordering::SeqCst),
            false => self.calls.fetch_and(!CLOSED, Ordering::SeqCst),
        };
    }

    /// Returns the number of calls that have not returned, and that of calls that may not have.
    pub fn in_flight(&self) -> (u64, u64) {
        let calls = self.calls.load(Ordering::SeqCst) & !CLOSED;
        (calls, self.lost.load(Ordering::SeqCst))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_closed_count_takes_no_more_calls() {
        let redirects = Redirects::counted();
        assert!(redirects.begin() && redirects.begin());
        redirects.close(true);
        assert!(!redirects.begin());
        assert_eq!(redirects.in_flight(), (2, 0));
        redirects.end();
        redirects.lose();
        assert_eq!(redirects.in_flight(), (0, 1));
        redirects.close(false);
        assert!(redirects.begin());
        assert_eq!(redirects.in_flight(), (1, 1));
        redirects.cancel();
        assert_eq!(redirects.in_flight(), (0, 1));
    }

    #[test]
    fn every_call_is_lost_where_returns_are_not_counted() {
        let redirects = Redirects::new();
        assert!(redirects.begin());
        redirects.lose();
        assert_eq!(redirects.in_flight(), (0, 1));
        redirects.close(true);
        assert!(!redirects.begin());
        assert_eq!(redirects.in_flight(), (0, 1));
    }
}
