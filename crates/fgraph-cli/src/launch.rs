//! Starts a program with the agent inside.

mod attach;
mod check;
pub(crate) mod control;
pub(crate) mod counts;
pub(crate) mod directory;
pub(crate) mod events;
mod gone;
mod guard;
pub(crate) mod interrupt;
mod library;
mod limits;
pub(crate) mod plan_cache;
mod process;
mod reader;
pub(crate) mod samples;
pub(crate) mod scheduling;
mod socket;
mod switching;
mod tally;

use std::ffi::{CString, OsString, c_char};
use std::fs::File;
use std::io::{self, IsTerminal, Write as _};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fgraph_symbols::filter::Filter;
use fgraph_trace::names::Names;
use fgraph_trace::ring::{Mode, RingOptions, Rings};
use fgraph_tracers::agent::{self, RingsFile, Settings, Tool, Trigger};
use fgraph_tracers::recorder::budget::Share;

use crate::error::Error;
use crate::input::nanoseconds;
use crate::target::{Pattern, Patterns, parse_patterns, parse_pid};
use crate::text::escaped;
use crate::{unmatched, waits};
use attach::Attached;
use counts::{Counts, Drained};
use gone::Gone;
use interrupt::Interrupts;
use library::Library;
use reader::Reader;
use samples::Samples;
use scheduling::Scheduling;
use socket::Socket;
use switching::{Limit, Switching};

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

/// The time between two reads of empty rings.
pub(crate) const NAP: Duration = Duration::from_millis(5);

/// The program, and the functions that are recorded.
#[derive(Debug, clap::Args)]
pub(crate) struct What {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    target: Target,
}

/// The functions that are recorded.
#[derive(Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Which {
    /// Record these functions: a glob over names, optionally after a module as in 'libc:open*';
    /// 'crate:NAME' for a Rust crate; or any other word of a filter, such as ':mod:libz.so*'
    #[arg(short = 'F', long = "function", value_name = "GLOB", value_parser = parse_patterns)]
    functions: Vec<Patterns>,
    /// Do not record these functions
    #[arg(short = 'N', long = "notrace", value_name = "GLOB", value_parser = parse_patterns)]
    notrace: Vec<Patterns>,
    /// Record only calls of these functions, and the calls inside them
    #[arg(long = "graph-function", value_name = "GLOB", value_parser = parse_patterns)]
    within: Vec<Patterns>,
    /// Record only calls that took at least this time, and the calls around them: `10us`. A call is
    /// recorded when it ends
    #[arg(short, long, value_name = "TIME", value_parser = nanoseconds)]
    threshold: Option<u64>,
    /// Record these functions in addition to those that are recorded otherwise
    #[arg(long, value_name = "GLOB", value_parser = parse_patterns)]
    also: Vec<Patterns>,
    /// Also record the functions of the C library in which threads wait, and those that end waits,
    /// for `fgraph why`
    #[arg(long)]
    waits: bool,
    /// Also record the functions of the system's libraries
    #[arg(long)]
    libs: bool,
    /// Leave out calls nested inside this many recorded ones
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    depth: Option<u32>,
    /// Record arguments: by type where there is debug information; otherwise, or with `registers`,
    /// the six integer registers
    #[arg(
        long,
        value_name = "HOW",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "types"
    )]
    args: Option<Values>,
    /// Record results: by type where there is debug information; otherwise, or with `registers`,
    /// the integer register
    #[arg(
        long,
        value_name = "HOW",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "types"
    )]
    retval: Option<Values>,
}

/// A program to run, or a running process.
#[derive(Debug, clap::Args)]
pub(crate) struct Target {
    /// Follow neither forked processes nor executed programs
    #[arg(long)]
    no_follow: bool,
    /// Neither use nor keep cached plans of files: see `fgraph cache`
    #[arg(long)]
    no_cache: bool,
    /// Attach to a running process, and follow its future forked children. At the end its functions
    /// are restored, and the agent stays in it, idle. When it executes another program, recording
    /// ends
    #[arg(short, long, value_name = "PID", value_parser = parse_pid, conflicts_with = "command")]
    pid: Option<u32>,
    /// The program and its arguments
    #[arg(required_unless_present = "pid", trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// The allowed cost of recording.
#[derive(Debug, clap::Args)]
pub(crate) struct Budget {
    /// Limit the cost of recording to this share of each process's own processor time, as `5%`:
    /// frequently called functions with short calls are switched off as far as necessary, and their
    /// text is restored. After 2 s of processor time, and then at growing intervals, they are tried
    /// again. The end of the output says when they were off
    #[arg(long, value_name = "PERCENT", value_parser = switching::parse_share)]
    budget: Option<Share>,
}

impl Budget {
    pub(crate) fn is_some(&self) -> bool {
        self.budget.is_some()
    }
}

/// The form in which arguments and results are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Values {
    /// By type
    Types,
    /// As words
    Registers,
}

