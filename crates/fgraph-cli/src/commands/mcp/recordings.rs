//! The recordings of the server, and their handles.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::text::{escaped, size};

/// The most bytes that all recordings of the server have when another one begins.
const MOST_BYTES: u64 = 4 << 30;

/// The recordings in a directory: `r1.data` has the handle `r1`.
#[derive(Debug)]
pub(super) struct Recordings {
    directory: PathBuf,
    /// It is removed at the end.
    _temporary: Option<TempDir>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// The command lines of recordings, as far as this server has made them.
    made: BTreeMap<u32, String>,
    newest: u32,
}

impl Recordings {
    /// Opens a directory, which may have recordings; without one, a new one that is removed at the
    /// end.
    pub(super) fn open(directory: Option<&Path>) -> io::Result<Self> {
        let (directory, temporary) = match directory {
            Some(directory) => {
                let mut new = DirBuilder::new();
                let made = new.recursive(true).mode(0o700).create(directory);
                made.map_err(|error| match error.kind() {
                    io::ErrorKind::AlreadyExists => io::ErrorKind::NotADirectory.into(),
                    _ => error,
                })?;
                (fs::canonicalize(directory)?, None)
            }
            None => {
                let temporary = tempfile::Builder::new().prefix("fgraph-mcp-").tempdir()?;
                (temporary.path().to_owned(), Some(temporary))
            }
        };
        let mut known = Known::default();
        for entry in fs::read_dir(&directory)? {
            if let Some(number) = entry?.file_name().to_str().and_then(number_of_file) {
                known.made.insert(number, String::new());
                known.newest = known.newest.max(number);
            }
        }
        Ok(Self {
            directory,
            _temporary: temporary,
            known: Mutex::new(known),
        })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, number: u32) -> PathBuf {
        self.directory.join(format!("r{number}.data"))
    }

    /// Returns the handle and the path of a new recording.
    pub(super) fn begin(&self, of: String) -> Result<(String, PathBuf), String> {
        let mut known = self.known();
        let bytes = known
            .made
            .keys()
            .map(|&it| len(&self.path(it)))
            .sum::<u64>();
        if bytes >= MOST_BYTES {
            return Err(format!(
                "the recordings have {} already: remove some with the tool `forget`",
                size(bytes)
            ));
        }
        let number = known.newest.saturating_add(1);
        known.newest = number;
        known.made.insert(number, of);
        Ok((format!("r{number}"), self.path(number)))
    }

    /// Returns the path of a recording for a handle or a path.
    pub(super) fn find(&self, text: &str) -> Result<PathBuf, String> {
        if let Some(number) =
            number_of(text).filter(|number| self.known().made.contains_key(number))
        {
            return Ok(self.path(number));
        }
        fs::canonicalize(text).map_err(|_| {
            let known = self.known();
            let handles: Vec<String> = known.made.keys().map(|it| format!("r{it}")).collect();
            let there = match handles.is_empty() {
                true => "there are no handles yet: use `record` or `attach` first".to_owned(),
                false => format!("the handles are {}", handles.join(", ")),
            };
            format!("no recording '{}': {there}; or give a path", escaped(text))
        })
    }

    /// Removes a recording of the server.
    pub(super) fn forget(&self, handle: &str) -> Result<(), String> {
        let mut known = self.known();
        let number = number_of(handle).filter(|number| known.made.contains_key(number));
        let number = number.ok_or_else(|| format!("no handle '{}'", escaped(handle)))?;
        match fs::remove_file(self.path(number)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.to_string()),
            _ => {
                known.made.remove(&number);
                Ok(())
            }
        }
    }

    /// Lists all recordings, as rows of an answer.
    pub(super) fn list(&self) -> Value {
        let known = self.known();
        let row = |(&number, of): (&u32, &String)| {
            let path = self.path(number);
            json!({
                "recording": format!("r{number}"),
                "path": path.to_string_lossy(),
                "bytes": len(&path),
                "of": of,
            })
        };
        let rows: Vec<Value> = known.made.iter().map(row).collect();
        json!({ "recordings": rows })
    }
}

fn len(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |file| file.len())
}

/// Returns the number of a handle.
fn number_of(handle: &str) -> Option<u32> {
    let digits = handle.strip_prefix('r')?;
    let is_number = digits.bytes().all(|digit| digit.is_ascii_digit());
    digits.parse().ok().filter(|_| is_number)
}

fn number_of_file(name: &str) -> Option<u32> {
    number_of(name.strip_suffix(".data")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_lead_to_recordings_until_they_are_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("r7.data"), "old").unwrap();
        fs::write(directory.path().join("other.data"), "other").unwrap();
        let recordings = Recordings::open(Some(directory.path())).unwrap();
        assert!(recordings.find("r7").unwrap().ends_with("r7.data"));
        let (handle, path) = recordings.begin("ls".to_owned()).unwrap();
        assert_eq!(handle, "r8");
        fs::write(&path, "new").unwrap();
        assert_eq!(recordings.find("r8").unwrap(), path);
        assert_eq!(recordings.list()["recordings"][1]["of"], "ls");
        recordings.forget("r8").unwrap();
        assert!(!path.exists());
        let why = recordings.find("r8").unwrap_err();
        assert!(why.contains("the handles are r7"), "{why}");
        for no_handle in [
            "r8",
            "",
            "r",
            "r+7",
            "r99999999999",
            "../other.data",
            "/etc/passwd",
        ] {
            assert!(recordings.forget(no_handle).is_err(), "{no_handle}");
        }
        let other = directory.path().join("other.data");
        assert!(recordings.find(other.to_str().unwrap()).is_ok());
    }

    #[test]
    fn a_file_is_no_directory_for_recordings() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = Recordings::open(Some(file.path())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
    }

    #[test]
    fn a_directory_that_nobody_named_is_removed_at_the_end() {
        let recordings = Recordings::open(None).unwrap();
        let directory = recordings.directory.clone();
        let (_, path) = recordings.begin(String::new()).unwrap();
        fs::write(path, "").unwrap();
        drop(recordings);
        assert!(!directory.exists());
    }
}
