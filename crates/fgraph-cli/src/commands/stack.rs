//! `fgraph stack`: the deepest stack of each thread, and its largest frames.

mod python;

use std::collections::HashMap;
use std::process::ExitCode;

use fgraph_protocol::Tool;
use fgraph_trace::Source;
use fgraph_tracers::stack::{ThreadStack, read_mark};
use serde::Serialize;

use crate::error::Error;
use crate::json::{self, Thread};
use crate::launch::events::Events;
use crate::launch::interrupt::Interrupts;
use crate::launch::{Launched, What};
use crate::output::Out;
use crate::places;
use crate::text::{grouped, percent};

/// Run a program and show the deepest stack of each thread, at the end
///
/// Depth is measured at the entry of each watched function. The bytes of a call are those up to the
/// next watched one, including everything between; the innermost 64 are shown.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fgraph stack -- ./server
  fgraph stack -n 3 --libs -- git log
  fgraph stack --python -p 1234")]
pub(crate) struct Args {
    /// The number of threads to show, deepest stacks first
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    lines: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Show at once which functions of Python the threads of a process run, with their lines. The
    /// process is read from outside: nothing is loaded into it, and it is not stopped. CPython 3.9
    /// to 3.15
    #[arg(long, requires = "pid", conflicts_with_all = ["functions", "notrace", "within",
        "threshold", "also", "waits", "tasks", "heap", "libs", "depth", "args", "args_of", "retval",
        "time"])]
    python: bool,
    #[command(flatten)]
    what: What,
}

/// The view of `stack` in JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct StackView {
    /// The number of lost stacks.
    lost: u64,
    /// The threads with the deepest stacks, the deepest first.
    threads: Vec<ThreadView>,
}

/// The deepest stack of a thread.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ThreadView {
    thread: Thread,
    /// Bytes between the end of the stack and the entry of the deepest call.
    bytes: u64,
    /// The size of the whole stack, in bytes.
    size: u64,
    /// The watched calls, the deepest first.
    calls: Vec<CallView>,
    /// True if there are older calls that are not known, or may be: the size of the last call
    /// includes theirs.
    has_older: bool,
}

/// The most calls of a stack that the agent reports, the deepest.
const REPORTED: usize = 64;

/// A call on a stack.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct CallView {
    function: String,
    /// Bytes between the end of the stack and its entry.
    depth: u64,
    /// Bytes up to the next watched call.
    size: u64,
}

/// Runs the program, and exits like it.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Error> {
    if args.python {
        python::run(args.what.processes(), args.lines, args.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let show = |launched: &mut _, interrupts: &_| show(args, launched, interrupts);
    args.what.run_tool(Tool::Stack, show)
}

fn show(args: &Args, launched: &mut Launched, interrupts: &Interrupts) -> Result<(), Error> {
    let mut events = Events::new(launched, interrupts)?;
    let mut out = Out::new();
    let mut stacks: HashMap<(u32, u32), ThreadStack> = HashMap::new();
    let mut lost = 0_u64;
    while let Some(found) = events.find(&mut out)? {
        lost = lost.saturating_add(found.lost);
        let Some(stack) = read_mark(found.thread, &found.words) else {
            continue;
        };
        let known = stacks.entry((found.process, found.thread));
        let known = known.or_insert_with(|| stack.clone());
        if stack.bytes >= known.bytes {
            *known = stack;
        }
    }
    let mut stacks: Vec<_> = stacks.into_iter().collect();
    stacks.sort_by_key(|((_, thread), stack)| (std::cmp::Reverse(stack.bytes), *thread));
    let names = events.names();
    let is_attached = events.launched().is_attached();
    // Calls that had begun when the agent came are not known.
    let has_older = |stack: &ThreadStack| is_attached || stack.calls.len() >= REPORTED;
    if args.json {
        let shown = stacks.iter().take(args.lines);
        let threads = shown.map(|((process, thread), stack)| ThreadView {
            thread: Thread::of(names, *process, *thread),
            bytes: stack.bytes as u64,
            size: stack.size as u64,
            calls: stack
                .calls
                .iter()
                .map(|call| CallView {
                    function: places::function(names, *process, call.function as u32),
                    depth: call.depth as u64,
                    size: call.size as u64,
                })
                .collect(),
            has_older: has_older(stack),
        });
        return json::write(&StackView {
            lost,
            threads: threads.collect(),
        });
    }
    for (nth, ((process, thread), stack)) in stacks.iter().take(args.lines).enumerate() {
        if nth > 0 {
            out.line("")?;
        }
        out.line(format_args!(
            "{}: {} of {} bytes, {} %",
            places::thread(names, *process, *thread),
            grouped(stack.bytes as u64),
            grouped(stack.size as u64),
            percent(stack.bytes as u64, stack.size as u64),
        ))?;
        out.line("        Depth    Size   Location")?;
        out.line("        -----    ----   --------")?;
        for (nth, call) in stack.calls.iter().enumerate() {
            let name = places::function(names, *process, call.function as u32);
            let (depth, size) = (call.depth, call.size);
            out.line(format_args!("{nth:>3}) {depth:>8} {size:>7}   {name}"))?;
        }
        if has_older(stack) {
            let why = match is_attached {
                true => "older calls are not known; the last size includes theirs",
                false => "older calls are not reported; the last size includes theirs",
            };
            out.line(format_args!("{:>24}({why})", ""))?;
        }
    }
    if lost > 0 {
        say!("fgraph: {} stacks lost", grouped(lost));
    }
    out.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_docs_have_the_schema() {
        json::check_schema::<StackView>("stack");
    }
}
