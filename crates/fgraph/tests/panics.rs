//! Callbacks that panic.

use std::hint::black_box;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};

use fgraph::{FgraphOps, Handle, UserStatus};
use fgraph_scenario::{Count, is_patched, scenario, user};

#[unsafe(no_mangle)]
#[inline(never)]
extern "C-unwind" fn adds(n: u64) -> u64 {
    black_box(n) + 1
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C-unwind" fn throws(n: u64) -> u64 {
    if black_box(true) {
        panic::panic_any(n);
    }
    n
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C-unwind" fn recurses(n: u64) -> u64 {
    if n == 0 {
        0
    } else {
        black_box(recurses(n - 1)) + 1
    }
}

const ADDS: *const () = adds as *const ();

/// Panics of callbacks are reported as any other; here that would only be noise.
fn quiet() {
    panic::set_hook(Box::new(|_| ()));
}

fn count(filter: &str) -> Handle<Count> {
    fgraph_scenario::register(Count::default(), filter).unwrap()
}

fn has_panicked<T: FgraphOps>(user: &Handle<T>) -> bool {
    matches!(user.status(), UserStatus::Panicked { .. })
}

/// Checks that `bad` is off and can be taken away, and that everybody else goes on.
fn afterwards<T: FgraphOps>(bad: Handle<T>, others: &[Handle<Count>], calls: u64) {
    assert!(has_panicked(&bad));
    for other in others {
        assert_eq!(other.status(), UserStatus::Active);
        assert_eq!(other.user().both(), (calls, calls));
    }
    for n in 0..10 {
        assert_eq!(adds(n), n + 1);
    }
    for other in others {
        assert_eq!(other.user().both(), (calls + 10, calls + 10));
    }
    assert!(has_panicked(&bad));
    // A filter may still be changed, and the handle still unregisters.
    assert_eq!(fgraph_scenario::set_filter(&bad, "adds").unwrap().traced, 1);
    assert!(bad.unregister().is_ok());
    assert!(is_patched(ADDS));
    // Its slot is free again.
    let users: Vec<_> = (others.len()..16).map(|_| count("adds")).collect();
    assert_eq!(adds(1), 2);
    assert!(users.iter().all(|user| user.user().both() == (1, 1)));
    assert_eq!(fgraph_scenario::totals(), [0; 5]);
}

#[scenario]
fn a_panic_at_entry_turns_only_that_user_off() {
    quiet();
    let before = count("adds");
    let calls = AtomicU64::new(0);
    let bad = fgraph_scenario::register(
        user(
            move |_| {
                assert_eq!(calls.fetch_add(1, Ordering::SeqCst), 0, "called once more");
                panic!("in entry")
            },
            |_, _: [u8; 40]| (),
        ),
        "adds",
    )
    .unwrap();
    let after = count("adds");
    assert_eq!(adds(1), 2);
    afterwards(bad, &[before, after], 1);
}

#[scenario]
fn a_panic_at_return_turns_only_that_user_off() {
    quiet();
    let before = count("adds");
    let calls = AtomicU64::new(0);
    let bad = fgraph_scenario::register(
        user(
            |_| Some([3u8; 40]),
            move |_, _| {
                assert_eq!(calls.fetch_add(1, Ordering::SeqCst), 0, "called once more");
                panic!("in ret")
            },
        ),
        "adds",
    )
    .unwrap();
    let after = count("adds");
    assert_eq!(adds(1), 2);
    afterwards(bad, &[before, after], 1);
}

#[scenario]
fn the_only_user_can_panic() {
    quiet();
    for at_entry in [true, false] {
        let bad = fgraph_scenario::register(
            user(
                move |_| {
                    if at_entry {
                        panic!("in entry")
                    } else {
                        Some(1u64)
                    }
                },
                |_, _| panic!("in ret"),
            ),
            "adds",
        )
        .unwrap();
        assert_eq!(adds(1), 2);
        assert_eq!(adds(1), 2);
        afterwards_alone(bad);
    }
}

