//! The profiler: calls, and time in each function with and without that of the calls that it makes.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use fgraph_core::{Entry, FgraphOps, Return};

use crate::clock;
use crate::serial::println;
use crate::trace::functions;

/// A function's sums.
#[derive(Debug, Default)]
struct Sums {
    calls: AtomicU64,
    total: AtomicU64,
    own: AtomicU64,
}

/// The data of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    start: u64,
    /// Nanoseconds in calls that this one has made.
    within: u64,
}

/// The profiler.
#[derive(Debug)]
pub(crate) struct Profiler {
    sums: Vec<Sums>,
}

impl Profiler {
    /// Makes a profiler of all functions.
    pub(crate) fn new() -> Self {
        let sums = functions::sites().iter().map(|_| Sums::default());
        Self {
            sums: sums.collect(),
        }
    }

    /// Returns the number of calls of the functions whose names end in `name`.
    pub(crate) fn calls(&self, name: &str) -> u64 {
        let sites = functions::sites().iter().zip(&self.sums);
        let named = sites.filter(|(site, _)| site.name.as_str().ends_with(name));
        named
            .map(|(_, sums)| sums.calls.load(Ordering::Relaxed))
            .sum()
    }

    /// Prints the functions with the most time of their own.
    pub(crate) fn print(&self, most: usize) {
        let mut sites: Vec<_> = functions::sites().iter().zip(&self.sums).collect();
        let get = |value: &AtomicU64| value.load(Ordering::Relaxed);
        sites.sort_by_key(|(_, sums)| core::cmp::Reverse(get(&sums.own)));
        println!("~     calls    total us      own us  function");
        for (site, sums) in sites.into_iter().take(most) {
            if get(&sums.calls) != 0 {
                println!(
                    "~{:>10} {:>11} {:>11}  {}",
                    get(&sums.calls),
                    get(&sums.total) / 1000,
                    get(&sums.own) / 1000,
                    site.name.as_str()
                );
            }
        }
    }
}

impl FgraphOps for Profiler {
    type Data = Call;

    fn entry(&self, _call: &mut Entry<'_, Call>) -> Option<Call> {
        Some(Call {
            start: clock::now(),
            within: 0,
        })
    }

    fn ret(&self, call: &mut Return<'_, Call>, data: Call) {
        let took = clock::now().saturating_sub(data.start);
        if let Some(parent) = call.parent_data_mut() {
            parent.within += took;
        }
        if let Some(sums) = self.sums.get(call.function().index() as usize) {
            sums.calls.fetch_add(1, Ordering::Relaxed);
            sums.total.fetch_add(took, Ordering::Relaxed);
            let own = took.saturating_sub(data.within);
            sums.own.fetch_add(own, Ordering::Relaxed);
        }
    }
}
