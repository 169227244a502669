//! Spare stacks: shadow stacks for machine stacks other than thread stacks.
//!
//! A table has the spare stacks for a piece of memory, in the order of addresses. In most cases
//! there is one: the stack of a coroutine is mapped separately, with a guard page before it. If
//! several coroutines share one mapping, they get one spare stack each when they get into each
//! other's way.
//!
//! ```text
//!   low      end
//!   A000     B000    spare 3                one coroutine's
//!   D000     F000    spare 1                what is mapped here holds the stacks
//!   D000     F000    spare 2                of two
//! ```
//!
//! It is read without a lock, and again if it changed meanwhile, because every switch of a
//! coroutine leads to it. A thread that changes it has blocked all signals except those of traps,
//! so no handler leaves in the middle.
//!
//! # Safety
//!
//! The unsafe code maps memory for the table and for spare stacks, which is never unmapped, blocks
//! signals, and makes the kernel read memory that may be gone.

use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use super::{FGRAPH, shadow_memory};
use arrayvec::ArrayVec;
use fgraph_core::dispatch;
use fgraph_core::machine::Stack;
use fgraph_core::thread::{StackProvider, Thread};
use fgraph_core::version::{Version, Writer};

use crate::arch::trampoline;
use crate::os::{self, PAGE, memory};
use crate::threads;
use crate::threads::stack_bounds;

/// At most this many spare stacks exist for one piece of memory.
const MAX_SHARERS: usize = 64;

/// The number of entries from which on unused ones are searched for.
const SWEEP: usize = 64;

/// The functions for machine stacks, except `caller`.
pub(crate) const STACKS: StackProvider = StackProvider {
    find: find_stack,
    is_alternate: |address| keep_errno(|| stack_bounds::alternate(address).is_some()),
    are_on_one: |thread, low, high| keep_errno(|| are_on_one(thread, low, high)),
    is_gone: |place, return_address| keep_errno(|| is_gone(place, return_address)),
    caller: |_, _| None,
};

static TABLE: Table = Table::new();

/// The table of spare stacks.
#[derive(Debug)]
struct Table {
    /// Odd while the entries change.
    version: Version,
    entries: AtomicPtr<Entry>,
    len: AtomicUsize,
    capacity: AtomicUsize,
    /// The kernel's id of the thread that is about to change it, or 0.
    owner: AtomicU32,
    /// The number of entries at which to search for unused ones again.
    next_sweep: AtomicUsize,
    /// Spare stacks that are in no entry. They stay claimed, so that a thread that has found one in
    /// an old entry cannot claim it.
    free: AtomicPtr<Spare>,
}

/// A spare stack, and the memory for which it is. Entries with the same memory are adjacent; others
/// do not overlap with it.
#[derive(Debug)]
struct Entry {
    low: AtomicUsize,
    end: AtomicUsize,
    spare: AtomicPtr<Spare>,
}

/// The memory of a spare stack; its frames follow.
#[repr(C, align(64))]
#[derive(Debug)]
struct Spare {
    stack: Stack,
    /// True if it is in no entry, or about to be in none.
    is_free: AtomicBool,
    next_free: AtomicPtr<Spare>,
}

/// The spare stacks for one piece of memory.
#[derive(Debug)]
struct Sharers {
    bounds: Range<usize>,
    spares: ArrayVec<&'static Spare, MAX_SHARERS>,
}

impl Sharers {
    fn none(bounds: Range<usize>) -> Self {
        Self {
            bounds,
            spares: ArrayVec::new(),
        }
    }
}

fn keep_errno<R>(work: impl FnOnce() -> R) -> R {
    let errno = os::errno();
    let result = work();
    // SAFETY: `errno` is the calling thread's own.
    unsafe { *libc::__errno_location() = errno };
    result
}

