//! `fgraph record`: runs a program with the agent inside, and writes its calls to a file.
//!
//! The rings are in memory of this process that the program has mapped: however the program ends,
//! its events are here. If this process ends, the program continues, with rings that fill up.

mod advice;
mod elsewhere;
pub(super) mod first;
mod flight;
mod old;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::num::NonZero;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fgraph_trace::clock::Anchor;
use fgraph_trace::names::{DescriptionKind, Names, process_id};
use fgraph_trace::place::{self, Place};
use fgraph_trace::recording::{Drain, Info};
use fgraph_trace::ring::{Mode, Rings};
use fgraph_tracers::recorder::budget;

use crate::awaits;
use crate::debuginfod::Debuginfod;
use crate::error::Error;
use crate::generated::Generated;
use crate::input::{DEFAULT, parse_size, parse_time};
use crate::launch::counts::{Counts, Drained};
use crate::launch::descriptors::Descriptors;
use crate::launch::interrupt::{Interrupts, code_of, end_by};
use crate::launch::{Budget, LARGEST_RING, Launched, NAP, What};
use crate::off::{self, Off};
use crate::output::StatusLine;
use crate::places::names_of_functions;
use crate::python;
use crate::sources;
use crate::text::{self, escaped, grouped, size, time};
use advice::{Busiest, time_of_children};
use elsewhere::Elsewhere;
use old::{OLD, Old};

const EXAMPLES: &str = "\
Examples:
  fgraph record -- python3 -c 'import json; print(json.dumps([1, 2]))'
  fgraph record -F 'malloc' -F 'free' --args --retval -- ls
  fgraph record -F 'parser::*' -N '*::fmt' -o parser.data -- ./compiler main.src
  fgraph record --graph-function handle_request -t 1ms -- ./server
  fgraph record --python -F 'py:app.*' -- python3 app.py
  fgraph record --python -p 1234 --time 10s
  fgraph record --panics -F 'app::*' -- target/release/app
  fgraph record --open -- ./app
  fgraph record --max-size 100M -- ./server
  fgraph record --ring overwrite=2s --trigger 'slow:handle_request>10ms' -- ./server
  fgraph record --flight --ring overwrite=2s -- ./server
  fgraph record -p 1234 --time 10s -F 'malloc:mod:libc.so*'";

