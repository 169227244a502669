//! Arguments of subcommands that start or watch a program.

use std::ffi::OsString;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use fgraph_analysis::runtimes;
use fgraph_analysis::waits;
use fgraph_protocol::{CallValues, HeapFunctions, Settings, Tool, Trigger, WhichCalls};
use fgraph_tracers::heap;

use super::interrupt::Interrupts;
use super::launched::Launched;
use super::plan_cache;
use super::program::Program;
use crate::error::Error;
use crate::input::{nanoseconds, parse_time};
use crate::target::{Pattern, Patterns, parse_patterns, parse_pid};

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
    #[arg(short = 'F', long = "function", value_name = "GLOB", value_parser = parse_functions)]
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
    /// with their arguments, and the names of open files, pipes and connections, for `fgraph why`
    #[arg(long)]
    waits: bool,
    /// Also record the functions of async runtimes that poll tasks, with their arguments, for
    /// `fgraph tasks`; with --python, also the frames of coroutines and if they are suspended
    #[arg(long)]
    tasks: bool,
    /// Record only functions of allocators, with the calls around them, for `fgraph heap`
    #[arg(long, conflicts_with_all = ["functions", "notrace", "within", "threshold", "also",
        "waits", "tasks", "libs", "depth", "args", "args_of", "retval"])]
    heap: bool,
    #[command(flatten)]
    own: OwnAllocators,
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
    /// Record arguments of these functions only: the six integer registers
    #[arg(long, value_name = "GLOB", value_parser = parse_patterns, conflicts_with = "args")]
    args_of: Vec<Patterns>,
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

/// Functions of a program's own allocators.
#[derive(Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct OwnAllocators {
    /// A function of the program's own allocator, with the argument that has the size; it returns
    /// the block
    #[arg(long, value_name = "FUNCTION(argN)", value_parser = parse_own)]
    alloc: Vec<Own>,
    /// A function that frees such a block, with the argument that has its address
    #[arg(long, value_name = "FUNCTION(argN)", value_parser = parse_own)]
    free: Vec<Own>,
}

/// Functions that allocate or free.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Own {
    functions: Patterns,
    /// The argument with the size, or with the address.
    argument: u8,
}

/// Parses the functions to record. A number is a rate of samples to `perf`, and no function has
/// such a name.
fn parse_functions(text: &str) -> Result<Patterns, String> {
    match text.parse::<u64>() {
        Ok(_) => Err("perf's -F is a rate of samples; \
             here it selects functions, and all their calls are recorded"
            .to_owned()),
        Err(_) => parse_patterns(text),
    }
}

/// The number of arguments in registers.
const ARGUMENTS: u8 = 6;

/// Parses `pool_alloc(arg1)`.
fn parse_own(text: &str) -> Result<Own, String> {
    let parts = || {
        let (functions, argument) = text.strip_suffix(')')?.rsplit_once('(')?;
        let argument = argument.strip_prefix("arg")?.parse().ok()?;
        (argument < ARGUMENTS).then_some((functions, argument))
    };
    let wrong = "a function and one of arg0 to arg5 are expected: pool_alloc(arg1)";
    let (functions, argument) = parts().ok_or(wrong)?;
    let functions = parse_patterns(functions)?;
    Ok(Own {
        functions,
        argument,
    })
}

impl OwnAllocators {
    pub(crate) fn is_empty(&self) -> bool {
        self.alloc.is_empty() && self.free.is_empty()
    }

    /// Iterates over the patterns that select the functions.
    pub(crate) fn patterns(&self) -> impl Iterator<Item = &Pattern> {
        let all = self.alloc.iter().chain(&self.free);
        all.flat_map(|own| &own.functions.0)
    }

