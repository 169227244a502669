//! Finds locks taken in orders that can deadlock, and measures how long locks are held and waited
//! for.
//!
//! ```
//! use fgraph_tracers::locks::LockTracer;
//!
//! let locks = LockTracer::start()?;
//! // ... threads take and release locks ...
//! for inversion in locks.inversions() {
//!     println!("{inversion}");
//! }
//! for lock in locks.locks() {
//!     println!("{:#x}: held {} times, at most {:?}", lock.address, lock.taken, lock.longest_hold);
//! }
//! # Ok::<(), fgraph::Error>(())
//! ```
//!
//! # Which locks are seen
//!
//! POSIX mutexes, read-write locks, spin locks, and condition variables, which release a mutex
//! while they wait. Locks of Rust's standard library call no function while they are free. Only
//! their waits are seen, in programs where the functions for waiting were not inlined; their holds
//! and orders are not.
//!
//! # Orders
//!
//! The rule is that of the kernel's lockdep. When a thread takes lock B while it holds A, then A
//! comes before B from then on. Taking a lock that comes before a held one is an inversion, even if
//! no deadlock occurred. Taking a lock by a try function adds no order. A lock is identified by its
//! address until it is destroyed.

mod orders;

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use fgraph::{
    AnywhereHandle, AnywhereOps, Entry, Error, FgraphOps, Filter, Function, Recycle, Recycled,
    Return,
};
pub use fgraph_symbols::locks::{Action, functions, shortest_way};

use crate::support::by_function::ByFunction;
use crate::support::caller::{self, Caller, NAMED, write_place};
use crate::support::kernel;
use crate::support::looking;
use crate::support::reports::Met;
use crate::tracer::{OneUser, Tracer};
use orders::Orders;

/// Number of locks that are distinguished.
pub const LOCKS: usize = 4096;
/// Number of locks that a thread may hold at once.
const HELD: usize = 48;
/// Number of callers that are kept of a call.
const CALLERS: usize = 4;
/// Words of a call: its thread with its name, its return address, and those around it.
const CALL: usize = NAMED + CALLERS;

/// Tracer of locks. Dropping it ends it.
///
/// It distinguishes up to [`LOCKS`] locks, and each thread may hold 48. Taking and releasing a lock
/// costs two readings of the clock, plus a check of each further lock that is held.
#[derive(Debug)]
pub struct LockTracer {
    user: AnywhereHandle<Record>,
}

impl OneUser for LockTracer {
    fn user(&self) -> &dyn Tracer {
        &self.user
    }
}

impl LockTracer {
    /// Starts to watch all locks.
    ///
    /// # Errors
    ///
    /// Same as for [`fgraph::register`]; [`Unsupported`](Error::Unsupported) without memory.
    pub fn start() -> Result<Self, Error> {
        let orders = Orders::new();
        let record = Record {
            actions: ByFunction::new(),
            known: Met::new(LOCKS),
            stats: (0..LOCKS).map(|_| Stats::default()).collect(),
            threads: Recycled::new(),
            orders: orders.ok_or(Error::Unsupported(fgraph::Unsupported::Memory(
                libc::ENOMEM,
            )))?,
            untracked: AtomicU64::new(0),
        };
        let mut names = functions();
        let filter = names.try_fold(Filter::none(), |filter, (name, _)| filter.name(name))?;
        let user = fgraph::register_anywhere_with(record, filter, &looking::options())?;
        Ok(Self { user })
    }

    /// Returns the inversions in the order in which they were found, each pair of locks once.
    pub fn inversions(&self) -> Vec<Inversion> {
        self.user
            .user()
            .orders
            .inversions(|place| self.user.user().known.get(place))
    }

    /// Returns the locks that were taken or waited for.
    pub fn locks(&self) -> Vec<Lock> {
        let stats = self.user.user().stats.iter().enumerate();
        let locks = stats.map(|(place, stats)| stats.read(self.user.user().known.get(place)));
        let is_used = |lock: &Lock| lock.address != 0 && lock.taken + lock.waits != 0;
        locks.filter(is_used).collect()
    }

    /// Returns the number of calls that were not followed: too many locks in all, or held by one
    /// thread.
    pub fn untracked(&self) -> u64 {
        self.user.user().untracked.load(Ordering::Relaxed)
    }
}

/// Locks that were taken in an order, and in a contradicting one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inversion {
    /// The orders, each from its lock to that of the next one; the last leads to the first's. The
    /// first is the newest.
    pub orders: Vec<Order>,
}

/// One lock that was taken while another one was held.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Order {
    /// Address of the lock that was held.
    pub held: usize,
    /// Address of the lock that was taken.
    pub taken: usize,
    /// Return address of the call that took the held lock.
    pub held_since: usize,
    /// Call that took the second lock.
    pub by: Caller,
}

