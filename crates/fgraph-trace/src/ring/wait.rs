//! A writer that waits for room, in rings of the mode *block*.
//!
//! The consumer of the rings is another process. A writer whose ring is full sleeps until the
//! consumer gives a sub-buffer back:
//!
//! ```text
//!   writer                            consumer
//!     WAITING = 1                       CONSUMED = n
//!     (fence)                           (fence)
//!     CONSUMED still too small?         PROGRESS + 1
//!     futex wait while it is so         WAITING? futex wake
//! ```
//!
//! Either the writer sees the new `CONSUMED`, or the consumer sees `WAITING`; the kernel compares
//! `CONSUMED` once more before the writer sleeps.
//!
//! A consumer that is stopped, killed, or waits for the program itself must not hold the program
//! up. So a writer gives up where `PROGRESS` stands still for [`PATIENCE`], and drops its events
//! until `PROGRESS` moves.

use core::cell::Cell;
use core::sync::atomic::AtomicBool;

use crate::primitive::{AtomicU64, Ordering, fence};

/// Nanoseconds that a writer waits for a consumer that makes no progress.
const PATIENCE: u64 = 2_000_000_000;
/// Nanoseconds that a writer sleeps before it looks at the consumer again.
const SLICE: u64 = 250_000_000;

/// True if no thread of this process waits.
static IS_FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// Has writers of this process never wait from now on, also in rings of the mode *block*: waiting
/// takes `futex` and `clock_gettime`.
pub(super) fn never_wait() {
    IS_FORBIDDEN.store(true, Ordering::Relaxed);
}

/// Returns true if [`never_wait`] was called.
pub(super) fn is_waiting_forbidden() -> bool {
    // Relaxed: the thread that forbids itself system calls has set it itself, or was made by one
    // that has.
    IS_FORBIDDEN.load(Ordering::Relaxed)
}

/// A ring and its consumer, as words of the headers.
pub(super) struct Waiting<'r> {
    /// How many sub-buffers the consumer has given back. It is the futex.
    pub(super) consumed: &'r AtomicU64,
    /// The same when it was found that there is no room.
    pub(super) found: u64,
    /// 1 while the writer waits.
    pub(super) waiting: &'r AtomicU64,
    /// How many nanoseconds the writer has waited.
    pub(super) waited: &'r AtomicU64,
    /// How often the consumer has made room in any ring.
    pub(super) progress: &'r AtomicU64,
}

impl Waiting<'_> {
    fn moved(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    /// Returns true if the consumer has made room.
    fn has_room(&self) -> bool {
        // Relaxed: the writer loads it with acquire before it overwrites anything.
        self.consumed.load(Ordering::Relaxed) != self.found
    }

    /// Waits until the ring has room; returns false if the writer is to drop its events.
    ///
    /// `gave_up` is the writer's own. `is_over` says that nobody makes room any more, `may_wait`
    /// that the running thread may sleep here.
    pub(super) fn wait(
        &self,
        gave_up: &Cell<u64>,
        is_over: impl Fn() -> bool,
        may_wait: impl FnOnce() -> bool,
    ) -> bool {
        let progress = self.moved();
        // The consumer has not moved since this writer gave up: that was looked at already.
        if gave_up.get() == progress.wrapping_add(1) {
            return false;
        }
        let has_room = !is_waiting_forbidden() && !is_over() && may_wait() && self.sleep(is_over);
        if !has_room {
            gave_up.set(self.moved().wrapping_add(1));
        }
        has_room
    }

    /// Sleeps until the ring has room; returns false if it does not come to that.
    fn sleep(&self, is_over: impl Fn() -> bool) -> bool {
        let begin = system::now();
        let (mut last, mut seen) = (begin, self.moved());
        // Nanoseconds without progress. Where this process is stopped, the consumer may be, too: of
        // such a time no more than a slice counts.
        let mut still = 0_u64;
        let has_room = loop {
            self.waiting.store(1, Ordering::Relaxed);
            // Pairs with the fence in `tell`.
            fence(Ordering::SeqCst);
            if self.has_room() {
                break true;
            }
            // Another thread may have forbidden system calls meanwhile.
            if is_over() || is_waiting_forbidden() {
                break false;
            }
            // A signal ends this early.
            system::wait(self.consumed, self.found, SLICE);
            if is_waiting_forbidden() {
                break self.has_room();
            }
            let (now, progress) = (system::now(), self.moved());
            still = still.saturating_add(now.saturating_sub(last).min(SLICE));
            last = now;
            if progress != seen {
                (seen, still) = (progress, 0);
            } else if still >= PATIENCE {
                break self.has_room();
            }
        };
        self.waiting.store(0, Ordering::Relaxed);
        if !is_waiting_forbidden() {
            let time = system::now().saturating_sub(begin);
            let before = self.waited.load(Ordering::Relaxed);
            self.waited
                .store(before.wrapping_add(time), Ordering::Relaxed);
        }
        has_room
    }
}

