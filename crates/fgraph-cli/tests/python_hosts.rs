//! `fgraph record --python` in programs that are no usual interpreter, and where interpreters,
//! threads and calls end in unusual ways. Each end must belong to the innermost call.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::pythons::python_of;
use fgraph_needs::{CC, Missing, PYTHON, STRIP, needs, skip};
use fgraph_trace::event::What;
use fgraph_trace::{Recording, Source as _};
use tempfile::TempDir;

/// Returns what the interpreter prints.
fn ask(script: &str) -> Result<String, Missing> {
    let mut asked = Command::new(PYTHON.find()?);
    let output = asked.args(["-c", script]).output().unwrap();
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).unwrap().trim().to_owned()),
        false => Err(Missing::new(String::from_utf8_lossy(&output.stderr))),
    }
}

fn python() -> Result<PathBuf, Missing> {
    Ok(PathBuf::from(ask("import sys; print(sys.executable)")?))
}

/// Returns the library of the interpreter, and the place of its modules.
fn library() -> Result<(PathBuf, String), Missing> {
    let script = "import glob, os, sys, sysconfig as s
v = s.get_config_var
for d in (v('LIBDIR'), os.path.join(v('LIBDIR'), v('MULTIARCH') or '')):
    for p in sorted(glob.glob(os.path.join(d, 'libpython%d.%d.so*' % sys.version_info[:2]))):
        print(os.path.realpath(p), sys.base_prefix); sys.exit()
sys.exit('no shared library of Python (apt-get install libpython3-dev)')";
    let found = ask(script)?;
    let (path, prefix) = found.split_once(' ').unwrap();
    Ok((PathBuf::from(path), prefix.to_owned()))
}

/// Program that is recorded, in a folder of its own.
struct Host {
    folder: TempDir,
    words: Vec<String>,
    variables: Vec<(&'static str, String)>,
}

impl Host {
    fn script(python: &Path, script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("app.py"), script).unwrap();
        Self {
            folder,
            words: vec![python.display().to_string(), "app.py".to_owned()],
            variables: Vec::new(),
        }
    }

    /// Compiles a program in C, which gets these options.
    fn program(cc: &Path, source: &str, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("host.c"), source).unwrap();
        let mut compiler = Command::new(cc);
        compiler.arg("-o").arg(path("host")).arg(path("host.c"));
        assert!(compiler.args(options).status().unwrap().success());
        let words = vec![path("host").display().to_string()];
        Self {
            folder,
            words,
            variables: Vec::new(),
        }
    }

    fn run(&self, words: &[&str]) -> Output {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "100"]).args(words);
        command.args(&self.words).current_dir(&self.folder);
        command.env("PYTHONHASHSEED", "0");
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.output().unwrap()
    }

    /// Runs the program plain and recorded: both must print and return the same. Returns what the
    /// command says, and the recorded threads.
    fn record(&self, options: &[&str]) -> (String, Vec<Thread>) {
        let fgraph = [env!("CARGO_BIN_EXE_fgraph"), "--no-config", "record"];
        let words = [&fgraph[..], options, &["-o", "fgraph.data", "--"]].concat();
        let (plain, recorded) = (self.run(&[]), self.run(&words));
        let said = String::from_utf8_lossy(&recorded.stderr).into_owned();
        let outcome = |it: &Output| {
            let printed = String::from_utf8_lossy(&it.stdout).into_owned();
            (it.status.code(), printed)
        };
        assert_eq!(outcome(&plain), outcome(&recorded), "{said}");
        let path = self.folder.path().join("fgraph.data");
        (said, threads(&path))
    }

    /// Records Python's functions alone.
    fn functions(&self) -> Vec<Thread> {
        self.record(&["--python", "-F", "py:*"]).1
    }
}

/// Names of the functions that a thread calls, with the number of calls around each.
type Thread = Vec<(usize, String)>;

/// Reads a recording. Each end is that of the innermost call, and in a forked child perhaps that of
/// a call of the parent's.
fn threads(path: &Path) -> Vec<Thread> {
    let mut recording = Recording::open(path).unwrap();
    let mut ids: Vec<(u32, u32)> = Vec::new();
    let mut all: Vec<(Vec<u32>, Thread)> = Vec::new();
    while let Some(event) = recording.next().unwrap() {
        let id = (event.process, event.thread);
        let at = ids.iter().position(|it| *it == id).unwrap_or(ids.len());
        if at == ids.len() {
            ids.push(id);
            all.push(Default::default());
        }
        let (open, calls) = &mut all[at];
        let function = match event.what {
            What::Entry { function, .. } => function,
            What::Return { function, .. }
            | What::Unwound { function }
            | What::Dropped { function } => {
                let is_parents = open.is_empty() && id.0 != ids[0].0;
                let is_innermost = open.pop() == Some(function);
                assert!(is_innermost || is_parents, "{:?}", calls.last());
                continue;
            }
            What::Lost { events, .. } => panic!("{events} are lost"),
            _ => continue,
        };
        let name = recording.names().function_name(id.0, function);
        calls.push((open.len(), name));
        open.push(function);
    }
    all.into_iter().map(|(_, calls)| calls).collect()
}

