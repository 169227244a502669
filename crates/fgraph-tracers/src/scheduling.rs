//! The states of a program's threads, from the kernel: running, waiting for a processor, blocked.
//!
//! The kernel's perf events report each switch of a processor from one thread to another. They need
//! no rights beyond those of a debugger, but containers and distributions may refuse them. Then the
//! times of each thread in `/proc` are read again and again.
//!
//! Write the changes of [`Scheduling::read`] to a recording with
//! [`Drain::schedule`](fgraph_trace::recording::Drain::schedule).
//!
//! ```
//! use fgraph_trace::clock::{Clock, ClockKind};
//! use fgraph_tracers::scheduling::Scheduling;
//!
//! let mut scheduling = Scheduling::of_this_process(Clock::start(ClockKind::Monotonic));
//! std::thread::sleep(std::time::Duration::from_millis(30));
//! let (changes, lost) = scheduling.read(true).expect("the last read has all");
//! println!("{} changes, {lost} lost", changes.len());
//! ```

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use fgraph_trace::clock::{Anchor, Clock, ClockKind};
use fgraph_trace::schedule::{Change, State};
use perf_event::events::Software;
use perf_event::{Builder, Counter, SampleFlag, Sampler};
use rustix::process::{Resource, getrlimit, setrlimit};

/// The sizes of each processor's buffer that are tried, in bytes: a switch takes 32. The first one
/// just fits the default of `perf_event_mlock_kb`.
const ROOMS: [usize; 4] = [1 << 19, 1 << 18, 1 << 16, 1 << 14];
/// The time between two reads of the buffers.
const STEP: Duration = Duration::from_millis(10);
/// Switches of this last time, in nanoseconds, may still be missing in the buffer of another
/// processor.
const UNSETTLED: u64 = 1_000_000;
/// The shortest time between two samples.
const PERIOD: Duration = Duration::from_millis(20);
/// Sampling takes at most one part in this many of a processor's time.
const SHARE: u32 = 50;
/// The most searches for threads that are made while events are opened.
const ROUNDS: usize = 20;
/// The number of samples between two searches for new processes.
const SEARCHES: u32 = 10;

/// `PERF_RECORD_LOST`.
const LOST: u32 = 2;
/// `PERF_RECORD_SWITCH`.
const SWITCH: u32 = 14;
/// `PERF_RECORD_MISC_SWITCH_OUT`.
const OUT: u16 = 1 << 13;
/// `PERF_RECORD_MISC_SWITCH_OUT_PREEMPT`: the thread could have gone on.
const PREEMPTED: u16 = 1 << 14;
/// Ids by which the kernel names a thread that is ending and has no id any more.
const NO_THREAD: [u32; 2] = [0, u32::MAX];
/// `PERF_EVENT_IOC_SET_OUTPUT`.
const SET_OUTPUT: libc::c_ulong = 0x2405;

/// Follows the states of a program's threads, and of those of its children.
#[derive(Debug)]
pub struct Scheduling {
    source: Source,
    clock: Clock,
    /// The clocks at the last read, and at the last one that was long enough before.
    readings: Readings,
    /// The threads by the ids that they have here. In a container they have others.
    threads: HashMap<u32, u32>,
    looked: Instant,
    changes: Vec<(u32, Change)>,
    lost: u64,
}

#[derive(Debug)]
enum Source {
    Exact(Exact),
    Sampled(Sampled),
}

/// A switch as the kernel reports it.
#[derive(Clone, Copy, Debug)]
struct Switch {
    /// Nanoseconds of the monotonic clock.
    time: u64,
    thread: u32,
    state: State,
    cpu: u32,
}

/// The kernel's events.
#[derive(Default)]
struct Exact {
    /// The buffer of each processor.
    buffers: HashMap<usize, Sampler>,
    /// Events of further threads, which use the same buffers.
    others: Vec<Counter>,
    /// Switches that may not be the next ones.
    pending: Vec<Switch>,
}

impl std::fmt::Debug for Exact {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exact")
            .field("buffers", &self.buffers.len())
            .field("others", &self.others.len())
            .finish_non_exhaustive()
    }
}

/// Samples of the times in `/proc`.
#[derive(Debug)]
struct Sampled {
    processes: Vec<u32>,
    /// The time until the next sample.
    period: Duration,
    count: u32,
}

