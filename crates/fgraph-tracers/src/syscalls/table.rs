//! The functions of the C library that make a system call, and which.

/// An argument of a system call, by the wrapper's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arg {
    /// The wrapper's argument of this index.
    Of(u8),
    /// Always this.
    Is(i32),
}

/// What of the program's memory is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Data {
    /// Nothing.
    No,
    /// The text at this argument, up to its 0, as the call begins.
    Text(u8),
    /// The bytes at this argument, as many as the result says, as the call returns.
    Bytes(u8),
}

/// What is known of a wrapper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wrapper {
    /// The number of the system call; `None` if it is the wrapper's first argument.
    pub(super) number: Option<u16>,
    pub(super) args: [Arg; 6],
    pub(super) data: Data,
    /// Whether the result has 64 bits; else it is an `int`.
    pub(super) is_long: bool,
    /// Whether it may not come back.
    pub(super) may_end: bool,
}

use Arg::{Is, Of};
use Data::{Bytes, No, Text};

/// A wrapper that hands its arguments on.
const fn plain(number: libc::c_long, args: u8, data: Data, is_long: bool) -> Wrapper {
    let mut list = [Is(0); 6];
    let mut index = 0;
    while index < args {
        list[index as usize] = Of(index);
        index += 1;
    }
    Wrapper {
        number: Some(number as u16),
        args: list,
        data,
        is_long,
        may_end: false,
    }
}

/// A wrapper that puts other arguments together.
const fn by(number: libc::c_long, args: [Arg; 6], data: Data) -> Wrapper {
    Wrapper {
        args,
        ..plain(number, 0, data, false)
    }
}

/// A wrapper that may not come back.
const fn ends(number: libc::c_long, args: u8, data: Data) -> Wrapper {
    Wrapper {
        may_end: true,
        ..plain(number, args, data, false)
    }
}

/// Wrappers that are named like their system call: the name, the number, how many arguments, what
/// is shown, and whether the result is long.
macro_rules! same {
    ($($call:ident $name:literal $args:literal $data:expr, $long:literal;)*) => {
        &[$(($name, plain(libc::$call, $args, $data, $long))),*]
    };
}

