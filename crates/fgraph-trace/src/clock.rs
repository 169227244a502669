//! The clock of events, and the conversion of its ticks to nanoseconds.

#[cfg(all(target_os = "linux", target_arch = "x86_64", not(miri)))]
mod faults;

use core::fmt;
use std::time::{Duration, Instant};
#[cfg(not(unix))]
use std::time::{SystemTime, UNIX_EPOCH};

/// The source of the ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ClockKind {
    /// The processor's time stamp counter, which runs at one rate whatever the processor does.
    Tsc = 1,
    /// The system's monotonic clock, in nanoseconds.
    Monotonic = 2,
}

impl ClockKind {
    /// Returns the better clock of this machine.
    ///
    /// That is the counter if the processor says that it is invariant and Linux has not given it up
    /// for another clock.
    #[must_use]
    pub fn of_this_machine() -> Self {
        if tsc::is_invariant() {
            Self::Tsc
        } else {
            Self::Monotonic
        }
    }

    pub(crate) fn from_bits(bits: u64) -> Option<Self> {
        match bits {
            1 => Some(Self::Tsc),
            2 => Some(Self::Monotonic),
            _ => None,
        }
    }

    /// Reads the clock, in ticks. On a machine without the counter, its ticks are those of the
    /// monotonic clock.
    ///
    /// Neither allocates nor locks, and may be called in a signal handler.
    #[inline(always)]
    #[must_use]
    pub fn now(self) -> u64 {
        match self {
            Self::Tsc => tsc::read(),
            Self::Monotonic => monotonic(),
        }
    }

    /// Reads the clock like [`now`](Self::now) where that takes one instruction. Returns `None`
    /// where it takes a call, which may change any register.
    #[inline(always)]
    #[must_use]
    pub fn now_at_once(self) -> Option<u64> {
        match self {
            Self::Tsc => tsc::read_at_once(),
            Self::Monotonic => None,
        }
    }
}

/// The values of all clocks at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Anchor {
    /// The clock of the events, in ticks.
    pub ticks: u64,
    /// The system's monotonic clock, in nanoseconds.
    pub monotonic: u64,
    /// Nanoseconds since 1970, UTC.
    pub realtime: u64,
}

impl Anchor {
    /// An anchor from the stored readings of the clocks.
    #[must_use]
    pub const fn new(ticks: u64, monotonic: u64, realtime: u64) -> Self {
        Self {
            ticks,
            monotonic,
            realtime,
        }
    }

    /// Reads all clocks.
    ///
    /// Neither allocates nor locks, and may be called in a signal handler.
    #[must_use]
    pub fn now(kind: ClockKind) -> Self {
        // The thread may lose its processor between two readings: keep the attempt that took the
        // shortest time.
        let attempt = || {
            let before = kind.now();
            let (monotonic, realtime) = (monotonic(), realtime());
            let took = kind.now().wrapping_sub(before);
            let anchor = Self {
                ticks: before.wrapping_add(took / 2),
                monotonic,
                realtime,
            };
            (took, anchor)
        };
        let mut best = attempt();
        for _ in 0..3 {
            let next = attempt();
            if next.0 < best.0 {
                best = next;
            }
        }
        best.1
    }
}

/// A time of the monotonic clock as the kernel's tracers write it: seconds, padded to five columns,
/// with six decimals.
///
/// ```
/// # use fgraph_trace::clock::Timestamp;
/// assert_eq!(Timestamp(12_000_345_999).to_string(), "   12.000345");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(
    /// Nanoseconds.
    pub u64,
);

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = self.0 / 1000;
        write!(f, "{:>5}.{:06}", us / 1_000_000, us % 1_000_000)
    }
}

/// Converts ticks to nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    kind: ClockKind,
    first: Anchor,
    ticks_per_second: u64,
    /// Nanoseconds per tick, times 2^32.
    factor: u64,
}

/// The shortest time between two anchors from which a rate is computed.
const FAR_APART: Duration = Duration::from_millis(100);
/// Time for which the rate is measured where no anchors give it: exact to a few parts in 10,000.
const MEASURED: Duration = Duration::from_micros(500);

impl Clock {
    /// Returns the time at which the clock showed `ticks`, for display.
    #[must_use]
    pub fn timestamp(&self, ticks: u64) -> Timestamp {
        Timestamp(self.monotonic(ticks))
    }

    /// Starts a clock of this machine. Measures the rate of the counter, which takes half a
    /// millisecond.
    #[must_use]
    pub fn start(kind: ClockKind) -> Self {
        let first = Anchor::now(kind);
        if kind == ClockKind::Monotonic {
            return Self::new(kind, first, 1_000_000_000);
        }
        let begin = Instant::now();
        while begin.elapsed() < MEASURED {
            core::hint::spin_loop();
        }
        let rate = rate(&first, &Anchor::now(kind)).unwrap_or(1_000_000_000);
        Self::new(kind, first, rate)
    }

