//! `fgraph record --python`: Python's functions among native ones.

use std::fs;
use std::io::{BufRead as _, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use crate::support::pythons::python_of;
use fgraph_needs::{CC, Missing, PYTHON, needs, skip};
use fgraph_trace::event::What;
use fgraph_trace::names::DescriptionKind;
use fgraph_trace::{Recording, Source as _};
use tempfile::TempDir;

/// Returns the interpreter, where `python3` may be a script that looks for it.
fn python() -> Result<PathBuf, Missing> {
    let mut asked = Command::new(PYTHON.find()?);
    let output = asked.args(["-c", "import sys; print(sys.executable)"]);
    let output = output.output().unwrap();
    Ok(PathBuf::from(
        String::from_utf8(output.stdout).unwrap().trim(),
    ))
}

/// Script in a folder of its own, and recordings beside it.
struct Place {
    folder: TempDir,
    python: PathBuf,
}

impl Place {
    fn new(python: PathBuf, script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("app.py"), script).unwrap();
        Self { folder, python }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn recording(&self) -> PathBuf {
        self.path("fgraph.data")
    }

    fn script(&self) -> Command {
        let mut command = Command::new(&self.python);
        command.arg("app.py").current_dir(&self.folder);
        command.env("PYTHONHASHSEED", "0");
        command
    }

    /// Starts the script, which says that it is ready, and returns the lines that follow.
    fn serve(&self) -> (Child, Lines<BufReader<ChildStdout>>) {
        let mut server = self.script();
        server.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut server = server.spawn().unwrap();
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        (server, lines)
    }

    /// Runs `fgraph record` with these options on the script.
    fn record(&self, options: &[&str], arguments: &[&str]) -> Output {
        let output = self.recorder(options, arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        output
    }

    fn recorder(&self, options: &[&str], arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        command
            .arg("record")
            .args(options)
            .args(["-o", "fgraph.data", "--"]);
        command.arg(&self.python).arg("app.py").args(arguments);
        command.current_dir(&self.folder).env("PYTHONHASHSEED", "0");
        command
    }

    fn events(&self) -> Vec<Event> {
        events(&self.recording())
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Event of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Event {
    thread: u32,
    /// `call`, `return` or `unwound`.
    kind: &'static str,
    name: String,
    is_python: bool,
}

fn events(path: &Path) -> Vec<Event> {
    let mut recording = Recording::open(path).unwrap();
    let mut found = Vec::new();
    while let Some(event) = recording.next().unwrap() {
        let (kind, function) = match event.what {
            What::Entry { function, .. } => ("call", function),
            What::Return { function, .. } => ("return", function),
            What::Unwound { function } => ("unwound", function),
            What::Lost { events, .. } => panic!("{events} are lost"),
            _ => continue,
        };
        let (process, thread) = (event.process, event.thread);
        let known = recording.names().function(process, function);
        let known = known.expect("each function has a name");
        found.push(Event {
            thread,
            kind,
            name: known.name.clone(),
            is_python: known.module == "py",
        });
    }
    found
}

/// Number of calls of a function.
fn calls(events: &[Event], name: &str) -> usize {
    let is_it = |event: &&Event| event.kind == "call" && event.name == name;
    events.iter().filter(is_it).count()
}

/// Calls of all kinds, in `run`.
const ALL_KINDS: &str = r#"
import json, re, sys
from collections import deque

def leaf(n):
    return n + 1

def generator():
    for i in range(3):
        got = yield leaf(i)
    return got

def delegates():
    yield from generator()

async def coroutine(n):
    return leaf(n)

async def awaits():
    return await coroutine(1) + await coroutine(2)

class Base:
    def method(self):
        try:
            self.fails()
        except ValueError as error:
            return str(error)
    def fails(self):
        raise ValueError("x")
    @property
    def value(self):
        return len("value")
    def __del__(self):
        leaf(0)

class Derived(Base, list):
    def __init__(self):
        super().__init__([1, 2])
    def method(self):
        return super().method()

def recursive(n):
    return 1 if n == 0 else n * recursive(n - 1)

def raises(n):
    if n == 0:
        int("no number")
    raises(n - 1)

def run():
    json.dumps({"a": [1, 2, leaf(2)]})
    json.loads('{"a": [1, 2]}')
    list(delegates())
    sum(x * x for x in [1, 2, 3])
    closed = generator(); next(closed); closed.close()
    thrown = generator(); next(thrown)
    try:
        thrown.throw(KeyError("k"))
    except KeyError:
        pass
    try:
        awaits().send(None)
    except StopIteration:
        pass
    derived = Derived()
    derived.method(); derived.append(derived.value); del derived
    sorted([3, 1, 2], key=lambda x: -x)
    recursive(20)
    try:
        raises(5)
    except ValueError:
        pass
    [len(word) for word in "a b c".split()]
    deque([1]).append(2)
    re.sub("a", lambda match: match.group() * 2, "banana")
    exec("def made(): return abs(-1)\nmade()", {"__name__": "made"})
    dict(map(lambda x: (x, leaf(x)), range(3)))
    for name in ("nosuch", "leaf"):
        getattr(sys.modules[__name__], name, None)
"#;

/// Rest of a script with a function `run`, which it calls twice. With an argument, `sys.setprofile`
/// writes the events of the second call to that file.
const HARNESS: &str = r#"
import sys
log = []
def profile(frame, event, arg):
    is_python = event in ("call", "return")
    log.append((event, frame.f_code.co_name if is_python else arg.__name__))

def main():
    if len(sys.argv) > 1:
        sys.setprofile(profile)
    run()
    sys.setprofile(None)
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w") as out:
            for event, name in log:
                print(event, name, file=out)

run()
main()
"#;

/// Compares the events of a script's second `run` with those of `sys.setprofile`, and returns them.
fn compare(python: PathBuf, script: &str) -> Vec<Event> {
    let place = Place::new(python, &format!("{script}{HARNESS}"));
    let output = place.script().arg("log").output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let log = fs::read_to_string(place.path("log")).unwrap();
    let expected = log.lines().map(|line| {
        let (event, name) = line.split_once(' ').unwrap();
        (event.to_owned(), name.to_owned())
    });
    let expected: Vec<_> = expected.collect();
    // Before and after them there are calls of `setprofile`.
    let is_end = |it: &(String, String)| it.0 == "return" && it.1 == "run";
    let last = expected.iter().rposition(is_end).unwrap();
    let first = expected.iter().position(|it| it.1 == "run").unwrap();
    let expected = &expected[first..=last];
    place.record(&["--python", "-F", "py:*"], &[]);
    let found = place.events();
    assert!(found.iter().all(|event| event.is_python));
    let is_run = |event: &Event| event.name == "__main__.run";
    let last = found.iter().rposition(is_run).unwrap();
    let first = found[..last].iter().rposition(is_run).unwrap();
    let thread = found[first].thread;
    let found = found[first..=last].iter().filter(|it| it.thread == thread);
    let found: Vec<_> = found.cloned().collect();
    for (at, (found, (event, name))) in found.iter().zip(expected).enumerate() {
        let kinds: &[&str] = match event.as_str() {
            "call" | "c_call" => &["call"],
            // `sys.setprofile` does not tell exceptions from results.
            "return" => &["return", "unwound"],
            "c_return" => &["return"],
            _ => &["unwound"],
        };
        let own = found.name.rsplit('.').next().unwrap();
        let is_same = own == name && kinds.contains(&found.kind);
        assert!(is_same, "{at}: {found:?} {event} {name}");
    }
    assert_eq!(found.len(), expected.len());
    found
}

#[test]
fn python_functions_come_in_the_order_of_sys_setprofile() {
    let found = compare(needs!(python()), ALL_KINDS);
    let unwound = |name: &str| {
        let is_it = |event: &&Event| event.kind == "unwound" && event.name.ends_with(name);
        found.iter().filter(is_it).count()
    };
    assert_eq!((unwound("fails"), unwound(".raises")), (1, 6));
}

#[test]
fn coroutines_are_suspended_and_go_on_in_the_order_of_sys_setprofile() {
    let script = r#"
import asyncio
class Waits:
    def __await__(self):
        yield
async def leaf(n):
    await asyncio.sleep(0)
    if n == 3: raise ValueError(n)
    return n
async def counts(to):
    for n in range(to):
        await Waits()
        yield n
async def works(n, lock):
    async with lock:
        try:
            await leaf(n)
        except ValueError:
            pass
    return [m async for m in counts(n)]
async def forever():
    try:
        await asyncio.Event().wait()
    finally:
        await leaf(0)
async def tells(queue):
    for n in range(3):
        await queue.put(n)
async def hears(queue):
    return [await queue.get() for _ in range(3)]
async def top():
    lock, queue = asyncio.Lock(), asyncio.Queue(1)
    endless = asyncio.ensure_future(forever())
    calls = [works(n, lock) for n in range(5)]
    await asyncio.gather(*calls, hears(queue), tells(queue))
    endless.cancel()
    try:
        await endless
    except asyncio.CancelledError:
        pass
def run():
    loop = asyncio.new_event_loop()
    loop.run_until_complete(top())
    loop.close()
"#;
    let found = compare(needs!(python()), script);
    // A suspended coroutine has returned: each call of one has an end before the next one.
    let top: Vec<_> = found
        .iter()
        .filter(|event| event.name == "__main__.top")
        .map(|event| event.kind)
        .collect();
    assert!(top.len() > 4, "{top:?}");
    assert!(top.chunks(2).all(|pair| pair == ["call", "return"]));
    let forever: Vec<_> = found
        .iter()
        .filter(|event| event.name == "__main__.forever")
        .map(|event| event.kind)
        .collect();
    assert_eq!(forever.last(), Some(&"unwound"), "{forever:?}");
}

#[test]
fn functions_of_cpythons_own_tests_come_in_the_order_of_sys_setprofile() {
    let python = needs!(python());
    let mut asked = Command::new(&python);
    let found = asked.args(["-c", "import test.test_bisect"]).output();
    if !found.unwrap().status.success() {
        return skip!("no CPython tests (apt-get install libpython3-testsuite)");
    }
    let script = r#"
import gc, random, unittest
MODULES = ["bisect", "textwrap", "shlex", "copy", "fractions"]
gc.disable()
try:
    from test.support import import_helper
    # It starts a process, whose end comes in its own time.
    import_helper.ensure_lazy_imports = lambda *_: None
except ImportError:
    pass
def run():
    random.seed(1)
    names = ["test.test_" + name for name in MODULES]
    suite = unittest.defaultTestLoader.loadTestsFromNames(names)
    suite.run(unittest.TestResult())
"#;
    let found = compare(python, script);
    assert!(found.len() > 100_000, "{}", found.len());
}

#[test]
fn functions_have_module_source_and_line() {
    let script = format!("{ALL_KINDS}\nrun()\n");
    let place = Place::new(needs!(python()), &script);
    place.record(
        &["--python", "-F", "py:__main__.leaf", "-F", "py:made.*"],
        &[],
    );
    let mut recording = Recording::open(&place.recording()).unwrap();
    while recording.next().unwrap().is_some() {}
    let names = recording.names();
    let all: Vec<_> = names.functions().collect();
    let (process, index, _) = all.iter().find(|it| it.2.name == "__main__.leaf").unwrap();
    let (file, line) = names.source(*process, *index).unwrap();
    assert!(file.ends_with("app.py"), "{file}");
    assert_eq!(line, 5);
    assert!(all.iter().any(|it| it.2.name == "made.made"));
    let is_selected = |name: &str| name == "__main__.leaf" || name.starts_with("made.");
    assert!(all.iter().all(|it| is_selected(&it.2.name)), "{all:?}");
}

#[test]
fn native_calls_are_inside_the_python_functions_that_make_them() {
    let script = "import os\n\ndef asks():\n    return os.getppid()\n\nasks()\n";
    let place = Place::new(needs!(python()), script);
    let options = [
        "--python",
        "-F",
        "py:*asks",
        "-F",
        "py:posix.*",
        "-F",
        "getppid:mod:libc.so*",
    ];
    place.record(&options, &[]);
    let events = place.events();
    let from = events
        .iter()
        .position(|event| event.name == "__main__.asks");
    let inner: Vec<_> = events[from.unwrap()..].iter().take(6).collect();
    let shown: Vec<_> = inner.iter().map(|it| (it.kind, it.name.as_str())).collect();
    let expected = [
        ("call", "__main__.asks"),
        ("call", "posix.getppid"),
        ("call", "getppid"),
        ("return", "getppid"),
        ("return", "posix.getppid"),
        ("return", "__main__.asks"),
    ];
    assert_eq!(shown, expected);
    assert_eq!(inner.iter().filter(|it| it.is_python).count(), 4);
}

#[test]
fn functions_of_the_interpreter_are_left_out_by_default() {
    let place = Place::new(needs!(python()), "def f():\n    pass\nf()\n");
    place.record(&["--python"], &[]);
    let events = place.events();
    assert_eq!(calls(&events, "__main__.f"), 1);
    assert!(!events.iter().any(|event| event.name.starts_with("_PyEval")));
}

#[test]
fn new_threads_and_forked_children_are_recorded() {
    let script = r#"
import _thread, os, threading, time
def threading_works(n): return inner(n)
def raw_works(lock): inner(1); lock.release()
def child_works(): inner(2)
def inner(n): return n
for n in range(3):
    thread = threading.Thread(target=threading_works, args=(n,)); thread.start(); thread.join()
lock = _thread.allocate_lock(); lock.acquire()
_thread.start_new_thread(raw_works, (lock,)); lock.acquire()
if (pid := os.fork()) == 0:
    child_works(); os._exit(0)
os.waitpid(pid, 0)
"#;
    let place = Place::new(needs!(python()), script);
    for (options, children) in [(&["--python"][..], 1), (&["--python", "--no-follow"], 0)] {
        place.record(options, &[]);
        let events = place.events();
        assert_eq!(calls(&events, "__main__.threading_works"), 3);
        assert_eq!(calls(&events, "__main__.raw_works"), 1);
        assert_eq!(calls(&events, "__main__.child_works"), children);
        assert_eq!(calls(&events, "__main__.inner"), 4 + children);
        let of = |name: &str| events.iter().find(|it| it.name == name).unwrap().thread;
        assert_ne!(of("__main__.raw_works"), of("__main__.<module>"));
    }
}

#[test]
fn a_profiler_of_the_program_stays() {
    let script = r#"
import sys
seen = []
def profile(frame, event, arg): seen.append(frame.f_code.co_name)
def before(): pass
def meanwhile(): pass
def after(): pass
before()
assert sys.getprofile() is None
sys.setprofile(profile)
assert sys.getprofile() is profile
meanwhile()
sys.setprofile(None)
assert sys.getprofile() is None
after()
assert seen.count("meanwhile") == 2, seen
"#;
    let place = Place::new(needs!(python()), script);
    let output = place.record(&["--python"], &[]);
    assert!(
        said(&output).contains("a profiler of its own"),
        "{}",
        said(&output)
    );
    let events = place.events();
    let counts =
        ["before", "meanwhile", "after"].map(|it| calls(&events, &format!("__main__.{it}")));
    assert_eq!(counts, [1, 0, 1]);
}

#[test]
fn a_profiler_of_the_program_gets_the_events_that_it_gets_otherwise() {
    let script = r#"
import io, json, profile, pstats, sys, threading
events = []
def note(frame, event, arg):
    events.append((event, frame.f_code.co_name, getattr(arg, "__name__", None)))
def work(n): return json.dumps([n])
def fails():
    try: int("x")
    except ValueError: pass
def begin():
    # These began without a profiler.
    exec("sys.setprofile(note); work(1)")
    list(map(work, [2]))
    fails()
def in_thread():
    threading.setprofile(note)
    thread = threading.Thread(target=work, args=[3])
    thread.start(); thread.join()
    threading.setprofile(None)
if sys.argv[1] == "profile":
    profiler = profile.Profile(lambda: 0)
    profiler.runctx("work(5)", globals(), {})
    out = io.StringIO()
    pstats.Stats(profiler, stream=out).sort_stats("name").print_stats()
    print(out.getvalue())
else:
    globals()[sys.argv[1]]()
    sys.setprofile(None)
    for event in events: print(event)
work(4)
"#;
    let place = Place::new(needs!(python()), script);
    for what in ["begin", "in_thread", "profile"] {
        let plain = place.script().arg(what).output().unwrap();
        assert!(plain.status.success(), "{}", said(&plain));
        for options in [&["--python"][..], &["--python", "-F", "py:__main__.work"]] {
            let output = place.record(options, &[what]);
            let [plain, traced] = [&plain, &output].map(|it| String::from_utf8_lossy(&it.stdout));
            assert_eq!(plain, traced, "{what}: {}", said(&output));
        }
        // The one after the profiler.
        assert_eq!(calls(&place.events(), "__main__.work"), 1, "{what}");
    }
}

/// Threads call `work` until standard input ends, and never wait. The main thread waits in C.
const SERVER: &str = r#"
import sys, threading
is_over = False
def work(n):
    return len([n])
def loops():
    while not is_over:
        work(1)
threads = [threading.Thread(target=loops) for _ in range(2)]
for thread in threads: thread.start()
print("ready", flush=True)
sys.stdin.read()
is_over = True
for thread in threads: thread.join()
assert sys.getprofile() is None
print("done")
"#;

#[test]
fn a_running_python_is_recorded_and_goes_on() {
    let place = Place::new(needs!(python()), SERVER);
    let (mut server, mut lines) = place.serve();
    let mut threads = 0;
    for _ in 0..2 {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        command.args([
            "record",
            "--python",
            "-F",
            "py:__main__.*",
            "--time",
            "1s",
            "-p",
        ]);
        command
            .arg(server.id().to_string())
            .args(["-o", "fgraph.data"]);
        let output = command.current_dir(&place.folder).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        let mut recording = Recording::open(&place.recording()).unwrap();
        let mut callers = Vec::new();
        while let Some(event) = recording.next().unwrap() {
            let What::Entry { function, .. } = event.what else {
                continue;
            };
            let (process, thread) = (event.process, event.thread);
            let known = recording.names().function(process, function);
            if known.is_some_and(|it| it.name == "__main__.work") {
                callers.push(thread);
            }
        }
        assert!(callers.len() > 100, "{} {}", callers.len(), said(&output));
        callers.sort_unstable();
        callers.dedup();
        threads = callers.len();
    }
    assert_eq!(threads, 2);
    drop(server.stdin.take());
    assert_eq!(lines.next().unwrap().unwrap(), "done");
    assert!(server.wait().unwrap().success());
}

/// A function that gets the interpreter's lock back while its exception is on the way.
const RAISES: &str = r#"
typedef struct object object;
extern object *PyExc_ValueError;
void PyErr_SetString(object *, const char *);
void *PyEval_SaveThread(void);
void PyEval_RestoreThread(void *);
int usleep(unsigned);

int fail(void)
{
    PyErr_SetString(PyExc_ValueError, "mine");
    void *thread = PyEval_SaveThread();
    usleep(1000);
    PyEval_RestoreThread(thread);
    return 0;
}
"#;

const RAISED: &str = r#"
import ctypes, sys, threading
fail = ctypes.PyDLL("./raises.so").fail
is_over = False
wrong = []
def work():
    while not is_over:
        try:
            fail()
            wrong.append("nothing")
        except BaseException as error:
            if str(error) != "mine" or error.__traceback__ is None:
                wrong.append(repr(error))
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
print("ready", flush=True)
sys.stdin.read()
is_over = True
for thread in threads: thread.join()
print(wrong)
"#;

#[test]
fn an_exception_on_its_way_survives_the_attaching() {
    let place = Place::new(needs!(python()), RAISED);
    let cc = needs!(CC.find());
    fs::write(place.path("raises.c"), RAISES).unwrap();
    let mut cc = Command::new(cc);
    cc.args(["-shared", "-fPIC", "-o", "raises.so", "raises.c"]);
    assert!(cc.current_dir(&place.folder).status().unwrap().success());
    let (mut server, mut lines) = place.serve();
    for _ in 0..2 {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        command.args(["record", "--python", "-q", "--time", "200ms", "-p"]);
        command.arg(server.id().to_string());
        command.args(["-o", "fgraph.data"]);
        let output = command.current_dir(&place.folder).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    }
    drop(server.stdin.take());
    assert_eq!(lines.next().unwrap().unwrap(), "[]");
    assert!(server.wait().unwrap().success());
}

/// Gives memory of one definition to several functions, as extensions do that make and free them.
const REUSED: &str = r#"
import ctypes, sys
new = ctypes.pythonapi.PyCFunction_NewEx
new.restype = ctypes.py_object
new.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.py_object]
class Definition(ctypes.Structure):
    _fields_ = [("name", ctypes.c_void_p), ("function", ctypes.c_void_p),
                ("flags", ctypes.c_int), ("doc", ctypes.c_void_p)]
body = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p)(lambda a, b: None)
name = ctypes.create_string_buffer(64)
definition = Definition(ctypes.addressof(name), ctypes.cast(body, ctypes.c_void_p), 4, None)
def call(called, module="planted"):
    name.value = called
    new(ctypes.addressof(definition), sys, module)()
for _ in range(3):
    call(b"a_long_name_of_one")
    call(b"a_long_name_of_two")
call(b"a_long_name_of_one")
call(b"a_long_name_of_one", "elsewhere")
call(b"short")
for _ in range(5):
    divmod(7, 2)
"#;

#[test]
fn a_definition_in_memory_of_another_one_has_its_own_name() {
    let place = Place::new(needs!(python()), REUSED);
    place.record(&["--python", "-F", "py:*"], &[]);
    let events = place.events();
    for (name, expected) in [
        ("planted.a_long_name_of_one", 4),
        ("planted.a_long_name_of_two", 3),
        ("elsewhere.a_long_name_of_one", 1),
        ("planted.short", 1),
        ("builtins.divmod", 5),
    ] {
        assert_eq!(calls(&events, name), expected, "{name}");
    }
}

#[test]
fn the_command_says_how_python_functions_are_recorded() {
    let place = Place::new(needs!(python()), "pass\n");
    let output = place.record(&["-F", "getppid"], &[]);
    let hint = "fgraph: --python records Python's own functions\n";
    assert!(said(&output).contains(hint), "{}", said(&output));
    let output = place.record(&["-F", "getppid", "--ring", "overwrite"], &[]);
    assert!(said(&output).contains(hint), "{}", said(&output));
    let mut recorder = place.recorder(&["--python", "-F", "py:__main__.nosuch"], &[]);
    let output = recorder.output().unwrap();
    assert_eq!(output.status.code(), Some(126), "{}", said(&output));
    let hint = "no function matches 'py:__main__.nosuch'; Python's functions are known once";
    assert!(said(&output).contains(hint), "{}", said(&output));
    for command in [
        &["record", "-F", "py:f"][..],
        &["record", "--flight", "-F", "py:f"],
        &["probe", "py:f", "count"],
        &["top", "-F", "py:f"],
        &["watch", "-F", "py:f"],
        &["inject", "py:f", "errno=EIO"],
        &["why", "-F", "py:f"],
    ] {
        let mut program = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        program.args(command).args(["--", "true"]);
        let output = program.current_dir(&place.folder).output().unwrap();
        let said = said(&output);
        assert_eq!(output.status.code(), Some(2), "{command:?} {said}");
        let expected = "Python's functions, which `fgraph record --python` records";
        assert!(said.contains(expected), "{command:?} {said}");
    }
    // A recording without Python's functions, and one with them.
    for (options, advice) in [
        (
            &["-F", "getppid"][..],
            "`fgraph record --python` records Python's functions",
        ),
        (&["--python"], "see `fgraph report`"),
    ] {
        place.record(options, &[]);
        let mut report = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        report.args(["report", "-F", "py:none.such"]);
        let output = report.current_dir(&place.folder).output().unwrap();
        let expected = format!("no function of the recording matches 'py:none.such'; {advice}\n");
        assert!(said(&output).ends_with(&expected), "{}", said(&output));
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    command.args(["record", "--python", "-o", "none.data", "--", "true"]);
    let output = command.current_dir(&place.folder).output().unwrap();
    assert!(
        said(&output).contains("no Python interpreter ran"),
        "{}",
        said(&output)
    );
    let recording = Recording::open(&place.path("none.data")).unwrap();
    let kinds = recording.names().descriptions().iter().map(|it| it.kind);
    assert!(!kinds.into_iter().any(|it| it == DescriptionKind::Refused));
}

/// Each 20th call of `view` waits for a lock that `hold` has.
const WAITS: &str = r#"
import threading, time
lock = threading.Lock()
def hold(taken):
    with lock:
        taken.set()
        time.sleep(0.05)
def view():
    lock.acquire()
    lock.release()
for i in range(60):
    if i % 20 == 7:
        taken = threading.Event()
        thread = threading.Thread(target=hold, args=(taken,))
        thread.start()
        taken.wait()
    view()
    if i % 20 == 7:
        thread.join()
"#;

#[test]
fn slow_calls_of_a_python_function_are_explained_at_once() {
    let place = Place::new(needs!(python()), WAITS);
    let mut why = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    why.args(["why", "--python", "-F", "py:__main__.view"]);
    why.args(["--slowest", "5%", "--json", "--"]);
    why.arg(&place.python).arg("app.py");
    let output = why.current_dir(&place.folder).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let why: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&why["calls"], &why["explained"]), (&60.into(), &3.into()));
    let line = &why["lines"][0];
    assert!(line["ns"].as_u64().unwrap() >= 20_000_000, "{why:#}");
    let path: Vec<_> = line["path"].as_array().unwrap().iter().collect();
    let is_lock = |it: &&serde_json::Value| {
        // 3.13 without the interpreter's lock has the other one.
        ["_thread.lock.acquire", "_thread.lock.__enter__"].contains(&it.as_str().unwrap())
    };
    assert!(path.into_iter().any(|it| is_lock(&it)), "{why:#}");
}

/// Functions that keep blocks of known sizes.
const KEEPS: &str = r#"
import ctypes
malloc = ctypes.CDLL(None).malloc
malloc.argtypes = [ctypes.c_size_t]
malloc.restype = ctypes.c_void_p
def inner(size): return malloc(size)
def outer():
    for _ in range(3): inner(123457)
def generates():
    yield inner(234571)
    yield inner(234571)
def fails():
    try: inner("no size")
    except ctypes.ArgumentError: pass
    return inner(345679)
def main():
    outer(); list(generates()); fails()
main()
"#;

#[test]
fn call_paths_of_blocks_have_python_functions() {
    let place = Place::new(needs!(python()), KEEPS);
    let heap = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        command
            .arg("heap")
            .args(arguments)
            .args(["--json", "-n", "100000"]);
        command.current_dir(&place.folder);
        command
    };
    place.record(&["--heap", "--python"], &[]);
    let mut whole = heap(&["--python"]);
    whole.arg("--").arg(&place.python).arg("app.py");
    let mut read = heap(&[]);
    for command in [&mut whole, &mut read] {
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        let view: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let paths = view["paths"].as_array().unwrap();
        for (size, blocks, functions) in [
            (123_457, 3, &["inner", "outer"][..]),
            (234_571, 2, &["inner", "generates"]),
            (345_679, 1, &["inner", "fails"]),
        ] {
            let is_it = |path: &&serde_json::Value| path["live_bytes"] == size * blocks;
            let found = paths.iter().find(is_it).expect("the size is unique");
            assert_eq!(found["live_blocks"], blocks);
            let calls = found["calls"].as_array().unwrap().iter();
            let calls: Vec<&str> = calls.map(|call| call.as_str().unwrap()).collect();
            let inner: Vec<String> = functions
                .iter()
                .chain(&["main", "<module>"])
                .map(|it| format!("__main__.{it} [py]"))
                .collect();
            let first = calls
                .iter()
                .position(|call| *call == inner[0])
                .expect("it is a caller");
            assert_eq!(calls[first..first + inner.len()], inner, "{calls:?}");
            assert!(
                !calls
                    .iter()
                    .any(|call| call.starts_with("_PyEval_EvalFrame"))
            );
        }
        let all: u64 = paths
            .iter()
            .map(|path| path["allocations"].as_u64().unwrap())
            .sum();
        let process = &view["processes"][0];
        let counted = ["heap", "mappings"].map(|it| process[it]["allocations"].as_u64().unwrap());
        assert_eq!(all, counted.iter().sum::<u64>());
    }
}

