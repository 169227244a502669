//! `fgraph probe`: counts, sums and prints calls of some functions, in one line of a command.
//!
//! The program records the calls of these functions with their arguments and results; what is asked
//! for is computed here, from the events. So it works on a recording as well.

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
use fgraph_trace::names::{Names, process_id};
use fgraph_trace::pairing::{Change, EndedCall, Ending, Pairing};
use fgraph_trace::values::Operand;
use fgraph_tracers::agent::Settings;

use super::record::parse_time;
use super::top::interval;
use crate::action::{Action, By, Input, Inputs, Value, What};
use crate::error::Error;
use crate::input::{self, Part};
use crate::launch::events::Events;
use crate::launch::{self, Launched, interrupt::Interrupts};
use crate::output::{Out, Style};
use crate::places::Places;
use crate::target::{Patterns, parse_patterns, parse_pid};
use crate::text::{escaped, grouped, named, time};
use crate::unmatched;

const HELP: &str = "\
Actions:
  count, print                   calls; each call in a line
  sum(E) avg(E) min(E) max(E)    of a value of each call
  hist(E)                        how often which values come
  ... by caller|thread|function|module
  ... if E                       for some calls only, the last part
Values E:
  argN, the name of a parameter (where there is debug information), retval,
  duration (nanoseconds), str(argN), str(NAME), str(retval), integers,
  + - * / & == != < > && || and parentheses. What is missing is left out.

Examples:
  fgraph probe libc:malloc 'hist(arg0)' 'sum(arg0) by caller' -- ls
  fgraph probe -p 1234 'libc:open*' 'hist(str(arg0))' 'print if retval < 0'
  fgraph probe -i fgraph.data 'parse*' 'max(duration) by function'";

/// Count, sum up or print calls: of a program, a process or a recording
///
/// Results are shown when the program ends, or with Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// The functions: a glob over names, with a module before it if need be, as libc:malloc
    #[arg(value_parser = parse_patterns)]
    function: Patterns,
    /// What is done with their calls, see below
    #[arg(value_name = "ACTION", required = true)]
    actions: Vec<String>,
    /// Probe a process that runs already
    #[arg(
        short,
        long,
        value_name = "PID",
        value_parser = parse_pid,
        conflicts_with_all = ["command", "input"]
    )]
    pid: Option<u32>,
    /// Look at the calls of a recording
    #[arg(short, long, value_name = "FILE", conflicts_with = "command")]
    input: Option<PathBuf>,
    /// Show the results after this time, as 500ms, 10s or 2m; the program goes on, and this command
    /// ends with it unless it ran before
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with = "input")]
    time: Option<Duration>,
    /// Show the results so far each time that this time has passed, as well
    #[arg(long, value_name = "TIME", value_parser = interval, conflicts_with = "input")]
    interval: Option<Duration>,
    /// Probe neither forked processes nor executed programs
    #[arg(long)]
    no_follow: bool,
    /// The program and its arguments
    #[arg(last = true, required_unless_present_any = ["pid", "input"])]
    command: Vec<OsString>,
}

/// Does it, and ends as the program does.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Error> {
    let parse = |text: &String| Action::parse(text);
    let actions: Result<Vec<_>, _> = args.actions.iter().map(parse).collect();
    let actions = actions.map_err(|error| Error::Usage(error.to_string()))?;
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
    program.run(|launched: &mut Launched, interrupts: &Interrupts| {
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
                    probe.show_so_far(passed)?;
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

/// What the agent has to record.
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
        settings.callers |= action.by == Some(By::Caller);
        action.each_input(|input, is_text| {
            match input {
                Input::Result => settings.result = true,
                _ => settings.arguments = 6,
            }
            let name = input.name();
            if is_text && !texts.contains(&name) {
                texts.push(name);
            }
        });
    }
    settings.types = settings.arguments > 0 || settings.result;
    settings.texts = texts;
    settings
}

/// The data that is kept of a call that goes on.
#[derive(Debug)]
struct Kept {
    /// Where it returns to.
    caller: Option<u64>,
    words: Vec<u64>,
    values: Vec<u64>,
}

/// The result of a call.
#[derive(Debug, Default)]
struct Given {
    result: Option<u64>,
    values: Vec<u64>,
}