/// Run a program and record its calls
///
/// Records the functions of the program's own file and of libraries outside of the system's
/// directories; -F selects others. Forked and executed children of the program are recorded, too.
/// Ctrl-C ends the program as usual, and keeps the recording; a second one ends only the recording.
/// SIGTERM and SIGHUP are passed on to the program and have the same effect. With -p, Ctrl-C ends
/// the recording, and the process continues.
///
/// With `--ring overwrite` only the newest events of each thread are kept, in memory, and written
/// at the end, however the program ends. With --trigger they are written when a trigger fires.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    what: What,
    /// The recording; an existing file is replaced. The default is `fgraph.data`, and an earlier
    /// recording of that name is kept as `fgraph.data.old`
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The treatment of events without room: `block` makes the thread wait until this command has
    /// made room, `drop` loses them, and `overwrite` keeps only the newest of each thread. The
    /// default is `block` for a program that this command starts: threads wait at most 2 s while
    /// this command makes no progress, and never in signal handlers, forked children and sandboxes.
    /// With -p the default is `drop`
    #[arg(long, value_name = "block|drop|overwrite[=TIME]", value_parser = parse_ring)]
    ring: Option<Ring>,
    /// The most memory for the unwritten events of each thread, as 500K or 64M, at most 256M; the
    /// default is 4M. A thread uses as much of it as the recorder lags behind. With --ring
    /// overwrite and a time, the default is the amount that a busy thread writes in that time, at
    /// most 64M
    #[arg(long, value_name = "SIZE", value_parser = parse_buffer)]
    buffer: Option<u64>,
    /// Keep the newest events until a trigger fires, and write them then: `call:FUNCTION`,
    /// `slow:FUNCTION>10ms` (when that call ends), `signal` (SIGUSR2 to this command), `crash` (a
    /// signal ends the program), `exit!=0`; may be given several times. The first snapshot is FILE,
    /// others are FILE.2 to FILE.10. With -p, any end of the process counts as `crash` and
    /// `exit!=0`
    #[arg(long = "trigger", value_name = "WHAT", value_parser = flight::parse_trigger)]
    triggers: Vec<flight::Trigger>,
    /// Run without a recorder: the program takes the place of this command, and keeps its newest
    /// events in its own memory, as do its children. `fgraph recover` makes a recording from the
    /// core file of any of them
    #[arg(
        long,
        conflicts_with_all = ["output", "triggers", "max_size", "time", "budget", "env"]
    )]
    flight: bool,
    /// End the recording at this size, as 500K, 100M or 2G; the program continues. This command
    /// ends with it
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    max_size: Option<u64>,
    /// Record Python's functions too, and the functions in C that Python calls, with the calls of
    /// native ones among them, but not those of the interpreter itself unless -F or --libs selects
    /// them. `-F 'py:app.*'` records only these of Python's functions, by module and name. It takes
    /// CPython 3.9 or later
    #[arg(long, conflicts_with_all = ["threshold", "depth", "within", "max_rate", "budget"])]
    python: bool,
    /// Mark panics of Rust among the calls, with their place and message
    #[arg(long)]
    panics: bool,
    #[command(flatten)]
    budget: Budget,
    /// Switch off a function that a process calls more often than N times in a second: from then on
    /// its calls are not recorded. The time of N and one more calls is measured. The end of the
    /// output, and `fgraph info`, name these functions
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=1 << 30),
        conflicts_with = "budget"
    )]
    max_rate: Option<u32>,
    /// Do not record when threads run, wait for a processor, and are blocked
    #[arg(long)]
    no_sched: bool,
    /// Keep the environment that the program was started with, which may contain secrets; `fgraph
    /// info` shows it
    #[arg(long)]
    env: bool,
    /// Do not look up the source locations of functions at the end
    #[arg(long)]
    no_source: bool,
    #[command(flatten)]
    debuginfod: Debuginfod,
    /// At the end, write the recording's page and show it in the browser, as `fgraph open`
    #[arg(long, conflicts_with_all = ["flight", "triggers"])]
    open: bool,
    /// Print nothing except errors
    #[arg(short, long)]
    quiet: bool,
}

/// The treatment of events without room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ring {
    /// The program waits.
    Block,
    Drop,
    /// The newest are kept; with a time, those of this time.
    Overwrite(Option<Duration>),
}

fn parse_ring(text: &str) -> Result<Ring, String> {
    match (text, text.strip_prefix("overwrite=")) {
        ("block", _) => Ok(Ring::Block),
        ("drop", _) => Ok(Ring::Drop),
        ("overwrite", _) => Ok(Ring::Overwrite(None)),
        (_, Some(time)) => parse_time(time).map(|time| Ring::Overwrite(Some(time))),
        _ => Err("block, drop, overwrite, or overwrite=2s".to_owned()),
    }
}

impl Args {
    /// Returns the path of the recording.
    fn output(&self) -> &Path {
        self.output.as_deref().unwrap_or(Path::new(DEFAULT))
    }

    /// Returns the treatment of events without room; an error if the arguments contradict each
    /// other.
    fn ring(&self) -> Result<Ring, Error> {
        if self.flight && self.what.is_attaching() {
            let why = "--flight takes a program to start, not -p";
            return Err(Error::Usage(why.to_owned()));
        }
        if self.flight && matches!(self.ring, Some(Ring::Block | Ring::Drop)) {
            let why = "--flight takes --ring overwrite";
            return Err(Error::Usage(why.to_owned()));
        }
        let ring = match (self.ring, &self.triggers[..]) {
            (Some(Ring::Block | Ring::Drop), [_, ..]) => {
                let why = "--trigger takes --ring overwrite";
                return Err(Error::Usage(why.to_owned()));
            }
            (Some(ring), _) => ring,
            (None, _) if self.flight => Ring::Overwrite(None),
            (None, []) if self.what.is_attaching() => Ring::Drop,
            (None, []) => Ring::Block,
            (None, _) => Ring::Overwrite(None),
        };
        if ring == Ring::Block && self.what.is_attaching() {
            let why = "--ring block takes a program to start, not -p";
            return Err(Error::Usage(why.to_owned()));
        }
        if matches!(ring, Ring::Overwrite(_)) && self.budget.is_some() {
            let why = "--budget takes --ring block or drop, and no --trigger";
            return Err(Error::Usage(why.to_owned()));
        }
        if matches!(ring, Ring::Overwrite(_)) && self.max_size.is_some() {
            let why = "--max-size takes --ring block or drop";
            return Err(Error::Usage(why.to_owned()));
        }
        Ok(ring)
    }
}

