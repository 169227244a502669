//! Registering and unregistering, filters, and what may not be done inside a callback.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, OnceLock};
use std::thread;

use crate::common::probes::{other_one, probe_one, probe_two};
use fgraph::{
    Entry, Error, FgraphOps, Filter, FilterError, Handle, Return, UnregisterError, UserStatus,
};
use fgraph_scenario::{Count, Log, is_patched, numbers, patched, scenario, totals, user};

const ONE: *const () = probe_one as *const ();
const TWO: *const () = probe_two as *const ();
const OTHER: *const () = other_one as *const ();

fn count(filter: &str) -> Handle<Count> {
    fgraph_scenario::register(Count::default(), filter).unwrap()
}

#[scenario]
fn the_17th_user_gets_no_slot_and_harms_nobody() {
    let mut users: Vec<_> = (0..16).map(|_| count("probe_one")).collect();
    for _ in 0..3 {
        let error = fgraph_scenario::register(Count::default(), "probe_*").unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("all 16 slots are taken: by "), "{text}");
        let each = format!("{} (priority 0, for ", std::any::type_name::<Count>());
        assert_eq!(text.matches(&each).count(), 16, "{text}");
        let Error::NoFreeSlot { users } = error else {
            panic!("{error:?}");
        };
        assert_eq!(users.len(), 16);
    }
    assert!(!is_patched(TWO));
    assert_eq!(probe_one(1), 2);
    assert!(users.iter().all(|user| user.user().both() == (1, 1)));
    // One goes, one comes, and there are 16 again.
    let gone = users.remove(7).unregister().unwrap();
    users.push(count("probe_one"));
    let full = fgraph_scenario::register(Count::default(), "*").unwrap_err();
    assert!(matches!(full, Error::NoFreeSlot { .. }), "{full}");
    assert_eq!(probe_one(1), 2);
    assert_eq!(gone.both(), (1, 1));
    assert_eq!(users.pop().unwrap().user().both(), (1, 1));
    assert!(users.iter().all(|user| user.user().both() == (2, 2)));
    assert_eq!(totals(), [0; 5]);
}

#[scenario]
fn a_user_can_come_and_go_many_more_times_than_there_are_slots() {
    let original: [u8; 5] = fgraph_scenario::code(ONE);
    let stays = count("probe_one");
    for cycle in 0..80 {
        let comes = count("probe_*");
        assert_eq!(probe_one(1) + probe_two(1), 5);
        assert_eq!(comes.unregister().unwrap().both(), (2, 2));
        assert_eq!(probe_one(1) + probe_two(1), 5);
        assert_eq!(stays.user().both(), (2 * cycle + 2, 2 * cycle + 2));
        assert!(!is_patched(TWO) && is_patched(ONE));
    }
    drop(stays);
    assert_eq!(fgraph_scenario::code(ONE), original);
}

#[scenario]
fn unregistering_gives_the_value_back_by_value() {
    struct Owner(Box<u64>, Mutex<Vec<u64>>);
    impl FgraphOps for Owner {
        type Data = ();
        fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
            self.1.lock().unwrap().extend(call.arg(0));
            None
        }
    }
    let value = Box::new(5);
    let place = &raw const *value;
    let handle = fgraph_scenario::register(Owner(value, Mutex::default()), "probe_one").unwrap();
    probe_one(7);
    // Readable meanwhile.
    assert_eq!(*handle.user().1.lock().unwrap(), [7]);
    probe_one(8);
    let Owner(value, arguments) = handle.unregister().unwrap();
    assert_eq!(&raw const *value, place);
    assert_eq!(arguments.into_inner().unwrap(), [7, 8]);
}

