//! Counters of untraced calls, by reason.
//!
//! Each thread counts on its own, in cache lines that no other thread writes: once for the thread
//! and once for each user concerned. The counts never decrease; a user's counts start at its
//! registration.

use core::fmt;
use core::ops::{AddAssign, Sub};
use core::sync::atomic::{AtomicU64, Ordering};

/// The numbers of calls that were not traced, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Calls made while the thread was inside a callback.
    pub missed: u64,
    /// Calls made while fgraph itself worked in the thread: registering users, changing filters or
    /// reading symbols.
    pub internal: u64,
    /// Calls for which the shadow stack had no room, or the machine stack: near its end.
    pub overrun: u64,
    /// Calls not dispatched to a user because there was no room for its data.
    pub unreserved: u64,
    /// Accepted calls that never returned, because `longjmp` or the like dropped their frames.
    pub lost: u64,
    /// Calls on a machine stack that could not be given a shadow stack.
    pub no_shadow_stack: u64,
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        self.missed += other.missed;
        self.internal += other.internal;
        self.overrun += other.overrun;
        self.unreserved += other.unreserved;
        self.lost += other.lost;
        self.no_shadow_stack += other.no_shadow_stack;
    }
}

impl Sub for Counters {
    type Output = Self;

    fn sub(self, since: Self) -> Self {
        Self {
            missed: self.missed - since.missed,
            internal: self.internal - since.internal,
            overrun: self.overrun - since.overrun,
            unreserved: self.unreserved - since.unreserved,
            lost: self.lost - since.lost,
            no_shadow_stack: self.no_shadow_stack - since.no_shadow_stack,
        }
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "missed {}, internal {}, overrun {}, unreserved {}, lost {}, no shadow stack {}",
            self.missed,
            self.internal,
            self.overrun,
            self.unreserved,
            self.lost,
            self.no_shadow_stack
        )
    }
}

/// The counters of a thread or user: one writer, any number of readers.
///
/// 64 bytes each, so that the assembly computes the address for slot *k* with a shift.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct LiveCounters {
    /// See [`Counters::missed`]. First, because the entry trampoline counts it itself.
    pub missed: AtomicU64,
    /// See [`Counters::internal`]. The entry trampoline counts it, too.
    pub internal: AtomicU64,
    /// See [`Counters::overrun`].
    pub overrun: AtomicU64,
    /// See [`Counters::unreserved`].
    pub unreserved: AtomicU64,
    /// See [`Counters::lost`].
    pub lost: AtomicU64,
    /// See [`Counters::no_shadow_stack`].
    pub no_shadow_stack: AtomicU64,
}

impl LiveCounters {
    /// Starts with all counters at zero.
    pub const fn new() -> Self {
        Self {
            missed: AtomicU64::new(0),
            internal: AtomicU64::new(0),
            overrun: AtomicU64::new(0),
            unreserved: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            no_shadow_stack: AtomicU64::new(0),
        }
    }

    /// Sets all counters.
    pub(crate) fn set(&self, to: Counters) {
        // Relaxed: the counts are independent of each other and of other data.
        self.missed.store(to.missed, Ordering::Relaxed);
        self.internal.store(to.internal, Ordering::Relaxed);
        self.overrun.store(to.overrun, Ordering::Relaxed);
        self.unreserved.store(to.unreserved, Ordering::Relaxed);
        self.lost.store(to.lost, Ordering::Relaxed);
        self.no_shadow_stack
            .store(to.no_shadow_stack, Ordering::Relaxed);
    }

    /// Reads the counters.
    pub fn read(&self) -> Counters {
        // Relaxed: the counts are independent of each other and of other data.
        Counters {
            missed: self.missed.load(Ordering::Relaxed),
            internal: self.internal.load(Ordering::Relaxed),
            overrun: self.overrun.load(Ordering::Relaxed),
            unreserved: self.unreserved.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
            no_shadow_stack: self.no_shadow_stack.load(Ordering::Relaxed),
        }
    }
}

/// Adds one. Only the thread that owns the counter calls this, so no locked instruction is needed.
#[inline(always)]
pub(crate) fn bump(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}
