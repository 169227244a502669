//! `cargo xtask mutants` checks that unit tests notice changes to the tested code.
//!
//! cargo-mutants changes one place at a time in a copy of the workspace and runs the tests of the
//! changed crate. A mutant that no test notices survives: a test is missing, or the code is not
//! needed.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;

use crate::cargo;

/// Options of the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Try only the K-th of N equal parts of the mutants, counted from 0
    #[arg(long, value_name = "K/N")]
    shard: Option<String>,
    /// End after so many minutes and tell what survived until then
    #[arg(long, value_name = "MINUTES", default_value_t = 120)]
    minutes: u64,
    /// Only those of this package, or of a part of it
    #[arg(long, value_name = "PACKAGE")]
    package: Option<String>,
}

/// Code that is changed, and the tests that have to notice it.
struct Subject {
    /// The name of its package, with more behind it where it is a part of that.
    name: &'static str,
    package: &'static str,
    /// Globs of the files that are changed.
    files: &'static [&'static str],
    /// Arguments of `cargo test`.
    tests: &'static [&'static str],
}

/// The code that is tested without a process being patched.
const SUBJECTS: &[Subject] = &[
    Subject {
        name: "fgraph-core",
        package: "fgraph-core",
        files: &["crates/fgraph-core/src/**/*.rs"],
        tests: &["--lib", "--test", "model"],
    },
    Subject {
        name: "fgraph-x86_64",
        package: "fgraph-x86_64",
        files: &[
            "crates/fgraph-x86_64/src/analyze/**/*.rs",
            "crates/fgraph-x86_64/src/emit/unwind.rs",
        ],
        tests: &["--lib", "--", "analyze", "emit"],
    },
    Subject {
        name: "fgraph-symbols",
        package: "fgraph-symbols",
        files: &["crates/fgraph-symbols/src/**/*.rs"],
        tests: &["--all-features", "--lib"],
    },
    Subject {
        name: "fgraph-trace-pairing",
        package: "fgraph-trace",
        files: &["crates/fgraph-trace/src/pairing.rs"],
        tests: &["--lib", "pairing"],
    },
    Subject {
        name: "fgraph-trace-readers",
        package: "fgraph-trace",
        files: &[
            "crates/fgraph-trace/src/ring/read.rs",
            "crates/fgraph-trace/src/ring/places.rs",
            "crates/fgraph-trace/src/live.rs",
            "crates/fgraph-trace/src/source.rs",
            "crates/fgraph-trace/src/recording/**/*.rs",
        ],
        tests: &[
            "--test",
            "rings",
            "--test",
            "shared",
            "--test",
            "recording",
            "--test",
            "hostile",
        ],
    },
];

/// Seconds that the tests of one mutant may take: more is an endless loop.
const TEST_SECONDS: &str = "120";

/// Where under `target` cargo-mutants leaves its notes, a folder for each subject.
const NOTES: &str = "mutants";

/// The exit code of `timeout` when the time is up.
const TIME_IS_UP: i32 = 124;

/// Tries the mutants. Fails if one survives.
pub(crate) fn run(options: &Options) -> io::Result<bool> {
    if !is_installed()? {
        return Err(io::Error::other(
            "cargo-mutants is not installed: cargo install --locked cargo-mutants",
        ));
    }
    let wanted = |subject: &&Subject| {
        let package = options.package.as_deref();
        package.is_none_or(|package| package == subject.package || package == subject.name)
    };
    let subjects: Vec<&Subject> = SUBJECTS.iter().filter(wanted).collect();
    if subjects.is_empty() {
        let names: Vec<&str> = SUBJECTS.iter().map(|subject| subject.name).collect();
        let names = names.join(", ");
        return Err(io::Error::other(format!("no such package: one of {names}")));
    }
    let end = Instant::now() + Duration::from_secs(options.minutes.saturating_mul(60));
    let mut survivors = 0;
    for subject in subjects {
        let left = end.saturating_duration_since(Instant::now()).as_secs();
        if left == 0 {
            println!("{}: not tried, the time is up", subject.name);
            continue;
        }
        survivors += test(subject, options.shard.as_deref(), left)?;
    }
    Ok(survivors == 0)
}

/// Returns true if cargo knows the command.
fn is_installed() -> io::Result<bool> {
    let status = Command::new(cargo::program())
        .args(["mutants", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    Ok(status.success())
}

/// Tries the mutants of one package for at most `seconds`, and returns how many survived.
fn test(subject: &Subject, shard: Option<&str>, seconds: u64) -> io::Result<usize> {
    let notes = cargo::workspace().join("target").join(NOTES);
    let notes = notes.join(subject.name);
    std::fs::create_dir_all(&notes)?;
    let mut command = Command::new("timeout");
    command
        .args(["--signal=INT", "--kill-after=60"])
        .arg(seconds.to_string())
        .arg(cargo::program())
        .args(["mutants", "--package", subject.package])
        .args(["--timeout", TEST_SECONDS, "--output"])
        .arg(&notes)
        .current_dir(cargo::workspace());
    for file in subject.files {
        command.args(["--file", file]);
    }
    if let Some(shard) = shard {
        command.args(["--shard", shard]);
    }
    let status = command.arg("--").args(subject.tests).status()?;
    let found = Found::read(&notes.join("mutants.out"))?;
    let ended = match status.code() {
        Some(code) if found.is_end(code) => "",
        Some(TIME_IS_UP) => ", the time is up",
        _ => {
            let name = subject.name;
            return Err(io::Error::other(format!(
                "cargo mutants for {name}: {status}"
            )));
        }
    };
    let (caught, missed, endless) = (found.caught, &found.missed, found.endless);
    let survived = missed.len();
    println!(
        "{}: {caught} mutants noticed, {endless} endless, {survived} survived{ended}",
        subject.name
    );
    for mutant in missed {
        println!("  {mutant}");
    }
    Ok(survived)
}

/// The notes of cargo-mutants.
#[derive(Debug, Default)]
struct Found {
    caught: usize,
    /// Mutants whose tests have not ended in time.
    endless: usize,
    /// Mutants that survived.
    missed: Vec<String>,
}

impl Found {
    /// Reads the lists that are in the folder.
    fn read(folder: &Path) -> io::Result<Self> {
        let lines = |name: &str| -> io::Result<Vec<String>> {
            match std::fs::read_to_string(folder.join(name)) {
                Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
                Err(error) => Err(error),
            }
        };
        Ok(Self {
            caught: lines("caught.txt")?.len(),
            endless: lines("timeout.txt")?.len(),
            missed: lines("missed.txt")?,
        })
    }

    /// Returns true if cargo-mutants exits with `code` at the end of a run with these notes.
    fn is_end(&self, code: i32) -> bool {
        const MISSED: i32 = 2;
        const TIMEOUT: i32 = 3;
        match code {
            0 => self.missed.is_empty(),
            MISSED => !self.missed.is_empty(),
            TIMEOUT => self.endless != 0,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_counted_and_an_unexpected_exit_is_no_end() {
        let folder = std::env::temp_dir().join(format!("fgraph-mutants-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let empty = Found::read(&folder).unwrap();
        assert!(empty.is_end(0) && !empty.is_end(2) && !empty.is_end(4));
        std::fs::write(folder.join("caught.txt"), "a\nb\n").unwrap();
        std::fs::write(folder.join("missed.txt"), "c: replace + with -\n").unwrap();
        let found = Found::read(&folder).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!((found.caught, found.endless), (2, 0));
        assert_eq!(found.missed, ["c: replace + with -"]);
        assert!(found.is_end(2) && !found.is_end(0) && !found.is_end(3));
    }
}
