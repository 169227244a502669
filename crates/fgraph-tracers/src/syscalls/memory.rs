//! Memory of the program that the arguments of a system call point to.
//!
//! [`kernel::peek`] copies it, so an address without memory does no harm.

use core::ffi::CStr;

use crate::support::kernel;
use crate::support::text_line::Line;

/// Most bytes that are copied of one call.
pub(super) const ROOM: usize = 400;
/// Most pieces that are copied of one call.
pub(super) const PIECES: usize = 8;
/// Most bytes of a text.
const TEXT: usize = 192;
/// Most bytes of the data that a call reads or writes.
const DATA: usize = 128;
/// Most bytes of each of several buffers.
const BUFFER: usize = 40;
/// Most buffers of a call.
const BUFFERS: usize = 4;
/// Most texts of a list.
const TEXTS: usize = 16;
/// Most bytes of the path of a descriptor's link, with its zero.
const LINK: usize = 40;
/// Bytes of an address.
const POINTER: usize = 8;
/// Bytes of a `struct iovec`.
const VECTOR: usize = 16;

/// Time of copying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    Before,
    After,
}

/// Extent of the memory behind an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// Text up to a zero.
    Text,
    /// Same as `Text` if the first argument of `prctl` says that it is one.
    Name,
    /// Addresses of texts, up to a null.
    Texts,
    /// This many bytes.
    Fixed(u8),
    /// The number of bytes in this argument.
    Sized(u8),
    /// The number of bytes in the `socklen_t` that this argument points to.
    SizedAt(u8),
    /// The number of elements in the second argument, each of the first number of bytes.
    Array(u8, u8),
    /// The number of bytes in the result.
    Result,
    /// The number of elements in the result, each of this number of bytes.
    ResultArray(u8),
    /// The number of `struct iovec` in this argument, and the buffers of the first ones.
    Buffers(u8),
}

/// Memory to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) arg: u8,
    pub(super) extent: Extent,
    pub(super) when: When,
}

impl Shape {
    pub(super) const fn before(arg: u8, extent: Extent) -> Self {
        let when = When::Before;
        Self { arg, extent, when }
    }

    pub(super) const fn after(arg: u8, extent: Extent) -> Self {
        let when = When::After;
        Self { arg, extent, when }
    }
}

/// Place of a piece in the program, and the length of its copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    /// Index of the argument that points to the piece; from [`BUFFER_ARG`] on, index of a buffer.
    pub(super) arg: u8,
    pub(super) is_after: bool,
    /// False if the copy is cut.
    pub(super) is_whole: bool,
    /// True if the copy is the path of the descriptor that the argument is.
    pub(super) is_path: bool,
    pub(super) len: u16,
}

/// Index of the result, for its path.
const RESULT_ARG: u8 = 6;

/// Index of the first buffer of [`Extent::Buffers`].
pub(super) const BUFFER_ARG: u8 = 8;

/// Copies of pieces of the program's memory, in a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    bytes: [u8; ROOM],
    parts: [Part; PIECES],
    len: u16,
    count: u8,
}

impl Memory {
    pub(super) const fn new() -> Self {
        let none = Part {
            arg: 0,
            is_after: false,
            is_whole: true,
            is_path: false,
            len: 0,
        };
        Self {
            bytes: [0; ROOM],
            parts: [none; PIECES],
            len: 0,
            count: 0,
        }
    }

    /// Creates one piece with these bytes.
    #[cfg(test)]
    pub(super) fn of(arg: u8, bytes: &[u8]) -> Self {
        let mut memory = Self::new();
        memory.bytes[..bytes.len()].copy_from_slice(bytes);
        memory.push(arg, false, true, bytes.len());
        memory
    }

    /// Returns the bytes of the first piece.
    pub(super) fn first(&self) -> &[u8] {
        let len = usize::from(self.parts[0].len);
        self.bytes.get(..len).unwrap_or_default()
    }

