//! `fgraph probe`: counts, sums and prints calls of some functions, with one command line.
//!
//! The program records the calls of these functions with their arguments and results; this command
//! computes the results from the events. So it works on a recording, too.

mod missing;
mod tally;

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use fgraph_symbols::filter::{Filter, FunctionFacts};
use fgraph_trace::Source;
use fgraph_trace::event::What as Event;
use fgraph_trace::names::Names;
use fgraph_trace::pairing::{Change, EndedCall, Ending, Pairing};
use fgraph_trace::values::Operand;
use fgraph_tracers::agent::Settings;
use serde::Serialize;

use self::missing::Missing;
use self::tally::{Row, Tally, shown};
use super::record::parse_time;
use super::top::interval;
use crate::action::{Action, By, Input, Inputs, What};
use crate::error::Error;
use crate::input::{self, Part};
use crate::json;
use crate::launch::events::Events;
use crate::launch::{self, Launched, interrupt::Interrupts};
use crate::output::{Out, Style};
use crate::places::Places;
use crate::target::{Patterns, parse_patterns, parse_pid};
use crate::text::{escaped, file_name, grouped, named, time};
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
  + - * / & == != < > && || and parentheses. What is missing is left out.
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
    /// Probe a running process
    #[arg(
        short,
        long,
        value_name = "PID",
        value_parser = parse_pid,
        conflicts_with_all = ["command", "input"]
    )]
    pid: Option<u32>,
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
        let mut probe = Probe::new(args, actions, Some(filter));
        let mut view = input.view(&Part::default())?;
        while probe.step(&mut view, path)? {}
        probe.finish(&view)?;
        for text in unmatched::of_recording(&args.function.0, view.names()) {
            say!("fgraph: {}", escaped(&text));
        }
        view.check_whole(path)?;
        return Ok(ExitCode::SUCCESS);
    }
    let settings = settings(&actions, words, !args.no_follow);
    let program = launch::Program::find(args.pid, &args.command, settings)?;
    let program = program.checking(&args.function.0);
    program.run_whole(|launched: &mut Launched, interrupts: &Interrupts| {
        let mut probe = Probe::new(args, actions, None);
        let mut events = Events::new(launched, interrupts)?.for_time(args.time);
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
    let mut settings = Settings {
        follow,
        trace: words,
        ..Settings::default()
    };
    let mut texts = Vec::new();
    for action in actions {
        if action.what == What::Print {
            (settings.arguments, settings.result) = (6, true);
        }
        settings.callers |= action.by.contains(&By::Caller);
        settings.stacks |= action.by.contains(&By::Stack);
        action.each_input(|input, is_text| {
            match input {
                Input::Result => settings.result = true,
                Input::Behind(path) if settings.paths.contains(path) => {}
                Input::Behind(path) => settings.paths.push(path.clone()),
                _ => settings.arguments = 6,
            }
            let name = input.name();
            if is_text && !texts.contains(&name) {
                texts.push(name);
            }
        });
    }
    let has_paths = !settings.paths.is_empty();
    settings.types = settings.arguments > 0 || settings.result || has_paths;
    settings.texts = texts;
    settings
}

/// The data of a call in progress.
#[derive(Debug)]
struct Kept {
    /// Its return address.
    caller: Option<u64>,
    /// The return addresses of the calls around it, if they were recorded.
    stack: Vec<u64>,
    words: Vec<u64>,
    values: Vec<u64>,
}

/// The result of a call.
#[derive(Debug, Default)]
struct Given {
    result: Option<u64>,
    values: Vec<u64>,
}

/// A call with all its known data.
struct Call<'c> {
    kept: &'c Kept,
    names: &'c [String],
    /// Arguments by type; without these, registers are used.
    arguments: Vec<Operand>,
    register: Option<u64>,
    result: Option<Operand>,
    duration: Option<u64>,
}

impl Call<'_> {
    fn argument(&self, input: &Input) -> Option<&Operand> {
        match input {
            Input::Argument(number) => self.arguments.get(*number),
            Input::Parameter(wanted) | Input::Behind(wanted) => {
                let place = self.names.iter().position(|name| name == wanted)?;
                self.arguments.get(place)
            }
            Input::Result => self.result.as_ref(),
        }
    }
}

/// Returns a register as a signed number.
fn signed(word: u64) -> i128 {
    (word as i64).into()
}

impl Inputs for Call<'_> {
    fn number(&self, input: &Input) -> Option<i128> {
        if let Some(operand) = self.argument(input) {
            return operand.number;
        }
        match input {
            Input::Argument(number) => self.kept.words.get(*number).copied().map(signed),
            Input::Parameter(_) | Input::Behind(_) => None,
            Input::Result => self.register.map(signed),
        }
    }

    fn text(&self, input: &Input) -> Option<String> {
        self.argument(input)?.text.clone()
    }

    fn duration(&self) -> Option<u64> {
        self.duration
    }
}

