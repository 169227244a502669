//! A user with its type erased: the target of a slot.
//!
//! ```text
//!   Registration<T>
//!   +0   Header   entry, ret    functions that know T
//!                 stamp         the epoch as a frame keeps it, in the upper 48 bits; the stub's is
//!                               the largest, so it is younger than any frame
//!                 slot          its index
//!                 fast_*        functions that know T, for calls that only fast-path users want
//!                 accepted      its bit among those that have accepted a call
//!                 period, due   number of calls of which it gets one; then, in place of `entry`
//!                 counted       in place of `ret`, where calls that it redirects are counted
//!                 redirects     the number of these
//!                 panic         the payload of its first panic
//!        ops      the user's value
//! ```

use core::fmt;
use core::mem::offset_of;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use super::chain;
use super::fast_path::{self, FastEntry, FastRet};
use super::redirects::Redirects;
use crate::MAX_USERS;
use crate::call::{Dropped, Entry, Return};
use crate::dispatch;
use crate::frame::{self, Frame};
use crate::grace::Epoch;
use crate::ops::{FgraphOps, LibraryEvent, check_data};
use crate::regs::{EntryRegs, ReturnRegs};
use crate::site::Function;
use crate::thread::Thread;
use crate::thread::parents::Keeper;

/// Dispatches an entry to a user, and continues with [`dispatch::entry_next`].
///
/// It is `extern "C"` because then no code has to run after the call for a panic that cannot come,
/// and the compiler makes the call a jump.
type EntryFn = unsafe extern "C" fn(
    regs: *mut EntryRegs,
    thread: &Thread,
    users: u64,
    end: *mut u8,
    word: u64,
    user: *const Header,
) -> *mut Frame;

/// Dispatches a return to a user, and continues with [`dispatch::return_next`].
type ReturnFn = unsafe extern "C" fn(
    regs: *mut ReturnRegs,
    thread: &Thread,
    users: u64,
    end: *mut u8,
    word: u64,
    user: *const Header,
) -> *const Thread;

/// Tells a user of a call that was dropped, in the thread that has found it so.
type DroppedFn = unsafe fn(frame: *mut Frame, thread: &Thread, user: *const Header);

/// Dispatches a library event to a user.
type LibraryFn = unsafe fn(user: *const Header, event: &LibraryEvent<'_>);

/// Tells a user of functions that its filter has come to select.
type SelectedFn = unsafe fn(user: *const Header, functions: &[Function]);

/// Calls a function and catches its panic.
///
/// Catching a panic takes `std`, which this crate does not use.
pub trait Catch {
    /// Returns the result of `call`, or the payload of its panic: a pointer that is not null, which
    /// [`Header::take_panic`] returns later.
    fn catch<R>(call: impl FnOnce() -> R) -> Result<R, *mut ()>;
}

/// The id of a user, unique among all users that were ever registered in this process.
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
    fast_entry: FastEntry,
    fast_ret: FastRet,
    /// The functions that know the user's type, if the two above are shims that call these.
    own_entry: FastEntry,
    own_ret: FastRet,
    /// The user's bit in a frame; in the stub, a bit that belongs to no user.
    bit: u64,
    /// The user's bit among those that want a call; in the stub, a bit that belongs to no user.
    wanted: u32,
    dropped: DroppedFn,
    library: LibraryFn,
    selected: SelectedFn,
    /// The user's bit among those that have accepted, in the encoding of `dispatch::entry_next`.
    accepted: u64,
    /// The user gets one call of this number in each thread.
    period: u32,
    /// Bytes of a record of the user's; 0 if it has no data.
    record_len: u32,
    /// Dispatches an entry that the user gets.
    due: EntryFn,
    /// Tells the user of a return, where calls that it redirects are counted.
    counted: ReturnFn,
    /// Calls that the user has redirected.
    redirects: Redirects,
    /// The payload of the first panic, from [`Catch`]; null if there was none.
    panic: AtomicPtr<()>,
}

