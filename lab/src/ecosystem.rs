//! `cargo xtask ecosystem`: other programs behave the same, and other crates pass their own tests,
//! while all their functions are traced.
//!
//! Programs that the command `fgraph` records and attaches to, if the machine has them, are in
//! `recorded.rs`, servers under load in `servers.rs`.
//!
//! Each crate's source is fetched from the registry, and its unit and integration tests run four
//! times. The library of `xtask/preload` traces them, in the test programs only.
//!
//! ```text
//!   target/ecosystem/NAME@VERSION/
//!     scratch/   a package that depends on the crate, so that cargo fetches it
//!     vendor/    the sources: those of the crate are NAME-VERSION/
//!     plain/     what `cargo test` builds          run as it is, and traced: relocated
//!     nops/      what `cargo fgraph test` builds   run as it is, and traced: mostly by NOPs
//!     counted    what the library has counted in the run at hand: a line for each test program
//! ```

// Long strings: rows of tables, and files.

mod program;
mod recorded;
mod servers;

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::Args;
use fgraph_chores::cargo;
use fgraph_chores::figures::grouped;
use fgraph_chores::process::{Counted, Done, bounded};
use serde_json::{Value, json};

use program::Recorder;

/// Longest run in seconds: a longer one is killed.
const LIMIT: u32 = 900;

/// Counters that must be zero when all functions are traced.
const ZERO: [&str; 5] = ["unreserved", "lost", "unattached", "patched", "stopped"];

/// Crates whose tests are run if none is named.
const CRATES: [&str; 3] = [
    "grep-searcher@0.1.17",
    "regex-syntax@0.8.11",
    "aho-corasick@1.1.5",
];

/// Start of docs/ecosystem.md.
const HEAD: &str = "\
# Other programs under fgraph

*Written by `cargo xtask ecosystem --write` from the newest result of each program and server.*

Read this page to find out if fgraph was tried on your program or server, and with which result.

    cargo xtask ecosystem --recorded NAME...               programs whose names begin so
    cargo xtask ecosystem --servers NAME...                servers whose names begin so
    cargo xtask ecosystem --recorded --servers --write     all, and write this page

The command fails if it harms a program or a server.

";

/// Explanation of the table of programs for its readers.
const PROGRAMS: &str = "\
Each program runs three times: plain, under `fgraph record --libs`, and while
`fgraph record --libs -p` attaches to it ten times for 200 ms each. *Equal*: what it prints and how
it ends are the same as in the plain run. Functions and calls are those of the recording from the
start, with all processes that the program starts. A program that starts processes while it is
attached to may still be harmed: `docs/limits.md` says why.

";

/// Options of the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Run the tests of these crates of the registry only; without a version, the newest
    #[arg(value_name = "CRATE[@VERSION]")]
    crates: Vec<String>,
    /// Record programs from their start and by ten attaches, those whose names begin so or all, and
    /// run no tests of crates
    #[arg(long, num_args = 0.., value_name = "NAME", conflicts_with = "crates")]
    recorded: Option<Vec<String>>,
    /// Measure servers while they are recorded and attached to, those whose names begin so or all,
    /// and run no tests of crates
    #[arg(long, num_args = 0.., value_name = "NAME", conflicts_with = "crates")]
    servers: Option<Vec<String>>,
    /// Write docs/ecosystem.md from the newest results of --recorded and --servers; run only what
    /// is asked for beside it
    #[arg(long, conflicts_with_all = ["crates", "json"])]
    write: bool,
    /// The command `fgraph` for --recorded, --servers and --write; without it, it is built
    #[arg(long, value_name = "PATH")]
    fgraph: Option<PathBuf>,
    /// Optimize the tests
    #[arg(long)]
    release: bool,
    /// Print one JSON object for each program and crate, in an array
    #[arg(long)]
    json: bool,
}

