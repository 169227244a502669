//! The state that threads, users and dispatch share in this process.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering, compiler_fence, fence};

use crate::callers::Callers;
use crate::counters::Counters;
use crate::eligible::Eligible;
use crate::grace::{self, Epoch};
use crate::order::Order;
use crate::owner::Watched;
use crate::points::Points;
use crate::registration::Header;
use crate::site::Site;
use crate::slot::Slots;
use crate::stack_provider::{HOMES, StackProvider};
use crate::thread::{Thread, Threads};

static STUB: Header = Header::stub();

/// The state of fgraph in this process.
pub static FGRAPH: Guarded = Guarded(Fgraph::new());

/// The shared state, inaccessible without `unsafe`. It has the layout of [`Fgraph`].
#[derive(Debug)]
#[repr(transparent)]
pub struct Guarded(pub(crate) Fgraph);

impl Guarded {
    /// Returns the shared state.
    ///
    /// # Safety
    ///
    /// The caller is a part of the one runtime of the process, and uses each field and method as
    /// its documentation says. Trampolines and dispatch rely on it: they save no vector registers
    /// for a user that [`Eligible::set`] names, and a thread that takes a state from
    /// [`Threads::free`] owns it.
    #[inline(always)]
    pub const unsafe fn get(&self) -> &Fgraph {
        &self.0
    }
}

/// The state that threads, users and dispatch share.
#[derive(Debug)]
pub struct Fgraph {
    /// The users.
    pub slots: Slots<Header>,
    /// The epoch of the newest registration, and the enabled users.
    pub epoch: Epoch,
    /// The fast-path users.
    pub eligible: Eligible,
    /// The order in which users are asked.
    pub order: Order,
    /// The users that watch threads without a state.
    pub watched: Watched,
    /// The states of all threads.
    pub threads: Threads,
    /// The callers whose calls are traced with their returns, read by caller-checking trampolines.
    pub callers: Callers,
    /// The return points of all shadow stacks.
    pub points: Points,
    /// The runtime's functions for machine stacks.
    stacks: AtomicPtr<StackProvider>,
    /// Calls that could not be traced because no state could be made for the thread.
    pub unattached: AtomicU64,
}

impl Fgraph {
    const fn new() -> Self {
        Self {
            slots: Slots::new(&STUB),
            epoch: Epoch::new(),
            eligible: Eligible::new(),
            order: Order::new(),
            watched: Watched::new(),
            threads: Threads::new(),
            callers: Callers::new(),
            points: Points::new(),
            stacks: AtomicPtr::new((&raw const HOMES).cast_mut()),
            unattached: AtomicU64::new(0),
        }
    }

    /// Sets the functions for machine stacks.
    ///
    /// # Safety
    ///
    /// Each function must do what [`StackProvider`] says.
    pub unsafe fn set_stacks(&self, stacks: &'static StackProvider) {
        self.stacks
            .store(ptr::from_ref(stacks).cast_mut(), Ordering::Relaxed);
    }

