//! Where a thread can be made to load a library.
//!
//! The dynamic linker and the allocator have locks, and states between two of their instructions
//! that they must not be entered in. So a thread is taken
//!
//! - as it begins a system call that neither of them makes,
//! - or as it waits in one, or for a condition,
//! - or as it waits for a lock of the linker, before it has any of the linker's locks,
//! - or as it runs, outside of the linker and of every module that has an allocator: neither calls
//!   the program's code in a state that must not be met,
//!
//! and not below the frame of a signal handler, which may have interrupted either of them.

use std::cell::{Cell, RefCell};
use std::io;
use std::mem;
use std::ops::Range;
use std::time::{Duration, Instant};

use libc::{c_long, user_regs_struct};

use fgraph_symbols::mapping::Mapping;
use fgraph_symbols::unwind_rows::Position;

use crate::callers::{Callers, Stack};
use crate::error::{Error, Unfit};
use crate::maps;
use crate::memory::Memory;
use crate::modules::Module;
use crate::process::{self, Doing};
use crate::ptrace::{State, Stop, Tracee};
use crate::sandbox::Sandboxes;

/// Longest time for which a thread is followed to its next system call.
const PATIENCE: Duration = Duration::from_millis(20);
/// Longest time that a thread may take to stop.
const STOPPING: Duration = Duration::from_millis(200);
/// Longest time that threads run before they are looked at again: looking costs them time.
const MAX_NAP: Duration = Duration::from_millis(100);
/// More of a stack is not looked through for signal handlers.
const MAX_STACK: u64 = 8 << 20;

/// System calls that the kernel makes anew where they were interrupted, and that no allocator makes
/// while it holds a lock. Neither do functions that hold the lock for creating threads: `getpid` is
/// none of these calls, since `setuid` makes it.
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
    libc::SYS_kill,
    libc::SYS_times,
    libc::SYS_getrusage,
];

/// Waiting system calls that are made anew in every case. Calls that wait for some time are not
/// among them: code that waits for a socket may make them, too.
const CALM: &[c_long] = &[
    libc::SYS_pause,
    libc::SYS_rt_sigsuspend,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_flock,
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

/// Operation by which the C library waits for conditions, semaphores and the end of threads, but
/// for none of the locks that making a thread takes: `FUTEX_WAIT_BITSET` with
/// `FUTEX_CLOCK_REALTIME`.
const CONDITION: u64 = 9 | 256;
const FUTEX_PRIVATE: u64 = 128;

/// Facts about a process by which the places of its threads are judged.
#[derive(Debug)]
pub(crate) struct Places<'a> {
    pub(crate) pid: u32,
    pub(crate) memory: &'a Memory,
    pub(crate) linker: &'a Module,
    pub(crate) modules: &'a [Module],
    /// The modules that have an allocator.
    pub(crate) allocators: Vec<&'a Module>,
    /// True if the C library has the only allocator.
    pub(crate) is_allocator_glibcs: bool,
    /// Where signal handlers return to.
    pub(crate) restorers: &'a [u64],
    pub(crate) sandboxes: &'a Sandboxes<'a>,
    /// When to give up.
    pub(crate) until: Instant,
    /// Why the last thread that was stopped could not be held.
    pub(crate) unfit: Cell<Unfit>,
    /// Addresses of mutexes of the linker that threads were seen to have.
    pub(crate) locks_of_linker: RefCell<Vec<u64>>,
}

/// A thread that is held where it can load a library.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) tracee: Tracee,
    /// The registers with which it continues.
    pub(crate) state: State,
    /// True if it is about to enter the kernel with a system call, which it will begin again.
    pub(crate) begins: bool,
    /// Since when it does nothing of its own.
    pub(crate) since: Instant,
    /// The system call that it was in and that ends with `EINTR`.
    pub(crate) interrupted: Option<i64>,
    /// The memory of its stack, if it is the main thread's or the one that it was made with.
    pub(crate) stack: Option<Range<u64>>,
}

impl Held {
    fn of(look: &Look, tracee: Tracee, since: Instant) -> Option<Self> {
        let state = tracee.state().ok()?;
        let stack = look
            .mapping(state.general.rsp)
            .filter(|map| *map.path == *b"[stack]" || map.range.contains(&state.general.fs_base));
        Some(Self {
            stack: stack.map(|map| map.range.clone()),
            tracee,
            state,
            begins: false,
            since,
            interrupted: None,
        })
    }
}

/// Facts about a process that are read each time that its threads are looked at.
struct Look {
    /// The mappings. A stack stays where it is for as long as its thread.
    maps: Vec<Mapping<'static>>,
    doing: Vec<(u32, Doing)>,
}

