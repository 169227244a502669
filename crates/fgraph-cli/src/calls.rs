//! From events to calls that begin and end in pairs, for what is counted of them.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::Path;

use fgraph_trace::clock::Clock;
use fgraph_trace::event::What;
use fgraph_trace::names::{Names, process_id};
use fgraph_trace::source::SourceError;
use fgraph_trace::{Event, Source};

use crate::stats::Stats;
use crate::text::named;

/// The number of a function among those of a recording; they are dense, from 0.
pub(crate) type Slot = u32;

/// A function of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Function {
    /// Never empty.
    pub(crate) name: String,
    /// The path of its module; empty if it is not known.
    pub(crate) module: String,
    /// Where it begins in a process.
    pub(crate) address: u64,
    /// A process that has called it.
    pub(crate) process: u32,
    /// Its source file, if that was recorded.
    pub(crate) source: Option<String>,
}

impl Function {
    /// What is known of a function of a process, without the process.
    fn of(names: &Names, process: u32, function: u32) -> Self {
        match names.function(process, function) {
            Some(known) => Self {
                name: match known.name.as_str() {
                    "" => format!("{:#x}", known.address),
                    name => name.to_owned(),
                },
                module: known.module.clone(),
                address: known.address,
                process: 0,
                source: names
                    .source(process, function)
                    .map(|(file, _)| file.to_owned()),
            },
            None => Self {
                name: format!("function {function}"),
                ..Self::default()
            },
        }
    }

    /// The last part of the path of its module.
    pub(crate) fn module_name(&self) -> &str {
        let name = Path::new(&self.module).file_name();
        name.and_then(|name| name.to_str()).unwrap_or(&self.module)
    }
}

/// The functions that were called too often, each once, with its module: hostile text.
pub(crate) fn switched_off(names: &Names) -> Vec<String> {
    let mut all = Vec::new();
    let mut known = HashSet::new();
    for &(process, function) in names.switched_off() {
        let function = Function::of(names, process, function);
        let name = named(&function.name, function.module_name());
        if known.insert(name.clone()) {
            all.push(name);
        }
    }
    all
}

/// A thread of a recording.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) process: u32,
    pub(crate) id: u32,
    /// Its name; empty if it is not known.
    pub(crate) name: String,
    /// Calls that go on.
    calls: Vec<Open>,
    /// Index of the process's pages.
    pages: usize,
    /// The time of its last event.
    last: u64,
    /// Whether events were lost behind that.
    is_lost: bool,
}

impl Thread {
    /// Events are lost behind the last one: any call may have ended there.
    #[cold]
    fn lose(&mut self) {
        self.is_lost = true;
        for open in &mut self.calls {
            open.gap = open.gap.or(Some((self.last, open.inner)));
        }
    }

    /// Takes the name that a thread has now, which runs: programs name them after their first
    /// calls.
    pub(crate) fn rename(&mut self) {
        let comm = format!("/proc/{}/task/{}/comm", process_id(self.process), self.id);
        if let Ok(name) = std::fs::read_to_string(comm) {
            self.name = name.trim_end().to_owned();
        }
    }
}

impl fmt::Display for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let process = process_id(self.process);
        match self.name.as_str() {
            "" => write!(f, "{process}/{}", self.id),
            name => write!(f, "{name} {process}/{}", self.id),
        }
    }
}

/// A call that goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Open {
    pub(crate) slot: Slot,
    function: u32,
    /// In ticks.
    pub(crate) begin: u64,
    /// Ticks that the calls in it took, and those in which events of it were lost.
    inner: u64,
    /// Where events were lost first, and `inner` then: whether it went on after that is not known.
    gap: Option<(u64, u64)>,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Returned,
    Unwound,
    /// Its end is not among the events.
    Missing,
    /// Its end was not to be recorded: how long it took is not known, and not counted.
    EntryOnly,
}

