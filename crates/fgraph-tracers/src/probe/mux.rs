//! Many probes in few slots.
//!
//! A mux is a user whose filter is the union of its members' filters. A call goes to the members
//! whose filters select its function; each has a place for its data in what the mux carries from
//! entry to return:
//!
//! ```text
//!   Bundle   accepted            at              room
//!            +---+---+---+      +---+---+---+    +--------+------------+-------+
//!            | 3 | 9 |   |      | 0 | 1 |   |    | data 3 | data of 9  |       |
//!            +---+---+---+      +---+---+---+    +--------+------------+-------+
//! ```
//!
//! A member leaves like this: its bit in `enabled` is cleared; a heavy barrier; then each thread is
//! waited for that is inside of a callback of the mux, as its mark says. From then on no callback
//! refers to the member, and it is dropped. Its number goes to another member later. Calls that the
//! first has accepted and that return then are not told to the second: a bundle has the generation
//! of its entry, and is older than that member.
//!
//! # Safety
//!
//! The unsafe code refers to members in callbacks, where they are not dropped: their bits were set
//! within the mark. Data is read at the type with which it was written, as the member is the same.

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

/// Slots for probes that share, which they take before they do.
const SLOTS: usize = 4;
/// Members that may accept one call.
const ACCEPTED: usize = 8;
/// Units of room.
const UNITS: usize = 8;

/// A unit of members' data.
type Unit = MaybeUninit<u64>;

/// Where members' data is from entry to return.
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
/// What members' data is aligned to.
pub(super) const ALIGN: usize = align_of::<Room>();

/// What a call carries from entry to return for all members.
#[derive(Clone, Copy)]
struct Bundle {
    room: Room,
    /// The mux's generation at entry.
    generation: u32,
    /// How many members have accepted.
    len: u8,
    /// Which.
    accepted: [u8; ACCEPTED],
    /// The unit at which the data of each begins.
    at: [u8; ACCEPTED],
}

/// Calls a closure at entry, which may leave data at a place that is fit for it, and says whether
/// it wants the return.
type EntryFn = Box<dyn Fn(&mut EntryCall<'_, '_>, *mut u8) -> bool + Send + Sync>;
/// Calls a closure at return with the data at a place.
type ReturnFn = Box<dyn Fn(&mut ReturnCall<'_, '_>, *const u8) + Send + Sync>;