impl Look {
    fn of(pid: u32) -> io::Result<Self> {
        let doing = |thread| (thread, process::doing(pid, thread));
        Ok(Self {
            doing: process::threads(pid)?.into_iter().map(doing).collect(),
            maps: maps::of(pid)?,
        })
    }

    fn running(&self) -> impl Iterator<Item = u32> {
        let running = self.doing.iter();
        running.filter_map(|&(thread, doing)| (doing == Doing::Running).then_some(thread))
    }

    fn mapping(&self, address: u64) -> Option<&Mapping<'_>> {
        self.maps.iter().find(|map| map.range.contains(&address))
    }
}

impl Places<'_> {
    /// Holds a thread, as soon as one is at such a place.
    pub(crate) fn hold(&self) -> Result<Held, Error> {
        let Self { pid, until, .. } = *self;
        let mut nap = Duration::from_millis(1);
        loop {
            let look = Look::of(pid).map_err(|_| Error::Gone { pid })?;
            if let Some(held) = self.hold_now(&look)? {
                return Ok(held);
            }
            if Instant::now() >= until {
                let why = self.unfit.get();
                return Err(Error::Busy { pid, why });
            }
            std::thread::sleep(nap);
            nap = MAX_NAP.min(2 * nap);
        }
    }

    /// Holds the thread that this disturbs least.
    fn hold_now(&self, look: &Look) -> Result<Option<Held>, Error> {
        let is_calm = |call, arguments: [u64; 2]| match call {
            libc::SYS_read => !process::is_socket(self.pid, arguments[0]),
            call => CALM.contains(&call),
        };
        if let Some(held) = self.hold_waiting(look, is_calm)? {
            return Ok(Some(held));
        }
        for thread in look.running() {
            if let Some(held) = self.when_calling(look, thread)? {
                return Ok(Some(held));
            }
        }
        for calls in [SAFE, ENDING] {
            if let Some(held) = self.hold_waiting(look, |call, _| calls.contains(&call))? {
                return Ok(Some(held));
            }
        }
        for thread in look.running() {
            if let Some(held) = self.while_running(look, thread)? {
                return Ok(Some(held));
            }
        }
        let condition = |call, arguments: [u64; 2]| {
            call == libc::SYS_futex && arguments[1] & !FUTEX_PRIVATE == CONDITION
        };
        if let Some(held) = self.hold_waiting(look, condition)? {
            return Ok(Some(held));
        }
        for &(thread, doing) in &look.doing {
            if let Doing::Waiting {
                call: libc::SYS_futex,
                arguments,
                ..
            } = doing
                && self.is_lock_of_linker(arguments)
                && let Some(held) = self.where_it_is(look, thread, |tracee, at| {
                    self.is_before_linker(look, tracee, at)
                })?
            {
                return Ok(Some(held));
            }
        }
        Ok(None)
    }

    /// Returns true if a stopped thread waits for a mutex of the linker, or was just woken to try
    /// again, and has none of them. The C library takes them before the locks that making a thread
    /// needs, and its allocator takes none. Other allocators may.
    fn is_before_linker(&self, look: &Look, tracee: &Tracee, at: &user_regs_struct) -> bool {
        let result = at.rax as i64;
        let tries_again = result == 0 || result == -i64::from(libc::EAGAIN);
        at.orig_rax as c_long == libc::SYS_futex
            && (is_interrupted(at) || tries_again)
            && self.is_lock_of_linker([at.rdi, at.rsi])
            && !self.has_lock_of_linker(look, tracee)
    }

    /// Returns true if a thread with these arguments of `futex` waits for a mutex of the linker.
    fn is_lock_of_linker(&self, [address, operation]: [u64; 2]) -> bool {
        let waits = operation & !FUTEX_PRIVATE == libc::FUTEX_WAIT as u64;
        if !waits || !self.is_allocator_glibcs || !self.linker.range.contains(&address) {
            return false;
        }
        let mut known = self.locks_of_linker.borrow_mut();
        if known.contains(&address) {
            return true;
        }
        let bytes = self.memory.bytes(address, MUTEX * size_of::<u32>());
        let is_lock = bytes.is_ok_and(|bytes| has_owner(&bytes, |owner| owner != 0));
        if is_lock {
            known.push(address);
        }
        is_lock
    }

    /// Returns true if a stopped thread may have a mutex of the linker: it then is inside of it.
    fn has_lock_of_linker(&self, look: &Look, tracee: &Tracee) -> bool {
        let thread = process::own_number(self.pid, tracee.id());
        let mut data = look
            .maps
            .iter()
            .filter(|map| map.protection.writable && self.linker.range.contains(&map.range.start));
        data.any(|map| {
            let len = map.range.end - map.range.start;
            match self.memory.bytes(map.range.start, len as usize) {
                Ok(bytes) => has_owner(&bytes, |owner| owner == thread),
                Err(_) => true,
            }
        })
    }

    /// Holds a thread that waits in a system call whose number and first two arguments are right.
    fn hold_waiting(
        &self,
        look: &Look,
        is_right: impl Fn(i64, [u64; 2]) -> bool,
    ) -> Result<Option<Held>, Error> {
        for &(thread, doing) in &look.doing {
            if let Doing::Waiting {
                call,
                arguments,
                rip,
            } = doing
                && is_right(call, arguments)
                && !self.linker.is_text(rip)
                && let Some(held) =
                    self.while_waiting(look, thread, call, |at| is_right(call, [at.rdi, at.rsi]))?
            {
                return Ok(Some(held));
            }
        }
        Ok(None)
    }

    /// A thread that may be held. `None` if it has ended, or there is no time left.
    fn seize(&self, thread: u32) -> Result<Option<Tracee>, Error> {
        if Instant::now() >= self.until {
            return Ok(None);
        }
        match Tracee::seize(self.pid, thread) {
            Ok(tracee) => Ok(Some(tracee)),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
            Err(error) => Err(process::explain(self.pid, error)),
        }
    }

    /// Holds a thread as it begins a system call, if that is soon.
    fn when_calling(&self, look: &Look, thread: u32) -> Result<Option<Held>, Error> {
        let Some(mut tracee) = self.seize(thread)? else {
            return Ok(None);
        };
        Ok(self.next_call(look, &mut tracee).and_then(|since| {
            let mut held = Held::of(look, tracee, since)?;
            let general = &mut held.state.general;
            // It begins the call again.
            general.rax = general.orig_rax;
            general.rip -= 2;
            general.orig_rax = u64::MAX;
            held.begins = true;
            Some(held)
        }))
    }

    fn next_call(&self, look: &Look, tracee: &mut Tracee) -> Option<Instant> {
        if !tracee.stop(Instant::now() + STOPPING).ok()? || !self.may_call(tracee) {
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
            let since = Instant::now();
            let at = tracee.registers().ok()?;
            let is_safe = begins && SAFE.contains(&(at.orig_rax as c_long));
            // It may have changed this meanwhile.
            if is_safe && self.is_free(look, &at) && self.may_call(tracee) {
                return Some(since);
            }
        }
    }

    /// Holds a thread that waits in a system call, if it still does, and `is_right` agrees.
    fn while_waiting(
        &self,
        look: &Look,
        thread: u32,
        call: i64,
        is_right: impl Fn(&user_regs_struct) -> bool,
    ) -> Result<Option<Held>, Error> {
        let waits = |_: &_, at: &user_regs_struct| {
            at.orig_rax as i64 == call && is_interrupted(at) && is_right(at)
        };
        let mut held = self.where_it_is(look, thread, waits)?;
        if let Some(held) = &mut held {
            let has_ended = held.state.general.rax as i64 == -i64::from(libc::EINTR);
            held.interrupted = (has_ended || ENDING.contains(&call)).then_some(call);
        }
        Ok(held)
    }

    /// Holds a thread between two instructions of its own, or before it has a lock of the linker:
    /// threads that are woken for one in turn are seen to run.
    fn while_running(&self, look: &Look, thread: u32) -> Result<Option<Held>, Error> {
        self.where_it_is(look, thread, |tracee, at| {
            (at.orig_rax as i64) < 0
                && !self.allocators.iter().any(|module| module.is_text(at.rip))
                && !self.is_in_sequence(tracee, at.rip)
                || self.is_before_linker(look, tracee, at)
        })
    }

    /// Holds a thread where it is, if that is somewhere free that `is_right` agrees to.
    fn where_it_is(
        &self,
        look: &Look,
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
            Ok(at)
                if is_right(&tracee, &at) && self.is_free(look, &at) && self.may_call(&tracee) =>
            {
                Held::of(look, tracee, since)
            }
            _ => None,
        })
    }

    /// True if the stopped thread may make system calls elsewhere than the program does.
    fn may_call(&self, tracee: &Tracee) -> bool {
        let dispatches = tracee.dispatches_calls();
        if dispatches {
            self.unfit.set(Unfit::Dispatches);
        }
        !dispatches && self.sandboxes.may_hold(tracee)
    }

    /// Returns true if a thread is neither in the linker nor in a signal handler.
    fn is_free(&self, look: &Look, at: &user_regs_struct) -> bool {
        if self.linker.is_text(at.rip) {
            return false;
        }
        let is_in_handler = self.is_in_handler(look, at);
        if is_in_handler {
            self.unfit.set(Unfit::Handler);
        }
        !is_in_handler
    }

    /// Returns true if a signal frame may lie above the stack pointer. The return address of its
    /// handler alone does not tell, `sigaction` leaves that on stacks too; nor does a whole frame,
    /// which may be an old one in a part of the stack that nothing uses.
    fn is_in_handler(&self, look: &Look, at: &user_regs_struct) -> bool {
        let Some(mapping) = look.mapping(at.rsp) else {
            return true;
        };
        let start = at.rsp & !7;
        let len = (mapping.range.end - start).min(MAX_STACK) as usize;
        let Ok(bytes) = self.memory.bytes(start, len) else {
            return true;
        };
        let stack = Stack::new(start, &bytes);
        let words = stack.words();
        let last = (0..words.len())
            .rfind(|&at| self.restorers.contains(&words[at]) && may_be_context(&words[at + 1..]));
        let Some(last) = last else {
            return false;
        };
        let position = Position {
            address: at.rip.wrapping_add(1),
            stack_pointer: at.rsp,
            frame_pointer: at.rbp,
        };
        let mut callers = Callers::new(self.memory, self.modules, &stack, position);
        !callers.are_known_until(start + 8 * last as u64, self.restorers)
    }

    /// Returns true if a thread is in a restartable sequence, from which it would go on unnoticed.
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

