//! The tools of this kernel, each alone.

use super::stage::{register, scene};
use crate::clock;
use crate::cpu;
use crate::serial::println;
use crate::users::depth::Depth;
use crate::users::graph::Graph;
use crate::users::latency::Latency;
use crate::users::profiler::Profiler;
use crate::work;

const CALLS: &str = "kernel::work::outer kernel::work::middle kernel::work::leaf";

/// Prints some calls with their durations.
pub(super) fn graph() {
    scene("function graph");
    let graph = register(Graph::new(), CALLS);
    let result = cpu::without_interrupts(|| work::outer(7));
    let graph = graph.unregister();
    assert!(result == work::outer_result(7));
    graph.print(100);
    let (events, lost) = graph.events();
    println!("events {events}, lost {lost}");
}

/// Counts calls.
pub(super) fn profiler() {
    scene("profiler");
    let profiler = register(Profiler::new(), CALLS);
    for value in 0..100 {
        assert!(work::outer(value) == work::outer_result(value));
    }
    let profiler = profiler.unregister();
    for name in ["::outer", "::middle", "::leaf", "::descend"] {
        println!("calls of {name}: {}", profiler.calls(name));
    }
    profiler.print(2);
}

/// Measures interrupts, also while they are disabled.
pub(super) fn latency() {
    scene("interrupt latency");
    const PAUSE: u64 = 3_000_000;
    let latency = register(Latency::default(), "*::timer_tick");
    let end = clock::now() + 5_000_000_000;
    while latency.ops().interrupts() <= 20 && clock::now() < end {
        clock::wait(1_000_000);
    }
    let before = latency.ops().interrupts();
    cpu::without_interrupts(|| clock::wait(PAUSE));
    clock::wait(1_000_000);
    let latency = latency.unregister();
    let is_found = latency.latest() >= PAUSE - 1_000_000;
    latency.print();
    println!("interrupts are seen: {}", before > 20);
    println!("the pause is seen: {is_found}");
    assert!(latency.interrupts() >= before);
}

/// Finds the deepest stack.
pub(super) fn depth() {
    scene("stack depth");
    let depth = register(Depth::default(), "kernel::work::leaf");
    cpu::without_interrupts(|| work::descend(30));
    let depth = depth.unregister();
    assert!(depth.deepest() > 30 * 16);
    println!("the deepest stack has more than 480 bytes");
    depth.print_calls(3);
}
