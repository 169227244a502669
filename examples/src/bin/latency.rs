//! A tracer of latencies: a histogram for each thread, without locks, and percentiles of all.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use fgraph::{EntryOf, FgraphOps, PerThread, ReturnOf, Ticks};

/// Buckets by powers of two of nanoseconds.
#[derive(Default)]
struct Histogram([AtomicU64; 32]);

#[derive(Default)]
struct Latency {
    histograms: PerThread<Histogram>,
}

impl FgraphOps for Latency {
    type Data = Ticks;

    fn entry(&self, _call: &mut EntryOf<'_, Self>) -> Option<Ticks> {
        Some(Ticks::now())
    }

    fn ret(&self, call: &mut ReturnOf<'_, Self>, entered: Ticks) {
        let bucket = entered.elapsed_ns().max(1).ilog2().min(31);
        if let Some(histogram) = call.per_thread(&self.histograms) {
            // Only this thread writes it.
            let count = &histogram.0[bucket as usize];
            count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }
}

/// Returns the upper bound of the bucket below which a share of all calls is, in nanoseconds.
fn percentile(buckets: &[u64; 32], percent: u64) -> u64 {
    let all: u64 = buckets.iter().sum();
    let mut seen = 0;
    let at = buckets.iter().position(|count| {
        seen += count;
        100 * seen >= percent * all
    });
    1 << (at.unwrap_or(31) + 1)
}

#[inline(never)]
fn handle_request(number: u64) -> u64 {
    (0..number % 100).map(std::hint::black_box).sum()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // SAFETY: the callbacks use the processor's counter and atomics only.
    let user = unsafe { fgraph::register(Latency::default(), "*::handle_request") }?;
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..10_000).map(handle_request).sum::<u64>());
        }
    });
    let counters = user.counters();
    assert_eq!(
        (counters.missed, counters.lost, counters.overrun),
        (0, 0, 0)
    );
    let latency = user
        .unregister()
        .map_err(fgraph::UnregisterError::into_error)?;
    let mut buckets = [0; 32];
    let mut threads = 0;
    for (_thread, histogram) in latency.histograms.into_values() {
        threads += 1;
        for (sum, count) in buckets.iter_mut().zip(histogram.0) {
            *sum += count.into_inner();
        }
    }
    assert_eq!((threads, buckets.iter().sum()), (4, 40_000));
    let [half, most] = [50, 99].map(|percent| percentile(&buckets, percent));
    assert!(half <= most);
    println!("50 % below {half} ns, 99 % below {most} ns");
    Ok(())
}
