//! The handle of a registered user.
//!
//! # Safety
//!
//! The unsafe code owns a boxed registration through a pointer, because the slots share it. The
//! registration is freed, or taken apart, only after the grace period.

use core::cell::Cell;
use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr;
use core::time::Duration;

use fgraph_core::registration::{Header, Registration};
use fgraph_core::{Counters, FgraphOps, Function, UserId};

use super::fast_path::{FastPath, Ineligible};
use super::into_filter::IntoFilter;
use crate::control::options::Options;
use crate::control::users::NotOver;
use crate::control::{self, users};
use crate::report::error::{Error, FilterReport, RefusedFunction, StopReason};
use crate::sites::Change;
use crate::threads::FGRAPH;
use crate::threads::untraced::Untraced;
use crate::threads::watched;

/// The state of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UserStatus {
    /// The user gets its calls.
    Active,
    /// One of its callbacks panicked. It gets no calls until it is [resumed](Handle::resume).
    Panicked {
        /// The message of the panic.
        message: String,
    },
    /// fgraph has stopped permanently.
    Stopped(StopReason),
}

/// A registered user.
///
/// [`user`](Self::user) returns the user's value, so the data that the callbacks gather can be read
/// at any time. Dropping the handle unregisters the user and waits until none of its callbacks
/// runs. A drop inside a callback only prevents further callbacks; the next thread that calls
/// fgraph when none of its callbacks runs drops the value, and a panic of that drop is ignored.
#[must_use = "dropping the handle unregisters the user"]
pub struct Handle<T: FgraphOps> {
    /// The user, from a box that the handle owns.
    registration: *const Registration<T>,
    slot: usize,
    /// The slot's counters when this user took it. In a box, because errors have a handle inside.
    before: Box<Counters>,
}

// SAFETY: any thread may use the registration, since any thread may use `T`.
unsafe impl<T: FgraphOps> Send for Handle<T> {}
// SAFETY: any thread may use the registration; `set_filter` takes the lock.
unsafe impl<T: FgraphOps> Sync for Handle<T> {}

impl<T: FgraphOps> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("slot", &self.slot)
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

/// Registers `ops` for the functions that `filter` selects, and patches their entries.
///
/// From now on the callbacks of `ops` run in every thread that calls one of these functions,
/// including threads that already exist. Other users and calls in progress are not affected.
///
/// This waits for a `dlopen` in progress, including the constructors of its library. So a
/// constructor must not call it while another thread may be in this function.
///
/// It takes locks and allocates, so it is not async-signal-safe. In a signal handler that
/// interrupts a callback or another call like this one, it fails with
/// [`InsideCallback`](Error::InsideCallback).
///
/// A filter that selects no function that can be traced is an error, and so is a misspelt name
/// among others, unless the options [allow it](Options::allow_no_match).
///
/// # Safety
///
/// The callbacks of `ops` run wherever the functions that `filter` selects are called, including
/// functions of libraries that are loaded later. Their actions must be allowed in all of these
/// places, for example in signal handlers and in the allocator: see [what a callback may
/// do](FgraphOps#what-a-callback-may-do).
///
/// # Errors
///
/// [`NoFreeSlot`](Error::NoFreeSlot) for the 17th user, [`InsideCallback`](Error::InsideCallback),
/// [`Stopped`](Error::Stopped), [`Filter`](Error::Filter) for a malformed filter, one with a
/// predicate that panics, or one with an address at which no function begins,
/// [`NothingMatched`](Error::NothingMatched), [`AllRefused`](Error::AllRefused),
/// [`Unsupported`](Error::Unsupported), [`SignalBlocked`](Error::SignalBlocked), and
/// [`Text`](Error::Text). Nothing is changed then.
///
/// # Example
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use fgraph::{Entry, FgraphOps};
///
/// #[derive(Default)]
/// struct Count(AtomicU64);
///
/// impl FgraphOps for Count {
///     type Data = ();
///
///     fn entry(&self, _call: &mut Entry<'_, ()>) -> Option<()> {
///         self.0.fetch_add(1, Ordering::Relaxed);
///         None
///     }
/// }
///
/// // SAFETY: adding to an atomic is allowed wherever a function may be called.
/// let parsers = unsafe { fgraph::register(Count::default(), "*parse*") }?;
/// // ... the program goes on ...
/// println!("{} calls, {}", parsers.user().0.load(Ordering::Relaxed), parsers.report()?);
/// let count = parsers.unregister().expect("not inside a callback");
/// # Ok::<(), fgraph::Error>(())
/// ```
pub unsafe fn register<T: FgraphOps>(
    ops: T,
    filter: impl IntoFilter,
) -> Result<Handle<T>, RegisterError<T>> {
    // SAFETY: the caller keeps the same contract.
    unsafe { register_with(ops, filter, &Options::new()) }
}

