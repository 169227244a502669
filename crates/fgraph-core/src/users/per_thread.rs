//! A value for each thread, made for callbacks.
//!
//! Every thread that fgraph has seen has a number, counted from 0 and never used again. Its value
//! is in the cell of that number:
//!
//! ```text
//!   chunks   0           1                2                            28
//!          +-----+     +-----+          +-----+                      +-----+
//!          |  o  |     |  o  |          |  o  |        ...           | null|
//!          +--|--+     +--|--+          +--|--+                      +-----+
//!             v           v                v
//!          cells       cells            cells
//!          0 to 15     16 to 47         48 to 111        twice as many each
//! ```
//!
//! A chunk is mapped when the first thread needs it, and stays where it is, so no thread waits for
//! another: a thread finds its own cell by arithmetic and two loads, and a walk over the cells
//! passes over those that are not complete. Pages of a chunk that no thread writes take no memory.

use core::cell::UnsafeCell;
use core::fmt;
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crossbeam_utils::CachePadded;

use crate::thread::Thread;

/// Cells in the first chunk.
const FIRST: usize = 16;
/// Enough for every number of 32 bits.
const CHUNKS: usize = 29;
/// What memory is aligned to that the runtime maps.
const PAGE: usize = 4096;

/// How the runtime maps memory: in a callback, so without the allocator.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Maps a number of bytes, all 0, at a multiple of 4096; `None` if there are none.
    pub map: fn(usize) -> Option<*mut u8>,
    /// Gives back all bytes of what was mapped.
    pub unmap: unsafe fn(*mut u8, usize),
}

static MEMORY: AtomicPtr<Memory> = AtomicPtr::new(ptr::null_mut());

/// Says how memory is mapped.
///
/// # Safety
///
/// The functions must do what [`Memory`] says.
pub unsafe fn set_memory(memory: &'static Memory) {
    MEMORY.store(ptr::from_ref(memory).cast_mut(), Ordering::Release);
}

fn memory() -> Option<&'static Memory> {
    // SAFETY: null, or lives for ever.
    unsafe { MEMORY.load(Ordering::Acquire).as_ref() }
}

/// A thread's value.
pub(super) struct Cell<T> {
    /// [`EMPTY`], [`MAKING`] or [`READY`]; in [`Recycled`](crate::Recycled) storage the last two
    /// have more bits.
    pub(super) state: AtomicU32,
    /// The kernel's id of the thread.
    thread: AtomicU32,
    value: UnsafeCell<MaybeUninit<T>>,
}

/// The state of a cell as it is mapped.
const EMPTY: u32 = 0;
/// The thread is making its value.
const MAKING: u32 = 1;
/// The value is there, for as long as the storage is.
pub(super) const READY: u32 = 1 << 31;

type Chunk<T> = AtomicPtr<CachePadded<Cell<T>>>;

/// A value of type `T` for each thread in which a callback asks for one.
///
/// A callback gets its thread's value by [`Entry::per_thread`](crate::Entry::per_thread) or
/// [`Return::per_thread`](crate::Return::per_thread), without a lock or the allocator. It is made
/// by `T::default()` when the thread asks first, and is in cache lines of its own. There are only
/// shared references to values, so what changes in them is atomic, or guarded by the value itself;
/// a thread is never in two callbacks at once.
///
/// Any thread may [walk](Self::iter) the values at any time. The value of a thread that has ended
/// stays until the storage is dropped or [taken apart](Self::into_values), and no other thread gets
/// it, whatever the kernel does with the thread's id. So a program that makes threads without end
/// needs memory without end: at least 128 bytes for each of them that asks.
/// [`Recycled`](crate::Recycled) storage gives the values of threads that have ended to new ones.
///
/// # Example
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use fgraph_core::{Entry, FgraphOps, PerThread};
///
/// /// Counts calls without the threads getting in each other's way.
/// #[derive(Default)]
/// struct Calls(PerThread<AtomicU64>);
///
/// impl FgraphOps for Calls {
///     type Data = ();
///
///     fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
///         let calls = call.per_thread(&self.0)?;
///         // Only this thread writes it.
///         calls.store(calls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
///         None
///     }
/// }
///
/// let calls = Calls::default();
/// // ... when it was registered and unregistered ...
/// let sum: u64 = calls.0.into_values().map(|(_thread, calls)| calls.into_inner()).sum();
/// ```
pub struct PerThread<T> {
    chunks: [Chunk<T>; CHUNKS],
    /// Above the number of every thread that has a value.
    end: AtomicU32,
}

