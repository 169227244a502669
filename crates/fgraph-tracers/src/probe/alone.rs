//! A probe with a slot of its own: a user of fgraph's that calls two closures and counts.

use core::fmt;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::OnceLock;

use fgraph::{Counters, Entry, Error, FgraphOps, Filter, Handle, PerThread, Return, UserStatus};

use super::{Closures, EntryCall, ReturnCall};

/// How many probes have a slot each.
const SLOTS: usize = 4;

/// How many have now. Relaxed: a plain count.
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

/// The callbacks.
struct Ops<D> {
    closures: Closures<D>,
    hits: PerThread<AtomicU64>,
    /// Calls in threads that found no memory for their count.
    without_memory: AtomicU64,
}

impl<D: Copy + Send + 'static> FgraphOps for Ops<D> {
    type Data = D;

    fn entry(&self, call: &mut Entry<'_, D>) -> Option<D> {
        let Some(hits) = call.per_thread(&self.hits) else {
            self.without_memory.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        // The thread alone writes.
        let before = hits.load(Ordering::Relaxed);
        hits.store(before.wrapping_add(1), Ordering::Relaxed);
        let data = (self.closures.entry)(&mut EntryCall(call))?;
        self.closures.ret.is_some().then_some(data)
    }

    fn ret(&self, call: &mut Return<'_, D>, data: D) {
        if let Some(ret) = &self.closures.ret {
            ret(&mut ReturnCall(call), data);
        }
    }
}

/// A probe at work in a slot of its own; dropping it ends it.
pub(super) struct Alone<D: Copy + Send + 'static> {
    user: Handle<Ops<D>>,
    panicked: OnceLock<String>,
    /// Dropped last.
    _slot: Slot,
}

impl<D: Copy + Send + 'static> Alone<D> {
    /// Starts the probe, or gives its closures back if there is no slot.
    ///
    /// # Safety
    ///
    /// As for [`fgraph::register`], for what the closures do.
    pub(super) unsafe fn start(
        filter: &Filter,
        closures: Closures<D>,
    ) -> Result<Result<Self, Closures<D>>, Error> {
        let Some(slot) = Slot::take() else {
            return Ok(Err(closures));
        };
        let ops = Ops {
            closures,
            hits: PerThread::new(),
            without_memory: AtomicU64::new(0),
        };
        // SAFETY: handed on; the rest counts.
        match unsafe { fgraph::register(ops, filter.clone()) } {
            Ok(user) => Ok(Ok(Self {
                user,
                panicked: OnceLock::new(),
                _slot: slot,
            })),
            Err(failed) if failed.error == Error::NoFreeSlot => Ok(Err(failed.ops.closures)),
            Err(failed) => Err(failed.error),
        }
    }
}

/// A probe at work, whatever it keeps, in a slot of its own or not.
pub(super) trait Running: fmt::Debug + Send + Sync {
    fn hits(&self) -> u64;
    fn missed(&self) -> u64;
    fn counters(&self) -> Counters;
    fn panic(&self) -> Option<&str>;
}

impl<D: Copy + Send + 'static> fmt::Debug for Alone<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alone")
            .field("hits", &self.hits())
            .finish_non_exhaustive()
    }
}

impl<D: Copy + Send + 'static> Running for Alone<D> {
    fn hits(&self) -> u64 {
        let hits = self.user.hits.iter();
        hits.map(|(_, hits)| hits.load(Ordering::Relaxed)).sum()
    }

    fn missed(&self) -> u64 {
        self.user.counters().unreserved + self.user.without_memory.load(Ordering::Relaxed)
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