/// Number of calls of a function.
fn calls(threads: &[Thread], name: &str) -> usize {
    let all = threads.iter().flatten();
    all.filter(|(_, it)| it == name).count()
}

/// Runs Python code in an interpreter, ends it, and begins another one.
const EMBEDDED: &str = r#"
#include <stdio.h>
void Py_Initialize(void); int Py_FinalizeEx(void); int PyRun_SimpleString(const char *);
int main(void) {
    for (int i = 0; i < 2; i++) {
        Py_Initialize();
        if (PyRun_SimpleString("def inner(n): return len([n])\n"
                "def outer():\n  for i in range(10): inner(i)\nouter()\n")) return 3;
        if (Py_FinalizeEx() < 0) return 4;
    }
    puts("done");
    return 7;
}
"#;

/// Checks the calls of [`EMBEDDED`], run with this library of the interpreter.
fn check_embedded(cc: &Path, library: &Path, prefix: String) {
    let directory = library.parent().unwrap().display();
    let rpath = format!("-Wl,-rpath,{directory}");
    let mut host = Host::program(cc, EMBEDDED, &[&library.display().to_string(), &rpath]);
    host.variables.push(("PYTHONHOME", prefix));
    let threads = &host.functions();
    assert_eq!(calls(threads, "__main__.outer"), 2);
    assert_eq!(calls(threads, "__main__.inner"), 20);
    let main = &threads[0];
    let outer = main.iter().find(|(_, name)| name == "__main__.outer");
    let inner = main.iter().filter(|(_, name)| name == "__main__.inner");
    let depths: Vec<usize> = inner.map(|(depth, _)| *depth).collect();
    assert_eq!(depths, [outer.unwrap().0 + 1; 20]);
}

#[test]
fn an_embedded_interpreter_is_recorded_each_time_that_it_begins() {
    let (cc, (library, prefix)) = (needs!(CC.find()), needs!(library()));
    check_embedded(&cc, &library, prefix);
}

#[test]
fn a_stripped_library_of_the_interpreter_will_do() {
    let (cc, (library, prefix)) = (needs!(CC.find()), needs!(library()));
    let strip = needs!(STRIP.find());
    let folder = tempfile::tempdir().unwrap();
    let mine = folder.path().join(library.file_name().unwrap());
    let mut stripped = Command::new(strip);
    stripped
        .arg("--strip-all")
        .arg(&library)
        .arg("-o")
        .arg(&mine);
    assert!(stripped.status().unwrap().success());
    check_embedded(&cc, &mine, prefix);
}

/// Loads the interpreter from [`LIBRARY`] with this mode, and runs it twice.
const LATE: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
int main(void) {
    void *python = dlopen(LIBRARY, RTLD_NOW | MODE);
    if (!python) return 5;
    int (*run)(const char *) = dlsym(python, "PyRun_SimpleString");
    for (int i = 0; i < 2; i++) {
        ((void (*)(void))dlsym(python, "Py_Initialize"))();
        if (run("def f(n): return len([n])\nfor i in range(10): f(i)\n")) return 3;
        ((void (*)(void))dlsym(python, "Py_Finalize"))();
    }
    dlclose(python);
    puts("done");
    return 7;
}
"#;

/// Returns a program that loads a library of the interpreter later.
fn late(cc: &Path, library: &Path, mode: &str) -> Host {
    let define = format!("-DLIBRARY=\"{}\"", library.display());
    let mode = format!("-DMODE={mode}");
    Host::program(cc, LATE, &[&define, &mode, "-ldl"])
}

#[test]
fn an_interpreter_that_is_loaded_later_is_recorded() {
    let (cc, (library, prefix)) = (needs!(CC.find()), needs!(library()));
    for mode in ["RTLD_GLOBAL", "RTLD_LOCAL"] {
        let mut host = late(&cc, &library, mode);
        host.variables.push(("PYTHONHOME", prefix.clone()));
        let (said, threads) = host.record(&["--python", "-F", "py:*"]);
        assert_eq!(calls(&threads, "__main__.f"), 20, "{mode}: {said}");
        assert!(!said.contains("Python"), "{mode}: {said}");
    }
}

