//! Converts events to calls, by pairing entries and ends.

use std::collections::{HashMap, HashSet};
use std::fmt;

use fgraph_trace::clock::Clock;
use fgraph_trace::names::{DescriptionKind, Names, process_id};
pub use fgraph_trace::pairing::Ending;
use fgraph_trace::pairing::{Change, EndedCall, OpenCall, Pairing};
use fgraph_trace::schedule::State;
use fgraph_trace::source::SourceError;
use fgraph_trace::{Event, Source};

use crate::losses::Losses;
use crate::numbers::{ThreadKey, ThreadNumbers};
use crate::stats::Stats;
use crate::step::StepKind;
use crate::text::file_name;

/// The number of a function among those of a recording; they are consecutive, from 0.
pub type Slot = u32;

/// A function of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Function {
    /// The name, never empty.
    pub name: String,
    /// The path of its module; empty if it is unknown.
    pub module: String,
    /// Its start address in a process.
    pub address: u64,
    /// A process that has called it.
    pub process: u32,
    /// Its source file, if that was recorded.
    pub source: Option<String>,
}

impl Function {
    /// Returns the facts about a function of a process, without the process.
    pub fn of(names: &Names, process: u32, function: u32) -> Self {
        let known = names.function(process, function);
        let source = names.source(process, function);
        Self {
            name: names.function_name(process, function),
            module: known.map_or_else(String::new, |known| known.module.clone()),
            address: known.map_or(0, |known| known.address),
            process: 0,
            source: source.map(|(file, _)| file.to_owned()),
        }
    }

    /// Returns the last part of the path of its module.
    pub fn module_name(&self) -> &str {
        file_name(&self.module)
    }
}

/// A thread of a recording.
#[derive(Debug)]
pub struct Thread {
    /// The number of its process.
    pub process: u32,
    /// Its id.
    pub id: u32,
    /// Its name; empty if it is unknown.
    pub name: String,
    /// Its calls in progress.
    calls: Pairing<Slot>,
    /// The time of its first event.
    pub first: u64,
    /// The time of its last event.
    pub last: u64,
    /// Index of the process's pages.
    pages: usize,
}

impl fmt::Display for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_thread(f, &self.name, process_id(self.process), self.id)
    }
}

/// Writes a thread's name, if that is known, and its ids. Text from the program is in it unescaped.
///
/// # Errors
///
/// Errors of `f`.
pub fn write_thread(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    process: u32,
    thread: u32,
) -> fmt::Result {
    let space = if name.is_empty() { "" } else { " " };
    write!(f, "{name}{space}{process}/{thread}")
}

/// A call in progress, with the slot of its function.
pub type Open = OpenCall<Slot>;
/// A call that has ended, with the slot of its function.
pub type Call = EndedCall<Slot>;

/// Counts a call. `is_outermost` is true if no other counted call contains it.
#[inline]
pub fn count(call: &Call, clock: &Clock, is_outermost: bool, stats: &mut Stats) {
    let [ran, own] = [call.ran, call.own].map(|ticks| clock.nanoseconds(ticks));
    match call.ending {
        // It began with the last event of its thread, and its time is unknown.
        Ending::Open if call.ran == 0 => stats.add_untimed(),
        Ending::Returned | Ending::Unwound | Ending::Open => stats.add(ran, own, is_outermost),
        Ending::Lost => stats.add_lost(ran, own, is_outermost),
        Ending::EntryOnly => stats.add_untimed(),
    }
}

/// A consumer of calls.
pub trait Watch {
    /// Called when a function is first met; its slot is the number of earlier ones.
    fn function(&mut self, function: &Function) {
        let _ = function;
    }

    /// Called when a thread is first met; its number is the number of earlier ones.
    fn thread(&mut self, process: u32, thread: u32) {
        let _ = (process, thread);
    }

