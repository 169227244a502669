//! A user with its type erased: what a slot points to.
//!
//! ```text
//!   Registration<T>
//!   +0   Header   entry, ret    functions that know T
//!                 stamp         the epoch as a frame keeps it, in the upper 48 bits; the stub's is
//!                               the largest, so it is younger than any frame
//!                 slot          its index
//!                 accepted      its bit among those that have accepted a call
//!                 short     functions that know T, for calls that only scalar users want
//!                 period    of how many calls it gets one, and the function that knows T then
//!                 panicked
//!        ops      the user's value
//! ```

use core::fmt;
use core::mem::offset_of;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use super::chain;
use super::short::{self, ShortEntry, ShortRet};
use crate::MAX_USERS;
use crate::call::{Entry, Return};
use crate::dispatch;
use crate::frame::{self, Frame};
use crate::grace::Epoch;
use crate::ops::{FgraphOps, LibraryEvent, MAX_DATA_ALIGN, MAX_DATA_SIZE};
use crate::regs::{EntryRegs, ReturnRegs};
use crate::thread::Thread;
use crate::thread::parents::Keeper;

/// Asks a user, and goes on with [`dispatch::ask_next`].
///
/// `extern "C"`, because then nothing needs to be done after the call for a panic that cannot come,
/// and the compiler makes a jump of it.
type EntryFn = unsafe extern "C" fn(
    regs: *mut EntryRegs,
    thread: &Thread,
    users: u64,
    end: *mut u8,
    word: u64,
    user: *const Header,
) -> *mut Frame;

/// Tells a user, and goes on with [`dispatch::tell_next`].
type ReturnFn = unsafe extern "C" fn(
    regs: *mut ReturnRegs,
    thread: &Thread,
    users: u64,
    end: *mut u8,
    word: u64,
    user: *const Header,
) -> *const Thread;

/// Tells a user of a library.
type LibraryFn = unsafe fn(user: *const Header, event: &LibraryEvent<'_>);

/// Calls a function and stops a panic that comes out of it.
///
/// Catching a panic takes `std`, which this crate does not have.
pub trait Catch {
    /// The result of `call`, or what it panicked with: a pointer that is not null, which
    /// [`Header::take_panic`] gives back.
    fn catch<R>(call: impl FnOnce() -> R) -> Result<R, *mut ()>;
}

/// The number of a user, told apart from all that were ever registered in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserId(u64);

impl UserId {
    pub(crate) const fn new(epoch: u64) -> Self {
        Self(epoch)
    }

    pub(crate) const fn epoch(self) -> u64 {
        self.0
    }
}

impl fmt::Display for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user {}", self.0)
    }
}

/// The part of a registration that does not depend on the user's type.
#[repr(C)]
#[derive(Debug)]
pub struct Header {
    pub(crate) entry: EntryFn,
    pub(crate) ret: ReturnFn,
    pub(crate) stamp: u64,
    pub(crate) slot: u32,
    short_entry: ShortEntry,
    short_ret: ShortRet,
    /// The functions that know the user's type, where the two above are shims that call these.
    own_entry: ShortEntry,
    own_ret: ShortRet,
    /// The user's bit in a frame; in the stub one that no user has.
    bit: u64,
    /// The user's bit among those that want a call; in the stub one that no user has.
    wanted: u32,
    library: LibraryFn,
    /// The user's bit among those that have accepted, as `dispatch::ask_next` keeps them.
    accepted: u64,
    /// Of how many calls in a thread the user gets one.
    period: u32,
    /// Asks the user about a call that it gets.
    due: EntryFn,
    /// What the first panic was, as [`Catch`] has given it; null if there was none.
    panic: AtomicPtr<()>,
}

