//! The tasks of async runtimes, by kind: how often and how long they are polled, and the reasons
//! for which they wait.
//!
//! [`Tasks`] reads the events of a recording that was made for tasks, or of a
//! [`Recorder`](https://docs.rs/fgraph-tracers) of the functions that
//! [`words`](crate::runtimes::words) select, with their arguments. [`Lanes`] shows each task as a
//! thread.

mod follow;
mod lanes;

use std::cmp::Reverse;

use fgraph_trace::Source;
use fgraph_trace::names::process_id;
use serde::Serialize;

pub use self::follow::Tasks;
use self::follow::{Kind, Late, Poll, Waits};
pub use self::lanes::Lanes;
use crate::runtimes::{Runtime, Work};
use crate::thread::Thread;

/// The tasks of one type of future.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KindView {
    /// The type of their future, otherwise the first function that a poll calls.
    pub name: String,
    /// Their runtime.
    pub runtime: Runtime,
    /// The id of their process.
    pub process: u32,
    /// True if they are closures that run once and may block, or jobs of a pool of threads.
    pub may_block: bool,
    /// The number of tasks.
    pub tasks: u64,
    /// Tasks that have not ended; null if ends are unknown, because coroutines free their frames
    /// themselves.
    pub alive: Option<u64>,
    /// The number of polls.
    pub polls: u64,
    /// Time in polls.
    pub poll_ns: u64,
    /// Polls that took at least `longest_ns`.
    pub blocking: u64,
    /// The longest poll.
    pub longest: Option<PollView>,
    /// The time from spawn to first poll, in the mean; null if no spawn was recorded.
    pub first_average_ns: Option<u64>,
    /// The longest time from spawn to first poll.
    pub first: Option<LateView>,
    /// The longest time from a wake to the poll.
    pub late: Option<LateView>,
    /// The times from a poll to the wake, by reason, the longest sums first.
    pub waits: Vec<WaitsView>,
    /// The tasks that have not ended, those that were polled longest ago first; at most 100.
    pub waiting: Vec<WaitingView>,
}

/// A poll.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PollView {
    /// The number of the task among those of its kind, from 1.
    pub task: u64,
    /// Time from the first event to its begin.
    pub at_ns: u64,
    /// Time of the poll.
    pub ns: u64,
    /// Time of the poll on a processor; null if the states of threads are unknown.
    pub running_ns: Option<u64>,
    /// The thread that polled.
    pub thread: Thread,
    /// The slowest calls in each other, innermost first, without those of the runtime.
    pub path: Vec<String>,
}

/// A time in which a task could have been polled.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LateView {
    /// The number of the task among those of its kind, from 1.
    pub task: u64,
    /// Time from the first event to its begin.
    pub at_ns: u64,
    /// Its length.
    pub ns: u64,
    /// The kind of task that was polled most meanwhile.
    pub instead: Option<InsteadView>,
}

/// Polls while another task could have been polled.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InsteadView {
    /// The kind of task that was polled.
    pub name: String,
    /// Time of polls of this kind meanwhile, summed over all threads.
    pub ns: u64,
    /// The slowest calls of the longest of these polls, innermost first.
    pub path: Vec<String>,
}

/// Times in which tasks waited for one reason.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WaitsView {
    /// The thing for which they waited, `a lock or a semaphore`; null if it is unknown.
    pub reason: Option<String>,
    /// Their number.
    pub count: u64,
    /// Their sum.
    pub ns: u64,
    /// The longest of them.
    pub longest: WaitView,
}

/// A time in which a task waited.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WaitView {
    /// The number of the task among those of its kind, from 1.
    pub task: u64,
    /// Time from the first event to its begin.
    pub at_ns: u64,
    /// Its length.
    pub ns: u64,
    /// The task in whose poll it was woken: the kind and the number.
    pub by: Option<String>,
    /// The function in which it was woken, and that is not a runtime's; otherwise the last one that
    /// this task has called before.
    pub function: Option<String>,
    /// The time of the wait of that task before.
    pub before_ns: Option<u64>,
    /// The reason for that wait.
    pub before: Option<String>,
    /// The kind of task that was polled most meanwhile.
    pub instead: Option<InsteadView>,
}

