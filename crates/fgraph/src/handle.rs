//! A registered user, in the hands of whoever registered it.
//!
//! # Safety
//!
//! The unsafe code owns a boxed registration through a pointer, because the slots share it: it is
//! freed, or taken apart, only after the grace period.

use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::Deref;
use std::panic::{self, AssertUnwindSafe};

use fgraph_core::registration::{Catch, Registration};
use fgraph_core::{Counters, FgraphOps};

use crate::control;
use crate::error::{Error, Report, Stop};
use crate::filter::Filter;

/// Catches panics of callbacks.
#[derive(Debug)]
pub(crate) struct StdCatch;

impl Catch for StdCatch {
    #[inline(always)]
    fn catch<R>(call: impl FnOnce() -> R) -> Option<R> {
        // Unwind safe, because after a panic the user gets no calls any more.
        match panic::catch_unwind(AssertUnwindSafe(call)) {
            Ok(result) => Some(result),
            Err(payload) => {
                // What was thrown may panic when it is dropped.
                core::mem::forget(payload);
                None
            }
        }
    }
}

/// How a user is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UserStatus {
    /// It gets its calls.
    Active,
    /// One of its callbacks panicked; it gets no calls any more.
    Panicked,
    /// fgraph has stopped for good.
    Stopped(Stop),
}

/// A registered user.
///
/// It dereferences to the user's value, so that what the callbacks gather can be read at any time.
/// Dropping it unregisters the user and waits until no callback of it runs; dropped inside a callback
/// it only stops further callbacks, and the value is dropped later.
pub struct Handle<T: FgraphOps> {
    /// From a box.
    registration: *const Registration<T>,
    slot: usize,
    /// The slot's counters when this user took it.
    before: Counters,
    report: Box<Report>,
}

// SAFETY: the registration may be used from any thread, since `T` may.
unsafe impl<T: FgraphOps> Send for Handle<T> {}
// SAFETY: as above; `set_filter` goes through the lock.
unsafe impl<T: FgraphOps> Sync for Handle<T> {}

impl<T: FgraphOps> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("slot", &self.slot)
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

impl<T: FgraphOps> Deref for Handle<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.registration().ops()
    }
}

/// Registers `ops` for the functions that `filter` selects, and patches their entries.
///
/// From now on the callbacks of `ops` run in every thread that calls one of these functions, whether
/// it exists already or not. Other users are not affected, nor are calls that are going on.
///
/// This waits for a running `dlopen`, its library's constructors included. So a constructor must not call
/// it while another thread may be in it.
///
/// A filter that selects nothing is no error, but [`Report::matches_nothing`] tells.
///
/// # Errors
///
/// [`NoFreeSlot`](Error::NoFreeSlot) for the 17th user, [`InsideCallback`](Error::InsideCallback),
/// [`Stopped`](Error::Stopped), [`Filter`](Error::Filter) for a malformed filter,
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
/// let parsers = fgraph::register(Count::default(), "*parse*")?;
/// // ... the program goes on ...
/// println!("{} calls, {}", parsers.0.load(Ordering::Relaxed), parsers.report());
/// let count = parsers.unregister().expect("not inside a callback");
/// # Ok::<(), fgraph::Error>(())
/// ```
pub fn register<T, F>(ops: T, filter: F) -> Result<Handle<T>, Error>
where
    T: FgraphOps,
    F: TryInto<Filter>,
    Error: From<F::Error>,
{
    let filter = filter.try_into()?;
    let mut locked = control::lock()?;
    let registered = locked.control.register(ops, filter)?;
    Ok(Handle {
        registration: Box::into_raw(registered.registration),
        slot: registered.slot,
        before: registered.before,
        report: Box::new(registered.report),
    })
}

impl<T: FgraphOps> Handle<T> {
    fn registration(&self) -> &Registration<T> {
        // SAFETY: freed only by `unregister` and `drop`, which take the handle.
        unsafe { &*self.registration }
    }

    /// Changes the filter, live: functions that both select stay as they are.
    ///
    /// # Errors
    ///
    /// As for [`register`], but for [`NoFreeSlot`](Error::NoFreeSlot).
    pub fn set_filter<F>(&self, filter: F) -> Result<Report, Error>
    where
        F: TryInto<Filter>,
        Error: From<F::Error>,
    {
        let filter = filter.try_into()?;
        let mut locked = control::lock()?;
        if let Some(stop) = control::stopped() {
            return Err(Error::Stopped(stop));
        }
        locked.control.set_filter(self.slot, filter)
    }

    /// What the filter given to [`register`] has come to.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Whether the user gets its calls.
    pub fn status(&self) -> UserStatus {
        match control::stopped() {
            _ if self.registration().header().panicked() => UserStatus::Panicked,
            Some(stop) => UserStatus::Stopped(stop),
            None => UserStatus::Active,
        }
    }

    /// What this user did not see since it was registered, in all threads.
    pub fn counters(&self) -> Counters {
        control::counters(self.slot) - self.before
    }

    /// Takes the user away and returns it.
    ///
    /// Functions that nobody else wants become what they were. Calls that are going on return as they
    /// would have, but the user is not told. When this returns no callback of the user runs, or will
    /// ever run again; if one is running, it is waited for. One that was left by `siglongjmp` counts as
    /// running until its thread calls a traced function again, or ends.
    ///
    /// # Errors
    ///
    /// From inside a callback the handle comes back with [`InsideCallback`](Error::InsideCallback).
    pub fn unregister(self) -> Result<T, UnregisterError<T>> {
        match control::unregister(self.slot) {
            Ok(()) => {
                let this = ManuallyDrop::new(self);
                // SAFETY: from a box; after the grace period nobody else has it. The rest of the
                // handle is dropped by hand.
                unsafe {
                    drop(core::ptr::read(&this.report));
                    Ok(Box::from_raw(this.registration.cast_mut()).into_ops())
                }
            }
            Err(error) => Err(UnregisterError {
                handle: self,
                error,
            }),
        }
    }
}

impl<T: FgraphOps> Drop for Handle<T> {
    fn drop(&mut self) {
        match control::unregister(self.slot) {
            // SAFETY: from a box; after the grace period nobody else has it.
            Ok(()) => drop(unsafe { Box::from_raw(self.registration.cast_mut()) }),
            Err(_) => control::unregister_later(self.slot, self.registration),
        }
    }
}

/// A user that was not given back. After [`InsideCallback`](Error::InsideCallback) it is still
/// registered; after any other error it gets no calls any more, but nobody can say that none is running.
pub struct UnregisterError<T: FgraphOps> {
    /// The user.
    pub handle: Handle<T>,
    /// Why not.
    pub error: Error,
}

impl<T: FgraphOps> fmt::Debug for UnregisterError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnregisterError")
            .field("handle", &self.handle)
            .field("error", &self.error)
            .finish()
    }
}

impl<T: FgraphOps> fmt::Display for UnregisterError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T: FgraphOps> core::error::Error for UnregisterError<T> {}
