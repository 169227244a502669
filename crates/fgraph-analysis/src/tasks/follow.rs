//! Follows the tasks of async runtimes: which function of a runtime polls which task, and when.

use std::collections::HashMap;
use std::rc::Rc;

use fgraph_trace::clock::Clock;
use fgraph_trace::event::What;
use fgraph_trace::names::{DescriptionKind, Names};
use fgraph_trace::pairing::{Change, Ending, OpenCall, Pairing};
use fgraph_trace::schedule::Schedule;
use fgraph_trace::source::SourceError;
use fgraph_trace::{Event, Source};

use crate::calls::Counts;
use crate::losses::Losses;
use crate::overhead;
use crate::python::is_python;
use crate::runtimes::{self, Act, Role, Runtime, Work};
use crate::step::StepKind;

/// The effect of an event on tasks.
#[derive(Debug)]
pub(super) struct Step {
    time: u64,
    pub(super) process: u32,
    pub(super) thread: u32,
    what: StepKind,
    arguments: [Option<u64>; runtimes::ARGUMENTS],
    /// Arguments by type; without these, registers are used.
    values: Vec<u64>,
}

impl Step {
    pub(super) fn of(event: &Event<'_>) -> Self {
        let words = match event.what {
            What::Entry { arguments, .. } => arguments,
            // The ends of Python's coroutines tell if they are suspended.
            What::Return { function, result } if is_python(function) => result,
            _ => &[],
        };
        Self {
            time: event.time,
            process: event.process,
            thread: event.thread,
            what: StepKind::of(&event.what),
            arguments: std::array::from_fn(|at| words.get(at).copied()),
            values: match words {
                [] => event.values.to_vec(),
                _ => Vec::new(),
            },
        }
    }
}

/// The tasks of a recording. Times are in ticks.
#[derive(Debug, Default)]
pub struct Tasks {
    pub(super) kinds: Vec<Kind>,
    pub(super) tasks: Vec<Task>,
    /// Polls that took at least the threshold, in the order of their ends.
    pub(super) long: Vec<Poll>,
    /// The missing events.
    pub losses: Losses,
    pub(super) counts: Counts,
    /// Times of the first event and of the last one, in ticks.
    pub span: Option<(u64, u64)>,
    /// Calls of functions of the table whose task is unknown, because no arguments were recorded.
    pub unknown: u64,
    /// Polls from this time on are kept.
    threshold: u64,
    known: HashMap<(u32, u32), usize>,
    facts: Vec<Facts>,
    by_poll: HashMap<(u32, u32), usize>,
    by_id: HashMap<(u32, u64), usize>,
    threads: HashMap<(u32, u32), Pairing<Data>>,
}

/// Tasks that one function polls: those of one type of future.
#[derive(Debug)]
pub(super) struct Kind {
    pub(super) runtime: Runtime,
    pub(super) process: u32,
    /// The function that polls them.
    poll: String,
    address: u64,
    /// The type in the name of a function of the task.
    of_type: Option<String>,
    /// The function, as recordings number it.
    function: u32,
    /// The first function that is called in a poll and is not between the runtime and its tasks.
    callee: Option<String>,
    /// True if the type may be that of other tasks, too: the compiler has merged functions.
    is_shared: bool,
    /// True if the type is from debug information, which tells it for this function.
    is_described: bool,
    pub(super) work: Work,
    pub(super) sums: Sums,
}

/// Figures of a kind of task.
#[derive(Debug, Default)]
pub(super) struct Sums {
    pub(super) tasks: u64,
    pub(super) ended: u64,
    pub(super) polls: u64,
    /// Time in polls whose ends are known.
    pub(super) time: u64,
    /// Polls that took at least the threshold.
    pub(super) long: u64,
    pub(super) longest: Option<Poll>,
    /// The times from spawn to first poll: their number, their sum, and the longest.
    pub(super) firsts: (u64, u64),
    pub(super) first: Option<Late>,
    /// The longest time from a wake to the poll.
    pub(super) late: Option<Late>,
    /// The times from a poll to the wake, by reason.
    pub(super) waits: Vec<Waits>,
}

