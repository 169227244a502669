//! The recording that a subcommand reads, and the requested part of it.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufReader};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use clap::ValueEnum;
use fgraph_analysis::numbers::ThreadKey;
use fgraph_analysis::tasks::Lanes;
use fgraph_symbols::filter::{Filter, FunctionFacts};
use fgraph_trace::clock::Clock;
use fgraph_trace::graph::Matcher;
use fgraph_trace::names::{Description, DescriptionKind, Names};
use fgraph_trace::schedule::{Schedule, State};
use fgraph_trace::source::{SourceError, Upcoming};
use fgraph_trace::{Event, Recording, Source};
use serde::Serialize;

use crate::error::Error;
use crate::output::Progress;
use crate::summary::{Opened, Summary};
use crate::target::parse_patterns;
use crate::text::{escaped, grouped, size};

/// The default path of recordings.
pub(crate) const DEFAULT: &str = "fgraph.data";

/// The path that stands for standard input.
const STANDARD_INPUT: &str = "-";

/// The argument that names the recording.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Input {
    /// The recording; `-` is standard input
    #[arg(value_name = "FILE", default_value = DEFAULT)]
    pub(crate) path: PathBuf,
}

impl Input {
    /// Opens the recording.
    pub(crate) fn open(&self) -> Result<Recording, Error> {
        open(&self.path)
    }

    /// Fails if nothing was recorded: a recording for the view is made with `option`.
    pub(crate) fn expect(&self, option: &str) -> Result<(), Error> {
        match self.path == Path::new(DEFAULT) && !self.path.exists() {
            true => Err(Error::Nothing(format!(
                "no {DEFAULT} here; run `fgraph record {option}` first"
            ))),
            false => Ok(()),
        }
    }

    /// Opens the requested part of the recording, with names that a terminal can show.
    pub(crate) fn view(&self, part: &Part) -> Result<View, Error> {
        let failed = |error| Error::source(&self.path, error);
        let (recording, opened) = open_known(&self.path)?;
        let mut view = View::of(recording, part).map_err(failed)?;
        view.opened = opened.filter(|_| *part == Part::default());
        if let Some(glob) = &part.tasks.task {
            let globs = [glob.clone()];
            let wanted = matcher(&globs)?.filter(|_| glob != ALL_TASKS);
            let mut first = View::of(self.open()?, part).map_err(failed)?;
            let lanes = Lanes::read(&mut first, wanted).map_err(failed)?;
            if lanes.is_empty() {
                let (path, glob) = (self.path.display(), escaped(glob));
                return Err(Error::Nothing(format!(
                    "no task '{glob}' was polled in {path}; `fgraph tasks` says which were"
                )));
            }
            lanes.descriptions().for_each(|lane| view.shown.add(lane));
            view.is_whole = false;
            view.lanes = Some(lanes);
        }
        Ok(view)
    }

    /// Opens a part like [`view`](Self::view), with little more than the events of some spans of
    /// threads. `first` is the time of the recording's first event. Calls that began before a span
    /// may be missing.
    pub(crate) fn view_spans(
        &self,
        part: &Part,
        first: u64,
        spans: &[Span],
    ) -> Result<View, Error> {
        if part.tasks.task.is_some() {
            // The lanes of tasks take all events.
            return self.view(part);
        }
        let mut recording = self.open()?;
        recording.keep(|process, thread, times| {
            let mut spans = spans.iter();
            spans.any(|span| {
                span.thread == (process, thread)
                    && *times.start() <= span.end
                    && span.begin <= *times.end()
            })
        });
        let view = View::from_first(recording, part, Some(first));
        view.map_err(|error| Error::source(&self.path, error))
    }

    /// Opens a part like [`view`](Self::view), of a recording that may still be written.
    pub(crate) fn follow(&self, part: &Part) -> Result<View, Error> {
        if part.tasks.task.is_some() {
            let why = "--task takes a view of a whole recording";
            return Err(Error::Usage(why.to_owned()));
        }
        let recording = match self.path == Path::new(STANDARD_INPUT) {
            // It is read to its end first.
            true => self.open()?,
            false => Recording::follow(&self.path).map_err(|it| unreadable(&self.path, it))?,
        };
        let view = View::of(recording, part);
        view.map_err(|error| Error::source(&self.path, error))
    }
}

