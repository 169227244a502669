//! Directories to which only this user has access.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, Metadata};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use fgraph_trace::place::{entry, open_directory, secure, user};
use rustix::process::{Resource, getrlimit};

/// Returns this user's private runtime directories, and makes missing ones: the one in
/// `XDG_RUNTIME_DIR`, otherwise in the usual place.
pub(crate) fn at_run_time() -> impl Iterator<Item = PathBuf> {
    let given = std::env::var_os("XDG_RUNTIME_DIR").filter(|it| !it.is_empty());
    let usual = Some(format!("/run/user/{}", user()).into());
    let all = [given, usual].into_iter().flatten();
    all.filter_map(|directory| own(Path::new(&directory), "fgraph"))
}

/// Returns the same as [`at_run_time`], and finally a directory where all users have theirs.
pub(crate) fn anywhere() -> impl Iterator<Item = PathBuf> {
    let shared = temporary().and_then(|parent| own(&parent, &format!("fgraph-{}", user())));
    at_run_time().chain(shared)
}

/// Returns a directory for temporary files in which no other user can replace ours.
fn temporary() -> Option<PathBuf> {
    for_temporary_files().find_map(|directory| secure(&directory))
}

/// Returns the directories for temporary files, whoever may write to them.
pub(crate) fn for_temporary_files() -> impl Iterator<Item = PathBuf> {
    let given = std::env::temp_dir();
    let others = ["/tmp", "/var/tmp"].map(PathBuf::from);
    let others = others.into_iter().filter({
        let given = given.clone();
        move |other| *other != given
    });
    std::iter::once(given).chain(others)
}

/// The name of our directory in a cache directory.
pub(crate) const CACHES: &str = "fgraph";

/// Returns the private directory in a cache directory, and makes it if it does not exist.
pub(crate) fn in_caches(caches: &Path) -> Option<PathBuf> {
    own(&make(caches)?, CACHES)
}

/// Returns the path of a directory without links that no other user can change, and makes it if it
/// does not exist.
pub(crate) fn make(directory: &Path) -> Option<PathBuf> {
    secure(directory).or_else(|| {
        // In another user's directory nothing is made.
        let new = secure(directory.parent()?)?.join(directory.file_name()?);
        DirBuilder::new().mode(0o700).create(&new).ok()?;
        secure(&new)
    })
}

/// Returns the directory of this name to which only we have access, and makes it if it does not
/// exist. Returns `None` if another user has access to it, or could replace it.
pub(crate) fn own(parent: &Path, name: &str) -> Option<PathBuf> {
    let parent = secure(parent)?;
    let _ = DirBuilder::new().mode(0o700).create(parent.join(name));
    Own::at(&parent.join(name)).map(|found| found.path)
}

/// An open directory to which only this user has access. Its entries are reached through its
/// descriptor, so that no path is followed again.
#[derive(Debug)]
pub(crate) struct Own {
    path: PathBuf,
    directory: File,
}

impl Own {
    /// Opens a directory that [`own`] has made, if it is there.
    pub(crate) fn find(parent: &Path, name: &str) -> Option<Self> {
        Self::at(&secure(parent)?.join(name))
    }

    /// Opens a directory in this one.
    pub(crate) fn inside(&self, name: &OsStr) -> Option<Self> {
        let mut found = Self::at(&entry(&self.directory, name))?;
        found.path = self.path.join(name);
        Some(found)
    }

    fn at(path: &Path) -> Option<Self> {
        // A link may lead to another user's directory, and is not opened.
        let directory = open_directory(path).ok()?;
        let found = directory.metadata().ok()?;
        let is_ours = found.mode() & 0o077 == 0 && found.uid() == user();
        is_ours.then(|| Self {
            path: path.to_owned(),
            directory,
        })
    }

