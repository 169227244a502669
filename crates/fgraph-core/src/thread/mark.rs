//! Which callback a thread is in, for those who wait until it is over.

use crate::MAX_USERS;
use crate::primitive::{AtomicU32, Ordering};

/// Which slot's callback a thread is in.
#[derive(Debug)]
pub struct Mark(AtomicU32);

impl Mark {
    /// The value of a mark that names no slot: the number of the stub behind the slots.
    pub const NONE: u32 = MAX_USERS as u32;

    /// The mark of a thread that is in no dispatch.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self(AtomicU32::new(Self::NONE))
    }

    /// The mark of a thread that is in no dispatch.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self(AtomicU32::new(Self::NONE))
    }

    /// The thread is about to call slot `index`.
    #[inline(always)]
    pub fn set(&self, index: usize) {
        // Release: leaving the previous slot's callback is part of this store, see `clear`.
        self.0.store(index as u32, Ordering::Release);
    }

    /// The slot that was set last.
    #[inline(always)]
    pub fn get(&self) -> u32 {
        // Relaxed: read by the thread that set it.
        self.0.load(Ordering::Relaxed)
    }

    /// The thread is in no callback.
    #[inline(always)]
    pub fn clear(&self) {
        // Release pairs with the Acquire in `is`: what the callback did happens before the user's
        // value is handed back.
        self.0.store(Self::NONE, Ordering::Release);
    }

    /// Whether the thread is, or is about to be, in a callback of slot `index`.
    pub fn is(&self, index: usize) -> bool {
        self.0.load(Ordering::Acquire) == index as u32
    }

    /// Whether the thread is in a callback of any user.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed) != Self::NONE
    }
}

/// What tells which callback a thread is in.
pub trait Marked {
    /// Whether the thread is, or is about to be, in a callback of slot `index`.
    fn is_in(&self, index: usize) -> bool;
}

impl Marked for Mark {
    fn is_in(&self, index: usize) -> bool {
        self.is(index)
    }
}

impl Default for Mark {
    fn default() -> Self {
        Self::new()
    }
}