/// Some time of a thread, in ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) thread: ThreadKey,
    pub(crate) begin: u64,
    pub(crate) end: u64,
}

/// Opens a recording; `-` is the one on standard input.
pub(crate) fn open(path: &Path) -> Result<Recording, Error> {
    open_known(path).map(|(recording, _)| recording)
}

/// Does the same as [`open`], and returns the file if summaries of it may be kept.
pub(crate) fn open_known(path: &Path) -> Result<(Recording, Option<Opened>), Error> {
    let failed = |error| unreadable(path, error);
    let file = File::open(readable(path)?).map_err(failed)?;
    let opened = Opened::of(&file).filter(|_| path != Path::new(STANDARD_INPUT));
    let mut recording = Recording::read(BufReader::new(file)).map_err(failed)?;
    let name = escaped(&path.to_string_lossy()).into_owned();
    let mut progress = Progress::new(format!("reading {name}"));
    recording.on_progress(move |part| progress.show(part));
    Ok((recording, opened))
}

/// Returns the path under which the file of a recording can be read, or another file. For `-` that
/// is a temporary one with the content of standard input, as readers of recordings go to and fro.
pub(crate) fn readable(path: &Path) -> Result<PathBuf, Error> {
    static COPY: OnceLock<File> = OnceLock::new();
    if path != Path::new(STANDARD_INPUT) {
        return Ok(path.to_owned());
    }
    if COPY.get().is_none() {
        let mut copy = tempfile::tempfile().map_err(|error| Error::temporary(&error))?;
        let copied = io::copy(&mut io::stdin().lock(), &mut copy);
        copied.map_err(|error| unreadable(path, error))?;
        _ = COPY.set(copy);
    }
    let copy = COPY.get().map_or(-1, File::as_raw_fd);
    Ok(PathBuf::from(format!("/proc/self/fd/{copy}")))
}

/// Fails if the recording at `path`, which was read to its end, is cut off or damaged.
pub(crate) fn check_whole(path: &Path, recording: &Recording) -> Result<(), Error> {
    let lanes = recording.lanes();
    let damages = lanes.damages();
    let mut missing = Vec::new();
    if !damages.is_empty() {
        let bytes = damages.iter().map(|it| it.range.end - it.range.start).sum();
        let places = match damages.len() {
            1 => "one place".to_owned(),
            more => format!("{more} places"),
        };
        missing.push(format!("is damaged: {} in {places}", size(bytes)));
    }
    if !lanes.has_end() {
        let why = "has no end: it was cut off, its recorder was killed, or still writes it";
        missing.push(why.to_owned());
    }
    match missing.is_empty() {
        true => Ok(()),
        false => Err(Error::Part {
            path: path.to_owned(),
            missing: missing.join("; it "),
        }),
    }
}

/// Returns true if the recording has its end, and no part is known to be damaged.
pub(crate) fn has_all(recording: &Recording) -> bool {
    recording.lanes().has_end() && recording.lanes().damages().is_empty()
}

/// Returns the reason that the recording at `path` cannot be read.
fn unreadable(path: &Path, error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::NotFound && path == Path::new(DEFAULT) {
        return Error::Nothing(format!("no {DEFAULT} here; run `fgraph record` first"));
    }
    Error::Input {
        path: path.to_owned(),
        error,
    }
}

/// The part of a recording that is read.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Part {
    /// Only this thread; may be given several times
    #[arg(long = "thread", value_name = "TID")]
    threads: Vec<u32>,
    /// Only events after this time since the first event: `1.5s`, `200ms`
    #[arg(long, value_name = "TIME", value_parser = nanoseconds)]
    from: Option<u64>,
    /// Only events before this time since the first event
    #[arg(long, value_name = "TIME", value_parser = nanoseconds)]
    to: Option<u64>,
    #[command(flatten)]
    tasks: Tasks,
}

/// The tasks that are shown as threads.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Tasks {
    /// Show each task of an async runtime as a thread of its own; with a name, only tasks with this
    /// name. Takes a recording of `record --tasks`
    #[arg(
        long = "task",
        value_name = "GLOB",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = ALL_TASKS
    )]
    task: Option<String>,
}

