//! The parts that scenes share.

use fgraph_core::FgraphOps;

use crate::serial::println;
use crate::tasks;
use crate::trace::control::{self, User};
use crate::trace::state;

/// Announces a scene.
pub(super) fn scene(name: &str) {
    println!("scene: {name}");
}

/// Registers a user that takes the fast path.
pub(super) fn register<T: FgraphOps>(ops: T, filter: &str) -> User<T> {
    match control::register(ops, filter, true) {
        Ok(user) => user,
        Err((_, error)) => panic!("{error}"),
    }
}

/// Starts a task, and waits for its end. Returns true if a fault has ended it.
pub(super) fn run_task(work: impl FnOnce() + Send + 'static) -> bool {
    let Some(task) = tasks::spawn(work) else {
        panic!("too many tasks");
    };
    let number = tasks::number(task);
    while tasks::is_alive(number) {
        tasks::give_way();
    }
    let mut by_fault = 0;
    let mut ended = 0;
    while ended == 0 {
        let (some, faults) = state::reap();
        ended += some;
        by_fault += faults;
    }
    by_fault != 0
}
