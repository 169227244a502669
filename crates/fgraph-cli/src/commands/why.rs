//! `fgraph why`: the reasons for which some calls of a function take longer than others.

mod lines;
mod requests;
mod things;
mod timeline;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use fgraph_analysis::calls::{Calls, Views};
use fgraph_trace::Source;
use fgraph_trace::clock::Clock;
use fgraph_trace::schedule::Schedule;
use fgraph_tracers::agent;
use lines::{Differences, Line, Parts, explain, means};
use requests::{Request, Subject, parse_request};
use serde::Serialize;
use things::Things;
use timeline::{Piece, Places, Timeline, Wanted};

use super::record;
use super::record::first::First;
use super::top::interval;
use crate::debuginfod::Debuginfod;
use crate::error::Error;
use crate::input::{Input, Part, States, matcher};
use crate::json::{self, Lost};
use crate::launch::interrupt::Interrupts;
use crate::losses;
use crate::output::{self, Out, Style};
use crate::places;
use crate::text::{self, cut, escaped, grouped, percent, time};
use crate::tree::{Node, Tree};
use crate::unmatched;
use crate::waits::Cause;

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
    #[arg(long, value_name = "TIME", value_parser = record::parse_time)]
    time: Option<Duration>,
    /// With -p and no --time, the time of each page. Calls that are in progress at its end, and
    /// those between two pages, are on none
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
    /// The requested glob, or the requested value of requests, which then count in place of calls.
    function: String,
    /// Calls whose times are known.
    calls: usize,
    /// Calls among these that are explained.
    explained: usize,
    states: States,
    /// Half of the calls take at most this time.
    half_ns: u64,
    /// All explained calls take at least this time.
    from_ns: u64,
    /// The mean time of the explained calls, minus that of the usual ones.
    more_ns: u64,
    lines: Vec<WhyLine>,
    /// The part of `more_ns` that no line has; below 0 if the lines have more.
    rest_ns: i64,
    /// The steps of the call, with --call.
    steps: Vec<Step>,
}

/// A reason for which calls take longer.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct WhyLine {
    cause: Cause,
    /// The time for this reason, in the mean of the explained calls, minus that of the usual ones.
    ns: u64,
    /// The functions, innermost first, up to the requested one.
    path: Vec<String>,
    /// The number of explained calls with at least half of this time more.
    calls: usize,
    /// The thing that is waited for: the variable or the address of a lock, the file, the pipe or
    /// the connection of a descriptor, or the time for which a sleep was asked; null if it is
    /// unknown.
    of: Option<String>,
    /// The thread that ended the waits, and what it did meanwhile.
    until: Option<Until>,
    /// The function that is called more often.
    more_calls: Option<MoreCalls>,
}

/// The work of a thread while another one waited for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Until {
    thread: json::Thread,
    cause: Cause,
    /// The functions, innermost first; empty where it was in no recorded call.
    path: Vec<String>,
    /// The thing that it waited for, like that of a line.
    of: Option<String>,
    /// The thread that ended its own wait, and what that one did meanwhile.
    until: Option<Box<Self>>,
}

/// Numbers of calls of a function in one call of the requested function, in the mean.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct MoreCalls {
    function: String,
    explained: f64,
    usual: f64,
}

/// A step of a call.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Step {
    /// Nanoseconds since the call began.
    at_ns: u64,
    ns: u64,
    cause: Cause,
    path: Vec<String>,
    /// The thing that is waited for, like that of a line.
    of: Option<String>,
    until: Option<Until>,
}

/// The most threads that wait for each other and are named, one after the other.
const CHAIN: usize = 8;
/// The functions of a path that are shown, and of the path of the thread that ended a wait.
const SHOWN: [usize; 2] = [6, 3];
/// The fewest calls that are compared with each other. The slowest of fewer is explained alone.
const LEAST_CALLS: usize = 4;
/// Steps below this part of the call are not shown by themselves.
const SHORT: u64 = 200;

