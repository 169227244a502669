//! How a user is registered.

use core::num::NonZeroUsize;

use crate::sites::planners::Planners;

/// How a user is registered by [`register_with`](crate::register_with).
///
/// ```
/// let first = fgraph::Options::new().priority(-1);
/// assert_ne!(first, fgraph::Options::default());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "options do nothing by themselves"]
pub struct Options {
    pub(crate) priority: i8,
    pub(crate) enabled: bool,
    pub(crate) period: u32,
    pub(crate) breakpoints: bool,
    pub(crate) planners: Planners,
    pub(crate) count_redirected: bool,
    pub(crate) require_match: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

impl Options {
    /// The options of [`register`](crate::register).
    pub const fn new() -> Self {
        Self {
            priority: 0,
            enabled: true,
            period: 1,
            breakpoints: false,
            planners: Planners::ONE,
            count_redirected: false,
            require_match: false,
        }
    }

    /// Asks the user before all users of higher priority and after all of lower, -128 to 127, 0 by
    /// default. At return the order is the reverse, as the users enclose each other. The order
    /// among users of one priority is not promised.
    ///
    /// A user that changes arguments for others to see, or [skips](crate::EntryWriter) calls, wants
    /// a low one.
    pub const fn priority(mut self, priority: i8) -> Self {
        self.priority = priority;
        self
    }

    /// Registers the user without giving it calls until
    /// [`Handle::set_enabled`](crate::Handle::set_enabled) says so, if `false`.
    pub const fn enabled(mut self, enabled: bool) -> Self {
        self.enabled = enabled;
        self
    }

    /// Gives the user one call of `period`: in each thread the calls of all functions that it
    /// watches are counted together, and it gets the last of each `period`. With 0 and 1 it gets
    /// all.
    ///
    /// A call that is left out costs about what one costs that an empty callback declines, and is
    /// in no counter. It is none of the user's enclosing calls.
    ///
    /// ```
    /// # use std::sync::atomic::{AtomicU64, Ordering};
    /// # use fgraph::{Entry, FgraphOps, Options};
    /// # #[derive(Default)]
    /// # struct Count(AtomicU64);
    /// # impl FgraphOps for Count {
    /// #     type Data = ();
    /// #     fn entry(&self, _call: &mut Entry<'_, ()>) -> Option<()> {
    /// #         self.0.fetch_add(1, Ordering::Relaxed);
    /// #         None
    /// #     }
    /// # }
    /// let options = Options::new().sample(100);
    /// // SAFETY: adding to an atomic is allowed wherever a function may be called.
    /// let count = unsafe { fgraph::register_with(Count::default(), "getppid", &options) }?;
    /// for _ in 0..1000 {
    ///     std::os::unix::process::parent_id();
    /// }
    /// assert_eq!(count.0.load(Ordering::Relaxed), 10);
    /// # Ok::<(), fgraph::Error>(())
    /// ```
    pub const fn sample(mut self, period: u32) -> Self {
        self.period = period;
        self
    }

    /// Lets this user watch functions by a breakpoint that have no room for a jump, whatever other
    /// users may do: see [`allow_breakpoints`](crate::allow_breakpoints), which says it for all
    /// users that are registered later.
    pub const fn breakpoints(mut self, allow: bool) -> Self {
        self.breakpoints = allow;
        self
    }

    /// Makes it an error if a word of the user's filter matches no function, as a misspelt name
    /// does: [`NothingMatched`](crate::Error::NothingMatched) then names the words, and the user is
    /// not registered. It holds for [`set_filter`](crate::Handle::set_filter) and
    /// [`add_filter`](crate::Handle::add_filter) of the user, too.
    ///
    /// Words with a `!` need not match. Leave this off for a filter that names functions of
    /// libraries that are loaded later.
    ///
    /// ```
    /// # use fgraph::{Entry, FgraphOps};
    /// # struct Nothing;
    /// # impl FgraphOps for Nothing {
    /// #     type Data = ();
    /// #     fn entry(&self, _call: &mut Entry<'_, ()>) -> Option<()> { None }
    /// # }
    /// use fgraph::{Error, Options};
    ///
    /// let options = Options::new().require_match(true);
    /// // SAFETY: its callbacks do nothing.
    /// let failed = unsafe { fgraph::register_with(Nothing, "malloc fre", &options) }.unwrap_err();
    /// assert_eq!(failed.error, Error::NothingMatched { words: vec!["fre".to_owned()] });
    /// ```
    pub const fn require_match(mut self, require: bool) -> Self {
        self.require_match = require;
        self
    }

    /// Counts the calls that the user [redirects](crate::EntryWriter::redirect), so that
    /// [`Handle::unregister_after`](crate::Handle::unregister_after) can wait for them.
    ///
    /// The callback must accept (return `Some` for) each call that it redirects. Such a user is
    /// never on the [fast path](crate::Handle::not_scalar).
    pub const fn count_redirected(mut self, count: bool) -> Self {
        self.count_redirected = count;
        self
    }

    /// Has so many threads find out how functions are traced that this user's filter selects, one
    /// by default: the calling thread, and others that are made for the time of the call. It is
    /// worth it for modules with ten thousands of functions.
    ///
    /// The other threads block all signals but those of faults, and are not traced, but where they
    /// begin and end. Libraries that are loaded later are looked at by one thread. If no thread can
    /// be made, one does all. The C library counts a process that has ever made a thread as one
    /// with several, which makes some of its functions slower.
    ///
    /// ```
    /// # use fgraph::Options;
    /// let threads = std::thread::available_parallelism()?;
    /// let options = Options::new().planning_threads(threads);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub const fn planning_threads(mut self, threads: NonZeroUsize) -> Self {
        self.planners = Planners::new(threads);
        self
    }
}