    /// Makes a clock from its first reading and its rate in ticks per second. A rate of 0 means one
    /// tick per nanosecond.
    #[must_use]
    pub fn new(kind: ClockKind, first: Anchor, ticks_per_second: u64) -> Self {
        let rate = match ticks_per_second {
            0 => 1_000_000_000,
            rate => rate,
        };
        let factor = (1_000_000_000_u128 << 32) / u128::from(rate);
        Self {
            kind,
            first,
            ticks_per_second: rate,
            factor: u64::try_from(factor).unwrap_or(u64::MAX),
        }
    }

    /// Computes the rate from the time between the first anchor and `later`, if that time is long
    /// enough.
    pub fn refine(&mut self, later: &Anchor) {
        let between = later.monotonic.saturating_sub(self.first.monotonic);
        if self.kind != ClockKind::Monotonic
            && between >= FAR_APART.as_nanos() as u64
            && let Some(rate) = rate(&self.first, later)
        {
            *self = Self::new(self.kind, self.first, rate);
        }
    }

    /// Returns the source of the ticks.
    #[must_use]
    pub fn kind(&self) -> ClockKind {
        self.kind
    }

    /// Returns the clocks' values at the beginning of the recording.
    #[must_use]
    pub fn first(&self) -> Anchor {
        self.first
    }

    /// Returns the rate in ticks per second, as far as it is known.
    #[must_use]
    pub fn ticks_per_second(&self) -> u64 {
        self.ticks_per_second
    }

    /// Converts a number of ticks to nanoseconds.
    #[inline]
    #[must_use]
    pub fn nanoseconds(&self, ticks: u64) -> u64 {
        let ns = (u128::from(ticks) * u128::from(self.factor)) >> 32;
        ns.min(u64::MAX.into()) as u64
    }

    /// Converts a number of nanoseconds to ticks.
    #[must_use]
    pub fn ticks(&self, nanoseconds: u64) -> u64 {
        let ticks = u128::from(nanoseconds) * u128::from(self.ticks_per_second) / 1_000_000_000;
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }

    /// Returns the monotonic clock at `ticks`, in nanoseconds.
    #[inline]
    #[must_use]
    pub fn monotonic(&self, ticks: u64) -> u64 {
        self.at(self.first.monotonic, ticks)
    }

    /// Returns the time at `ticks`, in nanoseconds since 1970, UTC. Steps of the system's clock are
    /// not followed.
    #[must_use]
    pub fn realtime(&self, ticks: u64) -> u64 {
        self.at(self.first.realtime, ticks)
    }

    #[inline]
    fn at(&self, first: u64, ticks: u64) -> u64 {
        match ticks.checked_sub(self.first.ticks) {
            Some(since) => first.saturating_add(self.nanoseconds(since)),
            None => first.saturating_sub(self.nanoseconds(self.first.ticks - ticks)),
        }
    }
}

/// Returns the rate between two anchors, in ticks per second.
fn rate(first: &Anchor, later: &Anchor) -> Option<u64> {
    let ticks = later.ticks.checked_sub(first.ticks)?;
    let ns = later.monotonic.checked_sub(first.monotonic)?;
    let rate = (u128::from(ticks) * 1_000_000_000).checked_div(u128::from(ns))?;
    u64::try_from(rate).ok().filter(|&rate| rate != 0)
}

/// Makes clocks readable in threads that get SIGSEGV when they read the processor's counter. Call
/// this before a thread requests that with `PR_SET_TSC`. From then on a reading takes about a
/// microsecond.
pub fn expect_faults() {
    #[cfg(all(target_os = "linux", target_arch = "x86_64", not(miri)))]
    faults::expect();
}

#[cfg(unix)]
fn clock_gettime(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    #[cfg(all(target_os = "linux", target_arch = "x86_64", not(miri)))]
    let is_read = faults::are_expected() && {
        faults::clock_gettime(clock, &mut time);
        true
    };
    #[cfg(not(all(target_os = "linux", target_arch = "x86_64", not(miri))))]
    let is_read = false;
    if !is_read {
        // SAFETY: `clock_gettime` writes to a live local, and each of the requested clocks exists
        // on every Linux.
        unsafe { libc::clock_gettime(clock, &mut time) };
    }
    (time.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec as u64)
}

