//! Who ends recording in a process when the recorder is killed.

use std::io::{Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::attach;
use crate::error::Error;

/// How long the guard tries to end recording.
const PERSISTENCE: Duration = Duration::from_secs(300);

/// How long the guard waits after an attempt that failed.
const NAP: Duration = Duration::from_millis(50);

/// A process that waits for the end of this one, and then ends what this one has the agent do
/// elsewhere. Dropping it ends the guard.
#[derive(Debug)]
pub(super) struct Guard(Option<Child>);

impl Guard {
    /// Where there can be no other process there is no guard.
    pub(super) fn start(process: u32) -> Self {
        let mut command = Command::new("/proc/self/exe");
        let holder = std::process::id();
        command
            .args(["detach", "--no-config", "--guard", &holder.to_string()])
            .arg(process.to_string())
            // Ctrl-C is not for it.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self(command.spawn().ok())
    }

    /// Leaves it to the guard to end recording, and does not wait for that.
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
        // Who has ended meanwhile needs no word.
        let _ = child.stdin.take().map(|mut input| input.write_all(b"."));
        let _ = child.wait();
    }
}

/// What the guard does: a word in its standard input says that all is well, and its end that the
/// holder is gone, or could not end recording.
///
/// An attempt may fail and a later one succeed. The kernel closes the files of a process that is
/// killed before it releases the threads that the process traces, and nobody else can hold these
/// until then. In a busy process no thread may be fit to be held for seconds.
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
