//! Users come, go on after a panic, and go; and their callbacks run in an order.

use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::panic;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fgraph::{Entry, Error, FgraphOps, Handle, Options, RegisterError, UserStatus};
use fgraph_scenario::{Count, Log, is_patched, scenario, user};

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn twice(n: u64) -> u64 {
    if let Some(body) = BODY.take() {
        body();
    }
    black_box(n) * 2
}

thread_local! {
    /// Work that the next call of `twice` does.
    static BODY: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
}

const TWICE: *const () = twice as *const ();

fn with_priority<T: FgraphOps>(ops: T, priority: i8) -> Result<Handle<T>, RegisterError<T>> {
    let options = Options::new().priority(priority);
    // SAFETY: the callbacks run in calls that the scenario makes, in ordinary code.
    unsafe { fgraph::register_with(ops, "twice", &options) }
}

#[scenario]
fn a_user_that_cannot_be_registered_is_given_back() {
    let users: Vec<_> = (0..16)
        .map(|_| with_priority(Count::default(), 0).unwrap())
        .collect();
    let failed = with_priority(vec_of_counts(), 0).unwrap_err();
    assert!(matches!(failed.error, Error::NoFreeSlot { .. }), "{failed}");
    assert_eq!(failed.ops.0.len(), 3);
    drop(users);
    // SAFETY: nothing is registered.
    let failed = unsafe { fgraph::register(vec_of_counts(), "!") }.unwrap_err();
    assert!(matches!(failed.error, Error::Filter(_)), "{failed}");
    let again = with_priority(failed.ops, 0).unwrap();
    assert_eq!(twice(2), 4);
    assert_eq!(again.unregister().unwrap().0.len(), 3);
    assert!(!is_patched(TWICE));
}

/// A user with memory of its own.
struct Counts(Vec<Count>);

fn vec_of_counts() -> Counts {
    Counts((0..3).map(|_| Count::default()).collect())
}

impl FgraphOps for Counts {
    type Data = ();

    fn entry(&self, _call: &mut Entry<'_, ()>) -> Option<()> {
        None
    }
}

#[scenario]
fn a_user_may_be_shared_and_left_for_good() {
    let shared = Arc::new(Count::default());
    let handle = with_priority(Arc::clone(&shared), 0).unwrap();
    assert_eq!(twice(2), 4);
    assert_eq!(shared.both(), (1, 1));
    drop(handle);
    assert_eq!(twice(2), 4);
    assert_eq!(shared.both(), (1, 1));
    let left: &'static Arc<Count> = with_priority(shared, 0).unwrap().leak();
    assert_eq!(twice(2), 4);
    assert_eq!(left.both(), (2, 2));
    assert!(is_patched(TWICE));
}

#[scenario]
fn a_user_can_go_on_after_a_panic_that_its_status_shows() {
    panic::set_hook(Box::new(|_| ()));
    static PANICS: AtomicBool = AtomicBool::new(true);
    let ops = user(
        |call: &mut Entry<'_, u64>| {
            if PANICS.load(Ordering::Relaxed) {
                panic!("argument {}", call.arg(0).unwrap());
            }
            call.arg(0)
        },
        |_, _| (),
    );
    let mut handle = with_priority(ops, 0).unwrap();
    let beside = with_priority(Count::default(), 0).unwrap();
    assert_eq!(handle.status(), UserStatus::Active);
    handle.resume().unwrap();
    assert_eq!(twice(7), 14);
    let message = "argument 7".to_owned();
    assert_eq!(handle.status(), UserStatus::Panicked { message });
    // It is off, so this call's panic is not seen.
    assert_eq!(twice(8), 16);
    handle.resume().unwrap();
    assert_eq!(handle.status(), UserStatus::Active);
    assert_eq!(twice(9), 18);
    let message = "argument 9".to_owned();
    assert_eq!(handle.status(), UserStatus::Panicked { message });
    PANICS.store(false, Ordering::Relaxed);
    handle.resume().unwrap();
    assert_eq!(twice(10), 20);
    assert_eq!(handle.status(), UserStatus::Active);
    assert_eq!(beside.user().both(), (4, 4));
    assert!(handle.unregister().is_ok());
}

#[scenario]
fn entries_are_dispatched_in_the_order_of_priorities() {
    let log = Log::new();
    let logs = |id: i8| {
        let (entries, returns) = (log.clone(), log.clone());
        user(
            move |_: &mut Entry<'_, ()>| {
                entries.push(('>', id));
                Some(())
            },
            move |_, ()| returns.push(('<', id)),
        )
    };
    let mut users = Vec::new();
    for priority in [0, 5, -3, 127, -128, 0, 2] {
        users.push(with_priority(logs(priority), priority).unwrap());
    }
    assert_eq!(twice(1), 2);
    let order = [-128, -3, 0, 0, 2, 5, 127];
    let entries = order.map(|id| ('>', id));
    let mut returns = order.map(|id| ('<', id));
    returns.reverse();
    assert_eq!(log.take(), [entries, returns].concat());
}