/// The name of all tasks.
const ALL_TASKS: &str = "*";

impl Part {
    /// Makes the whole recording, with these tasks as threads.
    pub(crate) fn of_tasks(tasks: Tasks) -> Self {
        Self {
            tasks,
            ..Self::default()
        }
    }

    /// Makes the part of one thread from this time on, in nanoseconds since the first event.
    pub(crate) fn from_time(from: u64, thread: u32) -> Self {
        Self {
            threads: vec![thread],
            from: Some(from),
            ..Self::default()
        }
    }
}

/// The source of the states of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum States {
    Exact,
    /// Samples, which are some time apart.
    Sampled,
    /// There are none: a function in which a thread may wait is taken to do only that.
    None,
}

/// The time that a view shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Measure {
    /// All of it
    #[default]
    Wall,
    /// Time on a processor
    Cpu,
    /// Time in which the thread could run and waited for a processor
    Runnable,
    /// Time in which the thread waited for something else: a lock, input, a sleep
    Blocked,
}

impl Measure {
    fn state(self) -> Option<State> {
        match self {
            Self::Wall => None,
            Self::Cpu => Some(State::Running),
            Self::Runnable => Some(State::Runnable),
            Self::Blocked => Some(State::Blocked),
        }
    }

    /// Returns the state of threads in which calls are measured. Says how the states were found, if
    /// they are not exact.
    ///
    /// # Errors
    ///
    /// Fails if the recording at `path` has no states.
    pub(crate) fn state_in(
        self,
        schedule: Option<&Schedule>,
        path: &Path,
    ) -> Result<Option<State>, Error> {
        match self.state() {
            None => Ok(None),
            state => check_states(schedule, path).map(|()| state),
        }
    }
}

/// Fails if there are no states of threads. Says how they were found, if they are not exact.
fn check_states(schedule: Option<&Schedule>, path: &Path) -> Result<(), Error> {
    match say_states(schedule) {
        States::None => {
            let path = path.display();
            Err(Error::Nothing(format!(
                "{path} has no states of threads; record again, without --no-sched"
            )))
        }
        _ => Ok(()),
    }
}

/// Says how the states of threads were found, if they are not exact.
fn say_states(schedule: Option<&Schedule>) -> States {
    let Some(schedule) = schedule else {
        return States::None;
    };
    if let lost @ 1.. = schedule.lost() {
        let lost = grouped(lost);
        say!("fgraph: {lost} switches between threads were lost; times are not exact");
    }
    if !schedule.is_sampled() {
        return States::Exact;
    }
    say!(
        "fgraph: the kernel refused to report switches between threads, so the states of \
         threads are from samples, some 20 ms apart: see docs/limits.md"
    );
    States::Sampled
}

/// Says how many threads have unknown states, where times were wanted in one state.
pub(crate) fn say_unknown(threads: u64) {
    match threads {
        0 => {}
        1 => say!("fgraph: the states of 1 thread are unknown; its calls count with all time"),
        more => {
            let more = grouped(more);
            say!(
                "fgraph: the states of {more} threads are unknown; their calls count with all time"
            );
        }
    }
}

/// Parses a time such as `10ms`, in nanoseconds.
pub(crate) fn nanoseconds(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, f64); 8] = [
        ("ns", 1.0),
        ("us", 1e3),
        ("µs", 1e3),
        ("ms", 1e6),
        ("s", 1e9),
        ("m", 60e9),
        ("min", 60e9),
        ("h", 3600e9),
    ];
    let text = text.trim();
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let number = text[..text.len() - unit.len()].parse::<f64>();
    let known = UNITS.iter().find(|(name, _)| *name == unit.trim());
    match (number, known) {
        (Ok(number), Some((_, factor))) => Ok((number * factor) as u64),
        _ => Err("a time is a number and one of ns, us, ms, s, m, h: 10ms".to_owned()),
    }
}

/// Parses a time such as `10ms`.
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    nanoseconds(text).map(Duration::from_nanos)
}

