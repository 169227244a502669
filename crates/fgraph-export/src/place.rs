//! The file of an export, which has no name until it is complete.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// A file that gets its name at the end. It is gone if its process ends before.
#[derive(Debug)]
pub(crate) struct Place {
    file: File,
    path: PathBuf,
}

/// Opens the file of an export. Its name is given by [`Place::publish`], or is there from the start
/// where the file system has no files without a name, and where the path is that of a device or a
/// pipe.
pub(crate) fn open(path: &Path) -> io::Result<(File, Option<Place>)> {
    let known = match File::options().write(true).open(path) {
        Ok(known) => Some(known),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let known = known.as_ref().map(File::metadata).transpose()?;
    if known.as_ref().is_none_or(|known| known.is_file())
        && let Ok(path) = resolved(path, known.is_some())
        && let Some(file) = without_name(&path)
    {
        if let Some(known) = known {
            file.set_permissions(known.permissions())?;
        }
        let named_later = file.try_clone()?;
        return Ok((
            file,
            Some(Place {
                file: named_later,
                path,
            }),
        ));
    }
    Ok((File::create(path)?, None))
}

/// The path that links lead to.
fn resolved(path: &Path, exists: bool) -> io::Result<PathBuf> {
    match exists || path.is_symlink() {
        true => path.canonicalize(),
        false => Ok(path.to_owned()),
    }
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(target_os = "linux")]
fn without_name(path: &Path) -> Option<File> {
    use rustix::fs::{Mode, OFlags, open};
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o666);
    open(parent(path), flags, mode).ok().map(File::from)
}

#[cfg(not(target_os = "linux"))]
fn without_name(_: &Path) -> Option<File> {
    None
}

impl Place {
    /// Gives the file its name, in place of a file that has it.
    #[cfg(target_os = "linux")]
    pub(crate) fn publish(self) -> io::Result<()> {
        use std::os::fd::AsRawFd as _;

        use rustix::fs::{AtFlags, CWD, linkat};
        let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let link = |to: &Path| linkat(CWD, &own, CWD, to, AtFlags::SYMLINK_FOLLOW);
        match link(&self.path) {
            Err(rustix::io::Errno::EXIST) => {}
            done => return Ok(done?),
        }
        // A link does not replace a file, and a rename does.
        let part = tempfile::Builder::new()
            .prefix(".fgraph-export-")
            .make_in(parent(&self.path), |path| Ok(link(path)?))?;
        part.into_temp_path().persist(&self.path)?;
        Ok(())
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn publish(self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs;
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_file_has_its_name_once_it_is_complete() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("export");
        let names = || fs::read_dir(directory.path()).unwrap().count();
        let (_file, place) = open(&path).unwrap();
        if place.is_none() {
            // This file system has no files without a name.
            return;
        }
        drop((_file, place));
        assert_eq!(names(), 0);
        for (nth, text) in ["first", "second"].into_iter().enumerate() {
            let (mut file, place) = open(&path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            assert_eq!(names(), nth);
            place.unwrap().publish().unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            assert_eq!(names(), 1);
        }
        // One that is given up leaves the file that was there.
        drop(open(&path).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "second");
    }

    #[test]
    fn links_and_devices_stay_what_they_are() {
        let directory = tempfile::tempdir().unwrap();
        let [path, link] = ["export", "link"].map(|name| directory.path().join(name));
        fs::write(&path, "old").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let (mut file, place) = open(&link).unwrap();
        file.write_all(b"new").unwrap();
        place.map(Place::publish).transpose().unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert!(open(Path::new("/dev/null")).unwrap().1.is_none());
        assert!(open(directory.path()).is_err());
    }
}
