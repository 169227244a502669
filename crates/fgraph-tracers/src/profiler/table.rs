//! Tables of a thread's calls: a row for each function, an edge for each caller of it.
//!
//! ```text
//!   slots (open addressing)          edges                      rows
//!   +------------------+      +------------------+       +---------------------+
//!   | caller, callee --|----->| hits, time, row -|------>| other times         |
//!   |                  |      +------------------+       | histogram           |
//!   | caller, callee --|----->| hits, time, row -|--^    | list of its edges   |
//!   +------------------+      +------------------+       +---------------------+
//! ```
//!
//! Only the thread writes. It finds an edge by the numbers of the two functions; any thread can
//! walk the list of rows, and the lists of their edges. The count and the time of a function are
//! the sums over its edges. When three quarters of the slots are taken, the thread makes a table
//! twice as large, and the old table's memory is not used again.
//!
//! Readers read the numbers of a row and of its edges under the row's version, which is odd while
//! they change.
//!
//! A thread takes over the tables of one that has ended. Each owner has a turn, counted from 1, and
//! a row has the turn of the owner whose calls its numbers count. When an owner first reaches a row
//! of another turn, it adds the row's numbers to those of ended threads, which the row keeps beside
//! its own, and restarts them at zero. The row's turn is 0 meanwhile. A reader checks whether the
//! turn has changed.
//!
//! # Safety
//!
//! The unsafe code refers to rows and edges, which lie in the table's arena.

use core::cell::UnsafeCell;
use core::fmt;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::time::Duration;

use fgraph::{Function, Recycle};
use fgraph_trace::histogram;

use super::{BITS, Edge, FunctionProfile, ThreadProfile};
use crate::support::arena::{Arena, Linked, List, Zeroed};
use crate::support::kernel;
use crate::support::version::Version;

/// Number of slots of the first table.
const FIRST: usize = 256;
/// Number of buckets of a histogram.
const BUCKETS: usize = histogram::buckets::<BITS>();
/// Number of attempts to read a row that is being changed.
const ATTEMPTS: usize = 100;
/// Turn of a row whose numbers are being added to those of ended threads.
const MOVING: u32 = 0;

/// Optional function, written before other threads see the cell.
struct FunctionCell(UnsafeCell<MaybeUninit<Option<Function>>>);

// SAFETY: the value is written before other threads see the cell, and never changed after.
unsafe impl Sync for FunctionCell {}

impl FunctionCell {
    /// Writes the value.
    ///
    /// # Safety
    ///
    /// Only before other threads see the cell.
    unsafe fn set(&self, function: Option<Function>) {
        // SAFETY: nothing else refers to the value yet, as the caller says.
        unsafe { (*self.0.get()).write(function) };
    }

    /// Reads the value.
    ///
    /// # Safety
    ///
    /// Only after the value was written.
    unsafe fn get(&self) -> Option<Function> {
        // SAFETY: the value was written, as the caller says, and no longer changes.
        unsafe { (*self.0.get()).assume_init_read() }
    }
}

impl fmt::Debug for FunctionCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FunctionCell").finish_non_exhaustive()
    }
}

/// Row of a function in a thread's tables.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct RowCells {
    version: Version,
    /// Nonzero while a call runs that is in no other call of the function.
    pub(super) is_active: AtomicU32,
    /// Turn of the owner whose calls the numbers count.
    turn: AtomicU32,
    numbers: Numbers,
    /// Numbers of the earlier owners; null if there were none.
    ended: AtomicPtr<Numbers>,
    next: AtomicPtr<Self>,
    function: FunctionCell,
    edges: List<EdgeCells>,
}

// SAFETY: the fields are atomics, and cells that need not be initialised.
unsafe impl Zeroed for RowCells {}

/// Sums over the calls of a function.
#[derive(Debug)]
#[repr(C)]
struct Numbers {
    /// Sum of the squares of the calls' times.
    squares: [AtomicU64; 2],
    max: AtomicU64,
    /// Bitwise complement of the shortest time, so that zero is a fit start.
    not_min: AtomicU64,
    /// Time that calls have spent in watched calls inside them.
    inside: AtomicU64,
    /// Time of the calls that were inside other calls of the function.
    nested: AtomicU64,
    counts: [AtomicU64; BUCKETS],
}

// SAFETY: all fields are atomics, for which zeros are valid.
unsafe impl Zeroed for Numbers {}

