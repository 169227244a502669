//! Users of `fgraph-tracers`: cost of each on the functions of the cases, or on functions of its
//! own.

use core::fmt;
use core::hint::black_box;
use core::iter;
use std::any::Any;
use std::error::Error;
use std::time::{Duration, Instant};

use fgraph_trace::ring::{Mode, RingOptions};
use fgraph_tracers::locks::LockTracer;
use fgraph_tracers::outliers::{Limits, Outliers};
use fgraph_tracers::probe::{Probe, probe};
use fgraph_tracers::profiler::Profiler;
use fgraph_tracers::recorder::{self, Recorder};
use fgraph_tracers::stack::StackTracer;
use fgraph_tracers::syscalls::Syscalls;
use fgraph_tracers::threads::{Rule, ThreadChecker};
use fgraph_tracers::watchdog::Watchdog;

use crate::functions::{BYSTANDER, WATCHED};

/// Tracer whose functions can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracer {
    /// Records into rings that are overwritten.
    Recorder,
    /// Same as `Recorder`, with two arguments and the result of each call.
    RecorderWithValues,
    /// Measures times, callers and callees.
    Profiler,
    /// A probe with empty closures.
    Probe,
    /// Same as `Probe`, with enough others of another function that it shares a slot.
    SharedProbe,
    /// Same as `Probe`, with 99 others of another function.
    HundredProbes,
    /// Keeps the deepest stack.
    Stack,
    /// Reports calls that take longer than a second: none.
    Watchdog,
    /// Keeps the ten slowest calls.
    Outliers,
    /// Checks functions that only the main thread may call, which does.
    Threads,
}

/// Running tracer, until it is dropped.
pub type Active = Box<dyn Any>;

impl Tracer {
    /// All of them, each with its name in a table.
    pub const ALL: [(Self, &'static str); 10] = [
        (Self::Recorder, "recorder"),
        (Self::RecorderWithValues, "recorder, with values"),
        (Self::Profiler, "profiler"),
        (Self::Probe, "probe"),
        (Self::SharedProbe, "probe, beside 4 others"),
        (Self::HundredProbes, "probe, beside 99 others"),
        (Self::Stack, "stack"),
        (Self::Watchdog, "watchdog"),
        (Self::Outliers, "outliers"),
        (Self::Threads, "threads"),
    ];

    /// Makes it watch the patchable functions.
    pub fn set_up(self) -> Result<Active, Box<dyn Error>> {
        Ok(match self {
            Self::Recorder => Box::new(record(0)?),
            Self::RecorderWithValues => Box::new(record(2)?),
            Self::Profiler => Box::new(Profiler::start(WATCHED)?),
            Self::Probe => Box::new(empty_probe(WATCHED)?),
            Self::SharedProbe => Box::new(probe_beside(4)?),
            Self::HundredProbes => Box::new(probe_beside(99)?),
            Self::Stack => Box::new(StackTracer::start(WATCHED)?),
            Self::Watchdog => Box::new(Watchdog::start(WATCHED, Duration::from_secs(1))?),
            Self::Outliers => {
                let limits = Limits {
                    calls: 10,
                    nodes: 1000,
                };
                Box::new(Outliers::start(WATCHED, WATCHED, limits)?)
            }
            Self::Threads => Box::new(ThreadChecker::start([(Rule::MainOnly, WATCHED)])?),
        })
    }
}

impl fmt::Display for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Self::ALL.iter().find(|(tracer, _)| tracer == self);
        f.pad(named.map_or("?", |(_, name)| name))
    }
}

fn record(arguments: usize) -> Result<Recorder, recorder::RecordError> {
    let options = recorder::Options {
        rings: RingOptions {
            mode: Mode::Overwrite,
            ..RingOptions::default()
        },
        arguments,
        result: arguments != 0,
        ..recorder::Options::default()
    };
    let recorder = Recorder::start_with(WATCHED, &options)?;
    // Code that is not optimised does not show which registers it changes.
    if !cfg!(debug_assertions) {
        let found = recorder
            .fast_path()
            .map_err(recorder::RecordError::Register)?;
        assert_eq!(found, fgraph::FastPath::Eligible);
    }
    Ok(recorder)
}

fn empty_probe(filter: &str) -> Result<Probe, fgraph::Error> {
    let probe = probe(filter).on_entry(|_| Some(())).on_return(|_, ()| {});
    // SAFETY: the closures do nothing.
    unsafe { probe.start() }
}

/// Makes a probe behind this number of probes of another function.
fn probe_beside(others: usize) -> Result<Vec<Probe>, fgraph::Error> {
    let filters = iter::repeat_n(BYSTANDER, others).chain([WATCHED]);
    filters.map(empty_probe).collect()
}

/// Tracer that watches functions of the C library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Own {
    /// Locks and unlocks a mutex without contention.
    Locks,
    /// Traces `getppid`, and makes a line for it.
    Syscalls,
}

impl Own {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Locks, Self::Syscalls];

    /// Times `calls` calls of its functions, without it.
    pub fn time_plain(self, calls: u64) -> Duration {
        let start = Instant::now();
        match self {
            Self::Locks => lock_and_unlock(calls),
            Self::Syscalls => {
                for _ in 0..calls {
                    // SAFETY: `getppid` has no effects.
                    black_box(unsafe { libc::getppid() });
                }
            }
        }
        start.elapsed()
    }

    /// Times `calls` calls of its functions with it: the shortest of several times.
    pub fn time(self, calls: u64, times: usize) -> Result<Duration, fgraph::Error> {
        let times = 0..times;
        let shortest = match self {
            Self::Locks => {
                let _tracer = LockTracer::start()?;
                times.map(|_| self.time_plain(calls)).min()
            }
            Self::Syscalls => {
                let tracer = Syscalls::start()?;
                let time = |_| {
                    let time = self.time_plain(calls);
                    // Adding to a full queue takes less time.
                    while tracer.read_line(Duration::ZERO).is_some() {}
                    time
                };
                times.map(time).min()
            }
        };
        Ok(shortest.unwrap_or(Duration::MAX))
    }
}

impl fmt::Display for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Locks => "locks: mutex, or its unlock",
            Self::Syscalls => "syscalls: getppid",
        })
    }
}

fn lock_and_unlock(calls: u64) {
    let mut mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    let mutex = black_box(&raw mut mutex);
    for _ in 0..calls / 2 {
        // SAFETY: the mutex is live and unlocked, then locked by this thread.
        unsafe {
            libc::pthread_mutex_lock(mutex);
            libc::pthread_mutex_unlock(mutex);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::{Function, Variant};

    #[test]
    fn all_tracers_watch_the_functions() {
        for (tracer, _) in Tracer::ALL {
            let active = tracer.set_up().unwrap();
            assert_eq!(
                Function::Leaf.run(Variant::Patchable, 10),
                Function::Leaf.run(Variant::Plain, 10)
            );
            if let Some(probe) = active.downcast_ref::<Probe>() {
                assert_eq!(probe.hits(), 10);
            }
        }
        for own in Own::ALL {
            assert!(own.time(10, 2).unwrap() > Duration::ZERO);
        }
    }
}
