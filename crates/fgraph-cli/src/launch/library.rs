//! The agent, as a file that programs can load.

use std::ffi::CString;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

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
        // SAFETY: it only asks.
        let user = unsafe { libc::geteuid() };
        let given = std::env::var_os("XDG_RUNTIME_DIR").filter(|it| !it.is_empty());
        let usual = Some(format!("/run/user/{user}").into());
        for directory in [given, usual].into_iter().flatten() {
            let directory = Path::new(&directory).join("fgraph");
            if is_ours(&directory, user)
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

/// Whether a directory is there, or could be made, of which only we have the rights, and whose
/// files can be executed.
fn is_ours(directory: &Path, user: u32) -> bool {
    let _ = DirBuilder::new().mode(0o700).create(directory);
    let Ok(metadata) = fs::symlink_metadata(directory) else {
        return false;
    };
    let is_private = metadata.mode() & 0o077 == 0 && metadata.uid() == user;
    metadata.is_dir() && is_private && allows_execution(directory)
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
