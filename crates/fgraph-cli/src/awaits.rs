//! The awaits at which the tasks of a process wait, read from outside: nothing is loaded into the
//! process, and it is not stopped.
//!
//! A runtime keeps each task in memory of its own, whose header has the address of a table of
//! functions. So all tasks are found, also those that nobody polls:
//!
//! 1. debug information tells which functions poll tasks (`fgraph_symbols::futures`);
//! 2. the data of the module has the tables, each with the address of such a function;
//! 3. a word with the address of such a table, in memory that can be written, is in a task's
//!    header, if the header's other words are those of a task that lives.

mod memory;
pub(crate) mod python;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::iter::Peekable;
use std::path::{Path, PathBuf};

use fgraph_analysis::runtimes::Runtime;
use fgraph_symbols::elf::ElfFile;
use fgraph_symbols::futures::{
    Future, FutureState, Futures, Memory, PollFunction, TaskHeader, TaskRuntime,
};
use fgraph_symbols::mapping::Mapping;
use fgraph_symbols::python::{Awaited, Coroutine, PythonFrame};
use fgraph_trace::names::{Description, DescriptionKind, Names};
use serde::Serialize;

use crate::error::without_number;
use crate::sources;
use memory::{PAGE, ProcessMemory, begin_of, file_of};
use python::Interpreter;

/// The tasks of a process that have not ended.
#[derive(Debug, Default)]
pub(crate) struct Awaits {
    pub(crate) tasks: Vec<Task>,
    /// Files with a runtime whose tasks are unknown, and the reason.
    pub(crate) unknown: Vec<(PathBuf, Unknown)>,
    /// The reason for which the coroutines of an interpreter of Python are unknown.
    pub(crate) of_python: Option<String>,
}

/// A task.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) address: u64,
    pub(crate) runtime: Runtime,
    /// The type of its future.
    pub(crate) name: String,
    pub(crate) condition: Condition,
    /// None while it is polled, or if its memory cannot be read.
    pub(crate) future: Option<Future>,
}

/// The condition of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Condition {
    /// A thread polls it, or it changed each time that it was read.
    Polled,
    /// It was woken, and is polled soon.
    Woken,
    /// It waits until it is woken.
    Waits,
}

/// The reason for which the tasks of a file are unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Unknown {
    /// There is no debug information of it.
    NoDebugInformation,
    /// Debug information does not describe tasks: it has only functions and lines, or another
    /// version of the runtime.
    NoTypes,
    /// It was replaced since it was loaded.
    Replaced,
}

/// The times that a task is read before it counts as one that is polled.
const TRIES: usize = 3;

/// A file of the process in which tasks are polled.
struct Module {
    futures: Futures,
    /// The distance from its addresses to those in memory.
    bias: u64,
}

/// A table of functions: its module, and the function that polls.
type Table<'m> = (&'m Module, &'m PollFunction, TaskHeader);

