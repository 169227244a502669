//! From a hit to the callbacks.
//!
//! The machine layer calls [`enter`] at the entry of a traced function and [`leave`] when its body
//! is back, or [`unwind`] when an unwinder goes through it. It has marked the thread as inside
//! fgraph before, and the mark goes away afterwards, so nothing in here is ever entered twice by one
//! thread: whatever the callbacks call, or a signal handler calls meanwhile, is not traced.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering, compiler_fence};

use crate::MAX_USERS;
use crate::claim;
use crate::counters::{Counters, LiveCounters, bump};
use crate::frame::{self, Frame, HEADER};
use crate::grace::{self, Epoch};
use crate::registration::Header;
use crate::regs::{EntryRegs, RETURN_KEPT, RETURN_UNWINDING, ReturnRegs};
use crate::shadow::ShadowStack;
use crate::site::Site;
use crate::slot::Slots;
use crate::stack::{self, Stack, Stacks};
use crate::stop;
use crate::thread::{Thread, Threads};

/// The users that are yet to be asked or told, in the word that [`ask_next`] and [`tell_next`] hand on.
const TO_GO: u64 = 0xffff;
/// Where the users that have accepted are in it.
pub(crate) const ACCEPTED_SHIFT: u32 = 16;
/// Where the thread's `errno` before the callbacks is in it: a register that goes from user to user
/// costs less than a place in memory.
const ERRNO_SHIFT: u32 = 32;

/// The places that the machine layer calls bodies from.
pub const RETURN_POINTS: usize = 6;

static STUB: Header = Header::stub();

/// The state of fgraph in this process.
pub static FGRAPH: Fgraph = Fgraph::new();

/// All that threads, users and dispatch share.
#[derive(Debug)]
pub struct Fgraph {
    /// The users.
    pub slots: Slots<Header>,
    /// The newest registration.
    pub epoch: Epoch,
    /// The threads.
    pub threads: Threads,
    /// Where a body returns to that was called by the machine layer; 0: nowhere.
    return_points: [AtomicUsize; RETURN_POINTS],
    /// What the runtime knows of machine stacks.
    stacks: AtomicPtr<Stacks>,
    /// Hits that could not be traced because a thread's state could not be made.
    pub unattached: AtomicU64,
}

impl Fgraph {
    const fn new() -> Self {
        Self {
            slots: Slots::new(&STUB),
            epoch: Epoch::new(),
            threads: Threads::new(),
            return_points: [const { AtomicUsize::new(0) }; RETURN_POINTS],
            stacks: AtomicPtr::new((&raw const stack::HOMES).cast_mut()),
            unattached: AtomicU64::new(0),
        }
    }

    /// Says who knows the machine stacks.
    pub fn set_stacks(&self, stacks: &'static Stacks) {
        self.stacks
            .store(ptr::from_ref(stacks).cast_mut(), Ordering::Relaxed);
    }

