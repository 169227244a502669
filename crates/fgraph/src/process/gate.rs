//! The gate of the control lock, which knows about forks.
//!
//! A fork takes the gate, so that the child does not inherit it held by a thread that the child
//! does not have. But a holder that calls the dynamic linker waits for a `dlopen` in another
//! thread, and for the constructors that this runs, which may fork. So a fork waits for a holder
//! that changes something, but only for a limited time for one that calls the linker: nothing is
//! half done then, and in the child the gate is free.
//!
//! ```text
//!   holder    -- held ---- in the linker ----------- held ---- free
//!   dlopen         constructor: fork waits | child       ^
//!                                          | parent -> ends
//! ```

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use crate::os;

/// The time that a fork waits for a holder that calls the linker. Most calls return at once, and if
/// no `dlopen` is in progress, the child may call the linker, too.
const PATIENCE: Duration = Duration::from_millis(100);

/// The gate of this process.
pub(crate) static GATE: Gate = Gate::new();

/// A lock without a value, which knows when its holder calls the dynamic linker.
#[derive(Debug)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    is_held: bool,
    /// True while the holder only waits for the linker.
    is_in_linker: bool,
}

impl Gate {
    pub(crate) const fn new() -> Self {
        Self {
            state: Mutex::new(State {
                is_held: false,
                is_in_linker: false,
            }),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let result = self.changed.wait(state);
        result.unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the gate; waits for its holder.
    pub(crate) fn take(&self) {
        let mut state = self.state();
        while state.is_held {
            state = self.wait(state);
        }
        state.is_held = true;
    }

    /// Calls [`take`](Self::take) if that need not wait; returns true if the gate was taken.
    pub(crate) fn try_take(&self) -> bool {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        !core::mem::replace(&mut state.is_held, true)
    }

    /// Calls [`take`](Self::take) if that need not wait longer than `patience`; returns true if the
    /// gate was taken. During a fork it does not wait for threads that could be waiting for it.
    pub(crate) fn take_within(&self, patience: Duration) -> bool {
        let start = os::now();
        loop {
            if self.try_take() {
                return true;
            }
            if os::now() - start >= patience {
                return false;
            }
            os::nap();
        }
    }

    /// Gives the gate back.
    pub(crate) fn give_back(&self) {
        self.state().is_held = false;
        self.changed.notify_all();
    }

    /// Runs `call`, a call of the dynamic linker that may return only after a `dlopen` of
    /// another thread and its constructors.
    pub(crate) fn call_linker<R>(&self, call: impl FnOnce() -> R) -> R {
        self.state().is_in_linker = true;
        self.changed.notify_all();
        let result = call();
        // This waits for a fork in progress.
        self.state().is_in_linker = false;
        result
    }

    /// Keeps the state of the gate unchanged during a fork.
    pub(crate) fn freeze(&self) -> Frozen<'_> {
        let mut state = self.state();
        while state.is_held {
            if !state.is_in_linker {
                state = self.wait(state);
                continue;
            }
            let result = self.changed.wait_timeout(state, PATIENCE);
            let (now, waited) = result.unwrap_or_else(PoisonError::into_inner);
            state = now;
            if state.is_in_linker && waited.timed_out() {
                break;
            }
        }
        Frozen(state)
    }
}

/// The gate during a fork: it is not taken or given back, and no call of the linker begins or ends.
#[derive(Debug)]
pub(crate) struct Frozen<'a>(MutexGuard<'a, State>);

impl Frozen<'_> {
    /// Frees the gate in the child, which does not have the holding thread.
    pub(crate) fn set_free(&mut self) {
        self.0.is_held = false;
        self.0.is_in_linker = false;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn a_fork_waits_for_a_holder_that_does_not_ask() {
        let gate = Gate::new();
        gate.take();
        thread::scope(|scope| {
            let forks = scope.spawn(|| {
                let frozen = gate.freeze();
                assert!(!frozen.0.is_held);
            });
            // It begins to wait during a question, and must not time out after that.
            gate.call_linker(|| thread::sleep(PATIENCE / 2));
            thread::sleep(2 * PATIENCE);
            gate.give_back();
            forks.join().unwrap();
        });
    }

    #[test]
    fn a_fork_does_not_wait_for_a_question_and_its_child_gets_the_gate() {
        let gate = Gate::new();
        let (say, forked) = mpsc::channel();
        gate.take();
        thread::scope(|scope| {
            scope.spawn(|| {
                // As in the child, where the holder is gone.
                gate.freeze().set_free();
                assert!(gate.try_take());
                say.send(()).unwrap();
            });
            gate.call_linker(|| forked.recv().unwrap());
        });
    }
}
