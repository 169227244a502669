//! The cost of recording Python's functions, beside profilers of Python on the same program.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use fgraph_chores::cargo;
use fgraph_chores::process::{bounded, compile, succeed};
use fgraph_needs::{CC, PYTHON};

pub(super) const NAME: &str = "python calls";

/// Longest time of a run, in seconds.
const LIMIT: u32 = 120;

/// Pure Python of the standard library, and small functions; prints the milliseconds that it took.
const PROGRAM: &str = r#"
import time
since = time.perf_counter()
import difflib, json, re, textwrap
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
def work():
    fib(23)
    data = [{"name": str(i), "values": [i] * 4} for i in range(3000)]
    json.dumps(data, indent=1)
    for i in range(60):
        re.compile(r"(a|b)*c[0-9]+(?P<name>x{2,%d})" % (i + 3))
    lines = [str(i * i % 97) for i in range(1500)]
    list(difflib.unified_diff(lines, lines[::2]))
    for i in range(50):
        textwrap.wrap("some words in a line " * 20, 30)
for _ in range(8):
    work()
print((time.perf_counter() - since) * 1000)
"#;

/// A profile function that does nothing: what CPython itself takes.
const EMPTY: &str = "extern void PyEval_SetProfile(int (*)(void *, void *, int, void *), void *);
static int nothing(void *a, void *b, int c, void *d) { return 0; }
void start(void) { PyEval_SetProfile(nothing, 0); }
int main(void) { return 0; }
";

/// Way to run the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Plain,
    Empty,
    Fgraph,
    CProfile,
    Viztracer,
}

const WAYS: [(&str, Way); 5] = [
    ("plain", Way::Plain),
    ("empty profiler in C", Way::Empty),
    ("fgraph record --python", Way::Fgraph),
    ("cProfile", Way::CProfile),
    ("viztracer", Way::Viztracer),
];

/// Files of the runs.
struct Place<'a> {
    directory: &'a Path,
    fgraph: &'a Path,
    python: String,
    /// The program's words that give it a priority.
    before: &'static [&'static str],
    viztracer: PathBuf,
}

/// Prints the shortest times that the program takes by its own clock, and what each way adds to
/// that, as a part of what cProfile adds. Other load makes single runs longer by far more than the
/// ways differ.
pub(super) fn print(runs: u32, fgraph: &Path, directory: &Path) -> io::Result<()> {
    let both = PYTHON.find().and_then(|python| Ok((python, CC.find()?)));
    let (python, cc) = match both {
        Ok(both) => both,
        Err(missing) => {
            println!("{NAME:<15} skipped: {missing}");
            return Ok(());
        }
    };
    let asks = "import sys; print(sys.executable, sys.version.split()[0])";
    let found = succeed(Command::new(python).args(["-c", asks]))?;
    let (python, version) = found.trim().split_once(' ').unwrap_or((found.trim(), "?"));
    fs::write(directory.join("program.py"), PROGRAM)?;
    compile(&cc, directory, ("empty.c", EMPTY), &["-shared", "-fPIC"])?;
    let priority: &[&str] = &["chrt", "-r", "10"];
    let has_priority = succeed(Command::new("chrt").args(["-r", "10", "true"])).is_ok();
    let place = Place {
        directory,
        fgraph,
        python: python.to_owned(),
        before: if has_priority { priority } else { &[] },
        viztracer: viztracer(python, version),
    };
    let load = if has_priority { "with" } else { "without" };
    println!("{NAME:<15} Python {version}, {load} real-time priority");
    let has = |way: Way| way != Way::Viztracer || place.viztracer.exists();
    let mut all: [Vec<f64>; WAYS.len()] = Default::default();
    for _ in 0..runs {
        for ((_, way), found) in WAYS.iter().zip(&mut all) {
            if has(*way) {
                found.push(place.run(*way)?);
            }
        }
    }
    let number = |at: usize| all[at].iter().copied().fold(f64::INFINITY, f64::min);
    let plain = number(0);
    let most = (number(3) - plain).max(0.001);
    for (at, (name, way)) in WAYS.iter().enumerate() {
        if !has(*way) {
            println!("{NAME:<15} {name:<23} skipped: no viztracer (pip install viztracer)");
            continue;
        }
        let ms = number(at);
        let (times, part) = (ms / plain.max(0.001), (ms - plain) / most);
        println!(
            "{NAME:<15} {name:<23} {ms:>8.0} ms, {times:>6.2} of plain, adds {part:.2} of cProfile"
        );
    }
    Ok(())
}

/// Returns the path of viztracer in an environment of its own, which is made unless it exists. No
/// file is there if it cannot be made.
fn viztracer(python: &str, version: &str) -> PathBuf {
    let place = cargo::target().join(format!("viztracer-{version}"));
    let program = place.join("bin/viztracer");
    if !program.exists() {
        let made = succeed(bounded(60, python).args(["-m", "venv"]).arg(&place));
        let mut pip = bounded(120, place.join("bin/pip"));
        let _ = made.and_then(|_| succeed(pip.args(["install", "-q", "viztracer"])));
    }
    program
}

impl Place<'_> {
    /// Returns the milliseconds that the program prints.
    fn run(&self, way: Way) -> io::Result<f64> {
        let recording = self.directory.join("fgraph.data");
        let mut words: Vec<String> = self.before.iter().map(|&it| it.to_owned()).collect();
        let fgraph = self.fgraph.display().to_string();
        let viztracer = self.viztracer.with_file_name("python");
        let viztracer = viztracer.display().to_string();
        let output = recording.display().to_string();
        let exec = "import ctypes; ctypes.PyDLL('./empty.out').start(); \
            exec(compile(open('program.py').read(), 'program.py', 'exec'))";
        let rest: &[&str] = match way {
            Way::Plain => &[&self.python, "program.py"],
            Way::Empty => &[&self.python, "-c", exec],
            Way::Fgraph => &[
                &fgraph,
                "--no-config",
                "record",
                "--python",
                "-F",
                "py:*",
                "-q",
                "-o",
                &output,
                "--",
                &self.python,
                "program.py",
            ],
            Way::CProfile => &[
                &self.python,
                "-m",
                "cProfile",
                "-o",
                "profile",
                "program.py",
            ],
            Way::Viztracer => &[
                &viztracer,
                "-m",
                "viztracer",
                "--quiet",
                "--tracer_entries",
                "10000000",
                "-o",
                "result.json",
                "program.py",
            ],
        };
        words.extend(rest.iter().map(|&it| it.to_owned()));
        let (program, rest) = words.split_first().unwrap_or((&fgraph, &[]));
        let mut command = bounded(LIMIT, program);
        command.args(rest).current_dir(self.directory);
        let text = succeed(&mut command)?;
        let found = text.lines().find_map(|line| line.trim().parse().ok());
        found.ok_or_else(|| io::Error::other(format!("{words:?} printed {text:?}")))
    }
}
