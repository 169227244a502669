//! Threads that block the signals of traps.
//!
//! The kernel ends a process of which a thread comes to a breakpoint while it blocks SIGTRAP. So
//! text cannot be changed while a thread blocks it that may wake up at any time, as those do that
//! allocators have for work in the background. What they block these signals for does not concern
//! traps: these are the thread's own doing.

use std::thread;
use std::time::{Duration, Instant};

use libc::c_long;

use crate::error::Error;
use crate::process::{self, Doing};
use crate::ptrace::Tracee;

/// How long a thread may take to stop.
const STOPPING: Duration = Duration::from_millis(200);
/// The C library blocks all signals for shorter moments.
const MOMENT: Duration = Duration::from_millis(2);

/// System calls that go on by themselves after a thread was held in them, and do not wait for
/// signals.
const GOING_ON: &[c_long] = &[
    libc::SYS_futex,
    libc::SYS_restart_syscall,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_read,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
];

/// System calls that end with `EINTR` when a thread is held in them, and may begin again: servers
/// wait in them that block all signals. A time limit begins again, too.
const BEGUN_AGAIN: &[c_long] = &[
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
];

/// Bytes of the instruction `syscall`.
const SYSCALL_LEN: u64 = 2;

/// SIGTRAP and SIGILL.
const TRAPS: u64 = 1 << (libc::SIGTRAP - 1) | 1 << (libc::SIGILL - 1);

/// Takes SIGTRAP and SIGILL out of the signals that threads of process `pid` block, for good, and
/// says of how many threads.
///
/// Left alone are threads that wait for signals, or in a system call that ends with `EINTR` when a
/// thread is held, `epoll_wait` apart: it begins again, and so does its time limit. This takes some
/// microseconds for each thread, and two milliseconds if a thread blocks the signals.
///
/// # Errors
///
/// See [`Error`].
pub fn unblock_traps(pid: u32) -> Result<usize, Error> {
    process::check(pid)?;
    let blocking = || -> Result<Vec<u32>, Error> {
        let mut threads = process::threads(pid).map_err(|_| Error::Gone { pid })?;
        threads.retain(|&thread| {
            process::blocked(pid, thread) & TRAPS != 0 && may_be_held(pid, thread)
        });
        Ok(threads)
    };
    let mut threads = blocking()?;
    if !threads.is_empty() {
        thread::sleep(MOMENT);
        let still = blocking()?;
        threads.retain(|thread| still.contains(thread));
    }
    let mut changed = 0;
    for thread in threads {
        match unblock(pid, thread) {
            Ok(is_changed) => changed += usize::from(is_changed),
            // It has ended.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            Err(error) => return Err(process::explain(pid, error)),
        }
    }
    Ok(changed)
}

fn may_be_held(pid: u32, thread: u32) -> bool {
    match process::doing(pid, thread) {
        Doing::Running => true,
        Doing::Waiting { call, .. } => GOING_ON.contains(&call) || BEGUN_AGAIN.contains(&call),
        Doing::Other => false,
    }
}

fn unblock(pid: u32, thread: u32) -> std::io::Result<bool> {
    let mut tracee = Tracee::seize(pid, thread)?;
    if !tracee.stop(Instant::now() + STOPPING)? {
        return Ok(false);
    }
    let mut registers = tracee.registers()?;
    let call = registers.orig_rax as i64;
    let begins_again = BEGUN_AGAIN.contains(&call);
    if begins_again && registers.rax as i64 == -i64::from(libc::EINTR) {
        registers.rax = registers.orig_rax;
        registers.rip -= SYSCALL_LEN;
        registers.orig_rax = u64::MAX;
        tracee.set_registers(&registers)?;
    }
    // It may be in another one by now.
    if call >= 0 && !GOING_ON.contains(&call) && !begins_again {
        return Ok(false);
    }
    let blocked = tracee.blocked()?;
    tracee.block(blocked & !TRAPS)?;
    Ok(blocked & TRAPS != 0)
}
