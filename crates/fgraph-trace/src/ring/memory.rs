//! Memory that processes share.

use std::fs::File;
use std::io;
use std::path::Path;

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
    pub(super) fn words(&self) -> &[AtomicU64] {
        match self {
            Self::Heap(words) => words,
            #[cfg(all(unix, not(miri), not(loom)))]
            Self::Mapped(mapped) => mapped.words(),
        }
    }
}

#[cfg(not(all(unix, not(miri), not(loom))))]
impl Memory {
    pub(super) fn new(words: usize) -> io::Result<Self> {
        Ok(Self::Heap((0..words).map(|_| AtomicU64::new(0)).collect()))
    }

    pub(super) fn new_file(_: &Path, _: usize) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn map(_: &File) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(not(all(target_os = "linux", not(miri), not(loom))))]
impl Memory {
    pub(super) fn new_shared(_: usize) -> io::Result<(Self, File)> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn new_in(_: &File, _: usize) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn map_shared(_: &File) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(all(target_os = "linux", not(miri), not(loom)))]
impl Memory {
    /// Memory that keeps its length, and the file through which other processes map it.
    pub(super) fn new_shared(words: usize) -> io::Result<(Self, File)> {
        use std::os::fd::FromRawFd;
        let create = |more| {
            let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | more;
            // SAFETY: a name with a zero at its end.
            match unsafe { libc::memfd_create(c"fgraph-rings".as_ptr(), flags) } {
                -1 => Err(io::Error::last_os_error()),
                fd => Ok(fd),
            }
        };
        // With `vm.memfd_noexec=2` no other files are made. Kernels before Linux 6.3 do not know
        // the flag.
        let fd = match create(libc::MFD_NOEXEC_SEAL) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => create(0)?,
            made => made?,
        };
        // SAFETY: a new file, which nothing else has.
        let file = unsafe { File::from_raw_fd(fd) };
        Ok((Self::new_in(&file, words)?, file))
    }

    /// Memory that keeps its length, in a file of memory that is empty and can be sealed.
    pub(super) fn new_in(file: &File, words: usize) -> io::Result<Self> {
        use std::os::fd::AsRawFd;
        if file.metadata()?.len() != 0 {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        file.set_len(words as u64 * 8)?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: it changes what may be done with the file.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Self::map(file)
    }

    /// Memory that [`new_shared`](Self::new_shared) has made in this process or another one.
    pub(super) fn map_shared(file: &File) -> io::Result<Self> {
        use std::os::fd::AsRawFd;
        // SAFETY: it only asks.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        // Other files have none, which is an error.
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
            let what = "the file may become shorter while it is mapped";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Self::map(file)
    }
}

#[cfg(all(unix, not(miri), not(loom)))]
impl Memory {
    pub(super) fn new(words: usize) -> io::Result<Self> {
        mapped::Mapped::anonymous(words * 8).map(Self::Mapped)
    }

    pub(super) fn new_file(path: &Path, words: usize) -> io::Result<Self> {
        use std::os::fd::AsRawFd;
        // A new file: one that other processes have mapped must not change under them.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).open(path)?;
        let len = libc::off_t::try_from(words * 8).map_err(|_| io::ErrorKind::FileTooLarge)?;
        // SAFETY: it makes a file longer that nobody has mapped yet.
        let error = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len) };
        if error != 0 {
            let _ = std::fs::remove_file(path);
            return Err(io::Error::from_raw_os_error(error));
        }
        Self::map(&file)
    }

    pub(super) fn map(file: &File) -> io::Result<Self> {
        mapped::Mapped::file(file).map(Self::Mapped)
    }
}

#[cfg(all(unix, not(miri), not(loom)))]
mod mapped {
    use std::fs::File;
    use std::hash::{BuildHasher, Hasher, RandomState};
    use std::io;
    use std::os::fd::AsRawFd;
    use std::ptr::{self, NonNull};
    use std::slice;

    use crate::primitive::AtomicU64;

    /// A shared mapping.
    #[derive(Debug)]
    pub(in super::super) struct Mapped {
        start: NonNull<AtomicU64>,
        words: usize,
    }

    // SAFETY: it is memory with atomics only.
    unsafe impl Send for Mapped {}
    // SAFETY: as above.
    unsafe impl Sync for Mapped {}

    impl Mapped {
        /// Memory without a file.
        pub(in super::super) fn anonymous(len: usize) -> io::Result<Self> {
            // Memory is not set aside: what is never written to is never there.
            Self::map(len, libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1)
        }

        /// A whole file.
        pub(in super::super) fn file(file: &File) -> io::Result<Self> {
            let len = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
            if len < 8 {
                let what = format!("{len} bytes are too few for rings");
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
            Self::map(len, 0, file.as_raw_fd())
        }

        fn map(len: usize, flags: i32, fd: i32) -> io::Result<Self> {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a new mapping: where another one is, the system chooses a place.
            let start = unsafe {
                libc::mmap(
                    ptr::without_provenance_mut(place()),
                    len,
                    access,
                    libc::MAP_SHARED | flags,
                    fd,
                    0,
                )
            };
            if start == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
            let words = len / 8;
            Ok(Self { start, words })
        }

        pub(in super::super) fn words(&self) -> &[AtomicU64] {
            // SAFETY: so many words are mapped, aligned to a page, for as long as `self` lives;
            // zeros and everything that other processes write are values of an atomic.
            unsafe { slice::from_raw_parts(self.start.as_ptr(), self.words) }
        }
    }

    /// An address at which the rings would like to be: far from all code, beside which what patches
    /// it looks for room within the reach of a jump. Not always the same, as for other mappings.
    fn place() -> usize {
        const LOWEST: u64 = 0x2000_0000_0000;
        const BITS: u32 = 44;
        const ALIGN: u64 = 1 << 21;
        let random = RandomState::new().build_hasher().finish() >> (64 - BITS);
        // There is no such address where addresses have 32 bits: the system chooses.
        usize::try_from(LOWEST + random / ALIGN * ALIGN).unwrap_or(0)
    }

    impl Drop for Mapped {
        fn drop(&mut self) {
            // SAFETY: mapped by us; what refers to it borrows from `self`.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.words * 8) };
        }
    }
}
