//! Work to be traced: functions of known results, which call each other, and those that interrupts
//! call.

use core::hint::black_box;
use core::sync::atomic::{AtomicU64, Ordering};

use alloc::vec::Vec;

/// Interrupts of the timer, of both processors.
static TICKS: AtomicU64 = AtomicU64::new(0);
static NMIS: AtomicU64 = AtomicU64::new(0);
/// The longest time in nanoseconds from the due time of a timer interrupt to its handler.
static LATEST: AtomicU64 = AtomicU64::new(0);

/// A value that is easily recomputed.
const fn mix(value: u64) -> u64 {
    value.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17)
}

/// Computes one value.
#[inline(never)]
pub(crate) fn leaf(value: u64) -> u64 {
    mix(black_box(value))
}

/// Returns the result of [`leaf`].
pub(crate) const fn leaf_result(value: u64) -> u64 {
    mix(value)
}

/// Calls [`leaf`] twice.
#[inline(never)]
pub(crate) fn middle(one: u64, other: u64) -> u64 {
    leaf(one) ^ leaf(other)
}

/// Calls [`middle`] and [`leaf`].
#[inline(never)]
pub(crate) fn outer(value: u64) -> u64 {
    let both = middle(value, value + 1);
    both.wrapping_add(leaf(value + 2))
}

/// Returns the result of [`outer`].
pub(crate) const fn outer_result(value: u64) -> u64 {
    (mix(value) ^ mix(value + 1)).wrapping_add(mix(value + 2))
}

/// Calls itself `depth` times.
#[inline(never)]
pub(crate) fn descend(depth: u64) -> u64 {
    match depth {
        0 => leaf(0),
        _ => descend(black_box(depth - 1)).wrapping_add(depth),
    }
}

/// Returns the result of [`descend`].
pub(crate) const fn descend_result(depth: u64) -> u64 {
    mix(0).wrapping_add(depth * (depth + 1) / 2)
}

/// Takes arguments in registers and on the stack.
#[inline(never)]
#[allow(clippy::too_many_arguments, reason = "some of them are on the stack")]
pub(crate) fn many(
    one: u64,
    two: u64,
    three: u64,
    four: u64,
    five: u64,
    six: u64,
    seven: u64,
    eight: u64,
) -> u64 {
    let low = one + 2 * two + 3 * three + 4 * four;
    leaf(low) ^ mix(five + 2 * six + 3 * seven + 4 * eight)
}

/// Returns the result of [`many`] with `value` and the seven that follow it.
pub(crate) const fn many_result(value: u64) -> u64 {
    mix(10 * value + 20) ^ mix(10 * value + 60)
}

/// Returns a result in two registers.
#[inline(never)]
pub(crate) fn pair(value: u64) -> (u64, u64) {
    (leaf(value), leaf(value + 1))
}

/// Uses the allocator, and checks what it has stored.
#[inline(never)]
pub(crate) fn allocate(len: usize, value: u64) -> bool {
    let values: Vec<u64> = (0..len as u64).map(|nth| leaf(value + nth)).collect();
    let boxed = alloc::boxed::Box::new(black_box(values));
    (0..len as u64)
        .zip(boxed.iter())
        .all(|(nth, &found)| found == mix(value + nth))
}

/// Ends the running task from inside of some calls.
#[inline(never)]
pub(crate) fn end_within(depth: u64) -> u64 {
    if depth == 0 {
        crate::tasks::exit();
    }
    end_within(black_box(depth - 1)) + 1
}

/// Panics inside of some calls.
#[inline(never)]
pub(crate) fn panic_within(depth: u64) -> u64 {
    if depth == 0 {
        panic!("the disk is on fire");
    }
    panic_within(black_box(depth - 1)) + 1
}

/// Uses up the stack.
#[inline(never)]
#[allow(unconditional_recursion, reason = "it ends with the stack")]
pub(crate) fn overflow(depth: u64) -> u64 {
    let room = black_box([depth; 32]);
    overflow(black_box(depth + 1)) + room[0]
}

/// Loses the frames of its own task while traced calls are in progress.
#[inline(never)]
pub(crate) fn losing(value: u64) -> u64 {
    let within = lose(value);
    mix(value).wrapping_add(within)
}

/// Called by [`losing`].
#[inline(never)]
pub(crate) fn lose(value: u64) -> u64 {
    crate::trace::state::lose_frames();
    black_box(value + 1)
}

/// Returns the result of [`losing`].
pub(crate) const fn losing_result(value: u64) -> u64 {
    mix(value).wrapping_add(value + 1)
}

/// Called by the timer's interrupt, `late` nanoseconds after it was due.
#[inline(never)]
pub(crate) fn timer_tick(late: u64) -> u64 {
    LATEST.fetch_max(late, Ordering::Relaxed);
    count_tick()
}

/// Called by [`timer_tick`].
#[inline(never)]
pub(crate) fn count_tick() -> u64 {
    TICKS.fetch_add(1, Ordering::Relaxed)
}

/// Called by NMIs.
#[inline(never)]
pub(crate) fn nmi_work(number: u64) -> u64 {
    count_nmi().wrapping_add(number)
}

/// Called by [`nmi_work`].
#[inline(never)]
pub(crate) fn count_nmi() -> u64 {
    NMIS.fetch_add(1, Ordering::Relaxed)
}

/// Returns the numbers of timer interrupts and of NMIs so far.
pub(crate) fn counts() -> (u64, u64) {
    (TICKS.load(Ordering::Relaxed), NMIS.load(Ordering::Relaxed))
}

/// Returns the longest delay of a timer interrupt since the last call, in nanoseconds.
pub(crate) fn take_latest() -> u64 {
    LATEST.swap(0, Ordering::Relaxed)
}