/// Reads the tasks of a process.
pub(crate) fn of_process(process: u32) -> Result<Awaits, String> {
    let maps = fs::read(format!("/proc/{process}/maps")).map_err(why)?;
    let maps: Vec<Mapping<'_>> = Mapping::all(&maps).collect();
    let mut memory = ProcessMemory::open(process).map_err(why)?;
    let mut found = Awaits::default();
    let mut modules = Vec::new();
    for (path, file) in files(process, &maps) {
        match Module::read(process, &path, file, &memory) {
            Ok(Some((module, bytes))) => {
                memory.add(module.bias, bytes);
                modules.push((path, module));
            }
            Ok(None) => {}
            Err(unknown) => found.unknown.push((file_name(&path), unknown)),
        }
    }
    let mut tables: HashMap<u64, Table<'_>> = HashMap::new();
    for (path, module) in &modules {
        let data = |it: &&Mapping<'_>| *it.path == **path && !it.protection.executable;
        for mapping in maps.iter().filter(data) {
            memory.words(mapping.range.clone(), |at, word| {
                let poll = module.futures.poll(word.wrapping_sub(module.bias))?;
                let header = poll.header?;
                let table = at.checked_sub(header.poll)?;
                tables.insert(table, (module, poll, header));
                Some(())
            });
        }
    }
    let stacks = memory::stacks(process, &maps);
    let is_heap = |it: &&Mapping<'_>| {
        it.protection.writable
            && it.inode == 0
            && !it.is_shared
            && !stacks.contains(&it.range.start)
    };
    let mut places = Vec::new();
    for mapping in maps.iter().filter(is_heap) {
        memory.words(mapping.range.clone(), |at, word| {
            let table = tables.get(&word)?;
            places.push((at.checked_sub(table.2.table)?, *table));
            Some(())
        });
    }
    for (address, table) in places {
        found.tasks.extend(task(&memory, address, table));
    }
    let read = |at: u64, into: &mut [u8]| memory.read_now(at, into);
    if let Some(interpreter) = Interpreter::find(process, &maps, &read) {
        match interpreter.coroutines(&memory, maps.iter().filter(is_heap)) {
            Ok(coroutines) => found.tasks.extend(tasks_of(coroutines)),
            Err(error) => found.of_python = Some(error.to_string()),
        }
    }
    Ok(found)
}

