//! Selects system calls by the expressions of `strace -e`.

use std::collections::HashSet;

use fgraph_tracers::syscalls::known_name;

use crate::unmatched::near;

/// A bound of the number of system calls.
pub(super) const NUMBERS: u64 = 512;

/// The system calls that an expression selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Selection {
    numbers: HashSet<u64>,
    /// True if the numbers are those that are left out.
    is_inverted: bool,
}

/// The qualifiers of `strace` that are about other things than the calls to show.
const OTHERS: [&str; 15] = [
    "abbrev",
    "a",
    "decode-fds",
    "decode-pid",
    "fault",
    "inject",
    "kvm",
    "quiet",
    "raw",
    "read",
    "signal",
    "status",
    "verbose",
    "write",
    "x",
];

impl Selection {
    /// Parses `trace=file`, `%network`, `openat,read`, or `!close`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let value = match text.split_once('=') {
            None => text,
            Some(("trace" | "t", value)) => value,
            Some((qualifier, _)) if OTHERS.contains(&qualifier) => {
                return Err(format!(
                    "only 'trace=' selects system calls, not '{qualifier}='"
                ));
            }
            Some((qualifier, _)) => return Err(format!("there is no qualifier '{qualifier}='")),
        };
        let names = value.trim_start_matches('!');
        let is_inverted = (value.len() - names.len()) % 2 == 1;
        match names {
            "all" => return Ok(Self::all(!is_inverted)),
            "none" => return Ok(Self::all(is_inverted)),
            _ => {}
        }
        let mut numbers = HashSet::new();
        for name in names.split(',') {
            // A call that another kernel has may be unknown.
            let (name, may_be_unknown) = match name.strip_prefix('?') {
                Some(name) => (name, true),
                None => (name, false),
            };
            match numbers_of(name) {
                Ok(found) => numbers.extend(found),
                Err(_) if may_be_unknown => {}
                Err(why) => return Err(why),
            }
        }
        Ok(Self {
            numbers,
            is_inverted,
        })
    }

    fn all(is_inverted: bool) -> Self {
        Self {
            numbers: HashSet::new(),
            is_inverted,
        }
    }

    /// Returns true if a system call is selected.
    pub(super) fn contains(&self, number: u64) -> bool {
        self.numbers.contains(&number) != self.is_inverted
    }

    /// Returns the names that the agent looks for: they select at least these calls. None are all.
    pub(super) fn words(&self) -> Vec<String> {
        if self.numbers.is_empty() && self.is_inverted {
            return Vec::new();
        }
        let selected = (0..NUMBERS).filter(|number| self.contains(*number));
        let names = selected.filter_map(known_name);
        // A function for any call, whose number is its argument.
        names.chain(["syscall"]).map(str::to_owned).collect()
    }

    /// Returns true if no system call is selected.
    pub(super) fn is_empty(&self) -> bool {
        !(0..NUMBERS).any(|number| self.contains(number))
    }
}

/// Returns the calls with a name, or those of a class; or the reason why there are none.
fn numbers_of(name: &str) -> Result<Vec<u64>, String> {
    if let Ok(number) = name.parse() {
        return Ok(vec![number]);
    }
    if name.starts_with('/') {
        return Err(format!(
            "'{name}' is a regular expression: -F 'open*' selects calls by a glob"
        ));
    }
    let number = |name: &str| (0..NUMBERS).find(|number| known_name(*number) == Some(name));
    let class = name.strip_prefix('%').unwrap_or(name);
    if let Some((_, members)) = CLASSES.iter().find(|(names, _)| names.contains(&class)) {
        return Ok(members.split_whitespace().filter_map(number).collect());
    }
    if name.starts_with('%') {
        let known = CLASSES.iter().map(|(names, _)| format!("%{}", names[0]));
        let known: Vec<String> = known.collect();
        return Err(format!(
            "there is no class '{name}': there are {}",
            known.join(", ")
        ));
    }
    if let Some(number) = number(name) {
        return Ok(vec![number]);
    }
    let known: Vec<&str> = (0..NUMBERS).filter_map(known_name).collect();
    Err(match &near(name, &known)[..] {
        [] => format!("there is no system call '{name}'"),
        near => format!(
            "there is no system call '{name}'; did you mean {}?",
            near.join(" or ")
        ),
    })
}

