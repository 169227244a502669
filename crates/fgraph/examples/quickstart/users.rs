//! The three users.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fgraph::{Entry, FgraphOps, Function, Return};

/// Records who calls whom, and how long it takes.
#[derive(Default)]
pub(crate) struct CallGraph {
    events: Mutex<Vec<Event>>,
}

struct Event {
    thread: u32,
    depth: usize,
    function: Function,
    /// Duration of the call; `None` when it begins.
    took: Option<Duration>,
}

impl FgraphOps for CallGraph {
    type Data = Instant;

    fn entry(&self, call: &mut Entry<'_, Instant>) -> Option<Instant> {
        self.record(call.thread_id(), call.depth(), call.function(), None);
        Some(Instant::now())
    }

    fn ret(&self, call: &mut Return<'_, Instant>, entered: Instant) {
        let took = entered.elapsed();
        self.record(call.thread_id(), call.depth(), call.function(), Some(took));
    }
}

impl CallGraph {
    fn record(&self, thread: u32, depth: usize, function: Function, took: Option<Duration>) {
        self.events.lock().expect("no callback panics").push(Event {
            thread,
            depth,
            function,
            took,
        });
    }

    /// Prints the graph, at most `lines` lines of each thread.
    pub(crate) fn print(self, lines: usize) {
        let mut threads: BTreeMap<u32, Vec<Event>> = BTreeMap::new();
        for event in self.events.into_inner().expect("no callback panics") {
            threads.entry(event.thread).or_default().push(event);
        }
        println!("{:>8} {:>12}  | function", "thread", "duration");
        for (thread, events) in threads {
            let mut events = events.iter().peekable();
            for _ in 0..lines {
                let Some(event) = events.next() else { break };
                let indent = 2 * event.depth;
                let name = event.function.name();
                match event.took {
                    // A call that calls nothing takes one line.
                    None => match events
                        .next_if(|next| next.took.is_some() && next.depth == event.depth)
                    {
                        Some(next) => {
                            let took = micros(next.took);
                            println!("{thread:>8} {took:>12}  | {:indent$}{name}();", "");
                        }
                        None => println!("{thread:>8} {:>12}  | {:indent$}{name}() {{", "", ""),
                    },
                    took => {
                        let took = micros(took);
                        println!("{thread:>8} {took:>12}  | {:indent$}}} /* {name} */", "");
                    }
                }
            }
            let rest = events.count();
            if rest > 0 {
                println!("{thread:>8} {:>12}  | ... {rest} more events", "");
            }
        }
    }
}

fn micros(took: Option<Duration>) -> String {
    took.map_or(String::new(), |took| {
        format!("{:.3} us", took.as_secs_f64() * 1e6)
    })
}

/// Counts latencies per function, in buckets that each are twice as wide as the one before.
#[derive(Default)]
pub(crate) struct Histograms {
    functions: Mutex<Vec<(Function, [u32; BUCKETS])>>,
}

const BUCKETS: usize = 40;

impl FgraphOps for Histograms {
    type Data = Instant;

    fn entry(&self, _call: &mut Entry<'_, Instant>) -> Option<Instant> {
        Some(Instant::now())
    }

    fn ret(&self, call: &mut Return<'_, Instant>, entered: Instant) {
        let nanos = entered.elapsed().as_nanos().max(1);
        let bucket = (nanos.ilog2() as usize).min(BUCKETS - 1);
        let mut functions = self.functions.lock().expect("no callback panics");
        let index = functions
            .iter()
            .position(|(function, _)| *function == call.function())
            .unwrap_or_else(|| {
                functions.push((call.function(), [0; BUCKETS]));
                functions.len() - 1
            });
        functions[index].1[bucket] += 1;
    }
}

impl Histograms {
    /// Prints a row for each bucket that has any.
    pub(crate) fn print(&self) {
        for (function, buckets) in self.functions.lock().expect("no callback panics").iter() {
            println!("{}", function.name());
            let most = buckets.iter().copied().max().unwrap_or(1).max(1);
            for (bucket, &count) in buckets.iter().enumerate().filter(|(_, count)| **count > 0) {
                let bar = "#".repeat((40 * count).div_ceil(most) as usize);
                println!(
                    "{:>10} ns .. {:>10} ns {count:>7} {bar}",
                    1u64 << bucket,
                    2u64 << bucket
                );
            }
        }
    }
}

/// Counts calls on threads other than the main one.
pub(crate) struct WrongThread {
    right: u32,
    count: AtomicU64,
}

impl WrongThread {
    /// The main thread is the right one.
    pub(crate) fn new() -> Self {
        Self {
            // The main thread's id is the process's.
            right: std::process::id(),
            count: AtomicU64::new(0),
        }
    }

    /// Calls on wrong threads so far.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

impl FgraphOps for WrongThread {
    type Data = ();

    fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
        if call.thread_id() != self.right {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        // The return does not matter.
        None
    }
}
