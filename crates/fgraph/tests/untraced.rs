//! Keeping a thread from being traced for a while, and counting what fgraph itself called.

use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::panic::{self, AssertUnwindSafe};
use std::thread;

use fgraph::{Entry, FgraphOps, LibraryEvent, Untraced, untraced};
use fgraph_needs::{CC, needs};
use fgraph_scenario::{Count, Library, scenario, user};

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn untraced_twice(n: u64) -> u64 {
    black_box(n) * 2
}

#[scenario]
fn a_thread_is_not_traced_while_a_guard_lives() {
    // Before anything is traced a thread has no state yet.
    assert_eq!(untraced(|| untraced_twice(1)), 2);
    let count = fgraph_scenario::register(Count::default(), "untraced_twice").unwrap();
    let before = count.counters();
    assert_eq!(untraced(|| untraced_twice(1)), 2);
    assert_eq!(count.user().both(), (0, 0));
    let outer = Untraced::new();
    let inner = Untraced::new();
    drop(outer);
    assert_eq!(untraced_twice(1), 2);
    // Other threads are.
    thread::spawn(|| assert_eq!(untraced_twice(1), 2))
        .join()
        .unwrap();
    assert_eq!(count.user().both(), (1, 1));
    // A filter may be changed meanwhile, and the thread stays untraced.
    let other = fgraph_scenario::register(Count::default(), "untraced_twice").unwrap();
    assert_eq!(untraced_twice(1), 2);
    drop(inner);
    assert_eq!((count.user().both(), other.user().both()), ((1, 1), (0, 0)));
    assert_eq!(untraced_twice(1), 2);
    assert_eq!((count.user().both(), other.user().both()), ((2, 2), (1, 1)));
    // None of these calls is in a counter.
    assert_eq!(count.counters(), before);
    let thrown = panic::catch_unwind(AssertUnwindSafe(|| {
        untraced(|| panic::resume_unwind(Box::new(7)));
    }));
    assert!(thrown.is_err());
    assert_eq!(untraced_twice(1), 2);
    assert_eq!(count.user().both(), (3, 3));
}

thread_local! {
    static GUARD: RefCell<Option<Untraced>> = const { RefCell::new(None) };
}

/// Drops the thread's guard, or makes one, when a library comes or goes.
struct Toggles;

impl FgraphOps for Toggles {
    type Data = ();

    fn entry(&self, _: &mut Entry<'_, ()>) -> Option<()> {
        None
    }

    fn library(&self, _: &LibraryEvent<'_>) {
        GUARD.with_borrow_mut(|guard| {
            *guard = match guard {
                Some(_) => None,
                None => Some(Untraced::new()),
            };
        });
    }
}

#[scenario]
fn guards_come_and_go_in_callbacks_for_libraries() {
    let source = "int nothing(void) { return 0; }";
    let path = needs!(fgraph_scenario::build_library(&CC, "more.c", source, &[]));
    let count = fgraph_scenario::register(Count::default(), "untraced_twice").unwrap();
    let _toggles = fgraph_scenario::register(Toggles, "untraced_twice").unwrap();
    let calls = |library: &dyn Fn()| {
        let before = count.user().both().0;
        library();
        assert_eq!(untraced_twice(1), 2);
        let is_guarded = GUARD.with_borrow(Option::is_some);
        (is_guarded, count.user().both().0 - before)
    };
    assert_eq!(calls(&|| ()), (false, 1));
    let library = Cell::new(None);
    let open = || library.set(Some(Library::open(&path)));
    assert_eq!(calls(&open), (true, 0));
    assert_eq!(calls(&|| drop(library.take().unwrap().close())), (false, 1));
}

#[scenario]
fn a_guard_in_a_callback_changes_nothing() {
    let ops = user(
        |_: &mut Entry<'_, ()>| {
            untraced(|| assert_eq!(untraced_twice(1), 2));
            Some(())
        },
        |_, ()| (),
    );
    let guards = fgraph_scenario::register(ops, "untraced_twice").unwrap();
    let count = fgraph_scenario::register(Count::default(), "untraced_twice").unwrap();
    assert_eq!(untraced_twice(1), 2);
    assert_eq!(untraced_twice(1), 2);
    assert_eq!(count.user().both(), (2, 2));
    // The calls in the callback are missed, as without the guard.
    assert_eq!(guards.counters().missed, 2);
    assert_eq!(guards.counters().internal, 0);
}

#[scenario]
fn calls_of_fgraph_are_counted_apart() {
    let count = fgraph_scenario::register(Count::default(), "malloc").unwrap();
    let before = count.counters();
    // This allocates, and is fgraph's own work.
    let other = fgraph_scenario::register(Count::default(), "untraced_twice").unwrap();
    let after = count.counters();
    assert!(after.internal > before.internal, "{before} {after}");
    assert_eq!(after.missed, before.missed);
    drop(other);
}
