//! The end of a program that runs for a bounded time.

use std::fmt;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

/// End of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With an exit code of its own.
    Exited(i32),
    /// A signal killed it.
    Killed(i32),
    /// It did not end in this time, and was killed.
    Hung(Duration),
}

impl End {
    /// Converts the code, or the negative number of the signal.
    #[must_use]
    pub fn from_number(number: i32) -> Self {
        if number < 0 {
            Self::Killed(-number)
        } else {
            Self::Exited(number)
        }
    }

    /// Converts the status of a program that has ended.
    #[must_use]
    pub fn of(status: ExitStatus) -> Self {
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
            Self::Killed(signal) => {
                let name = match *signal {
                    libc::SIGILL => " (SIGILL)",
                    libc::SIGTRAP => " (SIGTRAP)",
                    libc::SIGABRT => " (SIGABRT)",
                    libc::SIGBUS => " (SIGBUS)",
                    libc::SIGFPE => " (SIGFPE)",
                    libc::SIGSEGV => " (SIGSEGV)",
                    _ => "",
                };
                write!(f, "is killed by signal {signal}{name}")
            }
            Self::Hung(limit) => write!(f, "hangs: it runs for more than {} s", limit.as_secs()),
        }
    }
}

/// Waits for a program that leads a process group for at most `limit`, and kills the group then.
///
/// # Errors
///
/// Fails if there is no such program.
pub fn wait(child: &mut Child, limit: Duration) -> io::Result<End> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(End::of(status));
        }
        if start.elapsed() > limit {
            let group = format!("-{}", child.id());
            Command::new("kill")
                .args(["-KILL", "--", &group])
                .status()?;
            child.wait()?;
            return Ok(End::Hung(limit));
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}
