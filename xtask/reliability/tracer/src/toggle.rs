//! Functions that are patched and put back while they run: a thread changes the filters of all
//! users.
//!
//! A program for which this is done must not fork children that exit in order: the thread may hold
//! the lock of the users while it forks.
//!
//! # Safety
//!
//! The unsafe code changes the signal mask of the thread that starts the program, and puts it back.

use std::env;
use std::mem;
use std::process;
use std::ptr;
use std::thread;
use std::time::Duration;

use fgraph::Error;

use crate::record::Count;
use crate::{TRACING, count};

/// Between two changes: others need the processor, too.
const PAUSE: Duration = Duration::from_micros(200);

/// Starts the thread, if there is something to toggle. It ends when the users do.
pub(crate) fn start() {
    let (Ok(glob), Ok(filter)) = (env::var("FGRAPH_TOGGLE"), env::var("FGRAPH_FILTER")) else {
        return;
    };
    let without = format!("{filter} !{glob}");
    // The program's signals are not for this thread, which inherits the mask.
    // SAFETY: the sets are live locals.
    let before = unsafe {
        let mut all = mem::zeroed();
        libc::sigfillset(&mut all);
        libc::sigdelset(&mut all, libc::SIGTRAP);
        libc::sigdelset(&mut all, libc::SIGILL);
        let mut before = mem::zeroed();
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        before
    };
    thread::spawn(move || while set_filters(&without) && set_filters(&filter) {});
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut()) };
}

/// Sets the filter of one user after the other; `false` when they are gone.
fn set_filters(filter: &str) -> bool {
    for index in 0.. {
        let tracing = TRACING.lock().expect("nothing panics");
        let Some(tracing) = tracing.as_ref() else {
            return false;
        };
        let Some(user) = tracing.users.get(index) else {
            break;
        };
        match user.set_filter(filter) {
            Ok(()) => count(Count::Toggles, 1),
            // As documented: nothing is changed then.
            Err(Error::SignalBlocked { .. }) => {}
            Err(error) => {
                eprintln!("fgraph-reliability-tracer: {error}");
                process::abort();
            }
        }
    }
    thread::sleep(PAUSE);
    true
}