impl What {
    /// Returns true if the system's libraries are left out only by default.
    pub(crate) fn is_without_libraries(&self) -> bool {
        let Which {
            functions,
            within,
            libs,
            ..
        } = &self.which;
        !libs && functions.is_empty() && within.is_empty()
    }

    /// Runs the program while `work` reads its events, and exits like the program.
    pub(crate) fn run(
        &self,
        work: impl FnOnce(&mut Launched, &Interrupts) -> Result<(), Error>,
    ) -> Result<ExitCode, Error> {
        self.find(Vec::new())?.run(work)
    }

    /// Does the same as [`run`](Self::run), with a tool in the program instead of a recorder.
    pub(crate) fn run_tool(
        &self,
        tool: Tool,
        work: impl FnOnce(&mut Launched, &Interrupts) -> Result<(), Error>,
    ) -> Result<ExitCode, Error> {
        let settings = Settings {
            tool,
            ..self.which.settings()?
        };
        let program = self.target.find(settings)?.checking(self.which.patterns());
        program.run(work)
    }

    /// Returns true if the program is already running.
    pub(crate) fn is_attaching(&self) -> bool {
        self.target.pid.is_some()
    }

    /// Finds the program, and checks if it can be recorded.
    pub(crate) fn find(&self, triggers: Vec<Trigger>) -> Result<Program, Error> {
        let settings = Settings {
            triggers,
            ..self.which.settings()?
        };
        let program = self.target.find(settings)?;
        Ok(program.checking(self.which.patterns()))
    }
}

impl Which {
    /// Iterates over the patterns that select functions.
    pub(crate) fn patterns(&self) -> impl Iterator<Item = &Pattern> {
        let all = self.functions.iter().chain(&self.within).chain(&self.also);
        all.flat_map(|patterns| &patterns.0)
    }

    pub(crate) fn settings(&self) -> Result<Settings, Error> {
        let words = |all: &[Patterns]| all.iter().flat_map(Patterns::words).collect();
        let settings = Settings {
            trace: words(&self.functions),
            notrace: words(&self.notrace),
            libraries: self.libs,
            depth: self.depth.unwrap_or(0) as usize,
            arguments: if self.args.is_some() { 6 } else { 0 },
            result: self.retval.is_some(),
            types: [self.args, self.retval].contains(&Some(Values::Types)),
            within: words(&self.within),
            also: match self.waits {
                true => [words(&self.also), waits::words()].concat(),
                false => words(&self.also),
            },
            threshold: self.threshold.unwrap_or(0),
            ..Settings::default()
        };
        if settings.types && [self.args, self.retval].contains(&Some(Values::Registers)) {
            let why = "--args and --retval are both of types or both of registers";
            return Err(Error::Usage(why.to_owned()));
        }
        Ok(settings)
    }
}

impl Target {
    /// Makes it from a subcommand's own arguments.
    pub(crate) fn new(no_follow: bool, pid: Option<u32>, command: &[OsString]) -> Self {
        Self {
            no_follow,
            no_cache: false,
            pid,
            command: command.to_owned(),
        }
    }

    /// Runs the program with the agent inside, which has these settings, while `work` reads its
    /// events, and exits like the program: see [`Program::run_whole`].
    pub(crate) fn run(
        &self,
        settings: Settings,
        work: impl FnOnce(&mut Launched, &Interrupts) -> Result<(), Error>,
    ) -> Result<ExitCode, Error> {
        self.find(settings)?.run_whole(work)
    }

    pub(crate) fn find(&self, settings: Settings) -> Result<Program, Error> {
        // A program that is started has only its own thread.
        let threads = thread::available_parallelism()
            .ok()
            .filter(|_| self.pid.is_some());
        let settings = Settings {
            follow: !self.no_follow,
            planning_threads: threads.map_or(1, |threads| threads.get() as u32),
            plans: (!self.no_cache).then(plan_cache::directory).flatten(),
            ..settings
        };
        Program::find(self.pid, &self.command, settings)
    }
}