/// A call with all that is known of it.
struct Call<'c> {
    kept: &'c Kept,
    names: &'c [String],
    /// By their types; without these, registers are taken.
    arguments: Vec<Operand>,
    register: Option<u64>,
    result: Option<Operand>,
    duration: Option<u64>,
}

impl Call<'_> {
    fn argument(&self, input: &Input) -> Option<&Operand> {
        match input {
            Input::Argument(number) => self.arguments.get(*number),
            Input::Parameter(wanted) => {
                let place = self.names.iter().position(|name| name == wanted)?;
                self.arguments.get(place)
            }
            Input::Result => self.result.as_ref(),
        }
    }
}

/// A register as a number with a sign.
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
            Input::Parameter(_) => None,
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

/// What an action has counted under one key.
#[derive(Clone, Debug, Default)]
struct Tally {
    count: u64,
    sum: i128,
    least: Option<Value>,
    most: Option<Value>,
    values: HashMap<Value, u64>,
    /// Calls with values that found no room among these.
    others: u64,
}

/// Different values of a histogram, at most; what comes later is counted as others.
const MAX_VALUES: usize = 1 << 16;
/// Rows that are shown of what may have many.
const SHOWN: usize = 20;
/// The most calls inside one another that a thread's shadow stack has room for.
const DEEPEST: usize = (1 << 12) - 1;

impl Tally {
    fn add(&mut self, what: &What, call: &Call<'_>) {
        let value = match what {
            What::Count | What::Print => {
                self.count += 1;
                return;
            }
            What::Sum(value)
            | What::Average(value)
            | What::Least(value)
            | What::Most(value)
            | What::Histogram(value) => value.of(call),
        };
        let Some(value) = value else { return };
        match (what, &value) {
            (What::Sum(_) | What::Average(_), Value::Number(number)) => {
                let Some(sum) = self.sum.checked_add(*number) else {
                    return;
                };
                self.sum = sum;
            }
            (What::Sum(_) | What::Average(_), Value::Text(_)) => return,
            (What::Least(_), _) => {
                if self.least.as_ref().is_none_or(|least| value < *least) {
                    self.least = Some(value);
                }
            }
            (What::Most(_), _) => {
                if self.most.as_ref().is_none_or(|most| value > *most) {
                    self.most = Some(value);
                }
            }
            _ => {
                self.count_value(match value {
                    Value::Number(number) => Value::Number(bucket(number)),
                    text => text,
                });
            }
        }
        self.count += 1;
    }

    fn count_value(&mut self, value: Value) {
        let count = match self.values.len() < MAX_VALUES {
            true => self.values.entry(value).or_default(),
            false => self.values.get_mut(&value).unwrap_or(&mut self.others),
        };
        *count += 1;
    }

    /// How much of it there is, to sort by.
    fn weight(&self, what: &What) -> i128 {
        let number = |value: &Option<Value>| match value {
            Some(Value::Number(number)) => *number,
            _ => 0,
        };
        match what {
            What::Sum(_) => self.sum,
            What::Average(_) => self.average(),
            What::Least(_) => number(&self.least),
            What::Most(_) => number(&self.most),
            What::Count | What::Print | What::Histogram(_) => self.count.into(),
        }
    }

    fn average(&self) -> i128 {
        self.sum.checked_div(self.count.into()).unwrap_or(0)
    }

    fn shown(&self, what: &What) -> String {
        let value = |value: &Option<Value>| value.as_ref().map_or("-".to_owned(), shown);
        match what {
            What::Count | What::Print | What::Histogram(_) => grouped(self.count),
            What::Sum(_) => self.sum.to_string(),
            What::Average(_) => self.average().to_string(),
            What::Least(_) => value(&self.least),
            What::Most(_) => value(&self.most),
        }
    }