/// A call that has ended. Times are in ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) slot: Slot,
    pub(crate) begin: u64,
    pub(crate) took: u64,
    /// Without the calls in it.
    pub(crate) own: u64,
    pub(crate) ending: Ending,
}

impl Call {
    /// Counts it. `is_outermost` says that it is in no other call that is counted there.
    #[inline]
    pub(crate) fn count(&self, clock: &Clock, is_outermost: bool, stats: &mut Stats) {
        if self.ending == Ending::EntryOnly {
            stats.add_untimed();
            return;
        }
        let [took, own] = [self.took, self.own].map(|ticks| clock.nanoseconds(ticks));
        stats.add(took, own, is_outermost);
    }
}

/// What is done with calls.
pub(crate) trait Watch {
    /// A function is met for the first time; its slot is the number of those before.
    fn function(&mut self, function: &Function) {
        let _ = function;
    }

    /// A call begins: the last one of `stack`, of the thread of this number.
    fn begin(&mut self, thread: usize, stack: &[Open]) {
        let _ = (thread, stack);
    }

    /// A call ends; `stack` has those around it.
    fn end(&mut self, thread: usize, stack: &[Open], call: &Call);

    /// Events of a thread are lost: which of its calls go on is not known.
    fn lose(&mut self, thread: usize) {
        let _ = thread;
    }
}

/// How many calls go on of each thread in each line of a table, to find those that are in no other
/// one of their line.
#[derive(Debug, Default)]
pub(crate) struct Active(Vec<Vec<u32>>);

impl Active {
    #[inline]
    pub(crate) fn begin(&mut self, thread: usize, line: usize) {
        if self.0.len() <= thread {
            self.0.resize_with(thread + 1, Vec::new);
        }
        let lines = &mut self.0[thread];
        if lines.len() <= line {
            lines.resize(line + 1, 0);
        }
        lines[line] += 1;
    }

    /// Whether the call that ends is in no other one.
    #[inline]
    pub(crate) fn end(&mut self, thread: usize, line: usize) -> bool {
        let known = self.0.get_mut(thread).and_then(|lines| lines.get_mut(line));
        known.is_none_or(|active| {
            *active = active.saturating_sub(1);
            *active == 0
        })
    }

    /// The calls of a thread may be over: what comes next is in none of them.
    #[cold]
    pub(crate) fn lose(&mut self, thread: usize) {
        if let Some(lines) = self.0.get_mut(thread) {
            lines.fill(0);
        }
    }
}

/// Functions and threads that were met, and how much there was.
#[derive(Debug, Default)]
pub(crate) struct Followed {
    pub(crate) functions: Vec<Function>,
    pub(crate) threads: Vec<Thread>,
    pub(crate) entries: u64,
    pub(crate) events: u64,
    pub(crate) lost: u64,
    /// Ticks of the first event and of the last one.
    pub(crate) span: Option<(u64, u64)>,
    slots: HashMap<Function, Slot>,
    by_id: HashMap<(u32, u32), usize>,
    by_process: HashMap<u32, usize>,
    pages: Vec<Pages>,
    /// The thread of the last event.
    recent: Option<((u32, u32), usize)>,
}

/// The slots of a process's functions, by their index.
#[derive(Debug, Default)]
struct Pages(Vec<Option<Box<[Slot; PAGE]>>>);

const PAGE: usize = 1024;
const UNKNOWN: Slot = Slot::MAX;
/// Where calls whose ends are missing pile up, the outermost are ended at this depth.
const MAX_DEPTH: usize = 1 << 16;
/// Where events were lost, in so many calls around one it is looked for others of its function.
const NEAR: usize = 256;

impl Pages {
    #[inline]
    fn get(&self, function: u32) -> Slot {
        let page = self.0.get(function as usize / PAGE);
        match page {
            Some(Some(page)) => page[function as usize % PAGE],
            _ => UNKNOWN,
        }
    }