/// Explains the calls.
pub(crate) fn run(args: Args) -> Result<ExitCode, Error> {
    if !args.first.is_there() {
        args.input.expect("--waits")?;
        explain_recording(&args, &args.input)?;
        return Ok(ExitCode::SUCCESS);
    }
    let folder = First::folder()?;
    let path = folder.path().join("fgraph.data");
    if let (Some(pid), None) = (args.first.pid, args.time) {
        return live(&args, pid, &path);
    }
    let code = record(&args, args.time, &path)?;
    explain_recording(&args, &Input { path })?;
    Ok(code)
}

/// Records a process again and again, and shows a page for each recording, until it ends or an
/// interrupt comes.
fn live(args: &Args, pid: u32, path: &Path) -> Result<ExitCode, Error> {
    /// Moves to the start of an empty screen.
    const CLEAR: &str = "\x1b[H\x1b[2J";
    let interrupts = Interrupts::catch();
    let is_screen = output::is_screen() && !args.json;
    loop {
        record(args, Some(args.every), path)?;
        let mut out = Out::new();
        if is_screen {
            out.text(CLEAR)?;
        }
        out.finish()?;
        let input = Input {
            path: path.to_owned(),
        };
        match explain_recording(args, &input) {
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
        if interrupts.count() > 0 || !agent::is_there(pid) {
            return Ok(ExitCode::SUCCESS);
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

/// The calls and states of a recording, for all parts of the view.
struct Context<'c> {
    timeline: &'c Timeline,
    followed: &'c Calls<Views>,
    schedule: Option<&'c Schedule>,
    clock: &'c Clock,
}

impl Context<'_> {
    fn pieces(&self, thread: usize, span: (u64, u64), found: impl FnMut(Piece)) {
        let id = self.followed.threads[thread].id;
        self.timeline.pieces(thread, id, span, self.schedule, found);
    }

    /// Passes the parts of the time of a subject to `found`, in order, with their threads. Between
    /// the calls of a request they are those of the thread that goes on with it.
    fn pieces_of(&self, subject: &Subject, mut found: impl FnMut(usize, Piece)) {
        let mut at = subject.from;
        for call in &subject.calls {
            let thread = call.thread;
            self.pieces(thread, (at, call.from), |mut piece| {
                let runs = [Cause::Computes, Cause::Processor].contains(&piece.cause);
                if runs || self.timeline.path(piece.node, true).is_some() {
                    piece.cause = Cause::Turn;
                }
                piece.is_between = true;
                found(thread, piece);
            });
            self.pieces(thread, (at.max(call.from), call.to), |piece| {
                found(thread, piece)
            });
            at = at.max(call.to);
        }
    }

    /// Returns the names of the functions from a node of a tree outwards.
    fn names(&self, tree: &Tree, mut node: u32) -> Vec<String> {
        let mut names = Vec::new();
        while node != 0 {
            let Node { slot, parent, .. } = tree.nodes[node as usize];
            names.push(self.followed.functions[slot as usize].name.clone());
            node = parent;
        }
        names
    }

    /// Returns the names of the functions at a place, innermost first, up to the requested one.
    fn path(&self, places: &Places, place: u32, requested: &str) -> Vec<String> {
        match place {
            0 => vec![requested.to_owned()],
            place => self.names(&places.tree, place),
        }
    }

    /// Returns the thread that ended waits, and what it did most of the time meanwhile. A wait has
    /// the index of its thread.
    fn until(&self, things: &mut Things<'_>, waits: &[(usize, Piece)]) -> Option<Until> {
        self.chain(things, waits, CHAIN)
    }

    /// Returns the thread that ended waits; if it waited itself, with the one that ended that, and
    /// so on for `most` threads.
    fn chain(
        &self,
        things: &mut Things<'_>,
        waits: &[(usize, Piece)],
        most: usize,
    ) -> Option<Until> {
        let most = most.checked_sub(1)?;
        let mut done: HashMap<(usize, Cause, u32), (u64, Vec<_>)> = HashMap::new();
        for (waiter, wait) in waits {
            let Some(release) = self.timeline.release(*waiter, wait) else {
                continue;
            };
            let thread = release.thread;
            self.pieces(thread, (wait.from, release.time), |piece| {
                let (ticks, pieces) = done.entry((thread, piece.cause, piece.node)).or_default();
                *ticks += piece.ticks;
                pieces.push((thread, piece));
            });
        }
        let longest = done.into_iter().max_by_key(|&(at, (ticks, _))| (ticks, at));
        let ((thread, cause, node), (_, pieces)) = longest?;
        let until = match cause.is_ended_by_threads() {
            true => self.chain(things, &pieces, most),
            false => None,
        };
        Some(Until {
            thread: (&self.followed.threads[thread]).into(),
            cause,
            path: self.names(&self.timeline.tree, node),
            of: self.thing(things, &pieces),
            until: until.map(Box::new),
        })
    }

    /// Names the thing that some waits are for.
    fn thing(&self, things: &mut Things<'_>, waits: &[(usize, Piece)]) -> Option<String> {
        things.most(self.timeline, self.followed, waits)
    }
}

/// A call, with the parts of its time and the calls in it.
struct Explained<'s> {
    subject: &'s Subject,
    parts: Parts,
    /// The number of calls at each place.
    begun: HashMap<u32, u64>,
}

impl<'s> Explained<'s> {
    fn of(context: &Context<'_>, places: &mut Places, subject: &'s Subject) -> Self {
        let (mut parts, mut begun) = (Parts::new(), HashMap::new());
        context.pieces_of(subject, |_, piece| {
            let place = places.of(context.timeline, &piece);
            *parts.entry((piece.cause, place)).or_default() += piece.ticks;
        });
        for call in &subject.calls {
            context.timeline.begun(call, |node| {
                let place = places.of_node(context.timeline, node, false);
                *begun.entry(place).or_default() += 1;
            });
        }
        Self {
            subject,
            parts,
            begun,
        }
    }
}

/// Returns the calls to explain, and the usual ones; all are sorted by time.
fn choose<'s>(
    args: &Args,
    subjects: &'s [Subject],
) -> Result<(&'s [Subject], &'s [Subject]), Error> {
    let all = subjects.len();
    let slow = match args.call {
        Some(nth) => match all.checked_sub(nth) {
            Some(at) if nth > 0 => at..at + 1,
            _ => {
                let what = args.nouns().1;
                let why = format!("--call {nth}: the function has {what} 1 to {all}");
                return Err(Error::Usage(why));
            }
        },
        None if all < LEAST_CALLS => all - 1..all,
        None => {
            let count = (all as f64 * args.slowest / 100.0).ceil() as usize;
            all - count.clamp(1, all)..all
        }
    };
    let usual = match all < LEAST_CALLS {
        true => 0..0,
        // The middle half, without the slowest.
        false => all / 4..(all * 3 / 4).min(slow.start.max(all / 4 + 1)),
    };
    Ok((&subjects[slow], &subjects[usual]))
}

