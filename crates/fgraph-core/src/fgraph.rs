//! What threads, users and dispatch share in this process.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering, compiler_fence, fence};

use crate::callers::Callers;
use crate::counters::Counters;
use crate::grace::{self, Epoch};
use crate::owner::Watched;
use crate::registration::Header;
use crate::scalar::Scalar;
use crate::site::Site;
use crate::slot::Slots;
use crate::stack_provider::{HOMES, StackProvider};
use crate::thread::{Thread, Threads};

/// The places that the machine layer calls bodies from.
pub const RETURN_POINTS: usize = 6;

static STUB: Header = Header::stub();

/// The state of fgraph in this process.
pub static FGRAPH: Guarded = Guarded(Fgraph::new());

/// The shared state, out of reach of code without `unsafe`. It has the layout of [`Fgraph`].
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
    /// for a user that [`Scalar::set`] names, and a thread that takes a state from
    /// [`Threads::free`] has it for itself.
    #[inline(always)]
    pub const unsafe fn get(&self) -> &Fgraph {
        &self.0
    }
}

/// All that threads, users and dispatch share.
#[derive(Debug)]
pub struct Fgraph {
    /// The users.
    pub slots: Slots<Header>,
    /// The newest registration, and the users that are enabled.
    pub epoch: Epoch,
    /// The users whose callbacks use general registers alone.
    pub scalar: Scalar,
    /// The users that watch threads which are new.
    pub watched: Watched,
    /// The threads.
    pub threads: Threads,
    /// Whose calls are traced with their returns; asked for by careful trampolines.
    pub callers: Callers,
    /// Where a body returns to that was called by the machine layer; 0: nowhere.
    return_points: [AtomicUsize; RETURN_POINTS],
    /// What the runtime knows of machine stacks.
    stacks: AtomicPtr<StackProvider>,
    /// Hits that could not be traced because a thread's state could not be made.
    pub unattached: AtomicU64,
}

impl Fgraph {
    const fn new() -> Self {
        Self {
            slots: Slots::new(&STUB),
            epoch: Epoch::new(),
            scalar: Scalar::new(),
            watched: Watched::new(),
            threads: Threads::new(),
            callers: Callers::new(),
            return_points: [const { AtomicUsize::new(0) }; RETURN_POINTS],
            stacks: AtomicPtr::new((&raw const HOMES).cast_mut()),
            unattached: AtomicU64::new(0),
        }
    }

    /// Says who knows the machine stacks.
    ///
    /// # Safety
    ///
    /// What the functions say must be true.
    pub unsafe fn set_stacks(&self, stacks: &'static StackProvider) {
        self.stacks
            .store(ptr::from_ref(stacks).cast_mut(), Ordering::Relaxed);
    }

    pub(crate) fn stacks(&self) -> &'static StackProvider {
        // SAFETY: set once, before anything is patched, to what is never freed.
        unsafe { &*self.stacks.load(Ordering::Relaxed) }
    }

    /// Whether a thread's `entered_sp` is stale: a signal handler has left a callback by
    /// `siglongjmp`. So it is if `address`, where the thread is now, is on the same machine stack
    /// and not as deep. Not so of a handler on an alternate stack, which may lie anywhere.
    #[cold]
    #[inline(never)]
    pub fn is_stale(&self, thread: &Thread, entered_sp: usize, address: usize) -> bool {
        if entered_sp >= address {
            return false;
        }
        let stacks = self.stacks();
        // What these call may be traced itself, and is deeper than this.
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

    /// Says where a body returns to that was called by the machine layer.
    ///
    /// # Safety
    ///
    /// It must be true: a frame whose return address is none of these is taken for dead.
    pub unsafe fn set_return_points(&self, addresses: [usize; RETURN_POINTS]) {
        for (point, address) in self.return_points.iter().zip(addresses) {
            point.store(address, Ordering::Relaxed);
        }
    }

    /// Whether a body returns there that was called by the machine layer.
    #[inline]
    pub fn is_return_point(&self, address: usize) -> bool {
        // Relaxed: set once, before anything is patched.
        let is = |point: &AtomicUsize| point.load(Ordering::Relaxed) == address;
        address != 0 && self.return_points.iter().any(is)
    }

    /// The users that want a call of the function of `site` in `thread`, a bit for each slot, and
    /// the newest registration before these were read, as a frame keeps it.
    #[inline(always)]
    pub fn wanting(&self, site: &Site, thread: &Thread) -> (u64, u64) {
        // Before the users: one that takes a slot in between is younger than the call, which is
        // then not taken for one that it wants.
        let (stamp, enabled) = self.epoch.stamp_and_enabled();
        fence(Ordering::Acquire);
        // Relaxed: what changes at this moment may or may not hold for this call.
        let users = site.interest.load(Ordering::Relaxed) & enabled & thread.owner.users();
        (u64::from(users), stamp)
    }

    /// Waits until no thread is in a callback of the user in slot `index`, which must have been
    /// retired, and a heavy barrier passed since. `pause` is called with the state of a thread that
    /// is in one, and may say that the thread is gone (`false`).
    ///
    /// # Safety
    ///
    /// `pause` may use only what is atomic of the state, which is another thread's.
    pub unsafe fn wait_for_grace(
        &self,
        index: usize,
        mut pause: impl FnMut(&'static Thread) -> bool,
    ) {
        // SAFETY: only the marks are read here, and what is atomic by the caller.
        let threads = unsafe { self.threads.iter() };
        grace::wait(index, threads, || (), &mut pause);
    }

    /// Whether [`wait_for_grace`](Self::wait_for_grace) would not have to wait; `is_alive` says
    /// whether the thread of a state is there.
    ///
    /// # Safety
    ///
    /// As for [`wait_for_grace`](Self::wait_for_grace), of `is_alive`.
    pub unsafe fn is_grace_over(
        &self,
        index: usize,
        mut is_alive: impl FnMut(&'static Thread) -> bool,
    ) -> bool {
        // SAFETY: as in `wait_for_grace`.
        let threads = unsafe { self.threads.iter() };
        grace::is_over(index, threads, &mut is_alive)
    }

    /// Waits until every thread but the one with the state `own` has been in no callback for a
    /// moment, since a heavy barrier. `pause` is called with the state of a thread that may be in
    /// one, and may say not to wait for it (`false`).
    ///
    /// # Safety
    ///
    /// As for [`wait_for_grace`](Self::wait_for_grace).
    pub unsafe fn wait_for_callbacks(
        &self,
        own: *const Thread,
        mut pause: impl FnMut(&'static Thread) -> bool,
    ) {
        // SAFETY: only what is atomic is read here, and by the caller.
        for thread in unsafe { self.threads.iter() } {
            // Acquire: what the callback did is over for who goes on.
            let may_be_in_one =
                || ![0, Thread::UNTRACED].contains(&thread.entered_sp.load(Ordering::Acquire));
            while !ptr::eq(thread, own) && may_be_in_one() && pause(thread) {}
        }
    }

    /// What was not traced in any thread since the start, for all users together.
    pub fn counters(&self) -> Counters {
        self.sum(|thread| thread.total.read())
    }

    /// What was not traced in any thread since the start, for all users that were in slot `index`.
    pub fn user_counters(&self, index: usize) -> Counters {
        self.sum(|thread| thread.users[index].read())
    }

    fn sum(&self, read: impl Fn(&Thread) -> Counters) -> Counters {
        // SAFETY: only the counters are read.
        let threads = unsafe { self.threads.iter() };
        threads.fold(Counters::default(), |mut sum, thread| {
            sum += read(thread);
            sum
        })
    }
}
