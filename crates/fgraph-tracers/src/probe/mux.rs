//! Multiplexes many probes over few slots.
//!
//! A mux is a user whose filter is the union of its members' filters. It passes a call to the
//! members whose filters select its function. Each of these has a place for its data in the bundle
//! that the mux carries from entry to return:
//!
//! ```text
//!   Bundle   accepted            at              room
//!            +---+---+---+      +---+---+---+    +--------+------------+-------+
//!            | 3 | 9 |   |      | 0 | 1 |   |    | data 3 | data of 9  |       |
//!            +---+---+---+      +---+---+---+    +--------+------------+-------+
//! ```
//!
//! A member leaves in these steps:
//!
//! 1. Its bit in `enabled` is cleared.
//! 2. A heavy barrier runs.
//! 3. The remover waits for each thread that is inside a callback of the mux, by the thread's mark.
//! 4. No callback refers to the member any more, and it is dropped.
//!
//! Its number goes to another member later. That member does not get the returns of calls that the
//! first one accepted: a bundle has the generation of its entry, which is older than the new
//! member.
//!
//! # Safety
//!
//! The unsafe code refers to members in callbacks. They are not dropped meanwhile, because their
//! bits were set within the mark. Data is read as the type that was written, since the member is
//! the same.

use core::alloc::Layout;
use core::fmt;
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, compiler_fence, fence};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use std::{fs, thread};

use fgraph::{
    Counters, Entry, Error, FgraphOps, Filter, Handle, Recycle, Recycled, Return, untraced,
};

use super::alone::Running;
use super::{Callbacks, EntryCall, ReturnCall};
use crate::support::classes::{Classes, FILTERS};
use crate::support::looking;

/// Number of slots that probes take before they share.
const SLOTS: usize = 4;
/// Number of members that may accept one call.
const ACCEPTED: usize = 8;
/// Number of units of room.
const UNITS: usize = 8;

/// Unit of members' data.
type Unit = MaybeUninit<u64>;

/// Room for members' data from entry to return.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
struct Room([Unit; UNITS]);

impl Room {
    const fn new() -> Self {
        Self([Unit::uninit(); UNITS])
    }
}

/// Bytes of room for members' data.
pub(super) const ROOM: usize = size_of::<Room>();
/// Alignment of members' data.
pub(super) const ALIGN: usize = align_of::<Room>();

/// Data that a call carries from entry to return for all members.
#[derive(Clone, Copy)]
struct Bundle {
    room: Room,
    /// Generation of the mux at entry.
    generation: u32,
    /// Number of members that have accepted.
    len: u8,
    /// Numbers of the members that have accepted.
    accepted: [u8; ACCEPTED],
    /// Unit at which the data of each of them begins.
    at: [u8; ACCEPTED],
}

/// Calls a closure at entry. The closure may leave data at a place that is fit for it, and returns
/// true if it wants the return.
type EntryFn = Box<dyn Fn(&mut EntryCall<'_, '_>, *mut u8) -> bool + Send + Sync>;
/// Calls a closure at return with the data at a place.
type ReturnFn = Box<dyn Fn(&mut ReturnCall<'_, '_>, *const u8) + Send + Sync>;

/// Probe as the mux sees it.
pub(super) struct Member {
    filter: Filter,
    entry: EntryFn,
    ret: Option<ReturnFn>,
    /// Number of units of its data.
    units: usize,
    /// Its data begins at a multiple of this many units.
    align: usize,
    /// First generation of the mux whose returns it gets.
    since: AtomicU32,
    panicked: OnceLock<String>,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member")
            .field("filter", &self.filter)
            .finish_non_exhaustive()
    }
}

