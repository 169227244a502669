//! Calls as JSON, one object on a line.

use std::collections::HashMap;
use std::fmt::Write as _;

use fgraph_trace::Source;
use fgraph_trace::event::{What, mark_text};
use fgraph_trace::graph::{Matcher, Options};
use fgraph_trace::names::Names;
use fgraph_trace::pairing::{Change, EndedCall, Ending, Pairing};
use fgraph_trace::source::SourceError;
use serde::Serialize;

use crate::error::Error;
use crate::input::View;
use crate::json::{self, End, Thread};
use crate::output::Out;
use crate::text::file_name;

/// A line of `replay` in JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
enum Line {
    Call(CallView),
    Mark(MarkView),
    Lost(LostView),
}

/// A call, when it ends.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct CallView {
    thread: Thread,
    function: String,
    /// The file of its module, without directories.
    module: String,
    /// The number of calls around it that are shown.
    depth: u64,
    begin_ns: u64,
    /// The time until its end, or the time that it ran for certain.
    took_ns: u64,
    /// Its time without the calls in it.
    self_ns: u64,
    end: End,
    /// The arguments, where they were recorded: `path="/etc/passwd", flags=0`.
    arguments: Option<String>,
    /// The result, where it was recorded.
    result: Option<String>,
}

/// A text that was written among the calls.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct MarkView {
    thread: Thread,
    at_ns: u64,
    mark: String,
}

/// Events that are missing.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct LostView {
    thread: Thread,
    at_ns: u64,
    /// The number of events.
    lost: u64,
}

/// A call in progress.
#[derive(Debug)]
struct Open {
    is_shown: bool,
    /// See [`Event::running`](fgraph_trace::Event::running).
    running: Option<u64>,
    arguments: Option<String>,
}

/// The state of a thread.
#[derive(Debug, Default)]
struct State {
    calls: Pairing<Open>,
    shown: usize,
    /// Calls in progress of functions that were asked for, and of functions that are left out, with
    /// those in them.
    wanted: usize,
    unwanted: usize,
}

/// Writes the calls of a view that `options` select, each when it ends.
#[derive(Debug)]
pub(super) struct Calls<'a> {
    options: &'a Options,
    threads: HashMap<(u32, u32), State>,
    out: Out,
}

/// The end of a call, beside the call itself.
#[derive(Debug, Default)]
struct Last {
    running: Option<u64>,
    result: Option<String>,
}

/// Returns the arguments of a call as text; `None` if none were recorded.
pub(in super::super) fn arguments(
    names: &Names,
    (process, function): (u32, u32),
    words: &[u64],
    values: &[u64],
) -> Option<String> {
    let types = names.types(process, function);
    if let Some(types) = types.filter(|_| !values.is_empty()) {
        return Some(types.layout.arguments(values).to_string());
    }
    let mut text = String::new();
    for (nth, word) in words.iter().enumerate() {
        let comma = if nth == 0 { "" } else { ", " };
        // Writing to a string does not fail.
        _ = write!(text, "{comma}{word:#x}");
    }
    (!text.is_empty()).then_some(text)
}

/// Returns the result of a call as text; `None` if it was not recorded.
pub(in super::super) fn result(
    names: &Names,
    (process, function): (u32, u32),
    words: &[u64],
    values: &[u64],
) -> Option<String> {
    let types = names.types(process, function);
    let typed = types.and_then(|types| Some(types.layout.result(values)?.to_string()));
    typed.or_else(|| Some(format!("{:#x}", words.first()?)))
}

impl<'a> Calls<'a> {
    pub(super) fn new(options: &'a Options) -> Self {
        Self {
            options,
            threads: HashMap::new(),
            out: Out::new(),
        }
    }

    /// Writes all of them. `failed` makes the error of a recording that cannot be read.
    pub(super) fn write(
        mut self,
        view: &mut View,
        failed: impl Fn(SourceError) -> Error,
    ) -> Result<(), Error> {
        while self.event(view).map_err(&failed)?? {}
        let mut threads: Vec<_> = self.threads.drain().collect();
        threads.sort_unstable_by_key(|(thread, _)| *thread);
        for (thread, mut state) in threads {
            state.calls.finish(state.calls.last());
            self.settle(view, thread, &mut state, &Last::default())?;
        }
        self.out.finish()
    }

