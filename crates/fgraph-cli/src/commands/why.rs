//! `fgraph why`: the reasons for which some calls of a function take longer than others.

use std::cmp::Reverse;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use fgraph_analysis::waits::Cause;
use fgraph_analysis::why::{By, Explanation, Nothing, Timeline, Until, Wanted, Which, WhyLine};
use fgraph_trace::Source as _;
use serde::Serialize;

use super::record::first::First;
use super::top::interval;
use crate::debuginfod::Debuginfod;
use crate::error::Error;
use crate::input::{Input, Part, States, View, matcher, parse_time};
use crate::json::{self, Lost};
use crate::launch::interrupt::Interrupts;
use crate::losses;
use crate::output::{self, Out, Style};
use crate::overhead;
use crate::places;
use crate::text::{self, cut, escaped, grouped, percent, time};
use crate::unmatched;

/// Show why the slowest calls of a function take longer than the usual ones
///
/// Each nanosecond of a call has one cause: it computes, it waits for a processor, or it waits for
/// something in a function, such as a lock, a file or input. The lines say what the slowest calls
/// have more of, in the mean. For a wait that another thread of the program ended, a line says what
/// that thread did meanwhile.
///
/// Reads a recording that was made with `record --waits`. With -p or a program it makes one. With
/// -p and no --time it makes one after the other, and shows a page for each, until Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fgraph why -F handle_request -p 1234 --time 10s
  fgraph why -F handle_request -p 1234 --every 2s
  fgraph why -F parse -- ./compiler main.src
  fgraph why --python -F 'py:app.view' -p 1234 --time 10s
  fgraph why --request 'handle(arg0)' -p 1234 --time 10s
  fgraph record --waits -- ./server; fgraph why -F handle_request --call 3")]
pub(crate) struct Args {
    /// The function; a glob that matches several treats them as one
    #[arg(
        short = 'F',
        long = "function",
        value_name = "GLOB",
        required_unless_present = "requests"
    )]
    function: Option<String>,
    /// Explain requests: all calls with the same value of an argument are one, over threads, with
    /// the time between them. May be given several times, for functions that have the value in
    /// other arguments. A recording needs `record --args-of` with these functions
    #[arg(
        long = "request",
        value_name = "GLOB(argN)",
        value_parser = parse_request,
        conflicts_with = "function"
    )]
    requests: Vec<Request>,
    /// With --request: a call of this function is the last one of its request, and its value may
    /// be that of another one afterwards. It is one of the functions of --request
    #[arg(
        long,
        value_name = "GLOB",
        requires = "requests",
        conflicts_with = "function"
    )]
    last: Option<String>,
    #[command(flatten)]
    input: Input,
    /// Compare this part of the calls, the slowest, with the usual ones
    #[arg(long, value_name = "PERCENT", default_value = "1%", value_parser = parse_part)]
    slowest: f64,
    /// Explain the Nth slowest call, and show its time step by step
    #[arg(long, value_name = "N", conflicts_with = "slowest")]
    call: Option<usize>,
    /// The most lines to show
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    lines: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    part: Part,
    #[command(flatten)]
    debuginfod: Debuginfod,
    #[command(flatten)]
    first: First,
    /// The time for which it is recorded: `10s`. Without it a process is recorded again and again
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    time: Option<Duration>,
    /// With -p and no --time, the time of each page. A page has the calls that begin and end within
    /// this time; a call that is in progress when the time begins or ends is on no page
    #[arg(
        long,
        value_name = "TIME",
        default_value = "5s",
        value_parser = interval,
        requires = "pid",
        conflicts_with_all = ["time", "command"]
    )]
    every: Duration,
    /// Record these functions in addition to the usual ones
    #[arg(long, value_name = "GLOB")]
    also: Vec<String>,
    /// Record Python's functions too, as `record --python` does
    #[arg(long)]
    python: bool,
}

/// Functions with a value that tells requests apart.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Request {
    /// A glob over functions.
    functions: String,
    /// The argument with the value.
    argument: usize,
}

/// The number of arguments in registers.
const ARGUMENTS: usize = 6;

/// Parses `handle(arg0)`.
fn parse_request(text: &str) -> Result<Request, String> {
    let parsed = || {
        let (functions, argument) = text.strip_suffix(')')?.rsplit_once('(')?;
        let argument = argument.strip_prefix("arg")?.parse().ok()?;
        let is_good = !functions.is_empty() && argument < ARGUMENTS;
        is_good.then(|| Request {
            functions: functions.to_owned(),
            argument,
        })
    };
    parsed().ok_or_else(|| "a request is a function and one of arg0 to arg5: handle(arg0)".into())
}