    fn stacks(&self) -> &'static Stacks {
        // SAFETY: set once, before anything is patched, to what is never freed.
        unsafe { &*self.stacks.load(Ordering::Relaxed) }
    }

    /// Whether a thread's mark is stale: a signal handler has left a callback by `siglongjmp`. So it is if
    /// `address`, where the thread is now, is on the same machine stack and not as deep. Not so of a
    /// handler on an alternate stack, which may lie anywhere.
    #[cold]
    #[inline(never)]
    pub fn is_stale(&self, thread: &Thread, mark: usize, address: usize) -> bool {
        if mark >= address {
            return false;
        }
        let stacks = self.stacks();
        // What these call may be traced itself, and is deeper than this.
        thread.inside.store(address, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        let is_stale =
            !(stacks.is_alternate)(address) && (stacks.are_on_one)(thread, mark, address);
        compiler_fence(Ordering::SeqCst);
        thread.inside.store(mark, Ordering::Relaxed);
        is_stale
    }

    /// Says where a body returns to that was called by the machine layer.
    pub fn set_return_points(&self, addresses: [usize; RETURN_POINTS]) {
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

    /// Waits until no thread is in a callback of the user in slot `index`, which must have been
    /// retired, and a heavy barrier passed since. `pause` is called while a thread is in one, and may
    /// say that the thread is gone (`false`).
    pub fn wait_for_grace(&self, index: usize, mut pause: impl FnMut(&'static Thread) -> bool) {
        for thread in self.threads.iter() {
            let mark = core::iter::once(&thread.mark);
            grace::wait(index, mark, || (), |_| pause(thread));
        }
    }

    /// What was not traced in any thread since the start, for all users together.
    pub fn counters(&self) -> Counters {
        self.sum(|thread| thread.total.read())
    }

    /// What was not traced in any thread since the start, for whoever was in slot `index`.
    pub fn user_counters(&self, index: usize) -> Counters {
        self.sum(|thread| thread.users[index].read())
    }

    fn sum(&self, read: impl Fn(&Thread) -> Counters) -> Counters {
        self.threads
            .iter()
            .fold(Counters::default(), |mut sum, thread| {
                sum += read(thread);
                sum
            })
    }
}

/// Offers an entry to the users that want the function, and unmarks the thread; returns the frame to
/// leave through, or null when nobody wants the return. The caller's frame pointer and the return
/// address are not in the frame yet: the machine layer stores them.
///
/// # Safety
///
/// `regs` must hold the registers of a call that the running thread makes to the function of `site`,
/// `thread` be the thread's state, and `place` where the return address stands; `regs` must name the
/// same three; the thread must be marked as inside.
#[inline(always)]
pub unsafe fn enter(
    regs: *mut EntryRegs,
    site: &Site,
    thread: &Thread,
    place: usize,
) -> *mut Frame {
    // Whatever happens seldom is left to a function that is jumped to, so that nothing needs to be
    // kept here. The machine layer looks for the stack as well, but before the thread is marked: a signal
    // handler may have been on another one since.
    if !thread.is_on_stack(place) || thread.shadow.has_dead(place) {
        // SAFETY: handed on.
        return unsafe { enter_slowly(regs, site, thread, place) };
    }
    // SAFETY: handed on.
    unsafe { begin(regs, site, thread, place) }
}

/// [`enter`] for a call on another stack than before, or one that shows frames to be dead.
///
/// # Safety
///
/// As for [`enter`].
#[cold]
#[inline(never)]
unsafe extern "C" fn enter_slowly(
    regs: *mut EntryRegs,
    site: &Site,
    thread: &Thread,
    place: usize,
) -> *mut Frame {
    thread.give_up(ptr::null_mut());
    // SAFETY: the caller vouches for the registers.
    let return_address = unsafe { (*(*regs).link).return_address };
    let tail = FGRAPH.is_return_point(return_address);
    if !is_clear(thread, place, tail) && !(FGRAPH.stacks().find)(thread, place, tail) {
        return foreign(thread, site);
    }
    // SAFETY: handed on.
    let frame = unsafe { begin(regs, site, thread, place) };
    if !frame.is_null() {
        // Unwinders have to tell the frames of tail calls apart.
        // SAFETY: just put on the shadow stack.
        unsafe { thread.shadow.note_tail(frame) };
    }
    frame
}

/// Whether a call at `place` is on the stack that the thread was last seen on, and no frame there is in
/// its way. Drops the dead ones. `tail` tells whether the call returns to our trampoline.
pub fn is_clear(thread: &Thread, place: usize, tail: bool) -> bool {
    if !thread.is_on_stack(place) {
        return false;
    }
    if !thread.is_home() {
        return make_way(thread, &thread.shadow, place, tail).is_some();
    }
    // SAFETY: the newest frame, or the sentinel.
    let newest = unsafe { (*thread.shadow.newest()).slot };
    // A tail call is where the newest frame is. Any other call above that may be on another stack.
    if place > newest && (FGRAPH.stacks().is_alternate)(place) {
        return false;
    }
    thread
        .shadow
        .drop_dead(place, tail, |word| lost(thread, word));
    true
}

/// Drops the frames on a spare stack, which the thread has taken, that are in the way of a call at `place`
/// and surely dead. Gives the place of the newest that is left, or `None` if one that may live is in the
/// way.
pub fn make_way(thread: &Thread, shadow: &ShadowStack, place: usize, tail: bool) -> Option<usize> {
    let lost = |word| lost(thread, word);
    let is_clear = shadow.drop_gone(place, tail, is_gone, lost);
    // SAFETY: the newest frame, or the sentinel.
    is_clear.then(|| unsafe { (*shadow.newest()).slot })
}

/// Drops all frames on a spare stack, which the thread has taken, that are surely dead; whether none is
/// left.
pub fn drop_gone(thread: &Thread, shadow: &ShadowStack) -> bool {
    let lost = |word| lost(thread, word);
    while !shadow.is_empty() && shadow.drop_newest_if(is_gone, lost) {}
    shadow.is_empty()
}

/// Drops all frames: of a thread that is gone.
pub(crate) fn drop_all(thread: &Thread, shadow: &ShadowStack) {
    let lost = |word| lost(thread, word);
    while !shadow.is_empty() && shadow.drop_newest_if(|_| true, lost) {}
}

/// Whether a call is surely over: while it goes on, our return point stands at its place.
fn is_gone(frame: &Frame) -> bool {
    (FGRAPH.stacks().is_gone)(frame.slot)
}

/// Begins a frame and asks the first user.
///
/// # Safety
///
/// As for [`enter`]; no frame may be dead.
#[inline(always)]
unsafe fn begin(regs: *mut EntryRegs, site: &Site, thread: &Thread, place: usize) -> *mut Frame {
    // What is known of the call goes into the frame at once, so that it need not be handed on.
    let stamp = frame::stamp(FGRAPH.epoch.now());
    let Some(frame) = thread.shadow.open(site, place, stamp) else {
        return overrun(thread, site);
    };
    // Relaxed: a filter that changes at this moment may or may not see this call.
    let wanted = u64::from(site.interest.load(Ordering::Relaxed));
    let end = frame.cast::<u8>().wrapping_add(HEADER);
    // SAFETY: handed on.
    unsafe { ask_next(regs, thread, wanted | errno(thread), end, stamp) }
}

/// The thread's `errno`, where the word that is handed on has it.
#[inline(always)]
fn errno(thread: &Thread) -> u64 {
    // SAFETY: the runtime has set it to the thread's own, or to a cell of the state.
    let error = unsafe { *thread.errno.get() };
    u64::from(error.cast_unsigned()) << ERRNO_SHIFT
}

/// Undoes what the callbacks did to the thread's `errno`.
#[inline(always)]
fn put_errno_back(thread: &Thread, users: u64) {
    let errno = thread.errno.get();
    let error = (users >> ERRNO_SHIFT) as i32;
    // SAFETY: as in `errno`.
    unsafe {
        if *errno != error {
            *errno = error;
        }
    }
}

/// Asks the next user, or ends the entry when there is none. `users` says who is yet to be asked and
/// who has accepted, and what `errno` was.
///
/// A user's entry function calls this when it is done, so the users form a chain of jumps, and the
/// last one returns to the machine layer. That takes one jump for each user, where a loop takes a
/// call, a return, and the jump back; and nothing has to be kept in memory while a callback runs.
/// Where the compiler makes calls of the jumps, as it does in debug builds, the chain is at most 16
/// calls deep.
///
/// # Safety
///
/// `regs` and `thread` must be as for [`enter`], `end` the end so far of the frame that is being built,
/// `word` that frame's.
#[inline(always)]
pub(crate) unsafe fn ask_next(
    regs: *mut EntryRegs,
    thread: &Thread,
    mut users: u64,
    end: *mut u8,
    word: u64,
) -> *mut Frame {
    let to_go = users & TO_GO;
    if to_go != 0 {
        let index = to_go.trailing_zeros();
        users &= users - 1;
        let header = FGRAPH.slots.acquire(&thread.mark, index as usize);
        // SAFETY: the mark keeps the registration until it is set to the next or cleared.
        let user = unsafe { &*header };
        if frame::younger(user.stamp, word) {
            // SAFETY: handed on.
            return unsafe { ask_another(regs, thread, users, end, word) };
        }
        // SAFETY: the registers are this call's; the function is of this registration, and asks
        // for its data to fit.
        return unsafe { (user.entry)(regs, thread, users, end, word, header) };
    }
    // SAFETY: handed on.
    unsafe { asked_all(thread, users, end) }
}

/// Ends an entry: puts the frame on the shadow stack if somebody has accepted.
///
/// # Safety
///
/// As for [`ask_next`].
#[inline(always)]
unsafe fn asked_all(thread: &Thread, users: u64, end: *mut u8) -> *mut Frame {
    thread.mark.clear();
    put_errno_back(thread, users);
    let accepted = (users >> ACCEPTED_SHIFT) as u16;
    let frame = if accepted == 0 {
        ptr::null_mut()
    } else {
        // SAFETY: the frame was opened, `end` is behind its closed records.
        unsafe { thread.shadow.commit(accepted, end) }
    };
    unmark(thread);
    frame
}

/// From here on what a signal handler calls may be traced.
#[inline(always)]
fn unmark(thread: &Thread) {
    // Release, so that the frame is on the shadow stack before. The order matters to this thread
    // only.
    thread.inside.store(0, Ordering::Release);
}

/// Gives a return to the users that accepted its entry, in reverse order, and removes the frame.
/// Returns the thread's state.
///
/// # Safety
///
/// `regs` must hold the results of the call that is back now in the running thread, `thread` be the
/// thread's state, and `frame` what [`enter`] returned for it; `regs` must name the same two; the
/// thread must be marked as inside.
#[inline(always)]
pub unsafe fn leave(regs: *mut ReturnRegs, frame: *mut Frame, thread: &Thread) -> *const Thread {
    if thread.shadow.newest() != frame {
        // SAFETY: handed on.
        return unsafe { leave_slowly(regs, frame, thread) };
    }
    // SAFETY: handed on.
    unsafe { end(regs, frame, thread) }
}

/// [`leave`] for a frame that is not the newest of the stack that the thread was last seen on.
///
/// # Safety
///
/// As for [`leave`].
#[cold]
#[inline(never)]
unsafe extern "C" fn leave_slowly(
    regs: *mut ReturnRegs,
    frame: *mut Frame,
    thread: &Thread,
) -> *const Thread {
    if !thread.shadow.holds(frame) && !follow(thread, frame) {
        // SAFETY: handed on.
        return unsafe { end_kept(regs, frame, thread) };
    }
    let lost = |word| lost(thread, word);
    let shadow = &thread.shadow;
    let is_newest = if thread.is_home() {
        if !shadow.drop_above(frame, lost) {
            // It was dropped. The return address in it may still be right, and nothing else of it is
            // used.
            stop::stop(stop::STRAY_FRAME);
            return thread;
        }
        true
    } else {
        while shadow.newest() > frame && shadow.drop_newest_if(is_gone, lost) {}
        shadow.newest() == frame
    };
    // SAFETY: handed on.
    unsafe {
        if is_newest {
            end(regs, frame, thread)
        } else {
            end_kept(regs, frame, thread)
        }
    }
}

/// Moves the thread to the stack that holds `frame`, one that is going on in this thread; `false` if it is
/// another thread's, or taken by one.
fn follow(thread: &Thread, frame: *const Frame) -> bool {
    // SAFETY: states are never unmapped.
    let home: &'static Stack = unsafe { &*ptr::from_ref(&thread.home) };
    let stack = if home.shadow.holds(frame) {
        home
    } else {
        // SAFETY: it is on a spare stack, whose frames are not dropped while they may live, or on another
        // thread's own, which that thread is not on.
        let stack = unsafe { stack::holder(frame) };
        if !stack.claim.take(thread) {
            return false;
        }
        stack
    };
    thread.leave_stack();
    thread.enter_stack(stack);
    true
}

/// Tells the users of a frame that stays where it is, because others above it may live or another
/// thread has the stack. The machine layer reads it once more afterwards, so it is given up only when the
/// thread comes to the next such case.
///
/// # Safety
///
/// As for [`leave`].
unsafe fn end_kept(regs: *mut ReturnRegs, frame: *mut Frame, thread: &Thread) -> *const Thread {
    // SAFETY: the caller vouches for frame and registers.
    unsafe {
        let Some(word) = claim::begin_return(frame::shared_word(frame)) else {
            return thread;
        };
        (*regs).how |= RETURN_KEPT;
        thread.give_up(frame);
        let users = word & TO_GO | errno(thread);
        tell_next(regs, thread, users, Frame::end(frame), word)
    }
}

/// Tells the first user.
///
/// # Safety
///
/// As for [`leave`]; the frame must be the newest.
#[inline(always)]
unsafe fn end(regs: *mut ReturnRegs, frame: *mut Frame, thread: &Thread) -> *const Thread {
    // SAFETY: the frame is on the stack; the rest handed on.
    unsafe {
        let users = u64::from((*frame).bitmap()) | errno(thread);
        tell_next(regs, thread, users, thread.shadow.top(), (*frame).word)
    }
}

/// Gives the end of a call that does not return, because it is unwound, to its users.
///
/// # Safety
///
/// `frame` must be what [`enter`] returned for the call that is being unwound in the running thread,
/// whose state is `thread`; the thread must be marked as inside.
pub unsafe fn unwind(thread: &Thread, frame: *mut Frame) {
    let mut regs = ReturnRegs::unwinding(frame, thread);
    if !thread.shadow.holds(frame) && !follow(thread, frame) {
        // SAFETY: handed on.
        unsafe { end_kept(&mut regs, frame, thread) };
        thread.keep_for_unwinder(frame);
    } else if thread.shadow.has(frame) {
        let lost = |word| lost(thread, word);
        let is_gone = |above: &Frame| thread.is_home() || is_gone(above);
        thread.shadow.drop_above_unwound(frame, is_gone, lost);
        // SAFETY: the frame is on the stack; the rest handed on.
        unsafe {
            let users = u64::from((*frame).bitmap()) | errno(thread);
            tell_next(&mut regs, thread, users, Frame::end(frame), (*frame).word);
        }
    } else {
        stop::stop(stop::STRAY_FRAME);
    }
}

/// Tells the next user of a return, or ends the return when there is none. `users` says who is yet
/// to be told, and what `errno` was; `end` is where the last of their records ends. A chain of
/// jumps, as [`ask_next`].
///
/// # Safety
///
/// `regs` and `thread` must be as for [`leave`], `word` the frame's.
#[inline(always)]
pub(crate) unsafe fn tell_next(
    regs: *mut ReturnRegs,
    thread: &Thread,
    mut users: u64,
    end: *mut u8,
    word: u64,
) -> *const Thread {
    let to_go = users & TO_GO;
    if to_go != 0 {
        let index = frame::last_slot(to_go);
        users &= users - 1;
        let header = FGRAPH.slots.acquire(&thread.mark, index as usize);
        // SAFETY: the mark keeps the registration.
        let user = unsafe { &*header };
        if frame::younger(user.stamp, word) {
            // SAFETY: handed on.
            return unsafe { tell_another(regs, thread, users, end, word) };
        }
        // SAFETY: the registers are this return's; the function is of this registration, which
        // accepted the entry and wrote its record then; records stand in the order of the slots.
        return unsafe { (user.ret)(regs, thread, users, end, word, header) };
    }
    // SAFETY: handed on.
    unsafe { told_all(regs, thread, users) }
}

/// Ends a return: takes the frame from the shadow stack.
///
/// # Safety
///
/// As for [`tell_next`].
#[inline(always)]
unsafe fn told_all(regs: *mut ReturnRegs, thread: &Thread, users: u64) -> *const Thread {
    thread.mark.clear();
    put_errno_back(thread, users);
    // SAFETY: the caller vouches for the registers.
    if unsafe { (*regs).how } == 0 {
        thread.shadow.pop();
        return thread;
    }
    // SAFETY: handed on.
    unsafe { told_without_return(regs, thread) }
}

/// Ends a frame that stays where it is.
///
/// # Safety
///
/// As for [`tell_next`].
#[cold]
#[inline(never)]
unsafe extern "C" fn told_without_return(regs: *mut ReturnRegs, thread: &Thread) -> *const Thread {
    // SAFETY: the caller vouches for the registers; `unwind` has seen the frame on the stack.
    unsafe {
        let frame = (*regs).frame;
        if (*regs).how == RETURN_UNWINDING {
            thread.shadow.unwound(frame);
            if !thread.is_home() {
                claim::note_unwound(frame::shared_word(frame));
            }
        }
    }
    thread
}

/// Goes on after a slot that is empty, or whose owner has registered since the call began.
///
/// # Safety
///
/// As for [`ask_next`].
#[cold]
#[inline(never)]
unsafe extern "C" fn ask_another(
    regs: *mut EntryRegs,
    thread: &Thread,
    users: u64,
    end: *mut u8,
    word: u64,
) -> *mut Frame {
    // SAFETY: handed on.
    unsafe { ask_next(regs, thread, users, end, word) }
}

/// Goes on after a slot whose former owner, which accepted the entry, is gone.
///
/// # Safety
///
/// As for [`tell_next`].
#[cold]
#[inline(never)]
unsafe extern "C" fn tell_another(
    regs: *mut ReturnRegs,
    thread: &Thread,
    users: u64,
    end: *mut u8,
    word: u64,
) -> *const Thread {
    // SAFETY: handed on.
    unsafe { tell_next(regs, thread, users, end, word) }
}

/// The user's data found no room.
#[cold]
#[inline(never)]
pub(crate) fn unreserved(thread: &Thread, user: &Header) {
    count(thread, 1 << user.slot, |counters| &counters.unreserved);
}

/// A callback panicked: the user is turned off.
#[cold]
#[inline(never)]
pub(crate) fn panicked(user: &Header) {
    user.set_panicked();
    FGRAPH.slots.retire_if(user.slot as usize, user);
}

/// Ends an entry on a stack that is not the thread's own.
#[cold]
#[inline(never)]
extern "C" fn foreign(thread: &Thread, site: &Site) -> *mut Frame {
    not_traced(thread, site, |counters| &counters.foreign)
}

/// Ends an entry that the shadow stack has no room for.
#[cold]
#[inline(never)]
extern "C" fn overrun(thread: &Thread, site: &Site) -> *mut Frame {
    not_traced(thread, site, |counters| &counters.overrun)
}

fn not_traced(thread: &Thread, site: &Site, which: fn(&LiveCounters) -> &AtomicU64) -> *mut Frame {
    count(thread, site.interest.load(Ordering::Relaxed), which);
    unmark(thread);
    ptr::null_mut()
}

/// Counts a frame that was dropped, by its word, for those users who wanted the return and are still there.
#[cold]
#[inline(never)]
fn lost(thread: &Thread, word: u64) {
    let users = frame::users(word);
    if users != 0 {
        bump(&thread.total.lost);
    }
    for slot in slots(users) {
        // The mark keeps the slot from its next owner until this is counted.
        let header = FGRAPH.slots.acquire(&thread.mark, slot);
        // SAFETY: the mark keeps the registration.
        if !frame::younger(unsafe { (*header).stamp }, word) {
            bump(&thread.users[slot].lost);
        }
    }
    thread.mark.clear();
}

/// Counts one call, for the thread and for each of `users`, a bit for each slot; not if there are none.
fn count(thread: &Thread, users: u16, which: fn(&LiveCounters) -> &AtomicU64) {
    if users != 0 {
        bump(which(&thread.total));
    }
    for slot in slots(users) {
        bump(which(&thread.users[slot]));
    }
}

/// The slots of `users`, a bit for each.
fn slots(users: u16) -> impl Iterator<Item = usize> {
    (0..MAX_USERS).filter(move |slot| users & (1 << slot) != 0)
}
