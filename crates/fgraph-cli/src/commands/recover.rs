//! `fgraph recover`: a recording from the core file of a process.
//!
//! The rings are memory of the recorded process, so its core file has them: the newest events of
//! each thread, and the names that they refer to.

mod rings;

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fgraph_symbols::core_file::{CoreFile, CoreSignal};
use fgraph_trace::event::What;
use fgraph_trace::names::{Description, DescriptionKind, Names, process_id};
use fgraph_trace::pairing::{Ending, Pairing};
use fgraph_trace::recording::{Drain, Info};
use fgraph_trace::ring::Mode;
use fgraph_trace::{Recording, Source as _};
use serde::Serialize;

use super::syscalls::signal;
use crate::debuginfod::Debuginfod;
use crate::error::Error;
use crate::input::DEFAULT;
use crate::json;
use crate::output::must_differ;
use crate::places::names_of_functions;
use crate::sources::{self, hexadecimal};
use crate::text::{self, counted, escaped, size, time};
use rings::{Found, Search, find};

const EXAMPLES: &str = "\
Examples:
  fgraph recover core && fgraph replay | tail -50
  fgraph recover --program ./server -o crash.data /var/crash/core.4711";

/// Make a recording from a core file
///
/// A recorded process has its newest events in its own memory, so its core file has them, even if
/// the recorder was killed, or there was none (`record --flight`). The recording has the events
/// of all threads that the process had, as far as its rings go back. The kernel writes this memory
/// unless bit 1 of /proc/PID/coredump_filter is cleared, and so does gcore of gdb.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The core file
    #[arg(value_name = "CORE")]
    core: PathBuf,
    /// The program, where it is not at the path that the core file names. A file of another build
    /// is refused
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// The recording; an existing file is replaced. If the process had several recorders, the
    /// events of the others are in FILE.2 and so on
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT)]
    output: PathBuf,
    /// Do not look up the source locations of functions
    #[arg(long)]
    no_source: bool,
    #[command(flatten)]
    debuginfod: Debuginfod,
    /// Print one JSON object, and only errors beside it
    #[arg(long)]
    json: bool,
    /// Print nothing except errors
    #[arg(short, long)]
    quiet: bool,
}

/// The view of `recover` in JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct RecoverView {
    /// The process of the core file; null if the file does not name it.
    process: Option<u32>,
    command: String,
    /// The number of the signal that ended the process; null if there was none.
    signal: Option<u32>,
    /// The address that the process could not access, if that is the reason.
    address: Option<u64>,
    /// Bytes that the core file should have and has not.
    missing_bytes: u64,
    /// One for each recorder that the process had, the newest first.
    recordings: Vec<RecoveredView>,
}

/// A recording that was made.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct RecoveredView {
    file: String,
    bytes: u64,
    calls: u64,
    /// The time from the first event to the last one.
    lasted_ns: u64,
    /// Events that are not in the recording: they had made room for newer ones, or a recorder had
    /// taken them.
    older_events: u64,
    /// True if newer events had replaced these.
    overwrites: bool,
    /// Names for which there was no room.
    lost_names: u64,
    /// Threads of the process at its end, first the one that the signal ended.
    threads: Vec<OpenCalls>,
}

/// The calls of a thread that had not ended.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct OpenCalls {
    thread: u32,
    /// Functions, from the outermost call inwards.
    calls: Vec<String>,
}

/// The most threads whose calls are shown.
const SHOWN: usize = 8;
/// Outer and inner calls of a thread that are shown; calls between are counted.
const ENDS: [usize; 2] = [4, 12];