const SAME: &[(&str, Wrapper)] = same! {
    SYS_read "read" 3 Bytes(1), true;
    SYS_write "write" 3 Bytes(1), true;
    SYS_close "close" 1 No, false;
    SYS_poll "poll" 3 No, false;
    SYS_lseek "lseek" 3 No, true;
    SYS_lseek "lseek64" 3 No, true;
    SYS_mmap "mmap" 6 No, true;
    SYS_mmap "mmap64" 6 No, true;
    SYS_mprotect "mprotect" 3 No, false;
    SYS_munmap "munmap" 2 No, false;
    SYS_ioctl "ioctl" 3 No, false;
    SYS_pread64 "pread64" 4 Bytes(1), true;
    SYS_pread64 "pread" 4 Bytes(1), true;
    SYS_pwrite64 "pwrite64" 4 Bytes(1), true;
    SYS_pwrite64 "pwrite" 4 Bytes(1), true;
    SYS_readv "readv" 3 No, true;
    SYS_writev "writev" 3 No, true;
    SYS_access "access" 2 Text(0), false;
    SYS_pipe2 "pipe2" 2 No, false;
    SYS_sched_yield "sched_yield" 0 No, false;
    SYS_mremap "mremap" 5 No, true;
    SYS_msync "msync" 3 No, false;
    SYS_mincore "mincore" 3 No, false;
    SYS_madvise "madvise" 3 No, false;
    SYS_dup "dup" 1 No, false;
    SYS_dup2 "dup2" 2 No, false;
    SYS_dup3 "dup3" 3 No, false;
    SYS_getpid "getpid" 0 No, false;
    SYS_getppid "getppid" 0 No, false;
    SYS_gettid "gettid" 0 No, false;
    SYS_sendfile "sendfile" 4 No, true;
    SYS_sendfile "sendfile64" 4 No, true;
    SYS_socket "socket" 3 No, false;
    SYS_connect "connect" 3 No, false;
    SYS_accept "accept" 3 No, false;
    SYS_accept4 "accept4" 4 No, false;
    SYS_sendto "sendto" 6 Bytes(1), true;
    SYS_recvfrom "recvfrom" 6 Bytes(1), true;
    SYS_sendmsg "sendmsg" 3 No, true;
    SYS_recvmsg "recvmsg" 3 No, true;
    SYS_shutdown "shutdown" 2 No, false;
    SYS_bind "bind" 3 No, false;
    SYS_listen "listen" 2 No, false;
    SYS_getsockname "getsockname" 3 No, false;
    SYS_getpeername "getpeername" 3 No, false;
    SYS_socketpair "socketpair" 4 No, false;
    SYS_setsockopt "setsockopt" 5 No, false;
    SYS_getsockopt "getsockopt" 5 No, false;
    SYS_kill "kill" 2 No, false;
    SYS_uname "uname" 1 No, false;
    SYS_fcntl "fcntl" 3 No, false;
    SYS_fcntl "fcntl64" 3 No, false;
    SYS_flock "flock" 2 No, false;
    SYS_fsync "fsync" 1 No, false;
    SYS_fdatasync "fdatasync" 1 No, false;
    SYS_truncate "truncate" 2 Text(0), false;
    SYS_ftruncate "ftruncate" 2 No, false;
    SYS_ftruncate "ftruncate64" 2 No, false;
    SYS_getdents64 "getdents64" 3 No, true;
    SYS_chdir "chdir" 1 Text(0), false;
    SYS_fchdir "fchdir" 1 No, false;
    SYS_rename "rename" 2 Text(0), false;
    SYS_mkdir "mkdir" 2 Text(0), false;
    SYS_rmdir "rmdir" 1 Text(0), false;
    SYS_creat "creat" 2 Text(0), false;
    SYS_link "link" 2 Text(0), false;
    SYS_unlink "unlink" 1 Text(0), false;
    SYS_symlink "symlink" 2 Text(0), false;
    SYS_readlink "readlink" 3 Text(0), true;
    SYS_chmod "chmod" 2 Text(0), false;
    SYS_fchmod "fchmod" 2 No, false;
    SYS_chown "chown" 3 Text(0), false;
    SYS_fchown "fchown" 3 No, false;
    SYS_lchown "lchown" 3 Text(0), false;
    SYS_umask "umask" 1 No, false;
    SYS_getrusage "getrusage" 2 No, false;
    SYS_sysinfo "sysinfo" 1 No, false;
    SYS_getuid "getuid" 0 No, false;
    SYS_getgid "getgid" 0 No, false;
    SYS_geteuid "geteuid" 0 No, false;
    SYS_getegid "getegid" 0 No, false;
    SYS_sigaltstack "sigaltstack" 2 No, false;
    SYS_statfs "statfs" 2 Text(0), false;
    SYS_statfs "statfs64" 2 Text(0), false;
    SYS_fstatfs "fstatfs" 2 No, false;
    SYS_fstatfs "fstatfs64" 2 No, false;
    SYS_sched_getaffinity "sched_getaffinity" 3 No, false;
    SYS_sched_setaffinity "sched_setaffinity" 3 No, false;
    SYS_epoll_create1 "epoll_create1" 1 No, false;
    SYS_epoll_ctl "epoll_ctl" 4 No, false;
    SYS_epoll_wait "epoll_wait" 4 No, false;
    SYS_timerfd_create "timerfd_create" 2 No, false;
    SYS_timerfd_settime "timerfd_settime" 4 No, false;
    SYS_eventfd2 "eventfd" 2 No, false;
    SYS_inotify_init1 "inotify_init1" 1 No, false;
    SYS_inotify_add_watch "inotify_add_watch" 3 Text(1), false;
    SYS_openat "openat" 4 Text(1), false;
    SYS_openat "openat64" 4 Text(1), false;
    SYS_mkdirat "mkdirat" 3 Text(1), false;
    SYS_unlinkat "unlinkat" 3 Text(1), false;
    SYS_renameat "renameat" 4 Text(1), false;
    SYS_renameat2 "renameat2" 5 Text(1), false;
    SYS_linkat "linkat" 5 Text(1), false;
    SYS_symlinkat "symlinkat" 3 Text(0), false;
    SYS_readlinkat "readlinkat" 4 Text(1), true;
    SYS_newfstatat "fstatat" 4 Text(1), false;
    SYS_newfstatat "fstatat64" 4 Text(1), false;
    SYS_statx "statx" 5 Text(1), false;
    SYS_fallocate "fallocate" 4 No, false;
    SYS_fallocate "fallocate64" 4 No, false;
    SYS_fadvise64 "posix_fadvise64" 4 No, false;
    SYS_splice "splice" 6 No, true;
    SYS_copy_file_range "copy_file_range" 6 No, true;
    SYS_getrandom "getrandom" 3 Bytes(0), true;
    SYS_memfd_create "memfd_create" 2 Text(0), false;
    SYS_prctl "prctl" 5 No, false;
    SYS_mlock "mlock" 2 No, false;
    SYS_munlock "munlock" 2 No, false;
    SYS_setsid "setsid" 0 No, false;
    SYS_setpgid "setpgid" 2 No, false;
    SYS_getpgid "getpgid" 1 No, false;
    SYS_getsid "getsid" 1 No, false;
    SYS_times "times" 1 No, true;
    SYS_sync "sync" 0 No, false;
    SYS_syncfs "syncfs" 1 No, false;
    SYS_wait4 "wait4" 4 No, false;
    SYS_waitid "waitid" 5 No, false;
    SYS_pidfd_open "pidfd_open" 2 No, false;
    SYS_process_vm_readv "process_vm_readv" 6 No, true;
    SYS_process_vm_writev "process_vm_writev" 6 No, true;
    SYS_read "__read_nocancel" 3 Bytes(1), true;
    SYS_write "__write_nocancel" 3 Bytes(1), true;
    SYS_pread64 "__pread64_nocancel" 4 Bytes(1), true;
    SYS_close "__close_nocancel" 1 No, false;
    SYS_openat "__openat_nocancel" 4 Text(1), false;
    SYS_openat "__openat64_nocancel" 4 Text(1), false;
    SYS_fcntl "__fcntl64_nocancel" 3 No, false;
};

