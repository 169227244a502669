//! Every call as it happens: entries and returns go into rings, from which readers take them while
//! the program runs.
//!
//! ```
//! use fgraph_tracers::recorder::Recorder;
//! use fgraph_trace::graph::{FunctionGraph, Options};
//!
//! let recorder = Recorder::start("getppid:mod:libc.so*")?;
//! std::os::unix::process::parent_id();
//! let mut live = recorder.consume()?;
//! recorder.finish()?;
//! let mut text = Vec::new();
//! FunctionGraph::new(Options::default()).write_all(&mut live, &mut text)?;
//! assert!(String::from_utf8(text)?.ends_with("getppid();\n"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod budget;
mod fetch;
mod held;
mod rates;
mod record;
mod shapes;
mod switches;
mod to_file;
mod types;

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{fmt, io};

use fgraph::{
    Counters, Error, FgraphOps, Filter, FilterReport, Function, Handle, IntoFilter, NotScalar,
    Untraced, UserStatus,
};
use fgraph_trace::names::DescriptionKind;
use fgraph_trace::ring::{Busy, RingOptions, Rings};
use fgraph_trace::{Live, Snapshot};

use crate::Tracer as _;
use crate::support::looking;
use held::{Held, WORDS};
use record::{Record, Shape, Usual};
pub use switches::{FunctionPlace, Switches};
pub use to_file::FileRecorder;

/// What is recorded, and where.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// How the rings are laid out, and what becomes of events for which there is no room.
    pub rings: RingOptions,
    /// A file that the rings are in, which stays when the process is killed; `None` for memory of
    /// the process and its children.
    pub file: Option<PathBuf>,
    /// How many arguments of each call are recorded, of those in integer registers: 0 to 6.
    pub arguments: usize,
    /// Whether the integer result of each call is recorded.
    pub result: bool,
    /// Whether what `arguments` and `result` ask for is recorded by its types, where debug
    /// information of C, C++ or Rust tells them, and how long finding that out may take at the
    /// start and with each new filter: all arguments if `arguments` is not 0. What is not found by
    /// then is recorded in words, and so are functions of libraries that are loaded later.
    ///
    /// It takes the feature `dwarf`. A number in a register costs about as much as one of
    /// `arguments`; a text, a row of values, or what a reference leads to costs half a microsecond,
    /// and 128 bytes of each are recorded. An address that leads nowhere costs the value only.
    ///
    /// Reading the debug information of one library is not interrupted: it takes seconds for the
    /// largest.
    pub types: Option<Duration>,
    /// With `types`, the arguments and results of which the text is recorded that they lead to,
    /// whatever their types are: names of parameters, `arg0` and so on by their places, `retval`.
    /// If there are any, values of functions without debug information are taken to be integers in
    /// registers, `arg0` to `arg5`.
    pub texts: Vec<String>,
    /// With `types`, values behind arguments that are recorded as well: [`ValuePath`]s as texts. Of
    /// a path that leads to no value, readers are told why.
    ///
    /// [`ValuePath`]: fgraph::signature::ValuePath
    pub paths: Vec<String>,
    /// Whether only the first call of each function is recorded, as one that is entry only.
    pub once: bool,
    /// Whether it is recorded where each call returns to.
    pub caller: bool,
    /// True if it is recorded where each call and those around it return to, recorded or not: at
    /// most 48 of them, see [`unwind`](fgraph::Entry::unwind). It takes some 10 ns for each. With
    /// `threshold` they are left out where these are more than a few.
    pub stack: bool,
    /// Whether it is recorded how long the thread had run on processors, so that the time which it
    /// sleeps or waits for one can be left out. It takes a system call at each entry and return.
    pub running: bool,
    /// Calls inside this many recorded ones are left out; `None` records all. Finding out how deep
    /// a call is takes time for each recorded call around it.
    pub depth: Option<usize>,
    /// Only calls of these functions are recorded, and what is called inside them: the kernel's
    /// `set_graph_function`. They must be among those that the recorder's filter selects. On a
    /// stack that several coroutines share, where it is not known what a call is inside of, only
    /// their own calls are.
    ///
    /// What the filter says is found out at each function's first call, where it is called: a
    /// [predicate](Filter::predicate) must do there what a callback may.
    pub within: Option<Filter>,
    /// Only calls that take so long are recorded, and all the calls that these are inside of.
    ///
    /// They are written when they end, so what goes on where the program is killed is missing. On
    /// stacks of coroutines and of signal handlers calls are recorded whatever time they take.
    /// Values that [`types`](Self::types) tells of arguments are left out where they take more than
    /// a few words.
    pub threshold: Option<Duration>,
    /// A function of which so many calls, and one more, are made in less than a second is recorded
    /// no more: calls are counted by function and process, from the first one on, and anew from the
    /// next one whenever so many took a second or longer. Those that other options leave out are
    /// not counted, but for short ones of `threshold`.
    ///
    /// Readers hear of it, see [`Names::off_times`](fgraph_trace::names::Names::off_times).
    /// A call costs then what it does with an empty user.
    pub max_rate: Option<NonZeroU32>,
    /// How many threads find out how the functions are traced that are recorded, if not one: see
    /// [`planning_threads`](fgraph::Options::planning_threads).
    pub planning_threads: Option<NonZeroUsize>,
    /// How many programs the process has executed before this one, whose events are in the rings
    /// as well: see [`process_number`](fgraph_trace::names::process_number). 0 to 1,023.
    pub executed: u32,
}