#[scenario]
fn dropping_the_handle_unregisters_and_drops_the_value() {
    struct Flag(Arc<AtomicU64>);
    impl Drop for Flag {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    impl FgraphOps for Flag {
        type Data = ();
        fn entry(&self, _: &mut Entry<'_, ()>) -> Option<()> {
            assert_eq!(self.0.load(Ordering::SeqCst), 0);
            Some(())
        }
    }
    let dropped = Arc::new(AtomicU64::new(0));
    let handle = fgraph_scenario::register(Flag(Arc::clone(&dropped)), "probe_one").unwrap();
    probe_one(1);
    drop(handle);
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    assert!(!is_patched(ONE));
    probe_one(1);
    // Taken out by value it is the caller's to drop.
    let handle = fgraph_scenario::register(Flag(Arc::default()), "probe_one").unwrap();
    let flag = handle.unregister().unwrap();
    assert_eq!(flag.0.load(Ordering::SeqCst), 0);
}

/// The kernel's `trace_selftest_ops`.
#[scenario]
fn each_user_gets_exactly_the_calls_of_its_own_filter() {
    let one = count("probe_one");
    let two = count("probe_two");
    let both = count("probe_one probe_two");
    let counts = || [&one, &two, &both].map(|user| user.user().both().0);
    probe_one(1);
    assert_eq!(counts(), [1, 0, 1]);
    probe_two(1);
    assert_eq!(counts(), [1, 1, 2]);
    let all = count("?????_one ?????_two");
    probe_one(1);
    assert_eq!(counts(), [2, 1, 3]);
    probe_two(1);
    assert_eq!(counts(), [2, 2, 4]);
    fgraph_scenario::set_filter(&both, "probe_one probe_two !probe_one").unwrap();
    probe_one(1);
    assert_eq!(counts(), [3, 2, 4]);
    probe_two(1);
    assert_eq!(counts(), [3, 3, 5]);
    assert_eq!(all.user().both(), (4, 4));
    for user in [one, two, both, all] {
        let before = user.user().both();
        let count = user.unregister().unwrap();
        probe_one(1);
        probe_two(1);
        assert_eq!(count.both(), before);
    }
}

#[scenario]
fn a_filter_is_changed_live() {
    let user = count("probe_one");
    assert_eq!(
        (
            user.report().unwrap().traced,
            user.report().unwrap().patched
        ),
        (1, 1)
    );
    let report = fgraph_scenario::set_filter(&user, "probe_two").unwrap();
    assert_eq!((report.traced, report.patched), (1, 1));
    assert!(!is_patched(ONE) && is_patched(TWO));
    probe_one(1);
    assert_eq!(user.user().both(), (0, 0));
    probe_two(1);
    assert_eq!(user.user().both(), (1, 1));
    // Functions that both filters select are not patched again.
    let report = fgraph_scenario::set_filter(&user, "probe_*").unwrap();
    assert_eq!((report.traced, report.patched), (2, 1));
    // Every way to say a filter.
    fgraph_scenario::set_filter(&user, Filter::none().trace("other_*").unwrap()).unwrap();
    fgraph_scenario::set_filter(&user, String::from("other_one")).unwrap();
    assert!(!is_patched(ONE) && !is_patched(TWO) && is_patched(OTHER));
    assert_eq!(other_one(1), 4);
    assert_eq!(user.user().both(), (2, 2));
}

/// The kernel's fgraph-multi-filter.
#[scenario]
fn the_number_of_patched_functions_does_not_depend_on_the_order_of_users() {
    let filters = ["pro??_one !other*", "probe_* !*two"];
    let mut seen = Vec::new();
    for order in [[0, 1], [1, 0]] {
        for remove_first in [0, 1] {
            assert_eq!(patched(), 0);
            let mut users: Vec<_> = order.iter().map(|&i| count(filters[i])).collect();
            seen.push(patched());
            assert!(is_patched(ONE) && !is_patched(TWO) && !is_patched(OTHER));
            drop(users.remove(remove_first));
            assert_eq!(patched(), 1);
            drop(users);
            assert_eq!(patched(), 0);
        }
    }
    assert_eq!(seen, [1; 4]);
    // With two filters that only exclude, the functions that both exclude are not patched.
    let users = [count("!probe_* !*common*"), count("!probe_one !*common*")];
    assert!(!is_patched(ONE) && is_patched(TWO) && is_patched(OTHER));
    drop(users);
    assert_eq!(patched(), 0);
}

#[scenario]
fn a_function_nobody_wants_is_a_nop_while_others_are_traced() {
    let nop: [u8; 5] = fgraph_scenario::code(ONE);
    let both = count("probe_*");
    let one = count("probe_one");
    fgraph_scenario::set_filter(&both, "probe_two").unwrap();
    assert!(is_patched(ONE) && is_patched(TWO));
    probe_one(1);
    // The mask, not the filter at the callback, keeps the other user away.
    assert_eq!((both.user().both(), one.user().both()), ((0, 0), (1, 1)));
    drop(one);
    assert_eq!(fgraph_scenario::code(ONE), nop);
    assert!(is_patched(TWO));
    assert_eq!(probe_one(1) + probe_two(1), 5);
    assert_eq!(both.user().both(), (1, 1));
}

#[scenario]
fn malformed_filters_are_errors_and_change_nothing() {
    let kept = count("probe_one");
    let bad = [
        "\\",
        "probe\\",
        "!",
        ":mod:",
        "probe_one:mod:",
        "!:mod:",
        "a:mod:b:mod:c",
        "ok !",
    ];
    for text in bad {
        let error = fgraph_scenario::register(Count::default(), text).unwrap_err();
        assert!(matches!(error, Error::Filter(_)), "{text}: {error}");
        assert!(!error.to_string().is_empty());
        assert_eq!(fgraph_scenario::set_filter(&kept, text).unwrap_err(), error);
    }
    for result in [
        Filter::none().trace(""),
        Filter::all().notrace(""),
        Filter::none().trace_in("", "a"),
        Filter::none().trace_in("a", ""),
    ] {
        assert_eq!(result.unwrap_err(), FilterError::EmptyGlob);
    }
    assert_eq!(patched(), 1);
    probe_one(1);
    assert_eq!(kept.user().both(), (1, 1));
    // None of them took a slot.
    let users: Vec<_> = (0..15).map(|_| count("probe_two")).collect();
    assert_eq!(users.len(), 15);
}

#[scenario]
fn a_star_selects_every_function() {
    let everything = count("*");
    let status = fgraph::status().unwrap();
    assert_eq!(everything.report().unwrap().traced, status.sites);
    assert_eq!(status.patched, status.sites);
    assert!(status.sites > 20, "{status}");
    assert_eq!(probe_one(1), 2);
    // The callbacks of the tests are functions of the program, too: these calls are missed.
    let (entries, returns) = everything.user().both();
    assert!(entries >= 1 && returns >= 1);
    let count = everything.unregister().unwrap();
    assert!(count.both().0 >= entries);
    assert_eq!(patched(), 0);
}

#[scenario]
fn a_filter_that_selects_nothing_is_a_warning() {
    let user = count("no_such_function*");
    assert!(user.report().unwrap().matches_nothing());
    assert!(
        user.report().unwrap().to_string().contains("warning"),
        "{}",
        user.report().unwrap()
    );
    assert_eq!(patched(), 0);
    assert_eq!(user.status(), UserStatus::Active);
    let report = fgraph_scenario::set_filter(&user, "probe_one").unwrap();
    assert!(!report.matches_nothing());
    probe_one(1);
    assert_eq!(user.user().both(), (1, 1));
    assert!(
        fgraph_scenario::set_filter(&user, "probe_one !probe_*")
            .unwrap()
            .matches_nothing()
    );
    assert!(!is_patched(ONE));
    assert!(
        count(":mod:no-such-library.so")
            .report()
            .unwrap()
            .matches_nothing()
    );
}

#[scenario]
fn inside_a_callback_nothing_can_be_registered_or_unregistered() {
    static OTHER_USER: Mutex<Option<Handle<Count>>> = Mutex::new(None);
    *OTHER_USER.lock().unwrap() = Some(count("probe_two"));
    let log = Log::new();
    let try_all = |log: Log<Error>| {
        move || {
            let mut other = OTHER_USER.lock().unwrap();
            log.push(fgraph_scenario::register(Count::default(), "probe_two").unwrap_err());
            log.push(
                fgraph_scenario::set_filter(other.as_ref().unwrap(), "other_one").unwrap_err(),
            );
            log.push(fgraph::status().unwrap_err());
            log.push(fgraph::stop().unwrap_err());
            let refused = other.take().unwrap().unregister().unwrap_err();
            assert_eq!(refused.to_string(), "the user is still registered");
            assert!(matches!(refused, UnregisterError::StillRegistered { .. }));
            log.push(refused.error().clone());
            *other = Some(refused.into_handle());
        }
    };
    let (entry, ret) = (try_all(log.clone()), try_all(log.clone()));
    let own = fgraph_scenario::register(
        user(
            move |_| {
                entry();
                Some(())
            },
            move |_, ()| ret(),
        ),
        "probe_one",
    )
    .unwrap();
    assert_eq!(probe_one(1), 2);
    assert_eq!(log.take(), vec![Error::InsideCallback; 10]);
    assert_eq!(own.status(), UserStatus::Active);
    // The other user still works, and so does its handle.
    probe_two(1);
    let other = OTHER_USER.lock().unwrap().take().unwrap();
    assert_eq!(other.unregister().unwrap().both(), (1, 1));
}

#[scenario]
fn inside_a_callback_that_unwinds_nothing_can_be_registered() {
    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C-unwind" fn leaves_by_panic() {
        std::panic::panic_any(1)
    }
    let log = Log::new();
    let returns = log.clone();
    let _user = fgraph_scenario::register(
        user(
            |_| Some(()),
            move |call, ()| {
                let error = fgraph_scenario::register(Count::default(), "probe_two").unwrap_err();
                returns.push((call.unwinding(), error));
            },
        ),
        "leaves_by_panic",
    )
    .unwrap();
    std::panic::catch_unwind(|| leaves_by_panic()).unwrap_err();
    assert_eq!(log.take(), [(true, Error::InsideCallback)]);
}

