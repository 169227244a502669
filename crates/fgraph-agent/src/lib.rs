//! Records a program that knows nothing of fgraph: the `fgraph` command preloads this library.
//!
//! Before the program's `main` it reads its [`Settings`] in the environment, maps the rings that
//! the command has made, and starts a recorder, or another tool, that writes to them. After that
//! only callbacks remain: no thread, no descriptor, and no variable in the environment. Programs
//! that the process executes find the library and the settings again, see [`executed`].
//!
//! The command also loads it into running processes, see [`attached`].
//!
//! It allocates from mappings of its own, so it works beside any allocator, and in an allocator's
//! functions.
//!
//! # Safety
//!
//! The unsafe code puts functions into the lists that the dynamic linker calls when it loads the
//! library and when the process exits, and changes the environment while there is only one thread.

#![cfg(feature = "library")]

mod allocator;
mod attached;
mod controlled;
mod executed;
mod panics;
mod python;
mod reason;
mod thread_changes;
mod work;

use std::env;
use std::error;
use std::ffi::{CStr, CString, c_char};
use std::io;
use std::mem;
use std::num::{NonZeroU32, NonZeroUsize};
use std::ptr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fgraph::{Filter, FilterReport, Function, PlanStore, RefusedFunction, Untraced};
use fgraph_protocol::{
    HeapFunctions, PlanDirectory, RingsFile, RingsPlace, Settings, Tool, WhichCalls, is_there,
};
use fgraph_trace::names::{DescriptionKind, LastState, process_number};
use fgraph_trace::ring::Rings;
use fgraph_tracers::Tracer as _;
use fgraph_tracers::probe::fault::FaultMarks;
use fgraph_tracers::recorder::{Options, Recorder};
use fgraph_tracers::stack::StackTracer;
use fgraph_tracers::syscalls::SyscallMarks;
use fgraph_tracers::threads::ThreadChecker;
use fgraph_tracers::trigger::Trigger;

use allocator::Allocator;
use executed::Executed;
use panics::PanicMarks;
use python::Python;
use reason::reason;
use thread_changes::ThreadChanges;
use work::{Shortfall, Tracing, Work};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

/// Work of the agent in this process.
#[derive(Debug)]
struct Agent {
    /// Ends when it is dropped.
    tool: Box<dyn Work>,
    triggers: Vec<Trigger>,
    reader: Reader,
    /// Number of programs that the process had executed before; `None` if the recorder does not
    /// ask how it ends.
    tells_end: Option<u32>,
    _executed: Option<Executed>,
    /// `None` if the C library's functions cannot be watched.
    _changes: Option<ThreadChanges>,
}

/// Process that reads the events, or controls the agent in this one.
#[derive(Debug)]
struct Reader {
    /// The rings, which show if the process lives.
    rings: Arc<Rings>,
    /// Id of the process, perhaps in another PID namespace.
    process: u32,
}

impl Reader {
    fn is_there(&self) -> bool {
        let known = self.rings.has_reader();
        known.unwrap_or_else(|| is_there(self.process))
    }
}

static AGENT: Mutex<Option<Agent>> = Mutex::new(None);

extern "C" fn start() {
    let Some(value) = env::var_os(fgraph_protocol::VARIABLE) else {
        return;
    };
    allocator::survive_forks();
    let library = own_path();
    // SAFETY: the program has no other thread yet, and nobody holds a pointer to its variables.
    unsafe { clean_environment(&library) };
    let _untraced = Untraced::new();
    // SAFETY: the dynamic linker calls this before `main`, after it has relocated all modules.
    if let Err(error) = unsafe { fgraph::before_main(|| follow(value.to_str(), library)) } {
        say_why("not recorded", &reason(&*error));
    }
}

/// Reports that this program is not recorded, or in part, if no recorder can.
fn say_why(what: &str, why: &str) {
    let program = env::current_exe().unwrap_or_default();
    eprintln!("fgraph: {} is {what}: {why}", program.display());
}

