//! All tracers of `fgraph-tracers` at once, beside the users that count.

use std::sync::Arc;
use std::time::Duration;

use fgraph_trace::Source as _;
use fgraph_trace::event::What;
use fgraph_trace::ring::{Mode, RingOptions};
use fgraph_tracers::locks::LockTracer;
use fgraph_tracers::outliers::{Limits, Outliers};
use fgraph_tracers::probe::{Probe, probe};
use fgraph_tracers::profiler::Profiler;
use fgraph_tracers::recorder::{Options, Recorder};
use fgraph_tracers::stack::StackTracer;
use fgraph_tracers::syscalls::Syscalls;
use fgraph_tracers::threads::{Rule, ThreadChecker};
use fgraph_tracers::watchdog::Watchdog;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The tracers, while they are at work.
#[derive(Debug)]
pub(crate) struct Tracers {
    recorder: Recorder,
    profiler: Profiler,
    probe: Probe,
    stack: StackTracer,
    watchdog: Watchdog,
    outliers: Outliers,
    threads: ThreadChecker,
    locks: LockTracer,
    syscalls: Syscalls,
}

/// Longer than any call of a test takes.
const LATE: Duration = Duration::from_secs(3600);

impl Tracers {
    /// Starts them, those that have a filter with this one.
    pub(crate) fn start(filter: &str) -> Result<Self> {
        let options = Options {
            rings: RingOptions {
                mode: Mode::Overwrite,
                ..RingOptions::default()
            },
            ..Options::default()
        };
        let empty = probe(filter).on_entry(|_| Some(())).on_return(|_, ()| {});
        let limits = Limits {
            calls: 5,
            nodes: 1000,
        };
        Ok(Self {
            recorder: Recorder::start_with(filter, &options)?,
            profiler: Profiler::start(filter)?,
            // SAFETY: its closures do nothing.
            probe: unsafe { empty.start() }?,
            stack: StackTracer::start(filter)?,
            watchdog: Watchdog::start(filter, LATE)?,
            outliers: Outliers::start(filter, filter, limits)?,
            threads: ThreadChecker::start([(Rule::MainOnly, filter)])?,
            locks: LockTracer::start()?,
            syscalls: Syscalls::start()?,
        })
    }

    /// Ends them, and says in names and figures what they have seen.
    pub(crate) fn end(self) -> Result<Vec<(&'static str, u64)>> {
        let probe = [self.probe.hits(), self.probe.missed()];
        let late = self.watchdog.late().len();
        let slowest = self.outliers.slowest();
        let stacks = self.stack.deepest();
        let wrong = self.threads.violations().len();
        let locks = self.locks.locks().len();
        let mut lines = 0;
        while let Some(line) = self.syscalls.read_line(Duration::ZERO) {
            lines += u64::from(line.ends_with('\n') && line.contains(" Syscall "));
        }
        let unread = self.syscalls.dropped();
        let profile = self.profiler.finish()?.together();
        let hits = profile.functions.iter().map(|row| row.hits).sum();
        let of_edges = profile.edges.iter().map(|edge| edge.hits).sum();
        let rings = self.recorder.finish()?;
        let written = rings.counts().map(|ring| ring.written).sum();
        let mut live = fgraph_trace::Live::watch(Arc::clone(&rings));
        let mut told = 0;
        while let Some(event) = live.next()? {
            told += match event.what {
                What::Lost { events, .. } => events,
                _ => 1,
            };
        }
        Ok(vec![
            ("recorder_written", written),
            ("recorder_told", told),
            ("recorder_without_ring", rings.events_without_ring()),
            ("profiler_hits", hits),
            ("profiler_edges", of_edges),
            ("probe_hits", probe[0]),
            ("probe_missed", probe[1]),
            ("stack_threads", stacks.len() as u64),
            ("watchdog_late", late as u64),
            ("outliers", slowest.len() as u64),
            ("threads_wrong", wrong as u64),
            ("locks", locks as u64),
            ("syscalls_lines", lines),
            ("syscalls_dropped", unread),
        ])
    }
}
