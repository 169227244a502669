//! A program that can be recorded, until it runs with the agent inside.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use fgraph_protocol::{OwnRings, RingsFile, RingsPlace, Settings};
use fgraph_symbols::filter::Filter;
use fgraph_trace::ring::{Mode, RingOptions, Rings};
use fgraph_tracers::scheduling::Scheduling;

use super::attach::{self, Attached, SharedRings};
use super::budget::Budget;
use super::gone::Gone;
use super::interrupt::{self, Interrupts};
use super::launched::{Early, Launched};
use super::library::Library;
use super::reader::Reader;
use super::samples::Samples;
use super::socket::Socket;
use super::switching::{Limit, Switching};
use super::{check, limits, process};
use crate::error::Error;
use crate::target::Pattern;

/// The default geometry of rings: a thread that makes ten million calls a second fills its own in
/// 25 ms. Unused memory is not allocated.
const RINGS: RingOptions = RingOptions {
    mode: Mode::Drop,
    rings: 512,
    sub_buffers: 64,
    sub_buffer_bytes: 64 << 10,
    table_bytes: 64 << 20,
    clock: None,
};

/// The number of threads whose newest events are kept; more than can be read while they come.
const KEPT_THREADS: u32 = 2048;
/// The largest size of all rings together in the address space, in bytes.
const ALL_RINGS: u64 = 32 << 30;
/// The size of the largest ring: as many sub-buffers as there may be.
pub(crate) const LARGEST_RING: u64 = 4096 * RINGS.sub_buffer_bytes as u64;

/// Returns the geometry of rings with `bytes` for each thread.
fn ring_options(mode: Mode, bytes: Option<u64>) -> RingOptions {
    let usual = u64::from(RINGS.sub_buffers) * u64::from(RINGS.sub_buffer_bytes);
    let bytes = bytes.unwrap_or(usual).min(LARGEST_RING);
    let sub_buffers = bytes.div_ceil(RINGS.sub_buffer_bytes.into()).max(2) as u32;
    let rings = match mode {
        Mode::Drop | Mode::Block => RINGS.rings,
        Mode::Overwrite => KEPT_THREADS.min((ALL_RINGS / bytes.max(1)) as u32),
    };
    RingOptions {
        mode,
        rings,
        sub_buffers,
        ..RINGS
    }
}

/// Results for several processes.
#[derive(Debug)]
struct Found<T> {
    /// The processes with a result, and these.
    done: Vec<(u32, T)>,
    failed: Vec<Error>,
}

impl<T> Found<T> {
    fn of(processes: &[u32], mut find: impl FnMut(u32) -> Result<T, Error>) -> Self {
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        for (index, &process) in processes.iter().enumerate() {
            if processes[..index].contains(&process) {
                continue;
            }
            match find(process) {
                Ok(result) => done.push((process, result)),
                Err(error) => failed.push(error),
            }
        }
        Self { done, failed }
    }

    /// Returns true if some have a result, and others have none.
    fn is_part(&self) -> bool {
        !self.done.is_empty() && !self.failed.is_empty()
    }

    /// Returns the results. Reports the failures; if all have failed, the first one is the error.
    fn all(mut self) -> Result<Vec<(u32, T)>, Error> {
        let is_error = self.done.is_empty() && !self.failed.is_empty();
        let error = is_error.then(|| self.failed.remove(0));
        self.failed.iter().for_each(Error::say);
        error.map_or(Ok(self.done), Err)
    }

    /// Returns the results, at least one. Reports the number of failures, and the first of these.
    fn any(mut self) -> Result<Vec<(u32, T)>, Error> {
        let all = self.done.len() + self.failed.len();
        if self.done.is_empty() && !self.failed.is_empty() {
            return Err(self.failed.remove(0));
        }
        if let Some(first) = self.failed.first().and_then(Error::message) {
            let failed = self.failed.len();
            say!("fgraph: {failed} of {all} processes cannot be traced: {first}");
        }
        Ok(self.done)
    }
}

/// A program that can be recorded.
#[derive(Debug)]
pub(crate) struct Program {
    pub(super) path: PathBuf,
    pub(super) command: Vec<OsString>,
    /// The processes that are already running; none if the program is started.
    pub(super) processes: Vec<u32>,
    /// True if another process was to be attached to, and cannot be recorded.
    is_part: bool,
    /// True if any of the processes will do.
    takes_any: bool,
    pub(super) settings: Settings,
    /// The file for its output, if it must not use the terminal.
    pub(super) output: Option<File>,
    /// True if it is in a process group of its own.
    pub(super) is_apart: bool,
    /// Patterns; those that match no function are reported at the end.
    pub(super) patterns: Vec<Pattern>,
    /// The size of each thread's ring, unless it is the default.
    pub(super) buffer: Option<u64>,
    /// The limit by which functions are switched off.
    pub(super) limit: Limit,
    pub(super) is_sampled: bool,
    /// True if the states of its threads are recorded.
    is_scheduled: bool,
    /// The time after which recording ends.
    time: Option<Duration>,
}