/// Parses a part of all calls: `1%`.
fn parse_part(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim_end();
    let part = number
        .parse()
        .ok()
        .filter(|part| (0.0..=50.0).contains(part));
    part.ok_or_else(|| "a part is 0 % to 50 % of the calls: 1%".to_owned())
}

/// The view of `why` in JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Why {
    lost: Lost,
    /// The part of the threads' processor time that recording took, in percent; without states, of
    /// all their time. Null if it is unknown.
    overhead_percent: Option<u64>,
    /// The requested glob, or the requested value of requests, which then count in place of calls.
    function: String,
    /// Calls whose times are known.
    calls: usize,
    /// Calls among these that are explained.
    explained: usize,
    states: States,
    #[serde(flatten)]
    why: Explanation,
}

/// The functions of a path that are shown, and of the path of the thread that ended a wait.
const SHOWN: [usize; 2] = [6, 3];
/// The fewest calls whose usual ones are a good measure.
const FEW: usize = 20;
/// Explains the calls.
pub(crate) fn run(args: Args) -> Result<ExitCode, Error> {
    if !args.first.is_there() {
        args.input.expect("--waits")?;
        explain_recording(&args, &args.input)?;
        return Ok(ExitCode::SUCCESS);
    }
    let folder = First::folder()?;
    let path = folder.path().join("fgraph.data");
    if !args.first.pid.is_empty() && args.time.is_none() {
        return live(args, &path);
    }
    let code = record(&args, args.time, &path)?;
    explain_recording(&args, &Input { path })?;
    Ok(code)
}

/// Records processes again and again, and shows a page for each recording, until they end or an
/// interrupt comes.
fn live(mut args: Args, path: &Path) -> Result<ExitCode, Error> {
    /// Moves to the start of an empty screen.
    const CLEAR: &str = "\x1b[H\x1b[2J";
    let interrupts = Interrupts::catch();
    let is_screen = output::is_screen() && !args.json;
    let (mut code, mut end) = (None, None);
    loop {
        let recorded = record(&args, Some(args.every), path)?;
        let now = Instant::now();
        // The time of explaining, detaching and attaching. An interrupt makes it shorter.
        let unseen = end.replace(now).and_then(|end: Instant| {
            let unseen = now.duration_since(end).checked_sub(args.every);
            unseen.filter(|it| !it.is_zero())
        });
        // The first one tells if a process cannot be recorded.
        let code = *code.get_or_insert(recorded);
        let mut out = Out::new();
        if is_screen {
            out.text(CLEAR)?;
        }
        out.finish()?;
        if let Some(unseen) = unseen {
            let unseen = time(unseen.as_nanos() as u64);
            say!("fgraph: no page has the calls of {unseen} between the last one and this one");
        }
        let input = Input {
            path: path.to_owned(),
        };
        match explain_recording(&args, &input) {
            // The next page may have some.
            Err(Error::Nothing(_)) => {
                let every = time(args.every.as_nanos() as u64);
                say!(
                    "fgraph: no call of {} ended in {every}",
                    escaped(&args.requested())
                );
            }
            explained => explained?,
        }
        args.first.pid.retain(|&pid| fgraph_protocol::is_there(pid));
        if interrupts.count() > 0 || args.first.pid.is_empty() {
            return Ok(code);
        }
    }
}

impl Args {
    /// Iterates over the globs of the functions whose calls are explained.
    fn functions(&self) -> impl Iterator<Item = &str> {
        let requests = self.requests.iter().map(|it| &it.functions);
        let functions = self.function.iter().chain(requests);
        functions.map(String::as_str)
    }

    /// Returns the function or the requests as the user has written them.
    fn requested(&self) -> String {
        let requests = self.requests.iter();
        let requests = requests.map(|it| format!("{}(arg{})", it.functions, it.argument));
        let all: Vec<String> = self.function.iter().cloned().chain(requests).collect();
        all.join(", ")
    }

    /// Returns the words for one of the subjects and for several.
    fn nouns(&self) -> (&'static str, &'static str) {
        match self.requests.is_empty() {
            true => ("call", "calls"),
            false => ("request", "requests"),
        }
    }

