//! Tells the readers of rings that something has happened which they wait for: a function was
//! called, or a call took long.
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
use fgraph::{Entry, Error, FgraphOps, Handle, IntoFilter, Return};
use fgraph_trace::clock::ClockKind;
use fgraph_trace::ring::Rings;

/// A trigger at work; dropping it ends it.
///
/// Each time it fires it counts [`Rings::triggers`] up, so readers in other processes hear of it.
/// A call of a function that it watches takes a reading of the clock or two more.
#[derive(Debug)]
pub struct Trigger {
    user: Handle<Fires>,
}

crate::tracer::tracer!(Trigger);

impl Trigger {
    /// Starts watching the functions that `filter` selects: it fires when a call of one has taken
    /// at least this time, which is told at its end, or, if that is zero, when one is called.
    ///
    /// # Errors
    ///
    /// As for [`fgraph::register`].
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
        // SAFETY: the callbacks use the clock and atomics.
        let user = unsafe { fgraph::register_with(fires, filter, &looking::options()) }?;
        Ok(Self { user })
    }
}

#[derive(Debug)]
struct Fires {
    rings: Arc<Rings>,
    clock: ClockKind,
    /// In ticks; 0 fires at the entry.
    least: u64,
}

impl FgraphOps for Fires {
    /// The clock at the entry.
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