impl Member {
    /// Creates the member for a probe of the functions that `filter` selects. Callbacks may
    /// evaluate the filter.
    pub(super) fn new<C: Callbacks>(filter: Filter, callbacks: C) -> Self {
        let callbacks = Arc::new(callbacks);
        let at_entry = Arc::clone(&callbacks);
        let data = Layout::new::<C::Data>();
        Self {
            filter,
            entry: Box::new(move |call, place| match at_entry.entry(call) {
                Some(data) => {
                    // SAFETY: the layout of the member gives the place the size and alignment of
                    // the data.
                    unsafe { place.cast::<C::Data>().write(data) };
                    true
                }
                None => false,
            }),
            ret: C::HAS_RETURN.then(|| -> ReturnFn {
                Box::new(move |call, place| {
                    // SAFETY: the entry has written this type of data to the place.
                    callbacks.ret(call, unsafe { place.cast::<C::Data>().read() });
                })
            }),
            units: data.size().div_ceil(size_of::<Unit>()),
            align: data.align().div_ceil(size_of::<Unit>()),
            since: AtomicU32::new(0),
            panicked: OnceLock::new(),
        }
    }
}

/// State of a thread for a mux, which later threads take over. Only the thread writes it.
struct ThreadState {
    /// Kernel id of the thread.
    thread: AtomicU32,
    /// Odd while a callback runs.
    mark: AtomicU64,
    hits: [AtomicU64; FILTERS],
    missed: [AtomicU64; FILTERS],
}

impl Default for ThreadState {
    fn default() -> Self {
        Self {
            thread: AtomicU32::new(0),
            mark: AtomicU64::new(0),
            hits: [const { AtomicU64::new(0) }; FILTERS],
            missed: [const { AtomicU64::new(0) }; FILTERS],
        }
    }
}

impl Recycle for ThreadState {
    /// Keeps the counts. The mark is odd if the last thread ended in a callback.
    fn begin(&self, thread: u32) {
        self.thread.store(thread, Ordering::Relaxed);
    }
}

/// While this exists, the thread's mark is odd.
struct Inside<'m>(&'m AtomicU64);

impl<'m> Inside<'m> {
    fn new(mark: &'m AtomicU64, needs_fence: bool) -> Self {
        // Odd, and a new value even if `siglongjmp` left the last callback.
        let value = mark.load(Ordering::Relaxed).wrapping_add(1) | 1;
        mark.store(value, Ordering::Relaxed);
        // The store comes before the load of `enabled`. Pairs with the heavy barrier in `wait`, or
        // with its fence.
        if needs_fence {
            fence(Ordering::SeqCst);
        } else {
            compiler_fence(Ordering::SeqCst);
        }
        Self(mark)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        // Release: all use of members is complete. Pairs with the Acquire in `wait`.
        self.0.store(
            self.0.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Release,
        );
    }
}

/// User that stands for many probes.
#[derive(Debug)]
struct Mux {
    classes: Classes,
    members: [AtomicPtr<Member>; FILTERS],
    /// Members that get calls, one bit each.
    enabled: AtomicU64,
    /// Counts the members that were added.
    generation: AtomicU32,
    threads: Recycled<ThreadState>,
    /// Number of calls in threads that found no memory for their state.
    without_memory: AtomicU64,
    /// True if the kernel has no heavy barrier.
    needs_fence: bool,
}

impl fmt::Debug for ThreadState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadState")
            .field("mark", &self.mark)
            .finish_non_exhaustive()
    }
}

fn bump(count: &AtomicU64) {
    count.store(
        count.load(Ordering::Relaxed).wrapping_add(1),
        Ordering::Relaxed,
    );
}

impl FgraphOps for Mux {
    type Data = Bundle;

