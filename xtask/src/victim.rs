//! The victim as a process: built in two ways, run for a bounded time.

use std::io::{self, Read};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use fgraph_chores::cargo;
use fgraph_chores::end::{End, wait};

const PACKAGE: &str = "fgraph-victim";
const LIBRARY: &str = "fgraph-victim-library";

/// Builds the victim with a NOP in each of its functions, by our own subcommand of cargo, in a
/// target directory of its own.
pub(crate) fn build_with_nops() -> io::Result<PathBuf> {
    let subcommand = cargo::build("cargo-fgraph")?;
    cargo::build_with(Command::new(subcommand).arg("build"), PACKAGE)
}

/// Builds the victim as cargo does.
pub(crate) fn build_without_nops() -> io::Result<PathBuf> {
    let mut builder = Command::new(cargo::program());
    cargo::build_with(builder.args(["build", "--features", "relocated"]), PACKAGE)
}

/// Builds the library that the victim loads, with or without NOPs.
pub(crate) fn build_library(has_nops: bool) -> io::Result<PathBuf> {
    let mut builder = if has_nops {
        Command::new(cargo::build("cargo-fgraph")?)
    } else {
        Command::new(cargo::program())
    };
    cargo::build_with(builder.arg("build"), LIBRARY)
}

/// Returns the command, for repeating it.
pub(crate) fn command_line(program: &Path, args: &[String]) -> String {
    format!("{} {}", program.display(), args.join(" "))
}

/// Runs the victim for at most `limit`; returns what it prints, and how it ended.
pub(crate) fn run(program: &Path, args: &[String], limit: Duration) -> io::Result<(String, End)> {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let mut stdout = child.stdout.take().expect("piped");
    // Read while it runs, so that it never waits for us.
    let reader = thread::spawn(move || {
        let mut output = Vec::new();
        stdout.read_to_end(&mut output).map(|_| output)
    });
    let end = wait(&mut child, limit)?;
    let output = reader.join().expect("reading does not panic")?;
    Ok((String::from_utf8_lossy(&output).into_owned(), end))
}