/// A program that can be recorded.
#[derive(Debug)]
pub(crate) struct Program {
    path: PathBuf,
    command: Vec<OsString>,
    /// The process, if it is already running.
    pid: Option<u32>,
    settings: Settings,
    /// The file for its output, if it must not use the terminal.
    output: Option<File>,
    /// Patterns; those that match no function are reported at the end.
    patterns: Vec<Pattern>,
    /// The size of each thread's ring, unless it is the default.
    buffer: Option<u64>,
    /// The limit by which functions are switched off.
    limit: Limit,
    is_sampled: bool,
    /// True if the states of its threads are recorded.
    is_scheduled: bool,
}

/// A program that runs with the agent inside, as our child unless it was already running.
#[derive(Debug)]
pub(crate) struct Launched {
    rings: Arc<Rings>,
    /// For a process that was already running, until recording ends.
    reader: Option<Reader>,
    gone: Gone,
    process: u32,
    command: Vec<String>,
    /// Hangs up when the program has ended.
    ended: Receiver<()>,
    waiter: Option<JoinHandle<io::Result<ExitStatus>>>,
    /// Its exit status.
    status: Option<ExitStatus>,
    /// The number of reported programs that cannot be recorded.
    refused: usize,
    /// For a process that was already running.
    attached: Option<Attached>,
    /// The socket for requests.
    socket: Option<Socket>,
    /// The file for its output, if it must not use the terminal.
    output: Option<File>,
    /// Patterns that were not reported yet.
    patterns: Vec<Pattern>,
    samples: Option<Samples>,
    scheduling: Option<Scheduling>,
    /// Until recording ends.
    switching: Option<Switching>,
    /// Both stay as long as the program may execute others.
    _library: Option<Library>,
    _file: File,
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
            let file = tempfile::tempfile().map_err(|error| Error::Write {
                path: std::env::temp_dir(),
                error,
            });
            self.output = Some(file?);
        }
        Ok(self)
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
        launched.end(&interrupts, done)
    }

    /// Starts it.
    pub(crate) fn start(mut self, mode: Mode) -> Result<Launched, Error> {
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
        let clock = rings.clock().kind();
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
        let clock = rings.clock().kind();
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
            attached: Some(attached),
            samples: None,
            scheduling,
            output: None,
            patterns: self.patterns,
            _library: None,
            _file: file,
        })
    }

    fn execute(&self, library: &Library) -> io::Result<std::process::Child> {
        let string = |text: Vec<u8>| CString::new(text).map_err(io::Error::other);
        let strings = |all: Vec<Vec<u8>>| -> io::Result<Strings> {
            let all: Result<Vec<CString>, _> = all.into_iter().map(string).collect();
            Ok(Strings::new(all?))
        };
        let arguments = self.command.iter().cloned().map(OsString::into_vec);
        let arguments = strings(arguments.collect())?;
        let variables = strings(variables(library, &self.settings))?;
        let path = string(self.path.clone().into_os_string().into_vec())?;
        let mut child = Command::new(&self.path);
        if let Some(output) = &self.output {
            child.process_group(0);
            if io::stdin().is_terminal() {
                child.stdin(Stdio::null());
            }
            child.stdout(output.try_clone()?);
            if io::stderr().is_terminal() {
                child.stderr(output.try_clone()?);
            }
        }
        // `Command` would sort the variables; it does everything else.
        let execute = move || {
            // SAFETY: a C string, and lists of C strings with a null pointer at their ends.
            unsafe { libc::execve(path.as_ptr(), arguments.list(), variables.list()) };
            Err(io::Error::last_os_error())
        };
        // SAFETY: `execute` only makes a system call.
        unsafe { child.pre_exec(execute) }.spawn()
    }
}

/// Strings, with the list of them that `execve` takes.
struct Strings {
    _all: Vec<CString>,
    /// Their addresses, and 0.
    list: Vec<usize>,
}

impl Strings {
    fn new(all: Vec<CString>) -> Self {
        let addresses = all.iter().map(|it| it.as_ptr().expose_provenance());
        let list = addresses.chain([0]).collect();
        Self { _all: all, list }
    }

    fn list(&self) -> *const *const c_char {
        self.list.as_ptr().cast()
    }
}

