//! The lock for everything that changes the traced functions: a value behind the
//! [gate](crate::process::gate).
//!
//! # Safety
//!
//! The protected value is accessed through the only [`Guard`] that exists while the gate is held.

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::time::Duration;

use crate::process::gate::Gate;

#[derive(Debug)]
pub(super) struct Lock<T> {
    gate: &'static Gate,
    value: UnsafeCell<T>,
}

// SAFETY: only one thread at a time accesses the value.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// Makes a lock for `value` with `gate`.
    ///
    /// # Safety
    ///
    /// No other lock may have the same gate, and no other code may take it.
    pub(super) const unsafe fn new(gate: &'static Gate, value: T) -> Self {
        Self {
            gate,
            value: UnsafeCell::new(value),
        }
    }

    fn guard(&self) -> Guard<'_, T> {
        Guard {
            lock: self,
            value: PhantomData,
        }
    }

    pub(super) fn acquire(&self) -> Guard<'_, T> {
        self.gate.take();
        self.guard()
    }

    /// Calls [`acquire`](Self::acquire) if that need not wait.
    pub(super) fn try_acquire(&self) -> Option<Guard<'_, T>> {
        self.gate.try_take().then(|| self.guard())
    }

    /// Calls [`acquire`](Self::acquire) if that need not wait longer than `patience`.
    pub(super) fn acquire_within(&self, patience: Duration) -> Option<Guard<'_, T>> {
        self.gate.take_within(patience).then(|| self.guard())
    }
}

/// The held lock.
#[derive(Debug)]
pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// Not a reference, which would outlive the lock. Not `Send`: the holder is marked as inside
    /// fgraph, and the marking belongs to its thread.
    value: PhantomData<(&'a mut T, *const ())>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: there is no other guard.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: there is no other guard, and this one is borrowed.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.lock.gate.give_back();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn one_thread_at_a_time_reaches_the_value() {
        static GATE: Gate = Gate::new();
        // SAFETY: this lock alone uses the gate.
        let lock = unsafe { Lock::new(&GATE, 0) };
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        *lock.acquire() += 1;
                    }
                });
            }
        });
        let held = lock.acquire();
        assert_eq!(*held, 4000);
        assert!(lock.try_acquire().is_none());
        drop(held);
        assert!(lock.try_acquire().is_some());
    }
}