/// A recorder at work; dropping it ends it.
///
/// A call takes 16 bytes, two readings of the clock and a few nanoseconds more than with an empty
/// user; with arguments, results and callers each a word and a few nanoseconds more. A thread takes
/// its ring at its first call, without the allocator or a lock, and its name is recorded then;
/// which function an index stands for is recorded at the function's first call.
///
/// What finds no room is counted, and told where it is missing. A child that the program makes by
/// `fork` goes on recording, in rings of its own that its parent's readers see.
#[derive(Debug)]
pub struct Recorder {
    user: User,
    types: Option<Duration>,
    /// The number of times that the filter was replaced.
    filters: AtomicU64,
}

/// What is registered.
#[derive(Debug)]
enum User {
    /// Records all calls, by function and time.
    Plain(Handle<Usual<false>>),
    /// Records all calls, with arguments or results in general registers.
    Registers(Handle<Usual<true>>),
    /// Records calls with whatever is asked for.
    Any(Handle<Record>),
    /// Records some of them, of which there is more than function and time.
    Held(Handle<Held<WORDS>>),
    /// Records some of them, by function and time.
    Brief(Handle<Held<1>>),
}

/// Does something with the handle of a [`User`], whichever it is.
macro_rules! with_handle {
    ($user:expr, $handle:ident => $work:expr) => {
        match $user {
            User::Plain($handle) => $work,
            User::Registers($handle) => $work,
            User::Any($handle) => $work,
            User::Held($handle) => $work,
            User::Brief($handle) => $work,
        }
    };
}

impl crate::Tracer for Recorder {
    fn set_filter(&self, filter: Filter) -> Result<FilterReport, Error> {
        // Relaxed: it is looked at before and after functions are switched.
        self.filters.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the callbacks neither allocate nor lock nor panic.
        let report = with_handle!(&self.user, user => unsafe { user.set_filter(filter) })?;
        self.learn_types()?;
        Ok(report)
    }

    fn report(&self) -> Result<FilterReport, Error> {
        with_handle!(&self.user, user => user.report())
    }

    fn functions(&self) -> Result<Vec<Function>, Error> {
        with_handle!(&self.user, user => user.functions())
    }

    fn set_enabled(&self, enabled: bool) {
        with_handle!(&self.user, user => user.set_enabled(enabled));
    }

    fn is_enabled(&self) -> bool {
        with_handle!(&self.user, user => user.is_enabled())
    }

    fn set_threads(&self, ids: Option<&[u32]>) -> Result<(), Error> {
        with_handle!(&self.user, user => user.set_threads(ids))
    }

    fn status(&self) -> UserStatus {
        with_handle!(&self.user, user => user.status())
    }

    fn counters(&self) -> Counters {
        with_handle!(&self.user, user => user.counters())
    }
}

impl Recorder {
    /// Starts recording the calls of the functions that `filter` selects.
    ///
    /// # Errors
    ///
    /// As for [`start_with`](Self::start_with).
    pub fn start(filter: impl IntoFilter) -> Result<Self, RecordError> {
        Self::start_with(filter, &Options::default())
    }

    /// As [`start`](Self::start), with options.
    ///
    /// # Errors
    ///
    /// [`Rings`](RecordError::Rings) if there is no room for the rings, and
    /// [`Register`](RecordError::Register) as for [`fgraph::register`].
    pub fn start_with(filter: impl IntoFilter, options: &Options) -> Result<Self, RecordError> {
        let rings = match &options.file {
            Some(path) => Rings::create_file(path, &options.rings),
            None => Rings::create(&options.rings),
        };
        Self::start_in(rings.map_err(RecordError::Rings)?, filter, options)
    }

