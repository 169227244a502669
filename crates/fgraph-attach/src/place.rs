//! Where a thread can be made to load a library.
//!
//! The dynamic linker and the allocator have locks, and states between two of their instructions
//! that they must not be entered in. So a thread is taken
//!
//! - as it begins a system call that neither of them makes,
//! - or as it waits in one,
//! - or as it runs, outside of every module that has an allocator and of the linker, neither of
//!   which calls the program's code in a state that must not be met,
//!
//! and not below the frame of a signal handler, which may have interrupted either of them.

use std::time::{Duration, Instant};

use libc::{c_long, user_regs_struct};

use crate::error::Error;
use crate::maps;
use crate::memory::Memory;
use crate::modules::Module;
use crate::process::{self, Doing};
use crate::ptrace::{State, Stop, Tracee};

/// How long a thread is followed to its next system call.
const PATIENCE: Duration = Duration::from_millis(20);
/// How long a thread may take to stop.
const STOPPING: Duration = Duration::from_millis(200);
/// More of a stack is not looked through for signal handlers.
const MAX_STACK: u64 = 8 << 20;

/// System calls that neither an allocator makes, while it holds a lock, nor what creates threads,
/// and that the kernel makes anew where they were interrupted.
const SAFE: &[c_long] = &[
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_pause,
    libc::SYS_rt_sigsuspend,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_restart_syscall,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_flock,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_ioctl,
    libc::SYS_lseek,
    libc::SYS_getpid,
    libc::SYS_kill,
    libc::SYS_times,
    libc::SYS_getrusage,
];

/// The same, but those that end with `EINTR` when they are interrupted.
const ENDING: &[c_long] = &[
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
    libc::SYS_io_uring_enter,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_msgrcv,
    libc::SYS_msgsnd,
];

/// What is to be known of a process to judge where its threads are.
#[derive(Debug)]
pub(crate) struct Places<'a> {
    pub(crate) pid: u32,
    pub(crate) memory: &'a Memory,
    pub(crate) linker: &'a Module,
    /// The modules that have an allocator.
    pub(crate) allocators: Vec<&'a Module>,
    /// Where signal handlers return to.
    pub(crate) restorers: Vec<u64>,
}

/// A thread that is held where it can load a library.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) tracee: Tracee,
    /// How it is to go on.
    pub(crate) state: State,
    /// Since when it does nothing of its own.
    pub(crate) since: Instant,
    /// The system call that it was in and that ends with `EINTR`.
    pub(crate) interrupted: Option<i64>,
}