impl Linked for RowCells {
    fn link(&self) -> &AtomicPtr<Self> {
        &self.next
    }
}

/// Calls of a function by one caller, in a thread's tables.
#[derive(Debug)]
#[repr(C)]
pub(super) struct EdgeCells {
    next: AtomicPtr<Self>,
    /// The numbers of both functions, combined by [`key`].
    key: AtomicU64,
    caller: FunctionCell,
    row: AtomicPtr<RowCells>,
    calls: Calls,
    /// Calls of the earlier owners.
    ended: Calls,
}

/// Number of calls, and their total time.
#[derive(Debug)]
#[repr(C)]
struct Calls {
    hits: AtomicU64,
    time: AtomicU64,
}

// SAFETY: the fields are atomics, and cells that need not be initialised.
unsafe impl Zeroed for EdgeCells {}

impl Linked for EdgeCells {
    fn link(&self) -> &AtomicPtr<Self> {
        &self.next
    }
}

impl EdgeCells {
    pub(super) fn row(&self) -> &RowCells {
        // SAFETY: the pointer was set before others see the edge, to a row of the same arena.
        unsafe { &*self.row.load(Ordering::Relaxed) }
    }

    /// Returns the called function.
    pub(super) fn callee(&self) -> Option<Function> {
        self.row().function()
    }

    /// Returns the calling function.
    pub(super) fn caller(&self) -> Option<Function> {
        // SAFETY: the cell was written before others see the edge, and never again.
        unsafe { self.caller.get() }
    }

    fn key(&self) -> u64 {
        self.key.load(Ordering::Relaxed)
    }

    /// Returns the number of the called function, for the keys of its own callees.
    fn number(&self) -> u64 {
        self.key() & u64::from(u32::MAX)
    }

    /// True if `function` is the called one.
    pub(super) fn is_of(&self, function: Function) -> bool {
        self.number() == number(function)
    }
}

/// Tables of a thread, and of those that had them before.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Kernel id of the thread in the low 32 bits, the thread's turn above.
    owner: AtomicU64,
    rows: List<RowCells>,
    /// The slots.
    slots: AtomicPtr<AtomicPtr<EdgeCells>>,
    /// Number of slots, a power of two.
    len: AtomicUsize,
    /// Number of slots that are taken.
    taken: AtomicUsize,
    /// Number of calls that found no memory.
    pub(super) unrecorded: AtomicU64,
    arena: Arena,
}

impl Recycle for Table {
    fn begin(&self, thread: u32) {
        let turn = self.turn().wrapping_add(1);
        let owner = u64::from(turn) << 32 | u64::from(thread);
        self.owner.store(owner, Ordering::Release);
    }
}

/// Adds a number to another one, and resets it to zero. Only one thread may write both.
fn move_number(from: &AtomicU64, to: &AtomicU64) {
    add(to, from.load(Ordering::Relaxed));
    from.store(0, Ordering::Relaxed);
}

/// Adds to a number that only one thread writes.
pub(super) fn add(to: &AtomicU64, value: u64) {
    to.store(
        to.load(Ordering::Relaxed).wrapping_add(value),
        Ordering::Relaxed,
    );
}

/// Returns the number of a function, which is never 0.
fn number(function: Function) -> u64 {
    u64::from(function.index()) + 1
}

/// Combines the numbers of two functions; the caller's is 0 if there is none.
fn key(caller: u64, callee: Function) -> u64 {
    caller << 32 | number(callee)
}

/// Returns the first slot to search for a key.
fn hash(key: u64, len: usize) -> usize {
    let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as usize & (len - 1)
}

impl Table {
    /// Returns the edge of a call, made if it does not exist; `None` without memory. `around` is
    /// the edge of the enclosing call, perhaps in another thread's table.
    ///
    /// # Safety
    ///
    /// Only in a callback of the thread whose table it is.
    #[inline]
    pub(super) unsafe fn edge(
        &self,
        around: Option<&EdgeCells>,
        callee: Function,
    ) -> Option<&EdgeCells> {
        let key = key(around.map_or(0, EdgeCells::number), callee);
        let caller = || around.and_then(EdgeCells::callee);
        // SAFETY: the caller keeps the same contract.
        let make = || unsafe { self.make_or_count(key, caller(), callee) };
        let edge = self.find(key).or_else(make)?;
        // SAFETY: the caller keeps the same contract.
        unsafe { self.own(edge) };
        Some(edge)
    }