    /// Called when a call begins: the last one of `stack`, in the thread with this number.
    fn begin(&mut self, thread: usize, stack: &[Open]) {
        let _ = (thread, stack);
    }

    /// Called when a call ends; `stack` has the calls around it.
    fn end(&mut self, thread: usize, stack: &[Open], call: &Call);
}

/// The number of calls in progress of each thread in each line of a table. A call at 1 is in no
/// other call of its line.
#[derive(Debug, Default)]
pub struct Active(Vec<Vec<u32>>);

impl Active {
    /// Begins a call.
    #[inline]
    pub fn begin(&mut self, thread: usize, line: usize) {
        if self.0.len() <= thread {
            self.0.resize_with(thread + 1, Vec::new);
        }
        let lines = &mut self.0[thread];
        if lines.len() <= line {
            lines.resize(line + 1, 0);
        }
        lines[line] += 1;
    }

    /// Ends a call; returns true if no other call of its line contains it.
    #[inline]
    pub fn end(&mut self, thread: usize, line: usize) -> bool {
        let known = self.0.get_mut(thread).and_then(|lines| lines.get_mut(line));
        known.is_none_or(|active| {
            *active = active.saturating_sub(1);
            *active == 0
        })
    }
}

/// The functions and threads met, and the number of events and calls.
#[derive(Debug, Default)]
pub struct Followed {
    /// The functions, by slot.
    pub functions: Vec<Function>,
    /// The threads, by number.
    pub threads: Vec<Thread>,
    /// The number of calls that have begun.
    pub entries: u64,
    /// The number of events that begin or end calls.
    pub events: u64,
    /// The missing events.
    pub losses: Losses,
    /// Threads whose states are unknown, where times were wanted in one state.
    pub unknown: HashSet<(u32, u32)>,
    /// Ticks of the first event and of the last one.
    pub span: Option<(u64, u64)>,
    slots: HashMap<Function, Slot>,
    numbers: ThreadNumbers,
    by_process: HashMap<u32, usize>,
    pages: Vec<Pages<Slot>>,
}

/// A value for each function of a process, by the function's index.
#[derive(Debug, Default)]
pub struct Pages<T>(Vec<Option<Page<T>>>);

type Page<T> = Box<[Option<T>; PAGE]>;

const PAGE: usize = 1024;

impl<T: Copy> Pages<T> {
    /// Returns the value of a function, if it was set.
    #[inline]
    pub fn get(&self, function: u32) -> Option<T> {
        match self.0.get(function as usize / PAGE) {
            Some(Some(page)) => page[function as usize % PAGE],
            _ => None,
        }
    }

    /// Sets the value of a function.
    pub fn set(&mut self, function: u32, value: T) {
        let page = function as usize / PAGE;
        if self.0.len() <= page {
            self.0.resize_with(page + 1, || None);
        }
        let page = self.0[page].get_or_insert_with(|| Box::new([None; PAGE]));
        page[function as usize % PAGE] = Some(value);
    }
}

/// Passes all calls of a source to `watch`.
///
/// Calls in progress at the end count until the last event of their thread: its process may have
/// ended then, or executed another program.
pub fn follow(source: &mut impl Source, watch: &mut impl Watch) -> Result<Followed, SourceError> {
    follow_in(source, None, watch)
}

/// Does the same as [`follow`]; with a state, times of calls are those in which their threads had
/// this state.
pub fn follow_in(
    source: &mut impl Source,
    state: Option<State>,
    watch: &mut impl Watch,
) -> Result<Followed, SourceError> {
    let mut this = Followed::default();
    // For each thread, the place of its last moment among its states.
    let (mut numbers, mut near) = (ThreadNumbers::default(), Vec::new());
    while let Some(event) = source.next()? {
        let mut step = Step::of(&event);
        if let (Some(state), Some(schedule)) = (state, source.schedule()) {
            let number = numbers.of((step.process, step.thread));
            if number == near.len() {
                near.push(0);
            }
            match schedule.at_near(step.thread, step.time, &mut near[number]) {
                Some(times) => step.measured = times.of(state),
                None => this.unknown.extend([(step.process, step.thread)]),
            }
        }
        this.step(step, source.names(), watch);
    }
    this.finish(watch);
    Ok(this)
}

