//! Ctrl-C, which the program gets as well.

use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Relaxed: a count, which nothing else depends on.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Relaxed: as above.
static SNAPSHOTS: AtomicUsize = AtomicUsize::new(0);

/// Relaxed: as above.
static IS_HUNG_UP: AtomicBool = AtomicBool::new(false);

/// Counts interrupts, which do not end this process any more.
#[derive(Debug)]
pub(crate) struct Interrupts;

extern "C" fn count(signal: i32) {
    // Others than Ctrl-C the program does not get: they end the recording at once.
    let more = if signal == libc::SIGINT { 1 } else { 2 };
    COUNT.fetch_add(more, Ordering::Relaxed);
    IS_HUNG_UP.fetch_or(signal == libc::SIGHUP, Ordering::Relaxed);
}

impl Interrupts {
    /// From now on they are counted; those that are ignored still are.
    pub(crate) fn catch() -> Self {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: zeros are an action; the handler changes an atomic.
            unsafe {
                let mut known: libc::sigaction = mem::zeroed();
                libc::sigaction(signal, ptr::null(), &mut known);
                if known.sa_sigaction != libc::SIG_IGN {
                    let mut action: libc::sigaction = mem::zeroed();
                    action.sa_sigaction = count as extern "C" fn(i32) as usize;
                    action.sa_flags = libc::SA_RESTART;
                    libc::sigaction(signal, &action, ptr::null_mut());
                }
            }
        }
        Self
    }

    /// From now on SIGUSR2 is counted as well, which asks for a snapshot.
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

    /// Counts one more, which came as a key.
    pub(crate) fn add(&self) {
        COUNT.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the terminal has gone away.
    pub(crate) fn is_hung_up(&self) -> bool {
        IS_HUNG_UP.load(Ordering::Relaxed)
    }

    /// How often a snapshot was asked for.
    pub(crate) fn snapshots(&self) -> u64 {
        SNAPSHOTS.load(Ordering::Relaxed) as u64
    }

    /// How many there were: with the second one it is to end at once.
    pub(crate) fn count(&self) -> usize {
        COUNT.load(Ordering::Relaxed)
    }
}
