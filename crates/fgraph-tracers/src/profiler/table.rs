//! What a thread keeps of its calls: a row for each function, an edge for each caller of it.
//!
//! ```text
//!   slots (open addressing)          edges                      rows
//!   +------------------+      +------------------+       +---------------------+
//!   | caller, callee --|----->| hits, time, row -|------>| hits, times         |
//!   |                  |      +------------------+       | histogram           |
//!   | caller, callee --|----->| hits, time, row -|--^    +---------------------+
//!   +------------------+      +------------------+
//! ```
//!
//! The thread alone writes. It finds an edge by the numbers of the two functions; any thread walks
//! the lists of edges and of rows. When three quarters of the slots are taken the table is made
//! anew, twice as large, and the old one's memory is not used again.
//!
//! A row's numbers are read under its version, which is odd while they change.
//!
//! # Safety
//!
//! The unsafe code refers to rows and edges, which lie in the table's arena.

use core::cell::UnsafeCell;
use core::fmt;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
use std::time::Duration;

use fgraph::Function;

use super::{Edge, FunctionProfile, ThreadProfile};
use crate::support::arena::{Arena, Linked, List, Zeroed};
use crate::support::{histogram, kernel};

/// Slots of the first table.
const FIRST: usize = 256;
/// Attempts to read a row that is being changed.
const ATTEMPTS: usize = 100;

/// A function or none, written before others see it.
struct FunctionCell(UnsafeCell<MaybeUninit<Option<Function>>>);

// SAFETY: written before others see it.
unsafe impl Sync for FunctionCell {}

impl FunctionCell {
    /// Writes it.
    ///
    /// # Safety
    ///
    /// Only before others see it.
    unsafe fn set(&self, function: Option<Function>) {
        // SAFETY: nothing else refers to it yet.
        unsafe { (*self.0.get()).write(function) };
    }

    /// Reads it.
    ///
    /// # Safety
    ///
    /// Only after it was written.
    unsafe fn get(&self) -> Option<Function> {
        // SAFETY: written, and not changed any more.
        unsafe { (*self.0.get()).assume_init_read() }
    }
}

impl fmt::Debug for FunctionCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FunctionCell").finish_non_exhaustive()
    }
}

/// What a thread knows of a function.
#[derive(Debug)]
#[repr(C)]
pub(super) struct RowCells {
    next: AtomicPtr<Self>,
    function: FunctionCell,
    /// Whether a call is going on that is in no other call of the function.
    pub(super) is_active: AtomicU64,
    version: AtomicU64,
    hits: AtomicU64,
    total: AtomicU64,
    own: AtomicU64,
    sum: AtomicU64,
    squares: [AtomicU64; 2],
    min: AtomicU64,
    max: AtomicU64,
    counts: [AtomicU64; histogram::BUCKETS],
}

// SAFETY: atomics, and what need not be initialised.
unsafe impl Zeroed for RowCells {}

impl Linked for RowCells {
    fn link(&self) -> &AtomicPtr<Self> {
        &self.next
    }
}

/// What a thread knows of the calls of a function by another one.
#[derive(Debug)]
#[repr(C)]
pub(super) struct EdgeCells {
    next: AtomicPtr<Self>,
    /// The numbers of both functions.
    key: AtomicU64,
    caller: FunctionCell,
    row: AtomicPtr<RowCells>,
    hits: AtomicU64,
    time: AtomicU64,
}

// SAFETY: as for rows.
unsafe impl Zeroed for EdgeCells {}

impl Linked for EdgeCells {
    fn link(&self) -> &AtomicPtr<Self> {
        &self.next
    }
}

impl EdgeCells {
    pub(super) fn row(&self) -> &RowCells {
        // SAFETY: set before others see the edge, to a row of the same arena.
        unsafe { &*self.row.load(Ordering::Relaxed) }
    }
}

/// The tables of a thread.
#[derive(Debug, Default)]
pub(super) struct Table {
    rows: List<RowCells>,
    edges: List<EdgeCells>,
    /// The slots, a power of two.
    slots: AtomicPtr<AtomicPtr<EdgeCells>>,
    /// The number of slots.
    len: AtomicUsize,
    /// The number of slots that are taken.
    taken: AtomicUsize,
    /// Calls that found no memory.
    pub(super) unrecorded: AtomicU64,
    arena: Arena,
}

