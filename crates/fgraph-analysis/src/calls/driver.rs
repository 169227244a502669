//! Reads events and passes calls to a visitor.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::marker::PhantomData;

use fgraph_trace::clock::Clock;
use fgraph_trace::event::{What, mark_text};
use fgraph_trace::names::{DescriptionKind, Names, process_id};
use fgraph_trace::pairing::{Ending, Pairing};
use fgraph_trace::schedule::{Schedule, State};
use fgraph_trace::source::SourceError;
use fgraph_trace::{Event, Source};

use super::context::Context;
use super::counts::Counts;
use super::functions::{Function, Functions, Slot};
use super::mode::{Mode, Views};
use super::thread::{Moment, Scene, Thread};
use super::visitor::{Call, Measured, ThreadId, Values, Visitor};
use crate::losses::Losses;
use crate::numbers::{ThreadKey, ThreadNumbers, grown};
use crate::step::StepKind;

/// The effect of an event on calls.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Its time, in ticks.
    pub time: u64,
    process: u32,
    thread: u32,
    what: StepKind,
}

impl Step {
    /// Returns the effect of `event`.
    #[inline]
    #[must_use]
    pub fn of(event: &Event<'_>) -> Self {
        Self {
            time: event.time,
            process: event.process,
            thread: event.thread,
            what: StepKind::of(&event.what),
        }
    }
}

/// The reason for which events are not read any further.
#[derive(Debug)]
pub enum Stopped<E> {
    /// The source has failed.
    Source(SourceError),
    /// The visitor has failed.
    Visitor(E),
}

/// Follows the calls of all threads. It has the functions and threads met, and the number of events
/// and calls.
#[derive(Debug, Default)]
pub struct Calls<M> {
    /// The functions, by slot.
    pub functions: Functions,
    /// The threads, by number.
    pub threads: Vec<Thread>,
    /// The numbers of events and calls.
    pub counts: Counts,
    /// The number of calls of each function that have begun, by slot.
    pub calls_of: Vec<u64>,
    /// The missing events, in views.
    pub losses: Losses,
    /// Ticks of the first event and of the last one.
    pub span: Option<(u64, u64)>,
    numbers: ThreadNumbers,
    /// The number of the process that had each id last.
    newest: HashMap<u32, u32>,
    /// The state whose time counts; `None` if all counts.
    state: Option<State>,
    /// The clock at the first event: if its rate is known better later, times would jump.
    clock: Option<Clock>,
    /// The words and the values of the current event.
    words: Vec<u64>,
    values: Vec<u64>,
    mode: PhantomData<M>,
}

/// Passes all calls of a source to a visitor that counts.
///
/// # Errors
///
/// Errors of the source.
pub fn follow<V: Visitor<Error = Infallible>>(
    source: &mut impl Source,
    visitor: &mut V,
) -> Result<Calls<Views>, SourceError> {
    follow_in(source, None, visitor)
}

/// Does the same as [`follow`]; with a state, [measured](Call::measured) times of calls are those
/// in which their threads had this state.
///
/// # Errors
///
/// Errors of the source.
pub fn follow_in<V: Visitor<Error = Infallible>>(
    source: &mut impl Source,
    state: Option<State>,
    visitor: &mut V,
) -> Result<Calls<Views>, SourceError> {
    let mut calls = Calls::default();
    calls.count_only(state);
    loop {
        match calls.next(source, visitor) {
            Ok(true) => {}
            Ok(false) => break,
            Err(Stopped::Source(error)) => return Err(error),
        }
    }
    let Ok(()) = calls.finish(&Context::of(source), visitor);
    Ok(calls)
}

impl<M: Mode> Calls<M> {
    /// Measures calls in one state of their threads, if there is one. Call this before the first
    /// event.
    pub fn count_only(&mut self, state: Option<State>) {
        self.state = state;
    }

    /// Returns the state whose time counts; `None` if all counts.
    #[must_use]
    pub fn state(&self) -> Option<State> {
        self.state
    }

    /// Returns the clock by which times are computed.
    #[must_use]
    pub fn clock(&self, context: &Context<'_>) -> Clock {
        self.clock.unwrap_or(*context.clock)
    }