impl Scheduling {
    /// Starts with the programs that the calling thread starts from now on. Pass the process to
    /// [`set_process`](Self::set_process) then.
    #[must_use]
    pub fn of_next(clock: Clock) -> Self {
        Self::new(clock, Exact::of_next())
    }

    /// Starts with the threads of a process. Their events take a descriptor for each thread and
    /// processor: the limit of open files of the calling process is raised where that is allowed.
    #[must_use]
    pub fn of_process(clock: Clock, process: u32) -> Self {
        Self::of(clock, &[process], true)
    }

    /// Starts with the threads of several processes, as [`of_process`](Self::of_process) does with
    /// those of one.
    #[must_use]
    pub fn of_processes(clock: Clock, processes: &[u32]) -> Self {
        Self::of(clock, processes, true)
    }

    /// Starts with the threads of the calling process. The limit of open files stays; if it is too
    /// low for the events, the states are from samples.
    #[must_use]
    pub fn of_this_process(clock: Clock) -> Self {
        Self::of(clock, &[std::process::id()], false)
    }

    fn of(clock: Clock, processes: &[u32], raises_limit: bool) -> Self {
        let mut this = Self::new(clock, Exact::of_processes(processes, raises_limit));
        if let Source::Sampled(sampled) = &mut this.source {
            sampled.processes = processes.to_owned();
        }
        this
    }

    fn new(clock: Clock, exact: io::Result<Exact>) -> Self {
        Self {
            source: match exact {
                Ok(exact) if !exact.buffers.is_empty() => Source::Exact(exact),
                _ => Source::Sampled(Sampled::new()),
            },
            clock,
            readings: Readings::start(clock.kind()),
            threads: HashMap::new(),
            looked: Instant::now(),
            changes: Vec::new(),
            lost: 0,
        }
    }

    /// Sets the process that was started after [`of_next`](Self::of_next).
    pub fn set_process(&mut self, process: u32) {
        if let Source::Sampled(sampled) = &mut self.source {
            sampled.processes = vec![process];
        }
    }

    /// Reads the news of threads' states, in the order of time for each thread, and the number of
    /// changes that the kernel had no room to report. Call it often; most calls only check the
    /// time, unless this is the last one.
    pub fn read(&mut self, is_last: bool) -> Option<(&[(u32, Change)], u64)> {
        let step = match &self.source {
            Source::Exact(_) => STEP,
            Source::Sampled(sampled) => sampled.period,
        };
        if !is_last && self.looked.elapsed() < step {
            return None;
        }
        self.looked = Instant::now();
        self.readings.add(Anchor::now(self.clock.kind()));
        let readings = self.readings;
        self.changes.clear();
        match &mut self.source {
            Source::Exact(exact) => {
                let settled = match is_last {
                    true => u64::MAX,
                    false => readings.now.monotonic.saturating_sub(UNSETTLED),
                };
                self.lost = exact.read();
                exact.settle(settled, |switch| {
                    let Switch { state, cpu, .. } = switch;
                    let change = Change::Switch {
                        time: readings.ticks(switch.time),
                        state,
                        cpu: Some(cpu),
                    };
                    self.changes.push((switch.thread, change));
                });
            }
            Source::Sampled(sampled) => {
                let clock = self.clock;
                sampled.read(|thread, [running, runnable]| {
                    // By one rate for all samples: these are sums since the thread's beginning.
                    let change = Change::Sample {
                        time: Anchor::now(clock.kind()).ticks,
                        running: clock.ticks(running),
                        runnable: clock.ticks(runnable),
                    };
                    self.changes.push((thread, change));
                });
            }
        }
        for (thread, _) in &mut self.changes {
            let here = *thread;
            *thread = *self.threads.entry(here).or_insert_with(|| inner(here));
        }
        // Stable, so that a thread's changes stay in order.
        self.changes.sort_by_key(|&(thread, _)| thread);
        Some((&self.changes, self.lost))
    }
}

/// Readings of the clocks, by which the kernel's times are converted to ticks.
#[derive(Clone, Copy, Debug)]
struct Readings {
    clock: ClockKind,
    /// At least a [`STEP`] before `now`, if there was such a reading.
    before: Anchor,
    now: Anchor,
}

impl Readings {
    fn start(clock: ClockKind) -> Self {
        let now = Anchor::now(clock);
        let before = now;
        Self { clock, before, now }
    }

    /// Adds a later reading.
    fn add(&mut self, next: Anchor) {
        // The error of a reading is a part of the time between two, so that must not be short.
        let since = next.monotonic.saturating_sub(self.now.monotonic);
        if u128::from(since) >= STEP.as_nanos() {
            self.before = self.now;
        }
        self.now = next;
    }