/// Times in which tasks waited for one reason.
#[derive(Debug)]
pub(super) struct Waits {
    pub(super) reason: Option<&'static str>,
    pub(super) count: u64,
    pub(super) time: u64,
    pub(super) longest: Wait,
}

/// A task.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) process: u32,
    /// Its address.
    pub(super) id: u64,
    /// The kind; none until it is polled.
    pub(super) kind: Option<usize>,
    /// Its number among those of its kind, from 1.
    pub(super) number: u64,
    pub(super) spawned: Option<u64>,
    pub(super) ended: Option<u64>,
    /// The beginning of its last poll, and its end; none while it runs.
    pub(super) polled: Option<(u64, Option<u64>)>,
    /// The time of its first wake since the beginning of its last poll.
    pub(super) woken: Option<u64>,
    polls: u64,
    /// The last function that its poll has called and that is not a runtime's.
    called: Option<usize>,
    /// The last function that its poll has called and that drops a future.
    dropped: Option<usize>,
    /// The ticks of the wait before the last poll, and its reason, if that is known.
    waited: Option<(u64, &'static str)>,
}

/// A poll.
#[derive(Clone, Debug)]
pub(super) struct Poll {
    pub(super) task: usize,
    pub(super) process: u32,
    pub(super) thread: u32,
    pub(super) begin: u64,
    pub(super) ticks: u64,
    /// The ticks of it in which the thread was on a processor, if that is known.
    pub(super) running: Option<u64>,
    /// The slowest call in it, the slowest call in that, and so on.
    pub(super) path: Vec<String>,
}

/// A time in which a task could have been polled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Late {
    pub(super) task: usize,
    pub(super) from: u64,
    pub(super) ticks: u64,
}

/// A time in which a task waited.
#[derive(Clone, Debug)]
pub(super) struct Wait {
    pub(super) task: usize,
    pub(super) from: u64,
    pub(super) ticks: u64,
    /// The task in whose poll it was woken.
    pub(super) by: Option<usize>,
    /// The innermost function there that is not a runtime's, or the one that the poll has called
    /// last before.
    pub(super) function: Option<String>,
    /// The wait of that task before its poll: the ticks, and the reason.
    pub(super) before: Option<(u64, &'static str)>,
}

/// The facts about a function.
#[derive(Debug)]
struct Facts {
    name: String,
    role: Option<Role>,
    reason: Option<&'static str>,
    of_type: Option<String>,
    /// The type of a future that it drops.
    drops: Option<String>,
    is_between: bool,
    /// True if functions in it tell nothing of the task around it.
    is_closed: bool,
    /// True if it closes a coroutine of Python, whose frames it runs to their ends.
    closes: bool,
}

impl Facts {
    fn of(name: String) -> Self {
        Self {
            role: runtimes::role(&name),
            reason: runtimes::reason(&name),
            of_type: runtimes::type_of_future(&name),
            drops: runtimes::dropped_future(&name),
            is_between: runtimes::is_between(&name),
            is_closed: name.contains("spawn") || name.ends_with("::new"),
            closes: false,
            name,
        }
    }

