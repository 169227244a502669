//! How fgraph is doing in this process.

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

/// How fgraph is doing in this process.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Status {
    /// Why nothing is traced any more, if so.
    pub stopped: Option<StopReason>,
    /// Functions that can be traced, in the program and the libraries it has loaded. One that takes
    /// a [breakpoint](crate::Options::breakpoints) is among them while the breakpoint is there.
    pub sites: usize,
    /// Of these, functions whose entry is patched now.
    pub patched: usize,
    /// Users that are registered.
    pub users: usize,
    /// Of these, users that are [scalar](crate::Handle::is_scalar).
    pub scalar: usize,
    /// How the program's text is written.
    pub text: TextMethod,
    /// The longest time that text was moved for at once, where it was exchanged as a whole. Threads
    /// that needed a page of it may have waited for as long.
    pub longest_exchange: Duration,
    /// What was not traced, for all users and threads together.
    pub counters: Counters,
    /// Calls that were not traced because their thread found no memory for its state.
    pub unattached: u64,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(stop) = self.stopped {
            write!(f, "stopped: {stop}; ")?;
        }
        write!(
            f,
            "{} of {} sites patched through {}; {} of {} users scalar; {}, unattached {}",
            self.patched,
            self.sites,
            self.text,
            self.scalar,
            self.users,
            self.counters,
            self.unattached
        )
    }
}

/// How fgraph is doing in this process.
///
/// It looks at every patched function, and patches those anew that the kernel has changed when a
/// uprobe was removed (`perf probe`, `bpftrace`), which does not do before. Until then such a
/// function must not be called: the kernel leaves its entry in pieces.
///
/// # Errors
///
/// [`InsideCallback`](Error::InsideCallback), [`Unsupported`](Error::Unsupported).
pub fn status() -> Result<Status, Error> {
    let mut locked = control::lock()?;
    // What cannot be mended now is looked at again the next time.
    let _ = locked.control.mend();
    let (sites, patched) = locked.control.counts();
    let (users, scalar) = locked.control.users();
    crate::threads::count_lost();
    let mut counters = FGRAPH.counters();
    // SAFETY: only the counters are used.
    counters += unsafe { trampoline::attaching() }.total.read();
    Ok(Status {
        stopped: control::stopped(),
        sites,
        patched,
        users,
        scalar,
        text: Text::method(),
        longest_exchange: text_exchange::longest_move(),
        counters,
        // Relaxed: a plain count.
        unattached: FGRAPH.unattached.load(Ordering::Relaxed),
    })
}

/// Gives functions their own bytes back that no user wants any more and that kept their jump.
///
/// A user can be unregistered while a thread blocks SIGTRAP, but then jumps may stay: they lead to
/// nobody, and go with the next change of a filter. After the last user there may be none.
///
/// # Errors
///
/// [`SignalBlocked`](Error::SignalBlocked) while the thread goes on blocking it, and
/// [`Text`](Error::Text); [`InsideCallback`](Error::InsideCallback),
/// [`Unsupported`](Error::Unsupported).
pub fn put_back() -> Result<(), Error> {
    control::lock()?.control.put_back()
}

/// Stops fgraph in this process for good: no callback is called any more, every patched function
/// gets its own bytes back, and no user can be registered. Calls that are going on return as they
/// would have. The users stay with their handles.
///
/// The kernel's `ftrace_graph_stop()`.
///
/// # Errors
///
/// [`InsideCallback`](Error::InsideCallback), [`Unsupported`](Error::Unsupported); and
/// [`SignalBlocked`](Error::SignalBlocked) or [`Text`](Error::Text) if functions could not be given
/// their own bytes back: no callback is called then either, but these functions go on to cost a
/// little.
pub fn stop() -> Result<(), Error> {
    control::lock()?.control.stop()
}

/// What was not traced in one thread.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ThreadStatus {
    /// The kernel's id of the thread.
    pub id: u32,
    /// What was not traced in it, for all users together.
    pub counters: Counters,
}

/// The kernel's id of the calling thread, as [`Handle::set_threads`](crate::Handle::set_threads)
/// takes it.
pub fn thread_id() -> u32 {
    os::thread_id()
}

/// The threads that have hit a traced function and whose state no other thread has taken over.
pub fn threads() -> Vec<ThreadStatus> {
    // SAFETY: only ids and counters are read.
    let threads = unsafe { FGRAPH.threads.iter() };
    threads
        .filter(|thread| thread.id() != 0 && !thread.owner.is_reserved())
        .map(|thread| ThreadStatus {
            id: thread.id(),
            counters: thread.counters(),
        })
        .collect()
}
