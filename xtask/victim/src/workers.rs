//! Callers of the functions: threads that stay, threads that come and go, and signal handlers.
//!
//! # Safety
//!
//! The unsafe code installs a signal handler and timers. The handler calls pure functions, reads
//! and writes atomics and thread-local cells without destructors, and nothing else.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use std::{io, mem, ptr, thread};

use crate::failures::{Failure, note};
use crate::functions;
use crate::ledger;
use crate::rng::Rng;
use crate::threads;

/// True once the work is over.
static OVER: AtomicBool = AtomicBool::new(false);
/// Calls by workers.
static CALLS: AtomicU64 = AtomicU64::new(0);
/// Signals that were handled.
static SIGNALS: AtomicU64 = AtomicU64::new(0);
/// Threads that have come and gone.
static SHORT_THREADS: AtomicU64 = AtomicU64::new(0);
/// Number of functions that take part.
static SITES: AtomicU64 = AtomicU64::new(0);

/// Between two signals to a worker.
const SIGNAL_EVERY: Duration = Duration::from_micros(200);
/// Calls of a worker between two checks of its books.
const ROUND: usize = 64;
/// Rounds of a thread that comes and goes.
const SHORT_ROUNDS: usize = 8;

thread_local! {
    /// Where a worker's signal handler goes on with its random numbers.
    static HANDLER_STATE: Cell<u64> = const { Cell::new(0) };
}

/// Counts of the workers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) calls: u64,
    pub(crate) signals: u64,
    pub(crate) short_threads: u64,
}

/// Calls random functions until it is over, and is interrupted by signals all the time.
pub(crate) fn work(number: usize, seed: u64, sites: usize) {
    let thread = threads::enter(number);
    let mut rng = Rng::new(seed, number as u64);
    HANDLER_STATE.set(rng.next());
    let timer =
        Timer::start(thread.kernel, libc::SIGUSR1, SIGNAL_EVERY).expect("a timer for each worker");
    let mut calls = 0;
    while !OVER.load(Ordering::Relaxed) {
        round(number, &mut rng, sites);
        calls += ROUND as u64;
    }
    drop(timer);
    CALLS.fetch_add(calls, Ordering::Relaxed);
}

/// Starts threads that call random functions and end, one after the other.
pub(crate) fn start_short_threads(number: usize, seed: u64, sites: usize) {
    while !OVER.load(Ordering::Relaxed) {
        let started = SHORT_THREADS.fetch_add(1, Ordering::Relaxed);
        let short = thread::spawn(move || {
            threads::enter(number);
            let mut rng = Rng::new(seed, (number as u64) << 32 | started);
            for _ in 0..SHORT_ROUNDS {
                round(number, &mut rng, sites);
            }
            CALLS.fetch_add((SHORT_ROUNDS * ROUND) as u64, Ordering::Relaxed);
        });
        if short.join().is_err() {
            note(Failure::Result, u64::MAX, started);
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Tells all workers to stop.
pub(crate) fn stop() {
    OVER.store(true, Ordering::Relaxed);
}

/// Returns their counts; complete when their threads have ended.
pub(crate) fn work_done() -> Work {
    Work {
        calls: CALLS.load(Ordering::Relaxed),
        signals: SIGNALS.load(Ordering::Relaxed),
        short_threads: SHORT_THREADS.load(Ordering::Relaxed),
    }
}

fn round(number: usize, rng: &mut Rng, sites: usize) {
    for _ in 0..ROUND {
        call(rng.below(sites), rng.next());
    }
    ledger::check_idle(number);
}

/// Calls function `index` with arguments made of `x`, and notes if the result is wrong.
pub(crate) fn call(index: usize, x: u64) {
    if !functions::is_right(index, x) {
        note(Failure::Result, index as u64, x);
    }
}

/// Makes signals call traced functions.
pub(crate) fn handle_signals(sites: usize) -> io::Result<()> {
    SITES.store(sites as u64, Ordering::Relaxed);
    let handler = on_signal as *const () as usize;
    // SAFETY: zeros are an empty set. The handler is of the kind that the flags ask for.
    unsafe { handle(libc::SIGUSR1, handler, libc::SA_RESTART, mem::zeroed()) }
}

/// Installs the handler of a signal, which blocks others while it runs.
///
/// # Safety
///
/// The handler must be of the kind that the flags ask for, and may run at any instruction.
pub(crate) unsafe fn handle(
    signal: libc::c_int,
    handler: usize,
    flags: libc::c_int,
    blocked: libc::sigset_t,
) -> io::Result<()> {
    // SAFETY: the action is complete, with a handler as the caller promises.
    let failed = unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        action.sa_mask = blocked;
        libc::sigaction(signal, &action, ptr::null_mut()) != 0
    };
    match failed {
        true => Err(io::Error::last_os_error()),
        false => Ok(()),
    }
}

extern "C" fn on_signal(_signal: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
    let mut rng = Rng::from_state(HANDLER_STATE.get());
    let sites = SITES.load(Ordering::Relaxed) as usize;
    for _ in 0..4 {
        // Odd, so that nothing is thrown.
        call(rng.below(sites), rng.next() | 1);
    }
    HANDLER_STATE.set(rng.next());
}

/// Sends a thread signals.
#[derive(Debug)]
pub(crate) struct Timer(libc::timer_t);

impl Timer {
    /// Sends `signal` to the thread, again and again.
    pub(crate) fn start(thread: u32, signal: libc::c_int, every: Duration) -> io::Result<Self> {
        let timer = Self::new(thread, signal)?;
        timer.set(every)?;
        Ok(timer)
    }

    /// Sends it once.
    pub(crate) fn once(thread: u32, signal: libc::c_int, after: Duration) -> io::Result<Self> {
        let timer = Self::new(thread, signal)?;
        timer.set_times(after, Duration::ZERO)?;
        Ok(timer)
    }

    fn new(thread: u32, signal: libc::c_int) -> io::Result<Self> {
        // SAFETY: all structures are live locals, and complete.
        unsafe {
            let mut event: libc::sigevent = mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = signal;
            event.sigev_notify_thread_id = thread as libc::c_int;
            let mut timer: libc::timer_t = ptr::null_mut();
            if libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self(timer))
        }
    }

    /// Changes the time between two signals, which is less than a second.
    pub(crate) fn set(&self, every: Duration) -> io::Result<()> {
        self.set_times(every, every)
    }

    fn set_times(&self, first: Duration, every: Duration) -> io::Result<()> {
        let [it_value, it_interval] = [first, every].map(|time| libc::timespec {
            tv_sec: 0,
            tv_nsec: time.subsec_nanos().into(),
        });
        let times = libc::itimerspec {
            it_interval,
            it_value,
        };
        // SAFETY: made by `start`; the times are live and complete.
        if unsafe { libc::timer_settime(self.0, 0, &times, ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: made by `start`.
        unsafe { libc::timer_delete(self.0) };
    }
}
