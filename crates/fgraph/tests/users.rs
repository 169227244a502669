//! Several users of one function: who is called when, and with which data.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use fgraph::{FgraphOps, Handle};
use fgraph_scenario::{Count, Log, scenario, totals, user};

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn users_twice(n: u64) -> u64 {
    black_box(n) * 2
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn factorial(n: u64) -> u64 {
    if n == 0 {
        1
    } else {
        black_box(n) * factorial(n - 1)
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nest(n: u64) -> u64 {
    if n == 0 {
        0
    } else {
        black_box(users_nested(n - 1)) + 1
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn users_nested(n: u64) -> u64 {
    black_box(nest(n)) + 1
}

#[scenario]
fn every_word_up_to_the_end_of_the_stack_can_be_read() {
    let words = Arc::new(AtomicU64::new(0));
    let counted = words.clone();
    let ops = user(
        move |call| {
            // The words belong to other code, and sanitizers have poisoned some.
            let words = (0..).map_while(|index| call.stack_arg(index));
            counted.store(words.map(black_box).count() as u64, Ordering::Relaxed);
            None
        },
        |_, ()| (),
    );
    let _user = fgraph_scenario::register(ops, "users_twice").unwrap();
    assert_eq!(users_twice(1), 2);
    assert!(words.load(Ordering::Relaxed) > 100);
}

#[scenario]
fn returns_run_in_the_reverse_order_of_entries() {
    let log = Log::new();
    let users: Vec<_> = (0..16)
        .map(|id| {
            let (entries, returns) = (log.clone(), log.clone());
            let ops = user(
                move |_| {
                    entries.push(('>', id));
                    Some(())
                },
                move |_, ()| returns.push(('<', id)),
            );
            fgraph_scenario::register(ops, "users_twice").unwrap()
        })
        .collect();
    for _ in 0..3 {
        assert_eq!(users_twice(21), 42);
        let told = log.take();
        let entries = told[..16].iter().map(|&(_, id)| ('>', id));
        let returns = told[..16].iter().rev().map(|&(_, id)| ('<', id));
        assert_eq!(told, entries.chain(returns).collect::<Vec<_>>());
        let mut ids: Vec<_> = told[..16].iter().map(|&(_, id)| id).collect();
        ids.sort_unstable();
        assert_eq!(ids, (0..16).collect::<Vec<_>>());
    }
    drop(users);
    assert_eq!(users_twice(21), 42);
    assert_eq!(log.take(), []);
}

type Maker = fn(u8, &Log<String>) -> Box<dyn std::any::Any>;

/// Registers a user with data of type `D`, which must come back as it was.
fn keeper<D: Copy + Send + 'static>(id: u8, problems: &Log<String>) -> Box<dyn std::any::Any> {
    let seeds = Mutex::new(Vec::new());
    let seeds = Arc::new(seeds);
    let (entered, problems) = (Arc::clone(&seeds), problems.clone());
    let next = AtomicU64::new(u64::from(id));
    let ops = user(
        move |call: &mut fgraph::Entry<'_, D>| {
            let seed = next.fetch_add(37, Ordering::Relaxed) as u8;
            if let Some(parent) = call.parent_data() {
                assert!(std::ptr::from_ref(parent).is_aligned());
            }
            entered.lock().unwrap().push(seed);
            let mut data = std::mem::MaybeUninit::<D>::uninit();
            // SAFETY: all types used here are arrays of bytes.
            unsafe {
                data.as_mut_ptr()
                    .cast::<u8>()
                    .write_bytes(seed, size_of::<D>());
                Some(data.assume_init())
            }
        },
        move |_, data: D| {
            let seed = seeds.lock().unwrap().pop();
            // SAFETY: as above.
            let bytes = unsafe {
                std::slice::from_raw_parts((&raw const data).cast::<u8>(), size_of::<D>())
            };
            if bytes.iter().any(|&byte| Some(byte) != seed) {
                problems.push(format!(
                    "user {id}, {} bytes: {bytes:x?}, not {seed:x?}",
                    bytes.len()
                ));
            }
        },
    );
    Box::new(fgraph_scenario::register(ops, "factorial").unwrap())
}

#[repr(align(16))]
#[derive(Clone, Copy)]
struct Aligned(#[allow(dead_code)] [u8; 16]);

#[scenario]
fn data_of_sixteen_users_in_one_frame_survives_recursion() {
    let problems = Log::new();
    let makers: [Maker; 7] = [
        keeper::<[u8; 0]>,
        keeper::<[u8; 1]>,
        keeper::<[u8; 8]>,
        keeper::<Aligned>,
        keeper::<[u8; 24]>,
        keeper::<[u8; 1000]>,
        keeper::<[u8; 1024]>,
    ];
    let mut users: Vec<_> = (0..16u8)
        .map(|id| makers[usize::from(id) % makers.len()](id, &problems))
        .collect();
    assert_eq!(factorial(20), 2_432_902_008_176_640_000);
    // In another order of slots, with sizes next to others.
    for id in 0..8u8 {
        users.remove(usize::from(id));
        users.push(makers[6 - usize::from(id) % makers.len()](
            100 + id,
            &problems,
        ));
        assert_eq!(factorial(20), 2_432_902_008_176_640_000);
    }
    assert_eq!(problems.take(), [""; 0]);
    assert_eq!(totals(), [0; 5]);
}

#[scenario]
fn a_user_gets_the_returns_of_exactly_the_entries_it_accepts() {
    let all = fgraph_scenario::register(Count::default(), "factorial").unwrap();
    let log = Log::new();
    let returns = log.clone();
    let odd = fgraph_scenario::register(
        user(
            |call| call.arg(0).filter(|n| n % 2 == 1),
            move |call, n: u64| returns.push((n, call.result())),
        ),
        "factorial",
    )
    .unwrap();
    let none = fgraph_scenario::register(
        user(|_| None, |_, _: [u64; 3]| panic!("it never accepts")),
        "factorial",
    )
    .unwrap();
    assert_eq!(factorial(6), 720);
    assert_eq!(log.take(), [(1, Some(1)), (3, Some(6)), (5, Some(120))]);
    assert_eq!(all.user().both(), (7, 7));
    // Alone, too.
    drop(all);
    drop(odd);
    assert_eq!(factorial(6), 720);
    assert_eq!(none.status(), fgraph::UserStatus::Active);
    assert_eq!(totals(), [0; 5]);
}

#[scenario]
fn ancestors_are_a_users_own_accepted_calls() {
    let before = fgraph_scenario::register(Count::default(), "nest users_nested").unwrap();
    let log = Log::new();
    let (entries, returns) = (log.clone(), log.clone());
    // It wants `nest` only, and of that no multiple of 3.
    let middle = fgraph_scenario::register(
        user::<[u64; 2], _, _>(
            move |call| {
                let n = call.arg(0)?;
                let ancestors: Vec<u64> = (0..)
                    .map_while(|g| call.ancestor_data(g).map(|&[n, _]| n))
                    .collect();
                assert_eq!(
                    call.parent_data().map(|data| data[0]),
                    ancestors.first().copied()
                );
                entries.push(('>', n, ancestors));
                (n % 3 != 0).then_some([n, !n])
            },
            move |call, [n, inverse]: [u64; 2]| {
                assert_eq!(n, !inverse);
                let ancestors: Vec<u64> = (0..)
                    .map_while(|g| call.ancestor_data(g).map(|&[n, _]| n))
                    .collect();
                assert_eq!(
                    call.parent_data().map(|data| data[0]),
                    ancestors.first().copied()
                );
                returns.push(('<', n, ancestors));
            },
        ),
        "nest",
    )
    .unwrap();
    let after = fgraph_scenario::register(
        user(|_| Some([7u8; 100]), |_, data| assert_eq!(data, [7; 100])),
        "nest users_nested",
    )
    .unwrap();
    assert_eq!(nest(5), 10);
    assert_eq!(
        log.take(),
        [
            ('>', 5, vec![]),
            ('>', 4, vec![5]),
            ('>', 3, vec![4, 5]),
            ('>', 2, vec![4, 5]),
            ('>', 1, vec![2, 4, 5]),
            ('>', 0, vec![1, 2, 4, 5]),
            ('<', 1, vec![2, 4, 5]),
            ('<', 2, vec![4, 5]),
            ('<', 4, vec![5]),
            ('<', 5, vec![]),
        ]
    );
    assert_eq!(before.user().both(), (11, 11));
    for status in [before.status(), middle.status(), after.status()] {
        assert_eq!(status, fgraph::UserStatus::Active);
    }
}

#[scenario]
fn a_user_can_add_to_the_data_of_enclosing_calls() {
    let log = Log::new();
    let returns = log.clone();
    let _others =
        [(); 3].map(|()| fgraph_scenario::register(Count::default(), "nest users_nested").unwrap());
    let _children = fgraph_scenario::register(
        user::<[u64; 2], _, _>(
            |call| {
                // At entry as well: every second one.
                if let Some(parent) = call.parent_data_mut() {
                    parent[1] += 100;
                }
                Some([0u64, 0])
            },
            move |call, [calls, marks]| {
                if let Some(parent) = call.parent_data_mut() {
                    parent[0] += calls + 1;
                }
                returns.push((calls, marks));
            },
        ),
        "nest users_nested",
    )
    .unwrap();
    assert_eq!(nest(2), 4);
    // A call for each of the two functions, innermost first: how many it has beneath it.
    assert_eq!(log.take(), [(0, 0), (1, 100), (2, 100), (3, 100), (4, 100)]);
}

#[scenario]
fn zero_sized_data_has_ancestors() {
    let log = Log::new();
    let entries = log.clone();
    let _user = fgraph_scenario::register(
        user(
            move |call| {
                entries.push(
                    (0..)
                        .take_while(|&g| call.ancestor_data(g).is_some())
                        .count(),
                );
                Some(())
            },
            |_, ()| (),
        ),
        "factorial",
    )
    .unwrap();
    assert_eq!(factorial(3), 6);
    assert_eq!(log.take(), [0, 1, 2, 3]);
}

/// Makes a user that notes its word of the thread, and sets it.
fn word_user(set: u64, log: &Log<(u64, u64)>) -> impl FgraphOps + use<> {
    let log = log.clone();
    user(
        move |call| {
            log.push((set, call.thread_word().get()));
            call.thread_word().set(call.thread_word().get() + set);
            Some(())
        },
        move |call, ()| call.thread_word().set(call.thread_word().get() + set),
    )
}

#[scenario]
fn the_thread_word_is_private_to_user_and_thread() {
    let log = Log::new();
    let _one = fgraph_scenario::register(word_user(1, &log), "users_twice").unwrap();
    let _ten = fgraph_scenario::register(word_user(10, &log), "users_twice").unwrap();
    let calls = || {
        users_twice(1);
        users_twice(1);
        log.take()
    };
    assert_eq!(calls(), [(1, 0), (10, 0), (1, 2), (10, 20)]);
    thread::scope(|scope| {
        let other = scope.spawn(calls).join().unwrap();
        assert_eq!(other, [(1, 0), (10, 0), (1, 2), (10, 20)]);
    });
    assert_eq!(calls(), [(1, 4), (10, 40), (1, 6), (10, 60)]);
}

#[scenario]
fn the_thread_word_is_zero_after_the_slot_has_changed_hands() {
    let log = Log::new();
    // With 15 others, the last slot is used again and again.
    let _others = [(); 15].map(|()| fgraph_scenario::register(Count::default(), "nest").unwrap());
    for _ in 0..3 {
        let handle = fgraph_scenario::register(word_user(5, &log), "users_twice").unwrap();
        users_twice(1);
        users_twice(1);
        assert_eq!(log.take(), [(5, 0), (5, 10)]);
        drop(handle);
    }
}

#[scenario]
fn the_thread_word_is_zero_in_a_thread_that_takes_over_the_state_of_a_dead_one() {
    let log = Log::new();
    let _user = fgraph_scenario::register(word_user(5, &log), "users_twice").unwrap();
    for n in 0..200 {
        thread::spawn(|| users_twice(1)).join().unwrap();
        assert_eq!(log.take(), [(5, 0)], "thread {n}");
    }
}

#[scenario]
fn depth_counts_the_traced_calls_around_of_any_user() {
    let log = Log::new();
    let (entries, returns) = (log.clone(), log.clone());
    let _watcher = fgraph_scenario::register(
        user(
            move |call| {
                entries.push(('>', call.depth()));
                Some(())
            },
            move |call, ()| returns.push(('<', call.depth())),
        ),
        "nest",
    )
    .unwrap();
    assert_eq!(nest(1), 2);
    assert_eq!(log.take(), [('>', 0), ('>', 1), ('<', 1), ('<', 0)]);
    let other = fgraph_scenario::register(Count::default(), "users_nested").unwrap();
    assert_eq!(nest(1), 2);
    assert_eq!(log.take(), [('>', 0), ('>', 2), ('<', 2), ('<', 0)]);
    drop(other);
    // Calls that nobody wants the return of are not around anything.
    let _decliner =
        fgraph_scenario::register(user(|_| None, |_, ()| unreachable!()), "users_nested").unwrap();
    assert_eq!(nest(1), 2);
    assert_eq!(log.take(), [('>', 0), ('>', 1), ('<', 1), ('<', 0)]);
}

#[scenario]
fn calls_of_different_threads_do_not_mix() {
    let mixed = Log::new();
    let (entries, returns) = (mixed.clone(), mixed.clone());
    let handle: Handle<_> = fgraph_scenario::register(
        user(
            move |call| {
                let n = call.arg(0)?;
                // All factorials of one thread are of one number's.
                let parent = call
                    .parent_data()
                    .map(|&(thread, n, depth): &(u32, u64, usize)| (thread, n, depth));
                let here = (call.thread_id(), n, call.depth());
                let expected = (call.depth() > 0).then(|| (here.0, n + 1, here.2 - 1));
                if parent != expected {
                    entries.push((here, parent));
                }
                Some(here)
            },
            move |call, data| {
                if (call.thread_id(), call.depth()) != (data.0, data.2) {
                    returns.push((data, None));
                }
            },
        ),
        "factorial",
    )
    .unwrap();
    let together = Barrier::new(4);
    thread::scope(|scope| {
        for n in [5, 9, 12, 3] {
            let together = &together;
            scope.spawn(move || {
                together.wait();
                let expected = (1..=n).product::<u64>();
                for _ in 0..2_000 {
                    assert_eq!(factorial(n), expected);
                }
            });
        }
    });
    assert_eq!(mixed.take(), []);
    assert_eq!(numbers_of(&handle), [0; 5]);
}

fn numbers_of<T: FgraphOps>(handle: &Handle<T>) -> [u64; 5] {
    fgraph_scenario::numbers(handle.counters())
}