/// A task that has not ended.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WaitingView {
    /// Its number among those of its kind, from 1.
    pub task: u64,
    /// Time since its last poll, up to the last event; null if it is polled then.
    pub since_ns: Option<u64>,
    /// True if it was woken since.
    pub is_woken: bool,
    /// Its future at the end, with the awaits at which it waits; null if debug information does not
    /// describe it, or if the process had ended.
    pub future: Option<FutureView>,
}

/// The most tasks of a kind that are listed in JSON.
const LISTED: usize = 100;
/// A future.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FutureView {
    /// Its async function, otherwise its type.
    pub name: String,
    /// The source file and the line of the await at which it waits; null if it is no future of
    /// async code.
    pub file: Option<String>,
    /// The line in that file.
    pub line: Option<u32>,
    /// True if it was never polled.
    pub is_new: bool,
    /// The task for whose end it waits.
    pub task: Option<String>,
    /// The futures for which it waits.
    pub children: Vec<FutureView>,
    /// True if it has more children.
    pub is_cut: bool,
}

/// Looks up the future of a task by its process and its address.
pub type FutureOf<'f> = &'f dyn Fn(u32, u64) -> Option<FutureView>;

impl Tasks {
    /// Returns the first `most` kinds of tasks, those with the longest polls first and those that
    /// may block last, and the number of the other kinds.
    ///
    /// Times count from `first`, in ticks, which is that of the first event. `future` tells at
    /// which await a task waits, if that is known.
    pub fn kinds(
        &self,
        source: &impl Source,
        first: u64,
        most: usize,
        future: FutureOf<'_>,
    ) -> (Vec<KindView>, usize) {
        let mut kinds: Vec<&Kind> = self.kinds.iter().collect();
        kinds.retain(|kind| kind.work != Work::Worker);
        let longest = |kind: &Kind| kind.sums.longest.as_ref().map_or(0, |poll| poll.ticks);
        kinds.sort_by_key(|kind| (kind.work == Work::Blocking, Reverse(longest(kind))));
        let more = kinds.len().saturating_sub(most);
        let answer = Answer {
            tasks: self,
            source,
            first,
            future,
        };
        let kinds = kinds.into_iter().take(most);
        (kinds.map(|kind| answer.kind(kind)).collect(), more)
    }

    /// Returns true if no task was met.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty() && self.tasks.is_empty()
    }

    /// Returns the number of tasks that were spawned, and neither polled nor ended.
    #[must_use]
    pub fn never_polled(&self) -> u64 {
        let never = self
            .tasks
            .iter()
            .filter(|task| task.kind.is_none() && task.ended.is_none() && task.spawned.is_some());
        never.count() as u64
    }

    /// Returns the processes and addresses of the tasks that were polled and have not ended.
    pub fn polled(&self) -> impl Iterator<Item = (u32, u64)> {
        let alive = self.tasks.iter().filter(|it| it.ended.is_none());
        let polled = alive.filter(|it| it.kind.is_some());
        polled.map(|it| (it.process, it.id))
    }
}

/// The tasks, and the facts that their views need.
struct Answer<'a, S> {
    tasks: &'a Tasks,
    source: &'a S,
    first: u64,
    future: FutureOf<'a>,
}

