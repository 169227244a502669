//! The agent, as a file that programs can load.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::directory;

/// The agent, which this program carries inside.
pub(super) const BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent.so"));

/// The file with the agent.
///
/// It is in a directory that only we can write to, and stays there: its name has a checksum of what
/// is in it, so later runs find it. Where there is no such place, it is in a directory of its own
/// that goes with this value.
#[derive(Debug)]
pub(crate) struct Library {
    path: PathBuf,
    /// Removes the directory.
    _own: Option<TempDir>,
}

impl Library {
    /// Finds the file or makes it.
    pub(super) fn find() -> io::Result<Self> {
        let name = format!("fgraph-agent-{}.so", env!("AGENT_HASH"));
        for directory in directory::at_run_time() {
            if allows_execution(&directory)
                && let Ok(path) = place(&directory, &name)
            {
                return Ok(Self { path, _own: None });
            }
        }
        let private = Permissions::from_mode(0o700);
        let own = tempfile::Builder::new()
            .prefix("fgraph-")
            .permissions(private)
            .tempdir()?;
        if !allows_execution(own.path()) {
            let what = "there is no directory from which programs may load a library of ours";
            return Err(io::Error::other(what));
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
    let Ok(path) = CString::new(directory.as_os_str().as_bytes()) else {
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
    if fs::metadata(&path).is_ok_and(|file| file.len() == BYTES.len() as u64) {
        return Ok(path);
    }
    // Others never find half of it.
    let half = directory.join(format!("{name}.{}", std::process::id()));
    let write = || {
        let mut options = OpenOptions::new();
        let mut file: File = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o700)
            .open(&half)?;
        file.write_all(BYTES)?;
        fs::rename(&half, &path)
    };
    write().inspect_err(|_| _ = fs::remove_file(&half))?;
    Ok(path)
}