/// Parses a size: `100M`, `64MiB`.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 3] = [("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30)];
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let is_it = |name: &str| {
        let names = [name.to_owned(), format!("{name}iB"), format!("{name}B")];
        names.iter().any(|name| name.eq_ignore_ascii_case(unit))
    };
    let known = UNITS.iter().find(|(name, _)| is_it(name));
    let value = number.parse::<u64>().ok().zip(known);
    let value = value.and_then(|(number, (_, factor))| number.checked_mul(*factor));
    value.ok_or_else(|| "a size is a number and one of K, M, G: 100M".to_owned())
}

/// Makes a matcher of globs that select functions as in `record`: [`parse_patterns`].
pub(crate) fn matcher(globs: &[String]) -> Result<Option<Matcher>, Error> {
    if globs.is_empty() {
        return Ok(None);
    }
    let mut words = Vec::new();
    for glob in globs {
        words.extend(parse_patterns(glob).map_err(Error::Usage)?.words());
    }
    let filter: Result<Filter, _> = words.join(" ").parse();
    let filter = filter.map_err(|error| Error::Usage(error.to_string()))?;
    let matches =
        move |name: &str, module: &str| filter.matches(&FunctionFacts::new(&[name], module));
    Ok(Some(Box::new(matches)))
}

/// Names without control characters for a terminal.
#[derive(Debug)]
pub(crate) struct ShownNames {
    pub(crate) names: Names,
    /// The number of descriptions in it.
    known: usize,
}

impl ShownNames {
    pub(crate) fn new(process: u32) -> Self {
        Self {
            names: Names::new(process),
            known: 0,
        }
    }

    /// Adds the new descriptions.
    #[inline]
    pub(crate) fn learn(&mut self, from: &Names) {
        let all = from.descriptions();
        if all.len() == self.known {
            return;
        }
        for description in &all[self.known..] {
            self.add(description.clone());
        }
        self.known = all.len();
    }

    fn add(&mut self, mut description: Description) {
        // The awaits of a task are lines; each is escaped where it is shown.
        let has_lines = description.kind == DescriptionKind::Await;
        for text in description.texts.iter_mut().filter(|_| !has_lines) {
            if let std::borrow::Cow::Owned(shown) = escaped(text) {
                *text = shown;
            }
        }
        self.names.add(description);
    }
}

/// A part of a recording. Its names have no control characters for a terminal.
#[derive(Debug)]
pub(crate) struct View {
    recording: Recording,
    shown: ShownNames,
    first: Option<u64>,
    threads: HashSet<u32>,
    /// In nanoseconds since the first event, and in ticks of the clock.
    asked: (Option<u64>, Option<u64>),
    from: u64,
    to: u64,
    is_whole: bool,
    /// True if a part was asked for, until an event of it is found.
    is_empty: bool,
    is_over: bool,
    gives_running: bool,
    /// The thread of the last event, if its time of running is given.
    thread: u32,
    /// The lanes of tasks, if they are shown.
    lanes: Option<Lanes>,
    /// Process and thread of the last event, and its lane, if lanes are shown.
    lane: ((u32, u32), u32),
    /// The file, if all of it is shown.
    opened: Option<Opened>,
}

impl View {
    pub(crate) fn of(recording: Recording, part: &Part) -> Result<Self, SourceError> {
        Self::from_first(recording, part, None)
    }

    /// Makes the part of a recording whose first event is known.
    fn from_first(
        recording: Recording,
        part: &Part,
        first: Option<u64>,
    ) -> Result<Self, SourceError> {
        let is_whole = part.threads.is_empty() && part.from.is_none() && part.to.is_none();
        let mut this = Self {
            shown: ShownNames::new(recording.lanes().info().process),
            first,
            threads: part.threads.iter().copied().collect(),
            asked: (part.from, part.to),
            from: 0,
            to: u64::MAX,
            is_whole,
            is_empty: !is_whole,
            is_over: false,
            gives_running: false,
            thread: 0,
            lanes: None,
            lane: ((0, 0), 0),
            opened: None,
            recording,
        };
        this.count_from_first();
        this.look()?;
        Ok(this)
    }

    /// Adds descriptions.
    pub(crate) fn describe(&mut self, descriptions: Vec<Description>) {
        for description in descriptions {
            self.shown.add(description);
        }
    }

    /// Returns the ticks of the first event of the recording; 0 while there is none.
    pub(crate) fn first(&self) -> u64 {
        self.first.unwrap_or(0)
    }

