//! A budget for recording: which functions are switched off so that it costs no more than a share
//! of each process's own processor time.
//!
//! A [`Budget`] looks at the calls that were drained from the rings and says which functions to
//! switch. The reader of the rings carries that out: the thread of a
//! [`FileRecorder`](super::FileRecorder) by itself, the command by asking its agents.

mod functions;

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fgraph::{Filter, FunctionFacts};
use fgraph_trace::names::{Names, process_id};
use fgraph_trace::recording::CallSum;
use fgraph_trace::ring::Rings;

use super::switches::{FunctionPlace, Switches};
use functions::{Calls, Choice, Functions};

/// The shortest time between two looks at a process, and the processor time that it has used then.
const STEP: Duration = Duration::from_millis(20);
const LEAST_USED: Duration = Duration::from_millis(10);
/// The time for which a process is left alone that did not carry out its switches.
const LATER: Duration = Duration::from_secs(5);
/// Nanoseconds that recording a call takes, until that is measured, and the range of it.
const EACH: f64 = 50.0;
const EACH_RANGE: [f64; 2] = [10.0, 2000.0];
/// Recording a call takes up to this multiple of the shortest call: about twice beside other calls
/// that are recorded, and twice that where one function is recorded alone.
const SHORTEST: f64 = 4.0;
/// A call whose events find no room takes this multiple of one that is recorded: with the reader
/// stopped, a function that was called again and again took 208 ns, and 32 ns beforehand.
const LOST: f64 = 6.0;

/// The most that recording may cost for each nanosecond of a program's own processor time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share(f64);

impl Share {
    /// A share in percent, from 0.1 to 1000; `None` for other numbers.
    #[must_use]
    pub fn percent(percent: f64) -> Option<Self> {
        (0.1..=1000.0)
            .contains(&percent)
            .then_some(Self(percent / 100.0))
    }
}

/// The calls that were recorded so far.
///
/// It is exhaustive, since callers write it as a literal: a new field breaks them.
#[derive(Debug)]
pub struct Progress<'p, I> {
    /// The names of functions and processes.
    pub names: &'p Names,
    /// Process, function, and its calls.
    pub calls: I,
    /// The fewest ticks between an entry and the return that follows it.
    pub shortest: Option<u64>,
}

/// Decides which functions of the recorded processes are switched off and on.
#[derive(Debug)]
pub struct Budget {
    share: Share,
    /// Functions that are never switched off.
    kept: Filter,
    rings: Arc<Rings>,
    /// `None` if the next look is due at once.
    looked: Option<Instant>,
    processes: HashMap<u32, Process>,
    /// Events that were written and lost at the last look.
    events: (u64, u64),
}

/// A process that is recorded.
#[derive(Debug)]
struct Process {
    functions: Functions,
    /// Its functions that are met, and true for those that are never switched off.
    kept: HashMap<u32, bool>,
    /// Calls at the last look, which `None` makes anew.
    before: Option<Before>,
    /// Switches that it has not carried out yet.
    asked: Option<Choice>,
    /// It is not looked at before.
    not_before: Instant,
    has_ended: bool,
}

/// The state of a process at a look.
#[derive(Debug)]
struct Before {
    time: Instant,
    used: Duration,
    calls: HashMap<u32, CallSum>,
}

impl Budget {
    /// A budget for the processes that record in these rings.
    #[must_use]
    pub fn new(share: Share, rings: Arc<Rings>) -> Self {
        Self {
            share,
            kept: Filter::none(),
            rings,
            looked: Some(Instant::now()),
            processes: HashMap::new(),
            events: (0, 0),
        }
    }

    /// Does not switch off the functions that `kept` selects. Their cost is no part of the budget.
    #[must_use]
    pub fn keeping(mut self, kept: Filter) -> Self {
        self.kept = kept;
        self
    }

