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

/// Makes tables of constants: `choice` or `flags`, the table, the name of an unknown constant, and
/// the names. Before these, `flags` may have a mask and the names of its values. A constant that
/// the C library lacks has its value behind its name.
macro_rules! tables {
    ($(
        $kind:ident $table:ident $unknown:literal $($mask:literal of $one:tt)? { $($names:tt)* }
    )*) => {
        $(tables!(@ $kind $table $unknown ($($mask $one)?) { $($names)* });)*
    };
    (@ choice $table:ident $unknown:literal () $names:tt) => {
        pub(super) static $table: Choice = Choice { names: tables!(@ $names), unknown: $unknown };
    };
    (@ flags $table:ident $unknown:literal () $names:tt) => {
        tables!(@ flags $table $unknown (0 {}) $names);
    };
    (@ flags $table:ident $unknown:literal ($mask:literal $one:tt) $names:tt) => {
        pub(super) static $table: Flags = Flags {
            choice: ($mask, tables!(@ $one)),
            bits: tables!(@ $names),
            unknown: $unknown,
        };
    };
    (@ { $($name:ident $(= $value:literal)?)* }) => {
        &[$((stringify!($name), tables!(@ $name $($value)?))),*]
    };
    (@ $name:ident) => { libc::$name as u32 as u64 };
    (@ $name:ident $value:literal) => { $value };
}