/// The deepest nesting of calls for which a thread's shadow stack has room.
const DEEPEST: usize = (1 << 12) - 1;

/// Separates the calls of a stack in a key; the innermost comes first.
const BETWEEN_CALLS: &str = "\n";

/// The most lines of an action; calls with further keys are counted together.
const MAX_KEYS: usize = 1 << 16;
const OTHERS: &str = "others";

/// The view of `probe` in JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ProbeView {
    /// Nanoseconds since the beginning, for intermediate results.
    after_ns: Option<u64>,
    /// The number of missing events.
    lost: u64,
    /// Calls without a duration and a result, because their ends are missing.
    ends_lost: u64,
    actions: Vec<ActionView>,
}

/// The calls that an action has counted.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ActionView {
    action: String,
    /// One for each key, the largest first.
    rows: Vec<Row>,
}

/// The tally of each key.
type Tallies = HashMap<Vec<String>, Tally>;

/// Calls as they are followed.
struct Probe {
    texts: Vec<String>,
    actions: Vec<(Action, Tallies)>,
    is_json: bool,
    /// The selected functions of a recording.
    filter: Option<Filter>,
    /// Functions that were checked.
    meant: HashMap<(u32, u32), bool>,
    /// Arguments in actions that no call has had.
    missing: HashSet<Input>,
    /// A called function with its parameters; none if these are unknown.
    seen: Option<(String, Vec<String>)>,
    threads: HashMap<(u32, u32), Pairing<Kept>>,
    places: Places,
    lost: u64,
    /// The number of times that deeper calls had no room.
    full: u64,
    /// The number of calls with missing ends.
    ends_lost: u64,
    out: Out,
}

impl Probe {
    fn new(args: &Args, actions: Vec<Action>, filter: Option<Filter>) -> Self {
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
            texts: args.actions.clone(),
            is_json: args.json,
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
    fn step(&mut self, source: &mut impl Source, path: &Path) -> Result<bool, Error> {
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
    fn finish(&mut self, source: &impl Source) -> Result<(), Error> {
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

    fn show(&mut self, after: Option<Duration>) -> Result<(), Error> {
        let actions = self.texts.iter().zip(&self.actions);
        let actions = actions.filter(|(_, (action, _))| action.what != What::Print);
        if self.is_json {
            let view = |(text, (action, tallies)): (&String, &(Action, Tallies))| ActionView {
                action: text.clone(),
                rows: rows(action, tallies)
                    .into_iter()
                    .map(|(key, tally)| tally.to_json(&action.what, key.clone()))
                    .collect(),
            };
            return json::write(&ProbeView {
                after_ns: after.map(|after| after.as_nanos() as u64),
                lost: self.lost,
                ends_lost: self.ends_lost,
                actions: actions.map(view).collect(),
            });
        }
        let out = &mut self.out;
        if let Some(after) = after {
            let heading = format!("after {:.1} s", after.as_secs_f64());
            out.line(Style::Dim.paint(heading))?;
        }
        for (text, (action, tallies)) in actions {
            out.line(Style::Bold.paint(escaped(text)))?;
            for (key, tally) in rows(action, tallies) {
                let shown = tally.shown(&action.what);
                let keys = key.iter().zip(&action.by);
                let (stacks, keys): (Vec<_>, Vec<_>) = keys.partition(|&(_, by)| *by == By::Stack);
                let keys: Vec<&str> = keys.iter().map(|(key, _)| key.as_str()).collect();
                out.line(
                    format_args!("{shown:>12}  {}", escaped(&keys.join("  ")))
                        .to_string()
                        .trim_end(),
                )?;
                for call in stacks
                    .iter()
                    .flat_map(|(stack, _)| stack.split(BETWEEN_CALLS))
                {
                    out.line(format_args!("{:>14}{}", "", escaped(call)))?;
                }
                if matches!(action.what, What::Histogram(_)) {
                    tally.write_histogram(&action.what, out)?;
                }
            }
        }
        self.out.flush()
    }
}

/// Returns the rows of an action, the largest first.
fn rows<'t>(action: &Action, tallies: &'t Tallies) -> Vec<(&'t Vec<String>, &'t Tally)> {
    let mut rows: Vec<_> = tallies.iter().collect();
    rows.sort_by_key(|&(key, tally)| (Reverse(tally.weight(&action.what)), key));
    rows
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
        let args = Args {
            function: parse_patterns("*").unwrap(),
            actions: vec![action],
            pid: None,
            input: None,
            time: None,
            interval: None,
            json: false,
            no_follow: false,
            command: Vec::new(),
        };
        let (mut probe, path) = (Probe::new(&args, actions, None), Path::new("rings"));
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
            let settings = settings(&actions, Vec::new(), true);
            (
                settings.arguments,
                settings.result,
                settings.callers,
                settings.texts,
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

    #[test]
    fn the_docs_have_the_schema() {
        json::check_schema::<ProbeView>("probe");
    }
}