    fn entry(&self, call: &mut Entry<'_, Bundle>) -> Option<Bundle> {
        let Some(state) = call.recycled(&self.threads) else {
            self.without_memory.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        let _inside = Inside::new(&state.mark, self.needs_fence);
        // Acquire: pairs with the Release in `join`, so members are complete.
        let enabled = self.enabled.load(Ordering::Acquire);
        let mut wanting = self.classes.of(call.function(), enabled, |nth, facts| {
            // SAFETY: the member's bit was set within the mark.
            unsafe { self.member(nth) }.filter.matches(facts)
        });
        let mut bundle = Bundle {
            room: Room::new(),
            generation: self.generation.load(Ordering::Relaxed),
            len: 0,
            accepted: [0; ACCEPTED],
            at: [0; ACCEPTED],
        };
        let (mut len, mut used) = (0_usize, 0_usize);
        while wanting != 0 {
            let nth = wanting.trailing_zeros() as usize;
            wanting &= wanting - 1;
            // SAFETY: the member's bit was set within the mark.
            let member = unsafe { self.member(nth) };
            used = used.next_multiple_of(member.align);
            let has_room = len < ACCEPTED && used + member.units <= UNITS;
            if member.ret.is_some() && !has_room {
                bump(&state.missed[nth]);
                continue;
            }
            bump(&state.hits[nth]);
            let mut unused = Room::new();
            let place: *mut Unit = match has_room {
                // Data without a size may be at the end of the room.
                true => bundle.room.0.as_mut_ptr().wrapping_add(used),
                false => unused.0.as_mut_ptr(),
            };
            let run = || (member.entry)(&mut EntryCall(call), place.cast());
            let is_accepted = self.catch(nth, member, run).unwrap_or(false);
            if is_accepted && member.ret.is_some() {
                (bundle.accepted[len], bundle.at[len]) = (nth as u8, used as u8);
                len += 1;
                used += member.units;
            }
        }
        bundle.len = len as u8;
        (len != 0).then_some(bundle)
    }

    fn ret(&self, call: &mut Return<'_, Bundle>, bundle: Bundle) {
        let Some(state) = call.recycled(&self.threads) else {
            return;
        };
        let _inside = Inside::new(&state.mark, self.needs_fence);
        let enabled = self.enabled.load(Ordering::Acquire);
        let len = usize::from(bundle.len).min(ACCEPTED);
        for (nth, at) in bundle.accepted.iter().zip(bundle.at).take(len).rev() {
            let nth = usize::from(*nth);
            if enabled & 1 << nth == 0 {
                continue;
            }
            // SAFETY: the member's bit was set within the mark.
            let member = unsafe { self.member(nth) };
            // Generations wrap: half of all numbers count as older.
            let since = member.since.load(Ordering::Relaxed);
            if bundle.generation.wrapping_sub(since) as i32 >= 0
                && let Some(ret) = &member.ret
            {
                let place = bundle.room.0.as_ptr().wrapping_add(at.into());
                self.catch(nth, member, || ret(&mut ReturnCall(call), place.cast()));
            }
        }
    }
}

impl Mux {
    fn new() -> Self {
        // SAFETY: this `membarrier` command only registers the process, and changes no memory.
        let registered = unsafe {
            libc::syscall(
                libc::SYS_membarrier,
                libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED,
                0,
                0,
            )
        };
        Self {
            classes: Classes::new(),
            members: [const { AtomicPtr::new(ptr::null_mut()) }; FILTERS],
            enabled: AtomicU64::new(0),
            generation: AtomicU32::new(0),
            threads: Recycled::new(),
            without_memory: AtomicU64::new(0),
            needs_fence: registered != 0,
        }
    }

    /// Returns a member.
    ///
    /// # Safety
    ///
    /// The member's bit must have been set within the mark of the callback that calls this.
    unsafe fn member(&self, nth: usize) -> &Member {
        // SAFETY: a member with a bit is not null, and is not dropped before the callback ends.
        unsafe { &*self.members[nth].load(Ordering::Relaxed) }
    }

    /// Runs a closure of a member. A panic ends the member.
    fn catch<R>(&self, nth: usize, member: &Member, run: impl FnOnce() -> R) -> Option<R> {
        // Threads share a closure, so it guards its own state.
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(result) => Some(result),
            Err(payload) => {
                self.enabled.fetch_and(!(1 << nth), Ordering::Relaxed);
                let text = payload.downcast_ref::<&str>().copied();
                let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
                let text = text.unwrap_or("a value that is no text").to_owned();
                let _ = member.panicked.set(text);
                // Dropping the payload may panic.
                core::mem::forget(payload);
                None
            }
        }
    }