    /// Returns those of a function of Python, whose name may be like one of a native runtime.
    fn of_python(name: String) -> Self {
        Self {
            closes: name.ends_with("coroutine.close"),
            name,
            role: None,
            reason: None,
            of_type: None,
            drops: None,
            is_between: false,
            is_closed: false,
        }
    }
}

/// The data of a call in progress.
#[derive(Debug)]
struct Data {
    facts: usize,
    /// The task around it.
    task: Option<usize>,
    /// The task that it polls.
    polls: Option<usize>,
    /// True if it is in a poll of that task, and not in another function for it.
    is_polled: bool,
    /// True if only functions between a runtime and its tasks are between it and that function.
    is_open: bool,
    slowest: Option<Rc<Slow>>,
}

/// A call that has taken a part of a poll.
#[derive(Debug)]
struct Slow {
    facts: usize,
    ticks: u64,
    slowest: Option<Rc<Slow>>,
}

/// Calls with a part of the threshold below this one are in no path.
const SLOW: u64 = 20;
/// A call in a path takes at least this part of the poll.
const PART: u64 = 4;
/// The functions around a wake that are searched for its reason.
const AROUND: usize = 48;

impl Tasks {
    /// Reads the tasks of a source. Polls that take at least `threshold`, in ticks, count as
    /// blocking.
    ///
    /// # Errors
    ///
    /// Errors of the source.
    pub fn read(source: &mut impl Source, threshold: u64) -> Result<Self, SourceError> {
        let mut this = Self::new(threshold);
        while let Some(event) = source.next()? {
            let event = Step::of(&event);
            this.step(&event, source.names());
        }
        this.finish(source.names());
        if let Some(schedule) = source.schedule() {
            this.add_running(schedule);
        }
        Ok(this)
    }

    pub(super) fn new(threshold: u64) -> Self {
        Self {
            threshold,
            ..Self::default()
        }
    }

    /// Processes an event. Returns the task whose poll it is in.
    pub(super) fn step(&mut self, event: &Step, names: &Names) -> Option<usize> {
        let key = (event.process, event.thread);
        let before = self.task_of(key);
        let from = self.span.map_or(event.time, |(first, _)| first);
        self.span = Some((from, event.time));
        self.losses.resume(key, event.time);
        match event.what {
            StepKind::Begin(function) | StepKind::Only(function) => {
                let data = self.enter(event, names, function);
                let calls = self.threads.entry(key).or_default();
                match event.what {
                    StepKind::Only(_) => calls.enter_only(function, event.time, data),
                    _ => calls.enter(function, event.time, data),
                }
                self.settle(key);
                return self.task_of(key);
            }
            StepKind::End(function, how) => {
                let calls = self.threads.entry(key).or_default();
                if is_python(function)
                    && (how == Ending::Unwound || event.arguments[0] == Some(0))
                    && let Some(call) = calls.calls().iter().rfind(|it| it.function == function)
                    && let Some(task) = call.data.polls
                {
                    self.tasks[task].ended = Some(event.time);
                }
                calls.exit(function, event.time, how);
                self.settle(key);
            }
            StepKind::Lost(events, ends) => {
                let calls = self.threads.entry(key).or_default();
                self.losses.add(key, events, calls.last(), event.time);
                calls.lose(ends);
                self.settle(key);
            }
            StepKind::Other => {}
        }
        before
    }

    /// Returns the task whose poll a thread is in.
    fn task_of(&self, thread: (u32, u32)) -> Option<usize> {
        let calls = self.threads.get(&thread)?.calls();
        calls.last()?.data.task
    }