/// Order of the entries and returns of one call, by priority and number of the user.
type Order = Log<(char, i8, usize)>;

/// Registers a user with 16, 32 or no bytes of data, which checks that its own come back.
fn with_data(log: &Order, priority: i8, number: usize) -> Box<dyn std::any::Any> {
    fn keep<D>(log: &Order, priority: i8, number: usize, data: D) -> Box<dyn std::any::Any>
    where
        D: Copy + PartialEq + Send + Sync + 'static,
    {
        let (entries, returns) = (log.clone(), log.clone());
        let ops = user(
            move |_: &mut Entry<'_, D>| {
                entries.push(('>', priority, number));
                Some(data)
            },
            move |_, back: D| {
                assert!(back == data);
                returns.push(('<', priority, number));
            },
        );
        Box::new(with_priority(ops, priority).unwrap())
    }
    match number % 3 {
        0 => keep(log, priority, number, ()),
        1 => keep(log, priority, number, [number as u64; 2]),
        _ => keep(log, priority, number, [number as u64; 4]),
    }
}

/// Calls `twice`. Returns the priorities in the order of its entries. The returns must come in the
/// reverse order.
fn asked(log: &Order) -> Vec<i8> {
    assert_eq!(twice(1), 2);
    let mut returns = log.take();
    let entries: Vec<_> = returns.drain(..returns.len() / 2).collect();
    let reverse = entries
        .iter()
        .rev()
        .map(|&(_, priority, number)| ('<', priority, number));
    assert_eq!(returns, reverse.collect::<Vec<_>>());
    entries.iter().map(|&(_, priority, _)| priority).collect()
}

#[scenario]
fn any_16_priorities_in_any_order_of_registration_find_slots() {
    let log = Log::new();
    let ascending: Vec<i8> = (0..16).collect();
    let descending = ascending.iter().rev().copied().collect();
    let around_many: Vec<i8> = [0; 10]
        .into_iter()
        .chain([1, -1, 2, -2, 127, -128])
        .collect();
    let one_first = std::iter::once(10).chain([0; 15]).collect();
    for priorities in [ascending, descending, around_many, one_first] {
        let users = priorities.iter().enumerate();
        let users: Vec<_> = users
            .map(|(number, &priority)| with_data(&log, priority, number))
            .collect();
        let mut sorted = priorities;
        sorted.sort_unstable();
        assert_eq!(asked(&log), sorted);
        drop(users);
        assert_eq!(asked(&log), []);
    }
}

#[scenario]
fn users_of_any_priorities_come_and_go() {
    let (log, mut random) = (Log::new(), 1u64);
    let mut below = |bound: usize| {
        random = random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (random >> 33) as usize % bound
    };
    let mut users: Vec<(i8, Box<dyn std::any::Any>)> = Vec::new();
    for number in 0..300 {
        if users.len() == 16 || !users.is_empty() && below(5) < 2 {
            users.remove(below(users.len()));
        } else {
            let priority = below(256) as u8 as i8 / [1, 40][below(2)];
            users.push((priority, with_data(&log, priority, number)));
        }
        let mut sorted: Vec<_> = users.iter().map(|&(priority, _)| priority).collect();
        sorted.sort_unstable();
        assert_eq!(asked(&log), sorted, "{number}");
    }
}

#[scenario]
fn a_call_returns_in_the_order_in_which_it_was_entered_though_others_come() {
    let log = Log::new();
    let first: Vec<_> = (0..8).map(|n| with_data(&log, n, n as usize)).collect();
    let priorities = |told: Vec<(char, i8, usize)>| -> Vec<i8> {
        told.iter().map(|&(_, priority, _)| priority).collect()
    };
    let more = Rc::new(RefCell::new(Vec::new()));
    let (register, body_log) = (more.clone(), log.clone());
    BODY.set(Some(Box::new(move || {
        assert_eq!(priorities(body_log.take()), (0..8).collect::<Vec<_>>());
        // The order of all changes while the call goes on.
        let users = (0..8).map(|n| with_data(&body_log, 7 - n, 8 + n as usize));
        register.borrow_mut().extend(users);
    })));
    assert_eq!(twice(1), 2);
    assert_eq!(priorities(log.take()), (0..8).rev().collect::<Vec<_>>());
    drop(first);
    assert_eq!(asked(&log), (0..8).collect::<Vec<_>>());
}
