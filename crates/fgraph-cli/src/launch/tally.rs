//! Counts the calls of functions in events that come one by one.

use std::collections::HashMap;

use fgraph_trace::Event;
use fgraph_trace::event::What;
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
    /// The functions of the calls in progress, and their own ticks until now.
    open: Vec<(u32, u64)>,
    /// The time of the last event.
    last: u64,
    was_entry: bool,
}

impl Tally {
    pub(super) fn add(&mut self, event: &Event<'_>) {
        let Event {
            time,
            process,
            thread,
            ..
        } = *event;
        let thread = self.threads.entry((process, thread)).or_default();
        let took = time.saturating_sub(thread.last);
        thread.last = time;
        let was_entry = std::mem::take(&mut thread.was_entry);
        if let Some((_, own)) = thread.open.last_mut() {
            *own = own.saturating_add(took);
        }
        match event.what {
            What::Entry {
                function,
                is_entry_only,
                ..
            } => {
                self.calls.entry((process, function)).or_default().begun += 1;
                if !is_entry_only {
                    thread.open.push((function, 0));
                    thread.was_entry = true;
                }
            }
            What::Return { function, .. } | What::Unwound { function, .. } => {
                let ended = thread.open.pop().filter(|(of, _)| *of == function);
                let Some((_, own)) = ended else {
                    return thread.open.clear();
                };
                let sum = self.calls.entry((process, function)).or_default();
                sum.whole += 1;
                sum.own = sum.own.saturating_add(own);
                if was_entry {
                    self.shortest = Some(self.shortest.map_or(took, |it| it.min(took)));
                }
            }
            What::Lost { .. } => thread.open.clear(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_with_their_own_time() {
        let entry = |function| What::Entry {
            function,
            arguments: &[],
            caller: None,
            is_entry_only: false,
        };
        let end = |function| What::Return {
            function,
            result: &[],
        };
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
