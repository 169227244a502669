//! Storage with one value per thread, for callbacks.
//!
//! Every thread that fgraph has seen has a number, counted from 0 and never reused. The thread's
//! value is in the cell with that number:
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
//! A chunk is mapped when the first thread needs it, and never moves, so no thread waits for
//! another one. A thread finds its own cell by arithmetic and two loads; an iteration over the
//! cells skips the incomplete ones. Pages of a chunk to which no thread writes take no memory.

use core::cell::UnsafeCell;
use core::fmt;
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crossbeam_utils::CachePadded;

use crate::thread::Thread;

/// The number of cells in the first chunk.
const FIRST: usize = 16;
/// The number of chunks, enough for every number of 32 bits.
const CHUNKS: usize = 29;
/// The alignment of memory that the runtime maps.
const PAGE: usize = 4096;

/// The runtime's functions that map memory in a callback, without the allocator.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Maps `len` bytes, all 0, at a multiple of 4096; `None` if there is no memory.
    pub map: fn(usize) -> Option<*mut u8>,
    /// Unmaps all bytes of such a mapping.
    pub unmap: unsafe fn(*mut u8, usize),
}

static MEMORY: AtomicPtr<Memory> = AtomicPtr::new(ptr::null_mut());

/// Sets the functions that map memory.
///
/// # Safety
///
/// The functions must do what [`Memory`] says.
pub unsafe fn set_memory(memory: &'static Memory) {
    MEMORY.store(ptr::from_ref(memory).cast_mut(), Ordering::Release);
}

fn memory() -> Option<&'static Memory> {
    // SAFETY: null, or a value that is never freed.
    unsafe { MEMORY.load(Ordering::Acquire).as_ref() }
}

/// A thread's cell.
pub(super) struct Cell<T> {
    /// [`EMPTY`], [`MAKING`] or [`READY`]; in [`Recycled`](crate::Recycled) storage the last two
    /// have more bits.
    pub(super) state: AtomicU32,
    /// The kernel's id of the thread.
    thread: AtomicU32,
    value: UnsafeCell<MaybeUninit<T>>,
}

/// The state of a cell in newly mapped memory.
const EMPTY: u32 = 0;
/// The state while the thread makes its value.
const MAKING: u32 = 1;
/// The state once the value exists, for as long as the storage does.
pub(super) const READY: u32 = 1 << 31;

type Chunk<T> = AtomicPtr<CachePadded<Cell<T>>>;

/// Storage with a value of type `T` for each thread in which a callback requests one.
///
/// A callback gets its thread's value with [`Entry::per_thread`](crate::Entry::per_thread) or
/// [`Return::per_thread`](crate::Return::per_thread), without a lock or the allocator.
/// `T::default()` makes the value at the thread's first request, in cache lines of its own.
/// References to values are shared, so their mutable parts are atomic, or guarded by the value
/// itself; a thread is never in two callbacks at once.
///
/// Any thread may [iterate](Self::iter) over the values at any time. The value of a thread that has
/// ended stays until the storage is dropped or [taken apart](Self::into_values). No other thread
/// gets it, even if the kernel reuses the thread's id. So a program that makes threads without end
/// needs memory without end: at least 128 bytes for each thread with a value.
/// [`Recycled`](crate::Recycled) storage gives the values of ended threads to new ones.
///
/// # Example
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// # use fgraph_core as fgraph;
/// use fgraph::{Entry, FgraphOps, PerThread};
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
    /// An upper bound of the numbers of threads with a value.
    end: AtomicU32,
}

// SAFETY: the values move together with the storage.
unsafe impl<T: Send> Send for PerThread<T> {}
// SAFETY: shared references to values reach every thread, and values are made in one thread and
// dropped in another.
unsafe impl<T: Send + Sync> Sync for PerThread<T> {}

/// Returns the chunk of a cell, and the cell's index there.
#[inline(always)]
fn place(number: u32) -> (usize, usize) {
    let n = number as usize + FIRST;
    let chunk = n.ilog2() - FIRST.ilog2();
    (chunk as usize, n - (FIRST << chunk))
}

impl<T> PerThread<T> {
    /// Starts without values.
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

    /// Returns the size of a chunk in bytes; `None` if it is too large.
    fn chunk_len(chunk: usize) -> Option<usize> {
        (FIRST << chunk).checked_mul(size_of::<CachePadded<Cell<T>>>())
    }