    /// Returns the process that was recorded first.
    pub(crate) fn process(&self) -> u32 {
        self.recording.lanes().info().process
    }

    /// Returns the command line of that process.
    pub(crate) fn command(&self) -> &[String] {
        &self.recording.lanes().info().command
    }

    /// Fails if the recording is cut off or damaged, as far as it was read. Says so if nothing was
    /// in the requested part.
    pub(crate) fn check_whole(&self, path: &Path) -> Result<(), Error> {
        if self.is_empty {
            let path = path.display().to_string();
            say!(
                "fgraph: no event of {} is in the part that --thread, --from and --to select",
                escaped(&path)
            );
        }
        check_whole(path, &self.recording)
    }

    /// Does the same as the function [`has_all`].
    pub(crate) fn has_all(&self) -> bool {
        has_all(&self.recording)
    }

    /// Returns the place of the summary for a question about the recording: see [`Summary::of`].
    /// A part of a recording has none.
    pub(crate) fn summary(&self, question: &impl Serialize) -> Option<Summary> {
        let opened = self.opened.as_ref().filter(|_| !self.gives_running)?;
        Summary::of(opened, &self.shown.names, question)
    }

    /// Returns the state of threads in which calls are measured, as [`Measure::state_in`] does.
    pub(crate) fn state_of(&self, time: Measure, path: &Path) -> Result<Option<State>, Error> {
        if self.lanes.is_some() && time != Measure::Wall {
            let why = "--task shows all time of calls: leave out --time";
            return Err(Error::Usage(why.to_owned()));
        }
        time.state_in(self.recording.schedule(), path)
    }

    /// Says how the states of threads were found, if they are not exact.
    pub(crate) fn say_states(&self) -> States {
        say_states(self.recording.schedule())
    }

    /// Gives events the time that their threads have run, from the states of threads.
    ///
    /// # Errors
    ///
    /// Fails if there are no states in the recording.
    pub(crate) fn give_running(&mut self, path: &Path) -> Result<(), Error> {
        check_states(self.recording.schedule(), path)?;
        self.gives_running = true;
        Ok(())
    }

    /// Returns the nanoseconds that a thread has run up to a time, if that is wanted and known.
    fn running(&self, thread: u32, time: u64) -> Option<u64> {
        let schedule = self.recording.schedule().filter(|_| self.gives_running)?;
        let running = schedule.at(thread, time)?.running;
        Some(self.recording.clock().nanoseconds(running))
    }

    /// Returns true if more may be written.
    pub(crate) fn is_growing(&self) -> bool {
        self.recording.lanes().is_growing()
    }

    /// Returns true if there is a next event now.
    pub(crate) fn is_ready(&mut self) -> Result<bool, SourceError> {
        self.look()?;
        if !self.is_whole {
            self.skip()?;
        }
        let is_ready = self.recording.is_ready()?;
        self.shown.learn(self.recording.names());
        Ok(!self.is_over && is_ready)
    }

    /// Processes new descriptions.
    fn look(&mut self) -> Result<(), SourceError> {
        if self.first.is_none() {
            self.first = self.recording.next_time()?;
            self.count_from_first();
        }
        self.shown.learn(self.recording.names());
        Ok(())
    }

    /// Computes the times of the part, once the first event is known.
    fn count_from_first(&mut self) {
        if let Some(first) = self.first {
            let clock = self.recording.clock();
            let ticks = |ns: u64| first.saturating_add(clock.ticks(ns));
            self.from = self.asked.0.map_or(0, ticks);
            self.to = self.asked.1.map_or(u64::MAX, ticks);
        }
    }

    /// Skips events outside of the part.
    fn skip(&mut self) -> Result<(), SourceError> {
        while let Some(next) = self.recording.peek()? {
            self.is_over = next.time > self.to;
            let is_of_thread = self.threads.is_empty() || self.threads.contains(&next.thread);
            if self.is_over {
                break;
            }
            if next.time >= self.from && is_of_thread {
                self.is_empty = false;
                let thread = (next.process, next.thread);
                match &mut self.lanes {
                    Some(lanes) if lanes.next(thread).is_none() => _ = lanes.take(thread),
                    _ => break,
                }
            }
            self.recording.next()?;
        }
        Ok(())
    }
}