    /// Returns the data of a call that begins.
    fn enter(&mut self, event: &Step, names: &Names, function: u32) -> Data {
        let process = event.process;
        let index = self.facts_of(names, process, function);
        let key = (process, event.thread);
        let parent = self.threads.get(&key).and_then(|it| it.calls().last());
        let is_closing = parent.is_some_and(|it| self.facts[it.data.facts].closes);
        let parent = parent.map(|it| (it.data.task, it.data.is_polled, it.data.is_open));
        let (task, is_polled, is_open) = parent.unwrap_or_default();
        // A coroutine that is closed without having been awaited is no task.
        let is_known = || {
            let id = event.arguments[0].map(|frame| (process, frame));
            let task = id.and_then(|id| self.by_id.get(&id));
            task.is_some_and(|&task| self.tasks[task].ended.is_none())
        };
        let is_unawaited = is_closing && !is_known();
        let facts = &self.facts[index];
        let role = facts.role.or_else(|| {
            // A coroutine inside another one is awaited by it.
            let is_coroutine = is_python(function) && event.arguments[0].is_some();
            let is_task = is_coroutine && task.is_none() && !is_unawaited;
            is_task.then_some(Role {
                runtime: Runtime::Asyncio,
                act: Act::Poll,
                argument: 0,
            })
        });
        let mut data = Data {
            facts: index,
            task,
            polls: None,
            is_polled,
            is_open: is_open && facts.is_between && !facts.is_closed,
            slowest: None,
        };
        let Some(role) = role else {
            self.note(&data, is_open);
            return data;
        };
        let id = event.arguments[role.argument].or_else(|| {
            let layout = &names.types(process, function)?.layout;
            let operand = layout
                .operands(&event.values)
                .into_iter()
                .nth(role.argument)?;
            u64::try_from(operand.number?).ok()
        });
        if role.act == Act::Worker {
            // The polls in it are not inside one of the program's tasks.
            if let Some(kind) = task.and_then(|task| self.tasks[task].kind) {
                self.kinds[kind].work = Work::Worker;
            }
            (data.task, data.is_open) = (None, false);
            return data;
        }
        let Some(id) = id else {
            self.unknown += 1;
            return data;
        };
        self.act(role, id, &mut data, event, (function, names));
        data
    }

    /// Notes a call inside a task that has no role, in a call that `is_open`.
    fn note(&mut self, data: &Data, is_open: bool) {
        let facts = &self.facts[data.facts];
        let Some(task) = data.task.map(|task| &mut self.tasks[task]) else {
            return;
        };
        if let (true, Some(kind)) = (is_open, task.kind) {
            self.kinds[kind].learn(facts, data.is_polled);
        }
        if data.is_polled && !facts.is_between {
            task.called = Some(data.facts);
        }
        if data.is_polled && is_open && facts.drops.is_some() {
            task.dropped = Some(data.facts);
        }
    }

    /// Notes a call with a role for the task with this identity. `data` has the task around it.
    fn act(
        &mut self,
        role: Role,
        id: u64,
        data: &mut Data,
        event: &Step,
        (function, names): (u32, &Names),
    ) {
        let (process, task) = (event.process, data.task);
        match role.act {
            Act::Spawn => self.spawn((process, id), event.time),
            Act::Wake => self.wake((process, id), event),
            Act::Poll | Act::Run => {
                data.is_open = true;
                let around = task.and_then(|task| self.tasks.get(task));
                if around.is_some_and(|it| (it.process, it.id) == (process, id)) {
                    return;
                }
                // A frame that a coroutine has freed itself may be that of another function now.
                let kind = self.by_poll.get(&(process, function)).copied();
                let is_coroutine = role.runtime == Runtime::Coroutine;
                let polled = self.find((process, id), |task| {
                    task.ended.is_none() && (!is_coroutine || task.kind == kind)
                });
                (data.task, data.polls) = (Some(polled), Some(polled));
                data.is_polled = true;
                self.poll(polled, event, function, names, role.runtime);
                if role.act == Act::Run {
                    // Another one may get its memory at once.
                    self.tasks[polled].ended = Some(event.time);
                }
            }
            Act::End => {
                let task = self.find((process, id), |_| true);
                self.tasks[task].ended.get_or_insert(event.time);
                data.is_polled &= data.task == Some(task);
                (data.task, data.is_open) = (Some(task), true);
            }
            Act::Touch => {
                let task = self.find((process, id), |_| true);
                data.is_polled &= data.task == Some(task);
                (data.task, data.is_open) = (Some(task), true);
            }
            Act::Worker => {}
        }
    }

