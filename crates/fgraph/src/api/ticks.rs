//! A clock for callbacks.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::arch::clock;

/// A moment on the processor's time stamp counter. A callback stores one at entry, and computes the
/// duration of the call at return.
///
/// [`std::time::Instant`] calls the C library, which fgraph's analysis cannot follow. So a callback
/// that uses it has all registers saved at each call, in addition to the time that reading the
/// clock takes. `Ticks` keeps a user on the fast path: see
/// [`Handle::fast_path`](crate::Handle::fast_path).
///
/// Only on a machine whose counter does not run at a constant rate, moments come from the kernel's
/// monotonic clock, which takes a system call each.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use fgraph::{Entry, FgraphOps, Return, Ticks};
///
/// /// Adds up how long calls take, in nanoseconds.
/// #[derive(Default)]
/// struct Total(AtomicU64);
///
/// impl FgraphOps for Total {
///     type Data = Ticks;
///
///     fn entry(&self, _call: &mut Entry<'_, Ticks>) -> Option<Ticks> {
///         Some(Ticks::now())
///     }
///
///     fn ret(&self, _call: &mut Return<'_, Ticks>, entered: Ticks) {
///         self.0.fetch_add(entered.elapsed_ns(), Ordering::Relaxed);
///     }
/// }
/// # let entered = Ticks::now();
/// # std::thread::sleep(std::time::Duration::from_millis(1));
/// # assert!(entered.elapsed_ns() >= 1_000_000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Ticks(u64);

/// 0 until the first moment is read, then [`COUNTER`] or [`SYSTEM`].
static SOURCE: AtomicU32 = AtomicU32::new(0);
const COUNTER: u32 = 1;
const SYSTEM: u32 = 2;

/// The first values of the counter and the kernel's clock; the latter is 0 until both are known.
static FIRST_TICKS: AtomicU64 = AtomicU64::new(0);
static FIRST_NS: AtomicU64 = AtomicU64::new(0);
/// 1 once a thread is setting these.
static IS_SET: AtomicU32 = AtomicU32::new(0);

/// Nanoseconds of a tick, times 2^32; 0 while it is not known well enough.
static RATE: AtomicU64 = AtomicU64::new(0);

/// Nanoseconds of measuring after which the rate is final.
const LONG: u64 = 10_000_000;
/// Nanoseconds of measuring before which the rate is not good enough.
const SHORT: u64 = 100_000;

impl Ticks {
    /// Returns the current moment.
    ///
    /// Neither allocates nor locks, and may be called in a signal handler. A thread that has
    /// forbidden itself to read the counter (`PR_SET_TSC`) gets SIGSEGV.
    #[inline(always)]
    #[must_use]
    pub fn now() -> Self {
        match SOURCE.load(Ordering::Relaxed) {
            COUNTER => Self(clock::counter()),
            _ => Self::now_slowly(),
        }
    }

    /// Returns the nanoseconds since this moment.
    ///
    /// Behaves like [`now`](Self::now). In the first 10 ms after the first moment of the process it
    /// makes a system call to measure the rate of the counter, and in the first tenth of a
    /// millisecond it waits until that time is over.
    #[inline]
    #[must_use]
    pub fn elapsed_ns(self) -> u64 {
        Self::now().ns_since(self)
    }

    /// Returns the nanoseconds from an earlier moment to this one; 0 if that one is later. Behaves
    /// like [`elapsed_ns`](Self::elapsed_ns).
    #[inline]
    #[must_use]
    pub fn ns_since(self, earlier: Self) -> u64 {
        let rate = match RATE.load(Ordering::Relaxed) {
            0 => measure(),
            rate => rate,
        };
        let ticks = self.0.saturating_sub(earlier.0);
        (u128::from(ticks).wrapping_mul(rate.into()) >> 32) as u64
    }

    /// Reads the time, and sets up the source of ticks if there is none yet. Uses the C ABI, so
    /// that compilers know that it does not unwind: callbacks that call it need not catch a panic.
    #[cold]
    #[inline(never)]
    extern "C" fn now_slowly() -> Self {
        if SOURCE.load(Ordering::Relaxed) == SYSTEM {
            return Self(clock::monotonic());
        }
        if !clock::has_steady_counter() {
            RATE.store(1 << 32, Ordering::Relaxed);
            SOURCE.store(SYSTEM, Ordering::Relaxed);
            return Self(clock::monotonic());
        }
        if IS_SET.swap(1, Ordering::Relaxed) == 0 {
            let (ticks, ns) = both();
            FIRST_TICKS.store(ticks, Ordering::Relaxed);
            // Release: pairs with the Acquire in `measure`.
            FIRST_NS.store(ns, Ordering::Release);
        }
        SOURCE.store(COUNTER, Ordering::Relaxed);
        Self(clock::counter())
    }
}

/// Reads the counter and the kernel's clock twice. Returns the reading that took less time, because
/// the thread may lose its processor in between.
///
/// Uses no loop over a range, whose steps compilers may call through pointers.
fn both() -> (u64, u64) {
    let (took, ticks, ns) = read_both();
    let second = read_both();
    match second.0 < took {
        true => (second.1, second.2),
        false => (ticks, ns),
    }
}

/// Returns the ticks that reading both clocks took, and the values of both.
#[inline(always)]
fn read_both() -> (u64, u64, u64) {
    let before = clock::counter();
    let ns = clock::monotonic();
    let took = clock::counter().wrapping_sub(before);
    (took, before.wrapping_add(took / 2), ns)
}

/// Returns the nanoseconds of a tick, times 2^32, as far as they are known. Uses the C ABI for the
/// same reason as [`Ticks::now_slowly`].
#[cold]
#[inline(never)]
extern "C" fn measure() -> u64 {
    // Acquire: the ticks of that moment. Another thread may be about to store them.
    let mut first = FIRST_NS.load(Ordering::Acquire);
    let mut ticks = FIRST_TICKS.load(Ordering::Relaxed);
    if first == 0 {
        (ticks, first) = both();
    }
    loop {
        let (now, ns) = both();
        let (ns, passed) = (ns.saturating_sub(first), now.saturating_sub(ticks));
        if ns < SHORT || passed == 0 {
            core::hint::spin_loop();
            continue;
        }
        // No division has more than 64 bits, which would take a call.
        let excess = 33_u32.saturating_sub(ns.leading_zeros());
        let rate = ((ns >> excess) << 32).checked_div(passed >> excess);
        let rate = rate.unwrap_or(0);
        if ns >= LONG {
            RATE.store(rate, Ordering::Relaxed);
        }
        return rate;
    }
}