    /// Waits until no thread is in a callback that began before.
    fn wait(&self) {
        if self.needs_fence {
            fence(Ordering::SeqCst);
        } else {
            let command = libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED;
            // SAFETY: `membarrier` changes no memory.
            unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
        }
        for state in self.threads.iter() {
            let before = state.mark.load(Ordering::Acquire);
            // Stored before the marks that count here, because the thread has passed the barrier
            // since.
            let thread = state.thread.load(Ordering::Relaxed);
            let is_there = || fs::exists(format!("/proc/self/task/{thread}")).unwrap_or(true);
            while !before.is_multiple_of(2)
                && state.mark.load(Ordering::Acquire) == before
                && is_there()
            {
                thread::sleep(Duration::from_micros(50));
            }
        }
    }
}

impl Drop for Mux {
    fn drop(&mut self) {
        for member in &mut self.members {
            let member = *member.get_mut();
            if !member.is_null() {
                // SAFETY: the pointer came from an `Arc`, and no callback runs any more.
                drop(unsafe { Arc::from_raw(member) });
            }
        }
    }
}

/// Running mux, with the numbers that are in use.
#[derive(Debug)]
struct Shared {
    user: Handle<Mux>,
    numbers: Mutex<Numbers>,
}

#[derive(Debug, Default)]
struct Numbers {
    /// One bit for each number of a member, or of one that left inside a callback.
    taken: u64,
    /// Filters of the current members.
    filters: Vec<(usize, Filter)>,
}

impl Numbers {
    fn union(&self) -> Filter {
        let filters = self.filters.iter().map(|(_, filter)| filter.clone());
        filters.reduce(Filter::union).unwrap_or_else(Filter::none)
    }
}

/// The running muxes. Locked only by threads that are not traced meanwhile.
static MUXES: Mutex<Vec<Arc<Shared>>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Membership in a mux. Dropping it ends the membership.
#[derive(Debug)]
pub(super) struct Membership {
    shared: Arc<Shared>,
    member: Arc<Member>,
    nth: usize,
    /// Count at the start: of the number's last member, and of the mux.
    hits: u64,
    missed: u64,
    counters: Counters,
}

impl Membership {
    /// Adds `member` to a mux.
    ///
    /// # Safety
    ///
    /// Same as for [`fgraph::register`], for the member's closures.
    pub(super) unsafe fn join(member: Member) -> Result<Self, Error> {
        // Check the status first: it fails inside a callback, which must not wait for a lock.
        fgraph::status()?;
        untraced(|| {
            let mut muxes = lock(&MUXES);
            // SAFETY: the caller vouches for the member's closures.
            let shared = unsafe { Shared::with_room(&mut muxes) }?;
            // SAFETY: the caller vouches for the member's closures.
            let joined = unsafe { shared.add(member) };
            if joined.is_err() {
                shared.drop_if_empty(&mut muxes);
            }
            joined
        })
    }

    fn sum(&self, of: impl Fn(&ThreadState) -> &AtomicU64) -> u64 {
        self.shared.user.user().sum(of)
    }
}

impl Running for Membership {
    fn hits(&self) -> u64 {
        self.sum(|state| &state.hits[self.nth]) - self.hits
    }

    fn missed(&self) -> u64 {
        let missed = self.sum(|state| &state.missed[self.nth]);
        missed
            + self
                .shared
                .user
                .user()
                .without_memory
                .load(Ordering::Relaxed)
            - self.missed
    }

    fn counters(&self) -> Counters {
        self.shared.user.counters() - self.counters
    }

    fn panic(&self) -> Option<&str> {
        self.member.panicked.get().map(String::as_str)
    }
}

impl Mux {
    fn sum(&self, of: impl Fn(&ThreadState) -> &AtomicU64) -> u64 {
        let counts = self.threads.iter();
        counts.map(|state| of(state).load(Ordering::Relaxed)).sum()
    }
}