    /// Returns the edge of the same functions as one of another thread's table.
    ///
    /// # Safety
    ///
    /// Same as for [`edge`](Self::edge).
    pub(super) unsafe fn same_edge(&self, other: &EdgeCells) -> Option<&EdgeCells> {
        let key = other.key();
        // SAFETY: the caller keeps the same contract.
        let make = || unsafe { self.make_or_count(key, other.caller(), other.callee()?) };
        let edge = self.find(key).or_else(make)?;
        // SAFETY: the caller keeps the same contract.
        unsafe { self.own(edge) };
        Some(edge)
    }

    /// Returns the turn of the thread.
    fn turn(&self) -> u32 {
        (self.owner.load(Ordering::Relaxed) >> 32) as u32
    }

    /// Makes the numbers of an edge's row count only the thread's own calls.
    ///
    /// # Safety
    ///
    /// Same as for [`edge`](Self::edge).
    #[inline]
    unsafe fn own(&self, edge: &EdgeCells) {
        let row = edge.row();
        if row.turn.load(Ordering::Relaxed) != self.turn() {
            // SAFETY: the caller keeps the same contract.
            unsafe { self.end_turn(row) };
        }
    }

    /// Adds the numbers of a row to those of ended threads. Without memory the thread's calls are
    /// counted with the earlier ones.
    ///
    /// # Safety
    ///
    /// Same as for [`edge`](Self::edge).
    #[cold]
    #[inline(never)]
    unsafe fn end_turn(&self, row: &RowCells) {
        let ended = match row.ended() {
            Some(ended) => ended,
            None => {
                // SAFETY: the caller keeps the same contract.
                let new = unsafe { self.arena.zeroed::<Numbers>(1) };
                let Some(new) = new.and_then(<[_]>::first) else {
                    return;
                };
                let place = core::ptr::from_ref(new).cast_mut();
                row.ended.store(place, Ordering::Release);
                new
            }
        };
        row.turn.store(MOVING, Ordering::Relaxed);
        // Pairs with the Acquire fence in `read`: a reader that sees a moved number sees the turn.
        fence(Ordering::Release);
        row.numbers.move_to(ended);
        for edge in row.edges.iter() {
            move_number(&edge.calls.hits, &edge.ended.hits);
            move_number(&edge.calls.time, &edge.ended.time);
        }
        // Release: pairs with the first load in `read`.
        row.turn.store(self.turn(), Ordering::Release);
    }

    /// Returns the edge with a key, if there is one.
    #[inline]
    fn find(&self, key: u64) -> Option<&EdgeCells> {
        let len = self.len.load(Ordering::Relaxed);
        let slots = self.slots.load(Ordering::Relaxed);
        if len == 0 {
            return None;
        }
        let mut index = hash(key, len);
        loop {
            // SAFETY: `index` is below the number of slots.
            match unsafe { (*slots.add(index)).load(Ordering::Relaxed).as_ref() } {
                Some(edge) if edge.key() == key => return Some(edge),
                // A quarter of the slots is free, so the search ends.
                Some(_) => index = (index + 1) & (len - 1),
                None => return None,
            }
        }
    }

    /// Same as [`make`](Self::make), and counts the call if there is no memory.
    ///
    /// # Safety
    ///
    /// Same as for [`edge`](Self::edge).
    #[cold]
    #[inline(never)]
    unsafe fn make_or_count(
        &self,
        key: u64,
        caller: Option<Function>,
        callee: Function,
    ) -> Option<&EdgeCells> {
        // SAFETY: the caller keeps the same contract.
        let made = unsafe { self.make(key, caller, callee) };
        if made.is_none() {
            add(&self.unrecorded, 1);
        }
        made
    }

