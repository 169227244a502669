//! Profiles of programs whose calls are known.

use std::ffi::c_void;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::sqlite::{ROWS, STATEMENTS, Sqlite};
use fgraph_needs::needs;
use fgraph_scenario::scenario;
use fgraph_tracers::Tracer;
use fgraph_tracers::profiler::{Options, Profile, Profiler, ThreadProfile};

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn fibonacci(n: u64) -> u64 {
    if n < 2 {
        return black_box(n);
    }
    black_box(fibonacci(n - 1)) + fibonacci(n - 2)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn even(n: u64) -> bool {
    n == 0 || black_box(odd(n - 1))
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn odd(n: u64) -> bool {
    n != 0 && black_box(even(n - 1))
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn sleeper(milliseconds: u64) -> u64 {
    thread::sleep(Duration::from_millis(milliseconds));
    black_box(milliseconds)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn sleeps_inside(milliseconds: u64) -> u64 {
    black_box(sleeper(milliseconds)) + 1
}

/// Checks the profile of a thread whose calls have all returned.
fn check(profile: &ThreadProfile) {
    let mut outermost = Duration::ZERO;
    let mut own = Duration::ZERO;
    for row in &profile.functions {
        let callers: Vec<_> = profile.callers(row.function).collect();
        assert_eq!(callers.iter().map(|edge| edge.hits).sum::<u64>(), row.hits);
        assert!(row.min <= row.average() && row.average() <= row.max);
        assert!(row.own <= row.total, "{profile}");
        let middle = [0.0, 50.0, 99.0, 100.0].map(|percent| row.percentile(percent));
        assert!(middle.is_sorted() && row.min <= middle[0]);
        assert_eq!(middle[3], row.max);
        let roots = callers.iter().filter(|edge| edge.caller.is_none());
        outermost += roots.map(|edge| edge.time).sum::<Duration>();
        own += row.own;
        let callees = profile.callees(row.function).map(|edge| edge.time);
        let sum = callees.sum::<Duration>() + row.own;
        let calls: Duration = callers.iter().map(|edge| edge.time).sum();
        assert_eq!(sum, calls, "{}", row.function.name());
    }
    assert_eq!(own, outermost);
}

#[scenario]
fn recursion_is_in_the_total_once() {
    let profiler = Profiler::start("fibonacci even odd").unwrap();
    let started = Instant::now();
    fibonacci(10);
    even(9);
    let wall = started.elapsed();
    let profile = profiler.finish().unwrap().together();
    check(&profile);
    let fibonacci = profile.of("fibonacci").unwrap();
    // Calls of a naive Fibonacci: one less than twice the next number.
    assert_eq!(fibonacci.hits, 2 * 89 - 1);
    let [even, odd] = ["even", "odd"].map(|name| profile.of(name).unwrap());
    assert_eq!((even.hits, odd.hits), (5, 5));
    assert_eq!(fibonacci.own, fibonacci.total);
    // `odd` is all inside of `even`, which is not once more inside of that.
    assert_eq!(even.own + odd.own, even.total);
    assert!(fibonacci.total + even.total <= wall);
    let callers: Vec<_> = profile.callers(fibonacci.function).collect();
    let hits = |caller| {
        let edge = callers.iter().find(|edge| edge.caller == caller);
        edge.unwrap().hits
    };
    assert_eq!(hits(None), 1);
    assert_eq!(hits(Some(fibonacci.function)), 2 * 89 - 2);
}

#[scenario]
fn times_may_be_a_functions_own_and_without_sleep() {
    let profile = |graph_time, sleep_time| {
        let options = Options {
            graph_time,
            sleep_time,
        };
        let profiler = Profiler::start_with("sleeps_inside sleeper", &options).unwrap();
        sleeps_inside(20);
        profiler.finish().unwrap().together()
    };
    let slept = Duration::from_millis(20);
    let [all, own] = [true, false].map(|graph_time| profile(graph_time, true));
    let of = |profile: &ThreadProfile, name| {
        let row = profile.of(name).unwrap();
        assert_eq!((row.hits, row.total), (1, row.max));
        row.total
    };
    assert!(of(&all, "sleeps_inside") >= of(&all, "sleeper"));
    assert!(of(&all, "sleeper") >= slept && of(&own, "sleeper") >= slept);
    let row = own.of("sleeps_inside").unwrap();
    assert_eq!([row.own, row.min, row.average()], [row.total; 3]);
    check(&all);
    // Neither sleep nor waiting for a processor is in the thread's own time.
    let awake = profile(true, false);
    assert!(of(&awake, "sleeps_inside") < slept, "{awake}");
    check(&awake);
}

#[scenario]
fn a_call_that_was_left_by_longjmp_does_not_hide_later_ones() {
    unsafe extern "C" {
        fn __sigsetjmp(buffer: *mut c_void, save: i32) -> i32;
        fn siglongjmp(buffer: *mut c_void, value: i32) -> !;
    }
    static mut BUFFER: [u64; 64] = [0; 64];
    static LEAVE: AtomicBool = AtomicBool::new(true);
    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C-unwind" fn leaves() {
        if LEAVE.load(Ordering::Relaxed) {
            // SAFETY: what set it has not returned; no frame between has a destructor.
            unsafe { siglongjmp((&raw mut BUFFER).cast(), 1) }
        }
        black_box(());
    }
    let profiler = Profiler::start("leaves sleeper").unwrap();
    // SAFETY: the buffer is large enough, and nothing that changes is kept across.
    if unsafe { __sigsetjmp((&raw mut BUFFER).cast(), 0) } == 0 {
        leaves();
    }
    LEAVE.store(false, Ordering::Relaxed);
    for _ in 0..3 {
        leaves();
    }
    let profile = profiler.finish().unwrap().together();
    let leaves = profile.of("leaves").unwrap();
    assert_eq!(leaves.hits, 3);
    assert_eq!(leaves.total, leaves.own);
}

#[scenario]
fn the_deviation_is_that_of_the_times() {
    let profiler = Profiler::start("sleeper").unwrap();
    for milliseconds in [2, 10] {
        sleeper(milliseconds);
    }
    let profile = profiler.profile().together();
    let row = profile.of("sleeper").unwrap();
    // The deviation of two values is half their difference, times the square root of 2.
    let spread = (row.max - row.min).as_secs_f64() / 2.0_f64.sqrt();
    let deviation = row.deviation().as_secs_f64();
    assert!((deviation - spread).abs() < 1e-6, "{deviation} {spread}");
    assert_eq!(row.average(), row.total / 2);
    assert!(row.min >= Duration::from_millis(2) && row.max >= Duration::from_millis(10));
}

#[scenario]
fn a_profile_is_whole_while_threads_run() {
    const THREADS: usize = 3;
    const CALLS: u64 = 20_000;
    let profiler = Profiler::start("fibonacci even odd").unwrap();
    let done = AtomicBool::new(false);
    let (profiler, done) = (&profiler, &done);
    thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut last = 0;
            while !done.load(Ordering::Relaxed) {
                let profile = profiler.profile().together();
                let hits = profile.of("even").map_or(0, |row| {
                    assert!(row.min <= row.average() && row.average() <= row.max);
                    row.hits
                });
                assert!(hits >= last);
                last = hits;
                thread::yield_now();
            }
        });
        let work = || (0..CALLS).for_each(|n| assert_eq!(even(n % 8), n % 2 == 0));
        let workers: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .for_each(|worker| worker.join().unwrap());
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
    let profile: Profile = profiler.profile();
    assert_eq!(profile.threads.len(), THREADS);
    for thread in &profile.threads {
        check(thread);
        // `even` is called with 0 to 7, and by `odd` with each smaller number of that parity.
        let (even, odd) = (thread.of("even").unwrap(), thread.of("odd").unwrap());
        assert_eq!(even.hits, CALLS / 8 * (1 + 1 + 2 + 2 + 3 + 3 + 4 + 4));
        assert_eq!(odd.hits, CALLS / 8 * (1 + 1 + 2 + 2 + 3 + 3 + 4));
    }
    assert_eq!(profile.unrecorded, 0);
}

#[scenario]
fn a_script_of_sqlite_adds_up() {
    let sqlite = needs!(Sqlite::load());
    let filter = ":mod:libsqlite3.so.0 malloc free realloc memcpy strlen";
    let profiler = Profiler::start(filter).unwrap();
    let started = Instant::now();
    let rows = sqlite.run_script();
    let wall = started.elapsed();
    assert!(profiler.functions().unwrap().len() > 100);
    let profile = profiler.finish().unwrap();
    assert_eq!(profile.unrecorded, 0);
    let together = profile.together();
    check(&together);
    // It also calls itself.
    let exec = together.of("sqlite3_exec").unwrap();
    let from_here = together
        .callers(exec.function)
        .find(|edge| edge.caller.is_none());
    assert_eq!(from_here.unwrap().hits, STATEMENTS.len() as u64);
    assert!(exec.hits > STATEMENTS.len() as u64);
    assert_eq!(rows, ROWS);
    let malloc = together.of("malloc").unwrap();
    assert!(malloc.hits > 100 && malloc.total < wall);
    assert!(
        together
            .callers(malloc.function)
            .next()
            .unwrap()
            .caller
            .is_some()
    );
    assert!(together.to_string().contains("sqlite3_exec"));
}
