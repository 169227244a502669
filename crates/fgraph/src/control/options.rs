//! Options of registration.

use core::num::NonZeroUsize;

use crate::sites::planners::Planners;

/// Options of a user, for [`register_with`](crate::register_with).
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
    pub(crate) lazy_sites: bool,
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
            require_match: true,
            lazy_sites: false,
        }
    }

    /// Asks the user before all users of higher priority and after all of lower, -128 to 127, 0 by
    /// default. At return the order is the reverse of that call's entries, as the users enclose
    /// each other. The order among users of one priority is not promised.
    ///
    /// Any 16 users can have any 16 priorities. A user is *out of order* if no slot is free between
    /// those of the users of lower and of higher priority when it is registered. Calls that it
    /// wants are dispatched by a list of their users, which costs a little more for each of them.
    /// A thread that makes a call for other such users than the one before takes the [slow
    /// path](crate::Handle::fast_path) once, to make the list. Where all users have one priority,
    /// none is out of order.
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
    /// assert_eq!(count.user().0.load(Ordering::Relaxed), 10);
    /// # Ok::<(), fgraph::Error>(())
    /// ```
    pub const fn sample(mut self, period: u32) -> Self {
        self.period = period;
        self
    }

    /// Lets this user watch functions by a breakpoint that have no room for a jump. Without this
    /// they are refused. [`sites_with`](crate::sites_with) lists what can be traced so.
    ///
    /// These functions have less than five bytes and the next one directly behind them, or call
    /// from their first five bytes, or are branched into there: none in most programs, one in a
    /// hundred where functions are not aligned. (Where memory for the stubs of jumps is short there
    /// may be others.) The first byte of such a function becomes an `int3`, for as long as a user
    /// wants its calls.
    ///
    /// Other users keep what they have.
    ///
    /// # What it costs
    ///
    /// Each call of such a function is a trap: the kernel delivers SIGTRAP and returns from it.
    /// That takes one to three microseconds, a hundred times as long as by a jump, and needs room
    /// on the stack for the frame of a signal. Calls of all other functions cost what they did.
    ///
    /// # When it is dangerous
    ///
    /// With jumps alone no thread traps but while functions are being patched. With breakpoints any
    /// thread may, at any time, and SIGTRAP has to be fgraph's all that time. The caller of
    /// [`register_with`](crate::register_with) promises it:
    ///
    /// - A thread that *blocks* SIGTRAP and calls such a function is killed by the kernel, and the
    ///   process with it. Threads that block it when a filter is set are found
    ///   ([`SignalBlocked`](crate::Error::SignalBlocked)). A thread that blocks it later is not.
    ///   The C library blocks all signals while it makes threads and processes: its own functions
    ///   (and those of a program that it is linked into statically) never get breakpoints.
    /// - A program that sets its own handler of SIGTRAP gets fgraph's traps until the next change
    ///   of a filter, and one that sets the default action is killed by the next of them. The same
    ///   holds for a child made by `vfork` that does so. Every change of a filter, also one that
    ///   changes nothing, puts fgraph's handler before the program's.
    /// - A debugger stops at each of these calls.
    ///
    /// ```
    /// let sites = fgraph::sites_with("*", &fgraph::Options::new().breakpoints(true))?;
    /// assert!(sites.iter().any(|site| site.how.is_ok()));
    /// # Ok::<(), fgraph::Error>(())
    /// ```
    pub const fn breakpoints(mut self, allow: bool) -> Self {
        self.breakpoints = allow;
        self
    }

    /// Looks at modules only as far as this user's filter mentions their functions, for programs
    /// that run for a short time.
    ///
    /// Without this the first filter that selects a function of a module has all of it looked at:
    /// later ones change what is watched in no time, and each call costs as little as it can. With
    /// it that is left out as long as filters mention less than a quarter of the module's
    /// functions: a tenth of the time until a user is registered that watches a few.
    ///
    /// The cost: calls of these functions preserve every register, since it is not known what
    /// their callers rely on; they take half as much time again. The fourth filter that mentions
    /// functions of the module for the first time has all others looked at, and so has the first
    /// one of a user without this option. [`Status::sites`](crate::Status::sites) counts what has
    /// been looked at.
    pub const fn lazy_sites(mut self, lazy: bool) -> Self {
        self.lazy_sites = lazy;
        self
    }

    /// Accepts filters that select nothing now, and words of them that match no function.
    ///
    /// Without this a word that matches nothing, such as a misspelt name, is an error:
    /// [`NothingMatched`](crate::Error::NothingMatched). Words with a `!` need not match, but they
    /// must leave something of what the other words select. It is an error, too, if no selected
    /// function can be traced: [`AllRefused`](crate::Error::AllRefused). All of this holds for
    /// [`set_filter`](crate::Handle::set_filter) and [`add_filter`](crate::Handle::add_filter) of
    /// the user as well. A filter without words, [`Filter::none`](crate::Filter::none), is always
    /// accepted.
    ///
    /// Use it for a filter with functions of libraries that are loaded later, and for a list of
    /// functions that need not all exist.
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
    /// let words = "malloc fre";
    /// // SAFETY: its callbacks do nothing.
    /// let failed = unsafe { fgraph::register(Nothing, words) }.unwrap_err();
    /// assert_eq!(failed.error, Error::NothingMatched { words: vec!["fre".to_owned()] });
    ///
    /// let options = Options::new().allow_no_match();
    /// // SAFETY: as above.
    /// let user = unsafe { fgraph::register_with(Nothing, words, &options) }?;
    /// assert_eq!(user.report()?.unmatched().collect::<Vec<_>>(), ["fre"]);
    /// # Ok::<(), fgraph::Error>(())
    /// ```
    pub const fn allow_no_match(mut self) -> Self {
        self.require_match = false;
        self
    }

    /// Counts the calls that the user [redirects](crate::EntryWriter::redirect), so that
    /// [`Handle::drain_and_unregister`](crate::Handle::drain_and_unregister) can wait for them.
    ///
    /// The callback must accept (return `Some` for) each call that it redirects. Such a user is
    /// never on the [fast path](crate::Handle::fast_path).
    pub const fn count_redirected(mut self, count: bool) -> Self {
        self.count_redirected = count;
        self
    }

    /// Sets the number of threads that find out how the functions of this user's filter are traced:
    /// the calling thread, and others that are made for the time of the call. The default is 1.
    /// More are worth it for modules with ten thousands of functions.
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
