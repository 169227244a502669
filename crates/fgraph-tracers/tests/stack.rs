//! Depths of stacks, and the calls that take them.

use std::hint::black_box;
use std::thread;

use fgraph_scenario::scenario;
use fgraph_tracers::stack::{StackTracer, ThreadStack};

/// Bytes that each call of `descends` needs at least.
const FRAME: usize = 2000;

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn descends(n: u64) -> u64 {
    let room = black_box([n as u8; FRAME]);
    if n == 0 {
        return room[0].into();
    }
    black_box(descends(n - 1)) + u64::from(black_box(&room)[1])
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn top(n: u64) -> u64 {
    black_box(descends(n)) + 1
}

fn function(address: usize) -> String {
    fgraph::function_at(address).unwrap().name().to_string()
}

fn check(stack: &ThreadStack, descents: usize) {
    let names: Vec<_> = stack
        .calls
        .iter()
        .map(|call| function(call.function))
        .collect();
    let mut expected = vec!["descends"; descents + 1];
    expected.push("top");
    assert_eq!(names, expected, "{stack}");
    let depths: Vec<_> = stack.calls.iter().map(|call| call.depth).collect();
    assert!(depths.is_sorted_by(|deeper, other| deeper > other));
    assert_eq!((depths[0], stack.traced_bytes), (stack.bytes, stack.bytes));
    assert!(stack.bytes > descents * FRAME && stack.bytes < stack.size);
    let sizes: Vec<_> = stack.calls.iter().map(|call| call.size).collect();
    assert_eq!(sizes.iter().sum::<usize>(), stack.bytes);
    // All calls of `descends` but the first need the same.
    assert!(
        sizes[..descents]
            .iter()
            .all(|&size| size == sizes[0] && size > FRAME)
    );
}

#[scenario]
fn the_deepest_calls_are_known_with_their_bytes() {
    let tracer = StackTracer::start("top descends").unwrap();
    for descents in [3, 7, 5] {
        let work = move || top(descents);
        let builder = thread::Builder::new().stack_size(256 << 10);
        builder.spawn(work).unwrap().join().unwrap();
    }
    let stacks = tracer.deepest();
    assert_eq!(stacks.len(), 3);
    for (stack, descents) in stacks.iter().zip([7, 5, 3]) {
        check(stack, descents);
        assert!(stack.size <= 300 << 10);
    }
    let text = stacks[0].to_string();
    assert!(text.starts_with("        Depth    Size   Location    (9 entries)\n"));
    assert!(text.contains("descends\n") && text.ends_with("top\n"));
}

#[scenario]
fn a_deeper_call_takes_the_place_of_the_deepest_until_a_reset() {
    let tracer = StackTracer::start("top descends").unwrap();
    let deepest = || tracer.deepest().first().cloned();
    for (descents, expected) in [(2, 2), (6, 6), (1, 6)] {
        top(descents);
        check(&deepest().unwrap(), expected);
    }
    tracer.reset();
    assert_eq!(deepest(), None);
    top(1);
    check(&deepest().unwrap(), 1);
}

#[scenario]
fn a_stack_that_is_still_deep_has_a_backtrace() {
    static TRACER: std::sync::OnceLock<StackTracer> = std::sync::OnceLock::new();
    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn stack_looks(n: u64) -> usize {
        let room = black_box([1_u8; FRAME]);
        if n > 0 {
            return black_box(stack_looks(n - 1)) + usize::from(black_box(&room)[2]) - 1;
        }
        let stack = TRACER.get().unwrap().deepest().remove(0);
        assert!(stack.traced_bytes >= stack.bytes / 10 * 8, "{stack:?}");
        stack.calls.len()
    }
    TRACER.get_or_init(|| StackTracer::start("stack_looks").unwrap());
    assert!(stack_looks(40) >= 30);
}
