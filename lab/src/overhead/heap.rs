//! The cost of following blocks of memory, beside heaptrack on the same programs.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fgraph_chores::figures::median;
use fgraph_chores::process::{compile, succeed};
use fgraph_needs::{CC, HEAPTRACK, PYTHON, SQLITE3};

use super::times::{Times, wait_without_reaping};

pub(super) const NAME: &str = "heap";

/// Frees and allocates in a loop, up to 16 calls deep.
const CHURN: &str = "#include <stdlib.h>
static void *slots[4096];
static unsigned seed = 1;
static unsigned next(void) { seed = seed * 1103515245 + 12345; return seed >> 8; }
__attribute__((noinline)) void step(int depth) {
    volatile int around = depth;
    if (depth > 0) { step(depth - 1); around++; return; }
    void **slot = &slots[next() % 4096];
    free(*slot);
    *slot = malloc(next() % 512 + 1);
}
int main(void) { for (int i = 0; i < 2000000; i++) step(next() % 16); return 0; }
";

const QUERY: &str = "CREATE TABLE t(a, b); \
    WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 300000) \
    INSERT INTO t SELECT x, hex(x * 7919) FROM c; \
    SELECT count(DISTINCT b), group_concat(b) > '' FROM t;";

const JSON: &str = "import json
for _ in range(20): json.loads(json.dumps([{'a': str(i), 'b': [i] * 3} for i in range(20000)]))";

const EXECUTABLE: &str = "import sys; sys.stdout.write(sys.executable)";

/// Way to run a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Plain,
    Fgraph,
    Heaptrack,
}

const WAYS: [(&str, Way); 3] = [
    ("plain", Way::Plain),
    ("fgraph heap", Way::Fgraph),
    ("heaptrack", Way::Heaptrack),
];

/// Prints the medians of the times on the clock and of the processor times of program and tool, and
/// the ratios of what the two tools add.
pub(super) fn print(runs: u32, fgraph: &Path, directory: &Path) -> io::Result<()> {
    let mut programs: Vec<(&str, Vec<String>)> = Vec::new();
    let text = |path: PathBuf| path.display().to_string();
    match CC.find() {
        Ok(cc) => {
            let built = compile(&cc, directory, ("churn.c", CHURN), &["-O2"])?;
            programs.push(("churn", vec![text(built)]));
        }
        Err(missing) => println!("{NAME:<15} churn skipped: {missing}"),
    }
    let words: [(_, _, &[&str]); 2] = [
        ("sqlite", SQLITE3, &[":memory:", QUERY]),
        ("python", PYTHON, &["-c", JSON]),
    ];
    for (name, need, words) in words {
        match need.find() {
            Ok(path) => {
                let words = words.iter().map(|word| (*word).to_owned());
                // The command may be a script that starts the interpreter.
                let path = match name {
                    "python" => succeed(Command::new(path).args(["-c", EXECUTABLE]))?,
                    _ => text(path),
                };
                programs.push((name, [path].into_iter().chain(words).collect()));
            }
            Err(missing) => println!("{NAME:<15} {name} skipped: {missing}"),
        }
    }
    let heaptrack = HEAPTRACK.find();
    for (name, words) in programs {
        let mut all: [Vec<(Duration, Duration)>; WAYS.len()] = Default::default();
        for _ in 0..runs {
            for ((_, way), found) in WAYS.iter().zip(&mut all) {
                if *way != Way::Heaptrack || heaptrack.is_ok() {
                    found.push(times(*way, &words, fgraph, directory)?);
                }
            }
        }
        let walls = all
            .each_ref()
            .map(|runs| median(runs.iter().map(|run| run.0)));
        let busy = all
            .each_ref()
            .map(|runs| median(runs.iter().map(|run| run.1)));
        for (((way, _), wall), busy) in WAYS.iter().zip(walls).zip(busy) {
            let (Some(wall), Some(busy)) = (wall, busy) else {
                continue;
            };
            let (wall, busy) = (wall.as_millis(), busy.as_millis());
            println!("{NAME:<15} {name:<8} {way:<12} {wall:>8} ms, {busy:>8} ms of processors");
        }
        match &heaptrack {
            Ok(_) => {
                let (wall, busy) = (ratio(walls), ratio(busy));
                println!(
                    "{NAME:<15} {name:<8} adds {wall:.2} of the time that heaptrack adds, and \
                     {busy:.2} of the processor time"
                );
            }
            Err(missing) => println!("{NAME:<15} {name:<8} heaptrack skipped: {missing}"),
        }
    }
    Ok(())
}

/// Returns the part of what heaptrack adds to a plain run that fgraph adds.
fn ratio(medians: [Option<Duration>; WAYS.len()]) -> f64 {
    let [plain, fgraph, heaptrack] = medians.map(|it| it.unwrap_or_default().as_secs_f64());
    (fgraph - plain) / (heaptrack - plain).max(0.001)
}

/// The time of a run until its report is there, and the processor time of program and tool.
fn times(
    way: Way,
    words: &[String],
    fgraph: &Path,
    directory: &Path,
) -> io::Result<(Duration, Duration)> {
    let mut command = match way {
        Way::Plain => Command::new(&words[0]),
        Way::Fgraph => {
            let mut command = Command::new(fgraph);
            command.args(["heap", "--"]).arg(&words[0]);
            command
        }
        Way::Heaptrack => {
            let mut command = Command::new(HEAPTRACK.name());
            command
                .arg("-o")
                .arg(directory.join("heaptrack"))
                .arg(&words[0]);
            command
        }
    };
    command.args(&words[1..]).current_dir(directory);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let since = Instant::now();
    let mut child = command.spawn()?;
    wait_without_reaping(child.id())?;
    let took = since.elapsed();
    let times = Times::of(child.id())?;
    let status = child.wait()?;
    match status.success() {
        true => Ok((took, times.own + times.children)),
        false => Err(io::Error::other(format!("{command:?} ended with {status}"))),
    }
}
