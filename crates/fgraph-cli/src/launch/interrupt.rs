//! Signals that end a command in a terminal, and that the program gets, too.

use std::io::{self, Write as _};
use std::mem;
use std::os::fd::IntoRawFd;
use std::process::ExitCode;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use super::inherited::is_ignored;
use super::process::descriptor;

/// Relaxed: a counter without other data.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The newest signal. Relaxed: no other data depends on it.
static NEWEST: AtomicI32 = AtomicI32::new(libc::SIGINT);

/// Relaxed: a counter without other data.
static SNAPSHOTS: AtomicUsize = AtomicUsize::new(0);

/// A descriptor of the program's process, or -1. Relaxed: it is open for the life of this process.
static PROGRAM: AtomicI32 = AtomicI32::new(-1);

/// Counts interrupts, which no longer end this process.
#[derive(Debug)]
pub(crate) struct Interrupts;

extern "C" fn count(signal: i32) {
    NEWEST.store(signal, Ordering::Relaxed);
    COUNT.fetch_add(1, Ordering::Relaxed);
    // A terminal sends the others to both.
    if [libc::SIGTERM, libc::SIGHUP].contains(&signal) {
        pass_on(signal);
    }
}

/// Sends the program a signal. It may run in a handler.
fn pass_on(signal: i32) {
    let program = PROGRAM.load(Ordering::Relaxed);
    if program >= 0 {
        let no_info = ptr::null::<libc::siginfo_t>();
        // SAFETY: a system call without memory; it has no effect on a program that has ended.
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, program, signal, no_info, 0) };
    }
}

/// Makes this process, which we have started, get SIGTERM and SIGHUP that we get. If we got any
/// signal before, it gets that one now: a terminal has sent it before there was a program. This
/// needs descriptors of processes, which kernels have since 5.3.
pub(super) fn pass_on_to(process: u32) {
    // The process is not waited for yet, so its id is its own.
    let program = descriptor(process).map_or(-1, IntoRawFd::into_raw_fd);
    PROGRAM.store(program, Ordering::Relaxed);
    if COUNT.load(Ordering::Relaxed) > 0 {
        pass_on(NEWEST.load(Ordering::Relaxed));
    }
}

/// Ends this process by the signal that has ended the program. If the signal does not end this
/// process, returns the exit code that shells use for it.
pub(crate) fn end_by(signal: i32) -> ExitCode {
    // A failed write to the output was reported before.
    let _ = io::stdout().flush();
    // SAFETY: zeros are a set of signals, and it is filled in. The core file would be of this
    // program.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0);
        libc::signal(signal, libc::SIG_DFL);
        let mut set: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, ptr::null_mut());
        libc::raise(signal);
    }
    code_of(signal)
}

/// Returns the exit code that shells use for a command that a signal has ended.
pub(crate) fn code_of(signal: i32) -> ExitCode {
    ExitCode::from(128_u8.wrapping_add(signal as u8))
}

impl Interrupts {
    /// Starts counting interrupts, also those that this process was started to ignore, as a shell
    /// does with SIGINT for its background processes. SIGHUP stays ignored: `nohup` wants that.
    pub(crate) fn catch() -> Self {
        let ends = [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];
        let hangs_up = (!is_ignored(libc::SIGHUP)).then_some(libc::SIGHUP);
        for signal in ends.into_iter().chain(hangs_up) {
            // SAFETY: zeros are an action; the handler changes atomics, and sends a signal.
            unsafe {
                let mut action: libc::sigaction = mem::zeroed();
                action.sa_sigaction = count as extern "C" fn(i32) as usize;
                action.sa_flags = libc::SA_RESTART;
                libc::sigaction(signal, &action, ptr::null_mut());
            }
        }
        Self
    }

    /// Also starts counting SIGUSR2, which requests a snapshot.
    pub(crate) fn catch_snapshots(&self) {
        extern "C" fn count(_: i32) {
            SNAPSHOTS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: zeros are an action; the handler changes an atomic.
        unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            action.sa_sigaction = count as extern "C" fn(i32) as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(libc::SIGUSR2, &action, ptr::null_mut());
        }
    }

    /// Counts an interrupt that came as a key.
    pub(crate) fn add(&self) {
        COUNT.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the newest signal; SIGINT if only keys were pressed.
    pub(crate) fn newest(&self) -> i32 {
        NEWEST.load(Ordering::Relaxed)
    }

    /// Returns the number of requested snapshots.
    pub(crate) fn snapshots(&self) -> u64 {
        SNAPSHOTS.load(Ordering::Relaxed) as u64
    }

    /// Returns the number of interrupts: the second one ends the command at once.
    pub(crate) fn count(&self) -> usize {
        COUNT.load(Ordering::Relaxed)
    }
}
