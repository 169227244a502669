//! Measures where the time goes: number and duration of the calls of each function, and the
//! callers.
//!
//! ```
//! use fgraph_tracers::profiler::Profiler;
//!
//! let profiler = Profiler::start("getpid getppid")?;
//! for _ in 0..100 {
//!     std::os::unix::process::parent_id();
//! }
//! let profile = profiler.profile().together();
//! let getppid = profile.of("getppid").expect("it was called");
//! assert_eq!(getppid.hits, 100);
//! assert!(getppid.min <= getppid.average() && getppid.average() <= getppid.max);
//! println!("{profile}");
//! # Ok::<(), fgraph::Error>(())
//! ```

mod callbacks;
mod table;

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use fgraph::{AnywhereHandle, Error, Function, IntoFilter, UnregisterError};
use fgraph_trace::histogram;

use crate::support::kernel;
use crate::support::looking;
use crate::tracer::{OneUser, Tracer};
use callbacks::Record;

/// Bits of the buckets of durations: each is at most a sixteenth of its durations wide.
const BITS: u32 = 4;

/// Choice of the clocks. The defaults are the kernel's.
///
/// It is exhaustive, since callers write it as a literal: a new field breaks them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Equals `graph-time`: the time of a call includes the watched calls inside it. If false, all
    /// times of a function are its own.
    pub graph_time: bool,
    /// Equals `sleep-time`: times are those of the wall clock. If false, times are those of the
    /// thread's own clock, which stands still while the thread sleeps or waits for a processor.
    /// Reading that clock takes a system call at each entry and return. A call that begins in one
    /// thread and ends in another then takes no time.
    pub sleep_time: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            graph_time: true,
            sleep_time: true,
        }
    }
}

/// Profiler. Dropping it ends it.
///
/// Times are those of the wall clock, so the time of a call includes its waits, unless [`Options`]
/// choose otherwise. Time that a function spends in other watched functions is not its *own*. Calls
/// of a function inside a call of it count once in its *total*.
///
/// A traced call costs two readings of the clock more than with an empty user, and some ten loads
/// and stores to the thread's own tables. For each function that a thread calls the tables take 8
/// KiB, and use only the parts for times that occur. Each pair of a function and its caller takes
/// 128 bytes. A new thread takes over the tables of one that has ended, which then need as much
/// again for the calls of the earlier threads.
///
/// On the stacks of coroutines and of signal handlers a call's own time is its whole time.
#[derive(Debug)]
pub struct Profiler {
    user: AnywhereHandle<Record>,
}

impl OneUser for Profiler {
    fn user(&self) -> &dyn Tracer {
        &self.user
    }
}

impl Profiler {
    /// Starts to profile the functions that `filter` selects. This takes 2 ms to measure the speed
    /// of the clock, besides the registration.
    ///
    /// # Errors
    ///
    /// Same as for [`fgraph::register`].
    pub fn start(filter: impl IntoFilter) -> Result<Self, Error> {
        Self::start_with(filter, &Options::default())
    }

    /// Same as [`start`](Self::start), with options.
    ///
    /// ```
    /// use fgraph_tracers::profiler::{Options, Profiler};
    ///
    /// let own = Options {
    ///     graph_time: false,
    ///     ..Options::default()
    /// };
    /// let profiler = Profiler::start_with("getppid:mod:libc.so*", &own)?;
    /// std::os::unix::process::parent_id();
    /// let profile = profiler.profile().together();
    /// let getppid = profile.of("getppid").expect("it was called");
    /// assert_eq!(getppid.total, getppid.own);
    /// # Ok::<(), fgraph::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Same as for [`fgraph::register`].
    pub fn start_with(filter: impl IntoFilter, options: &Options) -> Result<Self, Error> {
        let record = Record::new(*options);
        let user = fgraph::register_anywhere_with(record, filter, &looking::options())?;
        Ok(Self { user })
    }

    /// Returns the profile of the calls that have returned so far. The program runs on meanwhile.
    pub fn profile(&self) -> Profile {
        self.user.user().profile()
    }

    /// Ends profiling and returns the profile.
    ///
    /// # Errors
    ///
    /// [`InsideCallback`](Error::InsideCallback); profiling then ends with the callback.
    pub fn finish(self) -> Result<Profile, Error> {
        let record = self
            .user
            .unregister()
            .map_err(UnregisterError::into_error)?;
        Ok(record.profile())
    }
}

/// Profile of each thread.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Profile {
    /// The threads that live, and the last 64 that have ended. All others that have ended follow as
    /// one, with the id 0.
    pub threads: Vec<ThreadProfile>,
    /// Number of calls that are in no table for lack of memory.
    pub unrecorded: u64,
}

