//! Unblocks the signals of traps in threads that block them.
//!
//! The kernel kills a process if one of its threads reaches a breakpoint while it blocks SIGTRAP.
//! Text can therefore not be changed while a thread blocks it that may wake up at any time.
//! Allocators have such threads for background work. They block these signals for reasons that do
//! not concern traps, which are caused by the thread itself.

use std::thread;
use std::time::{Duration, Instant};

use libc::c_long;

use crate::error::Error;
use crate::process::{self, Doing};
use crate::ptrace::Tracee;

/// Time limit for a thread to stop.
const STOPPING: Duration = Duration::from_millis(200);
/// The C library blocks all signals for shorter moments than this.
const MOMENT: Duration = Duration::from_millis(2);

/// System calls that continue by themselves after a stop of their thread, and do not wait for
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

/// System calls that end with `EINTR` when their thread is stopped, and may be restarted: servers
/// that block all signals wait in them. A time limit starts anew, too.
const BEGUN_AGAIN: &[c_long] = &[
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
];

/// Bytes of the instruction `syscall`.
const SYSCALL_LEN: u64 = 2;

/// The signals SIGTRAP and SIGILL.
const TRAPS: u64 = 1 << (libc::SIGTRAP - 1) | 1 << (libc::SIGILL - 1);

/// Permanently unblocks SIGTRAP and SIGILL in the threads of process `pid`, and returns the number
/// of these threads.
///
/// It skips threads that wait for signals, and threads in a system call that ends with `EINTR` when
/// a thread is stopped. `epoll_wait` is an exception: it is restarted, and so is its time limit.
/// This takes some microseconds for each thread, and two milliseconds if a thread blocks the
/// signals.
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
            // The thread has ended.
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
    // The thread may be in another call by now.
    if call >= 0 && !GOING_ON.contains(&call) && !begins_again {
        return Ok(false);
    }
    let blocked = tracee.blocked()?;
    tracee.block(blocked & !TRAPS)?;
    Ok(blocked & TRAPS != 0)
}