/// Follows the settings in the environment, or reports to the recorder why it cannot.
fn follow(value: Option<&str>, library: CString) -> Result<(), Box<dyn error::Error>> {
    let settings = value.and_then(Settings::parse);
    let settings = settings.ok_or("it was started by another version of fgraph")?;
    let rings = match &settings.rings {
        RingsPlace::Own(own) => Arc::new(own.create()?),
        RingsPlace::Shared(file) => match file.open() {
            Ok(file) => Arc::new(Rings::open_shared(&file)?),
            // Recording has ended since the program was executed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error.into()),
        },
    };
    if let Err(error) = run(&settings, library, &rings) {
        refuse(&settings, &rings, &reason(&*error));
    }
    Ok(())
}

/// Reports to the recorder, or where there is none on stderr, why nothing is recorded of this
/// program.
fn refuse(settings: &Settings, rings: &Rings, why: &str) {
    // Nobody reads a program's own rings while it runs.
    if !describe(settings, rings, DescriptionKind::Refused, why) || settings.rings.file().is_none()
    {
        say_why("not recorded", why);
    }
}

/// Reports the same why only a part of this program is recorded.
fn restrict(settings: &Settings, rings: &Rings, why: &str) {
    if !describe(settings, rings, DescriptionKind::InPart, why) || settings.rings.file().is_none() {
        say_why("recorded in part", why);
    }
}

/// Describes this program to the recorder; returns false if there is none.
fn describe(settings: &Settings, rings: &Rings, kind: DescriptionKind, why: &str) -> bool {
    let program = env::current_exe().unwrap_or_default();
    let process = process_number(std::process::id(), settings.process.executed);
    let texts = [why, &program.to_string_lossy()];
    rings.describe(kind, [process.into(), 0, 0, 0], texts)
}

fn run(
    settings: &Settings,
    library: CString,
    rings: &Arc<Rings>,
) -> Result<(), Box<dyn error::Error>> {
    // The program waits for this, and may end soon.
    fgraph_tracers::look_lazily(true);
    keep_plans(settings);
    // Before the recorder, whose filter may select functions that this user needs.
    let executed = match settings.process.follow {
        true => Some(Executed::start(settings, library, Arc::clone(rings))?),
        false => None,
    };
    let changes = ThreadChanges::watch(Some(Arc::clone(rings)), settings.process.executed).ok();
    // In a sandbox of its own, or if nobody would notice a new one, the program might not be
    // allowed to wait.
    if changes.is_none() || fgraph_protocol::filters() != Some(settings.process.filters) {
        rings.make_no_calls();
    }
    let (tool, triggers) = begin(settings, rings)?;
    if !settings.process.follow {
        // SAFETY: the function stays loaded.
        unsafe { libc::pthread_atfork(None, None, Some(stop_in_child)) };
    }
    let agent = Agent {
        tool,
        triggers,
        reader: Reader {
            rings: Arc::clone(rings),
            process: settings.rings.file().map_or(0, RingsFile::process),
        },
        tells_end: settings.heap.is_some().then_some(settings.process.executed),
        _executed: executed,
        _changes: changes,
    };
    if let Ok(mut place) = AGENT.lock() {
        *place = Some(agent);
    }
    Ok(())
}

/// Longest time for which finding the types of functions may delay the program's start.
const TYPES: Duration = Duration::from_secs(2);

/// The started work: a tool, and triggers.
type Begun = (Box<dyn Work>, Vec<Trigger>);

/// Keeps plans of modules in the recorder's directory.
fn keep_plans(settings: &Settings) {
    let plans = settings.process.plans.as_deref();
    let directory = plans.and_then(PlanDirectory::open);
    let store = directory.map(|directory| Arc::new(directory) as Arc<dyn PlanStore>);
    // SAFETY: the recorder has made the directory for this build of the agent.
    unsafe { fgraph::set_plan_store(store) };
}

