//! The list of all threads' states.

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::thread::Thread;
use crate::thread::free::FreeList;

/// The states of all threads that have ever hit a site.
#[derive(Debug)]
pub struct Threads {
    head: AtomicPtr<Thread>,
    /// Those that have no thread and are not being given to one.
    pub free: FreeList<Thread>,
}

impl Threads {
    /// A list without states.
    pub const fn new() -> Self {
        Self {
            head: AtomicPtr::new(ptr::null_mut()),
            free: FreeList::new(),
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

    /// The state behind this one in the list of all; behind the oldest, and behind none, the
    /// youngest.
    ///
    /// # Safety
    ///
    /// As for [`iter`](Self::iter).
    pub unsafe fn behind(&self, thread: Option<&'static Thread>) -> Option<&'static Thread> {
        // Written before the state was published.
        let next = thread.map(|thread| thread.next().load(Ordering::Relaxed));
        let next = next.filter(|next| !next.is_null());
        // Acquire, as in `iter`. States are never unmapped.
        let next = next.unwrap_or_else(|| self.head.load(Ordering::Acquire));
        // SAFETY: as is said above.
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