/// Counts drops.
struct Dropped(Arc<AtomicU64>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[scenario]
fn a_handle_dropped_inside_a_callback_ends_its_user() {
    type Shared = Arc<Mutex<Option<Box<dyn std::any::Any + Send>>>>;
    let dropped = Arc::new(AtomicU64::new(0));
    let calls = Arc::new(AtomicU64::new(0));
    let returns = Arc::new(AtomicU64::new(0));
    for at_entry in [true, false] {
        let own: Shared = Arc::default();
        let value = Dropped(Arc::clone(&dropped));
        let (at, counted, returned) = (Arc::clone(&own), Arc::clone(&calls), Arc::clone(&returns));
        let at_return = Arc::clone(&own);
        let handle = fgraph_scenario::register(
            user(
                move |_| {
                    assert_eq!(value.0.load(Ordering::SeqCst), u64::from(!at_entry));
                    counted.fetch_add(1, Ordering::SeqCst);
                    if at_entry {
                        drop(at.lock().unwrap().take());
                    }
                    Some(())
                },
                move |_, ()| {
                    returned.fetch_add(1, Ordering::SeqCst);
                    drop(at_return.lock().unwrap().take());
                },
            ),
            "probe_one",
        )
        .unwrap();
        *own.lock().unwrap() = Some(Box::new(handle));
        for _ in 0..3 {
            assert_eq!(probe_one(1), 2);
        }
        // Its text is put back at once, its value goes when somebody can wait for it.
        assert!(!is_patched(ONE));
        let users: Vec<_> = (0..16).map(|_| count("probe_two")).collect();
        assert_eq!(users.len(), 16, "its slot is free again");
        assert_eq!(dropped.load(Ordering::SeqCst), 1 + u64::from(!at_entry));
    }
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    assert_eq!(returns.load(Ordering::SeqCst), 1);
}

/// Drops a user in a callback of another one while its own callback runs in another thread, which
/// goes on when the second barrier is passed.
fn drop_while_running(
    value: impl Send + Sync + 'static,
) -> (thread::JoinHandle<u64>, Arc<Barrier>) {
    let [runs, goes_on] = [(); 2].map(|()| Arc::new(Barrier::new(2)));
    let (running, going_on) = (runs.clone(), goes_on.clone());
    let blocks = move |_: &mut Entry<'_, ()>| {
        let _ = &value;
        running.wait();
        going_on.wait();
        None
    };
    let blocked = fgraph_scenario::register(user(blocks, |_, ()| ()), "probe_one").unwrap();
    let thread = thread::spawn(|| probe_one(1));
    runs.wait();
    let blocked = Mutex::new(Some(blocked));
    let drops = move |_: &mut Entry<'_, ()>| {
        drop(blocked.lock().unwrap().take());
        None
    };
    let drops = fgraph_scenario::register(user(drops, |_, ()| ()), "probe_two").unwrap();
    assert_eq!(probe_two(1), 3);
    drops.unregister().unwrap();
    (thread, goes_on)
}