    /// Looks at what was recorded since the last time, and returns what processes are to switch.
    /// Each is to be [settled](Self::settle). To be called often: most calls only look at the time.
    pub fn look<'p, I>(
        &mut self,
        progress: impl FnOnce() -> Progress<'p, I>,
    ) -> Vec<(u32, Switches)>
    where
        I: Iterator<Item = (u32, u32, CallSum)>,
    {
        if self.looked.is_some_and(|looked| looked.elapsed() < STEP) {
            return Vec::new();
        }
        self.looked = Some(Instant::now());
        self.keep(progress())
    }

    /// Takes note that a process has carried out what it was to switch, or has not. Returns true if
    /// it was to switch something.
    pub fn settle(&mut self, process: u32, is_done: bool) -> bool {
        let Some(process) = self.processes.get_mut(&process) else {
            return false;
        };
        // The calls from before are not counted with those from now on.
        process.before = None;
        self.looked = None;
        let Some(asked) = process.asked.take() else {
            return false;
        };
        if !is_done {
            process.functions.undo(&asked);
            process.not_before = Instant::now() + LATER;
        }
        true
    }

    /// Sees to it that recording costs no more than a share of each process's own time.
    fn keep<I>(&mut self, progress: Progress<'_, I>) -> Vec<(u32, Switches)>
    where
        I: Iterator<Item = (u32, u32, CallSum)>,
    {
        let names = progress.names;
        let clock = self.rings.clock();
        // 0 is no time: the clock is coarse, or those of two processors differ.
        let shortest = progress.shortest.filter(|&ticks| ticks > 0);
        let shortest = shortest.map(|ticks| clock.nanoseconds(ticks) as f64);
        let [least, most] = EACH_RANGE;
        let each = shortest.map_or(EACH, |it| (SHORTEST * it).clamp(least, most));
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
        let mut orders = Vec::new();
        for (number, calls) in calls {
            if !self.processes.contains_key(&number) {
                let new = Process {
                    functions: self.inherited(number, names),
                    kept: HashMap::new(),
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
            let (kept, filter) = (&mut process.kept, &self.kept);
            let mut is_kept = |function| {
                *kept.entry(function).or_insert_with(|| {
                    let found = names.function(number, function);
                    found.is_some_and(|it| {
                        filter.matches(&FunctionFacts::new(&[&it.name], &it.module))
                    })
                })
            };
            let seen: Vec<Calls> = after
                .filter(|(function, _)| !is_kept(**function))
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
            let choice = functions.look(used, since, each, self.share.0, &seen);
            if !choice.is_empty() {
                let places = |functions| places(names, number, functions);
                let (off, on) = (places(&choice.off), places(&choice.on));
                orders.push((number, Switches { off, on }));
                process.asked = Some(choice);
            }
        }
        orders
    }

    /// The functions of a process that is new: a forked child has what its parent has.
    fn inherited(&self, number: u32, names: &Names) -> Functions {
        let parent = names.process(number).map(|(parent, _)| parent);
        let parent = parent.filter(|&parent| process_id(parent) != process_id(number));
        let parent = parent.and_then(|parent| self.processes.get(&parent));
        parent.map_or_else(Functions::default, |parent| parent.functions.of_child())
    }

    /// Returns the cost of all calls since the last look, recorded or lost, as a multiple of the
    /// cost of the recorded ones.
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
            1.0 + LOST * lost / written
        } else {
            1.0
        }
    }
}

/// Where functions of a process are; those without a name are left out.
#[must_use]
pub fn places(names: &Names, process: u32, functions: &[u32]) -> Vec<FunctionPlace> {
    let places = functions.iter().filter_map(|&index| {
        let address = names.function(process, index)?.address;
        Some(FunctionPlace { index, address })
    });
    places.collect()
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
    use fgraph_trace::names::{Description, DescriptionKind};
    use fgraph_trace::ring::RingOptions;

    use super::*;

    #[test]
    fn kept_functions_are_not_switched_off() {
        let rings = Arc::new(Rings::create(&RingOptions::default()).unwrap());
        let own = std::process::id();
        let mut names = Names::new(own);
        for (index, name) in (1..).zip(["short", "kept"]) {
            names.add(Description {
                kind: DescriptionKind::Function,
                fields: [own.into(), index, 0x1000 * index, 16],
                texts: [name.to_owned(), "/bin/app".to_owned()],
            });
        }
        let budget = Budget::new(Share::percent(0.1).unwrap(), rings);
        let mut budget = budget.keeping("kept".parse().unwrap());
        // Each look comes after more processor time than recording so many calls could take.
        let mut off = Vec::new();
        for calls in [0, 1_000_000_000] {
            let until = processor_time(own).unwrap() + 2 * LEAST_USED;
            let begun = Instant::now();
            while processor_time(own).unwrap() < until || begun.elapsed() < 2 * STEP {}
            let orders = budget.look(|| Progress {
                names: &names,
                calls: [1, 2]
                    .map(|it| (own, it, CallSum::new(calls, calls, calls)))
                    .into_iter(),
                shortest: Some(50),
            });
            off.extend(orders.into_iter().flat_map(|(_, switches)| switches.off));
        }
        let off: Vec<u32> = off.iter().map(|place| place.index).collect();
        assert_eq!(off, [1]);
    }

    #[test]
    fn a_share_is_a_tenth_of_a_percent_to_ten_times() {
        assert_eq!(Share::percent(5.0), Some(Share(0.05)));
        for bad in [0.0, 0.09, -5.0, 1001.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Share::percent(bad), None, "{bad}");
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
