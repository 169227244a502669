//! Tasks of tokio that go from thread to thread: the polls of each future, and none is lost.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fgraph::{EntryOf, FgraphOps, ReturnOf};

#[derive(Default)]
struct Polls {
    entered: AtomicU64,
    returned: AtomicU64,
}

impl FgraphOps for Polls {
    type Data = ();

    fn entry(&self, _call: &mut EntryOf<'_, Self>) -> Option<()> {
        self.entered.fetch_add(1, Ordering::Relaxed);
        Some(())
    }

    fn ret(&self, _call: &mut ReturnOf<'_, Self>, (): ()) {
        self.returned.fetch_add(1, Ordering::Relaxed);
    }
}

#[inline(never)]
fn count_step(number: u64) -> u64 {
    std::hint::black_box(number) + 1
}

async fn task(number: u64) -> u64 {
    let mut sum = number;
    for _ in 0..10 {
        tokio::task::yield_now().await;
        sum = count_step(sum);
        tokio::time::sleep(Duration::from_micros(50)).await;
    }
    sum
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_time()
        .build()?;
    // SAFETY: the callbacks use atomics only.
    let polls = unsafe { fgraph::register(Polls::default(), "async_tasks::task::*") }?;
    // SAFETY: as above.
    let steps = unsafe { fgraph::register(Polls::default(), "*::count_step") }?;
    let sum = runtime.block_on(async {
        let tasks: Vec<_> = (0..100).map(|number| tokio::spawn(task(number))).collect();
        let mut sum = 0;
        for task in tasks {
            sum += task.await.expect("no task panics");
        }
        sum
    });
    drop(runtime);
    assert_eq!(sum, (0..100).sum::<u64>() + 100 * 10);
    for user in [polls, steps] {
        let counters = user.counters();
        assert_eq!((counters.missed, counters.lost), (0, 0));
        let Polls { entered, returned } = user.user();
        let (entered, returned) = (
            entered.load(Ordering::Relaxed),
            returned.load(Ordering::Relaxed),
        );
        assert_eq!(entered, returned);
        assert!(entered >= 1_000, "{entered}");
        println!("{entered} calls");
    }
    Ok(())
}
