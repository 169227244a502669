//! Tracers of programs that make threads without end, one after the other: the memory of a thread
//! that has ended is used again, and what it did stays in the results.

use std::any::Any;
use std::ffi::c_void;
use std::fs;
use std::hint::black_box;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use fgraph_scenario::{forked, scenario};
use fgraph_trace::ring::{Mode, RingOptions};
use fgraph_tracers::locks::LockTracer;
use fgraph_tracers::outliers::{Limits, Outliers};
use fgraph_tracers::probe::{Probe, probe};
use fgraph_tracers::profiler::Profiler;
use fgraph_tracers::recorder::{Options, Recorder};
use fgraph_tracers::stack::StackTracer;
use fgraph_tracers::syscalls::Syscalls;
use fgraph_tracers::threads::{Rule, ThreadChecker};
use fgraph_tracers::watchdog::Watchdog;

/// Threads before memory is measured: more than those whose values wait for a next thread.
const FIRST: usize = 200;
/// Threads that must take no more.
const MORE: usize = 2_000;
/// Most bytes that the process itself may grow by: less than 128 for each thread.
const RESIDENT: usize = 128 << 10;
/// Less than one mapping for each thread.
const MAPPED: usize = 1 << 20;

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn outer(n: u64) -> u64 {
    black_box(inner(n)) + 1
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn inner(n: u64) -> u64 {
    black_box(n)
}

/// A call that uses many bytes of its stack.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn deep(n: u64) -> u64 {
    let room = black_box([1_u8; 4096]);
    black_box(inner(n)) + u64::from(black_box(&room)[7])
}

/// Runs `work` in so many threads, one after the other.
fn one_after_the_other<R: Send>(threads: usize, work: impl Fn() -> R + Sync) {
    for _ in 0..threads {
        thread::scope(|scope| scope.spawn(&work).join().map(drop).unwrap());
    }
}

/// Bytes of addresses, and bytes of memory that is no file's.
fn memory() -> [usize; 2] {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    ["VmSize:", "RssAnon:"].map(|field| {
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let kilobytes = line.and_then(|line| line.split_whitespace().next());
        kilobytes.unwrap().parse::<usize>().unwrap() << 10
    })
}

/// Checks that threads which come and go take no memory for good while a tracer is at work.
fn takes_no_memory<T: Any>(start: fn() -> T) {
    let _tracer = start();
    let lock = Mutex::new(0);
    let work = || {
        *lock.lock().unwrap_or_else(PoisonError::into_inner) += outer(1);
    };
    one_after_the_other(FIRST, work);
    let before = memory();
    one_after_the_other(MORE, work);
    let after = memory();
    let [mapped, resident] = [0, 1].map(|nth| after[nth].saturating_sub(before[nth]));
    println!("{mapped} bytes mapped, {resident} bytes resident");
    assert!(resident <= RESIDENT, "{resident} bytes of memory");
    assert!(mapped <= MAPPED, "{mapped} bytes of addresses");
}

macro_rules! takes_no_memory {
    ($($name:ident: $start:expr;)*) => {
        $(#[scenario]
        fn $name() {
            takes_no_memory($start);
        })*
    };
}

const BOTH: &str = "outer inner";

fn empty_probe() -> Probe {
    let probe = probe(BOTH).on_entry(|_| Some(())).on_return(|_, ()| {});
    // SAFETY: the closures do nothing.
    unsafe { probe.start() }.unwrap()
}

takes_no_memory! {
    a_profiler_uses_the_memory_of_ended_threads_again: || Profiler::start(BOTH).unwrap();
    a_watchdog_uses_the_memory_of_ended_threads_again:
        || Watchdog::start(BOTH, Duration::from_secs(9)).unwrap();
    a_stack_tracer_uses_the_memory_of_ended_threads_again: || StackTracer::start(BOTH).unwrap();
    a_lock_tracer_uses_the_memory_of_ended_threads_again: || LockTracer::start().unwrap();
    outliers_use_the_memory_of_ended_threads_again:
        || Outliers::start("outer", "inner", Limits { calls: 3, nodes: 10 }).unwrap();
    probes_use_the_memory_of_ended_threads_again: || [(); 10].map(|()| empty_probe());
    a_thread_checker_uses_the_memory_of_ended_threads_again:
        || ThreadChecker::start([(Rule::MainOnly, BOTH)]).unwrap();
    // With a queue that is full soon.
    a_syscall_tracer_uses_the_memory_of_ended_threads_again:
        || Syscalls::start_with(4096).unwrap();
    a_recorder_uses_the_memory_of_ended_threads_again: || {
        let rings = RingOptions {
            mode: Mode::Overwrite,
            ..RingOptions::default()
        };
        let options = Options {
            rings,
            ..Options::default()
        };
        Recorder::start_with(BOTH, &options).unwrap()
    };
}

