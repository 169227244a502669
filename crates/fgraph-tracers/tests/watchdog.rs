//! Calls that run too long are known while they run.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use fgraph_scenario::scenario;
use fgraph_tracers::Tracer;
use fgraph_tracers::watchdog::{LateCall, Watchdog};

static RELEASED: AtomicBool = AtomicBool::new(false);

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn hangs(n: u64) -> u64 {
    // So that the loop is not in the bytes that are patched.
    let n = black_box(n) + 1;
    while !RELEASED.load(Ordering::Acquire) {
        thread::yield_now();
    }
    n
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn around() -> u64 {
    black_box(quick(1));
    black_box(hangs(1));
    quick(2)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn quick(n: u64) -> u64 {
    black_box(n) + 1
}

fn name(address: usize) -> String {
    fgraph::function_at(address).unwrap().name().to_string()
}

#[scenario]
fn a_call_that_hangs_is_reported_once_while_it_does() {
    let limit = Duration::from_millis(10);
    let watchdog = Watchdog::start("around hangs quick", limit).unwrap();
    assert_eq!(watchdog.functions().unwrap().len(), 3);
    let (send, reports) = mpsc::channel::<LateCall>();
    watchdog
        .watch(move |call| send.send(call.clone()).unwrap())
        .unwrap();
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("stuck".to_owned());
        builder.spawn_scoped(scope, || around()).unwrap();
        // Both while they run: nothing has released them.
        let calls = [reports.recv().unwrap(), reports.recv().unwrap()];
        let mut names = calls.each_ref().map(|call| name(call.function));
        names.sort();
        assert_eq!(names, ["around", "hangs"]);
        for call in &calls {
            assert!(call.elapsed > limit);
            assert_eq!(call.thread_name, "stuck");
            assert_eq!(name(call.stack[0].0), "around");
        }
        let late = watchdog.late();
        let inner = late
            .iter()
            .find(|call| name(call.function) == "hangs")
            .unwrap();
        let stack: Vec<_> = inner
            .stack
            .iter()
            .map(|(function, _)| name(*function))
            .collect();
        assert_eq!(stack, ["around", "hangs"]);
        assert!(inner.stack[0].1 >= inner.stack[1].1);
        let text = inner.to_string();
        assert!(text.starts_with("hangs has run for ") && text.contains("\"stuck\": around "));
        RELEASED.store(true, Ordering::Release);
    });
    assert_eq!(watchdog.late(), []);
    quick(1);
    assert_eq!(watchdog.late(), []);
    drop(watchdog);
    // Each was reported once; the reporting closure is gone.
    assert!(reports.recv().is_err());
}

#[scenario]
fn a_watchdog_may_be_dropped_by_its_own_report() {
    let watchdog = Watchdog::start("hangs", Duration::from_millis(1)).unwrap();
    let place = std::sync::Arc::new(std::sync::Mutex::new(None));
    let own = std::sync::Arc::clone(&place);
    watchdog
        .watch(move |_| {
            drop(own.lock().unwrap().take());
            RELEASED.store(true, Ordering::Release);
        })
        .unwrap();
    *place.lock().unwrap() = Some(watchdog);
    hangs(1);
    assert_eq!(fgraph_scenario::patched(), 0);
}
