//! `fgraph inject --campaign`: makes each call of a program fail in a run of its own.
//!
//! ```text
//!   two plain runs     list the call paths, and show what differs each time
//!   a run for a call   has that call fail; job.rs does it in a process of its own
//!   compare.rs         judges the run by the plain ones
//! ```

mod compare;
mod errors;
mod files;
mod job;
mod runner;
mod state;
mod view;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use compare::{Compared, Plain, Ran, Verdict};
use errors::{Failing, Failure, failure_of};
use fgraph_protocol::Settings;
use fgraph_trace::place;
use fgraph_tracers::probe::fault::{CallPath, Fault};
use job::{Exit, Job, Listed};
use runner::Runner;
use state::State;
use view::{Campaign, Run};

use crate::error::Error;
use crate::input::parse_time;
use crate::json;
use crate::launch::interrupt::{Interrupts, code_of};
use crate::launch::{NAP, Target};
use crate::output::StatusLine;
use crate::target::Patterns;
use crate::text::{self, counted, escaped, grouped, time};

/// Options of a campaign.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Make each call of the functions fail, one in each run of the program, and show how the
    /// program takes it. FUNCTION and HOW are then functions, such as 'libc:open*' malloc. Each
    /// fails with its usual error, or a given one: 'libc:write=-1/EIO'
    #[arg(long, conflicts_with = "pid")]
    pub(super) campaign: bool,
    /// Run the program in a copy of this directory, a new one for each run, and compare the files
    /// that it leaves there
    #[arg(long, value_name = "DIR", requires = "campaign")]
    dir: Option<PathBuf>,
    /// Give the program this file as its input, which is empty otherwise
    #[arg(long, value_name = "FILE", requires = "campaign")]
    stdin: Option<PathBuf>,
    /// The number of runs at the same time; without --dir the program must bear that
    #[arg(
        short,
        long,
        value_name = "N",
        default_value = "1",
        requires = "campaign"
    )]
    jobs: NonZeroUsize,
    /// A program that runs longer than this is hung, and is killed. The default is 10 times the
    /// plain run, and at least 5s; for the plain run itself it is 60s
    #[arg(long, value_name = "TIME", value_parser = parse_time, requires = "campaign")]
    timeout: Option<Duration>,
    /// Make the first N calls with the same callers fail, each in its turn
    #[arg(long, value_name = "N", default_value_t = 1, requires = "campaign")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    calls: u64,
    /// Tell calls apart by this number of callers
    #[arg(long, value_name = "N", default_value_t = 16, requires = "campaign")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=64))]
    callers: u64,
    /// The most calls that are made to fail
    #[arg(long, value_name = "N", default_value_t = 1000, requires = "campaign")]
    limit: usize,
    /// Keep results in this file. The same command goes on where it was interrupted
    #[arg(long, value_name = "FILE", requires = "campaign")]
    state: Option<PathBuf>,
    /// Exit with 3 if a run has one of these results
    #[arg(
        long,
        value_name = "RESULT",
        value_delimiter = ',',
        requires = "campaign"
    )]
    fail_on: Vec<Verdict>,
    /// Write the results to this file as XML of JUnit. The results of --fail-on are failures;
    /// without it all but `reported` and `not-reached` are
    #[arg(long, value_name = "FILE", requires = "campaign")]
    junit: Option<PathBuf>,
    /// Show the runs in which the program reported the failure, or did not make the call, too
    #[arg(long, requires = "campaign")]
    all: bool,
    /// The most runs to show
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        default_value_t = 40,
        requires = "campaign"
    )]
    lines: usize,
    /// Print one JSON object
    #[arg(long, requires = "campaign")]
    json: bool,
    /// Does the job of one run in this folder.
    #[arg(long, value_name = "DIR", hide = true)]
    pub(super) one: Option<PathBuf>,
}

/// The longest plain run, unless a time is given.
const PLAIN: Duration = Duration::from_secs(60);
/// The time between the plain runs, so that they differ where a program stores the second.
const APART: Duration = Duration::from_millis(1100);
/// The shortest time after which a program is hung.
const SHORTEST: Duration = Duration::from_secs(5);
/// A program is hung after this number of times of the plain run.
const TIMES: u32 = 10;
/// The time between two updates of the progress.
const SHOWN: Duration = Duration::from_millis(250);
/// The columns of the progress bar.
const BAR: usize = 24;
/// The most names in a message.
const NAMED: usize = 8;