    /// Converts a time of the monotonic clock.
    fn ticks(&self, monotonic: u64) -> u64 {
        if self.clock == ClockKind::Monotonic {
            return monotonic;
        }
        let Self { before, now, .. } = self;
        let wide = i128::from;
        let ticks = wide(now.ticks) - wide(before.ticks);
        let ns = (wide(now.monotonic) - wide(before.monotonic)).max(1);
        let since = wide(monotonic) - wide(before.monotonic);
        u64::try_from(wide(before.ticks) + since * ticks / ns).unwrap_or(0)
    }
}

/// Returns the id that a thread has in its own namespace.
fn inner(thread: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let last = ids.and_then(|ids| ids.split_whitespace().last());
    last.and_then(|id| id.parse().ok()).unwrap_or(thread)
}

/// Returns the entries of a directory that are numbers, as those for threads in `/proc`.
fn numbers(directory: &str) -> Vec<u32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.collect()
}

impl Exact {
    /// Starts with the programs that the calling thread starts from now on.
    fn of_next() -> io::Result<Self> {
        let mut this = Self::default();
        this.add(&[None], false)?;
        Ok(this)
    }

    /// Starts with the threads of processes.
    fn of_processes(processes: &[u32], raises_limit: bool) -> io::Result<Self> {
        let tasks = |process: &u32| numbers(&format!("/proc/{process}/task"));
        let mut this = Self::default();
        let mut known = HashSet::new();
        // Each round finds the threads that were made meanwhile by threads without an event. One
        // that two events report is no harm.
        for _ in 0..ROUNDS {
            let all = processes.iter().flat_map(tasks);
            let new: Vec<_> = all.filter(|it| known.insert(*it)).map(Some).collect();
            if new.is_empty() {
                break;
            }
            this.add(&new, raises_limit)?;
        }
        Ok(this)
    }

    /// Adds threads; `None` stands for the calling one, whose children begin with their `execve`.
    fn add(&mut self, threads: &[Option<u32>], raises_limit: bool) -> io::Result<()> {
        // SAFETY: a system call that says how many processors there are.
        let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
        let processors = usize::try_from(processors).map_err(io::Error::other)?;
        let count = self.buffers.len() + self.others.len() + threads.len() * processors;
        if threads != [None] {
            allow_descriptors(count, raises_limit)?;
        }
        for processor in 0..processors {
            for &thread in threads {
                let counter = match event(thread, processor).build() {
                    // The processor is switched off, or the thread has ended.
                    Err(error)
                        if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ESRCH)) =>
                    {
                        continue;
                    }
                    counter => counter?,
                };
                let Some(buffer) = self.buffers.get(&processor) else {
                    let buffer = map(counter, thread, processor)?;
                    self.buffers.insert(processor, buffer);
                    continue;
                };
                let (from, to) = (counter.as_raw_fd(), buffer.as_raw_fd());
                // SAFETY: both are descriptors of perf events, open here.
                if unsafe { libc::ioctl(from, SET_OUTPUT, to) } != 0 {
                    return Err(io::Error::last_os_error());
                }
                self.others.push(counter);
            }
        }
        Ok(())
    }

    /// Reads all buffers, and returns the number of lost switches.
    fn read(&mut self) -> u64 {
        let mut lost: u64 = 0;
        for buffer in self.buffers.values_mut() {
            while let Some(record) = buffer.next_record() {
                let bytes = record.to_contiguous();
                let word = |at: usize| {
                    let bytes = bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
                    bytes.map_or(0, u64::from_ne_bytes)
                };
                match record.ty() {
                    LOST => lost = lost.saturating_add(word(8)),
                    SWITCH => {
                        let misc = record.misc();
                        let thread = (word(0) >> 32) as u32;
                        if NO_THREAD.contains(&thread) {
                            continue;
                        }
                        self.pending.push(Switch {
                            time: word(8),
                            thread,
                            state: match (misc & OUT, misc & PREEMPTED) {
                                (0, _) => State::Running,
                                (_, 0) => State::Blocked,
                                _ => State::Runnable,
                            },
                            cpu: word(16) as u32,
                        });
                    }
                    _ => {}
                }
            }
        }
        self.pending.sort_by_key(|switch| switch.time);
        lost
    }

    /// Passes the switches before a time on, in order.
    fn settle(&mut self, until: u64, found: impl FnMut(Switch)) {
        let count = self.pending.partition_point(|switch| switch.time <= until);
        self.pending.drain(..count).for_each(found);
    }
}