/// Runs a thread that ends by the system call, in the middle of what `work` does.
fn thread_that_ends_inside(work: extern "C" fn(*mut c_void) -> *mut c_void) {
    let mut thread = 0;
    // SAFETY: the thread has no value with a destructor, and is waited for.
    unsafe {
        assert_eq!(
            libc::pthread_create(&raw mut thread, ptr::null(), work, ptr::null_mut()),
            0
        );
        assert_eq!(libc::pthread_join(thread, ptr::null_mut()), 0);
    }
}

/// Ends the calling thread.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn ends() -> ! {
    // SAFETY: it does not return, and frees nothing.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    unreachable!();
}

#[scenario]
fn a_profile_has_every_call_of_ended_threads_once_while_others_begin() {
    const THREADS: u64 = 500;
    let profiler = Profiler::start(BOTH).unwrap();
    let hits = || {
        let profile = profiler.profile().together();
        let hits = |name| profile.of(name).map_or(0, |row| row.hits);
        (hits("outer"), hits("inner"))
    };
    // Each thread makes fewer calls than the one whose tables it takes over, and the reader
    // has looked before the next begins: so calls that are there twice are too many.
    let is_over = AtomicBool::new(false);
    let [begun, done, looks] = [const { AtomicU64::new(0) }; 3];
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                let least = done.load(Ordering::SeqCst);
                let (_, inner) = hits();
                let most = begun.load(Ordering::SeqCst);
                assert!((least..=most).contains(&inner), "{least} {inner} {most}");
                looks.fetch_add(1, Ordering::SeqCst);
            }
        });
        for calls in (0..THREADS).rev() {
            let before = looks.load(Ordering::SeqCst);
            begun.fetch_add(calls, Ordering::SeqCst);
            one_after_the_other(1, || (0..calls).map(|n| outer(n)).sum::<u64>());
            while looks.load(Ordering::SeqCst) == before && !reader.is_finished() {
                thread::yield_now();
            }
            done.fetch_add(calls, Ordering::SeqCst);
        }
        is_over.store(true, Ordering::SeqCst);
    });
    let all = (0..THREADS).sum();
    assert_eq!(hits(), (all, all));

    let profile = profiler.profile();
    // Few have a profile of their own, and these have their own calls only.
    let (ended, threads) = profile.threads.split_last().unwrap();
    assert!(ended.thread == 0 && threads.len() < 80, "{}", threads.len());
    assert!(threads.iter().all(|thread| thread.thread != 0));
    let own = threads
        .iter()
        .map(|thread| thread.of("inner").unwrap().hits);
    let mut own: Vec<u64> = own.collect();
    own.sort_unstable();
    assert!(own.iter().copied().eq(1..=threads.len() as u64), "{own:?}");
    // The times of ended threads are kept, too.
    let row = ended.of("inner").unwrap();
    assert!(row.min <= row.average() && row.average() <= row.max && row.own == row.total);
    assert_eq!(row.percentile(100.0), row.max);
    assert!(row.percentile(0.0) >= row.min);
    let callers: Vec<_> = ended.callers(row.function).collect();
    assert_eq!(callers.len(), 1);
    assert_eq!(callers[0].hits, row.hits);
    assert_eq!(callers[0].time, row.total);
}

#[scenario]
fn a_forked_child_goes_on_with_the_tables_of_threads_that_it_does_not_have() {
    let profiler = Profiler::start(BOTH).unwrap();
    let is_over = AtomicBool::new(false);
    let hits = || profiler.profile().together().of("inner").unwrap().hits;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    outer(1);
                    while !is_over.load(Ordering::Relaxed) {
                        thread::park();
                    }
                })
            })
            .collect();
        while profiler
            .profile()
            .together()
            .of("outer")
            .map_or(0, |row| row.hits)
            < 8
        {
            thread::yield_now();
        }
        let status = forked(|| {
            one_after_the_other(FIRST, || outer(1));
            i32::from(hits() != 8 + FIRST as u64)
        });
        is_over.store(true, Ordering::Relaxed);
        threads.iter().for_each(|thread| thread.thread().unpark());
        assert!(status.success(), "{status}");
    });
    assert_eq!(hits(), 8);
}

