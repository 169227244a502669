//! Directory of an export, whose files appear once they are complete.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tempfile::{Builder, TempDir};

/// Directory that is filled at another place, and moved to its own at the end. Dropping the value
/// before that removes the files.
#[derive(Debug)]
pub(crate) struct Directory {
    files: TempDir,
    path: PathBuf,
    /// True if the path is that of an existing empty directory, which stays.
    is_known: bool,
}

impl Directory {
    /// Makes a directory for the files: beside the path, or in it if that is an empty directory.
    pub(crate) fn make(path: &Path) -> io::Result<Self> {
        let is_known = match fs::read_dir(path) {
            Ok(mut names) => match names.next() {
                Some(_) => return Err(io::ErrorKind::DirectoryNotEmpty.into()),
                None => true,
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        let parent = match path.parent() {
            _ if is_known => path,
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let mut builder = Builder::new();
        // The usual permissions: the user's mask decides which other users may read it.
        let builder = builder.prefix(".fgraph-export-");
        let builder = builder.permissions(fs::Permissions::from_mode(0o777));
        Ok(Self {
            files: builder.tempdir_in(parent)?,
            path: path.to_owned(),
            is_known,
        })
    }

    /// Returns the directory in which the files are made.
    pub(crate) fn files(&self) -> &Path {
        self.files.path()
    }

    /// Moves the files to their place.
    pub(crate) fn publish(self) -> io::Result<()> {
        if self.is_known {
            for file in fs::read_dir(self.files())? {
                let file = file?;
                fs::rename(file.path(), self.path.join(file.file_name()))?;
            }
            return self.files.close();
        }
        fs::rename(self.files(), &self.path)?;
        // Nothing of it is left to be removed.
        let _ = self.files.keep();
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