/// See [`StackProvider::find`].
fn find_stack(thread: &Thread, place: usize, tail: bool) -> bool {
    // SAFETY: states are never unmapped.
    let thread: &'static Thread = unsafe { &*ptr::from_ref(thread) };
    keep_errno(|| {
        thread.leave_stack();
        if thread.thread_stack.contains(place) && thread.enter_thread_stack() {
            if dispatch::is_clear(thread, place, tail) {
                return true;
            }
            thread.leave_stack();
        }
        let Some(known) = TABLE.sharers(place) else {
            return false;
        };
        let sharers = match known {
            Some(sharers) => sharers,
            None => match stack_bounds::alternate(place) {
                Some(bounds) => Sharers::none(bounds),
                None => {
                    let around = stack_bounds::around(place);
                    if around.is_own && thread.thread_stack.claim.take(thread) {
                        let Range { start, end } = around.bounds;
                        thread.thread_stack.set_bounds(start, end);
                        thread.enter_stack(&thread.thread_stack);
                        if dispatch::is_clear(thread, place, tail) {
                            return true;
                        }
                        thread.leave_stack();
                    }
                    Sharers::none(around.bounds)
                }
            },
        };
        let add = || {
            let is_room = !sharers.spares.is_full();
            is_room.then(|| TABLE.add(thread, &sharers.bounds))?
        };
        let chosen = choose(thread, &sharers, place, tail);
        let others = sharers.spares.len() - usize::from(chosen.is_some());
        let found = chosen.or_else(add);
        if let Some(spare) = found {
            let Range { start, end } = sharers.bounds;
            spare.stack.set_bounds(start, end);
            spare.stack.set_shared(others != 0);
            thread.enter_stack(&spare.stack);
        }
        found.is_some()
    })
}

/// Claims the spare stack whose newest frame is the nearest one above `place`: it may be of a call
/// around the one at `place`.
fn choose(thread: &Thread, sharers: &Sharers, place: usize, tail: bool) -> Option<&'static Spare> {
    let mut best: Option<(usize, &'static Spare)> = None;
    for &spare in &sharers.spares {
        if !spare.stack.claim.take(thread) {
            continue;
        }
        let is_nearer = |newest| best.is_none_or(|(nearest, _)| newest < nearest);
        let farther = match dispatch::make_way(thread, &spare.stack.shadow, place, tail) {
            Some(newest) if is_nearer(newest) => best.replace((newest, spare)).map(|(_, one)| one),
            _ => Some(spare),
        };
        if let Some(spare) = farther {
            spare.stack.claim.give_back(thread);
        }
    }
    best.map(|(_, spare)| spare)
}

/// See [`StackProvider::are_on_one`].
fn are_on_one(thread: &Thread, low: usize, high: usize) -> bool {
    if thread.thread_stack.contains(low) || thread.thread_stack.contains(high) {
        return thread.thread_stack.contains(low) && thread.thread_stack.contains(high);
    }
    let bounds = match TABLE.sharers(low).flatten() {
        Some(sharers) => sharers.bounds,
        None => stack_bounds::around(low).bounds,
    };
    bounds.contains(&high)
}

/// See [`StackProvider::is_gone`].
fn is_gone(return_slot_addr: usize, return_address: usize) -> bool {
    match memory::peek(return_slot_addr) {
        // The return address is there until the trampoline has called the body, and a thread that
        // is interrupted in between may be away for long. An unwinder that is led to `fgraph_catch`
        // leaves its address there, and still needs the frame when it resumes.
        Ok(word) => {
            let is_live = FGRAPH.is_return_point(word) || trampoline::is_caught(word);
            !is_live && word != return_address
        }
        // Not if the kernel refuses to read it.
        Err(error) => error == libc::EFAULT,
    }
}

impl Table {
    const fn new() -> Self {
        Self {
            version: Version::new(),
            entries: AtomicPtr::new(ptr::null_mut()),
            len: AtomicUsize::new(0),
            capacity: AtomicUsize::new(0),
            owner: AtomicU32::new(0),
            next_sweep: AtomicUsize::new(SWEEP),
            free: AtomicPtr::new(ptr::null_mut()),
        }
    }

    fn entries(&self) -> &[Entry] {
        // Acquire pairs with the Release in `grow`: the array has this many entries.
        let len = self.len.load(Ordering::Acquire);
        match self.entries.load(Ordering::Acquire) {
            entries if entries.is_null() => &[],
            // SAFETY: arrays are never unmapped. One that was replaced between the two loads is
            // longer, never shorter.
            entries => unsafe { core::slice::from_raw_parts(entries, len) },
        }
    }

    /// Returns the spare stacks for the memory around `place`, if there are any. Returns `None` if
    /// a process that shares the memory has ended in the middle of a change: then the table is
    /// unknown.
    fn sharers(&self, place: usize) -> Option<Option<Sharers>> {
        /// Longer than a change takes, unless the thread that makes it has lost its processor.
        const SPINS: usize = 100;
        // Every thread's first call comes here, and most programs have no spare stacks.
        if !self.version.is_odd() && self.len.load(Ordering::Relaxed) == 0 {
            return Some(None);
        }
        let mut spins = 0;
        let pause = || {
            spins += 1;
            if spins < SPINS {
                core::hint::spin_loop();
                return Writer::AtWork;
            }
            os::nap();
            match self.owner.load(Ordering::Relaxed) {
                0 => Writer::AtWork,
                owner if os::thread_exists(owner) => Writer::AtWork,
                _ => Writer::Gone,
            }
        };
        self.version.read(|| self.look(place), pause)
    }