#[scenario]
fn the_callback_of_a_dropped_user_is_waited_for_by_nobody() {
    let dropped = Arc::new(AtomicU64::new(0));
    let (thread, goes_on) = drop_while_running(Dropped(dropped.clone()));
    assert_eq!(patched(), 0);
    let other = count("probe_two");
    fgraph_scenario::set_filter(&other, "other_one").unwrap();
    assert_eq!(other_one(1), 4);
    assert_eq!(other.unregister().unwrap().both(), (1, 1));
    assert_eq!(dropped.load(Ordering::SeqCst), 0);
    goes_on.wait();
    assert_eq!(thread.join().unwrap(), 2);
    assert_eq!(patched(), 0);
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
}

#[scenario]
fn registering_without_a_free_slot_waits_for_a_dropped_users_callback() {
    let (thread, goes_on) = drop_while_running(());
    let _users: Vec<_> = (0..15).map(|_| count("other_one")).collect();
    let last = thread::spawn(|| count("other_one"));
    goes_on.wait();
    let last = last.join().unwrap();
    other_one(1);
    assert_eq!(last.user().both(), (1, 1));
    assert_eq!(thread.join().unwrap(), 2);
}

#[scenario]
fn the_panic_of_a_dropped_user_is_not_that_of_others() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("a value panics when it is dropped");
        }
    }
    for _ in 0..20 {
        let (thread, goes_on) = drop_while_running(Bomb);
        goes_on.wait();
        assert_eq!(thread.join().unwrap(), 2);
        assert_eq!(patched(), 0);
    }
}

