//! `cargo xtask mutants` checks that unit tests notice changes to the tested code.
//!
//! cargo-mutants changes one place at a time in a copy of the workspace and runs the tests of the
//! changed crate. A mutant that no test notices survives: a test is missing, or the code is not
//! needed.

use std::io;
use std::process::Command;

use clap::Args;
use clap::builder::PossibleValuesParser;
use fgraph_chores::cargo;

/// Options of the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Try only the K-th of N equal parts of the mutants, counted from 0
    #[arg(long, value_name = "K/N")]
    shard: Option<String>,
    /// Only this package, or this part of one
    #[arg(long, value_name = "PACKAGE",
        value_parser = PossibleValuesParser::new(SUBJECTS.map(|subject| subject.name)))]
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
    tests: &'static str,
}

/// The code that is tested without a process being patched.
const SUBJECTS: [Subject; 5] = [
    Subject {
        name: "fgraph-core",
        package: "fgraph-core",
        files: &["crates/fgraph-core/src/**/*.rs"],
        tests: "--lib --test model",
    },
    Subject {
        name: "fgraph-x86_64",
        package: "fgraph-x86_64",
        files: &[
            "crates/fgraph-x86_64/src/analyze/**/*.rs",
            "crates/fgraph-x86_64/src/emit/unwind.rs",
        ],
        tests: "--lib -- analyze emit",
    },
    Subject {
        name: "fgraph-symbols",
        package: "fgraph-symbols",
        files: &["crates/fgraph-symbols/src/**/*.rs"],
        tests: "--all-features --lib",
    },
    Subject {
        name: "fgraph-trace-pairing",
        package: "fgraph-trace",
        files: &["crates/fgraph-trace/src/pairing.rs"],
        tests: "--lib pairing",
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
        tests: "--test it",
    },
];

/// Seconds that the tests of one mutant may take: more is an endless loop.
const TEST_SECONDS: &str = "120";

/// Exit code of cargo-mutants if none survives, but some make tests endless.
const ENDLESS: i32 = 3;

/// Tries the mutants by cargo-mutants, which prints those that survive and leaves its notes under
/// `target/mutants`. Fails if one survives, or if cargo-mutants is not installed.
pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let mut is_good = true;
    let wanted = options.package.as_deref();
    let is_wanted = |subject: &&Subject| wanted.is_none_or(|name| name == subject.name);
    for subject in SUBJECTS.iter().filter(is_wanted) {
        let notes = cargo::workspace().join("target/mutants").join(subject.name);
        std::fs::create_dir_all(&notes)?;
        let mut command = Command::new(cargo::program());
        command.args([
            "mutants",
            "--package",
            subject.package,
            "--timeout",
            TEST_SECONDS,
        ]);
        command.args(subject.files.iter().flat_map(|file| ["--file", file]));
        command.args(options.shard.iter().flat_map(|shard| ["--shard", shard]));
        command.arg("--output").arg(&notes);
        command.arg("--").args(subject.tests.split(' '));
        let status = command.current_dir(cargo::workspace()).status()?;
        is_good &= matches!(status.code(), Some(0 | ENDLESS));
    }
    Ok(is_good)
}
