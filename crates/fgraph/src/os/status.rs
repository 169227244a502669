//! The status of a thread and of its process, mostly in `/proc`.
//!
//! # Safety
//!
//! The unsafe code makes system calls that change nothing.

use core::ffi::CStr;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::sync::OnceLock;

/// The kernel's flag of a thread that works for `io_uring`.
const PF_IO_WORKER: u64 = 0x10;
/// The kernel's flag of a thread that it has made in a process (Linux 6.4).
const PF_USER_WORKER: u64 = 0x4000;

/// The kernel's status of a thread at one time, and of its process; empty if `/proc` is not
/// visible.
#[derive(Debug)]
pub(crate) struct ThreadStatus(Vec<u8>);

impl ThreadStatus {
    /// Reads the status of the calling thread.
    pub(crate) fn own() -> Self {
        Self(read("/proc/thread-self/status").unwrap_or_default())
    }

    /// Reads the status of another thread of the process; `None` if it is gone.
    pub(crate) fn of(thread: u32) -> Option<Self> {
        read(&format!("/proc/self/task/{thread}/status")).map(Self)
    }

    /// Returns the number of threads of the process.
    pub(crate) fn threads(&self) -> Option<u32> {
        self.field(b"Threads:", 10)?.try_into().ok()
    }

    /// Returns true if a debugger has attached to the thread.
    pub(crate) fn is_debugged(&self) -> bool {
        self.field(b"TracerPid:", 10)
            .is_some_and(|tracer| tracer != 0)
    }

    /// Returns the kilobytes of memory that the process has locked.
    pub(crate) fn locked(&self) -> Option<u64> {
        let number = self.line(b"VmLck:")?.strip_suffix(b"kB")?;
        str::from_utf8(number).ok()?.trim().parse().ok()
    }

    /// Returns the signals that the thread blocks, one bit for each; none if it has ended. A main
    /// thread that has ended stays until the last thread ends.
    pub(crate) fn blocked(&self) -> Option<u64> {
        let state = self.line(b"State:").unwrap_or_default().trim_ascii();
        match state.first() {
            Some(b'Z' | b'X') => None,
            _ => self.field(b"SigBlk:", 16),
        }
    }

    /// Returns the signals for which the process has handlers, one bit for each.
    pub(crate) fn caught(&self) -> Option<u64> {
        self.field(b"SigCgt:", 16)
    }

    /// Returns true if the processor keeps a shadow stack for the thread.
    fn has_shadow_stack(&self) -> bool {
        let mut lines = self.0.split(|&byte| byte == b'\n');
        let features = lines.find_map(|line| line.strip_prefix(b"x86_Thread_features:"));
        let mut features = features.unwrap_or_default().split(u8::is_ascii_whitespace);
        features.any(|feature| feature == b"shstk")
    }

    /// Returns the number in the line that begins with a name.
    fn field(&self, name: &[u8], radix: u32) -> Option<u64> {
        u64::from_str_radix(str::from_utf8(self.line(name)?).ok()?.trim(), radix).ok()
    }

    /// Returns the rest of the line that begins with a name.
    fn line(&self, name: &[u8]) -> Option<&[u8]> {
        let mut lines = self.0.split(|&byte| byte == b'\n');
        lines.find_map(|line| line.strip_prefix(name))
    }
}

/// The activity of a thread at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    /// It runs, or waits for a processor.
    Runs,
    /// It is in a system call that starts a process or a thread; in `vfork`, as long as the child
    /// has the memory of its parent.
    StartsProcess,
    /// It sleeps in the kernel.
    Asleep {
        /// The address at which it continues.
        at: usize,
        /// Its stack pointer.
        stack: usize,
    },
}

impl Activity {
    /// Returns the activity of a thread; `None` if it is gone, or `/proc` does not show it.
    pub(crate) fn of(thread: u32) -> Option<Self> {
        Self::parse(&read(&format!("/proc/self/task/{thread}/syscall"))?)
    }

    /// Parses `NUMBER ARGUMENTS... STACK_POINTER ADDRESS`, without arguments and with the number -1
    /// if the thread does not sleep in a system call.
    fn parse(line: &[u8]) -> Option<Self> {
        const STARTS: [i64; 3] = [libc::SYS_vfork, libc::SYS_clone, libc::SYS_clone3];
        let mut words = str::from_utf8(line).ok()?.split_ascii_whitespace();
        let number = match words.next()? {
            "running" => return Some(Self::Runs),
            number => number.parse().ok()?,
        };
        if STARTS.contains(&number) {
            return Some(Self::StartsProcess);
        }
        let mut last = || usize::from_str_radix(words.next_back()?.strip_prefix("0x")?, 16).ok();
        let (at, stack) = (last()?, last()?);
        Some(Self::Asleep { at, stack })
    }
}