/// A call that is made to fail.
#[derive(Clone, Debug)]
struct Case {
    call: Listed,
    failure: Failure,
}

impl Case {
    /// Returns a name of the call path.
    fn path(&self) -> String {
        let CallPath {
            function, callers, ..
        } = self.call.path;
        format!("{function:016x}{callers:016x}")
    }

    /// Returns the key by which a file with results knows it.
    fn key(&self) -> (String, u64, String) {
        (self.path(), self.call.before + 1, self.failure.to_string())
    }
}

/// Does the job of one run in a folder.
pub(super) fn do_job(folder: &Path, command: &[OsString]) -> Result<ExitCode, Error> {
    job::work(folder, command)
}

/// Runs the campaign on a program. `words` are functions, and those that the calls are `from`.
pub(super) fn run(
    options: &Options,
    words: &[&str],
    from: &[Patterns],
    no_follow: bool,
    command: &[OsString],
) -> Result<ExitCode, Error> {
    let failing: Result<Vec<Failing>, _> = words.iter().map(|word| Failing::parse(word)).collect();
    let failing = failing?;
    let job = job_of(options, &failing, from, !no_follow);
    // Says at once why a program cannot be run.
    let mut settings = Settings::default();
    settings.which.trace = job.words.clone();
    settings.which.within = job.within.clone();
    Target::new(no_follow, &[], command).find(settings)?;
    let runner = Runner::new(command, options.dir.as_deref(), options.stdin.as_deref())?;
    let text = |text: &OsString| text.to_string_lossy().into_owned();
    let campaign = state::Campaign {
        version: 1,
        command: command.iter().map(text).collect(),
        functions: words.iter().map(|word| (*word).to_owned()).collect(),
        options: options.that_matter(&job),
    };
    // Before the plain runs, which take time.
    let state = match &options.state {
        Some(path) => Some(State::open(path, &campaign)?),
        None => None,
    };
    let (state, known) = state.map_or((None, Vec::new()), |(state, known)| (Some(state), known));
    let interrupts = Interrupts::catch();
    let mut progress = Progress::new();
    let Some([first, second]) = plain_runs(&runner, &job, &mut progress, &interrupts)? else {
        return Ok(interrupted(&interrupts));
    };
    let plain_time = first.outcome.time.max(second.outcome.time);
    let limit = options
        .timeout
        .unwrap_or_else(|| SHORTEST.max(plain_time * TIMES));
    let (mut cases, without_error) = cases(&first, &second, &failing);
    say_about(&first, &without_error);
    if cases.is_empty() {
        if !first.outcome.refused.is_empty() {
            return Err(Error::Refused);
        }
        return Err(Error::Nothing(no_calls(&failing, from, &without_error)));
    }
    let beyond_limit = cases.len().saturating_sub(options.limit);
    cases.truncate(options.limit);
    if beyond_limit > 0 {
        let left_out = text::calls(beyond_limit as u64);
        say!("fgraph: {left_out} left out by --limit");
    }
    let plain = Plain::new(first, &second);
    let not_compared = plain.not_compared();
    if !not_compared.is_empty() {
        let named = shortened(&not_compared);
        say!("fgraph: not compared, since two plain runs differ there: {named}");
    }
    let mut runs = Runs {
        state,
        done: known_results(&cases, known),
        progress,
    };
    let resumed = runs.done.iter().flatten().count();
    if resumed > 0 {
        say!("fgraph: {} done before", counted(resumed as u64, "run"));
    }
    let job = Job {
        patterns: Vec::new(),
        limit,
        ..job
    };
    let asked = Asked {
        options,
        runner: &runner,
        job: &job,
        plain: &plain,
        interrupts: &interrupts,
    };
    runs.complete(&asked, &cases)?;
    runs.progress.end();
    let left = runs.done.iter().filter(|run| run.is_none()).count();
    let done: Vec<Run> = runs.done.into_iter().flatten().collect();
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let view = Campaign {
        command: campaign.command,
        limit_ns: nanoseconds(limit),
        plain_ns: nanoseconds(plain_time),
        not_compared,
        without_error,
        beyond_limit: beyond_limit as u64,
        left: left as u64,
        verdicts: counts(done.iter()),
        runs: done,
    };
    finish(options, &view, &interrupts)
}

