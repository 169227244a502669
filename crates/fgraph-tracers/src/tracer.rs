//! Common interface of all tracers.

use std::fmt;

use fgraph::{
    AnywhereHandle, AnywhereOps, Counters, Error, Filter, FilterReport, Function, Handle,
    RefusedFunction, UserStatus,
};

/// Running tracer, with the operations that all tracers have.
///
/// ```
/// use fgraph_tracers::Tracer;
/// use fgraph_tracers::profiler::Profiler;
///
/// let profiler = Profiler::start("getpid")?;
/// profiler.set_filter("getuid:mod:libc.so* getppid:mod:libc.so*".parse()?)?;
/// assert_eq!(profiler.functions()?.len(), 2);
/// profiler.set_enabled(false);
/// # Ok::<(), fgraph::Error>(())
/// ```
pub trait Tracer: fmt::Debug + Send + Sync {
    /// Changes the filter while it runs: [`Handle::set_filter`](fgraph::Handle::set_filter).
    ///
    /// # Errors
    ///
    /// Same as for [`fgraph::register`].
    fn set_filter(&self, filter: Filter) -> Result<FilterReport, Error>;

    /// Returns the number of functions that the filter traces, and those that it refuses:
    /// [`Handle::report`](fgraph::Handle::report).
    ///
    /// # Errors
    ///
    /// [`InsideCallback`](Error::InsideCallback), and [`Filter`](Error::Filter) if a predicate of
    /// the filter panics.
    fn report(&self) -> Result<FilterReport, Error>;

    /// Returns the functions that the filter refuses: [`Handle::refused`](fgraph::Handle::refused).
    ///
    /// # Errors
    ///
    /// [`InsideCallback`](Error::InsideCallback).
    fn refused(&self) -> Result<Vec<RefusedFunction>, Error>;

    /// Returns the watched functions: [`Handle::functions`](fgraph::Handle::functions).
    ///
    /// # Errors
    ///
    /// [`InsideCallback`](Error::InsideCallback).
    fn functions(&self) -> Result<Vec<Function>, Error>;

    /// Pauses or resumes the tracer: [`Handle::set_enabled`](fgraph::Handle::set_enabled).
    fn set_enabled(&self, enabled: bool);

    /// True if it gets the calls that begin now.
    fn is_enabled(&self) -> bool;

    /// Restricts it to some threads: [`Handle::set_threads`](fgraph::Handle::set_threads).
    ///
    /// # Errors
    ///
    /// [`NoSuchThread`](Error::NoSuchThread), [`InsideCallback`](Error::InsideCallback),
    /// [`Unsupported`](Error::Unsupported).
    fn set_threads(&self, ids: Option<&[u32]>) -> Result<(), Error>;

    /// Returns whether it gets its calls: [`Handle::status`](fgraph::Handle::status).
    fn status(&self) -> UserStatus;

    /// Returns the counts of calls that it missed: [`Handle::counters`](fgraph::Handle::counters).
    fn counters(&self) -> Counters;
}

/// A user whose callbacks are allowed everywhere.
impl<T: AnywhereOps> Tracer for AnywhereHandle<T> {
    fn set_filter(&self, filter: Filter) -> Result<FilterReport, Error> {
        Self::set_filter(self, filter)
    }

    fn report(&self) -> Result<FilterReport, Error> {
        Handle::report(self)
    }

    fn refused(&self) -> Result<Vec<RefusedFunction>, Error> {
        Handle::refused(self)
    }

    fn functions(&self) -> Result<Vec<Function>, Error> {
        Handle::functions(self)
    }

    fn set_enabled(&self, enabled: bool) {
        Handle::set_enabled(self, enabled);
    }

    fn is_enabled(&self) -> bool {
        Handle::is_enabled(self)
    }

    fn set_threads(&self, ids: Option<&[u32]>) -> Result<(), Error> {
        Handle::set_threads(self, ids)
    }

    fn status(&self) -> UserStatus {
        Handle::status(self)
    }

    fn counters(&self) -> Counters {
        Handle::counters(self)
    }
}

/// Tracer that is one user, and more.
pub(crate) trait OneUser: fmt::Debug + Send + Sync {
    /// Returns the user.
    fn user(&self) -> &dyn Tracer;
}

impl<T: OneUser> Tracer for T {
    fn set_filter(&self, filter: Filter) -> Result<FilterReport, Error> {
        self.user().set_filter(filter)
    }

    fn report(&self) -> Result<FilterReport, Error> {
        self.user().report()
    }

    fn refused(&self) -> Result<Vec<RefusedFunction>, Error> {
        self.user().refused()
    }

    fn functions(&self) -> Result<Vec<Function>, Error> {
        self.user().functions()
    }

    fn set_enabled(&self, enabled: bool) {
        self.user().set_enabled(enabled);
    }

    fn is_enabled(&self) -> bool {
        self.user().is_enabled()
    }

    fn set_threads(&self, ids: Option<&[u32]>) -> Result<(), Error> {
        self.user().set_threads(ids)
    }

    fn status(&self) -> UserStatus {
        self.user().status()
    }

    fn counters(&self) -> Counters {
        self.user().counters()
    }
}
