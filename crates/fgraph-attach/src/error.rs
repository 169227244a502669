//! Reasons why a library was not loaded.

use std::error;
use std::fmt;
use std::io;

/// Reason why a library was not loaded into a process. The process runs on as before, except as
/// described at [`Unfinished`](Self::Unfinished) and [`Refused`](Self::Refused).
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// No process has this id, or it has ended meanwhile.
    Gone {
        /// Id of the process.
        pid: u32,
    },
    /// The kernel does not permit this process to trace the other one.
    Forbidden {
        /// Id of the process.
        pid: u32,
        /// Missing permission, as far as it can be determined.
        why: Obstacle,
        /// Error of the kernel.
        source: io::Error,
    },
    /// A library cannot be loaded into this process without harm.
    Unsuitable {
        /// Id of the process.
        pid: u32,
        /// Property of the process that prevents it.
        why: Unsuitable,
    },
    /// No thread was seen at a place where it could load a library, until the time limit.
    Busy {
        /// Id of the process.
        pid: u32,
        /// Place of its threads.
        why: Unfit,
    },
    /// The process has loaded a library of the same name but another version.
    OtherVersion {
        /// Name of that library.
        found: String,
    },
    /// A system call failed that the process made for this one.
    Call {
        /// Name of the system call.
        name: &'static str,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The dynamic linker of the process did not load the library.
    Refused {
        /// Message of the linker.
        message: String,
    },
    /// The library was still being loaded after ten seconds. The thread continues with that, and
    /// then with its own work.
    Unfinished {
        /// Id of the thread.
        thread: u32,
    },
    /// Data of the process could not be read or written.
    Io {
        /// The operation that failed.
        what: &'static str,
        /// Error of the kernel.
        source: io::Error,
    },
}

/// Places at which a thread must not load a library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unfit {
    /// The allocator or the dynamic linker, or a system call that must not be interrupted.
    #[default]
    Busy,
    /// A signal handler, or a stack that looks like one.
    Handler,
    /// The kernel sends the thread a signal for some system calls (`PR_SET_SYSCALL_USER_DISPATCH`).
    Dispatches,
}

/// Reasons why one process may not trace another.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Obstacle {
    /// Another process traces it already, perhaps a debugger.
    Traced {
        /// Id of that process.
        by: u32,
    },
    /// It belongs to another user, and this process has no CAP_SYS_PTRACE.
    User {
        /// User of that process.
        owner: u32,
    },
    /// It belongs to another group, and this process has no CAP_SYS_PTRACE.
    Group {
        /// Group of that process.
        owner: u32,
    },
    /// It may not be dumped, and this process has no CAP_SYS_PTRACE.
    NotDumpable,
    /// It has capabilities that this process lacks, and this process has no CAP_SYS_PTRACE either.
    Capabilities,
    /// The setting of Yama in `/proc/sys/kernel/yama/ptrace_scope` forbids it.
    PtraceScope {
        /// Value of the setting.
        scope: u32,
    },
    /// None of the other reasons. Either a security module forbids it, or the process is in a user
    /// namespace in which this one has no rights.
    Policy,
}

