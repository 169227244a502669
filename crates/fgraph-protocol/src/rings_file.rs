//! The file of the rings, as a program that a recorded process executes finds it.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// File of rings that another process has open, with the means to identify it.
///
/// Its path contains the id of that process. After that process has exited, its id may belong to a
/// process of another user. That process's file must not be taken for the rings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RingsFile {
    /// Path by which programs can open the file while the process has it open.
    pub path: PathBuf,
    /// Device that the file is on.
    pub device: u64,
    /// Inode number of the file on that device.
    pub inode: u64,
}

impl RingsFile {
    /// Describes a file that this process has open.
    ///
    /// # Errors
    ///
    /// Fails if the file's status cannot be read.
    pub fn of(file: &File) -> io::Result<Self> {
        let found = file.metadata()?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        Ok(Self {
            path: path.into(),
            device: found.dev(),
            inode: found.ino(),
        })
    }

    /// Returns true if the status `found` is of this file, which belongs to this user or root.
    #[must_use]
    pub fn is_it(&self, found: &libc::stat) -> bool {
        // SAFETY: `geteuid` takes no arguments and cannot fail.
        let is_trusted = found.st_uid == 0 || found.st_uid == unsafe { libc::geteuid() };
        let is_file = found.st_mode & libc::S_IFMT == libc::S_IFREG;
        let is_same = (found.st_dev, found.st_ino) == (self.device, self.inode);
        is_file && is_same && is_trusted
    }

    /// Opens the file for reading and writing.
    ///
    /// # Errors
    ///
    /// [`NotFound`](io::ErrorKind::NotFound) if the file is gone or another one took its place;
    /// else the reason why it cannot be opened.
    pub fn open(&self) -> io::Result<File> {
        use std::os::unix::fs::OpenOptionsExt;
        let mut options = File::options();
        // `O_PATH` opens neither a device nor a pipe, since such an open may already have effects.
        let place = options
            .read(true)
            .custom_flags(libc::O_PATH)
            .open(&self.path)?;
        let mut found = std::mem::MaybeUninit::uninit();
        // SAFETY: `fstat` writes a whole `stat` to a place that is large enough.
        let status = unsafe {
            if libc::fstat(place.as_raw_fd(), found.as_mut_ptr()) != 0 {
                return Err(io::Error::last_os_error());
            }
            found.assume_init()
        };
        if !self.is_it(&status) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let path = format!("/proc/self/fd/{}", place.as_raw_fd());
        File::options().read(true).write(true).open(path)
    }

    /// Returns the id of the process that has the file open, from its path; 0 if the path has none.
    #[must_use]
    pub fn process(&self) -> u32 {
        let mut parts = self.path.iter().skip(2).map(|part| part.to_str());
        let process = parts.next().flatten().and_then(|part| part.parse().ok());
        process.unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};

    use super::*;

    fn memory() -> File {
        use std::os::fd::FromRawFd;
        // SAFETY: `memfd_create` gets a C string, and the descriptor is new and owned by the file.
        unsafe {
            let file = libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC);
            assert!(file >= 0);
            File::from_raw_fd(file)
        }
    }

    #[test]
    fn another_file_with_the_same_descriptor_is_not_the_rings() {
        let mut file = memory();
        let rings = RingsFile::of(&file).unwrap();
        assert_eq!(rings.process(), std::process::id());
        rings.open().unwrap().write_all(b"x").unwrap();
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "x");
        // Another process with the same id may have such a file at that path. SAFETY: this test
        // owns both descriptors.
        assert!(unsafe { libc::dup2(memory().as_raw_fd(), file.as_raw_fd()) } >= 0);
        let error = rings.open().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        drop(file);
        let error = rings.open().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_file_of_another_user_is_not_the_rings() {
        let file = memory();
        let rings = RingsFile::of(&file).unwrap();
        // SAFETY: `stat` is plain data, for which zeros are valid.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        (status.st_dev, status.st_ino) = (rings.device, rings.inode);
        status.st_mode = libc::S_IFREG | 0o600;
        assert!(rings.is_it(&status));
        status.st_mode = libc::S_IFIFO | 0o600;
        assert!(!rings.is_it(&status));
        status.st_mode = libc::S_IFREG | 0o600;
        // SAFETY: `geteuid` takes no arguments and cannot fail.
        status.st_uid = unsafe { libc::geteuid() } + 1;
        assert!(!rings.is_it(&status));
    }
}