/// Returns the variables of this process, in their order, and those of the agent.
fn variables(library: &Library, settings: &Settings) -> Vec<Vec<u8>> {
    const PRELOAD: &[u8] = b"LD_PRELOAD=";
    let mut preload = PRELOAD.to_vec();
    preload.extend(library.path().as_os_str().as_encoded_bytes());
    let asan = format!("{}=", agent::ASAN_VARIABLE).into_bytes();
    let option = agent::ASAN_OPTION.as_bytes();
    let all = std::env::vars_os();
    let mut variables: Vec<Vec<u8>> = all
        .map(|(name, value)| [name.into_vec(), value.into_vec()].join(&b'='))
        .collect();
    match variables.iter_mut().find(|it| it.starts_with(PRELOAD)) {
        Some(known) => {
            let rest = known.split_off(PRELOAD.len());
            preload.push(b':');
            preload.extend(rest);
            *known = preload;
        }
        None => variables.push(preload),
    }
    match variables.iter_mut().find(|it| it.starts_with(&asan)) {
        Some(known) => {
            known.push(b':');
            known.extend(option);
        }
        None => variables.push([&asan, option].concat()),
    }
    variables.push(format!("{}={}", agent::VARIABLE, settings.to_value()).into_bytes());
    variables
}

impl Launched {
    pub(crate) fn rings(&self) -> &Arc<Rings> {
        &self.rings
    }

    /// Returns samples of the program, if they were requested and the kernel allows it.
    pub(crate) fn samples(&mut self) -> Option<Samples> {
        self.samples.take()
    }

    /// Returns the states of the program's threads, if they were requested.
    pub(crate) fn scheduling(&mut self) -> Option<Scheduling> {
        self.scheduling.take()
    }

    pub(crate) fn process(&self) -> u32 {
        self.process
    }

    /// Returns the command line.
    pub(crate) fn command(&self) -> &[String] {
        &self.command
    }

    /// Returns the environment with which the program was started.
    pub(crate) fn environment(&self) -> Vec<String> {
        match self.is_attached() {
            true => attach::strings(self.process, "environ"),
            false => {
                let variables = std::env::vars_os();
                let text = |text: OsString| text.to_string_lossy().into_owned();
                variables
                    .map(|(name, value)| format!("{}={}", text(name), text(value)))
                    .collect()
            }
        }
    }

    /// Frees the rings of processes that have ended. Call it from time to time.
    pub(crate) fn give_back_rings(&mut self) {
        self.gone.give_back(&self.rings);
    }

    /// Reports the programs that cannot be recorded, with the reasons, once for each.
    pub(crate) fn say_refused(&mut self, names: &Names) {
        let new = names.refused().get(self.refused..).unwrap_or(&[]);
        self.refused += new.len();
        for (program, why) in new {
            let [program, why] = [program, why].map(|text| escaped(text));
            say!("fgraph: {program} is not recorded: {why}");
        }
    }

