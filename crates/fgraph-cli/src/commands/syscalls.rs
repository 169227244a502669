//! `fgraph syscalls`: the system calls of a program, one line each.

mod decode;
mod flags;
mod memory;
mod raw;
mod selection;
mod signatures;
mod summary;

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use fgraph_protocol::{Settings, Tool};
use fgraph_trace::Source;
use fgraph_trace::event::What;
use fgraph_trace::place;
use fgraph_tracers::syscalls::{SystemCall, is_known, known_name};
use serde::Serialize;

use self::decode::Decoded;
pub(super) use self::flags::signal;
use self::selection::{NUMBERS, Selection};
use self::summary::{Summary, SummaryView};
use crate::error::Error;
use crate::json;
use crate::launch::events::Events;
use crate::launch::interrupt::Interrupts;
use crate::launch::{Launched, Target};
use crate::text::{calls, counted, escaped};
use crate::unmatched::near;

const EXAMPLES: &str = "\
Examples:
  fgraph syscalls -- ls
  fgraph syscalls -F 'open*' -F execve -o calls -- make
  fgraph syscalls -p 1234 -N futex
  fgraph syscalls -c -e trace=%file -- git status
  fgraph syscalls -y -e openat,read,close -- cat /etc/hostname

A line has the thread, the call as `strace -f -T` shows it, and the time that it took in seconds.
`?` is the result of a call that does not come back. Calls are seen that go through one of the C
library's functions for them; docs/limits.md in the repository names the
others.

Options are strace's where it has the same: -c, -e trace=, -f, -o, -p, -s, -y. Forked processes are
followed without -f. The times of -c include waiting, as those of `strace -c -w` do.";

/// Run a program and show its system calls, a line for each when it ends
///
/// The program's own output appears between the lines, unless these go to a file. If it makes calls
/// faster than lines can be shown, lines are lost, and a line says how many.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Show these calls: a glob over the names of system calls, and of the C library's functions
    /// for them
    #[arg(short = 'F', long = "call", value_name = "GLOB")]
    calls: Vec<String>,
    /// Do not show these calls
    #[arg(short = 'N', long = "notrace", value_name = "GLOB")]
    notrace: Vec<String>,
    /// Show the calls of an expression of `strace`: names or classes, as `openat,read`,
    /// `trace=%file`, `%network`, `process`, `memory`, `desc`, `signal`; or all others: `!futex`
    #[arg(
        short = 'e',
        long = "trace",
        value_name = "EXPRESSION",
        value_parser = Selection::parse,
        conflicts_with = "calls"
    )]
    selection: Option<Selection>,
    /// At the end, print a table instead of lines: for each system call the number of its calls,
    /// the errors among them, and the time that they took
    #[arg(short = 'c', long, conflicts_with_all = ["loud", "raw"])]
    summary: bool,
    /// Show the path of each descriptor: `3</etc/passwd>`. A call costs up to three more system
    /// calls in the program
    #[arg(short = 'y', long, conflicts_with_all = ["raw", "summary"])]
    paths: bool,
    /// Follow forked processes and executed programs. That is the default
    #[arg(short = 'f', long, conflicts_with = "no_follow")]
    follow: bool,
    /// Also print a line when a call begins: ENTER, and EXIT
    #[arg(long)]
    loud: bool,
    /// Show at most this many bytes of read or written data; 128 are recorded
    #[arg(short = 's', long, value_name = "BYTES", default_value_t = 32)]
    string_limit: usize,
    /// Show the words that the kernel gets and returns, with begin and end times in seconds since
    /// the machine was started
    #[arg(long, conflicts_with = "json")]
    raw: bool,
    /// Print one JSON object for each line
    #[arg(long)]
    json: bool,
    /// Write the lines to this file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    target: Target,
}

/// A line in JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
enum Line {
    Call(CallView),
    Lost(LostView),
    Summary(SummaryView),
}

/// A system call.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct CallView {
    process: u32,
    thread: u32,
    number: u64,
    name: String,
    /// Arguments in `strace`'s format.
    arguments: Vec<String>,
    /// The six words that the kernel gets, in hexadecimal digits. Words beyond the call's arguments
    /// have no meaning.
    words: Vec<String>,
    /// Nanoseconds since the machine was started.
    entered_ns: u64,
    /// Null for a call that begins, and for one that does not return.
    duration_ns: Option<u64>,
    /// The kernel's result: an error is its negative number. Null like the duration.
    result: Option<i64>,
    /// The result in `strace`'s format. Null for a call that begins.
    result_text: Option<String>,
    /// The name of the error, such as ENOENT.
    error: Option<String>,
}

/// Missing lines at this place.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct LostView {
    lost: u64,
    thread: u32,
}

/// Functions of the C library whose system call has another name.
const WRAPPED: [(&str, &str); 2] = [("klogctl", "syslog"), ("posix_fadvise", "fadvise64")];

