//! Records every call: entries and returns go into rings, from which readers consume them while the
//! program runs.
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

mod allocations;
pub mod budget;
mod fetch;
mod held;
mod rates;
mod record;
mod shapes;
mod stacks;
mod switches;
mod thread_name;
mod to_file;
mod types;

use std::cell::Cell;
use std::io;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fgraph::{
    Counters, Error, FastPath, FgraphOps, Filter, FilterReport, Function, Handle, IntoFilter,
    RefusedFunction, UnregisterError, Untraced, UserStatus,
};
use fgraph_trace::event::Kind;
use fgraph_trace::names::DescriptionKind;
use fgraph_trace::ring::{Busy, RingOptions, Rings};
use fgraph_trace::{Live, Snapshot};

use crate::Tracer as _;
use crate::heap::Role;
use crate::support::looking;
use allocations::Allocations;
use held::{Held, WORDS};
use record::{PLAIN, REGISTERS, Record, SOME_REGISTERS, Shape, Usual};
pub use switches::{FunctionPlace, Switches};
pub use thread_name::describe_thread;
pub use to_file::FileRecorder;

/// Choice of the recorded data, and of the rings for it.
///
/// It is exhaustive, since callers write it as a literal: a new field breaks them.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Layout of the rings, and the treatment of events for which there is no room.
    pub rings: RingOptions,
    /// File with the rings, which stays when the process is killed; `None` for memory of the
    /// process and its children.
    pub file: Option<PathBuf>,
    /// Number of arguments that are recorded of each call, from integer registers: 0 to 6.
    pub arguments: usize,
    /// Functions whose arguments are recorded in words; `None` for all. Types are not restricted.
    ///
    /// The filter is evaluated like that of [`within`](Self::within).
    pub arguments_of: Option<Filter>,
    /// True if the integer result of each call is recorded.
    pub result: bool,
    /// Records arguments and results by their types, where debug information of C, C++ or Rust has
    /// these. All arguments are recorded if `arguments` is not 0, and the result if `result` is
    /// set. The value is the longest time for finding types at the start and with each new filter.
    /// Values without a type by then are recorded in words, as are those of libraries that are
    /// loaded later.
    ///
    /// It needs the feature `dwarf`. A number in a register costs about as much as one of
    /// `arguments`. A text, a row of values, or the target of a reference costs half a microsecond,
    /// and 128 bytes of each are recorded. If an address leads nowhere, only that value is missing.
    ///
    /// Reading the debug information of one library is not interrupted. It takes seconds for the
    /// largest.
    pub types: Option<Duration>,
    /// With `types`, arguments and results that lead to a text, whatever their types are. Give
    /// names of parameters, `arg0` and so on for places, or `retval`. The text is recorded. If
    /// there are any, values of functions without debug information are read as integers in
    /// registers, `arg0` to `arg5`.
    pub texts: Vec<String>,
    /// With `types`, further values behind arguments: [`ValuePath`]s as texts. If a path leads to
    /// no value, readers get the reason.
    ///
    /// [`ValuePath`]: fgraph::signature::ValuePath
    pub paths: Vec<String>,
    /// True if only the first call of each function is recorded, as an entry-only call.
    pub once: bool,
    /// True if the return address of each call is recorded.
    pub caller: bool,
    /// True if the return addresses of each call and of those around it are recorded, whether or
    /// not these are recorded too. At most 48 are (see [`unwind`](fgraph::Entry::unwind)), and each
    /// takes time. With `threshold` they are left out where there are more than a few.
    pub stack: bool,
    /// True if the thread's time on processors is recorded, so that readers can leave out the time
    /// that it sleeps or waits for one. It takes a system call at each entry and return.
    pub running: bool,
    /// True if a [`FileRecorder`] records when each thread runs, waits for a processor and is
    /// blocked, for readers such as `fgraph report --time blocked`. Children of `fork` have states
    /// too. It takes about half a microsecond for each switch, a descriptor for each thread and
    /// processor, and needs the feature `states`.
    pub states: bool,
    /// Calls nested this deep in recorded calls are left out; `None` records all. Finding the depth
    /// of a call takes time for each recorded call around it.
    pub depth: Option<usize>,
    /// Records only the calls of these functions and the calls inside them: the kernel's
    /// `set_graph_function`. The recorder's filter must select these functions too. On a stack that
    /// several coroutines share, the enclosing calls are unknown, so only calls of the functions
    /// themselves are recorded.
    ///
    /// The filter is evaluated at each function's first call, at that place: a
    /// [predicate](Filter::predicate) may do there only what a callback may.
    pub within: Option<Filter>,
    /// Records only calls of allocators, with arguments and results, and for those that make blocks
    /// the calls around them: see [`heap`](crate::heap). A call inside another one is left out.
    ///
    /// A call that does nothing but make a block is one event, when it returns: an entry-only call
    /// whose arguments are the requested size and the address of the block, or 0. Most other
    /// options are ignored.
    pub allocations: bool,
    /// With `allocations`, further functions of allocators, each with its role. The recorder's
    /// filter must select these functions too. They are evaluated like [`within`](Self::within).
    pub allocators: Vec<(Filter, Role)>,
    /// Records only calls that take at least this long, and all calls around them.
    ///
    /// Calls are written when they end, so calls that are running when the program is killed are
    /// missing. On stacks of coroutines and of signal handlers calls are recorded whatever time
    /// they take. Argument values by [`types`](Self::types) are left out where they take more than
    /// a few words.
    pub threshold: Option<Duration>,
    /// Recording of a function stops when one more than this number of calls is made in less than a
    /// second. Calls are counted by function and process, from the first one on, and anew from the
    /// next one whenever this number took a second or longer. Calls that other options leave out
    /// are not counted, except short ones of `threshold`.
    ///
    /// Readers learn of it, see [`Names::off_times`](fgraph_trace::names::Names::off_times). A call
    /// then costs the same as with an empty user.
    pub max_rate: Option<NonZeroU32>,
    /// Number of threads that plan how to trace the recorded functions, if not one: see
    /// [`planning_threads`](fgraph::Options::planning_threads).
    pub planning_threads: Option<NonZeroUsize>,
    /// Number of programs that the process has executed before this one, with events in the same
    /// rings: see [`process_number`](fgraph_trace::names::process_number). 0 to 1,023.
    pub executed: u32,
}

