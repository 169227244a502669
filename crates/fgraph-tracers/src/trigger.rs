//! Notifies the readers of rings of an event that they wait for: a function was called, or a call
//! took long.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//! use fgraph_trace::ring::{RingOptions, Rings};
//! use fgraph_tracers::trigger::Trigger;
//!
//! let rings = Arc::new(Rings::create(&RingOptions::default())?);
//! let trigger = Trigger::start(rings.clone(), "getppid:mod:libc.so*", Duration::ZERO)?;
//! assert_eq!(rings.triggers(), 0);
//! std::os::unix::process::parent_id();
//! assert_eq!(rings.triggers(), 1);
//! # drop(trigger);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::sync::Arc;
use std::time::Duration;

use crate::support::looking;
use crate::tracer::{OneUser, Tracer};
use fgraph::{AnywhereHandle, AnywhereOps, Entry, Error, FgraphOps, IntoFilter, Return};
use fgraph_trace::clock::ClockKind;
use fgraph_trace::ring::Rings;

/// Trigger. Dropping it ends it.
///
/// Each time it fires it increments [`Rings::triggers`], which notifies readers in other processes.
/// A call of a watched function costs one or two readings of the clock.
#[derive(Debug)]
pub struct Trigger {
    user: AnywhereHandle<Fires>,
}

impl OneUser for Trigger {
    fn user(&self) -> &dyn Tracer {
        &self.user
    }
}

impl Trigger {
    /// Starts to watch the functions that `filter` selects. It fires when a call ends that took at
    /// least this time, or, if the time is zero, when a function is called.
    ///
    /// # Errors
    ///
    /// Same as for [`fgraph::register`].
    pub fn start(
        rings: Arc<Rings>,
        filter: impl IntoFilter,
        least: Duration,
    ) -> Result<Self, Error> {
        let clock = rings.clock();
        let least = u64::try_from(least.as_nanos()).unwrap_or(u64::MAX);
        let fires = Fires {
            clock: clock.kind(),
            least: clock.ticks(least),
            rings,
        };
        let user = fgraph::register_anywhere_with(fires, filter, &looking::options())?;
        Ok(Self { user })
    }
}

#[derive(Debug)]
struct Fires {
    rings: Arc<Rings>,
    clock: ClockKind,
    /// Least time in ticks; 0 fires at the entry.
    least: u64,
}

// SAFETY: the callbacks only use the clock and atomics.
unsafe impl AnywhereOps for Fires {}

impl FgraphOps for Fires {
    /// Time of the entry.
    type Data = u64;

    #[inline]
    fn entry(&self, _: &mut Entry<'_, u64>) -> Option<u64> {
        if self.least == 0 {
            self.rings.trigger();
            return None;
        }
        Some(self.clock.now())
    }

    #[inline]
    fn ret(&self, _: &mut Return<'_, u64>, begin: u64) {
        if self.clock.now().saturating_sub(begin) >= self.least {
            self.rings.trigger();
        }
    }
}