    /// Returns the pieces, in the order of their [`bytes`](Self::bytes).
    pub(super) fn parts(&self) -> &[Part] {
        self.parts.get(..self.count.into()).unwrap_or_default()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len.into()).unwrap_or_default()
    }

    /// Copies the memory of one argument, as far as there is room.
    pub(super) fn copy(&mut self, shape: Shape, args: &[u64; 6], result: i64, process: u32) {
        let value = |arg: u8| args.get(usize::from(arg)).copied().unwrap_or(0) as usize;
        let (arg, address) = (shape.arg, value(shape.arg));
        let is_after = shape.when == When::After;
        if address == 0 || is_after && result < 0 {
            return;
        }
        let returned = usize::try_from(result).unwrap_or(0);
        let mut fixed = |len: usize, most: usize| {
            let is_whole = len <= most;
            self.fixed(arg, is_after, address, len.min(most), is_whole, process);
        };
        match shape.extent {
            Extent::Text => self.text(arg, address, process),
            Extent::Name if value(0) as i32 == libc::PR_SET_NAME => {
                self.text(arg, address, process);
            }
            Extent::Name => {}
            Extent::Texts => self.texts(arg, address, process),
            Extent::Fixed(len) => fixed(len.into(), ROOM),
            Extent::Sized(len) => fixed(value(len), DATA),
            Extent::SizedAt(len) => {
                let mut word = [0; 4];
                kernel::peek(process, value(len), &mut word);
                fixed(u32::from_le_bytes(word) as usize, DATA);
            }
            Extent::Array(count, size) => {
                let size = usize::from(size);
                fixed(
                    value(count).saturating_mul(size),
                    DATA.next_multiple_of(size) - size,
                );
            }
            Extent::Result => fixed(returned, DATA),
            Extent::ResultArray(size) => {
                let size = usize::from(size);
                fixed(returned.saturating_mul(size), 8 * size);
            }
            Extent::Buffers(count) => {
                let left = if is_after { returned } else { usize::MAX };
                self.buffers(arg, is_after, address, value(count), left, process);
            }
        }
    }

    /// Copies the paths of the descriptors that a call gets, or of the one that it returns, as far
    /// as there is room. The kernel names them.
    pub(super) fn paths(&mut self, number: u64, args: &[u64; 6], when: When, result: i64) {
        let descriptors = descriptors(number, args);
        match when {
            When::Before => {
                for &arg in descriptors.args {
                    let word = args.get(usize::from(arg)).copied().unwrap_or(0);
                    self.path(arg, false, word as i32);
                }
            }
            When::After if descriptors.is_result => {
                self.path(RESULT_ARG, true, i32::try_from(result).unwrap_or(-1));
            }
            When::After => {}
        }
    }

    fn path(&mut self, arg: u8, is_after: bool, descriptor: i32) {
        let mut link = Line::<LINK>::new();
        link.push_str("/proc/thread-self/");
        match u64::try_from(descriptor) {
            Ok(number) => {
                link.push_str("fd/");
                link.push_decimal(number, 1, b'0');
            }
            Err(_) if descriptor == libc::AT_FDCWD => link.push_str("cwd"),
            Err(_) => return,
        }
        link.push(0);
        let Ok(link) = CStr::from_bytes_with_nul(link.as_bytes()) else {
            return;
        };
        let into = self.room(TEXT);
        let room = into.len();
        let read = kernel::read_link(link, into);
        if read > 0 {
            let nth = usize::from(self.count);
            self.push(arg, is_after, read < room, read);
            if let Some(part) = self.parts.get_mut(nth) {
                part.is_path = true;
            }
        }
    }

    fn push(&mut self, arg: u8, is_after: bool, is_whole: bool, len: usize) {
        if let Some(place) = self.parts.get_mut(usize::from(self.count)) {
            *place = Part {
                arg,
                is_after,
                is_whole,
                is_path: false,
                len: len as u16,
            };
            self.count += 1;
            self.len += len as u16;
        }
    }

    /// Returns room for at most this many more bytes; empty if no piece may be added.
    fn room(&mut self, most: usize) -> &mut [u8] {
        if usize::from(self.count) == PIECES {
            return &mut [];
        }
        let len = usize::from(self.len);
        let end = (len + most).min(ROOM);
        self.bytes.get_mut(len..end).unwrap_or_default()
    }

    /// Copies a number of bytes. Unreadable memory adds no piece.
    fn fixed(
        &mut self,
        arg: u8,
        is_after: bool,
        address: usize,
        len: usize,
        is_whole: bool,
        process: u32,
    ) {
        let into = self.room(len);
        let is_whole = is_whole && into.len() == len;
        let read = kernel::peek(process, address, into);
        if read > 0 || len == 0 {
            self.push(arg, is_after, is_whole && read == len, read);
        }
    }

    fn text(&mut self, arg: u8, address: usize, process: u32) {
        let into = self.room(TEXT);
        let read = kernel::peek(process, address, into);
        let len = length(into, read);
        if read > 0 {
            self.push(arg, false, len < read, len);
        }
    }

    /// Copies texts, each with its zero.
    fn texts(&mut self, arg: u8, address: usize, process: u32) {
        let start = usize::from(self.len);
        let (mut at, mut nth, mut is_whole) = (start, 0, false);
        let end = (start + TEXT).min(ROOM);
        while nth < TEXTS && usize::from(self.count) < PIECES {
            let mut pointer = [0; POINTER];
            let place = address.wrapping_add(nth * POINTER);
            if kernel::peek(process, place, &mut pointer) < POINTER {
                break;
            }
            let pointer = usize::from_le_bytes(pointer);
            if pointer == 0 {
                is_whole = true;
                break;
            }
            let into = self.bytes.get_mut(at..end).unwrap_or_default();
            let read = kernel::peek(process, pointer, into);
            let len = length(into, read);
            if len == read {
                break;
            }
            at += len + 1;
            nth += 1;
        }
        self.push(arg, false, is_whole, at - start);
    }

    fn buffers(
        &mut self,
        arg: u8,
        is_after: bool,
        address: usize,
        count: usize,
        mut left: usize,
        process: u32,
    ) {
        let few = count.min(BUFFERS);
        let start = usize::from(self.len);
        let is_whole = few == count;
        self.fixed(arg, is_after, address, few * VECTOR, is_whole, process);
        let copied = usize::from(self.len) - start;
        let mut nth = 0;
        while nth < copied / VECTOR {
            let at = start + nth * VECTOR;
            let word = |at: usize| {
                let mut word = [0; POINTER];
                word.copy_from_slice(self.bytes.get(at..at + POINTER).unwrap_or(&[0; POINTER]));
                usize::from_le_bytes(word)
            };
            let (base, size) = (word(at), word(at + POINTER));
            let len = size.min(left);
            left -= len;
            let arg = BUFFER_ARG + nth as u8;
            let most = len.min(BUFFER);
            self.fixed(arg, is_after, base, most, most == len, process);
            nth += 1;
        }
    }
}