fn parse_buffer(text: &str) -> Result<u64, String> {
    let size = parse_size(text)?;
    match (1..=LARGEST_RING).contains(&size) {
        true => Ok(size),
        false => Err("a buffer has 1K to 256M".to_owned()),
    }
}

/// The most bytes that a thread writes in a second: ten million calls.
const BYTES_PER_SECOND: u64 = 160 << 20;
/// The size of a ring unless --buffer allows more.
const BUFFER: u64 = 64 << 20;
/// The size of a ring that overwrites, if no time is given.
const LEAST_BUFFER: u64 = 4 << 20;

/// Returns the size of a thread's ring that keeps the events of this time.
fn buffer_of(span: Duration, most: Option<u64>) -> u64 {
    let bytes = span.as_secs_f64() * BYTES_PER_SECOND as f64;
    let most = most.unwrap_or(BUFFER);
    (bytes as u64).clamp(LEAST_BUFFER.min(most), most)
}

/// The time between two updates of the progress.
const SHOWN: Duration = Duration::from_millis(250);

/// Records a program, and exits like it.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Error> {
    if !args.open {
        return record_first(args, end_by);
    }
    let code = record_first(args, code_of)?;
    super::open::show(args.output(), None)?;
    Ok(code)
}

/// Records a program. If a signal has ended it, returns what `end_by` returns for that signal.
fn record_first(args: &Args, end_by: fn(i32) -> ExitCode) -> Result<ExitCode, Error> {
    let ring = args.ring()?;
    let mode = match ring {
        Ring::Block => Mode::Block,
        Ring::Drop => Mode::Drop,
        Ring::Overwrite(_) => Mode::Overwrite,
    };
    let program = args.what.find(flight::of_calls(&args.triggers))?;
    let program = program.checking(flight::patterns(&args.triggers));
    let program = program.sampled(
        // An interpreter is left out on purpose.
        args.what.is_without_libraries() && !args.quiet && !args.python,
    );
    let program = program
        .scheduled(!args.no_sched)
        .python(args.python)
        .coroutines(args.python && args.what.has_tasks())
        .panics(args.panics);
    let program = program.max_rate(args.max_rate).budget(&args.budget)?;
    let program = program.buffer(match ring {
        Ring::Overwrite(Some(span)) => Some(buffer_of(span, args.buffer)),
        _ => args.buffer,
    });
    if args.flight {
        return Err(program.replace_this(|ring| flight::tell_of_core_files(args, ring)));
    }
    let old = match args.output {
        None => Old::find().map_err(|error| cannot_write(Path::new(OLD), error))?,
        Some(_) => None,
    };
    let (file, new) = open(args.output()).map_err(|error| cannot_write(args.output(), error))?;
    let interrupts = Interrupts::catch();
    if args.triggers.contains(&flight::Trigger::Signal) {
        interrupts.catch_snapshots();
    }
    let mut launched = program.start(mode).inspect_err(|_| {
        let _ = new.as_ref().map(Place::remove);
    })?;
    if args.quiet {
        launched.be_quiet();
    }
    let written = match ring {
        Ring::Block | Ring::Drop => record(args, &mut launched, &interrupts, (file, old)),
        Ring::Overwrite(span) => {
            drop(file);
            flight::record(args, span, (new, old), &mut launched, &interrupts)
        }
    };
    let written = written.map_err(|error| tell(cannot_write(args.output(), error), &launched));
    launched.end(&interrupts, written, end_by)
}