fn explain_recording(args: &Args, input: &Input) -> Result<(), Error> {
    let mut view = input.view(&args.part)?;
    places::name_functions(&mut view, args.debuginfod);
    let globs: Vec<String> = args.functions().map(str::to_owned).collect();
    let wanted = args.wanted()?;
    let failed = |error| Error::source(&input.path, error);
    let (mut timeline, mut followed) = Timeline::read(&mut view, wanted).map_err(failed)?;
    let (names, clock, first) = (view.names(), view.clock(), view.first());
    followed.rename(names);
    losses::say(&followed.losses, names, clock, first);
    let states = view.say_states();
    let roots = std::mem::take(&mut timeline.roots);
    let name = args.requested();
    let name = escaped(&name);
    // The recording of a process or a program is of no interest by itself.
    let place = match args.first.is_there() {
        true => String::new(),
        false => format!(" in {}", input.path.display()),
    };
    let is_called = !roots.is_empty();
    let mut subjects = match is_called && !args.requests.is_empty() {
        true => requests::requests(roots, args.last.is_some(), || {
            let globs = globs.join("' --args-of '");
            Error::Nothing(format!(
                "the calls of {name} have no arguments{place}; record with --args-of '{globs}'"
            ))
        })?,
        false => requests::calls(roots),
    };
    subjects.sort_by_key(|subject| (subject.ticks(), subject.from));
    if subjects.is_empty() && is_called {
        return Err(Error::Nothing(format!(
            "no request of {name} has ended{place}"
        )));
    }
    if subjects.is_empty() {
        // Recording a program has said it.
        if !args.first.is_there() {
            unmatched::say_of_globs(&globs, names);
        }
        return Err(Error::Nothing(match timeline.unended {
            0 if args.first.is_there() => format!("no call of {name} was recorded"),
            0 => format!("no call of {name}{place}"),
            _ => format!("no call of {name} has ended{place}"),
        }));
    }
    let context = Context {
        timeline: &timeline,
        followed: &followed,
        schedule: view.schedule(),
        clock,
    };
    let (slow, usual) = choose(args, &subjects)?;
    let mut places = Places::new(!args.requests.is_empty());
    let mut explained = Vec::new();
    for subject in slow.iter().chain(usual) {
        explained.push(Explained::of(&context, &mut places, subject));
    }
    let usual = explained.split_off(slow.len());
    let slow = explained;
    let ns = |ticks: u64| clock.nanoseconds(ticks);
    let mean = |calls: &[Explained<'_>]| {
        let sum: u64 = calls.iter().map(|it| it.subject.ticks()).sum();
        sum.checked_div(calls.len() as u64).unwrap_or(0)
    };
    let more = mean(&slow).saturating_sub(mean(&usual));
    let mut things = Things::of(names);
    let mut lines = reasons(args, &context, (&places, &mut things), &slow, &usual);
    lines.truncate(args.lines);
    let in_lines: u64 = lines.iter().map(|line| line.ns).sum();
    let why = Why {
        lost: losses::to_json(&followed.losses, names, clock, first),
        function: args.requested(),
        calls: subjects.len(),
        explained: slow.len(),
        states,
        half_ns: ns(subjects[(subjects.len() - 1) / 2].ticks()),
        from_ns: ns(slow[0].subject.ticks()),
        more_ns: ns(more),
        rest_ns: ns(more) as i64 - in_lines as i64,
        lines,
        steps: match (args.call, &slow[..]) {
            (Some(_), [call]) => {
                let known = (&mut places, &mut things);
                steps(&context, known, &args.requested(), call.subject)
            }
            _ => Vec::new(),
        },
    };
    match args.json {
        true => json::write(&why)?,
        false => {
            let subject = slow[0].subject;
            let thread = followed.threads[subject.calls[0].thread].to_string();
            let at = ns(subject.from.saturating_sub(first));
            write(
                args,
                &why,
                usual.is_empty(),
                &format!("{thread}, {} after the first event", time(at)),
            )?;
        }
    }
    view.check_whole(&input.path)
}

