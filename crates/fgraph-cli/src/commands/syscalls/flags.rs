//! The names of constants in system calls, in `strace`'s order.

/// A constant and its name.
pub(super) type Name = (&'static str, u64);

/// Constants for an argument that is one of them.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) names: &'static [Name],
    /// The name of an unknown one.
    unknown: &'static str,
}

/// Constants for an argument that is a union of them.
#[derive(Debug)]
pub(super) struct Flags {
    /// One of these values, among the bits of a mask.
    choice: (u64, &'static [Name]),
    bits: &'static [Name],
    unknown: &'static str,
}

/// Returns a number in hexadecimal digits; 0 without a prefix.
pub(super) fn hex(number: u64) -> String {
    match number {
        0 => "0".to_owned(),
        number => format!("{number:#x}"),
    }
}

/// Returns an address in hexadecimal digits, or NULL.
pub(super) fn address(word: u64) -> String {
    match word {
        0 => "NULL".to_owned(),
        word => format!("{word:#x}"),
    }
}

impl Choice {
    pub(super) fn find(&self, value: u64) -> Option<&'static str> {
        let mut names = self.names.iter();
        names.find_map(|&(name, known)| (known == value).then_some(name))
    }

    pub(super) fn text(&self, value: u64) -> String {
        match self.find(value) {
            Some(name) => name.to_owned(),
            None => format!("{} /* {} */", hex(value), self.unknown),
        }
    }
}

impl Flags {
    pub(super) fn text(&self, value: u64) -> String {
        let (mask, choices) = self.choice;
        let chosen = value & mask;
        let mut left = value & !mask;
        let mut words = Vec::new();
        match choices.iter().find(|(_, known)| *known == chosen) {
            Some((name, _)) => words.push((*name).to_owned()),
            None => left = value,
        }
        // Without a mask the choice is the name of zero.
        if mask == 0 && left != 0 {
            words.clear();
        }
        for &(name, bits) in self.bits {
            if left & bits == bits {
                left &= !bits;
                words.push(name.to_owned());
            }
        }
        match (left, words.is_empty()) {
            (0, true) => "0".to_owned(),
            (0, false) => words.join("|"),
            (left, true) => format!("{} /* {} */", hex(left), self.unknown),
            (left, false) => {
                words.push(hex(left));
                words.join("|")
            }
        }
    }
}

/// Names of constants that the C library has, and of others with their values.
macro_rules! names {
    ($($name:ident $(= $value:literal)?),* $(,)?) => {
        &[$((stringify!($name), names!(@ $name $($value)?))),*]
    };
    (@ $name:ident) => { libc::$name as u32 as u64 };
    (@ $name:ident $value:literal) => { $value };
}

const fn choice(unknown: &'static str, names: &'static [Name]) -> Choice {
    Choice { names, unknown }
}

const fn flags(unknown: &'static str, bits: &'static [Name]) -> Flags {
    Flags {
        choice: (0, &[]),
        bits,
        unknown,
    }
}

