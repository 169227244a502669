//! The calls that events begin and end, for a [`Visitor`].
//!
//! [`Calls`] reads events, pairs entries and ends ([`fgraph_trace::pairing`]), numbers functions
//! and threads, measures calls in states of their threads, and passes each call to a visitor. All
//! views and exports are visitors. A [`Mode`] says in which of two ways calls are followed.

mod context;
mod counts;
mod driver;
mod functions;
mod mode;
mod thread;
mod visitor;

use fgraph_trace::clock::Clock;
pub use fgraph_trace::pairing::Ending;

pub use context::Context;
pub use counts::Counts;
pub use driver::{Calls, Step, Stopped, follow, follow_in};
pub use functions::{Function, Functions, Pages, Slot};
pub use mode::{Exports, Mode, Views};
pub use thread::{Thread, write_thread};
pub use visitor::{At, Call, Measured, Open, ThreadId, Values, Visitor, one_line};

use crate::numbers::grown;
use crate::stats::Stats;

/// Counts a call of a view. `is_outermost` is true if no other counted call contains it.
#[inline]
pub fn count(call: &Call, clock: &Clock, is_outermost: bool, stats: &mut Stats) {
    Ended::of(call, clock).count(is_outermost, stats);
}

/// The times of a call of a view, in nanoseconds, to be counted in several tables.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    ending: Ending,
    ran: u64,
    /// The time without the calls inside it.
    pub own: u64,
    /// True if its time is unknown.
    is_untimed: bool,
}

impl Ended {
    /// Returns the times of a call.
    #[inline]
    #[must_use]
    pub fn of(call: &Call, clock: &Clock) -> Self {
        let Measured { ran, own } = call.measured;
        // An open call without a time began with the last event of its thread.
        let is_untimed = match call.ending {
            Ending::Open => ran == 0,
            Ending::EntryOnly => true,
            Ending::Returned | Ending::Unwound | Ending::Lost => false,
        };
        Self {
            ending: call.ending,
            ran: clock.nanoseconds(ran),
            own: clock.nanoseconds(own),
            is_untimed,
        }
    }

    /// Counts the call. `is_outermost` is true if no other counted call contains it.
    #[inline]
    pub fn count(&self, is_outermost: bool, stats: &mut Stats) {
        let Self { ran, own, .. } = *self;
        match self.ending {
            _ if self.is_untimed => stats.add_untimed(),
            Ending::Lost => stats.add_lost(ran, own, is_outermost),
            _ => stats.add(ran, own, is_outermost),
        }
    }
}

/// The number of calls in progress of each thread in each line of a table. A call at 1 is in no
/// other call of its line.
#[derive(Debug, Default)]
pub struct Active(Vec<Vec<u32>>);

impl Active {
    /// Begins a call.
    #[inline]
    pub fn begin(&mut self, thread: usize, line: usize) {
        *grown(grown(&mut self.0, thread), line) += 1;
    }

    /// Ends a call; returns true if no other call of its line contains it.
    #[inline]
    pub fn end(&mut self, thread: usize, line: usize) -> bool {
        let known = self.0.get_mut(thread).and_then(|lines| lines.get_mut(line));
        known.is_none_or(|active| {
            *active = active.saturating_sub(1);
            *active == 0
        })
    }
}

#[cfg(test)]
mod tests;