    fn wanted(&self) -> Result<Vec<Wanted>, Error> {
        let wanted = |glob: &str, argument, is_last| {
            let is_it = matcher(&[glob.to_owned()])?;
            Ok(Wanted {
                is_it: is_it.unwrap_or_else(|| Box::new(|_, _| true)),
                argument,
                is_last,
            })
        };
        let function = self.function.iter().map(|glob| wanted(glob, None, false));
        let requests = self.requests.iter();
        let requests = requests.map(|it| wanted(&it.functions, Some(it.argument), false));
        let last = self.last.iter().map(|glob| wanted(glob, None, true));
        function.chain(requests).chain(last).collect()
    }
}

/// Records a program or a process.
fn record(args: &Args, length: Option<Duration>, path: &Path) -> Result<ExitCode, Error> {
    let mut options: Vec<OsString> = vec!["--waits".into()];
    for glob in args.functions().chain(args.also.iter().map(String::as_str)) {
        options.extend(["--also".into(), glob.into()]);
    }
    for Request { functions, .. } in &args.requests {
        options.extend(["--args-of".into(), functions.into()]);
    }
    if args.python {
        options.push("--python".into());
    }
    args.first.record(options, length, path)
}

fn explain_recording(args: &Args, input: &Input) -> Result<(), Error> {
    let mut view = input.view(&args.part)?;
    places::name_functions(&mut view, args.debuginfod);
    let timeline = Timeline::read(&mut view, args.wanted()?);
    let mut timeline = timeline.map_err(|error| Error::source(&input.path, error))?;
    let (names, clock, first) = (view.names(), view.clock(), view.first());
    losses::say(&timeline.calls.losses, names, clock, first);
    let overhead = overhead::say(&timeline.calls, clock, view.schedule(), |name, module| {
        timeline.is_wanted(name, module)
    });
    let states = view.say_states();
    let by = match args.requests.is_empty() {
        true => By::Call,
        false => By::Request {
            has_last: args.last.is_some(),
        },
    };
    let subjects = match timeline.subjects(by) {
        Ok(subjects) => subjects,
        Err(why) => return Err(nothing(args, why, timeline.unended, &view, input)),
    };
    let which = args.call.map_or(Which::Slowest(args.slowest), Which::Nth);
    let (name, all) = (args.requested(), subjects.count());
    let mut symbols = places::Places::default();
    let why = timeline.explain(&subjects, which, &name, args.lines, &view, &mut symbols);
    let why = why.ok_or_else(|| {
        let (nth, what) = (args.call.unwrap_or(0), args.nouns().1);
        Error::Usage(format!("--call {nth}: the function has {what} 1 to {all}"))
    })?;
    let at = clock.nanoseconds(why.begin.saturating_sub(first));
    let place = format!("{}, {} after the first event", why.thread, time(at));
    let shown = Why {
        lost: losses::to_json(&timeline.calls.losses, names, clock, first),
        overhead_percent: overhead,
        function: name,
        calls: all,
        explained: why.explained,
        states,
        why,
    };
    match args.json {
        true => json::write(&shown)?,
        false => write(args, &shown, &place)?,
    }
    view.check_whole(&input.path)
}

/// Returns the error if there is nothing to explain.
fn nothing(args: &Args, why: Nothing, unended: u64, view: &View, input: &Input) -> Error {
    let name = args.requested();
    let name = escaped(&name);
    // The recording of a process or a program is of no interest by itself.
    let place = match args.first.is_there() {
        true => String::new(),
        false => format!(" in {}", input.path.display()),
    };
    let globs: Vec<String> = args.functions().map(str::to_owned).collect();
    Error::Nothing(match why {
        Nothing::NoArguments => {
            let globs = globs.join("' --args-of '");
            format!("the calls of {name} have no arguments{place}; record with --args-of '{globs}'")
        }
        Nothing::NoRequest => format!("no request of {name} has ended{place}"),
        Nothing::NoCall => {
            // Recording a program has said it.
            if !args.first.is_there()
                && let Err(error) = unmatched::check_globs(&globs, view, &input.path)
            {
                return error;
            }
            match unended {
                0 if args.first.is_there() => format!("no call of {name} was recorded"),
                0 => format!("no call of {name}{place}"),
                _ => format!("no call of {name} has ended{place}"),
            }
        }
    })
}

/// Returns the first names of a path, innermost first, as text. Calls of a function by itself are
/// one name.
fn shown(path: &[String], most: usize) -> String {
    let calls = path.chunk_by(|inner, outer| inner == outer);
    let names = calls.take(most).map(|calls| match calls {
        [name] => escaped(name),
        _ => format!("{} (recursive)", escaped(&calls[0])).into(),
    });
    names.collect::<Vec<_>>().join(" < ")
}