/// Returns an event that reports the switches of a thread, and of those that it makes, on one
/// processor.
fn event(thread: Option<u32>, processor: usize) -> Builder<'static> {
    let mut builder = Builder::new(Software::DUMMY);
    match thread {
        Some(thread) => builder.observe_pid(thread as libc::pid_t).enabled(true),
        None => builder.observe_self().enabled(false).enable_on_exec(true),
    };
    builder
        .one_cpu(processor)
        .inherit(true)
        .context_switch(true);
    builder.exclude_kernel(true).exclude_hv(true);
    builder
        .clockid(perf_event::Clock::MONOTONIC)
        .sample_id_all(true);
    builder.sample(SampleFlag::TID | SampleFlag::TIME | SampleFlag::CPU);
    builder
}

/// Maps the buffer of a processor, as large as the kernel allows.
fn map(counter: Counter, thread: Option<u32>, processor: usize) -> io::Result<Sampler> {
    let mut counter = Ok(counter);
    let mut result = Err(io::ErrorKind::OutOfMemory.into());
    for room in ROOMS {
        result = counter?.sampled(room);
        if result.is_ok() {
            break;
        }
        counter = event(thread, processor).build();
    }
    result
}

/// Checks that this process may have as many open files as events and all else take, or allows it.
fn allow_descriptors(count: usize, raises_limit: bool) -> io::Result<()> {
    /// Descriptors for all else.
    const OWN: u64 = 256;
    let mut limit = getrlimit(Resource::Nofile);
    let wanted = count as u64 + OWN;
    if limit.current.is_some_and(|current| current < wanted) {
        if !raises_limit || limit.maximum.is_some_and(|most| most < wanted) {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        limit.current = Some(wanted);
        setrlimit(Resource::Nofile, limit)?;
    }
    Ok(())
}

impl Sampled {
    fn new() -> Self {
        Self {
            processes: Vec::new(),
            period: PERIOD,
            count: 0,
        }
    }

    /// Passes each thread's nanoseconds on processors, and waiting for one, to `found`.
    fn read(&mut self, mut found: impl FnMut(u32, [u64; 2])) {
        let begin = Instant::now();
        if self.count.is_multiple_of(SEARCHES) {
            self.search();
        }
        self.count = self.count.wrapping_add(1);
        for process in &self.processes {
            let tasks = format!("/proc/{process}/task");
            for thread in numbers(&tasks) {
                let times = fs::read_to_string(format!("{tasks}/{thread}/schedstat"));
                let times = times.unwrap_or_default();
                let mut numbers = times.split_whitespace().map(str::parse);
                if let (Some(Ok(running)), Some(Ok(runnable))) = (numbers.next(), numbers.next()) {
                    found(thread, [running, runnable]);
                }
            }
        }
        self.period = PERIOD.max(begin.elapsed() * SHARE);
    }

    /// Finds the children of the known processes, and forgets those that have ended.
    fn search(&mut self) {
        let mut at = 0;
        while let Some(process) = self.processes.get(at).copied() {
            at += 1;
            let tasks = format!("/proc/{process}/task");
            for thread in numbers(&tasks) {
                let children = fs::read_to_string(format!("{tasks}/{thread}/children"));
                for child in children.unwrap_or_default().split_whitespace() {
                    if let Ok(child) = child.parse()
                        && !self.processes.contains(&child)
                    {
                        self.processes.push(child);
                    }
                }
            }
        }
        let exists = |process: &u32| fs::exists(format!("/proc/{process}/task")).unwrap_or(false);
        self.processes.retain(exists);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_soon_after_another_one_does_not_spoil_the_conversion() {
        // Three ticks a nanosecond; each reading is wrong by up to 30 ticks.
        let reading = |ns: u64, error: u64| Anchor::new(3 * ns + error, ns, 0);
        let mut readings = Readings {
            clock: ClockKind::Tsc,
            before: reading(0, 0),
            now: reading(0, 0),
        };
        for (ns, error) in [(10_000_000, 30), (20_000_000, 0), (20_000_100, 30)] {
            readings.add(reading(ns, error));
            let ticks = readings.ticks(9_000_000);
            assert!(ticks.abs_diff(27_000_000) <= 60, "{ns}: {ticks}");
        }
    }
}
