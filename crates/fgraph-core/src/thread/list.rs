//! The list of all threads' states.

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::thread::Thread;
use crate::thread::free::FreeList;

/// The states of all threads that have ever called a traced function.
#[derive(Debug)]
pub struct Threads {
    head: AtomicPtr<Thread>,
    /// The states that belong to no thread and are not being given to one.
    pub free: FreeList<Thread>,
}

impl Threads {
    /// Starts without states.
    pub const fn new() -> Self {
        Self {
            head: AtomicPtr::new(ptr::null_mut()),
            free: FreeList::new(),
        }
    }

    /// Iterates over all states, including those without a thread.
    ///
    /// # Safety
    ///
    /// Only the atomics of other threads' states may be used, as [`Thread::new`] says.
    pub unsafe fn iter(&self) -> impl Iterator<Item = &'static Thread> {
        // Acquire pairs with the Release in `push`: the state is complete.
        let head = self.head.load(Ordering::Acquire);
        // SAFETY: states are never unmapped.
        core::iter::successors(unsafe { head.as_ref() }, |thread| {
            // SAFETY: states are never unmapped; `next` was written before the state was published.
            unsafe { thread.next().load(Ordering::Relaxed).as_ref() }
        })
    }

    /// Returns the next state in the list; after the oldest one, and for `None`, the youngest.
    ///
    /// # Safety
    ///
    /// Only the atomics of other threads' states may be used, as [`Thread::new`] says.
    pub unsafe fn behind(&self, thread: Option<&'static Thread>) -> Option<&'static Thread> {
        // The link was written before the state was published.
        let next = thread.map(|thread| thread.next().load(Ordering::Relaxed));
        let next = next.filter(|next| !next.is_null());
        // Acquire: the state is complete. States are never unmapped.
        let next = next.unwrap_or_else(|| self.head.load(Ordering::Acquire));
        // SAFETY: null, or a state, which is never unmapped.
        unsafe { next.as_ref() }
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
