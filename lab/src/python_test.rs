//! `cargo xtask python-test`: the events of `fgraph record --python` against those of
//! `sys.setprofile`, on test modules of CPython.
//!
//! Each module runs once with `sys.setprofile` in each thread, and once recorded. The events of
//! each thread must be the same, in the same order: kind, name, source file and line. So calls are
//! nested in the same way.
//!
//! If they differ, `sys.setprofile` may be the cause: before Python 3.11 it keeps the variables of
//! frames alive and writes them back, and a profile function in Python fails at the limit of
//! recursion. So the module runs with a profile function in C, which does neither. The events must
//! be the same as its events.
//!
//! If they are not, the module may do something else in each run, by the addresses of its objects
//! or the turns of its threads. If two runs with the profile function in C differ, or if the module
//! is known to depend on the time, more of both runs are compared, until two are the same.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use fgraph_chores::cargo;
use fgraph_chores::figures::grouped;
use fgraph_chores::process::{Done, bounded, succeed};
use fgraph_needs::{CC, PYTHON};
use fgraph_trace::event::What;
use fgraph_trace::{Recording, Source as _};
use tempfile::TempDir;

/// Options of the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// An interpreter, which may be repeated; otherwise the first `python3` in PATH
    #[arg(long, value_name = "FILE")]
    python: Vec<PathBuf>,
    /// The command, in place of the one of this workspace
    #[arg(long, value_name = "PATH")]
    fgraph: Option<PathBuf>,
    /// Modules of the package `test` without `test_`, in place of the usual ones
    modules: Vec<String>,
}

/// Modules that do the same in each run. Together they have generators, coroutines, threads,
/// exceptions, classes of all kinds, extension modules and code made at run time.
const MODULES: [&str; 26] = [
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
    "generators",
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
    "yield_from",
];

/// Modules that sleep until some time, or do not sleep if it has passed. A busy machine is late.
const TIMED: [&str; 1] = ["sched"];

/// Longest time of a run, in seconds.
const LIMIT: u32 = 300;

/// The most runs of each kind, for modules that do something else in each run.
const RUNS: usize = 8;

const HARNESS: &str = include_str!("python_test/harness.py");
const REFERENCE: &str = include_str!("python_test/reference.c");

/// Tells whether an object that has ended is there where a profile function in Python is set.
const KEEPS: &str = "
import sys, weakref
class Object: pass
def ends():
    it = Object()
    of = weakref.ref(it)
    len([])
    del it
    return of() is not None
sys.setprofile(lambda *_: None)
is_there = ends()
sys.setprofile(None)
print(is_there)";

pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let pythons = match options.python.as_slice() {
        [] => match PYTHON.find() {
            Ok(python) => vec![python],
            Err(missing) => {
                println!("skipped: {missing}");
                return Ok(true);
            }
        },
        pythons => pythons.to_vec(),
    };
    let fgraph = cargo::fgraph(options.fgraph.as_deref())?.canonicalize()?;
    let directory = TempDir::with_prefix("fgraph-python-")?;
    let harness = directory.path().join("harness.py");
    fs::write(&harness, HARNESS)?;
    let reference = build_reference(directory.path())?;
    let usual = MODULES.map(str::to_owned);
    let modules = match options.modules.as_slice() {
        [] => &usual[..],
        modules => modules,
    };
    let mut is_good = true;
    for python in &pythons {
        // The command may be a script that starts the interpreter.
        let asks = "import sys, test.test_bisect; \
            print(sys.executable, '%d.%d.%d' % sys.version_info[:3])";
        let Ok(found) = succeed(Command::new(python).args(["-c", asks])) else {
            let python = python.display();
            println!(
                "skipped: {python} has no package 'test' (apt-get install libpython3-testsuite)"
            );
            continue;
        };
        let (python, version) = found.trim().rsplit_once(' ').unwrap_or_default();
        let keeps = succeed(Command::new(python).args(["-c", KEEPS]))?.trim() == "True";
        println!("Python {version}, {python}");
        if keeps {
            println!("sys.setprofile copies variables there, which live on after `del`");
        }
        let tester = Tester {
            fgraph: &fgraph,
            python: Path::new(python),
            directory: directory.path(),
            harness: &harness,
            reference: reference.as_deref(),
            keeps,
        };
        is_good &= tester.judge_all(modules);
    }
    Ok(is_good)
}