/// Reasons why loading a library into a process could do harm.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unsuitable {
    /// It is this process itself, which would wait for itself.
    Own,
    /// It has no memory of its own: it belongs to the kernel, or has ended.
    NoProgram,
    /// It is a program of another architecture.
    Architecture,
    /// It has no dynamic linker.
    Static,
    /// Its dynamic linker is glibc's, but did not load the C library within two seconds.
    Starting,
    /// Its C library is not glibc.
    NotGlibc {
        /// Path of its dynamic linker.
        linker: String,
    },
    /// A signal has stopped it.
    Stopped,
    /// A thread filters its system calls, and a call that loading makes would harm it.
    Seccomp {
        /// Id of the thread.
        thread: u32,
        /// Number of the call; `None` if the filter cannot be read.
        call: Option<i64>,
    },
    /// It keeps a shadow stack (CET), which loading would violate.
    ShadowStack,
    /// It may not map memory for new instructions.
    NoExecutableMemory,
    /// It has no view of `/proc`, by which its dynamic linker finds the library.
    NoProc,
    /// It cannot make threads: before glibc 2.34 that needs libpthread, which it could not load.
    NoThreads,
    /// It is built with ThreadSanitizer, which crashes in threads that it has not prepared.
    ThreadSanitizer,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone { pid } => write!(f, "there is no process {pid}"),
            Self::Forbidden { pid, why, .. } => {
                write!(f, "process {pid} cannot be looked into: {why}")
            }
            Self::Unsuitable { pid, why } => write!(f, "process {pid} {why}"),
            Self::Busy { pid, why } => write!(
                f,
                "no thread of process {pid} could load a library for five seconds: {why}; \
                 try again"
            ),
            Self::OtherVersion { found } => write!(f, "another version is loaded: {found}"),
            Self::Call { name, .. } => write!(f, "the process could not call {name}"),
            Self::Refused { message } => write!(f, "the library was not loaded: {message}"),
            Self::Unfinished { thread } => write!(
                f,
                "thread {thread} was still loading the library after ten seconds"
            ),
            Self::Io { what, .. } => f.write_str(what),
        }
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Forbidden { source, .. }
            | Self::Call { source, .. }
            | Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Busy => {
                "all stayed in the allocator, the dynamic linker, or system calls that must not be \
                 interrupted"
            }
            Self::Handler => "the last one is in a signal handler, or looks so by its stack",
            Self::Dispatches => {
                "the kernel sends the last one a signal for system calls (syscall user dispatch)"
            }
        })
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Traced { by } => write!(f, "process {by} traces it already"),
            Self::User { owner } => {
                write!(f, "it belongs to user {owner}: be that user, or root")
            }
            Self::Group { owner } => {
                write!(f, "it belongs to group {owner}: that takes CAP_SYS_PTRACE")
            }
            Self::NotDumpable => f.write_str("it may not be dumped: that takes CAP_SYS_PTRACE"),
            Self::Capabilities => {
                f.write_str("it has capabilities that this one lacks: that takes CAP_SYS_PTRACE")
            }
            Self::PtraceScope { scope: scope @ 3.. } => write!(
                f,
                "/proc/sys/kernel/yama/ptrace_scope is {scope}, which forbids it to everyone"
            ),
            Self::PtraceScope { scope } => write!(
                f,
                "/proc/sys/kernel/yama/ptrace_scope is {scope}, which takes CAP_SYS_PTRACE"
            ),
            Self::Policy => {
                f.write_str("a security module, or another user namespace, does not allow it")
            }
        }
    }
}

impl fmt::Display for Unsuitable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str("is this process"),
            Self::NoProgram => f.write_str("has no program: it is the kernel's, or has ended"),
            Self::Architecture => f.write_str("is not a 64-bit program for x86-64"),
            Self::Static => f.write_str("is statically linked: it cannot load libraries"),
            Self::Starting => f.write_str("is still starting: its linker loads libraries"),
            Self::NotGlibc { linker } => write!(f, "does not use glibc: its linker is {linker}"),
            Self::Stopped => f.write_str("is stopped: let it run first, with SIGCONT"),
            Self::Seccomp {
                thread,
                call: Some(call),
            } => write!(
                f,
                "filters its system calls (seccomp): thread {thread} would be killed for call \
                 {call}"
            ),
            Self::Seccomp { thread, call: None } => write!(
                f,
                "filters its system calls (seccomp), and thread {thread} might be killed: what its \
                 filter forbids is shown only to CAP_SYS_ADMIN outside of all containers and \
                 filters"
            ),
            Self::ShadowStack => f.write_str("keeps a shadow stack"),
            Self::NoExecutableMemory => f.write_str(
                "may not have memory for new instructions: a filter of its system calls forbids \
                 it, or a security module (SELinux: execmem)",
            ),
            Self::NoProc => f.write_str("does not see /proc, by which libraries are found"),
            Self::NoThreads => f.write_str(
                "cannot load libpthread, without which its glibc (before 2.34) makes no threads: \
                 record it from its start",
            ),
            Self::ThreadSanitizer => f.write_str(
                "is built with ThreadSanitizer, which a thread from outside would crash: record it \
                 from its start",
            ),
        }
    }
}