/// Makes the recording.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let unreadable = |error| Error::Input {
        path: args.core.clone(),
        error,
    };
    let file = File::open(&args.core).map_err(unreadable)?;
    let known = file.metadata().map_err(unreadable)?;
    let kind = known.file_type();
    if kind.is_dir() {
        return Err(unreadable(io::ErrorKind::IsADirectory.into()));
    }
    if !kind.is_file() {
        return Err(unreadable(io::Error::other("not a core file")));
    }
    let core = CoreFile::read(file);
    let mut core = core.map_err(|error| unreadable(io::Error::other(error)))?;
    let modules = Modules::of(&mut core);
    modules.check_program(args)?;
    let mut search = find(&mut core, known.blocks().saturating_mul(512)).map_err(unreadable)?;
    if search.found.is_empty() {
        return Err(unreadable(io::Error::other(nothing_of(search, &core))));
    }
    // The newest events first.
    search
        .found
        .sort_by_key(|found| std::cmp::Reverse(found.rings.newest_sub_buffer()));
    let is_quiet = args.quiet || args.json;
    if !is_quiet {
        say!("fgraph: {}", escaped(&described(&core)));
    }
    if let Some(error) = &search.error {
        say!("fgraph: other rings in it cannot be read: {error}");
    }
    let (mut missing, mut recordings) = (0, Vec::new());
    for (nth, found) in search.found.into_iter().enumerate() {
        let mut path = args.output.clone().into_os_string();
        if nth > 0 {
            path.push(format!(".{}", nth + 1));
        }
        must_differ(path.as_ref(), [&args.core])?;
        missing += found.missing;
        let made = write(args, &core, &modules, found, path.as_ref())?;
        if !is_quiet {
            made.say();
        }
        recordings.push(made);
    }
    let missing = core.missing().max(missing);
    if args.json {
        let process = core.process();
        json::write(&RecoverView {
            process: process.map(|it| it.id),
            command: process.map_or_else(String::new, |it| it.command.clone()),
            signal: core.signal().map(|it| it.number),
            address: core.signal().and_then(|it| it.address),
            missing_bytes: missing,
            recordings,
        })?;
    }
    match missing {
        0 => Ok(()),
        lost => Err(Error::Part {
            path: args.core.clone(),
            missing: format!(
                "was cut off, or not written in full: {} are missing",
                size(lost)
            ),
        }),
    }
}

/// Returns why there is nothing to recover.
fn nothing_of(search: Search, core: &CoreFile<File>) -> String {
    if let Some(error) = search.error {
        return format!("its rings cannot be read, was another version of fgraph used? {error}");
    }
    let is_cut = core.missing() > 0;
    match search.has_absent {
        true if is_cut => "it was cut off before the rings".to_owned(),
        true => "the rings are not in it: see bit 1 of /proc/PID/coredump_filter".to_owned(),
        false if core.files().is_empty() => {
            "it has no list of mapped files, without which rings are not found".to_owned()
        }
        false => "it has no rings: the process was not recorded when it ended".to_owned(),
    }
}

/// Describes the process of a core file and its end.
fn described(core: &CoreFile<File>) -> String {
    let (command, id) = match core.process() {
        Some(process) => (process.command.as_str(), process.id),
        None => ("a process", 0),
    };
    let end = match core.signal() {
        Some(CoreSignal {
            number, address, ..
        }) => {
            let place = address.map_or_else(String::new, |address| format!(" at {address:#x}"));
            format!(", ended by {}{place}", signal(number.into()))
        }
        None => String::new(),
    };
    format!("process {id}, {command}{end}")
}

/// The builds of the mapped files, by path.
#[derive(Debug, Default)]
struct Modules {
    builds: HashMap<String, String>,
    /// The path of the program.
    program: Option<String>,
}

impl Modules {
    fn of(core: &mut CoreFile<File>) -> Self {
        let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
        let program = core.program().map(|file| text(&file.path));
        let mut builds = HashMap::new();
        for file in core.files().to_vec() {
            if file.offset == 0
                && let Some(id) = core.build_id(file.addresses.start)
            {
                builds.insert(text(&file.path), hexadecimal(&id));
            }
        }
        Self { builds, program }
    }