    /// The rows of a histogram: a value or a range, how often, and a bar.
    fn write_histogram(&self, out: &mut Out) -> Result<(), Error> {
        const BAR: u64 = 40;
        let mut values: Vec<_> = self.values.iter().collect();
        let is_text = values
            .iter()
            .any(|(value, _)| matches!(value, Value::Text(_)));
        match is_text {
            true => values.sort_by_key(|&(value, count)| (Reverse(*count), value)),
            false => values.sort(),
        }
        let most = values.iter().map(|(_, count)| **count).max().unwrap_or(1);
        let rest = values.len().saturating_sub(SHOWN);
        if is_text {
            values.truncate(SHOWN);
        }
        let names: Vec<String> = values.iter().map(|(value, _)| range(value)).collect();
        let width = names.iter().map(|name| name.chars().count()).max();
        let width = width.unwrap_or(0);
        for (name, (_, count)) in names.iter().zip(values) {
            let bar = u128::from(*count) * u128::from(BAR) / u128::from(most);
            let bar = "#".repeat(bar as usize);
            let count = grouped(*count);
            out.line(
                format_args!("  {name:<width$}  {count:>12}  {bar}")
                    .to_string()
                    .trim_end(),
            )?;
        }
        if is_text && rest > 0 {
            out.line(format_args!("  and {} other texts", grouped(rest as u64)))?;
        }
        if self.others > 0 {
            let [most, others] = [MAX_VALUES as u64, self.others].map(grouped);
            out.line(format_args!(
                "  and {others} calls with texts after the first {most}"
            ))?;
        }
        Ok(())
    }
}

/// The least number of the power of two that a number belongs to; -1 of all below zero.
fn bucket(number: i128) -> i128 {
    match number {
        ..0 => -1,
        0 => 0,
        _ => 1 << number.ilog2(),
    }
}

/// What a row of a histogram is of.
fn range(value: &Value) -> String {
    match value {
        Value::Number(..0) => "less than 0".to_owned(),
        Value::Number(0 | 1) => shown(value),
        Value::Number(least) => format!("{least} to {}", least.saturating_mul(2) - 1),
        Value::Text(_) => shown(value),
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Number(number) => number.to_string(),
        Value::Text(text) => format!("\"{}\"", text.escape_debug()),
    }
}