/// Adds to a number that one thread writes.
pub(super) fn add(to: &AtomicU64, value: u64) {
    to.store(
        to.load(Ordering::Relaxed).wrapping_add(value),
        Ordering::Relaxed,
    );
}

/// The two functions as a number that is not 0.
fn key(caller: Option<Function>, callee: Function) -> u64 {
    let caller = caller.map_or(0, |function| u64::from(function.index()) + 1);
    (caller << 32) | (u64::from(callee.index()) + 1)
}

/// Where to look for a key first.
fn hash(key: u64, len: usize) -> usize {
    let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as usize & (len - 1)
}

impl Table {
    /// The edge of a call, made if there is none yet; `None` without memory.
    ///
    /// # Safety
    ///
    /// Only in a callback of the thread whose table it is.
    #[inline]
    pub(super) unsafe fn edge(
        &self,
        caller: Option<Function>,
        callee: Function,
    ) -> Option<&EdgeCells> {
        let key = key(caller, callee);
        let len = self.len.load(Ordering::Relaxed);
        let slots = self.slots.load(Ordering::Relaxed);
        if len != 0 {
            let mut index = hash(key, len);
            loop {
                // SAFETY: there are so many slots.
                let edge = unsafe { (*slots.add(index)).load(Ordering::Relaxed).as_ref() };
                match edge {
                    Some(edge) if edge.key.load(Ordering::Relaxed) == key => return Some(edge),
                    // A quarter of the slots is free.
                    Some(_) => index = (index + 1) & (len - 1),
                    None => break,
                }
            }
        }
        // SAFETY: handed on.
        let made = unsafe { self.make(key, caller, callee) };
        if made.is_none() {
            add(&self.unrecorded, 1);
        }
        made
    }

    /// Makes an edge that is not there.
    ///
    /// # Safety
    ///
    /// As for [`edge`](Self::edge).
    #[cold]
    #[inline(never)]
    unsafe fn make(
        &self,
        key: u64,
        caller: Option<Function>,
        callee: Function,
    ) -> Option<&EdgeCells> {
        let known = self.rows.iter().find(|row| row.function() == Some(callee));
        // SAFETY: handed on; what is new is ours until it is in a list.
        unsafe {
            let row = match known {
                Some(row) => row,
                None => {
                    let row = self.arena.zeroed::<RowCells>(1)?.first()?;
                    row.function.set(Some(callee));
                    self.rows.add(row);
                    row
                }
            };
            self.make_room()?;
            let edge = self.arena.zeroed::<EdgeCells>(1)?.first()?;
            edge.key.store(key, Ordering::Relaxed);
            edge.caller.set(caller);
            edge.row
                .store(core::ptr::from_ref(row).cast_mut(), Ordering::Relaxed);
            self.edges.add(edge);
            self.insert(edge);
            Some(edge)
        }
    }

    /// Has a quarter of the slots free, and one more.
    ///
    /// # Safety
    ///
    /// As for [`edge`](Self::edge).
    unsafe fn make_room(&self) -> Option<()> {
        let len = self.len.load(Ordering::Relaxed);
        if (self.taken.load(Ordering::Relaxed) + 1) * 4 <= len * 3 {
            return Some(());
        }
        let more = (len * 2).max(FIRST);
        // SAFETY: handed on.
        let slots = unsafe { self.arena.zeroed::<AtomicPtr<EdgeCells>>(more) }?;
        self.slots
            .store(slots.as_ptr().cast_mut(), Ordering::Relaxed);
        self.len.store(more, Ordering::Relaxed);
        self.taken.store(0, Ordering::Relaxed);
        for edge in self.edges.iter() {
            // SAFETY: handed on.
            unsafe { self.insert(edge) };
        }
        Some(())
    }

    /// Puts an edge into a free slot, of which there is one.
    ///
    /// # Safety
    ///
    /// As for [`edge`](Self::edge).
    unsafe fn insert(&self, edge: &EdgeCells) {
        let len = self.len.load(Ordering::Relaxed);
        let slots = self.slots.load(Ordering::Relaxed);
        let mut index = hash(edge.key.load(Ordering::Relaxed), len);
        loop {
            // SAFETY: there are so many slots.
            let slot = unsafe { &*slots.add(index) };
            if slot.load(Ordering::Relaxed).is_null() {
                slot.store(core::ptr::from_ref(edge).cast_mut(), Ordering::Relaxed);
                let taken = self.taken.load(Ordering::Relaxed);
                self.taken.store(taken + 1, Ordering::Relaxed);
                return;
            }
            index = (index + 1) & (len - 1);
        }
    }