    fn look(&self, place: usize) -> Option<Sharers> {
        let entries = self.entries();
        let after = entries.partition_point(|entry| entry.low() <= place);
        let bounds = entries[..after].last()?.bounds();
        let sharers = entries[..after].iter().rev();
        let sharers = sharers.take_while(|entry| entry.low() == bounds.start);
        let spares = sharers.map(Entry::spare).take(MAX_SHARERS).collect();
        bounds
            .contains(&place)
            .then_some(Sharers { bounds, spares })
    }

    /// Runs `work` as the only one that changes the table. Returns `None` if another thread was
    /// changing it that is not in this process: for example in a child that was made by a bare
    /// system call.
    fn change<R>(&self, work: impl FnOnce() -> R) -> Option<R> {
        os::signal_mask::without_signals(|| {
            let id = os::thread_id();
            // Acquire pairs with the Release below.
            while let Err(owner) =
                self.owner
                    .compare_exchange(0, id, Ordering::Acquire, Ordering::Relaxed)
            {
                // The owner may have finished its change, and then ended.
                if !os::thread_exists(owner) && self.owner.load(Ordering::Relaxed) == owner {
                    return None;
                }
                os::nap();
            }
            let result = work();
            self.owner.store(0, Ordering::Release);
            Some(result)
        })
    }

    /// Makes a new spare stack for the memory in `bounds`, claimed by `thread`.
    fn add(&self, thread: &Thread, bounds: &Range<usize>) -> Option<&'static Spare> {
        self.change(|| {
            if self.len.load(Ordering::Relaxed) >= self.next_sweep.load(Ordering::Relaxed) {
                self.sweep(thread);
            }
            let spare = self.take_free().or_else(map_spare)?;
            spare.stack.claim.hand_to(thread);
            let inserted = self.insert(spare, bounds);
            if !inserted {
                self.put_free(spare);
            }
            inserted.then_some(spare)
        })?
    }

    fn insert(&self, spare: &'static Spare, bounds: &Range<usize>) -> bool {
        let len = self.len.load(Ordering::Relaxed);
        if len == self.capacity.load(Ordering::Relaxed) && !self.grow() {
            return false;
        }
        // SAFETY: there is room for one more behind the entries, which only we change.
        let entries =
            unsafe { core::slice::from_raw_parts(self.entries.load(Ordering::Relaxed), len + 1) };
        self.version.rewrite(|| {
            // Overlapping memory was mapped differently before; now the entries are for the same
            // memory.
            let overlaps = |entry: &&Entry| entry.low() < bounds.end && bounds.start < entry.end();
            for entry in entries[..len].iter().filter(overlaps) {
                entry.set_bounds(bounds);
            }
            let at = entries[..len].partition_point(|entry| entry.low() <= bounds.start);
            for index in (at..len).rev() {
                entries[index + 1].copy_from(&entries[index]);
            }
            entries[at].set_bounds(bounds);
            entries[at]
                .spare
                .store(ptr::from_ref(spare).cast_mut(), Ordering::Relaxed);
            self.len.store(len + 1, Ordering::Release);
        });
        true
    }

    /// Removes spare stacks without frames that may be alive from the table. The thread must be on
    /// none of them.
    fn sweep(&self, thread: &Thread) {
        let entries = self.entries();
        for spare in entries.iter().map(Entry::spare) {
            if !spare.stack.claim.take(thread) {
                continue;
            }
            if dispatch::drop_gone(thread, &spare.stack.shadow) {
                let (base, len) = spare.stack.shadow.memory();
                memory::forget(base, len);
                // SAFETY: the stack's own memory.
                unsafe { spare.stack.shadow.reset(base, len, &spare.stack) };
                spare.is_free.store(true, Ordering::Relaxed);
            } else {
                spare.stack.claim.give_back(thread);
            }
        }
        self.version.rewrite(|| {
            let mut kept = 0;
            for entry in entries {
                let spare = entry.spare();
                if spare.is_free.load(Ordering::Relaxed) {
                    self.put_free(spare);
                } else {
                    entries[kept].copy_from(entry);
                    kept += 1;
                }
            }
            self.len.store(kept, Ordering::Release);
        });
        let kept = self.len.load(Ordering::Relaxed);
        self.next_sweep.store(2 * kept + SWEEP, Ordering::Relaxed);
    }

    /// Makes room for more entries.
    fn grow(&self) -> bool {
        let capacity = self.capacity.load(Ordering::Relaxed);
        let larger = (2 * capacity).max(PAGE / size_of::<Entry>());
        let Some(memory) = memory::map(larger * size_of::<Entry>()) else {
            return false;
        };
        let entries = memory.cast::<Entry>();
        for (index, entry) in self.entries().iter().enumerate() {
            // SAFETY: a fresh mapping, in which zeros are entries, larger than the old one.
            unsafe { (*entries.add(index)).copy_from(entry) };
        }
        // Release, so that the entries are there. The old ones stay allocated, for threads that are
        // reading them.
        self.entries.store(entries, Ordering::Release);
        self.capacity.store(larger, Ordering::Relaxed);
        true
    }

    fn take_free(&self) -> Option<&'static Spare> {
        // SAFETY: spare stacks are never unmapped.
        let spare = unsafe { self.free.load(Ordering::Relaxed).as_ref() }?;
        self.free
            .store(spare.next_free.load(Ordering::Relaxed), Ordering::Relaxed);
        spare.is_free.store(false, Ordering::Relaxed);
        Some(spare)
    }

    fn put_free(&self, spare: &'static Spare) {
        spare.is_free.store(true, Ordering::Relaxed);
        spare
            .next_free
            .store(self.free.load(Ordering::Relaxed), Ordering::Relaxed);
        self.free
            .store(ptr::from_ref(spare).cast_mut(), Ordering::Relaxed);
    }
}

