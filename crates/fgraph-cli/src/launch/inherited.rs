//! The signals that this process was started with: ignored or blocked ones would keep it from
//! ending, and a program that it starts gets them as it would without this process.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Ignored signals, as a set of the kernel. Relaxed: written before there is another thread.
static IGNORED: AtomicU64 = AtomicU64::new(0);
/// Blocked signals, likewise.
static BLOCKED: AtomicU64 = AtomicU64::new(0);

/// The highest number of a signal.
const LAST: i32 = 64;

/// Runs before `main`: Rust ignores SIGPIPE there.
#[used]
#[unsafe(link_section = ".init_array")]
static READ: extern "C" fn() = read;

extern "C" fn read() {
    let ignored = (1..=LAST).filter(|&signal| is_ignored(signal));
    let ignored = ignored.fold(0, |set, signal| set | bit(signal));
    IGNORED.store(ignored, Ordering::Relaxed);
    let mut blocked = 0;
    change_mask(libc::SIG_BLOCK, ptr::null(), &mut blocked);
    BLOCKED.store(blocked, Ordering::Relaxed);
}

fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// The action of a signal, as the kernel has it. The C library's functions leave out two signals.
#[derive(Debug, Default)]
#[repr(C)]
struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// Reads and changes the action of a signal. Returns false if there is no such signal.
fn change_action(signal: i32, action: *const Action, before: *mut Action) -> bool {
    let size = size_of::<u64>();
    // SAFETY: the callers' actions are null or live, and have no handler; their sets are of the
    // size that the kernel is told.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, action, before, size) == 0 }
}

/// Returns true if this process ignores a signal.
pub(super) fn is_ignored(signal: i32) -> bool {
    let mut known = Action::default();
    change_action(signal, ptr::null(), &mut known) && known.handler == libc::SIG_IGN
}

/// Changes the signals that this thread blocks; the set is the kernel's.
fn change_mask(how: i32, set: *const u64, before: *mut u64) {
    // SAFETY: the callers' sets are null or live, and of the size that the kernel is told.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, set, before, size_of::<u64>()) };
}

/// Unblocks all signals, and gives SIGCHLD its usual action: without it the kernel does not keep
/// the status of a program that has ended.
pub(crate) fn heed() {
    change_mask(libc::SIG_SETMASK, &0, ptr::null_mut());
    // SAFETY: there is no handler that this replaces.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Lets a program ignore and block the signals that this process was started with.
pub(crate) fn pass_on(command: &mut Command) {
    let set = || -> io::Result<()> {
        let ignored = IGNORED.load(Ordering::Relaxed);
        let ignore = Action {
            handler: libc::SIG_IGN,
            ..Action::default()
        };
        for signal in (1..=LAST).filter(|&signal| ignored & bit(signal) != 0) {
            change_action(signal, &ignore, ptr::null_mut());
        }
        let blocked = BLOCKED.load(Ordering::Relaxed);
        change_mask(libc::SIG_SETMASK, &blocked, ptr::null_mut());
        Ok(())
    };
    // SAFETY: `set` only reads atomics and makes system calls.
    unsafe { command.pre_exec(set) };
}