    /// What is in the tables now.
    pub(super) fn read(&self, thread: u32) -> ThreadProfile {
        let rows = self.rows.iter().filter_map(RowCells::read);
        let edges = self.edges.iter().filter_map(EdgeCells::read);
        let mut profile = ThreadProfile {
            thread,
            functions: rows.collect(),
            edges: edges.collect(),
        };
        profile.sort();
        profile
    }
}

impl RowCells {
    fn function(&self) -> Option<Function> {
        // SAFETY: set before the row is in the list, and never again.
        unsafe { self.function.get() }
    }

    /// Adds a call. Only the thread whose row it is may.
    pub(super) fn record(&self, took: u64, own: u64, is_outermost: bool) {
        let version = self.version.load(Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(1), Ordering::Relaxed);
        // Pairs with the Acquire fence in `read`: who sees a number of this call there sees the odd
        // version.
        fence(Ordering::Release);
        let hits = self.hits.load(Ordering::Relaxed);
        let min = self.min.load(Ordering::Relaxed);
        if hits == 0 || took < min {
            self.min.store(took, Ordering::Relaxed);
        }
        if took > self.max.load(Ordering::Relaxed) {
            self.max.store(took, Ordering::Relaxed);
        }
        self.hits.store(hits.wrapping_add(1), Ordering::Relaxed);
        if is_outermost {
            add(&self.total, took);
        }
        add(&self.own, own);
        add(&self.sum, took);
        let square = self.squares().wrapping_add(u128::from(took).pow(2));
        self.squares[0].store(square as u64, Ordering::Relaxed);
        self.squares[1].store((square >> 64) as u64, Ordering::Relaxed);
        // Release: pairs with the first load in `read`.
        self.version
            .store(version.wrapping_add(2), Ordering::Release);
        if let Some(count) = self.counts.get(histogram::bucket(took)) {
            add(count, 1);
        }
    }

    fn squares(&self) -> u128 {
        let [low, high] = self
            .squares
            .each_ref()
            .map(|word| word.load(Ordering::Relaxed));
        u128::from(high) << 64 | u128::from(low)
    }

    /// The row as it is now; `None` if no call has returned yet.
    ///
    /// Its numbers are of one moment, unless the thread was interrupted while it changed them and
    /// does not go on.
    fn read(&self) -> Option<FunctionProfile> {
        let function = self.function()?;
        let duration = |cell: &AtomicU64| kernel::duration(cell.load(Ordering::Relaxed));
        let mut attempts = 0;
        let mut profile = loop {
            // Acquire: pairs with the Release of the version in `record`.
            let version = self.version.load(Ordering::Acquire);
            let profile = FunctionProfile {
                function,
                hits: self.hits.load(Ordering::Relaxed),
                total: duration(&self.total),
                own: duration(&self.own),
                min: duration(&self.min),
                max: duration(&self.max),
                sum: self.sum.load(Ordering::Relaxed),
                squares: self.squares(),
                counts: Box::default(),
            };
            // Pairs with the Release fence in `record`.
            fence(Ordering::Acquire);
            let is_whole =
                version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
            if is_whole || attempts == ATTEMPTS {
                break profile;
            }
            attempts += 1;
            std::thread::yield_now();
        };
        if profile.hits == 0 {
            return None;
        }
        let counts = self.counts.iter();
        profile.counts = counts.map(|count| count.load(Ordering::Relaxed)).collect();
        Some(profile)
    }
}

impl EdgeCells {
    pub(super) fn record(&self, took: u64) {
        add(&self.hits, 1);
        add(&self.time, took);
    }

    fn read(&self) -> Option<Edge> {
        let hits = self.hits.load(Ordering::Relaxed);
        let edge = Edge {
            // SAFETY: set before the edge is in the list, and never again.
            caller: unsafe { self.caller.get() },
            callee: self.row().function()?,
            hits,
            time: Duration::from_nanos(self.time.load(Ordering::Relaxed)),
        };
        (hits != 0).then_some(edge)
    }
}