/// Returns the job of a plain run.
fn job_of(options: &Options, failing: &[Failing], from: &[Patterns], follow: bool) -> Job {
    let patterns = failing.iter().map(|failing| &failing.patterns).chain(from);
    Job {
        words: failing.iter().flat_map(|it| it.patterns.words()).collect(),
        within: from.iter().flat_map(Patterns::words).collect(),
        follow,
        patterns: patterns.flat_map(|patterns| patterns.0.clone()).collect(),
        fault: Fault::list(options.callers as usize, options.calls),
        calls: options.calls,
        limit: options.timeout.unwrap_or(PLAIN),
    }
}

/// Makes two runs without any failure. `None` if an interrupt ends them.
fn plain_runs(
    runner: &Runner,
    job: &Job,
    progress: &mut Progress,
    interrupts: &Interrupts,
) -> Result<Option<[Ran; 2]>, Error> {
    progress.line.show("plain run 1 of 2");
    let since = Instant::now();
    let Some(first) = plain(runner, 1, job, interrupts)? else {
        return Ok(None);
    };
    progress.line.show("plain run 2 of 2");
    while since.elapsed() < APART && interrupts.count() == 0 {
        thread::sleep(NAP);
    }
    let Some(second) = plain(runner, 2, job, interrupts)? else {
        return Ok(None);
    };
    progress.end();
    Ok(Some([first, second]))
}

/// Shows and writes the results; returns the exit code.
fn finish(options: &Options, view: &Campaign, interrupts: &Interrupts) -> Result<ExitCode, Error> {
    match options.json {
        true => json::write(view)?,
        false => view.show(options.all, options.lines)?,
    }
    if let Some(path) = &options.junit {
        let failures = match options.fail_on.is_empty() {
            true => &Verdict::ALL[..5],
            false => &options.fail_on,
        };
        place::write(path, view.junit(failures)).map_err(|error| Error::Write {
            path: path.clone(),
            error,
        })?;
    }
    if view.verdicts.contains_key(&Verdict::Hung) {
        let limit = time(view.limit_ns);
        say!("fgraph: a program is hung after {limit}: --timeout");
    }
    if interrupts.count() > 0 {
        let how = match options.state {
            Some(_) => "; the same command goes on",
            None => "; with --state the same command would go on",
        };
        say!("fgraph: {} left{how}", counted(view.left, "run"));
        return Ok(interrupted(interrupts));
    }
    let fails = |verdict: &&Verdict| view.verdicts.contains_key(verdict);
    let mut failed: Vec<Verdict> = options.fail_on.iter().filter(fails).copied().collect();
    failed.sort();
    failed.dedup();
    for verdict in &failed {
        let count = view.verdicts.get(verdict).copied().unwrap_or(0);
        say!("fails: {} {}", counted(count, "run"), verdict.words());
    }
    match failed.is_empty() {
        true => Ok(ExitCode::SUCCESS),
        false => Ok(ExitCode::from(3)),
    }
}

/// Returns the exit code of shells for a command that was interrupted.
fn interrupted(interrupts: &Interrupts) -> ExitCode {
    code_of(interrupts.newest())
}

/// Returns the number of runs with each verdict.
fn counts<'r>(runs: impl Iterator<Item = &'r Run>) -> BTreeMap<Verdict, u64> {
    let mut counts = BTreeMap::new();
    for run in runs {
        *counts.entry(run.verdict).or_default() += 1;
    }
    counts
}

impl Options {
    /// Returns the options that change results.
    fn that_matter(&self, job: &Job) -> Vec<String> {
        let path = |path: &Option<PathBuf>| format!("{:?}", path.as_deref().map(Path::display));
        vec![
            format!("dir {}", path(&self.dir)),
            format!("stdin {}", path(&self.stdin)),
            format!("callers {}", self.callers),
            format!("from {}", job.within.join(" ")),
            format!("follow {}", job.follow),
        ]
    }
}

