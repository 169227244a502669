//! Threads that filter their system calls: which may be stopped, and whether the library harms
//! them.
//!
//! A new thread inherits the filters of its maker. The stopped thread must therefore survive all
//! calls that it and the library make. Each thread must survive the calls that the library makes in
//! it later. See `docs/decisions/sandboxes.md`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use libc::{c_int, c_long};

use crate::error::{Error, Unsuitable};
use crate::process;
use crate::ptrace::Tracee;
use crate::seccomp::{Call, Fate, Filters, fate};

/// System calls for making and ending a thread, and for loading a library in it. They may fail.
const OWN: &[c_long] = &[
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_rt_sigprocmask,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_socketpair,
    libc::SYS_recvmsg,
    libc::SYS_close,
    libc::SYS_openat,
    libc::SYS_read,
    libc::SYS_pread64,
    libc::SYS_newfstatat,
    libc::SYS_stat,
    libc::SYS_fstat,
    libc::SYS_getcwd,
    libc::SYS_getrandom,
];

/// System calls for attaching that must not fail either.
const VITAL: &[c_long] = &[
    libc::SYS_rt_sigreturn,
    libc::SYS_clock_gettime,
    libc::SYS_gettid,
    libc::SYS_munmap,
    libc::SYS_exit,
];

/// Longest wait for a stop of a thread whose filters are read. A busy machine may not run it for a
/// while, and a process is refused if its filters are not read.
const LOOKING: Duration = Duration::from_secs(5);

/// Flags of a thread that the C library makes.
const CLONE: c_int = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID;

/// Threads of a process, and the system calls for loading a library.
#[derive(Debug)]
pub(crate) struct Sandboxes<'a> {
    pid: u32,
    /// System calls of the library in threads of its own.
    own: &'a [i64],
    /// System calls that the library makes in any thread.
    elsewhere: &'a [i64],
    /// Filters, and true for those under which a thread survives being stopped.
    known: RefCell<Vec<(Filters, bool)>>,
}

/// Returns the first of these calls whose fate under the filters is worse than `worst`.
fn harmful(filters: &Filters, calls: &[i64], worst: Fate) -> Option<i64> {
    let fate = |number| {
        let first = (number == libc::SYS_clone).then_some(CLONE as u64);
        fate(filters, Call { number, first })
    };
    calls.iter().copied().find(|&number| fate(number) > worst)
}

impl<'a> Sandboxes<'a> {
    pub(crate) fn new(pid: u32, own: &'a [i64], elsewhere: &'a [i64]) -> Self {
        Self {
            pid,
            own,
            elsewhere,
            known: RefCell::new(Vec::new()),
        }
    }

    /// Refuses a process in which a thread would be harmed, or none may be stopped. Threads with
    /// the same number of filters are assumed to have the same ones, since they mostly inherit
    /// them. Only one of each kind is stopped to read them.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let pid = self.pid;
        let threads = process::threads(pid).map_err(|_| Error::Gone { pid })?;
        let mut kinds = BTreeMap::new();
        for thread in threads {
            kinds.entry(process::filters(pid, thread)).or_insert(thread);
        }
        let mut may_be_held = kinds.remove(&None).is_some();
        let mut why = None;
        for thread in kinds.into_values() {
            let filters = self.filters(thread)?;
            let refuse = |call| Unsuitable::Seccomp { thread, call };
            let elsewhere = match &filters {
                Some(filters) => harmful(filters, self.elsewhere, Fate::Fails).map(Some),
                None => (!self.elsewhere.is_empty()).then_some(None),
            };
            if let Some(call) = elsewhere {
                let why = refuse(call);
                return Err(Error::Unsuitable { pid, why });
            }
            match filters.map(|filters| self.harm(filters)) {
                Some(None) => may_be_held = true,
                Some(call) => why = Some(refuse(call)),
                None => why = Some(refuse(None)),
            }
        }
        match why {
            Some(why) if !may_be_held => Err(Error::Unsuitable { pid, why }),
            _ => Ok(()),
        }
    }

    /// Returns the filters of a thread; `None` if this process may not read them. A thread that has
    /// ended has none.
    fn filters(&self, thread: u32) -> Result<Option<Filters>, Error> {
        let mut tracee = match Tracee::seize(self.pid, thread) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(Some(Vec::new())),
            tracee => tracee.map_err(|error| process::explain(self.pid, error))?,
        };
        let is_stopped = tracee.stop(Instant::now() + LOOKING).unwrap_or(false);
        Ok(is_stopped.then(|| tracee.filters().ok()).flatten())
    }

    /// Returns the call that would harm a thread with these filters if it is stopped.
    fn harm(&self, filters: Filters) -> Option<i64> {
        let harm = harmful(&filters, VITAL, Fate::Allowed)
            .or_else(|| harmful(&filters, OWN, Fate::Fails))
            .or_else(|| harmful(&filters, self.own, Fate::Fails))
            .or_else(|| harmful(&filters, self.elsewhere, Fate::Fails));
        self.known.borrow_mut().push((filters, harm.is_none()));
        harm
    }

    /// True if this stopped thread survives its work for the library. It is left alone if its
    /// filters are not among those that [`check`](Self::check) has seen.
    pub(crate) fn may_hold(&self, tracee: &Tracee) -> bool {
        if process::filters(self.pid, tracee.id()).is_none() {
            return true;
        }
        let Ok(filters) = tracee.filters() else {
            return false;
        };
        let known = self.known.borrow();
        known
            .iter()
            .any(|(known, survives)| *survives && *known == filters)
    }
}