    /// Returns the path, for messages.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the names of the entries.
    pub(crate) fn names(&self) -> Vec<OsString> {
        let entries = fs::read_dir(entry(&self.directory, OsStr::new("")));
        let entries = entries.into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name()).collect()
    }

    /// Returns the metadata of a regular file with this name.
    pub(crate) fn file(&self, name: &OsStr) -> Option<Metadata> {
        let found = fs::symlink_metadata(entry(&self.directory, name)).ok()?;
        found.is_file().then_some(found)
    }

    /// Reads a regular file of this user that has no other name and at most this many bytes.
    pub(crate) fn read(&self, name: &OsStr, most: u64) -> io::Result<(File, Vec<u8>)> {
        // `O_NONBLOCK`, because opening a pipe would wait for its other end.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let mut options = File::options();
        let path = entry(&self.directory, name);
        let file = options.read(true).custom_flags(flags).open(path)?;
        let found = file.metadata()?;
        let is_ours = found.is_file() && found.uid() == user() && found.nlink() == 1;
        if !is_ours || found.len() > most {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = Vec::new();
        (&file).take(most).read_to_end(&mut bytes)?;
        Ok((file, bytes))
    }

    /// Writes a file that appears as a whole, in place of an earlier one.
    pub(crate) fn write(&self, name: &OsStr, bytes: &[u8]) -> io::Result<()> {
        // Writing a longer file raises a signal that ends the process.
        let limit = getrlimit(Resource::Fsize).current;
        if limit.is_some_and(|limit| bytes.len() as u64 > limit) {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut new = OsString::from(".");
        new.push(name);
        new.push(format!(".{}", std::process::id()));
        let path = entry(&self.directory, &new);
        let mut options = File::options();
        options.write(true).create_new(true).mode(0o600);
        let mut file = options.open(&path)?;
        let written = file.write_all(bytes);
        let done = written.and_then(|()| fs::rename(&path, entry(&self.directory, name)));
        if done.is_err() {
            let _ = fs::remove_file(&path);
        }
        done
    }

    /// Removes a name that is not that of a directory.
    pub(crate) fn remove(&self, name: &OsStr) -> io::Result<()> {
        fs::remove_file(entry(&self.directory, name))
    }

    /// Removes an empty directory.
    pub(crate) fn remove_directory(&self, name: &OsStr) -> io::Result<()> {
        fs::remove_dir(entry(&self.directory, name))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use fgraph_needs::skip;

    use super::*;

    #[test]
    fn a_directory_that_others_may_use_is_not_ours() {
        let folder = tempfile::tempdir().unwrap();
        let new = folder.path().join("new");
        assert_eq!(own(folder.path(), "new"), Some(new.clone()));
        symlink(&new, folder.path().join("link")).unwrap();
        assert_eq!(own(folder.path(), "link"), None);
        fs::set_permissions(&new, Permissions::from_mode(0o750)).unwrap();
        assert_eq!(own(folder.path(), "new"), None);
        fs::write(folder.path().join("file"), "").unwrap();
        assert_eq!(own(folder.path(), "file"), None);
        assert_eq!(own(Path::new("/proc"), "fgraph"), None);
    }

    #[test]
    fn a_directory_below_one_that_others_may_change_is_not_secure() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let [parent, inner] = ["parent", "parent/inner"].map(|name| folder.path().join(name));
        fs::create_dir_all(&inner).unwrap();
        let secure_as = |mode| {
            fs::set_permissions(&parent, Permissions::from_mode(mode)).unwrap();
            secure(&inner)
        };
        assert_eq!(secure_as(0o755), Some(inner.clone()));
        assert_eq!(secure_as(0o1777), Some(inner.clone()));
        assert_eq!(secure_as(0o777), None);
        assert_eq!(secure_as(0o775), None);
        secure_as(0o755);
        // A directory behind a link is identified by the path that cannot change.
        let link = folder.path().join("link");
        symlink(&inner, &link).unwrap();
        assert_eq!(secure(&link), Some(inner.clone()));
        assert_eq!(secure(&folder.path().join("absent")), None);
        if let Err(error) = chown(&parent, Some(65534), None) {
            return skip!("no right to give a directory to another user: {error}");
        }
        assert_eq!(secure_as(0o755), None);
        // Its owner may rename its entries, though others may not.
        assert_eq!(secure_as(0o1777), None);
        // Nor does its owner choose a directory of ours.
        let [ours, theirs] = [folder.path().join("ours"), parent.join("theirs")];
        assert_eq!(make(&ours), Some(ours.clone()));
        symlink(&ours, &theirs).unwrap();
        assert_eq!(secure(&theirs), None);
        assert_eq!(make(&parent.join("new")), None);
        assert!(!parent.join("new").exists());
    }
}
