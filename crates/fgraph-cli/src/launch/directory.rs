//! Directories that only this user has the rights of.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// This user.
pub(super) fn user() -> u32 {
    // SAFETY: it only asks.
    unsafe { libc::geteuid() }
}

/// The directories of this user at run time that are ours alone, made where they were not: that in
/// `XDG_RUNTIME_DIR`, else in the usual place.
pub(super) fn at_run_time() -> impl Iterator<Item = PathBuf> {
    let given = std::env::var_os("XDG_RUNTIME_DIR").filter(|it| !it.is_empty());
    let usual = Some(format!("/run/user/{}", user()).into());
    let all = [given, usual].into_iter().flatten();
    all.map(|directory| Path::new(&directory).join("fgraph"))
        .filter(|directory| is_ours(directory))
}

/// As [`at_run_time`], and last a directory where all users have theirs.
pub(super) fn anywhere() -> impl Iterator<Item = PathBuf> {
    let shared = std::env::temp_dir().join(format!("fgraph-{}", user()));
    at_run_time().chain(Some(shared).filter(|directory| is_ours(directory)))
}

/// Whether a directory is there, or could be made, of which only we have the rights.
pub(super) fn is_ours(directory: &Path) -> bool {
    let _ = DirBuilder::new().mode(0o700).create(directory);
    // Not that of a link, which may be another one's.
    let Ok(metadata) = fs::symlink_metadata(directory) else {
        return false;
    };
    metadata.is_dir() && metadata.mode() & 0o077 == 0 && metadata.uid() == user()
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_directory_that_others_may_use_is_not_ours() {
        let folder = tempfile::tempdir().unwrap();
        let (new, link) = (folder.path().join("new"), folder.path().join("link"));
        assert!(is_ours(&new));
        symlink(&new, &link).unwrap();
        assert!(!is_ours(&link));
        fs::set_permissions(&new, Permissions::from_mode(0o750)).unwrap();
        assert!(!is_ours(&new));
        fs::write(folder.path().join("file"), "").unwrap();
        assert!(!is_ours(&folder.path().join("file")));
        assert!(!is_ours(Path::new("/proc/fgraph")));
    }
}
