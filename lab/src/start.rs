//! `cargo xtask start`: the time that recording adds to the start of programs.
//!
//! Each program runs plain, recorded without a cache, recorded with a cache that is empty, and
//! recorded with the plans that this has left there, in turns. The table has the median of the time
//! that each takes over the plain one.
//!
//! A second table has the time that a user takes to be registered for all functions of a program
//! that the library of `xtask/preload` is in, and behind it that of all processors: planned by one
//! thread and by two, and with plans that were kept.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use fgraph_chores::figures::median;
use fgraph_chores::process::Counted;
use fgraph_chores::{cargo, toolchain};
use tempfile::TempDir;

/// Options of the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Number of runs of each program in each way
    #[arg(long, default_value_t = 15, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Programs that the shell starts
    #[arg(long, default_value_t = 100, value_name = "N")]
    children: u32,
}

/// A program whose start is measured.
#[derive(Debug)]
struct Subject {
    name: String,
    /// The functions that are recorded.
    options: Vec<&'static str>,
    command: Vec<String>,
    /// The starts in one run.
    starts: u32,
}

/// Way to run a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Plain,
    NoCache,
    EmptyCache,
    Cache,
}

impl Way {
    const ALL: [Self; 4] = [Self::Plain, Self::NoCache, Self::EmptyCache, Self::Cache];
}

pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let fgraph = cargo::fgraph(None)?;
    let directory = TempDir::with_prefix("fgraph-start-")?;
    print(options, &fgraph, directory.path())?;
    print_registrations(directory.path())?;
    Ok(true)
}

fn print(options: &Options, fgraph: &Path, directory: &Path) -> io::Result<()> {
    let children = options.children.max(1);
    let loop_of = "i=0; while [ $i -lt $0 ]; do /bin/true; i=$((i + 1)); done";
    let cargo = toolchain::sysroot()?.join("bin/cargo");
    let libs = || vec!["--libs"];
    let subject = |name: &str, options, command: &[&str], starts| Subject {
        name: name.to_owned(),
        options,
        command: command.iter().map(|&word| word.to_owned()).collect(),
        starts,
    };
    let each = format!("--libs -- sh: each of {children}");
    let shell = ["sh", "-c", loop_of, &children.to_string()];
    let version = [&cargo.display().to_string(), "--version"];
    let cargos = vec!["-F", "cargo::ops::*"];
    let subjects = [
        subject("--libs -- /bin/true", libs(), &["/bin/true"], 1),
        subject(&each, libs(), &shell, children),
        subject("-- /bin/true", Vec::new(), &["/bin/true"], 1),
        subject("-F 'cargo::ops::*' -- cargo", cargos, &version, 1),
    ];
    println!("fgraph record               plain      over plain: no cache  empty cache  cache");
    for subject in &subjects {
        let mut times: [Vec<Duration>; 4] = Default::default();
        for _ in 0..options.runs {
            for (way, times) in Way::ALL.into_iter().zip(&mut times) {
                times.push(subject.run(way, fgraph, directory)?);
            }
        }
        let [plain, rest @ ..] =
            times.map(|times| median(times).unwrap_or_default() / subject.starts);
        let over = rest.map(|time| milliseconds(time.saturating_sub(plain)));
        let [no_cache, empty, cache] = over;
        println!(
            "{:<27} {:>6} ms {no_cache:>19} ms {empty:>9} ms {cache:>3} ms",
            subject.name,
            milliseconds(plain),
        );
    }
    Ok(())
}

impl Subject {
    fn run(&self, way: Way, fgraph: &Path, directory: &Path) -> io::Result<Duration> {
        let cache = directory.join("cache");
        if way == Way::EmptyCache {
            let _ = fs::remove_dir_all(&cache);
        }
        let mut command;
        if way == Way::Plain {
            command = Command::new(&self.command[0]);
            command.args(&self.command[1..]);
        } else {
            command = Command::new(fgraph);
            command.args(["record", "-q", "-o"]);
            command.arg(directory.join("fgraph.data"));
            command.args(&self.options);
            command.args((way == Way::NoCache).then_some("--no-cache"));
            command.arg("--").args(&self.command);
        }
        command.env("XDG_CACHE_HOME", &cache).stdin(Stdio::null());
        command.stdout(Stdio::null());
        let since = Instant::now();
        let status = command.status()?;
        let took = since.elapsed();
        match status.success() {
            true => Ok(took),
            false => Err(io::Error::other(format!("{command:?} ended with {status}"))),
        }
    }
}

/// A program whose functions are all registered.
#[derive(Debug)]
struct Registration {
    program: &'static str,
    filter: &'static str,
    runs: usize,
}

const REGISTRATIONS: [Registration; 2] = [
    Registration {
        program: "cargo",
        filter: ":mod:cargo",
        runs: 9,
    },
    Registration {
        program: "rustc",
        filter: ":mod:librustc_driver* :mod:libLLVM*",
        runs: 3,
    },
];

fn print_registrations(directory: &Path) -> io::Result<()> {
    let library = cargo::build("fgraph-preload-test")?;
    let plans = directory.join("plans");
    fs::create_dir_all(&plans)?;
    println!(
        "\nregistering     functions          one thread         two threads          plans kept"
    );
    for registration in &REGISTRATIONS {
        let one = registration.fastest(&library, directory, "1", None)?;
        let two = registration.fastest(&library, directory, "2", None)?;
        let kept = registration.fastest(&library, directory, "1", Some(&plans))?;
        print!("{:<16}{:>9}", registration.program, one.functions);
        for figures in [one, two, kept] {
            let [took, used] = [figures.took, figures.used].map(milliseconds);
            print!("{took:>9} ms ({used:>5})");
        }
        println!();
    }
    Ok(())
}

/// The time that registering a user takes.
#[derive(Clone, Copy, Debug)]
struct Figures {
    functions: u64,
    took: Duration,
    /// Time of all processors.
    used: Duration,
}

impl Registration {
    /// The fastest of some runs, after one that is not counted.
    fn fastest(
        &self,
        library: &Path,
        directory: &Path,
        threads: &str,
        plans: Option<&Path>,
    ) -> io::Result<Figures> {
        let out = directory.join("figures.json");
        let run = |_| {
            let mut command = Command::new(toolchain::sysroot()?.join("bin").join(self.program));
            command.arg("--version").stdout(Stdio::null());
            command.env("LD_PRELOAD", library).env("FGRAPH_OUT", &out);
            command.env("FGRAPH_FILTER", self.filter);
            command.env("FGRAPH_PLANNING_THREADS", threads);
            command.envs(plans.map(|plans| ("FGRAPH_PLANS", plans)));
            let status = command.status()?;
            let counted = Counted::take(&out)?;
            let time = |name| counted.sum(name).map(Duration::from_micros);
            let figures = || {
                Some(Figures {
                    functions: counted.sum("traced")?,
                    took: time("register_us")?,
                    used: time("register_cpu_us")?,
                })
            };
            let figures = figures().filter(|_| status.success());
            figures.ok_or_else(|| io::Error::other(format!("{command:?} ended with {status}")))
        };
        let figures: Vec<_> = (0..=self.runs).map(run).collect::<io::Result<_>>()?;
        let fastest = figures[1..].iter().min_by_key(|figures| figures.took);
        Ok(*fastest.expect("it has run"))
    }
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1e3)
}