/// Returns the threads of the process but the calling one; none without `/proc`. The C library's
/// functions for directories would use the program's allocator.
pub(crate) fn other_threads() -> impl Iterator<Item = u32> {
    let own = super::thread_id();
    let tasks = File::open("/proc/self/task").ok();
    let threads = tasks.map(|tasks| numbers_in(&tasks)).unwrap_or_default();
    threads.into_iter().filter(move |&thread| thread != own)
}

/// Returns the names in a directory that are numbers.
fn numbers_in(directory: &File) -> Vec<u32> {
    /// Offsets of the length and of the name in `struct linux_dirent64`.
    const LEN: usize = 16;
    const NAME: usize = 19;
    let mut numbers = Vec::new();
    let mut buffer = [0u64; 512];
    loop {
        let len = size_of_val(&buffer);
        let into = buffer.as_mut_ptr();
        // SAFETY: the kernel writes at most `len` bytes to the live local.
        let read = unsafe { libc::syscall(libc::SYS_getdents64, directory.as_raw_fd(), into, len) };
        let Some(read) = usize::try_from(read).ok().filter(|&read| read != 0) else {
            return numbers;
        };
        // SAFETY: the bytes of the live local.
        let bytes = unsafe { core::slice::from_raw_parts(into.cast::<u8>(), read) };
        let mut rest = bytes;
        while let [_, ..] = rest {
            let len = usize::from(u16::from_ne_bytes([rest[LEN], rest[LEN + 1]]));
            let (entry, others) = rest.split_at(len);
            let name = CStr::from_bytes_until_nul(&entry[NAME..]).unwrap_or_default();
            numbers.extend(name.to_str().ok().and_then(|name| name.parse::<u32>().ok()));
            rest = others;
        }
    }
}

/// Returns true for a thread that the kernel has made in this process, for `io_uring` or `vhost`.
/// It runs no code of the program.
pub(crate) fn is_kernel_worker(thread: u32) -> bool {
    let stat = read(&format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    flags(&stat).is_some_and(|flags| flags & (PF_IO_WORKER | PF_USER_WORKER) != 0)
}

/// Returns the flags of a thread, from its line in `stat`.
fn flags(stat: &[u8]) -> Option<u64> {
    // The name may contain spaces and parentheses. The seventh field after it has the flags.
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let fields = str::from_utf8(&stat[name_end + 1..]).ok()?;
    fields.split_ascii_whitespace().nth(6)?.parse().ok()
}

/// Reads a whole file of `/proc`.
fn read(path: &str) -> Option<Vec<u8>> {
    /// The usual size, exceeded only for a user of hundreds of groups.
    const USUAL: usize = 4096;
    let mut file = File::open(path).ok()?;
    let (mut text, mut len) = (vec![0; USUAL], 0);
    // `read_to_end` would query the length first, which the kernel does not know.
    loop {
        match file.read(&mut text[len..]).ok()? {
            0 => break,
            more => len += more,
        }
        if len == text.len() {
            text.resize(2 * len, 0);
        }
    }
    text.truncate(len);
    Some(text)
}

/// Returns true if the processor keeps shadow stacks for the threads of the process. The dynamic
/// linker switches them on before other code runs, and threads inherit them.
pub(crate) fn has_shadow_stacks() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| ThreadStatus::own().has_shadow_stack())
}

/// Returns true if a debugger has attached to the calling thread, as far as `/proc` shows.
pub(crate) fn is_debugged() -> bool {
    ThreadStatus::own().is_debugged()
}

/// Returns true if the process has only the calling thread; `false` if `/proc` is not visible.
pub(crate) fn is_only_thread() -> bool {
    // Each thread is a directory in it, which counts as a link, and so do its own two names.
    fs::metadata("/proc/self/task").is_ok_and(|tasks| tasks.nlink() == 3)
}

