//! The tracers of `fgraph-tracers`, switched on and off at random: what they have seen must be
//! exactly what was done.
//!
//! A thread of its own switches them, and calls a function that nobody else watches: of its calls
//! each tracer must have every one. The recorder must give every event that it has written, and
//! every loss, and have no more returns than entries.
//!
//! # Safety
//!
//! The unsafe code asks the system for a number.

use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use fgraph_trace::event::What;
use fgraph_trace::{Live, Source};
use fgraph_tracers::Tracer as _;
use fgraph_tracers::profiler::Profiler;
use fgraph_tracers::recorder::Recorder;
use fgraph_tracers::syscalls::Syscalls;

use super::{controllers, signals};
use crate::failures::{Failure, note};
use crate::figures::figures;
use crate::rng::Rng;

/// Number of slots of users that they take.
pub(super) const USERS: usize = 3;
/// Filter of all but the tracer of system calls, which watches the second anyway.
const FILTER: &str = "*fn_* *hostile_* getppid:mod:libc.so*";
/// The function that the thread calls.
const OWN: &str = "getppid";
/// Looks at what must come soon, a millisecond apart.
const PATIENCE: u32 = 2000;

figures! {
    /// Figures of what was done and seen.
    Figures { started, own_calls, events, lost_events, lines, }
}

/// The tracer of a failure.
#[derive(Clone, Copy)]
enum Of {
    RecorderWritten = 1,
    RecorderDropped,
    RecorderReturns,
    RecorderOwn,
    ProfilerOwn,
    SyscallsOwn,
}

fn check(of: Of, is: u64, should_be: u64) {
    if is != should_be {
        note(Failure::Seen, of as u64, is << 32 | should_be & 0xffff_ffff);
    }
}

fn refused(what: &str, error: &dyn std::fmt::Display) {
    eprintln!("{what}: {error}");
    note(Failure::Refused, u64::MAX, 5);
}

/// A recorder, and the events that were read from it.
struct Recording {
    recorder: Recorder,
    live: Live,
    /// Calls of this thread before it began.
    calls_before: u64,
    /// Number of times that signal handlers had left code before it began.
    left_before: u64,
    seen: Seen,
}

#[derive(Clone, Copy, Default)]
struct Seen {
    events: u64,
    lost: u64,
    entries: u64,
    returns: u64,
    own: u64,
}

impl Seen {
    fn read(&mut self, live: &mut Live, own_thread: u32) {
        let process = process::id();
        loop {
            let (is_ours, is_entry) = match live.next() {
                Ok(Some(event)) => match event.what {
                    What::Lost { events, .. } => {
                        self.lost += events;
                        continue;
                    }
                    What::Entry { .. } if event.process == process => {
                        self.entries += 1;
                        (event.thread == own_thread, true)
                    }
                    What::Return { .. } | What::Unwound { .. } if event.process == process => {
                        self.returns += 1;
                        (false, false)
                    }
                    _ => (false, false),
                },
                Ok(None) => return,
                Err(error) => return refused("reading rings", &error),
            };
            self.events += 1;
            self.own += u64::from(is_ours && is_entry);
        }
    }
}

impl Recording {
    fn start(calls_before: u64) -> Option<Self> {
        let recorder = Recorder::start(FILTER).map_err(|error| refused("recorder", &error));
        let recorder = recorder.ok()?;
        let live = recorder
            .consume()
            .map_err(|error| refused("reader", &error));
        Some(Self {
            live: live.ok()?,
            recorder,
            calls_before,
            left_before: signals::handled()[1],
            seen: Seen::default(),
        })
    }

    /// Ends it and checks what it has told.
    fn end(mut self, figures: &mut Figures) {
        let thread = fgraph::thread_id();
        // Calls that are lost until now were entered before.
        let lost = self.recorder.counters().lost;
        let rings = self.recorder.rings().clone();
        // This leaves the rings as they are. A child that was forked may still write to them.
        drop(self.recorder);
        let sums = || {
            let sums = rings.counts().map(|ring| [ring.written, ring.dropped]);
            sums.fold([0, 0], |[a, b], [c, d]| [a + c, b + d])
        };
        let mut patience = PATIENCE;
        while self.seen.events != sums()[0] && patience != 0 {
            thread::sleep(Duration::from_millis(1));
            self.seen.read(&mut self.live, thread);
            patience -= 1;
        }
        rings.finish();
        self.seen.read(&mut self.live, thread);
        let [written, dropped] = sums();
        let seen = self.seen;
        check(Of::RecorderWritten, seen.events, written);
        check(Of::RecorderDropped, seen.lost, dropped);
        if dropped == 0 && rings.events_without_ring() == 0 {
            check(
                Of::RecorderOwn,
                seen.own,
                figures.own_calls - self.calls_before,
            );
            // Where a signal handler has left a callback, its call may be on one side only; and
            // what is left on the stacks of coroutines nobody counts as lost.
            let [_, left, _] = signals::handled();
            let most = seen.entries + (left - self.left_before);
            if seen.returns + lost > most {
                check(Of::RecorderReturns, seen.returns + lost, most);
            }
        }
        figures.events += seen.events;
        figures.lost_events += seen.lost;
    }
}

