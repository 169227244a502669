//! Follows calls, and counts or prints those that a probe selects.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::path::Path;

use fgraph_analysis::addresses::Addresses as _;
use fgraph_analysis::calls::Pages;
use fgraph_analysis::numbers::{ThreadKey, ThreadNumbers};
use fgraph_symbols::filter::{Filter, FunctionFacts};
use fgraph_trace::Source;
use fgraph_trace::event::What as Event;
use fgraph_trace::names::Names;
use fgraph_trace::pairing::{Change, EndedCall, Ending, OpenCall, Pairing};
use fgraph_trace::values::Layout;

use super::call::{Call, Given, Kept};
use super::missing::Missing;
use super::tally::{Tally, shown};
use crate::action::{Action, By, Input, What};
use crate::error::Error;
use crate::json;
use crate::output::Out;
use crate::places::Places;
use crate::text::{escaped, file_name, grouped, named, time};

/// The deepest nesting of calls for which a thread's shadow stack has room.
const DEEPEST: usize = (1 << 12) - 1;

/// Separates the calls of a stack in a key; the innermost comes first.
pub(super) const BETWEEN_CALLS: &str = "\n";

/// The most lines of an action; calls with further keys are counted together.
const MAX_KEYS: usize = 1 << 16;
const OTHERS: &str = "others";

/// The tally of each key.
pub(super) type Tallies = HashMap<Vec<String>, Tally>;

/// Kept of a call without any of this.
static NOTHING: Kept = Kept {
    caller: None,
    stack: Vec::new(),
    words: Vec::new(),
    values: Vec::new(),
};

/// A thread and its calls.
struct Thread {
    key: ThreadKey,
    calls: Pairing<Option<Box<Kept>>>,
    /// The index of its process's checked functions.
    meant: usize,
}

/// Calls as they are followed.
pub(super) struct Probe {
    pub(super) texts: Vec<String>,
    pub(super) actions: Vec<(Action, Tallies)>,
    pub(super) is_json: bool,
    /// The most rows of each action that are shown.
    pub(super) most_rows: usize,
    /// The selected functions of a recording.
    pub(super) filter: Option<Filter>,
    /// Functions that were checked, of each process.
    meant: Vec<(u32, Pages<bool>)>,
    /// Arguments in actions that no call has had.
    pub(super) missing: HashSet<Input>,
    /// A called function with its parameters; none if these are unknown.
    pub(super) seen: Option<(String, Vec<String>)>,
    numbers: ThreadNumbers,
    threads: Vec<Thread>,
    pub(super) places: Places,
    pub(super) lost: u64,
    /// The number of times that deeper calls had no room.
    pub(super) full: u64,
    /// The number of calls with missing ends.
    pub(super) ends_lost: u64,
    pub(super) out: Out,
}

/// A call of a selected function that has ended.
struct Selected<'a> {
    thread: ThreadKey,
    function: u32,
    names: &'a Names,
    /// The calls around it, the innermost last.
    open: &'a [OpenCall<Option<Box<Kept>>>],
    /// Types of its arguments and its result, if they are known.
    layout: Option<&'a Layout>,
    /// Its result, by type.
    values: &'a [u64],
    call: Call<'a>,
}