impl Places<'_> {
    /// Holds a thread, as soon as one is at such a place.
    pub(crate) fn hold(&self, until: Instant) -> Result<Held, Error> {
        let Self { pid, .. } = *self;
        loop {
            let threads = process::threads(pid).map_err(|_| Error::Gone { pid })?;
            let doing: Vec<_> = threads
                .iter()
                .map(|&thread| (thread, process::doing(pid, thread)))
                .collect();
            let running = doing.iter().filter(|(_, doing)| *doing == Doing::Running);
            for &(thread, _) in running.clone() {
                if let Some(held) = self.when_calling(thread)? {
                    return Ok(held);
                }
            }
            for calls in [SAFE, ENDING] {
                for &(thread, doing) in &doing {
                    if let Doing::Waiting { call, rip } = doing
                        && calls.contains(&call)
                        && !self.linker.is_text(rip)
                        && let Some(held) = self.while_waiting(thread, call)?
                    {
                        return Ok(held);
                    }
                }
            }
            for &(thread, _) in running {
                if let Some(held) = self.while_running(thread)? {
                    return Ok(held);
                }
            }
            if Instant::now() >= until {
                return Err(Error::Busy { pid });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A thread that may be held. `None` if it has ended.
    fn seize(&self, thread: u32) -> Result<Option<Tracee>, Error> {
        match Tracee::seize(thread) {
            Ok(tracee) => Ok(Some(tracee)),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
            Err(error) => Err(process::explain(self.pid, error)),
        }
    }

    /// Holds a thread as it begins a system call, if that is soon.
    fn when_calling(&self, thread: u32) -> Result<Option<Held>, Error> {
        let Some(mut tracee) = self.seize(thread)? else {
            return Ok(None);
        };
        Ok(self.next_call(&mut tracee).and_then(|since| {
            let mut held = self.held(tracee, since)?;
            let general = &mut held.state.general;
            // It begins the call again.
            general.rax = general.orig_rax;
            general.rip -= 2;
            general.orig_rax = u64::MAX;
            Some(held)
        }))
    }

    fn next_call(&self, tracee: &mut Tracee) -> Option<Instant> {
        if !tracee.stop(Instant::now() + STOPPING).ok()? {
            return None;
        }
        let until = Instant::now() + PATIENCE;
        let mut begins = false;
        loop {
            tracee.run_to_call().ok()?;
            match tracee.wait(until).ok()?? {
                Stop::Call => begins = !begins,
                Stop::Signal | Stop::Interrupted => continue,
                Stop::ByJobControl | Stop::Ended => return None,
            }
            let at = tracee.registers().ok()?;
            let is_safe = begins && SAFE.contains(&(at.orig_rax as c_long));
            if is_safe && self.is_free(&at) {
                return Some(Instant::now());
            }
        }
    }

    /// Holds a thread that waits in a system call, if it still does.
    fn while_waiting(&self, thread: u32, call: i64) -> Result<Option<Held>, Error> {
        let waits = |_: &_, at: &user_regs_struct| at.orig_rax as i64 == call && is_interrupted(at);
        let mut held = self.where_it_is(thread, waits)?;
        if let Some(held) = &mut held {
            held.interrupted = ENDING.contains(&call).then_some(call);
        }
        Ok(held)
    }

    /// Holds a thread between two instructions of its own.
    fn while_running(&self, thread: u32) -> Result<Option<Held>, Error> {
        self.where_it_is(thread, |tracee, at| {
            (at.orig_rax as i64) < 0
                && !self.allocators.iter().any(|module| module.is_text(at.rip))
                && !self.is_in_sequence(tracee, at.rip)
        })
    }

    /// Holds a thread where it is, if that is somewhere free that `is_right` agrees to.
    fn where_it_is(
        &self,
        thread: u32,
        is_right: impl FnOnce(&Tracee, &user_regs_struct) -> bool,
    ) -> Result<Option<Held>, Error> {
        let Some(mut tracee) = self.seize(thread)? else {
            return Ok(None);
        };
        let since = Instant::now();
        if !tracee.stop(since + STOPPING).unwrap_or(false) {
            return Ok(None);
        }
        Ok(match tracee.registers() {
            Ok(at) if is_right(&tracee, &at) && self.is_free(&at) => self.held(tracee, since),
            _ => None,
        })
    }

    fn held(&self, tracee: Tracee, since: Instant) -> Option<Held> {
        let state = tracee.state().ok()?;
        Some(Held {
            tracee,
            state,
            since,
            interrupted: None,
        })
    }

    /// Whether a thread is neither in the linker nor in a signal handler.
    fn is_free(&self, at: &user_regs_struct) -> bool {
        !self.linker.is_text(at.rip) && !self.is_in_handler(at.rsp)
    }

    /// Whether there may be a signal frame above `rsp`, by the address that its handler returns to.
    fn is_in_handler(&self, rsp: u64) -> bool {
        let Ok(maps) = maps::of(self.pid) else {
            return true;
        };
        let Some(stack) = maps.iter().find(|mapping| mapping.range.contains(&rsp)) else {
            return true;
        };
        let start = rsp & !7;
        let len = (stack.range.end - start).min(MAX_STACK) as usize;
        let Ok(bytes) = self.memory.bytes(start, len) else {
            return true;
        };
        let mut words = bytes.chunks_exact(8);
        words.any(|word| {
            let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            self.restorers.contains(&word)
        })
    }

    /// Whether a thread is in a restartable sequence, from which it would go on unnoticed.
    fn is_in_sequence(&self, tracee: &Tracee, rip: u64) -> bool {
        let sequence = tracee.rseq().map(|area| self.memory.word(area + 8));
        match sequence {
            None | Some(Ok(0)) => false,
            Some(Ok(sequence)) => {
                let [start, len] = [8, 16].map(|at| self.memory.word(sequence.wrapping_add(at)));
                match (start, len) {
                    (Ok(start), Ok(len)) => rip.wrapping_sub(start) < len,
                    _ => true,
                }
            }
            Some(Err(_)) => true,
        }
    }
}

/// Whether the kernel is to make a system call anew, or has ended it with `EINTR`.
fn is_interrupted(at: &user_regs_struct) -> bool {
    matches!(-(at.rax as i64), 512..=516) || at.rax as i64 == -i64::from(libc::EINTR)
}