const HERE: Arg = Is(libc::AT_FDCWD);
const OPEN: Wrapper = by(
    libc::SYS_openat,
    [HERE, Of(0), Of(1), Of(2), Is(0), Is(0)],
    Text(1),
);

/// Wrappers whose system call has another name, or other arguments.
const OTHERS: &[(&str, Wrapper)] = &[
    ("__open_nocancel", OPEN),
    ("__open64_nocancel", OPEN),
    ("open", OPEN),
    ("open64", OPEN),
    (
        "stat",
        by(
            libc::SYS_newfstatat,
            [HERE, Of(0), Of(1), Is(0), Is(0), Is(0)],
            Text(1),
        ),
    ),
    (
        "stat64",
        by(
            libc::SYS_newfstatat,
            [HERE, Of(0), Of(1), Is(0), Is(0), Is(0)],
            Text(1),
        ),
    ),
    (
        "lstat",
        by(
            libc::SYS_newfstatat,
            [HERE, Of(0), Of(1), Is(0x100), Is(0), Is(0)],
            Text(1),
        ),
    ),
    (
        "lstat64",
        by(
            libc::SYS_newfstatat,
            [HERE, Of(0), Of(1), Is(0x100), Is(0), Is(0)],
            Text(1),
        ),
    ),
    (
        "pipe",
        by(
            libc::SYS_pipe2,
            [Of(0), Is(0), Is(0), Is(0), Is(0), Is(0)],
            No,
        ),
    ),
    (
        "waitpid",
        by(
            libc::SYS_wait4,
            [Of(0), Of(1), Of(2), Is(0), Is(0), Is(0)],
            No,
        ),
    ),
    (
        "send",
        Wrapper {
            is_long: true,
            ..by(
                libc::SYS_sendto,
                [Of(0), Of(1), Of(2), Of(3), Is(0), Is(0)],
                Bytes(1),
            )
        },
    ),
    (
        "recv",
        Wrapper {
            is_long: true,
            ..by(
                libc::SYS_recvfrom,
                [Of(0), Of(1), Of(2), Of(3), Is(0), Is(0)],
                Bytes(1),
            )
        },
    ),
    (
        "getrlimit",
        by(
            libc::SYS_prlimit64,
            [Is(0), Of(0), Is(0), Of(1), Is(0), Is(0)],
            No,
        ),
    ),
    (
        "getrlimit64",
        by(
            libc::SYS_prlimit64,
            [Is(0), Of(0), Is(0), Of(1), Is(0), Is(0)],
            No,
        ),
    ),
    (
        "setrlimit",
        by(
            libc::SYS_prlimit64,
            [Is(0), Of(0), Of(1), Is(0), Is(0), Is(0)],
            No,
        ),
    ),
    (
        "setrlimit64",
        by(
            libc::SYS_prlimit64,
            [Is(0), Of(0), Of(1), Is(0), Is(0), Is(0)],
            No,
        ),
    ),
    ("prlimit64", plain(libc::SYS_prlimit64, 4, No, false)),
    (
        "nanosleep",
        by(
            libc::SYS_clock_nanosleep,
            [Is(0), Is(0), Of(0), Of(1), Is(0), Is(0)],
            No,
        ),
    ),
    ("execve", ends(libc::SYS_execve, 3, Text(0))),
    ("execveat", ends(libc::SYS_execveat, 5, Text(1))),
    ("_exit", ends(libc::SYS_exit_group, 1, No)),
    (
        "syscall",
        Wrapper {
            number: None,
            args: [Of(1), Of(2), Of(3), Of(4), Of(5), Of(6)],
            ..plain(0, 0, No, true)
        },
    ),
];

