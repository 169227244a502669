//! The states that belong to no thread.
//!
//! This is a stack whose head is one word: the address of the newest state, and the number of
//! pushes. Without the number, a thread could read the first two states, lose its processor, and
//! then store the second one as the head after other threads have popped both and pushed the first
//! one again.
//!
//! ```text
//!   bits 0 to 27    how often a state was put there
//!   bits 28 to 63   bits 12 to 47 of the address; 0: there is none
//! ```

use core::marker::PhantomData;
use core::ptr;

use crate::primitive::{AtomicPtr, AtomicU64, Ordering, const_unless_loom};

const COUNT_BITS: u32 = 28;
const COUNT: u64 = (1 << COUNT_BITS) - 1;
/// Log2 of the alignment.
const ALIGN_BITS: u32 = 12;

/// A type whose values can be in a [`FreeList`].
///
/// # Safety
///
/// `next_free` always returns the same word of this value, to which only free lists write.
pub unsafe trait Linked: Sized + Sync + 'static {
    /// Returns the link to the next value in the list.
    fn next_free(&self) -> &AtomicPtr<Self>;
}

/// The states that belong to no thread; each is given to one thread. `STEP` is added to the count
/// at each push: with 0, as models show, two threads may get the same state.
#[derive(Debug)]
pub struct FreeList<T: 'static, const STEP: u64 = 1> {
    head: AtomicU64,
    _states: PhantomData<&'static T>,
}

impl<T: Linked, const STEP: u64> FreeList<T, STEP> {
    const_unless_loom! {
        /// Starts without states.
        pub fn new() -> Self {
            Self {
                head: AtomicU64::new(0),
                _states: PhantomData,
            }
        }
    }

    /// Pushes a state, unless its address does not fit in the word.
    pub fn push(&self, state: &'static T) {
        let address = ptr::from_ref(state).expose_provenance() as u64;
        let first = address >> ALIGN_BITS << COUNT_BITS;
        if first >> COUNT_BITS << ALIGN_BITS != address {
            return;
        }
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            state
                .next_free()
                .store(Self::first(head).cast_mut(), Ordering::Relaxed);
            let count = head.wrapping_add(STEP) & COUNT;
            // Release: the thread that pops the state sees it as it was left.
            match self.exchange(head, first | count, Ordering::Release) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Pops a state.
    pub fn pop(&self) -> Option<&'static T> {
        // Acquire pairs with the Release in `push`, here and below.
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or a state that was pushed, which is never freed.
            let state: &'static T = unsafe { Self::first(head).as_ref() }?;
            // Another thread may have popped it, and be writing here: then the head differs, too.
            let next = state.next_free().load(Ordering::Relaxed);
            let first = (next.addr() as u64) >> ALIGN_BITS << COUNT_BITS;
            match self.exchange(head, first | head & COUNT, Ordering::Acquire) {
                Ok(_) => return Some(state),
                Err(now) => head = now,
            }
        }
    }

    /// Forgets all states.
    pub fn clear(&self) {
        self.head.store(0, Ordering::Relaxed);
    }

    fn first(head: u64) -> *const T {
        ptr::with_exposed_provenance((head >> COUNT_BITS << ALIGN_BITS) as usize)
    }

    fn exchange(&self, from: u64, to: u64, order: Ordering) -> Result<u64, u64> {
        self.head
            .compare_exchange(from, to, order, Ordering::Acquire)
    }
}

impl<T: Linked, const STEP: u64> Default for FreeList<T, STEP> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::boxed::Box;

    use super::*;

    #[repr(align(4096))]
    struct Aligned(AtomicPtr<Self>);

    // SAFETY: `next` is a word of the value's own.
    unsafe impl Linked for Aligned {
        fn next_free(&self) -> &AtomicPtr<Self> {
            &self.0
        }
    }

    struct Unaligned(AtomicPtr<Self>);

    // SAFETY: `next` is a word of the value's own.
    unsafe impl Linked for Unaligned {
        fn next_free(&self) -> &AtomicPtr<Self> {
            &self.0
        }
    }

    #[test]
    fn the_newest_comes_first() {
        let list = FreeList::<Aligned>::new();
        let states = [(); 3].map(|()| &*Box::leak(Box::new(Aligned(AtomicPtr::default()))));
        assert!(list.pop().is_none());
        states.iter().for_each(|state| list.push(state));
        for state in states.iter().rev() {
            assert!(ptr::eq(list.pop().unwrap(), *state));
        }
        assert!(list.pop().is_none());
        list.push(states[0]);
        list.clear();
        assert!(list.pop().is_none());
    }

    #[test]
    fn addresses_that_do_not_fit_the_word_are_not_taken() {
        let list = FreeList::<Unaligned>::new();
        let states = Box::leak(Box::new([(); 2].map(|()| Unaligned(AtomicPtr::default()))));
        // One of two neighbours is not aligned.
        states.iter().for_each(|state| list.push(state));
        let taken = core::iter::from_fn(|| list.pop()).count();
        assert!(taken < 2);
    }
}
