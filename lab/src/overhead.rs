//! `cargo xtask overhead`: the cost of recording real programs.
//!
//! Each program runs plain and recorded in several ways, in turns. The table has medians: the time
//! on the clock, and the processor time of the program and of the recorder apart.

mod heap;
mod programs;
mod python;
mod redis;
mod switches;
mod times;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use fgraph_chores::cargo;
use fgraph_chores::figures::median;
use serde_json::Value;
use tempfile::TempDir;

use programs::Program;
use times::{Times, wait_without_reaping};

/// Options of the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Number of runs of each program in each way
    #[arg(long, default_value_t = 5, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Measure this fgraph; otherwise it is built
    #[arg(long, value_name = "FILE")]
    fgraph: Option<PathBuf>,
    /// Run only the programs whose names contain one of these
    names: Vec<String>,
}

/// A way to run a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way {
    name: &'static str,
    /// Options of `fgraph record`; `None` for a plain run.
    options: Option<&'static [&'static str]>,
}

#[rustfmt::skip]
const WAYS: [Way; 5] = [
    Way { name: "plain", options: None },
    Way { name: "record", options: Some(&[]) },
    Way { name: "record --ring drop", options: Some(&["--ring", "drop"]) },
    Way { name: "record -t 100us", options: Some(&["-t", "100us"]) },
    // Nearly all of a short program's excess is from before the first functions are switched off.
    Way { name: "record --budget 20%", options: Some(&["--budget", "20%"]) },
];

/// The figures of one run.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    wall: Duration,
    /// Processor time of the program and all that it has started.
    program: Duration,
    /// Processor time of the recorder.
    recorder: Duration,
    /// Bytes of the recording.
    bytes: u64,
    calls: u64,
    /// Events that are missing.
    lost: u64,
}

pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let fgraph = cargo::fgraph(options.fgraph.as_deref())?;
    let directory = TempDir::with_prefix("fgraph-overhead-")?;
    measure(options, &fgraph, directory.path())?;
    Ok(true)
}

fn measure(options: &Options, fgraph: &Path, directory: &Path) -> io::Result<()> {
    let is_asked = |name: &str| {
        let names = &options.names;
        names.is_empty() || names.iter().any(|part| name.contains(part.as_str()))
    };
    println!("load {}", load());
    println!(
        "{:<15} {:<19} {:>8} {:>6} {:>11} {:>6} {:>8} {:>12} {:>9} {:>8}",
        "program", "run", "wall ms", "over", "program ms", "over", "fgraph", "calls", "MiB", "lost"
    );
    for (name, program) in programs::all(directory)? {
        match program {
            _ if !is_asked(name) => {}
            Ok(program) => print(&program, options.runs, fgraph, directory)?,
            Err(missing) => println!("{name:<15} skipped: {missing}"),
        }
    }
    if is_asked(redis::NAME) {
        redis::print(options.runs, fgraph, directory)?;
    }
    if is_asked(heap::NAME) {
        heap::print(options.runs, fgraph, directory)?;
    }
    if is_asked(python::NAME) {
        python::print(options.runs, fgraph, directory)?;
    }
    if is_asked(switches::NAME) {
        switches::print(options.runs, fgraph, directory)?;
    }
    println!("load {}", load());
    Ok(())
}

/// The number of threads that want a processor, of the last minute.
fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').next().unwrap_or("?").to_owned()
}

fn print(program: &Program, runs: u32, fgraph: &Path, directory: &Path) -> io::Result<()> {
    let mut all: [Vec<Run>; WAYS.len()] = Default::default();
    for _ in 0..runs {
        for (way, found) in WAYS.iter().zip(&mut all) {
            found.push(run_once(program, way, fgraph, directory)?);
        }
    }
    let rows = all.map(|runs| medians(&runs));
    let plain = rows[0];
    for (way, row) in WAYS.iter().zip(rows) {
        let over = |time: Duration, plain: Duration| {
            let ratio = time.as_secs_f64() / plain.as_secs_f64().max(0.001);
            format!("{ratio:.2}")
        };
        let recording = match way.options {
            None => String::new(),
            Some(_) => format!(
                " {:>8} {:>12} {:>9.1} {:>8}",
                row.recorder.as_millis(),
                row.calls,
                row.bytes as f64 / f64::from(1 << 20),
                row.lost
            ),
        };
        println!(
            "{:<15} {:<19} {:>8} {:>6} {:>11} {:>6}{recording}",
            program.name,
            way.name,
            row.wall.as_millis(),
            over(row.wall, plain.wall),
            row.program.as_millis(),
            over(row.program, plain.program),
        );
    }
    Ok(())
}

/// The median of each number.
fn medians(runs: &[Run]) -> Run {
    fn of<T: Ord + Copy + Default>(runs: &[Run], number: impl Fn(&Run) -> T) -> T {
        median(runs.iter().map(number)).unwrap_or_default()
    }
    Run {
        wall: of(runs, |run| run.wall),
        program: of(runs, |run| run.program),
        recorder: of(runs, |run| run.recorder),
        bytes: of(runs, |run| run.bytes),
        calls: of(runs, |run| run.calls),
        // The worst run counts.
        lost: runs.iter().map(|run| run.lost).max().unwrap_or(0),
    }
}

fn run_once(program: &Program, way: &Way, fgraph: &Path, directory: &Path) -> io::Result<Run> {
    let recording = directory.join("fgraph.data");
    let mut command = match way.options {
        None => {
            let mut command = Command::new(&program.command[0]);
            command.args(&program.command[1..]);
            command
        }
        Some(options) => {
            let mut command = Command::new(fgraph);
            command.args(["record", "-q", "-o"]).arg(&recording);
            command.args(options).args(program.options);
            command.arg("--").args(&program.command);
            command
        }
    };
    command.current_dir(&program.directory).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let since = Instant::now();
    let mut child = command.spawn()?;
    wait_without_reaping(child.id())?;
    let wall = since.elapsed();
    let times = Times::of(child.id())?;
    let status = child.wait()?;
    if !status.success() {
        return Err(io::Error::other(format!("{command:?} ended with {status}")));
    }
    let mut run = Run {
        wall,
        program: times.own + times.children,
        ..Run::default()
    };
    if way.options.is_some() {
        (run.program, run.recorder) = (times.children, times.own);
        run.bytes = fs::metadata(&recording)?.len();
        (run.calls, run.lost) = counts(fgraph, &recording)?;
    }
    Ok(run)
}

/// The calls in a recording, and the events that it lacks.
fn counts(fgraph: &Path, recording: &Path) -> io::Result<(u64, u64)> {
    let mut command = Command::new(fgraph);
    let output = command.args(["info", "--json"]).arg(recording).output()?;
    let info: Value = serde_json::from_slice(&output.stdout)?;
    let both = info["calls"].as_u64().zip(info["lost"]["events"].as_u64());
    both.ok_or_else(|| io::Error::other(format!("no counts in {info}")))
}
