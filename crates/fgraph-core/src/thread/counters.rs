//! What was not traced, and why.
//!
//! Each thread counts on its own, in lines that no other thread writes, once for the thread and
//! once for each user concerned. The numbers only ever grow; a user's numbers are those since its
//! registration.

use core::fmt;
use core::ops::{AddAssign, Sub};
use core::sync::atomic::{AtomicU64, Ordering};

/// Why calls or returns were not seen, each a number of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Calls made while the thread was inside a callback.
    pub missed: u64,
    /// Calls made while fgraph itself worked in the thread: by what registers users, changes
    /// filters or reads symbols.
    pub internal: u64,
    /// Calls for which the shadow stack had no room.
    pub overrun: u64,
    /// Calls not offered to a user because its data found no room.
    pub unreserved: u64,
    /// Accepted calls that never returned: a `longjmp` or the like dropped their frames.
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

/// The counters as a thread keeps them: one writer, any number of readers.
///
/// 64 bytes each, so that the assembly reaches those of slot *k* with a shift.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct LiveCounters {
    /// See [`Counters::missed`]. First, because the entry trampoline counts it by itself.
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
    /// Counters that are all zero.
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
        // Relaxed, as in `read`.
        self.missed.store(to.missed, Ordering::Relaxed);
        self.internal.store(to.internal, Ordering::Relaxed);
        self.overrun.store(to.overrun, Ordering::Relaxed);
        self.unreserved.store(to.unreserved, Ordering::Relaxed);
        self.lost.store(to.lost, Ordering::Relaxed);
        self.no_shadow_stack
            .store(to.no_shadow_stack, Ordering::Relaxed);
    }

    /// The numbers at this moment.
    pub fn read(&self) -> Counters {
        // Relaxed: the numbers are independent of each other and of any other data.
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