#[scenario]
fn unregistering_waits_for_the_callback_that_runs() {
    let inside = Arc::new(Barrier::new(2));
    let go_on = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicBool::new(false));
    let (entered, waits, ends) = (Arc::clone(&inside), Arc::clone(&go_on), Arc::clone(&done));
    let handle = fgraph_scenario::register(
        user(
            move |_| {
                entered.wait();
                while !waits.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
                ends.store(true, Ordering::SeqCst);
                Some(())
            },
            |_, ()| panic!("unregistered before"),
        ),
        "probe_one",
    )
    .unwrap();
    thread::scope(|scope| {
        let call = scope.spawn(|| probe_one(1));
        inside.wait();
        let unregister = scope.spawn(|| {
            handle.unregister().unwrap();
            done.load(Ordering::SeqCst)
        });
        // While one waits, others come and go: the lock is not held.
        while is_patched(ONE) {
            thread::yield_now();
        }
        let other = count("probe_two");
        probe_two(1);
        assert_eq!(other.unregister().unwrap().both(), (1, 1));
        assert!(!unregister.is_finished());
        go_on.store(true, Ordering::SeqCst);
        assert!(unregister.join().unwrap(), "it did not wait");
        assert_eq!(call.join().unwrap(), 2);
    });
}

#[scenario]
fn after_unregistering_no_callback_runs() {
    /// User whose memory is poisoned as soon as it is freed.
    struct Alive {
        gone: AtomicBool,
        late: &'static AtomicU64,
    }
    impl FgraphOps for Alive {
        type Data = u64;
        fn entry(&self, call: &mut Entry<'_, u64>) -> Option<u64> {
            self.late
                .fetch_add(self.gone.load(Ordering::SeqCst).into(), Ordering::SeqCst);
            call.arg(0)
        }
        fn ret(&self, call: &mut Return<'_, u64>, argument: u64) {
            self.late
                .fetch_add(self.gone.load(Ordering::SeqCst).into(), Ordering::SeqCst);
            if call.result() != Some(argument + 1) {
                self.late.fetch_add(1 << 32, Ordering::SeqCst);
            }
        }
    }
    static LATE: AtomicU64 = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for n in 0..3 {
            let stop = &stop;
            scope.spawn(move || {
                let mut argument = n;
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(probe_one(argument), argument + 1);
                    argument += 1;
                }
            });
        }
        for _ in 0..150 {
            let alive = Alive {
                gone: AtomicBool::new(false),
                late: &LATE,
            };
            let handle = fgraph_scenario::register(alive, "probe_one").unwrap();
            let alive = Box::new(handle.unregister().unwrap());
            alive.gone.store(true, Ordering::SeqCst);
        }
        stop.store(true, Ordering::SeqCst);
    });
    assert_eq!(LATE.load(Ordering::SeqCst), 0);
    assert_eq!(totals(), [0; 5]);
}

#[scenario]
fn many_threads_register_at_once() {
    thread::scope(|scope| {
        for n in 0..8u64 {
            scope.spawn(move || {
                for _ in 0..30 {
                    let user = count(["probe_one", "probe_two", "probe_*"][(n % 3) as usize]);
                    assert_eq!(probe_one(n) + probe_two(n), 2 * n + 3);
                    let (entries, returns) = user.unregister().unwrap().both();
                    assert!(entries >= returns && entries >= 1);
                }
            });
        }
    });
    assert_eq!(patched(), 0);
}

#[scenario]
fn a_handle_goes_to_other_threads() {
    static HANDLE: OnceLock<Handle<Count>> = OnceLock::new();
    HANDLE.set(count("probe_one")).unwrap();
    thread::spawn(|| fgraph_scenario::set_filter(HANDLE.get().unwrap(), "probe_two").unwrap())
        .join()
        .unwrap();
    probe_one(1);
    probe_two(1);
    assert_eq!(HANDLE.get().unwrap().user().both(), (1, 1));
    assert_eq!(numbers(HANDLE.get().unwrap().counters()), [0; 5]);
}
