//! `cargo xtask python-test`: the events of `fgraph record --python` against those of
//! `sys.setprofile`, on test modules of CPython.
//!
//! Each module runs once with `sys.setprofile` in each thread, and once recorded. The events of
//! each thread must be the same, in the same order: kind, name, source file and line. So calls are
//! nested in the same way. If they differ, the module runs with `sys.setprofile` again: it may do
//! something else in each run.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use fgraph_needs::PYTHON;
use fgraph_trace::event::What;
use fgraph_trace::{Recording, Source as _};
use tempfile::TempDir;

use crate::cargo;
use crate::process::{Done, bounded, succeed};
use crate::report::grouped;

/// Options of the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// The interpreter; otherwise the first `python3` in PATH
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
    /// The command, in place of the one of this workspace
    #[arg(long, value_name = "PATH")]
    fgraph: Option<PathBuf>,
    /// Modules of the package `test` without `test_`, in place of the usual ones
    modules: Vec<String>,
}

/// Modules that do the same in each run. Together they have generators, coroutines, threads,
/// exceptions, classes of all kinds, extension modules and code made at run time. In none of them a
/// `RecursionError` removes the profile function.
const MODULES: [&str; 24] = [
    "bisect",
    "collections",
    "contextlib",
    "contextlib_async",
    "copy",
    "dataclasses",
    "decorators",
    "dynamicclassattribute",
    "exception_group",
    "fractions",
    "genericclass",
    "operator",
    "property",
    "raise",
    "re",
    "reprlib",
    "sched",
    "shlex",
    "slice",
    "super",
    "textwrap",
    "userdict",
    "weakset",
    "with",
];

/// Longest time of a run, in seconds.
const LIMIT: u32 = 300;

const HARNESS: &str = include_str!("python_test/harness.py");

pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let python = match &options.python {
        Some(python) => python.clone(),
        None => match PYTHON.find() {
            Ok(python) => python,
            Err(missing) => {
                println!("skipped: {missing}");
                return Ok(true);
            }
        },
    };
    // The command may be a script that starts the interpreter.
    let asks = "import sys, test.test_bisect; print(sys.executable)";
    let Ok(found) = succeed(Command::new(&python).args(["-c", asks])) else {
        let python = python.display();
        println!("skipped: {python} has no package 'test' (apt-get install libpython3-testsuite)");
        return Ok(true);
    };
    let fgraph = cargo::fgraph(options.fgraph.as_deref())?.canonicalize()?;
    let directory = TempDir::with_prefix("fgraph-python-")?;
    let harness = directory.path().join("harness.py");
    fs::write(&harness, HARNESS)?;
    let tester = Tester {
        fgraph: &fgraph,
        python: Path::new(found.trim()),
        directory: directory.path(),
        harness: &harness,
    };
    let usual = MODULES.map(str::to_owned);
    let modules = match options.modules.as_slice() {
        [] => &usual[..],
        modules => modules,
    };
    let (mut equal, mut events) = (0, 0);
    for module in modules {
        match tester.judge(module) {
            Ok((verdict, counted)) => {
                println!("{module:<18} {counted:>11} events {verdict}");
                equal += usize::from(matches!(verdict, Verdict::Equal { .. }));
                events += counted.0;
            }
            Err(error) => println!("{module:<18} fails: {error}"),
        }
    }
    let events = grouped(events);
    println!(
        "{equal} of {} modules equal, {events} events",
        modules.len()
    );
    Ok(equal == modules.len())
}

/// Number with separators.
#[derive(Clone, Copy, Debug)]
struct Count(u64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&grouped(self.0))
    }
}

enum Verdict {
    Equal {
        threads: usize,
        /// Ends of calls that are not the innermost ones, by CPython itself.
        unnested: usize,
    },
    /// The first difference.
    Different(String),
    /// The first difference between two runs with `sys.setprofile`.
    Random(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Equal { threads, unnested } => {
                let plural = if *threads == 1 { "" } else { "s" };
                write!(f, "of {threads} thread{plural}: equal")?;
                match unnested {
                    0 => Ok(()),
                    _ => write!(
                        f,
                        ", with {unnested} ends of calls that CPython did not begin"
                    ),
                }
            }
            Self::Different(what) => write!(f, "DIFFERENT: {what}"),
            Self::Random(what) => write!(f, "differ between runs of sys.setprofile: {what}"),
        }
    }
}

/// Numbers of functions.
#[derive(Debug, Default)]
struct Functions {
    numbers: HashMap<String, usize>,
    names: Vec<String>,
}

impl Functions {
    fn number(&mut self, name: &str) -> usize {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        self.numbers.insert(name.to_owned(), self.names.len());
        self.names.push(name.to_owned());
        self.names.len() - 1
    }
}

/// Kinds of events, as the harness numbers them.
const CALL: usize = 0;
const RETURN: usize = 1;
const C_CALL: usize = 2;
const C_RETURN: usize = 3;
const C_EXCEPTION: usize = 4;
const KINDS: [&str; 5] = ["call", "return", "c_call", "c_return", "c_exception"];