    fn facts_of(&mut self, names: &Names, process: u32, function: u32) -> usize {
        if let Some(&known) = self.known.get(&(process, function)) {
            return known;
        }
        let name = names.function_name(process, function);
        self.facts.push(match is_python(function) {
            true => Facts::of_python(name),
            false => Facts::of(name),
        });
        self.known.insert((process, function), self.facts.len() - 1);
        self.facts.len() - 1
    }

    /// Returns the newest task with an address if `is_it`, otherwise a new one.
    fn find(&mut self, id: (u32, u64), is_it: impl Fn(&Task) -> bool) -> usize {
        match self.by_id.get(&id) {
            Some(&known) if is_it(&self.tasks[known]) => known,
            _ => self.add(id),
        }
    }

    fn add(&mut self, id: (u32, u64)) -> usize {
        self.tasks.push(Task {
            process: id.0,
            id: id.1,
            kind: None,
            number: 0,
            spawned: None,
            ended: None,
            polled: None,
            woken: None,
            polls: 0,
            called: None,
            dropped: None,
            waited: None,
        });
        self.by_id.insert(id, self.tasks.len() - 1);
        self.tasks.len() - 1
    }

    fn spawn(&mut self, id: (u32, u64), time: u64) {
        if let Some(&old) = self.by_id.get(&id) {
            let old = &mut self.tasks[old];
            // Several functions are called for one spawn.
            if old.polled.is_none() && old.ended.is_none() {
                old.spawned.get_or_insert(time);
                return;
            }
            // Its memory has a new owner.
            old.ended.get_or_insert(time);
        }
        let task = self.add(id);
        self.tasks[task].spawned = Some(time);
    }

    fn wake(&mut self, id: (u32, u64), event: &Step) {
        // A waker may outlive its task.
        let task = self.find(id, |_| true);
        let known = &mut self.tasks[task];
        if known.ended.is_some() || known.woken.is_some() {
            return;
        }
        known.woken = Some(event.time);
        if known.spawned.is_none() && known.polled.is_none() && self.is_spawning(event) {
            self.tasks[task].spawned = Some(event.time);
            return;
        }
        let known = &mut self.tasks[task];
        let (Some((_, Some(since))), Some(kind)) = (known.polled, known.kind) else {
            return;
        };
        let ticks = event.time.saturating_sub(since);
        let calls = self.threads.get(&(event.process, event.thread));
        let calls = calls.map_or(&[][..], Pairing::calls);
        let by = calls.last().and_then(|call| call.data.task);
        let around = calls.iter().rev().take(AROUND);
        let here = around.take_while(|call| call.data.task == by);
        let facts: Vec<&Facts> = here.map(|call| &self.facts[call.data.facts]).collect();
        let reason = facts.iter().find_map(|facts| facts.reason);
        known.waited = reason.map(|reason| (ticks, reason));
        let waits = &mut self.kinds[kind].sums.waits;
        let known = waits.iter_mut().find(|waits| waits.reason == reason);
        if let Some(waits) = known {
            (waits.count, waits.time) = (waits.count + 1, waits.time + ticks);
            if waits.longest.ticks >= ticks {
                return;
            }
        }
        let function = facts.iter().find(|it| !it.is_between && it.role.is_none());
        let waker = by.and_then(|by| self.tasks.get(by));
        let called = || Some(&self.facts[waker?.called?]);
        let function = function.copied().or_else(called);
        let longest = Wait {
            task,
            from: since,
            ticks,
            by,
            function: function.map(|facts| facts.name.clone()),
            before: waker.and_then(|waker| waker.waited),
        };
        let waits = &mut self.kinds[kind].sums.waits;
        match waits.iter_mut().find(|waits| waits.reason == reason) {
            Some(waits) => waits.longest = longest,
            None => waits.push(Waits {
                reason,
                count: 1,
                time: ticks,
                longest,
            }),
        }
    }

