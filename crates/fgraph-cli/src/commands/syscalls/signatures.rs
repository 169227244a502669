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
    use Given::{Address as GivenAddress, Nothing, Number, Octal as GivenOctal, Ready};
    use Kind::{
        Address, Choice, Dir, Flags, Hex, Int, Long, LongFlags, Octal, Of, Signal, Size, Unsigned,
    };
    const PATH: Kind = Kind::Memory(Memory::Path);
    const DATA: Kind = Kind::Memory(Memory::Data);
    const TIME: Kind = Kind::Memory(Memory::Time);
    const SOCKET: Kind = Kind::Memory(Memory::Socket);
    const LENGTH: Kind = Kind::Memory(Memory::Length);
    const STAT: Kind = Kind::Memory(Memory::Stat);
    const SET: Kind = Kind::Memory(Memory::SignalSet);
    const LIMITS: Kind = Kind::Memory(Memory::Limits);
    const BUFFERS: Kind = Kind::Memory(Memory::Buffers);
    const AT: Kind = Flags(&flags::AT);
    macro_rules! call {
        ($($kind:expr),*) => { (const { &[$($kind),*] }, Number) };
        ($($kind:expr),*; $given:expr) => { (const { &[$($kind),*] }, $given) };
    }
    Some(match name {
        "read" | "write" => call![Int, DATA, Size],
        "pread64" | "pwrite64" => call![Int, DATA, Size, Long],
        "readv" | "writev" => call![Int, BUFFERS, Int],
        "preadv" | "pwritev" => call![Int, BUFFERS, Int, Long],
        "open" => call![PATH, Flags(&flags::OPEN), Of(Other::OpenMode)],
        "openat" => call![Dir, PATH, Flags(&flags::OPEN), Of(Other::OpenMode)],
        "creat" | "mkdir" | "chmod" => call![PATH, Octal],
        "mkdirat" => call![Dir, PATH, Octal],
        "fchmod" => call![Int, Octal],
        "fchmodat" => call![Dir, PATH, Octal],
        "umask" => call![Octal; GivenOctal],
        "close" | "fsync" | "fdatasync" | "fchdir" | "syncfs" | "dup" => call![Int],
        "dup2" => call![Int, Int],
        "dup3" => call![Int, Int, Flags(&flags::DESCRIPTOR)],
        "stat" | "lstat" => call![PATH, STAT],
        "fstat" => call![Int, STAT],
        "newfstatat" => call![Dir, PATH, STAT, AT],
        "statx" => call![
            Dir,
            PATH,
            Flags(&flags::STATX),
            Flags(&flags::STATX_MASK),
            Kind::Memory(Memory::Statx)
        ],
        "statfs" => call![PATH, Address],
        "fstatfs" => call![Int, Address],
        "poll" => call![Kind::Memory(Memory::Polled), Unsigned, Int; Ready],
        "ppoll" => call![Kind::Memory(Memory::Polled), Unsigned, TIME, SET, Size; Ready],
        "select" => call![Int, Address, Address, Address, Address],
        "pselect6" => call![Int, Address, Address, Address, Address, Address],
        "lseek" => call![Int, Long, Choice(&flags::WHENCE)],
        "mmap" => call![
            Address,
            Size,
            Flags(&flags::PROTECTION),
            Flags(&flags::MAPPING),
            Int,
            Hex;
            GivenAddress
        ],
        "mprotect" => call![Address, Size, Flags(&flags::PROTECTION)],
        "munmap" | "mlock" | "munlock" => call![Address, Size],
        "mincore" => call![Address, Size, Address],
        "brk" => call![Address; GivenAddress],
        "mremap" => call![
            Address,
            Size,
            Size,
            Flags(&flags::REMAP),
            Of(Other::NewAddress);
            GivenAddress
        ],
        "msync" => call![Address, Size, Flags(&flags::SYNCHRONIZE)],
        "madvise" => call![Address, Size, Choice(&flags::ADVICE)],
        "fadvise64" => call![Int, Long, Size, Choice(&flags::FILE_ADVICE)],
        "fallocate" => call![Int, Flags(&flags::ALLOCATE), Long, Long],
        "ioctl" => call![Int, Of(Other::Request), Address],
        "fcntl" => call![Int, Choice(&flags::CONTROL), Of(Other::Control); Given::Control],
        "flock" => call![Int, Flags(&flags::LOCK)],
        "access" => call![PATH, Flags(&flags::ACCESS)],
        "faccessat" => call![Dir, PATH, Flags(&flags::ACCESS)],
        "faccessat2" => call![Dir, PATH, Flags(&flags::ACCESS), Flags(&flags::ACCESS_AT)],
        "pipe" => call![Kind::Memory(Memory::Pair)],
        "pipe2" => call![Kind::Memory(Memory::Pair), Flags(&flags::DESCRIPTOR)],
        "truncate" => call![PATH, Long],
        "ftruncate" => call![Int, Long],
        "getdents64" => call![Int, Address, Size],
        "getcwd" => call![PATH, Size],
        "chdir" | "rmdir" | "unlink" | "chroot" | "swapoff" => call![PATH],
        "rename" | "link" | "symlink" | "pivot_root" => call![PATH, PATH],
        "renameat" => call![Dir, PATH, Dir, PATH],
        "renameat2" => call![Dir, PATH, Dir, PATH, Flags(&flags::RENAME)],
        "linkat" => call![Dir, PATH, Dir, PATH, AT],
        "symlinkat" => call![PATH, Dir, PATH],
        "unlinkat" => call![Dir, PATH, Flags(&flags::UNLINK)],
        "readlink" => call![PATH, DATA, Size],
        "readlinkat" => call![Dir, PATH, DATA, Size],
        "chown" | "lchown" => call![PATH, Int, Int],
        "fchown" => call![Int, Int, Int],
        "fchownat" => call![Dir, PATH, Int, Int, AT],
        "utimensat" => call![Dir, PATH, Kind::Memory(Memory::Times), AT],
        "mount" => call![PATH, PATH, PATH, Hex, Address],
        "umount2" => call![PATH, Hex],
        "sendfile" => call![Int, Int, Address, Size],
        "splice" => call![Int, Address, Int, Address, Size, Flags(&flags::SPLICE)],
        "copy_file_range" => call![Int, Address, Int, Address, Size, Hex],
        "memfd_create" => call![PATH, Flags(&flags::MEMFD)],
        "getrandom" => call![Kind::Memory(Memory::Bytes), Size, Flags(&flags::RANDOM)],
        "socket" => call![
            Choice(&flags::FAMILY),
            Flags(&flags::SOCKET),
            Of(Other::SocketProtocol)
        ],
        "socketpair" => call![
            Choice(&flags::FAMILY),
            Flags(&flags::SOCKET),
            Int,
            Kind::Memory(Memory::Pair)
        ],
        "connect" | "bind" => call![Int, SOCKET, Int],
        "accept" | "getsockname" | "getpeername" => call![Int, SOCKET, LENGTH],
        "accept4" => call![Int, SOCKET, LENGTH, Flags(&flags::ACCEPT)],
        "listen" => call![Int, Int],
        "shutdown" => call![Int, Choice(&flags::SHUTDOWN)],
        "sendto" => call![Int, DATA, Size, Flags(&flags::MESSAGE), SOCKET, Unsigned],
        "recvfrom" => call![Int, DATA, Size, Flags(&flags::MESSAGE), SOCKET, LENGTH],
        "sendmsg" | "recvmsg" => call![Int, Address, Flags(&flags::MESSAGE)],
        "setsockopt" => call![
            Int,
            Choice(&flags::LEVEL),
            Of(Other::SocketOption),
            Kind::Memory(Memory::OptionValue),
            Unsigned
        ],
        "getsockopt" => call![
            Int,
            Choice(&flags::LEVEL),
            Of(Other::SocketOption),
            Kind::Memory(Memory::OptionValue),
            LENGTH
        ],
        "epoll_create" => call![Int],
        "epoll_create1" => call![Flags(&flags::EPOLL_CREATE)],
        "epoll_ctl" => call![Int, Choice(&flags::EPOLL), Int, Kind::Memory(Memory::Epoll)],
        "epoll_wait" => call![Int, Kind::Memory(Memory::EpollList), Int, Int],
        "epoll_pwait" => call![
            Int,
            Kind::Memory(Memory::EpollList),
            Int,
            Int,
            Address,
            Size
        ],
        "eventfd" => call![Unsigned],
        "eventfd2" => call![Unsigned, Flags(&flags::EVENT)],
        "timerfd_create" => call![Choice(&flags::CLOCK), Flags(&flags::TIMER)],
        "timerfd_settime" => call![
            Int,
            Flags(&flags::TIMER_SET),
            Kind::Memory(Memory::TimerTime),
            Address
        ],
        "inotify_init1" => call![Flags(&flags::INOTIFY)],
        "inotify_add_watch" => call![Int, PATH, Flags(&flags::WATCH)],
        "inotify_rm_watch" => call![Int, Int],
        "kill" | "tkill" => call![Int, Signal],
        "tgkill" => call![Int, Int, Signal],
        "alarm" => call![Unsigned],
        "setitimer" => call![
            Choice(&flags::INTERVAL),
            Kind::Memory(Memory::IntervalTime),
            Address
        ],
        "getitimer" => call![Choice(&flags::INTERVAL), Address],
        "rt_sigaction" => call![
            Signal,
            Kind::Memory(Memory::SignalAction),
            Kind::Memory(Memory::SignalAction),
            Size
        ],
        "rt_sigprocmask" => call![Choice(&flags::MASK), SET, SET, Size],
        "rt_sigsuspend" => call![SET, Size],
        "rt_sigreturn" => call![Address],
        "sigaltstack" => call![Address, Address],
        "nanosleep" => call![TIME, Address],
        "clock_nanosleep" => call![Choice(&flags::CLOCK), Flags(&flags::SLEEP), TIME, Address],
        "clock_gettime" | "clock_getres" => call![Choice(&flags::CLOCK), TIME],
        "gettimeofday" => call![Address, Address],
        "time" | "times" | "sysinfo" => call![Address],
        "uname" => call![Kind::Memory(Memory::System)],
        "getrusage" => call![Choice(&flags::USAGE), Address],
        "getrlimit" | "setrlimit" => call![Choice(&flags::RESOURCE), LIMITS],
        "prlimit64" => call![Int, Choice(&flags::RESOURCE), LIMITS, LIMITS],
        "sched_getaffinity" | "sched_setaffinity" => {
            call![Int, Unsigned, Kind::Memory(Memory::Processors)]
        }
        "clone" => call![LongFlags(&flags::CLONE), Address, Address, Address, Hex],
        "clone3" => call![Address, Size],
        "set_tid_address" => call![Address],
        "set_robust_list" => call![Address, Size],
        "rseq" => call![Address, Unsigned, Hex, Hex],
        "arch_prctl" => call![Choice(&flags::ARCH), Address],
        "prctl" => call![
            Choice(&flags::PROCESS),
            Of(Other::ProcessValue),
            Of(Other::ProcessRest),
            Of(Other::ProcessRest),
            Of(Other::ProcessRest)
        ],
        "futex" => call![
            Address,
            Choice(&flags::FUTEX),
            Unsigned,
            Of(Other::FutexTime),
            Of(Other::FutexAddress),
            Of(Other::FutexValue)
        ],
        "wait4" => call![
            Int,
            Kind::Memory(Memory::Status),
            Flags(&flags::WAIT),
            Address
        ],
        "waitid" => call![
            Choice(&flags::WAIT_FOR),
            Int,
            Kind::Memory(Memory::SignalInfo),
            Flags(&flags::WAIT),
            Address
        ],
        "execve" => call![
            PATH,
            Kind::Memory(Memory::Texts),
            Kind::Memory(Memory::Environment);
            Nothing
        ],
        "execveat" => call![
            Dir,
            PATH,
            Kind::Memory(Memory::Texts),
            Kind::Memory(Memory::Environment),
            AT;
            Nothing
        ],
        "exit" | "exit_group" => call![Int; Nothing],
        "getpgid" | "getsid" | "setuid" | "setgid" | "setfsuid" | "setfsgid" => call![Int],
        "setpgid" | "setreuid" | "setregid" => call![Int, Int],
        "setresuid" | "setresgid" => call![Int, Int, Int],
        "getgroups" | "setgroups" => call![Unsigned, Address],
        "getpriority" => call![Int, Int],
        "setpriority" => call![Int, Int, Int],
        "pidfd_open" => call![Int, Hex],
        "process_vm_readv" | "process_vm_writev" => call![Int, Address, Size, Address, Size, Hex],
        "getpid" | "getppid" | "gettid" | "getuid" | "getgid" | "geteuid" | "getegid"
        | "getpgrp" | "setsid" | "sync" | "sched_yield" | "vfork" | "fork" | "pause"
        | "restart_syscall" => call![],
        _ => return None,
    })
}