#[test]
fn the_heap_of_a_python_says_how_its_functions_are_in_the_call_paths() {
    let place = Place::new(needs!(python()), KEEPS);
    let gain = "--python puts Python's functions into the call paths\n";
    let live = format!("fgraph: {gain}");
    let recorded = format!("fgraph: `record --heap` with {gain}");
    let heap = |options: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        command.arg("heap").args(options).current_dir(&place.folder);
        command
    };
    let said_by = |command: &mut Command| {
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert!(!output.stdout.is_empty());
        said(&output)
    };
    let ran = |options: &[&str]| {
        let mut command = heap(options);
        said_by(command.arg("--").arg(&place.python).arg("app.py"))
    };
    assert_eq!(ran(&[]), live);
    assert_eq!(ran(&["--json"]), live);
    assert_eq!(ran(&["--python"]), "");
    assert_eq!(said_by(&mut heap(&["--", "ls"])), "");
    place.record(&["--heap"], &[]);
    assert_eq!(said_by(&mut heap(&[])), recorded);
    place.record(&["--heap", "--python"], &[]);
    assert_eq!(said_by(&mut heap(&[])), "");
    // A process that runs.
    let script = r#"
import select, sys
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0.001)[0]:
    bytearray(10000)
"#;
    let place = Place::new(needs!(python()), script);
    let (mut server, _lines) = place.serve();
    let pid = server.id().to_string();
    for options in [["--time", "300ms"], ["--growth", "300ms"]] {
        let output = heap(&options).args(["-p", &pid]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert!(said(&output).contains(&live), "{}", said(&output));
    }
    drop(server.stdin.take());
    assert!(server.wait().unwrap().success());
}

