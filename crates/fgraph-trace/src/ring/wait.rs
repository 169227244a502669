//! Blocks a writer that has no room, in rings of the mode *block*.
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
//! Either the writer sees the new `CONSUMED`, or the consumer sees `WAITING`. The kernel compares
//! `CONSUMED` again before the writer sleeps.
//!
//! A consumer that is stopped, was killed, or waits for the program itself must not block the
//! program. So a writer gives up when `PROGRESS` does not change for [`PATIENCE`], and drops its
//! events until `PROGRESS` changes.

use core::cell::Cell;
use core::sync::atomic::AtomicBool;

use crate::primitive::{AtomicU64, Ordering, fence};

/// Nanoseconds that a writer waits for a consumer without progress.
const PATIENCE: u64 = 2_000_000_000;
/// Nanoseconds that a writer sleeps before it checks the consumer again.
const SLICE: u64 = 250_000_000;

/// True if no thread of this process may wait.
static IS_FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// Stops writers of this process from waiting from now on, even in rings of the mode *block*:
/// waiting takes `futex` and `clock_gettime`.
pub(super) fn never_wait() {
    IS_FORBIDDEN.store(true, Ordering::Relaxed);
}

/// Returns true if [`never_wait`] was called.
pub(super) fn is_waiting_forbidden() -> bool {
    // Relaxed: the thread that forbids itself system calls has stored this itself, or a thread that
    // made it has.
    IS_FORBIDDEN.load(Ordering::Relaxed)
}

/// A ring and its consumer, as words of the headers.
pub(super) struct Waiting<'r> {
    /// The number of sub-buffers that the consumer has given back. This word is the futex.
    pub(super) consumed: &'r AtomicU64,
    /// The value of `consumed` when there was no room.
    pub(super) found: u64,
    /// 1 while the writer waits.
    pub(super) waiting: &'r AtomicU64,
    /// Nanoseconds that the writer has waited.
    pub(super) waited: &'r AtomicU64,
    /// The number of times that the consumer has made room in any ring.
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

    /// Waits until the ring has room; returns false if the writer must drop its events.
    ///
    /// `gave_up` belongs to the writer. `is_over` returns true if no process makes room any more,
    /// and `may_wait` if the running thread may sleep here.
    pub(super) fn wait(
        &self,
        gave_up: &Cell<u64>,
        is_over: impl Fn() -> bool,
        may_wait: impl FnOnce() -> bool,
    ) -> bool {
        let progress = self.moved();
        // The consumer has made no progress since this writer gave up: no need to check again.
        if gave_up.get() == progress.wrapping_add(1) {
            return false;
        }
        let has_room = !is_waiting_forbidden() && !is_over() && may_wait() && self.sleep(is_over);
        if !has_room {
            gave_up.set(self.moved().wrapping_add(1));
        }
        has_room
    }

    /// Sleeps until the ring has room; returns false if it gets none.
    fn sleep(&self, is_over: impl Fn() -> bool) -> bool {
        let begin = system::now();
        let (mut last, mut seen) = (begin, self.moved());
        // Nanoseconds without progress. If this process is stopped, the consumer may be, too: at
        // most one slice of such a time counts.
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
            // A signal ends this wait early.
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

/// Announces that a consumer has made progress, and wakes the writer of the ring where it did. The
/// words are those of [`Waiting`].
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

    /// Returns nanoseconds on a clock that never goes back. The kernel reads it, because the thread
    /// may be forbidden to read the processor's counter.
    pub(super) fn now() -> u64 {
        let mut time = [0_u64; 2];
        let place = (&raw mut time).expose_provenance();
        let clock = libc::CLOCK_MONOTONIC as usize;
        // SAFETY: the kernel writes seconds and nanoseconds to a live local.
        unsafe { system_call(libc::SYS_clock_gettime, [clock, place, 0, 0, 0]) };
        // SAFETY: the local is live; the read is volatile because the kernel may have written it.
        let [seconds, more] = unsafe { (&raw const time).read_volatile() };
        seconds.wrapping_mul(1_000_000_000).wrapping_add(more)
    }

    /// Returns the address of the lower half of a word, which is the futex.
    fn futex(word: &AtomicU64) -> usize {
        ptr::from_ref(word).expose_provenance()
    }

    /// Waits while the lower half of `word` equals that of `value`, for at most `nanoseconds`,
    /// which are less than a second.
    pub(super) fn wait(word: &AtomicU64, value: u64, nanoseconds: u64) {
        let time = [0, nanoseconds];
        let time = (&raw const time).expose_provenance();
        // Not private: the waking process has the memory at another address.
        let operation = libc::FUTEX_WAIT as usize;
        let value = value as u32 as usize;
        // SAFETY: the kernel reads a live word and a live time.
        unsafe { system_call(libc::SYS_futex, [futex(word), operation, value, time, 0]) };
    }

    /// Wakes the threads that wait for `word`.
    pub(super) fn wake(word: &AtomicU64) {
        let (operation, all) = (libc::FUTEX_WAKE as usize, i32::MAX as usize);
        // SAFETY: the word is live, and the kernel does not write to it.
        unsafe { system_call(libc::SYS_futex, [futex(word), operation, all, 0, 0]) };
    }
}

/// For systems where no thread waits.
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