impl Source for View {
    #[inline]
    fn next(&mut self) -> Result<Option<Event<'_>>, SourceError> {
        if !self.is_whole {
            self.skip()?;
        }
        if self.is_over {
            return Ok(None);
        }
        if !self.gives_running && self.lanes.is_none() {
            return self.recording.next();
        }
        let Some(next) = self.recording.peek()? else {
            return self.recording.next();
        };
        self.thread = next.thread;
        let running = self.running(next.thread, next.time);
        if let Some(lanes) = &mut self.lanes {
            let thread = (next.process, next.thread);
            self.lane = (thread, lanes.take(thread));
        }
        let mut event = self.recording.next()?;
        if let Some(event) = &mut event {
            if self.gives_running {
                event.running = running;
            }
            if self.lanes.is_some() {
                event.thread = self.lane.1;
            }
        }
        Ok(event)
    }

    fn upcoming(&self) -> Option<Upcoming<'_>> {
        let next = self.recording.upcoming();
        let mut next = next.filter(|next| next.time <= self.to)?;
        if let Some(lanes) = &self.lanes {
            lanes.is_next(self.lane.0, self.lane.1).then_some(())?;
        }
        if self.gives_running {
            next.running = self.running(self.thread, next.time);
        }
        Some(next)
    }

    fn schedule(&self) -> Option<&Schedule> {
        // States are those of threads.
        self.recording.schedule().filter(|_| self.lanes.is_none())
    }

    fn is_over(&self) -> bool {
        self.is_over || self.recording.is_over()
    }

    fn clock(&self) -> &Clock {
        self.recording.clock()
    }

    fn names(&self) -> &Names {
        &self.shown.names
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Arc;

    use fgraph_trace::event::{Kind, What, call};
    use fgraph_trace::recording::{Drain, Info};
    use fgraph_trace::ring::{Extras, RingOptions, Rings};

    use super::*;

    #[test]
    fn a_part_of_a_recording_has_its_events_with_all_that_belongs_to_them() {
        let rings = Arc::new(Rings::create(&RingOptions::default()).unwrap());
        let start = rings.clock().first().ticks;
        for thread in [1, 2] {
            let writer = rings.writer(9, thread).unwrap();
            let extras = Extras {
                arguments: &[7, 8],
                caller: Some(0x77),
                running: Some(5),
                values: &[3],
                stack: &[0x77, 0x88],
                ..Extras::default()
            };
            writer.call_with(
                call(Kind::Entry, thread),
                start + u64::from(thread),
                &extras,
            );
        }
        rings.finish();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fgraph.data");
        let drain = Drain::new(
            rings,
            File::create(&path).unwrap(),
            &Info::of_this_process(),
        );
        drain.unwrap().finish().unwrap();
        let part = Part {
            threads: vec![2],
            ..Part::default()
        };
        let mut view = Input { path }.view(&part).unwrap();
        let event = view.next().unwrap().unwrap();
        let What::Entry {
            function,
            arguments,
            caller,
            ..
        } = event.what
        else {
            panic!("{event:?}");
        };
        assert_eq!((event.process, event.thread, function), (9, 2, 2));
        assert_eq!((arguments, caller), (&[7, 8][..], Some(0x77)));
        assert_eq!((event.running, event.values), (Some(5), &[3][..]));
        assert_eq!(event.stack, [0x77, 0x88]);
        assert_eq!(view.next().unwrap(), None);
    }

    #[test]
    fn times_have_units() {
        for (text, expected) in [
            ("10ms", 10_000_000),
            ("1.5s", 1_500_000_000),
            ("7 us", 7_000),
            ("2min", 120_000_000_000),
            ("2m", 120_000_000_000),
            ("120 s", 120_000_000_000),
        ] {
            assert_eq!(nanoseconds(text), Ok(expected));
        }
        for text in ["", "10", "ms", "-1s", "1d", "é", "1..2s", "5 q"] {
            assert!(nanoseconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_have_units() {
        for (text, expected) in [("3k", 3 << 10), ("2G", 2 << 30), ("64MiB", 64 << 20)] {
            assert_eq!(parse_size(text), Ok(expected));
        }
        for text in ["", "5", "M", "5 q", "99999999999999999999"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
