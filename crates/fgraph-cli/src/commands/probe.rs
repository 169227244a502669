//! `fgraph probe`: counts, sums and prints calls of some functions, with one command line.
//!
//! The program records the calls of these functions with their arguments and results; this command
//! computes the results from the events. So it works on a recording, too.

mod call;
mod follow;
mod missing;
mod show;
mod tally;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use fgraph_protocol::Settings;
use fgraph_symbols::filter::Filter;
use fgraph_trace::Source as _;

use self::follow::Probe;
use super::top::interval;
use crate::action::{Action, By, Input, What};
use crate::error::Error;
use crate::input::{self, Part, parse_time};
use crate::launch::events::Events;
use crate::launch::{self, Launched, interrupt::Interrupts};
use crate::places::Places;
use crate::target::{Patterns, parse_patterns, parse_pid};
use crate::unmatched;

const HELP: &str = "\
Actions:
  count, print                   calls; each call in a line
  sum(E) avg(E) min(E) max(E)    of a value of each call
  hist(E)                        how often which values come
  ... by KEY, KEY                a line for each: caller, stack, thread, function,
                                 module, E
  ... if E                       for some calls only, the last part
Values E:
  argN, the name of a parameter (where there is debug information), retval,
  duration (nanoseconds), str(argN), str(NAME), str(retval), integers, \"text\",
  + - * / & == != < > && || and parentheses. Missing values are left out.
  *NAME, NAME->MEMBER.MEMBER: what an argument leads to when the call begins, where
  there is debug information; what cannot be read is missing.

Examples:
  fgraph probe libc:malloc 'hist(arg0)' 'sum(arg0) by caller' -- ls
  fgraph probe -p 1234 'libc:open*' 'hist(str(arg0))' 'print if retval < 0'
  fgraph probe -i fgraph.data 'parse*' 'max(duration) by function'
  fgraph probe libc:openat 'count by str(arg1), caller if retval < 0' -- make
  fgraph probe libc:write 'sum(retval) by stack' -- git log
  fgraph probe deposit 'sum(amount) by str(account->owner.name)' -- ./bank";

/// Count, sum up or print calls of a program, a process or a recording
///
/// Results are shown when the program ends, or on Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// The functions: a glob over names, optionally after a module, as libc:malloc
    #[arg(value_parser = parse_patterns)]
    function: Patterns,
    /// The actions for their calls, see below
    #[arg(value_name = "ACTION", required = true)]
    actions: Vec<String>,
    /// Probe a running process, or several: `-p 1,2` or `-p 1 -p 2`
    #[arg(
        short,
        long,
        value_name = "PID",
        value_delimiter = ',',
        value_parser = parse_pid,
        conflicts_with_all = ["command", "input"]
    )]
    pid: Vec<u32>,
    /// Read the calls of a recording
    #[arg(short, long, value_name = "FILE", conflicts_with = "command")]
    input: Option<PathBuf>,
    /// Show the results after this time, as 500ms, 10s or 2m; the program continues. This command
    /// ends with it, unless it was attached
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with = "input")]
    time: Option<Duration>,
    /// Also show intermediate results each time this interval has passed
    #[arg(long, value_name = "TIME", value_parser = interval, conflicts_with = "input")]
    interval: Option<Duration>,
    /// The most rows of each action to show, the largest first
    #[arg(short = 'n', long, value_name = "N")]
    lines: Option<usize>,
    /// Print one JSON object, with --interval one per interval
    #[arg(long)]
    json: bool,
    /// Probe neither forked processes nor executed programs
    #[arg(long)]
    no_follow: bool,
    /// The program and its arguments
    #[arg(last = true, required_unless_present_any = ["pid", "input"])]
    command: Vec<OsString>,
}

impl Args {
    /// Returns the probe for these actions; of a recording, with a filter of its functions.
    fn probe(&self, actions: Vec<Action>, filter: Option<Filter>) -> Probe {
        let mut probe = Probe::new(&self.actions, self.json, actions, filter);
        probe.most_rows = self.lines.unwrap_or(usize::MAX);
        probe
    }
}