/// Runs the selected work. Fails if something behaves in another way than untraced.
pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let kinds = [&options.recorded, &options.servers];
    let is_all =
        !options.write && options.crates.is_empty() && kinds.iter().all(|kind| kind.is_none());
    let all = is_all.then(Vec::new);
    let [recorded, servers] = kinds.map(|kind| kind.as_ref().or(all.as_ref()));
    let recorder = || Recorder::new(options.fgraph.as_deref());
    let (mut objects, mut tables, mut is_good) = (Vec::new(), String::new(), true);
    if let Some(names) = recorded {
        let outcomes = recorded::run(&recorder()?, names)?;
        objects.extend(outcomes.iter().map(recorded::Outcome::json));
        tables += &recorded::table(&outcomes);
        is_good &= outcomes.iter().all(recorded::Outcome::is_good);
    }
    if let Some(names) = servers {
        let loads = servers::run(&recorder()?, names)?;
        objects.extend(loads.iter().map(servers::Load::json));
        tables += &servers::table(&loads);
        is_good &= loads.iter().all(servers::Load::is_good);
    }
    let by_default = CRATES.map(str::to_owned);
    let crates = if is_all {
        &by_default[..]
    } else {
        &options.crates
    };
    if !crates.is_empty() {
        let tools = Tools::build()?;
        let figures = |name: &String| Subject::fetch(&tools, name)?.run(&tools, options.release);
        let all: Vec<_> = crates.iter().map(figures).collect::<io::Result<_>>()?;
        objects.extend(all.iter().map(Figures::json));
        tables += &table(&all);
        is_good &= all.iter().all(|figures| figures.fault.is_none());
    }
    if options.write {
        write()?;
    }
    if options.json {
        println!("{}", Value::from(objects));
    } else {
        print!("{tables}");
    }
    Ok(is_good)
}

/// Writes docs/ecosystem.md from the newest results.
fn write() -> io::Result<()> {
    let all = program::directory()?;
    let page = format!(
        "{HEAD}## Programs\n\n{PROGRAMS}{}{}\n## Servers\n\n{}{}{}",
        recorded::HEADER,
        recorded::newest(&all),
        servers::ABOUT,
        servers::HEADER,
        servers::newest(&all)
    );
    fs::write(cargo::workspace().join("docs/ecosystem.md"), page)
}

/// The workspace's own programs, and the working directory.
#[derive(Debug)]
struct Tools {
    /// Library that traces the programs that preload it.
    library: PathBuf,
    cargo_fgraph: PathBuf,
    directory: PathBuf,
}

impl Tools {
    fn build() -> io::Result<Self> {
        let cargo_fgraph = cargo::build("cargo-fgraph")?;
        let library = cargo::build("fgraph-preload-test")?;
        Ok(Self {
            directory: program::directory()?,
            library,
            cargo_fgraph,
        })
    }
}

/// Way in which the tests are built.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Build {
    /// By cargo: nothing has a NOP.
    Plain,
    /// By `cargo fgraph`.
    Nops,
}

/// Ways to run the tests, in this order: the first gives the number that pass.
const WAYS: [(&str, Build, bool); 4] = [
    ("plain", Build::Plain, false),
    ("nops", Build::Nops, false),
    ("nops traced", Build::Nops, true),
    ("plain traced", Build::Plain, true),
];

/// Crate whose tests are run.
#[derive(Debug)]
struct Subject {
    /// Name and version, as in the name of the directory of its sources.
    name: String,
    /// Directory with all its files.
    directory: PathBuf,
    source: PathBuf,
}

impl Subject {
    /// Makes cargo put the sources of `wanted` into the directory for it, unless they are there.
    fn fetch(tools: &Tools, wanted: &str) -> io::Result<Self> {
        let (name, requirement) = match wanted.split_once('@') {
            Some((name, version)) => (name, format!("={version}")),
            None => (wanted, "*".to_owned()),
        };
        let directory = tools.directory.join(wanted);
        let (scratch, vendor) = (directory.join("scratch"), directory.join("vendor"));
        if find(&vendor, name).is_err() {
            let manifest = format!(
                "[package]\nname = \"scratch\"\nedition = \"2024\"\n[workspace]\n[dependencies]\n{name} = \"{requirement}\"\n"
            );
            fs::create_dir_all(scratch.join("src"))?;
            fs::write(scratch.join("Cargo.toml"), manifest)?;
            fs::write(scratch.join("src/lib.rs"), "")?;
            let mut command = bounded(LIMIT, cargo::program());
            command
                .args(["vendor", "--quiet", "--versioned-dirs", "../vendor"])
                .current_dir(&scratch);
            Done::of(&mut command)?.check()?;
        }
        let source = find(&vendor, name)?;
        // It must not join the workspace around its directory.
        let manifest = source.join("Cargo.toml");
        let text = fs::read_to_string(&manifest)?;
        if !text.contains("\n[workspace]\n") {
            fs::write(&manifest, text + "\n[workspace]\n")?;
        }
        let name = source.file_name().expect("a directory's").to_string_lossy();
        Ok(Self {
            name: name.into_owned(),
            directory,
            source,
        })
    }