impl Entry {
    fn low(&self) -> usize {
        self.low.load(Ordering::Relaxed)
    }

    fn end(&self) -> usize {
        self.end.load(Ordering::Relaxed)
    }

    fn spare(&self) -> &'static Spare {
        // SAFETY: spare stacks are never unmapped, and every entry within the length has had one,
        // also while it is being changed.
        unsafe { &*self.spare.load(Ordering::Relaxed) }
    }

    fn bounds(&self) -> Range<usize> {
        self.low()..self.end()
    }

    fn set_bounds(&self, bounds: &Range<usize>) {
        self.low.store(bounds.start, Ordering::Relaxed);
        self.end.store(bounds.end, Ordering::Relaxed);
    }

    fn copy_from(&self, other: &Self) {
        self.set_bounds(&other.bounds());
        self.spare
            .store(other.spare.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Maps a new spare stack.
fn map_spare() -> Option<&'static Spare> {
    let shadow = threads::shadow_stack_size();
    let memory = shadow_memory::map(size_of::<Spare>() + shadow)?;
    // SAFETY: a fresh mapping, large enough, and never unmapped.
    unsafe {
        let spare = memory.cast::<Spare>();
        spare.write(Spare {
            stack: Stack::new(),
            is_free: AtomicBool::new(false),
            next_free: AtomicPtr::new(ptr::null_mut()),
        });
        let spare = &*spare;
        let base = memory.add(size_of::<Spare>());
        spare.stack.shadow.reset(base, shadow, &spare.stack);
        Some(spare)
    }
}

/// In a forked child: a thread that was changing the table does not exist, unless it is the forking
/// thread, which does not fork during a change.
pub(crate) fn after_fork() {
    // The entries may be half changed then. No stack is found any more; calls on spare stacks
    // return in spite of that.
    if TABLE.owner.swap(0, Ordering::Relaxed) != 0 {
        TABLE.len.store(0, Ordering::Relaxed);
        TABLE.version.end_change();
        TABLE.free.store(ptr::null_mut(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering;

    use super::{Table, is_gone};

    #[test]
    fn a_call_that_is_about_to_begin_is_not_gone() {
        static WORD: usize = 0x1234;
        let place = (&raw const WORD).addr();
        assert!(!is_gone(place, 0x1234));
        assert!(is_gone(place, 0x5678));
    }
    #[test]
    fn readers_of_the_table_do_not_wait_for_an_ended_writer() {
        /// An id higher than any that the kernel gives to a thread.
        const GONE: u32 = 1 << 30;
        let table = Table::new();
        assert!(matches!(table.sharers(0x1000), Some(None)));
        table.owner.store(GONE, Ordering::Relaxed);
        // In the middle of a change.
        let read = || assert!(table.sharers(0x1000).is_none());
        table.version.rewrite(read);
        assert!(matches!(table.sharers(0x1000), Some(None)));
    }
}