/// The classes of system calls, each with its names and its members, as `strace` has them.
const CLASSES: [(&[&str], &str); 10] = [
    (
        &["file"],
        "access acct chdir chmod chown chroot creat execve execveat faccessat faccessat2
        fanotify_mark fchmodat fchmodat2 fchownat fsconfig fspick futimesat getcwd getxattr
        getxattrat inotify_add_watch lchown lgetxattr link linkat listxattr listxattrat llistxattr
        lremovexattr lsetxattr lstat mkdir mkdirat mknod mknodat mount mount_setattr move_mount
        name_to_handle_at newfstatat open open_tree openat openat2 pivot_root quotactl readlink
        readlinkat removexattr removexattrat rename renameat renameat2 rmdir setxattr setxattrat
        stat statfs statx swapoff swapon symlink symlinkat truncate umount2 unlink unlinkat uselib
        utime utimensat utimes",
    ),
    (
        &["network", "net"],
        "accept accept4 bind connect getpeername getpmsg getsockname getsockopt listen putpmsg
        recvfrom recvmmsg recvmsg sendfile sendmmsg sendmsg sendto setsockopt shutdown socket
        socketpair",
    ),
    (
        &["process"],
        "clone clone3 execve execveat exit exit_group fork kill pidfd_send_signal rt_sigqueueinfo
        rt_tgsigqueueinfo tgkill tkill vfork wait4 waitid",
    ),
    (
        &["memory"],
        "brk get_mempolicy io_destroy io_setup io_uring_register madvise map_shadow_stack mbind
        migrate_pages mincore mlock mlock2 mlockall mmap move_pages mprotect mremap mseal msync
        munlock munlockall munmap pkey_mprotect remap_file_pages set_mempolicy
        set_mempolicy_home_node shmat shmdt",
    ),
    (
        &["desc"],
        "bpf cachestat close copy_file_range creat dup dup2 dup3 epoll_create epoll_create1
        epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 execveat faccessat
        faccessat2 fadvise64 fallocate fanotify_init fanotify_mark fchdir fchmod fchmodat
        fchmodat2 fchown fchownat fcntl fdatasync fgetxattr finit_module flistxattr flock
        fremovexattr fsconfig fsetxattr fsmount fsopen fspick fstat fstatfs fsync ftruncate
        futimesat getdents getdents64 getxattrat inotify_add_watch inotify_init inotify_init1
        inotify_rm_watch io_uring_enter io_uring_register io_uring_setup ioctl kexec_file_load
        landlock_add_rule landlock_create_ruleset landlock_restrict_self linkat listxattrat lseek
        memfd_create memfd_secret mkdirat mknodat mmap mount_setattr move_mount mq_getsetattr
        mq_notify mq_open mq_timedreceive mq_timedsend name_to_handle_at newfstatat open
        open_by_handle_at open_tree openat openat2 perf_event_open pidfd_getfd pidfd_open
        pidfd_send_signal pipe pipe2 poll ppoll pread64 preadv preadv2 process_madvise
        process_mrelease pselect6 pwrite64 pwritev pwritev2 quotactl_fd read readahead readlinkat
        readv removexattrat renameat renameat2 select sendfile setns setxattrat signalfd signalfd4
        splice statx symlinkat sync_file_range syncfs tee timerfd_create timerfd_gettime
        timerfd_settime unlinkat userfaultfd utimensat vmsplice write writev",
    ),
    (
        &["signal"],
        "io_uring_enter kill pause pidfd_send_signal rt_sigaction rt_sigpending rt_sigprocmask
        rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sigaltstack
        signalfd signalfd4 tgkill tkill",
    ),
    (
        &["ipc"],
        "msgctl msgget msgrcv msgsnd semctl semget semop semtimedop shmat shmctl shmdt shmget",
    ),
    (
        &["creds"],
        "capget capset getegid geteuid getgid getgroups getresgid getresuid getuid prctl setfsgid
        setfsuid setgid setgroups setregid setresgid setresuid setreuid setuid",
    ),
    (
        &["clock"],
        "adjtimex clock_adjtime clock_getres clock_gettime clock_settime gettimeofday settimeofday
        time",
    ),
    (
        &["pure"],
        "getegid geteuid getgid getpgrp getpid getppid gettid getuid",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(text: &str) -> Vec<&'static str> {
        let selection = Selection::parse(text).unwrap_or_else(|why| panic!("{text}: {why}"));
        let numbers = (0..NUMBERS).filter(|number| selection.contains(*number));
        numbers.filter_map(known_name).collect()
    }

    #[test]
    fn expressions_are_those_of_strace() {
        assert_eq!(selected("openat"), ["openat"]);
        assert_eq!(selected("trace=read,write"), ["read", "write"]);
        assert_eq!(selected("t=0,?no_such_call"), ["read"]);
        assert_eq!(selected("%pure"), selected("trace=pure"));
        assert_eq!(selected("%net"), selected("network"));
        assert_eq!(selected("trace=%ipc,close").len(), 13);
        let all = selected("all").len();
        assert_eq!(selected("trace=!none").len(), all);
        assert_eq!(selected("!close,read").len(), all - 2);
        assert!(!selected("!%file").contains(&"openat"));
        for none in ["none", "!all", "?no_such_call"] {
            assert!(Selection::parse(none).unwrap().is_empty(), "{none}");
        }
        // A call without a name is left out only by its number.
        assert!(Selection::parse("!close").unwrap().contains(9999));
        assert!(!Selection::parse("!9999").unwrap().contains(9999));
    }

    #[test]
    fn wrong_expressions_are_refused_with_their_words() {
        for (text, why) in [
            (
                "trace=opnat",
                "no system call 'opnat'; did you mean openat?",
            ),
            ("%files", "no class '%files': there are %file, %network"),
            (
                "signal=none",
                "only 'trace=' selects system calls, not 'signal='",
            ),
            ("frob=1", "no qualifier 'frob='"),
            ("/open", "'/open' is a regular expression: -F 'open*'"),
            ("", "no system call ''"),
        ] {
            let found = Selection::parse(text).unwrap_err();
            assert!(found.contains(why), "{text}: {found}");
        }
    }

    #[test]
    fn members_of_classes_are_system_calls() {
        // Newer than the list of names.
        let new = ["getxattrat", "listxattrat", "removexattrat", "setxattrat"];
        let known: HashSet<&str> = (0..NUMBERS).filter_map(known_name).collect();
        for (names, members) in CLASSES {
            for member in members.split_whitespace() {
                let is_known = known.contains(member) || new.contains(&member);
                assert!(is_known, "{member} of {}", names[0]);
            }
        }
    }

    #[test]
    fn words_for_the_agent_include_the_function_for_any_call() {
        assert_eq!(Selection::parse("all").unwrap().words(), [""; 0]);
        let words = Selection::parse("read,close").unwrap().words();
        assert_eq!(words, ["read", "close", "syscall"]);
    }
}