    /// Fails if the program that the user names is another build than that of the core file.
    fn check_program(&self, args: &Args) -> Result<(), Error> {
        let Some(path) = &args.program else {
            return Ok(());
        };
        let wrong = |what: String| Error::Input {
            path: path.clone(),
            error: io::Error::other(what),
        };
        fs::metadata(path).map_err(|error| Error::Input {
            path: path.clone(),
            error,
        })?;
        let known = self.program.as_ref().and_then(|it| self.builds.get(it));
        match (sources::build_id(path), known) {
            (None, _) => Err(wrong(
                "no program with a build id, so it cannot be compared".into(),
            )),
            (Some(_), None) => {
                say!(
                    "fgraph: {} does not show which build the program is",
                    args.core.display()
                );
                Ok(())
            }
            (Some(id), Some(known)) if id == *known => Ok(()),
            (Some(id), Some(known)) => Err(wrong(format!(
                "not the program of {}: its build id is {id}, not {known}",
                args.core.display()
            ))),
        }
    }

    /// Returns the build ids of modules that the names have.
    fn build_ids(&self, names: &Names) -> Vec<Description> {
        let describe = |module: &fgraph_trace::names::ModuleName| {
            let id = self.builds.get(&module.path)?;
            Some(Description {
                kind: DescriptionKind::BuildId,
                fields: [module.process.into(), module.start, 0, 0],
                texts: [module.path.clone(), id.clone()],
            })
        };
        names.modules().iter().filter_map(describe).collect()
    }
}

/// Writes the events of rings to a recording.
fn write(
    args: &Args,
    core: &CoreFile<File>,
    modules: &Modules,
    found: Found,
    path: &Path,
) -> Result<RecoveredView, Error> {
    let failed = |error| Error::Write {
        path: path.to_owned(),
        error,
    };
    let rings = Arc::new(found.rings);
    let file = super::record::open_empty(path).map_err(failed)?;
    let process = core.process();
    let command = process.map_or("", |process| process.command.as_str());
    let info = Info {
        process: process.map_or(0, |process| process.id),
        command: command.split(' ').map(str::to_owned).collect(),
        // It may be another one.
        host: "unknown".to_owned(),
        ..Info::of_this_process()
    };
    let drain = Drain::remains(Arc::clone(&rings), file, &info);
    let mut drain = drain.map_err(failed)?;
    let builds = modules.build_ids(drain.names());
    drain.add(&builds).map_err(failed)?;
    if args.debuginfod.allow() {
        drain
            .add(&names_of_functions(drain.names()))
            .map_err(failed)?;
    }
    if !args.no_source {
        let sources = sources::of_functions(drain.names(), || false);
        drain.add(&sources).map_err(failed)?;
    }
    for (program, why) in drain.names().refused() {
        let [program, why] = [program, why].map(|text| escaped(text));
        say!("fgraph: {program} was not recorded: {why}");
    }
    let (calls, older_events) = (drain.entries(), drain.replaced());
    let file = drain.finish().map_err(failed)?;
    let bytes = file.metadata().map_err(failed)?.len();
    let stacks = Stacks::read(path).map_err(|error| Error::source(path, error))?;
    Ok(RecoveredView {
        file: path.display().to_string(),
        bytes,
        calls,
        lasted_ns: stacks.lasted,
        older_events,
        overwrites: rings.mode() == Mode::Overwrite,
        lost_names: rings.lost_descriptions(),
        threads: stacks.of(core),
    })
}

impl RecoveredView {
    /// Shows it to people.
    fn say(&self) {
        let events = counted(self.older_events, "older event");
        let more = match self.overwrites {
            _ if self.older_events == 0 => String::new(),
            true => format!("; {events} had made room for newer ones"),
            false => format!("; {events} had been taken by a recorder"),
        };
        let calls = text::calls(self.calls);
        let (lasted, bytes) = (time(self.lasted_ns), size(self.bytes));
        let file = escaped(&self.file);
        say!("fgraph: {calls} of the last {lasted} in {file}, {bytes}{more}");
        if self.lost_names > 0 {
            say!("fgraph: {} are missing", counted(self.lost_names, "name"));
        }
        let outer = if self.older_events > 0 { "... > " } else { "" };
        for OpenCalls { thread, calls } in self.threads.iter().take(SHOWN) {
            let calls = match calls.is_empty() {
                true => "no recorded call".to_owned(),
                false => shortened(calls),
            };
            say!("fgraph: thread {thread} was in {outer}{}", escaped(&calls));
        }
        if let Some(more @ 1..) = self.threads.len().checked_sub(SHOWN) {
            say!("fgraph: {more} more threads: see `fgraph graph`, or --json");
        }
    }
}