/// Tasks that wait a known number of times. One of them never ends.
const TASKS: &str = r#"
import asyncio, os
async def leaf(n):
    await asyncio.sleep(0)
    return None if n % 2 else asyncio.get_running_loop().create_future()
async def works(n):
    for m in range(n):
        await leaf(m)
async def fails():
    await asyncio.sleep(0)
    raise KeyError
async def resume():
    await asyncio.sleep(0)
async def forever():
    await asyncio.Event().wait()
async def main():
    endless = asyncio.ensure_future(forever())
    tasks = [asyncio.ensure_future(works(n)) for n in range(1, 5)]
    await asyncio.gather(*tasks, fails(), resume(), return_exceptions=True)
    # Its frame may get the memory of one that has ended.
    await asyncio.ensure_future(works(2))
asyncio.new_event_loop().run_until_complete(main())
os._exit(0)
"#;

/// Kinds of tasks of a view: name, tasks, tasks that live, and polls.
fn kinds(view: &str) -> Vec<(String, u64, u64, u64)> {
    let view: serde_json::Value = serde_json::from_str(view).unwrap();
    let kinds = view["kinds"].as_array().unwrap().iter();
    let mut kinds: Vec<_> = kinds
        .map(|kind| {
            let [tasks, alive, polls] =
                ["tasks", "alive", "polls"].map(|it| kind[it].as_u64().unwrap());
            assert_eq!(kind["runtime"], "asyncio");
            (
                kind["name"].as_str().unwrap().to_owned(),
                tasks,
                alive,
                polls,
            )
        })
        .collect();
    kinds.sort_unstable();
    kinds
}

