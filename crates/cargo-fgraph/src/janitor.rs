//! Removes the worktrees of a comparison at its end, whatever that is.
//!
//! The janitor is a process of this program, in a process group of its own, so that Ctrl-C does not
//! reach it:
//!
//! ```text
//!   cargo fgraph diff                     cargo-fgraph --janitor LOCK
//!     starts the janitor                    locks the file LOCK, and says so
//!     names a worktree, then adds it        reads the name
//!     ends, or is killed                    reads the end of its input: removes the worktrees
//! ```

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};

use rustix::fs::{FlockOperation, flock};

use crate::error::Error;
use crate::git;

/// First argument of this program as the janitor. The file that it locks follows.
const FLAG: &str = "--janitor";

/// Answers of the janitor.
const WAITS: &str = "waits";
const HAS_LOCKED: &str = "has locked";

/// Returns true if this process is the janitor.
pub(crate) fn is_called(args: &[OsString]) -> bool {
    args.first().is_some_and(|first| first == FLAG)
}

/// Waits for the end of the comparison, and removes its worktrees.
///
/// # Errors
///
/// Fails if the file cannot be locked.
pub(crate) fn run(args: &[OsString]) -> Result<ExitCode, Error> {
    let [_, lock] = args else {
        return Err(Error::NoCommand);
    };
    let lock = Path::new(lock);
    let failed = |error| Error::File(lock.to_owned(), error);
    let file = File::create(lock).map_err(failed)?;
    let mut out = io::stdout();
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        writeln!(out, "{WAITS}").map_err(failed)?;
        flock(&file, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
    }
    writeln!(out, "{HAS_LOCKED}").map_err(failed)?;
    let mut names = Vec::new();
    // Worktrees that were named are removed even if the rest cannot be read.
    let _ = io::stdin().read_to_end(&mut names);
    let paths: Vec<&Path> = (names.split(|&byte| byte == 0))
        .map(|name| Path::new(OsStr::from_bytes(name)))
        .collect();
    // The worktree of a submodule comes after the one that it is in.
    for pair in paths.chunks_exact(2).rev() {
        git::remove(pair[0], pair[1]);
    }
    Ok(ExitCode::SUCCESS)
}

/// The janitor, seen from the comparison. It has done its work when this value is dropped.
#[derive(Debug)]
pub(crate) struct Janitor {
    process: Child,
    /// Open as long as this process runs.
    names: Option<ChildStdin>,
}

impl Janitor {
    /// Starts the janitor. Waits while another comparison has locked the file.
    ///
    /// # Errors
    ///
    /// Fails if it does not start.
    pub(crate) fn start(lock: &Path) -> Result<Self, Error> {
        let failed = |error| Error::File(lock.to_owned(), error);
        let this = env::current_exe().map_err(failed)?;
        let mut process = Command::new(this)
            .arg(FLAG)
            .arg(lock)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let names = process.stdin.take();
        let answers = process.stdout.take().map(BufReader::new);
        let janitor = Self { process, names };
        for answer in answers.into_iter().flat_map(|answers| answers.lines()) {
            match answer.map_err(failed)?.as_str() {
                HAS_LOCKED => return Ok(janitor),
                _ => eprintln!("cargo-fgraph: waiting for another comparison here"),
            }
        }
        Err(failed(io::Error::other("it cannot be locked")))
    }

    /// Names a worktree that the janitor removes in the end.
    ///
    /// # Errors
    ///
    /// Fails if the janitor has ended.
    pub(crate) fn will_remove(&mut self, root: &Path, tree: &Path) -> Result<(), Error> {
        let Some(names) = &mut self.names else {
            return Ok(());
        };
        let mut pair = Vec::new();
        for path in [root, tree] {
            pair.extend_from_slice(path.as_os_str().as_bytes());
            pair.push(0);
        }
        let written = names.write_all(&pair);
        written.map_err(|error| Error::File(tree.to_owned(), error))
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        self.names = None;
        let _ = self.process.wait();
    }
}
