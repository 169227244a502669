//! Programs that a chore runs, and what they print.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Exit code of `timeout` when it had to kill the program.
pub const TIMED_OUT: i32 = 124;

/// Runs a command and returns what it prints. Fails with the last line that it prints if it fails.
pub fn succeed(command: &mut Command) -> io::Result<String> {
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
pub fn bounded(seconds: u32, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("timeout");
    let seconds = seconds.to_string();
    command.args(["--kill-after=10", &seconds]).arg(program);
    command
}

/// Result of a command.
#[derive(Debug)]
pub struct Done {
    /// Time from its start to its end.
    pub took: Duration,
    /// The exit code; none of a program that a signal has killed.
    pub code: Option<i32>,
    /// Its output.
    pub stdout: String,
    /// Its error output.
    pub stderr: String,
}

impl Done {
    /// Runs a command without input.
    pub fn of(command: &mut Command) -> io::Result<Self> {
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
    pub fn fault(&self) -> Option<String> {
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
    pub fn check(self) -> io::Result<Self> {
        self.fault()
            .map_or(Ok(self), |fault| Err(io::Error::other(fault)))
    }
}

/// A program that runs. It is killed if this ends before it, with the process group that it leads.
#[derive(Debug)]
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let group = format!("-{}", self.0.id());
            let mut kill = Command::new("kill");
            let _ = kill
                .args(["-KILL", "--", &group])
                .stderr(Stdio::null())
                .status();
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// Starts redis-server in `directory` and waits until it answers at the socket there, which is
/// returned. `command` is the server, or a command that runs one.
pub fn redis(command: &mut Command, directory: &Path) -> io::Result<(Running, PathBuf)> {
    let socket = directory.join("redis.sock");
    command
        .args(["--port", "0", "--save", "", "--unixsocket"])
        .arg(&socket);
    command
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let server = Running(command.spawn()?);
    let until = Instant::now() + Duration::from_secs(60);
    while UnixStream::connect(&socket).is_err() {
        if Instant::now() >= until {
            return Err(io::Error::other("redis-server does not answer"));
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok((server, socket))
}

/// Records a running process by the command with these options. Fails with its last words.
pub fn attach(fgraph: &Path, process: u32, options: &[&str], recording: &Path) -> io::Result<()> {
    let mut record = Command::new(fgraph);
    record.args(["record", "--no-source", "-p", &process.to_string()]);
    succeed(record.args(options).arg("-o").arg(recording)).map(drop)
}

/// Writes a source into `directory` and compiles it with these options. Returns the program.
pub fn compile(
    compiler: &Path,
    directory: &Path,
    (name, text): (&str, &str),
    options: &[&str],
) -> io::Result<PathBuf> {
    let source = directory.join(name);
    fs::write(&source, text)?;
    let output = source.with_extension("out");
    let mut command = Command::new(compiler);
    command.args(["-O1", "-o"]).arg(&output).arg(&source);
    match command.args(options).status()?.success() {
        true => Ok(output),
        false => Err(io::Error::other(format!("{name} does not compile"))),
    }
}

/// Returns true if a program of this name is in one of the directories of `PATH`.
pub fn is_there(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| directory.join(name).is_file())
}

/// Counts of the programs that preloaded the library of `xtask/preload`, an object of each.
#[derive(Debug, Default)]
pub struct Counted(pub Vec<Value>);

impl Counted {
    /// Takes the counts from the file in `FGRAPH_OUT`, if there is one, and removes it.
    pub fn take(path: &Path) -> io::Result<Self> {
        let text = fs::read_to_string(path).unwrap_or_default();
        // So that the next programs begin another one.
        let _ = fs::remove_file(path);
        let objects = text.lines().map(serde_json::from_str);
        Ok(Self(objects.collect::<Result<_, _>>()?))
    }

    /// Returns the sum of a count; `None` if a program has not reported it, or none has reported.
    pub fn sum(&self, name: &str) -> Option<u64> {
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