/// Returns the number of bytes before the first zero in the bytes that were read.
fn length(bytes: &[u8], read: usize) -> usize {
    let mut len = 0;
    while len < read && bytes.get(len).is_some_and(|byte| *byte != 0) {
        len += 1;
    }
    len
}

/// Descriptors of a system call.
#[derive(Clone, Copy, Debug)]
struct Descriptors {
    /// Indices of the arguments that are descriptors.
    args: &'static [u8],
    /// True if the result is one.
    is_result: bool,
}

/// Returns the arguments of a system call that are descriptors or directories for paths, and says
/// if its result is a descriptor.
fn descriptors(number: u64, args: &[u64; 6]) -> Descriptors {
    let (args, is_result): (&[u8], bool) = match number as libc::c_long {
        libc::SYS_read
        | libc::SYS_write
        | libc::SYS_pread64
        | libc::SYS_pwrite64
        | libc::SYS_readv
        | libc::SYS_writev
        | libc::SYS_preadv
        | libc::SYS_pwritev
        | libc::SYS_preadv2
        | libc::SYS_pwritev2
        | libc::SYS_close
        | libc::SYS_fstat
        | libc::SYS_lseek
        | libc::SYS_ioctl
        | libc::SYS_connect
        | libc::SYS_bind
        | libc::SYS_listen
        | libc::SYS_shutdown
        | libc::SYS_sendto
        | libc::SYS_recvfrom
        | libc::SYS_sendmsg
        | libc::SYS_recvmsg
        | libc::SYS_sendmmsg
        | libc::SYS_recvmmsg
        | libc::SYS_getsockname
        | libc::SYS_getpeername
        | libc::SYS_setsockopt
        | libc::SYS_getsockopt
        | libc::SYS_flock
        | libc::SYS_fsync
        | libc::SYS_fdatasync
        | libc::SYS_syncfs
        | libc::SYS_sync_file_range
        | libc::SYS_readahead
        | libc::SYS_fadvise64
        | libc::SYS_fallocate
        | libc::SYS_ftruncate
        | libc::SYS_getdents
        | libc::SYS_getdents64
        | libc::SYS_fchdir
        | libc::SYS_fchmod
        | libc::SYS_fchown
        | libc::SYS_fstatfs
        | libc::SYS_fgetxattr
        | libc::SYS_fsetxattr
        | libc::SYS_flistxattr
        | libc::SYS_fremovexattr
        | libc::SYS_mkdirat
        | libc::SYS_mknodat
        | libc::SYS_unlinkat
        | libc::SYS_fchownat
        | libc::SYS_fchmodat
        | libc::SYS_faccessat
        | libc::SYS_faccessat2
        | libc::SYS_readlinkat
        | libc::SYS_newfstatat
        | libc::SYS_statx
        | libc::SYS_utimensat
        | libc::SYS_futimesat
        | libc::SYS_execveat
        | libc::SYS_epoll_wait
        | libc::SYS_epoll_pwait
        | libc::SYS_inotify_add_watch
        | libc::SYS_inotify_rm_watch
        | libc::SYS_timerfd_settime
        | libc::SYS_timerfd_gettime => (&[0], false),
        libc::SYS_openat
        | libc::SYS_openat2
        | libc::SYS_dup
        | libc::SYS_accept
        | libc::SYS_accept4
        | libc::SYS_signalfd
        | libc::SYS_signalfd4 => (&[0], true),
        libc::SYS_fcntl => {
            let command = args[1] as i32;
            let gives_one = command == libc::F_DUPFD || command == libc::F_DUPFD_CLOEXEC;
            (&[0], gives_one)
        }
        libc::SYS_dup2 | libc::SYS_dup3 => (&[0, 1], true),
        libc::SYS_symlinkat => (&[1], false),
        libc::SYS_renameat
        | libc::SYS_renameat2
        | libc::SYS_linkat
        | libc::SYS_splice
        | libc::SYS_copy_file_range
        | libc::SYS_epoll_ctl => (&[0, 2], false),
        libc::SYS_sendfile | libc::SYS_tee => (&[0, 1], false),
        libc::SYS_mmap => (&[4], false),
        libc::SYS_open
        | libc::SYS_creat
        | libc::SYS_socket
        | libc::SYS_eventfd
        | libc::SYS_eventfd2
        | libc::SYS_epoll_create
        | libc::SYS_epoll_create1
        | libc::SYS_timerfd_create
        | libc::SYS_inotify_init
        | libc::SYS_inotify_init1
        | libc::SYS_memfd_create
        | libc::SYS_pidfd_open
        | libc::SYS_userfaultfd => (&[], true),
        _ => (&[], false),
    };
    Descriptors { args, is_result }
}

