//! Users that do not get every call: disabled, watching some threads, sampling.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use fgraph::{Entry, Error, Options, thread_id};
use fgraph_scenario::{Count, scenario, user};

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn watched_twice(n: u64) -> u64 {
    black_box(n) * 2
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn watched_nested(depth: u64) -> u64 {
    match depth {
        0 => 0,
        _ => black_box(watched_nested(depth - 1)) + 1,
    }
}

/// A thread that does what it is told.
struct Worker {
    id: u32,
    work: mpsc::Sender<fn()>,
    done: mpsc::Receiver<()>,
}

impl Worker {
    fn new() -> Self {
        let (work, orders) = mpsc::channel::<fn()>();
        let (report, done) = mpsc::channel();
        let (tell, id) = mpsc::channel();
        thread::spawn(move || {
            tell.send(thread_id()).unwrap();
            for order in orders {
                order();
                report.send(()).unwrap();
            }
        });
        let id = id.recv().unwrap();
        Self { id, work, done }
    }

    fn run(&self, work: fn()) {
        self.work.send(work).unwrap();
        self.done.recv().unwrap();
    }
}

fn call_twice() {
    assert_eq!(watched_twice(21), 42);
}

#[scenario]
fn a_disabled_user_gets_no_calls_and_others_get_theirs() {
    let count = fgraph_scenario::register(Count::default(), "watched_twice").unwrap();
    assert!(count.is_enabled());
    let patched = fgraph::status().unwrap().patched;
    count.set_enabled(false);
    assert!(!count.is_enabled());
    assert_eq!(fgraph::status().unwrap().patched, patched);
    call_twice();
    // Also a thread that has no state yet.
    Worker::new().run(call_twice);
    assert_eq!(count.user().both(), (0, 0));
    let other = fgraph_scenario::register(Count::default(), "watched_twice").unwrap();
    call_twice();
    Worker::new().run(call_twice);
    assert_eq!((count.user().both(), other.user().both()), ((0, 0), (2, 2)));
    count.set_enabled(true);
    call_twice();
    assert_eq!((count.user().both(), other.user().both()), ((1, 1), (3, 3)));
    // The next user of the slot begins enabled.
    count.set_enabled(false);
    drop(count);
    let next: Vec<_> = (0..15)
        .map(|_| fgraph_scenario::register(Count::default(), "watched_twice").unwrap())
        .collect();
    call_twice();
    assert!(next.iter().all(|count| count.user().both() == (1, 1)));
}

#[scenario]
fn a_thread_may_be_named_many_times() {
    let count = fgraph_scenario::register(Count::default(), "watched_twice").unwrap();
    // SAFETY: they are only counted.
    let states = || unsafe { fgraph_core::FGRAPH.get().threads.iter() }.count();
    let (worker, before) = (Worker::new(), states());
    count.set_threads(Some(&[worker.id; 100])).unwrap();
    assert!(states() <= before + 1);
    call_twice();
    worker.run(call_twice);
    assert_eq!(count.user().both(), (1, 1));
}

#[scenario]
fn a_call_that_was_accepted_before_gets_its_return() {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let count = fgraph_scenario::register(Count::default(), "watched_nested").unwrap();
    let switch = std::sync::Arc::new(std::sync::OnceLock::new());
    let seen = switch.clone();
    let ops = user(
        move |_: &mut Entry<'_, ()>| {
            if CALLS.fetch_add(1, Ordering::Relaxed) == 2 {
                let count: &fgraph::Handle<Count> = seen.get().unwrap();
                // In a callback of another user, or of its own.
                count.set_enabled(false);
            }
            None
        },
        |_, ()| (),
    );
    assert!(switch.set(count).is_ok());
    let options = Options::new().priority(-1);
    let _switching = fgraph_scenario::register_with(ops, "watched_nested", &options).unwrap();
    assert_eq!(watched_nested(9), 9);
    let count = switch.get().unwrap();
    // The third call was offered to the users before the change.
    assert_eq!(count.user().both(), (3, 3));
    assert_eq!(count.counters().lost, 0);
}

#[scenario]
fn a_user_may_be_registered_disabled() {
    let options = Options::new().enabled(false);
    let count =
        fgraph_scenario::register_with(Count::default(), "watched_twice", &options).unwrap();
    call_twice();
    assert_eq!(count.user().both(), (0, 0));
    count.set_enabled(true);
    call_twice();
    assert_eq!(count.user().both(), (1, 1));
}