/// A profiler, and the calls of this thread before it began.
struct Profiling(Profiler, u64);

impl Profiling {
    fn end(self, figures: &Figures) {
        let Self(profiler, calls_before) = self;
        let profile = match profiler.finish() {
            Ok(profile) => profile,
            Err(error) => return refused("profiler", &error),
        };
        let thread = fgraph::thread_id();
        let own = profile
            .threads
            .iter()
            .find(|profile| profile.thread == thread);
        let hits = own.and_then(|own| own.of(OWN)).map_or(0, |row| row.hits);
        check(Of::ProfilerOwn, hits, figures.own_calls - calls_before);
    }
}

/// A tracer of system calls, and what its lines have told.
struct Calling {
    syscalls: Syscalls,
    /// Calls of this thread before it began.
    calls_before: u64,
    own_lines: u64,
}

impl Calling {
    fn read(&mut self, figures: &mut Figures) {
        let end = format!(" thread: {} data: \n", fgraph::thread_id());
        while let Some(line) = self.syscalls.read_line(Duration::ZERO) {
            figures.lines += 1;
            self.own_lines += u64::from(line.contains("getppid)") && line.contains(end.trim_end()));
        }
    }

    fn end(mut self, figures: &mut Figures) {
        // A line is behind those that other threads have begun before.
        let mut patience = PATIENCE;
        let own_calls = figures.own_calls - self.calls_before;
        self.read(figures);
        while self.own_lines != own_calls && patience != 0 {
            thread::sleep(Duration::from_millis(1));
            self.read(figures);
            patience -= 1;
        }
        if self.syscalls.dropped() == 0 {
            check(Of::SyscallsOwn, self.own_lines, own_calls);
        }
    }
}

/// The tracers that are at work.
#[derive(Default)]
pub(super) struct Tracers {
    recording: Option<Recording>,
    profiling: Option<Profiling>,
    calling: Option<Calling>,
    figures: Figures,
}

/// Switches tracers on and off until it is over. Gives them back, some of them at work.
pub(super) fn control(mut rng: Rng, is_over: &AtomicBool) -> Figures {
    let mut tracers = Tracers::default();
    while !is_over.load(Ordering::Relaxed) {
        tracers.switch(rng.below(USERS));
        for _ in 0..rng.below(4) {
            tracers.call(rng.below(200) as u64);
            tracers.read();
            thread::sleep(Duration::from_micros(rng.below(3000) as u64));
        }
    }
    tracers.end()
}

impl Tracers {
    fn switch(&mut self, which: usize) {
        let _turn = controllers::turn();
        let figures = &mut self.figures;
        let calls_before = figures.own_calls;
        match which {
            0 => match self.recording.take() {
                Some(recording) => recording.end(figures),
                None => self.recording = Recording::start(calls_before),
            },
            1 => match self.profiling.take() {
                Some(profiling) => profiling.end(figures),
                None => match Profiler::start(FILTER) {
                    Ok(profiler) => self.profiling = Some(Profiling(profiler, calls_before)),
                    Err(error) => refused("profiler", &error),
                },
            },
            _ => match self.calling.take() {
                Some(calling) => calling.end(figures),
                None => match Syscalls::start() {
                    Ok(syscalls) => {
                        self.calling = Some(Calling {
                            syscalls,
                            calls_before,
                            own_lines: 0,
                        });
                    }
                    Err(error) => refused("syscalls", &error),
                },
            },
        }
        figures.started += 1;
    }

    /// Makes calls of the function that only tracers watch.
    fn call(&mut self, calls: u64) {
        for _ in 0..calls {
            // SAFETY: it only asks for a number.
            unsafe { libc::getppid() };
        }
        self.figures.own_calls += calls;
    }

    fn read(&mut self) {
        if let Some(recording) = &mut self.recording {
            recording
                .seen
                .read(&mut recording.live, fgraph::thread_id());
        }
        if let Some(calling) = &mut self.calling {
            calling.read(&mut self.figures);
        }
    }

    /// Ends those that are at work.
    fn end(mut self) -> Figures {
        let _turn = controllers::turn();
        if let Some(recording) = self.recording.take() {
            recording.end(&mut self.figures);
        }
        if let Some(profiling) = self.profiling.take() {
            profiling.end(&self.figures);
        }
        if let Some(calling) = self.calling.take() {
            calling.end(&mut self.figures);
        }
        self.figures
    }
}
