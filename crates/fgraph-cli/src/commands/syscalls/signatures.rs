//! The arguments of system calls.

use super::flags::{self, Choice, Flags};

/// The format of an argument.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// A signed number, of 32 or of 64 bits.
    Int,
    Long,
    /// An unsigned number, of 32 or of 64 bits.
    Unsigned,
    Size,
    /// Permissions.
    Octal,
    /// Hexadecimal digits: a number, or an address whose zero is NULL.
    Hex,
    Address,
    /// A descriptor, or `AT_FDCWD`.
    Dir,
    Choice(&'static Choice),
    Flags(&'static Flags),
    /// Flags of 64 bits.
    LongFlags(&'static Flags),
    Signal,
    /// An address of memory with this format.
    Memory(Memory),
    /// A format that depends on earlier arguments.
    Of(Other),
}

/// The format of memory to which an argument points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    Path,
    /// Data that is read or written.
    Data,
    /// Data that is always bytes.
    Bytes,
    Texts,
    /// The program's environment.
    Environment,
    Buffers,
    Stat,
    Statx,
    Time,
    /// Two times of a file.
    Times,
    /// An interval and a first time.
    TimerTime,
    /// Like `Time`, of `struct timeval`.
    IntervalTime,
    Pair,
    Polled,
    Epoll,
    EpollList,
    Socket,
    /// Length of an address of a socket, or of an option.
    Length,
    OptionValue,
    Limits,
    Status,
    SignalInfo,
    System,
    SignalSet,
    SignalAction,
    Processors,
}

/// An argument whose format depends on others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Other {
    /// Permissions of a file that `open` makes.
    OpenMode,
    /// Depends on the domain.
    SocketProtocol,
    /// Depends on the level.
    SocketOption,
    /// Depends on the request.
    Request,
    /// Depends on the command of `fcntl`.
    Control,
    /// The new address of `mremap`.
    NewAddress,
    /// The arguments of `prctl` after its option.
    ProcessValue,
    ProcessRest,
    /// Arguments of `futex` from the fourth on.
    FutexTime,
    FutexAddress,
    FutexValue,
}

/// The format of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Given {
    Number,
    Address,
    Octal,
    /// The call does not return.
    Nothing,
    /// Descriptors that are ready.
    Ready,
    /// Depends on the command of `fcntl`.
    Control,
}