/// How many system calls there may be.
pub(super) const NUMBERS: usize = 512;

/// System calls without a wrapper, by number: with all registers that may be arguments, or, where
/// a wrapper hands its arguments on, with those.
static BARE: [Wrapper; NUMBERS] = {
    let mut bare = [plain(0, 6, No, true); NUMBERS];
    let mut number = 0;
    while number < NUMBERS {
        bare[number].number = Some(number as u16);
        number += 1;
    }
    let mut place = 0;
    while place < SAME.len() {
        let wrapper = SAME[place].1;
        if let Some(number) = wrapper.number {
            bare[number as usize].args = wrapper.args;
            bare[number as usize].data = wrapper.data;
        }
        place += 1;
    }
    let mut ends = [libc::SYS_execve, libc::SYS_execveat, libc::SYS_exit_group].as_slice();
    while let [number, rest @ ..] = ends {
        bare[*number as usize].may_end = true;
        ends = rest;
    }
    bare[libc::SYS_execve as usize].data = Text(0);
    bare[libc::SYS_execveat as usize].data = Text(1);
    bare
};

/// A system call without a wrapper.
pub(super) fn bare(number: u32) -> Option<&'static Wrapper> {
    BARE.get(number as usize)
}

/// All wrappers, by their names in the C library.
pub(super) fn wrappers() -> impl Iterator<Item = &'static (&'static str, Wrapper)> {
    SAME.iter().chain(OTHERS)
}

/// The place of a wrapper among [`wrappers`], by one of its names.
pub(super) fn find(name: &str) -> Option<usize> {
    wrappers().position(|(wrapper, _)| *wrapper == name)
}

/// The wrapper at a place.
pub(super) fn get(place: usize) -> Option<&'static Wrapper> {
    let entry = SAME
        .get(place)
        .or_else(|| OTHERS.get(place.wrapping_sub(SAME.len())));
    entry.map(|(_, wrapper)| wrapper)
}
