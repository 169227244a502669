//! Closures at the entry and the return of functions: the kernel's kretprobe and fprobe.
//!
//! ```
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU64, Ordering};
//! use std::time::Instant;
//!
//! use fgraph_tracers::probe::probe;
//!
//! let slowest = Arc::new(AtomicU64::new(0));
//! let seen = Arc::clone(&slowest);
//! let probe = probe("getppid:mod:libc.so*")
//!     .on_entry(|_call| Some(Instant::now()))
//!     .on_return(move |_call, entered| {
//!         seen.fetch_max(entered.elapsed().as_nanos() as u64, Ordering::Relaxed);
//!     });
//! // SAFETY: the closures use the clock and an atomic.
//! let probe = unsafe { probe.start() }?;
//! std::os::unix::process::parent_id();
//! assert_eq!(probe.hits(), 1);
//! assert_ne!(slowest.load(Ordering::Relaxed), 0);
//! # Ok::<(), fgraph::Error>(())
//! ```

mod call;
pub mod fault;
mod mux;

use core::alloc::Layout;
use core::fmt;
use core::marker::PhantomData;

use fgraph::{Error, Filter, FilterError, IntoFilter};

pub use call::{EntryCall, ReturnCall};
use mux::{EntryFn, Member, Membership, ReturnFn};

/// The most data that a probe keeps from entry to return, in bytes; [`fgraph::register`] is for
/// more.
pub const MAX_DATA_SIZE: usize = mux::ROOM;

/// A probe of the functions that `filter` selects, which does nothing yet.
///
/// What is wrong with the filter is said when the probe is started.
pub fn probe(filter: impl IntoFilter) -> Builder<()> {
    Builder {
        filter: filter.into_filter(),
        entry: None,
        ret: None,
        data: PhantomData,
    }
}

/// A probe that is not started. `D` is what it keeps from entry to return.
#[must_use = "it does nothing before it is started"]
pub struct Builder<D> {
    filter: Result<Filter, FilterError>,
    entry: Option<EntryFn>,
    ret: Option<ReturnFn>,
    data: PhantomData<fn() -> D>,
}

impl<D> fmt::Debug for Builder<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("filter", &self.filter)
            .finish_non_exhaustive()
    }
}

impl Builder<()> {
    /// Has `entry` called when a function is entered. `Some` asks for the return, and is kept for
    /// it: at most [`MAX_DATA_SIZE`] bytes, aligned to at most 16. `None` lets the call go by.
    ///
    /// A closure at return that was given before is taken away, as it gets other data.
    pub fn on_entry<D, E>(self, entry: E) -> Builder<D>
    where
        D: Copy + Send + 'static,
        E: Fn(&mut EntryCall<'_, '_>) -> Option<D> + Send + Sync + 'static,
    {
        const { assert!(size_of::<D>() <= MAX_DATA_SIZE, "too much data for a probe") }
        const {
            assert!(
                align_of::<D>() <= mux::ALIGN,
                "data of too strict an alignment"
            )
        }
        Builder {
            filter: self.filter,
            entry: Some(Box::new(move |call, place| match entry(call) {
                Some(data) => {
                    // SAFETY: the place is fit for a `D`, as the mux promises.
                    unsafe { place.cast::<D>().write(data) };
                    true
                }
                None => false,
            })),
            ret: None,
            data: PhantomData,
        }
    }
}

impl<D: Copy + Send + 'static> Builder<D> {
    /// Has `ret` called when a function returns, or is unwound, with what its entry has kept.
    pub fn on_return<R>(self, ret: R) -> Self
    where
        R: Fn(&mut ReturnCall<'_, '_>, D) + Send + Sync + 'static,
    {
        Self {
            ret: Some(Box::new(move |call, place| {
                // SAFETY: the entry has kept a `D` there, as the mux promises; without an entry
                // it is a `()`.
                ret(call, unsafe { place.cast::<D>().read() });
            })),
            ..self
        }
    }

    /// Starts the probe.
    ///
    /// Probes share slots: the first four have one each, then each slot takes up to 64. A call
    /// costs what the probes of its function cost, however many others there are.
    ///
    /// # Safety
    ///
    /// As for [`fgraph::register`]: wherever the functions that the filter selects are called, the
    /// closures do only what is allowed there.
    ///
    /// # Errors
    ///
    /// As for [`fgraph::register`], and
    /// [`PredicateAsText`](fgraph::FilterError::PredicateAsText) for a filter with a predicate,
    /// which would be asked in callbacks.
    pub unsafe fn start(self) -> Result<Probe, Error> {
        let member = Member::new(self.filter, self.entry, self.ret, Layout::new::<D>())?;
        // SAFETY: handed on.
        let membership = unsafe { Membership::join(member) }?;
        Ok(Probe { membership })
    }
}

/// A probe at work.
///
/// Dropping it ends it, and waits until none of its closures runs. Dropped inside a callback it
/// ends as well, but nothing is waited for, and its closures are dropped later.
#[must_use = "dropping it ends the probe"]
#[derive(Debug)]
pub struct Probe {
    membership: Membership,
}

impl Probe {
    /// Calls of the functions since the probe was started, of those that were not missed.
    pub fn hits(&self) -> u64 {
        self.membership.hits()
    }

    /// Calls that the probe did not see, or whose return it will not see, because there was no room
    /// for its data: beside it too many other probes, or users, want the same calls.
    pub fn missed(&self) -> u64 {
        self.membership.missed()
    }

    /// What was not seen for other reasons since the probe was started, by it and by the probes
    /// that share its slot: none while there are at most four probes.
    pub fn counters(&self) -> fgraph::Counters {
        self.membership.counters()
    }

    /// What a closure has panicked with, if one has: the probe has ended then, and others go on.
    pub fn panic(&self) -> Option<&str> {
        self.membership.panic()
    }
}