/// Runs the probe, and exits like the program.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Error> {
    let parse = |text: &String| Action::parse(text);
    let actions: Result<Vec<_>, _> = args.actions.iter().map(parse).collect();
    let actions = actions.map_err(|error| Error::Usage(error.to_string()))?;
    if args.json && actions.iter().any(|action| action.what == What::Print) {
        return Err(Error::Usage(
            "--json shows what is counted: leave out `print`, or --json".to_owned(),
        ));
    }
    let words: Vec<String> = args.function.words().collect();
    if let Some(path) = &args.input {
        let filter: Result<Filter, _> = words.join(" ").parse();
        let filter = filter.map_err(|error| Error::Usage(error.to_string()))?;
        let input = input::Input { path: path.clone() };
        let mut probe = args.probe(actions, Some(filter));
        let mut view = input.view(&Part::default())?;
        while probe.step(&mut view, path)? {}
        probe.finish(&view)?;
        view.check_whole(path)?;
        unmatched::check(&args.function.0, view.names())?;
        return Ok(ExitCode::SUCCESS);
    }
    let settings = settings(&actions, words, !args.no_follow);
    let program = launch::Program::find(&args.pid, &args.command, settings)?;
    let program = program.checking(&args.function.0).for_time(args.time);
    program.run_whole(|launched: &mut Launched, interrupts: &Interrupts| {
        let mut probe = args.probe(actions, None);
        probe.places = Places::of_running(launched.generated());
        let mut events = Events::new(launched, interrupts)?;
        let path = Path::new("the rings");
        let failed = |error| Error::source(path, error);
        let began = Instant::now();
        let mut shown = 0;
        loop {
            if let Some(interval) = args.interval {
                let passed = began.elapsed();
                let due = passed.as_nanos() / interval.as_nanos();
                if due > shown {
                    shown = due;
                    probe.show(Some(passed))?;
                }
                if !events.is_ready().map_err(failed)? && !events.is_over() {
                    events.wait();
                    continue;
                }
            }
            if !probe.step(&mut events, path)? {
                break;
            }
        }
        probe.finish(&events)
    })
}

/// Returns the settings for the agent.
fn settings(actions: &[Action], words: Vec<String>, follow: bool) -> Settings {
    let mut settings = Settings::default();
    settings.process.follow = follow;
    settings.which.trace = words;
    let values = &mut settings.values;
    let mut texts = Vec::new();
    for action in actions {
        if action.what == What::Print {
            (values.arguments, values.result) = (6, true);
        }
        values.callers |= action.by.contains(&By::Caller);
        values.stacks |= action.by.contains(&By::Stack);
        action.each_input(|input, is_text| {
            match input {
                Input::Result => values.result = true,
                Input::Behind(path) if values.paths.contains(path) => {}
                Input::Behind(path) => values.paths.push(path.clone()),
                _ => values.arguments = 6,
            }
            let name = input.name();
            if is_text && !texts.contains(&name) {
                texts.push(name);
            }
        });
    }
    let has_paths = !values.paths.is_empty();
    values.types = values.arguments > 0 || values.result || has_paths;
    values.texts = texts;
    settings
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fgraph_trace::Live;
    use fgraph_trace::clock::ClockKind;
    use fgraph_trace::event::{Kind, call};
    use fgraph_trace::names::DescriptionKind;
    use fgraph_trace::ring::{RingOptions, Rings};

    use super::*;

    #[test]
    fn a_call_whose_end_was_lost_has_no_duration_and_those_around_it_have() {
        let options = RingOptions {
            rings: 1,
            sub_buffers: 2,
            sub_buffer_bytes: 256,
            clock: Some(ClockKind::Monotonic),
            ..RingOptions::default()
        };
        let rings = Arc::new(Rings::create(&options).unwrap());
        for (index, name) in [(1, "outer"), (2, "inner"), (3, "leaf")] {
            let fields = [9, index, 0, 0];
            rings.describe(DescriptionKind::Function, fields, [name, ""]);
        }
        let action = "sum(duration) by function".to_owned();
        let actions = vec![Action::parse(&action).unwrap()];
        let probe = Probe::new(&[action], false, actions, None);
        let (mut probe, path) = (probe, Path::new("rings"));
        let writer = rings.writer(9, 1).unwrap();
        let mut live = Live::consume(rings.clone()).unwrap();
        let write = |kind, function, time| writer.call(call(kind, function), time);
        write(Kind::Entry, 1, 100);
        write(Kind::Entry, 2, 200);
        write(Kind::Entry, 2, 250);
        while write(Kind::Entry, 3, 250) && write(Kind::Return, 3, 250) {}
        write(Kind::Return, 2, 300);
        while probe.step(&mut live, path).unwrap() {}
        write(Kind::Return, 2, 450);
        write(Kind::Return, 1, 1100);
        rings.finish();
        while probe.step(&mut live, path).unwrap() {}
        let tally = |name: &str| {
            let tally = &probe.actions[0].1[&[name.to_owned()][..]];
            (tally.count, tally.sum)
        };
        assert_eq!([tally("outer"), tally("inner")], [(1, 1000), (1, 250)]);
        assert_eq!(probe.ends_lost, 2);
    }

    #[test]
    fn the_agent_records_what_the_actions_need() {
        let of = |texts: &[&str]| {
            let actions: Vec<_> = texts.iter().map(|it| Action::parse(it).unwrap()).collect();
            let values = settings(&actions, Vec::new(), true).values;
            (
                values.arguments,
                values.result,
                values.callers,
                values.texts,
            )
        };
        assert_eq!(
            of(&["count", "max(duration) by thread"]),
            (0, false, false, vec![])
        );
        assert_eq!(of(&["print"]), (6, true, false, vec![]));
        let texts = vec!["arg0".to_owned(), "path".to_owned()];
        let actions = [
            "hist(str(arg0)) by caller",
            "count if str(path) == str(arg0)",
        ];
        assert_eq!(of(&actions), (6, false, true, texts));
        assert_eq!(of(&["count if retval == 0"]), (0, true, false, vec![]));
    }
}
