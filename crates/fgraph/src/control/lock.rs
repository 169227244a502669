//! The lock of what changes what is traced, as forks see it.
//!
//! A fork takes the lock, lest the child inherits it locked by a thread that it does not have. But a holder that
//! asks the dynamic linker waits for a `dlopen` that goes on in another thread, and for the constructors that this runs,
//! which may fork. So a fork waits for a holder that changes something, but not for long for one that asks: nothing
//! is half done then, and in the child the lock is free.
//!
//! ```text
//!   holder    -- held ---- asking ------------------ held ---- free
//!   dlopen         constructor: fork waits | child       ^
//!                                          | parent -> ends
//! ```
//!
//! # Safety
//!
//! What is protected is reached by the one [`Guard`] that there is while `is_held` is set.

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// How long a fork waits for a holder that asks. Most questions are answered at once, and the child may ask the
/// linker too if none is going on.
const PATIENCE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Lock<T> {
    state: Mutex<State>,
    changed: Condvar,
    value: UnsafeCell<T>,
}

// SAFETY: one thread at a time reaches the value.
unsafe impl<T: Send> Sync for Lock<T> {}

#[derive(Debug)]
struct State {
    is_held: bool,
    /// The holder does nothing but wait for the linker.
    is_asking: bool,
}

impl<T> Lock<T> {
    pub(super) const fn new(value: T) -> Self {
        Self {
            state: Mutex::new(State {
                is_held: false,
                is_asking: false,
            }),
            changed: Condvar::new(),
            value: UnsafeCell::new(value),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let result = self.changed.wait(state);
        result.unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes it, as it is free.
    fn hold(&self, mut state: MutexGuard<'_, State>) -> Guard<'_, T> {
        state.is_held = true;
        Guard {
            lock: self,
            value: PhantomData,
        }
    }

    pub(super) fn acquire(&self) -> Guard<'_, T> {
        let mut state = self.state();
        while state.is_held {
            state = self.wait(state);
        }
        self.hold(state)
    }

    /// [`acquire`](Self::acquire), unless that had to wait.
    pub(super) fn try_acquire(&self) -> Option<Guard<'_, T>> {
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        (!state.is_held).then(|| self.hold(state))
    }

    /// Runs `question`, which only asks the dynamic linker, in the thread that holds the lock.
    pub(super) fn ask<R>(&self, question: impl FnOnce() -> R) -> R {
        self.state().is_asking = true;
        self.changed.notify_all();
        let answer = question();
        // This waits for a fork that goes on.
        self.state().is_asking = false;
        answer
    }

    /// Keeps everything as it is during a fork.
    pub(super) fn keep(&self) -> Kept<'_> {
        let mut state = self.state();
        while state.is_held {
            if !state.is_asking {
                state = self.wait(state);
                continue;
            }
            let result = self.changed.wait_timeout(state, PATIENCE);
            let (now, waited) = result.unwrap_or_else(PoisonError::into_inner);
            state = now;
            if state.is_asking && waited.timed_out() {
                break;
            }
        }
        Kept(state)
    }
}

/// The lock, held.
#[derive(Debug)]
pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// No reference, which would last longer than the lock is held.
    value: PhantomData<&'a mut T>,
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
        self.lock.state().is_held = false;
        self.lock.changed.notify_all();
    }
}

/// The lock during a fork: nobody takes it, gives it back, or begins or ends a question.
pub(super) struct Kept<'a>(MutexGuard<'a, State>);

impl Kept<'_> {
    /// In the child, which does not have the thread that holds the lock.
    pub(super) fn set_free(&mut self) {
        self.0.is_held = false;
        self.0.is_asking = false;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn one_thread_at_a_time_reaches_the_value() {
        let lock = Lock::new(0);
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

    #[test]
    fn a_fork_waits_for_a_holder_that_does_not_ask() {
        let lock = Lock::new(());
        let held = lock.acquire();
        thread::scope(|scope| {
            let forks = scope.spawn(|| {
                let kept = lock.keep();
                assert!(!kept.0.is_held);
            });
            // It begins to wait during a question, and must not lose patience after that.
            lock.ask(|| thread::sleep(PATIENCE / 2));
            thread::sleep(2 * PATIENCE);
            drop(held);
            forks.join().unwrap();
        });
    }

    #[test]
    fn a_fork_does_not_wait_for_a_question_and_its_child_gets_the_lock() {
        let lock = Lock::new(0);
        let (say, forked) = mpsc::channel();
        thread::scope(|scope| {
            let held = lock.acquire();
            scope.spawn(|| {
                // As in the child, where the holder is gone.
                lock.keep().set_free();
                *lock.acquire() = 7;
                say.send(()).unwrap();
            });
            lock.ask(|| forked.recv().unwrap());
            core::mem::forget(held);
        });
        assert_eq!(*lock.acquire(), 7);
    }
}
