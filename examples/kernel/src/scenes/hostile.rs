//! Tasks that end in the middle, stacks that are full, and an anomaly.

use core::hint;
use core::sync::atomic::{AtomicU32, Ordering};

use fgraph_core::{Entry, FgraphOps, stop};

use super::stage::{register, run_task, scene};
use crate::barrier;
use crate::clock;
use crate::memory;
use crate::serial::println;
use crate::tasks;
use crate::trace::state;
use crate::trace::{contexts, control};
use crate::users::checker::Checker;
use crate::work;

/// The number of the task that panics because its scene wants it to; 0 for none.
pub(crate) static PANICS: AtomicU32 = AtomicU32::new(0);

/// No memory is writable and executable, while text is patched.
pub(super) fn memory() {
    scene("memory");
    println!("processors: {}", barrier::processors());
    let user = register(Checker::new(0), "kernel::*");
    let (pages, both) = memory::check();
    user.unregister();
    println!("all pages are checked: {}", pages > 1000);
    println!("writable and executable: {both}");
}

/// Waits in its callback until a call of an interrupt was traced.
#[derive(Debug)]
struct Waiter;

impl FgraphOps for Waiter {
    type Data = ();

    fn entry(&self, _call: &mut Entry<'_, ()>) -> Option<()> {
        let end = clock::now() + 5_000_000_000;
        while SEEN.load(Ordering::Relaxed) == 0 && clock::now() < end {
            hint::spin_loop();
        }
        None
    }
}

/// Calls of interrupts that came in a callback.
static SEEN: AtomicU32 = AtomicU32::new(0);

/// Counts the calls of interrupts that have a state of their own.
#[derive(Debug)]
struct Watcher;

impl FgraphOps for Watcher {
    type Data = ();

    fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
        let is_of_interrupt = contexts::has(call.thread_id());
        SEEN.fetch_add(u32::from(is_of_interrupt), Ordering::Relaxed);
        None
    }
}

/// Interrupts come in a callback.
pub(super) fn interrupted_callback() {
    scene("interrupts in a callback");
    let watcher = register(Watcher, "*::timer_tick");
    let waiter = register(Waiter, "kernel::work::outer");
    work::outer(1);
    waiter.unregister();
    watcher.unregister();
    println!(
        "their calls are traced: {}",
        SEEN.load(Ordering::Relaxed) > 0
    );
}

/// A task panics in a traced function.
pub(super) fn panic() {
    scene("panic");
    let user = register(Checker::new(0), "kernel::work::panic_within");
    let is_ended = run_task(|| {
        PANICS.store(tasks::number(tasks::current()), Ordering::Relaxed);
        work::panic_within(3);
    });
    println!("a fault has ended the task: {is_ended}");
    finish("panic", user.unregister());
}

/// Tasks end inside of traced calls.
pub(super) fn ended_tasks() {
    scene("tasks that end with frames");
    const TASKS: usize = 50;
    let user = register(Checker::new(0), "kernel::work::end_within");
    for _ in 0..TASKS {
        run_task(|| {
            work::end_within(5);
        });
    }
    println!("lost calls: {}", user.counters().lost);
    finish("ended tasks", user.unregister());
}

/// A task uses up its stack in traced calls.
pub(super) fn overflow() {
    scene("stack overflow");
    let user = register(Checker::new(0), "kernel::work::overflow");
    let is_ended = run_task(|| {
        work::overflow(0);
    });
    println!("a fault has ended the task: {is_ended}");
    let counters = user.counters();
    println!(
        "calls near the end are not traced: {}",
        counters.overrun > 0
    );
    println!("others are lost: {}", counters.lost > 0);
    finish("overflow", user.unregister());
}

/// Prints whether a user has got what it should.
fn finish(name: &str, user: Checker) {
    let failures = user.failures.load(Ordering::Relaxed);
    println!(
        "{name}: {failures} failures, {} returns",
        user.returned.load(Ordering::Relaxed)
    );
}

/// A return finds no frame: fgraph stops, and the kernel goes on.
pub(super) fn anomaly() {
    scene("anomaly");
    // Nothing that an interrupt calls: its frame would take the place of those that are lost.
    let user = register(Checker::new(0), "kernel::work::los* kernel::work::outer");
    println!("stopped: {}", stop::reason());
    let is_right = work::losing(1) == work::losing_result(1);
    println!("the call has returned: {is_right}");
    println!("stopped: {}", stop::reason());
    let before = user.ops().accepted.load(Ordering::Relaxed);
    for value in 0..10 {
        assert!(work::outer(value) == work::outer_result(value));
    }
    let after = user.ops().accepted.load(Ordering::Relaxed);
    println!("calls that the user gets: {}", after - before);
    match control::register(Checker::new(1), "kernel::work::*", true) {
        Ok(_) => println!("another user is registered"),
        Err((_, error)) => println!("another user: {error}"),
    }
    user.unregister();
    println!("patched: {}", control::patched());
    state::reap();
}