/// The first words of a mutex of the C library: the lock, how often it was taken, the thread that
/// has it, the number of threads that have it, and its kind.
const MUTEX: usize = 5;

/// Returns true if one of the mutexes in these bytes has an owner that `is_right` agrees to. All
/// mutexes of the linker are recursive; other locks there are no mutexes.
fn has_owner(bytes: &[u8], is_right: impl Fn(u32) -> bool) -> bool {
    const RECURSIVE: u32 = libc::PTHREAD_MUTEX_RECURSIVE as u32;
    let (words, _) = bytes.as_chunks();
    let words: Vec<u32> = words.iter().map(|&word| u32::from_le_bytes(word)).collect();
    let mut mutexes = words.windows(MUTEX);
    mutexes.any(|mutex| mutex[4] == RECURSIVE && is_right(mutex[2]))
}

/// Returns true if a `ucontext_t` may begin with these words, as the kernel writes it. Flags and
/// the selector of the code tell; in an action of a signal there is a set of signals instead.
pub(crate) fn may_be_context(words: &[u64]) -> bool {
    /// `UC_FP_XSTATE`, `UC_SIGCONTEXT_SS` and `UC_STRICT_RESTORE_SS`.
    const FLAGS: u64 = 0b111;
    /// The selectors of 64-bit and of 32-bit code.
    const SELECTORS: [u64; 2] = [0x33, 0x23];
    const SELECTOR: usize =
        mem::offset_of!(libc::ucontext_t, uc_mcontext) / 8 + libc::REG_CSGSFS as usize;
    let selector = words.get(SELECTOR).map(|word| word & 0xffff);
    words.first().is_some_and(|flags| flags & !FLAGS == 0)
        && selector.is_some_and(|selector| SELECTORS.contains(&selector))
}