/// Registers `ops` like [`register`], with [`Options`].
///
/// # Safety
///
/// The contract is that of [`register`]. If the options allow [breakpoints](Options::breakpoints),
/// no thread that calls one of these functions blocks SIGTRAP, and the handler of SIGTRAP stays
/// fgraph's.
///
/// # Errors
///
/// Fails like [`register`], but not with [`NothingMatched`](Error::NothingMatched) or
/// [`AllRefused`](Error::AllRefused) where the options [allow these](Options::allow_no_match).
pub unsafe fn register_with<T: FgraphOps>(
    ops: T,
    filter: impl IntoFilter,
    options: &Options,
) -> Result<Handle<T>, RegisterError<T>> {
    let filter = match filter.into_filter() {
        Ok(filter) => filter,
        Err(error) => return Err(RegisterError::new(ops, error.into())),
    };
    let mut locked = match control::lock_to_register() {
        Ok(locked) => locked,
        Err(error) => return Err(RegisterError::new(ops, error)),
    };
    match locked.control.register(ops, filter, options) {
        Ok(registered) => Ok(Handle {
            registration: registered.registration,
            slot: registered.slot,
            before: Box::new(registered.before),
        }),
        Err((ops, error)) => Err(RegisterError::new(ops, error)),
    }
}

/// The error of a user that could not be registered. It converts to its [`Error`], so that `?`
/// works.
#[non_exhaustive]
pub struct RegisterError<T> {
    /// The user, given back.
    pub ops: T,
    /// The reason.
    pub error: Error,
}

impl<T> RegisterError<T> {
    #[cold]
    fn new(ops: T, error: Error) -> Self {
        Self { ops, error }
    }
}

impl<T> From<RegisterError<T>> for Error {
    fn from(failed: RegisterError<T>) -> Self {
        failed.error
    }
}

impl<T> fmt::Debug for RegisterError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisterError")
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Display for RegisterError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> core::error::Error for RegisterError<T> {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        self.error.source()
    }
}

impl<T: FgraphOps> Handle<T> {
    fn registration(&self) -> &Registration<T> {
        // SAFETY: only `unregister` and `drop` free it, and both take the handle.
        unsafe { &*self.registration }
    }

