//! What each thread of the program carries: its marks, its shadow stack, its counters, and a word
//! for each user.
//!
//! A thread's state is made by the runtime when the thread first hits a site. It is never unmapped:
//! when the thread is gone another takes it over. The states form a list that only grows at its
//! head, so it may be walked at any time without a lock.
//!
//! ```text
//!   lines 0, 1   entered_sp, machine stack, shadow stack, mark   written by every traced call
//!   line 1       owner                                       written when the state changes hands,
//!                                                            or a user its filter of threads
//!   then         next, next_free                             written once; when it has no thread
//!   then         words of the users, counters                written by their owner
//! ```
//!
//! Only the thread itself writes to its state while it runs traced code.

use core::cell::Cell;
use core::mem::offset_of;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering, compiler_fence, fence};

use crossbeam_utils::CachePadded;

use crate::MAX_USERS;
use crate::claim;
use crate::counters::{Counters, LiveCounters};
use crate::frame::{self, Frame};
use crate::machine::Stack;
use crate::mark::{Mark, Marked};
use crate::owner::{Owner, Watched};
use crate::shadow::ShadowStack;
use crate::thread::free::Linked;
use crate::thread::indices::Indices;
use crate::thread::parents::Records;

/// How many threads have had a state.
static NUMBERS: AtomicU32 = AtomicU32::new(0);
static INDICES: Indices = Indices::new();

/// The state of one thread.
#[repr(C)]
#[derive(Debug)]
pub struct Thread {
    /// 0, [`Thread::INTERNAL`], [`Thread::UNTRACED`], or the stack pointer at which the thread
    /// entered fgraph. While it is not 0, calls are not traced.
    pub entered_sp: AtomicUsize,
    /// Lowest address of the machine stack that the thread was last seen on.
    pub low: Cell<usize>,
    /// Bytes of it; 0 while it is not known.
    pub span: Cell<usize>,
    /// The frames of the calls going on there.
    pub shadow: ShadowStack,
    /// Which user's callback the thread is in.
    pub mark: Mark,
    /// Bytes of each vector register that the trampolines save here.
    pub vector_bytes: Cell<u32>,
    /// Which users have a list of their records, a bit for each slot. The trampolines clear it when
    /// they find that a callback was left by `siglongjmp`.
    pub listed: Cell<u32>,
    /// Whose state this is, and which users watch the thread.
    pub owner: Owner,
    /// The thread's `errno`.
    pub errno: Cell<*mut i32>,
    /// The machine stack that the thread was last seen on; null in between.
    on: Cell<*const Stack>,
    /// Its own.
    pub home: Stack,
    /// The frame that this thread has told the users of and left where it is, or null.
    deferred_frame: Cell<*mut Frame>,
    /// How the thread could be cancelled before that was held off for its callbacks; `None` if it
    /// is not.
    pub saved_cancel: Cell<Option<Cancellation>>,
    /// Where cancellation is held off: the frame of the call about which users were asked last, or
    /// null.
    pub asked: Cell<*mut Frame>,
    /// While users are asked about a call of whose return they are not told: where its return
    /// address stands; else 0. The trampolines clear it when they find that a callback was left by
    /// `siglongjmp`.
    pub entry_only: Cell<usize>,
    /// The thread's own number, which no other gets: 0 for the first that fgraph has seen, then 1,
    /// and so on.
    pub(crate) number: Cell<u32>,
    /// A number that no other thread has at the same time, from 1 on; 0 before the first thread.
    pub(crate) index: Cell<u32>,
    /// How many of the program's guards keep the thread from being traced.
    untraced: Cell<u32>,
    seldom: CachePadded<Seldom>,
    samples: [Sample; MAX_USERS],
    words: [Word; MAX_USERS],
    pub(super) records: [Records; MAX_USERS],
    /// Of all users together.
    pub total: LiveCounters,
    /// Of each user.
    pub users: [LiveCounters; MAX_USERS],
}

/// What no call uses.
#[derive(Debug)]
struct Seldom {
    next: AtomicPtr<Thread>,
    next_free: AtomicPtr<Thread>,
    /// The counters when the present owner took the state over.
    before: LiveCounters,
    no_errno: Cell<i32>,
}

