//! Watches for what the program changes of its threads.
//!
//! Callbacks do without the operations that it forbids:
//!
//! - After `PR_SET_TSC` threads get a fault if they read the processor's counter: clocks are then
//!   read with care.
//! - After `PR_SET_SECCOMP` or `seccomp` system calls may end the program: no thread waits for room
//!   in its ring any more, and rings are mapped up to their limit.
//!
//! A thread that names itself is described anew: programs name threads after their first calls.
//!
//! # Safety
//!
//! The unsafe code registers a user, whose callbacks set flags, map memory and describe threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fgraph::{Entry, Error, FgraphOps, Filter, Handle, Options, Return};
use fgraph_trace::clock;
use fgraph_trace::ring::Rings;
use fgraph_tracers::recorder::describe_thread;

/// The most names of threads that are described; the others are found by looking, if at all.
const MOST_NAMES: u32 = 4096;

/// Watches the functions of the C library that make these system calls. Dropping it ends that.
#[derive(Debug)]
pub(crate) struct ThreadChanges {
    _user: Handle<Watch>,
}

impl ThreadChanges {
    /// Starts to watch. `rings` are those of another process that this one's writers use, which
    /// has executed this number of programs before.
    pub(crate) fn watch(rings: Option<Arc<Rings>>, executed: u32) -> Result<Self, Error> {
        // The last one is in a library of its own before glibc 2.34.
        let filter = [
            ("prctl", "libc.so*"),
            ("syscall", "libc.so*"),
            ("pthread_setname_np", "libc.so*"),
            ("pthread_setname_np", "libpthread.so*"),
        ]
        .into_iter()
        .try_fold(Filter::none(), |filter, (name, library)| {
            filter.trace_in(name, library)
        });
        // Three functions of a library that is large.
        let options = Options::new().lazy_sites(true).allow_no_match();
        let filter = filter.map_err(Error::Filter)?;
        let watch = Watch {
            rings,
            executed,
            names: AtomicU32::new(0),
        };
        // SAFETY: the callbacks read registers, set flags, map memory, and make system calls.
        let user = unsafe { fgraph::register_with(watch, filter, &options) };
        user.map(|user| Self { _user: user })
            .map_err(|failed| failed.error)
    }
}

#[derive(Debug)]
struct Watch {
    rings: Option<Arc<Rings>>,
    executed: u32,
    /// The number of names that were described.
    names: AtomicU32,
}

impl FgraphOps for Watch {
    type Data = ();

    fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
        // The upper half of an `int` has no meaning.
        let is = |index, value: i32| call.arg(index).is_some_and(|it| it as i32 == value);
        // The number of a system call precedes its arguments.
        let asks = |first, option| {
            is(first, option) || is(0, libc::SYS_prctl as i32) && is(first + 1, option)
        };
        let is_fault = is(1, libc::PR_TSC_SIGSEGV) || is(2, libc::PR_TSC_SIGSEGV);
        if asks(0, libc::PR_SET_TSC) && is_fault {
            clock::expect_faults();
        }
        if (asks(0, libc::PR_SET_SECCOMP) || is(0, libc::SYS_seccomp as i32))
            && let Some(rings) = &self.rings
        {
            rings.make_no_calls();
        }
        // A thread is an address in `pthread_setname_np`.
        let is_thread = call.arg(0).is_some_and(|it| it > u32::MAX.into());
        (asks(0, libc::PR_SET_NAME) || is_thread).then_some(())
    }

    fn ret(&self, call: &mut Return<'_, ()>, (): ()) {
        let Some(rings) = &self.rings else { return };
        // Relaxed: nothing else depends on the number.
        if self.names.fetch_add(1, Ordering::Relaxed) < MOST_NAMES {
            describe_thread(rings, self.executed, call.thread_id());
        }
    }
}