    /// Gives the user up to the caller, still registered if it is.
    fn into_registration(self) -> *const Registration<T> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: the box is not used again, because the handle is neither used nor dropped.
        unsafe { ptr::drop_in_place(&raw mut this.before) };
        this.registration
    }

    /// Returns the user's value, which the callbacks share.
    ///
    /// ```
    /// # use std::sync::atomic::{AtomicU64, Ordering};
    /// # use fgraph::{Entry, FgraphOps};
    /// # #[derive(Default)]
    /// # struct Count(AtomicU64);
    /// # impl FgraphOps for Count {
    /// #     type Data = ();
    /// #     fn entry(&self, _call: &mut Entry<'_, ()>) -> Option<()> {
    /// #         self.0.fetch_add(1, Ordering::Relaxed);
    /// #         None
    /// #     }
    /// # }
    /// // SAFETY: adding to an atomic is allowed wherever a function may be called.
    /// let count = unsafe { fgraph::register(Count::default(), "getppid") }?;
    /// std::os::unix::process::parent_id();
    /// assert_eq!(count.user().0.load(Ordering::Relaxed), 1);
    /// # Ok::<(), fgraph::Error>(())
    /// ```
    pub fn user(&self) -> &T {
        self.registration().ops()
    }

    /// Returns the id of this user, which [`Entry::replaced_by`](crate::Entry::replaced_by)
    /// returns.
    pub fn id(&self) -> UserId {
        self.registration().header().id()
    }

    /// Replaces the filter, live: functions that both filters select stay as they are.
    ///
    /// # Safety
    ///
    /// The contract is that of [`register_with`] and the user's options, for the functions that the
    /// new filter selects.
    ///
    /// # Errors
    ///
    /// Fails like [`register_with`] with the user's options, but for
    /// [`NoFreeSlot`](Error::NoFreeSlot).
    pub unsafe fn set_filter(&self, filter: impl IntoFilter) -> Result<FilterReport, Error> {
        self.change_filter(filter, Change::Set)
    }

    /// Adds the functions that `filter` selects to the watched functions, live. Other functions are
    /// not touched: the time depends only on the number of added functions.
    ///
    /// ```
    /// # use fgraph::{Entry, FgraphOps};
    /// # struct Nothing;
    /// # impl FgraphOps for Nothing {
    /// #     type Data = ();
    /// #     fn entry(&self, _call: &mut Entry<'_, ()>) -> Option<()> { None }
    /// # }
    /// // SAFETY: its callbacks do nothing.
    /// let probes = unsafe { fgraph::register(Nothing, "getpid") }?;
    /// // SAFETY: as above.
    /// let report = unsafe { probes.add_filter("getppid") }?;
    /// assert_eq!(report.words[0].functions, 1);
    /// let report = probes.remove_filter("getpid")?;
    /// assert_eq!(report.traced, 1);
    /// assert_eq!(probes.functions()?[0].name().to_string(), "getppid");
    /// # Ok::<(), fgraph::Error>(())
    /// ```
    ///
    /// # Safety
    ///
    /// The contract is that of [`register_with`] and the user's options, for the functions that are
    /// added.
    ///
    /// # Errors
    ///
    /// Fails like [`set_filter`](Self::set_filter).
    pub unsafe fn add_filter(&self, filter: impl IntoFilter) -> Result<FilterReport, Error> {
        self.change_filter(filter, Change::Add)
    }

    /// Removes the functions that `filter` selects from the watched functions, live, until a filter
    /// that selects them is added. Such functions in libraries that are loaded later are not
    /// watched either.
    ///
    /// # Errors
    ///
    /// Fails like [`set_filter`](Self::set_filter), except that words which match nothing, and an
    /// address at which no function begins, are no errors.
    pub fn remove_filter(&self, filter: impl IntoFilter) -> Result<FilterReport, Error> {
        self.change_filter(filter, Change::Remove)
    }

    fn change_filter(
        &self,
        filter: impl IntoFilter,
        change: Change,
    ) -> Result<FilterReport, Error> {
        let filter = filter.into_filter()?;
        let mut locked = control::lock()?;
        if let Some(stop) = control::stopped() {
            return Err(Error::Stopped(stop));
        }
        locked.control.change_filter(self.slot, filter, change)
    }

    /// Sets if the user gets the calls that begin from now on. It patches nothing, waits for
    /// nothing, and may be called anywhere, including callbacks and signal handlers.
    ///
    /// While the user is disabled, a call costs nothing for it if other users watch the function,
    /// too. Otherwise it costs less than half of a call whose return the user does not request. The
    /// user still gets the returns of calls that it has accepted before. A call that begins in
    /// another thread during the change may or may not be dispatched. Calls meanwhile are in none
    /// of the user's counters.
    ///
    /// It is the kernel's `tracing_on`, for one user.
    ///
    /// ```
    /// # use fgraph::{Entry, FgraphOps};
    /// # struct Nothing;
    /// # impl FgraphOps for Nothing {
    /// #     type Data = ();
    /// #     fn entry(&self, _call: &mut Entry<'_, ()>) -> Option<()> { None }
    /// # }
    /// // SAFETY: its callbacks do nothing.
    /// let user = unsafe { fgraph::register(Nothing, "*parse*") }?;
    /// user.set_enabled(false);
    /// // ... what is of no interest ...
    /// user.set_enabled(true);
    /// # Ok::<(), fgraph::Error>(())
    /// ```
    pub fn set_enabled(&self, enabled: bool) {
        FGRAPH.epoch.set_enabled(self.slot, enabled);
    }

    /// Returns true if the user gets the calls that begin now, as
    /// [`set_enabled`](Self::set_enabled) has set.
    pub fn is_enabled(&self) -> bool {
        FGRAPH.epoch.is_enabled(self.slot)
    }

    /// Says if calls of this user may take the fast path, on which other parts of vector registers
    /// than the lowest 128 bits, and `errno`, are not saved. A call takes it if all users that want
    /// the call are eligible.
    ///
    /// A user is eligible if its callbacks change only general registers, flags, memory and the
    /// lowest 128 bits of vector registers. Their code is read for that at registration.
    /// Code that is compiled without optimisation seldom is eligible, and code for processors with
    /// AVX only if it uses no vector register. Callbacks are not eligible that call anything but
    /// small functions of the same library, that may panic, that read floating-point arguments or
    /// results, or that get [one call of several](Options::sample).
    ///
    /// ```
    /// # use fgraph::{Entry, FastPath, FgraphOps};
    /// # struct Counts;
    /// # impl FgraphOps for Counts {
    /// #     type Data = ();
    /// #     fn entry(&self, _: &mut Entry<'_, ()>) -> Option<()> { None }
    /// # }
    /// // SAFETY: the callbacks do nothing.
    /// let counts = unsafe { fgraph::register(Counts, "*parse*") }?;
    /// if let FastPath::Ineligible(why) = counts.fast_path()? {
    ///     println!("each call saves all registers: {why}");
    /// }
    /// # Ok::<(), fgraph::Error>(())
    /// ```
    ///
    /// The reason names the function that is to blame. To find its name the symbol table of its
    /// module is read, if no filter has asked for that yet.
    ///
    /// # Errors
    ///
    /// [`InsideCallback`](Error::InsideCallback), [`Unsupported`](Error::Unsupported).
    pub fn fast_path(&self) -> Result<FastPath, Error> {
        let mut locked = control::lock()?;
        let Some(reason) = locked.control.ineligible(self.slot) else {
            return Ok(FastPath::Eligible);
        };
        // So that the function that is to blame has a name.
        if let Some(address) = reason.address() {
            locked.control.load_symbols(Some(address))?;
        }
        Ok(FastPath::Ineligible(Ineligible::new(reason)))
    }

    /// Restricts the user to the threads with these kernel ids, or watches all threads if `None`.
    /// Nothing is patched. Calls in other threads cost as much as for a
    /// [disabled](Self::set_enabled) user.
    ///
    /// The threads need not have made a traced call yet; [`thread_id`](crate::thread_id) returns
    /// the id of the calling thread. A thread that begins later is not watched until it is named.
    /// It is not watched even if it gets the id of a named thread that has ended, unless that
    /// thread never called a traced function. In a forked child, its only thread is watched if the
    /// forking thread was.
    ///
    /// The user still gets the returns of calls that it has accepted before, in any thread. Calls
    /// that begin during the change may or may not be dispatched.
    ///
    /// It is the kernel's `set_ftrace_pid`, for one user. To exclude other threads from the start,
    /// register with [`enabled(false)`](Options::enabled) first.
    ///
    /// ```
    /// # use fgraph::{Entry, Error, FgraphOps};
    /// # struct Nothing;
    /// # impl FgraphOps for Nothing {
    /// #     type Data = ();
    /// #     fn entry(&self, _call: &mut Entry<'_, ()>) -> Option<()> { None }
    /// # }
    /// // SAFETY: its callbacks do nothing.
    /// let user = unsafe { fgraph::register(Nothing, "*parse*") }?;
    /// user.set_threads(Some(&[fgraph::thread_id()]))?;
    /// assert_eq!(user.set_threads(Some(&[0])), Err(Error::NoSuchThread { id: 0 }));
    /// user.set_threads(None)?;
    /// # Ok::<(), fgraph::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with [`NoSuchThread`](Error::NoSuchThread) for an id that no thread of this process
    /// has, with [`InsideCallback`](Error::InsideCallback), or with
    /// [`Unsupported`](Error::Unsupported) if there is no memory. Nothing is changed then.
    pub fn set_threads(&self, ids: Option<&[u32]>) -> Result<(), Error> {
        let _locked = control::lock()?;
        watched::set(self.slot, ids)
    }

    /// Reports how many functions the filter traces in the libraries that are loaded now, and which
    /// functions it refuses.
    ///
    /// # Errors
    ///
    /// Fails with [`InsideCallback`](Error::InsideCallback), or with [`Filter`](Error::Filter) if a
    /// predicate of the filter panics.
    pub fn report(&self) -> Result<FilterReport, Error> {
        control::lock()?.control.report(self.slot)
    }

    /// Returns the functions that the filter selects and that cannot be traced, as
    /// [`report`](Self::report) does, without applying the filter again.
    ///
    /// # Errors
    ///
    /// Fails with [`InsideCallback`](Error::InsideCallback).
    pub fn refused(&self) -> Result<Vec<RefusedFunction>, Error> {
        Ok(control::lock()?.control.refused(self.slot))
    }

    /// Returns the functions that the filter selects and that are traced now, library by library,
    /// in the order of addresses.
    ///
    /// # Errors
    ///
    /// Fails with [`InsideCallback`](Error::InsideCallback).
    pub fn functions(&self) -> Result<Vec<Function>, Error> {
        Ok(control::lock()?.control.functions(self.slot))
    }

    /// Returns the state of the user.
    pub fn status(&self) -> UserStatus {
        if let Some(message) = users::panic_message(self.registration().header()) {
            return UserStatus::Panicked { message };
        }
        match control::stopped() {
            Some(stop) => UserStatus::Stopped(stop),
            None => UserStatus::Active,
        }
    }

    /// Resumes a user whose callback has [panicked](UserStatus::Panicked): it gets its calls again
    /// from now on. It gets the returns of calls that were entered before the panic and return
    /// after this; returns in between are lost. Nothing changes for a user that has not panicked.
    ///
    /// ```
    /// # use fgraph::{Entry, FgraphOps, UserStatus};
    /// # struct Counts;
    /// # impl FgraphOps for Counts {
    /// #     type Data = ();
    /// #     fn entry(&self, _: &mut Entry<'_, ()>) -> Option<()> { None }
    /// # }
    /// // SAFETY: the callbacks do nothing.
    /// let mut counts = unsafe { fgraph::register(Counts, "*parse*") }?;
    /// if let UserStatus::Panicked { message } = counts.status() {
    ///     eprintln!("a callback panicked: {message}");
    ///     counts.resume()?;
    /// }
    /// # Ok::<(), fgraph::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with [`InsideCallback`](Error::InsideCallback), [`Stopped`](Error::Stopped) or
    /// [`Unsupported`](Error::Unsupported).
    pub fn resume(&mut self) -> Result<(), Error> {
        let mut locked = control::lock()?;
        let header: *const Header = self.registration.cast();
        // SAFETY: the registration stays alive while there is a handle, and this is the only
        // reference to it.
        let user = unsafe { &*header };
        if !user.panicked() {
            return Ok(());
        }
        // SAFETY: the handle is borrowed exclusively, so no thread is in `status`.
        unsafe { users::forget_panic(user) };
        // SAFETY: `slot` and `header` are those of this handle.
        unsafe { locked.control.resume(self.slot, header) }
    }

    /// Returns the word of this user's in the calling thread, as
    /// [`Entry::thread_word`](crate::Entry::thread_word) does in callbacks. While the guard exists,
    /// no callback of the user runs in the thread, unless the guard was made in one. `None` without
    /// memory for the thread's state.
    ///
    /// ```
    /// # use fgraph::{Entry, FgraphOps, Untraced};
    /// # struct Counts;
    /// # impl FgraphOps for Counts {
    /// #     type Data = ();
    /// #     fn entry(&self, _: &mut Entry<'_, ()>) -> Option<()> { None }
    /// # }
    /// // SAFETY: the callbacks do nothing.
    /// let counts = unsafe { fgraph::register(Counts, "*parse*") }?;
    /// let untraced = Untraced::new();
    /// if let Some(word) = counts.thread_word(&untraced) {
    ///     word.set(word.get() + 1);
    /// }
    /// # Ok::<(), fgraph::Error>(())
    /// ```
    #[must_use]
    pub fn thread_word<'t>(&self, untraced: &'t Untraced) -> Option<&'t Cell<u64>> {
        let epoch = self.registration().header().epoch();
        let thread = untraced.thread()?;
        Some(thread.word(self.slot, epoch))
    }

    /// Leaves the user registered for the rest of the process, and returns its value.
    pub fn leak(self) -> &'static T {
        // SAFETY: the box is never freed, because only the handle frees it.
        unsafe { (*self.into_registration()).ops() }
    }

    /// Returns the counts of calls that this user did not get since it was registered, in all
    /// threads.
    pub fn counters(&self) -> Counters {
        users::counters(self.slot) - *self.before
    }

    /// Takes the user away and returns it.
    ///
    /// Functions that no other user wants become what they were. Calls that are going on return as
    /// they would have, but the user is not told. Calls that the user has redirected are not waited
    /// for: use [`drain_and_unregister`](Self::drain_and_unregister) if their target may go away.
    ///
    /// When this returns no callback of the user runs, or will ever run again; if one is running,
    /// it is waited for. One that was left by `siglongjmp` counts as running until its thread calls
    /// a traced function again, or ends.
    ///
    /// # Errors
    ///
    /// [`StillRegistered`](UnregisterError::StillRegistered) from inside a callback, and
    /// [`Ended`](UnregisterError::Ended) if it cannot be known that no callback runs. Both give the
    /// handle back.
    pub fn unregister(self) -> Result<T, UnregisterError<T>> {
        match users::unregister(self.slot) {
            Ok(()) => {
                // SAFETY: the pointer came from a box; after the grace period nothing else has it.
                let registration = unsafe { Box::from_raw(self.into_registration().cast_mut()) };
                // SAFETY: no thread is in `status`, as there is no handle.
                unsafe { users::forget_panic(registration.header()) };
                Ok(registration.into_ops())
            }
            Err(NotOver::Registered(error)) => Err(UnregisterError::StillRegistered {
                handle: self,
                error,
            }),
            Err(NotOver::Ended(error)) => Err(UnregisterError::Ended {
                handle: self,
                error,
            }),
        }
    }

    /// Unregisters the user when all calls that it has redirected have returned.
    ///
    /// From now on [`redirect`](crate::EntryWriter::redirect) fails for this user. When this
    /// succeeds no thread runs, or will ever run, a target because of this user: the library of
    /// the target can be closed.
    ///
    /// The user must [count redirected calls](crate::Options::count_redirected) and accept each
    /// call that it redirects. A call that ends in neither a return nor unwinding, as by `longjmp`
    /// or with its thread, counts as going on for good: a call that fgraph takes for dead may still
    /// return. So does a call whose return the user was not told because it had panicked or fgraph
    /// had stopped, and in a forked child a call of another thread. Keep the target loaded then.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fgraph::{Entry, FgraphOps, Options};
    ///
    /// extern "C" fn quiet() -> i32 {
    ///     0 // Or a function of a plugin.
    /// }
    ///
    /// struct Redirects;
    ///
    /// impl FgraphOps for Redirects {
    ///     type Data = ();
    ///
    ///     fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
    ///         // SAFETY: `quiet` is a function of the same type.
    ///         let _ = unsafe { call.rewrite() }.redirect(quiet as *const ());
    ///         Some(())
    ///     }
    /// }
    ///
    /// let options = Options::new().count_redirected(true);
    /// // SAFETY: the callback writes to registers only.
    /// let user = unsafe { fgraph::register_with(Redirects, "getppid", &options) }?;
    /// // ... until the plugin is to be unloaded ...
    /// user.drain_and_unregister(Duration::from_secs(1)).expect("no call hangs");
    /// // Now it can be.
    /// # Ok::<(), fgraph::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RedirectedCalls`](Error::RedirectedCalls) if calls still run after `timeout`, or if it is
    /// not known whether they do. The user [stays registered](UnregisterError::StillRegistered)
    /// then, and redirects calls again. Else as for [`unregister`](Self::unregister).
    pub fn drain_and_unregister(self, timeout: Duration) -> Result<T, UnregisterError<T>> {
        match users::end_redirected(self.registration().header(), timeout) {
            Ok(()) => self.unregister(),
            Err(error) => Err(UnregisterError::StillRegistered {
                handle: self,
                error,
            }),
        }
    }
}

