//! From a hit to the callbacks.
//!
//! The machine layer calls [`enter`] at the entry of a traced function and [`leave`] when its body
//! is back, or [`unwind`] when an unwinder goes through it. It has marked the thread as inside
//! fgraph before, and unmarks it afterwards, so nothing in here is ever entered twice by one thread:
//! whatever the callbacks call, or a signal handler calls meanwhile, is not traced.

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::MAX_USERS;
use crate::counters::{Counters, bump};
use crate::frame::{self, Frame, HEADER};
use crate::grace::{self, Epoch};
use crate::registration::Header;
use crate::regs::{EntryRegs, ReturnRegs};
use crate::site::Site;
use crate::slot::Slots;
use crate::thread::{Thread, Threads};

/// The users that are yet to be asked, in the word that [`enter`] keeps.
const WANTED: u32 = 0xffff;
/// Where the users that have accepted are in it.
const ACCEPTED_SHIFT: u32 = 16;

static STUB: Header = Header::STUB;

/// Sets the bounds of the thread's own machine stack, if the address is on it.
pub type FindStack = fn(&Thread, usize);

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
    /// Where a body returns to that was called by the machine layer.
    return_point: AtomicUsize,
    /// A [`FindStack`], or 0.
    find_stack: AtomicUsize,
    /// Hits that could not be traced because a thread's state could not be made.
    pub unattached: core::sync::atomic::AtomicU64,
}

impl Fgraph {
    const fn new() -> Self {
        Self {
            slots: Slots::new(&STUB),
            epoch: Epoch::new(),
            threads: Threads::new(),
            return_point: AtomicUsize::new(0),
            find_stack: AtomicUsize::new(0),
            unattached: core::sync::atomic::AtomicU64::new(0),
        }
    }

    /// Says who finds the machine stack of a thread that has none yet.
    pub fn set_find_stack(&self, find_stack: FindStack) {
        self.find_stack
            .store(find_stack as usize, Ordering::Relaxed);
    }

    /// Says where a body returns to that was called by the machine layer.
    #[inline]
    pub fn set_return_point(&self, address: usize) {
        self.return_point.store(address, Ordering::Relaxed);
    }

    /// Where a body returns to that was called by the machine layer.
    #[inline(always)]
    pub fn return_point(&self) -> usize {
        self.return_point.load(Ordering::Relaxed)
    }