/// The effect of an event on calls.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Its time, in ticks.
    pub time: u64,
    /// The time from which the times of calls are computed.
    measured: u64,
    process: u32,
    thread: u32,
    what: StepKind,
}

impl Step {
    /// Returns the effect of `event`.
    #[inline]
    pub fn of(event: &Event<'_>) -> Self {
        Self {
            time: event.time,
            measured: event.time,
            process: event.process,
            thread: event.thread,
            what: StepKind::of(&event.what),
        }
    }
}

impl Thread {
    /// Passes the calls that its last event has begun and ended to `watch`.
    #[cold]
    fn settle(&mut self, index: usize, watch: &mut impl Watch) {
        while let Some(change) = self.calls.change() {
            match change {
                Change::Began => watch.begin(index, self.calls.calls()),
                Change::Ended(call) => watch.end(index, self.calls.calls(), &call),
            }
        }
    }
}

impl Followed {
    /// Passes the call that begins or ends with an event to `watch`.
    #[inline]
    pub fn step(&mut self, step: Step, names: &Names, watch: &mut impl Watch) {
        let Step {
            time,
            measured,
            process,
            thread: id,
            what,
        } = step;
        match what {
            StepKind::Begin(_) | StepKind::Only(_) | StepKind::End(..) => {}
            StepKind::Lost(events, ends) => {
                let mut from = self.span.map_or(time, |(first, _)| first);
                if let Some(index) = self.numbers.known((process, id)) {
                    let thread = &mut self.threads[index];
                    let calls = thread.calls.calls().len();
                    from = thread.last;
                    thread.calls.lose(ends);
                    thread.settle(index, watch);
                    self.losses.calls += (calls - thread.calls.calls().len()) as u64;
                }
                self.losses.add((process, id), events, from, time);
                return;
            }
            StepKind::Other => return,
        }
        self.events += 1;
        let index = self.numbers.of((process, id));
        if index == self.threads.len() {
            self.add_thread(process, id, names);
            watch.thread(process, id);
        }
        let thread = &mut self.threads[index];
        if thread.last == 0 {
            thread.first = time;
        }
        thread.last = time;
        match &mut self.span {
            Some((_, last)) => *last = time.max(*last),
            None => self.span = Some((time, time)),
        }
        if let StepKind::Begin(function) | StepKind::Only(function) = what {
            let slot = match self.pages[thread.pages].get(function) {
                Some(slot) => slot,
                None => self.slot(index, function, names, watch),
            };
            self.entries += 1;
            let calls = &mut self.threads[index].calls;
            if let StepKind::Only(_) = what {
                calls.enter_only(function, measured, slot);
            } else if calls.enter_at_once(function, measured, slot) {
                watch.begin(index, calls.calls());
                return;
            }
        } else if let StepKind::End(function, ending) = what {
            let calls = &mut self.threads[index].calls;
            if let Some(call) = calls.exit_at_once(function, measured, ending) {
                watch.end(index, calls.calls(), &call);
                return;
            }
        }
        self.threads[index].settle(index, watch);
    }

    /// Gives threads the names that they had last.
    pub fn rename(&mut self, names: &Names) {
        let all = names.descriptions().iter();
        let mut named: Vec<_> = all
            .filter(|it| it.kind == DescriptionKind::Thread)
            .collect();
        named.sort_by_key(|it| it.fields[2]);
        let key = |process, thread| (process_id(process), thread);
        let last: HashMap<_, _> = named
            .iter()
            .map(|it| (key(it.fields[0] as u32, it.fields[1] as u32), &it.texts[0]))
            .collect();
        for thread in &mut self.threads {
            if let Some(&name) = last.get(&key(thread.process, thread.id)) {
                thread.name.clone_from(name);
            }
        }
    }

