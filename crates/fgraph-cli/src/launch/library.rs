//! The agent, as a file that programs can load.

use std::ffi::OsString;
use std::fs::{self, DirEntry, File, OpenOptions, Permissions};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read, Write};
use std::iter;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use fgraph_trace::place::{secure, user};
use flate2::read::DeflateDecoder;
use rustix::fs::{FlockOperation, StatVfsMountFlags, flock};
use tempfile::TempDir;

use crate::caches::caches;
use crate::directory;

/// The agent, which is compressed in this program.
const COMPRESSED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent.so.deflate"));
/// Length of the agent in bytes.
const LEN: &str = env!("AGENT_LEN");
/// Checksum of the agent, in hexadecimal.
pub(super) const HASH: &str = env!("AGENT_HASH");

/// The agent.
pub(super) static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut bytes = Vec::new();
    let read = DeflateDecoder::new(COMPRESSED).read_to_end(&mut bytes);
    read.expect("build.rs has compressed it");
    bytes
});

/// The first letters of names of files with agents.
const AGENT: &str = "fgraph-agent-";
/// The first letters of names of our directories.
const PREFIX: &str = "fgraph-";

/// The file with the agent.
///
/// It is in a directory to which only we can write and that no other user can replace, and stays
/// there: its name has a checksum of its content, so later runs find it. If there is no such place,
/// it is in a directory of its own that is removed together with this value. The next recorder
/// removes the directory of one that was killed.
#[derive(Debug)]
pub(crate) struct Library {
    path: PathBuf,
    /// Removes the directory.
    _own: Option<TempDir>,
    /// The lock of the directory in use, as long as it is open.
    _lock: Option<File>,
}

impl Library {
    /// Finds the file or makes it.
    pub(super) fn find() -> io::Result<Self> {
        let name = format!("{AGENT}{HASH}.so");
        let in_cache = || directory::in_caches(&caches()?);
        for directory in directory::at_run_time().chain(iter::once_with(in_cache).flatten()) {
            if fits_in_list(&directory)
                && allows_execution(&directory)
                && let Ok(path) = place(&directory, &name)
            {
                return Ok(Self {
                    path,
                    _own: None,
                    _lock: None,
                });
            }
        }
        let mut tried = Vec::new();
        for parent in directory::for_temporary_files() {
            match Self::make_in(&parent, &name) {
                Ok(made) => return Ok(made),
                Err(why) => tried.push(format!("{}: {why}", parent.display())),
            }
        }
        Err(io::Error::other(format!(
            "no directory can have the library that programs load; tried {}; set TMPDIR to one \
             that allows execution and that no other user can change",
            tried.join(", ")
        )))
    }

    /// Makes the file in a directory of its own in `parent`.
    fn make_in(parent: &Path, name: &str) -> io::Result<Self> {
        let parent =
            secure(parent).ok_or_else(|| io::Error::other("not there, or others can change it"))?;
        if !fits_in_list(&parent) {
            return Err(io::Error::other("a colon or a space is in its path"));
        }
        if !allows_execution(&parent) {
            return Err(io::Error::other("mounted noexec"));
        }
        remove_left_over(&parent);
        let own = tempfile::Builder::new()
            .prefix(PREFIX)
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(parent)?;
        let lock = File::open(own.path())?;
        is_locked(&lock);
        Ok(Self {
            path: place(own.path(), name)?,
            _own: Some(own),
            _lock: Some(lock),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// Locks a directory; returns true on success. The lock ends with the process, however it ends.
fn is_locked(directory: &File) -> bool {
    flock(directory, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Removes the directories of recorders that were killed.
fn remove_left_over(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_named = entry.file_name().as_bytes().starts_with(PREFIX.as_bytes());
        if is_named && holds_agent_only(&path) {
            let mut options = OpenOptions::new();
            let options = options.read(true).custom_flags(libc::O_NOFOLLOW);
            let is_left = options.open(&path).is_ok_and(|found| is_locked(&found));
            if is_left {
                let _ = fs::remove_dir_all(&path);
            }
        }
    }
}

/// Returns true if a directory is this user's, and contains only an agent.
fn holds_agent_only(directory: &Path) -> bool {
    let is_ours =
        fs::symlink_metadata(directory).is_ok_and(|found| found.is_dir() && found.uid() == user());
    let Some(entries) = is_ours.then(|| fs::read_dir(directory).ok()).flatten() else {
        return false;
    };
    let names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    let is_agent = |name: &OsString| name.as_bytes().starts_with(AGENT.as_bytes());
    !names.is_empty() && names.iter().all(is_agent)
}

/// Returns true if the variable with the library, which is a list, can name a file in the
/// directory.
fn fits_in_list(directory: &Path) -> bool {
    let path = directory.as_os_str().as_bytes();
    !path.iter().any(|byte| b": ".contains(byte))
}

fn allows_execution(directory: &Path) -> bool {
    let found = rustix::fs::statvfs(directory);
    found.is_ok_and(|found| !found.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

/// Returns the path of the file in this directory, and makes it if it does not exist.
fn place(directory: &Path, name: &str) -> io::Result<PathBuf> {
    let path = directory.join(name);
    if has_agent(&path).unwrap_or(false) {
        return Ok(path);
    }
    // Other processes never find an incomplete file.
    let half = directory.join(format!("{name}.{}", std::process::id()));
    let write = || {
        // A file of a process with our id that was killed.
        let _ = fs::remove_file(&half);
        let mut options = OpenOptions::new();
        let mut file: File = options
            .write(true)
            .create_new(true)
            .mode(0o700)
            .open(&half)?;
        file.write_all(&BYTES)?;
        fs::rename(&half, &path)
    };
    write().inspect_err(|_| _ = fs::remove_file(&half))?;
    remove_old(directory, SystemTime::now());
    Ok(path)
}

/// Removes agents of other builds that are too old to be in use.
fn remove_old(directory: &Path, now: SystemTime) {
    const OLD: Duration = Duration::from_secs(30 * 24 * 3600);
    let is_old = |file: &DirEntry| {
        let age = now.duration_since(file.metadata().ok()?.modified().ok()?);
        Some(age.ok()? > OLD)
    };
    for file in fs::read_dir(directory).into_iter().flatten().flatten() {
        let is_agent = file.file_name().as_bytes().starts_with(AGENT.as_bytes());
        if is_agent && is_old(&file) == Some(true) {
            let _ = fs::remove_file(file.path());
        }
    }
}

/// Returns true if a file is the agent, by length and checksum.
fn has_agent(path: &Path) -> io::Result<bool> {
    let mut options = OpenOptions::new();
    let options = options
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let mut file = options.open(path)?;
    if file.metadata()?.len().to_string() != LEN {
        return Ok(false);
    }
    let mut hasher = DefaultHasher::new();
    // Allocating memory for all of it would take longer than reading it.
    let mut part = vec![0; 1 << 16];
    loop {
        let len = file.read(&mut part)?;
        if len == 0 {
            return Ok(format!("{:016x}", hasher.finish()) == HASH);
        }
        hasher.write(&part[..len]);
    }
}