    /// Waits until no thread is in a callback of the user in slot `index`, which must have been
    /// retired. `heavy` and `alive` are the runtime's: see [`grace::wait`].
    pub fn wait_for_grace(
        &self,
        index: usize,
        heavy: impl FnOnce(),
        mut pause: impl FnMut(&'static Thread) -> bool,
    ) {
        heavy();
        for thread in self.threads.iter() {
            grace::wait(
                index,
                core::iter::once(&thread.mark),
                || (),
                |_| pause(thread),
            );
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

/// Offers an entry to the users that want the function; returns the frame to leave through, or null
/// when nobody wants the return. The caller's frame pointer and the return address are not in the
/// frame yet: the machine layer stores them.
///
/// # Safety
///
/// `regs` must hold the registers of a call that the running thread makes to the function of `site`,
/// `thread` be the thread's state, and `place` where the return address stands; `regs` must name the
/// same three; the thread must be marked as inside.
#[inline(always)]
pub unsafe fn enter(
    fgraph: &Fgraph,
    regs: *mut EntryRegs,
    site: &Site,
    thread: &Thread,
    place: usize,
) -> *mut Frame {
    let shadow = &thread.shadow;
    // Relaxed: a filter that changes at this moment may or may not see this call.
    let mut wanted = u32::from(site.interest.load(Ordering::Relaxed));
    if !thread.is_on_stack(place) && !finds_stack(fgraph, thread, place) {
        return foreign(thread, wanted);
    }
    if shadow.has_dead(place) {
        // SAFETY: the caller vouches for the registers.
        unsafe { drop_dead(fgraph, regs) };
    }
    // What is known of the call goes into the frame at once, so that it need not be kept.
    let Some(frame) = shadow.open(site, place, frame::stamp(fgraph.epoch.now())) else {
        return overrun(thread, wanted);
    };
    let mut end = frame.cast::<u8>().wrapping_add(HEADER);
    // SAFETY: the runtime has set it to the thread's own, or to a cell of the state.
    let error = unsafe { *thread.errno.get() };
    // Stores are what a traced call is short of, and everything that lives across a callback costs
    // one. So the accepting users are kept above the wanted ones, and what can be had by a load is
    // loaded again: the frame is at the top, the user's index in the mark.
    while wanted & WANTED != 0 {
        let index = wanted.trailing_zeros();
        wanted &= wanted - 1;
        let header = fgraph.slots.acquire(&thread.mark, index as usize);
        // SAFETY: the mark keeps the registration until it is set to the next or cleared.
        let user = unsafe { &*header };
        if frame::younger(user.stamp, shadow.building_word()) {
            // Registered after this call began, or the stub.
            passed_over();
            continue;
        }
        // SAFETY: the registers are this call's; the function is of this registration, and asks
        // for its data to fit.
        let result = unsafe { (user.entry)(regs, end, header) };
        if !result.is_null() {
            end = result;
            wanted |= frame::bit(thread.mark.get()) << ACCEPTED_SHIFT;
        }
    }
    thread.mark.clear();
    restore_errno(thread, error);
    let accepted = wanted >> ACCEPTED_SHIFT;
    if accepted == 0 {
        return core::ptr::null_mut();
    }
    // SAFETY: the frame was opened above, `end` is behind its closed records.
    unsafe { shadow.commit(accepted, end) }
}

/// Gives a return to the users that accepted its entry, in reverse order, and removes the frame.
///
/// # Safety
///
/// `regs` must hold the results of the call that is back now in the running thread, `thread` be the
/// thread's state, and `frame` what [`enter`] returned for it; `regs` must name the same two; the
/// thread must be marked as inside.
#[inline(always)]
pub unsafe fn leave(fgraph: &Fgraph, regs: *mut ReturnRegs, frame: *mut Frame, thread: &Thread) {
    // SAFETY: handed on.
    if unsafe { returns(fgraph, regs, frame, thread) } {
        thread.shadow.pop();
    }
}

/// Gives the end of a call that does not return, because it is unwound, to its users.
///
/// # Safety
///
/// `frame` must be what [`enter`] returned for the call that is being unwound in the running thread,
/// whose state is `thread`; the thread must be marked as inside.
pub unsafe fn unwind(fgraph: &Fgraph, thread: &Thread, frame: *mut Frame) {
    let mut regs = ReturnRegs::unwinding(frame, thread);
    // SAFETY: handed on.
    if unsafe { returns(fgraph, &mut regs, frame, thread) } {
        thread.shadow.unwound(frame);
    }
}

/// Calls the return callbacks; `false` if the frame is not on the thread's shadow stack.
///
/// # Safety
///
/// As for [`leave`].
#[inline(always)]
unsafe fn returns(
    fgraph: &Fgraph,
    regs: *mut ReturnRegs,
    frame: *mut Frame,
    thread: &Thread,
) -> bool {
    let shadow = &thread.shadow;
    if shadow.newest() != frame && !drop_above(thread, frame) {
        return false;
    }
    // SAFETY: the frame is on the stack.
    let mut bitmap = u32::from(unsafe { (*frame).bitmap() });
    let mut end = shadow.top();
    // SAFETY: as in `enter`.
    let error = unsafe { *thread.errno.get() };
    while bitmap != 0 {
        let index = frame::last_slot(bitmap);
        bitmap &= bitmap - 1;
        let header = fgraph.slots.acquire(&thread.mark, index as usize);
        // SAFETY: the mark keeps the registration.
        let user = unsafe { &*header };
        // SAFETY: the newest frame is the one that returns.
        if frame::younger(user.stamp, unsafe { (*shadow.newest()).word }) {
            // The one that accepted the entry is gone.
            passed_over();
            continue;
        }
        // SAFETY: the registers are this return's; the function is of this registration, which
        // accepted the entry and wrote its record then; records stand in the order of the slots.
        end = unsafe { (user.ret)(regs, end, header) };
    }
    thread.mark.clear();
    restore_errno(thread, error);
    true
}

/// Undoes what the callbacks did to the thread's `errno`.
#[inline(always)]
fn restore_errno(thread: &Thread, error: i32) {
    let errno = thread.errno.get();
    // SAFETY: the runtime has set it to the thread's own, or to a cell of the state.
    unsafe {
        if *errno != error {
            *errno = error;
        }
    }
}

/// Drops the frames that the call in `regs` shows to be dead.
///
/// # Safety
///
/// As for [`enter`].
#[cold]
#[inline(never)]
unsafe fn drop_dead(fgraph: &Fgraph, regs: *mut EntryRegs) {
    // SAFETY: the caller vouches for the registers; states are never freed.
    let (thread, slot, return_address) = unsafe {
        let link = &*(*regs).link;
        (&*(*regs).thread, (*regs).slot(), link.return_address)
    };
    let tail = return_address == fgraph.return_point();
    thread
        .shadow
        .drop_dead(slot, tail, |bitmap| lost(thread, bitmap));
}

/// Drops the frames above `frame`; `false` if there is no such frame.
#[cold]
#[inline(never)]
fn drop_above(thread: &Thread, frame: *mut Frame) -> bool {
    thread
        .shadow
        .drop_above(frame, |bitmap| lost(thread, bitmap))
}

/// A slot is empty or too young: rare, so the code for it stands out of the way.
#[cold]
#[inline(never)]
const fn passed_over() {}

/// The user's data found no room.
#[cold]
#[inline(never)]
pub(crate) fn unreserved(thread: &Thread, user: &Header) {
    bump(&thread.total.unreserved);
    bump(&thread.users[user.slot as usize].unreserved);
}

/// A callback panicked: the user is turned off.
#[cold]
#[inline(never)]
pub(crate) fn panicked(user: &Header) {
    user.set_panicked();
    FGRAPH.slots.retire_if(user.slot as usize, user);
}

/// Whether `place` is on the thread's own machine stack after all, which is looked for if it is not
/// known yet: the thread's first hits were on an alternate one.
#[cold]
#[inline(never)]
fn finds_stack(fgraph: &Fgraph, thread: &Thread, place: usize) -> bool {
    // Relaxed: set once, before anything is patched.
    let find_stack = fgraph.find_stack.load(Ordering::Relaxed);
    if thread.stack_span.get() == 0 && find_stack != 0 {
        // SAFETY: what is not 0 was stored by `set_find_stack`.
        let find_stack = unsafe { core::mem::transmute::<usize, FindStack>(find_stack) };
        find_stack(thread, place);
    }
    thread.is_on_stack(place)
}

#[cold]
#[inline(never)]
fn foreign(thread: &Thread, wanted: u32) -> *mut Frame {
    if wanted != 0 {
        bump(&thread.total.foreign);
    }
    for index in bits(wanted) {
        bump(&thread.users[index].foreign);
    }
    core::ptr::null_mut()
}

#[cold]
#[inline(never)]
fn overrun(thread: &Thread, wanted: u32) -> *mut Frame {
    if wanted != 0 {
        bump(&thread.total.overrun);
    }
    for index in bits(wanted) {
        bump(&thread.users[index].overrun);
    }
    core::ptr::null_mut()
}

#[cold]
#[inline(never)]
fn lost(thread: &Thread, bitmap: u16) {
    if bitmap != 0 {
        bump(&thread.total.lost);
    }
    for index in bits(bitmap.reverse_bits().into()) {
        bump(&thread.users[index].lost);
    }
}

fn bits(set: u32) -> impl Iterator<Item = usize> {
    (0..MAX_USERS).filter(move |index| set & (1 << index) != 0)
}
