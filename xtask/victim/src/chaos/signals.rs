//! Signals: as many as the timers give, handled on the stack that they meet and on an alternate
//! one; and handlers that do not return.
//!
//! # Safety
//!
//! The handlers call pure functions, read and write atomics and thread-local cells without
//! destructors, and leave by a jump only what has nothing to clean up.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use std::{io, mem, ptr};

use super::act::Act;
use super::jumps::{self, Landing};
use super::ledger;
use super::memory::StackMemory;
use super::towers::{self, Tower};

use crate::failures::{Failure, note};
use crate::functions;
use crate::rng::Rng;
use crate::threads;
use crate::workers::{self, Timer};

/// Between two signals of a kind to a thread, most of the time.
const SELDOM: Duration = Duration::from_micros(700);
/// The same in a storm.
const OFTEN: Duration = Duration::from_micros(40);
/// A function is not larger than that.
const MOST_BYTES: usize = 4096;
/// Bytes of it that are patched.
const PATCHED_BYTES: usize = 5;
/// Time that a thread stays within patched bytes, if a signal meets it there.
const STAY: libc::timespec = libc::timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

static SIGNALS: AtomicU64 = AtomicU64::new(0);
static LEFT: AtomicU64 = AtomicU64::new(0);
static STAYS: AtomicU64 = AtomicU64::new(0);
static SITES: AtomicUsize = AtomicUsize::new(1);
/// Where functions begin, by address, and whether they are those that acts call.
static FUNCTIONS: OnceLock<Vec<(usize, bool)>> = OnceLock::new();

// SAFETY: plain data.
const NO_SIGNALS: libc::sigset_t = unsafe { mem::zeroed() };

thread_local! {
    static HANDLER_STATE: Cell<u64> = const { Cell::new(0) };
    /// Where a handler may jump to.
    static WAY_OUT: Cell<*const Landing> = const { Cell::new(ptr::null()) };
    /// True if a running handler has interrupted other code than that of the traced functions.
    static IS_MIDWAY: Cell<bool> = const { Cell::new(false) };
    /// Where the thread has stayed last.
    static LAST_STAY: Cell<usize> = const { Cell::new(0) };
    /// The signals that are blocked there.
    static MASK: Cell<libc::sigset_t> = const { Cell::new(NO_SIGNALS) };
}

/// Signals that were handled; handlers that did not return; and those that met a thread between two
/// instructions that are patched.
pub(crate) fn handled() -> [u64; 3] {
    [&SIGNALS, &LEFT, &STAYS].map(|count| count.load(Ordering::Relaxed))
}

/// Installs the handlers.
pub(crate) fn prepare(sites: usize) -> io::Result<()> {
    SITES.store(sites, Ordering::Relaxed);
    let list = fgraph::sites().map_err(io::Error::other)?;
    let mut starts: Vec<(usize, bool)> = list
        .iter()
        .map(|site| site.address)
        .map(|at| {
            (
                at,
                functions::index_of(at).is_some() || towers::contains(at),
            )
        })
        .collect();
    starts.sort_unstable();
    FUNCTIONS.get_or_init(|| starts);
    // SIGTRAP as well, as the C library's handler of SIGPROF has it.
    let mut all_but_usr1 = NO_SIGNALS;
    // SAFETY: a live set.
    unsafe {
        libc::sigfillset(&mut all_but_usr1);
        libc::sigdelset(&mut all_but_usr1, libc::SIGUSR1);
    }
    let handler = on_signal as *const () as usize;
    for (signal, flags, mask) in [
        (libc::SIGUSR1, 0, NO_SIGNALS),
        (libc::SIGUSR2, libc::SA_ONSTACK, all_but_usr1),
    ] {
        let flags = libc::SA_RESTART | libc::SA_SIGINFO | flags;
        // SAFETY: the handler is of the kind that the flags ask for.
        unsafe { workers::handle(signal, handler, flags, mask) }?;
    }
    Ok(())
}

extern "C" fn on_signal(
    _signal: libc::c_int,
    _info: *const libc::siginfo_t,
    context: *const libc::ucontext_t,
) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the kernel's, for a handler with these flags.
    let at = unsafe { (*context).uc_mcontext.gregs[libc::REG_RIP as usize] } as usize;
    let was_midway = IS_MIDWAY.get();
    let offset = offset_in_ours(at);
    IS_MIDWAY.set(was_midway || offset.is_none());
    // Not again for the signals that have come meanwhile: it would never go on.
    if matches!(offset, Some(1..PATCHED_BYTES)) && LAST_STAY.replace(at) != at {
        stay();
    }
    let mut rng = Rng::from_state(HANDLER_STATE.get());
    let sites = SITES.load(Ordering::Relaxed);
    for _ in 0..3 {
        // Odd, so that nothing is thrown.
        workers::call(rng.below(sites), rng.next() | 1);
    }
    HANDLER_STATE.set(rng.next());
    let way_out = WAY_OUT.get();
    if way_out.is_null() || IS_MIDWAY.get() && !ledger::may_leave_midway() {
        IS_MIDWAY.set(was_midway);
        return;
    }
    if IS_MIDWAY.replace(false) {
        ledger::leave_midway();
    }
    WAY_OUT.set(ptr::null());
    LEFT.fetch_add(1, Ordering::Relaxed);
    // SAFETY: a set of this thread's; between here and there is nothing to clean up.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, &MASK.get(), ptr::null_mut());
        jumps::jump(way_out)
    }
}