/// Kinds of [`TASKS`].
fn tasks() -> Vec<(String, u64, u64, u64)> {
    [
        ("__main__.fails", 1, 0, 2),
        ("__main__.forever", 1, 1, 1),
        // It goes on when the others and when the last one have ended.
        ("__main__.main", 1, 0, 3),
        // Its name ends like those of coroutines of C++.
        ("__main__.resume", 1, 0, 2),
        ("__main__.works", 5, 0, 2 + 3 + 4 + 5 + 3),
    ]
    .map(|(name, tasks, alive, polls)| (name.to_owned(), tasks, alive, polls))
    .to_vec()
}

#[test]
fn tasks_of_asyncio_have_their_polls_and_ends_and_lanes() {
    let place = Place::new(needs!(python()), TASKS);
    place.record(&["--python", "--tasks", "-F", "py:__main__.*"], &[]);
    let fgraph = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        let output = command.args(arguments).current_dir(&place.folder).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(kinds(&fgraph(&["tasks", "--json"])), tasks());
    // Views take the words with which it was recorded.
    let leaf = fgraph(&["replay", "-F", "py:__main__.leaf"]);
    assert_eq!(leaf, fgraph(&["replay", "-F", "__main__.leaf"]));
    assert_eq!(
        leaf.matches("__main__.leaf(").count(),
        2 * (1 + 2 + 3 + 4 + 2)
    );
    // Each lane has the calls of its task only.
    let lane = fgraph(&["replay", "--task=*works"]);
    assert_eq!(lane.matches("__main__.works(").count(), 17, "{lane}");
    assert_eq!(
        lane.matches("__main__.leaf(").count(),
        2 * (1 + 2 + 3 + 4 + 2),
        "{lane}"
    );
    assert!(!lane.contains("__main__.main("), "{lane}");
    fgraph(&["export", "chrome", "--task", "-o", "lanes.json"]);
    let lanes = fs::read_to_string(place.path("lanes.json")).unwrap();
    for lane in ["works #1", "works #5", "forever #1"] {
        let name = format!("\"name\":\"__main__.{lane}\"");
        assert!(lanes.contains(&name), "{lane}");
    }
}

