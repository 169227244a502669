//! Functions of the C library that make a system call, with the number of the call.

use super::memory::{Extent, Shape};

/// Argument of a system call, given by the wrapper's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arg {
    /// Wrapper's argument of this index.
    Of(u8),
    /// Constant.
    Is(i32),
}

/// Properties of a wrapper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wrapper {
    /// Number of the system call; `None` if it is the wrapper's first argument.
    pub(super) number: Option<u16>,
    pub(super) args: [Arg; 6],
    /// Memory that a line shows.
    pub(super) data: &'static [Shape],
    /// True if the result has 64 bits; else it is an `int`.
    pub(super) is_long: bool,
    /// True if the call may not return.
    pub(super) may_end: bool,
}

use Arg::{Is, Of};

/// No memory.
const NO: &[Shape] = &[];

/// The text at this argument as the call begins.
const fn text(arg: u8) -> &'static [Shape] {
    match arg {
        0 => const { &[Shape::before(0, Extent::Text)] },
        _ => const { &[Shape::before(1, Extent::Text)] },
    }
}

/// The bytes at this argument as the call returns, limited by the result.
const fn bytes(arg: u8) -> &'static [Shape] {
    match arg {
        0 => const { &[Shape::after(0, Extent::Result)] },
        _ => const { &[Shape::after(1, Extent::Result)] },
    }
}

