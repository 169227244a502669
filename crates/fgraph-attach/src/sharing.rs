//! Files of this process that another process gets.
//!
//! The number of a descriptor says nothing about the file behind it: the process may have put
//! another one there. Each file is therefore made by this process, and passed through a socket; no
//! other process knows it until then. Only one end of that socket comes from the process, which has
//! made the pair, and only the message with the file goes into it.
//!
//! # Safety
//!
//! The unsafe code makes system calls with buffers and descriptors of its own.

use std::env;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::PathBuf;

use libc::{c_int, c_void};

/// Makes an empty memory file that can be sealed.
pub(crate) fn memory_file(name: &CStr, is_executable: bool) -> io::Result<File> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let kind = match is_executable {
        true => libc::MFD_EXEC,
        false => libc::MFD_NOEXEC_SEAL,
    };
    let make = |flags| {
        // SAFETY: `name` ends with a zero.
        owned(i64::from(unsafe {
            libc::memfd_create(name.as_ptr(), flags)
        }))
    };
    let made = match make(flags | kind) {
        // Before Linux 6.3 all such files are executable, and the flag is unknown.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => make(flags),
        made => made,
    };
    made.map(File::from)
}

/// Makes a file with a library, in memory if that may be executable. Where it is mapped, its path
/// contains `name`.
pub(crate) fn library_file(name: &CStr, bytes: &[u8]) -> io::Result<File> {
    match memory_file(name, true) {
        Ok(mut file) => {
            file.write_all(bytes)?;
            seal(&file)?;
            Ok(file)
        }
        // The setting `vm.memfd_noexec` is 2.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => file_on_disk(name, bytes),
        Err(error) => Err(error),
    }
}

/// Makes a file on disk without a name, which exists until it is closed everywhere. Nobody may
/// write to it.
fn file_on_disk(name: &CStr, bytes: &[u8]) -> io::Result<File> {
    let template = env::temp_dir().join("fgraph-XXXXXX");
    let mut template = CString::new(template.into_os_string().into_vec())?.into_bytes_with_nul();
    // SAFETY: the template ends with a zero, and the kernel's names replace six letters in place.
    if unsafe { libc::mkdtemp(template.as_mut_ptr().cast()) }.is_null() {
        return Err(io::Error::last_os_error());
    }
    template.pop();
    let folder = PathBuf::from(OsString::from_vec(template));
    let mut path = folder
        .join(OsStr::from_bytes(name.to_bytes()))
        .into_os_string();
    path.push(".so");
    let mut options = File::options();
    let options = options.write(true).create_new(true).mode(0o500);
    let written = options.open(&path).and_then(|mut file| {
        // Other users may map it, whatever the mask for new files.
        file.set_permissions(Permissions::from_mode(0o555))?;
        file.write_all(bytes)?;
        File::open(&path)
    });
    let _ = fs::remove_file(&path);
    let _ = fs::remove_dir(folder);
    written
}

/// Forbids all changes of a memory file, even through open descriptors.
fn seal(file: &File) -> io::Result<()> {
    let seals = libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: the call only changes the permitted operations of the file.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// One end of a socket whose other end another process has.
#[derive(Debug)]
pub(crate) struct Socket(OwnedFd);

impl Socket {
    /// Takes the socket end that a process names by `descriptor`.
    ///
    /// # Errors
    ///
    /// [`InvalidData`](io::ErrorKind::InvalidData) if it is not an end of a pair that the process
    /// has made; other errors if the kernel refuses it.
    pub(crate) fn take(pid: u32, descriptor: i32) -> io::Result<Self> {
        // SAFETY: `pidfd_open` only opens a descriptor.
        let process = owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
        // SAFETY: `pidfd_getfd` only duplicates a descriptor.
        let taken =
            unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), descriptor, 0) };
        let socket = Self(owned(taken)?);
        match socket.is_made_by(pid) {
            true => Ok(socket),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// True if it is an end of a pair of datagram sockets that the process has made.
    fn is_made_by(&self, pid: u32) -> bool {
        let [domain, _, _] = self.option(libc::SO_DOMAIN);
        let [kind, _, _] = self.option(libc::SO_TYPE);
        // A `ucred` with the maker of the pair, or the listener at the other end.
        let [maker, _, _] = self.option(libc::SO_PEERCRED);
        domain == libc::AF_UNIX && kind == libc::SOCK_DGRAM && maker as u32 == pid
    }

    /// Returns the numbers of an option of the socket, with -1 for missing ones. A descriptor that
    /// is no socket has none.
    fn option(&self, name: c_int) -> [c_int; 3] {
        let mut values = [-1; 3];
        let mut len = size_of_val(&values) as libc::socklen_t;
        let place = values.as_mut_ptr().cast::<c_void>();
        let fd = self.0.as_raw_fd();
        // SAFETY: the kernel writes at most `len` bytes to `values`.
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, place, &mut len) };
        values
    }

    /// Sends a file in a message of one byte.
    pub(crate) fn send(&self, file: &File) -> io::Result<()> {
        let mut byte = b'f';
        let mut part = libc::iovec {
            iov_base: (&raw mut byte).cast(),
            iov_len: 1,
        };
        let mut control = [0_u64; 3];
        // SAFETY: zeros are a valid empty message.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        // SAFETY: the control buffer has room for a header and a descriptor, and is aligned.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<c_int>() as u32) as usize;
            let descriptor = libc::CMSG_DATA(header).cast::<c_int>();
            descriptor.write_unaligned(file.as_raw_fd());
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: `message` leads to locals that are alive.
        match unsafe { libc::sendmsg(self.0.as_raw_fd(), &message, flags) } {
            1 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Wraps the descriptor that a system call has returned.
fn owned(result: i64) -> io::Result<OwnedFd> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(result as c_int) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::IntoRawFd as _;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    #[test]
    fn only_an_end_of_a_pair_that_the_process_made_is_taken() {
        let own = std::process::id();
        let refused = |descriptor| {
            let error = Socket::take(own, descriptor).unwrap_err();
            error.kind() == io::ErrorKind::InvalidData
        };
        let (end, other) = UnixDatagram::pair().unwrap();
        let socket = Socket::take(own, end.as_raw_fd()).unwrap();
        let file = memory_file(c"sent", false).unwrap();
        socket.send(&file).unwrap();
        assert_eq!(other.recv(&mut [0; 2]).unwrap(), 1);
        // Neither a file, nor a socket of another kind, nor an unconnected one is accepted.
        assert!(refused(file.as_raw_fd()));
        assert!(refused(UnixStream::pair().unwrap().0.into_raw_fd()));
        assert!(refused(UnixDatagram::unbound().unwrap().into_raw_fd()));
        assert!(Socket::take(own, -1).is_err());
    }

    #[test]
    fn nobody_changes_a_file_that_is_sealed() {
        let mut file = library_file(c"sealed", b"here").unwrap();
        assert!(file.write_all(b"x").is_err() && file.set_len(0).is_err());
    }
}