/// Returns the text for the thing that is waited for.
fn of_text(of: Option<&str>) -> String {
    of.map_or_else(String::new, |of| format!(", of {}", escaped(of)))
}

/// Returns the text for the thread that ended a wait.
fn until_text(cause: Cause, until: &Until) -> String {
    let thread = match until.thread.name.as_str() {
        "" => until.thread.thread.to_string(),
        name => format!("\"{}\"", escaped(name)),
    };
    let held = match cause {
        Cause::Lock => "held by",
        _ => "for",
    };
    let own = match (until.path.is_empty(), until.cause) {
        (true, Cause::Computes) => format!(", {held} {thread}"),
        (true, other) => format!(", {held} {thread}, which {}", other.words()),
        (false, other) => {
            let path = shown(&until.path, SHOWN[1]);
            let of = of_text(until.of.as_deref());
            format!(", {held} {thread}, which {} in {path}{of}", other.words())
        }
    };
    let next = until.until.as_ref();
    own + &next.map_or_else(String::new, |next| until_text(until.cause, next))
}

/// Prints it.
fn write(args: &Args, view: &Why, place: &str) -> Result<(), Error> {
    let Why { calls, why, .. } = view;
    let is_alone = why.is_alone;
    let mut out = Out::new();
    let width = out.width.unwrap_or(usize::MAX);
    let name = escaped(&view.function);
    let more = time(why.more_ns);
    let half = time(why.half_ns);
    let all = *calls as u64;
    let (noun, nouns) = args.nouns();
    let head = match (args.call, is_alone) {
        (Some(nth), is_alone) => {
            let took = time(why.from_ns);
            let more = match is_alone {
                true => String::new(),
                false => format!("; it takes {more} more than the usual ones"),
            };
            format!(
                "{name}: {noun} {nth} took {took}, in {}{more}:",
                escaped(place)
            )
        }
        (None, true) => {
            let calls = match all {
                1 => format!("its one {noun}"),
                more => format!("the slowest of {more} {nouns}"),
            };
            format!("{name}: {calls} takes {}:", time(why.from_ns))
        }
        (None, false) => {
            let from = time(why.from_ns);
            let (slowest, subject) = match why.explained as u64 {
                1 => (format!("the slowest takes {from}"), "it takes"),
                more => (
                    format!("the slowest {} take {from} or more", grouped(more)),
                    "the slowest take",
                ),
            };
            out.line(format!(
                "{name}: {} {nouns}, half take at most {half}, {slowest}",
                grouped(all)
            ))?;
            format!("{subject} {more} more than the usual ones:")
        }
    };
    out.line(Style::Bold.paint(&head))?;
    for (text, ns, calls) in merged(&why.lines, is_alone) {
        let part = percent(ns, why.more_ns);
        let of = match (why.explained, is_alone) {
            (1, _) | (_, true) => String::new(),
            (all, false) => format!("  ({} of {})", grouped(calls as u64), grouped(all as u64)),
        };
        let text = format!("{:>12}  {part:>5} %  {text}{of}", time(ns));
        for part in wrapped(&text, width) {
            out.line(cut(&part, width))?;
        }
    }
    let rest = why.rest_ns.unsigned_abs();
    let sign = if why.rest_ns < 0 { "-" } else { "" };
    let part = percent(rest, why.more_ns);
    let less = match why.rest_ns < 0 {
        true => ", which takes less than in the usual ones",
        false => "",
    };
    out.line(format!(
        "{:>12}  {:>5} %  the rest{less}",
        format!("{sign}{}", time(rest)),
        format!("{sign}{part}")
    ))?;
    if !is_alone && *calls < FEW {
        say!("fgraph: {calls} {nouns} are few: usual ones may differ as much");
    }
    if !why.steps.is_empty() {
        out.line(Style::Bold.paint("step by step:"))?;
    }
    for step in &why.steps {
        let until = step
            .until
            .as_ref()
            .map(|until| until_text(step.cause, until));
        let text = format!(
            "{:>12}  {:>12}  {:<22}  {}{}{}",
            format!("+{}", time(step.at_ns)),
            time(step.ns),
            step.cause.words(),
            shown(&step.path, SHOWN[0]),
            of_text(step.of.as_deref()),
            until.unwrap_or_default()
        );
        for part in wrapped(&text, width) {
            out.line(cut(&part, width))?;
        }
    }
    out.finish()
}