/// Returns true if the kernel makes a system call anew, or has ended it with `EINTR`.
fn is_interrupted(at: &user_regs_struct) -> bool {
    matches!(-(at.rax as i64), 512..=516) || at.rax as i64 == -i64::from(libc::EINTR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_sigaction_are_no_signal_frame() {
        let mut context = [0; 26];
        context[0] = 0b111;
        context[23] = 0x2b << 48 | 0x33;
        assert!(may_be_context(&context));
        // A set of signals, and one that is empty before other words.
        context[0] = 0x1000;
        assert!(!may_be_context(&context));
        assert!(!may_be_context(&[0; 26]) && !may_be_context(&[7]));
    }

    #[test]
    fn owners_of_recursive_mutexes_are_found_among_other_words() {
        let bytes = |words: &[u32]| -> Vec<u8> {
            let words = words.iter();
            words.flat_map(|word| word.to_le_bytes()).collect()
        };
        let is_owner = |words: &[u32], thread| has_owner(&bytes(words), |owner| owner == thread);
        let recursive = [9, 9, 2, 1, 77, 1, 1, 0, 0];
        assert!(is_owner(&recursive, 77) && !is_owner(&recursive, 78));
        let other_kind = [9, 9, 2, 1, 77, 1, 0, 0, 0];
        assert!(!is_owner(&other_kind, 77) && !is_owner(&recursive[..6], 77));
    }
}
