//! A program that can be recorded, until it runs with the agent inside.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::thread;

use fgraph_symbols::filter::Filter;
use fgraph_trace::ring::{Mode, RingOptions, Rings};
use fgraph_tracers::agent::{self, OwnRings, RingsFile, Settings};
use fgraph_tracers::scheduling::Scheduling;

use super::attach::{self, Attached};
use super::budget::Budget;
use super::gone::Gone;
use super::interrupt::{self, Interrupts};
use super::launched::Launched;
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

/// A program that can be recorded.
#[derive(Debug)]
pub(crate) struct Program {
    pub(super) path: PathBuf,
    pub(super) command: Vec<OsString>,
    /// The process, if it is already running.
    pub(super) pid: Option<u32>,
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
}

impl Program {
    /// Finds the program of a command or of a process, and checks if it can be recorded.
    pub(crate) fn find(
        pid: Option<u32>,
        command: &[OsString],
        settings: Settings,
    ) -> Result<Self, Error> {
        let program = command.first().cloned().unwrap_or_default();
        let path = match pid {
            Some(pid) => attach::program(pid)?,
            None => check::find(&program)?,
        };
        let filter = settings.filter(&path.to_string_lossy());
        let filter = filter.and_then(|_| settings.within());
        filter.map_err(|error| Error::Usage(error.to_string()))?;
        Ok(Self {
            path,
            command: command.to_vec(),
            pid,
            settings,
            output: None,
            is_apart: false,
            patterns: Vec::new(),
            buffer: None,
            limit: Limit::None,
            is_sampled: false,
            is_scheduled: false,
        })
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
        if self.pid.is_none() {
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
        self.settings.once = true;
        self
    }

    /// Makes the program stop recording functions that are called more often than this in a second.
    pub(crate) fn max_rate(mut self, calls: Option<u32>) -> Self {
        self.settings.max_rate = calls.unwrap_or(0);
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
        self.settings.python = is_recorded;
        self
    }

    /// Sets if calls of Python's coroutines tell their tasks.
    pub(crate) fn coroutines(mut self, have_tasks: bool) -> Self {
        self.settings.coroutines = have_tasks;
        self
    }

    /// Sets if panics of Rust are marked among the calls.
    pub(crate) fn panics(mut self, are_marked: bool) -> Self {
        self.settings.panics = are_marked;
        self
    }

    /// Limits the cost of recording to a share of the program's own time, by switching functions
    /// off.
    pub(crate) fn budget(mut self, budget: &Budget) -> Result<Self, Error> {
        let Some(share) = budget.budget else {
            return Ok(self);
        };
        let Settings {
            threshold,
            depth,
            within,
            ..
        } = &self.settings;
        if *threshold != 0 || *depth != 0 || !within.is_empty() {
            let why = "--budget counts all calls: it does not go with -t, --depth or \
                --graph-function";
            return Err(Error::Usage(why.to_owned()));
        }
        self.limit = Limit::Budget(share);
        Ok(self)
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
        let mode = match self.pid {
            Some(_) => Mode::Drop,
            None => Mode::Block,
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
        let options = limits::fit(ring_options(Mode::Overwrite, self.buffer), None);
        self.settings.own_rings = Some(OwnRings::of(&options));
        self.settings.filters = agent::filters().unwrap_or(0);
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
        if self.settings.python || !self.patterns.iter().any(Pattern::is_of_python) {
            return Ok(());
        }
        let why = "'py:' selects Python's functions, which `fgraph record --python` records";
        Err(Error::Usage(why.to_owned()))
    }

    /// Starts it.
    pub(crate) fn start(mut self, mode: Mode) -> Result<Launched, Error> {
        self.check_python()?;
        if let Some(pid) = self.pid {
            return self.attach(pid, mode);
        }
        let path = self.path.clone();
        let failed = |error: io::Error| Error::Program {
            path: path.clone(),
            why: error.to_string(),
            is_missing: false,
        };
        let library = Library::find().map_err(failed)?;
        let options = limits::fit(ring_options(mode, self.buffer), None);
        let (rings, file) = Rings::create_shared(&options).map_err(failed)?;
        // The program opens the file there, and so do programs that it executes later.
        self.settings.rings = RingsFile::of(&file).map_err(failed)?;
        self.settings.filters = agent::filters().unwrap_or(0);
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
        let inode = self.settings.rings.inode;
        Ok(Launched {
            switching: Switching::start(self.limit, &rings, inode),
            socket: Socket::listen(process, Some(Arc::clone(&rings))),
            rings,
            reader: Some(reader),
            gone: Gone::default(),
            process,
            command: shown.collect(),
            ended,
            waiter: Some(waiter),
            status: None,
            refused: 0,
            in_part: 0,
            attached: None,
            samples,
            scheduling,
            output: self.output,
            patterns: self.patterns,
            _library: Some(library),
            _file: file,
        })
    }

    fn attach(self, pid: u32, mode: Mode) -> Result<Launched, Error> {
        let options = limits::fit(ring_options(mode, self.buffer), Some(pid));
        let (attached, rings, file) = Attached::start(pid, self.settings, &options)?;
        let (sender, ended) = mpsc::channel();
        let inode = file.metadata().map_or(0, |file| file.ino());
        let clock = rings.clock();
        let scheduling = self
            .is_scheduled
            .then(|| Scheduling::of_process(clock, pid));
        Ok(Launched {
            switching: Switching::start(self.limit, &rings, inode),
            socket: Socket::listen(pid, Some(Arc::clone(&rings))),
            rings,
            reader: None,
            gone: Gone::default(),
            process: pid,
            command: attach::strings(pid, "cmdline"),
            ended,
            waiter: Some(attach::wait_for_end(pid, sender)),
            status: None,
            refused: 0,
            in_part: 0,
            attached: Some(attached),
            samples: None,
            scheduling,
            output: None,
            patterns: self.patterns,
            _library: None,
            _file: file,
        })
    }
}
