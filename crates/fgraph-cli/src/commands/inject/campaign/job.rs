//! One run of the program of a campaign, in a process of its own.
//!
//! The process that does it is this command again. All processes that the program makes and leaves
//! become its children, so that it can end them. It writes nothing but a file with the outcome:
//! standard output and standard error are the program's.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fgraph_analysis::addresses::Addresses as _;
use fgraph_protocol::{Settings, Tool};
use fgraph_trace::Source as _;
use fgraph_trace::ring::Mode;
use fgraph_tracers::probe::fault::{CallPath, Fault, read_path};
use rustix::process::{self, Pid, Resource, Rlimit, Signal, WaitOptions};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::launch::events::Events;
use crate::launch::interrupt::Interrupts;
use crate::launch::{NAP, Target};
use crate::output::Out;
use crate::places::Places;
use crate::target::Pattern;
use crate::unmatched;

/// The file with the job, in the folder of the run.
pub(super) const JOB: &str = "job.json";
/// The file with the outcome.
pub(super) const OUTCOME: &str = "outcome.json";
/// The program's output.
pub(super) const OUT: &str = "out";
/// The program's messages.
pub(super) const ERR: &str = "err";

/// The most bytes that a program may write to its output, and to its messages.
const MOST_OUTPUT: u64 = 64 << 20;
/// The time for which the program's children may go on after its end.
const GRACE: Duration = Duration::from_secs(1);
/// The time in which killed processes end.
const DYING: Duration = Duration::from_secs(5);

/// The work of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    /// Words of a filter: the functions of all runs, so that all runs have the same call paths.
    pub(super) words: Vec<String>,
    pub(super) within: Vec<String>,
    pub(super) follow: bool,
    /// Patterns that are reported if they match no function.
    pub(super) patterns: Vec<Pattern>,
    pub(super) fault: Fault,
    /// The most calls of each call path that are listed.
    pub(super) calls: u64,
    pub(super) limit: Duration,
}

/// The end of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Exit {
    Code(i32),
    Signal(i32),
    /// It was killed because it did not end in time.
    TimedOut,
    /// It was killed because it wrote too much.
    TooMuch,
    /// This command was interrupted.
    Interrupted,
}

/// The result of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Outcome {
    pub(super) exit: Exit,
    pub(super) time: Duration,
    /// The listed calls, in their order.
    pub(super) calls: Vec<Listed>,
    /// The number of changed calls.
    pub(super) changed: u64,
    /// Programs that are not recorded, with the reasons.
    pub(super) refused: Vec<(String, String)>,
    /// Messages about patterns that match no function.
    pub(super) unmatched: Vec<String>,
}

impl Outcome {
    /// Makes the outcome of a run from its end alone.
    pub(super) fn without_end(exit: Exit) -> Self {
        Self {
            exit,
            time: Duration::ZERO,
            calls: Vec::new(),
            changed: 0,
            refused: Vec::new(),
            unmatched: Vec::new(),
        }
    }
}

/// The contents of the file with the outcome.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Done(Outcome),
    Failed(String),
}

/// A call that can fail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Listed {
    pub(super) path: CallPath,
    /// The number of calls of this path before it, in all processes.
    pub(super) before: u64,
    pub(super) function: String,
    pub(super) module: String,
    /// The functions around it, innermost first, each with its module.
    pub(super) callers: Vec<String>,
}

/// Does the job in a folder. Errors go to the file with the outcome.
pub(super) fn work(folder: &Path, command: &[OsString]) -> Result<ExitCode, Error> {
    let wrong = |error| Error::Input {
        path: folder.join(JOB),
        error,
    };
    let job = fs::read(folder.join(JOB)).map_err(wrong)?;
    let job: Job = serde_json::from_slice(&job).map_err(|error| wrong(error.into()))?;
    let answer = match run(folder, &job, command) {
        Ok(outcome) => Answer::Done(outcome),
        Err(error) => Answer::Failed(error.message().unwrap_or_default()),
    };
    let text = serde_json::to_vec(&answer).unwrap_or_default();
    let path = folder.join(OUTCOME);
    fs::write(&path, text).map_err(|error| Error::Write { path, error })?;
    Ok(ExitCode::SUCCESS)
}

/// Leaves the terminal, adopts the program's processes, and ends with the process that has started
/// this one. Without one of these a run is less tidy, and its result is the same.
fn leave() {
    _ = process::setsid();
    _ = process::set_child_subreaper(Some(process::getpid()));
    _ = process::set_parent_process_death_signal(Some(Signal::TERM));
    let none = Rlimit {
        current: Some(0),
        maximum: process::getrlimit(Resource::Core).maximum,
    };
    // A core would be one of the files that the program leaves.
    _ = process::setrlimit(Resource::Core, none);
}

