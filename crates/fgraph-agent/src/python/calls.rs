//! The calls in progress of each thread, so that each end belongs to a call that began.
//!
//! CPython does not report all of them: some ends have no begin, and where a thread's profile
//! function was another for a while, ends are missing.
//!
//! # Safety
//!
//! The unsafe code uses mappings that live until the list of all is dropped.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use fgraph_trace::event::{FIRST_INTERPRETED, MAX_FUNCTIONS};
use fgraph_tracers::recorder::CallWriter;

use super::api::Object;
use crate::allocator;

/// Number of calls that are known; deeper ones are only counted.
const MOST: usize = 8187;

/// Bits of a function's number.
const NUMBER_BITS: u32 = (MAX_FUNCTIONS - FIRST_INTERPRETED).ilog2();
pub(super) const NUMBERS: u32 = (1 << NUMBER_BITS) - 1;

/// The calls in progress of a thread.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Calls {
    depth: Cell<usize>,
    next: Cell<*const Calls>,
    next_free: Cell<*const Calls>,
    /// The writer of the thread's events.
    writer: Cell<Option<CallWriter>>,
    /// While the thread has a profile function of the program's own: the number of C functions in
    /// progress that it knows, and one. Otherwise 0.
    own: Cell<usize>,
    /// Each call's frame and function: see [`call`].
    calls: [Cell<u64>; MOST],
}

/// Returns the word of a call, from the running Python function's frame and the called function's
/// number. Addresses of frames are multiples of 16, and have at most 47 bits.
#[inline]
fn call(frame: *mut Object, number: u32) -> u64 {
    (frame.addr() as u64 >> 4) << NUMBER_BITS | u64::from(number)
}

impl Calls {
    /// Returns the writer of the thread's events.
    #[inline]
    pub(super) fn writer(&self) -> Option<CallWriter> {
        self.writer.get()
    }

    /// Begins or ends counting the C functions that a profile function of the program's own knows.
    pub(super) fn count_own(&self, is_set: bool) {
        self.own.set(usize::from(is_set));
    }

    /// Counts a C function that begins.
    pub(super) fn begin_own(&self) {
        let known = self.own.get();
        if known != 0 {
            self.own.set(known.wrapping_add(1));
        }
    }

    /// Counts a C function that ends; returns false if it began before counting.
    pub(super) fn end_own(&self) -> bool {
        let known = self.own.get();
        if known > 1 {
            self.own.set(known - 1);
        }
        known != 1
    }

    /// Adds a call.
    #[inline]
    pub(super) fn begin(&self, frame: *mut Object, number: u32) {
        let depth = self.depth.get();
        if let Some(place) = self.calls.get(depth) {
            place.set(call(frame, number));
        }
        self.depth.set(depth.wrapping_add(1));
    }

    /// Removes a call that ends, if it is the last one that began.
    #[inline]
    pub(super) fn end_innermost(&self, frame: *mut Object, number: u32) -> bool {
        let before = self.depth.get().wrapping_sub(1);
        let is_innermost = match self.calls.get(before) {
            Some(last) => last.get() == call(frame, number),
            // The call is too deep to be known.
            None => before != usize::MAX,
        };
        if is_innermost {
            self.depth.set(before);
        }
        is_innermost
    }

    /// Removes a call that ends around others, and these, whose functions it returns, the last one
    /// first; `None` if the call is none of those in progress.
    pub(super) fn end_outer(
        &self,
        frame: *mut Object,
        number: u32,
    ) -> Option<impl Iterator<Item = u32> + use<'_>> {
        let ended = call(frame, number);
        let open = self.calls.get(..self.depth.get()).unwrap_or_default();
        let at = open.iter().rposition(|it| it.get() == ended)?;
        self.depth.set(at);
        let rest = open.get(at + 1..).unwrap_or_default();
        Some(rest.iter().rev().map(|it| it.get() as u32 & NUMBERS))
    }
}

/// The calls of all threads.
#[derive(Debug)]
pub(super) struct AllCalls {
    first: AtomicPtr<Calls>,
    free: AtomicPtr<Calls>,
    /// True while a thread uses the list of free ones. Others do without it.
    is_used: AtomicBool,
}

impl Default for AllCalls {
    fn default() -> Self {
        Self {
            first: AtomicPtr::new(ptr::null_mut()),
            free: AtomicPtr::new(ptr::null_mut()),
            is_used: AtomicBool::new(false),
        }
    }
}