impl Shared {
    /// Returns a mux with a free number: a new one while there are slots that need no sharing.
    ///
    /// # Safety
    ///
    /// Same as for [`Membership::join`], for all members of the mux.
    unsafe fn with_room(muxes: &mut Vec<Arc<Self>>) -> Result<Arc<Self>, Error> {
        let load = |shared: &&Arc<Self>| lock(&shared.numbers).taken.count_ones();
        let least = muxes.iter().min_by_key(load).cloned();
        let least = least.filter(|shared| load(&shared) < FILTERS as u32);
        if let Some(shared) = &least
            && muxes.len() >= SLOTS
        {
            return Ok(Arc::clone(shared));
        }
        // SAFETY: the caller vouches for the closures of all members.
        let user =
            match unsafe { fgraph::register_with(Mux::new(), Filter::none(), &looking::options()) }
            {
                Ok(user) => user,
                Err(failed) => return least.ok_or(failed.error),
            };
        let shared = Arc::new(Self {
            user,
            numbers: Mutex::default(),
        });
        muxes.push(Arc::clone(&shared));
        Ok(shared)
    }

    /// Adds a member to a mux that has a free number.
    ///
    /// # Safety
    ///
    /// Same as for [`Membership::join`].
    unsafe fn add(self: &Arc<Self>, member: Member) -> Result<Membership, Error> {
        let mux = self.user.user();
        let mut numbers = lock(&self.numbers);
        let nth = numbers.taken.trailing_ones() as usize;
        let filter = member.filter.clone();
        mux.classes.forget(nth);
        let since = mux.generation.load(Ordering::Relaxed).wrapping_add(1);
        member.since.store(since, Ordering::Relaxed);
        mux.generation.store(since, Ordering::Relaxed);
        let member = Arc::new(member);
        let pointer = Arc::into_raw(Arc::clone(&member)).cast_mut();
        mux.members[nth].store(pointer, Ordering::Relaxed);
        let without_memory = mux.without_memory.load(Ordering::Relaxed);
        let joined = Membership {
            shared: Arc::clone(self),
            member,
            nth,
            hits: mux.sum(|state| &state.hits[nth]),
            missed: mux.sum(|state| &state.missed[nth]) + without_memory,
            counters: self.user.counters(),
        };
        numbers.taken |= 1 << nth;
        numbers.filters.push((nth, filter.clone()));
        drop(numbers);
        // Release: pairs with the Acquire in the callbacks, so the member and the generation are
        // visible.
        mux.enabled.fetch_or(1 << nth, Ordering::Release);
        // SAFETY: the caller vouches for the member's closures in the functions of its filter.
        match unsafe { self.user.add_filter(filter) } {
            Ok(_) => Ok(joined),
            Err(error) => {
                self.remove(nth);
                // The member has already left.
                core::mem::forget(joined);
                Err(error)
            }
        }
    }

    /// Removes a member and waits until no callback refers to it.
    fn remove(&self, nth: usize) {
        let mux = self.user.user();
        mux.enabled.fetch_and(!(1 << nth), Ordering::Relaxed);
        let mut numbers = lock(&self.numbers);
        numbers.filters.retain(|(number, _)| *number != nth);
        // SAFETY: the filter selects no function that was not selected. If this fails, the mux
        // keeps getting calls that no member wants.
        let _ = unsafe { self.user.set_filter(numbers.union()) };
        mux.wait();
        let member = mux.members[nth].swap(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: the pointer came from an `Arc`, and no callback refers to it.
        drop(unsafe { Arc::from_raw(member) });
        numbers.taken &= !(1 << nth);
    }

    /// Drops a mux without members.
    fn drop_if_empty(self: &Arc<Self>, muxes: &mut Vec<Arc<Self>>) {
        if lock(&self.numbers).filters.is_empty() {
            muxes.retain(|shared| !Arc::ptr_eq(shared, self));
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if let Err(Error::InsideCallback) = fgraph::status() {
            // The member stays at its place until the mux is dropped.
            let mux = self.shared.user.user();
            mux.enabled.fetch_and(!(1 << self.nth), Ordering::Relaxed);
            return;
        }
        untraced(|| {
            let mut muxes = lock(&MUXES);
            self.shared.remove(self.nth);
            self.shared.drop_if_empty(&mut muxes);
        });
    }
}