    /// As [`start_with`](Self::start_with), in rings that are there already, such as
    /// [those](Rings::create_shared) that a reader in another process has too. The options about
    /// rings say nothing here.
    ///
    /// # Errors
    ///
    /// As for [`start_with`](Self::start_with).
    pub fn start_in(
        rings: impl Into<Arc<Rings>>,
        filter: impl IntoFilter,
        options: &Options,
    ) -> Result<Self, RecordError> {
        let rings = rings.into();
        let no_memory = || RecordError::Rings(io::ErrorKind::OutOfMemory.into());
        let threshold = options.threshold.unwrap_or_default();
        let threshold = u64::try_from(threshold.as_nanos()).unwrap_or(u64::MAX);
        let threshold = rings.clock().ticks(threshold);
        let record = Record::new(rings, options).ok_or_else(no_memory)?;
        let threads = options.planning_threads.unwrap_or(NonZeroUsize::MIN);
        let paused = looking::options()
            .enabled(options.types.is_none())
            .planning_threads(threads);
        let within = options.within.as_ref();
        let user = if within.is_none() && threshold == 0 {
            match record.shape() {
                Shape::Plain => User::Plain(register(Usual(record), filter, &paused)?),
                Shape::Registers => User::Registers(register(Usual(record), filter, &paused)?),
                Shape::Any => User::Any(register(record, filter, &paused)?),
            }
        } else if record.shape() == Shape::Plain {
            let held = Held::new(record, within, threshold).ok_or_else(no_memory)?;
            User::Brief(register(held, filter, &paused)?)
        } else {
            let held = Held::new(record, within, threshold).ok_or_else(no_memory)?;
            User::Held(register(held, filter, &paused)?)
        };
        let this = Self {
            user,
            types: options.types,
            filters: AtomicU64::new(0),
        };
        if this.types.is_some() {
            this.learn_types().map_err(RecordError::Register)?;
            this.set_enabled(true);
        }
        Ok(this)
    }

    /// Finds out the types of the functions that are recorded.
    fn learn_types(&self) -> Result<(), Error> {
        let Some(time) = self.types else {
            return Ok(());
        };
        // What is called for it is our work, not the program's.
        let _untraced = Untraced::new();
        let until = Instant::now().checked_add(time);
        let functions = self.functions()?;
        self.record().learn_types(&functions, until);
        Ok(())
    }

    /// The number of times that the filter was replaced.
    fn filters(&self) -> u64 {
        self.filters.load(Ordering::Relaxed)
    }

    fn record(&self) -> &Record {
        match &self.user {
            User::Plain(user) => user,
            User::Registers(user) => user,
            User::Any(user) => user,
            User::Held(user) => user,
            User::Brief(user) => user,
        }
    }

    /// Why calls are recorded with all registers saved, see [`Handle::not_scalar`]; `None` if they
    /// take the fast path. They do if functions and times are recorded, arguments in words, and
    /// results, with a [threshold](Options::threshold) and [within](Options::within) functions
    /// alone the former, and the tracer was compiled with optimisation.
    ///
    /// # Errors
    ///
    /// As for [`Handle::not_scalar`].
    pub fn not_scalar(&self) -> Result<Option<NotScalar>, Error> {
        with_handle!(&self.user, user => user.not_scalar())
    }

    /// The rings that are written.
    #[must_use]
    pub fn rings(&self) -> &Arc<Rings> {
        self.record().rings()
    }

    /// A reader that sees what is recorded and leaves it in the rings.
    #[must_use]
    pub fn watch(&self) -> Live {
        Live::watch(self.rings().clone())
    }

    /// A reader that takes what is recorded out of the rings, and so makes room.
    ///
    /// # Errors
    ///
    /// [`Busy`] if there is one already.
    pub fn consume(&self) -> Result<Live, Busy> {
        Live::consume(self.rings().clone())
    }

