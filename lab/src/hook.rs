//! `cargo xtask hook`: whole programs are traced that know nothing of fgraph, and still do the
//! same.
//!
//! Programs of the toolchain run twice, once as they are and once with the library of
//! `xtask/preload`, which traces them. Their output and the files that they make must be the same.

// Long strings: rows of tables.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use fgraph_chores::end::End;
use fgraph_chores::figures::grouped;
use fgraph_chores::process::Counted;
use fgraph_chores::{cargo, toolchain};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Options of the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs all jobs. Fails where a traced program does not do what it does untraced; that hooking
/// takes long is no failure.
pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let library = cargo::build("fgraph-preload-test")?;
    let directory = TempDir::with_prefix("fgraph-hook-")?;
    let all: Vec<Figures> = Job::all(directory.path())?
        .iter()
        .map(|job| job.run(&library))
        .collect::<io::Result<_>>()?;
    if options.json {
        println!("{}", all.iter().map(Figures::json).collect::<Value>());
    } else {
        print!("{}", table(&all));
    }
    Ok(all.iter().all(|figures| figures.fault().is_none()))
}

/// The program that is compiled. It goes through generics, traits, closures, collections, formats
/// and a panic that is caught.
const SOURCE: &str = include_str!("hook/subject.rs");
const MANIFEST: &str = "[package]\nname = \"subject\"\nedition = \"2024\"\n[workspace]\n";

/// A program to run with and without tracing.
#[derive(Debug)]
struct Job {
    name: &'static str,
    program: PathBuf,
    args: Vec<String>,
    directory: PathBuf,
    /// The functions to be traced.
    filter: &'static str,
    /// Hooking should take no longer.
    limit: Duration,
    /// Files that it makes. The last is a program that must run.
    makes: &'static [&'static str],
}

impl Job {
    /// All jobs, with the crate to compile put into `directory`.
    fn all(directory: &Path) -> io::Result<Vec<Self>> {
        fs::create_dir_all(directory.join("src"))?;
        fs::write(directory.join("Cargo.toml"), MANIFEST)?;
        fs::write(directory.join("src/main.rs"), SOURCE)?;
        let toolchain = toolchain::sysroot()?.join("bin");
        let cargo = |name, args: &[&str], makes| Self {
            name,
            program: toolchain.join("cargo"),
            args: args.iter().map(|&arg| arg.to_owned()).collect(),
            directory: directory.to_owned(),
            filter: ":mod:cargo",
            limit: Duration::from_millis(500),
            makes,
        };
        let metadata = ["metadata", "--offline", "--format-version=1"];
        let build = ["build", "--offline", "--quiet", "--target-dir", "target"];
        let rustc = [
            "--edition=2024",
            "-Copt-level=2",
            "--emit=obj,link",
            "--out-dir=.",
            "src/main.rs",
        ];
        Ok(vec![
            Self {
                program: toolchain.join("rustc"),
                filter: ":mod:librustc_driver*",
                limit: Duration::from_secs(2),
                ..cargo("rustc", &rustc, &["main.o", "main"])
            },
            cargo("cargo --version", &["--version"], &[]),
            cargo("cargo metadata", &metadata, &[]),
            cargo("cargo build", &build, &["target/debug/subject"]),
        ])
    }

    /// Runs it without and with the tracing `library`.
    fn run(&self, library: &Path) -> io::Result<Figures> {
        let out = self.directory.join("figures.json");
        let (untraced, as_it_is) = self.done(&mut self.command())?;
        let mut command = self.command();
        command
            .env("LD_PRELOAD", library)
            .env("FGRAPH_FILTER", self.filter)
            .env("FGRAPH_OUT", &out);
        let (traced, found) = self.done(&mut command)?;
        Ok(Figures {
            name: self.name,
            limit: self.limit,
            untraced,
            traced,
            wrong: found.difference(&as_it_is),
            counted: Counted::take(&out)?,
        })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .current_dir(&self.directory)
            .env_remove("RUSTC_WRAPPER")
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .env_remove("CARGO_TARGET_DIR")
            .stdin(Stdio::null());
        command
    }

    /// Does it, from nothing; returns also how long that took.
    fn done(&self, command: &mut Command) -> io::Result<(Duration, Done)> {
        for file in self.makes {
            let _ = fs::remove_file(self.directory.join(file));
        }
        let _ = fs::remove_dir_all(self.directory.join("target"));
        let start = Instant::now();
        let output = command.output()?;
        let took = start.elapsed();
        let files = self.makes.iter().map(|file| self.directory.join(file));
        let made = files.clone().map(|file| fs::read(file).unwrap_or_default());
        let program = files.clone().next_back().filter(|program| program.exists());
        let done = Done {
            output,
            made: made.collect(),
            ran: program
                .map(|program| Command::new(program).output())
                .transpose()?,
        };
        Ok((took, done))
    }
}

/// Result of a program.
#[derive(Debug)]
struct Done {
    output: Output,
    made: Vec<Vec<u8>>,
    /// Result of the program that it made.
    ran: Option<Output>,
}

