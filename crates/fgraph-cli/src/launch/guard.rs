//! A process that ends recording in the traced process if the recorder is killed.

use std::io::{Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::attach;
use crate::error::Error;

/// The time for which the guard tries to end recording.
const PERSISTENCE: Duration = Duration::from_secs(300);

/// The time that the guard waits after a failed attempt.
const NAP: Duration = Duration::from_millis(50);

/// A process that waits for the end of this one, and then ends the work that this one has started
/// in agents. Dropping it ends the guard.
#[derive(Debug)]
pub(super) struct Guard(Option<Child>);

impl Guard {
    /// If no process can be made, there is no guard.
    pub(super) fn start(process: u32) -> Self {
        let mut command = Command::new("/proc/self/exe");
        let holder = std::process::id();
        command
            .args(["detach", "--no-config", "--guard", &holder.to_string()])
            .arg(process.to_string())
            // It must not get Ctrl-C.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self(command.spawn().ok())
    }

    /// Leaves it to the guard to end recording, without waiting.
    pub(super) fn take_over(mut self) {
        // The guard reads the end of its standard input, and no word.
        drop(self.0.take());
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(mut child) = self.0.take() else {
            return;
        };
        // A guard that has ended meanwhile needs no word.
        let _ = child.stdin.take().map(|mut input| input.write_all(b"."));
        let _ = child.wait();
    }
}

/// Does the work of the guard. A word in its standard input means that all is well; the end of the
/// input means that the holder is gone, or could not end recording.
///
/// An attempt may fail and a later one succeed. The kernel closes the files of a process that is
/// killed before it releases the threads that the process traces, and no other process can trace
/// these until then. In a busy process it may take seconds until a thread can be stopped.
pub(super) fn guard(process: u32, holder: u32) -> Result<(), Error> {
    let word = std::io::stdin().read(&mut [0]);
    if !matches!(word, Ok(0)) {
        return Ok(());
    }
    let until = Instant::now() + PERSISTENCE;
    loop {
        let ended = attach::end(process, holder);
        if ended.is_ok() || Instant::now() >= until {
            return ended;
        }
        thread::sleep(NAP);
    }
}
