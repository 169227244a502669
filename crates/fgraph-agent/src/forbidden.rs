//! Watches for operations that the program is about to forbid to its threads, so that callbacks in
//! them do without:
//!
//! - After `PR_SET_TSC` threads get a fault if they read the processor's counter: clocks are then
//!   read with care.
//! - After `PR_SET_SECCOMP` or `seccomp` system calls may end the program: no thread waits for room
//!   in its ring any more, and rings are mapped up to their limit.
//!
//! # Safety
//!
//! The unsafe code registers a user, whose callback sets flags and maps memory.

use std::sync::Arc;

use fgraph::{Entry, Error, FgraphOps, Filter, Handle, Options};
use fgraph_trace::clock;
use fgraph_trace::ring::Rings;

/// Watches the functions of the C library that make these system calls. Dropping it ends that.
#[derive(Debug)]
pub(crate) struct Forbidden {
    _user: Handle<Watch>,
}

impl Forbidden {
    /// Starts to watch. `rings` are those of another process that this one's writers use.
    pub(crate) fn watch(rings: Option<Arc<Rings>>) -> Result<Self, Error> {
        let filter = ["prctl", "syscall"]
            .into_iter()
            .try_fold(Filter::none(), |filter, name| {
                filter.trace_in(name, "libc.so*")
            });
        // Two functions of a library that is large.
        let options = Options::new().lazy_sites(true).allow_no_match();
        let filter = filter.map_err(Error::Filter)?;
        // SAFETY: the callback reads registers, sets flags and maps memory.
        let user = unsafe { fgraph::register_with(Watch(rings), filter, &options) };
        user.map(|user| Self { _user: user })
            .map_err(|failed| failed.error)
    }
}

#[derive(Debug)]
struct Watch(Option<Arc<Rings>>);

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
            && let Some(rings) = &self.0
        {
            rings.make_no_calls();
        }
        None
    }
}