/// Returns the lines as text, each with its nanoseconds and its calls. Lines whose paths part only
/// outside of the shown functions, or in the depth of a recursion, are one; its calls are those of
/// the line with the most.
fn merged(lines: &[WhyLine], is_alone: bool) -> Vec<(String, u64, usize)> {
    let mut merged: Vec<(String, u64, usize)> = Vec::new();
    for line in lines {
        let text = line_text(line, is_alone);
        match merged.iter_mut().find(|(known, ..)| *known == text) {
            Some((_, ns, calls)) => (*ns, *calls) = (*ns + line.ns, line.calls.max(*calls)),
            None => merged.push((text, line.ns, line.calls)),
        }
    }
    merged.sort_by_key(|(_, ns, _)| Reverse(*ns));
    merged
}

/// Divides a line at spaces into lines of this many columns, as far as words fit.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    /// Begins the further lines.
    const INDENT: &str = "                ";
    let mut lines = vec![String::new()];
    for word in text.split_inclusive(' ') {
        let last = lines.last_mut().expect("there is a first line");
        if !last.trim().is_empty() && text::width(last) + text::width(word.trim_end()) > columns {
            last.truncate(last.trim_end().len());
            lines.push(INDENT.to_owned());
        }
        lines.last_mut().expect("there is a line").push_str(word);
    }
    lines
}

/// Returns a reason as text.
fn line_text(line: &WhyLine, is_alone: bool) -> String {
    let cause = match line.cause {
        Cause::Computes if !is_alone => "computes more",
        other => other.words(),
    };
    let mut text = format!("{cause:<22}  {}", shown(&line.path, SHOWN[0]));
    text += &of_text(line.of.as_deref());
    if let Some(until) = &line.until {
        text += &until_text(line.cause, until);
    }
    if let Some(more) = &line.more_calls {
        let [explained, usual] =
            [more.explained, more.usual].map(|calls| match calls < 10.0 && calls.fract() > 0.05 {
                true => format!("{calls:.1}"),
                false => grouped(calls.round() as u64),
            });
        let function = escaped(&more.function);
        text += &format!(": {explained} calls of {function} instead of {usual}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_is_the_one_in_the_docs() {
        json::check_schema::<Why>("why");
    }

    #[test]
    fn lines_that_look_the_same_are_one() {
        let line = |path: &[&str], ns, calls| WhyLine {
            cause: Cause::File,
            ns,
            path: path.iter().map(|name| (*name).to_owned()).collect(),
            calls,
            of: None,
            until: None,
            more_calls: None,
        };
        let lines = [
            line(
                &["read", "load", "walk", "walk", "f", "g", "h", "a", "handle"],
                50,
                3,
            ),
            line(&["read", "find"], 40, 4),
            line(
                &[
                    "read", "load", "walk", "walk", "walk", "f", "g", "h", "b", "handle",
                ],
                30,
                2,
            ),
        ];
        let merged = merged(&lines, false);
        let words: Vec<_> = merged
            .iter()
            .map(|(text, ns, calls)| (text.rsplit("  ").next().unwrap(), *ns, *calls))
            .collect();
        let path = shown(&lines[0].path, SHOWN[0]);
        assert!(path.starts_with("read < load < walk (recursive)"), "{path}");
        assert_eq!(words, [(path.as_str(), 80, 3), ("read < find", 40, 4)]);
    }

    #[test]
    fn long_lines_continue_in_the_next_ones() {
        assert_eq!(wrapped("  1 ms  waits", 40), ["  1 ms  waits"]);
        let lines = wrapped("  1 ms  waits for a lock, of the lock", 25);
        assert_eq!(
            lines,
            [
                "  1 ms  waits for a lock,",
                "                of the",
                "                lock"
            ]
        );
        assert_eq!(
            wrapped("a verylongword", 4),
            ["a", "                verylongword"]
        );
    }

    #[test]
    fn a_request_is_a_function_and_an_argument() {
        let request = |functions: &str, argument| Request {
            functions: functions.to_owned(),
            argument,
        };
        assert_eq!(parse_request("handle(arg0)"), Ok(request("handle", 0)));
        assert_eq!(parse_request("a::b*(arg5)"), Ok(request("a::b*", 5)));
        for bad in [
            "handle",
            "handle()",
            "(arg0)",
            "handle(arg6)",
            "handle(id)",
            "",
        ] {
            assert!(parse_request(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_part_of_the_calls_is_a_percentage() {
        assert_eq!(parse_part("1%"), Ok(1.0));
        assert_eq!(parse_part("0.5"), Ok(0.5));
        for bad in ["", "-1%", "51%", "x", "NaN"] {
            assert!(parse_part(bad).is_err(), "{bad}");
        }
    }
}
