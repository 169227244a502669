//! Unwinding of all kinds through watched calls: panics that are caught, panics of destructors,
//! backtraces, and `longjmp`.

use std::backtrace::Backtrace;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};

use fgraph::{DroppedOf, EntryOf, FgraphOps, ReturnOf};

#[derive(Default)]
struct Ends {
    entered: AtomicU64,
    returned: AtomicU64,
    unwound: AtomicU64,
    dropped: AtomicU64,
}

impl FgraphOps for Ends {
    type Data = u32;

    fn entry(&self, _call: &mut EntryOf<'_, Self>) -> Option<u32> {
        self.entered.fetch_add(1, Ordering::Relaxed);
        Some(7)
    }

    fn ret(&self, call: &mut ReturnOf<'_, Self>, seven: u32) {
        assert_eq!(seven, 7);
        let count = if call.unwinding() {
            &self.unwound
        } else {
            &self.returned
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    fn dropped(&self, _call: &DroppedOf<'_, Self>, seven: u32) {
        assert_eq!(seven, 7);
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

#[inline(never)]
fn step_down(depth: u32, end: &dyn Fn()) -> u32 {
    match depth {
        0 => {
            end();
            0
        }
        _ => std::hint::black_box(step_down(depth - 1, end)) + 1,
    }
}

struct StepsWhenDropped;

impl Drop for StepsWhenDropped {
    fn drop(&mut self) {
        assert_eq!(step_down(3, &|| ()), 3);
    }
}

fn backtrace_lines() -> usize {
    let lines = AtomicU64::new(0);
    step_down(5, &|| {
        let text = Backtrace::force_capture().to_string();
        let ours = text
            .lines()
            .filter(|line| line.contains("step_down"))
            .count();
        lines.store(ours as u64, Ordering::Relaxed);
    });
    lines.into_inner() as usize
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    panic::set_hook(Box::new(|_| ()));
    let plain = backtrace_lines();
    // SAFETY: the callbacks use atomics only.
    let ends = unsafe { fgraph::register(Ends::default(), "*::step_down") }?;
    let counts = || {
        let Ends {
            entered,
            returned,
            unwound,
            dropped,
        } = ends.user();
        [entered, returned, unwound, dropped].map(|count| count.swap(0, Ordering::Relaxed))
    };
    assert_eq!(step_down(9, &|| ()), 9);
    assert_eq!(counts(), [10, 10, 0, 0]);
    let caught = panic::catch_unwind(|| step_down(9, &|| panic!("caught")));
    assert!(caught.is_err());
    assert_eq!(counts(), [10, 0, 10, 0]);
    // Within a watched call.
    let within = || drop(panic::catch_unwind(|| step_down(4, &|| panic!("within"))));
    assert_eq!(step_down(4, &within), 4);
    assert_eq!(counts(), [10, 5, 5, 0]);
    // While destructors run that call watched functions.
    let caught = panic::catch_unwind(AssertUnwindSafe(|| {
        let _steps = StepsWhenDropped;
        step_down(2, &|| panic!("with a destructor"))
    }));
    assert!(caught.is_err());
    assert_eq!(counts(), [7, 4, 3, 0]);
    assert_eq!(backtrace_lines(), plain);
    assert_eq!(counts(), [6, 6, 0, 0]);
    assert_eq!(ends.counters().missed, 0);
    println!("{plain} lines of a backtrace, watched or not");
    Ok(())
}
