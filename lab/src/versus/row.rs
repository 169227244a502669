//! Rows of the comparison, and how they are measured.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use fgraph_needs::Missing;

/// Number of measurements of each row.
pub(super) const ROUNDS: usize = 5;

/// Number of calls in a run.
pub(super) const CALLS: u64 = 1_000_000;

/// Bytes that recorders may keep in memory: more than a run makes, so that recorders that do not
/// wait for their writer lose nothing.
pub(super) const BUFFER: u64 = 32 << 20;

/// One way of watching.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// Number of calls in a run.
    pub(super) calls: u64,
    /// Number of entries and returns that are seen of each call.
    pub(super) events: u64,
    /// Runs the program; or the reason why it cannot be run.
    pub(super) run: Result<Run, Missing>,
}

pub(super) type Run = Box<dyn Fn(u64) -> Result<Figures, Missing>>;

/// Kinds of rows, which are compared with those of their kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nobody watches, nor could.
    Plain,
    /// Nobody watches, but could.
    Off,
    /// Functions are called that do nothing, or add to a counter.
    Empty,
    /// When each call began and ended is recorded.
    Recorded,
    /// Times are added up.
    Summed,
}

/// Figures of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Figures {
    /// Nanoseconds per call.
    pub(super) ns: f64,
    /// Bytes of the files that it wrote.
    pub(super) bytes: Option<u64>,
    /// Number of known entries and returns.
    pub(super) events: Option<u64>,
}

impl Row {
    /// One whose `run` needs what is `found`.
    pub(super) fn new<T: 'static>(
        name: &'static str,
        kind: Kind,
        found: Result<T, Missing>,
        run: impl Fn(&T, u64) -> Result<Figures, Missing> + 'static,
    ) -> Self {
        Self {
            name,
            kind,
            calls: CALLS,
            events: 2,
            run: found.map(|found| -> Run { Box::new(move |calls| run(&found, calls)) }),
        }
    }

    /// The same with another number of calls.
    pub(super) fn calls(self, calls: u64) -> Self {
        Self { calls, ..self }
    }
}

/// Runs `command`, which runs the program, and reads what that prints: a time, and perhaps a number
/// of events.
pub(super) fn measure(command: &mut Command) -> Result<Figures, Missing> {
    let text = output(command)?;
    let wrong = || Missing::new(format_args!("{command:?} printed {text:?}"));
    // Others may print lines of their own.
    let mut numbers = text.lines().filter_map(|line| line.trim().parse().ok());
    let ns = numbers.next().ok_or_else(wrong)?;
    Ok(Figures {
        ns,
        bytes: None,
        events: numbers.next().map(|events| events as u64),
    })
}

/// Returns the output of `command`, unless it fails.
pub(super) fn output(command: &mut Command) -> Result<String, Missing> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Missing::new(format_args!("{command:?}: {error}")))?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        let last = error.lines().rfind(|line| !line.trim().is_empty());
        let last = last.unwrap_or("no message");
        return Err(Missing::new(format_args!("{}: {last}", output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the bytes of the files in `directory` and below it whose names `is_meant` likes.
pub(super) fn size(directory: &Path, is_meant: &dyn Fn(&str) -> bool) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        if metadata.is_dir() {
            bytes += size(&entry.path(), is_meant)?;
        } else if is_meant(&entry.file_name().to_string_lossy()) {
            bytes += metadata.len();
        }
    }
    Ok(bytes)
}

/// An error of this machine, as what is missing.
pub(super) fn failed(error: impl std::fmt::Display) -> Missing {
    Missing::new(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(text: &str) -> Result<Figures, Missing> {
        measure(Command::new("printf").args(["%s", text]))
    }

    #[test]
    fn a_time_and_a_number_of_events_are_read() {
        let figures = |events| Figures {
            ns: 1.5,
            bytes: None,
            events,
        };
        assert_eq!(printed("1.500\n").unwrap(), figures(None));
        assert_eq!(printed("hello\n1.500\n20\n").unwrap(), figures(Some(20)));
        assert!(printed("hello\n").is_err());
    }

    #[test]
    fn a_program_that_fails_is_missing_with_its_last_words() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo first >&2; echo last >&2; echo >&2; exit 3"]);
        let missing = output(&mut command).unwrap_err().to_string();
        assert_eq!(missing, "exit status: 3: last");
    }
}