impl AllCalls {
    /// Returns an empty list for the thread with this writer; `None` if there is no memory.
    pub(super) fn take(&self, writer: Option<CallWriter>) -> Option<&Calls> {
        let calls = self.take_empty()?;
        calls.writer.set(writer);
        Some(calls)
    }

    fn take_empty(&self) -> Option<&Calls> {
        let free = self.with_free(|| {
            // SAFETY: lists live as long as this.
            let calls = unsafe { self.free.load(Ordering::Relaxed).as_ref() }?;
            let next = calls.next_free.get().cast_mut();
            self.free.store(next, Ordering::Relaxed);
            Some(calls)
        });
        if let Some(calls) = free.flatten() {
            return Some(calls);
        }
        // Not in the heap: another thread may have its lock, which a forked child keeps.
        let made = allocator::map(size_of::<Calls>()).cast::<Calls>();
        if made.is_null() {
            return None;
        }
        // SAFETY: the new mapping, which lives as long as this, has room for a list. Zeros are one,
        // but for the writer.
        let calls = unsafe {
            (&raw mut (*made).writer).write(Cell::new(None));
            &*made
        };
        // Release: the list is complete when another thread finds it.
        let added = self
            .first
            .fetch_update(Ordering::Release, Ordering::Relaxed, |first| {
                calls.next.set(first);
                Some(made)
            });
        added.is_ok().then_some(calls)
    }

    /// Calls `work`, which uses the list of free ones, unless another thread uses it.
    fn with_free<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        // Acquire: what the last thread has done to the list comes before.
        if self.is_used.swap(true, Ordering::Acquire) {
            return None;
        }
        let done = work();
        // Pairs with the Acquire.
        self.is_used.store(false, Ordering::Release);
        Some(done)
    }

    /// Takes back the list of a thread that ends.
    pub(super) fn give_back(&self, calls: &Calls) {
        calls.depth.set(0);
        calls.own.set(0);
        self.with_free(|| {
            calls.next_free.set(self.free.load(Ordering::Relaxed));
            let calls = ptr::from_ref(calls).cast_mut();
            self.free.store(calls, Ordering::Relaxed);
        });
    }
}

impl Drop for AllCalls {
    fn drop(&mut self) {
        let mut next = *self.first.get_mut();
        // SAFETY: no thread uses its list any more.
        while let Some(calls) = unsafe { next.as_ref() } {
            let this = next;
            next = calls.next.get().cast_mut();
            // SAFETY: the mapping is this one's, and the reference is not used again.
            unsafe { libc::munmap(this.cast(), size_of::<Calls>()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(number: usize) -> *mut Object {
        ptr::without_provenance_mut(0x7f00_0000_0000 + 16 * number)
    }

    fn end(calls: &Calls, frame: *mut Object, number: u32) -> Option<Vec<u32>> {
        match calls.end_innermost(frame, number) {
            true => Some(Vec::new()),
            false => calls.end_outer(frame, number).map(Iterator::collect),
        }
    }

    #[test]
    fn ends_without_begins_are_unknown_and_outer_ends_end_the_calls_in_them() {
        let all = AllCalls::default();
        let calls = all.take(None).unwrap();
        assert_eq!(end(calls, frame(1), 1), None);
        for n in 1..=4 {
            calls.begin(frame(n), n as u32);
        }
        assert_eq!(end(calls, frame(4), 4), Some(vec![]));
        assert_eq!(end(calls, frame(3), 4), None);
        assert_eq!(end(calls, frame(1), 1), Some(vec![3, 2]));
        assert_eq!(end(calls, frame(1), 1), None);
    }

    #[test]
    fn a_profile_function_of_the_programs_own_gets_ends_of_calls_that_it_knows() {
        let all = AllCalls::default();
        let calls = all.take(None).unwrap();
        assert!(calls.end_own());
        calls.count_own(true);
        assert!(!calls.end_own());
        calls.begin_own();
        calls.begin_own();
        assert!(calls.end_own());
        assert!(calls.end_own());
        assert!(!calls.end_own());
        all.give_back(calls);
        assert!(all.take(None).unwrap().end_own());
    }

    #[test]
    fn calls_that_are_too_deep_are_counted() {
        let all = AllCalls::default();
        let calls = all.take(None).unwrap();
        for n in 0..=MOST {
            calls.begin(frame(n), 7);
        }
        assert_eq!(end(calls, frame(0), 0), Some(vec![]));
        assert_eq!(end(calls, frame(MOST), 7), None);
        assert_eq!(end(calls, frame(MOST - 1), 7), Some(vec![]));
        all.give_back(calls);
        let again = all.take(None).unwrap();
        assert_eq!(end(again, frame(0), 7), None);
    }
}
