//! Runs a program for a bounded time.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Much more than any program takes, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// End of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// With an exit code of its own.
    Exited(i32),
    /// A signal killed it.
    Killed(i32),
    /// It did not end in time.
    Hung,
}

impl End {
    /// Converts the code, or the negative number of the signal.
    pub(crate) fn from_number(number: i32) -> Self {
        if number < 0 {
            Self::Killed(-number)
        } else {
            Self::Exited(number)
        }
    }

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
            Self::Exited(code) => write!(f, "exits with code {code}"),
            Self::Killed(signal) => write!(f, "is killed by signal {signal}"),
            Self::Hung => write!(f, "hangs: it runs for more than {} s", LIMIT.as_secs()),
        }
    }
}

/// Result of a program.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) end: End,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a program in `directory`, which is made for it.
///
/// Its output goes to files, because processes that it leaves behind may hold a pipe open.
pub(crate) fn run(command: &mut Command, directory: &Path) -> io::Result<Done> {
    // Files of an earlier run.
    let _ = fs::remove_dir_all(directory);
    fs::create_dir_all(directory)?;
    let [stdout, stderr] = ["stdout", "stderr"].map(|name| directory.join(name));
    let mut child = command
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(File::create(&stdout)?)
        .stderr(File::create(&stderr)?)
        .process_group(0)
        .spawn()?;
    let end = wait(&mut child)?;
    let read = |path| fs::read(path).map(|text| String::from_utf8_lossy(&text).into_owned());
    Ok(Done {
        end,
        stdout: read(stdout)?,
        stderr: read(stderr)?,
    })
}

fn wait(child: &mut Child) -> io::Result<End> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(End::of(status));
        }
        if start.elapsed() > LIMIT {
            // Kills all its processes too.
            let kill = format!("kill -9 -{}", child.id());
            Command::new("sh").args(["-c", &kill]).status()?;
            child.wait()?;
            return Ok(End::Hung);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}
