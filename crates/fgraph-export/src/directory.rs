//! Directory of an export, whose files appear once they are complete.

use std::fs;
#[cfg(target_os = "linux")]
use std::fs::File;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

#[cfg(target_os = "linux")]
use fgraph_trace::place::{Place, entry, open_directory};
use tempfile::{Builder, TempDir};

/// Directory that is filled at another place, and moved to its own at the end. Dropping the value
/// before that removes the files.
#[derive(Debug)]
pub(crate) struct Directory {
    temporary: TempDir,
    /// Path of the temporary directory that no other user can make lead elsewhere.
    files: PathBuf,
    path: PathBuf,
    /// True if the path is that of an existing empty directory, which stays.
    is_known: bool,
    /// The directories that the paths name.
    #[cfg(target_os = "linux")]
    _open: (Place, Option<File>, File),
}

/// Makes a directory with the usual permissions: the user's mask decides which other users may read
/// it.
fn temporary(parent: &Path) -> io::Result<TempDir> {
    let mut builder = Builder::new();
    let builder = builder.prefix(".fgraph-export-");
    let builder = builder.permissions(fs::Permissions::from_mode(0o777));
    builder.tempdir_in(parent)
}

/// Fails if a directory has entries.
fn must_be_empty(path: &Path) -> io::Result<()> {
    match fs::read_dir(path)?.next() {
        Some(_) => Err(io::ErrorKind::DirectoryNotEmpty.into()),
        None => Ok(()),
    }
}

impl Directory {
    /// Makes a directory for the files: beside the path, or in it if that is an empty directory.
    #[cfg(target_os = "linux")]
    pub(crate) fn make(path: &Path) -> io::Result<Self> {
        use std::ffi::OsStr;

        let place = Place::find(path)?;
        let known = place.known()?.map(|_| open_directory(&place.path()));
        let known = known.transpose()?;
        let (path, parent) = match &known {
            Some(known) => {
                let known = entry(known, OsStr::new(""));
                must_be_empty(&known)?;
                (known.clone(), known)
            }
            None => (place.path(), place.directory()),
        };
        let temporary = temporary(&parent)?;
        let opened = open_directory(temporary.path())?;
        Ok(Self {
            temporary,
            files: entry(&opened, OsStr::new("")),
            path,
            is_known: known.is_some(),
            _open: (place, known, opened),
        })
    }

    /// Makes a directory for the files: beside the path, or in it if that is an empty directory.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn make(path: &Path) -> io::Result<Self> {
        let is_known = match must_be_empty(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            found => found.map(|()| true)?,
        };
        let parent = match path.parent() {
            _ if is_known => path,
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let temporary = temporary(parent)?;
        Ok(Self {
            files: temporary.path().to_owned(),
            temporary,
            path: path.to_owned(),
            is_known,
        })
    }

    /// Returns the directory in which the files are made.
    pub(crate) fn files(&self) -> &Path {
        &self.files
    }

    /// Moves the files to their place.
    pub(crate) fn publish(self) -> io::Result<()> {
        if self.is_known {
            for file in fs::read_dir(self.files())? {
                let name = file?.file_name();
                fs::rename(self.files.join(&name), self.path.join(name))?;
            }
            return self.temporary.close();
        }
        fs::rename(self.temporary.path(), &self.path)?;
        // Nothing of it is left to be removed.
        let _ = self.temporary.keep();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let names = fs::read_dir(directory).unwrap();
        let names = names.map(|name| name.unwrap().file_name().into_string().unwrap());
        names.collect()
    }

    #[test]
    fn a_directory_is_there_once_it_is_complete() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("export");
        let given_up = Directory::make(&path).unwrap();
        fs::write(given_up.files().join("part"), "one").unwrap();
        assert!(!path.exists());
        drop(given_up);
        assert_eq!(names(place.path()), [""; 0]);
        for is_known in [false, true] {
            if is_known {
                fs::remove_file(path.join("part")).unwrap();
            }
            let directory = Directory::make(&path).unwrap();
            fs::write(directory.files().join("part"), "one").unwrap();
            assert!(!path.join("part").exists());
            directory.publish().unwrap();
            assert_eq!(names(&path), ["part"]);
            assert_eq!(names(place.path()), ["export"]);
        }
        let error = Directory::make(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::DirectoryNotEmpty);
        let error = Directory::make(&path.join("part")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
    }
}