const ASYNCIO: &str = "--python shows the tasks of Python's asyncio";

#[test]
fn tasks_of_a_program_in_python_are_shown_with_python() {
    let place = Place::new(needs!(python()), TASKS);
    let fgraph = |words: &[&str], code| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        command.args(words).current_dir(&place.folder);
        if !words.iter().any(|it| it.ends_with(".data")) {
            command.arg("--").arg(&place.python).arg("app.py");
        }
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", said(&output));
        output
    };
    let output = fgraph(&["tasks", "--python", "--json", "-F", "py:__main__.*"], 0);
    assert_eq!(kinds(&String::from_utf8_lossy(&output.stdout)), tasks());
    assert_eq!(said(&output), "");
    let output = fgraph(&["tasks", "-F", "getppid"], 3);
    assert!(
        said(&output).ends_with(&format!("fgraph: no task was polled: {ASYNCIO}\n")),
        "{}",
        said(&output)
    );
    // Recordings without what it takes.
    for (data, options, why) in [
        (
            "native.data",
            &["--tasks", "-F", "getppid"][..],
            format!("`record --tasks` with {ASYNCIO}"),
        ),
        (
            "calls.data",
            &["--python", "-F", "py:__main__.*"],
            "without --tasks".to_owned(),
        ),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        command.arg("record").args(options).args(["-o", data, "--"]);
        command
            .arg(&place.python)
            .arg("app.py")
            .current_dir(&place.folder);
        assert!(command.status().unwrap().success());
        let output = fgraph(&["tasks", data], 3);
        assert!(said(&output).contains(&why), "{}", said(&output));
    }
}