/// Returns the reasons for which the slow calls take longer than the usual ones, the largest first.
fn reasons(
    args: &Args,
    context: &Context<'_>,
    (places, things): (&Places, &mut Things<'_>),
    slow: &[Explained<'_>],
    usual: &[Explained<'_>],
) -> Vec<WhyLine> {
    let usual_parts = means(usual.iter().map(|it| &it.parts));
    let mut differences: Differences = means(slow.iter().map(|it| &it.parts));
    for (at, ticks) in &usual_parts {
        *differences.entry(*at).or_default() -= ticks;
    }
    let begun = [slow, usual].map(mean_begun);
    let tree = &places.tree;
    let requested = args.requested();
    let line = |line: Line| {
        let own = usual_parts.iter();
        let own = own.filter(|((cause, place), _)| line.has(tree, *cause, *place));
        let usual_ticks: f64 = own.map(|(_, ticks)| ticks).sum();
        let with_it: Vec<&Explained<'_>> = slow
            .iter()
            .filter(|call| {
                let ticks = line.ticks_of(tree, &call.parts) as f64;
                ticks - usual_ticks >= line.ticks / 2.0
            })
            .collect();
        let waits = waits(context, places, &line, &with_it);
        WhyLine {
            cause: line.cause,
            ns: context.clock.nanoseconds(line.ticks as u64),
            path: context.path(places, line.place, &requested),
            calls: with_it.len(),
            of: context.thing(things, &waits),
            until: match line.cause.is_ended_by_threads() {
                true => context.until(things, &waits),
                false => None,
            },
            more_calls: match usual {
                [] => None,
                _ => more_calls(context, places, &line, &differences, &begun),
            },
        }
    };
    explain(tree, &differences).into_iter().map(line).collect()
}

/// Returns the waits of a line, each with the index of its thread.
fn waits(
    context: &Context<'_>,
    places: &Places,
    line: &Line,
    calls: &[&Explained<'_>],
) -> Vec<(usize, Piece)> {
    /// Calls that are looked at.
    const MOST: usize = 100;
    let mut waits = Vec::new();
    if !line.cause.is_for_something() {
        return waits;
    }
    for call in calls.iter().take(MOST) {
        context.pieces_of(call.subject, |thread, piece| {
            let place = places.known(&piece);
            if place.is_some_and(|place| line.has(&places.tree, piece.cause, place)) {
                waits.push((thread, piece));
            }
        });
    }
    waits
}

/// The numbers of calls at each place, in the mean of some calls.
type Begun = HashMap<u32, f64>;

fn mean_begun(calls: &[Explained<'_>]) -> Begun {
    let mut means = Begun::new();
    for call in calls {
        for (&place, &count) in &call.begun {
            *means.entry(place).or_default() += count as f64 / calls.len() as f64;
        }
    }
    means
}

/// Returns the function below a line that slow calls call more often than usual ones.
fn more_calls(
    context: &Context<'_>,
    places: &Places,
    line: &Line,
    differences: &Differences,
    [explained, usual]: &[Begun; 2],
) -> Option<MoreCalls> {
    /// The part of the line's time that the function must have.
    const MUCH: f64 = 0.3;
    if line.cause != Cause::Computes {
        return None;
    }
    let more = explained.iter().filter_map(|(&place, &explained)| {
        let usual = usual.get(&place).copied().unwrap_or(0.0);
        let is_more = explained >= 2.0 && explained >= usual * 1.5;
        let is_below = lines::is_within(&places.tree, place, line.place);
        if !is_more || !is_below {
            return None;
        }
        let own = differences.iter();
        let own = own.filter(|&(&(cause, at), _)| {
            cause == line.cause && lines::is_within(&places.tree, at, place)
        });
        let ticks: f64 = own.map(|(_, ticks)| ticks).sum();
        (ticks >= line.ticks * MUCH).then_some((place, explained, usual))
    });
    let most = more.max_by(|a, b| (a.1 - a.2).total_cmp(&(b.1 - b.2)).then(b.0.cmp(&a.0)));
    let (place, explained, usual) = most?;
    let slot = places.tree.nodes[place as usize].slot;
    Some(MoreCalls {
        function: context.followed.functions[slot as usize].name.clone(),
        explained,
        usual,
    })
}

/// Returns the steps of a call: its time in order, with what other threads did while it waited.
fn steps(
    context: &Context<'_>,
    (places, things): (&mut Places, &mut Things<'_>),
    name: &str,
    subject: &Subject,
) -> Vec<Step> {
    let mut pieces: Vec<(usize, Piece)> = Vec::new();
    let least = subject.ticks() / SHORT;
    context.pieces_of(subject, |thread, piece| {
        let is_short = |piece: &Piece| piece.ticks < least && piece.cause == Cause::Computes;
        let Some((_, last)) = pieces
            .last_mut()
            .filter(|(of, last)| (*of, last.is_between) == (thread, piece.is_between))
        else {
            pieces.push((thread, piece));
            return;
        };
        let is_same = (last.cause, last.node) == (piece.cause, piece.node);
        // Short computations one after the other are one: that of a call that has most of the
        // time, or else of the call around them.
        let is_one = last.cause == Cause::Computes && is_short(&piece)
            || is_short(last) && piece.cause == Cause::Computes;
        if is_same || is_one {
            last.node = match (last.ticks, piece.ticks) {
                (before, now) if before / 4 >= now => last.node,
                (before, now) if now / 4 >= before => piece.node,
                _ => context.timeline.common(last.node, piece.node),
            };
            (last.to, last.ticks) = (piece.to, last.ticks + piece.ticks);
        } else {
            pieces.push((thread, piece));
        }
    });
    pieces.retain(|(_, piece)| piece.ticks >= least);
    pieces.dedup_by(|(thread, next), (of, last)| {
        let is_same = (*of, last.cause, last.node, last.is_between)
            == (*thread, next.cause, next.node, next.is_between);
        if is_same {
            (last.to, last.ticks) = (next.to, last.ticks + next.ticks);
        }
        is_same
    });
    let step = |(thread, piece): (usize, Piece)| {
        let wait = [(thread, piece)];
        let until = match piece.cause.is_ended_by_threads() {
            true => context.until(things, &wait),
            false => None,
        };
        let of = match piece.cause.is_for_something() {
            true => context.thing(things, &wait),
            false => None,
        };
        let place = places.of(context.timeline, &piece);
        Step {
            at_ns: context.clock.nanoseconds(piece.from - subject.from),
            ns: context.clock.nanoseconds(piece.ticks),
            cause: piece.cause,
            path: context.path(places, place, name),
            of,
            until,
        }
    };
    pieces.into_iter().map(step).collect()
}

/// Returns the first names of a path, innermost first, as text.
fn shown(path: &[String], most: usize) -> String {
    let names: Vec<_> = path.iter().take(most).map(|name| escaped(name)).collect();
    names.join(" < ")
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
fn write(args: &Args, why: &Why, is_alone: bool, place: &str) -> Result<(), Error> {
    let mut out = Out::new();
    let width = out.width.unwrap_or(usize::MAX);
    let name = escaped(&why.function);
    let more = time(why.more_ns);
    let half = time(why.half_ns);
    let all = why.calls as u64;
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
    let texts: Vec<(String, &WhyLine)> = why
        .lines
        .iter()
        .map(|line| (line_text(line, is_alone), line))
        .collect();
    for (text, line) in texts {
        let part = percent(line.ns, why.more_ns);
        let of = match (why.explained, is_alone) {
            (1, _) | (_, true) => String::new(),
            (all, false) => format!(
                "  ({} of {})",
                grouped(line.calls as u64),
                grouped(all as u64)
            ),
        };
        let text = format!("{:>12}  {part:>5} %  {text}{of}", time(line.ns));
        for part in wrapped(&text, width) {
            out.line(cut(&part, width))?;
        }
    }
    let rest = why.rest_ns.unsigned_abs();
    let sign = if why.rest_ns < 0 { "-" } else { "" };
    let part = percent(rest, why.more_ns);
    out.line(format!(
        "{:>12}  {:>5} %  the rest",
        format!("{sign}{}", time(rest)),
        format!("{sign}{part}")
    ))?;
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
    fn a_part_of_the_calls_is_a_percentage() {
        assert_eq!(parse_part("1%"), Ok(1.0));
        assert_eq!(parse_part("0.5"), Ok(0.5));
        for bad in ["", "-1%", "51%", "x", "NaN"] {
            assert!(parse_part(bad).is_err(), "{bad}");
        }
    }
}
