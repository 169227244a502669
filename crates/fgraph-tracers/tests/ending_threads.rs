//! Tracers of the whole C library that begin and end while threads do: these block all signals
//! then, and die if they meet a trap.

use std::time::Duration;

use fgraph_scenario::{scenario, while_threads_come_and_go};
use fgraph_tracers::profiler::Profiler;
use fgraph_tracers::recorder::Recorder;
use fgraph_tracers::watchdog::Watchdog;

const FILTER: &str = ":mod:libc.so*";

/// Starts and ends tracers while threads start and end.
fn while_threads_do(mut begin_and_end: impl FnMut()) {
    while_threads_come_and_go(|| (), || (0..60).for_each(|_| begin_and_end()));
}

#[scenario]
fn a_recorder_begins_and_ends_while_threads_do() {
    while_threads_do(|| {
        Recorder::start(FILTER).unwrap().finish().unwrap();
    });
}

#[scenario]
fn a_profiler_begins_and_ends_while_threads_do() {
    while_threads_do(|| {
        Profiler::start(FILTER).unwrap().finish().unwrap();
    });
}

#[scenario]
fn a_watchdog_begins_and_ends_while_threads_do() {
    while_threads_do(|| {
        drop(Watchdog::start(FILTER, Duration::from_secs(9)).unwrap());
    });
}
