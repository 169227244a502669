//! Storage with one value per thread, which a later thread takes over when that thread has ended.
//!
//! The cells are those of [`PerThread`], but a cell's number is the thread's index
//! (`thread/indices.rs`), which a later thread reuses. So there are as many values as threads have
//! lived at once, and a few that wait for their next thread.
//!
//! ```text
//!   state of a cell
//!   0                      nothing is there
//!   1 to 2^31 - 1          one more than the number of the thread that is making the value
//!   bit 31, and a number   the value is there; the number is that of the thread that has it
//! ```
//!
//! A thread compares the cell's state with its own number. They differ at its first request: then
//! it takes the value over. No other thread writes to the cell, because the former one is gone.

use core::fmt;
use core::sync::atomic::Ordering;

use crate::per_thread::{PerThread, READY};
use crate::thread::Thread;

/// A value that threads own one after another.
pub trait Recycle: Default {
    /// Hands the value to the calling thread, which has the kernel's id `thread`. Any earlier owner
    /// is gone.
    ///
    /// It runs in a callback, before the thread first gets the value, even one that was just made.
    /// Other threads may be reading the value. If `begin` does not return, because it panics or a
    /// signal handler leaves it with `siglongjmp`, it runs again.
    fn begin(&self, thread: u32);
}

/// Storage with a value of type `T` for each living thread that has requested one in a callback.
///
/// It works like [`PerThread`], but a new thread takes over the value of one that has ended, after
/// [`Recycle::begin`]. So memory does not grow with the number of threads that have ever existed,
/// and a sum over [all values](Self::iter) covers all threads.
///
/// A value stays unchanged until 64 threads have begun after the end of its thread.
///
/// # Example
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// # use fgraph_core as fgraph;
/// use fgraph::{Entry, FgraphOps, Recycle, Recycled};
///
/// #[derive(Default)]
/// struct Calls(AtomicU64);
///
/// impl Recycle for Calls {
///     // Goes on counting.
///     fn begin(&self, _thread: u32) {}
/// }
///
/// /// Counts calls without the threads getting in each other's way.
/// #[derive(Default)]
/// struct Counter(Recycled<Calls>);
///
/// impl FgraphOps for Counter {
///     type Data = ();
///
///     fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
///         let Calls(calls) = call.recycled(&self.0)?;
///         // Only this thread writes it.
///         calls.store(calls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
///         None
///     }
/// }
///
/// let counter = Counter::default();
/// // ... while it is registered ...
/// let sum: u64 = counter.0.iter().map(|calls| calls.0.load(Ordering::Relaxed)).sum();
/// ```
pub struct Recycled<T>(PerThread<T>);

impl<T> Recycled<T> {
    /// Starts without values.
    pub const fn new() -> Self {
        Self(PerThread::new())
    }

    /// Iterates over the current values: of living threads, and of those that have ended last.
    ///
    /// This is safe while threads run: concurrent changes may or may not be seen.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|(_, value)| value)
    }
}

impl<T: Recycle> Recycled<T> {
    /// Returns the value of `thread`, the running one; `None` if there is no memory for it.
    #[inline(always)]
    pub(crate) fn of(&self, thread: &Thread) -> Option<&T> {
        let cell = self.0.cell(thread.index.get());
        match cell.and_then(|cell| cell.get_in(ready(thread))) {
            Some(value) => Some(value),
            None => self.begin(thread),
        }
    }

    /// Makes the value of `thread`, or takes it over from a thread that is gone.
    #[cold]
    #[inline(never)]
    fn begin(&self, thread: &Thread) -> Option<&T> {
        let (index, id) = (thread.index.get(), thread.id());
        let there = self
            .0
            .cell(index)
            .and_then(|cell| Some((cell, cell.get()?)));
        if let Some((cell, (_, value))) = there {
            value.begin(id);
            // Release: the value is complete, as in `make`.
            cell.state.store(ready(thread), Ordering::Release);
            return Some(value);
        }
        let making = thread.number.get().wrapping_add(1) & !READY;
        self.0.make(index, [making, ready(thread)], id, || {
            let value = T::default();
            value.begin(id);
            value
        })
    }
}