    fn set(&mut self, function: u32, slot: Slot) {
        let page = function as usize / PAGE;
        if self.0.len() <= page {
            self.0.resize_with(page + 1, || None);
        }
        let page = self.0[page].get_or_insert_with(|| Box::new([UNKNOWN; PAGE]));
        page[function as usize % PAGE] = slot;
    }
}

/// Hands all calls of a source to `watch`.
///
/// Calls that go on at the end are taken to end with the last event of their thread: its process
/// may have ended then, or become another program.
pub(crate) fn follow(
    source: &mut impl Source,
    watch: &mut impl Watch,
) -> Result<Followed, SourceError> {
    let mut this = Followed::default();
    while let Some(event) = source.next()? {
        let step = Step::of(&event);
        this.step(step, source.names(), watch);
    }
    this.finish(watch);
    Ok(this)
}

/// What an event has to do with calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) time: u64,
    process: u32,
    thread: u32,
    what: StepKind,
}

#[derive(Clone, Copy, Debug)]
enum StepKind {
    Begin(u32),
    /// A call that is entry only.
    Only(u32),
    End(u32, Ending),
    Lost(u64),
    Other,
}

impl Step {
    #[inline]
    pub(crate) fn of(event: &Event<'_>) -> Self {
        Self {
            time: event.time,
            process: event.process,
            thread: event.thread,
            what: match event.what {
                What::Entry {
                    function,
                    is_entry_only: true,
                    ..
                } => StepKind::Only(function),
                What::Entry { function, .. } => StepKind::Begin(function),
                What::Return { function, .. } => StepKind::End(function, Ending::Returned),
                What::Unwound { function } => StepKind::End(function, Ending::Unwound),
                What::Lost { events, .. } => StepKind::Lost(events),
                What::Mark(_) => StepKind::Other,
            },
        }
    }
}

/// Ends the innermost call of a thread; `false` if there is none.
#[inline]
fn end(thread: &mut Thread, index: usize, ending: Ending, watch: &mut impl Watch) -> bool {
    let Some(open) = thread.calls.pop() else {
        return false;
    };
    let mut took = thread.last.saturating_sub(open.begin);
    let (mut inner, mut after) = (open.inner, 0);
    if let (Ending::Missing, Some((time, before))) = (ending, open.gap) {
        // It is known to have gone on until then.
        took = time.saturating_sub(open.begin);
        (inner, after) = (before, inner.saturating_sub(before));
    }
    if let Some(caller) = thread.calls.last_mut() {
        caller.inner = caller.inner.saturating_add(took).saturating_add(after);
        // Of a call that went on there as well, this is time before.
        if let Some((time, before)) = &mut caller.gap
            && open.begin < *time
        {
            *before = before.saturating_add(took);
        }
    }
    let call = Call {
        slot: open.slot,
        begin: open.begin,
        took,
        own: took.saturating_sub(inner),
        ending,
    };
    watch.end(index, &thread.calls, &call);
    true
}

