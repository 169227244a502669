//! Keeping a thread from being traced for a while.

use core::marker::PhantomData;

use fgraph_core::thread::Thread;

use super::current;

/// Runs `work` while no user traces the calling thread. Its calls are in no counter.
///
/// It may be nested, and be called in a callback, where nothing is traced anyway. Calls that were
/// entered before and return meanwhile leave the shadow stack without dispatch, and are counted as
/// [`lost`](crate::Counters::lost). It costs a few nanoseconds; the first time in a thread, a few
/// microseconds.
///
/// It is the kernel's `ftrace_graph_stop` for one task, `tracing_graph_pause`.
///
/// ```
/// let sum: u32 = fgraph::untraced(|| (1..10).sum());
/// assert_eq!(sum, 45);
/// ```
pub fn untraced<R>(work: impl FnOnce() -> R) -> R {
    let _guard = Untraced::new();
    work()
}

/// A guard: while it exists, the thread that made it is not traced, as by [`untraced()`].
///
/// It stays with its thread. A guard that is made in a callback may have no effect after the
/// callback. A guard that is never dropped, because it is leaked or skipped by `longjmp`, leaves
/// the thread untraced for the rest of its life.
#[derive(Debug)]
#[must_use = "the thread is traced again when the guard is dropped"]
pub struct Untraced {
    /// `None` without memory for a state: such a thread is not traced either.
    thread: Option<&'static Thread>,
    /// The state is the running thread's.
    not_send: PhantomData<*const ()>,
}

impl Untraced {
    /// Stops tracing the calling thread.
    #[inline]
    pub fn new() -> Self {
        let thread = current();
        if let Some(thread) = thread {
            // SAFETY: the state of the running thread.
            unsafe { thread.stop_tracing() };
        }
        Self {
            thread,
            not_send: PhantomData,
        }
    }

    /// Returns the kernel's id of the calling thread, without a system call; `None` without memory
    /// for the thread's state.
    #[inline]
    #[must_use]
    pub fn thread_id(&self) -> Option<u32> {
        self.thread.map(Thread::id)
    }

    /// Returns the state of the calling thread.
    #[inline]
    pub(crate) fn thread(&self) -> Option<&Thread> {
        self.thread
    }
}

impl Default for Untraced {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Untraced {
    #[inline]
    fn drop(&mut self) {
        if let Some(thread) = self.thread {
            // SAFETY: the state of the running thread, as the guard stays with it.
            unsafe { thread.trace_again() };
        }
    }
}