/// Builds the library with the profile function in C, if there is a compiler.
fn build_reference(directory: &Path) -> io::Result<Option<PathBuf>> {
    let cc = match CC.find() {
        Ok(cc) => cc,
        Err(missing) => {
            println!("without a profile function in C: {missing}");
            return Ok(None);
        }
    };
    let [source, library] = ["reference.c", "reference.so"].map(|name| directory.join(name));
    fs::write(&source, REFERENCE)?;
    let mut compiler = Command::new(cc);
    compiler.args(["-shared", "-fPIC", "-O2", "-o"]);
    succeed(compiler.arg(&library).arg(&source))?;
    Ok(Some(library))
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
        /// Ends of calls that CPython did not begin, which are left out.
        left_out: u64,
        /// The runs of each kind until two were the same.
        runs: usize,
        /// Why the events of `sys.setprofile` are others than those of the profile function in C,
        /// which are equal.
        effect: Option<String>,
    },
    /// The first difference.
    Different(String),
    /// The first difference between two runs with the profile function in C.
    Random(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Equal {
                threads,
                left_out,
                runs,
                effect,
            } => {
                let plural = if *threads == 1 { "" } else { "s" };
                write!(f, "of {threads} thread{plural}: equal")?;
                if *left_out > 0 {
                    write!(f, ", without {left_out} ends that CPython did not begin")?;
                }
                if *runs > 1 {
                    write!(f, ", in run {runs}, as runs differ")?;
                }
                match effect {
                    Some(effect) => write!(f, ", with the profile function in C: {effect}"),
                    None => Ok(()),
                }
            }
            Self::Different(what) => write!(f, "DIFFERENT: {what}"),
            Self::Random(what) => {
                write!(f, "differ between runs of one profile function: {what}")
            }
        }
    }
}

/// Events of a run.
#[derive(Debug)]
struct Run {
    /// First those of the main thread.
    threads: Vec<Events>,
    left_out: u64,
    /// True if the profile function was no longer there at the end.
    is_gone: bool,
}

impl Run {
    fn count(&self) -> Count {
        Count(self.threads.iter().map(|events| events.len() as u64).sum())
    }

    fn is_equal(&self, found: &[Events], functions: &Functions) -> bool {
        !self.is_gone && difference(&self.threads, found, functions).is_none()
    }

    fn verdict(&self, runs: usize, effect: Option<String>) -> (Verdict, Count) {
        let verdict = Verdict::Equal {
            threads: self.threads.len(),
            left_out: self.left_out,
            runs,
            effect,
        };
        (verdict, self.count())
    }
}