    /// Ends the calls in progress at the last event of their thread.
    pub fn finish(&mut self, watch: &mut impl Watch) {
        for (index, thread) in self.threads.iter_mut().enumerate() {
            thread.calls.finish(thread.calls.last());
            thread.settle(index, watch);
        }
    }

    /// Passes the calls in progress, up to the last event of their thread, to `found`: the number
    /// of the thread, the depth of the call, and true if it is in no other call of its function.
    pub fn each_open(&self, mut found: impl FnMut(usize, usize, &Call, bool)) {
        let mut met = HashSet::new();
        for (index, thread) in self.threads.iter().enumerate() {
            met.clear();
            for (depth, (open, ran, own)) in thread.calls.so_far().enumerate() {
                let call = Call {
                    function: open.function,
                    begin: open.begin,
                    ran,
                    own,
                    ending: Ending::Open,
                    data: open.data,
                };
                found(index, depth, &call, met.insert(open.data));
            }
        }
    }

    #[cold]
    fn add_thread(&mut self, process: u32, id: u32, names: &Names) {
        let pages = *self.by_process.entry(process).or_insert(self.pages.len());
        if pages == self.pages.len() {
            self.pages.push(Pages::default());
        }
        self.threads.push(Thread {
            process,
            id,
            name: names.thread(process, id).unwrap_or_default().to_owned(),
            calls: Pairing::new(),
            first: 0,
            last: 0,
            pages,
        });
    }

    /// Returns the number of a thread, if it was met.
    pub fn number_of(&self, thread: ThreadKey) -> Option<usize> {
        self.numbers.known(thread)
    }

    /// Returns the slot of a function of another pass over the same recording.
    pub fn slot_of(&self, function: &Function) -> Option<Slot> {
        let process = 0;
        let function = Function {
            process,
            ..function.clone()
        };
        self.slots.get(&function).copied()
    }