    /// Returns the settings for recording these and the known allocators.
    pub(crate) fn settings(&self) -> Settings {
        let words = |all: &[Own]| {
            let each = all.iter().map(|own| (own, own.functions.words()));
            let each = each.flat_map(|(own, words)| words.map(|word| (word, own.argument)));
            each.collect::<Vec<_>>()
        };
        let (allocating, freeing) = (words(&self.alloc), words(&self.free));
        let own = allocating.iter().chain(&freeing);
        let own = own.map(|(word, _)| word.clone());
        let mut settings = Settings::default();
        settings.which.trace = heap::words().chain(own).collect();
        settings.heap = Some(HeapFunctions {
            allocating,
            freeing,
        });
        settings
    }
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
    /// ends. `-p 1,2` and `-p 1 -p 2` attach to several, until the last of them ends
    #[arg(
        short,
        long,
        value_name = "PID",
        value_delimiter = ',',
        value_parser = parse_pid,
        conflicts_with = "command"
    )]
    pid: Vec<u32>,
    /// End after this time, as 500ms, 10s or 2m; the program continues. This command ends with it,
    /// unless it was attached
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    time: Option<Duration>,
    /// The program and its arguments
    #[arg(required_unless_present = "pid", trailing_var_arg = true)]
    command: Vec<OsString>,
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
            heap,
            ..
        } = &self.which;
        !libs && !heap && functions.is_empty() && within.is_empty()
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

    /// Returns true if the calls around others are recorded by their addresses.
    pub(crate) fn has_stacks(&self) -> bool {
        self.which.heap
    }

    /// Returns true if waits are recorded.
    pub(crate) fn has_waits(&self) -> bool {
        self.which.waits
    }

    /// Returns true if the functions of async runtimes are recorded.
    pub(crate) fn has_tasks(&self) -> bool {
        self.which.tasks
    }

    /// Returns true if the program is already running.
    pub(crate) fn is_attaching(&self) -> bool {
        !self.processes().is_empty()
    }

    /// Returns the processes to attach to.
    pub(crate) fn processes(&self) -> &[u32] {
        &self.target.pid
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

    /// Finds those of many processes that can be recorded, instead of the program.
    pub(crate) fn find_any(&self, processes: &[u32]) -> Result<Program, Error> {
        let settings = self.target.settings(self.which.settings()?, true);
        let program = Program::find_any(processes, settings)?;
        let program = program.for_time(self.target.time);
        Ok(program.checking(self.which.patterns()))
    }
}

impl Which {
    /// Iterates over the patterns that select functions.
    pub(crate) fn patterns(&self) -> impl Iterator<Item = &Pattern> {
        let all = self.functions.iter().chain(&self.within);
        let all = all.chain(&self.also).chain(&self.args_of);
        all.flat_map(|patterns| &patterns.0)
            .chain(self.own.patterns())
    }

    pub(crate) fn settings(&self) -> Result<Settings, Error> {
        if self.heap {
            return Ok(self.own.settings());
        }
        if !self.own.is_empty() {
            return Err(Error::Usage("--alloc and --free need --heap".to_owned()));
        }
        let words = |all: &[Patterns]| all.iter().flat_map(Patterns::words).collect();
        let mut also: Vec<String> = words(&self.also);
        if self.waits {
            also.extend(waits::words());
        }
        if self.tasks {
            also.extend(runtimes::words());
        }
        let mut arguments_of: Vec<String> = words(&self.args_of);
        if self.waits && self.args.is_none() {
            arguments_of.extend(waits::words_of_arguments());
        }
        if self.tasks && self.args.is_none() {
            arguments_of.extend(runtimes::words());
        }
        let has_arguments = self.args.is_some() || !arguments_of.is_empty();
        let which = WhichCalls {
            trace: words(&self.functions),
            notrace: words(&self.notrace),
            libraries: self.libs,
            also,
            within: words(&self.within),
            depth: self.depth.unwrap_or(0) as usize,
            threshold: self.threshold.unwrap_or(0),
            ..WhichCalls::default()
        };
        let values = CallValues {
            arguments: if has_arguments { 6 } else { 0 },
            arguments_of,
            result: self.retval.is_some(),
            types: [self.args, self.retval].contains(&Some(Values::Types)),
            ..CallValues::default()
        };
        if values.types && [self.args, self.retval].contains(&Some(Values::Registers)) {
            let why = "--args and --retval are both of types or both of registers";
            return Err(Error::Usage(why.to_owned()));
        }
        Ok(Settings {
            which,
            values,
            ..Settings::default()
        })
    }
}

impl Target {
    /// Makes it from a subcommand's own arguments.
    pub(crate) fn new(no_follow: bool, pid: &[u32], command: &[OsString]) -> Self {
        Self {
            no_follow,
            no_cache: false,
            pid: pid.to_owned(),
            time: None,
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

    /// Completes the settings, for a program that `is_running` or is started.
    fn settings(&self, mut settings: Settings, is_running: bool) -> Settings {
        // A program that is started has only its own thread.
        let threads = thread::available_parallelism().ok().filter(|_| is_running);
        let process = &mut settings.process;
        process.follow = !self.no_follow;
        process.planning_threads = threads.map_or(1, |threads| threads.get() as u32);
        process.plans = (!self.no_cache).then(plan_cache::directory).flatten();
        settings
    }

    pub(crate) fn find(&self, settings: Settings) -> Result<Program, Error> {
        let settings = self.settings(settings, !self.pid.is_empty());
        let program = Program::find(&self.pid, &self.command, settings)?;
        Ok(program.for_time(self.time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_of_samples_is_no_function() {
        let why = parse_functions("99").unwrap_err();
        assert!(why.starts_with("perf's -F is a rate of samples"), "{why}");
        assert!(parse_functions("f99").is_ok() && parse_functions("*99").is_ok());
    }
}
