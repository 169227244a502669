//! The effect of an event on the calls of its thread.

use fgraph_trace::event::What;
use fgraph_trace::pairing::Ending;

/// The effect, with the function or the numbers of what was lost.
#[derive(Clone, Copy, Debug)]
pub enum StepKind {
    /// A call begins.
    Begin(u32),
    /// An entry-only call.
    Only(u32),
    /// A call ends.
    End(u32, Ending),
    /// Events are missing; so many of them ended calls.
    Lost(u64, Option<u64>),
    /// None.
    Other,
}

impl StepKind {
    /// Returns the effect of an event.
    #[inline]
    pub fn of(what: &What<'_>) -> Self {
        match *what {
            What::Entry {
                function,
                is_entry_only: true,
                ..
            } => Self::Only(function),
            What::Entry { function, .. } => Self::Begin(function),
            What::Return { function, .. } => Self::End(function, Ending::Returned),
            What::Unwound { function } => Self::End(function, Ending::Unwound),
            What::Dropped { function } => Self::End(function, Ending::Lost),
            What::Lost { events, ends } => Self::Lost(events, ends),
            What::Mark(_) => Self::Other,
        }
    }
}
