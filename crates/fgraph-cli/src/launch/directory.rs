//! Directories to which only this user has access.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Returns the id of this user.
pub(crate) fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns this user's private runtime directories, and makes missing ones: the one in
/// `XDG_RUNTIME_DIR`, otherwise in the usual place.
pub(super) fn at_run_time() -> impl Iterator<Item = PathBuf> {
    let given = std::env::var_os("XDG_RUNTIME_DIR").filter(|it| !it.is_empty());
    let usual = Some(format!("/run/user/{}", user()).into());
    let all = [given, usual].into_iter().flatten();
    all.filter_map(|directory| own(Path::new(&directory), "fgraph"))
}

/// Returns the same as [`at_run_time`], and finally a directory where all users have theirs.
pub(super) fn anywhere() -> impl Iterator<Item = PathBuf> {
    let shared = temporary().and_then(|parent| own(&parent, &format!("fgraph-{}", user())));
    at_run_time().chain(shared)
}

/// Returns a directory for temporary files in which no other user can replace ours.
fn temporary() -> Option<PathBuf> {
    for_temporary_files().find_map(|directory| secure(&directory))
}

/// Returns the directories for temporary files, whoever may write to them.
pub(super) fn for_temporary_files() -> impl Iterator<Item = PathBuf> {
    let given = std::env::temp_dir();
    let others = ["/tmp", "/var/tmp"].map(PathBuf::from);
    let others = others.into_iter().filter({
        let given = given.clone();
        move |other| *other != given
    });
    std::iter::once(given).chain(others)
}

/// Returns the private directory in a cache directory, and makes it if it does not exist.
pub(super) fn in_caches(caches: &Path) -> Option<PathBuf> {
    let _ = DirBuilder::new().mode(0o700).create(caches);
    own(caches, "fgraph")
}

/// Returns the directory of this name to which only we have access, and makes it if it does not
/// exist. Returns `None` if another user has access to it, or could replace it.
pub(super) fn own(parent: &Path, name: &str) -> Option<PathBuf> {
    let directory = secure(parent)?.join(name);
    let _ = DirBuilder::new().mode(0o700).create(&directory);
    // A link may lead to another user's directory.
    let found = fs::symlink_metadata(&directory).ok()?;
    let is_ours = found.is_dir() && found.mode() & 0o077 == 0 && found.uid() == user();
    is_ours.then_some(directory)
}

/// Returns the path of a directory without links, if no other user can make it lead elsewhere.
///
/// Each directory of the path must belong to the system or to this user, and others must be unable
/// to rename or remove its entries. Directories are checked from the root down, so a checked part
/// cannot change. After `su` or `sudo -E`, variables may name directories of another user, which
/// fail this.
pub(crate) fn secure(directory: &Path) -> Option<PathBuf> {
    let path = directory.canonicalize().ok()?;
    let mut all: Vec<&Path> = path.ancestors().collect();
    all.reverse();
    all.into_iter().all(is_protected).then_some(path)
}

/// Returns true if no other user can rename or remove entries of a directory.
fn is_protected(directory: &Path) -> bool {
    let Ok(found) = fs::symlink_metadata(directory) else {
        return false;
    };
    let is_writable = found.mode() & (libc::S_IWGRP | libc::S_IWOTH) != 0;
    let is_sticky = found.mode() & libc::S_ISVTX != 0;
    found.is_dir() && is_trusted(found.uid()) && (is_sticky || !is_writable)
}

/// Returns true for this user, and for the system's.
pub(crate) fn is_trusted(owner: u32) -> bool {
    // A user namespace may show the system's files with an owner other than 0.
    let is_system = || fs::metadata("/").is_ok_and(|root| root.uid() == owner);
    owner == 0 || owner == user() || is_system()
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
    }
}