const fn with(choice: (u64, &'static [Name]), flags: Flags) -> Flags {
    Flags { choice, ..flags }
}

pub(super) static OPEN: Flags = with(
    (3, names![O_RDONLY, O_WRONLY, O_RDWR, O_ACCMODE]),
    flags(
        "O_???",
        names![
            O_CREAT,
            O_EXCL,
            O_NOCTTY,
            O_TRUNC,
            O_APPEND,
            O_NONBLOCK,
            O_SYNC,
            O_ASYNC,
            O_DSYNC,
            O_DIRECT,
            O_LARGEFILE = 0x8000,
            O_NOFOLLOW,
            O_NOATIME,
            O_CLOEXEC,
            O_PATH,
            O_TMPFILE,
            O_DIRECTORY
        ],
    ),
);
pub(super) static DESCRIPTOR: Flags = flags("O_???", names![O_NONBLOCK, O_DIRECT, O_CLOEXEC]);
pub(super) static ACCESS: Flags = with((0, names![F_OK]), flags("?_OK", names![R_OK, W_OK, X_OK]));
pub(super) static PROTECTION: Flags = with(
    (0, names![PROT_NONE]),
    flags(
        "PROT_???",
        names![
            PROT_READ,
            PROT_WRITE,
            PROT_EXEC,
            PROT_SEM = 8,
            PROT_GROWSDOWN,
            PROT_GROWSUP
        ],
    ),
);
pub(super) static MAPPING: Flags = with(
    (
        15,
        names![MAP_FILE = 0, MAP_SHARED, MAP_PRIVATE, MAP_SHARED_VALIDATE],
    ),
    flags(
        "MAP_???",
        names![
            MAP_FIXED,
            MAP_ANONYMOUS,
            MAP_32BIT,
            MAP_NORESERVE,
            MAP_POPULATE,
            MAP_NONBLOCK,
            MAP_GROWSDOWN,
            MAP_DENYWRITE,
            MAP_EXECUTABLE,
            MAP_LOCKED,
            MAP_STACK,
            MAP_HUGETLB,
            MAP_SYNC,
            MAP_FIXED_NOREPLACE
        ],
    ),
);
pub(super) static REMAP: Flags = flags(
    "MREMAP_???",
    names![MREMAP_MAYMOVE, MREMAP_FIXED, MREMAP_DONTUNMAP],
);
pub(super) static SYNCHRONIZE: Flags = flags("MS_???", names![MS_ASYNC, MS_INVALIDATE, MS_SYNC]);
pub(super) static ADVICE: Choice = choice(
    "MADV_???",
    names![
        MADV_NORMAL,
        MADV_RANDOM,
        MADV_SEQUENTIAL,
        MADV_WILLNEED,
        MADV_DONTNEED,
        MADV_FREE,
        MADV_REMOVE,
        MADV_DONTFORK,
        MADV_DOFORK,
        MADV_MERGEABLE,
        MADV_UNMERGEABLE,
        MADV_HUGEPAGE,
        MADV_NOHUGEPAGE,
        MADV_DONTDUMP,
        MADV_DODUMP,
        MADV_WIPEONFORK,
        MADV_KEEPONFORK,
        MADV_COLD,
        MADV_PAGEOUT,
        MADV_POPULATE_READ,
        MADV_POPULATE_WRITE,
        MADV_DONTNEED_LOCKED = 24,
        MADV_COLLAPSE = 25
    ],
);
pub(super) static FILE_ADVICE: Choice = choice(
    "POSIX_FADV_???",
    names![
        POSIX_FADV_NORMAL,
        POSIX_FADV_RANDOM,
        POSIX_FADV_SEQUENTIAL,
        POSIX_FADV_WILLNEED,
        POSIX_FADV_DONTNEED,
        POSIX_FADV_NOREUSE
    ],
);
pub(super) static WHENCE: Choice = choice(
    "SEEK_???",
    names![SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA, SEEK_HOLE],
);
pub(super) static LOCK: Flags = with(
    (11, names![LOCK_SH, LOCK_EX, LOCK_UN]),
    flags("LOCK_???", names![LOCK_NB]),
);
pub(super) static AT: Flags = flags(
    "AT_???",
    names![
        AT_SYMLINK_NOFOLLOW,
        AT_SYMLINK_FOLLOW,
        AT_NO_AUTOMOUNT,
        AT_EMPTY_PATH,
        AT_STATX_FORCE_SYNC = 0x2000,
        AT_STATX_DONT_SYNC = 0x4000,
        AT_RECURSIVE = 0x8000
    ],
);
pub(super) static STATX: Flags = with(
    (
        0x6000,
        names![
            AT_STATX_SYNC_AS_STAT = 0,
            AT_STATX_FORCE_SYNC = 0x2000,
            AT_STATX_DONT_SYNC = 0x4000
        ],
    ),
    flags(
        "AT_???",
        names![
            AT_SYMLINK_NOFOLLOW,
            AT_SYMLINK_FOLLOW,
            AT_NO_AUTOMOUNT,
            AT_EMPTY_PATH
        ],
    ),
);
pub(super) static UNLINK: Flags = flags("AT_???", names![AT_REMOVEDIR]);
pub(super) static ACCESS_AT: Flags = flags(
    "AT_???",
    names![AT_SYMLINK_NOFOLLOW, AT_EACCESS, AT_EMPTY_PATH],
);
pub(super) static STATX_MASK: Flags = flags(
    "STATX_???",
    names![
        STATX_ALL,
        STATX_BASIC_STATS,
        STATX_TYPE,
        STATX_MODE,
        STATX_NLINK,
        STATX_UID,
        STATX_GID,
        STATX_ATIME,
        STATX_MTIME,
        STATX_CTIME,
        STATX_INO,
        STATX_SIZE,
        STATX_BLOCKS,
        STATX_BTIME,
        STATX_MNT_ID = 0x1000
    ],
);
pub(super) static RENAME: Flags = flags(
    "RENAME_???",
    names![RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT],
);
pub(super) static ALLOCATE: Flags = flags(
    "FALLOC_FL_???",
    names![
        FALLOC_FL_KEEP_SIZE,
        FALLOC_FL_PUNCH_HOLE,
        FALLOC_FL_COLLAPSE_RANGE,
        FALLOC_FL_ZERO_RANGE,
        FALLOC_FL_INSERT_RANGE,
        FALLOC_FL_UNSHARE_RANGE
    ],
);
pub(super) static SPLICE: Flags = flags(
    "SPLICE_F_???",
    names![
        SPLICE_F_MOVE,
        SPLICE_F_NONBLOCK,
        SPLICE_F_MORE,
        SPLICE_F_GIFT
    ],
);
pub(super) static MEMFD: Flags = flags(
    "MFD_???",
    names![MFD_CLOEXEC, MFD_ALLOW_SEALING, MFD_HUGETLB],
);
pub(super) static RANDOM: Flags = flags(
    "GRND_???",
    names![GRND_NONBLOCK, GRND_RANDOM, GRND_INSECURE],
);
pub(super) static EVENT: Flags = flags("EFD_???", names![EFD_SEMAPHORE, EFD_CLOEXEC, EFD_NONBLOCK]);
pub(super) static TIMER: Flags = flags("TFD_???", names![TFD_CLOEXEC, TFD_NONBLOCK]);
pub(super) static TIMER_SET: Flags = flags(
    "TFD_???",
    names![TFD_TIMER_ABSTIME, TFD_TIMER_CANCEL_ON_SET],
);
pub(super) static SLEEP: Flags = flags("TIMER_???", names![TIMER_ABSTIME]);
pub(super) static INOTIFY: Flags = flags("IN_???", names![IN_CLOEXEC, IN_NONBLOCK]);
pub(super) static WATCH: Flags = flags(
    "IN_???",
    names![
        IN_ACCESS,
        IN_MODIFY,
        IN_ATTRIB,
        IN_CLOSE_WRITE,
        IN_CLOSE_NOWRITE,
        IN_OPEN,
        IN_MOVED_FROM,
        IN_MOVED_TO,
        IN_CREATE,
        IN_DELETE,
        IN_DELETE_SELF,
        IN_MOVE_SELF,
        IN_ONLYDIR,
        IN_DONT_FOLLOW,
        IN_EXCL_UNLINK,
        IN_MASK_ADD,
        IN_ISDIR,
        IN_ONESHOT
    ],
);
pub(super) static EPOLL_CREATE: Flags = flags("EPOLL_???", names![EPOLL_CLOEXEC]);
pub(super) static EPOLL: Choice = choice(
    "EPOLL_CTL_???",
    names![EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD],
);
pub(super) static EPOLL_EVENTS: Flags = flags(
    "EPOLL???",
    names![
        EPOLLIN,
        EPOLLPRI,
        EPOLLOUT,
        EPOLLRDNORM,
        EPOLLRDBAND,
        EPOLLWRNORM,
        EPOLLWRBAND,
        EPOLLMSG,
        EPOLLERR,
        EPOLLHUP,
        EPOLLRDHUP,
        EPOLLEXCLUSIVE,
        EPOLLWAKEUP,
        EPOLLONESHOT,
        EPOLLET
    ],
);
pub(super) static POLL: Flags = flags(
    "POLL???",
    names![
        POLLIN, POLLPRI, POLLOUT, POLLRDNORM, POLLWRNORM, POLLRDBAND, POLLWRBAND, POLLERR, POLLHUP,
        POLLNVAL, POLLRDHUP
    ],
);
pub(super) static FAMILY: Choice = choice(
    "AF_???",
    names![
        AF_UNSPEC,
        AF_UNIX,
        AF_INET,
        AF_AX25,
        AF_IPX,
        AF_APPLETALK,
        AF_INET6,
        AF_KEY,
        AF_NETLINK,
        AF_PACKET,
        AF_RDS,
        AF_CAN,
        AF_TIPC,
        AF_BLUETOOTH,
        AF_ALG,
        AF_VSOCK,
        AF_XDP
    ],
);
pub(super) static SOCKET: Flags = with(
    (
        15,
        names![
            SOCK_STREAM,
            SOCK_DGRAM,
            SOCK_RAW,
            SOCK_RDM,
            SOCK_SEQPACKET,
            SOCK_DCCP,
            SOCK_PACKET = 10
        ],
    ),
    flags("SOCK_???", names![SOCK_CLOEXEC, SOCK_NONBLOCK]),
);
pub(super) static ACCEPT: Flags = flags("SOCK_???", names![SOCK_CLOEXEC, SOCK_NONBLOCK]);
pub(super) static PROTOCOL: Choice = choice(
    "IPPROTO_???",
    names![
        IPPROTO_IP,
        IPPROTO_ICMP,
        IPPROTO_IGMP,
        IPPROTO_TCP,
        IPPROTO_UDP,
        IPPROTO_IPV6,
        IPPROTO_ICMPV6,
        IPPROTO_SCTP,
        IPPROTO_UDPLITE,
        IPPROTO_RAW
    ],
);
pub(super) static NETLINK: Choice = choice(
    "NETLINK_???",
    names![
        NETLINK_ROUTE,
        NETLINK_USERSOCK,
        NETLINK_FIREWALL,
        NETLINK_SOCK_DIAG = 4,
        NETLINK_NFLOG,
        NETLINK_XFRM,
        NETLINK_SELINUX,
        NETLINK_AUDIT,
        NETLINK_CONNECTOR = 11,
        NETLINK_NETFILTER,
        NETLINK_KOBJECT_UEVENT,
        NETLINK_GENERIC,
        NETLINK_CRYPTO = 21
    ],
);
pub(super) static MESSAGE: Flags = flags(
    "MSG_???",
    names![
        MSG_OOB,
        MSG_PEEK,
        MSG_DONTROUTE,
        MSG_CTRUNC,
        MSG_TRUNC,
        MSG_DONTWAIT,
        MSG_EOR,
        MSG_WAITALL,
        MSG_FIN,
        MSG_SYN,
        MSG_CONFIRM,
        MSG_RST,
        MSG_ERRQUEUE,
        MSG_NOSIGNAL,
        MSG_MORE,
        MSG_WAITFORONE,
        MSG_FASTOPEN,
        MSG_CMSG_CLOEXEC
    ],
);
pub(super) static SHUTDOWN: Choice = choice("SHUT_???", names![SHUT_RD, SHUT_WR, SHUT_RDWR]);
pub(super) static LEVEL: Choice = choice(
    "SOL_???",
    names![
        SOL_IP = 0,
        SOL_SOCKET,
        SOL_TCP = 6,
        SOL_UDP = 17,
        SOL_IPV6 = 41,
        SOL_RAW = 255,
        SOL_PACKET = 263,
        SOL_NETLINK = 270
    ],
);
pub(super) static OPTION: Choice = choice(
    "SO_???",
    names![
        SO_DEBUG,
        SO_REUSEADDR,
        SO_TYPE,
        SO_ERROR,
        SO_DONTROUTE,
        SO_BROADCAST,
        SO_SNDBUF,
        SO_RCVBUF,
        SO_KEEPALIVE,
        SO_OOBINLINE,
        SO_NO_CHECK,
        SO_PRIORITY,
        SO_LINGER,
        SO_BSDCOMPAT,
        SO_REUSEPORT,
        SO_PASSCRED,
        SO_PEERCRED,
        SO_RCVLOWAT,
        SO_SNDLOWAT,
        SO_RCVTIMEO_OLD = 20,
        SO_SNDTIMEO_OLD = 21,
        SO_BINDTODEVICE,
        SO_ATTACH_FILTER,
        SO_DETACH_FILTER,
        SO_PEERNAME,
        SO_TIMESTAMP_OLD = 29,
        SO_ACCEPTCONN,
        SO_PEERSEC,
        SO_SNDBUFFORCE,
        SO_PASSSEC,
        SO_MARK,
        SO_PROTOCOL,
        SO_DOMAIN,
        SO_BUSY_POLL,
        SO_INCOMING_CPU,
        SO_ZEROCOPY = 60
    ],
);
pub(super) static TCP_OPTION: Choice = choice(
    "TCP_???",
    names![
        TCP_NODELAY,
        TCP_MAXSEG,
        TCP_CORK,
        TCP_KEEPIDLE,
        TCP_KEEPINTVL,
        TCP_KEEPCNT,
        TCP_SYNCNT,
        TCP_LINGER2,
        TCP_DEFER_ACCEPT,
        TCP_WINDOW_CLAMP,
        TCP_INFO,
        TCP_QUICKACK,
        TCP_CONGESTION,
        TCP_USER_TIMEOUT,
        TCP_FASTOPEN
    ],
);
pub(super) static CONTROL: Choice = choice(
    "F_???",
    names![
        F_DUPFD,
        F_GETFD,
        F_SETFD,
        F_GETFL,
        F_SETFL,
        F_GETLK,
        F_SETLK,
        F_SETLKW,
        F_SETOWN,
        F_GETOWN,
        F_SETSIG = 10,
        F_GETSIG = 11,
        F_SETOWN_EX = 15,
        F_GETOWN_EX = 16,
        F_OFD_GETLK,
        F_OFD_SETLK,
        F_OFD_SETLKW,
        F_SETLEASE,
        F_GETLEASE,
        F_NOTIFY,
        F_DUPFD_CLOEXEC,
        F_SETPIPE_SZ,
        F_GETPIPE_SZ,
        F_ADD_SEALS,
        F_GET_SEALS
    ],
);
pub(super) static CLOSE_ON_EXEC: Flags = flags("FD_???", names![FD_CLOEXEC]);
pub(super) static REQUEST: Choice = choice(
    "",
    names![
        TCGETS,
        TCSETS,
        TCSETSW,
        TCSETSF,
        TCSBRK,
        TCXONC,
        TCFLSH,
        TIOCEXCL,
        TIOCNXCL,
        TIOCSCTTY,
        TIOCGPGRP,
        TIOCSPGRP,
        TIOCOUTQ,
        TIOCSTI,
        TIOCGWINSZ,
        TIOCSWINSZ,
        TIOCMGET,
        TIOCMSET,
        FIONREAD,
        TIOCNOTTY,
        TIOCGSID,
        TIOCGPTN = 0x80045430,
        TIOCSPTLCK = 0x40045431,
        TIOCGPTPEER = 0x5441,
        FIONBIO,
        FIOASYNC,
        FIONCLEX,
        FIOCLEX,
        SIOCGIFNAME = 0x8910,
        SIOCGIFCONF = 0x8912,
        SIOCGIFFLAGS = 0x8913,
        SIOCGIFADDR = 0x8915,
        SIOCGIFINDEX = 0x8933,
        BLKGETSIZE64 = 0x80081272,
        FICLONE = 0x40049409,
        FS_IOC_GETFLAGS,
        FS_IOC_SETFLAGS
    ],
);
pub(super) static CLONE: Flags = flags(
    "CLONE_???",
    names![
        CLONE_VM,
        CLONE_FS,
        CLONE_FILES,
        CLONE_SIGHAND,
        CLONE_PIDFD,
        CLONE_PTRACE,
        CLONE_VFORK,
        CLONE_PARENT,
        CLONE_THREAD,
        CLONE_NEWNS,
        CLONE_SYSVSEM,
        CLONE_SETTLS,
        CLONE_PARENT_SETTID,
        CLONE_CHILD_CLEARTID,
        CLONE_DETACHED,
        CLONE_UNTRACED,
        CLONE_CHILD_SETTID,
        CLONE_NEWCGROUP,
        CLONE_NEWUTS,
        CLONE_NEWIPC,
        CLONE_NEWUSER,
        CLONE_NEWPID,
        CLONE_NEWNET,
        CLONE_IO
    ],
);
pub(super) static WAIT: Flags = flags(
    "W???",
    names![
        WNOHANG,
        WSTOPPED,
        WEXITED,
        WCONTINUED,
        WNOWAIT,
        __WCLONE,
        __WALL,
        __WNOTHREAD
    ],
);
pub(super) static WAIT_FOR: Choice = choice("P_???", names![P_ALL, P_PID, P_PGID, P_PIDFD]);
pub(super) static CLOCK: Choice = choice(
    "CLOCK_???",
    names![
        CLOCK_REALTIME,
        CLOCK_MONOTONIC,
        CLOCK_PROCESS_CPUTIME_ID,
        CLOCK_THREAD_CPUTIME_ID,
        CLOCK_MONOTONIC_RAW,
        CLOCK_REALTIME_COARSE,
        CLOCK_MONOTONIC_COARSE,
        CLOCK_BOOTTIME,
        CLOCK_REALTIME_ALARM,
        CLOCK_BOOTTIME_ALARM,
        CLOCK_TAI
    ],
);
pub(super) static INTERVAL: Choice = choice(
    "ITIMER_???",
    names![ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF],
);
pub(super) static RESOURCE: Choice = choice(
    "RLIMIT_???",
    names![
        RLIMIT_CPU,
        RLIMIT_FSIZE,
        RLIMIT_DATA,
        RLIMIT_STACK,
        RLIMIT_CORE,
        RLIMIT_RSS,
        RLIMIT_NPROC,
        RLIMIT_NOFILE,
        RLIMIT_MEMLOCK,
        RLIMIT_AS,
        RLIMIT_LOCKS,
        RLIMIT_SIGPENDING,
        RLIMIT_MSGQUEUE,
        RLIMIT_NICE,
        RLIMIT_RTPRIO,
        RLIMIT_RTTIME
    ],
);
pub(super) static USAGE: Choice = choice(
    "RUSAGE_???",
    names![RUSAGE_SELF, RUSAGE_CHILDREN, RUSAGE_THREAD],
);
pub(super) static PROCESS: Choice = choice(
    "PR_???",
    names![
        PR_SET_PDEATHSIG,
        PR_GET_PDEATHSIG,
        PR_GET_DUMPABLE,
        PR_SET_DUMPABLE,
        PR_GET_KEEPCAPS,
        PR_SET_KEEPCAPS,
        PR_SET_NAME,
        PR_GET_NAME,
        PR_GET_SECCOMP,
        PR_SET_SECCOMP,
        PR_CAPBSET_READ,
        PR_CAPBSET_DROP,
        PR_SET_TIMERSLACK,
        PR_GET_TIMERSLACK,
        PR_SET_CHILD_SUBREAPER,
        PR_GET_CHILD_SUBREAPER,
        PR_SET_NO_NEW_PRIVS,
        PR_GET_NO_NEW_PRIVS,
        PR_GET_TID_ADDRESS,
        PR_SET_THP_DISABLE,
        PR_GET_THP_DISABLE,
        PR_CAP_AMBIENT,
        PR_SET_PTRACER,
        PR_SET_MM,
        PR_SET_VMA = 0x53564d41
    ],
);
pub(super) static ARCH: Choice = choice(
    "ARCH_???",
    names![
        ARCH_SET_GS = 0x1001,
        ARCH_SET_FS = 0x1002,
        ARCH_GET_FS = 0x1003,
        ARCH_GET_GS = 0x1004,
        ARCH_CET_STATUS = 0x3001
    ],
);
pub(super) static MASK: Choice = choice("SIG_???", names![SIG_BLOCK, SIG_UNBLOCK, SIG_SETMASK]);
pub(super) static ACTION: Flags = flags(
    "SA_???",
    names![
        SA_RESTORER = 0x4000000,
        SA_ONSTACK,
        SA_RESTART,
        SA_NODEFER,
        SA_RESETHAND,
        SA_SIGINFO,
        SA_NOCLDSTOP,
        SA_NOCLDWAIT
    ],
);
pub(super) static FUTEX: Choice = choice(
    "FUTEX_???",
    names![
        FUTEX_WAIT = 0,
        FUTEX_WAIT_PRIVATE = 128,
        FUTEX_WAKE = 1,
        FUTEX_WAKE_PRIVATE = 129,
        FUTEX_FD = 2,
        FUTEX_FD_PRIVATE = 130,
        FUTEX_REQUEUE = 3,
        FUTEX_REQUEUE_PRIVATE = 131,
        FUTEX_CMP_REQUEUE = 4,
        FUTEX_CMP_REQUEUE_PRIVATE = 132,
        FUTEX_WAKE_OP = 5,
        FUTEX_WAKE_OP_PRIVATE = 133,
        FUTEX_LOCK_PI = 6,
        FUTEX_LOCK_PI_PRIVATE = 134,
        FUTEX_UNLOCK_PI = 7,
        FUTEX_UNLOCK_PI_PRIVATE = 135,
        FUTEX_TRYLOCK_PI = 8,
        FUTEX_TRYLOCK_PI_PRIVATE = 136,
        FUTEX_WAIT_BITSET = 9,
        FUTEX_WAIT_BITSET_PRIVATE = 137,
        FUTEX_WAKE_BITSET = 10,
        FUTEX_WAKE_BITSET_PRIVATE = 138,
        FUTEX_WAIT_REQUEUE_PI = 11,
        FUTEX_WAIT_REQUEUE_PI_PRIVATE = 139,
        FUTEX_CMP_REQUEUE_PI = 12,
        FUTEX_CMP_REQUEUE_PI_PRIVATE = 140,
        FUTEX_LOCK_PI2 = 13,
        FUTEX_LOCK_PI2_PRIVATE = 141
    ],
);
pub(super) static SIGNAL: Choice = choice(
    "SIG_???",
    names![
        SIGHUP, SIGINT, SIGQUIT, SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGKILL, SIGUSR1,
        SIGSEGV, SIGUSR2, SIGPIPE, SIGALRM, SIGTERM, SIGSTKFLT, SIGCHLD, SIGCONT, SIGSTOP, SIGTSTP,
        SIGTTIN, SIGTTOU, SIGURG, SIGXCPU, SIGXFSZ, SIGVTALRM, SIGPROF, SIGWINCH, SIGIO, SIGPWR,
        SIGSYS
    ],
);

/// Returns the name of a signal; real-time signals are counted from the first.
pub(super) fn signal(number: u64) -> String {
    match number {
        0 => "0".to_owned(),
        32 => "SIGRTMIN".to_owned(),
        33..=64 => format!("SIGRT_{}", number - 32),
        number => match SIGNAL.find(number) {
            Some(name) => name.to_owned(),
            None => number.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_names_that_strace_shows() {
        for (text, value) in [
            ("O_RDONLY", 0),
            ("O_RDWR|O_CREAT|O_TRUNC|O_CLOEXEC", 0o2001102),
            ("O_RDONLY|O_NONBLOCK|O_CLOEXEC|O_DIRECTORY", 0o2204000),
            ("O_RDWR|O_TMPFILE", 0o20200002),
            ("O_WRONLY|0x80000000", 0x8000_0001),
        ] {
            assert_eq!(OPEN.text(value), text);
        }
        assert_eq!(PROTECTION.text(0), "PROT_NONE");
        assert_eq!(PROTECTION.text(3), "PROT_READ|PROT_WRITE");
        assert_eq!(PROTECTION.text(0x100), "0x100 /* PROT_??? */");
        assert_eq!(MAPPING.text(0x22), "MAP_PRIVATE|MAP_ANONYMOUS");
        assert_eq!(MESSAGE.text(0), "0");
        assert_eq!(WHENCE.text(9), "0x9 /* SEEK_??? */");
        assert_eq!([2, 34].map(signal), ["SIGINT", "SIGRT_2"]);
    }
}
