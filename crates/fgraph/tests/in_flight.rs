//! Users that come and go while calls are going on.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;

use fgraph::Handle;
use fgraph_scenario::{Count, is_patched, numbers, scenario, totals, user};

/// Sleeps inside until it is told to go on.
#[unsafe(no_mangle)]
#[inline(never)]
fn sleeps(n: u64, inside: &mpsc::Sender<()>, go_on: &mpsc::Receiver<()>) -> u64 {
    inside.send(()).unwrap();
    go_on.recv().unwrap();
    black_box(n) * 2
}

/// Calls back in the middle.
#[unsafe(no_mangle)]
#[inline(never)]
fn calls_back(n: u64, middle: &mut dyn FnMut()) -> u64 {
    middle();
    black_box(n) * 3
}

const SLEEPS: *const () = sleeps as *const ();

/// Calls `sleeps` in a thread, does `meanwhile` while that is inside, and checks its result.
fn while_asleep(meanwhile: impl FnOnce()) {
    let (inside, is_inside) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel();
    let sleeper = thread::spawn(move || sleeps(21, &inside, &may_go_on));
    is_inside.recv().unwrap();
    meanwhile();
    go_on.send(()).unwrap();
    assert_eq!(sleeper.join().unwrap(), 42);
}

fn count(filter: &str) -> Handle<Count> {
    fgraph_scenario::register(Count::default(), filter).unwrap()
}

/// The kernel's fexit_sleep.
#[scenario]
fn a_user_that_leaves_during_a_call_does_not_get_its_return() {
    let stays = count("sleeps");
    let leaves = count("sleeps");
    let is_dropped = Arc::new(());
    let held = Arc::clone(&is_dropped);
    let drops = fgraph_scenario::register(
        user(
            move |_| {
                black_box(&held);
                Some([1u8; 33])
            },
            |_, _| panic!("it is gone"),
        ),
        "sleeps",
    )
    .unwrap();
    while_asleep(|| {
        let count = leaves.unregister().unwrap();
        assert_eq!(count.both(), (1, 0));
        drop(drops);
        assert_eq!(Arc::strong_count(&is_dropped), 1);
    });
    assert_eq!(stays.user().both(), (1, 1));
    assert_eq!(numbers(stays.counters()), [0; 5]);
}

#[scenario]
fn the_last_user_can_leave_during_a_call() {
    let only = count("sleeps");
    while_asleep(|| {
        assert_eq!(only.unregister().unwrap().both(), (1, 0));
        assert!(!is_patched(SLEEPS));
    });
    while_asleep(|| ());
    assert_eq!(totals(), [0; 5]);
}

#[scenario]
fn the_next_owner_of_a_slot_gets_no_returns_of_the_previous_one() {
    let mut before: Vec<_> = (0..16).map(|_| count("sleeps")).collect();
    let kept = before.split_off(8);
    let mut after = Vec::new();
    while_asleep(|| {
        for user in before {
            assert_eq!(user.unregister().unwrap().both(), (1, 0));
        }
        // A user in every slot that has become free.
        after.extend((0..8).map(|_| count("sleeps")));
    });
    assert!(kept.iter().all(|user| user.user().both() == (1, 1)));
    assert!(after.iter().all(|user| user.user().both() == (0, 0)));
    while_asleep(|| ());
    assert!(kept.iter().all(|user| user.user().both() == (2, 2)));
    assert!(after.iter().all(|user| user.user().both() == (1, 1)));
}

#[scenario]
fn the_next_owner_of_a_slot_does_not_see_the_data_of_the_previous_one() {
    let _others = [(); 15].map(|()| count("calls_back"));
    let old = fgraph_scenario::register(user(|_| Some(!0u64), |_, _| ()), "calls_back").unwrap();
    let seen = Arc::new(AtomicU64::new(0));
    let noted = Arc::clone(&seen);
    let mut old = Some(old);
    let mut new = None;
    let result = calls_back(1, &mut || {
        drop(old.take());
        let noted = Arc::clone(&noted);
        let ops = user(
            move |call: &mut fgraph::Entry<'_, u64>| {
                noted.fetch_add(
                    1 + 100 * u64::from(call.parent_data().is_some()),
                    Ordering::SeqCst,
                );
                Some(1)
            },
            |_, one| assert_eq!(one, 1),
        );
        new = Some(fgraph_scenario::register(ops, "calls_back").unwrap());
        assert_eq!(calls_back(2, &mut || ()), 6);
    });
    assert_eq!(result, 3);
    assert_eq!(seen.load(Ordering::SeqCst), 1);
}

/// The consumers of the kernel's uprobe_multi: any set of users before, any after, changed while
/// the function is running.
#[scenario]
fn users_that_change_during_a_call_get_the_returns_that_they_accepted() {
    for before in 0..16u32 {
        for after in 0..16u32 {
            let mut users: [Option<Handle<Count>>; 4] = [const { None }; 4];
            let gone = Mutex::new(Vec::new());
            let has = |set: u32, id: usize| set & (1 << id) != 0;
            for (id, user) in users.iter_mut().enumerate() {
                *user = has(before, id).then(|| count("calls_back"));
            }
            let result = calls_back(7, &mut || {
                for (id, user) in users.iter_mut().enumerate() {
                    match (has(before, id), has(after, id)) {
                        (true, false) => {
                            gone.lock()
                                .unwrap()
                                .push(user.take().unwrap().unregister().unwrap());
                        }
                        (false, true) => *user = Some(count("calls_back")),
                        _ => {}
                    }
                }
            });
            assert_eq!(result, 21);
            for (id, user) in users.iter().enumerate() {
                let got = user.as_ref().map(|user| user.user().both());
                let expected = match (has(before, id), has(after, id)) {
                    (_, false) => None,
                    (true, true) => Some((1, 1)),
                    (false, true) => Some((0, 0)),
                };
                assert_eq!(got, expected, "user {id}, {before:04b} -> {after:04b}");
            }
            assert!(
                gone.lock()
                    .unwrap()
                    .iter()
                    .all(|count| count.both() == (1, 0))
            );
        }
    }
    assert_eq!(totals(), [0; 5]);
}

#[scenario]
fn a_filter_that_changes_during_a_call_does_not_take_its_return_away() {
    let user = count("calls_back");
    let result = calls_back(7, &mut || {
        drop(fgraph_scenario::set_filter(&user, "sleeps").unwrap())
    });
    assert_eq!(result, 21);
    assert_eq!(user.user().both(), (1, 1));
    calls_back(7, &mut || {
        drop(fgraph_scenario::set_filter(&user, "calls_back").unwrap())
    });
    assert_eq!(user.user().both(), (1, 1));
}

#[scenario]
fn frames_in_flight_outlive_many_owners_of_their_slots() {
    let first = count("sleeps");
    let sixteen = |all: &mut Vec<Count>| {
        let users: Vec<_> = (0..15).map(|_| count("sleeps")).collect();
        all.extend(users.into_iter().map(|user| user.unregister().unwrap()));
    };
    let mut all = Vec::new();
    while_asleep(|| {
        for _ in 0..5 {
            sixteen(&mut all);
        }
        while_asleep(|| sixteen(&mut all));
    });
    assert_eq!(first.user().both(), (2, 2));
    assert!(all.iter().all(|count| count.both() == (0, 0)));
}
