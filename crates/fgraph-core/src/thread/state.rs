//! The state of each thread: its hazard slot, its shadow stack, its counters, and a word for each
//! user.
//!
//! The runtime makes a thread's state when the thread first calls a traced function. The state is
//! never unmapped: when the thread has ended, another one takes it over. The states form a list
//! that only grows at its head, so it can be iterated at any time without a lock.
//!
//! ```text
//!   lines 0, 1   entered_sp, machine stack,              written by every traced call
//!                shadow stack, hazard slot
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
use crate::hazard_slot::{HasHazardSlot, HazardSlot};
use crate::machine::Stack;
use crate::order::Listing;
use crate::owner::{Owner, Watched};
use crate::shadow::ShadowStack;
use crate::thread::free::Linked;
use crate::thread::indices::Indices;
use crate::thread::parents::Records;

/// The number of threads that have had a state.
static NUMBERS: AtomicU32 = AtomicU32::new(0);
static INDICES: Indices = Indices::new();

/// Bytes of a thread stack that are left to the bodies of calls: these are not traced, because a
/// fault at the end of the stack must be the body's. Without optimisation the users' entries are
/// nested (`dispatch/enter.rs`), and each takes 1.5 KiB.
const ROOM: usize = if cfg!(debug_assertions) {
    (16 << 10) + MAX_USERS * (2 << 10)
} else {
    16 << 10
};

/// The end of a thread's current machine stack, as it was last seen, for code that must not use it.
#[repr(C)]
#[derive(Debug)]
pub struct StackEnd {
    /// The lowest stack pointer with which a trampoline has room; 0 before the thread is first seen
    /// on a stack.
    pub near: Cell<usize>,
    /// The lowest address of the stack.
    pub low: Cell<usize>,
}

impl StackEnd {
    /// Bytes of a stack that are enough for the registers that a trampoline saves, and for
    /// callbacks that use little.
    pub const ROOM: usize = 4 << 10;
}

/// The state of one thread.
#[repr(C)]
#[derive(Debug)]
pub struct Thread {
    /// 0, [`Thread::INTERNAL`], [`Thread::UNTRACED`], or the stack pointer with which the thread
    /// entered fgraph. While it is not 0, calls are not traced.
    pub entered_sp: AtomicUsize,
    /// The lowest return slot of a traced call on the thread's current machine stack, as it was
    /// last seen: from there to the end callbacks have room.
    pub roomy_low: Cell<usize>,
    /// The size of the machine stack from there on in bytes; 0 while it is unknown.
    pub roomy_span: Cell<usize>,
    /// The frames of the calls in progress on that machine stack.
    pub shadow: ShadowStack,
    /// The hazard slot: the user whose callback the thread runs.
    pub hazard_slot: HazardSlot,
    /// The number of bytes of each vector register that the trampolines save.
    pub vector_bytes: Cell<u32>,
    /// The users that have a list of their records, one bit for each slot. The trampolines clear it
    /// when they find that a callback was left with `siglongjmp`.
    pub listed: Cell<u32>,
    /// The owner of this state, and the users that watch the thread.
    pub owner: Owner,
    /// The address of the thread's `errno`.
    pub errno: Cell<*mut i32>,
    /// The thread's own copy of the end of its current machine stack, or null.
    pub stack_end: Cell<*const StackEnd>,
    /// The thread's current machine stack, as it was last seen; null in between.
    on: Cell<*const Stack>,
    /// The lowest address of that machine stack.
    pub low: Cell<usize>,
    /// The size of that machine stack in bytes; 0 while it is unknown.
    pub span: Cell<usize>,
    /// The thread stack.
    pub thread_stack: Stack,
    /// The frame whose return this thread has dispatched and whose removal it has deferred, or
    /// null.
    deferred_frame: Cell<*mut Frame>,
    /// The cancellation state of the thread before it was disabled for callbacks; `None` if it is
    /// not disabled.
    pub saved_cancel: Cell<Option<Cancellation>>,
    /// While cancellation is disabled: the frame of the call whose entry was dispatched last, or
    /// null.
    pub dispatched: Cell<*mut Frame>,
    /// While the entry of an entry-only call is dispatched: its return slot; otherwise 0. The
    /// trampolines clear it when they find that a callback was left with `siglongjmp`.
    pub entry_only: Cell<usize>,
    /// A number that no other thread ever gets: 0 for the first that fgraph has seen, then 1, and
    /// so on.
    pub(crate) number: Cell<u32>,
    /// A number that no other thread has at the same time, starting at 1; 0 before the first
    /// thread.
    pub(crate) index: Cell<u32>,
    /// The number of the program's guards that keep the thread from being traced.
    untraced: Cell<u32>,
    /// The users of the last call that was dispatched to its users by their ranks.
    pub listing: Listing,
    seldom: CachePadded<Seldom>,
    samples: [Sample; MAX_USERS],
    words: [Word; MAX_USERS],
    pub(super) records: [Records; MAX_USERS],
    /// The counters of all users together.
    pub total: LiveCounters,
    /// The counters of each user.
    pub users: [LiveCounters; MAX_USERS],
}