impl Done {
    /// Returns a difference to the result `untraced`.
    fn difference(&self, untraced: &Self) -> Option<String> {
        let failure = |done: &Self| {
            let text = String::from_utf8_lossy(&done.output.stderr).into_owned();
            let status = done.output.status;
            (!status.success()).then(|| format!("{}: {text}", End::of(status)))
        };
        if let Some(failure) = failure(untraced) {
            return Some(format!("untraced, too, it {failure}"));
        }
        let different = [
            (self.output != untraced.output, "prints something else"),
            (self.made != untraced.made, "makes something else"),
            (
                self.ran != untraced.ran,
                "what it makes does something else",
            ),
        ];
        let different = different
            .into_iter()
            .find(|(is_different, _)| *is_different);
        failure(self).or_else(|| different.map(|(_, what)| what.to_owned()))
    }
}

/// Result of a job.
#[derive(Debug)]
struct Figures {
    name: &'static str,
    /// Hooking should take no longer.
    limit: Duration,
    /// Time that it takes untraced.
    untraced: Duration,
    /// Time that it takes traced.
    traced: Duration,
    /// Difference to the untraced run, if any.
    wrong: Option<String>,
    /// Counts of the library, one object; none if it did not come to that.
    counted: Counted,
}

/// Counters that must be zero.
const ZERO: [&str; 6] = [
    "overrun",
    "unreserved",
    "lost",
    "unattached",
    "patched",
    "stopped",
];

impl Figures {
    fn number(&self, name: &str) -> Option<u64> {
        self.counted.sum(name)
    }

    /// Returns the fault, if there is one.
    fn fault(&self) -> Option<String> {
        if let Some(wrong) = &self.wrong {
            return Some(wrong.clone());
        }
        if self.counted.0.is_empty() {
            return Some("nothing was counted".to_owned());
        }
        let (entries, returns) = (self.number("entries"), self.number("returns"));
        if self.number("traced").unwrap_or(0) == 0 || entries.unwrap_or(0) == 0 {
            return Some("nothing was traced".to_owned());
        }
        if returns > entries {
            return Some("more returns than entries".to_owned());
        }
        let stray = ZERO.iter().find(|name| self.number(name) != Some(0));
        stray.map(|name| format!("{name} is not 0"))
    }

    /// One JSON object.
    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "limit_ms": self.limit.as_millis() as u64,
            "untraced_ms": self.untraced.as_millis() as u64,
            "traced_ms": self.traced.as_millis() as u64,
            "counted": self.counted.0.first(),
            "fault": self.fault(),
        })
    }
}

/// All figures for people.
fn table(all: &[Figures]) -> String {
    let mut text = String::from(
        "program           traced  refused   hook ms   cpu ms  limit     entries     returns  missed  lost no stack  run ms  untraced\n",
    );
    for figures in all {
        let number = |name| figures.number(name).unwrap_or(0);
        let ms = |name| number(name) as f64 / 1e3;
        let took = Duration::from_micros(number("register_us"));
        writeln!(
            text,
            "{:<16}{:>8}{:>9}{:>10.1}{:>9.1}  {:<5}{:>12}{:>12}{:>8}{:>6}{:>9}{:>8}{:>10}",
            figures.name,
            grouped(number("traced")),
            grouped(number("refused")),
            ms("register_us"),
            ms("register_cpu_us"),
            if took <= figures.limit { "ok" } else { "OVER" },
            grouped(number("entries")),
            grouped(number("returns")),
            grouped(number("missed")),
            grouped(number("lost")),
            grouped(number("no_shadow_stack")),
            figures.traced.as_millis(),
            figures.untraced.as_millis(),
        )
        .expect("a string takes all");
        if let Some(fault) = figures.fault() {
            writeln!(text, "FAILED: {}: {fault}", figures.name).expect("a string takes all");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTED: &str = r#"{"traced":5,"entries":9,"returns":8,"overrun":0,"unreserved":0,"lost":0,"unattached":0,"patched":0,"stopped":0}"#;

    fn figures(counted: &str, wrong: Option<&str>) -> Figures {
        Figures {
            name: "p",
            limit: Duration::ZERO,
            untraced: Duration::ZERO,
            traced: Duration::ZERO,
            wrong: wrong.map(str::to_owned),
            counted: Counted(counted.lines().map(|it| it.parse().unwrap()).collect()),
        }
    }

    #[test]
    fn whatever_is_not_as_it_should_be_is_a_fault() {
        assert!(figures(COUNTED, None).fault().is_none());
        assert!(
            figures(COUNTED, Some("prints something else"))
                .fault()
                .is_some()
        );
        assert!(figures("", None).fault().is_some());
        for (was, is) in [
            (r#""traced":5"#, r#""traced":0"#),
            (r#""returns":8"#, r#""returns":10"#),
            (r#""lost":0"#, r#""lost":1"#),
            (r#","stopped":0"#, ""),
        ] {
            let figures = figures(&COUNTED.replace(was, is), None);
            assert!(figures.fault().is_some(), "{is}");
        }
    }
}
