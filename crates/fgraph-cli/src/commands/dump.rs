//! `fgraph dump`: the events of a recording, unprocessed.

use std::fmt::Write as _;

use fgraph_trace::Source;
use fgraph_trace::event::{What, mark_text};
use fgraph_trace::names::process_id;

use crate::error::Error;
use crate::input::{Input, Part};
use crate::output::Out;
use crate::text::escaped;

/// Show the events of a recording, unprocessed, one line for each
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    part: Part,
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
    let mut out = Out::new();
    let (mut text, mut words, mut values) = (String::new(), Vec::new(), Vec::new());
    loop {
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
