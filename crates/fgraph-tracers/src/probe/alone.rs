//! Probe with a slot of its own: a user of fgraph that calls two closures and counts calls.

use core::fmt;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::OnceLock;

use fgraph::{
    Counters, Entry, Error, FgraphOps, Filter, Handle, Recycle, Recycled, Return, UserStatus,
};

use super::{Callbacks, EntryCall, ReturnCall};
use crate::support::looking;

/// Number of probes that may have a slot of their own.
const SLOTS: usize = 4;

/// Number of probes that have one now. Relaxed: a plain count.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// One of the slots, until it is dropped.
#[derive(Debug)]
struct Slot(());

impl Slot {
    fn take() -> Option<Self> {
        let next = |taken| (taken < SLOTS).then_some(taken + 1);
        let taken = TAKEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        taken.ok().map(|_| Self(()))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        TAKEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Number of calls of the functions in one thread, and in earlier threads with the same state.
#[derive(Debug, Default)]
struct Hits(AtomicU64);

impl Recycle for Hits {
    fn begin(&self, _thread: u32) {}
}

/// Callbacks of the probe.
struct Ops<C> {
    callbacks: C,
    hits: Recycled<Hits>,
    /// Number of calls in threads that found no memory for their count.
    without_memory: AtomicU64,
}

impl<C: Callbacks> FgraphOps for Ops<C> {
    type Data = C::Data;

    fn entry(&self, call: &mut Entry<'_, C::Data>) -> Option<C::Data> {
        let Some(Hits(hits)) = call.recycled(&self.hits) else {
            self.without_memory.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        // Only this thread writes the count.
        let before = hits.load(Ordering::Relaxed);
        hits.store(before.wrapping_add(1), Ordering::Relaxed);
        let data = self.callbacks.entry(&mut EntryCall(call))?;
        C::HAS_RETURN.then_some(data)
    }

    fn ret(&self, call: &mut Return<'_, C::Data>, data: C::Data) {
        self.callbacks.ret(&mut ReturnCall(call), data);
    }
}

/// Running probe in a slot of its own. Dropping it ends it.
pub(super) struct Alone<C: Callbacks> {
    user: Handle<Ops<C>>,
    panicked: OnceLock<String>,
    /// Dropped last.
    _slot: Slot,
}

impl<C: Callbacks> Alone<C> {
    /// Starts the probe, or returns its callbacks if there is no slot.
    ///
    /// # Safety
    ///
    /// Same as for [`fgraph::register`], for the closures.
    pub(super) unsafe fn start(filter: &Filter, callbacks: C) -> Result<Result<Self, C>, Error> {
        let Some(slot) = Slot::take() else {
            return Ok(Err(callbacks));
        };
        let ops = Ops {
            callbacks,
            hits: Recycled::new(),
            without_memory: AtomicU64::new(0),
        };
        // SAFETY: the caller vouches for the closures; the rest of the callbacks only counts.
        match unsafe { fgraph::register_with(ops, filter.clone(), &looking::options()) } {
            Ok(user) => Ok(Ok(Self {
                user,
                panicked: OnceLock::new(),
                _slot: slot,
            })),
            Err(failed) if matches!(failed.error, Error::NoFreeSlot { .. }) => {
                Ok(Err(failed.ops.callbacks))
            }
            Err(failed) => Err(failed.error),
        }
    }
}

/// Running probe with any data, in a slot of its own or not.
pub(super) trait Running: fmt::Debug + Send + Sync {
    fn hits(&self) -> u64;
    fn missed(&self) -> u64;
    fn counters(&self) -> Counters;
    fn panic(&self) -> Option<&str>;
}

impl<C: Callbacks> fmt::Debug for Alone<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alone")
            .field("hits", &self.hits())
            .finish_non_exhaustive()
    }
}

impl<C: Callbacks> Running for Alone<C> {
    fn hits(&self) -> u64 {
        let hits = self.user.user().hits.iter();
        hits.map(|Hits(hits)| hits.load(Ordering::Relaxed)).sum()
    }

    fn missed(&self) -> u64 {
        self.user.counters().unreserved + self.user.user().without_memory.load(Ordering::Relaxed)
    }

    fn counters(&self) -> Counters {
        self.user.counters()
    }

    fn panic(&self) -> Option<&str> {
        if let UserStatus::Panicked { message } = self.user.status() {
            return Some(self.panicked.get_or_init(|| message));
        }
        None
    }
}
