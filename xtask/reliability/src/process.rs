//! Runs a program for a bounded time.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use fgraph_chores::end::{End, wait};

/// Longest time of a hostile program: much more than any takes, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(240);

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
    let end = wait(&mut child, LIMIT)?;
    let read = |path| fs::read(path).map(|text| String::from_utf8_lossy(&text).into_owned());
    Ok(Done {
        end,
        stdout: read(stdout)?,
        stderr: read(stderr)?,
    })
}