tables! {
    flags OPEN "O_???" 3 of { O_RDONLY O_WRONLY O_RDWR O_ACCMODE } {
        O_CREAT O_EXCL O_NOCTTY O_TRUNC O_APPEND O_NONBLOCK O_SYNC O_ASYNC O_DSYNC O_DIRECT
        O_LARGEFILE=0x8000 O_NOFOLLOW O_NOATIME O_CLOEXEC O_PATH O_TMPFILE O_DIRECTORY
    }
    flags DESCRIPTOR "O_???" { O_NONBLOCK O_DIRECT O_CLOEXEC }
    flags ACCESS "?_OK" 0 of { F_OK } { R_OK W_OK X_OK }
    flags PROTECTION "PROT_???" 0 of { PROT_NONE } {
        PROT_READ PROT_WRITE PROT_EXEC PROT_SEM=8 PROT_GROWSDOWN PROT_GROWSUP
    }
    flags MAPPING "MAP_???" 15 of { MAP_FILE=0 MAP_SHARED MAP_PRIVATE MAP_SHARED_VALIDATE } {
        MAP_FIXED MAP_ANONYMOUS MAP_32BIT MAP_NORESERVE MAP_POPULATE MAP_NONBLOCK MAP_GROWSDOWN
        MAP_DENYWRITE MAP_EXECUTABLE MAP_LOCKED MAP_STACK MAP_HUGETLB MAP_SYNC MAP_FIXED_NOREPLACE
    }
    flags REMAP "MREMAP_???" { MREMAP_MAYMOVE MREMAP_FIXED MREMAP_DONTUNMAP }
    flags SYNCHRONIZE "MS_???" { MS_ASYNC MS_INVALIDATE MS_SYNC }
    choice ADVICE "MADV_???" {
        MADV_NORMAL MADV_RANDOM MADV_SEQUENTIAL MADV_WILLNEED MADV_DONTNEED MADV_FREE MADV_REMOVE
        MADV_DONTFORK MADV_DOFORK MADV_MERGEABLE MADV_UNMERGEABLE MADV_HUGEPAGE MADV_NOHUGEPAGE
        MADV_DONTDUMP MADV_DODUMP MADV_WIPEONFORK MADV_KEEPONFORK MADV_COLD MADV_PAGEOUT
        MADV_POPULATE_READ MADV_POPULATE_WRITE MADV_DONTNEED_LOCKED=24 MADV_COLLAPSE=25
    }
    choice FILE_ADVICE "POSIX_FADV_???" {
        POSIX_FADV_NORMAL POSIX_FADV_RANDOM POSIX_FADV_SEQUENTIAL POSIX_FADV_WILLNEED
        POSIX_FADV_DONTNEED POSIX_FADV_NOREUSE
    }
    choice WHENCE "SEEK_???" { SEEK_SET SEEK_CUR SEEK_END SEEK_DATA SEEK_HOLE }
    flags LOCK "LOCK_???" 11 of { LOCK_SH LOCK_EX LOCK_UN } { LOCK_NB }
    flags AT "AT_???" {
        AT_SYMLINK_NOFOLLOW AT_SYMLINK_FOLLOW AT_NO_AUTOMOUNT AT_EMPTY_PATH
        AT_STATX_FORCE_SYNC=0x2000 AT_STATX_DONT_SYNC=0x4000 AT_RECURSIVE=0x8000
    }
    flags STATX "AT_???" 0x6000 of {
        AT_STATX_SYNC_AS_STAT=0 AT_STATX_FORCE_SYNC=0x2000 AT_STATX_DONT_SYNC=0x4000
    } { AT_SYMLINK_NOFOLLOW AT_SYMLINK_FOLLOW AT_NO_AUTOMOUNT AT_EMPTY_PATH }
    flags UNLINK "AT_???" { AT_REMOVEDIR }
    flags ACCESS_AT "AT_???" { AT_SYMLINK_NOFOLLOW AT_EACCESS AT_EMPTY_PATH }
    flags STATX_MASK "STATX_???" {
        STATX_ALL STATX_BASIC_STATS STATX_TYPE STATX_MODE STATX_NLINK STATX_UID STATX_GID
        STATX_ATIME STATX_MTIME STATX_CTIME STATX_INO STATX_SIZE STATX_BLOCKS STATX_BTIME
        STATX_MNT_ID=0x1000
    }
    flags RENAME "RENAME_???" { RENAME_NOREPLACE RENAME_EXCHANGE RENAME_WHITEOUT }
    flags ALLOCATE "FALLOC_FL_???" {
        FALLOC_FL_KEEP_SIZE FALLOC_FL_PUNCH_HOLE FALLOC_FL_COLLAPSE_RANGE FALLOC_FL_ZERO_RANGE
        FALLOC_FL_INSERT_RANGE FALLOC_FL_UNSHARE_RANGE
    }
    flags SPLICE "SPLICE_F_???" { SPLICE_F_MOVE SPLICE_F_NONBLOCK SPLICE_F_MORE SPLICE_F_GIFT }
    flags MEMFD "MFD_???" { MFD_CLOEXEC MFD_ALLOW_SEALING MFD_HUGETLB }
    flags RANDOM "GRND_???" { GRND_NONBLOCK GRND_RANDOM GRND_INSECURE }
    flags EVENT "EFD_???" { EFD_SEMAPHORE EFD_CLOEXEC EFD_NONBLOCK }
    flags TIMER "TFD_???" { TFD_CLOEXEC TFD_NONBLOCK }
    flags TIMER_SET "TFD_???" { TFD_TIMER_ABSTIME TFD_TIMER_CANCEL_ON_SET }
    flags SLEEP "TIMER_???" { TIMER_ABSTIME }
    flags INOTIFY "IN_???" { IN_CLOEXEC IN_NONBLOCK }
    flags WATCH "IN_???" {
        IN_ACCESS IN_MODIFY IN_ATTRIB IN_CLOSE_WRITE IN_CLOSE_NOWRITE IN_OPEN IN_MOVED_FROM
        IN_MOVED_TO IN_CREATE IN_DELETE IN_DELETE_SELF IN_MOVE_SELF IN_ONLYDIR IN_DONT_FOLLOW
        IN_EXCL_UNLINK IN_MASK_ADD IN_ISDIR IN_ONESHOT
    }
    flags EPOLL_CREATE "EPOLL_???" { EPOLL_CLOEXEC }
    choice EPOLL "EPOLL_CTL_???" { EPOLL_CTL_ADD EPOLL_CTL_DEL EPOLL_CTL_MOD }
    flags EPOLL_EVENTS "EPOLL???" {
        EPOLLIN EPOLLPRI EPOLLOUT EPOLLRDNORM EPOLLRDBAND EPOLLWRNORM EPOLLWRBAND EPOLLMSG EPOLLERR
        EPOLLHUP EPOLLRDHUP EPOLLEXCLUSIVE EPOLLWAKEUP EPOLLONESHOT EPOLLET
    }
    flags POLL "POLL???" {
        POLLIN POLLPRI POLLOUT POLLRDNORM POLLWRNORM POLLRDBAND POLLWRBAND POLLERR POLLHUP POLLNVAL
        POLLRDHUP
    }
    choice FAMILY "AF_???" {
        AF_UNSPEC AF_UNIX AF_INET AF_AX25 AF_IPX AF_APPLETALK AF_INET6 AF_KEY AF_NETLINK AF_PACKET
        AF_RDS AF_CAN AF_TIPC AF_BLUETOOTH AF_ALG AF_VSOCK AF_XDP
    }
    flags SOCKET "SOCK_???" 15 of {
        SOCK_STREAM SOCK_DGRAM SOCK_RAW SOCK_RDM SOCK_SEQPACKET SOCK_DCCP SOCK_PACKET=10
    } { SOCK_CLOEXEC SOCK_NONBLOCK }
    flags ACCEPT "SOCK_???" { SOCK_CLOEXEC SOCK_NONBLOCK }
    choice PROTOCOL "IPPROTO_???" {
        IPPROTO_IP IPPROTO_ICMP IPPROTO_IGMP IPPROTO_TCP IPPROTO_UDP IPPROTO_IPV6 IPPROTO_ICMPV6
        IPPROTO_SCTP IPPROTO_UDPLITE IPPROTO_RAW
    }
    choice NETLINK "NETLINK_???" {
        NETLINK_ROUTE NETLINK_USERSOCK NETLINK_FIREWALL NETLINK_SOCK_DIAG=4 NETLINK_NFLOG
        NETLINK_XFRM NETLINK_SELINUX NETLINK_AUDIT NETLINK_CONNECTOR=11 NETLINK_NETFILTER
        NETLINK_KOBJECT_UEVENT NETLINK_GENERIC NETLINK_CRYPTO=21
    }
    flags MESSAGE "MSG_???" {
        MSG_OOB MSG_PEEK MSG_DONTROUTE MSG_CTRUNC MSG_TRUNC MSG_DONTWAIT MSG_EOR MSG_WAITALL MSG_FIN
        MSG_SYN MSG_CONFIRM MSG_RST MSG_ERRQUEUE MSG_NOSIGNAL MSG_MORE MSG_WAITFORONE MSG_FASTOPEN
        MSG_CMSG_CLOEXEC
    }
    choice SHUTDOWN "SHUT_???" { SHUT_RD SHUT_WR SHUT_RDWR }
    choice LEVEL "SOL_???" {
        SOL_IP=0 SOL_SOCKET SOL_TCP=6 SOL_UDP=17 SOL_IPV6=41 SOL_RAW=255 SOL_PACKET=263
        SOL_NETLINK=270
    }
    choice OPTION "SO_???" {
        SO_DEBUG SO_REUSEADDR SO_TYPE SO_ERROR SO_DONTROUTE SO_BROADCAST SO_SNDBUF SO_RCVBUF
        SO_KEEPALIVE SO_OOBINLINE SO_NO_CHECK SO_PRIORITY SO_LINGER SO_BSDCOMPAT SO_REUSEPORT
        SO_PASSCRED SO_PEERCRED SO_RCVLOWAT SO_SNDLOWAT SO_RCVTIMEO_OLD=20 SO_SNDTIMEO_OLD=21
        SO_BINDTODEVICE SO_ATTACH_FILTER SO_DETACH_FILTER SO_PEERNAME SO_TIMESTAMP_OLD=29
        SO_ACCEPTCONN SO_PEERSEC SO_SNDBUFFORCE SO_PASSSEC SO_MARK SO_PROTOCOL SO_DOMAIN
        SO_BUSY_POLL SO_INCOMING_CPU SO_ZEROCOPY=60
    }
    choice TCP_OPTION "TCP_???" {
        TCP_NODELAY TCP_MAXSEG TCP_CORK TCP_KEEPIDLE TCP_KEEPINTVL TCP_KEEPCNT TCP_SYNCNT
        TCP_LINGER2 TCP_DEFER_ACCEPT TCP_WINDOW_CLAMP TCP_INFO TCP_QUICKACK TCP_CONGESTION
        TCP_USER_TIMEOUT TCP_FASTOPEN
    }
    choice CONTROL "F_???" {
        F_DUPFD F_GETFD F_SETFD F_GETFL F_SETFL F_GETLK F_SETLK F_SETLKW F_SETOWN F_GETOWN
        F_SETSIG=10 F_GETSIG=11 F_SETOWN_EX=15 F_GETOWN_EX=16 F_OFD_GETLK F_OFD_SETLK F_OFD_SETLKW
        F_SETLEASE F_GETLEASE F_NOTIFY F_DUPFD_CLOEXEC F_SETPIPE_SZ F_GETPIPE_SZ F_ADD_SEALS
        F_GET_SEALS
    }
    flags CLOSE_ON_EXEC "FD_???" { FD_CLOEXEC }
    choice REQUEST "" {
        TCGETS TCSETS TCSETSW TCSETSF TCSBRK TCXONC TCFLSH TIOCEXCL TIOCNXCL TIOCSCTTY TIOCGPGRP
        TIOCSPGRP TIOCOUTQ TIOCSTI TIOCGWINSZ TIOCSWINSZ TIOCMGET TIOCMSET FIONREAD TIOCNOTTY
        TIOCGSID TIOCGPTN=0x80045430 TIOCSPTLCK=0x40045431 TIOCGPTPEER=0x5441 FIONBIO FIOASYNC
        FIONCLEX FIOCLEX SIOCGIFNAME=0x8910 SIOCGIFCONF=0x8912 SIOCGIFFLAGS=0x8913
        SIOCGIFADDR=0x8915 SIOCGIFINDEX=0x8933 BLKGETSIZE64=0x80081272 FICLONE=0x40049409
        FS_IOC_GETFLAGS FS_IOC_SETFLAGS
    }
    flags CLONE "CLONE_???" {
        CLONE_VM CLONE_FS CLONE_FILES CLONE_SIGHAND CLONE_PIDFD CLONE_PTRACE CLONE_VFORK
        CLONE_PARENT CLONE_THREAD CLONE_NEWNS CLONE_SYSVSEM CLONE_SETTLS CLONE_PARENT_SETTID
        CLONE_CHILD_CLEARTID CLONE_DETACHED CLONE_UNTRACED CLONE_CHILD_SETTID CLONE_NEWCGROUP
        CLONE_NEWUTS CLONE_NEWIPC CLONE_NEWUSER CLONE_NEWPID CLONE_NEWNET CLONE_IO
    }
    flags WAIT "W???" { WNOHANG WSTOPPED WEXITED WCONTINUED WNOWAIT __WCLONE __WALL __WNOTHREAD }
    choice WAIT_FOR "P_???" { P_ALL P_PID P_PGID P_PIDFD }
    choice CLOCK "CLOCK_???" {
        CLOCK_REALTIME CLOCK_MONOTONIC CLOCK_PROCESS_CPUTIME_ID CLOCK_THREAD_CPUTIME_ID
        CLOCK_MONOTONIC_RAW CLOCK_REALTIME_COARSE CLOCK_MONOTONIC_COARSE CLOCK_BOOTTIME
        CLOCK_REALTIME_ALARM CLOCK_BOOTTIME_ALARM CLOCK_TAI
    }
    choice INTERVAL "ITIMER_???" { ITIMER_REAL ITIMER_VIRTUAL ITIMER_PROF }
    choice RESOURCE "RLIMIT_???" {
        RLIMIT_CPU RLIMIT_FSIZE RLIMIT_DATA RLIMIT_STACK RLIMIT_CORE RLIMIT_RSS RLIMIT_NPROC
        RLIMIT_NOFILE RLIMIT_MEMLOCK RLIMIT_AS RLIMIT_LOCKS RLIMIT_SIGPENDING RLIMIT_MSGQUEUE
        RLIMIT_NICE RLIMIT_RTPRIO RLIMIT_RTTIME
    }
    choice USAGE "RUSAGE_???" { RUSAGE_SELF RUSAGE_CHILDREN RUSAGE_THREAD }
    choice PROCESS "PR_???" {
        PR_SET_PDEATHSIG PR_GET_PDEATHSIG PR_GET_DUMPABLE PR_SET_DUMPABLE PR_GET_KEEPCAPS
        PR_SET_KEEPCAPS PR_SET_NAME PR_GET_NAME PR_GET_SECCOMP PR_SET_SECCOMP PR_CAPBSET_READ
        PR_CAPBSET_DROP PR_SET_TIMERSLACK PR_GET_TIMERSLACK PR_SET_CHILD_SUBREAPER
        PR_GET_CHILD_SUBREAPER PR_SET_NO_NEW_PRIVS PR_GET_NO_NEW_PRIVS PR_GET_TID_ADDRESS
        PR_SET_THP_DISABLE PR_GET_THP_DISABLE PR_CAP_AMBIENT PR_SET_PTRACER PR_SET_MM
        PR_SET_VMA=0x53564d41
    }
    choice ARCH "ARCH_???" {
        ARCH_SET_GS=0x1001 ARCH_SET_FS=0x1002 ARCH_GET_FS=0x1003 ARCH_GET_GS=0x1004
        ARCH_CET_STATUS=0x3001
    }
    choice MASK "SIG_???" { SIG_BLOCK SIG_UNBLOCK SIG_SETMASK }
    flags ACTION "SA_???" {
        SA_RESTORER=0x4000000 SA_ONSTACK SA_RESTART SA_NODEFER SA_RESETHAND SA_SIGINFO SA_NOCLDSTOP
        SA_NOCLDWAIT
    }
    choice FUTEX "FUTEX_???" {
        FUTEX_WAIT=0 FUTEX_WAIT_PRIVATE=128 FUTEX_WAKE=1 FUTEX_WAKE_PRIVATE=129 FUTEX_FD=2
        FUTEX_FD_PRIVATE=130 FUTEX_REQUEUE=3 FUTEX_REQUEUE_PRIVATE=131 FUTEX_CMP_REQUEUE=4
        FUTEX_CMP_REQUEUE_PRIVATE=132 FUTEX_WAKE_OP=5 FUTEX_WAKE_OP_PRIVATE=133 FUTEX_LOCK_PI=6
        FUTEX_LOCK_PI_PRIVATE=134 FUTEX_UNLOCK_PI=7 FUTEX_UNLOCK_PI_PRIVATE=135 FUTEX_TRYLOCK_PI=8
        FUTEX_TRYLOCK_PI_PRIVATE=136 FUTEX_WAIT_BITSET=9 FUTEX_WAIT_BITSET_PRIVATE=137
        FUTEX_WAKE_BITSET=10 FUTEX_WAKE_BITSET_PRIVATE=138 FUTEX_WAIT_REQUEUE_PI=11
        FUTEX_WAIT_REQUEUE_PI_PRIVATE=139 FUTEX_CMP_REQUEUE_PI=12 FUTEX_CMP_REQUEUE_PI_PRIVATE=140
        FUTEX_LOCK_PI2=13 FUTEX_LOCK_PI2_PRIVATE=141
    }
    choice SIGNAL "SIG_???" {
        SIGHUP SIGINT SIGQUIT SIGILL SIGTRAP SIGABRT SIGBUS SIGFPE SIGKILL SIGUSR1 SIGSEGV SIGUSR2
        SIGPIPE SIGALRM SIGTERM SIGSTKFLT SIGCHLD SIGCONT SIGSTOP SIGTSTP SIGTTIN SIGTTOU SIGURG
        SIGXCPU SIGXFSZ SIGVTALRM SIGPROF SIGWINCH SIGIO SIGPWR SIGSYS
    }
}

/// Returns the name of a signal; real-time signals are counted from the first.
pub(in super::super) fn signal(number: u64) -> String {
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