    /// Returns true if a thread is in a function that spawns tasks.
    fn is_spawning(&self, event: &Step) -> bool {
        let calls = self.threads.get(&(event.process, event.thread));
        let mut calls = calls
            .map_or(&[][..], Pairing::calls)
            .iter()
            .rev()
            .take(AROUND);
        calls.any(|call| self.facts[call.data.facts].name.contains("spawn"))
    }

    /// Begins a poll.
    fn poll(&mut self, task: usize, event: &Step, function: u32, names: &Names, runtime: Runtime) {
        let process = event.process;
        let next = self.kinds.len();
        let kind = *self.by_poll.entry((process, function)).or_insert(next);
        if kind == next {
            let poll = names.function_name(process, function);
            let known = names.function(process, function);
            let of_type = match runtime {
                Runtime::Asyncio => Some(poll.clone()),
                _ => runtimes::type_of_future(&poll),
            };
            self.kinds.push(Kind {
                runtime,
                process,
                address: known.map_or(0, |known| known.address),
                work: match (runtime, &of_type) {
                    (Runtime::Rayon, _) => Work::Blocking,
                    (_, Some(of_type)) => runtimes::work(of_type),
                    (_, None) => Work::Future,
                },
                of_type,
                function,
                callee: None,
                is_shared: false,
                is_described: false,
                poll,
                sums: Sums::default(),
            });
        }
        let sums = &mut self.kinds[kind].sums;
        let known = &mut self.tasks[task];
        sums.polls += 1;
        if known.kind.is_none() {
            sums.tasks += 1;
            (known.kind, known.number) = (Some(kind), sums.tasks);
        }
        let late = |from: u64| Late {
            task,
            from,
            ticks: event.time.saturating_sub(from),
        };
        let longer = |late: Late, than: &mut Option<Late>| {
            if than.is_none_or(|than| late.ticks > than.ticks) {
                *than = Some(late);
            }
        };
        if let (0, Some(spawned)) = (known.polls, known.spawned) {
            let late = late(spawned);
            sums.firsts = (sums.firsts.0 + 1, sums.firsts.1 + late.ticks);
            longer(late, &mut sums.first);
        } else if let (Some(woken), Some((_, Some(since)))) = (known.woken, known.polled) {
            // A task that is woken in its poll can be polled again after it.
            longer(late(woken.max(since)), &mut sums.late);
        }
        known.polls += 1;
        known.polled = Some((event.time, None));
        (known.woken, known.called, known.dropped) = (None, None, None);
    }

    /// Processes the calls that the last event of a thread has begun and ended.
    fn settle(&mut self, key: (u32, u32)) {
        loop {
            let Some(calls) = self.threads.get_mut(&key) else {
                return;
            };
            let end = calls.last();
            let call = match calls.change() {
                None => return,
                Some(Change::Began) => {
                    self.counts.calls += 1;
                    continue;
                }
                Some(Change::Ended(call)) => call,
            };
            if matches!(call.ending, Ending::Returned | Ending::Unwound) {
                self.counts.end(call.ran);
            }
            let is_slow = call.ran >= self.threshold / SLOW;
            if let Some(OpenCall { data: parent, .. }) = calls.calls_mut().last_mut() {
                let is_slowest = parent.slowest.as_ref().is_none_or(|it| it.ticks < call.ran);
                // A poll inside another one is another task's time.
                if is_slow && is_slowest && call.data.polls.is_none() {
                    parent.slowest = Some(Rc::new(Slow {
                        facts: call.data.facts,
                        ticks: call.ran,
                        slowest: call.data.slowest.clone(),
                    }));
                }
            }
            let Some(task) = call.data.polls else {
                continue;
            };
            let known = &mut self.tasks[task];
            if let Some((_, ended)) = &mut known.polled {
                // The poll of a task that runs at the end, or whose end was lost, is not over.
                *ended = (call.ending != Ending::Open).then_some(end);
            }
            let Some(kind) = known.kind else {
                continue;
            };
            let sums = &mut self.kinds[kind].sums;
            sums.time += call.ran;
            let is_longest = sums.longest.as_ref().is_none_or(|it| it.ticks < call.ran);
            if !is_longest && call.ran < self.threshold {
                continue;
            }
            let poll = Poll {
                task,
                process: key.0,
                thread: key.1,
                begin: call.begin,
                ticks: call.ran,
                running: None,
                path: path(&self.facts, call.data.slowest.as_ref(), call.ran / PART),
            };
            if call.ran >= self.threshold {
                sums.long += 1;
                self.long.push(poll.clone());
            }
            if is_longest {
                sums.longest = Some(poll);
            }
        }
    }

