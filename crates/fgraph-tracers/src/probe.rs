//! Closures at the entry and the return of functions, like the kernel's kretprobe and fprobe.
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
mod call_path;
pub mod fault;
mod mux;

use core::fmt;

use fgraph::{Error, Filter, FilterError, IntoFilter};

use crate::support::classes::without_predicate;
use alone::{Alone, Running};
pub use call::{EntryCall, ReturnCall};
use mux::{Member, Membership};

/// Most bytes that a probe can keep from entry to return. Use [`fgraph::register`] for more.
pub const MAX_DATA_SIZE: usize = mux::ROOM;

/// Creates a probe of the functions that `filter` selects. The probe does nothing until it is
/// started, which also reports errors in the filter.
pub fn probe(filter: impl IntoFilter) -> Builder<Closures<EntryFn, NoReturn>> {
    Builder {
        filter: filter.into_filter(),
        callbacks: Closures {
            entry: |_| Some(()),
            ret: NoReturn(()),
        },
    }
}

/// Probe that is not started. `C` holds its closures: see [`Closures`].
#[must_use = "it does nothing before it is started"]
pub struct Builder<C> {
    filter: Result<Filter, FilterError>,
    callbacks: C,
}

/// Closures of a probe: one at entry, and one at return or [`NoReturn`].
#[derive(Clone, Copy)]
pub struct Closures<E, R> {
    entry: E,
    ret: R,
}

/// Entry function of a probe without a closure at entry.
pub type EntryFn = fn(&mut EntryCall<'_, '_>) -> Option<()>;

/// Stands for a closure at return: returns are not requested.
#[derive(Clone, Copy, Debug)]
pub struct NoReturn(());

/// Callbacks of a probe. Only [`Closures`] implement this.
pub trait Callbacks: sealed::Callbacks {}

impl<C: sealed::Callbacks> Callbacks for C {}

mod sealed {
    use super::{Closures, EntryCall, NoReturn, ReturnCall};

    pub trait Callbacks: Send + Sync + 'static {
        /// Data that is kept from entry to return.
        type Data: Copy + Send + 'static;
        /// True if returns are requested.
        const HAS_RETURN: bool;

        fn entry(&self, call: &mut EntryCall<'_, '_>) -> Option<Self::Data>;

        fn ret(&self, call: &mut ReturnCall<'_, '_>, data: Self::Data);
    }

    impl<D, E> Callbacks for Closures<E, NoReturn>
    where
        D: Copy + Send + 'static,
        E: Fn(&mut EntryCall<'_, '_>) -> Option<D> + Send + Sync + 'static,
    {
        type Data = D;
        const HAS_RETURN: bool = false;

        #[inline]
        fn entry(&self, call: &mut EntryCall<'_, '_>) -> Option<D> {
            (self.entry)(call)
        }

        fn ret(&self, _: &mut ReturnCall<'_, '_>, _: D) {}
    }

    impl<D, E, R> Callbacks for Closures<E, R>
    where
        D: Copy + Send + 'static,
        E: Fn(&mut EntryCall<'_, '_>) -> Option<D> + Send + Sync + 'static,
        R: Fn(&mut ReturnCall<'_, '_>, D) + Send + Sync + 'static,
    {
        type Data = D;
        const HAS_RETURN: bool = true;

        #[inline]
        fn entry(&self, call: &mut EntryCall<'_, '_>) -> Option<D> {
            (self.entry)(call)
        }

        #[inline]
        fn ret(&self, call: &mut ReturnCall<'_, '_>, data: D) {
            (self.ret)(call, data);
        }
    }
}

impl<C> fmt::Debug for Builder<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("filter", &self.filter)
            .finish_non_exhaustive()
    }
}

impl<E, R> fmt::Debug for Closures<E, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Closures").finish_non_exhaustive()
    }
}

impl Builder<Closures<EntryFn, NoReturn>> {
    /// Sets the closure that runs when a function is entered. If it returns `Some`, the return is
    /// requested and the value kept for it: at most [`MAX_DATA_SIZE`] bytes, aligned to at most 16.
    /// `None` skips the return.
    pub fn on_entry<D, E>(self, entry: E) -> Builder<Closures<E, NoReturn>>
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
            callbacks: Closures {
                entry,
                ret: self.callbacks.ret,
            },
        }
    }
}

impl<E> Builder<Closures<E, NoReturn>> {
    /// Sets the closure that runs when a function returns or is unwound, with the value that its
    /// entry has kept.
    pub fn on_return<D, R>(self, ret: R) -> Builder<Closures<E, R>>
    where
        E: Fn(&mut EntryCall<'_, '_>) -> Option<D>,
        R: Fn(&mut ReturnCall<'_, '_>, D) + Send + Sync + 'static,
    {
        Builder {
            filter: self.filter,
            callbacks: Closures {
                entry: self.callbacks.entry,
                ret,
            },
        }
    }
}

impl<C: Callbacks> Builder<C> {
    /// Starts the probe.
    ///
    /// The first four probes have a slot each, while slots are free, and cost little more than a
    /// user with the same callbacks. Further probes share up to four more slots, with up to 64
    /// probes in each, and cost more. The cost of a call depends only on the probes of its
    /// function.
    ///
    /// # Safety
    ///
    /// Same as for [`fgraph::register`]: the closures do only what is allowed wherever the
    /// functions that the filter selects are called.
    ///
    /// # Errors
    ///
    /// Same as for [`fgraph::register`], and
    /// [`PredicateAsText`](fgraph::FilterError::PredicateAsText) for a filter with a predicate,
    /// because callbacks would have to call it.
    pub unsafe fn start(self) -> Result<Probe, Error> {
        let filter = without_predicate(self.filter)?;
        // SAFETY: the caller vouches for the closures, as `start` requires.
        let running: Box<dyn Running> = match unsafe { Alone::start(&filter, self.callbacks) }? {
            Ok(alone) => Box::new(alone),
            Err(callbacks) => {
                let member = Member::new(filter, callbacks);
                // SAFETY: the caller vouches for the closures, as `join` requires.
                Box::new(unsafe { Membership::join(member) }?)
            }
        };
        Ok(Probe { running })
    }
}

/// Running probe.
///
/// Dropping it ends it, and waits until none of its closures runs. Dropped inside a callback, it
/// ends without waiting, and its closures are dropped later.
#[must_use = "dropping it ends the probe"]
#[derive(Debug)]
pub struct Probe {
    running: Box<dyn Running>,
}

impl Probe {
    /// Returns the number of calls of the functions since the probe was started, without the missed
    /// ones.
    pub fn hits(&self) -> u64 {
        self.running.hits()
    }

    /// Returns the number of calls whose entry or return the probe missed for lack of room for its
    /// data. That happens when too many other probes or users want the same calls.
    pub fn missed(&self) -> u64 {
        self.running.missed()
    }

    /// Returns the calls missed for other reasons since the probe was started, by it and by the
    /// probes that share its slot. The first four probes share none.
    pub fn counters(&self) -> fgraph::Counters {
        self.running.counters()
    }

    /// Returns the message with which a closure has panicked, if one has. That ends this probe, but
    /// no other one.
    pub fn panic(&self) -> Option<&str> {
        self.running.panic()
    }
}