fn afterwards_alone<T: FgraphOps>(bad: Handle<T>) {
    assert!(has_panicked(&bad));
    drop(bad);
    assert!(!is_patched(ADDS));
    let next = count("adds");
    assert_eq!(adds(1), 2);
    assert_eq!(
        (next.status(), next.user().both()),
        (UserStatus::Active, (1, 1))
    );
}

#[scenario]
fn after_a_panic_the_returns_of_enclosing_calls_are_not_delivered() {
    quiet();
    let other = count("recurses");
    let returns = AtomicU64::new(0);
    let bad = fgraph_scenario::register(
        user(
            |call| {
                assert_ne!(call.arg(0), Some(0));
                Some(5u64)
            },
            move |_, _| {
                returns.fetch_add(1, Ordering::SeqCst);
            },
        ),
        "recurses",
    )
    .unwrap();
    assert_eq!(recurses(5), 5);
    assert!(has_panicked(&bad));
    assert_eq!(other.user().both(), (6, 6));
    bad.unregister().unwrap();
}

#[scenario]
fn a_panic_while_unwinding_does_not_stop_the_unwinding() {
    quiet();
    let before = count("throws adds");
    let bad = fgraph_scenario::register(
        user(
            |_| Some([3u8; 40]),
            |call, _| {
                assert!(call.unwinding());
                panic!("in ret, while a panic is going on")
            },
        ),
        "throws adds",
    )
    .unwrap();
    let after = count("throws adds");
    let payload = panic::catch_unwind(|| throws(17)).unwrap_err();
    assert_eq!(payload.downcast_ref::<u64>(), Some(&17));
    assert_eq!(
        (before.user().all(), after.user().all()),
        ((1, 1, 1), (1, 1, 1))
    );
    assert!(!std::thread::panicking());
    afterwards(bad, &[before, after], 1);
}

#[scenario]
fn a_panic_payload_may_panic_when_dropped() {
    quiet();
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("the payload's own");
        }
    }
    let others = [count("adds"), count("adds")];
    let bad = fgraph_scenario::register(
        user(|_| -> Option<()> { panic::panic_any(Bomb) }, |_, ()| ()),
        "adds",
    )
    .unwrap();
    assert_eq!(adds(1), 2);
    afterwards(bad, &others, 1);
}

#[scenario]
fn all_users_may_panic_at_once() {
    quiet();
    let users: Vec<_> = (0..16)
        .map(|id| {
            let ops = user(
                move |_| {
                    if id % 2 == 0 {
                        panic!("entry {id}")
                    } else {
                        Some([id; 7])
                    }
                },
                |_, _| panic!("ret"),
            );
            fgraph_scenario::register(ops, "adds").unwrap()
        })
        .collect();
    assert_eq!(adds(1), 2);
    assert!(users.iter().all(has_panicked));
    drop(users);
    let users: Vec<_> = (0..16).map(|_| count("adds")).collect();
    assert_eq!(adds(1), 2);
    assert!(users.iter().all(|user| user.user().both() == (1, 1)));
}

#[scenario]
fn the_program_may_panic_in_a_call_that_a_panicked_user_has_accepted() {
    quiet();
    let calls = AtomicU64::new(0);
    let bad = fgraph_scenario::register(
        user(
            move |_| {
                assert_eq!(calls.fetch_add(1, Ordering::SeqCst), 0);
                Some(1u64)
            },
            |_, _| (),
        ),
        "throws adds",
    )
    .unwrap();
    struct CallsOnDrop;
    impl Drop for CallsOnDrop {
        fn drop(&mut self) {
            // The user panics here, while the program is unwinding.
            assert_eq!(adds(3), 4);
        }
    }
    let result = panic::catch_unwind(AssertUnwindSafe(|| {
        let _guard = CallsOnDrop;
        throws(3)
    }));
    assert_eq!(result.unwrap_err().downcast_ref::<u64>(), Some(&3));
    afterwards_alone(bad);
}
