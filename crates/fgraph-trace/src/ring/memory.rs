//! Memory that processes share.

#[cfg(all(unix, not(miri), not(loom)))]
mod mapped;

#[cfg(all(unix, not(miri), not(loom)))]
use std::array;
use std::fs::File;
use std::io;
use std::path::Path;

#[cfg(all(unix, not(miri), not(loom)))]
use super::layout::at;
use super::layout::{Geometry, Part};
use crate::primitive::AtomicU64;

/// Words, all of them zero at first.
#[derive(Debug)]
pub(super) enum Memory {
    /// On the heap.
    #[allow(dead_code, reason = "where nothing can be mapped")]
    Heap(Box<[AtomicU64]>),
    #[cfg(all(unix, not(miri), not(loom)))]
    Mapped(mapped::Mapped),
}

impl Memory {
    /// Returns the header and the headers of the rings.
    pub(super) fn headers(&self) -> &[AtomicU64] {
        match self {
            Self::Heap(words) => words,
            #[cfg(all(unix, not(miri), not(loom)))]
            Self::Mapped(mapped) => mapped.headers(),
        }
    }

    /// Returns the words of a part, at least up to `end`; `None` if it has fewer, or they cannot be
    /// mapped. Neither allocates nor locks.
    pub(super) fn part(&self, index: usize, part: &Part, end: usize) -> Option<&[AtomicU64]> {
        if end > part.len {
            return None;
        }
        match self {
            Self::Heap(words) => words.get(part.start..part.start + part.len),
            #[cfg(all(unix, not(miri), not(loom)))]
            Self::Mapped(mapped) => mapped.part(index, part, end),
        }
    }

    /// Maps the rest of each ring that is mapped in part. Neither allocates nor locks.
    pub(super) fn map_rest(&self) {
        match self {
            Self::Heap(_) => {}
            #[cfg(all(unix, not(miri), not(loom)))]
            Self::Mapped(mapped) => mapped.map_rest(),
        }
    }
}

#[cfg(not(all(unix, not(miri), not(loom))))]
impl Memory {
    pub(super) fn new(geometry: &Geometry) -> io::Result<Self> {
        let words = 0..geometry.words;
        Ok(Self::Heap(words.map(|_| AtomicU64::new(0)).collect()))
    }

    pub(super) fn new_file(_: &Path, _: &Geometry) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn map(_: &File) -> io::Result<(Self, Geometry)> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(not(all(target_os = "linux", not(miri), not(loom))))]
impl Memory {
    pub(super) fn new_shared(_: &Geometry) -> io::Result<(Self, File)> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn map_shared(_: &File) -> io::Result<(Self, Geometry)> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(all(target_os = "linux", not(miri), not(loom)))]
impl Memory {
    /// Makes memory of fixed length, and the file through which other processes map it.
    pub(super) fn new_shared(geometry: &Geometry) -> io::Result<(Self, File)> {
        use std::os::fd::{AsRawFd, FromRawFd};
        let create = |more| {
            let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | more;
            // SAFETY: the name is a C string.
            match unsafe { libc::memfd_create(c"fgraph-rings".as_ptr(), flags) } {
                -1 => Err(io::Error::last_os_error()),
                fd => Ok(fd),
            }
        };
        // With `vm.memfd_noexec=2` the kernel makes no other files. Kernels before Linux 6.3 do not
        // know the flag.
        let fd = match create(libc::MFD_NOEXEC_SEAL) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => create(0)?,
            made => made?,
        };
        // SAFETY: the kernel has just made this descriptor, and no other object owns it.
        let file = unsafe { File::from_raw_fd(fd) };
        check_len(geometry)?;
        file.set_len(geometry.words as u64 * 8)?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: `fcntl` with `F_ADD_SEALS` touches no memory.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let mapped = mapped::Mapped::file(&file, *geometry)?;
        Ok((Self::Mapped(mapped), file))
    }

    /// Maps memory that [`new_shared`](Self::new_shared) has made in this process or another one.
    pub(super) fn map_shared(file: &File) -> io::Result<(Self, Geometry)> {
        use std::os::fd::AsRawFd;
        // SAFETY: `fcntl` with `F_GET_SEALS` touches no memory.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        // A file of another kind has no seals; the call fails.
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
            let what = "the file may become shorter while it is mapped";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Self::map(file)
    }
}

/// Fails if this process may not make a file of this length: the system would kill it with a
/// signal.
#[cfg(all(unix, not(miri), not(loom)))]
fn check_len(geometry: &Geometry) -> io::Result<()> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `getrlimit` writes to a live local.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) };
    if got == 0 && geometry.words as u64 * 8 > limit.rlim_cur {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(())
}

#[cfg(all(unix, not(miri), not(loom)))]
impl Memory {
    pub(super) fn new(geometry: &Geometry) -> io::Result<Self> {
        mapped::Mapped::anonymous(*geometry).map(Self::Mapped)
    }

    pub(super) fn new_file(path: &Path, geometry: &Geometry) -> io::Result<Self> {
        use std::os::fd::AsRawFd;
        check_len(geometry)?;
        // A new file: the file that other processes have mapped must not change.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).open(path)?;
        let bytes = geometry.words * 8;
        let len = libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
        // SAFETY: `posix_fallocate` touches no memory; no process has mapped the new file yet.
        let error = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len) };
        if error != 0 {
            let _ = std::fs::remove_file(path);
            return Err(io::Error::from_raw_os_error(error));
        }
        mapped::Mapped::file(&file, *geometry).map(Self::Mapped)
    }

    /// Maps the memory in a file, and reads its geometry.
    pub(super) fn map(file: &File) -> io::Result<(Self, Geometry)> {
        use std::os::unix::fs::FileExt;
        let mut bytes = [0; 8 * at::HEADER];
        match file.read_exact_at(&mut bytes, 0) {
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
            // A file of zeros has no header.
            _ => {}
        }
        let (words, _) = bytes.as_chunks();
        let header = array::from_fn(|at| u64::from_ne_bytes(words[at]));
        let geometry = Geometry::read(&header)?;
        let mapped = mapped::Mapped::file(file, geometry)?;
        Ok((Self::Mapped(mapped), geometry))
    }
}