impl<T: FgraphOps> Drop for Handle<T> {
    fn drop(&mut self) {
        match users::unregister(self.slot) {
            // SAFETY: the pointer came from a box; after the grace period nothing else has it.
            Ok(()) => unsafe {
                users::forget_panic(self.registration().header());
                drop(Box::from_raw(self.registration.cast_mut()));
            },
            Err(_) => users::unregister_later(self.slot, self.registration),
        }
    }
}

/// A user that was not given back, with its handle.
///
/// It does not convert into [`Error`], because that would drop the handle: take the handle from it,
/// or say that it may go with [`into_error`](Self::into_error).
///
/// ```
/// # use fgraph::{Entry, FgraphOps};
/// # struct Nothing;
/// # impl FgraphOps for Nothing {
/// #     type Data = ();
/// #     fn entry(&self, _call: &mut Entry<'_, ()>) -> Option<()> { None }
/// # }
/// use fgraph::UnregisterError;
///
/// fn watch_for_a_while() -> Result<(), fgraph::Error> {
///     // SAFETY: its callbacks do nothing.
///     let user = unsafe { fgraph::register(Nothing, "malloc") }?;
///     let Nothing = user.unregister().map_err(UnregisterError::into_error)?;
///     Ok(())
/// }
/// # watch_for_a_while().unwrap();
/// ```
///
/// ```compile_fail,E0277
/// # use fgraph::{FgraphOps, Handle};
/// fn end<T: FgraphOps>(user: Handle<T>) -> Result<T, fgraph::Error> {
///     Ok(user.unregister()?) // This would drop the handle without a word.
/// }
/// ```
pub enum UnregisterError<T: FgraphOps> {
    /// The user is registered as before, and gets its calls.
    StillRegistered {
        /// The user.
        handle: Handle<T>,
        /// The reason.
        error: Error,
    },
    /// The user gets no calls any more, but one of its callbacks may still run, so its value cannot
    /// be given back yet. [`unregister`](Handle::unregister) of the handle tries again. If the
    /// handle is dropped, the value is dropped when no callback runs.
    Ended {
        /// The user.
        handle: Handle<T>,
        /// The reason.
        error: Error,
    },
}

