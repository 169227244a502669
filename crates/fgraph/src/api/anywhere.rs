//! Users whose callbacks are allowed wherever a function is called.
//!
//! # Safety
//!
//! The unsafe code registers users, and widens their filters. The users promise that their
//! callbacks are allowed everywhere, and their options have no breakpoints.

use core::fmt;
use core::ops::Deref;
use core::time::Duration;
use std::sync::Arc;

use fgraph_core::FgraphOps;

use super::handle::{Handle, RegisterError, UnregisterError, register_with};
use super::into_filter::IntoFilter;
use crate::control::options::Options;
use crate::report::error::{Error, FilterReport};

/// A user whose callbacks are allowed wherever a function is called, so that
/// [registering](register_anywhere) it is safe with every filter.
///
/// It suits tracers that only count, measure and record. A user that allocates, locks or prints is
/// right for *some* filters: [`register`](crate::register) it, and say why it is right for these.
///
/// # Safety
///
/// The callbacks do only what is allowed **everywhere** by [what a callback may
/// do](FgraphOps#what-a-callback-may-do): they use their arguments, atomics, memory that the user
/// already owns, the clock, and system calls that are safe in a signal handler and change nothing
/// that the program relies on. They neither allocate nor lock, and cannot panic. The other rules
/// there hold, too.
///
/// # Example
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use fgraph::{AnywhereOps, EntryOf, FgraphOps};
///
/// #[derive(Default)]
/// struct Count(AtomicU64);
///
/// impl FgraphOps for Count {
///     type Data = ();
///
///     fn entry(&self, _call: &mut EntryOf<'_, Self>) -> Option<()> {
///         self.0.fetch_add(1, Ordering::Relaxed);
///         None
///     }
/// }
///
/// // SAFETY: the only callback adds to an atomic.
/// unsafe impl AnywhereOps for Count {}
///
/// let count = fgraph::register_anywhere(Count::default(), "malloc")?;
/// count.set_filter("*:mod:libc.so*")?;
/// println!("{} calls", count.user().0.load(Ordering::Relaxed));
/// # Ok::<(), fgraph::Error>(())
/// ```
///
/// Code without the promise needs `unsafe`:
///
/// ```compile_fail,E0277
/// # use fgraph::{EntryOf, FgraphOps};
/// struct Prints;
///
/// impl FgraphOps for Prints {
///     type Data = ();
///
///     fn entry(&self, call: &mut EntryOf<'_, Self>) -> Option<()> {
///         println!("{}", call.function().name());
///         None
///     }
/// }
///
/// fgraph::register_anywhere(Prints, "malloc")?; // Printing allocates.
/// # Ok::<(), fgraph::Error>(())
/// ```
pub unsafe trait AnywhereOps: FgraphOps {}

// SAFETY: the callbacks are those of `T`.
unsafe impl<T: AnywhereOps> AnywhereOps for Arc<T> {}

/// Registers a user that may watch every function: see [`register`](crate::register).
///
/// # Errors
///
/// Fails like [`register`](crate::register).
pub fn register_anywhere<T: AnywhereOps>(
    ops: T,
    filter: impl IntoFilter,
) -> Result<AnywhereHandle<T>, RegisterError<T>> {
    register_anywhere_with(ops, filter, &Options::new())
}

/// Registers a user that may watch every function, with [`Options`]. It gets no
/// [breakpoints](Options::breakpoints), whatever the options say: these need promises about the
/// program, which only [`register_with`] can get.
///
/// # Errors
///
/// Fails like [`register_with`].
pub fn register_anywhere_with<T: AnywhereOps>(
    ops: T,
    filter: impl IntoFilter,
    options: &Options,
) -> Result<AnywhereHandle<T>, RegisterError<T>> {
    let options = options.clone().breakpoints(false);
    // SAFETY: the callbacks are allowed everywhere, as `T` promises, and there are no breakpoints.
    unsafe { register_with(ops, filter, &options) }.map(AnywhereHandle)
}

/// The handle of a user that may watch every function: a [`Handle`] whose filter may be changed by
/// safe code.
///
/// Dropping it unregisters the user, as for a [`Handle`].
#[must_use = "dropping the handle unregisters the user"]
pub struct AnywhereHandle<T: AnywhereOps>(
    /// Never given out for writing: another handle in this place might have breakpoints.
    Handle<T>,
);

impl<T: AnywhereOps> fmt::Debug for AnywhereHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AnywhereHandle").field(&self.0).finish()
    }
}

impl<T: AnywhereOps> Deref for AnywhereHandle<T> {
    type Target = Handle<T>;

    fn deref(&self) -> &Handle<T> {
        &self.0
    }
}

impl<T: AnywhereOps> AnywhereHandle<T> {
    /// Replaces the filter, live: see [`Handle::set_filter`].
    ///
    /// # Errors
    ///
    /// Fails like [`Handle::set_filter`].
    pub fn set_filter(&self, filter: impl IntoFilter) -> Result<FilterReport, Error> {
        // SAFETY: the callbacks are allowed everywhere, as `T` promises, and the options have no
        // breakpoints.
        unsafe { self.0.set_filter(filter) }
    }

    /// Adds the functions that `filter` selects to the watched functions, live: see
    /// [`Handle::add_filter`].
    ///
    /// # Errors
    ///
    /// Fails like [`Handle::set_filter`].
    pub fn add_filter(&self, filter: impl IntoFilter) -> Result<FilterReport, Error> {
        // SAFETY: as in `set_filter`.
        unsafe { self.0.add_filter(filter) }
    }

    /// Resumes a user whose callback has panicked: see [`Handle::resume`].
    ///
    /// # Errors
    ///
    /// Fails like [`Handle::resume`].
    pub fn resume(&mut self) -> Result<(), Error> {
        self.0.resume()
    }

    /// Returns the plain handle.
    pub fn into_handle(self) -> Handle<T> {
        self.0
    }

    /// Takes the user away and returns it: see [`Handle::unregister`].
    ///
    /// # Errors
    ///
    /// Fails like [`Handle::unregister`].
    pub fn unregister(self) -> Result<T, UnregisterError<T>> {
        self.0.unregister()
    }

    /// Unregisters the user when all calls that it has redirected have returned: see
    /// [`Handle::drain_and_unregister`].
    ///
    /// # Errors
    ///
    /// Fails like [`Handle::drain_and_unregister`].
    pub fn drain_and_unregister(self, timeout: Duration) -> Result<T, UnregisterError<T>> {
        self.0.drain_and_unregister(timeout)
    }

    /// Leaves the user registered for the rest of the process, and returns its value.
    pub fn leak(self) -> &'static T {
        self.0.leak()
    }
}
