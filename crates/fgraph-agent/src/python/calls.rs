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
use std::sync::atomic::{AtomicPtr, Ordering};

use fgraph_trace::event::{FIRST_INTERPRETED, MAX_FUNCTIONS};

use super::api::Object;
use crate::allocator;

/// Number of calls that are known; deeper ones are only counted.
const MOST: usize = 8188;

/// Bits of a function's number.
const NUMBER_BITS: u32 = (MAX_FUNCTIONS - FIRST_INTERPRETED).ilog2();
const NUMBERS: u64 = (1 << NUMBER_BITS) - 1;

/// The calls in progress of a thread.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Calls {
    depth: Cell<usize>,
    next: Cell<*const Calls>,
    next_free: Cell<*const Calls>,
    /// Each call's frame and function: see [`call`].
    calls: [Cell<u64>; MOST],
}

/// Returns the word of a call, from the running Python function's frame and the called function's
/// number. Addresses of frames are multiples of 16, and have at most 47 bits.
#[inline]
fn call(frame: *mut Object, number: u32) -> u64 {
    (frame.addr() as u64 >> 4) << NUMBER_BITS | u64::from(number)
}

/// The call that has ended.
#[derive(Debug)]
pub(super) enum End<R> {
    /// The last one that began.
    Innermost,
    /// One around others that are over, too: the functions of these, the last one first.
    Outer(R),
    /// None of those in progress.
    Unknown,
}

impl Calls {
    /// Adds a call.
    #[inline]
    pub(super) fn begin(&self, frame: *mut Object, number: u32) {
        let depth = self.depth.get();
        if let Some(place) = self.calls.get(depth) {
            place.set(call(frame, number));
        }
        self.depth.set(depth.wrapping_add(1));
    }

    /// Removes a call that ends, and those in it.
    #[inline]
    pub(super) fn end(
        &self,
        frame: *mut Object,
        number: u32,
    ) -> End<impl Iterator<Item = u32> + use<'_>> {
        let ended = call(frame, number);
        let before = self.depth.get().wrapping_sub(1);
        match self.calls.get(before) {
            Some(last) if last.get() == ended => {}
            None if before != usize::MAX => {}
            _ => return self.end_outer(ended),
        }
        self.depth.set(before);
        End::Innermost
    }

    #[cold]
    fn end_outer(&self, ended: u64) -> End<impl Iterator<Item = u32> + use<'_>> {
        let depth = self.depth.get();
        let open = self.calls.get(..depth).unwrap_or_default();
        let Some(at) = open.iter().rposition(|it| it.get() == ended) else {
            return End::Unknown;
        };
        self.depth.set(at);
        let rest = open.get(at + 1..).unwrap_or_default();
        let numbers = rest.iter().rev().map(|it| (it.get() & NUMBERS) as u32);
        End::Outer(numbers)
    }
}

/// The calls of all threads. The threads use it with the lock of one interpreter.
#[derive(Debug)]
pub(super) struct AllCalls {
    first: AtomicPtr<Calls>,
    free: AtomicPtr<Calls>,
}

impl Default for AllCalls {
    fn default() -> Self {
        Self {
            first: AtomicPtr::new(ptr::null_mut()),
            free: AtomicPtr::new(ptr::null_mut()),
        }
    }
}

impl AllCalls {
    /// Returns an empty list for a thread; `None` if there is no memory.
    pub(super) fn take(&self) -> Option<&Calls> {
        // SAFETY: lists live as long as this.
        if let Some(calls) = unsafe { self.free.load(Ordering::Relaxed).as_ref() } {
            let next = calls.next_free.get().cast_mut();
            self.free.store(next, Ordering::Relaxed);
            return Some(calls);
        }
        // Not in the heap: another thread may have its lock, which a forked child keeps.
        let made = allocator::map(size_of::<Calls>()).cast::<Calls>();
        // SAFETY: it is null, or zeros, which are an empty list, in a mapping that lives as long as
        // this.
        let calls = unsafe { made.as_ref()? };
        calls.next.set(self.first.load(Ordering::Relaxed));
        self.first.store(made, Ordering::Relaxed);
        Some(calls)
    }

    /// Takes back the list of a thread that ends.
    pub(super) fn give_back(&self, calls: &Calls) {
        calls.depth.set(0);
        calls.next_free.set(self.free.load(Ordering::Relaxed));
        let calls = ptr::from_ref(calls).cast_mut();
        self.free.store(calls, Ordering::Relaxed);
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

    fn rest(end: End<impl Iterator<Item = u32>>) -> Option<Vec<u32>> {
        match end {
            End::Innermost => Some(Vec::new()),
            End::Outer(rest) => Some(rest.collect()),
            End::Unknown => None,
        }
    }

    #[test]
    fn ends_without_begins_are_unknown_and_outer_ends_end_the_calls_in_them() {
        let all = AllCalls::default();
        let calls = all.take().unwrap();
        assert_eq!(rest(calls.end(frame(1), 1)), None);
        for n in 1..=4 {
            calls.begin(frame(n), n as u32);
        }
        assert_eq!(rest(calls.end(frame(4), 4)), Some(vec![]));
        assert_eq!(rest(calls.end(frame(3), 4)), None);
        assert_eq!(rest(calls.end(frame(1), 1)), Some(vec![3, 2]));
        assert_eq!(rest(calls.end(frame(1), 1)), None);
    }

    #[test]
    fn calls_that_are_too_deep_are_counted() {
        let all = AllCalls::default();
        let calls = all.take().unwrap();
        for n in 0..=MOST {
            calls.begin(frame(n), 7);
        }
        assert_eq!(rest(calls.end(frame(0), 0)), Some(vec![]));
        assert_eq!(rest(calls.end(frame(MOST), 7)), None);
        assert_eq!(rest(calls.end(frame(MOST - 1), 7)), Some(vec![]));
        all.give_back(calls);
        let again = all.take().unwrap();
        assert_eq!(rest(again.end(frame(0), 7)), None);
    }
}
