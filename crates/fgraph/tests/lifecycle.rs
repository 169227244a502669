//! Users come, go on after a panic, and go; and their callbacks run in an order.

use std::hint::black_box;
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fgraph::{Entry, Error, FgraphOps, Handle, Options, RegisterError, UserStatus};
use fgraph_scenario::{Count, Log, is_patched, scenario, user};

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn twice(n: u64) -> u64 {
    black_box(n) * 2
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
    assert_eq!(failed.error, Error::NoFreeSlot);
    assert_eq!(failed.to_string(), "all 16 slots are taken");
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
    assert_eq!(beside.both(), (4, 4));
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

#[scenario]
fn a_priority_without_a_free_slot_is_refused() {
    let _low = with_priority(Count::default(), -127).unwrap();
    let failed = with_priority(Count::default(), -128).unwrap_err();
    assert_eq!(failed.error, Error::PriorityClash { priority: -128 });
    assert!(
        failed.to_string().ends_with("priority than -128"),
        "{failed}"
    );
    let _usual = with_priority(Count::default(), 0).unwrap();
    assert_eq!(twice(1), 2);
}