/// Describes a wrapper that passes its arguments on.
const fn plain(number: libc::c_long, args: u8, data: &'static [Shape], is_long: bool) -> Wrapper {
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

/// Describes a wrapper that arranges the arguments in another way. Further ones are zero.
const fn by(number: libc::c_long, args: &[Arg], data: &'static [Shape], is_long: bool) -> Wrapper {
    let mut by = plain(number, 0, data, is_long);
    let mut index = 0;
    while index < args.len() {
        by.args[index] = args[index];
        index += 1;
    }
    by
}

/// Describes a wrapper that may not return.
const fn ends(number: libc::c_long, args: u8, data: &'static [Shape]) -> Wrapper {
    Wrapper {
        may_end: true,
        ..plain(number, args, data, false)
    }
}

/// Lists wrappers with the name of their system call: the name, the number, the number of
/// arguments, the memory that is shown, and true if the result is long.
macro_rules! same {
    ($($call:ident $name:literal $args:literal $data:expr, $long:literal;)*) => {
        &[$(($name, plain(libc::$call, $args, $data, $long))),*]
    };
}

const SAME: &[(&str, Wrapper)] = same! {
    SYS_read "read" 3 bytes(1), true;
    SYS_write "write" 3 bytes(1), true;
    SYS_close "close" 1 NO, false;
    SYS_poll "poll" 3 NO, false;
    SYS_lseek "lseek" 3 NO, true;
    SYS_lseek "lseek64" 3 NO, true;
    SYS_mmap "mmap" 6 NO, true;
    SYS_mmap "mmap64" 6 NO, true;
    SYS_mprotect "mprotect" 3 NO, false;
    SYS_munmap "munmap" 2 NO, false;
    SYS_ioctl "ioctl" 3 NO, false;
    SYS_pread64 "pread64" 4 bytes(1), true;
    SYS_pread64 "pread" 4 bytes(1), true;
    SYS_pwrite64 "pwrite64" 4 bytes(1), true;
    SYS_pwrite64 "pwrite" 4 bytes(1), true;
    SYS_readv "readv" 3 NO, true;
    SYS_writev "writev" 3 NO, true;
    SYS_access "access" 2 text(0), false;
    SYS_pipe2 "pipe2" 2 NO, false;
    SYS_sched_yield "sched_yield" 0 NO, false;
    SYS_mremap "mremap" 5 NO, true;
    SYS_msync "msync" 3 NO, false;
    SYS_mincore "mincore" 3 NO, false;
    SYS_madvise "madvise" 3 NO, false;
    SYS_dup "dup" 1 NO, false;
    SYS_dup2 "dup2" 2 NO, false;
    SYS_dup3 "dup3" 3 NO, false;
    SYS_getpid "getpid" 0 NO, false;
    SYS_getppid "getppid" 0 NO, false;
    SYS_gettid "gettid" 0 NO, false;
    SYS_sendfile "sendfile" 4 NO, true;
    SYS_sendfile "sendfile64" 4 NO, true;
    SYS_socket "socket" 3 NO, false;
    SYS_connect "connect" 3 NO, false;
    SYS_accept "accept" 3 NO, false;
    SYS_accept4 "accept4" 4 NO, false;
    SYS_sendto "sendto" 6 bytes(1), true;
    SYS_recvfrom "recvfrom" 6 bytes(1), true;
    SYS_sendmsg "sendmsg" 3 NO, true;
    SYS_recvmsg "recvmsg" 3 NO, true;
    SYS_shutdown "shutdown" 2 NO, false;
    SYS_bind "bind" 3 NO, false;
    SYS_listen "listen" 2 NO, false;
    SYS_getsockname "getsockname" 3 NO, false;
    SYS_getpeername "getpeername" 3 NO, false;
    SYS_socketpair "socketpair" 4 NO, false;
    SYS_setsockopt "setsockopt" 5 NO, false;
    SYS_getsockopt "getsockopt" 5 NO, false;
    SYS_kill "kill" 2 NO, false;
    SYS_uname "uname" 1 NO, false;
    SYS_fcntl "fcntl" 3 NO, false;
    SYS_fcntl "fcntl64" 3 NO, false;
    SYS_flock "flock" 2 NO, false;
    SYS_fsync "fsync" 1 NO, false;
    SYS_fdatasync "fdatasync" 1 NO, false;
    SYS_truncate "truncate" 2 text(0), false;
    SYS_ftruncate "ftruncate" 2 NO, false;
    SYS_ftruncate "ftruncate64" 2 NO, false;
    SYS_getdents64 "getdents64" 3 NO, true;
    SYS_chdir "chdir" 1 text(0), false;
    SYS_fchdir "fchdir" 1 NO, false;
    SYS_rename "rename" 2 text(0), false;
    SYS_mkdir "mkdir" 2 text(0), false;
    SYS_rmdir "rmdir" 1 text(0), false;
    SYS_creat "creat" 2 text(0), false;
    SYS_link "link" 2 text(0), false;
    SYS_unlink "unlink" 1 text(0), false;
    SYS_symlink "symlink" 2 text(0), false;
    SYS_readlink "readlink" 3 text(0), true;
    SYS_chmod "chmod" 2 text(0), false;
    SYS_fchmod "fchmod" 2 NO, false;
    SYS_chown "chown" 3 text(0), false;
    SYS_fchown "fchown" 3 NO, false;
    SYS_lchown "lchown" 3 text(0), false;
    SYS_umask "umask" 1 NO, false;
    SYS_getrusage "getrusage" 2 NO, false;
    SYS_sysinfo "sysinfo" 1 NO, false;
    SYS_getuid "getuid" 0 NO, false;
    SYS_getgid "getgid" 0 NO, false;
    SYS_geteuid "geteuid" 0 NO, false;
    SYS_getegid "getegid" 0 NO, false;
    SYS_sigaltstack "sigaltstack" 2 NO, false;
    SYS_statfs "statfs" 2 text(0), false;
    SYS_statfs "statfs64" 2 text(0), false;
    SYS_fstatfs "fstatfs" 2 NO, false;
    SYS_fstatfs "fstatfs64" 2 NO, false;
    SYS_sched_getaffinity "sched_getaffinity" 3 NO, false;
    SYS_sched_setaffinity "sched_setaffinity" 3 NO, false;
    SYS_epoll_create1 "epoll_create1" 1 NO, false;
    SYS_epoll_ctl "epoll_ctl" 4 NO, false;
    SYS_epoll_wait "epoll_wait" 4 NO, false;
    SYS_timerfd_create "timerfd_create" 2 NO, false;
    SYS_timerfd_settime "timerfd_settime" 4 NO, false;
    SYS_eventfd2 "eventfd" 2 NO, false;
    SYS_inotify_init1 "inotify_init1" 1 NO, false;
    SYS_inotify_add_watch "inotify_add_watch" 3 text(1), false;
    SYS_openat "openat" 4 text(1), false;
    SYS_openat "openat64" 4 text(1), false;
    SYS_mkdirat "mkdirat" 3 text(1), false;
    SYS_unlinkat "unlinkat" 3 text(1), false;
    SYS_renameat "renameat" 4 text(1), false;
    SYS_renameat2 "renameat2" 5 text(1), false;
    SYS_linkat "linkat" 5 text(1), false;
    SYS_symlinkat "symlinkat" 3 text(0), false;
    SYS_readlinkat "readlinkat" 4 text(1), true;
    SYS_newfstatat "fstatat" 4 text(1), false;
    SYS_newfstatat "fstatat64" 4 text(1), false;
    SYS_statx "statx" 5 text(1), false;
    SYS_fallocate "fallocate" 4 NO, false;
    SYS_fallocate "fallocate64" 4 NO, false;
    SYS_fadvise64 "posix_fadvise64" 4 NO, false;
    SYS_splice "splice" 6 NO, true;
    SYS_copy_file_range "copy_file_range" 6 NO, true;
    SYS_getrandom "getrandom" 3 bytes(0), true;
    SYS_memfd_create "memfd_create" 2 text(0), false;
    SYS_prctl "prctl" 5 NO, false;
    SYS_mlock "mlock" 2 NO, false;
    SYS_munlock "munlock" 2 NO, false;
    SYS_setsid "setsid" 0 NO, false;
    SYS_setpgid "setpgid" 2 NO, false;
    SYS_getpgid "getpgid" 1 NO, false;
    SYS_getsid "getsid" 1 NO, false;
    SYS_times "times" 1 NO, true;
    SYS_sync "sync" 0 NO, false;
    SYS_syncfs "syncfs" 1 NO, false;
    SYS_wait4 "wait4" 4 NO, false;
    SYS_waitid "waitid" 5 NO, false;
    SYS_pidfd_open "pidfd_open" 2 NO, false;
    SYS_process_vm_readv "process_vm_readv" 6 NO, true;
    SYS_process_vm_writev "process_vm_writev" 6 NO, true;
    SYS_read "__read_nocancel" 3 bytes(1), true;
    SYS_write "__write_nocancel" 3 bytes(1), true;
    SYS_pread64 "__pread64_nocancel" 4 bytes(1), true;
    SYS_close "__close_nocancel" 1 NO, false;
    SYS_openat "__openat_nocancel" 4 text(1), false;
    SYS_openat "__openat64_nocancel" 4 text(1), false;
    SYS_fcntl "__fcntl64_nocancel" 3 NO, false;
};

const HERE: Arg = Is(libc::AT_FDCWD);

/// Lists wrappers whose system call has another name or other arguments: the number, the names, the
/// arguments, the memory that is shown, and true if the result is long.
macro_rules! others {
    ($($call:ident $($name:literal)+: $args:tt $data:expr, $long:literal;)*) => {
        &[$($(($name, by(libc::$call, &$args, $data, $long))),+),*]
    };
}

const OTHERS: &[(&str, Wrapper)] = others! {
    SYS_openat "open" "open64" "__open_nocancel" "__open64_nocancel":
        [HERE, Of(0), Of(1), Of(2)] text(1), false;
    SYS_newfstatat "stat" "stat64": [HERE, Of(0), Of(1)] text(1), false;
    SYS_newfstatat "lstat" "lstat64": [HERE, Of(0), Of(1), Is(0x100)] text(1), false;
    SYS_pipe2 "pipe": [Of(0)] NO, false;
    SYS_wait4 "waitpid": [Of(0), Of(1), Of(2)] NO, false;
    SYS_sendto "send": [Of(0), Of(1), Of(2), Of(3)] bytes(1), true;
    SYS_recvfrom "recv": [Of(0), Of(1), Of(2), Of(3)] bytes(1), true;
    SYS_prlimit64 "getrlimit" "getrlimit64": [Is(0), Of(0), Is(0), Of(1)] NO, false;
    SYS_prlimit64 "setrlimit" "setrlimit64": [Is(0), Of(0), Of(1)] NO, false;
    SYS_prlimit64 "prlimit64": [Of(0), Of(1), Of(2), Of(3)] NO, false;
    SYS_clock_nanosleep "nanosleep": [Is(0), Is(0), Of(0), Of(1)] NO, false;
};

/// Wrappers that may not return, and the one of all system calls.
const ENDS: &[(&str, Wrapper)] = &[
    ("execve", ends(libc::SYS_execve, 3, text(0))),
    ("execveat", ends(libc::SYS_execveat, 5, text(1))),
    ("_exit", ends(libc::SYS_exit_group, 1, NO)),
    (
        "syscall",
        Wrapper {
            number: None,
            args: [Of(1), Of(2), Of(3), Of(4), Of(5), Of(6)],
            ..plain(0, 0, NO, true)
        },
    ),
];

/// Bound on the numbers of system calls.
pub(super) const NUMBERS: usize = 512;

/// System calls without a wrapper, by number. If a wrapper passes its arguments on, the entry has
/// the same arguments, else all registers that may be arguments.
static BARE: [Wrapper; NUMBERS] = {
    let mut bare = [plain(0, 6, NO, true); NUMBERS];
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
    bare[libc::SYS_execve as usize].data = text(0);
    bare[libc::SYS_execveat as usize].data = text(1);
    bare
};

/// Returns a system call without a wrapper.
pub(super) fn bare(number: u32) -> Option<&'static Wrapper> {
    BARE.get(number as usize)
}

/// Lists all wrappers, by their names in the C library.
pub(super) fn all() -> impl Iterator<Item = &'static (&'static str, Wrapper)> {
    SAME.iter().chain(OTHERS).chain(ENDS)
}

/// Returns the place of a wrapper among [`all`], by one of its names.
pub(super) fn find(name: &str) -> Option<usize> {
    all().position(|(wrapper, _)| *wrapper == name)
}

/// Returns the wrapper at a place.
pub(super) fn get(place: usize) -> Option<&'static Wrapper> {
    let mut wrappers = all().map(|(_, wrapper)| wrapper);
    wrappers.nth(place)
}
