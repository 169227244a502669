//! Common interface of all tracers.

use std::fmt;

use fgraph::{Counters, Error, Filter, FilterReport, Function, UserStatus};

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

/// Implements [`Tracer`] for a type whose field `user` is a handle, and whose callbacks are allowed
/// with every filter.
macro_rules! tracer {
    ($type:ty) => {
        impl $crate::Tracer for $type {
            fn set_filter(
                &self,
                filter: ::fgraph::Filter,
            ) -> Result<::fgraph::FilterReport, ::fgraph::Error> {
                // SAFETY: the callbacks neither allocate nor lock nor panic, so every filter is
                // allowed.
                unsafe { self.user.set_filter(filter) }
            }

            fn report(&self) -> Result<::fgraph::FilterReport, ::fgraph::Error> {
                self.user.report()
            }

            fn functions(&self) -> Result<Vec<::fgraph::Function>, ::fgraph::Error> {
                self.user.functions()
            }

            fn set_enabled(&self, enabled: bool) {
                self.user.set_enabled(enabled);
            }

            fn is_enabled(&self) -> bool {
                self.user.is_enabled()
            }

            fn set_threads(&self, ids: Option<&[u32]>) -> Result<(), ::fgraph::Error> {
                self.user.set_threads(ids)
            }

            fn status(&self) -> ::fgraph::UserStatus {
                self.user.status()
            }

            fn counters(&self) -> ::fgraph::Counters {
                self.user.counters()
            }
        }
    };
}

pub(crate) use tracer;