/// Opens the file of a recording; returns its place if it was made. An existing file keeps its
/// content until a recording begins. Only this user may read a new one.
fn open(path: &Path) -> io::Result<(File, Option<Place>)> {
    let place = Place::find(path)?;
    let (file, is_new) = place.open(File::options().write(true).mode(0o600))?;
    Ok((file, is_new.then_some(place)))
}

/// Empties the file of a recording; if there is an old one to keep, returns a new file instead.
fn begin(file: File, old: Option<Old>) -> io::Result<File> {
    match old {
        Some(old) => old.replace(),
        None => place::empty(&file).map(|()| file),
    }
}

/// Opens the file of a recording, and empties it.
pub(super) fn open_empty(path: &Path) -> io::Result<File> {
    place::create(path, 0o600)
}

/// Reports at once that a recording cannot be written, if the program goes on without it.
fn tell(error: Error, launched: &Launched) -> Error {
    if launched.has_ended() {
        return error;
    }
    if let Some(text) = error.message() {
        say!("fgraph: {text}; recording has ended, and the program goes on");
    }
    Error::Unwritten
}

fn cannot_write(path: &Path, error: io::Error) -> Error {
    Error::Write {
        path: path.to_owned(),
        error,
    }
}

/// Writes the content of the rings, until the program or the recording has ended.
fn record(
    args: &Args,
    launched: &mut Launched,
    interrupts: &Interrupts,
    (file, old): (File, Option<Old>),
) -> io::Result<()> {
    let rings = &Arc::clone(launched.rings());
    let info = info_of(args, launched);
    let file = begin(file, old)?;
    let drain = Drain::new(Arc::clone(rings), file, &info)?;
    let mut drain = drain.packed_by(packers());
    for pause in launched.pauses().filter(|_| !args.quiet) {
        say!("fgraph: {pause}");
    }
    let mut progress = Progress::new(args.quiet);
    let mut elsewhere = Elsewhere::of(launched.samples());
    let mut scheduling = launched.scheduling();
    let mut descriptors = args
        .what
        .has_waits()
        .then(|| Descriptors::of(&launched.processes()));
    let mut describe = |drain: &mut Drain<File>, is_last: bool| match &mut descriptors {
        Some(descriptors) => drain.add(&descriptors.look(drain.names(), rings.clock(), is_last)),
        None => Ok(()),
    };
    let generated = args.what.has_stacks().then(|| launched.generated());
    let mut identified = 0;
    loop {
        let is_ended = launched.is_over(interrupts);
        let is_large = args.max_size.is_some_and(|most| drain.len() >= most);
        if is_ended || is_large {
            break;
        }
        launched.tell(Drained::of(&drain));
        if drain.drain()? == 0 {
            launched.wait_for(NAP);
        }
        if let Some((changes, lost)) = scheduling.as_mut().and_then(|it| it.read(false)) {
            drain.schedule(changes, lost)?;
        }
        identify(&mut drain, &mut identified)?;
        describe(&mut drain, false)?;
        elsewhere.look(drain.names());
        launched.say_refused(drain.names());
        launched.look();
        if let Some(switching) = launched.switching() {
            switching.look(|| budget::Progress {
                names: drain.names(),
                calls: drain.calls(),
                shortest: drain.shortest_call(),
            });
        }
        progress.show(rings, Drained::of(&drain));
    }
    describe(&mut drain, true)?;
    if args.what.has_tasks() && !launched.has_ended() {
        for process in launched.processes() {
            drain.add(&awaits::describe(process))?;
        }
    }
    if let Some(generated) = &generated {
        let processes = drain.names().descriptions().iter();
        let processes = processes.filter(|it| it.kind == DescriptionKind::Process);
        generated.look(processes.map(|it| process_id(it.fields[0] as u32)), true);
    }
    launched.stop();
    drain.end()?;
    if let Some((changes, lost)) = scheduling.as_mut().and_then(|it| it.read(true)) {
        drain.schedule(changes, lost)?;
    }
    identify(&mut drain, &mut identified)?;
    launched.say_refused(drain.names());
    elsewhere.look(drain.names());
    let mut end = End::of(&drain, launched);
    end.advice.extend(elsewhere.advice(drain.names()));
    end.advice.extend(advice_of_python(args, drain.names()));
    progress.end();
    end.is_unmatched = launched.say_unmatched(drain.names(), Some(&end.begun));
    let len = finish(args, drain, generated.as_ref(), interrupts)?;
    if !args.quiet {
        end.say(args, len, launched);
    }
    Ok(())
}