impl fmt::Display for Inversion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, order) in self.orders.iter().enumerate() {
            f.write_str(if nth == 0 { "" } else { "; but " })?;
            let Order { held, taken, .. } = order;
            write!(
                f,
                "lock {taken:#x} was taken by {} with {held:#x}, taken at ",
                order.by
            )?;
            write_place(f, order.held_since)?;
        }
        Ok(())
    }
}

/// Measurements of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lock {
    /// Address of the lock.
    pub address: usize,
    /// Number of times that the lock was taken.
    pub taken: u64,
    /// Total time of the holds that have ended.
    pub held: Duration,
    /// Time of the longest hold.
    pub longest_hold: Duration,
    /// Return address of the call that took the lock for the longest hold.
    pub longest_hold_at: usize,
    /// Number of calls that took the lock and may wait.
    pub waits: u64,
    /// Total time of these calls.
    pub waited: Duration,
    /// Time of the longest of these calls.
    pub longest_wait: Duration,
    /// Return address of the longest of these calls.
    pub longest_wait_at: usize,
}

/// Repeated time measurement, with the place of the longest one.
#[derive(Debug, Default)]
struct Times {
    count: AtomicU64,
    sum: AtomicU64,
    longest: AtomicU64,
    at: AtomicUsize,
}

impl Times {
    fn add(&self, time: u64, at: usize) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(time, Ordering::Relaxed);
        // Only readers of a read-write lock may do this at the same time. Then the place may be
        // that of a time nearly as long.
        if self.longest.fetch_max(time, Ordering::Relaxed) <= time {
            self.at.store(at, Ordering::Relaxed);
        }
    }
}

#[derive(Debug, Default)]
struct Stats {
    taken: AtomicU64,
    held: Times,
    waited: Times,
}

impl Stats {
    fn read(&self, address: usize) -> Lock {
        let time = |time: &AtomicU64| kernel::duration(time.load(Ordering::Relaxed));
        Lock {
            address,
            taken: self.taken.load(Ordering::Relaxed),
            held: time(&self.held.sum),
            longest_hold: time(&self.held.longest),
            longest_hold_at: self.held.at.load(Ordering::Relaxed),
            waits: self.waited.count.load(Ordering::Relaxed),
            waited: time(&self.waited.sum),
            longest_wait: time(&self.waited.longest),
            longest_wait_at: self.waited.at.load(Ordering::Relaxed),
        }
    }
}

/// Locks that a thread holds. Only the thread writes.
#[derive(Debug)]
struct Held {
    len: AtomicUsize,
    locks: [Hold; HELD],
}

impl Default for Held {
    fn default() -> Self {
        Self {
            len: AtomicUsize::new(0),
            locks: [const { Hold::new() }; HELD],
        }
    }
}

#[derive(Debug)]
struct Hold {
    place: AtomicUsize,
    since: AtomicU64,
    at: AtomicUsize,
    /// Number of times that the thread has taken the lock without releasing it.
    depth: AtomicU32,
}

impl Hold {
    const fn new() -> Self {
        Self {
            place: AtomicUsize::new(0),
            since: AtomicU64::new(0),
            at: AtomicUsize::new(0),
            depth: AtomicU32::new(0),
        }
    }
}

impl Recycle for Held {
    /// A thread that has ended holds nothing.
    fn begin(&self, _thread: u32) {
        self.len.store(0, Ordering::Relaxed);
    }
}

impl Held {
    fn holds(&self) -> &[Hold] {
        let len = self.len.load(Ordering::Relaxed);
        self.locks.get(..len).unwrap_or_default()
    }

    fn find(&self, place: usize) -> Option<(usize, &Hold)> {
        let mut holds = self.holds().iter().enumerate();
        holds.find(|(_, hold)| hold.place.load(Ordering::Relaxed) == place)
    }

    /// Removes a hold, and moves the last one to its place.
    fn remove(&self, nth: usize) {
        let last = self.len.load(Ordering::Relaxed).saturating_sub(1);
        if let (Some(hold), Some(last)) = (self.locks.get(nth), self.locks.get(last)) {
            let relaxed = Ordering::Relaxed;
            hold.place.store(last.place.load(relaxed), relaxed);
            hold.since.store(last.since.load(relaxed), relaxed);
            hold.at.store(last.at.load(relaxed), relaxed);
            hold.depth.store(last.depth.load(relaxed), relaxed);
        }
        self.len.store(last, Ordering::Relaxed);
    }
}

