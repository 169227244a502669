//! Probes: many in few slots, each as if it was alone.

use std::fs::File;
use std::hint::black_box;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use fgraph::{Error, Filter, FilterError};
use fgraph_scenario::scenario;
use fgraph_tracers::probe::fault::Fault;
use fgraph_tracers::probe::{Builder, Callbacks, Probe, probe};

macro_rules! functions {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $name(n: u64) -> u64 {
                black_box(n) + stringify!($name).len() as u64
            }
        )*
        const FUNCTIONS: &[(&str, extern "C" fn(u64) -> u64)] =
            &[$((stringify!($name), $name)),*];
    };
}

functions! {
    probed_00 probed_01 probed_02 probed_03 probed_04 probed_05 probed_06 probed_07 probed_08
    probed_09 probed_10 probed_11 probed_12 probed_13 probed_14 probed_15 probed_16 probed_17
    probed_18 probed_19
}

static RELEASED: AtomicBool = AtomicBool::new(false);

/// Waits inside until it is released.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn waits(entered: &Barrier) {
    entered.wait();
    while !RELEASED.load(Ordering::Acquire) {
        thread::yield_now();
    }
}

fn start(probe: Builder<impl Callbacks>) -> Result<Probe, Error> {
    // SAFETY: the closures of these scenarios run in functions that only the scenarios call.
    unsafe { probe.start() }
}

#[scenario]
fn each_probe_has_its_own_functions_and_data() {
    let sums: Arc<[AtomicU64; 100]> = Arc::new([const { AtomicU64::new(0) }; 100]);
    let probes: Vec<_> = (0..100)
        .map(|nth| {
            let (name, _) = FUNCTIONS[nth % FUNCTIONS.len()];
            let sums = Arc::clone(&sums);
            let probe = probe(name)
                .on_entry(move |call| Some((call.arg(0).unwrap() + nth as u64) as u32))
                .on_return(move |call, kept| {
                    // The number that the function adds, plus the number of the probe.
                    let added = call.result().unwrap() + nth as u64 - u64::from(kept);
                    sums[nth].fetch_add(added, Ordering::Relaxed);
                });
            start(probe).unwrap()
        })
        .collect();
    for (_, function) in FUNCTIONS {
        for n in 0..10 {
            assert_eq!(function(n), n + 9);
        }
    }
    for (nth, probe) in probes.iter().enumerate() {
        assert_eq!((probe.hits(), probe.missed()), (10, 0));
        assert_eq!(probe.counters().missed, 0);
        assert_eq!(sums[nth].load(Ordering::Relaxed), 9 * 10);
    }
    // Four have a slot each, and the others four together: eight are left.
    let others: Vec<_> = (0..8)
        .map(|_| fgraph_scenario::register(fgraph_scenario::Count::default(), "waits").unwrap())
        .collect();
    assert!(fgraph_scenario::register(fgraph_scenario::Count::default(), "waits").is_err());
    drop(probes);
    assert_eq!(fgraph_scenario::patched(), 1);
    drop(others);
    assert_eq!(fgraph_scenario::patched(), 0);
}

#[scenario]
fn calls_without_room_are_counted_exactly() {
    // Four alone, and five in each of four slots: four of the five have room.
    let probes: Vec<_> = (0..24)
        .map(|_| {
            let probe = probe("probed_00").on_entry(|call| Some([call.arg(0)?; 2]));
            start(probe.on_return(|call, [n, same]| {
                assert_eq!((call.result(), n), (Some(n + 9), same));
            }))
            .unwrap()
        })
        .collect();
    let calls = 50;
    (0..calls).for_each(|n| assert_eq!(probed_00(n), n + 9));
    let sum = |of: fn(&Probe) -> u64| probes.iter().map(of).sum::<u64>();
    assert_eq!(
        (sum(Probe::hits), sum(Probe::missed)),
        (20 * calls, 4 * calls)
    );
    assert!(
        probes
            .iter()
            .all(|probe| probe.hits() + probe.missed() == calls)
    );
    assert!(probes.iter().all(|probe| probe.panic().is_none()));
}

