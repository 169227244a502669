//! Switches functions off and on in the processes that are recorded, so that recording costs no
//! more than it may.
//!
//! A thread of its own asks the agents: a program whose rings are full waits for this process to
//! empty them, and could not answer meanwhile.

use std::collections::HashMap;
use std::fs;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fgraph_trace::names::{Names, process_id};
use fgraph_trace::recording::CallSum;
use fgraph_trace::ring::Rings;
use fgraph_tracers::agent::Request;
use fgraph_tracers::recorder::{FunctionPlace, Switches};

use super::attach;
use super::process::has_ended;
use crate::budget::{Calls, Choice, Functions};
use crate::error::Error;

/// The shortest time between two looks at a process, and the processor time that it has used then.
const STEP: Duration = Duration::from_millis(20);
const LEAST_USED: Duration = Duration::from_millis(10);
/// When a process is asked again that could not be asked.
const LATER: Duration = Duration::from_secs(5);
/// Functions that are switched by one request, which has no more than 64 KiB.
const AT_ONCE: usize = 1000;
/// Nanoseconds that recording a call takes, until that is measured, and the range of it.
const EACH: f64 = 50.0;
const EACH_RANGE: [f64; 2] = [10.0, 2000.0];
/// Recording a call takes up to so many times the shortest call: about twice beside other calls
/// that are recorded, and twice that where one function is recorded alone.
const SHORTEST: f64 = 4.0;

/// The most that recording may cost for each nanosecond of a program's own processor time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Share(f64);

impl Share {
    /// Parses a share in percent: `5%`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let number = text.strip_suffix('%').unwrap_or(text).trim_end();
        let percent = number.parse::<f64>().ok();
        let percent = percent.filter(|percent| (0.1..=1000.0).contains(percent));
        let share = percent.map(|percent| Self(percent / 100.0));
        share.ok_or_else(|| "a budget is 0.1 % to 1000 % of the program's own time: 5%".to_owned())
    }
}

/// By what functions are switched off.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Limit {
    /// None is.
    #[default]
    None,
    /// The agents stop to record functions that are called too often; these are switched off.
    Rate,
    /// Recording may cost no more than this.
    Budget(Share),
}

/// A process that is recorded.
#[derive(Debug)]
struct Process {
    functions: Functions,
    /// Calls at the last look, which `None` makes anew.
    before: Option<Before>,
    /// The request that it has not answered yet.
    asked: Option<Choice>,
    /// It is not looked at before.
    not_before: Instant,
    has_ended: bool,
}

/// How far a process was at a look.
#[derive(Debug)]
struct Before {
    time: Instant,
    used: Duration,
    calls: HashMap<u32, CallSum>,
}

/// A request to a process.
type Order = (u32, Switches);
/// The outcome of a request.
type Outcome = (u32, Result<(), Error>);

/// Switches functions of the recorded processes. Dropping it ends that, after the switch that is
/// under way.
#[derive(Debug)]
pub(crate) struct Switching {
    limit: Limit,
    rings: Arc<Rings>,
    looked: Instant,
    processes: HashMap<u32, Process>,
    /// Off times that were looked at.
    known_off_times: usize,
    /// Events that were written and lost at the last look.
    events: (u64, u64),
    has_failed: bool,
    orders: Option<Sender<Order>>,
    outcomes: Receiver<Outcome>,
    thread: Option<JoinHandle<()>>,
}

/// The calls that were recorded so far.
#[derive(Debug)]
pub(crate) struct Progress<'p, I> {
    pub(crate) names: &'p Names,
    /// Process, function, and its calls.
    pub(crate) calls: I,
    /// The fewest ticks between an entry and the return that follows it.
    pub(crate) shortest: Option<u64>,
}

impl Switching {
    /// Begins, for processes that map the rings, which are in the file with this number of an
    /// inode; `None` if nothing is to be switched.
    pub(super) fn start(limit: Limit, rings: &Arc<Rings>, inode: u64) -> Option<Self> {
        if limit == Limit::None {
            return None;
        }
        let (orders, to_do) = mpsc::channel::<Order>();
        let (done, outcomes) = mpsc::channel();
        let work = move || {
            for (process, switches) in to_do {
                let outcome = carry_out(process_id(process), inode, switches);
                if done.send((process, outcome)).is_err() {
                    break;
                }
            }
        };
        let thread = thread::Builder::new().name("fgraph-switch".to_owned());
        Some(Self {
            limit,
            rings: Arc::clone(rings),
            looked: Instant::now(),
            processes: HashMap::new(),
            known_off_times: 0,
            events: (0, 0),
            has_failed: false,
            orders: Some(orders),
            outcomes,
            thread: thread.spawn(work).ok(),
        })
    }