/// Returns the calls of a thread as text. A stack that overflows has thousands.
fn shortened(calls: &[String]) -> String {
    let [outer, inner] = ENDS;
    let between = calls.len().saturating_sub(outer + inner);
    // A number instead of one call would be no shorter.
    if between < 2 {
        return calls.join(" > ");
    }
    let [outer, inner] = [&calls[..outer], &calls[outer + between..]];
    let between = format!("({})", counted(between as u64, "call"));
    [outer, &[between], inner].concat().join(" > ")
}

/// The calls of each thread that had not ended.
#[derive(Debug)]
struct Stacks {
    /// Process, thread, and functions from the outermost call inwards.
    threads: Vec<(u32, u32, Vec<String>)>,
    /// Nanoseconds between the first event and the last one.
    lasted: u64,
}

impl Stacks {
    fn read(path: &Path) -> Result<Self, fgraph_trace::source::SourceError> {
        let mut recording = Recording::open(path)?;
        let mut open: HashMap<(u32, u32), Pairing<()>> = HashMap::new();
        let mut span = None;
        while let Some(event) = recording.next()? {
            let (first, _) = span.unwrap_or((event.time, event.time));
            span = Some((first, event.time.max(first)));
            let calls = open.entry((event.process, event.thread)).or_default();
            match event.what {
                What::Entry {
                    function,
                    is_entry_only: false,
                    ..
                } => calls.enter(function, event.time, ()),
                What::Return { function, .. } => {
                    calls.exit(function, event.time, Ending::Returned);
                }
                What::Unwound { function } => {
                    calls.exit(function, event.time, Ending::Unwound);
                }
                What::Dropped { function } => {
                    calls.exit(function, event.time, Ending::Lost);
                }
                What::Lost { ends, .. } => calls.lose(ends),
                _ => {}
            }
            while calls.change().is_some() {}
        }
        let (names, clock) = (recording.names(), recording.clock());
        let named = |(&(process, thread), calls): (&(u32, u32), &Pairing<()>)| {
            let name = |function| match names.function(process, function) {
                Some(known) if !known.name.is_empty() => known.name.clone(),
                Some(known) => format!("{:#x}", known.address),
                None => "a function without a name".to_owned(),
            };
            let calls = calls.calls().iter().map(|call| name(call.function));
            (process, thread, calls.collect())
        };
        let mut threads: Vec<_> = open.iter().map(named).collect();
        threads.sort();
        let lasted = span.map_or(0, |(first, last)| clock.nanoseconds(last - first));
        Ok(Self { threads, lasted })
    }

    /// Returns those of the process of a core file, first that of the thread with the signal.
    fn of(self, core: &CoreFile<File>) -> Vec<OpenCalls> {
        let process = core.process().map_or(0, |process| process.id);
        let order = |id| core.threads().iter().position(|it| it.id == id);
        let threads = self.threads.into_iter();
        // A thread that had ended is not in the core file.
        let here = threads.filter(|it| process_id(it.0) == process && order(it.1).is_some());
        let mut here: Vec<_> = here
            .map(|(_, thread, calls)| OpenCalls { thread, calls })
            .collect();
        here.sort_by_key(|it| order(it.thread));
        here
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_view_has_its_schema() {
        json::check_schema::<RecoverView>("recover");
    }

    #[test]
    fn calls_between_the_outermost_and_the_innermost_ones_are_counted() {
        let calls = |number: usize| (0..number).map(|n| n.to_string()).collect::<Vec<_>>();
        assert_eq!(shortened(&calls(3)), "0 > 1 > 2");
        assert_eq!(shortened(&calls(17)), calls(17).join(" > "));
        let shown = shortened(&calls(5000));
        assert!(
            shown.starts_with("0 > 1 > 2 > 3 > (4,984 calls) > 4988 > 4989"),
            "{shown}"
        );
    }
}
