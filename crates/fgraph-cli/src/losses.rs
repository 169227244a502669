//! The missing events, as a note for people and as JSON.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use fgraph_analysis::losses::{Loss, Losses};
use fgraph_trace::clock::Clock;
use fgraph_trace::names::Names;

use crate::json;
use crate::text::{escaped, grouped};

/// Returns the losses of all threads, for JSON. Times count from `first`, in ticks.
pub(crate) fn to_json(losses: &Losses, names: &Names, clock: &Clock, first: u64) -> json::Lost {
    let since = |ticks: u64| clock.nanoseconds(ticks.saturating_sub(first));
    let of_thread = |(&(process, thread), loss): (&(u32, u32), &Loss)| json::LostOfThread {
        thread: json::Thread::of(names, process, thread),
        events: loss.events,
        from_ns: since(loss.from),
        to_ns: since(loss.to),
    };
    let mut threads: Vec<_> = losses.threads.iter().map(of_thread).collect();
    threads.sort_by_key(|lost| Reverse(lost.events));
    json::Lost {
        events: losses.events(),
        durations: losses.calls,
        threads,
    }
}

/// Reports missing events, if there are any, before numbers are shown that do not include them.
/// `first` is the time of the first event.
pub(crate) fn say(losses: &Losses, names: &Names, clock: &Clock, first: u64) {
    let off = names.off_times().iter().map(|it| (it.process, it.function));
    match off.collect::<BTreeSet<_>>().len() {
        0 => {}
        off => say!(
            "fgraph: {} not recorded for some time, since that cost too much: see `fgraph info`",
            match off {
                1 => "1 function was".to_owned(),
                _ => format!("{} functions were", grouped(off as u64)),
            }
        ),
    }
    let events = losses.events();
    if events == 0 {
        return;
    }
    let [events, calls] = [events, losses.calls].map(grouped);
    let threads = losses.lines(names, clock, first).join("; ");
    let text = format!("{events} events were lost, and with them {calls} durations: {threads}");
    say!("fgraph: {}", escaped(&text));
}