/// A task that sleeps again and again, until standard input ends.
const SLEEPS: &str = r#"
import asyncio, sys
async def sleeps():
    while True: await asyncio.sleep(0.002)
async def main():
    task = asyncio.ensure_future(sleeps())
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
asyncio.run(main())
print("done")
"#;

#[test]
fn tasks_of_a_running_python_are_shown_with_the_polls_of_a_time() {
    let place = Place::new(needs!(python()), SLEEPS);
    let (mut server, mut lines) = place.serve();
    let pid = server.id().to_string();
    let fgraph = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        command.args(["tasks", "-p", &pid]).args(words);
        command.current_dir(&place.folder).output().unwrap()
    };
    let output = fgraph(&["--python", "--json", "--time", "1s"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let view: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    // Nobody polled it.
    let [unpolled] = &view["unpolled"].as_array().unwrap()[..] else {
        panic!("{view:#}");
    };
    assert_eq!(unpolled["name"], "main");
    assert_eq!(awaits_of(&unpolled["future"])[0].0, "main", "{unpolled}");
    let found = kinds(&String::from_utf8_lossy(&output.stdout));
    let [(name, 1, 1, polls)] = &found[..] else {
        panic!("{found:?}");
    };
    assert!(name == "__main__.sleeps" && *polls > 10, "{found:?}");
    drop(server.stdin.take());
    assert_eq!(lines.next().unwrap().unwrap(), "done");
    assert!(server.wait().unwrap().success());
}

/// The interpreters that are known.
const VERSIONS: [&str; 10] = [
    "3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.15", "3.13t", "3.14t", "3.15t",
];

/// Threads that wait in nested functions, with all kinds of names and lines.
const WAITING: &str = r#"
import faulthandler, sys, threading

def outer(event, depth):
    if depth:
        return (
            outer(event,
                  depth - 1)
        )
    return [waits(event) for _ in range(1)]

def waits(event):
    # Lines without code.

    event.wait()

class Größe:
    def warten(self, event):
        return generator(event)

def generator(event):
    def each():
        yield 1
        yield event.wait()
    return sum(1 for it in each())

events = [threading.Event() for _ in range(3)]
works = [(outer, (events[0], 40)), (Größe().warten, (events[1],))]
works.append((exec, ("events[2].wait()", globals())))
threads = [threading.Thread(target=work, args=args, daemon=True) for work, args in works]
for thread in threads: thread.start()
def main():
    faulthandler.dump_traceback_later(0.5, file=sys.stdout)
    print("ready", flush=True)
    sys.stdin.read()
main()
for event in events: event.set()
for thread in threads: thread.join()
"#;

/// Function, file and line of each call of a thread, as `faulthandler` writes them.
type Stack = Vec<(String, String, u64)>;

/// Parses what `faulthandler` writes of all threads.
fn stacks_of_faulthandler(lines: &[String]) -> Vec<Stack> {
    let mut stacks: Vec<Stack> = Vec::new();
    for line in lines {
        if line.contains("most recent call first") {
            stacks.push(Vec::new());
        } else if let Some(rest) = line.trim().strip_prefix("File \"") {
            let (file, rest) = rest.split_once("\", line ").unwrap();
            let (line, function) = rest.split_once(" in ").unwrap();
            let file = file.rsplit('/').next().unwrap();
            let call = (function.to_owned(), file.to_owned(), line.parse().unwrap());
            stacks.last_mut().unwrap().push(call);
        }
    }
    stacks
}

#[test]
fn stacks_of_a_waiting_python_are_those_of_faulthandler() {
    let mut found = 0;
    for version in VERSIONS {
        let Some(python) = python_of(version) else {
            continue;
        };
        found += 1;
        let place = Place::new(python, WAITING);
        let (mut server, mut lines) = place.serve();
        let mut written = Vec::new();
        while stacks_of_faulthandler(&written).len() < 4
            || !written.last().is_some_and(|line| line.contains("<module>"))
        {
            written.push(lines.next().unwrap().unwrap());
        }
        let pid = server.id().to_string();
        let shown = |options: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
            command.args(["--no-config", "stack", "--python", "-p", &pid]);
            let output = command.args(options).output().unwrap();
            assert_eq!(
                output.status.code(),
                Some(0),
                "{version}: {}",
                said(&output)
            );
            String::from_utf8(output.stdout).unwrap()
        };
        let json: serde_json::Value = serde_json::from_str(&shown(&["--json"])).unwrap();
        let process = &json["processes"][0];
        assert_eq!(process["version"], version.trim_end_matches('t'));
        let threads = process["threads"].as_array().unwrap();
        let mut stacks: Vec<Stack> = Vec::new();
        for thread in threads {
            assert_eq!(thread["changes"], false, "{version}: {thread}");
            assert_eq!(thread["has_lock"], false, "{version}: {thread}");
            assert_eq!(thread["thread"]["process"], server.id());
            let id = thread["thread"]["thread"].as_u64().unwrap();
            assert!(
                Path::new(&format!("/proc/{pid}/task/{id}")).exists(),
                "{id}"
            );
            let frames = thread["frames"].as_array().unwrap().iter();
            let frames = frames.map(|frame| {
                let function = frame["function"].as_str().unwrap();
                let file = frame["file"].as_str().unwrap();
                (
                    // faulthandler has the last part of the name, without letters beyond ASCII.
                    function.rsplit('.').next().unwrap().to_owned(),
                    file.rsplit('/').next().unwrap().to_owned(),
                    frame["line"].as_u64().unwrap(),
                )
            });
            stacks.push(frames.collect());
        }
        let mut expected = stacks_of_faulthandler(&written);
        stacks.sort();
        expected.sort();
        assert_eq!(stacks, expected, "{version}");
        let text = shown(&[]);
        assert!(
            text.starts_with(&format!("process {pid}, Python 3.")),
            "{text}"
        );
        assert_eq!(text.matches("outer (app.py:7)").count(), 40, "{text}");
        if version != "3.9" && version != "3.10" {
            assert!(text.contains("    Größe.warten (app.py:"), "{text}");
        }
        drop(server.stdin.take());
        assert!(server.wait().unwrap().success());
    }
    if found == 0 {
        skip!("no Python from 3.9 on (apt-get install python3)")
    }
}