/// Cold fields: the path of a call never reads them.
#[derive(Debug)]
struct Seldom {
    next: AtomicPtr<Thread>,
    next_free: AtomicPtr<Thread>,
    /// The counters when the current owner took the state over.
    before: LiveCounters,
    no_errno: Cell<i32>,
}

/// A thread's cancellability, in the C library's constants.
#[derive(Clone, Copy, Debug)]
pub struct Cancellation {
    /// The state, as for `pthread_setcancelstate`.
    pub state: i32,
    /// The type, as for `pthread_setcanceltype`.
    pub kind: i32,
    /// True if the thread itself blocks the signal of cancellation, as those of the C library's
    /// timers do; `None` if that is unknown.
    pub blocks: Option<bool>,
}

/// The number of calls to skip until a sampling user gets one, and the registration to which it
/// belongs.
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

// SAFETY: other threads read the atomics only. The owner uses the cells, or the thread that has
// just claimed the state while it had no owner.
unsafe impl Sync for Thread {}
// SAFETY: no field depends on the thread that made it.
unsafe impl Send for Thread {}

impl HasHazardSlot for Thread {
    fn is_in(&self, index: usize) -> bool {
        // Acquire, as in `HazardSlot::is`: pairs with the Release store that ends the call.
        self.entered_sp.load(Ordering::Acquire) != 0 && self.hazard_slot.is(index)
    }
}

// SAFETY: `next_free` is a word of the state's own, used by free lists only.
unsafe impl Linked for Thread {
    fn next_free(&self) -> &AtomicPtr<Self> {
        &self.seldom.next_free
    }
}

impl Thread {
    /// Value of [`entered_sp`](Self::entered_sp) in a thread that runs fgraph's own code outside of
    /// a call.
    pub const INTERNAL: usize = 1;
    /// Value of [`entered_sp`](Self::entered_sp) in a thread that the program does not want traced
    /// now.
    pub const UNTRACED: usize = 2;

    /// Offset in a state of its [`id`](Self::id), 32 bits.
    pub const ID: usize = offset_of!(Self, owner);
    /// Offset in a state of [the users](Owner::users) that watch the thread, 16 bits.
    pub const USERS: usize = Self::ID + Owner::USERS;