/// State of a recording at its end, for the messages.
struct End {
    counts: Counts,
    /// The number of begun calls of each function of each process.
    begun: HashMap<(u32, u32), u64>,
    /// Functions that were switched off.
    off: Vec<Off>,
    /// True if a program was not recorded, or in part only.
    is_refused: bool,
    is_in_part: bool,
    /// True if filters match no function.
    is_unmatched: bool,
    /// The functions that cost most, if the time of the whole program is known.
    busiest: Option<Busiest>,
    advice: Vec<String>,
}

impl End {
    fn of(drain: &Drain<File>, launched: &mut Launched) -> Self {
        let (names, rings) = (drain.names(), launched.rings());
        let mut off = off::functions(names);
        let calls = drain.calls();
        let begun = calls.map(|(process, function, sum)| ((process, function), sum.begun));
        let begun = begun.collect();
        let now = Anchor::now(rings.clock().kind()).ticks;
        off::sort(&mut off, now, &begun);
        let counts = Counts {
            calls: drain.entries(),
            ..Counts::of(rings, Drained::of(drain))
        };
        Self {
            counts,
            begun,
            off,
            is_refused: !names.refused().is_empty(),
            is_in_part: !names.in_part().is_empty(),
            is_unmatched: false,
            busiest: Busiest::of(drain).filter(|_| launched.status().is_some()),
            advice: Vec::new(),
        }
    }

    /// Says what was recorded, in a file of `len` bytes, and what to do differently.
    fn say(self, args: &Args, len: u64, launched: &Launched) {
        let lost = match self.counts.lost {
            0 => String::new(),
            lost => format!(", {} lost", text::counted(lost, "event")),
        };
        let path = args.output().display();
        let calls = text::calls(self.counts.calls);
        say!("fgraph: {calls}{lost}, {} in {path}", size(len));
        if self.counts.calls == 0 && !self.is_refused && !self.is_unmatched {
            let functions = match self.is_in_part {
                true => "functions that can be traced",
                false => "selected functions",
            };
            say!("fgraph: none of the {functions} was called");
            if launched.is_attached() {
                let pid = launched.numbers();
                say!(
                    "fgraph: calls that had begun before are not recorded; \
                     `fgraph top -p {pid}` shows which functions are called"
                );
            }
        }
        let waited = launched.rings().waited();
        if waited >= LONG_WAIT {
            let waited = waited.as_secs_f64();
            say!(
                "fgraph: its threads waited {waited:.1} s until this command had read their \
                 events: see --ring"
            );
        }
        let busiest = self.busiest;
        let cost = busiest.and_then(|busiest| busiest.advice(time_of_children()));
        for advice in cost.into_iter().chain(self.advice) {
            say!("fgraph: {advice}");
        }
        tell_switched_off(args, launched.rings(), &self.off);
    }
}

/// Returns the advice about Python's functions.
fn advice_of_python(args: &Args, names: &Names) -> Option<String> {
    let gain = "records Python's own functions";
    python::advice(names, args.python, gain)
}

/// Returns the number of threads that pack events, beside the one that reads the rings: the program
/// needs processors, too.
fn packers() -> usize {
    const MOST: usize = 4;
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    match processors / 2 {
        0 | 1 => 0,
        half => half.min(MOST),
    }
}

/// The sum of threads' waits from which on it is reported.
const LONG_WAIT: Duration = Duration::from_millis(100);

/// The most switched-off functions that are named at the end.
const NAMED: usize = 10;