#[scenario]
fn a_later_probe_does_not_get_the_data_of_an_earlier_one() {
    let empty = || start(probe("probed_01").on_entry(|_| None::<()>)).unwrap();
    // The first is to share the slot that the second gets.
    let _eight = [(); 8].map(|()| empty());
    let first = start(probe("waits").on_entry(|_| Some(1_u8)).on_return(|_, _| ())).unwrap();
    let entered = Arc::new(Barrier::new(2));
    let inside = Arc::clone(&entered);
    let thread = thread::spawn(move || waits(&inside));
    entered.wait();
    drop(first);
    let returns = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&returns);
    let second = probe("waits")
        .on_entry(|_| Some([7_u64; 8]))
        .on_return(move |_, kept| {
            assert_eq!(kept, [7; 8]);
            seen.fetch_add(1, Ordering::Relaxed);
        });
    let second = start(second).unwrap();
    RELEASED.store(true, Ordering::Release);
    thread.join().unwrap();
    assert_eq!((second.hits(), returns.load(Ordering::Relaxed)), (0, 0));
    let alone = Barrier::new(1);
    waits(&alone);
    assert_eq!((second.hits(), returns.load(Ordering::Relaxed)), (1, 1));
    assert_eq!(second.panic(), None);
}

#[scenario]
fn a_probe_that_is_dropped_runs_no_more() {
    let _other = start(probe("probed_01").on_entry(|_| None::<()>)).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let entered = Arc::new(Barrier::new(2));
    let (ends, begins) = (Arc::clone(&done), Arc::clone(&entered));
    let slow = start(probe("probed_00").on_entry(move |_| {
        begins.wait();
        while !RELEASED.load(Ordering::Acquire) {
            thread::yield_now();
        }
        ends.store(true, Ordering::Release);
        None::<()>
    }))
    .unwrap();
    let caller = thread::spawn(|| probed_00(1));
    entered.wait();
    let after = Arc::clone(&done);
    let dropper = thread::spawn(move || {
        drop(slow);
        after.load(Ordering::Acquire)
    });
    RELEASED.store(true, Ordering::Release);
    assert!(dropper.join().unwrap());
    assert_eq!(caller.join().unwrap(), 10);
    assert_eq!(Arc::strong_count(&done), 1);
}

#[scenario]
fn probes_come_and_go_while_threads_call() {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    for (_, function) in FUNCTIONS {
                        assert_eq!(function(5), 14);
                    }
                }
            });
        }
        let stays = start(probe("probed_*").on_return(|_, ()| ())).unwrap();
        for round in 0..100_u64 {
            let probes: Vec<_> = (0..8)
                .map(|nth| {
                    let (name, _) = FUNCTIONS[(nth * 7 + round as usize) % FUNCTIONS.len()];
                    let probe = probe(name)
                        .on_entry(move |call| Some([call.arg(0)?, round]))
                        .on_return(move |_, kept| assert_eq!(kept, [5, round]));
                    start(probe).unwrap()
                })
                .collect();
            thread::yield_now();
            assert!(probes.iter().all(|probe| probe.panic().is_none()));
        }
        done.store(true, Ordering::Relaxed);
        assert!(stays.hits() > 0 && stays.panic().is_none());
    });
}

#[scenario]
fn a_panic_ends_its_own_probe_only() {
    let probes: Vec<_> = (0..10)
        .map(|nth| {
            let probe = probe("probed_00").on_entry(move |call| {
                assert!(
                    ![2, 4].contains(&nth) || call.arg(0) != Some(3),
                    "it was {nth}"
                );
                None::<()>
            });
            start(probe).unwrap()
        })
        .collect();
    (0..10).for_each(|n| assert_eq!(probed_00(n), n + 9));
    let hits: Vec<_> = probes.iter().map(Probe::hits).collect();
    // One that is alone, and one that shares a slot.
    assert_eq!(hits, [10, 10, 4, 10, 4, 10, 10, 10, 10, 10]);
    assert_eq!(probes[2].panic(), Some("it was 2"));
    assert_eq!(probes[4].panic(), Some("it was 4"));
    assert_eq!(probes[3].panic(), None);
}