    /// Makes a state without an owner.
    ///
    /// # Safety
    ///
    /// Fields that are not atomic may be used only by the thread that has [claimed](Self::claim)
    /// the state, or by the thread that has found this one gone, and not before the state has
    /// [memory](Self::reset_thread_stack).
    pub const unsafe fn new() -> Self {
        Self {
            entered_sp: AtomicUsize::new(0),
            roomy_low: Cell::new(0),
            roomy_span: Cell::new(0),
            shadow: ShadowStack::new(),
            hazard_slot: HazardSlot::new(),
            vector_bytes: Cell::new(0),
            listed: Cell::new(0),
            owner: Owner::new(),
            errno: Cell::new(ptr::null_mut()),
            stack_end: Cell::new(ptr::null()),
            on: Cell::new(ptr::null()),
            low: Cell::new(0),
            span: Cell::new(0),
            // SAFETY: the caller keeps the contract of `Stack::new`.
            thread_stack: unsafe { Stack::new() },
            deferred_frame: Cell::new(ptr::null_mut()),
            saved_cancel: Cell::new(None),
            dispatched: Cell::new(ptr::null_mut()),
            entry_only: Cell::new(0),
            number: Cell::new(0),
            index: Cell::new(0),
            untraced: Cell::new(0),
            listing: Listing::new(),
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

    /// Marks the running thread, whose state this is, as inside fgraph other than by a call. The
    /// hazard slot is cleared.
    #[inline]
    pub fn come_inside(&self, entered_sp: usize) {
        self.hazard_slot.clear();
        compiler_fence(Ordering::SeqCst);
        self.entered_sp.store(entered_sp, Ordering::Relaxed);
    }

    /// Makes a state whose thread is always inside: its calls count as internal, and are never
    /// traced.
    ///
    /// # Safety
    ///
    /// The contract of [`new`](Self::new) holds.
    pub const unsafe fn always_inside() -> Self {
        // SAFETY: the caller keeps the same contract.
        let mut thread = unsafe { Self::new() };
        thread.entered_sp = AtomicUsize::new(Self::INTERNAL);
        thread
    }

    /// Stops tracing the running thread, whose state this is, until
    /// [`trace_again`](Self::trace_again) was called as often as this.
    ///
    /// # Safety
    ///
    /// The state must be the running thread's.
    #[inline]
    pub unsafe fn stop_tracing(&self) {
        // Guards that were leaked stay counted.
        self.untraced.set(self.untraced.get().saturating_add(1));
        // In a callback nothing is traced anyway, and its end needs the current value.
        if self.entered_sp.load(Ordering::Relaxed) == 0 {
            self.come_inside(Self::UNTRACED);
        }
    }

    /// Reverts one call of [`stop_tracing`](Self::stop_tracing).
    ///
    /// # Safety
    ///
    /// The state must be the running thread's.
    #[inline]
    pub unsafe fn trace_again(&self) {
        let guards = self.untraced.get().saturating_sub(1);
        self.untraced.set(guards);
        if guards == 0 && self.entered_sp.load(Ordering::Relaxed) == Self::UNTRACED {
            self.entered_sp.store(0, Ordering::Relaxed);
        }
    }

    /// Returns the value of [`entered_sp`](Self::entered_sp) while the thread runs the program's
    /// own code.
    pub fn outside(&self) -> usize {
        match self.untraced.get() {
            0 => 0,
            _ => Self::UNTRACED,
        }
    }

    /// Returns true if an address is on the thread's current machine stack, as it was last seen.
    #[inline(always)]
    pub fn is_on_stack(&self, address: usize) -> bool {
        address.wrapping_sub(self.low.get()) < self.span.get()
    }

    /// Returns true if a call with the return slot `address` is on the thread's current machine
    /// stack, as it was last seen, with room for callbacks.
    #[inline(always)]
    pub fn has_room(&self, address: usize) -> bool {
        address.wrapping_sub(self.roomy_low.get()) < self.roomy_span.get()
    }

    /// Returns true if the thread was last seen on a machine stack whose frames may belong to calls
    /// on stacks of other threads: see [`Stack::set_shared`].
    pub(crate) fn is_on_shared(&self) -> bool {
        // SAFETY: stacks are never unmapped.
        unsafe { self.on.get().as_ref() }.is_some_and(Stack::is_shared)
    }

    /// Returns true if the thread was last seen on its thread stack.
    pub fn is_thread_stack(&self) -> bool {
        ptr::eq(self.on.get(), &self.thread_stack)
    }

    /// Leaves the current stack and gives it back. Then no call is on the thread's stack, and no
    /// frame is the newest.
    pub fn leave_stack(&self) {
        // A signal handler may leave anywhere in this function, and in `enter_stack`, with
        // `siglongjmp`. The next attempt then finds either the frames here and `on` set, or
        // neither.
        self.forget_records();
        self.roomy_span.set(0);
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

    /// Enters the thread stack, from no stack; returns `false` if another thread has claimed it to
    /// continue with calls there.
    pub fn enter_thread_stack(&'static self) -> bool {
        let is_ours = self.thread_stack.claim.take(self);
        if is_ours {
            self.enter_stack(&self.thread_stack);
        }
        is_ours
    }

    /// Enters a stack that the thread, the running one, has claimed, from no stack.
    pub fn enter_stack(&self, stack: &'static Stack) {
        debug_assert!(self.on.get().is_null());
        self.shadow.copy_from(&stack.shadow);
        compiler_fence(Ordering::SeqCst);
        self.on.set(stack);
        compiler_fence(Ordering::SeqCst);
        let (low, span) = (stack.low.get(), stack.span.get());
        self.low.set(low);
        self.span.set(span);
        // Room for callbacks. Only the end of the mapping is known for another stack, and several
        // coroutines may have theirs in it.
        let room = match self.is_thread_stack() {
            true => ROOM,
            false => StackEnd::ROOM,
        };
        let room = room.min(span / 4);
        self.roomy_low.set(low + room);
        self.roomy_span.set(span - room);
        // SAFETY: null, or words of the running thread.
        if let Some(end) = unsafe { self.stack_end.get().as_ref() } {
            end.near.set(low + StackEnd::ROOM.min(span / 4));
            end.low.set(low);
        }
    }

    /// Resets the state for a thread that was not seen on its thread stack, with an empty shadow
    /// stack in `len` bytes at `base`.
    ///
    /// # Safety
    ///
    /// The contract of [`ShadowStack::reset`] holds.
    pub unsafe fn reset_thread_stack(&'static self, base: *mut u8, len: usize) {
        self.leave_stack();
        self.thread_stack.set_bounds(0, 0);
        // SAFETY: the caller guarantees the memory.
        unsafe {
            self.thread_stack
                .shadow
                .reset(base, len, &self.thread_stack)
        };
    }

    /// Gives up the frame that this thread has deferred, and defers `frame` instead, or none if
    /// null.
    pub(crate) fn set_deferred(&self, frame: *mut Frame) {
        let before = self.deferred_frame.replace(frame);
        if !before.is_null() {
            // SAFETY: the frame is still on a shadow stack, because only this thread gives it up.
            claim::end_return(unsafe { frame::shared_word(before) });
        }
    }

    /// Gives up the frame that this thread has deferred, if there is one. The thread must have
    /// completed the return of that call, or be gone.
    pub fn give_up_deferred(&self) {
        self.set_deferred(ptr::null_mut());
    }

    /// Keeps `frame`, which is unwound, for as long as the unwinder may need it, if this thread has
    /// deferred it.
    pub(crate) fn leave_to_unwinder(&self, frame: *mut Frame) {
        if self.deferred_frame.get() == frame {
            // SAFETY: the frame is still on a shadow stack, because only this thread gives it up.
            claim::note_unwound(unsafe { frame::shared_word(frame) });
            self.deferred_frame.set(ptr::null_mut());
        }
    }

    /// Returns the link to the next older state in the list of all.
    pub(super) fn next(&self) -> &AtomicPtr<Self> {
        &self.seldom.next
    }

    /// Returns the kernel's id of the thread; 0 if the state has no owner.
    pub fn id(&self) -> u32 {
        self.owner.id()
    }

    /// Tries to take the state over for thread `id`; it must have no owner. The users in `watched`
    /// watch the thread.
    pub fn claim(&self, id: u32, watched: &Watched) -> bool {
        let claimed = self.owner.claim(id, watched);
        if claimed {
            let before = self.total.read();
            // Pairs with the fence in `counters`: a thread that reads these values reads totals
            // that are no older.
            fence(Ordering::Release);
            self.seldom.before.set(before);
            self.number.set(NUMBERS.fetch_add(1, Ordering::Relaxed));
            // Never in both places, not even for a moment: a forked child could begin with a copy
            // of it.
            let index = self.index.replace(0);
            compiler_fence(Ordering::SeqCst);
            self.index.set(INDICES.exchange(index));
            self.saved_cancel.set(None);
            self.dispatched.set(ptr::null_mut());
            self.untraced.set(0);
            // The former owner's words are not ours. No registration has the epoch 0.
            for (word, sample) in self.words.iter().zip(&self.samples) {
                word.epoch.set(0);
                sample.stamp.set(0);
            }
        }
        claimed
    }

    /// Releases the state. Its thread must be gone, and the state abandoned.
    pub fn release(&self, id: u32) -> bool {
        self.hazard_slot.clear();
        self.entered_sp.store(0, Ordering::Relaxed);
        self.owner.release(id)
    }

    /// Returns the counts of untraced calls in this thread since it took the state over.
    pub fn counters(&self) -> Counters {
        let before = self.seldom.before.read();
        fence(Ordering::Acquire);
        self.total.read() - before
    }

    /// Returns a place for errors of a thread without an `errno`.
    pub fn no_errno(&self) -> *mut i32 {
        self.seldom.no_errno.as_ptr()
    }

    /// Returns true if the registration with `stamp` in `slot` gets this call, which it does for
    /// the last of each `period`.
    #[inline(always)]
    pub(crate) fn samples(&self, slot: u32, stamp: u64, period: u32) -> bool {
        let sample = &self.samples[slot as usize % MAX_USERS];
        if sample.stamp.get() != stamp {
            sample.left.set(period);
            // A signal handler may leave the callback in between, with `siglongjmp`.
            compiler_fence(Ordering::SeqCst);
            sample.stamp.set(stamp);
        }
        let left = sample.left.get() - 1;
        sample.left.set(if left == 0 { period } else { left });
        left == 0
    }

    /// Returns the word of the user in `slot`, registered at `epoch`; zero at its first use.
    #[inline]
    pub fn word(&self, slot: usize, epoch: u64) -> &Cell<u64> {
        let word = &self.words[slot % MAX_USERS];
        if word.epoch.get() != epoch {
            word.value.set(0);
            // A signal handler may leave the callback in between, with `siglongjmp`.
            compiler_fence(Ordering::SeqCst);
            word.epoch.set(epoch);
        }
        &word.value
    }
}