impl<S: Source> Answer<'_, S> {
    fn ns(&self, ticks: u64) -> u64 {
        self.source.clock().nanoseconds(ticks)
    }

    fn at(&self, ticks: u64) -> u64 {
        self.ns(ticks.saturating_sub(self.first))
    }

    fn number(&self, task: usize) -> u64 {
        self.tasks.tasks[task].number
    }

    fn kind(&self, kind: &Kind) -> KindView {
        let sums = &kind.sums;
        KindView {
            name: kind.name(),
            runtime: kind.runtime,
            process: process_id(kind.process),
            may_block: kind.work == Work::Blocking,
            tasks: sums.tasks,
            alive: self.ends(kind).then(|| sums.tasks - sums.ended),
            polls: sums.polls,
            poll_ns: self.ns(sums.time),
            blocking: sums.long,
            longest: sums.longest.as_ref().map(|poll| self.poll(poll)),
            first_average_ns: sums
                .firsts
                .1
                .checked_div(sums.firsts.0)
                .map(|it| self.ns(it)),
            first: sums.first.as_ref().map(|late| self.late(late)),
            late: sums.late.as_ref().map(|late| self.late(late)),
            waits: {
                let mut waits: Vec<&Waits> = sums.waits.iter().collect();
                waits.sort_by_key(|waits| Reverse(waits.time));
                waits.into_iter().map(|waits| self.waits(waits)).collect()
            },
            waiting: self.waiting(kind),
        }
    }

    fn poll(&self, poll: &Poll) -> PollView {
        PollView {
            task: self.number(poll.task),
            at_ns: self.at(poll.begin),
            ns: self.ns(poll.ticks),
            running_ns: poll.running.map(|ticks| self.ns(ticks)),
            thread: Thread::of(self.source.names(), poll.process, poll.thread),
            path: poll.path.iter().rev().cloned().collect(),
        }
    }

    fn late(&self, late: &Late) -> LateView {
        LateView {
            task: self.number(late.task),
            at_ns: self.at(late.from),
            ns: self.ns(late.ticks),
            instead: self.instead(late),
        }
    }

    fn instead(&self, late: &Late) -> Option<InsteadView> {
        let (poll, ticks) = self.tasks.instead(late)?;
        Some(InsteadView {
            name: self.tasks.kind_of(poll.task)?.name(),
            ns: self.ns(ticks),
            path: poll.path.iter().rev().cloned().collect(),
        })
    }

    fn waits(&self, waits: &Waits) -> WaitsView {
        let wait = &waits.longest;
        WaitsView {
            reason: waits.reason.map(str::to_owned),
            count: waits.count,
            ns: self.ns(waits.time),
            longest: WaitView {
                task: self.number(wait.task),
                at_ns: self.at(wait.from),
                ns: self.ns(wait.ticks),
                by: wait.by.and_then(|task| self.tasks.name_of(task)),
                function: wait.function.clone(),
                before_ns: wait.before.map(|(ticks, _)| self.ns(ticks)),
                before: wait.before.map(|(_, reason)| reason.to_owned()),
                instead: self.instead(&Late {
                    task: wait.task,
                    from: wait.from,
                    ticks: wait.ticks,
                }),
            },
        }
    }

    /// Returns true if the ends of tasks are known.
    fn ends(&self, kind: &Kind) -> bool {
        kind.runtime != Runtime::Coroutine || kind.sums.ended > 0
    }

    /// Returns the tasks that have not ended.
    fn waiting(&self, kind: &Kind) -> Vec<WaitingView> {
        if !self.ends(kind) {
            return Vec::new();
        }
        let end = self.tasks.span.map_or(0, |(_, last)| last);
        let alive = self.tasks.tasks.iter().filter(|task| {
            let is_it = task.kind.and_then(|it| self.tasks.kinds.get(it));
            task.ended.is_none() && is_it.is_some_and(|it| std::ptr::eq(it, kind))
        });
        let waiting = alive.map(|task| WaitingView {
            task: task.number,
            since_ns: task
                .polled
                .and_then(|(_, polled)| Some(self.ns(end.saturating_sub(polled?)))),
            is_woken: task.woken.is_some(),
            future: (self.future)(task.process, task.id),
        });
        let mut waiting: Vec<_> = waiting.collect();
        waiting.sort_by_key(|task| (Reverse(task.since_ns), task.task));
        waiting.truncate(LISTED);
        waiting
    }
}