    /// Looks at what was recorded since the last time, and has functions switched. To be called
    /// often; most calls only look at the time.
    pub(crate) fn look<'p, I>(&mut self, progress: impl FnOnce() -> Progress<'p, I>)
    where
        I: Iterator<Item = (u32, u32, CallSum)>,
    {
        let mut is_settled = false;
        while let Ok((process, outcome)) = self.outcomes.try_recv() {
            self.settle(process, outcome);
            is_settled = true;
        }
        if self.looked.elapsed() < STEP && !is_settled {
            return;
        }
        self.looked = Instant::now();
        let progress = progress();
        match self.limit {
            Limit::None => {}
            Limit::Rate => self.follow_agents(progress.names),
            Limit::Budget(share) => self.keep(share, progress),
        }
    }

    /// Takes note of what has become of an order.
    fn settle(&mut self, number: u32, outcome: Result<(), Error>) {
        let process = self.processes.get_mut(&number);
        let asked = process.and_then(|process| {
            // The calls from before are not counted with those from now on.
            process.before = None;
            let asked = process.asked.take()?;
            if outcome.is_err() {
                process.functions.undo(&asked);
                process.not_before = Instant::now() + LATER;
            }
            Some(asked)
        });
        // A process that has ended costs nothing.
        let is_over = has_ended(process_id(number));
        if let (Err(error), false, true) = (outcome, is_over || self.has_failed, asked.is_some()) {
            self.has_failed = true;
            let why = error.message().unwrap_or_default();
            say!("fgraph: the budget may not be kept: {why}");
        }
    }

    /// Has the functions switched off that agents do not record any more.
    fn follow_agents(&mut self, names: &Names) {
        let new = names.off_times().get(self.known_off_times..).unwrap_or(&[]);
        self.known_off_times += new.len();
        let mut off: HashMap<u32, Vec<u32>> = HashMap::new();
        for time in new {
            off.entry(time.process).or_default().push(time.function);
        }
        for (process, off) in off {
            let choice = Choice {
                off,
                on: Vec::new(),
            };
            // One that cannot be asked goes on as it is.
            self.order(process, &choice, names);
        }
    }

    /// Sees to it that recording costs no more than a share of each process's own time.
    fn keep<I>(&mut self, share: Share, progress: Progress<'_, I>)
    where
        I: Iterator<Item = (u32, u32, CallSum)>,
    {
        let names = progress.names;
        let clock = self.rings.clock();
        let shortest = progress
            .shortest
            .map(|ticks| clock.nanoseconds(ticks) as f64);
        let [least, most] = EACH_RANGE;
        let each = shortest.map_or(EACH, |it| (SHORTEST * it).clamp(least, most));
        // Calls that were lost cost about the same.
        let each = each * self.lost_factor();
        let mut calls: HashMap<u32, HashMap<u32, CallSum>> = HashMap::new();
        let has_ended = |process| {
            let known: Option<&Process> = self.processes.get(&process);
            known.is_some_and(|process| process.has_ended)
        };
        for (process, function, sum) in progress.calls.filter(|&(process, ..)| !has_ended(process))
        {
            calls.entry(process).or_default().insert(function, sum);
        }
        let now = Instant::now();
        for (number, calls) in calls {
            if !self.processes.contains_key(&number) {
                let new = Process {
                    functions: self.inherited(number, names),
                    before: None,
                    asked: None,
                    not_before: now,
                    has_ended: false,
                };
                self.processes.insert(number, new);
            }
            let Some(process) = self.processes.get_mut(&number) else {
                continue;
            };
            if process.asked.is_some() || now < process.not_before {
                continue;
            }
            let Some(used) = processor_time(process_id(number)) else {
                process.has_ended = true;
                continue;
            };
            let since = process.before.as_ref().map(|before| {
                let time = now.saturating_duration_since(before.time);
                (time, used.saturating_sub(before.used))
            });
            if since.is_some_and(|(time, since)| time < STEP || since < LEAST_USED) {
                continue;
            }
            let before = process.before.replace(Before {
                time: now,
                used,
                calls,
            });
            let (Some((_, since)), Some(before)) = (since, before) else {
                continue;
            };
            let after = process.before.iter().flat_map(|before| &before.calls);
            let seen: Vec<Calls> = after
                .map(|(&function, &sum)| {
                    let old = before.calls.get(&function).copied().unwrap_or_default();
                    Calls {
                        function,
                        calls: sum.begun.saturating_sub(old.begun) as f64,
                        own: (sum.whole > 0).then(|| sum.own as f64 / sum.whole as f64),
                    }
                })
                .collect();
            let functions = &mut process.functions;
            let choice = functions.look(used, since, each, share.0, &seen);
            if !choice.is_empty() {
                self.order(number, &choice, names);
                if let Some(process) = self.processes.get_mut(&number) {
                    process.asked = Some(choice);
                }
            }
        }
    }

    /// The functions of a process that is new: a forked child has what its parent has.
    fn inherited(&self, number: u32, names: &Names) -> Functions {
        let parent = names.process(number).map(|(parent, _)| parent);
        let parent = parent.filter(|&parent| process_id(parent) != process_id(number));
        let parent = parent.and_then(|parent| self.processes.get(&parent));
        parent.map_or_else(Functions::default, |parent| parent.functions.of_child())
    }

    /// How many calls were made for each that was recorded since the last look.
    fn lost_factor(&mut self) -> f64 {
        let (mut written, mut lost) = (0_u64, self.rings.events_without_ring());
        for ring in self.rings.counts() {
            written = written.saturating_add(ring.written);
            lost = lost.saturating_add(ring.dropped);
        }
        let before = std::mem::replace(&mut self.events, (written, lost));
        let new = [
            written.saturating_sub(before.0),
            lost.saturating_sub(before.1),
        ];
        let [written, lost] = new.map(|count| count as f64);
        if written > 0.0 {
            1.0 + lost / written
        } else {
            1.0
        }
    }

    /// Has a process switch functions.
    fn order(&mut self, process: u32, choice: &Choice, names: &Names) {
        let places = |functions: &[u32]| -> Vec<FunctionPlace> {
            let places = functions.iter().filter_map(|&index| {
                let address = names.function(process, index)?.address;
                Some(FunctionPlace { index, address })
            });
            places.collect()
        };
        let switches = Switches {
            off: places(&choice.off),
            on: places(&choice.on),
        };
        if let Some(orders) = &self.orders {
            // Without the thread nothing is switched.
            let _ = orders.send((process, switches));
        }
    }
}