    /// Reads the next event; returns false if there is none.
    fn event(&mut self, view: &mut View) -> Result<Result<bool, Error>, SourceError> {
        let Some(event) = view.next()? else {
            return Ok(Ok(false));
        };
        let (thread, time, running) = ((event.process, event.thread), event.time, event.running);
        // The event is borrowed from the view, and so are its words.
        let words = |words: &[u64]| words.to_vec();
        let values = words(event.values);
        let mut last = Last {
            running,
            result: None,
        };
        match event.what {
            What::Entry {
                function,
                arguments,
                is_entry_only,
                ..
            } => {
                let given = words(arguments);
                let (names, options) = (view.names(), self.options);
                let state = self.threads.entry(thread).or_default();
                let known = names.function(thread.0, function);
                let (name, module) = known.map_or(("", ""), |it| (&it.name, &it.module));
                let is =
                    |of: &Option<Matcher>| of.as_ref().is_some_and(|matches| matches(name, module));
                state.wanted += usize::from(state.wanted > 0 || is(&options.functions));
                state.unwanted += usize::from(state.unwanted > 0 || is(&options.without));
                let is_shown = (options.functions.is_none() || state.wanted > 0)
                    && state.unwanted == 0
                    && (options.max_depth == 0 || state.shown < options.max_depth);
                let open = Open {
                    is_shown,
                    running,
                    arguments: is_shown
                        .then(|| self::arguments(names, (thread.0, function), &given, &values))
                        .flatten(),
                };
                match is_entry_only {
                    true => state.calls.enter_only(function, time, open),
                    false => state.calls.enter(function, time, open),
                }
            }
            What::Return { function, result } => {
                let given = words(result);
                last.result = self::result(view.names(), (thread.0, function), &given, &values);
                let state = self.threads.entry(thread).or_default();
                state.calls.exit(function, time, Ending::Returned);
            }
            What::Unwound { function } => {
                let state = self.threads.entry(thread).or_default();
                state.calls.exit(function, time, Ending::Unwound);
            }
            What::Dropped { function } => {
                let state = self.threads.entry(thread).or_default();
                state.calls.exit(function, time, Ending::Lost);
            }
            What::Mark(mark) => {
                let mark = mark_text(mark).to_string();
                let line = Line::Mark(MarkView {
                    thread: Thread::of(view.names(), thread.0, thread.1),
                    at_ns: since_first(view, time),
                    mark,
                });
                return Ok(self.out.line(json::line(&line)).map(|()| true));
            }
            What::Lost { events, ends } => {
                let line = Line::Lost(LostView {
                    thread: Thread::of(view.names(), thread.0, thread.1),
                    at_ns: since_first(view, time),
                    lost: events,
                });
                if let Err(error) = self.out.line(json::line(&line)) {
                    return Ok(Err(error));
                }
                let state = self.threads.entry(thread).or_default();
                state.calls.lose(ends);
            }
        }
        let mut state = std::mem::take(self.threads.entry(thread).or_default());
        let settled = self.settle(view, thread, &mut state, &last);
        self.threads.insert(thread, state);
        Ok(settled.map(|()| true))
    }

    /// Counts the calls that the last event has begun and ended, and writes the ended ones.
    fn settle(
        &mut self,
        view: &View,
        thread: (u32, u32),
        state: &mut State,
        last: &Last,
    ) -> Result<(), Error> {
        while let Some(change) = state.calls.change() {
            match change {
                Change::Began => {
                    let call = state.calls.calls().last();
                    state.shown += usize::from(call.is_some_and(|call| call.data.is_shown));
                }
                Change::Ended(call) => {
                    state.shown -= usize::from(call.data.is_shown);
                    state.wanted = state.wanted.saturating_sub(1);
                    state.unwanted = state.unwanted.saturating_sub(1);
                    if call.data.is_shown {
                        self.call(view, thread, call, state.shown, last)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn call(
        &mut self,
        view: &View,
        (process, thread): (u32, u32),
        call: EndedCall<Open>,
        depth: usize,
        last: &Last,
    ) -> Result<(), Error> {
        let (names, clock) = (view.names(), view.clock());
        let has_ended = call.duration().is_some();
        let mut took = clock.nanoseconds(call.ran);
        if let (false, true, Some((begin, end))) = (
            self.options.sleep_time,
            has_ended,
            call.data.running.zip(last.running),
        ) {
            took = end.saturating_sub(begin);
        }
        let is_long = has_ended && took >= self.options.threshold;
        if self.options.threshold > 0 && !is_long {
            return Ok(());
        }
        let known = names.function(process, call.function);
        let line = Line::Call(CallView {
            thread: Thread::of(names, process, thread),
            function: names.function_name(process, call.function),
            module: known.map_or_else(String::new, |known| file_name(&known.module).to_owned()),
            depth: depth as u64,
            begin_ns: since_first(view, call.begin),
            took_ns: took,
            self_ns: clock.nanoseconds(call.own),
            end: call.ending.into(),
            arguments: call.data.arguments,
            result: match call.ending {
                Ending::Returned => last.result.clone(),
                _ => None,
            },
        });
        self.out.line(json::line(&line))
    }
}

/// Returns the nanoseconds since the first event.
fn since_first(view: &View, time: u64) -> u64 {
    view.clock().nanoseconds(time.saturating_sub(view.first()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_docs_have_the_schema() {
        json::check_schema::<Line>("replay");
    }
}