#[test]
fn a_process_without_python_has_no_stacks_of_it() {
    let mut child = Command::new("sleep").arg("100").spawn().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    let pid = child.id().to_string();
    let output = command.args(["stack", "--python", "-p", &pid]).output();
    let output = output.unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(
        said(&output).contains("it has no Python interpreter"),
        "{}",
        said(&output)
    );
}

/// Tasks that wait at all kinds of awaits, until standard input ends. Writes the function and line
/// of each await, as Python has them.
const AWAITING: &str = r#"
import asyncio, sys
async def sleeps(n):
    await asyncio.sleep(1000 + n)
async def gets(queue):
    return await queue.get()
async def numbers(event):
    yield 1
    await event.wait()
async def iterates(event):
    async for n in numbers(event):
        pass
async def outer():
    await inner()
async def inner():
    async with asyncio.Lock():
        await sleeps(5)
async def waits_for(task):
    await task
async def new(): pass
class Awaitable:
    def __await__(self):
        yield from asyncio.sleep(999).__await__()
async def own():
    await Awaitable()
def awaits(task):
    at = task.get_coro()
    while at is not None:
        kind = "cr" if hasattr(at, "cr_frame") else "gi" if hasattr(at, "gi_frame") else "ag"
        frame = getattr(at, kind + "_frame", None)
        if frame is None:
            # Objects around coroutines and generators do not show these.
            break
        print(frame.f_code.co_name, frame.f_lineno)
        at = getattr(at, {"cr": "cr_await", "gi": "gi_yieldfrom", "ag": "ag_await"}[kind])
    print("end")