/// Returns the memory of a system call that is worth showing.
pub(super) fn shapes(number: u64) -> &'static [Shape] {
    use Extent::{Array, Buffers, Fixed, Name, Result, ResultArray, Sized, SizedAt, Text, Texts};
    macro_rules! shapes {
        ($($when:ident $arg:literal $extent:expr),*) => {
            const { &[$(Shape::$when($arg, $extent)),*] }
        };
    }
    match number as libc::c_long {
        libc::SYS_read | libc::SYS_pread64 => shapes![after 1 Result],
        libc::SYS_write | libc::SYS_pwrite64 => shapes![before 1 Sized(2)],
        libc::SYS_readv | libc::SYS_preadv => shapes![after 1 Buffers(2)],
        libc::SYS_writev | libc::SYS_pwritev => shapes![before 1 Buffers(2)],
        libc::SYS_open
        | libc::SYS_access
        | libc::SYS_truncate
        | libc::SYS_chdir
        | libc::SYS_mkdir
        | libc::SYS_rmdir
        | libc::SYS_creat
        | libc::SYS_unlink
        | libc::SYS_chmod
        | libc::SYS_chown
        | libc::SYS_lchown
        | libc::SYS_mknod
        | libc::SYS_chroot
        | libc::SYS_swapon
        | libc::SYS_swapoff
        | libc::SYS_umount2
        | libc::SYS_memfd_create => shapes![before 0 Text],
        libc::SYS_rename | libc::SYS_link | libc::SYS_symlink | libc::SYS_pivot_root => {
            shapes![before 0 Text, before 1 Text]
        }
        libc::SYS_openat
        | libc::SYS_mkdirat
        | libc::SYS_unlinkat
        | libc::SYS_faccessat
        | libc::SYS_faccessat2
        | libc::SYS_fchmodat
        | libc::SYS_fchownat
        | libc::SYS_mknodat
        | libc::SYS_inotify_add_watch => shapes![before 1 Text],
        libc::SYS_renameat | libc::SYS_renameat2 | libc::SYS_linkat => {
            shapes![before 1 Text, before 3 Text]
        }
        libc::SYS_symlinkat => shapes![before 0 Text, before 2 Text],
        libc::SYS_mount => shapes![before 0 Text, before 1 Text, before 2 Text],
        libc::SYS_readlink => shapes![before 0 Text, after 1 Result],
        libc::SYS_readlinkat => shapes![before 1 Text, after 2 Result],
        libc::SYS_getcwd => shapes![after 0 Result],
        libc::SYS_stat | libc::SYS_lstat => shapes![before 0 Text, after 1 Fixed(144)],
        libc::SYS_fstat => shapes![after 1 Fixed(144)],
        libc::SYS_newfstatat => shapes![before 1 Text, after 2 Fixed(144)],
        libc::SYS_statx => shapes![before 1 Text, after 4 Fixed(64)],
        libc::SYS_statfs => shapes![before 0 Text],
        libc::SYS_utimensat => shapes![before 1 Text, before 2 Fixed(32)],
        libc::SYS_execve => shapes![before 0 Text, before 1 Texts],
        libc::SYS_execveat => shapes![before 1 Text, before 2 Texts],
        libc::SYS_pipe | libc::SYS_pipe2 => shapes![after 0 Fixed(8)],
        libc::SYS_socketpair => shapes![after 3 Fixed(8)],
        libc::SYS_poll => shapes![before 0 Array(1, 8), after 0 Array(1, 8)],
        libc::SYS_ppoll => {
            shapes![before 0 Array(1, 8), before 2 Fixed(16), after 0 Array(1, 8)]
        }
        libc::SYS_connect | libc::SYS_bind => shapes![before 1 Sized(2)],
        libc::SYS_accept | libc::SYS_accept4 | libc::SYS_getsockname | libc::SYS_getpeername => {
            shapes![before 2 Fixed(4), after 1 SizedAt(2), after 2 Fixed(4)]
        }
        libc::SYS_sendto => shapes![before 1 Sized(2), before 4 Sized(5)],
        libc::SYS_recvfrom => shapes![after 1 Result, after 4 SizedAt(5), after 5 Fixed(4)],
        libc::SYS_setsockopt => shapes![before 3 Sized(4)],
        libc::SYS_getsockopt => shapes![after 3 SizedAt(4), after 4 Fixed(4)],
        libc::SYS_epoll_ctl => shapes![before 3 Fixed(12)],
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait => shapes![after 1 ResultArray(12)],
        libc::SYS_wait4 => shapes![after 1 Fixed(4)],
        libc::SYS_waitid => shapes![after 2 Fixed(32)],
        libc::SYS_uname => shapes![after 0 Fixed(130)],
        libc::SYS_getrandom => shapes![after 0 Result],
        libc::SYS_nanosleep => shapes![before 0 Fixed(16)],
        libc::SYS_clock_nanosleep => shapes![before 2 Fixed(16)],
        libc::SYS_clock_gettime | libc::SYS_clock_getres => shapes![after 1 Fixed(16)],
        libc::SYS_timerfd_settime => shapes![before 2 Fixed(32)],
        libc::SYS_setitimer => shapes![before 1 Fixed(32)],
        libc::SYS_prlimit64 => shapes![before 2 Fixed(16), after 3 Fixed(16)],
        libc::SYS_getrlimit => shapes![after 1 Fixed(16)],
        libc::SYS_setrlimit => shapes![before 1 Fixed(16)],
        libc::SYS_rt_sigaction => shapes![before 1 Fixed(32), after 2 Fixed(32)],
        libc::SYS_rt_sigprocmask => shapes![before 1 Fixed(8), after 2 Fixed(8)],
        libc::SYS_rt_sigsuspend => shapes![before 0 Fixed(8)],
        libc::SYS_prctl => shapes![before 1 Name],
        libc::SYS_futex => shapes![before 3 Fixed(16)],
        libc::SYS_sched_getaffinity => shapes![after 2 Result],
        libc::SYS_sched_setaffinity => shapes![before 2 Sized(1)],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copied(shape: Shape, args: [u64; 6], result: i64) -> Memory {
        let mut memory = Memory::new();
        memory.copy(shape, &args, result, kernel::process());
        memory
    }

    fn address<T: ?Sized>(value: &T) -> u64 {
        (&raw const *value).cast::<u8>().expose_provenance() as u64
    }

    #[test]
    fn a_long_text_and_long_data_are_cut() {
        for (len, is_whole) in [(3, true), (TEXT - 1, true), (TEXT, false), (300, false)] {
            let text = [vec![b'a'; len], vec![0; 300]].concat();
            let args = [address(&text[..]), 0, 0, 0, 0, 0];
            let memory = copied(Shape::before(0, Extent::Text), args, 0);
            assert_eq!(memory.bytes().len(), len.min(TEXT));
            assert_eq!(memory.parts()[0].is_whole, is_whole, "{len}");
        }
        let args = [0, address(&[7_u8; 300]), 300, 0, 0, 0];
        let memory = copied(Shape::before(1, Extent::Sized(2)), args, 0);
        assert_eq!(memory.bytes(), [7; DATA]);
        assert!(!memory.parts()[0].is_whole);
    }

    #[test]
    fn memory_that_is_not_there_gives_no_piece() {
        for address in [0, 1, u64::MAX] {
            for extent in [Extent::Text, Extent::Fixed(8), Extent::Buffers(1)] {
                let memory = copied(Shape::before(0, extent), [address, 1, 0, 0, 0, 0], 0);
                assert_eq!(memory.parts(), [], "{address:#x} {extent:?}");
            }
        }
        let args = [address(&[1_u64; 2]), 0, 0, 0, 0, 0];
        let failed = copied(Shape::after(0, Extent::Fixed(16)), args, -2);
        assert_eq!(failed.parts(), []);
    }

    #[test]
    fn texts_and_buffers_are_followed() {
        let texts = [c"ls", c"", c"-l"].map(|text| text.as_ptr().expose_provenance() as u64);
        let list = [&texts[..], &[0]].concat();
        let args = [0, address(&list[..]), 0, 0, 0, 0];
        let memory = copied(Shape::before(1, Extent::Texts), args, 0);
        assert_eq!(memory.bytes(), b"ls\0\0-l\0");
        assert!(memory.parts()[0].is_whole);
        let (first, second) = (b"hello", b"world");
        let vectors = [address(first), 5, address(second), 5];
        let args = [1, address(&vectors), 2, 0, 0, 0];
        let memory = copied(Shape::after(1, Extent::Buffers(2)), args, 7);
        assert!(memory.bytes().ends_with(b"hellowo"), "{memory:?}");
        let arguments = memory.parts().iter().map(|it| it.arg);
        assert_eq!(arguments.collect::<Vec<_>>(), [1, 8, 9]);
    }

    #[test]
    fn descriptors_have_the_paths_of_their_files() {
        use std::os::fd::AsRawFd;
        let file = std::fs::File::open("/dev/null").unwrap();
        let number = file.as_raw_fd() as u64;
        let paths = |call: libc::c_long, args, when, result| {
            let mut memory = Memory::new();
            memory.paths(call as u64, &args, when, result);
            let parts = memory.parts().iter().map(|part| (part.arg, part.is_path));
            let parts: Vec<_> = parts.collect();
            (parts, String::from_utf8(memory.bytes().to_vec()).unwrap())
        };
        let args = [number, 0, 0, 0, 0, 0];
        let read = paths(libc::SYS_read, args, When::Before, 0);
        assert_eq!(read, (vec![(0, true)], "/dev/null".to_owned()));
        let opened = paths(libc::SYS_openat, args, When::After, number as i64);
        assert_eq!(opened, (vec![(RESULT_ARG, true)], "/dev/null".to_owned()));
        let (parts, cwd) = paths(libc::SYS_openat, [-100_i64 as u64; 6], When::Before, 0);
        assert_eq!(parts, [(0, true)]);
        assert_eq!(Some(&cwd[..]), std::env::current_dir().unwrap().to_str());
        for args in [[-1_i64 as u64; 6], [i32::MAX as u64; 6]] {
            assert_eq!(paths(libc::SYS_close, args, When::Before, 0).0, []);
        }
        assert_eq!(paths(libc::SYS_openat, args, When::After, -2).0, []);
        assert_eq!(paths(libc::SYS_getpid, args, When::Before, 0).0, []);
    }

    #[test]
    fn there_is_no_room_beyond_the_end() {
        let text = [vec![b'a'; 1000], vec![0]].concat();
        let args = [address(&text[..]); 6];
        let mut memory = Memory::new();
        for _ in 0..2 * PIECES {
            memory.copy(Shape::before(0, Extent::Text), &args, 0, kernel::process());
        }
        assert_eq!(memory.bytes().len(), ROOM);
        let len: usize = memory.parts().iter().map(|it| usize::from(it.len)).sum();
        assert_eq!(len, ROOM);
    }
}