#[test]
fn an_unknown_interpreter_that_is_loaded_later_is_named_with_the_reason() {
    let cc = needs!(CC.find());
    let folder = tempfile::tempdir().unwrap();
    let [source, library] = ["python.c", "libpython3.8.so"].map(|name| folder.path().join(name));
    // Not enough of one.
    let functions = "int PyRun_SimpleString(const char *s) { return 0; }
void Py_InitializeFromConfig(void) {}
int Py_AddPendingCall(void) { return 0; }
int Py_IsInitialized(void) { return 0; }
void Py_Initialize(void) { Py_InitializeFromConfig(); }
void Py_Finalize(void) {}
";
    fs::write(&source, functions).unwrap();
    let mut compiler = Command::new(&cc);
    compiler.args(["-shared", "-fPIC", "-o"]).arg(&library);
    assert!(compiler.arg(&source).status().unwrap().success());
    let host = late(&cc, &library, "RTLD_LOCAL");
    let (said, _) = host.record(&["--python", "-F", "main"]);
    assert!(
        said.contains("does not export PyBytes_AsStringAndSize"),
        "{said}"
    );
    assert!(!said.contains("none of Python's functions"), "{said}");
}

#[test]
fn a_python_that_is_newer_than_known_is_recorded_and_named() {
    let (cc, (library, prefix)) = (needs!(CC.find()), needs!(library()));
    let version = "const char *Py_GetVersion(void) { return \"3.99.0 (main)\"; }\n";
    let directory = library.parent().unwrap().display();
    let rpath = format!("-Wl,-rpath,{directory}");
    let options = [&library.display().to_string(), "-rdynamic", &rpath];
    let mut host = Host::program(&cc, &format!("{version}{EMBEDDED}"), &options);
    host.variables.push(("PYTHONHOME", prefix));
    let (said, threads) = host.record(&["--python", "-F", "py:*"]);
    assert_eq!(calls(&threads, "__main__.inner"), 20);
    let line = said.lines().find(|line| line.contains("Python 3.99 in "));
    let line = line.unwrap_or_else(|| panic!("{said}"));
    assert!(
        line.contains(" is recorded in part: it is newer than 3.15"),
        "{line}"
    );
}

#[test]
fn old_pythons_run_as_before_and_are_named() {
    let mut found = 0;
    for version in ["2.7", "3.6", "3.7", "3.8"] {
        let Some(python) = python_of(version) else {
            continue;
        };
        found += 1;
        let script = "def f(n): return len([n])\nfor i in range(10): f(i)\nprint('done')\n";
        let (said, threads) = Host::script(&python, script).record(&["--python", "-F", "main"]);
        assert_eq!(calls(&threads, "main"), 1, "{version}: {said}");
        assert!(
            said.contains("it is older than Python 3.9"),
            "{version}: {said}"
        );
    }
    if found == 0 {
        skip!("no Python before 3.9 (pyenv install 3.8)")
    }
}