impl Followed {
    /// Hands the call that begins or ends with an event to `watch`.
    #[inline]
    pub(crate) fn step(&mut self, step: Step, names: &Names, watch: &mut impl Watch) {
        let Step {
            time,
            process,
            thread: id,
            what,
        } = step;
        match what {
            StepKind::Begin(_) | StepKind::Only(_) | StepKind::End(..) => {}
            StepKind::Lost(events) => {
                self.lost = self.lost.saturating_add(events);
                if let Some(&index) = self.by_id.get(&(process, id)) {
                    self.threads[index].lose();
                    watch.lose(index);
                }
                return;
            }
            StepKind::Other => return,
        }
        self.events += 1;
        let index = match self.recent {
            Some((of, index)) if of == (process, id) => index,
            _ => self.thread(process, id, names),
        };
        self.recent = Some(((process, id), index));
        let thread = &mut self.threads[index];
        if std::mem::take(&mut thread.is_lost)
            && let Some(open) = thread.calls.last_mut()
        {
            open.inner += time.saturating_sub(thread.last);
        }
        thread.last = time;
        match &mut self.span {
            Some((_, last)) => *last = time.max(*last),
            None => self.span = Some((time, time)),
        }
        if let StepKind::Begin(function) | StepKind::Only(function) = what {
            let mut slot = self.pages[thread.pages].get(function);
            if slot == UNKNOWN {
                slot = self.slot(index, function, names, watch);
            }
            self.entries += 1;
            let thread = &mut self.threads[index];
            if thread.calls.len() >= MAX_DEPTH {
                while end(thread, index, Ending::Missing, watch) {}
            }
            thread.calls.push(Open {
                slot,
                function,
                begin: time,
                inner: 0,
                gap: None,
            });
            watch.begin(index, &thread.calls);
            if let StepKind::Only(_) = what {
                end(thread, index, Ending::EntryOnly, watch);
            }
        } else if let StepKind::End(function, ending) = what {
            // Mostly the innermost one.
            let is_it = |open: &Open| open.function == function;
            if let Some(depth) = thread.calls.iter().rposition(is_it) {
                while thread.calls.len() > depth + 1 {
                    end(thread, index, Ending::Missing, watch);
                }
                let around = thread.calls[..depth].iter().rev().take(NEAR);
                let is_lost = thread.calls[depth].gap.is_some();
                if is_lost && around.into_iter().any(is_it) {
                    // It may be the end of one of these.
                    end(thread, index, Ending::Missing, watch);
                    return;
                }
                // Those around a call that has gone on have done so, too.
                let around = thread.calls.iter_mut().rev();
                for open in around.take_while(|open| open.gap.is_some()) {
                    open.gap = None;
                }
                end(thread, index, ending, watch);
            }
        }
    }

    /// Ends the calls that go on with the last event of their thread.
    pub(crate) fn finish(&mut self, watch: &mut impl Watch) {
        for (index, thread) in self.threads.iter_mut().enumerate() {
            while end(thread, index, Ending::Missing, watch) {}
        }
    }

    /// Hands over the calls that go on, up to the last event of their thread: the number of the
    /// thread, in how many calls each is, and whether it is in no other one of its function.
    pub(crate) fn each_open(&self, mut found: impl FnMut(usize, usize, &Call, bool)) {
        // When the call of a function ended, as far as is known, that ended last.
        let mut met = HashMap::new();
        for (index, thread) in self.threads.iter().enumerate() {
            met.clear();
            for (depth, open) in thread.calls.iter().enumerate() {
                let end = open.gap.map_or(thread.last, |(time, _)| time);
                let took = end.saturating_sub(open.begin);
                let in_it = thread.calls.get(depth + 1);
                let in_it = in_it.filter(|inner| inner.begin < end);
                let inner = in_it.map_or(0, |inner| end.saturating_sub(inner.begin));
                let known = open.gap.map_or(open.inner, |(_, inner)| inner);
                let call = Call {
                    slot: open.slot,
                    begin: open.begin,
                    took,
                    own: took.saturating_sub(known.saturating_add(inner)),
                    ending: Ending::Missing,
                };
                let last = met.entry(open.slot).or_insert(open.begin);
                let is_outermost = *last <= open.begin;
                *last = end.max(*last);
                found(index, depth, &call, is_outermost);
            }
        }
    }