/// Says that a consumer has made progress, and wakes the writer of the ring in which it was, by
/// the words of [`Waiting`].
pub(super) fn tell(progress: &AtomicU64, waiting: &AtomicU64, consumed: &AtomicU64) {
    progress.fetch_add(1, Ordering::Relaxed);
    // Pairs with the fence in `Waiting::sleep`.
    fence(Ordering::SeqCst);
    wake(waiting, consumed);
}

/// Wakes the writer of a ring if it waits.
pub(super) fn wake(waiting: &AtomicU64, consumed: &AtomicU64) {
    if waiting.load(Ordering::Relaxed) != 0 {
        system::wake(consumed);
    }
}

#[cfg(all(
    target_os = "linux",
    target_arch = "x86_64",
    target_endian = "little",
    not(miri),
    not(loom)
))]
mod system {
    use core::ptr;

    use crate::primitive::AtomicU64;
    use crate::system_call::system_call;

    /// Nanoseconds on a clock that never goes back. The kernel reads it: the thread may not read
    /// the processor's counter.
    pub(super) fn now() -> u64 {
        let mut time = [0_u64; 2];
        let place = (&raw mut time).expose_provenance();
        let clock = libc::CLOCK_MONOTONIC as usize;
        // SAFETY: the kernel writes seconds and nanoseconds there, which is a live local.
        unsafe { system_call(libc::SYS_clock_gettime, [clock, place, 0, 0, 0]) };
        // SAFETY: the local, which the kernel may have written.
        let [seconds, more] = unsafe { (&raw const time).read_volatile() };
        seconds.wrapping_mul(1_000_000_000).wrapping_add(more)
    }

    /// The lower half of a word, which is what a futex is.
    fn futex(word: &AtomicU64) -> usize {
        ptr::from_ref(word).expose_provenance()
    }

    /// Waits while the lower half of `word` is that of `value`, at most for so many nanoseconds,
    /// of which there is less than a second.
    pub(super) fn wait(word: &AtomicU64, value: u64, nanoseconds: u64) {
        let time = [0, nanoseconds];
        let time = (&raw const time).expose_provenance();
        // Not private: the process that wakes has the memory at another address.
        let operation = libc::FUTEX_WAIT as usize;
        let value = value as u32 as usize;
        // SAFETY: a word and a time that are there, which the kernel reads.
        unsafe { system_call(libc::SYS_futex, [futex(word), operation, value, time, 0]) };
    }

    /// Wakes the threads that wait for `word`.
    pub(super) fn wake(word: &AtomicU64) {
        let (operation, all) = (libc::FUTEX_WAKE as usize, i32::MAX as usize);
        // SAFETY: a word that is there.
        unsafe { system_call(libc::SYS_futex, [futex(word), operation, all, 0, 0]) };
    }
}

/// Where nobody waits.
#[cfg(not(all(
    target_os = "linux",
    target_arch = "x86_64",
    target_endian = "little",
    not(miri),
    not(loom)
)))]
mod system {
    use crate::primitive::AtomicU64;

    pub(super) fn now() -> u64 {
        0
    }

    pub(super) fn wait(_: &AtomicU64, _: u64, _: u64) {
        super::never_wait();
    }

    pub(super) fn wake(_: &AtomicU64) {}
}
