//! Programs that a chore runs, and what they print.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Exit code of `timeout` when it had to kill the program.
const TIMED_OUT: i32 = 124;

/// Runs a command and returns what it prints. Fails with the last line that it prints if it fails.
pub(crate) fn succeed(command: &mut Command) -> io::Result<String> {
    let output = command.output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    if output.status.success() {
        return Ok(out);
    }
    let last = |text: &str| {
        text.lines()
            .rfind(|line| !line.is_empty())
            .map(str::to_owned)
    };
    let reason = last(&err).or_else(|| last(&out)).unwrap_or_default();
    let program = command.get_program().display();
    Err(io::Error::other(format!(
        "{program}: {}: {reason}",
        output.status
    )))
}

/// Returns a command that is killed after these seconds, with all its processes.
pub(crate) fn bounded(seconds: u32, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("timeout");
    let seconds = seconds.to_string();
    command.args(["--kill-after=10", &seconds]).arg(program);
    command
}

/// Result of a command.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) took: Duration,
    code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Done {
    pub(crate) fn of(command: &mut Command) -> io::Result<Self> {
        let start = Instant::now();
        let output = command.stdin(Stdio::null()).output()?;
        Ok(Self {
            took: start.elapsed(),
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// Returns why the result is a failure, and the end of its output.
    pub(crate) fn fault(&self) -> Option<String> {
        let what = match self.code {
            Some(0) => return None,
            Some(TIMED_OUT) => "took too long".to_owned(),
            Some(code) => format!("exits with code {code}"),
            None => "is killed".to_owned(),
        };
        let last = |text: &str| {
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(10)..].join("\n")
        };
        Some(format!(
            "{what}\n{}\n{}",
            last(&self.stdout),
            last(&self.stderr)
        ))
    }

    /// Fails if the result is a failure.
    pub(crate) fn check(self) -> io::Result<Self> {
        self.fault()
            .map_or(Ok(self), |fault| Err(io::Error::other(fault)))
    }
}

/// A program that runs. It is killed if this ends before it.
#[derive(Debug)]
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns true if a program of this name is in one of the directories of `PATH`.
pub(crate) fn is_there(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| directory.join(name).is_file())
}

/// Counts of the programs that preloaded the library of `xtask/preload`, an object of each.
#[derive(Debug, Default)]
pub(crate) struct Counted(pub(crate) Vec<Value>);

impl Counted {
    /// Takes the counts from the file in `FGRAPH_OUT`, if there is one, and removes it.
    pub(crate) fn take(path: &Path) -> io::Result<Self> {
        let text = fs::read_to_string(path).unwrap_or_default();
        // So that the next programs begin another one.
        let _ = fs::remove_file(path);
        let objects = text.lines().map(serde_json::from_str);
        Ok(Self(objects.collect::<Result<_, _>>()?))
    }

    /// Returns the sum of a count; `None` if a program has not reported it, or none has reported.
    pub(crate) fn sum(&self, name: &str) -> Option<u64> {
        let counts = self.0.iter().map(|object| object[name].as_u64());
        counts.sum::<Option<u64>>().filter(|_| !self.0.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_all_programs_add_up() {
        let path = tempfile::NamedTempFile::new().unwrap();
        fs::write(path.path(), "{\"a\":1,\"b\":2}\n{\"a\":4}\n").unwrap();
        let counted = Counted::take(path.path()).unwrap();
        assert_eq!(counted.sum("a"), Some(5));
        assert_eq!(counted.sum("b"), None);
        assert_eq!(Counted::take(path.path()).unwrap().sum("a"), None);
    }
}