/// Event: a function's number and the kind in the lowest three bits.
type Event = usize;

/// Events of one thread.
type Events = Vec<Event>;

/// Function around the events of the main thread that are compared.
const RUN: &str = "__main__.run";

struct Tester<'a> {
    fgraph: &'a Path,
    python: &'a Path,
    directory: &'a Path,
    harness: &'a Path,
}

impl Tester<'_> {
    fn judge(&self, module: &str) -> io::Result<(Verdict, Count)> {
        let mut functions = Functions::default();
        let expected = self.profiled(module, &mut functions)?;
        let found = self.recorded(module, &mut functions)?;
        let count = expected.iter().map(|events| events.len() as u64).sum();
        let verdict = match difference(&expected, &found, &functions) {
            None => Verdict::Equal {
                threads: expected.len(),
                unnested: found.iter().map(|events| unnested(events)).sum(),
            },
            Some(what) => {
                let again = self.profiled(module, &mut functions)?;
                match difference(&expected, &again, &functions) {
                    Some(what) => Verdict::Random(what),
                    None => Verdict::Different(what),
                }
            }
        };
        Ok((verdict, Count(count)))
    }

    /// Runs a module after these words, in a directory of its own.
    fn run(&self, words: &[&str], module: &str, log: Option<&Path>) -> io::Result<()> {
        // The same in each run: names of files are in the events.
        let place = self.directory.join("run");
        let _ = fs::remove_dir_all(&place);
        fs::create_dir(&place)?;
        let mut command = bounded(LIMIT, "env");
        command.args(["PYTHONHASHSEED=0", "PYTHONDONTWRITEBYTECODE=1"]);
        command.args(words).arg(self.python).arg(self.harness);
        command.arg(format!("test.test_{module}")).args(log);
        Done::of(command.current_dir(&place))?.check()?;
        Ok(())
    }

    /// Returns the events of `sys.setprofile` by thread, first those of the main thread.
    fn profiled(&self, module: &str, functions: &mut Functions) -> io::Result<Vec<Events>> {
        let log = self.directory.join("log");
        self.run(&[], module, Some(&log))?;
        let text = fs::read_to_string(&log)?;
        let (names, threads) = text.split_once("\n\n").unwrap_or_default();
        let numbers: Vec<usize> = names.lines().map(|it| functions.number(it)).collect();
        let events = |line: &str| {
            let events = line.split(' ').filter_map(|word| {
                let event: usize = word.parse().ok()?;
                Some(numbers.get(event >> 3)? << 3 | event & 7)
            });
            events.collect()
        };
        let threads: Vec<Events> = threads.lines().map(events).collect();
        main_first(threads, self.run_of(functions))
    }

    /// Records a module and returns its events, like [`Self::profiled`].
    fn recorded(&self, module: &str, functions: &mut Functions) -> io::Result<Vec<Events>> {
        let path = self.directory.join("fgraph.data");
        let output = path.to_string_lossy();
        let fgraph = self.fgraph.to_string_lossy();
        let before = [&fgraph, "--no-config", "record", "--python", "-F", "py:*"];
        let after = ["--no-follow", "-q", "-o", &output, "--"];
        self.run(&[&before[..], &after].concat(), module, None)?;
        let mut recording = Recording::open(&path).map_err(io::Error::other)?;
        let mut threads: BTreeMap<u32, Events> = BTreeMap::new();
        // Number and whether it is a function of Python's own, by process and index.
        let mut known: HashMap<(u32, u32), (usize, bool)> = HashMap::new();
        while let Some(event) = recording.next().map_err(io::Error::other)? {
            let (function, kinds) = match event.what {
                What::Entry { function, .. } => (function, [CALL, C_CALL]),
                What::Return { function, .. } => (function, [RETURN, C_RETURN]),
                What::Unwound { function } => (function, [RETURN, C_EXCEPTION]),
                What::Lost { events, .. } => {
                    return Err(io::Error::other(format!("{events} events are lost")));
                }
                _ => continue,
            };
            let (process, thread) = (event.process, event.thread);
            let names = recording.names();
            let (number, is_c) = *known.entry((process, function)).or_insert_with(|| {
                let name = names.function_name(process, function).replace('\n', " ");
                match names.source(process, function) {
                    Some((file, line)) => {
                        let name = format!("{file}:{line}\t{}", module_now(&name));
                        (functions.number(&name), false)
                    }
                    None => {
                        let own = name.rsplit('.').next().unwrap_or_default();
                        (functions.number(&format!("\t{own}")), true)
                    }
                }
            });
            let event = number << 3 | kinds[usize::from(is_c)];
            threads.entry(thread).or_default().push(event);
        }
        let threads = threads.into_values().collect();
        main_first(threads, self.run_of(functions))
    }

    /// Returns the number of [`RUN`].
    fn run_of(&self, functions: &Functions) -> Option<usize> {
        let start = format!("{}:", self.harness.display());
        let end = format!("\t{RUN}");
        let is_run = |name: &String| name.starts_with(&start) && name.ends_with(&end);
        functions.names.iter().position(is_run)
    }
}