#[scenario]
fn the_deepest_stack_is_that_of_a_thread_that_has_ended_long_ago() {
    let tracer = StackTracer::start("deep inner").unwrap();
    for _ in 0..2 {
        let id = thread::spawn(|| {
            deep(1);
            fgraph::thread_id()
        });
        let id = id.join().unwrap();
        one_after_the_other(MORE, || inner(1));
        let stacks = tracer.deepest();
        assert_eq!(stacks[0].thread, id);
        assert_eq!(stacks[0].calls.len(), 2);
        assert_eq!(stacks[0].traced_bytes, stacks[0].bytes);
        // Each of the others has only its own call.
        assert!(stacks.len() < 150);
        assert!(stacks[1..].iter().all(|stack| stack.calls.len() == 1));
        tracer.reset();
        assert_eq!(tracer.deepest(), []);
    }
}

#[scenario]
fn a_watchdog_forgets_the_calls_that_a_thread_has_ended_in() {
    static WATCHDOG: OnceLock<Watchdog> = OnceLock::new();
    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn looks() -> usize {
        let thread = fgraph::thread_id();
        let late = WATCHDOG.get().unwrap().late();
        let late = late.iter().find(|call| call.thread == thread);
        late.map_or(0, |call| call.stack.len())
    }
    extern "C" fn ends_inside(_: *mut c_void) -> *mut c_void {
        ends()
    }
    let start = || Watchdog::start("ends looks", Duration::from_nanos(1)).unwrap();
    WATCHDOG.get_or_init(start);
    for _ in 0..3 {
        thread_that_ends_inside(ends_inside);
        one_after_the_other(FIRST, || assert_eq!(looks(), 1));
    }
    assert_eq!(WATCHDOG.get().unwrap().late(), []);
}

#[scenario]
fn a_lock_that_a_thread_has_ended_with_is_not_held_by_the_next() {
    struct Lock(std::cell::UnsafeCell<libc::pthread_mutex_t>);
    // SAFETY: a mutex of the C library.
    unsafe impl Sync for Lock {}
    static LOCKS: [Lock; 2] =
        [const { Lock(std::cell::UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER)) }; 2];
    fn lock(nth: usize) {
        // SAFETY: initialized, and never moved.
        assert_eq!(unsafe { libc::pthread_mutex_lock(LOCKS[nth].0.get()) }, 0);
    }
    fn unlock(nth: usize) {
        // SAFETY: as above.
        assert_eq!(unsafe { libc::pthread_mutex_unlock(LOCKS[nth].0.get()) }, 0);
    }
    extern "C" fn ends_with_the_first(_: *mut c_void) -> *mut c_void {
        lock(0);
        ends()
    }
    let locks = LockTracer::start().unwrap();
    thread_that_ends_inside(ends_with_the_first);
    one_after_the_other(FIRST, || {
        lock(1);
        unlock(1);
    });
    unlock(0);
    one_after_the_other(1, || {
        lock(1);
        lock(0);
        unlock(0);
        unlock(1);
    });
    assert_eq!(locks.inversions(), []);
}

#[scenario]
fn the_slowest_call_is_that_of_a_thread_that_has_ended_long_ago() {
    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn request(milliseconds: u64) -> u64 {
        thread::sleep(Duration::from_millis(milliseconds));
        inner(milliseconds)
    }
    let limits = Limits {
        calls: 1,
        nodes: 10,
    };
    let outliers = Outliers::start("request", "inner", limits).unwrap();
    let id = thread::spawn(|| {
        request(500);
        fgraph::thread_id()
    });
    let id = id.join().unwrap();
    one_after_the_other(FIRST, || request(0));
    let slowest = outliers.slowest();
    assert_eq!(slowest[0].thread, id);
    assert!(slowest[0].took >= Duration::from_millis(500));
    assert_eq!(slowest[0].tree.len(), 2);
    assert_eq!(outliers.lost(), 0);
}

#[scenario]
fn probes_count_the_calls_of_ended_threads() {
    let probes = [(); 10].map(|()| empty_probe());
    one_after_the_other(FIRST, || outer(1));
    let hits = probes.each_ref().map(Probe::hits);
    assert_eq!(hits, [2 * FIRST as u64; 10]);
}