#[test]
fn an_interpreter_that_cannot_be_recorded_is_named_with_the_reason() {
    let cc = needs!(CC.find());
    let said = |names: &str| {
        let functions = names
            .split(' ')
            .map(|name| format!("int {name}(void) {{ return 0; }}\n"));
        let functions: String = functions.collect();
        let main = "int main(void) { puts(\"ran\"); return 7; }\n";
        let source = format!("#include <stdio.h>\n{functions}{main}");
        let host = Host::program(&cc, &source, &["-rdynamic"]);
        let options = ["--python", "-F", "py:*", "-o", "fgraph.data", "--"];
        let output = host.run(&[&[env!("CARGO_BIN_EXE_fgraph"), "record"], &options[..]].concat());
        // Nothing else was to be recorded.
        assert_eq!(output.status.code(), Some(126));
        assert_eq!(output.stdout, b"ran\n");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let old = "Py_AddPendingCall Py_IsInitialized PyBytes_AsStringAndSize PyCFunction_GetFunction \
        PyCFunction_GetSelf PyCFunction_NewEx PyDict_GetItemString PyErr_Clear PyErr_Fetch \
        PyErr_Restore PyEval_SetProfile";
    let cases = [
        (old, "it is older than Python 3.9"),
        (
            "Py_AddPendingCall Py_IsInitialized",
            "it does not export PyBytes_AsStringAndSize",
        ),
    ];
    for (names, reason) in cases {
        let said = said(names);
        assert!(said.contains(reason), "{said}");
    }
}

#[test]
fn subinterpreters_run_and_the_main_one_is_recorded() {
    let script = r#"
try:
    import _xxsubinterpreters as interpreters
except ImportError:
    import _interpreters as interpreters
def before(): pass
def after(): pass
def outer():
    for n in range(3):
        before()
        made = interpreters.create()
        interpreters.run_string(made, "def inside(): return len([])\ninside()\n")
        interpreters.destroy(made)
        after()
outer()
print("done")
"#;
    let threads = Host::script(&needs!(python()), script).functions();
    let count = |name: &str| calls(&threads, &format!("__main__.{name}"));
    assert_eq!(
        [count("outer"), count("before"), count("inside")],
        [1, 3, 0]
    );
    assert_eq!(count("after"), 3);
}

#[test]
fn greenlets_run_as_before_and_ends_stay_with_their_calls() {
    let python = needs!(python());
    let mut asked = Command::new(&python);
    let found = asked.args(["-c", "import greenlet"]).output().unwrap();
    let missing = || Missing::new("no greenlet (pip install greenlet)");
    needs!(found.status.success().then_some(()).ok_or_else(missing));
    let script = r#"
import greenlet
def leaf(n): return len([n])
def work(n):
    leaf(n)
    main.switch(n)
    leaf(n)
    return n
def rounds():
    made = [greenlet.greenlet(work) for _ in range(5)]
    print([it.switch(n) for n, it in enumerate(made)])
    print([it.switch() for it in made])
main = greenlet.getcurrent()
for _ in range(3): rounds()
"#;
    let threads = Host::script(&python, script).functions();
    assert_eq!(calls(&threads, "__main__.rounds"), 3);
    assert_eq!(calls(&threads, "__main__.work"), 15);
    assert_eq!(calls(&threads, "__main__.leaf"), 30);
}

#[test]
fn generators_that_go_on_without_a_call_end_no_other_call() {
    let script = r#"
def leaf(): pass
def inner():
    try:
        yield 1
    except KeyError:
        return 2
def outer():
    got = yield from inner()
    leaf()
    yield got
def middle():
    generator = outer()
    next(generator)
    # CPython 3.11 reports no call of `outer` here, only its end.
    assert generator.throw(KeyError()) == 2
    leaf()
    return list(generator)
def around():
    for _ in range(100): middle()
    leaf()
around()
"#;
    let threads = Host::script(&needs!(python()), script).functions();
    let main = &threads[0];
    let depth = |name: &str| main.iter().find(|it| it.1 == name).unwrap().0;
    let around = depth("__main__.around");
    let is_middle = |it: &&(usize, String)| it.1 == "__main__.middle";
    assert_eq!(main.iter().filter(is_middle).count(), 100);
    assert!(main.iter().filter(is_middle).all(|it| it.0 == around + 1));
    let last = main.iter().rfind(|it| it.1 == "__main__.leaf");
    assert_eq!(last.unwrap().0, around + 1);
}

#[test]
fn code_that_ends_and_threads_that_end_leave_no_wrong_names() {
    let script = r#"
import gc, threading
def makes(n):
    for i in range(200):
        space = {"__name__": "made"}
        exec(f"def f_{n}_{i}(): return len([{i}])\nf_{n}_{i}()", space)
        del space
        if i % 50 == 0: gc.collect()
for n in range(40):
    thread = threading.Thread(target=makes, args=(n,))
    thread.start(); thread.join()
"#;
    let threads = Host::script(&needs!(python()), script).functions();
    for n in 0..40 {
        for i in 0..200 {
            assert_eq!(calls(&threads, &format!("made.f_{n}_{i}")), 1, "{n} {i}");
        }
    }
    assert_eq!(calls(&threads, "__main__.makes"), 40);
}

#[test]
fn a_child_of_fork_goes_on_with_the_calls_around() {
    let script = r#"
import os, threading
stop = threading.Event()
def waits(): stop.wait()
thread = threading.Thread(target=waits); thread.start()
def leaf(): pass
def forks():
    leaf()
    child = os.fork()
    if child == 0:
        leaf()
        return child
    leaf()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
def around(): return forks()
got = around()
leaf()
if got == 0 and not threading.main_thread() is threading.current_thread(): os._exit(9)
stop.set()
print("done", flush=True)
"#;
    let threads = Host::script(&needs!(python()), script).functions();
    assert_eq!(calls(&threads, "__main__.leaf"), 5);
    assert_eq!(calls(&threads, "__main__.waits"), 1);
}

#[test]
fn an_interpreter_ends_while_threads_run() {
    let script = r#"
import atexit, sys, threading
started = threading.Event()
def leaf(n): return len([n])
def loops():
    while True:
        leaf(1)
        started.set()
def last():
    leaf(2)
    print("last", flush=True)
atexit.register(last)
for _ in range(3):
    threading.Thread(target=loops, daemon=True).start()
started.wait()
class Ends:
    def __del__(self): leaf(3)
kept = Ends()
sys.exit(5)
"#;
    let threads = Host::script(&needs!(python()), script).functions();
    assert_eq!(calls(&threads, "__main__.last"), 1);
    assert!(calls(&threads, "__main__.leaf") > 1);
}
