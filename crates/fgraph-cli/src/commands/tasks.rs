//! `fgraph tasks`: the tasks of async runtimes, by kind.

mod waiting;

use std::collections::HashSet;
use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

use fgraph_analysis::python::has_functions;
use fgraph_analysis::runtimes::Runtime;
use fgraph_analysis::tasks::{InsteadView, KindView, LateView, Tasks, WaitView};
use fgraph_trace::Source as _;
use fgraph_trace::names::Names;
use serde::Serialize;

use super::record::first::First;
use crate::debuginfod::Debuginfod;
use crate::error::Error;
use crate::input::{Input, Part, States, View, nanoseconds, parse_time};
use crate::json::{self, Lost};
use crate::losses;
use crate::output::Out;
use crate::overhead;
use crate::places;
use crate::python;
use crate::sources;
use crate::table::Table;
use crate::text::{escaped, grouped, time};
use waiting::{GroupView, UnknownView, Waiting, future_text, shown};

/// Show the tasks of async runtimes: how often and how long they are polled, and what they wait for
///
/// A poll that takes long keeps a thread of the runtime from other tasks: its slowest calls are
/// shown. A task is late from its wake until it is polled, and waits from a poll until its wake. A
/// kind has all tasks of one type of future.
///
/// With --await it shows the .await at which each task of a process waits now, and those inside,
/// from the memory of the process: also of tasks that nobody polls. That takes debug information,
/// but not for the coroutines of Python.
///
/// Reads a recording that was made with `record --tasks`. With -p or a program it makes one.
/// Knows tokio 1; async-task 4, of smol and async-std; jobs of rayon 1; handlers of Asio;
/// coroutines of C++20; and with --python, or in a recording of `record --python --tasks`, tasks of
/// Python's asyncio.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fgraph tasks -p 1234 --time 10s
  fgraph tasks -p 1234 --await
  fgraph tasks --longest 100us -- ./server
  fgraph tasks --python -- python3 app.py
  fgraph record --tasks -- ./server; fgraph tasks")]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    /// Count polls as blocking that take at least this time
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = nanoseconds)]
    longest: u64,
    /// The most kinds of tasks to show
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    lines: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    part: Part,
    #[command(flatten)]
    debuginfod: Debuginfod,
    /// Show where each task of the process of -p waits now, and record nothing
    #[arg(long = "await", requires = "pid",
        conflicts_with_all = ["time", "functions", "python", "command"])]
    is_await: bool,
    #[command(flatten)]
    first: First,
    /// The time for which it is recorded: `10s`
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    time: Option<std::time::Duration>,
    /// Record Python's functions too, and so the tasks of Python's asyncio. It takes CPython 3.9 or
    /// later; a recording is made with `record --python --tasks`
    #[arg(long)]
    python: bool,
    /// Record only these functions, beside those of runtimes
    #[arg(short = 'F', long = "function", value_name = "GLOB")]
    functions: Vec<String>,
}

/// The view of `tasks` in JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct TasksView {
    lost: Lost,
    /// The part of the threads' processor time that recording took, in percent; without states, of
    /// all their time. Null if it is unknown.
    overhead_percent: Option<u64>,
    states: States,
    runtimes: Vec<RuntimeView>,
    /// Polls that take at least this time count as blocking.
    longest_ns: u64,
    /// The kinds, those with the longest polls first.
    kinds: Vec<KindView>,
    /// Tasks that were spawned, and neither polled nor ended.
    never_polled: u64,
    /// The tasks that were found in memory at the end and that were not polled before, by the
    /// awaits at which they wait.
    unpolled: Vec<GroupView>,
    /// Files whose tasks could not be found in memory.
    unknown: Vec<UnknownView>,
}

/// A runtime that is in the program.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct RuntimeView {
    runtime: Runtime,
    /// Its version.
    version: String,
    /// True if its functions are known in this version.
    is_known: bool,
}

/// The functions of a path that are shown.
const SHOWN: usize = 5;
/// A time without polls from which on a task is shown as one that waits, as a part of the whole.
const LONG_SINCE: u64 = 2;