/// Names the functions that were switched off.
fn tell_switched_off(args: &Args, rings: &Rings, off: &[Off]) {
    let clock = rings.clock();
    let now = Anchor::now(clock.kind()).ticks;
    for function in off.iter().take(NAMED) {
        let name = function.named();
        let name = escaped(&name);
        match args.max_rate {
            Some(most) => {
                let most = grouped(most.into());
                say!(
                    "fgraph: {name} was not recorded any longer: more than {most} calls in a second"
                );
            }
            None => {
                let time = time(function.nanoseconds(&clock, now));
                say!("fgraph: {name} was not recorded for {time}, since that cost too much");
            }
        }
    }
    if let Some(more @ 1..) = off.len().checked_sub(NAMED) {
        say!("fgraph: {more} more were not recorded for some time: see `fgraph info`");
    }
}

/// Returns the description of the program for the recording.
fn info_of(args: &Args, launched: &Launched) -> Info {
    Info {
        process: launched.process(),
        command: launched.command().to_vec(),
        environment: match args.env {
            true => launched.environment(),
            false => Vec::new(),
        },
        ..Info::of_this_process()
    }
}

/// Ends a recording, and returns its size in bytes.
fn finish(
    args: &Args,
    mut drain: Drain<File>,
    generated: Option<&Generated>,
    interrupts: &Interrupts,
) -> io::Result<u64> {
    if let Some(generated) = generated {
        drain.add(&generated.describe(drain.names()))?;
    }
    if args.debuginfod.allow() {
        drain.add(&names_of_functions(drain.names()))?;
    }
    if args.what.has_tasks() {
        drain.add(&sources::of_tasks(drain.names()))?;
    }
    if !args.no_source {
        let count = interrupts.count();
        let sources = sources::of_functions(drain.names(), || interrupts.count() > count);
        drain.add(&sources)?;
    }
    Ok(drain.finish()?.metadata()?.len())
}

/// Writes the build ids of new modules, while their files are still the loaded ones.
fn identify(drain: &mut Drain<File>, known: &mut usize) -> io::Result<()> {
    let new = drain.names().modules().get(*known..).unwrap_or(&[]);
    *known += new.len();
    let ids = sources::build_ids(new);
    drain.add(&ids)
}

/// A progress line on a terminal.
#[derive(Debug)]
struct Progress {
    line: StatusLine,
    last: Instant,
    calls: u64,
}

impl Progress {
    fn new(is_quiet: bool) -> Self {
        Self {
            line: StatusLine::new(is_quiet),
            last: Instant::now(),
            calls: 0,
        }
    }

    fn show(&mut self, rings: &Rings, drained: Drained) {
        let since = self.last.elapsed();
        if !self.line.is_shown() || since < SHOWN {
            return;
        }
        let Counts { calls, lost } = Counts::of(rings, drained);
        let rate = calls.saturating_sub(self.calls) as f64 / since.as_secs_f64();
        let [calls_shown, rate, lost] = [calls, rate as u64, lost].map(grouped);
        let len = size(drained.bytes);
        let text = format!("{calls_shown} calls, {rate}/s, {lost} lost, {len}");
        self.line.show(&text);
        self.calls = calls;
        self.last = Instant::now();
    }

    fn end(&self) {
        self.line.show("");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_as_large_as_its_time_takes_up_to_the_limit() {
        let ms = Duration::from_millis;
        assert_eq!(buffer_of(ms(1), None), 4 << 20);
        assert_eq!(buffer_of(ms(100), None), 16 << 20);
        assert_eq!(buffer_of(ms(1000), None), 64 << 20);
        assert_eq!(buffer_of(ms(1000), Some(256 << 20)), 160 << 20);
        assert_eq!(buffer_of(ms(60_000), Some(256 << 20)), 256 << 20);
        assert_eq!(buffer_of(ms(1000), Some(1 << 20)), 1 << 20);
    }

    #[test]
    fn a_buffer_is_within_its_limits() {
        assert_eq!(parse_buffer("256M"), Ok(LARGEST_RING));
        assert!(parse_buffer("257M").is_err() && parse_buffer("0K").is_err());
    }
}