    /// Ends the calls in progress, and counts the tasks that have ended.
    pub(super) fn finish(&mut self, names: &Names) {
        let threads: Vec<_> = self.threads.keys().copied().collect();
        let end = self.span.map_or(0, |(_, last)| last);
        for key in threads {
            if let Some(calls) = self.threads.get_mut(&key) {
                calls.finish(end);
            }
            self.settle(key);
        }
        for task in &self.tasks {
            if let (Some(kind), true) = (task.kind, task.ended.is_some()) {
                let kind = &mut self.kinds[kind];
                kind.sums.ended += 1;
                // The future of a task is dropped after the futures in it.
                if let (None, Some(dropped)) = (&kind.of_type, task.dropped) {
                    kind.of_type.clone_from(&self.facts[dropped].drops);
                }
            }
        }
        let described = types_of(names);
        for kind in &mut self.kinds {
            let of_type = described.get(&(kind.process, kind.function));
            if let Some(&of_type) = of_type {
                kind.describe(of_type);
            }
        }
        // A type that several kinds have is one of merged functions.
        let mut types: HashMap<(u32, &str), u32> = HashMap::new();
        for kind in &self.kinds {
            if let Some(of_type) = &kind.of_type {
                *types.entry((kind.process, of_type)).or_default() += 1;
            }
        }
        let is_shared = |kind: &Kind| {
            let of_type = kind.of_type.as_deref();
            of_type.is_some_and(|it| types.get(&(kind.process, it)).is_some_and(|&many| many > 1))
        };
        let shared: Vec<bool> = self.kinds.iter().map(is_shared).collect();
        for (kind, is_shared) in self.kinds.iter_mut().zip(shared) {
            kind.is_shared = is_shared && kind.callee.is_some() && !kind.is_described;
        }
    }

    /// Adds the times in which threads were on processors to the longest polls.
    fn add_running(&mut self, schedule: &Schedule) {
        for kind in &mut self.kinds {
            if let Some(poll) = &mut kind.sums.longest {
                let end = poll.begin.saturating_add(poll.ticks);
                let times = schedule.between(poll.thread, poll.begin, end);
                poll.running = times.map(|times| times.running);
            }
        }
    }

    /// Returns the part of the threads' processor time that recording took, in percent.
    #[must_use]
    pub fn overhead(&self, clock: &Clock, schedule: Option<&Schedule>) -> Option<u64> {
        let (first, last) = self.span?;
        let threads = self.threads.keys().map(|&(_, id)| (id, first, last));
        overhead::percent(&self.counts, clock, overhead::used(threads, schedule))
    }

    /// Returns the kind of a task, if it is one of the program's.
    pub(super) fn kind_of(&self, task: usize) -> Option<&Kind> {
        let kind = self.tasks.get(task)?.kind?;
        self.kinds
            .get(kind)
            .filter(|kind| kind.work != Work::Worker)
    }

    /// Returns the name of a task: that of its kind, and its number.
    pub(super) fn name_of(&self, task: usize) -> Option<String> {
        let kind = self.kind_of(task)?;
        Some(format!("{} #{}", kind.name(), self.tasks[task].number))
    }

