//! The victim as a process: built in two ways, run for a bounded time.

use std::fmt;
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::cargo;

/// How the victim ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// With an exit code of its own.
    Exited(i32),
    /// A signal killed it.
    Killed(i32),
    /// It did not end in time, and was killed for that.
    Hung(Duration),
}

impl End {
    fn of(status: ExitStatus) -> Self {
        match status.code() {
            Some(code) => Self::Exited(code),
            None => Self::Killed(status.signal().unwrap_or(0)),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exited with code {code}"),
            Self::Killed(signal) => {
                let name = match signal {
                    4 => "SIGILL",
                    5 => "SIGTRAP",
                    6 => "SIGABRT",
                    7 => "SIGBUS",
                    8 => "SIGFPE",
                    11 => "SIGSEGV",
                    _ => "another",
                };
                write!(f, "was killed by signal {signal} ({name})")
            }
            Self::Hung(limit) => write!(
                f,
                "was still running after {} s, and killed",
                limit.as_secs()
            ),
        }
    }
}

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

/// The command, for whoever wants to repeat it.
pub(crate) fn command_line(program: &Path, args: &[String]) -> String {
    format!("{} {}", program.display(), args.join(" "))
}

/// Runs the victim for at most `limit`; returns what it prints, and how it ended.
pub(crate) fn run(program: &Path, args: &[String], limit: Duration) -> io::Result<(String, End)> {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut stdout = child.stdout.take().expect("piped");
    // Read while it runs, so that it never waits for us.
    let reader = thread::spawn(move || {
        let mut output = Vec::new();
        stdout.read_to_end(&mut output).map(|_| output)
    });
    let start = Instant::now();
    let end = loop {
        if let Some(status) = child.try_wait()? {
            break End::of(status);
        }
        if start.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            break End::Hung(limit);
        }
        thread::sleep(Duration::from_millis(20));
    };
    let output = reader.join().expect("reading does not panic")?;
    Ok((String::from_utf8_lossy(&output).into_owned(), end))
}