impl Selected<'_> {
    /// Returns the name of the function, and its module.
    fn name(&self) -> (&str, &str) {
        let known = self.names.function(self.thread.0, self.function);
        known.map_or(("?", ""), |known| {
            (known.name.as_str(), known.module.as_str())
        })
    }

    /// Returns the functions of the calls around it, the innermost first.
    fn around(&self) -> impl Iterator<Item = u32> {
        self.open.iter().rev().map(|call| call.function)
    }

    /// Returns its value for a part of a key.
    fn key(&self, by: &By, places: &mut Places) -> String {
        let (names, (process, thread)) = (self.names, self.thread);
        let kept = self.call.kept;
        match by {
            By::Caller => match (kept.caller, self.around().next()) {
                (Some(address), _) => places.caller(names, process, address),
                (None, Some(around)) => {
                    let known = names.function(process, around);
                    known.map_or("?".to_owned(), |known| known.name.clone())
                }
                (None, None) => "?".to_owned(),
            },
            By::Stack => {
                let called = |function| {
                    let known = names.function(process, function);
                    known.map_or("?".to_owned(), |known| {
                        named(&known.name, file_name(&known.module))
                    })
                };
                let mut calls = vec![called(self.function)];
                match kept.stack.is_empty() {
                    true => calls.extend(self.around().map(called)),
                    false => {
                        let stack = kept.stack.iter();
                        calls.extend(stack.map(|&it| places.caller(names, process, it)));
                    }
                }
                calls.join(BETWEEN_CALLS)
            }
            By::Thread => json::Thread::of(names, process, thread).to_string(),
            By::Function => {
                let (name, module) = self.name();
                named(name, file_name(module))
            }
            By::Module => self.name().1.to_owned(),
            By::Value(value) => value.of(&self.call).map_or("?".to_owned(), |it| shown(&it)),
        }
    }

    /// Returns the line that `print` writes of it, with its key.
    fn text(&self, key: &[String]) -> String {
        let kept = self.call.kept;
        let mut line = self.name().0.to_owned();
        let arguments = self.layout.filter(|_| !kept.values.is_empty());
        // Writing to a string does not fail.
        _ = match arguments {
            Some(layout) => write!(line, "({})", layout.arguments(&kept.values)),
            None => {
                let words = kept.words.iter().map(|word| format!("{word:#x}"));
                write!(line, "({})", words.collect::<Vec<_>>().join(", "))
            }
        };
        let typed = self.layout.and_then(|layout| layout.result(self.values));
        _ = match (typed, self.call.register) {
            (Some(result), _) => write!(line, " = {result}"),
            (None, Some(register)) => write!(line, " = {register:#x}"),
            (None, None) => Ok(()),
        };
        if let Some(took) = self.call.duration {
            _ = write!(line, ", {}", time(took));
        }
        for part in key {
            _ = write!(line, "  {part}");
        }
        line
    }
}

impl Probe {
    pub(super) fn new(
        texts: &[String],
        is_json: bool,
        actions: Vec<Action>,
        filter: Option<Filter>,
    ) -> Self {
        let mut missing = HashSet::new();
        for action in &actions {
            action.each_input(|input, _| {
                if *input != Input::Result {
                    missing.insert(input.clone());
                }
            });
        }
        let actions = actions.into_iter().map(|action| {
            // Without keys there is one line, whatever is called.
            let none = action.by.is_empty().then(Default::default);
            (action, none.into_iter().collect())
        });
        Self {
            texts: texts.to_vec(),
            is_json,
            most_rows: usize::MAX,
            actions: actions.collect(),
            filter,
            meant: Vec::new(),
            missing,
            seen: None,
            numbers: ThreadNumbers::default(),
            threads: Vec::new(),
            places: Places::default(),
            lost: 0,
            full: 0,
            ends_lost: 0,
            out: Out::new(),
        }
    }

    /// Processes the next event; `false` if there are no more.
    pub(super) fn step(&mut self, source: &mut impl Source, path: &Path) -> Result<bool, Error> {
        let failed = |error| Error::source(path, error);
        let Some(event) = source.next().map_err(failed)? else {
            return Ok(false);
        };
        let (key, now) = ((event.process, event.thread), event.time);
        let number = self.numbers.of(key);
        if number == self.threads.len() {
            self.add_thread(key);
        }
        let calls = &mut self.threads[number].calls;
        let mut given = Given::default();
        match event.what {
            Event::Entry {
                function,
                arguments,
                caller,
                is_entry_only,
            } => {
                let has_more = caller.is_some()
                    || [event.stack, arguments, event.values]
                        .iter()
                        .any(|it| !it.is_empty());
                let kept = has_more.then(|| {
                    Box::new(Kept {
                        caller,
                        stack: event.stack.to_vec(),
                        words: arguments.to_vec(),
                        values: event.values.to_vec(),
                    })
                });
                if is_entry_only {
                    calls.enter_only(function, now, kept);
                } else if calls.enter_at_once(function, now, kept) {
                    self.full += u64::from(calls.calls().len() == DEEPEST);
                    return Ok(true);
                }
            }
            Event::Return { function, result } => {
                given.result = result.first().copied();
                given.values = event.values.to_vec();
                if let Some(call) = calls.exit_at_once(function, now, Ending::Returned) {
                    self.end(source, number, &call, &given)?;
                    return Ok(true);
                }
            }
            Event::Unwound { function } => _ = calls.exit(function, now, Ending::Unwound),
            Event::Dropped { function } => _ = calls.exit(function, now, Ending::Lost),
            Event::Lost { events, ends } => {
                self.lost = self.lost.saturating_add(events);
                calls.lose(ends);
            }
            Event::Mark(_) => {}
        }
        self.settle(source, number, &given)?;
        Ok(true)
    }