    #[cold]
    fn thread(&mut self, process: u32, id: u32, names: &Names) -> usize {
        if let Some(&known) = self.by_id.get(&(process, id)) {
            return known;
        }
        let pages = *self.by_process.entry(process).or_insert(self.pages.len());
        if pages == self.pages.len() {
            self.pages.push(Pages::default());
        }
        self.threads.push(Thread {
            process,
            id,
            name: names.thread(process, id).unwrap_or_default().to_owned(),
            calls: Vec::new(),
            pages,
            last: 0,
            is_lost: false,
        });
        let index = self.threads.len() - 1;
        self.by_id.insert((process, id), index);
        index
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
    use fgraph_trace::event::{Kind, call};
    use fgraph_trace::ring::{RingOptions, Rings};

    use super::*;

    /// Function, time, own time and ending of each call.
    #[derive(Default)]
    struct Ended(Vec<(String, u64, u64, Ending)>, Vec<String>);

    impl Watch for Ended {
        fn function(&mut self, function: &Function) {
            self.1.push(function.name.clone());
        }

        fn end(&mut self, _: usize, _: &[Open], call: &Call) {
            let name = self.1[call.slot as usize].clone();
            self.0.push((name, call.took, call.own, call.ending));
        }
    }

    /// Follows events: thread, kind, function, and ticks since the beginning.
    fn ended(events: &[(u32, Kind, u32, u64)]) -> Vec<(String, u64, u64, Ending)> {
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
    fn a_call_whose_end_is_missing_ends_with_the_one_around_it() {
        let found = ended(&[
            (1, Kind::Return, 8, 5),
            (1, Kind::Entry, 1, 10),
            (1, Kind::Entry, 2, 20),
            (1, Kind::Entry, 3, 30),
            (1, Kind::Unwound, 2, 60),
            (1, Kind::Return, 1, 100),
        ]);
        let call =
            |function: u32, took, own, ending| (format!("function {function}"), took, own, ending);
        let expected = [
            call(3, 30, 30, Ending::Missing),
            call(2, 40, 10, Ending::Unwound),
            call(1, 90, 50, Ending::Returned),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_call_that_may_have_ended_where_events_were_lost_ends_there() {
        let names = Names::default();
        let (mut followed, mut ended) = (Followed::default(), Ended::default());
        let mut step = |time, what| {
            let event = Event::new(time, 9, 1, what);
            followed.step(Step::of(&event), &names, &mut ended);
        };
        let entry = |function| What::Entry {
            function,
            arguments: &[],
            caller: None,
            is_entry_only: false,
        };
        let end = |function| What::Return {
            function,
            result: &[],
        };
        step(0, entry(1));
        step(10, entry(2));
        step(20, entry(3));
        step(23, entry(6));
        step(24, end(6));
        step(
            30,
            What::Lost {
                events: 7,
                ends: None,
            },
        );
        step(1000, entry(4));
        step(1100, end(4));
        step(1200, end(1));
        // Which one of the two ends is not known.
        step(2000, entry(5));
        step(2010, entry(5));
        step(
            2030,
            What::Lost {
                events: 1,
                ends: None,
            },
        );
        step(3000, end(5));
        // The ends of 2 and 3 are among those that are missing.
        let call =
            |function: u32, took, own, ending| (format!("function {function}"), took, own, ending);
        let expected = [
            call(6, 1, 1, Ending::Returned),
            call(4, 100, 100, Ending::Returned),
            call(3, 4, 3, Ending::Missing),
            call(2, 14, 10, Ending::Missing),
            call(1, 1200, 110, Ending::Returned),
            call(5, 0, 0, Ending::Missing),
        ];
        assert_eq!(ended.0, expected);
    }

    #[test]
    fn what_follows_a_call_that_is_entry_only_is_in_the_one_around_it() {
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
        let end = |function| What::Return {
            function,
            result: &[],
        };
        step(0, entry(1, false));
        step(10, entry(2, true));
        step(20, entry(3, false));
        step(50, end(3));
        step(100, end(1));
        let call =
            |function: u32, took, own, ending| (format!("function {function}"), took, own, ending);
        let expected = [
            call(2, 0, 0, Ending::EntryOnly),
            call(3, 30, 30, Ending::Returned),
            call(1, 100, 70, Ending::Returned),
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
            .map(|(name, took, ..)| (&name[..], *took))
            .collect();
        let expected = [
            ("function 3", 999_950),
            ("function 2", 0),
            ("function 1", 40),
        ];
        assert_eq!(times, expected);
    }
}