    pub(crate) fn stacks(&self) -> &'static StackProvider {
        // SAFETY: set once, before anything is patched, to a value that is never freed.
        unsafe { &*self.stacks.load(Ordering::Relaxed) }
    }

    /// Returns true if a thread's `entered_sp` is stale, because a signal handler has left a
    /// callback with `siglongjmp`. That is so if `address`, where the thread is now, is on the same
    /// machine stack and less deep. A handler on an alternate stack, which may be anywhere, does
    /// not count.
    #[cold]
    #[inline(never)]
    pub fn is_stale(&self, thread: &Thread, entered_sp: usize, address: usize) -> bool {
        if entered_sp >= address {
            return false;
        }
        let stacks = self.stacks();
        // The provider's functions may call traced functions, which are deeper than this.
        thread.entered_sp.store(address, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        let is_stale =
            !(stacks.is_alternate)(address) && (stacks.are_on_one)(thread, entered_sp, address);
        compiler_fence(Ordering::SeqCst);
        thread.entered_sp.store(entered_sp, Ordering::Relaxed);
        if is_stale {
            thread.forget_records();
            thread.entry_only.set(0);
        }
        is_stale
    }

    /// Returns true if a call that returns to `return_address` is traced with its return: its
    /// caller may meet our return address. A tail call of a traced function returns to a return
    /// point.
    #[inline]
    pub fn may_mislead(&self, return_address: usize) -> bool {
        self.callers.may_be_misled(return_address)
            || self.callers.is_selective() && self.points.contains(return_address)
    }

    /// Returns true if bodies that the machine layer called may return to `address`.
    #[inline]
    pub fn is_return_point(&self, address: usize) -> bool {
        self.points.contains(address)
    }

    /// Returns the users that want a call of the function of `site` in `thread`, one bit for each
    /// slot, and the epoch that was read before these, in the encoding of frames.
    #[inline(always)]
    pub fn wanting(&self, site: &Site, thread: &Thread) -> (u64, u64) {
        // The epoch is read before the users: a user that takes a slot in between is younger than
        // the call, and does not get it.
        let (stamp, enabled) = self.epoch.stamp_and_enabled();
        fence(Ordering::Acquire);
        // Relaxed: a concurrent change may or may not apply to this call.
        let users = site.interest.load(Ordering::Relaxed) & enabled & thread.owner.users();
        (u64::from(users), stamp)
    }

    /// Waits until no thread is in a callback of the user in slot `index`, which must have been
    /// retired before a heavy barrier. `pause` is called with the state of a thread that is in such
    /// a callback, and returns `false` if the thread is gone.
    ///
    /// # Safety
    ///
    /// `pause` may use only the atomics of the state, which belongs to another thread.
    pub unsafe fn wait_for_grace(
        &self,
        index: usize,
        mut pause: impl FnMut(&'static Thread) -> bool,
    ) {
        // SAFETY: this reads only hazard slots, and the caller's `pause` reads only atomics.
        let threads = unsafe { self.threads.iter() };
        grace::wait(index, threads, || (), &mut pause);
    }

    /// Returns true if [`wait_for_grace`](Self::wait_for_grace) would not wait; `is_alive` returns
    /// true if the thread of a state exists.
    ///
    /// # Safety
    ///
    /// `is_alive` may use only the atomics of the state.
    pub unsafe fn is_grace_over(
        &self,
        index: usize,
        mut is_alive: impl FnMut(&'static Thread) -> bool,
    ) -> bool {
        // SAFETY: this reads only hazard slots, and the caller's `is_alive` reads only atomics.
        let threads = unsafe { self.threads.iter() };
        grace::is_over(index, threads, &mut is_alive)
    }

    /// Waits until every thread except the one with the state `own` has been outside of callbacks
    /// since a heavy barrier. `pause` is called with the state of a thread that may be in a
    /// callback, and returns `false` if that thread need not be waited for.
    ///
    /// # Safety
    ///
    /// `pause` may use only the atomics of the state.
    pub unsafe fn wait_for_callbacks(
        &self,
        own: *const Thread,
        mut pause: impl FnMut(&'static Thread) -> bool,
    ) {
        // SAFETY: this and the caller's `pause` read only atomics.
        for thread in unsafe { self.threads.iter() } {
            // Acquire: the callback's effects happen before this function returns.
            let may_be_in_one =
                || ![0, Thread::UNTRACED].contains(&thread.entered_sp.load(Ordering::Acquire));
            while !ptr::eq(thread, own) && may_be_in_one() && pause(thread) {}
        }
    }

    /// Returns the counts of untraced calls in all threads since the start, for all users together.
    pub fn counters(&self) -> Counters {
        self.sum(|thread| thread.total.read())
    }

    /// Returns the counts of untraced calls in all threads since the start, for all users that were
    /// in slot `index`.
    pub fn user_counters(&self, index: usize) -> Counters {
        self.sum(|thread| thread.users[index].read())
    }

    fn sum(&self, read: impl Fn(&Thread) -> Counters) -> Counters {
        // SAFETY: this reads only the counters, which are atomic.
        let threads = unsafe { self.threads.iter() };
        threads.fold(Counters::default(), |mut sum, thread| {
            sum += read(thread);
            sum
        })
    }
}