    /// Ends the calls in progress, or without an end, as `exit` does, and shows the results.
    pub(super) fn finish(&mut self, source: &impl Source) -> Result<(), Error> {
        let mut left: Vec<usize> = (0..self.threads.len()).collect();
        left.sort_unstable_by_key(|&number| self.threads[number].key);
        for number in left {
            let calls = &mut self.threads[number].calls;
            calls.finish(calls.last());
            self.settle(source, number, &Given::default())?;
        }
        self.show(None)?;
        if self.lost > 0 {
            say!("fgraph: {} events were lost", grouped(self.lost));
        }
        if self.full > 0 {
            let [times, deepest] = [self.full, DEEPEST as u64].map(grouped);
            say!("fgraph: {deepest} calls inside one another, the most that are seen: {times} x");
        }
        self.say_missing(source.names());
        if self.ends_lost > 0 {
            let calls = grouped(self.ends_lost);
            say!("fgraph: {calls} calls have no duration and no result: their ends are missing");
        }
        Ok(())
    }

    /// Reports the arguments that no call has had.
    fn say_missing(&self, names: &Names) {
        let (function, parameters) = match &self.seen {
            Some((function, parameters)) => (function.as_str(), parameters.as_slice()),
            None => ("", &[][..]),
        };
        let from_recording = self.filter.is_some();
        let missing = Missing {
            inputs: &self.missing,
            function,
            parameters,
            from_recording,
        };
        for text in missing.messages(names) {
            say!("fgraph: {}", escaped(&text));
        }
    }

    /// Counts the calls of a thread that its last event has ended. `given` is the result in the
    /// event.
    fn settle(&mut self, source: &impl Source, number: usize, given: &Given) -> Result<(), Error> {
        loop {
            let calls = &mut self.threads[number].calls;
            let Some(change) = calls.change() else {
                return Ok(());
            };
            match change {
                Change::Began => self.full += u64::from(calls.calls().len() == DEEPEST),
                Change::Ended(call) => {
                    self.ends_lost += u64::from(call.ending == Ending::Lost);
                    self.end(source, number, &call, given)?;
                }
            }
        }
    }

    /// Passes a call that has ended to the actions, if its function is selected.
    fn end(
        &mut self,
        source: &impl Source,
        number: usize,
        call: &EndedCall<Option<Box<Kept>>>,
        given: &Given,
    ) -> Result<(), Error> {
        if !self.is_meant(source.names(), number, call.function) {
            return Ok(());
        }
        let thread = &mut self.threads[number];
        let (key, calls) = (thread.key, std::mem::take(&mut thread.calls));
        let counted = self.count(source, key, call, calls.calls(), given);
        self.threads[number].calls = calls;
        counted
    }