/// A probe as the mux knows it.
pub(super) struct Member {
    filter: Filter,
    entry: EntryFn,
    ret: Option<ReturnFn>,
    /// Units that its data takes.
    units: usize,
    /// Its data begins at a multiple of this many units.
    align: usize,
    /// The mux's generation from which on it gets returns.
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
    /// A probe of the functions that `filter` selects, which callbacks may ask.
    pub(super) fn new<C: Callbacks>(filter: Filter, callbacks: C) -> Self {
        let callbacks = Arc::new(callbacks);
        let at_entry = Arc::clone(&callbacks);
        let data = Layout::new::<C::Data>();
        Self {
            filter,
            entry: Box::new(move |call, place| match at_entry.entry(call) {
                Some(data) => {
                    // SAFETY: the place is fit for it, by the layout.
                    unsafe { place.cast::<C::Data>().write(data) };
                    true
                }
                None => false,
            }),
            ret: C::HAS_RETURN.then(|| -> ReturnFn {
                Box::new(move |call, place| {
                    // SAFETY: the entry has kept it there.
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

/// What a thread, and those before it whose state it was, know of a mux. The thread alone writes.
struct ThreadState {
    /// The kernel's id of the thread.
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
    /// Goes on counting. The mark is odd if the last thread has ended in a callback.
    fn begin(&self, thread: u32) {
        self.thread.store(thread, Ordering::Relaxed);
    }
}

/// While there is one, the thread's mark is odd.
struct Inside<'m>(&'m AtomicU64);

impl<'m> Inside<'m> {
    fn new(mark: &'m AtomicU64, needs_fence: bool) -> Self {
        // Odd, and another value than before also if the last callback was left by `siglongjmp`.
        let value = mark.load(Ordering::Relaxed).wrapping_add(1) | 1;
        mark.store(value, Ordering::Relaxed);
        // Before `enabled` is read. Pairs with the heavy barrier in `wait`, or with its fence.
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
        // Release: what was done with members is done before. Pairs with the Acquire in `wait`.
        self.0.store(
            self.0.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Release,
        );
    }
}

/// A user that stands for many probes.
#[derive(Debug)]
struct Mux {
    classes: Classes,
    members: [AtomicPtr<Member>; FILTERS],
    /// The members that get calls, a bit for each.
    enabled: AtomicU64,
    /// Counts members that were added.
    generation: AtomicU32,
    threads: Recycled<ThreadState>,
    /// Calls in threads that found no memory for their state.
    without_memory: AtomicU64,
    /// The kernel has no heavy barrier.
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
        // Acquire pairs with the Release in `join`: members are complete.
        let enabled = self.enabled.load(Ordering::Acquire);
        let mut wanting = self.classes.of(call.function(), enabled, |nth, facts| {
            // SAFETY: its bit was set within the mark.
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
            // SAFETY: as above.
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
                // One behind the last for data without a size.
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
            // SAFETY: its bit was set within the mark.
            let member = unsafe { self.member(nth) };
            // Wraps: half of all numbers are older.
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
        // SAFETY: it asks for a service, and changes no memory.
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

    /// A member.
    ///
    /// # Safety
    ///
    /// Its bit must have been set within the mark of the callback that calls this.
    unsafe fn member(&self, nth: usize) -> &Member {
        // SAFETY: members with a bit are not null, and not dropped before the callback is done.
        unsafe { &*self.members[nth].load(Ordering::Relaxed) }
    }

    /// Runs a closure of a member, which ends the member if it panics.
    fn catch<R>(&self, nth: usize, member: &Member, run: impl FnOnce() -> R) -> Option<R> {
        // A closure is shared by threads, and so guards its own state.
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(result) => Some(result),
            Err(payload) => {
                self.enabled.fetch_and(!(1 << nth), Ordering::Relaxed);
                let text = payload.downcast_ref::<&str>().copied();
                let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
                let text = text.unwrap_or("a value that is no text").to_owned();
                let _ = member.panicked.set(text);
                // What was thrown may panic when it is dropped.
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
            // SAFETY: it changes no memory.
            unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
        }
        for state in self.threads.iter() {
            let before = state.mark.load(Ordering::Acquire);
            // Stored before the marks that count here, as the thread has passed the barrier since.
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
                // SAFETY: from an `Arc`, and no callback runs any more.
                drop(unsafe { Arc::from_raw(member) });
            }
        }
    }
}

/// A mux at work, and which of its numbers are taken.
#[derive(Debug)]
struct Shared {
    user: Handle<Mux>,
    numbers: Mutex<Numbers>,
}

#[derive(Debug, Default)]
struct Numbers {
    /// A bit for each number that a member has, or had when it left inside a callback.
    taken: u64,
    /// The filters of members that are there.
    filters: Vec<(usize, Filter)>,
}

impl Numbers {
    fn union(&self) -> Filter {
        let filters = self.filters.iter().map(|(_, filter)| filter.clone());
        filters.reduce(Filter::union).unwrap_or_else(Filter::none)
    }
}

/// The muxes that are at work. Only locked by threads that are not traced meanwhile.
static MUXES: Mutex<Vec<Arc<Shared>>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A member of a mux; dropping it ends the membership.
#[derive(Debug)]
pub(super) struct Membership {
    shared: Arc<Shared>,
    member: Arc<Member>,
    nth: usize,
    /// What was counted before: by the number's last member, and by the mux.
    hits: u64,
    missed: u64,
    counters: Counters,
}

impl Membership {
    /// Makes `member` a member of a mux.
    ///
    /// # Safety
    ///
    /// As for [`fgraph::register`], for what the member's closures do.
    pub(super) unsafe fn join(member: Member) -> Result<Self, Error> {
        // Asked first, as it fails inside a callback, where no lock may be waited for.
        fgraph::status()?;
        untraced(|| {
            let mut muxes = lock(&MUXES);
            // SAFETY: handed on.
            let shared = unsafe { Shared::with_room(&mut muxes) }?;
            // SAFETY: handed on.
            let joined = unsafe { shared.add(member) };
            if joined.is_err() {
                shared.drop_if_empty(&mut muxes);
            }
            joined
        })
    }

    fn sum(&self, of: impl Fn(&ThreadState) -> &AtomicU64) -> u64 {
        self.shared.user.sum(of)
    }
}

impl Running for Membership {
    fn hits(&self) -> u64 {
        self.sum(|state| &state.hits[self.nth]) - self.hits
    }

    fn missed(&self) -> u64 {
        let missed = self.sum(|state| &state.missed[self.nth]);
        missed + self.shared.user.without_memory.load(Ordering::Relaxed) - self.missed
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
    /// A mux that has a number to give: a new one, as long as probes do not have to share.
    ///
    /// # Safety
    ///
    /// As for [`Membership::join`], for all its members.
    unsafe fn with_room(muxes: &mut Vec<Arc<Self>>) -> Result<Arc<Self>, Error> {
        let load = |shared: &&Arc<Self>| lock(&shared.numbers).taken.count_ones();
        let least = muxes.iter().min_by_key(load).cloned();
        let least = least.filter(|shared| load(&shared) < FILTERS as u32);
        if let Some(shared) = &least
            && muxes.len() >= SLOTS
        {
            return Ok(Arc::clone(shared));
        }
        // SAFETY: handed on.
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

    /// Adds a member, for which there is a number.
    ///
    /// # Safety
    ///
    /// As for [`Membership::join`].
    unsafe fn add(self: &Arc<Self>, member: Member) -> Result<Membership, Error> {
        let mux = &*self.user;
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
        // Release pairs with the Acquire in the callbacks: the member and the generation are there.
        mux.enabled.fetch_or(1 << nth, Ordering::Release);
        // SAFETY: handed on.
        match unsafe { self.user.add_filter(filter) } {
            Ok(_) => Ok(joined),
            Err(error) => {
                self.remove(nth);
                // It has left already.
                core::mem::forget(joined);
                Err(error)
            }
        }
    }

    /// Takes a member away and waits until no callback refers to it.
    fn remove(&self, nth: usize) {
        let mux = &*self.user;
        mux.enabled.fetch_and(!(1 << nth), Ordering::Relaxed);
        let mut numbers = lock(&self.numbers);
        numbers.filters.retain(|(number, _)| *number != nth);
        // SAFETY: it selects nothing that was not selected. Otherwise more is asked about than is
        // wanted.
        let _ = unsafe { self.user.set_filter(numbers.union()) };
        mux.wait();
        let member = mux.members[nth].swap(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: from an `Arc`, and no callback refers to it.
        drop(unsafe { Arc::from_raw(member) });
        numbers.taken &= !(1 << nth);
    }

    /// Lets a mux without members go.
    fn drop_if_empty(self: &Arc<Self>, muxes: &mut Vec<Arc<Self>>) {
        if lock(&self.numbers).filters.is_empty() {
            muxes.retain(|shared| !Arc::ptr_eq(shared, self));
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if let Err(Error::InsideCallback) = fgraph::status() {
            // The member stays where it is until the mux goes.
            let mux = &*self.shared.user;
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
