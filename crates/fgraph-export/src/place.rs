//! The file of an export, which has no name until it is complete.

use std::fs::File;
use std::io;
use std::path::Path;

/// A file that gets its name at the end. It is gone if its process ends before.
#[cfg(target_os = "linux")]
#[derive(Debug)]
pub(crate) struct Place {
    file: File,
    place: fgraph_trace::place::Place,
}

/// Opens the file of an export. Its name is given by [`Place::publish`], or is there from the start
/// where the file system has no files without a name, and where the path is that of a device or a
/// pipe.
#[cfg(target_os = "linux")]
pub(crate) fn open(path: &Path) -> io::Result<(File, Option<Place>)> {
    use std::fs::Metadata;

    use fgraph_trace::place::{self, empty};
    let place = place::Place::find(path)?;
    let known = place.known()?;
    if known.as_ref().is_none_or(Metadata::is_file)
        && !place.is_open_file()
        && let Some(file) = without_name(&place.directory())
    {
        if let Some(known) = known {
            // One that may not be written is not replaced.
            place.open(File::options().write(true))?;
            file.set_permissions(known.permissions())?;
        }
        let named_later = file.try_clone()?;
        return Ok((
            file,
            Some(Place {
                file: named_later,
                place,
            }),
        ));
    }
    let (file, _) = place.open(File::options().write(true))?;
    empty(&file)?;
    Ok((file, None))
}

#[cfg(target_os = "linux")]
fn without_name(directory: &Path) -> Option<File> {
    use rustix::fs::{Mode, OFlags, open};
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o666);
    open(directory, flags, mode).ok().map(File::from)
}

#[cfg(target_os = "linux")]
impl Place {
    /// Gives the file its name, in place of a file that has it.
    pub(crate) fn publish(self) -> io::Result<()> {
        use std::os::fd::AsRawFd as _;

        use rustix::fs::{AtFlags, CWD, linkat};
        let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let link = |to: &Path| linkat(CWD, &own, CWD, to, AtFlags::SYMLINK_FOLLOW);
        let path = self.place.path();
        match link(&path) {
            Err(rustix::io::Errno::EXIST) => {}
            done => return Ok(done?),
        }
        // A link does not replace a file, and a rename does.
        let part = tempfile::Builder::new()
            .prefix(".fgraph-export-")
            .make_in(self.place.directory(), |path| Ok(link(path)?))?;
        part.into_temp_path().persist(path)?;
        Ok(())
    }
}

/// The name that a file has from the start.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub(crate) enum Place {}

#[cfg(not(target_os = "linux"))]
pub(crate) fn open(path: &Path) -> io::Result<(File, Option<Place>)> {
    Ok((File::create(path)?, None))
}

#[cfg(not(target_os = "linux"))]
impl Place {
    pub(crate) fn publish(self) -> io::Result<()> {
        match self {}
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
