//! The slowest calls, with what was called in them.

mod sqlite;

use std::hint::black_box;
use std::thread;
use std::time::Duration;

use fgraph_needs::needs;
use fgraph_scenario::scenario;
use fgraph_tracers::outliers::{Limits, Outliers, SlowCall};
use sqlite::Sqlite;

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn request(steps: u64) -> u64 {
    (0..steps).fold(0, |sum, n| sum + black_box(step(n)))
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

#[scenario]
fn the_slowest_calls_are_kept_with_their_trees() {
    let limits = Limits {
        calls: 2,
        nodes: 11,
    };
    let outliers = Outliers::start("request", "step inner_step", limits).unwrap();
    // Calls outside of a request are not kept.
    step(1);
    for steps in [1, 6, 2, 4, 1, 0] {
        request(steps);
    }
    let slowest = outliers.slowest();
    let steps: Vec<_> = slowest
        .iter()
        .map(|call| call.tree.len() + call.left_out)
        .collect();
    assert_eq!(steps, [1 + 2 * 6, 1 + 2 * 4]);
    assert_eq!(slowest[0].left_out, 2);
    assert!(slowest[0].took >= Duration::from_millis(6));
    let mut expected = vec![("request".to_owned(), 0)];
    for _ in 0..4 {
        expected.extend([("step".to_owned(), 1), ("inner_step".to_owned(), 2)]);
    }
    assert_eq!(names(&slowest[1]), expected);
    slowest.iter().for_each(check);
    assert!(slowest[0].to_string().ends_with("| 2 more calls\n"));
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