/// Recorder. Dropping it ends it.
///
/// A call takes 16 bytes, two readings of the clock and a few nanoseconds more than with an empty
/// user. Arguments, results and callers take a word and a few nanoseconds each. A thread takes its
/// ring at its first call, without the allocator or a lock, and records its name then. The function
/// of an index is recorded at the function's first call.
///
/// Events without room are counted, and the loss is reported at its place. A child that the program
/// makes by `fork` continues to record, in rings of its own that its parent's readers see.
#[derive(Debug)]
pub struct Recorder {
    user: User,
    types: Option<Duration>,
    /// The number of times that the filter was replaced.
    filters: AtomicU64,
}

/// The registered user.
#[derive(Debug)]
enum User {
    /// Records all calls, by function and time.
    Plain(Handle<Usual<PLAIN>>),
    /// Records all calls, with arguments or results in general registers.
    Registers(Handle<Usual<REGISTERS>>),
    /// The same, with the arguments of some functions only.
    SomeRegisters(Handle<Usual<SOME_REGISTERS>>),
    /// Records calls with all options.
    Any(Handle<Record>),
    /// Records calls of allocators.
    Allocations(Handle<Allocations>),
    /// Records some calls, with more than function and time.
    Held(Handle<Held<WORDS>>),
    /// Records some calls, by function and time.
    Brief(Handle<Held<1>>),
}

/// Writer of a thread's calls of functions of an interpreted language, among its native calls: see
/// [`Recorder::call_writer`].
#[derive(Clone, Copy, Debug)]
pub struct CallWriter {
    record: *const Record,
    word: *const Cell<u64>,
}

impl CallWriter {
    /// Writes the entry or the end of a call; `false` if it was lost. The index is one that was
    /// [described](Recorder::describe). Options that leave out calls do not apply to it.
    ///
    /// Neither allocates nor locks.
    ///
    /// # Safety
    ///
    /// The recorder has not ended since it made this, in the calling thread. Neither a callback of
    /// the recorder nor a signal handler runs in the thread.
    #[inline(always)]
    pub unsafe fn write(self, untraced: &Untraced, kind: Kind, function: u32) -> bool {
        let thread = || untraced.thread_id().unwrap_or_default();
        // SAFETY: the recorder and the thread live, as the caller says, and so does the thread's
        // word. No callback runs in the thread.
        unsafe { (*self.record).write_outside(&*self.word, thread, kind, function) }
    }

