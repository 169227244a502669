//! The calls that events begin and end, for a [`Visitor`].
//!
//! [`Calls`] reads events, pairs entries and ends ([`fgraph_trace::pairing`]), numbers functions
//! and threads, measures calls in states of their threads, and passes each call to a visitor. All
//! views and exports are visitors. A [`Mode`] says in which of two ways calls are followed.

mod counts;
mod driver;
mod functions;
mod mode;
mod thread;
mod visitor;

use fgraph_trace::clock::Clock;
pub use fgraph_trace::pairing::Ending;

pub use counts::Counts;
pub use driver::{Calls, Context, Step, Stopped, follow, follow_in};
pub use functions::{Function, Functions, Pages, Slot};
pub use mode::{Exports, Mode, Views};
pub use thread::{Thread, write_thread};
pub use visitor::{At, Call, Measured, Open, ThreadId, Values, Visitor, one_line};

use crate::stats::Stats;

/// Counts a call of a view. `is_outermost` is true if no other counted call contains it.
#[inline]
pub fn count(call: &Call, clock: &Clock, is_outermost: bool, stats: &mut Stats) {
    let Measured { ran, own } = call.measured;
    let [ran, own] = [ran, own].map(|ticks| clock.nanoseconds(ticks));
    match call.ending {
        // It began with the last event of its thread, and its time is unknown.
        Ending::Open if call.measured.ran == 0 => stats.add_untimed(),
        Ending::Returned | Ending::Unwound | Ending::Open => stats.add(ran, own, is_outermost),
        Ending::Lost => stats.add_lost(ran, own, is_outermost),
        Ending::EntryOnly => stats.add_untimed(),
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
        if self.0.len() <= thread {
            self.0.resize_with(thread + 1, Vec::new);
        }
        let lines = &mut self.0[thread];
        if lines.len() <= line {
            lines.resize(line + 1, 0);
        }
        lines[line] += 1;
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