    /// Builds and runs the tests in all ways, up to the first that fails.
    fn run(&self, tools: &Tools, release: bool) -> io::Result<Figures> {
        let mut figures = Figures {
            name: self.name.clone(),
            building: Duration::ZERO,
            runs: Vec::new(),
            fault: None,
        };
        for build in [Build::Plain, Build::Nops] {
            let done = Done::of(self.command(tools, build, release).arg("--no-run"))?;
            figures.building += done.took;
            if let Some(fault) = done.fault() {
                figures.fault = Some(format!("building: {fault}"));
                return Ok(figures);
            }
        }
        let out = self.directory.join("counted");
        for (way, build, is_traced) in WAYS {
            let mut command = self.command(tools, build, release);
            if is_traced {
                command.arg("--config").arg(self.runner(tools, &out));
            }
            let done = Done::of(&mut command)?;
            let run = Run {
                way,
                took: done.took,
                results: results(&done.stdout),
                counted: Counted::take(&out)?,
            };
            let fault = done.fault().or_else(|| {
                let first = figures.runs.first().unwrap_or(&run);
                run.fault(first, is_traced, build)
            });
            figures.runs.push(run);
            if let Some(fault) = fault {
                figures.fault = Some(format!("{way}: {fault}"));
                break;
            }
        }
        Ok(figures)
    }

    /// Returns the command that builds and runs the tests.
    fn command(&self, tools: &Tools, build: Build, release: bool) -> Command {
        let (mut command, target) = match build {
            Build::Plain => (bounded(LIMIT, cargo::program()), "plain"),
            Build::Nops => (bounded(LIMIT, &tools.cargo_fgraph), "nops"),
        };
        command
            .args(["test", "--tests", "--target-dir"])
            .arg(self.directory.join(target))
            .args(release.then_some("--release"))
            .current_dir(&self.source)
            .env_remove("RUSTC_WRAPPER")
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS");
        command
    }

    /// Makes cargo start the test programs, and nothing else, with the library that traces all
    /// their code.
    fn runner(&self, tools: &Tools, out: &Path) -> String {
        let settings = [
            "env".to_owned(),
            format!("LD_PRELOAD={}", tools.library.display()),
            format!("FGRAPH_FILTER=:mod:{}/*", self.directory.display()),
            format!("FGRAPH_OUT={}", out.display()),
        ];
        // An array of strings in TOML is one in JSON.
        format!("target.'cfg(unix)'.runner={}", json!(settings))
    }
}

/// Returns the sources of the crate `name` in `vendor`.
fn find(vendor: &Path, name: &str) -> io::Result<PathBuf> {
    for entry in fs::read_dir(vendor)? {
        let path = entry?.path();
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let version = file
            .strip_prefix(name)
            .and_then(|rest| rest.strip_prefix('-'));
        if version.is_some_and(|version| version.starts_with(|char: char| char.is_ascii_digit())) {
            return Ok(path);
        }
    }
    Err(io::Error::other(format!("cargo has not fetched {name}")))
}

/// Returns the number of passed tests, for each test program.
fn results(stdout: &str) -> Vec<u64> {
    let result = |line: &str| {
        let (_, rest) = line.strip_prefix("test result: ")?.split_once(". ")?;
        rest.split_once(" passed;")?.0.parse().ok()
    };
    stdout.lines().filter_map(result).collect()
}

/// Run of all tests of a crate.
#[derive(Debug)]
struct Run {
    way: &'static str,
    took: Duration,
    results: Vec<u64>,
    /// Counts of the library, of each test program.
    counted: Counted,
}

impl Run {
    /// Returns the sum of the test programs' counters of this name.
    fn sum(&self, name: &str) -> u64 {
        self.counted.sum(name).unwrap_or(0)
    }

    fn passed(&self) -> u64 {
        self.results.iter().sum()
    }

