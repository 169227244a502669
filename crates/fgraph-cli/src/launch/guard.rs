//! Who ends recording in a process when the recorder is killed.

use std::io::{Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use super::attach;
use crate::error::Error;

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
/// holder is gone.
pub(super) fn guard(process: u32, holder: u32) -> Result<(), Error> {
    let word = std::io::stdin().read(&mut [0]);
    match word {
        Ok(0) => attach::end(process, holder),
        _ => Ok(()),
    }
}