/// Returns the files from which code of the process was loaded, without those of the system, and
/// their first mappings.
fn files<'m>(process: u32, maps: &'m [Mapping<'m>]) -> Vec<(Vec<u8>, &'m Mapping<'m>)> {
    let program = fs::read_link(format!("/proc/{process}/exe"));
    let program = program.unwrap_or_default();
    let mut found: Vec<(Vec<u8>, &Mapping<'_>)> = Vec::new();
    let with_code = |path: &[u8]| {
        let mut all = maps.iter();
        all.any(|it| *it.path == *path && it.protection.executable)
    };
    for mapping in maps.iter().filter(|it| it.inode != 0) {
        let path = &*mapping.path;
        let is_system = [&b"/usr/lib"[..], b"/lib"]
            .iter()
            .any(|it| path.starts_with(it));
        let is_program = path == program.as_os_str().as_encoded_bytes();
        let is_known = found.iter().any(|(known, _)| known == path);
        if !is_known && (is_program || !is_system) && with_code(path) {
            found.push((path.to_owned(), begin_of(maps, mapping)));
        }
    }
    found
}

fn file_name(path: &[u8]) -> PathBuf {
    String::from_utf8_lossy(path).into_owned().into()
}

impl Module {
    /// Reads the debug information of a file, if it has a runtime.
    fn read(
        process: u32,
        path: &[u8],
        first: &Mapping<'_>,
        memory: &ProcessMemory,
    ) -> Result<Option<(Self, Vec<u8>)>, Unknown> {
        let path = file_of(process, path);
        let Some(bytes) = sources::bytes(&path) else {
            return Ok(None);
        };
        let runtimes = Runtime::find(&bytes);
        let is_it =
            |&(runtime, _): &(Runtime, _)| matches!(runtime, Runtime::Tokio | Runtime::AsyncTask);
        if !runtimes.iter().any(is_it) {
            return Ok(None);
        }
        // The first page has the addresses of all parts, and as a rule the build id.
        let mut loaded = vec![0; bytes.len().min(PAGE)];
        let read = memory.read(first.range.start, &mut loaded);
        if first.offset == 0 && read.is_some() && !bytes.starts_with(&loaded) {
            return Err(Unknown::Replaced);
        }
        let elf = ElfFile::parse(&bytes).ok();
        let first_address = elf.as_ref().and_then(sources::first_address);
        let first_address = first_address.ok_or(Unknown::NoDebugInformation)?;
        let lines = sources::lines_of(&path).ok_or(Unknown::NoDebugInformation)?;
        let futures = lines.futures();
        if futures.polls().iter().all(|poll| poll.header.is_none()) {
            return Err(Unknown::NoTypes);
        }
        let bias = first.range.start.wrapping_sub(first_address);
        Ok(Some((Self { futures, bias }, bytes)))
    }
}

/// Returns the task at an address, if there is one.
fn task(memory: &ProcessMemory, address: u64, table: Table<'_>) -> Option<Task> {
    let (module, poll, header) = table;
    let mut condition = Condition::Polled;
    let mut future = None;
    for _ in 0..TRIES {
        memory.forget();
        condition = condition_of(memory, address, poll.runtime, &header)?;
        if condition == Condition::Polled {
            continue;
        }
        let read = || module.futures.tree(poll, address, module.bias, memory);
        let first = read();
        memory.forget();
        let after = condition_of(memory, address, poll.runtime, &header)?;
        if after == condition && read() == first {
            future = first;
            break;
        }
        condition = Condition::Polled;
    }
    if condition != Condition::Polled && future.is_none() {
        // It has a result, and nobody has taken it.
        return None;
    }
    Some(Task {
        address,
        runtime: match poll.runtime {
            TaskRuntime::Tokio => Runtime::Tokio,
            TaskRuntime::AsyncTask => Runtime::AsyncTask,
        },
        name: poll.name.clone(),
        condition,
        future,
    })
}

/// Returns the tasks of coroutines that no other one awaits.
fn tasks_of(found: Vec<Coroutine>) -> impl Iterator<Item = Task> {
    // Recorded calls have the addresses of frames.
    let address = |it: &Coroutine| if it.frame == 0 { it.address } else { it.frame };
    let addresses = found.iter().map(|it| (it.address, address(it)));
    let addresses: HashMap<u64, u64> = addresses.collect();
    found.into_iter().map(move |it| Task {
        address: address(&it),
        runtime: Runtime::Asyncio,
        name: it
            .frames
            .first()
            .map_or_else(String::new, |it| it.name.clone()),
        condition: if it.runs {
            Condition::Polled
        } else {
            Condition::Waits
        },
        future: if it.runs {
            None
        } else {
            future(it, &addresses)
        },
    })
}

/// Returns the frames of a coroutine as futures inside one another.
fn future(coroutine: Coroutine, addresses: &HashMap<u64, u64>) -> Option<Future> {
    let leaf = coroutine.awaits.map(|Awaited { name, coroutine }| Future {
        name,
        state: FutureState::Unknown,
        place: None,
        task: coroutine.and_then(|it| addresses.get(&it)).copied(),
        children: Vec::new(),
        is_cut: false,
    });
    let is_new = coroutine.is_new;
    let around = |inner: Option<Future>, frame: PythonFrame| {
        Some(Future {
            name: frame.name,
            state: match is_new {
                true => FutureState::New,
                false => FutureState::Waits,
            },
            place: frame.line.map(|line| (frame.file, line)),
            task: None,
            children: inner.into_iter().collect(),
            is_cut: false,
        })
    };
    coroutine.frames.into_iter().rev().fold(leaf, around)
}

/// Returns the condition of a task that lives. Its header is in memory that was a task's once: the
/// number of references tells if it still is.
fn condition_of(
    memory: &ProcessMemory,
    address: u64,
    runtime: TaskRuntime,
    header: &TaskHeader,
) -> Option<Condition> {
    /// The most references to a task: in memory with another use, the word is larger.
    const MOST: u64 = 1 << 20;
    let state = memory.word(address.checked_add(header.state)?)?;
    let (polled, ended, woken, references) = match runtime {
        // A task that no list has is a copy on a stack, or a closure that may block.
        TaskRuntime::Tokio => {
            let owner = memory.word(address.checked_add(header.owner?)?)?;
            (1..MOST).contains(&owner).then_some(())?;
            (1, 2, 4, state >> 6)
        }
        TaskRuntime::AsyncTask => (2, 4 | 8, 1, (state >> 8) + (state >> 4 & 1)),
    };
    let is_alive = (1..MOST).contains(&references) && state & ended == 0;
    is_alive.then_some(match () {
        () if state & polled != 0 => Condition::Polled,
        () if state & woken != 0 => Condition::Woken,
        () => Condition::Waits,
    })
}

/// Returns the reason for which a process cannot be read.
pub(crate) fn why(error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such process".to_owned(),
        io::ErrorKind::PermissionDenied => {
            "its memory may not be read: that takes the rights of a debugger".to_owned()
        }
        _ => without_number(&error.to_string()).to_owned(),
    }
}