impl Header {
    /// What a free slot points to.
    pub const fn stub() -> Self {
        Self {
            entry: stub_entry,
            ret: stub_ret,
            stamp: frame::stamp((1 << Epoch::BITS) - 1),
            slot: 0,
            short_entry: short::stub_entry,
            short_ret: short::stub_ret,
            own_entry: short::stub_entry,
            own_ret: short::stub_ret,
            bit: 1 << MAX_USERS,
            wanted: 1 << MAX_USERS,
            library: |_, _| (),
            accepted: 0,
            period: 1,
            due: stub_entry,
            panic: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Where in a header the address of the [`ShortEntry`] stands.
    pub const SHORT_ENTRY: usize = offset_of!(Self, short_entry);
    /// Where in a header the address of the [`ShortRet`] stands.
    pub const SHORT_RET: usize = offset_of!(Self, short_ret);
    /// Where in a header the [`ShortEntry`] stands that knows the user's type, for a shim.
    pub const OWN_ENTRY: usize = offset_of!(Self, own_entry);
    /// Where in a header the [`ShortRet`] stands that knows the user's type, for a shim.
    pub const OWN_RET: usize = offset_of!(Self, own_ret);
    /// Where in a header the user's bit in a frame stands.
    pub const BIT: usize = offset_of!(Self, bit);
    /// Where in a header the user's bit stands among those that want a call.
    pub const WANTED: usize = offset_of!(Self, wanted);
    /// Where in a header the epoch stands, as a frame keeps it.
    pub const STAMP: usize = offset_of!(Self, stamp);

    /// The number of this registration.
    pub fn epoch(&self) -> u64 {
        frame::epoch(self.stamp)
    }

    /// Tells the user of a library.
    ///
    /// # Safety
    ///
    /// The registration must stay meanwhile: the running thread's mark names it.
    pub(crate) unsafe fn tell(&self, event: &LibraryEvent<'_>) {
        // SAFETY: the function is of this registration, whose first field this is.
        unsafe { (self.library)(self, event) };
    }

    /// The user, as its records are known by.
    #[inline(always)]
    pub(crate) fn keeper(&self) -> Keeper {
        Keeper {
            slot: self.slot,
            bit: self.wanted,
            stamp: self.stamp,
        }
    }

    /// The user's number.
    pub fn id(&self) -> UserId {
        UserId(self.epoch())
    }

    /// Whether a callback of this user has panicked.
    pub fn panicked(&self) -> bool {
        !self.panic().is_null()
    }

    /// What the first panic of a callback was, as [`Catch`] has given it; null if there was none.
    pub fn panic(&self) -> *mut () {
        // Acquire pairs with the Release in `set_panic`: what the pointer leads to is complete.
        self.panic.load(Ordering::Acquire)
    }

    /// Takes [what a callback panicked with](Self::panic) away, so that the user may be published
    /// again.
    pub fn take_panic(&self) -> *mut () {
        self.panic.swap(ptr::null_mut(), Ordering::Acquire)
    }

    /// Keeps the first of several panics. The others are never freed.
    pub(crate) fn set_panic(&self, panic: *mut ()) {
        let _ = self.panic.compare_exchange(
            ptr::null_mut(),
            panic,
            Ordering::Release,
            Ordering::Relaxed,
        );
    }
}

/// The stub's entry function: says no.
///
/// # Safety
///
/// As for [`dispatch::ask_next`].
unsafe extern "C" fn stub_entry(
    regs: *mut EntryRegs,
    thread: &Thread,
    users: u64,
    end: *mut u8,
    word: u64,
    _stub: *const Header,
) -> *mut Frame {
    // SAFETY: handed on.
    unsafe { dispatch::ask_next(regs, thread, users, end, word) }
}

/// The stub's return function: does nothing.
///
/// # Safety
///
/// As for [`dispatch::tell_next`].
unsafe extern "C" fn stub_ret(
    regs: *mut ReturnRegs,
    thread: &Thread,
    users: u64,
    end: *mut u8,
    word: u64,
    _stub: *const Header,
) -> *const Thread {
    // SAFETY: handed on.
    unsafe { dispatch::tell_next(regs, thread, users, end, word) }
}

/// What a scalar user is called through where its functions change registers that have to be saved
/// for it: each saves them and calls the function in the user's header, with the same arguments.
#[derive(Clone, Copy, Debug)]
pub struct Shims {
    /// Calls the user's entry function.
    pub entry: Option<ShortEntry>,
    /// Calls the user's return function.
    pub ret: Option<ShortRet>,
}

/// A registered user.
#[repr(C)]
#[derive(Debug)]
pub struct Registration<T> {
    header: Header,
    ops: T,
}

impl<T: FgraphOps> Registration<T> {
    /// Makes a registration for slot `slot`, number `epoch`, whose panics are caught by `C`. The
    /// user gets one call of `period` in each thread, and all if that is 0 or 1.
    pub fn new<C: Catch>(ops: T, slot: usize, epoch: u64, period: u32) -> Self {
        const {
            assert!(
                size_of::<T::Data>() <= MAX_DATA_SIZE,
                "FgraphOps::Data is larger than 1024 bytes"
            );
            assert!(
                align_of::<T::Data>() <= MAX_DATA_ALIGN,
                "FgraphOps::Data is aligned to more than 16 bytes"
            );
        }
        Self {
            header: Header {
                entry: if period > 1 { sampled } else { entry::<T, C> },
                ret: ret::<T, C>,
                stamp: frame::stamp(epoch),
                slot: slot as u32,
                short_entry: short::entry::<T, C>,
                short_ret: short::ret::<T, C>,
                own_entry: short::entry::<T, C>,
                own_ret: short::ret::<T, C>,
                bit: frame::bit(slot as u32).into(),
                wanted: 1 << slot,
                library: library::<T, C>,
                accepted: (frame::bit(slot as u32) as u64) << chain::ACCEPTED_SHIFT,
                period,
                due: entry::<T, C>,
                panic: AtomicPtr::new(ptr::null_mut()),
            },
            ops,
        }
    }

    /// The registration of a scalar user that is called through `shims`.
    #[must_use]
    pub fn through(mut self, shims: Shims) -> Self {
        self.header.short_entry = shims.entry.unwrap_or(self.header.short_entry);
        self.header.short_ret = shims.ret.unwrap_or(self.header.short_ret);
        self
    }

    /// Where the code is that calls the callbacks on the short way, if the user gets one call of
    /// `period`; `None` if it must not be called so, because it has to count calls.
    pub fn short<C: Catch>(period: u32) -> Option<[usize; 2]> {
        (period <= 1).then_some([
            short::entry::<T, C> as *const () as usize,
            short::ret::<T, C> as *const () as usize,
        ])
    }

    /// The part that a slot points to.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The user's value.
    pub fn ops(&self) -> &T {
        &self.ops
    }

    /// The user's value, back.
    pub fn into_ops(self) -> T {
        self.ops
    }
}

/// Calls the callback of a `T` that hears of libraries.
///
/// # Safety
///
/// `user` must be the header of a `Registration<T>`, which the thread's mark names.
unsafe fn library<T: FgraphOps, C: Catch>(user: *const Header, event: &LibraryEvent<'_>) {
    // SAFETY: the header is the first field of the registration, which the caller vouches for.
    let registration = unsafe { &*user.cast::<Registration<T>>() };
    if let Err(panic) = C::catch(|| registration.ops.library(event)) {
        dispatch::panicked(&registration.header, panic);
    }
}

/// Asks a user about one call of several, and none about the others.
///
/// # Safety
///
/// As for [`entry`].
unsafe extern "C" fn sampled(
    regs: *mut EntryRegs,
    thread: &Thread,
    users: u64,
    end: *mut u8,
    word: u64,
    user: *const Header,
) -> *mut Frame {
    // SAFETY: the thread's mark names the registration.
    let header = unsafe { &*user };
    // SAFETY: handed on.
    unsafe {
        if thread.samples(header.slot, header.stamp, header.period) {
            (header.due)(regs, thread, users, end, word, user)
        } else {
            dispatch::ask_next(regs, thread, users, end, word)
        }
    }
}

/// Calls the entry callback of a `T`, and keeps its data in a record at `end`.
///
/// # Safety
///
/// As for [`dispatch::ask_next`]; `user` must be the header of a `Registration<T>`, which the
/// thread's mark names.
unsafe extern "C" fn entry<T: FgraphOps, C: Catch>(
    regs: *mut EntryRegs,
    thread: &Thread,
    mut users: u64,
    mut end: *mut u8,
    word: u64,
    user: *const Header,
) -> *mut Frame {
    // SAFETY: the header is the first field of the registration, which the caller vouches for.
    let registration = unsafe { &*user.cast::<Registration<T>>() };
    let header = &registration.header;
    let size = const { size_of::<T::Data>() };
    if size != 0 && !thread.shadow.fits(end, frame::record_len(size)) {
        // Jumped to, so that nothing needs to be kept for it.
        // SAFETY: handed on.
        return unsafe { dispatch::unreserved(regs, thread, users, end, word, user) };
    }
    let mut call = Entry::new(regs, thread, user, users);
    // The data goes to its place in here: what is handed through `catch` is copied, also for
    // `None`.
    let asked = C::catch(|| match registration.ops.entry(&mut call) {
        Some(data) => {
            if size != 0 {
                // SAFETY: the record fits, and frames end at addresses fit for any data.
                unsafe { end.cast::<T::Data>().write(data) };
            }
            true
        }
        None => false,
    });
    match asked {
        Ok(true) => {
            users = call.handed_on() | header.accepted;
            if size != 0 {
                let before = thread.push_record(header.keeper(), end);
                // SAFETY: the record fits.
                end = unsafe { frame::close_record(end, size, header.slot, before) };
            }
        }
        Ok(false) => users = call.handed_on(),
        Err(panic) => dispatch::panicked(header, panic),
    }
    // SAFETY: handed on; the record is closed.
    unsafe { dispatch::ask_next(regs, thread, users, end, word) }
}

/// Calls the return callback of a `T` with its data, from the last record before `end` that is its
/// own.
///
/// # Safety
///
/// As for [`dispatch::tell_next`]; `user` must be the header of a `Registration<T>`, which the
/// thread's mark names and whose `entry` accepted the call.
unsafe extern "C" fn ret<T: FgraphOps, C: Catch>(
    regs: *mut ReturnRegs,
    thread: &Thread,
    mut users: u64,
    mut end: *mut u8,
    word: u64,
    user: *const Header,
) -> *const Thread {
    // SAFETY: as in `entry`.
    let registration = unsafe { &*user.cast::<Registration<T>>() };
    let header = &registration.header;
    let data = if const { size_of::<T::Data>() } == 0 {
        ptr::dangling::<T::Data>()
    } else {
        // SAFETY: the user has a record in this frame, at or before `end`.
        end = unsafe { frame::last_record(end, header.slot) };
        // SAFETY: a record of this size; if it is on a list, then on the stack that the thread is
        // on.
        unsafe { thread.pop_record(header.keeper(), end, size_of::<T::Data>()) };
        end.cast()
    };
    // SAFETY: `entry` has written the data there.
    let data = unsafe { data.read() };
    // SAFETY: the caller vouches for the registers.
    let (frame, how) = unsafe { ((*regs).frame, (*regs).how) };
    let mut call = Return::new(regs, thread, frame, how, user, users);
    match C::catch(|| registration.ops.ret(&mut call, data)) {
        Ok(()) => users = call.handed_on(),
        Err(panic) => dispatch::panicked(header, panic),
    }
    // SAFETY: handed on.
    unsafe { dispatch::tell_next(regs, thread, users, end, word) }
}