/// Starts the selected tool, which writes to these rings. Reports a failure to the recorder.
fn begin(settings: &Settings, rings: &Arc<Rings>) -> Result<Begun, Box<dyn error::Error>> {
    let begun = start_tool(settings, rings)?;
    // Libraries that are loaded later may have functions that can be traced.
    let program = env::current_exe().unwrap_or_default();
    match begun.0.refusal(&program.to_string_lossy())? {
        Some(Shortfall::All(why)) => refuse(settings, rings, &why),
        Some(Shortfall::Some(why)) => restrict(settings, rings, &why),
        None => {}
    }
    // Programs that it executes later may be no concern of the filter.
    if settings.process.executed == 0 && names_functions(settings) {
        for word in begun.0.report()?.unmatched() {
            describe(settings, rings, DescriptionKind::Unmatched, word);
        }
    }
    Ok(begun)
}

/// Returns true if the settings name functions, other than all of some modules.
fn names_functions(settings: &Settings) -> bool {
    let which = &settings.which;
    let words = [&which.trace, &which.within, &which.also];
    let is_by_rules = matches!(settings.tool, Tool::Threads(_));
    is_by_rules || !settings.triggers.is_empty() || words.iter().any(|words| !words.is_empty())
}

fn start_tool(settings: &Settings, rings: &Arc<Rings>) -> Result<Begun, Box<dyn error::Error>> {
    let rings = Arc::clone(rings);
    let executed = settings.process.executed;
    let languages = &settings.languages;
    let program = env::current_exe()?;
    let filter = || settings.filter(&program.to_string_lossy());
    let tool: Box<dyn Work> = match &settings.tool {
        Tool::Record => {
            let interpreter = languages.python.then(python::interpreter).flatten();
            let filter = settings.filter_beside(&program.to_string_lossy(), interpreter.as_deref());
            let (recorder, triggers) = record(settings, rings, filter?)?;
            let recorder = Arc::new(recorder);
            let python = match languages.python {
                true => record_python(settings, &recorder),
                false => None,
            };
            let panics = languages
                .panics
                .then(|| PanicMarks::start(recorder.clone()));
            let recording = Recording {
                panics: panics.transpose()?,
                python,
                recorder,
            };
            return Ok((Box::new(recording), triggers));
        }
        &Tool::Syscalls { is_loud, has_paths } => {
            let asked = settings.which.asked()?;
            let asked = asked.as_ref();
            let started = SyscallMarks::start_in(rings, executed, asked, is_loud, has_paths);
            Box::new(Tracing(started?))
        }
        Tool::Stack => Box::new(Tracing(StackTracer::start_in(rings, executed, filter()?)?)),
        Tool::Threads(rules) => {
            let rules = rules
                .iter()
                .map(|(rule, words)| Ok((*rule, WhichCalls::selected(words)?)));
            let rules: Vec<_> = rules.collect::<Result<_, fgraph::FilterError>>()?;
            Box::new(Tracing(ThreadChecker::start_in(rings, executed, rules)?))
        }
        Tool::Inject(fault) => {
            let (targets, inside) = (settings.which.trace.join(" "), settings.which.within()?);
            let targets = WhichCalls::selected(&targets)?;
            // SAFETY: the user who requests faults vouches that callers may get such results.
            let started = unsafe { FaultMarks::start_in(rings, executed, targets, inside, *fault) };
            Box::new(started?)
        }
        _ => return Err("it was started by another version of fgraph".into()),
    };
    Ok((tool, Vec::new()))
}

/// Recorder whose functions the command may switch off and on.
#[derive(Debug)]
struct Recording {
    /// Both end before the recorder.
    panics: Option<PanicMarks>,
    python: Option<Python>,
    recorder: Arc<Recorder>,
}

impl Work for Recording {
    fn pause(&self) {
        if self.python.is_some() {
            Python::pause();
        }
        if let Some(panics) = &self.panics {
            panics.pause();
        }
        self.recorder.set_enabled(false);
    }

