//! Properties of a process and of its threads, from `/proc`.

use std::fs;
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::process;
use std::str::SplitWhitespace;

use crate::error::{Error, Obstacle, Unsuitable};

/// Returns a field of `/proc/PID/status`.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    fields(status, name).next()
}

/// Returns the words of a field of `/proc/PID/status`.
fn fields<'a>(status: &'a str, name: &str) -> SplitWhitespace<'a> {
    let mut lines = status.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or_default().split_whitespace()
}

/// Refuses processes that would be harmed, according to their status.
pub(crate) fn check(pid: u32) -> Result<(), Error> {
    if pid == process::id() {
        let why = Unsuitable::Own;
        return Err(Error::Unsuitable { pid, why });
    }
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else {
        return Err(Error::Gone { pid });
    };
    if field(&status, "Tgid") != Some(pid.to_string().as_str()) {
        return Err(Error::Gone { pid });
    }
    let why = match field(&status, "State") {
        Some("T") => Unsuitable::Stopped,
        Some("Z" | "X") => Unsuitable::NoProgram,
        _ if field(&status, "VmSize").is_none() => Unsuitable::NoProgram,
        _ if has_shadow_stack(&status) => Unsuitable::ShadowStack,
        _ => return Ok(()),
    };
    Err(Error::Unsuitable { pid, why })
}

/// True if the process is gone, or only waits for its parent to reap it.
pub(crate) fn has_ended(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    status.map_or(true, |status| {
        matches!(field(&status, "State"), Some("Z" | "X"))
    })
}

/// True if the program of a process is for this architecture, by the header of its file.
pub(crate) fn is_x86_64(pid: u32) -> bool {
    const CLASS: usize = 4;
    const MACHINE: usize = 18;
    const CLASS_64: u8 = 2;
    const X86_64: [u8; 2] = 62_u16.to_le_bytes();
    let mut header = [0; 20];
    let read = fs::File::open(format!("/proc/{pid}/exe"))
        .and_then(|mut file| file.read_exact(&mut header));
    read.is_ok() && header[CLASS] == CLASS_64 && header[MACHINE..] == X86_64
}

/// True if this is the id of a process that this process has started.
pub(crate) fn is_own_child(thread: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let is = |name, number: u32| field(&status, name) == Some(number.to_string().as_str());
    is("Tgid", thread) && is("PPid", process::id())
}

fn has_shadow_stack(status: &str) -> bool {
    fields(status, "x86_Thread_features").any(|name| name == "shstk")
}

/// Returns the cause of an error that tracing a process ended with.
pub(crate) fn explain(pid: u32, source: io::Error) -> Error {
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    let Ok(status) = status else {
        return Error::Gone { pid };
    };
    if source.raw_os_error() == Some(libc::ESRCH) || source.kind() == ErrorKind::NotFound {
        return Error::Gone { pid };
    }
    if source.kind() != ErrorKind::PermissionDenied {
        let what = "a thread of the process could not be held";
        return Error::Io { what, source };
    }
    let own = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    // The files in the folder of a process that may not be dumped belong to root.
    let seen_as = fs::metadata(format!("/proc/{pid}/environ")).map(|file| file.uid());
    let why = obstacle(
        &Rights::of(&own),
        &Rights::of(&status),
        seen_as.ok(),
        scope.ok().and_then(|text| text.trim().parse().ok()),
    );
    Error::Forbidden { pid, why, source }
}

/// Rights of a process, from its status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rights {
    tracer: u32,
    /// Real, effective and saved.
    users: [u32; 3],
    groups: [u32; 3],
    permitted: u64,
    effective: u64,
}

impl Rights {
    fn of(status: &str) -> Self {
        let ids = |name| {
            let mut words = fields(status, name);
            [(); 3].map(|()| words.next().and_then(|id| id.parse().ok()).unwrap_or(0))
        };
        let set = |name| {
            let set = field(status, name).and_then(|set| u64::from_str_radix(set, 16).ok());
            set.unwrap_or(0)
        };
        Self {
            tracer: ids("TracerPid")[0],
            users: ids("Uid"),
            groups: ids("Gid"),
            permitted: set("CapPrm"),
            effective: set("CapEff"),
        }
    }
}

const CAP_SYS_PTRACE: u64 = 1 << 19;

