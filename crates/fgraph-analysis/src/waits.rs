//! The functions in which threads wait, and those that end the waits of others.

use fgraph_symbols::locks::{self, Action};
use serde::Serialize;

/// The reason for which a call takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// The thread runs.
    Computes,
    /// The thread could run, but other threads have the processors.
    Processor,
    /// The thread waits for a lock.
    Lock,
    /// The thread waits for a condition variable.
    Condition,
    /// The thread waits for a semaphore.
    Semaphore,
    /// The thread waits for the end of a thread, or for other threads at a barrier.
    Thread,
    /// The thread waits for the end of a process.
    Process,
    /// The thread waits for a file.
    File,
    /// The thread waits for data of a socket or a pipe, or until one is ready.
    Input,
    /// The thread waits for a time to pass.
    Sleep,
    /// The thread waits for memory from the allocator or the kernel.
    Memory,
    /// The thread that goes on with a request does something else.
    Turn,
    /// The thread waits for something for which no recorded function stands.
    Unknown,
}

impl Cause {
    /// Returns the words for it.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Computes => "computes",
            Self::Processor => "waits for a processor",
            Self::Lock => "waits for a lock",
            Self::Condition => "waits for a condition",
            Self::Semaphore => "waits for a semaphore",
            Self::Thread => "waits for a thread",
            Self::Process => "waits for a process",
            Self::File => "waits for a file",
            Self::Input => "waits for input",
            Self::Sleep => "sleeps",
            Self::Memory => "waits for memory",
            Self::Turn => "waits for its turn",
            Self::Unknown => "waits",
        }
    }

    /// Returns true if time with this cause is a wait for something that may have a name.
    #[must_use]
    pub const fn is_for_something(self) -> bool {
        !matches!(self, Self::Computes | Self::Processor)
    }

    /// Returns true if another thread of the program may have ended the wait.
    #[must_use]
    pub const fn is_ended_by_threads(self) -> bool {
        matches!(
            self,
            Self::Lock
                | Self::Condition
                | Self::Semaphore
                | Self::Thread
                | Self::Input
                | Self::Unknown
        )
    }
}

/// The functions of the C library in which threads wait, without [those of locks](of_lock).
#[rustfmt::skip]
const WAITS: &[(Cause, &[&str])] = &[
    (Cause::Lock, &["mtx_lock", "mtx_timedlock"]),
    (Cause::Condition, &["cnd_wait", "cnd_timedwait"]),
    (Cause::Semaphore, &["sem_wait", "sem_timedwait", "sem_clockwait", "semop", "semtimedop"]),
    (Cause::Thread, &["pthread_join", "pthread_timedjoin_np", "pthread_barrier_wait", "thrd_join"]),
    (Cause::Process, &["wait", "wait3", "wait4", "waitid", "waitpid"]),
    (Cause::File, &[
        "fsync", "fdatasync", "sync", "syncfs", "sync_file_range", "pread", "pread64", "pwrite",
        "pwrite64", "preadv", "preadv2", "pwritev", "pwritev2", "open", "open64", "openat",
        "openat64", "creat", "creat64", "close", "rename", "renameat", "renameat2", "unlink",
        "unlinkat", "ftruncate", "ftruncate64", "fallocate", "fallocate64", "posix_fallocate",
        "msync", "flock", "lockf", "lockf64", "fcntl", "fcntl64", "sendfile", "sendfile64",
        "copy_file_range", "stat", "stat64", "lstat", "lstat64", "fstat", "fstat64", "fstatat",
        "statx", "readdir", "readdir64", "getdents64", "mkdir", "rmdir",
    ]),
    (Cause::Input, &[
        "read", "readv", "write", "writev", "recv", "recvfrom", "recvmsg", "recvmmsg", "send",
        "sendto", "sendmsg", "sendmmsg", "accept", "accept4", "connect", "poll", "ppoll", "select",
        "pselect", "epoll_wait", "epoll_pwait", "epoll_pwait2", "sigwait", "sigwaitinfo",
        "sigtimedwait", "getaddrinfo", "splice", "msgrcv", "msgsnd", "mq_receive",
        "mq_timedreceive",
    ]),
    (Cause::Sleep, &["nanosleep", "clock_nanosleep", "usleep", "sleep", "thrd_sleep", "pause"]),
    (Cause::Memory, &[
        "malloc", "calloc", "realloc", "free", "posix_memalign", "aligned_alloc", "memalign",
        "mmap", "mmap64", "munmap", "mremap", "madvise", "brk", "sbrk",
    ]),
];

