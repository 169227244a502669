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

mod alone;
mod call;
pub mod fault;
mod mux;

use core::fmt;

use fgraph::{Error, Filter, FilterError, IntoFilter};

use crate::support::classes::without_predicate;
use alone::{Alone, Running};
pub use call::{EntryCall, ReturnCall};
use mux::{Member, Membership};

/// The most data that a probe keeps from entry to return, in bytes; [`fgraph::register`] is for
/// more.
pub const MAX_DATA_SIZE: usize = mux::ROOM;

/// A probe of the functions that `filter` selects, which does nothing yet.
///
/// What is wrong with the filter is said when the probe is started.
pub fn probe(filter: impl IntoFilter) -> Builder<()> {
    Builder {
        filter: filter.into_filter(),
        closures: Closures {
            entry: Box::new(|_| Some(())),
            ret: None,
        },
    }
}

/// A probe that is not started. `D` is what it keeps from entry to return.
#[must_use = "it does nothing before it is started"]
pub struct Builder<D> {
    filter: Result<Filter, FilterError>,
    closures: Closures<D>,
}

type EntryFn<D> = Box<dyn Fn(&mut EntryCall<'_, '_>) -> Option<D> + Send + Sync>;
type ReturnFn<D> = Box<dyn Fn(&mut ReturnCall<'_, '_>, D) + Send + Sync>;

/// What a probe calls.
struct Closures<D> {
    entry: EntryFn<D>,
    /// Without one no return is asked for.
    ret: Option<ReturnFn<D>>,
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
            closures: Closures {
                entry: Box::new(entry),
                ret: None,
            },
        }
    }
}

impl<D: Copy + Send + 'static> Builder<D> {
    /// Has `ret` called when a function returns, or is unwound, with what its entry has kept.
    pub fn on_return<R>(self, ret: R) -> Self
    where
        R: Fn(&mut ReturnCall<'_, '_>, D) + Send + Sync + 'static,
    {
        let ret: ReturnFn<D> = Box::new(ret);
        let closures = Closures {
            ret: Some(ret),
            ..self.closures
        };
        Self { closures, ..self }
    }

    /// Starts the probe.
    ///
    /// The first four have a slot each, while slots are free, and cost little more than a user with
    /// the same callbacks. Others share up to four more slots, with up to 64 in each, and cost
    /// more. A call costs what the probes of its function cost, however many others there are.
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
        let filter = without_predicate(self.filter)?;
        // SAFETY: handed on.
        let running: Box<dyn Running> = match unsafe { Alone::start(&filter, self.closures) }? {
            Ok(alone) => Box::new(alone),
            Err(closures) => {
                let member = Member::new(filter, closures);
                // SAFETY: handed on.
                Box::new(unsafe { Membership::join(member) }?)
            }
        };
        Ok(Probe { running })
    }
}

/// A probe at work.
///
/// Dropping it ends it, and waits until none of its closures runs. Dropped inside a callback it
/// ends as well, but nothing is waited for, and its closures are dropped later.
#[must_use = "dropping it ends the probe"]
#[derive(Debug)]
pub struct Probe {
    running: Box<dyn Running>,
}

impl Probe {
    /// Calls of the functions since the probe was started, of those that were not missed.
    pub fn hits(&self) -> u64 {
        self.running.hits()
    }

    /// Calls that the probe did not see, or whose return it will not see, because there was no room
    /// for its data: beside it too many other probes, or users, want the same calls.
    pub fn missed(&self) -> u64 {
        self.running.missed()
    }

    /// What was not seen for other reasons since the probe was started, by it and by the probes
    /// that share its slot: the first four share none.
    pub fn counters(&self) -> fgraph::Counters {
        self.running.counters()
    }

    /// What a closure has panicked with, if one has: the probe has ended then, and others go on.
    pub fn panic(&self) -> Option<&str> {
        self.running.panic()
    }
}
