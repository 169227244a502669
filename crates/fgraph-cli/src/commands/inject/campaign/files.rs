//! Copies of a directory for runs, and the files that runs leave there.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File, FileTimes};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Files up to this size are compared without the path of their directory in them.
const SMALL: u64 = 16 << 20;

/// Contents of the files of a directory, by their paths in it.
pub(super) type Contents = BTreeMap<PathBuf, Content>;

/// The content of a file, as far as it is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Directory,
    File { len: u64, hash: u64 },
    Link(PathBuf),
    Other,
}

/// The difference of a file from the one that the program leaves when no call fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct FileChange {
    pub(super) path: String,
    pub(super) change: Change,
}

/// The kind of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(super) enum Change {
    Added,
    Missing,
    Changed,
}

/// Copies a directory with its times, so that programs like `make` see nothing new.
pub(super) fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    let unreadable = |path: &Path, error| Error::Input {
        path: path.into(),
        error,
    };
    let unwritable = |path: &Path, error| Error::Write {
        path: path.into(),
        error,
    };
    fs::create_dir_all(to).map_err(|error| unwritable(to, error))?;
    for entry in fs::read_dir(from).map_err(|error| unreadable(from, error))? {
        let entry = entry.map_err(|error| unreadable(from, error))?;
        let (path, copied) = (entry.path(), to.join(entry.file_name()));
        let unreadable = |error| unreadable(&path, error);
        let kind = entry.file_type().map_err(unreadable)?;
        if kind.is_dir() {
            copy(&path, &copied)?;
        } else if kind.is_symlink() {
            let target = fs::read_link(&path).map_err(unreadable)?;
            symlink(target, &copied).map_err(|error| unwritable(&copied, error))?;
        } else if kind.is_file() {
            // `fs::copy` does not say which of the files its error is about.
            File::open(&path).map_err(unreadable)?;
            fs::copy(&path, &copied).map_err(|error| unwritable(&copied, error))?;
            let modified = entry.metadata().and_then(|known| known.modified());
            let times = FileTimes::new().set_modified(modified.map_err(unreadable)?);
            // A file that cannot be written keeps the time of the copy.
            _ = File::options()
                .write(true)
                .open(&copied)
                .and_then(|file| file.set_times(times));
        }
        // Sockets, pipes and devices are of their makers.
    }
    let keep = || -> io::Result<()> {
        let known = fs::metadata(from)?;
        let times = FileTimes::new().set_modified(known.modified()?);
        File::open(to)?.set_times(times)?;
        fs::set_permissions(to, known.permissions())
    };
    keep().map_err(|error| unwritable(to, error))
}

/// Reads the contents of a directory.
pub(super) fn contents(of: &Path) -> io::Result<Contents> {
    let mut found = Contents::new();
    read(of, of, &mut found)?;
    Ok(found)
}

fn read(root: &Path, folder: &Path, found: &mut Contents) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let (kind, path) = entry.and_then(|entry| Ok((entry.file_type()?, entry.path())))?;
        let content = if kind.is_dir() {
            match read(root, &path, found) {
                Ok(()) => Content::Directory,
                Err(_) => Content::Other,
            }
        } else if kind.is_symlink() {
            Content::Link(fs::read_link(&path)?)
        } else if kind.is_file() {
            // Files and directories that cannot be read are all alike.
            content(&path, root).unwrap_or(Content::Other)
        } else {
            Content::Other
        };
        let inside = path.strip_prefix(root).unwrap_or(&path).to_owned();
        found.insert(inside, content);
    }
    Ok(())
}

fn content(path: &Path, root: &Path) -> io::Result<Content> {
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    let mut hasher = DefaultHasher::new();
    if len <= SMALL {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        hasher.write(&replaced(&bytes, root.as_os_str().as_bytes()));
    } else {
        let mut bytes = vec![0; 1 << 16];
        loop {
            match file.read(&mut bytes)? {
                0 => break,
                len => hasher.write(&bytes[..len]),
            }
        }
    }
    Ok(Content::File {
        len,
        hash: hasher.finish(),
    })
}

/// Returns the differences between the contents of two directories.
pub(super) fn differences(old: &Contents, new: &Contents) -> Vec<FileChange> {
    let all = old
        .keys()
        .chain(new.keys().filter(|path| !old.contains_key(*path)));
    let change = |path: &PathBuf| {
        let change = match (old.get(path), new.get(path)) {
            (None, _) => Change::Added,
            (_, None) => Change::Missing,
            (old, new) if old != new => Change::Changed,
            _ => return None,
        };
        Some(FileChange {
            path: path.to_string_lossy().into_owned(),
            change,
        })
    };
    all.filter_map(change).collect()
}

/// Returns bytes without the path of the run's directory, which is another one in each run.
pub(super) fn replaced<'b>(bytes: &'b [u8], path: &[u8]) -> Cow<'b, [u8]> {
    let find = |bytes: &[u8]| {
        bytes
            .windows(path.len().max(1))
            .position(|part| part == path)
    };
    let Some(mut at) = find(bytes) else {
        return Cow::Borrowed(bytes);
    };
    let (mut rest, mut all) = (bytes, Vec::with_capacity(bytes.len()));
    loop {
        all.extend_from_slice(&rest[..at]);
        all.extend_from_slice(b"DIR");
        rest = &rest[at + path.len()..];
        match find(rest) {
            Some(next) => at = next,
            None => break,
        }
    }
    all.extend_from_slice(rest);
    Cow::Owned(all)
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn a_copy_has_the_same_files_and_times_and_differences_are_found() {
        let place = TempDir::new().unwrap();
        let [one, two] = ["one", "two"].map(|name| place.path().join(name));
        fs::create_dir_all(one.join("inside")).unwrap();
        fs::write(one.join("inside/a"), "a").unwrap();
        fs::write(one.join("b"), "b").unwrap();
        fs::write(one.join("here"), one.to_str().unwrap()).unwrap();
        symlink("/no/such", one.join("link")).unwrap();
        copy(&one, &two).unwrap();
        let [missing, other] = ["missing", "other"].map(|name| place.path().join(name));
        let error = copy(&missing, &other).unwrap_err();
        assert!(matches!(error, Error::Input { path, .. } if path == missing));
        fs::write(two.join("here"), two.to_str().unwrap()).unwrap();
        let [old, new] = [&one, &two].map(|folder| contents(folder).unwrap());
        assert_eq!((old.len(), differences(&old, &new)), (5, Vec::new()));
        let time = |path: PathBuf| fs::metadata(path).unwrap().modified().unwrap();
        assert_eq!(time(one.join("b")), time(two.join("b")));
        fs::remove_file(two.join("link")).unwrap();
        fs::write(two.join("b"), "c").unwrap();
        fs::write(two.join("c"), "").unwrap();
        let found = differences(&old, &contents(&two).unwrap());
        let shown: Vec<_> = found.iter().map(|it| (&it.path[..], it.change)).collect();
        let expected = [
            ("b", Change::Changed),
            ("link", Change::Missing),
            ("c", Change::Added),
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn the_path_of_a_run_is_replaced() {
        assert_eq!(&*replaced(b"in /a/b, /a/b", b"/a/b"), b"in DIR, DIR");
        assert_eq!(&*replaced(b"nothing", b"/a/b"), b"nothing");
        assert_eq!(&*replaced(b"", b"/a/b"), b"");
    }
}