impl<T: FgraphOps> UnregisterError<T> {
    /// Returns the reason.
    pub const fn error(&self) -> &Error {
        let (Self::StillRegistered { error, .. } | Self::Ended { error, .. }) = self;
        error
    }

    /// Returns the user.
    #[must_use = "dropping the handle unregisters the user"]
    pub fn into_handle(self) -> Handle<T> {
        let (Self::StillRegistered { handle, .. } | Self::Ended { handle, .. }) = self;
        handle
    }

    /// Drops the handle, which unregisters the user as soon as that is possible, and returns the
    /// reason.
    pub fn into_error(self) -> Error {
        let (Self::StillRegistered { error, .. } | Self::Ended { error, .. }) = self;
        error
    }
}

impl<T: FgraphOps> fmt::Debug for UnregisterError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, handle, error) = match self {
            Self::StillRegistered { handle, error } => ("StillRegistered", handle, error),
            Self::Ended { handle, error } => ("Ended", handle, error),
        };
        f.debug_struct(name)
            .field("handle", handle)
            .field("error", error)
            .finish()
    }
}

impl<T: FgraphOps> fmt::Display for UnregisterError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StillRegistered { .. } => "the user is still registered",
            Self::Ended { .. } => "the user has ended, but one of its callbacks may still run",
        })
    }
}

impl<T: FgraphOps> core::error::Error for UnregisterError<T> {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(self.error())
    }
}