/// Runs the program without a failure. `None` if it was interrupted.
fn plain(
    runner: &Runner,
    number: usize,
    job: &Job,
    interrupts: &Interrupts,
) -> Result<Option<Ran>, Error> {
    let ran = runner.run(number, job, || interrupts.count() > 0)?;
    let how = match ran.outcome.exit {
        Exit::Interrupted => return Ok(None),
        Exit::TimedOut => {
            let limit = time(job.limit.as_nanos() as u64);
            format!("has not ended within {limit}; --timeout sets another limit")
        }
        Exit::TooMuch => "writes too much output".to_owned(),
        Exit::Code(_) | Exit::Signal(_) => return Ok(Some(ran)),
    };
    Err(Error::Nothing(format!(
        "without any failure, the program {how}"
    )))
}

/// Returns the calls that can fail, in the order in which the program makes them, and the called
/// functions without a known error.
fn cases(first: &Ran, second: &Ran, failing: &[Failing]) -> (Vec<Case>, Vec<String>) {
    let (mut cases, mut seen, mut unknown) = (Vec::new(), HashSet::new(), BTreeSet::new());
    for call in first.outcome.calls.iter().chain(&second.outcome.calls) {
        if !seen.insert((call.path, call.before)) {
            continue;
        }
        match failure_of(failing, &call.function, &call.module) {
            Some(failure) => cases.push(Case {
                call: call.clone(),
                failure,
            }),
            None => {
                unknown.insert(call.function.clone());
            }
        }
    }
    (cases, unknown.into_iter().collect())
}

/// Reports programs and functions that take no part.
fn say_about(ran: &Ran, without_error: &[String]) {
    for (program, why) in &ran.outcome.refused {
        let [program, why] = [program, why].map(|text| escaped(text));
        say!("fgraph: {program} is not recorded: {why}");
    }
    for text in &ran.outcome.unmatched {
        say!("fgraph: {}", escaped(text));
    }
    if let Some(example) = without_error.first() {
        let named = shortened(without_error);
        let example = escaped(example);
        say!("fgraph: no error is known for {named}; one is given by '{example}=-1/EIO'");
    }
    match ran.outcome.exit {
        Exit::Code(0) => {}
        Exit::Code(code) => say!("fgraph: the program exits with {code} without any failure"),
        Exit::Signal(signal) => {
            say!("fgraph: signal {signal} ends the program without any failure");
        }
        Exit::TimedOut | Exit::TooMuch | Exit::Interrupted => {}
    }
}

/// Says that there is no call to fail.
fn no_calls(failing: &[Failing], from: &[Patterns], without_error: &[String]) -> String {
    if !without_error.is_empty() {
        return "the program calls no function whose error is known".to_owned();
    }
    let texts = |patterns: &mut dyn Iterator<Item = &Patterns>| -> Vec<String> {
        let words = patterns.flat_map(|patterns| &patterns.0);
        words.map(|pattern| pattern.text.clone()).collect()
    };
    let functions = shortened(&texts(&mut failing.iter().map(|it| &it.patterns)));
    let within = match &texts(&mut from.iter())[..] {
        [] => String::new(),
        within => format!(" inside {}", shortened(within)),
    };
    format!(
        "the program makes no call of {functions}{within}; `fgraph record --libs` shows what it \
         calls"
    )
}

/// Lists the first texts, and the number of others.
fn shortened(texts: &[String]) -> String {
    let shown = texts.iter().take(NAMED).map(|text| escaped(text));
    let shown = shown.collect::<Vec<_>>().join(", ");
    match texts.len().checked_sub(NAMED).filter(|&more| more > 0) {
        Some(more) => format!("{shown} and {more} more"),
        None => shown,
    }
}

/// Returns the results of cases that a file has.
fn known_results(cases: &[Case], known: Vec<Run>) -> Vec<Option<Run>> {
    let key = |run: &Run| (run.path.clone(), run.nth, run.error.clone());
    let mut known: HashMap<_, Run> = known.into_iter().map(|run| (key(&run), run)).collect();
    cases.iter().map(|case| known.remove(&case.key())).collect()
}

/// The unchanging data of a campaign.
#[derive(Clone, Copy)]
struct Asked<'c> {
    options: &'c Options,
    runner: &'c Runner,
    job: &'c Job,
    plain: &'c Plain,
    interrupts: &'c Interrupts,
}

