//! Storage per thread, as callbacks use it.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

use fgraph::{Entry, FgraphOps, PerThread, Recycle, Recycled, UserStatus};
use fgraph_scenario::{register, scenario};

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn counted(a: u64) -> u64 {
    black_box(a) + 1
}

/// Counts calls, by thread.
#[derive(Default)]
struct Calls(PerThread<AtomicU64>);

impl FgraphOps for Calls {
    type Data = ();

    fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
        let calls = call.per_thread(&self.0)?;
        calls.store(calls.load(Relaxed) + 1, Relaxed);
        None
    }
}

#[scenario]
fn values_of_threads_that_have_ended_are_there_while_others_run_and_afterwards() {
    // More threads than the first chunk has room for; most take over the state of one before.
    const THREADS: u64 = 60;
    let calls = register(Calls::default(), "counted").unwrap();
    for n in 1..=THREADS {
        thread::spawn(move || (0..n).for_each(|i| assert_eq!(counted(i), i + 1)))
            .join()
            .unwrap();
        let now: Vec<u64> = calls
            .user()
            .0
            .iter()
            .map(|(_, calls)| calls.load(Relaxed))
            .collect();
        assert_eq!(now, (1..=n).collect::<Vec<_>>());
    }
    counted(0);
    let storage = calls.unregister().unwrap().0;
    // This thread was the first that fgraph has seen.
    let values = storage.into_values().map(|(_, calls)| calls.into_inner());
    assert!(values.eq([1].into_iter().chain(1..=THREADS)));
}

#[scenario]
fn recycled_values_of_threads_that_have_ended_go_to_new_ones() {
    const THREADS: u64 = 500;
    const TOGETHER: u64 = 20;
    #[derive(Default)]
    struct Value {
        threads: AtomicU64,
        calls: AtomicU64,
    }
    impl Recycle for Value {
        fn begin(&self, _thread: u32) {
            self.threads.fetch_add(1, Relaxed);
        }
    }
    #[derive(Default)]
    struct Calls(Recycled<Value>);
    impl FgraphOps for Calls {
        type Data = ();
        fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
            let Value { calls, .. } = call.recycled(&self.0)?;
            calls.store(calls.load(Relaxed) + 1, Relaxed);
            None
        }
    }
    let calls = register(Calls::default(), "counted").unwrap();
    for _ in 0..THREADS / TOGETHER {
        let all_are_there = Barrier::new(TOGETHER as usize);
        thread::scope(|scope| {
            for _ in 0..TOGETHER {
                scope.spawn(|| {
                    counted(1);
                    all_are_there.wait();
                    counted(2);
                });
            }
        });
    }
    let sum = |of: fn(&Value) -> &AtomicU64| -> u64 {
        calls
            .user()
            .0
            .iter()
            .map(|value| of(value).load(Relaxed))
            .sum()
    };
    assert_eq!(sum(|value| &value.threads), THREADS);
    assert_eq!(sum(|value| &value.calls), 2 * THREADS);
    // As many as live at once, some that have ended and not been noticed yet, and 64 more.
    let values = calls.user().0.iter().count();
    assert!(values < 64 + 4 * TOGETHER as usize, "{values}");
}

#[scenario]
fn storage_may_be_used_inside_the_allocator() {
    let calls = register(Calls::default(), "malloc:mod:libc.so.6").unwrap();
    assert!(calls.report().unwrap().traced > 0, "{:?}", calls.report());
    let threads: Vec<_> = (0..20)
        .map(|_| {
            thread::spawn(|| {
                (1..100)
                    .map(|n| black_box(vec![1u8; n]).len())
                    .sum::<usize>()
            })
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), 4950);
    }
    assert_eq!(calls.status(), UserStatus::Active);
    let values = calls.unregister().unwrap().0.into_values();
    assert!(
        values
            .filter(|(_, calls)| calls.load(Relaxed) >= 99)
            .count()
            >= 20
    );
}

#[scenario]
fn a_value_that_panics_when_it_is_made_turns_the_user_off() {
    static MADE: AtomicBool = AtomicBool::new(false);
    struct Panics;
    impl Default for Panics {
        fn default() -> Self {
            MADE.store(true, Relaxed);
            panic!("on purpose");
        }
    }
    #[derive(Default)]
    struct User(PerThread<Panics>);
    impl FgraphOps for User {
        type Data = ();
        fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
            call.per_thread(&self.0).map(|_| ())
        }
    }
    let user = register(User::default(), "counted").unwrap();
    assert_eq!(counted(1), 2);
    assert!(MADE.load(Relaxed));
    assert_ne!(user.status(), UserStatus::Active);
    assert_eq!(user.unregister().unwrap().0.iter().count(), 0);
}
