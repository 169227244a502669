//! Counts the calls of functions in events that come one by one.

use std::collections::HashMap;

use fgraph_trace::Event;
use fgraph_trace::event::What;
use fgraph_trace::pairing::{Change, Ending, Pairing};
use fgraph_trace::recording::CallSum;

/// The calls of each function of each process.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) calls: HashMap<(u32, u32), CallSum>,
    /// The fewest ticks between an entry and a return that follows it.
    pub(super) shortest: Option<u64>,
    /// By process and thread.
    threads: HashMap<(u32, u32), Thread>,
}

#[derive(Debug, Default)]
struct Thread {
    calls: Pairing<()>,
    was_entry: bool,
}

impl Tally {
    pub(super) fn add(&mut self, event: &Event<'_>) {
        let (time, process) = (event.time, event.process);
        let thread = self.threads.entry((process, event.thread)).or_default();
        let since = time.saturating_sub(thread.calls.last());
        let was_entry = std::mem::take(&mut thread.was_entry);
        match event.what {
            What::Entry {
                function,
                is_entry_only,
                ..
            } => {
                self.calls.entry((process, function)).or_default().begun += 1;
                thread.was_entry = !is_entry_only;
                match is_entry_only {
                    true => thread.calls.enter_only(function, time, ()),
                    false => thread.calls.enter(function, time, ()),
                }
            }
            What::Return { function, .. } | What::Unwound { function } => {
                if thread.calls.exit(function, time, Ending::Returned) && was_entry {
                    self.shortest = Some(self.shortest.map_or(since, |it| it.min(since)));
                }
            }
            What::Dropped { function } => _ = thread.calls.exit(function, time, Ending::Lost),
            What::Lost { ends, .. } => thread.calls.lose(ends),
            What::Mark(_) => {}
        }
        while let Some(change) = thread.calls.change() {
            if let Change::Ended(call) = change
                && call.duration().is_some()
            {
                let sum = self.calls.entry((process, call.function)).or_default();
                sum.whole += 1;
                sum.own = sum.own.saturating_add(call.own);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_with_their_own_time() {
        let entry = What::entry;
        let end = What::returned;
        let lost = What::Lost {
            events: 2,
            ends: None,
        };
        let mut tally = Tally::default();
        for (time, what) in [
            (10, entry(1)),
            (20, entry(2)),
            (25, end(2)),
            (100, end(1)),
            (110, entry(1)),
            (120, lost),
            (500, end(1)),
        ] {
            tally.add(&Event::new(time, 9, 1, what));
        }
        let sum = CallSum::new;
        assert_eq!(tally.calls[&(9, 1)], sum(2, 1, 85));
        assert_eq!(tally.calls[&(9, 2)], sum(1, 1, 5));
        assert_eq!(tally.shortest, Some(5));
    }
}