// SAFETY: the values go where the storage goes.
unsafe impl<T: Send> Send for PerThread<T> {}
// SAFETY: shared references to values go to every thread, and values are made in one and dropped in
// another.
unsafe impl<T: Send + Sync> Sync for PerThread<T> {}

/// The chunk of a cell, and its place there.
#[inline(always)]
fn place(number: u32) -> (usize, usize) {
    let n = number as usize + FIRST;
    let chunk = n.ilog2() - FIRST.ilog2();
    (chunk as usize, n - (FIRST << chunk))
}

impl<T> PerThread<T> {
    /// Without any value.
    pub const fn new() -> Self {
        const {
            assert!(
                align_of::<CachePadded<Cell<T>>>() <= PAGE,
                "a value is aligned to more than a page"
            );
        }
        Self {
            chunks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS],
            end: AtomicU32::new(0),
        }
    }

    /// Bytes of a chunk; `None` if there are too many.
    fn chunk_len(chunk: usize) -> Option<usize> {
        (FIRST << chunk).checked_mul(size_of::<CachePadded<Cell<T>>>())
    }

    /// The cell of a number, if its chunk is mapped.
    #[inline(always)]
    pub(super) fn cell(&self, number: u32) -> Option<&Cell<T>> {
        let (chunk, place) = place(number);
        // Acquire: the cells are mapped before.
        let cells = self.chunks[chunk].load(Ordering::Acquire);
        // SAFETY: a chunk has a cell for each place, and stays; a cell of zeros is an empty one.
        (!cells.is_null()).then(|| unsafe { &**cells.add(place) })
    }

    /// The values that are there now, each with the kernel's id of its thread, in the order in
    /// which fgraph has first seen the threads.
    ///
    /// May be used while threads run: what they change meanwhile is seen or not.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        // Acquire: the chunks of all these numbers are there.
        let numbers = 0..self.end.load(Ordering::Acquire);
        numbers.filter_map(|number| self.cell(number)?.get())
    }

    /// The values of all threads, in the order of [`iter`](Self::iter), each with the kernel's id
    /// of its thread.
    pub fn into_values(mut self) -> impl Iterator<Item = (u32, T)> {
        // A cell whose value was taken is empty: the storage drops the others.
        let end = *self.end.get_mut();
        (0..end).filter_map(move |number| {
            let cell = self.cell(number)?;
            let (thread, _) = cell.get()?;
            cell.state.store(EMPTY, Ordering::Relaxed);
            // SAFETY: it was complete, and nothing else sees it: the storage is ours.
            Some((thread, unsafe { (*cell.value.get()).assume_init_read() }))
        })
    }
}

impl<T> Cell<T> {
    #[inline(always)]
    pub(super) fn get(&self) -> Option<(u32, &T)> {
        // Acquire: the value is complete.
        if self.state.load(Ordering::Acquire) & READY == 0 {
            return None;
        }
        // SAFETY: the value is complete and is not moved before the storage is taken apart.
        let value = unsafe { (*self.value.get()).assume_init_ref() };
        Some((self.thread.load(Ordering::Relaxed), value))
    }

    /// The value, if the cell has this state and a value is there in this state.
    #[inline(always)]
    pub(super) fn get_in(&self, state: u32) -> Option<&T> {
        // Acquire, as in `get`.
        let is_there = state & READY != 0 && self.state.load(Ordering::Acquire) == state;
        // SAFETY: as in `get`.
        is_there.then(|| unsafe { (*self.value.get()).assume_init_ref() })
    }
}

impl<T: Default> PerThread<T> {
    /// The value of `thread`, the running one; `None` if there is no memory for it.
    #[inline(always)]
    pub(crate) fn of(&self, thread: &Thread) -> Option<&T> {
        let number = thread.number.get();
        match self.cell(number).and_then(Cell::get) {
            Some((_, value)) => Some(value),
            None => self.make(number, [MAKING, READY], thread.id(), T::default),
        }
    }

