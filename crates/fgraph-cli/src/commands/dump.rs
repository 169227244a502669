//! `fgraph dump`: the events of a recording, unprocessed.

use std::fmt::Write as _;

use fgraph_trace::Source;
use fgraph_trace::event::{What, mark_text};
use fgraph_trace::names::process_id;

use serde::Serialize;

use super::replay::calls;
use crate::error::Error;
use crate::input::{Input, Part, View};
use crate::json;
use crate::output::Out;
use crate::text::{escaped, file_name};

/// Show the events of a recording, unprocessed, one line for each
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fgraph dump --from 1.5s --to 1.6s
  fgraph dump -n 100 --from 1.5s
  fgraph dump --json --thread 1234 server.data")]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    part: Part,
    /// The most events to show, the first ones
    #[arg(short = 'n', long, value_name = "N")]
    lines: Option<u64>,
    /// Print one JSON object for each event
    #[arg(long)]
    json: bool,
}

/// An event, as a line of `dump` in JSON.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct EventView {
    event: EventKind,
    /// The time since the first event.
    at_ns: u64,
    process: u32,
    thread: u32,
    /// The processor, if that was recorded.
    cpu: Option<u32>,
    /// The name of the function; null for marks and losses.
    function: Option<String>,
    /// The file of its module, without directories.
    module: Option<String>,
    /// Its start address in the process; null if it is unknown.
    address: Option<u64>,
    /// The words of its arguments or result, in hexadecimal digits.
    words: Vec<String>,
    /// Its arguments or result by type, where these were recorded.
    values: Option<String>,
    /// The return address of a call, in hexadecimal digits, if that was recorded.
    caller: Option<String>,
    /// The source of a called function, if that was recorded.
    file: Option<String>,
    line: Option<u64>,
    /// The text of a mark.
    mark: Option<String>,
    /// The number of lost events.
    lost: Option<u64>,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
enum EventKind {
    #[default]
    Entry,
    /// The entry of a call whose end was not to be recorded.
    EntryOnly,
    Return,
    Unwound,
    /// A call is found to have been left without a return, as by `longjmp`.
    Dropped,
    Mark,
    Lost,
}

