//! `fgraph watch`: shows calls that take long, while they still run.
//!
//! They are found in this process, among the events of the program: a call that has begun and not
//! ended. So nothing in the program checks the time, and none of its threads is stopped.

use std::collections::HashMap;
use std::path::Path;
use std::process::ExitCode;

use fgraph_trace::Source;
use fgraph_trace::event::What as Did;
use fgraph_trace::names::{Names, process_id};
use fgraph_trace::pairing::{Change, Ending, OpenCall, Pairing};
use serde::Serialize;

use crate::error::Error;
use crate::input::nanoseconds;
use crate::json::{self, Thread};
use crate::launch::events::Events;
use crate::launch::interrupt::Interrupts;
use crate::launch::{Launched, What};
use crate::output::Out;
use crate::places;
use crate::text::time;

const EXAMPLES: &str = "\
Examples:
  fgraph watch --limit 10ms -- ./server
  fgraph watch --limit 1s -F 'libc:read' -F 'libc:poll' -p 1234

Each call that has run longer than the limit is shown once with the calls around it, and again when
it ends. If calls around each other are late at once, only the innermost is shown.";

/// Run a program and show calls that take too long, while they still run
///
/// Calls whose ends may be lost are not followed. A call of a process in another PID namespace is
/// shown when it ends.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Show calls that run longer than this: `10ms`
    #[arg(long, value_name = "TIME", value_parser = nanoseconds, default_value = "100ms")]
    limit: u64,
    /// Print one JSON object for each line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    what: What,
}

/// A line of `watch` in JSON: a call that takes long.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct LateView {
    function: String,
    thread: Thread,
    /// True if it has ended.
    has_ended: bool,
    /// The time since its begin, or until its end.
    took_ns: u64,
    /// The calls around it and the call itself, the outermost first; empty for one that has ended.
    calls: Vec<AroundView>,
    /// The number of outermost calls that are left out.
    left_out: u64,
}

/// A call around a late one, or the late one itself.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct AroundView {
    function: String,
    /// The time since its begin.
    took_ns: u64,
}

/// Runs the program, and exits like it.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Error> {
    let show = |launched: &mut _, interrupts: &_| show(args, launched, interrupts);
    args.what.run(show)
}

/// The number of events between two checks of the running calls.
const EVENTS: usize = 1 << 12;
/// The nanoseconds after which an event is certainly in the rings.
const DELAY: u64 = 2_000_000;
/// The most calls that are shown of a thread with a late one.
const SHOWN: usize = 24;

fn show(args: &Args, launched: &mut Launched, interrupts: &Interrupts) -> Result<(), Error> {
    let failed = |error| Error::source("the rings", error);
    let mut events = Events::new(launched, interrupts)?;
    let per_ns = events.clock().ticks_per_second() as f64 / 1e9;
    let ticks = |ns: u64| (ns as f64 * per_ns) as u64;
    let mut watch = Watch {
        limit: ticks(args.limit),
        is_json: args.json,
        threads: HashMap::new(),
        out: Out::new(),
    };
    loop {
        // The events of that time are among those that come now.
        let mut until = events.clock().kind().now().saturating_sub(ticks(DELAY));
        let mut is_idle = true;
        for nth in 0..EVENTS {
            if !events.is_ready().map_err(failed)? {
                break;
            }
            let Some(event) = events.next().map_err(failed)? else {
                break;
            };
            let (thread, now) = ((event.process, event.thread), event.time);
            match event.what {
                Did::Entry {
                    is_entry_only: true,
                    ..
                }
                | Did::Mark(_) => {}
                Did::Entry { function, .. } => watch.begin(thread, function, now),
                // An unwound call took as long.
                Did::Return { function, .. } | Did::Unwound { function } => {
                    watch.end(thread, function, now, Ending::Returned, &events)?;
                }
                Did::Dropped { function } => {
                    watch.end(thread, function, now, Ending::Lost, &events)?;
                }
                Did::Lost { ends, .. } => watch.lose(thread, ends),
            }
            if nth + 1 == EVENTS {
                (until, is_idle) = (now, false);
            }
        }
        watch.look(until, &events)?;
        if is_idle {
            if events.is_over() && !events.is_ready().map_err(failed)? {
                return watch.out.finish();
            }
            watch.out.flush()?;
            events.wait();
        }
    }
}

/// The state of a call in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    New,
    /// It was shown as late.
    Shown,
    /// It was late when one inside it was shown.
    Around,
}

type Open = OpenCall<State>;

#[derive(Debug)]
struct Watch {
    /// In ticks.
    limit: u64,
    is_json: bool,
    /// The calls that each thread is in.
    threads: HashMap<(u32, u32), Pairing<State>>,
    out: Out,
}