    /// Makes the value in the cell of `number` for `thread`. The cell's state is the first of
    /// `states` meanwhile, and then the second.
    #[cold]
    #[inline(never)]
    pub(super) fn make(
        &self,
        number: u32,
        [making, ready]: [u32; 2],
        thread: u32,
        value: impl FnOnce() -> T,
    ) -> Option<&T> {
        let cell = match self.cell(number) {
            Some(cell) => cell,
            None => {
                self.map(place(number).0)?;
                self.cell(number)?
            }
        };
        // Fails where making the value has got here again, or was left in the middle.
        let before = cell.state.load(Ordering::Relaxed);
        if before == making || before & READY != 0 {
            return None;
        }
        let (relaxed, acquire) = (Ordering::Relaxed, Ordering::Acquire);
        cell.state
            .compare_exchange(before, making, acquire, relaxed)
            .ok()?;
        /// Says that a value was not made after all, if it panics.
        struct Undo<'a>(&'a AtomicU32);
        impl Drop for Undo<'_> {
            fn drop(&mut self) {
                self.0.store(EMPTY, Ordering::Relaxed);
            }
        }
        let undo = Undo(&cell.state);
        let value = value();
        core::mem::forget(undo);
        // SAFETY: who has made the state MAKING has the cell to itself.
        unsafe { (*cell.value.get()).write(value) };
        cell.thread.store(thread, Ordering::Relaxed);
        cell.state.store(ready, Ordering::Release);
        self.end
            .fetch_max(number.saturating_add(1), Ordering::Release);
        cell.get().map(|(_, value)| value)
    }

    /// Maps a chunk, unless another thread has.
    fn map(&self, chunk: usize) -> Option<()> {
        let memory = memory()?;
        let len = Self::chunk_len(chunk)?;
        let cells = (memory.map)(len)?;
        let [null, ours] = [ptr::null_mut(), cells.cast()];
        let (release, relaxed) = (Ordering::Release, Ordering::Relaxed);
        if self.chunks[chunk]
            .compare_exchange(null, ours, release, relaxed)
            .is_err()
        {
            // SAFETY: just mapped, and nothing else knows of it.
            unsafe { (memory.unmap)(cells, len) };
        }
        Some(())
    }
}