    /// Returns a failure that the figures show. The `first` run was untraced.
    fn fault(&self, first: &Self, is_traced: bool, build: Build) -> Option<String> {
        if self.passed() == 0 {
            return Some("no test passes".to_owned());
        }
        if self.results != first.results {
            let (ours, theirs) = (&self.results, &first.results);
            return Some(format!("{ours:?} tests pass, not {theirs:?}"));
        }
        if !is_traced {
            return None;
        }
        let programs = self.counted.0.len();
        if programs < self.results.len() {
            return Some(format!("only {programs} test programs were traced"));
        }
        let [traced, nops, relocated] = ["traced", "nops", "relocated"].map(|name| self.sum(name));
        if traced == 0 || traced != nops + relocated {
            return Some("not all functions were traced that can be".to_owned());
        }
        if (nops != 0) != (build == Build::Nops) {
            return Some(format!("{nops} functions have NOPs"));
        }
        if self.sum("entries") == 0 || self.sum("entries") != self.sum("returns") {
            return Some("there are not as many returns as entries".to_owned());
        }
        let refusals = self.counted.0.iter().map(|program| &program["refusals"]);
        if let Some(refusals) = refusals
            .into_iter()
            .find(|refusals| **refusals != json!([]))
        {
            return Some(format!("functions are refused: {refusals}"));
        }
        let stray = ZERO.iter().find(|name| self.sum(name) != 0);
        stray.map(|name| format!("{name} is not 0"))
    }

    fn json(&self) -> Value {
        json!({
            "way": self.way,
            "ms": self.took.as_millis() as u64,
            "passed": self.passed(),
            "counted": self.counted.0,
        })
    }
}

/// Results of a crate.
#[derive(Debug)]
struct Figures {
    name: String,
    /// Time of building it, both ways.
    building: Duration,
    runs: Vec<Run>,
    fault: Option<String>,
}

impl Figures {
    fn json(&self) -> Value {
        json!({
            "crate": self.name,
            "build_ms": self.building.as_millis() as u64,
            "runs": self.runs.iter().map(Run::json).collect::<Value>(),
            "fault": self.fault,
        })
    }
}

/// Returns all figures for people.
fn table(all: &[Figures]) -> String {
    let mut text = String::from(
        "crate                     run           passed    nops  relocated  refused           calls  missed  overrun  lost  seconds\n",
    );
    for figures in all {
        for run in &figures.runs {
            writeln!(
                text,
                "{:<26}{:<13}{:>7}{:>8}{:>11}{:>9}{:>16}{:>8}{:>9}{:>6}{:>9.1}",
                figures.name,
                run.way,
                run.passed(),
                grouped(run.sum("nops")),
                grouped(run.sum("relocated")),
                grouped(run.sum("refused")),
                grouped(run.sum("entries")),
                grouped(run.sum("missed")),
                grouped(run.sum("overrun")),
                grouped(run.sum("lost")),
                run.took.as_secs_f64(),
            )
            .expect("a string takes all");
        }
        let seconds = figures.building.as_secs_f64();
        writeln!(text, "{:<26}built in {seconds:.1} s", figures.name).expect("a string takes all");
        if let Some(fault) = &figures.fault {
            writeln!(text, "FAILED: {}: {fault}", figures.name).expect("a string takes all");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTED: &str =
        r#"{"traced":5,"nops":3,"relocated":2,"entries":9,"returns":9,"lost":0,"refusals":[]}"#;

    fn fault(counted: &str, build: Build) -> Option<String> {
        let run = |results: &[u64], counted: &str| Run {
            way: "",
            took: Duration::ZERO,
            results: results.to_vec(),
            counted: Counted(counted.lines().map(|it| it.parse().unwrap()).collect()),
        };
        run(&[7], counted).fault(&run(&[7], ""), true, build)
    }

    #[test]
    fn passed_tests_are_counted_for_each_program() {
        let stdout = "running 2 tests\ntest a ... ok\n\ntest result: ok. 2 passed; 0 failed; 1 ignored\n\
            test result: FAILED. 13 passed; 1 failed\ntest result: ok\n";
        assert_eq!(results(stdout), [2, 13]);
    }

    #[test]
    fn whatever_is_not_as_it_should_be_is_a_fault() {
        assert_eq!(fault(COUNTED, Build::Nops), None);
        assert!(fault(COUNTED, Build::Plain).is_some());
        assert!(fault("", Build::Nops).is_some());
        for (was, is) in [
            (r#""traced":5"#, r#""traced":6"#),
            (r#""returns":9"#, r#""returns":8"#),
            (r#""lost":0"#, r#""lost":1"#),
            ("[]", r#"["f: cannot be displaced"]"#),
        ] {
            assert!(
                fault(&COUNTED.replace(was, is), Build::Nops).is_some(),
                "{is}"
            );
        }
    }
}