/// Callbacks of the tracer.
#[derive(Debug)]
struct Record {
    actions: ByFunction<AtomicU32>,
    /// Locks by address. The index of a lock is its number.
    known: Met,
    stats: Box<[Stats]>,
    threads: Recycled<Held>,
    orders: Orders,
    untracked: AtomicU64,
}

/// Marks a function that has no effect on locks.
const NOTHING: u32 = u32::MAX;

/// Data that a call carries from entry to return.
#[derive(Clone, Copy, Debug)]
struct Call {
    action: Action,
    place: usize,
    entered: u64,
}

// SAFETY: the callbacks only use the clock, atomics, memory that they map, and system
// calls that change nothing of the program's.
unsafe impl AnywhereOps for Record {}

impl FgraphOps for Record {
    type Data = Call;

    fn entry(&self, call: &mut Entry<'_, Call>) -> Option<Call> {
        let action = self.action(call.function())?;
        let lock = call.arg(action.argument())? as usize;
        let held = call.recycled(&self.threads)?;
        let place = self.place(lock)?;
        match action {
            Action::Unlock => self.release(held, place, false),
            Action::Wait => self.release(held, place, true),
            Action::Destroy => self.orders.forget(place),
            Action::Lock => self.order(call, held, place),
            Action::Try | Action::Contended => {}
        }
        let has_return = !matches!(action, Action::Unlock | Action::Destroy);
        has_return.then(|| Call {
            action,
            place,
            entered: kernel::now(),
        })
    }

    fn ret(&self, call: &mut Return<'_, Call>, data: Call) {
        let now = kernel::now();
        let at = call.call_site();
        if data.action.waits()
            && let Some(stats) = self.stats.get(data.place)
        {
            stats.waited.add(now.saturating_sub(data.entered), at);
        }
        if data.action.takes(call.result())
            && let Some(held) = call.recycled(&self.threads)
        {
            self.take(held, data.place, now, at);
        }
    }
}

impl Record {
    /// Returns the effect of a function on a lock.
    fn action(&self, function: Function) -> Option<Action> {
        let cell = self.actions.of(function)?;
        let known = match cell.load(Ordering::Relaxed) {
            0 => {
                let is = |name: &str| functions().position(|(known, _)| known == name);
                let found = function.names().find_map(is);
                let found = found.map_or(NOTHING, |found| found as u32 + 1);
                cell.store(found, Ordering::Relaxed);
                found
            }
            known => known,
        };
        let row = functions().nth((known as usize).wrapping_sub(1));
        row.map(|(_, action)| action)
    }

    fn place(&self, lock: usize) -> Option<usize> {
        let place = self.known.meet(lock);
        if place.is_none() {
            self.untracked.fetch_add(1, Ordering::Relaxed);
        }
        place.map(|(place, _)| place)
    }

    /// Adds the order for a lock that is about to be taken: the held locks come before it.
    fn order(&self, call: &Entry<'_, Call>, held: &Held, place: usize) {
        if held.find(place).is_some() {
            return;
        }
        for hold in held.holds() {
            let before = hold.place.load(Ordering::Relaxed);
            if self.orders.add(before, place) {
                let since = hold.at.load(Ordering::Relaxed);
                self.orders
                    .explain(before, place, since, caller::words(call));
            }
        }
    }

    /// Notes that a lock was taken.
    fn take(&self, held: &Held, place: usize, now: u64, at: usize) {
        if let Some(stats) = self.stats.get(place) {
            stats.taken.fetch_add(1, Ordering::Relaxed);
        }
        if let Some((_, hold)) = held.find(place) {
            hold.depth.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let len = held.len.load(Ordering::Relaxed);
        let Some(hold) = held.locks.get(len) else {
            self.untracked.fetch_add(1, Ordering::Relaxed);
            return;
        };
        hold.place.store(place, Ordering::Relaxed);
        hold.since.store(now, Ordering::Relaxed);
        hold.at.store(at, Ordering::Relaxed);
        hold.depth.store(1, Ordering::Relaxed);
        held.len.store(len + 1, Ordering::Relaxed);
    }

    /// Notes that a lock is about to be released, once or completely.
    fn release(&self, held: &Held, place: usize, wholly: bool) {
        // A lock that another thread has taken is unknown here.
        let Some((nth, hold)) = held.find(place) else {
            return;
        };
        if !wholly && hold.depth.fetch_sub(1, Ordering::Relaxed) > 1 {
            return;
        }
        let since = hold.since.load(Ordering::Relaxed);
        if let Some(stats) = self.stats.get(place) {
            let at = hold.at.load(Ordering::Relaxed);
            stats.held.add(kernel::now().saturating_sub(since), at);
        }
        held.remove(nth);
    }
}