/// How a thread can be cancelled, in the C library's numbers.
#[derive(Clone, Copy, Debug)]
pub struct Cancellation {
    /// Whether it can, as `pthread_setcancelstate` has it.
    pub state: i32,
    /// Where, as `pthread_setcanceltype` has it.
    pub kind: i32,
}

/// How many calls are left out until a user that samples gets one, and the registration that it is
/// of.
#[derive(Debug)]
struct Sample {
    left: Cell<u32>,
    stamp: Cell<u64>,
}

/// A user's word, and the registration that it belongs to.
#[derive(Debug)]
struct Word {
    value: Cell<u64>,
    epoch: Cell<u64>,
}

// SAFETY: other threads read the atomics only. The cells are used by the owner, or by whoever
// has just claimed the state from nobody.
unsafe impl Sync for Thread {}
// SAFETY: nothing in it depends on the thread that made it.
unsafe impl Send for Thread {}

impl Marked for Thread {
    fn is_in(&self, index: usize) -> bool {
        // Acquire, as in `Mark::is`: pairs with the store that ends the call, which is a Release.
        self.entered_sp.load(Ordering::Acquire) != 0 && self.mark.is(index)
    }
}

// SAFETY: a word of its own, which nothing else uses.
unsafe impl Linked for Thread {
    fn next_free(&self) -> &AtomicPtr<Self> {
        &self.seldom.next_free
    }
}

impl Thread {
    /// [`entered_sp`](Self::entered_sp) of a thread that runs fgraph's own code outside of a call.
    pub const INTERNAL: usize = 1;
    /// [`entered_sp`](Self::entered_sp) of a thread that the program does not want to be traced
    /// now.
    pub const UNTRACED: usize = 2;

    /// Where in a state its [`id`](Self::id) stands, 32 bits.
    pub const ID: usize = offset_of!(Self, owner);
    /// Where in a state [the users](Owner::users) stand that watch the thread, 16 bits.
    pub const USERS: usize = Self::ID + Owner::USERS;

    /// A state without an owner.
    ///
    /// # Safety
    ///
    /// All that is not atomic may be used only by the thread that has [claimed](Self::claim) the
    /// state, or by the one that has found this thread gone, and not before the state has
    /// [memory](Self::reset_home).
    pub const unsafe fn new() -> Self {
        Self {
            entered_sp: AtomicUsize::new(0),
            low: Cell::new(0),
            span: Cell::new(0),
            shadow: ShadowStack::new(),
            mark: Mark::new(),
            vector_bytes: Cell::new(0),
            listed: Cell::new(0),
            owner: Owner::new(),
            errno: Cell::new(ptr::null_mut()),
            on: Cell::new(ptr::null()),
            // SAFETY: handed on.
            home: unsafe { Stack::new() },
            deferred_frame: Cell::new(ptr::null_mut()),
            saved_cancel: Cell::new(None),
            asked: Cell::new(ptr::null_mut()),
            entry_only: Cell::new(0),
            number: Cell::new(0),
            index: Cell::new(0),
            untraced: Cell::new(0),
            seldom: CachePadded::new(Seldom {
                next: AtomicPtr::new(ptr::null_mut()),
                next_free: AtomicPtr::new(ptr::null_mut()),
                before: LiveCounters::new(),
                no_errno: Cell::new(0),
            }),
            samples: [const {
                Sample {
                    left: Cell::new(0),
                    stamp: Cell::new(0),
                }
            }; MAX_USERS],
            words: [const {
                Word {
                    value: Cell::new(0),
                    epoch: Cell::new(0),
                }
            }; MAX_USERS],
            records: [const { Records::new() }; MAX_USERS],
            total: LiveCounters::new(),
            users: [const { LiveCounters::new() }; MAX_USERS],
        }
    }

    /// The running thread, whose state this is, has come inside fgraph otherwise than by a call: a
    /// mark that was left names no callback.
    pub fn come_inside(&self, entered_sp: usize) {
        self.mark.clear();
        compiler_fence(Ordering::SeqCst);
        self.entered_sp.store(entered_sp, Ordering::Relaxed);
    }

