//! The list of all threads' states.

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::thread::Thread;

/// The states of all threads that have ever hit a site.
#[derive(Debug)]
pub struct Threads {
    head: AtomicPtr<Thread>,
}

impl Threads {
    /// A list without states.
    pub const fn new() -> Self {
        Self {
            head: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// All states, also those that have no thread at this moment.
    ///
    /// # Safety
    ///
    /// Of the states that are others' only the atomics may be used, as [`Thread::new`] has it.
    pub unsafe fn iter(&self) -> impl Iterator<Item = &'static Thread> {
        // Acquire pairs with the Release in `push`: the state is complete.
        let head = self.head.load(Ordering::Acquire);
        // SAFETY: states are never unmapped.
        core::iter::successors(unsafe { head.as_ref() }, |thread| {
            // SAFETY: as above; `next` was written before the state was published.
            unsafe { thread.next().load(Ordering::Relaxed).as_ref() }
        })
    }

    /// Adds a state to the list.
    pub fn push(&self, thread: &'static Thread) {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            thread.next().store(head, Ordering::Relaxed);
            match self.head.compare_exchange_weak(
                head,
                ptr::from_ref(thread).cast_mut(),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

impl Default for Threads {
    fn default() -> Self {
        Self::new()
    }
}
