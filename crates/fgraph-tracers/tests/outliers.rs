//! The slowest calls, with what was called in them.

use std::collections::HashMap;
use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use crate::sqlite::{self, Sqlite};
use fgraph_needs::needs;
use fgraph_scenario::scenario;
use fgraph_tracers::outliers::{Limits, Outliers, SlowCall};

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn outlier_request(steps: u64, longer_than_ns: u64) -> u64 {
    let longer_than = Duration::from_nanos(longer_than_ns);
    let begin = Instant::now();
    (0..steps).for_each(|n| _ = black_box(step(n)));
    while begin.elapsed() <= longer_than {
        thread::yield_now();
    }
    black_box(begin.elapsed().as_nanos() as u64)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn step(n: u64) -> u64 {
    thread::sleep(Duration::from_millis(1));
    black_box(inner_step(n))
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn inner_step(n: u64) -> u64 {
    black_box(n)
}

fn names(call: &SlowCall) -> Vec<(String, usize)> {
    let nodes = call.tree.iter();
    let name = |function| fgraph::function_at(function).unwrap().name().to_string();
    nodes
        .map(|node| (name(node.function), node.depth))
        .collect()
}

/// A tree is one: each call lies within the one around it.
fn check(call: &SlowCall) {
    let mut open: Vec<(usize, Duration)> = Vec::new();
    for node in &call.tree {
        open.truncate(node.depth);
        assert_eq!(open.len(), node.depth);
        let end = node.after + node.took.unwrap();
        if let Some((_, around)) = open.last() {
            assert!(end <= *around);
        }
        open.push((node.depth, end));
    }
    assert_eq!(call.tree[0].took, Some(call.took));
}

/// Bounds of the time that a request took.
struct Bounds {
    inside: Duration,
    around: Duration,
}

#[scenario]
fn the_slowest_calls_are_kept_with_their_trees() {
    let limits = Limits {
        calls: 2,
        nodes: 11,
    };
    let outliers = Outliers::start("outlier_request", "step inner_step", limits).unwrap();
    // Calls outside of a request are not kept.
    step(1);
    let mut bounds: HashMap<u64, Bounds> = HashMap::new();
    for steps in [1, 2, 4, 3, 6, 0] {
        // The second last one is slower than those before it, so it is one of the two slowest.
        let before = bounds.values().map(|bounds| bounds.around);
        let longer_than = before.max().filter(|_| steps == 6).unwrap_or_default();
        let begin = Instant::now();
        let inside = Duration::from_nanos(outlier_request(steps, longer_than.as_nanos() as u64));
        let around = begin.elapsed();
        bounds.insert(steps, Bounds { inside, around });
    }
    let slowest = outliers.slowest();
    assert_eq!(slowest.len(), 2);
    assert!(slowest[0].took >= slowest[1].took);
    let steps = |call: &SlowCall| (call.tree.len() + call.left_out - 1) as u64 / 2;
    for call in &slowest {
        let bounds = bounds.remove(&steps(call)).unwrap();
        assert!(bounds.inside <= call.took && call.took <= bounds.around);
        let mut expected = vec![("outlier_request".to_owned(), 0)];
        for _ in 0..steps(call) {
            expected.extend([("step".to_owned(), 1), ("inner_step".to_owned(), 2)]);
        }
        expected.truncate(11);
        assert_eq!(names(call), expected);
        check(call);
    }
    let is_as_slow = |other: &Bounds| slowest[1].took >= other.inside;
    assert!(bounds.values().all(is_as_slow));
    let longest = slowest.iter().find(|call| steps(call) == 6).unwrap();
    assert_eq!(longest.left_out, 2);
    assert!(longest.to_string().ends_with("| 2 more calls\n"));
    assert_eq!(outliers.lost(), 0);
}

#[scenario]
fn threads_have_their_slowest_calls_read_while_they_run() {
    let sqlite = needs!(Sqlite::load());
    let limits = Limits {
        calls: 5,
        nodes: 200,
    };
    let outliers = Outliers::start("sqlite3_step", ":mod:libsqlite3.so.0", limits).unwrap();
    thread::scope(|scope| {
        let worker = || assert_eq!(sqlite.run_script(), sqlite::ROWS);
        let workers = [(); 3].map(|()| scope.spawn(worker));
        while workers.iter().any(|worker| !worker.is_finished()) {
            let slowest = outliers.slowest();
            slowest.iter().for_each(check);
            assert!(slowest.is_sorted_by(|slow, other| slow.took >= other.took));
            thread::yield_now();
        }
    });
    let slowest = outliers.slowest();
    assert_eq!(slowest.len(), 5);
    assert!(
        slowest
            .iter()
            .all(|call| names(call)[0].0 == "sqlite3_step")
    );
    assert!(slowest[0].tree.len() > 1);
    assert_eq!(outliers.lost(), 0);
}