/// Returns why the kernel does not let a process trace another one, by the kernel's checks in their
/// order. `seen_as` is the owner of the other one's files in `/proc`.
fn obstacle(own: &Rights, other: &Rights, seen_as: Option<u32>, scope: Option<u32>) -> Obstacle {
    if other.tracer != 0 {
        return Obstacle::Traced { by: other.tracer };
    }
    let scope = scope.unwrap_or(0);
    if scope >= 3 {
        return Obstacle::PtraceScope { scope };
    }
    if own.effective & CAP_SYS_PTRACE != 0 {
        return Obstacle::Policy;
    }
    let other_than = |own: [u32; 3], all: [u32; 3]| all.into_iter().find(|&id| id != own[0]);
    if let Some(owner) = other_than(own.users, other.users) {
        return Obstacle::User { owner };
    }
    if let Some(owner) = other_than(own.groups, other.groups) {
        return Obstacle::Group { owner };
    }
    if seen_as.is_some_and(|user| user != other.users[1]) {
        return Obstacle::NotDumpable;
    }
    if other.permitted & !own.permitted != 0 {
        return Obstacle::Capabilities;
    }
    match scope {
        0 => Obstacle::Policy,
        scope => Obstacle::PtraceScope { scope },
    }
}

/// Returns the threads of a process that run its program.
pub(crate) fn threads(pid: u32) -> io::Result<Vec<u32>> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let threads = names.filter_map(|name| name.parse().ok());
    Ok(threads.filter(|&it| !is_worker(pid, it)).collect())
}

/// True if a thread only works for the kernel, such as those of io_uring: it runs no code of the
/// program and cannot be traced.
fn is_worker(pid: u32, thread: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/task/{thread}/stat"));
    stat.is_ok_and(|stat| is_worker_by(&stat))
}

/// Parses `12 (name) S 1 12 12 0 -1 4194304 ...`, whose last field has the flags.
fn is_worker_by(stat: &str) -> bool {
    /// The bits `PF_IO_WORKER` and `PF_USER_WORKER`.
    const WORKER: u64 = 0x10 | 0x4000;
    // The name may contain any characters.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let flags = fields.split_whitespace().nth(6);
    flags
        .and_then(|flags| flags.parse().ok())
        .is_some_and(|flags: u64| flags & WORKER != 0)
}

/// True if a thread is one of the process.
pub(crate) fn has_thread(pid: u32, thread: u32) -> bool {
    fs::exists(format!("/proc/{pid}/task/{thread}")).unwrap_or(false)
}

/// Returns the number of filters of system calls of a thread; `None` if it has none.
pub(crate) fn filters(pid: u32, thread: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{thread}/status")).ok()?;
    let is_free = field(&status, "Seccomp").is_none_or(|mode| mode == "0");
    // Kernels before Linux 5.9 do not count the filters.
    let count = field(&status, "Seccomp_filters").and_then(|count| count.parse().ok());
    (!is_free).then_some(count.unwrap_or(0))
}

/// Returns the signals that a thread blocks, as a set; empty if it has ended.
pub(crate) fn blocked(pid: u32, thread: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{thread}/status"));
    let set = status.ok().and_then(|status| {
        let set = field(&status, "SigBlk")?;
        u64::from_str_radix(set, 16).ok()
    });
    set.unwrap_or(0)
}

/// Returns the thread that has this id inside the process's own namespace.
pub(crate) fn thread_called(pid: u32, number: u32) -> Option<u32> {
    // The newest ones come last.
    let mut threads = threads(pid).ok()?.into_iter().rev();
    threads.find(|&thread| own_number(pid, thread) == number)
}

/// Returns the id of a thread inside the process's own namespace.
pub(crate) fn own_number(pid: u32, thread: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{thread}/status"));
    let status = status.unwrap_or_default();
    let number = fields(&status, "NSpid").last();
    // The kernel may not show ids of inner namespaces.
    number.map_or(thread, |number| number.parse().unwrap_or(thread))
}

/// True if a descriptor of a process is a socket, or cannot be read.
pub(crate) fn is_socket(pid: u32, descriptor: u64) -> bool {
    let link = fs::read_link(format!("/proc/{pid}/fd/{descriptor}"));
    link.map_or(true, |link| {
        link.as_os_str().as_bytes().starts_with(b"socket:")
    })
}

/// Activity of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    Running,
    /// The thread waits in a system call.
    Waiting {
        call: i64,
        /// Its first two arguments.
        arguments: [u64; 2],
        rip: u64,
    },
    /// The thread must not be interrupted.
    Other,
}

/// Returns the current activity of a thread.
pub(crate) fn doing(pid: u32, thread: u32) -> Doing {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{thread}/syscall"));
    parse_doing(&text.unwrap_or_default())
}

