//! A value that is replaced as a whole while readers without a lock read it.
//!
//! ```text
//!   reader                          writer
//!     readers += 1                    swap the new value in
//!     look at the value               retire the old one
//!     readers -= 1                    if readers = 0: free all that is retired
//! ```
//!
//! A reader that counts itself after the writer has found no readers sees the new value. Everything
//! is sequentially consistent. If a reader never ends, because a signal handler left it with
//! `siglongjmp` or because it was in another thread at a fork, nothing is freed from then on.
//!
//! # Safety
//!
//! The unsafe code follows pointers to values that are current, or swapped out and not yet freed.

#[cfg(not(loom))]
use alloc::boxed::Box;
#[cfg(not(loom))]
use core::ptr;

#[cfg(not(loom))]
use crate::primitive::AtomicPtr;
use crate::primitive::{AtomicU64, Ordering, const_unless_loom};

/// The number of readers in progress.
#[derive(Debug)]
pub struct Readers(AtomicU64);

impl Readers {
    const_unless_loom! {
        /// Starts without readers.
        pub fn new() -> Self {
            Self(AtomicU64::new(0))
        }
    }

    /// Counts a reader until the returned value is dropped.
    pub fn enter(&self) -> Reader<'_> {
        self.0.fetch_add(1, Ordering::SeqCst);
        for_loom();
        Reader(self)
    }

    /// Returns true if no reader is left that could have seen a value swapped out before this call.
    pub fn are_gone(&self) -> bool {
        for_loom();
        self.0.load(Ordering::SeqCst) == 0
    }
}

/// Loom orders accesses to different atomics only by fences.
fn for_loom() {
    #[cfg(loom)]
    crate::primitive::fence(Ordering::SeqCst);
}

impl Default for Readers {
    fn default() -> Self {
        Self::new()
    }
}

/// A counted reader.
#[derive(Debug)]
pub struct Reader<'a>(&'a Readers);

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        // A writer that finds no readers sees the effects of this one.
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A value that is replaced as a whole; see the module documentation. It starts empty.
#[cfg(not(loom))]
#[derive(Debug)]
pub struct Snapshot<T> {
    current: AtomicPtr<Node<T>>,
    readers: Readers,
    /// Values that were replaced and not freed.
    retired: AtomicPtr<Node<T>>,
}

#[cfg(not(loom))]
#[derive(Debug)]
struct Node<T> {
    value: T,
    /// The next retired value. Set when this value is retired, while readers may still have it.
    next: AtomicPtr<Self>,
}

#[cfg(not(loom))]
impl<T> Node<T> {
    fn new(value: T) -> *mut Self {
        let next = AtomicPtr::new(ptr::null_mut());
        Box::into_raw(Box::new(Self { value, next }))
    }
}

#[cfg(not(loom))]
impl<T: Send + Sync> Snapshot<T> {
    /// Starts without a value.
    pub const fn new() -> Self {
        Self {
            current: AtomicPtr::new(ptr::null_mut()),
            readers: Readers::new(),
            retired: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Applies `look` to the value and returns its result. Takes no lock, and does not allocate.
    pub fn read<R>(&self, look: impl FnOnce(Option<&T>) -> R) -> R {
        let _reader = self.readers.enter();
        // SAFETY: null, or a value that is not freed while this reader is counted.
        let node = unsafe { self.current.load(Ordering::SeqCst).as_ref() };
        look(node.map(|node| &node.value))
    }

    /// Replaces the value. Frees the values before it if there are no readers; otherwise a later
    /// call does.
    pub fn replace(&self, value: T) {
        let new = Node::new(value);
        self.retire_and_free(self.current.swap(new, Ordering::SeqCst));
    }

    /// [Replaces](Self::replace) the value with the result of `make`, which is called again if
    /// another thread was faster.
    pub fn update(&self, make: impl Fn(Option<&T>) -> T) {
        loop {
            let reader = self.readers.enter();
            let old = self.current.load(Ordering::SeqCst);
            // SAFETY: null, or a value that is not freed while this reader is counted.
            let value = make(unsafe { old.as_ref() }.map(|node| &node.value));
            let new = Node::new(value);
            // The old value is not freed meanwhile, so an equal pointer is the same value.
            let put = self
                .current
                .compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst);
            drop(reader);
            match put {
                Ok(_) => return self.retire_and_free(old),
                Err(_) => free(new),
            }
        }
    }

    /// Retires a value that was swapped out, and frees all retired values if there are no readers.
    fn retire_and_free(&self, old: *mut Node<T>) {
        self.retire(old);
        let retired = self.retired.swap(ptr::null_mut(), Ordering::SeqCst);
        if self.readers.are_gone() {
            free(retired);
        } else {
            self.retire(retired);
        }
    }

    /// Puts a list of nodes, which may be empty, before the retired ones.
    fn retire(&self, first: *mut Node<T>) {
        // SAFETY: null, or nodes that only this thread frees now.
        let node = |node: *mut Node<T>| unsafe { node.as_ref() };
        let Some(mut last) = node(first) else {
            return;
        };
        while let Some(next) = node(last.next.load(Ordering::Relaxed)) {
            last = next;
        }
        let put = |head| {
            last.next.store(head, Ordering::Relaxed);
            Some(first)
        };
        // The closure always returns a value.
        let _ = self
            .retired
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, put);
    }
}

/// Frees a list of nodes that belongs to the caller.
#[cfg(not(loom))]
fn free<T>(mut node: *mut Node<T>) {
    while !node.is_null() {
        // SAFETY: the node came from `Box::into_raw`, and no other pointer to it exists.
        let owned = unsafe { Box::from_raw(node) };
        node = owned.next.load(Ordering::Relaxed);
    }
}

#[cfg(not(loom))]
impl<T: Send + Sync> Default for Snapshot<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(not(loom))]
impl<T> Drop for Snapshot<T> {
    fn drop(&mut self) {
        free(self.retired.load(Ordering::SeqCst));
        free(self.current.load(Ordering::SeqCst));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_value_is_freed_when_it_is_replaced_and_no_reader_is_left() {
        let snapshot = Snapshot::new();
        assert!(snapshot.read(|value| value.is_none()));
        let values = [0, 1, 2, 3].map(Arc::new);
        let owners = || values.each_ref().map(Arc::strong_count);
        snapshot.replace(values[0].clone());
        snapshot.replace(values[1].clone());
        assert_eq!(owners(), [1, 2, 1, 1]);
        snapshot.read(|value| {
            assert_eq!(value.map(|value| **value), Some(1));
            snapshot.replace(values[2].clone());
            snapshot.replace(values[3].clone());
            assert_eq!(owners(), [1, 2, 2, 2]);
            assert_eq!(value.map(|value| **value), Some(1));
        });
        snapshot.update(|value| {
            assert_eq!(value.map(|value| **value), Some(3));
            values[0].clone()
        });
        assert_eq!(owners(), [2, 1, 1, 1]);
        drop(snapshot);
        assert_eq!(owners(), [1; 4]);
    }
}