async def main():
    event, queue = asyncio.Event(), asyncio.Queue()
    tasks = [asyncio.ensure_future(sleeps(n)) for n in range(3)]
    tasks += [asyncio.ensure_future(it) for it in (gets(queue), iterates(event), outer(), own())]
    tasks.append(asyncio.ensure_future(waits_for(tasks[0])))
    kept = new()
    await asyncio.sleep(0.01)
    print("ready", flush=True)
    for task in tasks: awaits(task)
    print("all", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    kept.close()
    for task in tasks: task.cancel()
asyncio.run(main())
"#;

/// Returns the functions and lines of a future and those in it.
fn awaits_of(future: &serde_json::Value) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    let mut at = future;
    while let Some(line) = at["line"].as_u64() {
        let name = at["name"].as_str().unwrap();
        found.push((name.rsplit('.').next().unwrap().to_owned(), line));
        at = &at["children"][0];
    }
    found
}

#[test]
fn coroutines_of_a_running_python_wait_at_their_awaits() {
    let mut found = 0;
    for version in VERSIONS {
        let Some(python) = python_of(version) else {
            continue;
        };
        found += 1;
        let place = Place::new(python, AWAITING);
        let (mut server, mut lines) = place.serve();
        let mut expected: Vec<Vec<(String, u64)>> = vec![Vec::new()];
        loop {
            let line = lines.next().unwrap().unwrap();
            match line.split_once(' ') {
                None if line == "all" => break,
                None => expected.push(Vec::new()),
                Some((name, line)) => {
                    let last = expected.last_mut().unwrap();
                    last.push((name.to_owned(), line.parse().unwrap()));
                }
            }
        }
        expected.retain(|it| !it.is_empty());
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        let pid = server.id().to_string();
        command.args(["tasks", "--await", "--json", "-p", &pid]);
        let output = command.output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(0),
            "{version}: {}",
            said(&output)
        );
        let view: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let mut shown = Vec::new();
        for group in view["groups"].as_array().unwrap() {
            assert_eq!(group["runtime"], "asyncio");
            let name = group["name"].as_str().unwrap();
            let future = &group["future"];
            // It may not wait yet.
            if name == "main" {
                continue;
            }
            assert_eq!(future["is_new"], name == "new", "{version}: {group}");
            if name == "new" {
                continue;
            }
            assert_eq!(group["condition"], "waits", "{version}: {group}");
            let mut awaits = awaits_of(future);
            // Python does not show these to itself.
            let hidden = match name {
                "iterates" => awaits.split_off(1),
                "own" => awaits.split_off(2),
                _ => Vec::new(),
            };
            match name {
                "iterates" => assert_eq!(hidden[0], ("numbers".to_owned(), 9), "{version}"),
                "own" => assert_eq!(hidden[0].0, "sleep", "{version}"),
                _ => {}
            }
            if name == "waits_for" {
                assert_eq!(
                    future["children"][0]["task"], "sleeps",
                    "{version}: {group}"
                );
            }
            let tasks = group["tasks"].as_u64().unwrap() as usize;
            shown.extend(vec![awaits; tasks]);
        }
        shown.sort();
        expected.sort();
        assert_eq!(shown, expected, "{version}");
        drop(server.stdin.take());
        assert!(server.wait().unwrap().success(), "{version}");
    }
    if found == 0 {
        skip!("no Python from 3.9 on (apt-get install python3)")
    }
}