    fn functions(&self) -> Result<Vec<Function>, fgraph::Error> {
        self.recorder.functions()
    }

    fn report(&self) -> Result<FilterReport, fgraph::Error> {
        self.recorder.report()
    }

    fn refused(&self) -> Result<Vec<RefusedFunction>, fgraph::Error> {
        self.recorder.refused()
    }

    fn recorder(&self) -> Option<&Recorder> {
        Some(&self.recorder)
    }
}

/// Starts recording the functions of Python, or reports to the recorder why it cannot.
fn record_python(settings: &Settings, recorder: &Arc<Recorder>) -> Option<Python> {
    Python::start(settings, recorder).unwrap_or_else(|why| {
        let process = process_number(std::process::id(), settings.process.executed);
        let texts = [why.as_str(), &python::python_in_program()];
        let rings = recorder.rings();
        rings.describe(DescriptionKind::Refused, [process.into(), 0, 0, 0], texts);
        None
    })
}

fn record(
    settings: &Settings,
    rings: Arc<Rings>,
    filter: Filter,
) -> Result<(Recorder, Vec<Trigger>), Box<dyn error::Error>> {
    let Settings {
        which,
        values,
        heap,
        process,
        ..
    } = settings;
    let allocators = heap.as_ref().map(HeapFunctions::allocators);
    let options = Options {
        arguments: values.arguments,
        arguments_of: values.arguments_of()?,
        result: values.result,
        types: values.types.then_some(TYPES),
        texts: values.texts.clone(),
        paths: values.paths.clone(),
        caller: values.callers,
        stack: values.stacks,
        once: which.once,
        allocations: heap.is_some(),
        allocators: allocators.transpose()?.unwrap_or_default(),
        depth: Some(which.depth).filter(|&depth| depth != 0),
        within: which.within()?,
        threshold: Some(Duration::from_nanos(which.threshold)),
        max_rate: NonZeroU32::new(which.max_rate),
        planning_threads: NonZeroUsize::new(process.planning_threads as usize),
        executed: process.executed,
        ..Options::default()
    };
    let recorder = Recorder::start_in(rings, filter, &options)?;
    // Slots are called in their order at entries, and in the opposite order at returns: when a
    // trigger fires, the call has been recorded.
    let start = |trigger: &fgraph_protocol::Trigger| {
        let least = Duration::from_nanos(trigger.least);
        Trigger::start(recorder.rings().clone(), &trigger.functions, least)
    };
    let triggers: Result<_, _> = settings.triggers.iter().map(start).collect();
    Ok((recorder, triggers?))
}

/// Tells the recorder that the process ends by itself. The C library calls it in `exit`.
extern "C" fn end() {
    if let Ok(agent) = AGENT.try_lock()
        && let Some(agent) = &*agent
        && let Some(executed) = agent.tells_end
        && let Some(fields) =
            LastState::Exited.to_fields(process_number(std::process::id(), executed))
    {
        let rings = &agent.reader.rings;
        rings.describe(DescriptionKind::LastState, fields, ["", ""]);
    }
}

/// Stops recording in a child that must not be recorded.
extern "C" fn stop_in_child() {
    if let Ok(agent) = AGENT.try_lock()
        && let Some(agent) = &*agent
    {
        agent.tool.pause();
        agent
            .triggers
            .iter()
            .for_each(|trigger| trigger.set_enabled(false));
    }
}

/// Returns the path of this library, as the dynamic linker was given it.
fn own_path() -> CString {
    // SAFETY: zeros are a valid `Dl_info`, which the call fills in.
    let mut info: libc::Dl_info = unsafe { mem::zeroed() };
    let here = start as extern "C" fn() as *const libc::c_void;
    // SAFETY: the linker returns a C string that lives as long as this library is loaded.
    unsafe {
        if libc::dladdr(here, &mut info) == 0 || info.dli_fname.is_null() {
            return CString::default();
        }
        CStr::from_ptr(info.dli_fname).to_owned()
    }
}