impl Header {
    /// Makes the target of a free slot.
    pub const fn stub() -> Self {
        Self {
            entry: stub_entry,
            ret: stub_ret,
            stamp: frame::stamp((1 << Epoch::BITS) - 1),
            slot: 0,
            fast_entry: fast_path::stub_entry,
            fast_ret: fast_path::stub_ret,
            own_entry: fast_path::stub_entry,
            own_ret: fast_path::stub_ret,
            bit: 1 << MAX_USERS,
            wanted: 1 << MAX_USERS,
            dropped: |_, _, _| (),
            library: |_, _| (),
            selected: |_, _| (),
            accepted: 0,
            period: 1,
            record_len: 0,
            due: stub_entry,
            counted: stub_ret,
            redirects: Redirects::new(),
            panic: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Offset in a header of the [`FastEntry`].
    pub const FAST_ENTRY: usize = offset_of!(Self, fast_entry);
    /// Offset in a header of the [`FastRet`].
    pub const FAST_RET: usize = offset_of!(Self, fast_ret);
    /// Offset in a header of the [`FastEntry`] that knows the user's type, for a shim.
    pub const OWN_ENTRY: usize = offset_of!(Self, own_entry);
    /// Offset in a header of the [`FastRet`] that knows the user's type, for a shim.
    pub const OWN_RET: usize = offset_of!(Self, own_ret);
    /// Offset in a header of the user's bit in a frame.
    pub const BIT: usize = offset_of!(Self, bit);
    /// Offset in a header of the user's bit among those that want a call.
    pub const WANTED: usize = offset_of!(Self, wanted);
    /// Offset in a header of the epoch, in the encoding of frames.
    pub const STAMP: usize = offset_of!(Self, stamp);

    /// Returns the number of this registration.
    #[inline]
    pub fn epoch(&self) -> u64 {
        frame::epoch(self.stamp)
    }

    /// Returns the number of bytes of a record of the user's; 0 if it has no data.
    #[inline(always)]
    pub(crate) fn record_len(&self) -> usize {
        self.record_len as usize
    }

    /// Tells the user of a call that was dropped.
    ///
    /// # Safety
    ///
    /// `frame` must be on the shadow stack of the running thread, whose state is `thread` and whose
    /// hazard slot names the registration, and the user must have accepted its call.
    pub(crate) unsafe fn call_dropped(&self, frame: *mut Frame, thread: &Thread) {
        // SAFETY: the function belongs to this registration, whose first field is the header.
        unsafe { (self.dropped)(frame, thread, self) };
    }

    /// Dispatches a library event to the user.
    ///
    /// # Safety
    ///
    /// The registration must stay alive meanwhile: the running thread's hazard slot names it.
    pub(crate) unsafe fn call_library(&self, event: &LibraryEvent<'_>) {
        // SAFETY: the function belongs to this registration, whose first field is the header.
        unsafe { (self.library)(self, event) };
    }

    /// Calls the user for functions that its filter has come to select.
    ///
    /// # Safety
    ///
    /// The contract is that of [`call_library`](Self::call_library).
    pub(crate) unsafe fn call_selected(&self, functions: &[Function]) {
        // SAFETY: the function is of this registration, whose first field this is.
        unsafe { (self.selected)(self, functions) };
    }

    /// Returns the identity by which the user's records are found.
    #[inline(always)]
    pub(crate) fn keeper(&self) -> Keeper {
        Keeper {
            slot: self.slot,
            bit: self.wanted,
            stamp: self.stamp,
        }
    }

    /// Returns the user's id.
    pub fn id(&self) -> UserId {
        UserId(self.epoch())
    }

    /// Returns the count of calls that the user has redirected.
    pub fn redirects(&self) -> &Redirects {
        &self.redirects
    }

    /// Returns true if a callback of this user has panicked.
    pub fn panicked(&self) -> bool {
        !self.panic().is_null()
    }

    /// Returns the payload of the first panic of a callback, from [`Catch`]; null if there was
    /// none.
    pub fn panic(&self) -> *mut () {
        // Acquire pairs with the Release in `set_panic`: the payload is complete.
        self.panic.load(Ordering::Acquire)
    }

    /// Removes [the payload of a panic](Self::panic) and returns it, so that the user may be
    /// published again.
    pub fn take_panic(&self) -> *mut () {
        self.panic.swap(ptr::null_mut(), Ordering::Acquire)
    }

    /// Keeps the first of several panics. Payloads of others are leaked.
    pub(crate) fn set_panic(&self, panic: *mut ()) {
        let _ = self.panic.compare_exchange(
            ptr::null_mut(),
            panic,
            Ordering::Release,
            Ordering::Relaxed,
        );
    }
}

/// The stub's entry function: it does not accept.
///
/// # Safety
///
/// The contract of [`dispatch::entry_next`] holds.
unsafe extern "C" fn stub_entry(
    regs: *mut EntryRegs,
    thread: &Thread,
    users: u64,
    end: *mut u8,
    word: u64,
    _stub: *const Header,
) -> *mut Frame {
    // SAFETY: the caller keeps the same contract.
    unsafe { dispatch::entry_next(regs, thread, users, end, word) }
}

/// The stub's return function: does nothing.
///
/// # Safety
///
/// The contract of [`dispatch::return_next`] holds.
unsafe extern "C" fn stub_ret(
    regs: *mut ReturnRegs,
    thread: &Thread,
    users: u64,
    end: *mut u8,
    word: u64,
    _stub: *const Header,
) -> *const Thread {
    // SAFETY: the caller keeps the same contract.
    unsafe { dispatch::return_next(regs, thread, users, end, word) }
}

/// The code through which a fast-path user is called if its functions change registers that must be
/// saved for it. Each shim saves them and calls the function in the user's header, with the same
/// arguments.
#[derive(Clone, Copy, Debug)]
pub struct Shims {
    /// Calls the user's entry function.
    pub entry: Option<FastEntry>,
    /// Calls the user's return function.
    pub ret: Option<FastRet>,
}

/// A registered user.
#[repr(C)]
#[derive(Debug)]
pub struct Registration<T> {
    header: Header,
    ops: T,
}

impl<T: FgraphOps> Registration<T> {
    /// Makes a registration for slot `slot` with the number `epoch`; `C` catches its panics. The
    /// user gets one call of `period` in each thread, or all calls if `period` is 0 or 1.
    pub fn new<C: Catch>(ops: T, slot: usize, epoch: u64, period: u32) -> Self {
        const { check_data::<T>() };
        Self {
            header: Header {
                entry: if period > 1 { sampled } else { entry::<T, C> },
                ret: ret::<T, C>,
                stamp: frame::stamp(epoch),
                slot: slot as u32,
                fast_entry: fast_path::entry::<T, C>,
                fast_ret: fast_path::ret::<T, C>,
                own_entry: fast_path::entry::<T, C>,
                own_ret: fast_path::ret::<T, C>,
                bit: frame::bit(slot as u32).into(),
                wanted: 1 << slot,
                dropped: dropped::<T, C>,
                library: library::<T, C>,
                selected: selected::<T, C>,
                accepted: (frame::bit(slot as u32) as u64) << chain::ACCEPTED_SHIFT,
                period,
                record_len: const {
                    match size_of::<T::Data>() {
                        0 => 0,
                        size => frame::record_len(size) as u32,
                    }
                },
                due: entry::<T, C>,
                counted: ret::<T, C>,
                redirects: Redirects::new(),
                panic: AtomicPtr::new(ptr::null_mut()),
            },
            ops,
        }
    }

    /// Makes the registration of a fast-path user be called through `shims`.
    #[must_use]
    pub fn through(mut self, shims: Shims) -> Self {
        self.header.fast_entry = shims.entry.unwrap_or(self.header.fast_entry);
        self.header.fast_ret = shims.ret.unwrap_or(self.header.fast_ret);
        self
    }

    /// Counts the redirected calls of the user until they return. Such a user must not take the
    /// fast path.
    #[must_use]
    pub fn counting_redirected(mut self) -> Self {
        self.header.ret = counted;
        self.header.redirects = Redirects::counted();
        self
    }

    /// Returns the addresses of the code that calls the callbacks on the fast path, if the user
    /// gets one call of `period`. Returns `None` if the fast path cannot be used, because calls
    /// must be counted.
    pub fn fast_path<C: Catch>(period: u32) -> Option<[usize; 2]> {
        (period <= 1).then_some([
            fast_path::entry::<T, C> as *const () as usize,
            fast_path::ret::<T, C> as *const () as usize,
        ])
    }

    /// Returns the part to which a slot points.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the user's value.
    pub fn ops(&self) -> &T {
        &self.ops
    }

    /// Returns the user's value, and ends the registration.
    pub fn into_ops(self) -> T {
        self.ops
    }
}

/// Calls the callback of a `T` for a call that was dropped, with its data.
///
/// # Safety
///
/// The contract of [`Header::call_dropped`] holds; `user` must be the header of a
/// `Registration<T>`.
unsafe fn dropped<T: FgraphOps, C: Catch>(frame: *mut Frame, thread: &Thread, user: *const Header) {
    // SAFETY: the header is the first field of the registration, which the caller guarantees.
    let registration = unsafe { &*user.cast::<Registration<T>>() };
    let header = &registration.header;
    let data = if const { size_of::<T::Data>() } == 0 {
        ptr::dangling::<T::Data>()
    } else {
        // SAFETY: the user has accepted the call, so it has a record in the frame.
        unsafe { frame::last_record(Frame::end(frame), header.slot) }.cast()
    };
    // SAFETY: `entry` has written the data there.
    let data = unsafe { data.read() };
    let call = Dropped::new(frame, thread, user);
    if let Err(panic) = C::catch(|| registration.ops.dropped(&call, data)) {
        dispatch::panicked(header, panic);
    }
}

/// Calls the library callback of a `T`.
///
/// # Safety
///
/// `user` must be the header of a `Registration<T>` that the thread's hazard slot names.
unsafe fn library<T: FgraphOps, C: Catch>(user: *const Header, event: &LibraryEvent<'_>) {
    // SAFETY: the header is the first field of the registration, which the caller guarantees.
    let registration = unsafe { &*user.cast::<Registration<T>>() };
    if let Err(panic) = C::catch(|| registration.ops.library(event)) {
        dispatch::panicked(&registration.header, panic);
    }
}

/// Calls the callback of a `T` that hears of functions, for each of `functions`.
///
/// # Safety
///
/// The contract is that of [`library`].
unsafe fn selected<T: FgraphOps, C: Catch>(user: *const Header, functions: &[Function]) {
    // SAFETY: the header is the first field of the registration, which the caller vouches for.
    let registration = unsafe { &*user.cast::<Registration<T>>() };
    let call = |function: &Function| registration.ops.selected(*function);
    if let Err(panic) = C::catch(|| functions.iter().for_each(call)) {
        dispatch::panicked(&registration.header, panic);
    }
}

/// Dispatches one entry of several to a user, and skips the others.
///
/// # Safety
///
/// The contract of [`entry`] holds.
unsafe extern "C" fn sampled(
    regs: *mut EntryRegs,
    thread: &Thread,
    users: u64,
    end: *mut u8,
    word: u64,
    user: *const Header,
) -> *mut Frame {
    // SAFETY: the thread's hazard slot names the registration.
    let header = unsafe { &*user };
    // SAFETY: the caller keeps the same contract.
    unsafe {
        if thread.samples(header.slot, header.stamp, header.period) {
            (header.due)(regs, thread, users, end, word, user)
        } else {
            dispatch::entry_next(regs, thread, users, end, word)
        }
    }
}

/// Tells a user of a return, and counts the call off if the user has redirected it.
///
/// # Safety
///
/// The contract is that of [`ret`].
unsafe extern "C" fn counted(
    regs: *mut ReturnRegs,
    thread: &Thread,
    users: u64,
    end: *mut u8,
    word: u64,
    user: *const Header,
) -> *const Thread {
    // SAFETY: the thread's hazard slot names the registration; the frame stays until the return is
    // done.
    let (header, frame) = unsafe { (&*user, &*(*regs).frame) };
    if frame.is_redirected_by(header.epoch()) {
        header.redirects.end();
    }
    // SAFETY: handed on.
    unsafe { (header.counted)(regs, thread, users, end, word, user) }
}

/// Calls the entry callback of a `T`, and stores its data in a record at `end`.
///
/// # Safety
///
/// The contract of [`dispatch::entry_next`] holds; `user` must be the header of a `Registration<T>`
/// that the thread's hazard slot names.
unsafe extern "C" fn entry<T: FgraphOps, C: Catch>(
    regs: *mut EntryRegs,
    thread: &Thread,
    mut users: u64,
    mut end: *mut u8,
    word: u64,
    user: *const Header,
) -> *mut Frame {
    // SAFETY: the header is the first field of the registration, which the caller guarantees.
    let registration = unsafe { &*user.cast::<Registration<T>>() };
    let header = &registration.header;
    let size = const { size_of::<T::Data>() };
    if size != 0 && !thread.shadow.fits(end, frame::record_len(size)) {
        // A jump, so that no state has to be saved for it.
        // SAFETY: the caller keeps the same contract.
        return unsafe { dispatch::unreserved(regs, thread, users, end, word, user) };
    }
    let mut call = Entry::new(regs, thread, user, users);
    // The data is stored inside the closure: a value that is returned through `catch` is copied,
    // even for `None`.
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
    if call.redirects_untold(matches!(asked, Ok(true))) {
        header.redirects.lose();
    }
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
    // SAFETY: the caller keeps the same contract, and the record is closed.
    unsafe { dispatch::entry_next(regs, thread, users, end, word) }
}

/// Calls the return callback of a `T` with its data, from its last record before `end`.
///
/// # Safety
///
/// The contract of [`dispatch::return_next`] holds; `user` must be the header of a
/// `Registration<T>` that the thread's hazard slot names, and whose `entry` accepted the call.
unsafe extern "C" fn ret<T: FgraphOps, C: Catch>(
    regs: *mut ReturnRegs,
    thread: &Thread,
    mut users: u64,
    mut end: *mut u8,
    word: u64,
    user: *const Header,
) -> *const Thread {
    // SAFETY: the header is the first field of the registration, which the caller guarantees.
    let registration = unsafe { &*user.cast::<Registration<T>>() };
    let header = &registration.header;
    let data = if const { size_of::<T::Data>() } == 0 {
        ptr::dangling::<T::Data>()
    } else {
        // SAFETY: the user has a record in this frame that ends at or before `end`.
        end = unsafe { frame::last_record(end, header.slot) };
        // SAFETY: a record of this size; if it is on a list, it is on the thread's current stack.
        unsafe { thread.pop_record(header.keeper(), end, size_of::<T::Data>()) };
        end.cast()
    };
    // SAFETY: `entry` has written the data there.
    let data = unsafe { data.read() };
    // SAFETY: the caller guarantees the registers.
    let (frame, how) = unsafe { ((*regs).frame, (*regs).how) };
    let mut call = Return::new(regs, thread, frame, how, user, users);
    match C::catch(|| registration.ops.ret(&mut call, data)) {
        Ok(()) => users = call.handed_on(),
        Err(panic) => dispatch::panicked(header, panic),
    }
    // SAFETY: the caller keeps the same contract.
    unsafe { dispatch::return_next(regs, thread, users, end, word) }
}