/// The system's monotonic clock, in nanoseconds.
#[inline]
fn monotonic() -> u64 {
    #[cfg(unix)]
    return clock_gettime(libc::CLOCK_MONOTONIC);
    #[cfg(not(unix))]
    {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

/// Nanoseconds since 1970.
fn realtime() -> u64 {
    #[cfg(unix)]
    return clock_gettime(libc::CLOCK_REALTIME);
    #[cfg(not(unix))]
    {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.map_or(0, |since| since.as_nanos() as u64)
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod tsc {
    use core::arch::x86_64::{__cpuid, _rdtsc};

    #[allow(unused_unsafe, reason = "later compilers know that it is safe")]
    pub(super) fn is_invariant() -> bool {
        // SAFETY: every processor of this architecture has the instruction.
        let invariant = unsafe {
            __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & 1 << 8 != 0
        };
        invariant && !is_given_up()
    }

    /// Returns true if Linux has found that the counters of the processors differ.
    fn is_given_up() -> bool {
        let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        let name = std::fs::read_to_string(path).unwrap_or_default();
        matches!(
            name.trim(),
            "hpet" | "acpi_pm" | "jiffies" | "refined-jiffies"
        )
    }

    #[inline(always)]
    #[allow(unused_unsafe, reason = "later compilers know that it is safe")]
    fn counter() -> u64 {
        // SAFETY: every processor of this architecture has the instruction. A program that the
        // system keeps from using it is not told that the counter is invariant.
        unsafe { _rdtsc() }
    }

    #[inline(always)]
    pub(super) fn read() -> u64 {
        #[cfg(target_os = "linux")]
        if super::faults::are_expected() {
            return super::faults::without(counter);
        }
        counter()
    }

    /// Reads the counter if the thread may read it.
    #[inline(always)]
    pub(super) fn read_at_once() -> Option<u64> {
        #[cfg(target_os = "linux")]
        if super::faults::are_expected() {
            return None;
        }
        Some(counter())
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod tsc {
    pub(super) fn is_invariant() -> bool {
        false
    }

    pub(super) fn read() -> u64 {
        super::monotonic()
    }

    pub(super) fn read_at_once() -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Anchor = Anchor {
        ticks: 1_000_000,
        monotonic: 5_000_000_000,
        realtime: 7_000_000_000,
    };

    #[test]
    fn ticks_become_nanoseconds_before_and_after_the_anchor() {
        let clock = Clock::new(ClockKind::Tsc, FIRST, 2_000_000_000);
        assert_eq!(clock.nanoseconds(2000), 1000);
        assert_eq!(clock.ticks(1000), 2000);
        assert_eq!(clock.ticks(u64::MAX), u64::MAX);
        assert_eq!(clock.monotonic(FIRST.ticks + 2000), 5_000_001_000);
        assert_eq!(clock.monotonic(FIRST.ticks - 2000), 4_999_999_000);
        assert_eq!(clock.realtime(FIRST.ticks + 2000), 7_000_001_000);
        assert_eq!(clock.nanoseconds(u64::MAX), u64::MAX / 2);
    }

    #[test]
    fn a_later_anchor_says_how_fast_the_ticks_come() {
        let mut clock = Clock::new(ClockKind::Tsc, FIRST, 2_000_000_000);
        let later = |ms: u64| Anchor {
            ticks: FIRST.ticks + ms * 3_000_000,
            monotonic: FIRST.monotonic + ms * 1_000_000,
            realtime: 0,
        };
        clock.refine(&later(1));
        assert_eq!(clock.ticks_per_second(), 2_000_000_000);
        clock.refine(&later(1000));
        assert_eq!(clock.ticks_per_second(), 3_000_000_000);
    }

    #[test]
    fn anchors_that_make_no_sense_change_nothing() {
        let mut clock = Clock::new(ClockKind::Tsc, FIRST, 0);
        assert_eq!(clock.ticks_per_second(), 1_000_000_000);
        for (ticks, monotonic) in [(0, u64::MAX), (FIRST.ticks, u64::MAX), (u64::MAX, 0)] {
            let realtime = 0;
            clock.refine(&Anchor {
                ticks,
                monotonic,
                realtime,
            });
            assert_eq!(clock.ticks_per_second(), 1_000_000_000);
        }
    }

    #[test]
    #[cfg(all(target_os = "linux", target_arch = "x86_64", not(miri)))]
    fn the_counter_is_read_where_the_program_gets_a_signal_for_it() {
        expect_faults();
        let mode = || {
            let mut mode = 0;
            // SAFETY: `prctl` writes to the live local only.
            assert_eq!(unsafe { libc::prctl(libc::PR_GET_TSC, &mut mode) }, 0);
            mode
        };
        let (kind, first) = (ClockKind::Tsc, ClockKind::Tsc.now());
        let thread = std::thread::spawn(move || {
            // SAFETY: no pointer is passed; this thread reads the counter through `ClockKind` only.
            let forbidden = unsafe { libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_SIGSEGV) };
            assert_eq!(forbidden, 0);
            let (tsc, monotonic) = (kind.now(), ClockKind::Monotonic.now());
            assert_eq!(mode(), libc::PR_TSC_SIGSEGV);
            // SAFETY: no pointer is passed, and reading the counter is allowed again.
            let allowed = unsafe { libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_ENABLE) };
            assert_eq!(allowed, 0);
            (tsc, monotonic)
        });
        let (tsc, monotonic) = thread.join().unwrap();
        assert!(first < tsc && tsc < kind.now());
        assert!(monotonic <= ClockKind::Monotonic.now());
        assert_eq!(mode(), libc::PR_TSC_ENABLE);
    }

    #[test]
    fn the_clock_of_this_machine_agrees_with_the_system() {
        let kind = ClockKind::of_this_machine();
        let clock = Clock::start(kind);
        let (ticks, begin) = (kind.now(), Instant::now());
        while begin.elapsed() < Duration::from_millis(20) {
            core::hint::spin_loop();
        }
        let took = begin.elapsed();
        let ours = Duration::from_nanos(clock.nanoseconds(kind.now() - ticks));
        assert!(ours >= took.mul_f64(0.9), "{ours:?} of {took:?}");
    }
}