/// Returns the state of a cell whose value `thread` owns.
#[inline(always)]
fn ready(thread: &Thread) -> u32 {
    thread.number.get() | READY
}

impl<T> Default for Recycled<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for Recycled<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicBool, AtomicU32};
    use std::vec::Vec;

    use super::*;
    use crate::owner::Watched;
    use crate::per_thread::tests::{set_up, thread};

    /// Makes a thread with this index.
    fn thread_at(index: u32, id: u32) -> Thread {
        let thread = thread(id);
        thread.index.set(index);
        thread
    }

    /// Gives the state to another thread, with the same index.
    fn pass_on(thread: &Thread, id: u32) {
        let index = thread.index.get();
        assert!(thread.release(thread.id()) && thread.claim(id, &Watched::new()));
        thread.index.set(index);
    }

    /// The threads that owned it, and the number of its calls.
    #[derive(Default)]
    struct Value {
        threads: AtomicU32,
        newest: AtomicU32,
        calls: AtomicU32,
    }

    impl Recycle for Value {
        fn begin(&self, thread: u32) {
            self.threads.fetch_add(1, Ordering::Relaxed);
            self.newest.store(thread, Ordering::Relaxed);
        }
    }

    impl Value {
        fn read(&self) -> [u32; 3] {
            [&self.threads, &self.newest, &self.calls].map(|value| value.load(Ordering::Relaxed))
        }
    }

    #[test]
    fn the_next_thread_with_an_index_takes_the_value_over() {
        set_up();
        let storage = Recycled::<Value>::new();
        let (first, second) = (thread_at(1, 7), thread_at(2, 8));
        let call = |thread: &Thread| {
            let value = storage.of(thread).unwrap();
            value.calls.fetch_add(1, Ordering::Relaxed);
        };
        call(&first);
        call(&second);
        for id in 10..13 {
            pass_on(&first, id);
            call(&first);
            call(&first);
        }
        call(&second);
        let values: Vec<_> = storage.iter().map(Value::read).collect();
        assert_eq!(values, [[4, 12, 7], [1, 8, 2]]);
    }

    #[test]
    fn a_value_that_cannot_be_taken_over_is_tried_again() {
        static PANICS: AtomicBool = AtomicBool::new(false);
        #[derive(Default)]
        struct Panics(Value);
        impl Recycle for Panics {
            fn begin(&self, thread: u32) {
                assert!(!PANICS.load(Ordering::Relaxed));
                self.0.begin(thread);
            }
        }
        set_up();
        let storage = Recycled::<Panics>::new();
        let thread = thread_at(1, 7);
        let values = || {
            storage
                .iter()
                .map(|value| value.0.read())
                .collect::<Vec<_>>()
        };
        let panics = || {
            PANICS.store(true, Ordering::Relaxed);
            assert!(catch_unwind(AssertUnwindSafe(|| storage.of(&thread).is_some())).is_err());
            PANICS.store(false, Ordering::Relaxed);
        };
        panics();
        assert_eq!(values(), Vec::<[u32; 3]>::new());
        assert!(storage.of(&thread).is_some());
        pass_on(&thread, 8);
        panics();
        assert_eq!(values(), [[1, 7, 0]]);
        assert!(storage.of(&thread).is_some());
        assert_eq!(values(), [[2, 8, 0]]);
    }

    #[test]
    fn a_value_that_a_thread_was_making_when_it_ended_is_made_by_the_next() {
        set_up();
        let storage = Recycled::<Value>::new();
        let thread = thread_at(1, 7);
        assert!(storage.of(&thread).is_some());
        let making = thread.number.get() + 1;
        let cell = storage.0.cell(1).unwrap();
        cell.state.store(making, Ordering::Relaxed);
        assert!(storage.of(&thread).is_none() && storage.iter().count() == 0);
        pass_on(&thread, 8);
        assert_eq!(storage.of(&thread).map(Value::read), Some([1, 8, 0]));
    }
}