/// Returns true if no other process shares the memory of this one (`clone` with `CLONE_VM`), which
/// must have only one thread; `false` if that is unknown.
pub(crate) fn has_own_memory() -> bool {
    // SAFETY: these calls change nothing: the kernel refuses to unshare memory that is shared, and
    // there is nothing to unshare otherwise. They are not made if a filter of system calls might
    // kill the caller.
    unsafe {
        libc::prctl(libc::PR_GET_SECCOMP) == 0
            && libc::syscall(libc::SYS_unshare, libc::CLONE_VM) == 0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::os::{self, signal_mask};

    #[test]
    fn a_line_has_the_number_behind_its_name() {
        let text = "Name:\tThreads:\t7\nTracerPid:\t12\nThreads:\t3\nSigBlk:\t0000000000000010\n";
        let status = ThreadStatus(text.into());
        assert!(status.is_debugged());
        assert_eq!(status.threads(), Some(3));
        assert_eq!(status.blocked(), Some(0x10));
        assert_eq!(status.caught(), None);
    }

    #[test]
    fn a_thread_that_has_ended_blocks_no_signal() {
        let blocked = |state| {
            let text = format!("Name:\ta\nState:\t{state}\nSigBlk:\tfffffffffffbfeff\n");
            ThreadStatus(text.into()).blocked()
        };
        assert_eq!(blocked("Z (zombie)"), None);
        assert_eq!(blocked("X (dead)"), None);
        assert_eq!(blocked("S (sleeping)"), Some(0xffff_ffff_fffb_feff));
    }

    #[test]
    fn flags_are_found_behind_any_name() {
        let flags_of = |name: &str| {
            let stat = format!("7 ({name}) S 1 2 3 0 -1 4210768 11 12\n");
            flags(stat.as_bytes())
        };
        assert_eq!(flags_of("iou-wrk-7"), Some(4_210_768));
        assert_eq!(flags_of("a) S 1 (b"), Some(4_210_768));
        assert_eq!(flags(b"7 (gone) S 1"), None);
        assert_eq!(flags(b""), None);
        assert!(!is_kernel_worker(os::thread_id()));
    }

    #[test]
    fn the_last_words_of_a_sleeping_threads_line_are_its_stack_and_where_it_goes_on() {
        let parse = |line: &str| Activity::parse(line.as_bytes());
        assert_eq!(parse("running\n"), Some(Activity::Runs));
        let (at, stack) = (0x7f12, 0x7ffe);
        let asleep = Some(Activity::Asleep { at, stack });
        assert_eq!(parse("-1 0x7ffe 0x7f12\n"), asleep);
        assert_eq!(parse("202 0x1 0x2 0x3 0x4 0x5 0x6 0x7ffe 0x7f12\n"), asleep);
        for number in [56, 58, 435] {
            let line = format!("{number} 0x1 0x2 0x3 0x4 0x5 0x6 0x7ffe 0x7f12\n");
            assert_eq!(parse(&line), Some(Activity::StartsProcess));
        }
        for line in ["", "\n", "1\n", "asleep 0x1\n"] {
            assert_eq!(parse(line), None, "{line:?}");
        }
    }

    #[test]
    fn a_shadow_stack_is_among_the_features_that_are_on() {
        let has = |text: &str| ThreadStatus(text.into()).has_shadow_stack();
        assert!(has("Threads:\t1\nx86_Thread_features:\tshstk wrss \n"));
        assert!(!has(
            "x86_Thread_features:\t\nx86_Thread_features_locked:\tshstk wrss \n"
        ));
        assert!(!has("Threads:\t1\n"));
    }

    #[test]
    fn the_kernel_says_what_a_thread_blocks() {
        let (say, said) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let other = thread::spawn(move || {
            signal_mask::without_signals(|| {
                let own = ThreadStatus::own();
                say.send((os::thread_id(), own.blocked())).unwrap();
                ended.recv().unwrap();
            });
        });
        let (id, own) = said.recv().unwrap();
        let seen = ThreadStatus::of(id).unwrap();
        assert_eq!(seen.blocked(), own);
        assert_ne!(own, ThreadStatus::own().blocked());
        assert!(seen.threads().unwrap() >= 2);
        end.send(()).unwrap();
        other.join().unwrap();
        assert!(ThreadStatus::of(u32::MAX).is_none());
    }

    #[test]
    fn a_thread_is_the_only_one_in_a_child() {
        // The test harness has other threads.
        assert!(!is_only_thread());
        // SAFETY: the child makes system calls only.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(i32::from(is_only_thread()));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            assert!(libc::WIFEXITED(status));
            assert_eq!(libc::WEXITSTATUS(status), 1);
        }
    }

    #[test]
    fn a_process_has_its_own_memory_unless_another_shares_it() {
        extern "C" fn shares(_: *mut libc::c_void) -> i32 {
            i32::from(has_own_memory())
        }
        let exit_code = |child| {
            let mut status = 0;
            // SAFETY: writes to a local.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert!(libc::WIFEXITED(status));
            libc::WEXITSTATUS(status)
        };
        // SAFETY: the children make system calls only, the second on a stack of its own.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(i32::from(has_own_memory()));
            }
            let is_asked = libc::prctl(libc::PR_GET_SECCOMP) == 0;
            assert_eq!(exit_code(child), i32::from(is_asked));
            let mut stack = vec![0_u128; 1 << 12];
            let top = stack.as_mut_ptr_range().end.cast();
            let flags = libc::CLONE_VM | libc::SIGCHLD;
            let child = libc::clone(shares, top, flags, core::ptr::null_mut());
            assert_eq!(exit_code(child), 0);
        }
    }
}