/// The functions of the C library that end the waits of other threads, without [those of
/// locks](of_lock).
#[rustfmt::skip]
const ENDS: &[(Cause, &[&str])] = &[
    (Cause::Lock, &["mtx_unlock"]),
    (Cause::Condition, &[
        "pthread_cond_signal", "pthread_cond_broadcast", "cnd_signal", "cnd_broadcast",
    ]),
    (Cause::Semaphore, &["sem_post"]),
    (Cause::Thread, &["pthread_exit", "pthread_barrier_wait"]),
    (Cause::Input, &[
        "write", "writev", "send", "sendto", "sendmsg", "sendmmsg", "shutdown", "eventfd_write",
    ]),
];

/// Functions of Rust and C++ that wait or end waits, by a part of their names.
#[rustfmt::skip]
const PARTS: &[(&str, Option<Cause>, Option<Cause>)] = &[
    ("Mutex::lock_contended", Some(Cause::Lock), None),
    ("RwLock::read_contended", Some(Cause::Lock), None),
    ("RwLock::write_contended", Some(Cause::Lock), None),
    ("RawMutex::lock_slow", Some(Cause::Lock), None),
    ("RawRwLock::lock_shared_slow", Some(Cause::Lock), None),
    ("RawRwLock::lock_exclusive_slow", Some(Cause::Lock), None),
    ("Mutex::wake", None, Some(Cause::Lock)),
    ("RwLock::wake_writer_or_readers", None, Some(Cause::Lock)),
    ("RawMutex::unlock_slow", None, Some(Cause::Lock)),
    ("Condvar::wait", Some(Cause::Condition), None),
    ("Condvar::notify", None, Some(Cause::Condition)),
    ("std::thread::sleep", Some(Cause::Sleep), None),
    ("std::this_thread::sleep_for", Some(Cause::Sleep), None),
    ("std::thread::park", Some(Cause::Thread), None),
    ("Thread::unpark", None, Some(Cause::Thread)),
];

/// Functions that wait for any of several descriptors.
#[rustfmt::skip]
const READY: &[&str] = &[
    "poll", "ppoll", "select", "pselect", "epoll_wait", "epoll_pwait", "epoll_pwait2",
];

/// Functions that wait for files or input, without a descriptor as their first argument.
#[rustfmt::skip]
const NO_DESCRIPTOR: &[&str] = &[
    "sync", "open", "open64", "openat", "openat64", "creat", "creat64", "rename", "renameat",
    "renameat2", "unlink", "unlinkat", "msync", "stat", "stat64", "lstat", "lstat64", "fstatat",
    "statx", "readdir", "readdir64", "mkdir", "rmdir", "sigwait", "sigwaitinfo", "sigtimedwait",
    "getaddrinfo", "msgrcv", "msgsnd", "mq_receive", "mq_timedreceive",
];

/// The thing that a function waits for, or that it releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thing {
    /// The address in this argument: a lock or the like.
    Address(usize),
    /// The descriptor in the first argument.
    Descriptor,
    /// Any of several descriptors.
    Ready,
    /// A time: the first argument is a number of this many nanoseconds.
    Time(u64),
}

impl Thing {
    /// Returns the index of the argument that tells it.
    #[must_use]
    pub const fn argument(self) -> usize {
        match self {
            Self::Address(argument) => argument,
            _ => 0,
        }
    }
}

