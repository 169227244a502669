//! Has clocks read with care once the program asks for faults where its threads read the
//! processor's counter (`PR_SET_TSC`): callbacks read it in its threads.
//!
//! # Safety
//!
//! The unsafe code registers a user, whose callback sets a flag.

use fgraph::{Entry, Error, FgraphOps, Filter, Handle};
use fgraph_trace::clock;

/// Watches the functions of the C library that make this system call; dropping it ends that.
#[derive(Debug)]
pub(crate) struct Faulting {
    _user: Handle<Watch>,
}

impl Faulting {
    pub(crate) fn watch() -> Result<Self, Error> {
        let filter = ["prctl", "syscall"]
            .into_iter()
            .try_fold(Filter::none(), |filter, name| {
                filter.trace_in(name, "libc.so*")
            });
        // SAFETY: the callback reads registers and sets a flag.
        let user = unsafe { fgraph::register(Watch, filter.map_err(Error::Filter)?) };
        user.map(|user| Self { _user: user })
            .map_err(|failed| failed.error)
    }
}

#[derive(Debug)]
struct Watch;

impl FgraphOps for Watch {
    type Data = ();

    fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
        // The upper half of an `int` may be anything.
        let is = |index, value: i32| call.arg(index).is_some_and(|it| it as i32 == value);
        let asks = |first| is(first, libc::PR_SET_TSC) && is(first + 1, libc::PR_TSC_SIGSEGV);
        // The number of a system call is before its arguments.
        if asks(0) || is(0, libc::SYS_prctl as i32) && asks(1) {
            clock::expect_faults();
        }
        None
    }
}