/// Returns how the events of `sys.setprofile` differ from those of the profile function in C.
fn effect(profiled: &Run, reference: &Run, functions: &Functions, keeps: bool) -> String {
    let what = difference(&reference.threads, &profiled.threads, functions);
    let both = profiled.threads.first().zip(reference.threads.first());
    let is_start = both.is_some_and(|(start, all)| all.starts_with(start));
    match what {
        Some(_) if profiled.is_gone && is_start => {
            let events = profiled.threads.first().map_or(0, Vec::len);
            format!(
                "that of sys.setprofile was removed after {} equal events, by an error in it",
                grouped(events as u64)
            )
        }
        Some(what) if keeps => {
            format!("sys.setprofile copies variables, and its {what}")
        }
        Some(what) => format!("with sys.setprofile {what}"),
        None => "that of sys.setprofile has the same events in this run".to_owned(),
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
    /// The library with the profile function in C.
    reference: Option<&'a Path>,
    /// See [`KEEPS`].
    keeps: bool,
}

impl Tester<'_> {
    /// Judges modules and prints a line for each; false if one is not equal.
    fn judge_all(&self, modules: &[String]) -> bool {
        let (mut equal, mut in_c, mut events) = (0, 0, 0);
        for module in modules {
            match self.judge(module) {
                Ok((verdict, counted)) => {
                    println!("{module:<18} {counted:>11} events {verdict}");
                    if let Verdict::Equal { effect, .. } = verdict {
                        equal += 1;
                        in_c += usize::from(effect.is_some());
                        events += counted.0;
                    }
                }
                Err(error) => println!("{module:<18} fails: {error}"),
            }
        }
        let events = grouped(events);
        let all = modules.len();
        print!("{equal} of {all} modules equal, {events} events");
        match in_c {
            0 => println!(),
            _ => println!("; {in_c} of them with the profile function in C alone"),
        }
        equal == all
    }

    fn judge(&self, module: &str) -> io::Result<(Verdict, Count)> {
        let mut functions = Functions::default();
        let profiled = self.profiled(module, None, &mut functions)?;
        let found = self.recorded(module, &mut functions)?;
        if profiled.is_equal(&found, &functions) {
            return Ok(profiled.verdict(1, None));
        }
        let expected = difference(&profiled.threads, &found, &functions);
        let count = profiled.count();
        let Some(library) = self.reference else {
            let what = expected.unwrap_or_else(|| "the profile function is gone".to_owned());
            return Ok((Verdict::Different(what), count));
        };
        let reference = self.profiled(module, Some(library), &mut functions)?;
        let told = effect(&profiled, &reference, &functions, self.keeps);
        if reference.is_equal(&found, &functions) {
            return Ok(reference.verdict(1, Some(told)));
        }
        let other = self.profiled(module, Some(library), &mut functions)?;
        let random = match difference(&reference.threads, &other.threads, &functions) {
            Some(random) => random,
            None if TIMED.contains(&module) => "it sleeps until a time".to_owned(),
            None => {
                let what = difference(&reference.threads, &found, &functions).unwrap_or_default();
                let what = format!("{what}; sys.setprofile: {}", expected.unwrap_or_default());
                return Ok((Verdict::Different(what), count));
            }
        };
        // Each run of one kind against each of the other kind.
        let (mut expected, mut recorded) = (vec![profiled, reference, other], vec![found]);
        for runs in 2..=RUNS {
            recorded.push(self.recorded(module, &mut functions)?);
            expected.push(self.profiled(module, None, &mut functions)?);
            expected.push(self.profiled(module, Some(library), &mut functions)?);
            let is_equal =
                |run: &&Run| recorded.iter().any(|found| run.is_equal(found, &functions));
            if let Some(run) = expected.iter().find(is_equal) {
                return Ok(run.verdict(runs, None));
            }
        }
        Ok((Verdict::Random(random), count))
    }

    /// Runs a module after these words, in a directory of its own.
    fn run(&self, words: &[&str], module: &str, logs: &[&Path]) -> io::Result<()> {
        // The same in each run: names of files are in the events.
        let place = self.directory.join("run");
        let _ = fs::remove_dir_all(&place);
        fs::create_dir(&place)?;
        let mut command = bounded(LIMIT, "env");
        command.args(["PYTHONHASHSEED=0", "PYTHONDONTWRITEBYTECODE=1"]);
        command.env("TMPDIR", &place);
        command.args(words).arg(self.python).arg(self.harness);
        command.arg(format!("test.test_{module}")).args(logs);
        Done::of(command.current_dir(&place))?.check()?;
        Ok(())
    }

    /// Returns the events of a profile function: that of `sys.setprofile`, or the one in C of a
    /// library.
    fn profiled(
        &self,
        module: &str,
        library: Option<&Path>,
        functions: &mut Functions,
    ) -> io::Result<Run> {
        let log = self.directory.join("log");
        let logs: Vec<&Path> = [Some(log.as_path()), library]
            .into_iter()
            .flatten()
            .collect();
        self.run(&[], module, &logs)?;
        let text = fs::read_to_string(&log)?;
        let (head, text) = text.split_once('\n').unwrap_or_default();
        let (left_out, is_gone) = head.split_once(' ').unwrap_or_default();
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
        let is_gone = is_gone == "1";
        Ok(Run {
            threads: main_first(threads, self.run_of(functions), is_gone)?,
            left_out: left_out.parse().map_err(io::Error::other)?,
            is_gone,
        })
    }

    /// Records a module and returns its events, like [`Self::profiled`].
    fn recorded(&self, module: &str, functions: &mut Functions) -> io::Result<Vec<Events>> {
        let path = self.directory.join("fgraph.data");
        let output = path.to_string_lossy();
        let fgraph = self.fgraph.to_string_lossy();
        let before = [&fgraph, "--no-config", "record", "--python", "-F", "py:*"];
        let after = ["--no-follow", "-q", "-o", &output, "--"];
        self.run(&[&before[..], &after].concat(), module, &[])?;
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
        main_first(threads, self.run_of(functions), false)
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
/// The call may have no end if the profile function is gone.
fn main_first(
    mut threads: Vec<Events>,
    run: Option<usize>,
    is_gone: bool,
) -> io::Result<Vec<Events>> {
    let run = run.ok_or_else(|| io::Error::other("the tests did not run"))?;
    let ends = [CALL, RETURN].map(|kind| run << 3 | kind);
    let bounds = |events: &Events| {
        let start = events.iter().position(|&event| event == ends[0])?;
        let len = events[start..].iter().position(|&event| event == ends[1]);
        let end = match len {
            Some(len) => start + len + 1,
            None => is_gone.then_some(events.len())?,
        };
        Some(start..end)
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
            with_begins(&found[start.unwrap_or(found.len())..])
        };
        let same = rest.iter().position(|it| from(it) == *events);
        match same {
            Some(same) => drop(rest.remove(same)),
            None => {
                let differs = rest.iter().map(|found| {
                    let found = from(found);
                    let equal = events
                        .iter()
                        .zip(&found)
                        .take_while(|(a, b)| a == b)
                        .count();
                    (equal, found)
                });
                // The most similar thread.
                let (_, found) = differs.max_by_key(|(equal, _)| *equal)?;
                let what = first_difference(events, &found, functions)?;
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

/// Returns events without the ends of calls that began before them.
fn with_begins(events: &[Event]) -> Events {
    let mut depth = 0_usize;
    let is_whole = |&&event: &&Event| {
        let is_begin = matches!(event & 7, CALL | C_CALL);
        let is_open = depth > 0;
        depth = match is_begin {
            true => depth + 1,
            false => depth.saturating_sub(1),
        };
        is_begin || is_open
    };
    events.iter().filter(is_whole).copied().collect()
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
            let (place, name) = name.split_once('\t').unwrap_or(("", name));
            let file = place.rsplit('/').next().unwrap_or_default();
            format!("{} {file} {name}", KINDS[event & 7]).replace("  ", " ")
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