    /// A state whose thread is always inside: what it calls is counted as internal, never traced.
    ///
    /// # Safety
    ///
    /// As for [`new`](Self::new).
    pub const unsafe fn always_inside() -> Self {
        // SAFETY: handed on.
        let mut thread = unsafe { Self::new() };
        thread.entered_sp = AtomicUsize::new(Self::INTERNAL);
        thread
    }

    /// The running thread, whose state this is, is not traced from now on, until
    /// [`trace_again`](Self::trace_again) was called as often as this.
    ///
    /// # Safety
    ///
    /// The state must be the running thread's.
    pub unsafe fn stop_tracing(&self) {
        // Guards that were forgotten stay counted.
        self.untraced.set(self.untraced.get().saturating_add(1));
        // In a callback nothing is traced anyway, and the mark is needed at its end.
        if self.entered_sp.load(Ordering::Relaxed) == 0 {
            self.come_inside(Self::UNTRACED);
        }
    }

    /// Takes one call of [`stop_tracing`](Self::stop_tracing) back.
    ///
    /// # Safety
    ///
    /// The state must be the running thread's.
    pub unsafe fn trace_again(&self) {
        let guards = self.untraced.get().saturating_sub(1);
        self.untraced.set(guards);
        if guards == 0 && self.entered_sp.load(Ordering::Relaxed) == Self::UNTRACED {
            self.entered_sp.store(0, Ordering::Relaxed);
        }
    }

    /// What [`entered_sp`](Self::entered_sp) is while the thread runs the program's own code.
    pub fn outside(&self) -> usize {
        match self.untraced.get() {
            0 => 0,
            _ => Self::UNTRACED,
        }
    }

    /// Whether an address is on the machine stack that the thread was last seen on.
    #[inline(always)]
    pub fn is_on_stack(&self, address: usize) -> bool {
        address.wrapping_sub(self.low.get()) < self.span.get()
    }

    /// Whether the thread was last seen on a machine stack whose frames may be of calls that are on
    /// no stack of this thread: see [`Stack::set_shared`].
    pub(crate) fn is_on_shared(&self) -> bool {
        // SAFETY: stacks are never unmapped.
        unsafe { self.on.get().as_ref() }.is_some_and(Stack::is_shared)
    }

    /// Whether the thread was last seen on its own machine stack.
    pub fn is_home(&self) -> bool {
        ptr::eq(self.on.get(), &self.home)
    }

    /// Notes that the thread is not on its stack any more, and gives it back. Without one, no call
    /// is on the thread's stack, and no frame is the newest.
    pub fn leave_stack(&self) {
        // A signal handler may leave anywhere in here, and in `enter_stack`, by `siglongjmp`: what
        // is begun anew then finds either the frames here and `on` set, or neither.
        self.forget_records();
        self.span.set(0);
        compiler_fence(Ordering::SeqCst);
        // SAFETY: stacks are never unmapped.
        if let Some(stack) = unsafe { self.on.get().as_ref() } {
            stack.shadow.copy_from(&self.shadow);
            compiler_fence(Ordering::SeqCst);
            self.on.set(ptr::null());
            compiler_fence(Ordering::SeqCst);
            self.shadow.close();
            stack.claim.give_back(self);
        }
    }

    /// Notes that the thread, which is on no stack, is on its own; `false` if another thread has
    /// taken that, to go on with calls there.
    pub fn enter_home(&'static self) -> bool {
        let is_ours = self.home.claim.take(self);
        if is_ours {
            self.enter_stack(&self.home);
        }
        is_ours
    }

    /// Notes that the thread, which is on no stack, is on this one, which it has taken.
    pub fn enter_stack(&self, stack: &'static Stack) {
        debug_assert!(self.on.get().is_null());
        self.shadow.copy_from(&stack.shadow);
        compiler_fence(Ordering::SeqCst);
        self.on.set(stack);
        compiler_fence(Ordering::SeqCst);
        self.low.set(stack.low.get());
        self.span.set(stack.span.get());
    }

    /// Begins as a thread that was not seen on its own stack, with an empty shadow stack in `len`
    /// bytes at `base`.
    ///
    /// # Safety
    ///
    /// As for [`ShadowStack::reset`].
    pub unsafe fn reset_home(&'static self, base: *mut u8, len: usize) {
        self.leave_stack();
        self.home.set_bounds(0, 0);
        // SAFETY: the caller vouches for the memory.
        unsafe { self.home.shadow.reset(base, len, &self.home) };
    }

