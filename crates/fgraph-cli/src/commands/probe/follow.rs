//! Follows calls, and counts or prints those that a probe selects.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::path::Path;

use fgraph_symbols::filter::{Filter, FunctionFacts};
use fgraph_trace::Source;
use fgraph_trace::event::What as Event;
use fgraph_trace::names::Names;
use fgraph_trace::pairing::{Change, EndedCall, Ending, Pairing};

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

/// Calls as they are followed.
pub(super) struct Probe {
    pub(super) texts: Vec<String>,
    pub(super) actions: Vec<(Action, Tallies)>,
    pub(super) is_json: bool,
    /// The selected functions of a recording.
    pub(super) filter: Option<Filter>,
    /// Functions that were checked.
    pub(super) meant: HashMap<(u32, u32), bool>,
    /// Arguments in actions that no call has had.
    pub(super) missing: HashSet<Input>,
    /// A called function with its parameters; none if these are unknown.
    pub(super) seen: Option<(String, Vec<String>)>,
    pub(super) threads: HashMap<(u32, u32), Pairing<Kept>>,
    pub(super) places: Places,
    pub(super) lost: u64,
    /// The number of times that deeper calls had no room.
    pub(super) full: u64,
    /// The number of calls with missing ends.
    pub(super) ends_lost: u64,
    pub(super) out: Out,
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
            actions: actions.collect(),
            filter,
            meant: HashMap::new(),
            missing,
            seen: None,
            threads: HashMap::new(),
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
        let calls = self.threads.entry(key).or_default();
        let mut given = Given::default();
        match event.what {
            Event::Entry {
                function,
                arguments,
                caller,
                is_entry_only,
            } => {
                let kept = Kept {
                    caller,
                    stack: event.stack.to_vec(),
                    words: arguments.to_vec(),
                    values: event.values.to_vec(),
                };
                match is_entry_only {
                    true => calls.enter_only(function, now, kept),
                    false => calls.enter(function, now, kept),
                }
            }
            Event::Return { function, result } => {
                given.result = result.first().copied();
                given.values = event.values.to_vec();
                calls.exit(function, now, Ending::Returned);
            }
            Event::Unwound { function } => _ = calls.exit(function, now, Ending::Unwound),
            Event::Lost { events, ends } => {
                self.lost = self.lost.saturating_add(events);
                calls.lose(ends);
            }
            Event::Mark(_) => {}
        }
        self.settle(source, key, &given)?;
        Ok(true)
    }

    /// Ends the calls in progress, or without an end, as `exit` does, and shows the results.
    pub(super) fn finish(&mut self, source: &impl Source) -> Result<(), Error> {
        let mut left: Vec<_> = self.threads.keys().copied().collect();
        left.sort_unstable();
        for key in left {
            let calls = self.threads.entry(key).or_default();
            calls.finish(calls.last());
            self.settle(source, key, &Given::default())?;
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
    fn settle(
        &mut self,
        source: &impl Source,
        key: (u32, u32),
        given: &Given,
    ) -> Result<(), Error> {
        let mut calls = std::mem::take(self.threads.entry(key).or_default());
        while let Some(change) = calls.change() {
            let open = calls.calls();
            match change {
                Change::Began => self.full += u64::from(open.len() == DEEPEST),
                Change::Ended(call) => {
                    self.ends_lost += u64::from(call.ending == Ending::Lost);
                    let around = open.iter().rev().map(|call| call.function);
                    let around: Vec<u32> = around.collect();
                    self.count(source, key, &call, &around, given)?;
                }
            }
        }
        self.threads.insert(key, calls);
        Ok(())
    }

    /// Passes a call to the actions.
    fn count(
        &mut self,
        source: &impl Source,
        (process, thread): (u32, u32),
        ended: &EndedCall<Kept>,
        around: &[u32],
        given: &Given,
    ) -> Result<(), Error> {
        let (function, kept) = (ended.function, &ended.data);
        let names = source.names();
        if !self.is_meant(names, process, function) {
            return Ok(());
        }
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
        let call = Call {
            kept,
            names: &parameters,
            arguments: layout.map_or(Vec::new(), |layout| layout.operands(&kept.values)),
            register,
            result: layout.and_then(|layout| layout.result_operand(values)),
            duration: took,
        };
        for (action, tallies) in &mut self.actions {
            if action
                .condition
                .as_ref()
                .is_some_and(|condition| !condition.holds(&call))
            {
                continue;
            }
            let name = || {
                let known = names.function(process, function);
                known.map_or(("?", ""), |known| {
                    (known.name.as_str(), known.module.as_str())
                })
            };
            let mut key = Vec::with_capacity(action.by.len());
            for by in &action.by {
                key.push(match by {
                    By::Caller => match (kept.caller, around.first()) {
                        (Some(address), _) => self.places.caller(names, process, address),
                        (None, Some(&around)) => {
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
                        let mut calls = vec![called(function)];
                        match kept.stack.is_empty() {
                            true => calls.extend(around.iter().copied().map(called)),
                            false => calls.extend(
                                kept.stack
                                    .iter()
                                    .map(|&address| self.places.caller(names, process, address)),
                            ),
                        }
                        calls.join(BETWEEN_CALLS)
                    }
                    By::Thread => json::Thread::of(names, process, thread).to_string(),
                    By::Function => {
                        let (name, module) = name();
                        named(name, file_name(module))
                    }
                    By::Module => name().1.to_owned(),
                    By::Value(value) => value.of(&call).map_or("?".to_owned(), |it| shown(&it)),
                });
            }
            if action.what == What::Print {
                let mut line = name().0.to_owned();
                let arguments = layout.filter(|_| !kept.values.is_empty());
                // Writing to a string does not fail.
                _ = match arguments {
                    Some(layout) => write!(line, "({})", layout.arguments(&kept.values)),
                    None => {
                        let words = kept.words.iter().map(|word| format!("{word:#x}"));
                        write!(line, "({})", words.collect::<Vec<_>>().join(", "))
                    }
                };
                let typed = layout.and_then(|layout| layout.result(values));
                _ = match (typed, register) {
                    (Some(result), _) => write!(line, " = {result}"),
                    (None, Some(register)) => write!(line, " = {register:#x}"),
                    (None, None) => Ok(()),
                };
                if let Some(took) = took {
                    _ = write!(line, ", {}", time(took));
                }
                for part in key {
                    _ = write!(line, "  {part}");
                }
                self.out.line(escaped(&line))?;
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
            tally.add(&action.what, &call);
        }
        Ok(())
    }

    /// Returns true if a function is one of those on the command line.
    fn is_meant(&mut self, names: &Names, process: u32, function: u32) -> bool {
        let Some(filter) = &self.filter else {
            return true;
        };
        let ask = || {
            names.function(process, function).is_some_and(|known| {
                let all = [known.name.as_str()];
                filter.matches(&FunctionFacts::new(&all, &known.module))
            })
        };
        *self.meant.entry((process, function)).or_insert_with(ask)
    }
}