/// Puts the events of the thread with a call of `run` first, and leaves out those around that call.
fn main_first(mut threads: Vec<Events>, run: Option<usize>) -> io::Result<Vec<Events>> {
    let run = run.ok_or_else(|| io::Error::other("the tests did not run"))?;
    let ends = [CALL, RETURN].map(|kind| run << 3 | kind);
    let bounds = |events: &Events| {
        let start = events.iter().position(|&event| event == ends[0])?;
        let len = events[start..].iter().position(|&event| event == ends[1])?;
        Some(start..start + len + 1)
    };
    let mut found = threads.iter().enumerate();
    let found = found.find_map(|(at, events)| Some((at, bounds(events)?)));
    let (at, bounds) = found.ok_or_else(|| io::Error::other("no call of the tests' function"))?;
    let main = threads.remove(at);
    threads.insert(0, main[bounds].to_vec());
    Ok(threads)
}

/// Returns the first difference between threads. The first one on each side is the main thread.
/// Others may begin in any order, and have events before `sys.setprofile` was called in them.
fn difference(expected: &[Events], found: &[Events], functions: &Functions) -> Option<String> {
    let (Some((main, others)), Some((found_main, found))) =
        (expected.split_first(), found.split_first())
    else {
        return Some("no events".to_owned());
    };
    if let Some(what) = first_difference(main, found_main, functions) {
        return Some(what);
    }
    let mut rest: Vec<&Events> = found.iter().collect();
    for (at, events) in others.iter().enumerate() {
        let Some(first) = events.first() else {
            continue;
        };
        let from = |found: &&Events| {
            let start = found.iter().position(|event| event == first);
            start.unwrap_or(found.len())
        };
        let same = rest.iter().position(|it| it[from(it)..] == events[..]);
        match same {
            Some(same) => drop(rest.remove(same)),
            None => {
                let differs = rest.iter().map(|found| {
                    let found = &found[from(found)..];
                    let equal = events.iter().zip(found).take_while(|(a, b)| a == b).count();
                    (equal, found)
                });
                // The most similar thread.
                let (_, found) = differs.max_by_key(|(equal, _)| *equal)?;
                let what = first_difference(events, found, functions)?;
                return Some(format!("thread {}: {what}", at + 1));
            }
        }
    }
    None
}

/// Returns a name that begins with the name that the module has now: two modules get others while
/// the interpreter starts.
fn module_now(name: &str) -> String {
    let name = name.replace(
        "_frozen_importlib_external.",
        "importlib._bootstrap_external.",
    );
    name.replace("_frozen_importlib.", "importlib._bootstrap.")
}

/// Number of ends that are not those of the innermost calls.
fn unnested(events: &[Event]) -> usize {
    let mut open = Vec::new();
    let is_wrong = |&&event: &&Event| match event & 7 {
        CALL | C_CALL => {
            open.push(event >> 3);
            false
        }
        _ => open.pop_if(|last| *last == event >> 3).is_none(),
    };
    events.iter().filter(is_wrong).count()
}

fn first_difference(expected: &[Event], found: &[Event], functions: &Functions) -> Option<String> {
    let both = expected.iter().zip(found);
    let equal = both.take_while(|(one, other)| one == other).count();
    if expected.len() == equal && found.len() == equal {
        return None;
    }
    let show = |event: Option<&Event>| {
        event.map_or("the end".to_owned(), |event| {
            let name = functions.names[event >> 3].trim_start();
            format!("{} {}", KINDS[event & 7], name.replace('\t', " "))
        })
    };
    let (one, other) = (show(expected.get(equal)), show(found.get(equal)));
    Some(format!(
        "event {} is {other} instead of {one}",
        grouped(equal as u64)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn functions() -> Functions {
        let mut functions = Functions::default();
        for name in ["a.py:1\tm.f", "\tlen"] {
            functions.number(name);
        }
        functions
    }

    #[test]
    fn a_difference_names_both_events() {
        let functions = functions();
        let (call, len) = (CALL, 1 << 3 | C_CALL);
        let shown = first_difference(&[call, len], &[call, call], &functions).unwrap();
        assert_eq!(shown, "event 1 is call a.py:1 m.f instead of c_call len");
        let shown = first_difference(&[call, len], &[call], &functions).unwrap();
        assert_eq!(shown, "event 1 is the end instead of c_call len");
        assert_eq!(first_difference(&[call], &[call], &functions), None);
    }

    #[test]
    fn threads_may_begin_in_any_order() {
        let functions = functions();
        let (f, len) = (vec![CALL, RETURN], vec![1 << 3 | C_CALL, 1 << 3 | C_RETURN]);
        let expected = [f.clone(), len.clone(), f.clone()];
        // Events from before the first expected one do not count.
        let late = [&[RETURN][..], &len].concat();
        let found = [f.clone(), f.clone(), late];
        assert_eq!(difference(&expected, &found, &functions), None);
        let found = [f.clone(), f, vec![len[0]]];
        let shown = difference(&expected, &found, &functions).unwrap();
        assert_eq!(
            shown,
            "thread 1: event 1 is the end instead of c_return len"
        );
    }
}
