//! The state of fgraph in this process.

use core::fmt;
use core::sync::atomic::Ordering;
use core::time::Duration;

use crate::arch::trampoline;
use crate::threads::FGRAPH;
use fgraph_core::Counters;

use crate::code::text_exchange;
use crate::code::text_writer::{Text, TextMethod};
use crate::control;
use crate::os;
use crate::report::error::{Error, StopReason};

/// The state of fgraph in this process.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Status {
    /// The reason for a permanent stop, if there was one.
    pub stopped: Option<StopReason>,
    /// Functions that can be traced, in the program and the libraries it has loaded. One that takes
    /// a [breakpoint](crate::Options::breakpoints) is among them while the breakpoint is there.
    pub sites: usize,
    /// The number of functions whose entry is patched now.
    pub patched: usize,
    /// The number of registered users.
    pub users: usize,
    /// The number of registered users on the [fast path](crate::Handle::fast_path).
    pub fast_path: usize,
    /// The way in which text is written.
    pub text: TextMethod,
    /// The longest time that one move of text took, if text was exchanged as a whole. Threads that
    /// needed a page of it may have waited as long.
    pub longest_exchange: Duration,
    /// The counts of untraced calls, for all users and threads together.
    pub counters: Counters,
    /// The number of calls that were not traced because there was no memory for their thread's
    /// state.
    pub unattached: u64,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(stop) = self.stopped {
            write!(f, "stopped: {stop}; ")?;
        }
        write!(
            f,
            "{} of {} sites patched through {}; {} of {} users on the fast path; {}, unattached {}",
            self.patched,
            self.sites,
            self.text,
            self.fast_path,
            self.users,
            self.counters,
            self.unattached
        )
    }
}

/// Returns the state of fgraph in this process.
///
/// It checks every patched function, and repatches those that the kernel has changed when a uprobe
/// was removed (`perf probe`, `bpftrace`), which nothing does earlier. Such a function must not be
/// called before: the kernel leaves an entry of mixed bytes.
///
/// # Errors
///
/// Fails with [`InsideCallback`](Error::InsideCallback) or [`Unsupported`](Error::Unsupported).
pub fn status() -> Result<Status, Error> {
    let mut locked = control::lock()?;
    // A function that cannot be repaired now is checked again the next time.
    let _ = locked.control.mend();
    let (sites, patched) = locked.control.counts();
    let (users, fast_path) = locked.control.users();
    crate::threads::count_lost();
    let mut counters = FGRAPH.counters();
    // SAFETY: this uses only the counters.
    counters += unsafe { trampoline::attaching() }.total.read();
    Ok(Status {
        stopped: control::stopped(),
        sites,
        patched,
        users,
        fast_path,
        text: Text::method(),
        longest_exchange: text_exchange::longest_move(),
        counters,
        // Relaxed: a counter without other data.
        unattached: FGRAPH.unattached.load(Ordering::Relaxed),
    })
}

/// Restores functions that no user wants and that still have their jump.
///
/// A user can be unregistered while a thread blocks SIGTRAP, but then jumps may stay: they call no
/// user, and are removed by the next change of a filter. After the last user there may be no such
/// change.
///
/// # Errors
///
/// Fails with [`SignalBlocked`](Error::SignalBlocked) as long as the thread blocks the signal, with
/// [`Text`](Error::Text), [`InsideCallback`](Error::InsideCallback) or
/// [`Unsupported`](Error::Unsupported).
pub fn restore_functions() -> Result<(), Error> {
    control::lock()?.control.restore_functions()
}

/// Stops fgraph in this process permanently: no callback is called any more, every patched function
/// is restored, and no user can be registered. Calls in progress return normally. The users stay
/// with their handles.
///
/// It is the kernel's `ftrace_graph_stop()`.
///
/// # Errors
///
/// Fails with [`InsideCallback`](Error::InsideCallback) or [`Unsupported`](Error::Unsupported).
/// Fails with [`SignalBlocked`](Error::SignalBlocked) or [`Text`](Error::Text) if functions could
/// not be restored: no callback is called then either, but calls of these functions still cost a
/// little.
pub fn stop() -> Result<(), Error> {
    control::lock()?.control.stop()
}

/// The counts of untraced calls in one thread.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ThreadStatus {
    /// The kernel's id of the thread.
    pub id: u32,
    /// The counts of untraced calls, for all users together.
    pub counters: Counters,
}

/// Returns the kernel's id of the calling thread, for
/// [`Handle::set_threads`](crate::Handle::set_threads).
pub fn thread_id() -> u32 {
    os::thread_id()
}

/// Returns the threads that have called a traced function, except those whose state another thread
/// has taken over.
pub fn threads() -> Vec<ThreadStatus> {
    // SAFETY: this reads only ids and counters.
    let threads = unsafe { FGRAPH.threads.iter() };
    threads
        .filter(|thread| thread.id() != 0 && !thread.owner.is_reserved())
        .map(|thread| ThreadStatus {
            id: thread.id(),
            counters: thread.counters(),
        })
        .collect()
}