    /// Returns the cell of a number, if its chunk is mapped.
    #[inline(always)]
    pub(super) fn cell(&self, number: u32) -> Option<&Cell<T>> {
        let (chunk, place) = place(number);
        // Acquire: the chunk is mapped before the pointer is stored.
        let cells = self.chunks[chunk].load(Ordering::Acquire);
        // SAFETY: a chunk has a cell for each index, and is never unmapped; all zeros are an empty
        // cell.
        (!cells.is_null()).then(|| unsafe { &**cells.add(place) })
    }

    /// Iterates over the current values, each with the kernel's id of its thread, in the order in
    /// which fgraph has first seen the threads.
    ///
    /// This is safe while threads run: concurrent changes may or may not be seen.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        // Acquire: the chunks of all these numbers exist.
        let numbers = 0..self.end.load(Ordering::Acquire);
        numbers.filter_map(|number| self.cell(number)?.get())
    }

    /// Returns the values of all threads, in the order of [`iter`](Self::iter), each with the
    /// kernel's id of its thread.
    pub fn into_values(mut self) -> impl Iterator<Item = (u32, T)> {
        // A cell whose value was taken is empty: dropping the storage drops the others.
        let end = *self.end.get_mut();
        (0..end).filter_map(move |number| {
            let cell = self.cell(number)?;
            let (thread, _) = cell.get()?;
            cell.state.store(EMPTY, Ordering::Relaxed);
            // SAFETY: the value is complete, and nothing else can access it: the storage is ours.
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
        // SAFETY: the value is complete, and does not move before the storage is taken apart.
        let value = unsafe { (*self.value.get()).assume_init_ref() };
        Some((self.thread.load(Ordering::Relaxed), value))
    }

    /// Returns the value, if the cell has this state and the state says that there is a value.
    #[inline(always)]
    pub(super) fn get_in(&self, state: u32) -> Option<&T> {
        // Acquire: the value is complete.
        let is_there = state & READY != 0 && self.state.load(Ordering::Acquire) == state;
        // SAFETY: the value is complete, and does not move before the storage is taken apart.
        is_there.then(|| unsafe { (*self.value.get()).assume_init_ref() })
    }
}

impl<T: Default> PerThread<T> {
    /// Returns the value of `thread`, the running one; `None` if there is no memory for it.
    #[inline(always)]
    pub(crate) fn of(&self, thread: &Thread) -> Option<&T> {
        let number = thread.number.get();
        match self.cell(number).and_then(Cell::get) {
            Some((_, value)) => Some(value),
            None => self.make(number, [MAKING, READY], thread.id(), T::default),
        }
    }

    /// Makes the value in the cell of `number` for `thread`. Meanwhile the cell has the first of
    /// `states`, then the second.
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
        // Fails if making the value has called this again, or was left in the middle.
        let before = cell.state.load(Ordering::Relaxed);
        if before == making || before & READY != 0 {
            return None;
        }
        let (relaxed, acquire) = (Ordering::Relaxed, Ordering::Acquire);
        cell.state
            .compare_exchange(before, making, acquire, relaxed)
            .ok()?;
        /// Restores the cell's state if making the value panics.
        struct Undo<'a>(&'a AtomicU32);
        impl Drop for Undo<'_> {
            fn drop(&mut self) {
                self.0.store(EMPTY, Ordering::Relaxed);
            }
        }
        let undo = Undo(&cell.state);
        let value = value();
        core::mem::forget(undo);
        // SAFETY: the thread that has set the state to MAKING owns the cell.
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
            // SAFETY: the chunk was just mapped, and its address was not published.
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
                // SAFETY: the value is complete, and nothing else can access it any more.
                unsafe { (*cell.value.get()).assume_init_drop() };
            }
        }
        for (chunk, cells) in self.chunks.iter_mut().enumerate() {
            let cells = *cells.get_mut();
            if let (false, Some(memory), Some(len)) =
                (cells.is_null(), memory(), Self::chunk_len(chunk))
            {
                // SAFETY: the chunk was mapped with this length, and no reference to its cells
                // exists any more.
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
            // SAFETY: the layout is not empty.
            Some(unsafe { alloc_zeroed(layout(len)) })
        },
        unmap: |place, len| {
            MAPPED.fetch_sub(len, Ordering::Relaxed);
            // SAFETY: allocated with the same layout.
            unsafe { dealloc(place, layout(len)) };
        },
    };

    pub(in crate::users) fn set_up() {
        // SAFETY: the functions allocate and free as `Memory` says.
        unsafe { set_memory(&TEST_MEMORY) };
    }

    pub(in crate::users) fn thread(id: u32) -> Thread {
        // SAFETY: only this test has the state.
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

    /// Counts its live values.
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