    /// Returns the kind that was polled most by one thread during a time in which a task could have
    /// been polled, and the ticks of that.
    pub(super) fn instead(&self, late: &Late) -> Option<(&Poll, u64)> {
        let end = late.from.saturating_add(late.ticks);
        let process = self.tasks[late.task].process;
        let inside = |poll: &Poll| {
            let to = poll.begin.saturating_add(poll.ticks).min(end);
            to.saturating_sub(poll.begin.max(late.from))
        };
        let mut sums: HashMap<usize, (usize, u64, u64)> = HashMap::new();
        for (at, poll) in self.long.iter().enumerate() {
            let ticks = inside(poll);
            let is_future = self
                .kind_of(poll.task)
                .is_some_and(|it| it.work == Work::Future);
            let Some(kind) = self.tasks[poll.task].kind.filter(|_| is_future) else {
                continue;
            };
            if ticks > 0 && poll.process == process && poll.task != late.task {
                let sum = sums.entry(kind).or_insert((at, 0, ticks));
                sum.1 += ticks;
                if ticks > sum.2 {
                    (sum.0, sum.2) = (at, ticks);
                }
            }
        }
        let most = sums.into_values().max_by_key(|&(at, sum, _)| (sum, at))?;
        Some((&self.long[most.0], most.1))
    }
}

impl Kind {
    /// Learns the type of the tasks from a function of theirs.
    fn learn(&mut self, facts: &Facts, is_polled: bool) {
        if let (None, Some(of_type)) = (&self.of_type, &facts.of_type) {
            self.of_type = Some(of_type.clone());
        }
        if self.work == Work::Future {
            self.work = runtimes::work(&facts.name);
        }
        if is_polled && self.callee.is_none() && !facts.is_between {
            self.callee = Some(facts.name.clone());
        }
    }

    /// Takes the type that debug information has. The type of a library's future says less than the
    /// function that a poll calls.
    fn describe(&mut self, of_type: &str) {
        self.work = match runtimes::work(of_type) {
            Work::Future => self.work,
            work => work,
        };
        let is_own = !runtimes::is_between(&runtimes::shown_type(of_type));
        let has_symbol = runtimes::type_of_future(&self.poll).is_some();
        if !has_symbol && (is_own || self.of_type.is_none() && self.callee.is_none()) {
            self.of_type = Some(of_type.to_owned());
            self.is_described = true;
        }
    }

    /// Returns the name of its tasks: their type, otherwise the first function that they call.
    pub(super) fn name(&self) -> String {
        match (&self.of_type, &self.callee) {
            (Some(of_type), _) if !self.is_shared => runtimes::shown_type(of_type),
            (_, Some(callee)) => callee.clone(),
            _ => format!("{}@{:#x}", self.poll, self.address),
        }
    }
}

/// Returns the types of the tasks that functions poll, by process and function.
fn types_of(names: &Names) -> HashMap<(u32, u32), &str> {
    let all = names.descriptions().iter();
    let types = all.filter(|it| it.kind == DescriptionKind::FutureType);
    types
        .map(|it| {
            let [process, function, ..] = it.fields;
            ((process as u32, function as u32), it.texts[0].as_str())
        })
        .collect()
}

/// Returns the names of `slowest` and of the slowest calls inside it, outermost first. Leaves out a
/// runtime's functions, unless there are no others: then it returns the innermost one.
fn path(facts: &[Facts], slowest: Option<&Rc<Slow>>, least: u64) -> Vec<String> {
    let (mut names, mut last) = (Vec::new(), None);
    let mut next = slowest;
    while let Some(slow) = next.filter(|slow| slow.ticks >= least) {
        let facts = &facts[slow.facts];
        match facts.is_between || facts.role.is_some() {
            true => last = Some(&facts.name),
            false => names.push(facts.name.clone()),
        }
        next = slow.slowest.as_ref();
    }
    if names.is_empty() {
        names.extend(last.cloned());
    }
    names
}

#[cfg(test)]
mod tests;