impl Program {
    /// Finds the program of a command or of processes, and checks if it can be recorded. Reports
    /// the processes that cannot, if others can.
    pub(crate) fn find(
        processes: &[u32],
        command: &[OsString],
        settings: Settings,
    ) -> Result<Self, Error> {
        let program = command.first().cloned().unwrap_or_default();
        let found = Found::of(processes, attach::program);
        let is_part = found.is_part();
        let (path, processes) = match found.all()? {
            all if all.is_empty() => (check::find(&program)?, Vec::new()),
            all => {
                let (processes, mut paths): (Vec<_>, Vec<_>) = all.into_iter().unzip();
                (paths.swap_remove(0), processes)
            }
        };
        Self::of((path, processes), command, is_part, settings)
    }

    /// Finds the processes among these that can be recorded, and counts the others.
    pub(crate) fn find_any(processes: &[u32], settings: Settings) -> Result<Self, Error> {
        let found = Found::of(processes, attach::program).any()?;
        let (processes, mut paths): (Vec<_>, Vec<_>) = found.into_iter().unzip();
        if paths.is_empty() {
            let why = "there is no process to attach to";
            return Err(Error::Nothing(why.to_owned()));
        }
        let program = (paths.swap_remove(0), processes);
        let this = Self::of(program, &[], false, settings)?;
        Ok(Self {
            takes_any: true,
            ..this
        })
    }

    fn of(
        (path, processes): (PathBuf, Vec<u32>),
        command: &[OsString],
        is_part: bool,
        settings: Settings,
    ) -> Result<Self, Error> {
        let filter = settings.filter(&path.to_string_lossy());
        let filter = filter.and_then(|_| settings.which.within());
        filter.map_err(|error| Error::Usage(error.to_string()))?;
        Ok(Self {
            path,
            command: command.to_vec(),
            processes,
            is_part,
            takes_any: false,
            settings,
            output: None,
            is_apart: false,
            patterns: Vec::new(),
            buffer: None,
            limit: Limit::None,
            is_sampled: false,
            is_scheduled: false,
            time: None,
        })
    }

    /// Ends recording after this time, whatever the program does.
    pub(crate) fn for_time(mut self, time: Option<Duration>) -> Self {
        self.time = time;
        self
    }

    /// Sets the size of each thread's ring.
    pub(crate) fn buffer(mut self, bytes: Option<u64>) -> Self {
        self.buffer = bytes;
        self
    }

