//! Coroutines of a crate that programs use, with traced calls on their stacks.

mod common;

use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use common::{Count, numbers, scenario, user};
use corosensei::{Coroutine, CoroutineResult, Yielder};
use fgraph::UserStatus;

/// Where the coroutine is that has suspended last.
static STACK: AtomicUsize = AtomicUsize::new(0);

/// Gives `n` numbers, from as many calls deep.
#[inline(never)]
fn yields_from_below(yielder: &Yielder<u64, u64>, n: u64) -> u64 {
    if n == 0 {
        return 1;
    }
    STACK.store((&raw const n).addr(), Ordering::Relaxed);
    let given = yielder.suspend(n);
    let below = yields_from_below(yielder, n - 1);
    black_box(given + below)
}

type Numbers = Coroutine<u64, u64, u64>;

fn numbers_from(n: u64) -> Numbers {
    Coroutine::new(move |yielder, first| first + yields_from_below(yielder, n))
}

#[test]
fn coroutines_are_resumed_in_any_order_on_any_thread() {
    struct Ready(Numbers, u64);
    // SAFETY: what runs on it uses nothing of its thread.
    unsafe impl Send for Ready {}

    scenario("coroutines_are_resumed_in_any_order_on_any_thread", || {
        const DEPTH: u64 = 20;
        let user = common::register(Count::default(), "*yields_from_below").unwrap();
        let total = 200;
        let ready: Vec<Ready> = (0..total)
            .map(|_| Ready(numbers_from(DEPTH), DEPTH))
            .collect();
        let ready = Mutex::new(ready);
        let ended = Mutex::new(0);
        thread::scope(|scope| {
            for seed in 1..=4_usize {
                let (ready, ended) = (&ready, &ended);
                scope.spawn(move || {
                    let mut random = seed;
                    while *ended.lock().unwrap() < total {
                        let taken = {
                            let mut ready = ready.lock().unwrap();
                            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                            let len = ready.len();
                            (len != 0).then(|| ready.swap_remove((random >> 33) % len))
                        };
                        let Some(Ready(mut coroutine, expected)) = taken else {
                            thread::yield_now();
                            continue;
                        };
                        match coroutine.resume(1) {
                            CoroutineResult::Yield(n) => {
                                assert_eq!(n, expected);
                                ready.lock().unwrap().push(Ready(coroutine, expected - 1));
                            }
                            CoroutineResult::Return(sum) => {
                                assert_eq!((sum, expected), (DEPTH + 2, 0));
                                *ended.lock().unwrap() += 1;
                            }
                        }
                    }
                });
            }
        });
        let calls = total * (DEPTH + 1);
        assert_eq!(user.both(), (calls, calls));
        assert_eq!(numbers(user.counters()), [0; 5]);
    });
}

#[test]
fn a_coroutine_that_is_dropped_is_unwound() {
    scenario("a_coroutine_that_is_dropped_is_unwound", || {
        let user = common::register(Count::default(), "*yields_from_below").unwrap();
        for deep in 1..=10 {
            let mut coroutine = numbers_from(20);
            for _ in 0..deep {
                coroutine.resume(1);
            }
            drop(coroutine);
        }
        let calls = (1..=10).sum();
        assert_eq!(user.all(), (calls, calls, calls));
        assert_eq!(numbers(user.counters()), [0; 5]);
    });
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn has_resumer(n: u64) -> u64 {
    black_box(n) + 1
}

thread_local! {
    static WAITING: RefCell<Option<Numbers>> = const { RefCell::new(None) };
    static RESUMED: Cell<u64> = const { Cell::new(0) };
}

#[test]
fn a_call_that_returns_in_a_callback_on_a_higher_stack_leaves_the_callback_marked() {
    scenario(
        "a_call_that_returns_in_a_callback_on_a_higher_stack_leaves_the_callback_marked",
        || {
            struct First(Numbers);
            // SAFETY: it has not begun.
            unsafe impl Send for First {}

            // Mapped before the thread's own, and so above it.
            let first = First(numbers_from(1));
            let yields = common::register(Count::default(), "*yields_from_below").unwrap();
            let resumes = user(
                |call| {
                    let coroutine = WAITING.take();
                    coroutine.map(|mut coroutine| {
                        let result = coroutine.resume(1);
                        RESUMED.set(u64::from(result.as_return().is_some()));
                        // The mark of this callback keeps what it calls from being traced.
                        has_resumer(1);
                        call.arg(0)
                    })?
                },
                |_, n: u64| assert_eq!(n, 7),
            );
            let around = common::register(Count::default(), "has_resumer").unwrap();
            let resumes = common::register(resumes, "has_resumer").unwrap();
            let thread = thread::spawn(move || {
                let mut coroutine = { first }.0;
                let local = 0;
                assert!(coroutine.resume(1).as_yield() == Some(1));
                assert!(STACK.load(Ordering::Relaxed) > (&raw const local).addr());
                WAITING.set(Some(coroutine));
                assert_eq!(has_resumer(7), 8);
                assert_eq!(RESUMED.get(), 1);
            });
            thread.join().unwrap();
            assert_eq!(resumes.status(), UserStatus::Active);
            // One call was made in the callback, and one in the coroutine that it resumed.
            assert_eq!(around.both(), (1, 1));
            assert_eq!(numbers(around.counters()), [1, 0, 0, 0, 0]);
            assert_eq!(yields.both(), (1, 0));
            assert_eq!(yields.counters().missed, 1);
        },
    );
}