#[scenario]
fn a_filter_that_a_probe_cannot_evaluate_is_an_error() {
    let error = |filter: Result<Filter, FilterError>| start(probe(filter)).unwrap_err();
    let predicate = Filter::none().predicate(|_| true);
    assert_eq!(
        error(Ok(predicate)),
        Error::Filter(FilterError::PredicateAsText)
    );
    assert_eq!(
        error("".parse()),
        Error::Filter("".parse::<Filter>().unwrap_err())
    );
    let dropped_inside = Arc::new(std::sync::Mutex::new(None::<Probe>));
    let place = Arc::clone(&dropped_inside);
    let other = start(probe("probed_01").on_entry(move |_| {
        drop(place.lock().unwrap().take());
        None::<()>
    }))
    .unwrap();
    let inside = start(probe("probed_01").on_entry(|_| None::<()>)).unwrap();
    *dropped_inside.lock().unwrap() = Some(inside);
    assert_eq!((probed_01(0), probed_01(0), other.hits()), (9, 9, 2));
}

#[scenario]
fn every_second_open_fails_and_all_succeed_afterwards() {
    let opens = || (0..10).map(|_| File::open("/proc/self/maps").map(drop));
    let failed = |result: &io::Result<()>| result.is_err();
    let filter = "open:mod:libc.so* open64:mod:libc.so*";
    let fault = Fault::skip(-1).errno(libc::EMFILE).every(2);
    // SAFETY: `open` returns an `int`, and its callers expect that it fails.
    let faults = unsafe { fault.start(filter) }.unwrap();
    let results: Vec<_> = opens().collect();
    assert_eq!(results.iter().filter(|result| failed(result)).count(), 5);
    let error = results[1].as_ref().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
    assert_eq!((faults.calls(), faults.injected()), (10, 5));
    drop(faults);
    assert_eq!(opens().filter(failed).count(), 0);
}

#[scenario]
fn each_call_fails_in_its_turn_and_only_those_from_a_function() {
    #[inline(never)]
    fn from_here(n: u64) -> u64 {
        black_box(probed_02(n)) + 1
    }
    let expected = probed_02(1);
    fgraph::load_symbols().unwrap();
    let caller = fgraph::function_at(from_here as *const () as usize).unwrap();
    let code = caller.address()..caller.address() + caller.size();
    for call in 1..=3 {
        let fault = Fault::skip(77).nth(call).called_from(code.clone());
        // SAFETY: a number for a number.
        let faults = unsafe { fault.start("probed_02") }.unwrap();
        for _ in 0..2 {
            let got: Vec<_> = (0..3).map(|_| (probed_02(1), from_here(1) - 1)).collect();
            let mut right = vec![(expected, expected); 3];
            right[call as usize - 1].1 = 77;
            assert_eq!((got, faults.calls(), faults.injected()), (right, 3, 1));
            faults.reset();
            assert_eq!((faults.calls(), faults.injected()), (0, 0));
        }
    }
}

#[scenario]
fn a_result_is_replaced_after_the_function_has_run() {
    // SAFETY: a number for a number.
    let faults = unsafe { Fault::result(77).start("probed_02") }.unwrap();
    assert_eq!(probed_02(1), 77);
    assert_eq!(faults.injected(), 1);
    let random = Fault::result(1).probability(0.5, 3);
    // SAFETY: as above.
    let random = unsafe { random.start("probed_03") }.unwrap();
    let changed = (0..1000).filter(|&n| probed_03(n + 10) == 1).count() as u64;
    assert_eq!((random.calls(), random.injected()), (1000, changed));
    assert!((400..600).contains(&changed), "{changed}");
}