    /// Adds patterns that are reported at the end if they match no function.
    pub(crate) fn checking<'p>(mut self, patterns: impl IntoIterator<Item = &'p Pattern>) -> Self {
        self.patterns.extend(patterns.into_iter().cloned());
        self
    }

    /// Keeps the program off the terminal, unless it is already running. Its input is empty, and
    /// its output goes to a file. It is in a process group of its own, so that it is stopped if it
    /// reads the terminal.
    pub(crate) fn off_terminal(mut self) -> Result<Self, Error> {
        if self.processes.is_empty() {
            let file = tempfile::tempfile();
            self.output = Some(file.map_err(|error| Error::temporary(&error))?);
            self.is_apart = true;
        }
        Ok(self)
    }

    /// Puts the program into a process group of its own.
    pub(crate) fn apart(mut self) -> Self {
        self.is_apart = true;
        self
    }

    /// Makes the program record only the first call of each function.
    pub(crate) fn once(mut self) -> Self {
        self.settings.which.once = true;
        self
    }

    /// Makes the program stop recording functions that are called more often than this in a second.
    pub(crate) fn max_rate(mut self, calls: Option<u32>) -> Self {
        self.settings.which.max_rate = calls.unwrap_or(0);
        if calls.is_some() {
            self.limit = Limit::Rate;
        }
        self
    }

    /// Sets if samples of the program are taken, if it is started.
    pub(crate) fn sampled(mut self, is_sampled: bool) -> Self {
        self.is_sampled = is_sampled;
        self
    }

    /// Sets if the states of the program's threads are recorded.
    pub(crate) fn scheduled(mut self, is_scheduled: bool) -> Self {
        self.is_scheduled = is_scheduled;
        self
    }

    /// Sets if Python's functions are recorded too.
    pub(crate) fn python(mut self, is_recorded: bool) -> Self {
        self.settings.languages.python = is_recorded;
        self
    }

    /// Sets if calls of Python's coroutines tell their tasks.
    pub(crate) fn coroutines(mut self, have_tasks: bool) -> Self {
        self.settings.languages.coroutines = have_tasks;
        self
    }

    /// Sets if panics of Rust are marked among the calls.
    pub(crate) fn panics(mut self, are_marked: bool) -> Self {
        self.settings.languages.panics = are_marked;
        self
    }

    /// Limits the cost of recording to a share of the program's own time, by switching functions
    /// off.
    pub(crate) fn budget(mut self, budget: &Budget) -> Result<Self, Error> {
        let Some(share) = budget.budget else {
            return Ok(self);
        };
        if self.settings.which.leaves_out_calls() {
            let why = "--budget counts all calls: it does not go with -t, --depth or \
                --graph-function";
            return Err(Error::Usage(why.to_owned()));
        }
        self.limit = Limit::Budget(share);
        Ok(self)
    }

    /// Limits the cost of recording a process that was already running, unless there is a budget,
    /// to [`DEFAULT_BUDGET`].
    pub(crate) fn budget_if_attached(self, budget: &Budget) -> Result<Self, Error> {
        let has_default = !self.processes.is_empty() && !self.settings.which.leaves_out_calls();
        match has_default && !budget.is_some() {
            true => self.budget(&Budget::default()),
            false => self.budget(budget),
        }
    }

    /// Returns the functions that a budget does not switch off: those that `--also`, `--waits` and
    /// `--tasks` name.
    fn kept(&self) -> Filter {
        // The words were checked before.
        let kept = self.settings.which.also.join(" ").parse();
        kept.unwrap_or_else(|_| Filter::none())
    }

    /// Returns the filter of the recorded functions.
    pub(crate) fn filter(&self) -> Result<Filter, Error> {
        let filter = self.settings.filter(&self.path.to_string_lossy());
        filter.map_err(|error| Error::Usage(error.to_string()))
    }

    /// Runs it while `work` reads its events, and exits like it.
    pub(crate) fn run(
        self,
        work: impl FnOnce(&mut Launched, &Interrupts) -> Result<(), Error>,
    ) -> Result<ExitCode, Error> {
        self.run_in(Mode::Drop, work)
    }

    /// Runs it like [`run`](Self::run). But a started program waits if `work` reads too slowly, so
    /// that no event is missing.
    pub(crate) fn run_whole(
        self,
        work: impl FnOnce(&mut Launched, &Interrupts) -> Result<(), Error>,
    ) -> Result<ExitCode, Error> {
        let mode = match self.processes.is_empty() {
            true => Mode::Block,
            false => Mode::Drop,
        };
        self.run_in(mode, work)
    }

    fn run_in(
        self,
        mode: Mode,
        work: impl FnOnce(&mut Launched, &Interrupts) -> Result<(), Error>,
    ) -> Result<ExitCode, Error> {
        let interrupts = Interrupts::catch();
        let mut launched = self.start(mode)?;
        let done = work(&mut launched, &interrupts);
        launched.end(&interrupts, done, interrupt::end_by)
    }

    /// Replaces this process by the program, which keeps its newest events in its own memory.
    /// Returns only if that fails. `begin` is called before, with the bytes of each thread's ring.
    pub(crate) fn replace_this(mut self, begin: impl FnOnce(u64)) -> Error {
        let path = self.path.clone();
        let failed = |error: io::Error| Error::Program {
            path,
            why: error.to_string(),
            is_missing: false,
        };
        if let Err(error) = self.check_python() {
            return error;
        }
        let options = limits::fit(ring_options(Mode::Overwrite, self.buffer), &[]);
        self.settings.rings = RingsPlace::Own(OwnRings::of(&options));
        self.settings.process.filters = fgraph_protocol::filters().unwrap_or(0);
        match Library::find() {
            Ok(library) => {
                begin(u64::from(options.sub_buffers) * u64::from(options.sub_buffer_bytes));
                failed(self.execute_here(&library))
            }
            Err(error) => failed(error),
        }
    }

    /// Refuses patterns that select functions of Python if these are not recorded.
    fn check_python(&self) -> Result<(), Error> {
        if self.settings.languages.python || !self.patterns.iter().any(Pattern::is_of_python) {
            return Ok(());
        }
        let why = "'py:' selects Python's functions, which `fgraph record --python` records";
        Err(Error::Usage(why.to_owned()))
    }

    /// Starts it.
    pub(crate) fn start(mut self, mode: Mode) -> Result<Launched, Error> {
        self.check_python()?;
        if !self.processes.is_empty() {
            return self.attach(mode);
        }
        let path = self.path.clone();
        let kept = self.kept();
        let failed = |error: io::Error| Error::Program {
            path: path.clone(),
            why: error.to_string(),
            is_missing: false,
        };
        let library = Library::find().map_err(failed)?;
        let options = limits::fit(ring_options(mode, self.buffer), &[]);
        let (rings, file) = Rings::create_shared(&options).map_err(failed)?;
        // The program opens the file there, and so do programs that it executes later.
        let place = RingsFile::of(&file).map_err(failed)?;
        let inode = place.inode;
        self.settings.rings = RingsPlace::Shared(place);
        self.settings.process.filters = fgraph_protocol::filters().unwrap_or(0);
        let rings = Arc::new(rings);
        let reader = Reader::start(&rings);
        let samples = if self.is_sampled {
            Samples::of_next()
        } else {
            None
        };
        let clock = rings.clock();
        let mut scheduling = self.is_scheduled.then(|| Scheduling::of_next(clock));
        let mut child = self.execute(&library).map_err(failed)?;
        let process = child.id();
        if let Some(scheduling) = &mut scheduling {
            scheduling.set_process(process);
        }
        if self.output.is_none() {
            interrupt::pass_on_to(process);
        }
        let (sender, ended) = mpsc::channel();
        let waiter = thread::spawn(move || {
            // A command that attaches to it meanwhile would see it stop, which is not an end.
            process::wait_until_gone(process);
            let status = child.wait();
            drop::<mpsc::Sender<()>>(sender);
            status
        });
        let shown = self.command.iter().map(|it| it.to_string_lossy().into());
        Ok(Launched {
            has_last_states: self.settings.heap.is_some(),
            generated: None,
            switching: Switching::start(self.limit, kept, &rings, inode),
            sockets: Vec::from_iter(Socket::listen(process, Some(Arc::clone(&rings)))),
            rings,
            reader: Some(reader),
            gone: Gone::default(),
            process,
            command: shown.collect(),
            path: self.path.to_string_lossy().into_owned(),
            ended,
            waiter: Some(waiter),
            status: None,
            refused: 0,
            in_part: 0,
            attached: Vec::new(),
            is_part: false,
            samples,
            scheduling,
            output: self.output,
            patterns: self.patterns,
            early: Early::new(),
            until: self.time.and_then(|time| Instant::now().checked_add(time)),
            is_unmatched: false,
            _library: Some(library),
            file: Arc::new(file),
        })
    }

    /// Attaches to the processes; they share the rings, as a process and its children do.
    fn attach(self, mode: Mode) -> Result<Launched, Error> {
        let options = limits::fit(ring_options(mode, self.buffer), &self.processes);
        let kept = self.kept();
        let mut shared = None;
        let found = Found::of(&self.processes, |process| {
            Attached::start(process, self.settings.clone(), &options, &mut shared)
        });
        let is_part = !self.takes_any && (self.is_part || found.is_part());
        let found = match self.takes_any {
            true => found.any(),
            false => found.all(),
        };
        let (processes, attached): (Vec<_>, Vec<_>) = found?.into_iter().unzip();
        let SharedRings { rings, file, .. } = shared.expect("a process has got them");
        let first = processes[0];
        let (sender, ended) = mpsc::channel();
        let inode = file.metadata().map_or(0, |file| file.ino());
        let clock = rings.clock();
        let scheduling = self
            .is_scheduled
            .then(|| Scheduling::of_processes(clock, &processes));
        let listen = |&process: &u32| Socket::listen(process, Some(Arc::clone(&rings)));
        Ok(Launched {
            has_last_states: self.settings.heap.is_some(),
            generated: None,
            switching: Switching::start(self.limit, kept, &rings, inode),
            sockets: processes.iter().filter_map(listen).collect(),
            rings,
            reader: None,
            gone: Gone::default(),
            process: first,
            command: attach::strings(first, "cmdline"),
            path: self.path.to_string_lossy().into_owned(),
            ended,
            waiter: Some(attach::wait_for_end(processes, sender)),
            status: None,
            refused: 0,
            in_part: 0,
            attached,
            is_part,
            samples: None,
            scheduling,
            output: None,
            patterns: self.patterns,
            early: Early::new(),
            until: self.time.and_then(|time| Instant::now().checked_add(time)),
            is_unmatched: false,
            _library: None,
            file,
        })
    }
}