/// Parses `0 0x3 0x7f12 0x400 0x0 0x0 0x0 0x7ffc 0x7f34`, `running` or `-1 0x7ffc 0x7f34`.
fn parse_doing(text: &str) -> Doing {
    let words: Vec<&str> = text.split_whitespace().collect();
    let number = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    match *words {
        ["running"] => Doing::Running,
        [call, first, second, _, _, _, _, _, at] => {
            let numbers = [first, second, at].map(number);
            match (call.parse(), numbers) {
                (Ok(call), [Some(first), Some(second), Some(rip)]) => Doing::Waiting {
                    call,
                    arguments: [first, second],
                    rip,
                },
                _ => Doing::Other,
            }
        }
        _ => Doing::Other,
    }
}

/// Parses any text as each of the files that `/proc` has of a process.
#[cfg(any(test, fgraph_testing))]
pub(crate) fn read_texts(text: &str) {
    let _ = (parse_doing(text), is_worker_by(text));
    let _ = (Rights::of(text), has_shadow_stack(text));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_runs_or_waits_in_a_call() {
        assert_eq!(parse_doing("running\n"), Doing::Running);
        let waiting = "0 0x3 0x7f12 0x400 0x0 0x0 0x0 0x7ffc 0x7f34\n";
        let expected = Doing::Waiting {
            call: 0,
            arguments: [3, 0x7f12],
            rip: 0x7f34,
        };
        assert_eq!(parse_doing(waiting), expected);
        for text in ["", "-1 0x7ffc 0x7f34", "0 1 2 3 4 5 6 7 8", "x 0x3"] {
            assert_eq!(parse_doing(text), Doing::Other, "{text}");
        }
    }

    #[test]
    fn threads_of_the_kernel_are_known_by_their_flags() {
        let stat = |flags| format!("12 (a) S (b) S 1 12 12 0 -1 {flags} 5 0 0");
        assert!(is_worker_by(&stat(0x40_0000 | 0x10)));
        assert!(is_worker_by(&stat(0x40_0000 | 0x4000)));
        assert!(!is_worker_by(&stat(0x40_0000)));
        assert!(!is_worker_by("") && !is_worker_by("12 (a) S 1"));
    }

    #[test]
    fn a_field_of_the_status_is_found_by_its_whole_name() {
        let status = "Name:\tTgid: 3\nTgid:\t12\nTracerPid:\t0\nx86_Thread_features:\t shstk \n";
        assert_eq!(field(status, "Tgid"), Some("12"));
        assert_eq!(field(status, "Tracer"), None);
        assert!(has_shadow_stack(status));
        assert!(!has_shadow_stack("x86_Thread_features:\t\n"));
    }

    #[test]
    fn obstacles_to_tracing_a_process_are_reported() {
        let text = "TracerPid:\t0\nUid:\t7\t7\t7\t7\nGid:\t8\t8\t8\t8\nCapPrm:\t0\nCapEff:\t0\n";
        let own = Rights::of(text);
        assert_eq!((own.users, own.groups), ([7; 3], [8; 3]));
        let with = |change: &str, to: &str| Rights::of(&text.replace(change, to));
        let traced = with("TracerPid:\t0", "TracerPid:\t5");
        let user = with("Uid:\t7\t7\t7", "Uid:\t7\t7\t9");
        let group = with("Gid:\t8", "Gid:\t3");
        let able = with("CapPrm:\t0", "CapPrm:\t400");
        let root = with("CapEff:\t0", "CapEff:\t80000");
        let same = || own.clone();
        let scope = |scope| Obstacle::PtraceScope { scope };
        for (looks, other, seen_as, setting, expected) in [
            (same(), traced, 7, 1, Obstacle::Traced { by: 5 }),
            (same(), user.clone(), 7, 1, Obstacle::User { owner: 9 }),
            (same(), group, 7, 1, Obstacle::Group { owner: 3 }),
            (same(), same(), 0, 1, Obstacle::NotDumpable),
            (same(), able.clone(), 7, 1, Obstacle::Capabilities),
            (same(), same(), 7, 1, scope(1)),
            (same(), same(), 7, 2, scope(2)),
            (same(), same(), 7, 0, Obstacle::Policy),
            // With CAP_SYS_PTRACE only the strictest setting forbids it.
            (root.clone(), user, 0, 2, Obstacle::Policy),
            (root.clone(), able, 7, 3, scope(3)),
        ] {
            let found = obstacle(&looks, &other, Some(seen_as), Some(setting));
            assert_eq!(found, expected, "{other:?}");
        }
        assert_eq!(obstacle(&own, &own, None, None), Obstacle::Policy);
    }

    #[test]
    fn processes_that_would_come_to_harm_are_refused() {
        let own = check(process::id());
        let why = Unsuitable::Own;
        assert!(matches!(own, Err(Error::Unsuitable { why: found, .. }) if found == why));
        assert!(matches!(check(u32::MAX), Err(Error::Gone { .. })));
    }
}
