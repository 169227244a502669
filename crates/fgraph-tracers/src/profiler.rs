//! Where the time goes: how often each function is called, how long that takes, and who calls whom.
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

mod record;
mod table;

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use fgraph::{Error, Function, Handle, IntoFilter};

use crate::support::looking;
use crate::support::{histogram, kernel};
use record::Record;

/// Which times are taken. The defaults are the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// `graph-time`: the time of a call includes that of the watched calls inside it. Without, all
    /// times of a function are its own.
    pub graph_time: bool,
    /// `sleep-time`: times are those of the wall clock. Without, they are those of the thread's own
    /// clock, which stands still while the thread sleeps or waits for a processor. That takes a
    /// system call at each entry and return, and a call that begins in one thread and ends in
    /// another takes no time.
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

/// A profiler at work; dropping it ends it.
///
/// Times are those of the wall clock, so that a call also costs what it waits for, unless
/// [`Options`] say otherwise. What a function spends in others that are watched is not its *own*;
/// calls of a function within a call of it are in its *total* once.
///
/// A traced call takes two readings of the clock more than with an empty user, and some ten loads
/// and stores, into tables that are the thread's own. For each function that a thread calls they
/// take 8 KiB, of which those are used that have the times which occur, and 128 bytes for each pair
/// of a function and its caller. A new thread goes on with the tables of one that has ended, where
/// they take as much again for the calls of the threads before.
///
/// On the stacks of coroutines and of signal handlers a call's own time is its whole time.
#[derive(Debug)]
pub struct Profiler {
    user: Handle<Record>,
}

crate::tracer::tracer!(Profiler);

impl Profiler {
    /// Starts profiling the functions that `filter` selects. Takes 2 ms more than that, for finding
    /// out how fast the clock is.
    ///
    /// # Errors
    ///
    /// As for [`fgraph::register`].
    pub fn start(filter: impl IntoFilter) -> Result<Self, Error> {
        Self::start_with(filter, &Options::default())
    }

    /// As [`start`](Self::start), with options.
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
    /// As for [`fgraph::register`].
    pub fn start_with(filter: impl IntoFilter, options: &Options) -> Result<Self, Error> {
        // SAFETY: the callbacks use the clock, atomics, and memory that they map.
        let user =
            unsafe { fgraph::register_with(Record::new(*options), filter, &looking::options()) }?;
        Ok(Self { user })
    }

    /// What was gathered until now, of calls that have returned. The program goes on meanwhile.
    pub fn profile(&self) -> Profile {
        self.user.profile()
    }

    /// Ends profiling and says what was gathered.
    ///
    /// # Errors
    ///
    /// [`InsideCallback`](Error::InsideCallback); then it ends when the callback is done.
    pub fn finish(self) -> Result<Profile, Error> {
        let record = self.user.unregister().map_err(|failed| failed.error)?;
        Ok(record.profile())
    }
}

/// What was gathered, of each thread.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// The threads that live, and the last 64 that have ended; then, with the id 0, all others that
    /// have ended as one.
    pub threads: Vec<ThreadProfile>,
    /// Calls that are in no table because there was no memory.
    pub unrecorded: u64,
}

impl Profile {
    /// All threads as one, whose id is 0.
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

/// What was gathered in one thread.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ThreadProfile {
    /// The kernel's id of the thread; 0 for several as one.
    pub thread: u32,
    /// The functions that have returned there, that with the most time of its own first.
    pub functions: Vec<FunctionProfile>,
    /// Which function has called which, by time.
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

    /// The first of the functions with one of these names.
    #[must_use]
    pub fn of(&self, name: &str) -> Option<&FunctionProfile> {
        let mut functions = self.functions.iter();
        functions.find(|row| row.function.names().any(|other| other == name))
    }

    /// Who has called a function, that with the most time first.
    pub fn callers(&self, function: Function) -> impl Iterator<Item = &Edge> {
        self.edges
            .iter()
            .filter(move |edge| edge.callee == function)
    }

    /// What a function has called, that with the most time first.
    pub fn callees(&self, function: Function) -> impl Iterator<Item = &Edge> {
        let caller = Some(function);
        self.edges.iter().filter(move |edge| edge.caller == caller)
    }
}

/// A table as the kernel's `trace_stat/function*`, with more columns.
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

/// What calls of one function took.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FunctionProfile {
    /// The function.
    pub function: Function,
    /// Calls that have returned, those that were unwound included.
    pub hits: u64,
    /// Time in the function and in all that it called; calls within a call of it count once.
    pub total: Duration,
    /// Time in the function but for the watched functions that it called.
    pub own: Duration,
    /// The shortest call.
    pub min: Duration,
    /// The longest call.
    pub max: Duration,
    /// The sum of all calls' times, also of those within others, in nanoseconds.
    sum: u64,
    /// The sum of the squares of these.
    squares: u128,
    /// How many calls took how long, by buckets.
    counts: Box<[u64]>,
}

impl FunctionProfile {
    /// The mean of the calls' times.
    #[must_use]
    pub fn average(&self) -> Duration {
        kernel::duration(self.sum / self.hits.max(1))
    }

    /// The standard deviation of the calls' times, of a sample as the kernel computes it; 0 for
    /// less than two calls.
    #[must_use]
    pub fn deviation(&self) -> Duration {
        let (hits, sum) = (u128::from(self.hits), u128::from(self.sum));
        let spread = (self.squares.saturating_mul(hits)).saturating_sub(sum.saturating_mul(sum));
        let variance = spread / (hits * hits.saturating_sub(1)).max(1);
        kernel::duration(variance.isqrt() as u64)
    }

    /// The time that `percent` (0 to 100) of the calls did not exceed, to within a sixteenth.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> Duration {
        let highest = histogram::percentile(&self.counts, percent).unwrap_or(0);
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
    /// The nearest watched function around the calls; `None` if there was none.
    pub caller: Option<Function>,
    /// The function that was called.
    pub callee: Function,
    /// Calls that have returned.
    pub hits: u64,
    /// The sum of the calls' times.
    pub time: Duration,
}

impl Edge {
    fn add(&mut self, other: &Self) {
        self.hits += other.hits;
        self.time += other.time;
    }
}