impl Drop for Switching {
    fn drop(&mut self) {
        self.orders = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Has the agent in a process switch functions.
fn carry_out(process: u32, inode: u64, switches: Switches) -> Result<(), Error> {
    // Its number may be of another namespace, and mean another process here.
    if !maps(process, inode) {
        let why = "its number is not known here".to_owned();
        return Err(Error::Process { process, why });
    }
    let off = switches.off.chunks(AT_ONCE).map(|off| Switches {
        off: off.to_vec(),
        on: Vec::new(),
    });
    let on = switches.on.chunks(AT_ONCE).map(|on| Switches {
        off: Vec::new(),
        on: on.to_vec(),
    });
    let mut all: Vec<Switches> = off.chain(on).collect();
    if switches.off.len() + switches.on.len() <= AT_ONCE {
        all = vec![switches];
    }
    for switches in all {
        attach::have(process, |_| Ok(Request::Switch(switches)))?;
    }
    Ok(())
}

/// Returns true if a process has mapped the file of memory with this number of an inode.
fn maps(process: u32, inode: u64) -> bool {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
    let inode = inode.to_string();
    maps.lines().any(|line| {
        let mut words = line.split_whitespace().skip(4);
        words.next() == Some(&inode) && words.next().is_some_and(|path| path.starts_with("/memfd:"))
    })
}

/// The processor time of all threads of a process; `None` if it has ended.
fn processor_time(process: u32) -> Option<Duration> {
    let process = libc::pid_t::try_from(process).ok().filter(|&it| it > 0)?;
    let mut clock = 0;
    let mut time = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: both write to the locals, for which zeros are values.
    let time = unsafe {
        let found = libc::clock_getcpuclockid(process, &mut clock) == 0;
        let read = found && libc::clock_gettime(clock, time.as_mut_ptr()) == 0;
        read.then(|| time.assume_init())
    }?;
    Some(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_a_percentage() {
        assert_eq!(Share::parse("5%"), Ok(Share(0.05)));
        assert_eq!(Share::parse("20 %"), Ok(Share(0.2)));
        assert_eq!(Share::parse("500%"), Ok(Share(5.0)));
        assert_eq!(Share::parse("0.5"), Ok(Share(0.005)));
        for bad in [
            "", "0", "0%", "abc", "-5%", "1001%", "NaN", "inf", "5%%", "%",
        ] {
            assert!(Share::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_time_of_a_process_goes_on_until_it_ends() {
        let own = std::process::id();
        let before = processor_time(own).unwrap();
        while processor_time(own).unwrap() == before {}
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        for none in [child.id(), 0, u32::MAX] {
            assert_eq!(processor_time(none), None);
        }
    }
}