    /// Passes the source's next event to `visitor`; `false` if there is none now.
    ///
    /// # Errors
    ///
    /// Errors of the source and of the visitor.
    #[inline]
    pub fn next<V: Visitor + ?Sized>(
        &mut self,
        source: &mut impl Source,
        visitor: &mut V,
    ) -> Result<bool, Stopped<V::Error>> {
        let Some(event) = source.next().map_err(Stopped::Source)? else {
            return Ok(false);
        };
        let step = Step::of(&event);
        if M::HAS_VALUES {
            self.keep_words(&event);
        }
        let done = self.step(step, &Context::of(source), visitor);
        done.map_err(Stopped::Visitor)?;
        Ok(true)
    }

    /// Copies the words of an event, to let the source look up names.
    #[inline]
    fn keep_words(&mut self, event: &Event<'_>) {
        self.words.clear();
        self.values.clear();
        self.values.extend_from_slice(event.values);
        let words = match event.what {
            What::Entry { arguments, .. } => arguments,
            What::Return { result, .. } => result,
            What::Mark(words) => words,
            _ => &[],
        };
        self.words.extend_from_slice(words);
    }

    /// Passes the effect of an event to `visitor`.
    ///
    /// # Errors
    ///
    /// Errors of the visitor.
    #[inline]
    pub fn step<V: Visitor + ?Sized>(
        &mut self,
        step: Step,
        context: &Context<'_>,
        visitor: &mut V,
    ) -> Result<(), V::Error> {
        let Step {
            time: ticks,
            process,
            thread: id,
            what,
        } = step;
        if !M::HAS_NOTES {
            match what {
                StepKind::Begin(_) | StepKind::Only(_) | StepKind::End(..) => {}
                StepKind::Lost(events, ends) => {
                    return self.lose(step, (events, ends), context, visitor);
                }
                StepKind::Other => return Ok(()),
            }
        }
        self.counts.events += 1;
        let clock = match M::HAS_NANOSECONDS {
            true => *self.clock.get_or_insert(*context.clock),
            false => *context.clock,
        };
        let names = context.names;
        self.span = match self.span {
            Some((first, last)) => Some((first.min(ticks), last.max(ticks))),
            None => Some((ticks, ticks)),
        };
        let index = self.numbers.of((process, id));
        let is_new = index == self.threads.len();
        if is_new {
            self.add_thread(step, context, visitor)?;
        }
        let thread = &mut self.threads[index];
        self.losses.resume((process, id), ticks);
        thread.last = thread.last.max(ticks);
        let time = match M::HAS_NANOSECONDS {
            true => clock.monotonic(ticks).max(thread.calls.last()),
            false => ticks,
        };
        let now = moment::<M>(thread, (time, ticks), self.state, context.schedule, &clock);
        let known = ThreadId { index, process, id };
        if is_new {
            let scene = Scene::of(known, &self.functions, context, &clock);
            visitor.thread(&scene.at(now, &[], Values::NONE))?;
        }
        let before = thread.moment();
        let mut values = Values::default();
        let types = |function| names.types(process, function);
        match what {
            StepKind::Begin(function) | StepKind::Only(function) => {
                let slot = match self.functions.known(thread.functions, function) {
                    Some(slot) => slot,
                    None => {
                        let of = (thread.functions, process);
                        slot::<M, V>(&mut self.functions, of, function, names, visitor)
                    }
                };
                *grown(&mut self.calls_of, slot as usize) += 1;
                if M::HAS_VALUES {
                    values = Values::arguments(&self.words, &self.values, types(function));
                }
                if let StepKind::Only(_) = what {
                    thread.each(now, |calls, time| calls.enter_only(function, time, slot));
                } else if thread.measured.is_some() {
                    thread.each(now, |calls, time| calls.enter(function, time, slot));
                } else if thread.calls.enter_at_once(function, now.time, slot) {
                    self.counts.calls += 1;
                    let Some((call, around)) = thread.calls.calls().split_last() else {
                        return Ok(());
                    };
                    let scene = Scene::of(known, &self.functions, context, &clock);
                    return visitor.enter(&scene.at(now, around, &values), call);
                }
            }
            StepKind::End(function, ending) => {
                if M::HAS_VALUES {
                    values = Values::result(&self.words, &self.values, types(function));
                }
                if thread.measured.is_some() {
                    thread.each(now, |calls, time| calls.exit(function, time, ending));
                } else if let Some(call) = thread.calls.exit_at_once(function, now.time, ending) {
                    self.counts.end(call.ran);
                    let call = Call::of(&call, None);
                    let around = thread.calls.calls();
                    let scene = Scene::of(known, &self.functions, context, &clock);
                    return visitor.exit(&scene.at(now, around, &values), &call);
                }
            }
            StepKind::Lost(_, ends) => thread.each(now, |calls, _| calls.lose(ends)),
            StepKind::Other => {
                self.counts.marks += 1;
                thread.each(now, Pairing::note);
                let scene = Scene::of(known, &self.functions, context, &clock);
                let at = scene.at(now, thread.calls.calls(), &values);
                visitor.mark(&at, &mark_text(&self.words))?;
            }
        }
        let scene = Scene::of(known, &self.functions, context, &clock);
        let counts = &mut self.counts;
        let ended = thread.settle(&scene, (now, before), &values, counts, visitor)?;
        match what {
            StepKind::End(..) => counts.stray_returns += u64::from(ended == 0),
            StepKind::Lost(events, _) => {
                counts.lost = counts.lost.saturating_add(events);
                thread.each(now, Pairing::note);
                visitor.lost(&scene.at(now, thread.calls.calls(), &values), events)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Ends the calls that a loss of events has ended, in a view.
    #[cold]
    fn lose<V: Visitor + ?Sized>(
        &mut self,
        step: Step,
        (events, ends): (u64, Option<u64>),
        context: &Context<'_>,
        visitor: &mut V,
    ) -> Result<(), V::Error> {
        let Step {
            time,
            process,
            thread: id,
            ..
        } = step;
        self.counts.lost = self.counts.lost.saturating_add(events);
        let mut from = self.span.map_or(time, |(first, _)| first);
        if let Some(index) = self.numbers.known((process, id)) {
            let thread = &mut self.threads[index];
            let calls = thread.calls.calls().len();
            from = thread.last;
            let now = thread.moment();
            thread.each(now, |calls, _| calls.lose(ends));
            let known = ThreadId { index, process, id };
            let scene = Scene::of(known, &self.functions, context, context.clock);
            let counts = &mut self.counts;
            thread.settle(&scene, (now, now), Values::NONE, counts, visitor)?;
            self.losses.calls += (calls - thread.calls.calls().len()) as u64;
        }
        self.losses.add((process, id), events, from, time);
        Ok(())
    }

    #[cold]
    fn add_thread<V: Visitor + ?Sized>(
        &mut self,
        step: Step,
        context: &Context<'_>,
        visitor: &mut V,
    ) -> Result<(), V::Error> {
        let (process, id) = (step.process, step.thread);
        let name = context.names.thread(process, id).unwrap_or_default();
        self.threads.push(Thread {
            process,
            id,
            name: name.to_owned(),
            first: step.time,
            last: step.time,
            calls: Pairing::new(),
            measured: self.state.map(|_| Pairing::new()),
            is_unknown: false,
            functions: self.functions.process(process),
            near: 0,
        });
        if M::RUNS_ON
            && let Some(before) = self.newest.insert(process_id(process), process)
            && before != process
        {
            self.end_program(before, step.time, context, visitor)?;
        }
        Ok(())
    }

    /// Ends the calls of a program whose process has executed another one.
    fn end_program<V: Visitor + ?Sized>(
        &mut self,
        process: u32,
        ticks: u64,
        context: &Context<'_>,
        visitor: &mut V,
    ) -> Result<(), V::Error> {
        let time = self.clock(context).monotonic(ticks);
        for index in 0..self.threads.len() {
            if self.threads[index].process == process {
                self.end_thread(index, (time, ticks), context, visitor)?;
            }
        }
        Ok(())
    }

    /// Ends the calls in progress of a thread at a time, which is also given in ticks.
    fn end_thread<V: Visitor + ?Sized>(
        &mut self,
        index: usize,
        time: (u64, u64),
        context: &Context<'_>,
        visitor: &mut V,
    ) -> Result<(), V::Error> {
        let clock = self.clock(context);
        let thread = &mut self.threads[index];
        thread.live_on(time.1);
        let end = moment::<M>(thread, time, self.state, context.schedule, &clock);
        thread.each(end, Pairing::finish);
        let end = thread.moment();
        let scene = Scene::of(thread.key(index), &self.functions, context, &clock);
        thread.settle(&scene, (end, end), Values::NONE, &mut self.counts, visitor)?;
        Ok(())
    }

    /// Ends the calls in progress.
    ///
    /// # Errors
    ///
    /// Errors of the visitor.
    pub fn finish<V: Visitor + ?Sized>(
        &mut self,
        context: &Context<'_>,
        visitor: &mut V,
    ) -> Result<(), V::Error> {
        let (_, ticks) = self.span.unwrap_or((0, 0));
        let time = self.clock(context).monotonic(ticks);
        for index in 0..self.threads.len() {
            if M::RUNS_ON {
                self.end_thread(index, (time, ticks), context, visitor)?;
                continue;
            }
            let thread = &mut self.threads[index];
            let end = thread.moment();
            thread.each(end, Pairing::finish);
            let scene = Scene::of(thread.key(index), &self.functions, context, context.clock);
            thread.settle(&scene, (end, end), Values::NONE, &mut self.counts, visitor)?;
        }
        Ok(())
    }

    /// Returns the number of threads whose states are unknown, where times are wanted in one state.
    #[must_use]
    pub fn unknown_threads(&self) -> u64 {
        let unknown = self.threads.iter().filter(|thread| thread.is_unknown);
        unknown.count() as u64
    }

    /// Returns the threads as events name them.
    pub fn thread_ids(&self) -> impl Iterator<Item = ThreadId> {
        let threads = self.threads.iter().enumerate();
        threads.map(|(index, thread)| thread.key(index))
    }

    /// Returns the number of a thread, if it was met.
    #[must_use]
    pub fn number_of(&self, thread: ThreadKey) -> Option<usize> {
        self.numbers.known(thread)
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

    /// Passes the calls in progress, up to the last event of their thread, to `found`: the number
    /// of the thread, the depth of the call, and true if it is in no other call of its function.
    pub fn each_open(&self, mut found: impl FnMut(usize, usize, &Call, bool)) {
        let mut met = HashSet::new();
        for (index, thread) in self.threads.iter().enumerate() {
            met.clear();
            for (depth, (open, ran, own)) in thread.calls.so_far().enumerate() {
                let call = Call {
                    slot: open.data,
                    begin: open.begin,
                    ran,
                    own,
                    measured: Measured { ran, own },
                    ending: Ending::Open,
                };
                found(index, depth, &call, met.insert(open.data));
            }
        }
    }
}

/// Returns a time of a thread, which is also given in ticks, with the one in the state that counts.
#[inline]
fn moment<M: Mode>(
    thread: &mut Thread,
    (time, ticks): (u64, u64),
    state: Option<State>,
    schedule: Option<&Schedule>,
    clock: &Clock,
) -> Moment {
    let mut measured = time;
    if let Some(state) = state {
        match schedule.and_then(|it| it.at_near(thread.id, ticks, &mut thread.near)) {
            Some(times) if M::HAS_NANOSECONDS => measured = clock.nanoseconds(times.of(state)),
            Some(times) => measured = times.of(state),
            None => thread.is_unknown = true,
        }
    }
    Moment { time, measured }
}

/// Adds a function of a process, whose index among those of `functions` is given first, and returns
/// its slot.
#[cold]
fn slot<M: Mode, V: Visitor + ?Sized>(
    functions: &mut Functions,
    process: (usize, u32),
    function: u32,
    names: &Names,
    visitor: &mut V,
) -> Slot {
    let mut found = Function::of(names, process.1, function);
    if let Some((_, line)) = found.source.as_mut().filter(|_| !M::HAS_LINES) {
        *line = 0;
    }
    let (slot, is_new) = functions.add(process, function, found);
    if is_new {
        visitor.function(&functions[slot as usize]);
    }
    slot
}