/// Removes the command's variables from the environment, and leaves the rest unchanged, in its
/// order.
///
/// # Safety
///
/// No other thread uses the environment.
unsafe fn clean_environment(library: &CStr) {
    // SAFETY: no other thread changes the list now, as the caller says.
    let mut place = unsafe { libc_environ() };
    if place.is_null() {
        return;
    }
    let mut kept = place;
    loop {
        // SAFETY: the list ends with a null pointer, at which this loop ends.
        let entry = unsafe { *place };
        let variable = match entry.is_null() {
            true => &[][..],
            // SAFETY: entries of the list are C strings.
            false => unsafe { CStr::from_ptr(entry) }.to_bytes(),
        };
        let is_ours = variable.strip_prefix(fgraph_protocol::VARIABLE.as_bytes());
        let is_ours = is_ours.is_some_and(|rest| rest.starts_with(b"="));
        let changed = match split(variable) {
            Some(("LD_PRELOAD", list)) => without_first(list, library.to_bytes()),
            Some((fgraph_protocol::ASAN_VARIABLE, list)) => {
                without_last(list, fgraph_protocol::ASAN_OPTION.as_bytes())
            }
            _ => List::Same,
        };
        let new = match changed {
            _ if is_ours => None,
            List::Same => Some(entry),
            List::Shorter(list) => Some(same_name(variable, list).into_raw()),
            List::Gone => None,
        };
        if let Some(new) = new {
            // SAFETY: `kept` is not behind `place`, in the same list.
            unsafe {
                *kept = new;
                kept = kept.add(1);
            }
        }
        if entry.is_null() {
            break;
        }
        // SAFETY: `place` is not at the end of the list.
        place = unsafe { place.add(1) };
    }
    // The auxiliary vector is behind the list, where Go's runtime reads it if the entry behind the
    // first null pointer is another.
    while kept <= place {
        // SAFETY: `kept` is in the list, whose end is at `place`.
        unsafe {
            *kept = ptr::null_mut();
            kept = kept.add(1);
        }
    }
}

/// Value of an environment variable that is a list of words, separated by colons. The word that the
/// command has added is left out.
enum List<'a> {
    /// The command has added nothing.
    Same,
    /// The program's own words remain.
    Shorter(&'a [u8]),
    /// The program has no such variable.
    Gone,
}

/// Removes `word` from the start of `list`.
fn without_first<'a>(list: &'a [u8], word: &[u8]) -> List<'a> {
    match list.strip_prefix(word) {
        Some([]) => List::Gone,
        Some([b':', rest @ ..]) => List::Shorter(rest),
        _ => List::Same,
    }
}

/// Removes `word` from the end of `list`.
fn without_last<'a>(list: &'a [u8], word: &[u8]) -> List<'a> {
    match list.strip_suffix(word) {
        Some([]) => List::Gone,
        Some([rest @ .., b':']) => List::Shorter(rest),
        _ => List::Same,
    }
}

/// Splits a variable into its name and its value.
fn split(variable: &[u8]) -> Option<(&str, &[u8])> {
    let at = variable.iter().position(|&byte| byte == b'=')?;
    let name = str::from_utf8(&variable[..at]).ok()?;
    Some((name, &variable[at + 1..]))
}

/// Returns the variable with another value.
fn same_name(variable: &[u8], value: &[u8]) -> CString {
    let name = variable.split_inclusive(|&byte| byte == b'=').next();
    let mut variable = name.unwrap_or_default().to_vec();
    variable.extend(value);
    CString::new(variable).unwrap_or_default()
}

/// Returns the list of variables, which ends with a null pointer.
///
/// # Safety
///
/// No other thread changes it.
unsafe fn libc_environ() -> *mut *mut c_char {
    unsafe extern "C" {
        static mut environ: *mut *mut c_char;
    }
    // SAFETY: libc defines the variable.
    unsafe { ptr::read(&raw const environ) }
}
