//! Reasons why a library was not loaded.

use std::io;

/// Reason why a library was not loaded into a process. The process runs on as before, except as
/// described at [`Unfinished`](Self::Unfinished) and [`Refused`](Self::Refused).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No process has this id, or it has ended meanwhile.
    #[error("there is no process {pid}")]
    Gone {
        /// Id of the process.
        pid: u32,
    },
    /// The kernel does not permit this process to trace the other one.
    #[error("process {pid} cannot be looked into: {why}")]
    Forbidden {
        /// Id of the process.
        pid: u32,
        /// Missing permission, as far as it can be determined.
        why: Obstacle,
        /// Error of the kernel.
        source: io::Error,
    },
    /// A library cannot be loaded into this process without harm.
    #[error("process {pid} {why}")]
    Unsuitable {
        /// Id of the process.
        pid: u32,
        /// Property of the process that prevents it.
        why: Unsuitable,
    },
    /// No thread was seen at a place where it could load a library, until the time limit.
    #[error("no thread of process {pid} could load a library for five seconds: {why}; try again")]
    Busy {
        /// Id of the process.
        pid: u32,
        /// Place of its threads.
        why: Unfit,
    },
    /// The process has loaded a library of the same name but another version.
    #[error("another version is loaded: {found}")]
    OtherVersion {
        /// Name of that library.
        found: String,
    },
    /// A system call failed that the process made for this one.
    #[error("the process could not call {name}")]
    Call {
        /// Name of the system call.
        name: &'static str,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The dynamic linker of the process did not load the library.
    #[error("the library was not loaded: {message}")]
    Refused {
        /// Message of the linker.
        message: String,
    },
    /// The library was still being loaded after ten seconds. The thread continues with that, and
    /// then with its own work.
    #[error("thread {thread} was still loading the library after ten seconds")]
    Unfinished {
        /// Id of the thread.
        thread: u32,
    },
    /// Data of the process could not be read or written.
    #[error("{what}")]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// Error of the kernel.
        source: io::Error,
    },
}

/// Places at which a thread must not load a library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unfit {
    /// The allocator or the dynamic linker, or a system call that must not be interrupted.
    #[default]
    #[error(
        "all stayed in the allocator, the dynamic linker, or system calls that must not be \
         interrupted"
    )]
    Busy,
    /// A signal handler, or a stack that looks like one.
    #[error("the last one is in a signal handler, or looks so by its stack")]
    Handler,
    /// The kernel sends the thread a signal for some system calls (`PR_SET_SYSCALL_USER_DISPATCH`).
    #[error("the kernel sends the last one a signal for system calls (syscall user dispatch)")]
    Dispatches,
}

/// Reasons why one process may not trace another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Obstacle {
    /// Another process traces it already, perhaps a debugger.
    #[error("process {by} traces it already")]
    Traced {
        /// Id of that process.
        by: u32,
    },
    /// It belongs to another user, and this process has no CAP_SYS_PTRACE.
    #[error("it belongs to user {owner}: be that user, or root")]
    User {
        /// User of that process.
        owner: u32,
    },
    /// It belongs to another group, and this process has no CAP_SYS_PTRACE.
    #[error("it belongs to group {owner}: that takes CAP_SYS_PTRACE")]
    Group {
        /// Group of that process.
        owner: u32,
    },
    /// It may not be dumped, and this process has no CAP_SYS_PTRACE.
    #[error("it may not be dumped: that takes CAP_SYS_PTRACE")]
    NotDumpable,
    /// It has capabilities that this process lacks, and this process has no CAP_SYS_PTRACE either.
    #[error("it has capabilities that this one lacks: that takes CAP_SYS_PTRACE")]
    Capabilities,
    /// The setting of Yama in `/proc/sys/kernel/yama/ptrace_scope` forbids it.
    #[error(
        "/proc/sys/kernel/yama/ptrace_scope is {scope}, which {}",
        if *scope < 3 { "takes CAP_SYS_PTRACE" } else { "forbids it to everyone" }
    )]
    PtraceScope {
        /// Value of the setting.
        scope: u32,
    },
    /// None of the other reasons. Either a security module forbids it, or the process is in a user
    /// namespace in which this one has no rights.
    #[error("a security module, or another user namespace, does not allow it")]
    Policy,
}

/// Reasons why loading a library into a process could do harm.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsuitable {
    /// It is this process itself, which would wait for itself.
    #[error("is this command itself")]
    Own,
    /// It has no memory of its own: it belongs to the kernel, or has ended.
    #[error("has no program: it is the kernel's, or has ended")]
    NoProgram,
    /// It is a program of another architecture.
    #[error("is not a 64-bit program for x86-64")]
    Architecture,
    /// It has no dynamic linker.
    #[error("is statically linked: it cannot load libraries")]
    Static,
    /// Its dynamic linker is glibc's, but did not load the C library within two seconds.
    #[error("is still starting: its linker loads libraries")]
    Starting,
    /// Its C library is not glibc.
    #[error("does not use glibc: its linker is {linker}")]
    NotGlibc {
        /// Path of its dynamic linker.
        linker: String,
    },
    /// A signal has stopped it.
    #[error("is stopped: let it run first, with SIGCONT")]
    Stopped,
    /// A thread filters its system calls, and a call that loading makes would harm it.
    #[error("filters its system calls (seccomp){}", killed(*thread, *call))]
    Seccomp {
        /// Id of the thread.
        thread: u32,
        /// Number of the call; `None` if the filter cannot be read.
        call: Option<i64>,
    },
    /// It keeps a shadow stack (CET), which loading would violate.
    #[error("has a shadow stack (CET), which loading a library from outside would violate")]
    ShadowStack,
    /// It may not map memory for new instructions.
    #[error(
        "may not have memory for new instructions: a filter of its system calls forbids it, or a \
         security module (SELinux: execmem)"
    )]
    NoExecutableMemory,
    /// It has no view of `/proc`, by which its dynamic linker finds the library.
    #[error("does not see /proc, by which libraries are found")]
    NoProc,
    /// It cannot make threads: before glibc 2.34 that needs libpthread, which it could not load.
    #[error(
        "cannot load libpthread, without which its glibc (before 2.34) makes no threads: record it \
         from its start"
    )]
    NoThreads,
    /// It is built with ThreadSanitizer, which crashes in threads that it has not prepared.
    #[error(
        "is built with ThreadSanitizer, which a thread from outside would crash: record it from \
         its start"
    )]
    ThreadSanitizer,
    /// It has one thread and an allocator of its own that is not made for several.
    #[error("has an allocator that is not made for threads: record it from its start")]
    Allocator,
}

/// Says which thread a filter would kill, and for which call, as far as that is known.
fn killed(thread: u32, call: Option<i64>) -> String {
    match call {
        Some(call) => format!(": thread {thread} would be killed for call {call}"),
        None => format!(
            ", and thread {thread} might be killed: what its filter forbids is shown only to \
             CAP_SYS_ADMIN outside of all containers and filters"
        ),
    }
}