    #[cold]
    fn slot(
        &mut self,
        thread: usize,
        function: u32,
        names: &Names,
        watch: &mut impl Watch,
    ) -> Slot {
        let (process, pages) = (self.threads[thread].process, self.threads[thread].pages);
        let mut found = Function::of(names, process, function);
        let next = self.functions.len() as Slot;
        let slot = *self.slots.entry(found.clone()).or_insert(next);
        if slot == next {
            found.process = process;
            watch.function(&found);
            self.functions.push(found);
        }
        self.pages[pages].set(function, slot);
        slot
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fgraph_trace::Live;
    use fgraph_trace::event::{Kind, What, call};
    use fgraph_trace::ring::{RingOptions, Rings};

    use super::*;

    /// Function, time, own time and ending of each call.
    #[derive(Default)]
    struct Ended(Vec<(String, Option<u64>, u64, Ending)>, Vec<String>);

    impl Watch for Ended {
        fn function(&mut self, function: &Function) {
            self.1.push(function.name.clone());
        }

        fn end(&mut self, _: usize, _: &[Open], call: &Call) {
            let name = self.1[call.data as usize].clone();
            self.0.push((name, call.duration(), call.own, call.ending));
        }
    }

    /// Follows events: thread, kind, function, and ticks since the beginning.
    fn ended(events: &[(u32, Kind, u32, u64)]) -> Vec<(String, Option<u64>, u64, Ending)> {
        let rings = Arc::new(Rings::create(&RingOptions::default()).unwrap());
        let start = rings.clock().first().ticks;
        let writers = [1, 2].map(|thread| rings.writer(9, thread).unwrap());
        for &(thread, kind, function, time) in events {
            writers[thread as usize - 1].call(call(kind, function), start + time);
        }
        rings.finish();
        let mut ended = Ended::default();
        follow(&mut Live::watch(rings.clone()), &mut ended).unwrap();
        ended.0
    }

    #[test]
    fn a_call_whose_end_is_missing_has_no_duration() {
        let found = ended(&[
            (1, Kind::Return, 8, 5),
            (1, Kind::Entry, 1, 10),
            (1, Kind::Entry, 2, 20),
            (1, Kind::Entry, 3, 30),
            (1, Kind::Unwound, 2, 60),
            (1, Kind::Return, 1, 100),
        ]);
        let call = |function: u32, took, own, ending| {
            (format!("<lost name {function}>"), took, own, ending)
        };
        let expected = [
            call(3, None, 0, Ending::Lost),
            call(2, Some(40), 10, Ending::Unwound),
            call(1, Some(90), 50, Ending::Returned),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn calls_whose_ends_were_lost_have_no_durations_and_those_around_them_have() {
        let names = Names::default();
        let (mut followed, mut ended) = (Followed::default(), Ended::default());
        let mut step = |time, what| {
            let event = Event::new(time, 9, 1, what);
            followed.step(Step::of(&event), &names, &mut ended);
        };
        let entry = What::entry;
        let end = What::returned;
        let lost = |ends| What::Lost { events: 7, ends };
        step(0, entry(1));
        step(10, entry(2));
        step(20, entry(3));
        step(24, lost(Some(2)));
        step(1000, entry(4));
        step(1100, end(4));
        step(1200, end(1));
        // It is unknown which calls end.
        step(2000, entry(5));
        step(2010, entry(5));
        step(2030, lost(None));
        step(3000, end(5));
        let call = |function: u32, took, own, ending| {
            (format!("<lost name {function}>"), took, own, ending)
        };
        let expected = [
            call(3, None, 0, Ending::Lost),
            call(2, None, 10, Ending::Lost),
            call(4, Some(100), 100, Ending::Returned),
            call(1, Some(1200), 110, Ending::Returned),
            call(5, None, 0, Ending::Lost),
            call(5, None, 10, Ending::Lost),
        ];
        assert_eq!(ended.0, expected);
        assert_eq!((followed.losses.events(), followed.losses.calls), (14, 4));
    }

    #[test]
    fn calls_after_an_entry_only_call_are_in_the_enclosing_one() {
        let names = Names::default();
        let (mut followed, mut ended) = (Followed::default(), Ended::default());
        let mut step = |time, what| {
            let event = Event::new(time, 9, 1, what);
            followed.step(Step::of(&event), &names, &mut ended);
        };
        let entry = |function, is_entry_only| What::Entry {
            function,
            arguments: &[],
            caller: None,
            is_entry_only,
        };
        let end = What::returned;
        step(0, entry(1, false));
        step(10, entry(2, true));
        step(20, entry(3, false));
        step(50, end(3));
        step(100, end(1));
        let call = |function: u32, took, own, ending| {
            (format!("<lost name {function}>"), took, own, ending)
        };
        let expected = [
            call(2, None, 0, Ending::EntryOnly),
            call(3, Some(30), 30, Ending::Returned),
            call(1, Some(100), 70, Ending::Returned),
        ];
        assert_eq!(ended.0, expected);
        assert_eq!(followed.entries, 3);
    }

    #[test]
    fn a_call_that_goes_on_ends_with_the_last_event_of_its_thread() {
        let found = ended(&[
            (1, Kind::Entry, 1, 0),
            (1, Kind::Entry, 2, 40),
            (2, Kind::Entry, 3, 50),
            (2, Kind::Return, 3, 1_000_000),
        ]);
        let times: Vec<_> = found
            .iter()
            .map(|(name, took, own, ending)| (&name[..], *took, *own, *ending))
            .collect();
        let expected = [
            ("<lost name 3>", Some(999_950), 999_950, Ending::Returned),
            ("<lost name 2>", None, 0, Ending::Open),
            ("<lost name 1>", None, 40, Ending::Open),
        ];
        assert_eq!(times, expected);
    }
}