    /// Passes a call of a selected function to the actions; `open` has the calls around it.
    fn count(
        &mut self,
        source: &impl Source,
        (process, thread): ThreadKey,
        ended: &EndedCall<Option<Box<Kept>>>,
        open: &[OpenCall<Option<Box<Kept>>>],
        given: &Given,
    ) -> Result<(), Error> {
        let (function, kept) = (ended.function, ended.data.as_deref().unwrap_or(&NOTHING));
        let names = source.names();
        let types = names.types(process, function);
        let layout = types.map(|types| &types.layout);
        let took = ended
            .duration()
            .map(|took| source.clock().nanoseconds(took));
        let (register, values) = match took {
            Some(_) => (given.result, &given.values[..]),
            None => (None, &[][..]),
        };
        let parameters: Vec<String> = layout.map_or(Vec::new(), |layout| {
            let names = layout
                .arguments
                .iter()
                .map(|argument| argument.name.clone());
            names.collect()
        });
        if !self.missing.is_empty() {
            self.note_arguments(names, (process, function), kept, &parameters);
        }
        let selected = Selected {
            thread: (process, thread),
            function,
            names,
            open,
            layout,
            values,
            call: Call {
                kept,
                names: &parameters,
                arguments: layout.map_or(Vec::new(), |layout| layout.operands(&kept.values)),
                register,
                result: layout.and_then(|layout| layout.result_operand(values)),
                duration: took,
            },
        };
        for (action, tallies) in &mut self.actions {
            let condition = action.condition.as_ref();
            if condition.is_some_and(|condition| !condition.holds(&selected.call)) {
                continue;
            }
            let by = action.by.iter();
            let key: Vec<String> = by.map(|by| selected.key(by, &mut self.places)).collect();
            if action.what == What::Print {
                self.out.line(escaped(&selected.text(&key)))?;
                if self.filter.is_none() {
                    // For a running program, calls are shown as they come.
                    self.out.flush()?;
                }
                continue;
            }
            let tally = match tallies.len() < MAX_KEYS {
                true => tallies.entry(key).or_default(),
                false => match tallies.get_mut(&key) {
                    Some(tally) => tally,
                    None => tallies.entry(vec![OTHERS.to_owned()]).or_default(),
                },
            };
            tally.add(&action.what, &selected.call);
        }
        Ok(())
    }

    /// Notes which arguments a call has, while actions have some that no call has had.
    fn note_arguments(
        &mut self,
        names: &Names,
        (process, function): (u32, u32),
        kept: &Kept,
        parameters: &[String],
    ) {
        let count = kept.words.len().max(parameters.len());
        self.missing.retain(|input| match input {
            Input::Argument(number) => *number >= count,
            Input::Parameter(name) | Input::Behind(name) => !parameters.contains(name),
            Input::Result => false,
        });
        if self.seen.as_ref().is_none_or(|(_, seen)| seen.is_empty()) {
            let name = names.function(process, function);
            let name = name.map_or("the function", |known| known.name.as_str());
            // Without debug information they have numbers.
            let numbered: Vec<String> = (0..count).map(|n| format!("arg{n}")).collect();
            let is_name = |name: &&String| {
                let is_path = name.contains(['*', '-', '.']);
                !name.is_empty() && !is_path && !numbered.contains(name)
            };
            let named = parameters.iter().filter(is_name);
            self.seen = Some((name.to_owned(), named.cloned().collect()));
        }
    }

    fn add_thread(&mut self, key: ThreadKey) {
        let (process, calls) = (key.0, Pairing::new());
        let known = self.meant.iter().position(|(of, _)| *of == process);
        let meant = known.unwrap_or(self.meant.len());
        if known.is_none() {
            self.meant.push((process, Pages::default()));
        }
        self.threads.push(Thread { key, calls, meant });
    }

    /// Returns true if a function that a thread calls is one of those on the command line.
    #[inline]
    fn is_meant(&mut self, names: &Names, thread: usize, function: u32) -> bool {
        let Some(filter) = &self.filter else {
            return true;
        };
        let (process, known) = &mut self.meant[self.threads[thread].meant];
        if let Some(is_meant) = known.get(function) {
            return is_meant;
        }
        let is_meant = names.function(*process, function).is_some_and(|known| {
            let all = [known.name.as_str()];
            filter.matches(&FunctionFacts::new(&all, &known.module))
        });
        known.set(function, is_meant);
        is_meant
    }
}