    /// Same as [`write`](Self::write), with one argument, or with a result at the end of a call.
    ///
    /// # Safety
    ///
    /// Same as for [`write`](Self::write).
    pub unsafe fn write_with(
        self,
        untraced: &Untraced,
        kind: Kind,
        function: u32,
        value: u64,
    ) -> bool {
        let thread = untraced.thread_id().unwrap_or_default();
        // SAFETY: as in `write`.
        unsafe { (*self.record).write_value_outside(&*self.word, thread, kind, function, value) }
    }
}

/// Function of an interpreted language, for [`Recorder::describe`].
///
/// It is exhaustive, since callers write it as a literal: a new field breaks them.
#[derive(Clone, Copy, Debug)]
pub struct InterpretedFunction<'a> {
    /// Its index, from [`FIRST_INTERPRETED`](fgraph_trace::event::FIRST_INTERPRETED) on and below
    /// [`MAX_FUNCTIONS`](fgraph_trace::event::MAX_FUNCTIONS).
    pub index: u32,
    /// Its name.
    pub name: &'a str,
    /// The text that stands for the path of its module.
    pub module: &'a str,
    /// Its source file, and the line where it begins.
    pub source: Option<(&'a str, u32)>,
}

/// Uses the handle of a [`User`], whatever its variant.
macro_rules! with_handle {
    ($user:expr, $handle:ident => $work:expr) => {
        match $user {
            User::Plain($handle) => $work,
            User::Registers($handle) => $work,
            User::SomeRegisters($handle) => $work,
            User::Any($handle) => $work,
            User::Allocations($handle) => $work,
            User::Held($handle) => $work,
            User::Brief($handle) => $work,
        }
    };
}

impl crate::Tracer for Recorder {
    fn set_filter(&self, filter: Filter) -> Result<FilterReport, Error> {
        // Relaxed: it is looked at before and after functions are switched.
        self.filters.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the callbacks neither allocate nor lock nor panic, so they may run in every
        // function.
        let report = with_handle!(&self.user, user => unsafe { user.set_filter(filter) })?;
        self.learn_types()?;
        Ok(report)
    }

    fn report(&self) -> Result<FilterReport, Error> {
        with_handle!(&self.user, user => user.report())
    }

    fn refused(&self) -> Result<Vec<RefusedFunction>, Error> {
        with_handle!(&self.user, user => user.refused())
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
    /// Same as for [`start_with`](Self::start_with).
    pub fn start(filter: impl IntoFilter) -> Result<Self, RecordError> {
        Self::start_with(filter, &Options::default())
    }

    /// Same as [`start`](Self::start), with options.
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

    /// Same as [`start_with`](Self::start_with), in existing rings, such as
    /// [those](Rings::create_shared) that a reader in another process shares. The options for rings
    /// are ignored.
    ///
    /// # Errors
    ///
    /// Same as for [`start_with`](Self::start_with).
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
        let user = if options.allocations {
            let allocations =
                Allocations::new(record, &options.allocators).ok_or_else(no_memory)?;
            User::Allocations(register(allocations, filter, &paused)?)
        } else if within.is_none() && threshold == 0 {
            match record.shape() {
                Shape::Plain => User::Plain(register(Usual(record), filter, &paused)?),
                Shape::Registers => User::Registers(register(Usual(record), filter, &paused)?),
                Shape::SomeRegisters => {
                    User::SomeRegisters(register(Usual(record), filter, &paused)?)
                }
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

    /// Finds the types of the recorded functions.
    fn learn_types(&self) -> Result<(), Error> {
        let Some(time) = self.types else {
            return Ok(());
        };
        // Calls made for this are not the program's own work, so leave them out of traces.
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
            User::Plain(user) => user.user(),
            User::Registers(user) => user.user(),
            User::SomeRegisters(user) => user.user(),
            User::Any(user) => user.user(),
            User::Allocations(user) => user.user(),
            User::Held(user) => user.user(),
            User::Brief(user) => user.user(),
        }
    }

    /// Says if calls are recorded on the [fast path](Handle::fast_path). They are if the tracer was
    /// compiled with optimisation, and records only functions, times, arguments in words and
    /// results; with a [threshold](Options::threshold) or [within](Options::within) functions, only
    /// functions and times.
    ///
    /// # Errors
    ///
    /// Fails like [`Handle::fast_path`].
    pub fn fast_path(&self) -> Result<FastPath, Error> {
        with_handle!(&self.user, user => user.fast_path())
    }

    /// Returns the rings of the recorder.
    #[must_use]
    pub fn rings(&self) -> &Arc<Rings> {
        self.record().rings()
    }

    /// Returns a reader that sees the events and leaves them in the rings.
    #[must_use]
    pub fn watch(&self) -> Live {
        Live::watch(self.rings().clone())
    }

    /// Returns a reader that consumes the events, and so makes room in the rings.
    ///
    /// # Errors
    ///
    /// [`Busy`] if there is a reader already.
    pub fn consume(&self) -> Result<Live, Busy> {
        Live::consume(self.rings().clone())
    }

    /// Returns the current content of the rings.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::take(self.rings())
    }

    /// Writes the first 4,096 bytes of a text among the running thread's events; `false` if the
    /// text was lost. A function graph shows it as `/* text */`, like text that is written to the
    /// kernel's `trace_marker`.
    ///
    /// Neither allocates nor locks, and takes about a microsecond. Do not call it in signal
    /// handlers.
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
        // SAFETY: the thread is the running one, and no callback runs in it now: it is not traced,
        // and the callbacks of this user do not get here.
        unsafe { self.record().mark(fgraph::thread_id(), text.as_bytes()) }
    }