/// Returns the thing that a function waits for, as its arguments tell it.
#[must_use]
pub fn thing(name: &str) -> Option<Thing> {
    let plain = plain(name);
    match of(name)? {
        Cause::Lock => Some(Thing::Address(of_lock(plain).map_or(0, Action::argument))),
        Cause::Condition => Some(Thing::Address(0)),
        Cause::Semaphore if plain.starts_with("sem_") => Some(Thing::Address(0)),
        Cause::Thread if plain == "pthread_barrier_wait" => Some(Thing::Address(0)),
        Cause::Sleep => match plain {
            "usleep" => Some(Thing::Time(1_000)),
            "sleep" => Some(Thing::Time(1_000_000_000)),
            _ => None,
        },
        Cause::Input if READY.contains(&plain) => Some(Thing::Ready),
        Cause::File | Cause::Input if NO_DESCRIPTOR.contains(&plain) => None,
        Cause::File | Cause::Input => Some(Thing::Descriptor),
        _ => None,
    }
}

/// Returns the index of the argument that is the address of the thing that a function releases.
#[must_use]
pub fn released(name: &str) -> Option<usize> {
    match ended_by(name)? {
        Cause::Lock => Some(of_lock(plain(name)).map_or(0, Action::argument)),
        Cause::Condition | Cause::Semaphore => Some(0),
        Cause::Thread if plain(name) == "pthread_barrier_wait" => Some(0),
        _ => None,
    }
}

/// Returns true for a function after which a descriptor's number may be another file.
#[must_use]
pub fn closes(name: &str) -> bool {
    plain(name) == "close"
}

/// Returns the words of a filter that select the functions whose arguments tell what is waited
/// for.
#[must_use]
pub fn words_of_arguments() -> Vec<String> {
    let of_library = words().into_iter().filter(|word| {
        let name = word.split(':').next().unwrap_or_default();
        thing(name).is_some() || released(name).is_some()
    });
    let parts = PARTS.iter().map(|(part, ..)| format!("*{part}*"));
    of_library.chain(parts).collect()
}

/// Returns the words of a filter that select all functions of the C library here.
#[must_use]
pub fn words() -> Vec<String> {
    let of_locks = locks::functions().map(|(name, _)| name);
    let of_locks = of_locks.filter(|name| of(name).is_some() || ended_by(name).is_some());
    let of_locks = of_locks.filter(|name| !name.contains("::"));
    let names = WAITS.iter().chain(ENDS).flat_map(|(_, names)| *names);
    names
        .copied()
        .chain(of_locks)
        .map(|name| format!("{name}:mod:libc.so*"))
        .collect()
}

/// Returns the effect of a function on a POSIX lock.
fn of_lock(name: &str) -> Option<Action> {
    let found = locks::functions().find(|(known, _)| *known == name);
    found.map(|(_, action)| action)
}

/// Returns the name of a function of the C library without the marks of its variants.
fn plain(name: &str) -> &str {
    let mut name = name.split('@').next().unwrap_or(name);
    for prefix in ["GI_", "libc_", ""] {
        name = name.trim_start_matches('_');
        name = name.strip_prefix(prefix).unwrap_or(name);
    }
    name
}

fn find(table: &[(Cause, &[&str])], name: &str) -> Option<Cause> {
    let found = table.iter().find(|(_, names)| names.contains(&name));
    found.map(|&(cause, _)| cause)
}

/// Returns the reason for which a thread that is blocked in a function waits; `None` for functions
/// that wait for nothing.
#[must_use]
pub fn of(name: &str) -> Option<Cause> {
    let plain = plain(name);
    match of_lock(plain) {
        Some(Action::Wait) => return Some(Cause::Condition),
        Some(action) if action.waits() => return Some(Cause::Lock),
        _ => {}
    }
    let part = PARTS.iter().find(|(part, ..)| name.contains(part));
    find(WAITS, plain).or(part.and_then(|(_, waits, _)| *waits))
}

/// Returns the kind of waits that a function ends in other threads.
#[must_use]
pub fn ended_by(name: &str) -> Option<Cause> {
    let plain = plain(name);
    // A wait for a condition gives the mutex back before.
    if let Some(Action::Unlock | Action::Wait) = of_lock(plain) {
        return Some(Cause::Lock);
    }
    let part = PARTS.iter().find(|(part, ..)| name.contains(part));
    find(ENDS, plain).or(part.and_then(|(.., ends)| *ends))
}

#[cfg(test)]
mod tests;
