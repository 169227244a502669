//! Versions of data that one thread changes while others read it: sequence locks.

use core::sync::atomic::{AtomicU64, Ordering, fence};
use std::thread;

/// Number of times that data is read until it is whole.
const ATTEMPTS: usize = 100;

/// Version of some data; it is odd while the data changes. The data are atomics, which both sides
/// access with [`Relaxed`](Ordering::Relaxed).
#[derive(Debug, Default)]
pub(crate) struct Version(AtomicU64);

impl Version {
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Changes the data. Only one thread at a time may do so. If a change is left by `longjmp`, the
    /// data is not whole until the next one.
    #[inline(always)]
    pub(crate) fn change(&self, change: impl FnOnce()) {
        let version = self.0.load(Ordering::Relaxed) | 1;
        self.0.store(version, Ordering::Relaxed);
        // Pairs with the Acquire fence in `read`: a reader that sees a part of the change sees the
        // odd version.
        fence(Ordering::Release);
        change();
        // Release: pairs with the first load in `read`.
        self.0.store(version.wrapping_add(1), Ordering::Release);
    }

    /// Reads the data. It is an error if the data has changed meanwhile: then it is not whole.
    pub(crate) fn read<R>(&self, read: impl FnOnce() -> R) -> Result<R, R> {
        // Acquire: pairs with the last store in `change`.
        let version = self.0.load(Ordering::Acquire);
        let data = read();
        // Pairs with the Release fence in `change`.
        fence(Ordering::Acquire);
        match version.is_multiple_of(2) && self.0.load(Ordering::Relaxed) == version {
            true => Ok(data),
            false => Err(data),
        }
    }

    /// Does the same as [`read`](Self::read), again if the data is not whole, a hundred times at
    /// most.
    pub(crate) fn read_whole<R>(&self, mut read: impl FnMut() -> R) -> Result<R, R> {
        for _ in 1..ATTEMPTS {
            if let Ok(data) = self.read(&mut read) {
                return Ok(data);
            }
            thread::yield_now();
        }
        self.read(read)
    }
}

#[cfg(test)]
mod tests;