/// The rest of a line, after the time and the thread.
#[derive(Clone, Copy)]
enum Line {
    Call(&'static str, u32, Option<u64>, bool),
    Mark,
    Lost(u64),
}

/// Prints them.
pub(crate) fn run(args: Args) -> Result<(), Error> {
    let mut view = args.input.view(&args.part)?;
    if args.json {
        write_json(&args, &mut view)?;
        return view.check_whole(&args.input.path);
    }
    let mut out = Out::new();
    let (mut text, mut words, mut values) = (String::new(), Vec::new(), Vec::new());
    for _ in 0..args.lines.unwrap_or(u64::MAX) {
        let event = view.next();
        let event = event.map_err(|error| Error::source(&args.input.path, error))?;
        let Some(event) = event else { break };
        text.clear();
        words.clear();
        values.clear();
        values.extend_from_slice(event.values);
        let (process, thread, ticks, cpu) = (event.process, event.thread, event.time, event.cpu);
        let line = match event.what {
            What::Entry {
                function,
                arguments,
                caller,
                is_entry_only,
            } => {
                words.extend_from_slice(arguments);
                Line::Call("entry", function, caller, is_entry_only)
            }
            What::Return { function, result } => {
                words.extend_from_slice(result);
                Line::Call("return", function, None, false)
            }
            What::Unwound { function } => Line::Call("unwound", function, None, false),
            What::Dropped { function } => Line::Call("dropped", function, None, false),
            What::Mark(mark) => {
                words.extend_from_slice(mark);
                Line::Mark
            }
            What::Lost { events, .. } => Line::Lost(events),
        };
        let time = view.clock().monotonic(ticks);
        let (seconds, rest) = (time / 1_000_000_000, time % 1_000_000_000);
        // Writing to a string does not fail.
        _ = write!(
            text,
            "{seconds:>6}.{rest:09} {}/{thread} ",
            process_id(process)
        );
        _ = match cpu {
            Some(cpu) => write!(text, "[{cpu}] "),
            None => write!(text, "[-] "),
        };
        _ = match line {
            Line::Call(kind, function, caller, is_entry_only) => {
                let known = view.names().function(process, function);
                _ = match known.map(|known| (known.name.as_str(), known.address)) {
                    Some(("", address)) => write!(text, "{kind:<7} {address:#x}"),
                    Some((name, _)) => write!(text, "{kind:<7} {name}"),
                    None => write!(text, "{kind:<7} <lost name {function}>"),
                };
                for word in &words {
                    _ = write!(text, " {word:#x}");
                }
                let types = view.names().types(process, function);
                let types = types.filter(|_| !values.is_empty());
                _ = match (types, kind) {
                    (Some(types), "entry") => {
                        write!(text, " {}", types.layout.arguments(&values))
                    }
                    (Some(types), _) => match types.layout.result(&values) {
                        Some(result) => write!(text, " {result}"),
                        None => Ok(()),
                    },
                    (None, _) => Ok(()),
                };
                let source = view.names().source(process, function);
                if let Some((file, line)) = source.filter(|_| kind == "entry") {
                    _ = write!(text, " [{file}:{line}]");
                }
                if let Some(caller) = caller {
                    _ = write!(text, " <-{caller:#x}");
                }
                match is_entry_only {
                    true => write!(text, " (entry only)"),
                    false => Ok(()),
                }
            }
            Line::Mark => write!(text, "mark    {}", escaped(&mark_text(&words))),
            Line::Lost(events) => write!(text, "lost    {events} events"),
        };
        text.push('\n');
        out.text(&text)?;
    }
    out.finish()?;
    view.check_whole(&args.input.path)
}

/// Prints each event as a JSON object on a line.
fn write_json(args: &Args, view: &mut View) -> Result<(), Error> {
    let mut out = Out::new();
    let hex =
        |words: &[u64]| -> Vec<String> { words.iter().map(|it| format!("{it:#x}")).collect() };
    let mut values = Vec::new();
    for _ in 0..args.lines.unwrap_or(u64::MAX) {
        let event = view.next();
        let event = event.map_err(|error| Error::source(&args.input.path, error))?;
        let Some(event) = event else { break };
        let (process, time) = (event.process, event.time);
        values.clear();
        values.extend_from_slice(event.values);
        let mut line = EventView {
            process: process_id(process),
            thread: event.thread,
            cpu: event.cpu,
            ..EventView::default()
        };
        let mut called = None;
        match event.what {
            What::Entry {
                function,
                arguments,
                caller,
                is_entry_only,
            } => {
                called = Some(function);
                line.words = hex(arguments);
                line.caller = caller.map(|caller| format!("{caller:#x}"));
                if is_entry_only {
                    line.event = EventKind::EntryOnly;
                }
            }
            What::Return { function, result } => {
                called = Some(function);
                (line.event, line.words) = (EventKind::Return, hex(result));
            }
            What::Unwound { function } => {
                called = Some(function);
                line.event = EventKind::Unwound;
            }
            What::Dropped { function } => {
                called = Some(function);
                line.event = EventKind::Dropped;
            }
            What::Mark(mark) => {
                line.event = EventKind::Mark;
                line.mark = Some(mark_text(mark).to_string());
            }
            What::Lost { events, .. } => {
                (line.event, line.lost) = (EventKind::Lost, Some(events));
            }
        }
        let clock = view.clock();
        line.at_ns = clock.nanoseconds(time.saturating_sub(view.first()));
        if let Some(function) = called {
            let names = view.names();
            let of = (process, function);
            line.function = Some(names.function_name(process, function));
            if let Some(known) = names.function(process, function) {
                line.module = Some(file_name(&known.module).to_owned());
                line.address = Some(known.address);
            }
            if matches!(line.event, EventKind::Entry | EventKind::EntryOnly) {
                line.values = calls::arguments(names, of, &[], &values);
                let source = names.source(process, function);
                if let Some((file, at)) = source {
                    (line.file, line.line) = (Some(file.to_owned()), Some(at.into()));
                }
            } else if matches!(line.event, EventKind::Return) {
                line.values = calls::result(names, of, &[], &values);
            }
        }
        out.line(json::line(&line))?;
    }
    out.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_docs_have_the_schema() {
        json::check_schema::<EventView>("dump");
    }
}