/// Returns the distance of an address from the start of the traced function that it belongs to, if
/// it belongs to one.
fn offset_in_ours(at: usize) -> Option<usize> {
    let starts = FUNCTIONS.get().map_or(&[][..], Vec::as_slice);
    let after = starts.partition_point(|&(start, _)| start <= at);
    let &(start, is_ours) = starts[..after].last()?;
    (is_ours && at - start < MOST_BYTES).then(|| at - start)
}

/// Gives those who patch functions the time to come to this one: a thread is seldom preempted so
/// near to its start, and never for so long that much is patched meanwhile.
fn stay() {
    STAYS.fetch_add(1, Ordering::Relaxed);
    // No cancellation point.
    // SAFETY: reads the constant.
    unsafe { libc::syscall(libc::SYS_nanosleep, &STAY, ptr::null::<libc::timespec>()) };
}

/// A thread that performs acts.
#[derive(Debug)]
pub(super) struct Actor {
    pub(super) number: usize,
    /// Number of the victim's functions that take part.
    pub(super) sites: usize,
    pub(super) signals: Signals,
}

/// The signals of an actor.
#[derive(Debug)]
pub(crate) struct Signals {
    timers: [Timer; 2],
    before: libc::stack_t,
    _alternate: StackMemory,
}

impl Signals {
    /// Sends this thread signals. Some are handled on an alternate stack.
    pub(crate) fn start(rng: &mut Rng) -> Option<Self> {
        let thread = threads::current()?;
        HANDLER_STATE.set(rng.next());
        let alternate = StackMemory::take(true)?;
        let memory = alternate.usable();
        let stack = libc::stack_t {
            ss_sp: ptr::with_exposed_provenance_mut(memory.start),
            ss_flags: 0,
            ss_size: memory.len(),
        };
        // SAFETY: plain data; the stack is ours until `drop`.
        let before = unsafe {
            let mut before = mem::zeroed();
            if libc::sigaltstack(&stack, &mut before) != 0 {
                return None;
            }
            before
        };
        let timer = |signal| Timer::start(thread.kernel, signal, SELDOM).ok();
        Some(Self {
            timers: [timer(libc::SIGUSR1)?, timer(libc::SIGUSR2)?],
            before,
            _alternate: alternate,
        })
    }

    fn set(&self, every: Duration) {
        for timer in &self.timers {
            if timer.set(every).is_err() {
                note(Failure::System, Act::Storm as u64, 0);
            }
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // SAFETY: the timers were made by `start`, the stack is what was set before.
        unsafe {
            for timer in &self.timers {
                let _ = timer.set(Duration::ZERO);
            }
            // Pending signals come now, while there is a stack for them.
            libc::sched_yield();
            libc::sigaltstack(&self.before, ptr::null_mut());
        }
    }
}

/// Calls functions while signals come as fast as they may.
pub(crate) fn storm(actor: &Actor, rng: &mut Rng) {
    actor.signals.set(OFTEN);
    let value = rng.next();
    let seed = rng.next();
    let sites = actor.sites;
    let bottom = || {
        let mut rng = Rng::from_state(seed);
        for _ in 0..300 {
            workers::call(rng.below(sites), rng.next());
        }
        value
    };
    let tower = Tower::of_all(rng, sites, &bottom);
    tower.check(rng.below(16), value, Act::Storm);
    actor.signals.set(SELDOM);
}

/// Calls functions until a signal handler leaves them.
pub(crate) fn leave(actor: &Actor, rng: &mut Rng) {
    actor.signals.set(OFTEN);
    leave_calls(actor.sites, rng);
    actor.signals.set(SELDOM);
}

/// The same in a thread that has called nothing yet, and has no signals: its first call may be left
/// anywhere.
pub(crate) fn leave_first(thread: u32, sites: usize, rng: &mut Rng) {
    let after = Duration::from_micros(1 + rng.below(40) as u64);
    match Timer::once(thread, libc::SIGUSR1, after) {
        Ok(_timer) => leave_calls(sites, rng),
        Err(_) => note(Failure::System, Act::Threads as u64, 2),
    }
}

fn leave_calls(sites: usize, rng: &mut Rng) {
    let levels = rng.below(50);
    let seed = rng.next();
    let value = rng.next();
    let bottom = || {
        let mut rng = Rng::from_state(seed);
        // Odd, so that nothing is thrown, and nothing allocated that would be left behind.
        for _ in 0..2000 {
            workers::call(rng.below(sites), rng.next() | 1);
        }
        value
    };
    let tower = Tower::of_plain(rng, &bottom);
    let result = Cell::new(None);
    let was_left = jumps::land(&|landing| {
        let mut mask = MASK.get();
        // SAFETY: a live set.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, ptr::null(), &mut mask) };
        MASK.set(mask);
        WAY_OUT.set(landing);
        let found = tower.climb(levels);
        WAY_OUT.set(ptr::null());
        result.set(Some(found));
    });
    let right = (!was_left).then(|| tower.result(levels, value));
    if result.get() != right {
        note(Failure::Way, Act::Leave as u64, levels as u64);
    }
}