impl<T> Default for PerThread<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for PerThread<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<T> Drop for PerThread<T> {
    fn drop(&mut self) {
        for number in 0..*self.end.get_mut() {
            if let Some(cell) = self.cell(number)
                && cell.get().is_some()
            {
                // SAFETY: it is complete, and nothing else sees it any more.
                unsafe { (*cell.value.get()).assume_init_drop() };
            }
        }
        for (chunk, cells) in self.chunks.iter_mut().enumerate() {
            let cells = *cells.get_mut();
            if let (false, Some(memory), Some(len)) =
                (cells.is_null(), memory(), Self::chunk_len(chunk))
            {
                // SAFETY: mapped with this length, and nothing refers to its cells any more.
                unsafe { (memory.unmap)(cells.cast(), len) };
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
    use std::vec::Vec;

    use super::*;
    use crate::owner::Watched;

    static MAPPED: AtomicUsize = AtomicUsize::new(0);

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, PAGE).unwrap()
    }

    static TEST_MEMORY: Memory = Memory {
        map: |len| {
            MAPPED.fetch_add(len, Ordering::Relaxed);
            // SAFETY: not empty.
            Some(unsafe { alloc_zeroed(layout(len)) })
        },
        unmap: |place, len| {
            MAPPED.fetch_sub(len, Ordering::Relaxed);
            // SAFETY: as it was allocated.
            unsafe { dealloc(place, layout(len)) };
        },
    };

    pub(in crate::users) fn set_up() {
        // SAFETY: that is what it does.
        unsafe { set_memory(&TEST_MEMORY) };
    }

    pub(in crate::users) fn thread(id: u32) -> Thread {
        // SAFETY: only the test has it.
        let thread = unsafe { Thread::new() };
        assert!(thread.claim(id, &Watched::new()));
        thread
    }

    #[test]
    fn places_follow_one_another() {
        let mut next = (0, 0);
        for number in 0..1000 {
            assert_eq!(place(number), next);
            next.1 += 1;
            if next.1 == FIRST << next.0 {
                next = (next.0 + 1, 0);
            }
        }
        assert_eq!(place(u32::MAX).0, CHUNKS - 1);
    }

    #[test]
    fn each_thread_has_a_value_also_when_a_state_changes_hands() {
        set_up();
        let storage = PerThread::<AtomicU64>::new();
        let first = thread(7);
        storage.of(&first).unwrap().store(1, Ordering::Relaxed);
        assert_eq!(storage.of(&first).unwrap().load(Ordering::Relaxed), 1);
        assert!(first.release(7) && first.claim(7, &Watched::new()));
        assert_eq!(storage.of(&first).unwrap().load(Ordering::Relaxed), 0);
        storage.of(&first).unwrap().store(2, Ordering::Relaxed);
        let values = |(id, value): (u32, &AtomicU64)| (id, value.load(Ordering::Relaxed));
        assert_eq!(
            storage.iter().map(values).collect::<Vec<_>>(),
            [(7, 1), (7, 2)]
        );
        let values = storage.into_values();
        let values = values.map(|(id, value)| (id, value.into_inner()));
        assert_eq!(values.collect::<Vec<_>>(), [(7, 1), (7, 2)]);
    }

    #[test]
    fn threads_make_and_walk_values_at_the_same_time() {
        set_up();
        const THREADS: u64 = 40;
        let storage = Arc::new(PerThread::<AtomicU64>::new());
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let walker = scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    assert!(
                        storage
                            .iter()
                            .all(|(_, value)| value.load(Ordering::Relaxed) <= 2)
                    );
                }
            });
            let threads: Vec<_> = (1..=THREADS)
                .map(|id| {
                    let storage = &storage;
                    scope.spawn(move || {
                        let thread = thread(id as u32);
                        for _ in 0..2 {
                            storage.of(&thread).unwrap().fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            threads
                .into_iter()
                .for_each(|thread| thread.join().unwrap());
            done.store(true, Ordering::Relaxed);
            walker.join().unwrap();
        });
        let sum = |(_, value): (u32, &AtomicU64)| value.load(Ordering::Relaxed);
        assert_eq!(storage.iter().map(sum).sum::<u64>(), 2 * THREADS);
    }

    /// Counts those that are there.
    struct Counted(&'static AtomicUsize);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn every_value_is_dropped_once() {
        static THERE: AtomicUsize = AtomicUsize::new(0);
        struct Value(#[expect(dead_code, reason = "for its drop")] Counted);
        impl Default for Value {
            fn default() -> Self {
                THERE.fetch_add(1, Ordering::Relaxed);
                Self(Counted(&THERE))
            }
        }
        set_up();
        for taken in 0..4 {
            let storage = PerThread::<Value>::new();
            for id in 1..=3 {
                assert!(storage.of(&thread(id)).is_some());
            }
            assert_eq!(THERE.load(Ordering::Relaxed), 3);
            let mut values = storage.into_values();
            for _ in 0..taken {
                assert!(values.next().is_some());
            }
            drop(values);
            assert_eq!(THERE.load(Ordering::Relaxed), 0);
        }
    }

    #[test]
    fn a_value_that_cannot_be_made_is_tried_again() {
        static PANICS: AtomicBool = AtomicBool::new(true);
        struct Value;
        impl Default for Value {
            fn default() -> Self {
                assert!(!PANICS.load(Ordering::Relaxed));
                Self
            }
        }
        set_up();
        let storage = PerThread::<Value>::new();
        let thread = thread(1);
        assert!(catch_unwind(AssertUnwindSafe(|| storage.of(&thread).is_some())).is_err());
        assert_eq!(storage.iter().count(), 0);
        PANICS.store(false, Ordering::Relaxed);
        assert!(storage.of(&thread).is_some());
        assert_eq!(storage.iter().count(), 1);
    }
}
