//! The part of the shown time in which threads waited for a processor.

use fgraph_analysis::calls::{Active, At, Call};
use serde::{Deserialize, Serialize};

use crate::input::Measure;

/// The least part, in percent, that is said.
const SAID: u64 = 50;
/// Calls that take fewer nanoseconds have no wait that counts.
const SHORT: u64 = 10_000;

/// The time of the shown calls, and the waits for a processor in them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Waiting {
    /// True if the view shows all time of calls.
    is_counted: bool,
    /// The shown calls in progress, all in one line; none in a summary.
    #[serde(skip)]
    active: Active,
    total: u64,
    waited: u64,
}

impl Waiting {
    /// Makes it for a view of this time of calls.
    pub(crate) fn of(measure: Measure) -> Self {
        Self {
            is_counted: measure == Measure::Wall,
            ..Self::default()
        }
    }

    /// Notes that a shown call begins.
    #[inline]
    pub(crate) fn begin(&mut self, at: &At<'_>) {
        if !self.is_counted || at.schedule.is_none() {
            return;
        }
        self.active.begin(at.thread.index, 0);
    }

    /// Adds a shown call that ends, unless it is part of another one.
    #[inline]
    pub(crate) fn end(&mut self, at: &At<'_>, call: &Call) {
        let Some(schedule) = at.schedule.filter(|_| self.is_counted) else {
            return;
        };
        if !self.active.end(at.thread.index, 0) {
            return;
        }
        let took = at.clock.nanoseconds(call.ran);
        self.total = self.total.saturating_add(took);
        if took < SHORT {
            return;
        }
        let end = call.begin.saturating_add(call.ran);
        if let Some(times) = schedule.between(at.thread.id, call.begin, end) {
            let waited = at.clock.nanoseconds(times.runnable);
            self.waited = self.waited.saturating_add(waited);
        }
    }

    /// Says the part if it is most of the time, and the option that leaves it out.
    pub(crate) fn say(&self) {
        let percent = self.waited.saturating_mul(100).checked_div(self.total);
        if let Some(percent @ SAID..) = percent {
            say!(
                "fgraph: {percent} % of this time is waiting for a processor: --time cpu leaves it \
                 out"
            );
        }
    }
}