    /// Returns the writer of the calling thread's calls of functions of an interpreted language;
    /// `None` without memory for the thread's state. It may be kept and used again in the thread.
    #[must_use]
    pub fn call_writer(&self, untraced: &Untraced) -> Option<CallWriter> {
        let word = with_handle!(&self.user, user => user.thread_word(untraced))?;
        Some(CallWriter {
            record: self.record(),
            word,
        })
    }

    /// Describes a function of an interpreted language to readers. Neither allocates nor locks.
    pub fn describe(&self, untraced: &Untraced, function: &InterpretedFunction<'_>) {
        let word = with_handle!(&self.user, user => user.thread_word(untraced));
        if let Some(word) = word {
            self.record().describe_outside(word, function);
        }
    }

    /// Stops or resumes recording of functions, and reports to readers the times at which their
    /// calls may be missing: see [`Names::off_times`](fgraph_trace::names::Names::off_times). A
    /// function that no other user watches costs nothing while it is switched off, because its code
    /// is unpatched.
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
    /// Same as for [`Handle::remove_filter`]. If functions could not be switched off, they are
    /// recorded as before, and so are those of `switches.on`.
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
            // SAFETY: the callbacks may run in these functions, as the caller says.
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

    /// Ends recording. Readers see the remaining events, and then the end.
    ///
    /// # Errors
    ///
    /// [`InsideCallback`](Error::InsideCallback); recording then ends with the callback.
    pub fn finish(self) -> Result<Arc<Rings>, Error> {
        let record = match self.user {
            User::Plain(user) => user.unregister().map_err(UnregisterError::into_error)?.0,
            User::Registers(user) => user.unregister().map_err(UnregisterError::into_error)?.0,
            User::SomeRegisters(user) => user.unregister().map_err(UnregisterError::into_error)?.0,
            User::Any(user) => user.unregister().map_err(UnregisterError::into_error)?,
            User::Allocations(user) => {
                let allocations = user.unregister().map_err(UnregisterError::into_error)?;
                allocations.into_record()
            }
            User::Held(user) => {
                let held = user.unregister().map_err(UnregisterError::into_error)?;
                held.into_record()
            }
            User::Brief(user) => {
                let held = user.unregister().map_err(UnregisterError::into_error)?;
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
    // SAFETY: the callbacks only use the clock, atomics, memory that they own, and system calls
    // that change nothing, which is allowed in every function.
    unsafe { fgraph::register_with(ops, filter, options) }
        .map_err(|failed| RecordError::Register(failed.error))
}

/// Reason why a recorder was not started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The rings could not be made.
    #[error("there is no room for the rings")]
    Rings(#[source] io::Error),
    /// The recorder could not be registered.
    #[error("the recorder cannot be registered")]
    Register(#[source] Error),
    /// The recording could not be written.
    #[error("the recording cannot be written")]
    File(#[source] io::Error),
}

/// Reason why a recording has no proper end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FinishError {
    /// The recorder was ended inside a callback.
    #[error("the recorder is still registered")]
    Unregister(#[source] Error),
    /// The recording could not be written to its end. The part that was written is good.
    #[error("the recording cannot be written to its end")]
    File(#[source] io::Error),
}