impl Profile {
    /// Returns the sum of all threads, with the id 0.
    #[must_use]
    pub fn together(&self) -> ThreadProfile {
        let mut functions: HashMap<u32, FunctionProfile> = HashMap::new();
        let mut edges: HashMap<(Option<u32>, u32), Edge> = HashMap::new();
        for thread in &self.threads {
            for function in &thread.functions {
                functions
                    .entry(function.function.index())
                    .and_modify(|sum| sum.add(function))
                    .or_insert_with(|| function.clone());
            }
            for edge in &thread.edges {
                edges
                    .entry((edge.caller.map(Function::index), edge.callee.index()))
                    .and_modify(|sum| sum.add(edge))
                    .or_insert_with(|| edge.clone());
            }
        }
        let mut together = ThreadProfile {
            thread: 0,
            functions: functions.into_values().collect(),
            edges: edges.into_values().collect(),
        };
        together.sort();
        together
    }
}

/// Profile of one thread.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ThreadProfile {
    /// Kernel id of the thread; 0 for the sum of several.
    pub thread: u32,
    /// Functions that have returned in the thread, the one with the most own time first.
    pub functions: Vec<FunctionProfile>,
    /// Pairs of caller and callee, by time.
    pub edges: Vec<Edge>,
}

impl ThreadProfile {
    fn sort(&mut self) {
        let time = |function: &FunctionProfile| {
            (std::cmp::Reverse(function.own), function.function.index())
        };
        self.functions.sort_by_key(time);
        let time = |edge: &Edge| (std::cmp::Reverse(edge.time), edge.callee.index());
        self.edges.sort_by_key(time);
    }

    /// Returns the first of the functions with one of these names.
    #[must_use]
    pub fn of(&self, name: &str) -> Option<&FunctionProfile> {
        let mut functions = self.functions.iter();
        functions.find(|row| row.function.names().any(|other| other == name))
    }

    /// Returns the callers of a function, the one with the most time first.
    pub fn callers(&self, function: Function) -> impl Iterator<Item = &Edge> {
        self.edges
            .iter()
            .filter(move |edge| edge.callee == function)
    }

    /// Returns the callees of a function, the one with the most time first.
    pub fn callees(&self, function: Function) -> impl Iterator<Item = &Edge> {
        let caller = Some(function);
        self.edges.iter().filter(move |edge| edge.caller == caller)
    }
}

/// Writes a table like the kernel's `trace_stat/function*`, with more columns.
impl fmt::Display for ThreadProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = [
            "Hit", "Total", "Self", "Avg", "Dev", "Min", "p50", "p99", "Max",
        ];
        write!(f, "{:<32}", "Function")?;
        for column in columns {
            write!(f, " {column:>13}")?;
        }
        writeln!(f)?;
        for row in &self.functions {
            let name = row.function.name();
            write!(f, "{:<32} {:>13}", name.as_str(), row.hits)?;
            let times = [
                row.total,
                row.own,
                row.average(),
                row.deviation(),
                row.min,
                row.percentile(50.0),
                row.percentile(99.0),
                row.max,
            ];
            for time in times {
                write!(f, " {:>10.3} us", time.as_secs_f64() * 1e6)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Times of the calls of one function.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FunctionProfile {
    /// The function.
    pub function: Function,
    /// Number of calls that have returned or were unwound.
    pub hits: u64,
    /// Time in the function and its callees; calls inside a call of it count once.
    pub total: Duration,
    /// Time in the function without the watched functions that it called.
    pub own: Duration,
    /// Time of the shortest call.
    pub min: Duration,
    /// Time of the longest call.
    pub max: Duration,
    /// Sum of the times of all calls, nested ones included, in nanoseconds.
    sum: u64,
    /// Sum of the squares of these times.
    squares: u128,
    /// Number of calls in each bucket of durations.
    counts: Box<[u64]>,
}

impl FunctionProfile {
    /// Returns the mean of the calls' times.
    #[must_use]
    pub fn average(&self) -> Duration {
        kernel::duration(self.sum / self.hits.max(1))
    }

    /// Returns the standard deviation of the calls' times, of a sample, as the kernel computes it;
    /// 0 for less than two calls.
    #[must_use]
    pub fn deviation(&self) -> Duration {
        let (hits, sum) = (u128::from(self.hits), u128::from(self.sum));
        let spread = (self.squares.saturating_mul(hits)).saturating_sub(sum.saturating_mul(sum));
        let variance = spread / (hits * hits.saturating_sub(1)).max(1);
        kernel::duration(variance.isqrt() as u64)
    }

    /// Returns the time that `percent` (0 to 100) of the calls did not exceed, to within a
    /// sixteenth.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> Duration {
        let highest =
            histogram::percentile::<BITS>(self.counts.iter().copied(), percent).unwrap_or(0);
        kernel::duration(highest).clamp(self.min, self.max)
    }

    fn add(&mut self, other: &Self) {
        self.hits += other.hits;
        self.total += other.total;
        self.own += other.own;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.sum += other.sum;
        self.squares += other.squares;
        for (sum, count) in self.counts.iter_mut().zip(&other.counts) {
            *sum += count;
        }
    }
}

/// Calls of one function by another.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Edge {
    /// Nearest watched function around the calls; `None` if there was none.
    pub caller: Option<Function>,
    /// Function that was called.
    pub callee: Function,
    /// Number of calls that have returned.
    pub hits: u64,
    /// Sum of the calls' times.
    pub time: Duration,
}

impl Edge {
    fn add(&mut self, other: &Self) {
        self.hits += other.hits;
        self.time += other.time;
    }
}