/// Shows the tasks.
pub(crate) fn run(args: Args) -> Result<ExitCode, Error> {
    if args.is_await {
        let [pid] = args.first.pid[..] else {
            return Err(Error::Usage("--await takes one process".to_owned()));
        };
        args.debuginfod.allow();
        waiting::show(pid, args.lines, args.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    if !args.first.is_there() {
        args.input.expect("--tasks")?;
        show(&args, &args.input)?;
        return Ok(ExitCode::SUCCESS);
    }
    let folder = First::folder()?;
    let path = folder.path().join("fgraph.data");
    let mut options: Vec<OsString> = vec!["--tasks".into()];
    if args.python {
        options.push("--python".into());
    }
    for glob in &args.functions {
        options.extend(["-F".into(), glob.into()]);
    }
    let code = args.first.record(options, args.time, &path)?;
    show(&args, &Input { path })?;
    Ok(code)
}

fn show(args: &Args, input: &Input) -> Result<(), Error> {
    let mut view = input.view(&args.part)?;
    places::name_functions(&mut view, args.debuginfod);
    let threshold = view.clock().ticks(args.longest);
    let tasks = Tasks::read(&mut view, threshold);
    let tasks = tasks.map_err(|error| Error::source(&input.path, error))?;
    let (names, clock, first) = (view.names(), view.clock(), view.first());
    losses::say(&tasks.losses, names, clock, first);
    let overhead = tasks.overhead(clock, view.schedule());
    if let Some(percent) = overhead {
        overhead::say_percent(percent, view.schedule(), &[]);
    }
    let states = view.say_states();
    let runtimes = runtimes(&view);
    let awaits = Waiting::new(view.names(), &tasks);
    let gain = "shows the tasks of Python's asyncio";
    let advice = match args.first.is_there() {
        true => python::advice(names, args.python, gain),
        false => python::advice_to_record(names, "record --tasks", gain),
    };
    if tasks.is_empty() && awaits.is_empty() {
        let why = nothing(args, &tasks, &runtimes, names, input, advice);
        return Err(Error::Nothing(why));
    }
    if let Some(advice) = advice {
        say!("fgraph: {advice}");
    }
    for unknown in runtimes.iter().filter(|it| !it.is_known) {
        let (name, version) = (unknown.runtime.name(), escaped(&unknown.version));
        let known = unknown.runtime.known();
        say!("fgraph: {name} {version} is not one of the known versions, {known}: tasks may miss");
    }
    let future = |process, task| awaits.future(process, task);
    let (kinds, more) = tasks.kinds(&view, first, args.lines, &future);
    let shown = TasksView {
        lost: losses::to_json(&tasks.losses, names, clock, first),
        overhead_percent: overhead,
        states,
        longest_ns: args.longest,
        kinds,
        never_polled: tasks.never_polled(),
        unpolled: awaits.unpolled(),
        unknown: awaits.unknown(),
        runtimes,
    };
    match args.json {
        true => json::write(&shown)?,
        false => {
            let whole = tasks.span.map_or(0, |(first, last)| last - first);
            write(&shown, clock.nanoseconds(whole), more, args.lines)?;
        }
    }
    view.check_whole(&input.path)
}

/// Returns the runtimes in the program's modules.
fn runtimes(view: &View) -> Vec<RuntimeView> {
    let (mut seen, mut found) = (HashSet::new(), Vec::new());
    let modules = view.names().modules().iter();
    // The system's libraries have none.
    let modules = modules.filter(|it| !it.path.starts_with("/usr/lib") && !it.path.is_empty());
    for module in modules.filter(|module| seen.insert(&module.path)) {
        let bytes = sources::bytes_of(module).unwrap_or_default();
        for (runtime, version) in Runtime::find(&bytes) {
            found.push(RuntimeView {
                is_known: runtime.knows(&version),
                runtime,
                version,
            });
        }
    }
    found
}

/// Returns the reason for which there are no tasks, and the advice about Python's.
fn nothing(
    args: &Args,
    tasks: &Tasks,
    runtimes: &[RuntimeView],
    names: &Names,
    input: &Input,
    advice: Option<String>,
) -> String {
    let path = input.path.display();
    // A recording that this command has made is gone at its end.
    let place = match args.first.is_there() {
        true => String::new(),
        false => format!(" in {path}"),
    };
    match runtimes.first() {
        _ if tasks.unknown > 0 => {
            format!("{path} has no identities of tasks; record again, with --tasks")
        }
        Some(RuntimeView {
            runtime, version, ..
        }) => {
            let (name, known, version) = (runtime.name(), runtime.known(), escaped(version));
            format!(
                "no task was polled{place}: the program has {name} {version}, but has called none \
                 of the functions that are known of {known}; it may be stripped, or idle. Use \
                 views by thread{}",
                advice.map_or_else(String::new, |advice| format!("; {advice}"))
            )
        }
        None if has_functions(names) => format!(
            "no task was polled{place}: none of Python's coroutines was called; or the \
             recording was made without --tasks"
        ),
        None if advice.is_some() => {
            format!("no task was polled{place}: {}", advice.unwrap_or_default())
        }
        None => format!(
            "no task was polled{place}: no known runtime is in the program. Use views by thread"
        ),
    }
}

/// Prints them. `whole` is the time of the recording, in nanoseconds.
fn write(view: &TasksView, whole: u64, more: usize, most: usize) -> Result<(), Error> {
    let mut out = Out::new();
    let mut table = Table::new(&[
        ("TASKS", 2),
        ("ALIVE", 3),
        ("POLLS", 4),
        ("POLL TIME", 5),
        ("LONGEST", 0),
        ("BLOCKING", 1),
        ("FIRST POLL", 6),
        ("LATE", 6),
        ("TASK", 0),
    ]);
    for kind in &view.kinds {
        let longest = |late: &Option<LateView>| late.as_ref().map_or(0, |late| late.ns);
        let or_none = |ns: u64| match ns {
            0 => "-".to_owned(),
            ns => time(ns),
        };
        let name = shown(&kind.name);
        table.row(vec![
            grouped(kind.tasks),
            kind.alive.map_or_else(|| "-".to_owned(), grouped),
            grouped(kind.polls),
            time(kind.poll_ns),
            or_none(kind.longest.as_ref().map_or(0, |poll| poll.ns)),
            match kind.may_block {
                true => "-".to_owned(),
                false => grouped(kind.blocking),
            },
            or_none(longest(&kind.first)),
            or_none(longest(&kind.late)),
            match kind.may_block {
                true => format!("{name} (runs once)"),
                false => name,
            },
        ]);
        for note in notes(kind, view.longest_ns, whole) {
            table.note(note);
        }
    }
    if !view.kinds.is_empty() {
        table.write(&mut out)?;
    }
    if more > 0 {
        out.line(format!("and {more} more kinds of tasks, see -n"))?;
    }
    if view.never_polled > 0 && view.unpolled.is_empty() {
        let never = grouped(view.never_polled);
        out.line(format!("spawned and never polled: {never}"))?;
    }
    if !view.unpolled.is_empty() {
        out.line("not polled in this time:")?;
        waiting::write(&mut out, &view.unpolled, most)?;
    }
    for unknown in &view.unknown {
        say!("fgraph: {}", unknown.text());
    }
    out.finish()
}

/// Returns the lines below a kind.
fn notes(kind: &KindView, threshold: u64, whole: u64) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(poll) = kind.longest.as_ref().filter(|poll| poll.ns >= threshold) {
        let on = match poll.running_ns {
            Some(running) => format!(" ({} on a processor)", time(running)),
            None => String::new(),
        };
        let path = shown_path(&poll.path);
        let (took, at) = (time(poll.ns), time(poll.at_ns));
        notes.push(format!("longest poll: {took}{on} in {path}, at {at}"));
    }
    let lates = [("first poll", &kind.first), ("late", &kind.late)];
    for (what, late) in lates {
        let Some(late) = late.as_ref().filter(|late| late.ns >= threshold) else {
            continue;
        };
        if let Some(instead) = &late.instead {
            let took = time(late.ns);
            notes.push(format!(
                "{what} by {took}: meanwhile {}",
                instead_text(instead)
            ));
        }
    }
    for waits in &kind.waits {
        let wait = &waits.longest;
        let Some(reason) = waits.reason.as_ref().filter(|_| wait.ns >= threshold) else {
            continue;
        };
        let until = match (&wait.by, &wait.instead) {
            (Some(by), _) => until(wait, by),
            // The thread that would have woken it may have polled others.
            (None, Some(instead)) if instead.ns >= wait.ns / 2 => {
                format!(", meanwhile {}", instead_text(instead))
            }
            (None, _) => String::new(),
        };
        let (all, longest) = (time(waits.ns), time(wait.ns));
        let longest = match waits.count {
            1 => String::new(),
            count => format!(" in {}, the longest {longest}", grouped(count)),
        };
        notes.push(format!("waits for {reason}: {all}{longest}{until}"));
    }
    let oldest = kind.waiting.first();
    let since = oldest.and_then(|oldest| Some((oldest, oldest.since_ns?)));
    if let Some((oldest, since)) = since.filter(|(_, since)| *since > whole / LONG_SINCE) {
        let woken = match oldest.is_woken {
            true => "woken since",
            false => "never woken since",
        };
        notes.push(format!(
            "#{} alive at the end: last polled {} before, {woken}",
            oldest.task,
            time(since)
        ));
        if let Some(future) = &oldest.future {
            let folder = env::current_dir().ok();
            notes.extend(future_text(future, folder.as_deref()));
        }
    }
    notes
}

/// Returns the text for polls meanwhile.
fn instead_text(instead: &InsteadView) -> String {
    let (name, took) = (shown(&instead.name), time(instead.ns));
    match instead.path.is_empty() {
        true => format!("{name} was polled for {took}"),
        false => format!(
            "{name} was polled for {took}, in {}",
            shown_path(&instead.path)
        ),
    }
}

/// Returns the text for the task that ended a wait.
fn until(wait: &WaitView, by: &str) -> String {
    let mut text = format!(", until {}", shown(by));
    if let Some(function) = wait
        .function
        .as_ref()
        .filter(|it| !by.starts_with(it.as_str()))
    {
        text += &format!(" in {}", shown(function));
    }
    if let (Some(ns), Some(before)) = (wait.before_ns, &wait.before) {
        text += &format!(", which had waited {} for {before}", time(ns));
    }
    text
}

/// Returns the first names of a path as text.
fn shown_path(path: &[String]) -> String {
    let names: Vec<_> = path.iter().take(SHOWN).map(|name| shown(name)).collect();
    match names.is_empty() {
        true => "no recorded function".to_owned(),
        false => names.join(" < "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_is_the_one_in_the_docs() {
        json::check_schema::<TasksView>("tasks");
    }
}
