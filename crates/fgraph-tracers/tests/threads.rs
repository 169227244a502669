//! Functions on the wrong thread, reported once for each place, with both threads.

use std::hint::black_box;
use std::thread;

use fgraph::{Error, Filter, FilterError};
use fgraph_scenario::scenario;
use fgraph_tracers::threads::{Rule, ThreadChecker};

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn draws(n: u64) -> u64 {
    black_box(n) + 1
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn blocks(n: u64) -> u64 {
    black_box(n) + 2
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn one_place(n: u64) -> u64 {
    black_box(draws(n)) + 1
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn another_place(n: u64) -> u64 {
    black_box(draws(n)) + 2
}

/// Runs `body` on the main thread, where a scenario may run as well.
fn on_main_thread(body: fn()) {
    if fgraph::thread_id() == std::process::id() {
        body();
    } else {
        fgraph_scenario::on_main_thread(body);
    }
}

fn on_thread(name: &str, work: impl FnOnce() + Send + 'static) {
    let builder = thread::Builder::new().name(name.to_owned());
    builder.spawn(work).unwrap().join().unwrap();
}

#[scenario]
fn each_place_is_reported_once_with_both_threads() {
    on_main_thread(|| {
        let rules = [
            (Rule::MainOnly, "draws"),
            (Rule::WorkerOnly, "blocks *_place !blocks"),
        ];
        let checker = ThreadChecker::start(rules).unwrap();
        // Callers are known that some user wants the return of.
        let _callers =
            fgraph_scenario::register(fgraph_scenario::Count::default(), "*_place").unwrap();
        let before = checker.violations();
        assert_eq!(before, []);
        draws(1);
        on_thread("painter", || {
            for n in 0..10 {
                one_place(n);
                another_place(n);
            }
        });
        on_thread("other", || assert_eq!(one_place(1), 3));
        let reports = checker.violations();
        assert_eq!(reports.len(), 2, "{reports:?}");
        let names = ["one_place", "another_place"];
        for (report, caller) in reports.iter().zip(names) {
            assert_eq!((&*report.function, report.rule), ("draws", Rule::MainOnly));
            assert_eq!(report.wrong.thread_name, "painter");
            assert_ne!(report.wrong.thread, fgraph::thread_id());
            let right = report.right.as_ref().unwrap();
            assert_eq!(right.thread, fgraph::thread_id());
            let text = report.to_string();
            assert!(
                text.contains(&format!("\"painter\" at {caller}+0x")),
                "{text}"
            );
        }
        assert_eq!(checker.dropped(), 0);
    });
}

#[scenario]
fn worker_only_calls_are_reported_on_the_main_thread() {
    on_main_thread(|| {
        let checker = ThreadChecker::start([(Rule::WorkerOnly, "blocks")]).unwrap();
        on_thread("worker", || assert_eq!(blocks(1), 3));
        assert_eq!(checker.violations(), []);
        blocks(2);
        let [report] = &checker.violations()[..] else {
            panic!("{:?}", checker.violations());
        };
        assert_eq!(
            (&*report.function, report.rule),
            ("blocks", Rule::WorkerOnly)
        );
        assert_eq!(report.wrong.thread, fgraph::thread_id());
        assert_eq!(report.right.as_ref().unwrap().thread_name, "worker");
    });
}

#[scenario]
fn a_forked_child_has_its_own_main_thread() {
    let checker = ThreadChecker::start([(Rule::MainOnly, "draws")]).unwrap();
    let status = fgraph_scenario::forked(|| {
        draws(1);
        checker.violations().len() as i32
    });
    assert_eq!(status.code(), Some(0));
}

#[scenario]
fn a_rule_with_a_predicate_is_an_error() {
    let rule = (Rule::MainOnly, Filter::none().predicate(|_| true));
    let error = ThreadChecker::start([rule]).unwrap_err();
    assert_eq!(error, Error::Filter(FilterError::PredicateAsText));
}