    /// Reports the patterns that match no function, once; returns true if there are any.
    pub(crate) fn say_unmatched(&mut self, names: &Names) -> bool {
        let patterns = std::mem::take(&mut self.patterns);
        let program = self.command.first().map_or("PROGRAM", String::as_str);
        let unmatched = unmatched::of_program(&patterns, program, names);
        for text in &unmatched {
            say!("fgraph: {}", escaped(text));
        }
        !unmatched.is_empty()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.waiter.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Returns the exit status of the program: `None` while it runs, and if it was already running.
    pub(crate) fn status(&mut self) -> Option<ExitStatus> {
        if let Some(waiter) = self.waiter.take_if(|waiter| waiter.is_finished()) {
            self.status = waiter.join().ok().and_then(Result::ok);
        }
        self.status.filter(|_| !self.is_attached())
    }

    /// Waits until the program has ended, but at most for `time`.
    pub(crate) fn wait_for(&self, time: Duration) {
        if self.ended.recv_timeout(time) == Err(RecvTimeoutError::Disconnected) {
            // The thread is about to end.
            while !self.has_ended() {
                thread::yield_now();
            }
        }
    }

    /// For a process that was already running: describes the interruption of one of its threads.
    pub(crate) fn pause(&self) -> Option<String> {
        self.attached.as_ref().map(Attached::pause)
    }

    /// Returns true if it was already running, and continues when recording ends.
    pub(crate) fn is_attached(&self) -> bool {
        self.attached.is_some()
    }

    /// Returns true if recording is over: the program has ended, or there were enough interrupts.
    pub(crate) fn is_over(&self, interrupts: &Interrupts) -> bool {
        let enough = if self.is_attached() { 0 } else { 1 };
        let is_asked = interrupts.count() > enough || self.is_stopped();
        self.has_ended() || is_asked || self.has_executed()
    }

    /// Returns true if it was already running and has executed another program, without the agent.
    fn has_executed(&self) -> bool {
        self.attached.as_ref().is_some_and(Attached::has_executed)
    }

    /// Returns the part that switches functions off, if there is one.
    pub(crate) fn switching(&mut self) -> Option<&mut Switching> {
        self.switching.as_mut()
    }

    /// Ends recording: no more events are written to the rings.
    pub(crate) fn stop(&mut self) {
        self.switching = None;
        if let Err(error) = self.detach() {
            // The recording is worth more than the error.
            say!("fgraph: {}", error.message().unwrap_or_default());
        }
        self.finish();
    }

    /// Announces that no more is read. Programs that are executed from now on do not load the
    /// agent.
    fn finish(&mut self) {
        self.rings.finish();
        self.reader = None;
    }

    /// Sends a signal to the program that is kept off the terminal, as the terminal would, and to
    /// its children.
    pub(crate) fn signal(&self, signal: i32) {
        if self.output.is_some() && !self.has_ended() {
            // SAFETY: system calls.
            unsafe {
                libc::kill(-(self.process as i32), signal);
                libc::kill(-(self.process as i32), libc::SIGCONT);
            }
        }
    }

    /// Prints the output of the program that is kept off the terminal.
    pub(crate) fn print_output(&self) -> Result<(), Error> {
        let Some(output) = &self.output else {
            return Ok(());
        };
        let (mut out, mut bytes, mut at) = (io::stdout().lock(), vec![0; 1 << 16], 0);
        loop {
            // The file position belongs to the program.
            let len = output.read_at(&mut bytes, at).map_err(Error::Output)?;
            if len == 0 {
                return out.flush().map_err(Error::Output);
            }
            out.write_all(&bytes[..len]).map_err(Error::Output)?;
            at += len as u64;
        }
    }

    /// Returns true if a client of the socket wants recording to end.
    fn is_stopped(&self) -> bool {
        self.socket.as_ref().is_some_and(Socket::is_stopped)
    }

    /// Passes the progress of recording to the clients of the socket; returns true if one wants a
    /// snapshot.
    pub(crate) fn tell(&self, drained: Drained) -> bool {
        let Some(socket) = &self.socket else {
            return false;
        };
        socket.set_drained(drained);
        socket.takes_snapshot()
    }

    /// For a process that continues: ends the agent's work there, so that all its events are in the
    /// rings.
    fn detach(&mut self) -> Result<(), Error> {
        if let Some(attached) = &mut self.attached {
            return attached.end();
        }
        match self.is_stopped() && !self.has_ended() {
            true => attach::end(self.process, std::process::id()),
            false => Ok(()),
        }
    }

    /// Exits like the program, including by the same signal, unless it was already running or was
    /// interrupted twice: then it continues. If `result` is an error, the program is still waited
    /// for. Fails if nothing could be recorded.
    pub(crate) fn end(
        mut self,
        interrupts: &Interrupts,
        result: Result<(), Error>,
    ) -> Result<ExitCode, Error> {
        if self.has_executed() && !self.has_ended() {
            let process = self.process;
            eprintln!(
                "fgraph: process {process} has executed another program, which is not recorded"
            );
        }
        let detached = self.detach();
        self.finish();
        // Recording is over.
        self.socket = None;
        plan_cache::trim();
        let names = self.rings.names();
        self.say_refused(&names);
        self.say_unmatched(&names);
        let is_refused = self.refused > 0 && Counts::of(&self.rings, Drained::default()).calls == 0;
        let (is_attached, is_left) = (self.is_attached(), interrupts.count() > 1);
        let status = match is_attached || is_left {
            true => None,
            false => self.wait(),
        };
        result.and(detached)?;
        if is_refused {
            return Err(Error::Refused);
        }
        if is_attached {
            return Ok(ExitCode::SUCCESS);
        }
        if is_left {
            return Ok(interrupt::code_of(interrupts.newest()));
        }
        match status.and_then(|status| status.signal()) {
            Some(signal) => Ok(interrupt::end_by(signal)),
            None => {
                let code = status.and_then(|status| status.code());
                Ok(ExitCode::from(code.unwrap_or(1) as u8))
            }
        }
    }

    /// Waits until the program has ended, and returns its exit status, if known. All resources of
    /// recording are freed then.
    fn wait(mut self) -> Option<ExitStatus> {
        if let Some(waiter) = self.waiter.take() {
            self.status = waiter.join().ok().and_then(Result::ok);
        }
        self.status
    }
}