fn run(folder: &Path, job: &Job, command: &[OsString]) -> Result<Outcome, Error> {
    leave();
    let mut settings = Settings {
        tool: Tool::Inject(job.fault),
        ..Settings::default()
    };
    settings.which.trace = job.words.clone();
    settings.which.within = job.within.clone();
    let interrupts = Interrupts::catch();
    let program = Target::new(!job.follow, &[], command).find(settings)?;
    let program = program.for_time(Some(job.limit));
    let since = Instant::now();
    let mut launched = program.apart().start(Mode::Block)?;
    let group = Pid::from_raw(launched.process() as i32);
    let is_over = Arc::new(AtomicBool::new(false));
    let watcher = {
        let (is_over, folder) = (Arc::clone(&is_over), folder.to_owned());
        thread::spawn(move || watch(&folder, group, &is_over))
    };
    let (mut out, mut places) = (Out::new(), Places::of_running(launched.generated()));
    let mut events = Events::new(&mut launched, &interrupts)?;
    let (mut calls, mut changed) = (Vec::new(), 0);
    // The functions around, and the number of calls in all processes.
    let mut known: HashMap<CallPath, (Vec<String>, u64)> = HashMap::new();
    while let Some(found) = events.find(&mut out)? {
        let names = events.names();
        match (read_path(&found.words), &found.words[..]) {
            (Some(call), _) => {
                let (callers, count) = known.entry(call.path).or_default();
                if callers.is_empty() {
                    let name = |&address: &u64| places.caller(names, found.process, address);
                    *callers = call.callers.iter().map(name).collect();
                }
                let before = *count;
                *count += 1;
                if before >= job.calls {
                    continue;
                }
                let function = names.function(found.process, call.function);
                calls.push(Listed {
                    path: call.path,
                    before,
                    function: names.function_name(found.process, call.function),
                    module: function.map_or(String::new(), |known| known.module.clone()),
                    callers: callers.clone(),
                });
            }
            (None, [_, _]) => changed += 1,
            // A lost event was a call, too.
            (None, _) => changed += found.lost,
        }
    }
    let shown = command.first().map(|it| it.to_string_lossy().into_owned());
    let shown = shown.unwrap_or_default();
    let unmatched = unmatched::of_program(&job.patterns, &shown, events.names(), None, false);
    let refused = events.names().refused().to_vec();
    drop(events);
    changed += launched.rings().events_without_ring();
    let has_ended = launched.has_ended();
    if let Some(group) = group.filter(|_| !has_ended) {
        _ = process::kill_process_group(group, Signal::KILL);
        launched.wait_for(DYING);
    }
    let time = since.elapsed();
    is_over.store(true, Ordering::Relaxed);
    let is_flooded = watcher.join().unwrap_or(false);
    let status = launched.status();
    end_children(has_ended && !is_flooded);
    let code = status.and_then(|status| status.code());
    let signal = status.and_then(|status| status.signal());
    let exit = match (code, signal) {
        _ if interrupts.count() > 0 => Exit::Interrupted,
        _ if is_flooded => Exit::TooMuch,
        _ if !has_ended => Exit::TimedOut,
        (Some(code), _) => Exit::Code(code),
        (None, Some(signal)) => Exit::Signal(signal),
        (None, None) => Exit::TimedOut,
    };
    Ok(Outcome {
        exit,
        time,
        calls,
        changed,
        refused,
        unmatched: unmatched.messages,
    })
}

/// Kills the program if it writes too much; returns true if it did.
fn watch(folder: &Path, group: Option<Pid>, is_over: &AtomicBool) -> bool {
    let files = [OUT, ERR].map(|name| folder.join(name));
    while !is_over.load(Ordering::Relaxed) {
        let is_large = |file| fs::metadata(file).is_ok_and(|file| file.len() > MOST_OUTPUT);
        if files.iter().any(is_large) {
            _ = group.map(|group| process::kill_process_group(group, Signal::KILL));
            return true;
        }
        thread::sleep(4 * NAP);
    }
    false
}

/// Waits for the processes that the program has left, and kills them in the end. Without grace they
/// are killed at once.
fn end_children(has_grace: bool) {
    let grace = if has_grace { GRACE } else { Duration::ZERO };
    let since = Instant::now();
    while since.elapsed() < grace + DYING {
        match process::wait(WaitOptions::NOHANG) {
            // An error means that there are no more.
            Err(_) => return,
            Ok(Some(_)) => continue,
            Ok(None) => {}
        }
        if since.elapsed() >= grace {
            for child in children() {
                _ = process::kill_process(child, Signal::KILL);
            }
        }
        thread::sleep(NAP);
    }
}

/// Returns the children of this process.
fn children() -> Vec<Pid> {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten();
    let lists = threads.filter_map(|thread| {
        let path = thread.ok()?.path().join("children");
        fs::read_to_string(path).ok()
    });
    let pids = |list: String| -> Vec<Pid> {
        let ids = list.split_whitespace().filter_map(|id| id.parse().ok());
        ids.filter_map(Pid::from_raw).collect()
    };
    lists.flat_map(pids).collect()
}