/// Returns the tasks of a process as descriptions for a recording.
pub(crate) fn describe(process: u32) -> Vec<Description> {
    let Ok(found) = of_process(process) else {
        return Vec::new();
    };
    let describe = |numbers: [u64; 3], texts| Description {
        kind: DescriptionKind::Await,
        fields: [process.into(), numbers[0], numbers[1], numbers[2]],
        texts,
    };
    let unknown = found.unknown.iter().map(|(file, unknown)| {
        let texts = [unknown.word().to_owned(), file.display().to_string()];
        describe([0; 3], texts)
    });
    let tasks = found.tasks.iter().map(|task| {
        let mut lines = String::new();
        if let Some(future) = &task.future {
            to_lines(future, 0, &mut lines);
        }
        let runtime = match task.runtime {
            Runtime::AsyncTask => 1,
            Runtime::Asyncio => 2,
            _ => 0,
        };
        let numbers = [task.address, runtime, task.condition as u64];
        describe(numbers, [task.name.clone(), lines])
    });
    unknown.chain(tasks).collect()
}

/// Returns the tasks of a recording, with their processes.
pub(crate) fn of_recording(names: &Names) -> Vec<(u32, Awaits)> {
    let mut found: Vec<(u32, Awaits)> = Vec::new();
    let all = names.descriptions().iter();
    for description in all.filter(|it| it.kind == DescriptionKind::Await) {
        let [process, address, runtime, condition] = description.fields;
        let process = process as u32;
        let at = found.iter().position(|(known, _)| *known == process);
        let at = at.unwrap_or_else(|| {
            found.push((process, Awaits::default()));
            found.len() - 1
        });
        let awaits = &mut found[at].1;
        let [name, text] = &description.texts;
        if address == 0 {
            let unknown = Unknown::ALL.iter().find(|it| it.word() == name);
            awaits
                .unknown
                .extend(unknown.map(|unknown| (text.into(), *unknown)));
            continue;
        }
        let mut lines = text.lines().peekable();
        awaits.tasks.push(Task {
            address,
            runtime: match runtime {
                0 => Runtime::Tokio,
                1 => Runtime::AsyncTask,
                _ => Runtime::Asyncio,
            },
            name: name.clone(),
            condition: match condition {
                0 => Condition::Polled,
                1 => Condition::Woken,
                _ => Condition::Waits,
            },
            future: from_lines(&mut lines, 0),
        });
    }
    found
}

/// The words for the conditions of futures in a recording.
const STATES: [(FutureState, &str); 4] = [
    (FutureState::New, "new"),
    (FutureState::Waits, "waits"),
    (FutureState::Ended, "ended"),
    (FutureState::Unknown, "-"),
];

/// Writes a future and those in it, each as a line.
fn to_lines(future: &Future, depth: usize, into: &mut String) {
    let state = STATES.iter().find(|(state, _)| *state == future.state);
    let state = state.map_or("-", |(_, word)| word);
    let (file, line) = future
        .place
        .as_ref()
        .map_or(("", 0), |(file, line)| (file, *line));
    let task = future.task.unwrap_or(0);
    let cut = if future.is_cut { "+" } else { "" };
    // A name has no line ends, and a file no tab.
    _ = writeln!(
        into,
        "{depth}{cut} {state} {task:#x} {line} {file}\t{}",
        future.name
    );
    for child in &future.children {
        to_lines(child, depth + 1, into);
    }
}