impl Watch {
    fn begin(&mut self, thread: (u32, u32), function: u32, now: u64) {
        if !self.threads.contains_key(&thread) {
            // The calls of a process before it executed a program have ended.
            let is_same = |of: u32| of == thread.0 || process_id(of) != process_id(thread.0);
            self.threads.retain(|(process, _), _| is_same(*process));
        }
        let calls = self.threads.entry(thread).or_default();
        calls.enter(function, now, State::New);
        while calls.change().is_some() {}
    }

    fn lose(&mut self, thread: (u32, u32), ends: Option<u64>) {
        if let Some(calls) = self.threads.get_mut(&thread) {
            calls.lose(ends);
            while calls.change().is_some() {}
        }
    }

    fn end(
        &mut self,
        thread: (u32, u32),
        function: u32,
        now: u64,
        how: Ending,
        events: &Events<'_>,
    ) -> Result<(), Error> {
        let Some(calls) = self.threads.get_mut(&thread) else {
            return Ok(());
        };
        calls.exit(function, now, how);
        let mut ended = None;
        while let Some(change) = calls.change() {
            if let Change::Ended(call) = change {
                ended = call.duration().map(|took| (took, call.data));
            }
        }
        let Some((took, state)) = ended else {
            return Ok(());
        };
        if took <= self.limit || state == State::Around {
            return Ok(());
        }
        let is_new = |call: &&mut Open| call.data == State::New;
        for around in calls.calls_mut().iter_mut().filter(is_new) {
            if now.saturating_sub(around.begin) > self.limit {
                around.data = State::Around;
            }
        }
        let names = events.names();
        let took_ns = events.clock().nanoseconds(took);
        let took = time(took_ns);
        let function = places::function(names, thread.0, function);
        if self.is_json {
            return self.out.line(json::line(&LateView {
                function,
                thread: Thread::of(names, thread.0, thread.1),
                has_ended: true,
                took_ns,
                calls: Vec::new(),
                left_out: 0,
            }));
        }
        let thread = places::thread(names, thread.0, thread.1);
        self.out
            .line(format_args!("{function} took {took} in {thread}"))
    }

    /// Shows the calls that are late by then.
    fn look(&mut self, until: u64, events: &Events<'_>) -> Result<(), Error> {
        let limit = self.limit;
        let is_late = |call: &Open| until.saturating_sub(call.begin) > limit;
        let mut gone = Vec::new();
        for (&thread, calls) in &mut self.threads {
            let calls = calls.calls_mut();
            let late = calls.partition_point(is_late);
            let Some((innermost, around)) = calls[..late].split_last_mut() else {
                continue;
            };
            if innermost.data != State::New {
                continue;
            }
            if !is_there(thread) {
                gone.push(thread);
                continue;
            }
            innermost.data = State::Shown;
            for call in around.iter_mut().filter(|call| call.data == State::New) {
                call.data = State::Around;
            }
            let call = *innermost;
            let late = late_view(thread, &call, calls, until, events);
            let line = match self.is_json {
                true => json::line(&late),
                false => describe(thread, &late, events.names()),
            };
            self.out.line(line)?;
        }
        // A thread that has ended in a call is no longer in it.
        gone.iter()
            .for_each(|thread| _ = self.threads.remove(thread));
        Ok(())
    }
}

/// Returns a late call, with the calls of its thread.
fn late_view(
    (process, thread): (u32, u32),
    late: &Open,
    calls: &[Open],
    until: u64,
    events: &Events<'_>,
) -> LateView {
    let names: &Names = events.names();
    let elapsed = |call: &Open| {
        let ticks = until.saturating_sub(call.begin);
        events.clock().nanoseconds(ticks)
    };
    let name = |call: &Open| places::function(names, process, call.function);
    let left_out = calls.len().saturating_sub(SHOWN);
    let around = calls[left_out..].iter().map(|call| AroundView {
        function: name(call),
        took_ns: elapsed(call),
    });
    LateView {
        function: name(late),
        thread: Thread::of(names, process, thread),
        has_ended: false,
        took_ns: elapsed(late),
        calls: around.collect(),
        left_out: left_out as u64,
    }
}

/// Describes a late call, with all calls of its thread.
fn describe((process, thread): (u32, u32), late: &LateView, names: &Names) -> String {
    let calls = late.calls.iter();
    let mut stack: Vec<String> = calls
        .map(|call| format!("{} {}", call.function, time(call.took_ns)))
        .collect();
    if late.left_out > 0 {
        stack.insert(0, format!("{} calls", late.left_out));
    }
    format!(
        "{} has run for {} in {}: {}",
        late.function,
        time(late.took_ns),
        places::thread(names, process, thread),
        stack.join(" > ")
    )
}

fn is_there((process, thread): (u32, u32)) -> bool {
    Path::new(&format!("/proc/{}/task/{thread}", process_id(process))).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_docs_have_the_schema() {
        json::check_schema::<LateView>("watch");
    }
}