/// The arguments of a call, and its result.
pub(super) type Signature = (&'static [Kind], Given);

/// Returns the signature of a system call by its name.
pub(super) fn find(name: &str) -> Option<Signature> {
    use self::Memory::*;
    use Given::{Address as GivenAddress, Nothing, Number, Octal as GivenOctal, Ready};
    use Kind::{
        Address, Choice, Dir, Flags, Hex, Int, Long, LongFlags, Memory, Octal, Of, Signal, Size,
        Unsigned,
    };
    const PATH: Kind = Memory(Path);
    const DATA: Kind = Memory(Data);
    const TIME: Kind = Memory(Time);
    const SOCKET: Kind = Memory(Socket);
    const LENGTH: Kind = Memory(Length);
    const STAT: Kind = Memory(Stat);
    const SET: Kind = Memory(SignalSet);
    const LIMITS: Kind = Memory(Limits);
    const BUFFERS: Kind = Memory(Buffers);
    const AT: Kind = Flags(&flags::AT);
    macro_rules! signatures {
        (@) => { Number };
        (@ $given:expr) => { $given };
        ($($($name:literal)|+: $($kind:expr),* $(=> $given:expr)?;)*) => {
            Some(match name {
                $($($name)|+ => (const { &[$($kind),*] }, signatures!(@ $($given)?)),)*
                _ => return None,
            })
        };
    }
    signatures! {
        "read" | "write": Int, DATA, Size;
        "pread64" | "pwrite64": Int, DATA, Size, Long;
        "readv" | "writev": Int, BUFFERS, Int;
        "preadv" | "pwritev": Int, BUFFERS, Int, Long;
        "open": PATH, Flags(&flags::OPEN), Of(Other::OpenMode);
        "openat": Dir, PATH, Flags(&flags::OPEN), Of(Other::OpenMode);
        "creat" | "mkdir" | "chmod": PATH, Octal;
        "mkdirat": Dir, PATH, Octal;
        "fchmod": Int, Octal;
        "fchmodat": Dir, PATH, Octal;
        "umask": Octal => GivenOctal;
        "close" | "fsync" | "fdatasync" | "fchdir" | "syncfs" | "dup": Int;
        "dup2": Int, Int;
        "dup3": Int, Int, Flags(&flags::DESCRIPTOR);
        "stat" | "lstat": PATH, STAT;
        "fstat": Int, STAT;
        "newfstatat": Dir, PATH, STAT, AT;
        "statx": Dir, PATH, Flags(&flags::STATX), Flags(&flags::STATX_MASK), Memory(Statx);
        "statfs": PATH, Address;
        "fstatfs": Int, Address;
        "poll": Memory(Polled), Unsigned, Int => Ready;
        "ppoll": Memory(Polled), Unsigned, TIME, SET, Size => Ready;
        "select": Int, Address, Address, Address, Address;
        "pselect6": Int, Address, Address, Address, Address, Address;
        "lseek": Int, Long, Choice(&flags::WHENCE);
        "mmap": Address, Size, Flags(&flags::PROTECTION), Flags(&flags::MAPPING), Int, Hex =>
            GivenAddress;
        "mprotect": Address, Size, Flags(&flags::PROTECTION);
        "munmap" | "mlock" | "munlock": Address, Size;
        "mincore": Address, Size, Address;
        "brk": Address => GivenAddress;
        "mremap": Address, Size, Size, Flags(&flags::REMAP), Of(Other::NewAddress) => GivenAddress;
        "msync": Address, Size, Flags(&flags::SYNCHRONIZE);
        "madvise": Address, Size, Choice(&flags::ADVICE);
        "fadvise64": Int, Long, Size, Choice(&flags::FILE_ADVICE);
        "fallocate": Int, Flags(&flags::ALLOCATE), Long, Long;
        "ioctl": Int, Of(Other::Request), Address;
        "fcntl": Int, Choice(&flags::CONTROL), Of(Other::Control) => Given::Control;
        "flock": Int, Flags(&flags::LOCK);
        "access": PATH, Flags(&flags::ACCESS);
        "faccessat": Dir, PATH, Flags(&flags::ACCESS);
        "faccessat2": Dir, PATH, Flags(&flags::ACCESS), Flags(&flags::ACCESS_AT);
        "pipe": Memory(Pair);
        "pipe2": Memory(Pair), Flags(&flags::DESCRIPTOR);
        "truncate": PATH, Long;
        "ftruncate": Int, Long;
        "getdents64": Int, Address, Size;
        "getcwd": PATH, Size;
        "chdir" | "rmdir" | "unlink" | "chroot" | "swapoff": PATH;
        "rename" | "link" | "symlink" | "pivot_root": PATH, PATH;
        "renameat": Dir, PATH, Dir, PATH;
        "renameat2": Dir, PATH, Dir, PATH, Flags(&flags::RENAME);
        "linkat": Dir, PATH, Dir, PATH, AT;
        "symlinkat": PATH, Dir, PATH;
        "unlinkat": Dir, PATH, Flags(&flags::UNLINK);
        "readlink": PATH, DATA, Size;
        "readlinkat": Dir, PATH, DATA, Size;
        "chown" | "lchown": PATH, Int, Int;
        "fchown": Int, Int, Int;
        "fchownat": Dir, PATH, Int, Int, AT;
        "utimensat": Dir, PATH, Memory(Times), AT;
        "mount": PATH, PATH, PATH, Hex, Address;
        "umount2": PATH, Hex;
        "sendfile": Int, Int, Address, Size;
        "splice": Int, Address, Int, Address, Size, Flags(&flags::SPLICE);
        "copy_file_range": Int, Address, Int, Address, Size, Hex;
        "memfd_create": PATH, Flags(&flags::MEMFD);
        "getrandom": Memory(Bytes), Size, Flags(&flags::RANDOM);
        "socket": Choice(&flags::FAMILY), Flags(&flags::SOCKET), Of(Other::SocketProtocol);
        "socketpair": Choice(&flags::FAMILY), Flags(&flags::SOCKET), Int, Memory(Pair);
        "connect" | "bind": Int, SOCKET, Int;
        "accept" | "getsockname" | "getpeername": Int, SOCKET, LENGTH;
        "accept4": Int, SOCKET, LENGTH, Flags(&flags::ACCEPT);
        "listen": Int, Int;
        "shutdown": Int, Choice(&flags::SHUTDOWN);
        "sendto": Int, DATA, Size, Flags(&flags::MESSAGE), SOCKET, Unsigned;
        "recvfrom": Int, DATA, Size, Flags(&flags::MESSAGE), SOCKET, LENGTH;
        "sendmsg" | "recvmsg": Int, Address, Flags(&flags::MESSAGE);
        "setsockopt": Int, Choice(&flags::LEVEL), Of(Other::SocketOption), Memory(OptionValue),
            Unsigned;
        "getsockopt": Int, Choice(&flags::LEVEL), Of(Other::SocketOption), Memory(OptionValue),
            LENGTH;
        "epoll_create": Int;
        "epoll_create1": Flags(&flags::EPOLL_CREATE);
        "epoll_ctl": Int, Choice(&flags::EPOLL), Int, Memory(Epoll);
        "epoll_wait": Int, Memory(EpollList), Int, Int;
        "epoll_pwait": Int, Memory(EpollList), Int, Int, Address, Size;
        "eventfd": Unsigned;
        "eventfd2": Unsigned, Flags(&flags::EVENT);
        "timerfd_create": Choice(&flags::CLOCK), Flags(&flags::TIMER);
        "timerfd_settime": Int, Flags(&flags::TIMER_SET), Memory(TimerTime), Address;
        "inotify_init1": Flags(&flags::INOTIFY);
        "inotify_add_watch": Int, PATH, Flags(&flags::WATCH);
        "inotify_rm_watch": Int, Int;
        "kill" | "tkill": Int, Signal;
        "tgkill": Int, Int, Signal;
        "alarm": Unsigned;
        "setitimer": Choice(&flags::INTERVAL), Memory(IntervalTime), Address;
        "getitimer": Choice(&flags::INTERVAL), Address;
        "rt_sigaction": Signal, Memory(SignalAction), Memory(SignalAction), Size;
        "rt_sigprocmask": Choice(&flags::MASK), SET, SET, Size;
        "rt_sigsuspend": SET, Size;
        "rt_sigreturn": Address;
        "sigaltstack": Address, Address;
        "nanosleep": TIME, Address;
        "clock_nanosleep": Choice(&flags::CLOCK), Flags(&flags::SLEEP), TIME, Address;
        "clock_gettime" | "clock_getres": Choice(&flags::CLOCK), TIME;
        "gettimeofday": Address, Address;
        "time" | "times" | "sysinfo": Address;
        "uname": Memory(System);
        "getrusage": Choice(&flags::USAGE), Address;
        "getrlimit" | "setrlimit": Choice(&flags::RESOURCE), LIMITS;
        "prlimit64": Int, Choice(&flags::RESOURCE), LIMITS, LIMITS;
        "sched_getaffinity" | "sched_setaffinity": Int, Unsigned, Memory(Processors);
        "clone": LongFlags(&flags::CLONE), Address, Address, Address, Hex;
        "clone3": Address, Size;
        "set_tid_address": Address;
        "set_robust_list": Address, Size;
        "rseq": Address, Unsigned, Hex, Hex;
        "arch_prctl": Choice(&flags::ARCH), Address;
        "prctl": Choice(&flags::PROCESS), Of(Other::ProcessValue), Of(Other::ProcessRest),
            Of(Other::ProcessRest), Of(Other::ProcessRest);
        "futex": Address, Choice(&flags::FUTEX), Unsigned, Of(Other::FutexTime),
            Of(Other::FutexAddress), Of(Other::FutexValue);
        "wait4": Int, Memory(Status), Flags(&flags::WAIT), Address;
        "waitid": Choice(&flags::WAIT_FOR), Int, Memory(SignalInfo), Flags(&flags::WAIT), Address;
        "execve": PATH, Memory(Texts), Memory(Environment) => Nothing;
        "execveat": Dir, PATH, Memory(Texts), Memory(Environment), AT => Nothing;
        "exit" | "exit_group": Int => Nothing;
        "getpgid" | "getsid" | "setuid" | "setgid" | "setfsuid" | "setfsgid": Int;
        "setpgid" | "setreuid" | "setregid": Int, Int;
        "setresuid" | "setresgid": Int, Int, Int;
        "getgroups" | "setgroups": Unsigned, Address;
        "getpriority": Int, Int;
        "setpriority": Int, Int, Int;
        "pidfd_open": Int, Hex;
        "process_vm_readv" | "process_vm_writev": Int, Address, Size, Address, Size, Hex;
        "getpid" | "getppid" | "gettid" | "getuid" | "getgid" | "geteuid" | "getegid" | "getpgrp" |
            "setsid" | "sync" | "sched_yield" | "vfork" | "fork" | "pause" | "restart_syscall":;
    }
}