/// Runs the program, and exits like it.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Error> {
    let selected = args.selection.as_ref();
    if selected.is_some_and(Selection::is_empty) {
        return Err(nothing_left());
    }
    let mut settings = Settings {
        tool: Tool::Syscalls {
            is_loud: args.loud,
            has_paths: args.paths,
        },
        ..Settings::default()
    };
    settings.which.trace = selected.map_or_else(|| args.calls.clone(), Selection::words);
    settings.which.notrace = args.notrace.clone();
    let asked = settings.which.asked();
    let asked = asked.map_err(|error| Error::Usage(error.to_string()))?;
    // An error in a word was reported before.
    let is_unknown = |word: &&String| word.parse().is_ok_and(|it| !is_known(&it));
    if let Some(word) = args.calls.iter().chain(&args.notrace).find(is_unknown) {
        let known: Vec<&str> = (0..NUMBERS).filter_map(known_name).collect();
        let wrapped = WRAPPED.iter().filter(|(function, _)| function == word);
        let mut near = near(word, &known);
        near.extend(wrapped.map(|(_, call)| call));
        let hint = match &near[..] {
            [] => String::new(),
            near => format!("; did you mean {}?", near.join(" or ")),
        };
        let what = format!("no system call that can be seen matches '{word}'{hint}");
        return Err(Error::Usage(what));
    }
    if asked.is_some_and(|asked| !is_known(&asked)) {
        return Err(nothing_left());
    }
    let out: Box<dyn Write> = match &args.output {
        Some(path) => Box::new(place::create(path, 0o666).map_err(|error| args.failed(error))?),
        None => Box::new(io::stdout()),
    };
    let mut out = BufWriter::with_capacity(1 << 16, out);
    args.target.run(settings, |launched, interrupts| {
        show(args, launched, interrupts, &mut out)
    })
}

fn nothing_left() -> Error {
    Error::Usage("no system call is left to be shown".to_owned())
}

impl Args {
    /// Decodes a call that is to be shown.
    fn call(&self, words: &[u64]) -> Option<SystemCall> {
        let call = SystemCall::parse(words)?;
        let selection = self.selection.as_ref();
        selection
            .is_none_or(|it| it.contains(call.number))
            .then_some(call)
    }

    /// Returns the error of a failed write.
    fn failed(&self, error: io::Error) -> Error {
        match &self.output {
            Some(path) => Error::Write {
                path: path.clone(),
                error,
            },
            None => Error::Output(error),
        }
    }

    fn line(&self, call: &SystemCall) -> String {
        let word = match (self.loud, call.end) {
            (true, None) => "ENTER ",
            (true, Some(_)) => "EXIT ",
            (false, _) => "",
        };
        if self.raw {
            return format!("{word}{}", raw::line(call));
        }
        let decoded = Decoded::new(call, self.string_limit);
        if self.json {
            return json::line(&Line::Call(view(call, decoded)));
        }
        let took = match took(call, &decoded) {
            Some(took) => format!(
                " <{}.{:06}>",
                took / 1_000_000_000,
                took / 1_000 % 1_000_000
            ),
            None => String::new(),
        };
        format!("{word}{} {}{took}", call.thread, escaped(&decoded.text()))
    }

    fn line_of_loss(&self, lost: u64, thread: u32) -> String {
        match self.json {
            true => json::line(&Line::Lost(LostView { lost, thread })),
            false => format!("{} lost of thread {thread}", counted(lost, "line")),
        }
    }
}

/// Returns the duration of a call that returned.
fn took(call: &SystemCall, decoded: &Decoded) -> Option<u64> {
    let (left, _) = call.end?;
    (decoded.result.as_deref() != Some("?")).then(|| left.saturating_sub(call.entered))
}

fn view(call: &SystemCall, decoded: Decoded) -> CallView {
    let duration_ns = took(call, &decoded);
    let result = call.end.filter(|_| duration_ns.is_some());
    CallView {
        process: call.process,
        thread: call.thread,
        number: call.number,
        name: decoded.name,
        arguments: decoded.arguments,
        words: call.args.iter().map(|word| format!("{word:#x}")).collect(),
        entered_ns: call.entered,
        duration_ns,
        result: result.map(|(_, result)| result),
        result_text: decoded.result,
        error: decoded.error.map(|error| error.name),
    }
}

fn show(
    args: &Args,
    launched: &mut Launched,
    interrupts: &Interrupts,
    out: &mut impl Write,
) -> Result<(), Error> {
    let rings = launched.rings().clone();
    let mut events = Events::new(launched, interrupts)?;
    let failed = |error| Error::source("the rings", error);
    let mut lost = 0_u64;
    let mut summary = Summary::default();
    loop {
        if !events.is_ready().map_err(failed)? {
            out.flush().map_err(|error| args.failed(error))?;
        }
        let Some(event) = events.next().map_err(failed)? else {
            break;
        };
        let line = match event.what {
            What::Mark(words) => match args.call(words) {
                Some(call) if args.summary => {
                    summary.add(&call);
                    None
                }
                call => call.map(|call| args.line(&call)),
            },
            What::Lost { events, .. } => {
                lost = lost.saturating_add(events);
                (!args.summary).then(|| args.line_of_loss(events, event.thread))
            }
            _ => None,
        };
        let written = line.map_or(Ok(()), |line| writeln!(out, "{line}"));
        written.map_err(|error| args.failed(error))?;
    }
    lost = lost.saturating_add(rings.events_without_ring());
    if args.summary {
        let text = match args.json {
            true => json::line(&Line::Summary(summary.view(lost))),
            false => summary.lines().join("\n"),
        };
        writeln!(out, "{text}").map_err(|error| args.failed(error))?;
    }
    out.flush().map_err(|error| args.failed(error))?;
    if lost != 0 && args.summary {
        say!("fgraph: {} lost: the numbers are too low", calls(lost));
    } else if lost != 0 {
        say!("fgraph: {} lost", counted(lost, "line"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_docs_have_the_schema() {
        json::check_schema::<Line>("syscalls");
    }
}
