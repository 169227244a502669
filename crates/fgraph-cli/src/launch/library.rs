//! The agent, as a file that programs can load.

use std::ffi::CString;
use std::fs::{self, DirEntry, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::iter;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tempfile::TempDir;

use super::directory;
use crate::caches::caches;

/// The agent, which this program carries inside.
pub(super) const BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent.so"));

/// Begins the names of files with agents.
const PREFIX: &str = "fgraph-agent-";

/// The file with the agent.
///
/// It is in a directory that only we can write to and that no other user can replace, and stays
/// there: its name has a checksum of what is in it, so later runs find it. Where there is no such
/// place, it is in a directory of its own that goes with this value.
#[derive(Debug)]
pub(crate) struct Library {
    path: PathBuf,
    /// Removes the directory.
    _own: Option<TempDir>,
}

impl Library {
    /// Finds the file or makes it.
    pub(super) fn find() -> io::Result<Self> {
        let name = format!("{PREFIX}{}.so", env!("AGENT_HASH"));
        let in_cache = || directory::in_caches(&caches()?);
        for directory in directory::at_run_time().chain(iter::once_with(in_cache).flatten()) {
            if allows_execution(&directory)
                && let Ok(path) = place(&directory, &name)
            {
                return Ok(Self { path, _own: None });
            }
        }
        let private = Permissions::from_mode(0o700);
        let none = || {
            let what = "there is no directory from which programs may load a library of ours \
                        and that no other user can change";
            io::Error::other(what)
        };
        let parent = directory::temporary().ok_or_else(none)?;
        let own = tempfile::Builder::new()
            .prefix("fgraph-")
            .permissions(private)
            .tempdir_in(parent)?;
        if !allows_execution(own.path()) {
            return Err(none());
        }
        Ok(Self {
            path: place(own.path(), &name)?,
            _own: Some(own),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

fn allows_execution(directory: &Path) -> bool {
    let path = directory.as_os_str().as_bytes();
    // The variable that names the library is a list, with these between the files.
    if path.iter().any(|byte| b": ".contains(byte)) {
        return false;
    }
    let Ok(path) = CString::new(path) else {
        return false;
    };
    // SAFETY: zeros are such a value; it is filled in. The path is a string.
    unsafe {
        let mut found: libc::statvfs = std::mem::zeroed();
        libc::statvfs(path.as_ptr(), &mut found) == 0 && found.f_flag & libc::ST_NOEXEC == 0
    }
}

/// The path of the file in this directory, which is made if it is not there.
fn place(directory: &Path, name: &str) -> io::Result<PathBuf> {
    let path = directory.join(name);
    if has_agent(&path).unwrap_or(false) {
        return Ok(path);
    }
    // Others never find half of it.
    let half = directory.join(format!("{name}.{}", std::process::id()));
    let write = || {
        // Of a process that had our number, and was killed.
        let _ = fs::remove_file(&half);
        let mut options = OpenOptions::new();
        let mut file: File = options
            .write(true)
            .create_new(true)
            .mode(0o700)
            .open(&half)?;
        file.write_all(BYTES)?;
        fs::rename(&half, &path)
    };
    write().inspect_err(|_| _ = fs::remove_file(&half))?;
    remove_old(directory, SystemTime::now());
    Ok(path)
}

/// Removes agents of other builds that were made so long ago that nothing runs with them.
fn remove_old(directory: &Path, now: SystemTime) {
    const OLD: Duration = Duration::from_secs(30 * 24 * 3600);
    let is_old = |file: &DirEntry| {
        let age = now.duration_since(file.metadata().ok()?.modified().ok()?);
        Some(age.ok()? > OLD)
    };
    for file in fs::read_dir(directory).into_iter().flatten().flatten() {
        let is_agent = file.file_name().to_string_lossy().starts_with(PREFIX);
        if is_agent && is_old(&file) == Some(true) {
            let _ = fs::remove_file(file.path());
        }
    }
}

/// True if a file is the agent, byte for byte.
fn has_agent(path: &Path) -> io::Result<bool> {
    let mut options = OpenOptions::new();
    let options = options
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path)?;
    let len = BYTES.len() as u64;
    if file.metadata()?.len() != len {
        return Ok(false);
    }
    let mut found = Vec::with_capacity(BYTES.len());
    file.take(len + 1).read_to_end(&mut found)?;
    Ok(found == BYTES)
}