impl Asked<'_> {
    /// Makes a call fail. `None` if the run was interrupted.
    fn run(&self, number: usize, case: &Case) -> Result<Option<Run>, Error> {
        let depth = self.options.callers as usize;
        let Listed { path, before, .. } = case.call;
        let fault = case.failure.fault().on_path(path, depth).nth(before + 1);
        let job = Job {
            fault,
            ..self.job.clone()
        };
        let is_enough = || self.interrupts.count() > 0;
        let ran = self.runner.run(number, &job, is_enough)?;
        if ran.outcome.exit == Exit::Interrupted {
            return Ok(None);
        }
        let Compared {
            verdict,
            message,
            output_differs,
            files,
        } = self.plain.compare(&ran);
        let (exit_code, signal) = match ran.outcome.exit {
            Exit::Code(code) => (Some(code), None),
            Exit::Signal(signal) => (None, Some(signal)),
            _ => (None, Some(libc::SIGKILL)),
        };
        Ok(Some(Run {
            function: case.call.function.clone(),
            module: case.call.module.clone(),
            callers: case.call.callers.clone(),
            nth: before + 1,
            path: case.path(),
            error: case.failure.to_string(),
            verdict,
            exit_code,
            signal,
            changed: ran.outcome.changed,
            message,
            output_differs,
            files,
            duration_ns: ran.outcome.time.as_nanos() as u64,
        }))
    }
}

/// The runs of a campaign, as far as they are done.
struct Runs {
    state: Option<State>,
    done: Vec<Option<Run>>,
    progress: Progress,
}

impl Runs {
    /// Does what is not done yet, several at the same time, until an interrupt comes.
    fn complete(&mut self, asked: &Asked<'_>, cases: &[Case]) -> Result<(), Error> {
        let is_open = |&at: &usize| self.done[at].is_none();
        let open: Vec<usize> = (0..cases.len()).filter(is_open).collect();
        let jobs = asked.options.jobs.get().min(open.len());
        // Relaxed: the number is the only data.
        let next = AtomicUsize::new(0);
        let (sender, results) = mpsc::channel();
        thread::scope(|scope| {
            for _ in 0..jobs {
                let (sender, open, next) = (sender.clone(), &open, &next);
                scope.spawn(move || {
                    while let Some(&at) = open.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if asked.interrupts.count() > 0 {
                            break;
                        }
                        // Runs 1 and 2 were the plain ones.
                        let result = asked.run(at + 3, &cases[at]);
                        let is_last = !matches!(result, Ok(Some(_)));
                        if sender.send((at, result)).is_err() || is_last {
                            break;
                        }
                    }
                });
            }
            drop(sender);
            loop {
                self.progress.show(&self.done);
                let (at, result) = match results.recv_timeout(SHOWN) {
                    Ok(result) => result,
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => return Ok(()),
                };
                let stored = result.and_then(|run| {
                    let Some(run) = run else {
                        return Ok(());
                    };
                    if let Some(state) = &mut self.state {
                        state.add(&run)?;
                    }
                    self.done[at] = Some(run);
                    Ok(())
                });
                if stored.is_err() {
                    // The other threads end after their runs.
                    next.store(open.len(), Ordering::Relaxed);
                    return stored;
                }
            }
        })
    }
}

/// A progress bar on a terminal.
#[derive(Debug)]
struct Progress {
    line: StatusLine,
    last: Option<Instant>,
}

impl Progress {
    fn new() -> Self {
        Self {
            line: StatusLine::new(false),
            last: None,
        }
    }

    fn show(&mut self, done: &[Option<Run>]) {
        let is_new = self.last.is_none_or(|last| last.elapsed() >= SHOWN);
        if !self.line.is_shown() || !is_new {
            return;
        }
        self.last = Some(Instant::now());
        let runs = done.iter().flatten();
        let counts = counts(runs.clone());
        let (count, all) = (runs.count(), done.len());
        let full = BAR * count / all.max(1);
        let mut text = format!(
            "[{}{}] {} of {}",
            "#".repeat(full),
            " ".repeat(BAR - full),
            grouped(count as u64),
            grouped(all as u64)
        );
        for (verdict, count) in counts {
            text += &format!(", {} {}", grouped(count), verdict.words());
        }
        self.line.show(&text);
    }

    fn end(&mut self) {
        self.line.show("");
    }
}