    /// What is in the rings now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::take(self.rings())
    }

    /// Writes a text among the running thread's events, of which the first 4,096 bytes are taken;
    /// `false` if it was lost. A function graph shows it as `/* text */`, as the kernel shows what
    /// is written to `trace_marker`.
    ///
    /// Neither allocates nor locks, and takes about a microsecond. It must not be called by
    /// handlers of signals.
    ///
    /// ```
    /// use fgraph_tracers::recorder::Recorder;
    /// # use fgraph_trace::graph::{FunctionGraph, Options};
    ///
    /// let recorder = Recorder::start("getppid:mod:libc.so*")?;
    /// assert!(recorder.mark("the second phase begins"));
    /// # let mut text = Vec::new();
    /// # FunctionGraph::new(Options::default()).write_all(&mut recorder.snapshot(), &mut text)?;
    /// # assert!(String::from_utf8(text)?.ends_with("/* the second phase begins */\n"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn mark(&self, text: &str) -> bool {
        let _untraced = Untraced::new();
        // SAFETY: the running thread, in which no callback runs now: it is not traced, and the
        // callbacks of this user do not get here.
        unsafe { self.record().mark(fgraph::thread_id(), text.as_bytes()) }
    }

    /// Records functions no more, or again, and tells readers from when to when their calls may be
    /// missing: see [`Names::off_times`](fgraph_trace::names::Names::off_times). A function that
    /// no other user watches costs nothing while it is switched off: its text is the file's.
    ///
    /// Takes some milliseconds if many functions are switched. A function of a library that was
    /// unloaded stays switched off, which is an error if no other one is switched on.
    ///
    /// # Safety
    ///
    /// The functions of `switches.on` were recorded by this recorder before.
    ///
    /// # Errors
    ///
    /// As for [`Handle::remove_filter`]. If functions are to be switched off, they are recorded as
    /// before then, and so are those of `switches.on`.
    pub unsafe fn switch(&self, switches: &Switches) -> Result<(), Error> {
        let _untraced = Untraced::new();
        let record = self.record();
        let all = |places: &[FunctionPlace]| {
            let none = Filter::none();
            places
                .iter()
                .fold(none, |filter, place| filter.address(place.address as usize))
        };
        if !switches.off.is_empty() {
            record.tell_switched(DescriptionKind::SwitchedOff, &switches.off);
            let removed = with_handle!(&self.user, user => user.remove_filter(all(&switches.off)));
            removed.inspect_err(|_| {
                record.tell_switched(DescriptionKind::SwitchedOn, &switches.off);
            })?;
        }
        let add = |places: &[FunctionPlace]| {
            // SAFETY: the callbacks are right for these functions, as the caller says.
            with_handle!(&self.user, user => unsafe { user.add_filter(all(places)) })
        };
        if switches.on.is_empty() {
            return Ok(());
        }
        let Err(error) = add(&switches.on) else {
            record.tell_switched(DescriptionKind::SwitchedOn, &switches.on);
            return Ok(());
        };
        // One function of an unloaded library must not keep the others off.
        let mut is_some_on = false;
        for place in switches.on.chunks(1) {
            if add(place).is_ok() {
                record.tell_switched(DescriptionKind::SwitchedOn, place);
                is_some_on = true;
            }
        }
        if is_some_on { Ok(()) } else { Err(error) }
    }

    /// Ends recording. Readers see what is in the rings, and then that it is over.
    ///
    /// # Errors
    ///
    /// [`InsideCallback`](Error::InsideCallback); then it ends when the callback is done.
    pub fn finish(self) -> Result<Arc<Rings>, Error> {
        let record = match self.user {
            User::Plain(user) => user.unregister().map_err(|failed| failed.error)?.0,
            User::Registers(user) => user.unregister().map_err(|failed| failed.error)?.0,
            User::Any(user) => user.unregister().map_err(|failed| failed.error)?,
            User::Held(user) => {
                let held = user.unregister().map_err(|failed| failed.error)?;
                held.into_record()
            }
            User::Brief(user) => {
                let held = user.unregister().map_err(|failed| failed.error)?;
                held.into_record()
            }
        };
        Ok(record.finish())
    }
}

fn register<T: FgraphOps>(
    ops: T,
    filter: impl IntoFilter,
    options: &fgraph::Options,
) -> Result<Handle<T>, RecordError> {
    // SAFETY: the callbacks use the clock, atomics, memory that they have, and system calls that
    // change nothing.
    unsafe { fgraph::register_with(ops, filter, options) }
        .map_err(|failed| RecordError::Register(failed.error))
}

/// Why a recorder was not started.
#[derive(Debug)]
#[non_exhaustive]
pub enum RecordError {
    /// There are no rings.
    Rings(io::Error),
    /// The recorder could not be registered.
    Register(Error),
    /// The recording cannot be written.
    File(io::Error),
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rings(_) => "there is no room for the rings",
            Self::Register(_) => "the recorder cannot be registered",
            Self::File(_) => "the recording cannot be written",
        })
    }
}

impl std::error::Error for RecordError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Rings(error) | Self::File(error) => Some(error),
            Self::Register(error) => Some(error),
        }
    }
}

/// Why a recording has no proper end.
#[derive(Debug)]
#[non_exhaustive]
pub enum FinishError {
    /// The recorder was ended inside a callback.
    Unregister(Error),
    /// The recording could not be written to its end. What is in it is good.
    File(io::Error),
}

impl fmt::Display for FinishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unregister(_) => "the recorder is still registered",
            Self::File(_) => "the recording cannot be written to its end",
        })
    }
}

impl std::error::Error for FinishError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unregister(error) => Some(error),
            Self::File(error) => Some(error),
        }
    }
}