    /// Makes an edge that does not exist.
    ///
    /// # Safety
    ///
    /// Same as for [`edge`](Self::edge).
    unsafe fn make(
        &self,
        key: u64,
        caller: Option<Function>,
        callee: Function,
    ) -> Option<&EdgeCells> {
        let known = self.rows.iter().find(|row| row.function() == Some(callee));
        // SAFETY: the caller keeps the same contract; a new value is this thread's alone until it
        // is in a list.
        unsafe {
            let row = match known {
                Some(row) => row,
                None => {
                    let row = self.arena.zeroed::<RowCells>(1)?.first()?;
                    row.function.set(Some(callee));
                    row.turn.store(self.turn(), Ordering::Relaxed);
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
            row.edges.add(edge);
            self.insert(edge);
            Some(edge)
        }
    }

    /// Makes sure that a quarter of the slots is free, and one more.
    ///
    /// # Safety
    ///
    /// Same as for [`edge`](Self::edge).
    unsafe fn make_room(&self) -> Option<()> {
        let len = self.len.load(Ordering::Relaxed);
        if (self.taken.load(Ordering::Relaxed) + 1) * 4 <= len * 3 {
            return Some(());
        }
        let more = (len * 2).max(FIRST);
        // SAFETY: the caller keeps the same contract.
        let slots = unsafe { self.arena.zeroed::<AtomicPtr<EdgeCells>>(more) }?;
        self.slots
            .store(slots.as_ptr().cast_mut(), Ordering::Relaxed);
        self.len.store(more, Ordering::Relaxed);
        self.taken.store(0, Ordering::Relaxed);
        for edge in self.rows.iter().flat_map(|row| row.edges.iter()) {
            // SAFETY: the caller keeps the same contract.
            unsafe { self.insert(edge) };
        }
        Some(())
    }

    /// Puts an edge into a free slot, which must exist.
    ///
    /// # Safety
    ///
    /// Same as for [`edge`](Self::edge).
    unsafe fn insert(&self, edge: &EdgeCells) {
        let len = self.len.load(Ordering::Relaxed);
        let slots = self.slots.load(Ordering::Relaxed);
        let mut index = hash(edge.key(), len);
        loop {
            // SAFETY: `index` is below the number of slots.
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

    /// Adds the numbers in the tables to the profiles of threads, and those of the earlier owners
    /// to the profiles of ended threads.
    pub(super) fn read(&self, threads: &mut Vec<ThreadProfile>, ended: &mut Vec<ThreadProfile>) {
        let rows: Vec<_> = self.rows.iter().filter_map(RowCells::read).collect();
        // Acquire, and last: a thread that had another turn at one of the rows has ended by now.
        let owner = self.owner.load(Ordering::Acquire);
        let mut profile = ThreadProfile {
            thread: owner as u32,
            ..ThreadProfile::default()
        };
        let mut before = ThreadProfile::default();
        for row in rows {
            let is_own = u64::from(row.turn) == owner >> 32;
            let of = if is_own { &mut profile } else { &mut before };
            of.add(row.own);
            row.ended.into_iter().for_each(|ended| before.add(ended));
        }
        profile.sort();
        threads.push(profile);
        ended.push(before);
    }
}

impl ThreadProfile {
    /// Adds a function, unless no call of it has returned.
    fn add(&mut self, (function, edges): FunctionRead) {
        if function.hits != 0 {
            self.functions.push(function);
            self.edges
                .extend(edges.into_iter().filter(|edge| edge.hits != 0));
        }
    }
}

/// Function with its callers.
type FunctionRead = (FunctionProfile, Vec<Edge>);

/// Content of a row.
struct RowRead {
    turn: u32,
    /// Calls of the owner with that turn.
    own: FunctionRead,
    /// Calls of the earlier owners, if there were any.
    ended: Option<FunctionRead>,
}

impl RowCells {
    fn function(&self) -> Option<Function> {
        // SAFETY: the cell was written before the row is in the list, and never again.
        unsafe { self.function.get() }
    }

    fn ended(&self) -> Option<&Numbers> {
        // SAFETY: null, or in the same arena. Acquire: the numbers are zeroed.
        unsafe { self.ended.load(Ordering::Acquire).as_ref() }
    }

    /// Reads the row and its edges.
    ///
    /// The numbers are of one moment, unless the thread was interrupted while it changed them and
    /// has not resumed.
    fn read(&self) -> Option<RowRead> {
        let function = self.function()?;
        let mut attempts = 0;
        loop {
            // Acquire: pairs with the Release of the turn in `end_turn`.
            let turn = self.turn.load(Ordering::Acquire);
            let own = self.numbers.with_counts(self.read_own(function));
            let edges = self.edges.iter();
            let edges = edges.map(|edge| edge.read(function, &edge.ended)).collect();
            let ended = self.ended();
            let ended = ended.map(|numbers| numbers.with_counts(numbers.read(function, edges)));
            // Pairs with the Release fence in `end_turn`.
            fence(Ordering::Acquire);
            let is_whole = turn != MOVING && self.turn.load(Ordering::Relaxed) == turn;
            if is_whole || attempts == ATTEMPTS {
                return Some(RowRead { turn, own, ended });
            }
            attempts += 1;
            std::thread::yield_now();
        }
    }

    /// Reads the numbers of the owner, without the histogram.
    fn read_own(&self, function: Function) -> FunctionRead {
        let read = || {
            let edges = self.edges.iter();
            let edges = edges.map(|edge| edge.read(function, &edge.calls)).collect();
            self.numbers.read(function, edges)
        };
        self.version.read_whole(read).unwrap_or_else(|torn| torn)
    }
}

impl Numbers {
    fn squares(&self) -> u128 {
        let [low, high] = self
            .squares
            .each_ref()
            .map(|word| word.load(Ordering::Relaxed));
        u128::from(high) << 64 | u128::from(low)
    }

    fn add_to_squares(&self, value: u128) {
        let sum = self.squares().wrapping_add(value);
        self.squares[0].store(sum as u64, Ordering::Relaxed);
        self.squares[1].store((sum >> 64) as u64, Ordering::Relaxed);
    }

    /// Raises `number` to at least `value`.
    fn raise(number: &AtomicU64, value: u64) {
        if value > number.load(Ordering::Relaxed) {
            number.store(value, Ordering::Relaxed);
        }
    }

    /// Adds these numbers to others, and resets them to zero.
    ///
    /// If a signal handler leaves this by `siglongjmp`, it continues when it runs again. One number
    /// may then be counted twice.
    fn move_to(&self, to: &Self) {
        // All counted times are between these two, which are moved last.
        let shortest = histogram::bucket::<BITS>(!self.not_min.load(Ordering::Relaxed));
        let longest = histogram::bucket::<BITS>(self.max.load(Ordering::Relaxed));
        let counts = self.counts.iter().zip(&to.counts);
        let counted = counts.take(longest + 1).skip(shortest);
        counted.for_each(|(from, to)| move_number(from, to));
        move_number(&self.inside, &to.inside);
        move_number(&self.nested, &to.nested);
        to.add_to_squares(self.squares());
        let squares = self.squares.iter();
        squares.for_each(|word| word.store(0, Ordering::Relaxed));
        for (from, to) in [(&self.max, &to.max), (&self.not_min, &to.not_min)] {
            Self::raise(to, from.load(Ordering::Relaxed));
            from.store(0, Ordering::Relaxed);
        }
    }

    /// Returns the profile of a function from these numbers and its edges, without the histogram.
    fn read(&self, function: Function, edges: Vec<Edge>) -> FunctionRead {
        let load = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let sum = edges
            .iter()
            .map(|edge| edge.time.as_nanos() as u64)
            .sum::<u64>();
        let profile = FunctionProfile {
            function,
            hits: edges.iter().map(|edge| edge.hits).sum(),
            total: kernel::duration(sum.saturating_sub(load(&self.nested))),
            own: kernel::duration(sum.saturating_sub(load(&self.inside))),
            min: kernel::duration(!load(&self.not_min)),
            max: kernel::duration(load(&self.max)),
            sum,
            squares: self.squares(),
            counts: Box::default(),
        };
        (profile, edges)
    }

    /// Adds the histogram.
    fn with_counts(&self, (mut profile, edges): FunctionRead) -> FunctionRead {
        let counts = self.counts.iter();
        profile.counts = counts.map(|count| count.load(Ordering::Relaxed)).collect();
        (profile, edges)
    }
}

impl EdgeCells {
    /// Adds a call. Only the thread whose table the edge is in may call this.
    #[inline]
    pub(super) fn record(&self, took: u64, inside: u64, is_outermost: bool) {
        let row = self.row();
        let numbers = &row.numbers;
        row.version.change(|| {
            add(&self.calls.hits, 1);
            add(&self.calls.time, took);
            if inside != 0 {
                add(&numbers.inside, inside.min(took));
            }
            if !is_outermost {
                add(&numbers.nested, took);
            }
            Numbers::raise(&numbers.not_min, !took);
            Numbers::raise(&numbers.max, took);
            numbers.add_to_squares(u128::from(took).pow(2));
        });
        if let Some(count) = numbers.counts.get(histogram::bucket::<BITS>(took)) {
            add(count, 1);
        }
    }

    fn read(&self, callee: Function, calls: &Calls) -> Edge {
        Edge {
            caller: self.caller(),
            callee,
            hits: calls.hits.load(Ordering::Relaxed),
            time: Duration::from_nanos(calls.time.load(Ordering::Relaxed)),
        }
    }
}