/// Reads a future of this depth, and those in it.
fn from_lines<'t>(
    lines: &mut Peekable<impl Iterator<Item = &'t str>>,
    depth: usize,
) -> Option<Future> {
    const MOST: usize = 256;
    let (left, name) = lines.peek()?.split_once('\t')?;
    let mut words = left.splitn(5, ' ');
    let own = words.next()?;
    let is_own = own.trim_end_matches('+').parse() == Ok(depth) && depth < MOST;
    is_own.then_some(())?;
    let state = words.next()?;
    let state = STATES.iter().find(|(_, word)| *word == state);
    let task = words.next()?.strip_prefix("0x")?;
    let task = u64::from_str_radix(task, 16).ok().filter(|it| *it != 0);
    let line = words.next()?.parse().ok()?;
    let file = words.next()?;
    let mut future = Future {
        name: name.to_owned(),
        state: state.map_or(FutureState::Unknown, |(state, _)| *state),
        place: (line != 0).then(|| (file.to_owned(), line)),
        task,
        children: Vec::new(),
        is_cut: own.ends_with('+'),
    };
    lines.next();
    while let Some(child) = from_lines(lines, depth + 1) {
        future.children.push(child);
    }
    Some(future)
}

impl Unknown {
    const ALL: [Self; 3] = [Self::NoDebugInformation, Self::NoTypes, Self::Replaced];

    /// Returns the word for it in a recording.
    const fn word(self) -> &'static str {
        match self {
            Self::NoDebugInformation => "no-debug-information",
            Self::NoTypes => "no-types",
            Self::Replaced => "replaced",
        }
    }
}

/// Returns a source file as programmers know it: without the folder of a registry, of Python's
/// library, or of the program.
pub(crate) fn short(file: &str, folder: Option<&Path>) -> String {
    if let Some((_, rest)) = file.split_once("/lib/python3.")
        && let Some((_, path)) = rest.split_once('/')
    {
        return path.to_owned();
    }
    if let Some((_, rest)) = file.split_once("/registry/src/")
        && let Some((_, path)) = rest.split_once('/')
    {
        return path.to_owned();
    }
    if let Some((_, rest)) = file
        .strip_prefix("/rustc/")
        .and_then(|it| it.split_once('/'))
    {
        return rest.to_owned();
    }
    let inside = folder.and_then(|folder| Path::new(file).strip_prefix(folder).ok());
    inside.map_or_else(|| file.to_owned(), |path| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn future(name: &str, children: Vec<Future>) -> Future {
        Future {
            name: name.to_owned(),
            state: FutureState::Waits,
            place: Some(("/a b/src/main.rs".to_owned(), 12)),
            task: Some(0x1000),
            children,
            is_cut: true,
        }
    }

    #[test]
    fn futures_of_a_recording_are_those_that_were_written() {
        let leaf = Future {
            state: FutureState::Unknown,
            place: None,
            task: None,
            is_cut: false,
            ..future("Sleep", Vec::new())
        };
        let inner = future("app::load", vec![leaf.clone()]);
        let whole = future("app::handler", vec![inner, leaf]);
        let mut lines = String::new();
        to_lines(&whole, 0, &mut lines);
        let read = |text: &str| from_lines(&mut text.lines().peekable(), 0);
        assert_eq!(read(&lines), Some(whole));
        for damaged in ["", "\t", "1 new 0x0 0 \tx", "0 new 0 0 \tx", "0 new\tx"] {
            assert_eq!(read(damaged), None, "{damaged}");
        }
    }

    #[test]
    fn sources_have_short_paths() {
        let folder = Path::new("/home/a/app");
        for (file, shown) in [
            ("/home/a/app/src/main.rs", "src/main.rs"),
            (
                "/root/.cargo/registry/src/index-1/tokio-1.0.0/src/lib.rs",
                "tokio-1.0.0/src/lib.rs",
            ),
            (
                "/rustc/0123/library/core/src/future/mod.rs",
                "library/core/src/future/mod.rs",
            ),
            ("/home/a/other/src/main.rs", "/home/a/other/src/main.rs"),
        ] {
            assert_eq!(short(file, Some(folder)), shown);
        }
    }
}