    /// Gives up the frame that this thread has deferred, and defers `frame` instead, or none if
    /// null.
    pub(crate) fn set_deferred(&self, frame: *mut Frame) {
        let before = self.deferred_frame.replace(frame);
        if !before.is_null() {
            // SAFETY: still on a shadow stack, as only this thread gives it up.
            claim::end_return(unsafe { frame::shared_word(before) });
        }
    }

    /// Gives up the frame that this thread has deferred, if there is one. The thread must be past
    /// the return of that call, or gone.
    pub fn give_up_deferred(&self) {
        self.set_deferred(ptr::null_mut());
    }

    /// Leaves `frame`, which is unwound, as it is for as long as the unwinder may need it, if this
    /// thread has deferred it.
    pub(crate) fn leave_to_unwinder(&self, frame: *mut Frame) {
        if self.deferred_frame.get() == frame {
            // SAFETY: still on a shadow stack, as only this thread gives it up.
            claim::note_unwound(unsafe { frame::shared_word(frame) });
            self.deferred_frame.set(ptr::null_mut());
        }
    }

    /// The state before this one in the list of all.
    pub(super) fn next(&self) -> &AtomicPtr<Self> {
        &self.seldom.next
    }

    /// The kernel's id of the thread; 0 when the state has no owner.
    pub fn id(&self) -> u32 {
        self.owner.id()
    }

    /// Tries to take the state over for thread `id`; it must have no owner. The users watch the
    /// thread that `watched` says.
    pub fn claim(&self, id: u32, watched: &Watched) -> bool {
        let claimed = self.owner.claim(id, watched);
        if claimed {
            let before = self.total.read();
            // With the one in `counters`: who reads these reads totals that are no older.
            fence(Ordering::Release);
            self.seldom.before.set(before);
            self.number.set(NUMBERS.fetch_add(1, Ordering::Relaxed));
            // Not in both places for a moment, where a child could begin with a copy of it.
            let index = self.index.replace(0);
            compiler_fence(Ordering::SeqCst);
            self.index.set(INDICES.exchange(index));
            self.saved_cancel.set(None);
            self.asked.set(ptr::null_mut());
            self.untraced.set(0);
            // What was the former owner's is not ours. No registration has the epoch 0.
            for (word, sample) in self.words.iter().zip(&self.samples) {
                word.epoch.set(0);
                sample.stamp.set(0);
            }
        }
        claimed
    }

    /// Takes the state from its owner. Its thread must be gone, and the state abandoned.
    pub fn release(&self, id: u32) -> bool {
        self.mark.clear();
        self.entered_sp.store(0, Ordering::Relaxed);
        self.owner.release(id)
    }

    /// What was not traced in this thread since it took the state over.
    pub fn counters(&self) -> Counters {
        let before = self.seldom.before.read();
        fence(Ordering::Acquire);
        self.total.read() - before
    }

    /// Where errors are kept when the thread has no `errno`.
    pub fn no_errno(&self) -> *mut i32 {
        self.seldom.no_errno.as_ptr()
    }

    /// Whether the registration with `stamp` in `slot` gets this call: it does the last of each
    /// `period`.
    #[inline(always)]
    pub(crate) fn samples(&self, slot: u32, stamp: u64, period: u32) -> bool {
        let sample = &self.samples[slot as usize % MAX_USERS];
        if sample.stamp.get() != stamp {
            sample.left.set(period);
            // As in `word`.
            compiler_fence(Ordering::SeqCst);
            sample.stamp.set(stamp);
        }
        let left = sample.left.get() - 1;
        sample.left.set(if left == 0 { period } else { left });
        left == 0
    }

    /// The word of the user in `slot`, registered at `epoch`; zero at its first use.
    pub(crate) fn word(&self, slot: usize, epoch: u64) -> &Cell<u64> {
        let word = &self.words[slot % MAX_USERS];
        if word.epoch.get() != epoch {
            word.value.set(0);
            // A signal handler may leave the callback in between, by `siglongjmp`.
            compiler_fence(Ordering::SeqCst);
            word.epoch.set(epoch);
        }
        &word.value
    }
}
