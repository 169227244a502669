//! Keeps the recording with the default name under another name, where a new one takes its place.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use fgraph_trace::place::{self, Place};

use crate::input::DEFAULT;

/// The name of the recording that was replaced last.
pub(super) const OLD: &str = "fgraph.data.old";

/// A recording with the default name.
#[derive(Debug)]
pub(super) struct Old {
    place: Place,
    /// Its permissions, which the new file gets.
    mode: u32,
}

impl Old {
    /// Finds the one in this directory: a file of this user that has content. Links, pipes and the
    /// files of other users are written as they are.
    ///
    /// Fails if it cannot be renamed.
    pub(super) fn find() -> io::Result<Option<Self>> {
        let path = Path::new(DEFAULT);
        let is_own = |found: &fs::Metadata| {
            found.is_file() && found.len() > 0 && found.uid() == place::user()
        };
        let Some(found) = fs::symlink_metadata(path).ok().filter(is_own) else {
            return Ok(None);
        };
        let old = Self {
            place: Place::find(path)?,
            mode: found.mode() & 0o777,
        };
        match fs::symlink_metadata(old.path()) {
            Ok(found) if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
            Ok(found) if ![found.uid(), 0].contains(&place::user()) => {
                let owner = found.uid();
                let why = format!("it belongs to user {owner}; -o FILE names another recording");
                Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
            }
            _ => Ok(Some(old)),
        }
    }

    /// Gives it the other name, and makes a file in its place. A link that has the other name is
    /// not followed.
    pub(super) fn replace(&self) -> io::Result<File> {
        fs::rename(self.place.path(), self.path())?;
        let options = File::options().write(true).mode(self.mode).clone();
        let (file, _) = self.place.open(&options)?;
        Ok(file)
    }

    fn path(&self) -> PathBuf {
        self.place.directory().join(OLD)
    }
}