#[scenario]
fn a_user_watches_the_threads_that_it_names() {
    let (seen, unseen) = (Worker::new(), Worker::new());
    let count = fgraph_scenario::register(Count::default(), "watched_twice").unwrap();
    let other = fgraph_scenario::register(Count::default(), "watched_twice").unwrap();
    // One of them has called before, and none has after this.
    seen.run(call_twice);
    assert_eq!((count.user().both(), other.user().both()), ((1, 1), (1, 1)));
    let patched = fgraph::status().unwrap().patched;
    count
        .set_threads(Some(&[unseen.id, seen.id, unseen.id]))
        .unwrap();
    assert_eq!(fgraph::status().unwrap().patched, patched);
    assert!(
        fgraph::threads()
            .iter()
            .all(|thread| thread.id != unseen.id)
    );
    call_twice();
    seen.run(call_twice);
    unseen.run(call_twice);
    assert_eq!((count.user().both(), other.user().both()), ((3, 3), (4, 4)));
    assert!(
        fgraph::threads()
            .iter()
            .any(|thread| thread.id == unseen.id)
    );
    // A thread that begins later is not watched.
    let later = Worker::new();
    later.run(call_twice);
    assert_eq!((count.user().both(), other.user().both()), ((3, 3), (5, 5)));
    count.set_threads(Some(&[later.id])).unwrap();
    seen.run(call_twice);
    unseen.run(call_twice);
    later.run(call_twice);
    assert_eq!((count.user().both(), other.user().both()), ((4, 4), (8, 8)));
    // No thread at all, and all.
    count.set_threads(Some(&[])).unwrap();
    later.run(call_twice);
    assert_eq!(count.user().both(), (4, 4));
    count.set_threads(None).unwrap();
    later.run(call_twice);
    call_twice();
    Worker::new().run(call_twice);
    assert_eq!(count.user().both(), (7, 7));
    // The next user of the slot watches all threads.
    count.set_threads(Some(&[])).unwrap();
    drop(count);
    let next: Vec<_> = (0..15)
        .map(|_| fgraph_scenario::register(Count::default(), "watched_twice").unwrap())
        .collect();
    call_twice();
    Worker::new().run(call_twice);
    assert!(next.iter().all(|count| count.user().both() == (2, 2)));
}

#[scenario]
fn threads_that_begin_while_they_are_named_are_watched() {
    let count = fgraph_scenario::register(Count::default(), "watched_twice").unwrap();
    let mut calls = 0;
    for _ in 0..300 {
        let worker = Worker::new();
        // Meanwhile it makes its first call, which may be watched or not.
        worker.work.send(call_twice).unwrap();
        count.set_threads(Some(&[worker.id])).unwrap();
        worker.done.recv().unwrap();
        let first = count.user().both().0 - calls;
        assert!(first <= 1);
        worker.run(call_twice);
        call_twice();
        calls += first + 1;
        assert_eq!(count.user().both().0, calls);
    }
}

#[scenario]
fn a_thread_that_is_gone_or_not_ours_cannot_be_named() {
    let count = fgraph_scenario::register(Count::default(), "watched_twice").unwrap();
    let gone = thread::spawn(|| {
        call_twice();
        thread_id()
    });
    let gone = gone.join().unwrap();
    fgraph_scenario::until_gone(gone);
    // The first process is there, and none of our threads.
    for id in [gone, 0, 1, 1 << 31, u32::MAX] {
        let error = count.set_threads(Some(&[thread_id(), id])).unwrap_err();
        assert_eq!(error, Error::NoSuchThread { id });
        assert!(error.to_string().contains(&id.to_string()), "{error}");
    }
    // All are watched as before.
    call_twice();
    Worker::new().run(call_twice);
    assert_eq!(count.user().both(), (3, 3));
}

#[scenario]
fn a_user_that_samples_gets_the_last_of_each_period_in_each_thread() {
    let sampled = |period| {
        let options = Options::new().sample(period);
        fgraph_scenario::register_with(Count::default(), "watched_twice watched_nested", &options)
            .unwrap()
    };
    let [all, also_all, tenth, never] = [0, 1, 10, u32::MAX].map(sampled);
    for _ in 0..9 {
        call_twice();
    }
    assert_eq!(
        (all.user().both(), also_all.user().both()),
        ((9, 9), (9, 9))
    );
    assert_eq!(tenth.user().both(), (0, 0));
    // Functions are counted together.
    watched_nested(0);
    assert_eq!(tenth.user().both(), (1, 1));
    // Another thread counts by itself.
    let worker = Worker::new();
    for _ in 0..19 {
        worker.run(call_twice);
    }
    assert_eq!(tenth.user().both(), (2, 2));
    worker.run(call_twice);
    assert_eq!(tenth.user().both(), (3, 3));
    // Each nested call has its return, too.
    watched_nested(99);
    assert_eq!(tenth.user().both(), (13, 13));
    assert_eq!(
        (all.user().both(), never.user().both()),
        ((130, 130), (0, 0))
    );
}