/// Calls as they are followed.
struct Probe {
    texts: Vec<String>,
    actions: Vec<(Action, HashMap<String, Tally>)>,
    /// Of a recording, which functions are meant.
    filter: Option<Filter>,
    /// Functions that were asked about.
    meant: HashMap<(u32, u32), bool>,
    /// Arguments that the actions have, and that no call has had.
    missing: HashSet<Input>,
    /// A function that was called, and its parameters, none where these are not known.
    seen: Option<(String, Vec<String>)>,
    threads: HashMap<(u32, u32), Pairing<Kept>>,
    places: Places,
    lost: u64,
    /// How often there was no room for calls that are deeper.
    full: u64,
    /// Calls whose ends are missing.
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
        let actions = actions.into_iter().map(|action| (action, HashMap::new()));
        Self {
            texts: args.actions.clone(),
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

    /// Takes the next event; `false` if there are no more.
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

    /// Ends the calls that go on, or have no end, as those of `exit`, and shows what was counted.
    fn finish(&mut self, source: &impl Source) -> Result<(), Error> {
        let mut left: Vec<_> = self.threads.keys().copied().collect();
        left.sort_unstable();
        for key in left {
            let calls = self.threads.entry(key).or_default();
            calls.finish(calls.last());
            self.settle(source, key, &Given::default())?;
        }
        self.show()?;
        if self.lost > 0 {
            say!("fgraph: {} events were lost", grouped(self.lost));
        }
        if self.full > 0 {
            let [times, deepest] = [self.full, DEEPEST as u64].map(grouped);
            say!("fgraph: {deepest} calls inside one another, the most that are seen: {times} x");
        }
        self.say_missing();
        if self.ends_lost > 0 {
            let calls = grouped(self.ends_lost);
            say!("fgraph: {calls} calls have no duration and no result: their ends are missing");
        }
        Ok(())
    }

    /// Says which arguments no call has had.
    fn say_missing(&self) {
        let Some((function, parameters)) = &self.seen else {
            return;
        };
        let mut missing: Vec<String> = self.missing.iter().map(Input::name).collect();
        missing.sort_unstable();
        let known = match parameters.is_empty() {
            true => format!("no names are known of those of {function}: write arg0 to arg5"),
            false => format!("{function} has {}", parameters.join(", ")),
        };
        for name in missing {
            let text = format!("no call has the argument '{name}'; {known}");
            say!("fgraph: {}", escaped(&text));
        }
    }

    /// Shows what was counted of the calls that have ended.
    fn show_so_far(&mut self, passed: Duration) -> Result<(), Error> {
        let heading = format!("after {:.1} s", passed.as_secs_f64());
        self.out.line(Style::Dim.paint(heading))?;
        self.show()
    }

    /// Counts the calls of a thread that its last event has ended. `given` is what the event says
    /// of a result.
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
                    let around = open.last().map(|call| call.function);
                    self.count(source, key, &call, around, given)?;
                }
            }
        }
        self.threads.insert(key, calls);
        Ok(())
    }

    /// Has the actions know a call.
    fn count(
        &mut self,
        source: &impl Source,
        (process, thread): (u32, u32),
        ended: &EndedCall<Kept>,
        around: Option<u32>,
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
                Input::Parameter(name) => !parameters.contains(name),
                Input::Result => false,
            });
            if self.seen.as_ref().is_none_or(|(_, seen)| seen.is_empty()) {
                let name = names.function(process, function);
                let name = name.map_or("the function", |known| known.name.as_str());
                // Without debug information they have numbers.
                let numbered: Vec<String> = (0..count).map(|n| format!("arg{n}")).collect();
                let is_name = |name: &&String| !name.is_empty() && !numbered.contains(name);
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
            let key = match action.by {
                None => String::new(),
                Some(By::Caller) => match (kept.caller, around) {
                    (Some(address), _) => self.places.caller(names, process, address),
                    (None, Some(around)) => {
                        let known = names.function(process, around);
                        known.map_or("?".to_owned(), |known| known.name.clone())
                    }
                    (None, None) => "?".to_owned(),
                },
                Some(By::Thread) => {
                    let name = names.thread(process, thread).unwrap_or_default();
                    format!("{name} {}/{thread}", process_id(process))
                }
                Some(By::Function) => {
                    let (name, module) = name();
                    named(name, module.rsplit('/').next().unwrap_or(module))
                }
                Some(By::Module) => name().1.to_owned(),
            };
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
                if !key.is_empty() {
                    _ = write!(line, "  {key}");
                }
                self.out.line(escaped(&line))?;
                if self.filter.is_none() {
                    // Of a program that runs, calls are shown as they come.
                    self.out.flush()?;
                }
                continue;
            }
            tallies.entry(key).or_default().add(&action.what, &call);
        }
        Ok(())
    }

    /// Whether a function is one of those that the command line names.
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

    fn show(&mut self) -> Result<(), Error> {
        for (text, (action, tallies)) in self.texts.iter().zip(&self.actions) {
            if action.what == What::Print {
                continue;
            }
            let out = &mut self.out;
            let mut rows: Vec<_> = tallies.iter().collect();
            rows.sort_by_key(|&(key, tally)| (Reverse(tally.weight(&action.what)), key));
            out.line(Style::Bold.paint(escaped(text)))?;
            if action.by.is_none() && rows.is_empty() {
                out.line(format_args!("{:>12}", Tally::default().shown(&action.what)))?;
            }
            for (key, tally) in rows {
                let shown = tally.shown(&action.what);
                out.line(
                    format_args!("{shown:>12}  {}", escaped(key))
                        .to_string()
                        .trim_end(),
                )?;
                if matches!(action.what, What::Histogram(_)) {
                    tally.write_histogram(out)?;
                }
            }
        }
        self.out.flush()
    }
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
    fn a_number_is_in_the_range_of_its_power_of_two() {
        for (number, expected) in [
            (i128::MIN, "less than 0"),
            (-1, "less than 0"),
            (0, "0"),
            (1, "1"),
            (2, "2 to 3"),
            (1023, "512 to 1023"),
            (1024, "1024 to 2047"),
        ] {
            assert_eq!(range(&Value::Number(bucket(number))), expected);
        }
        _ = range(&Value::Number(bucket(i128::MAX)));
    }

    #[test]
    fn texts_without_room_in_a_histogram_are_counted() {
        let mut tally = Tally::default();
        let text = |n: usize| Value::Text(n.to_string());
        (0..MAX_VALUES + 5).for_each(|n| tally.count_value(text(n)));
        (0..3).for_each(|_| tally.count_value(text(7)));
        assert_eq!((tally.values.len(), tally.others), (MAX_VALUES, 5));
        assert_eq!(tally.values[&text(7)], 4);
    }

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
            let tally = &probe.actions[0].1[name];
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
}
