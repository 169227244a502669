//! A library that the victim loads and unloads all the time: functions that can be told by their
//! names. Each calls the one before it.

/// Computes by a formula what the functions do.
#[inline(always)]
const fn step(inner: u64, level: u64) -> u64 {
    (inner ^ level)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(9)
}

/// Calls itself through the other one, `x % 16` times.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn hostile_library_0(x: u64) -> u64 {
    if x.is_multiple_of(16) {
        return step(x, 0);
    }
    step(hostile_library_1(x - 1), x)
}

/// As [`hostile_library_0`].
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn hostile_library_1(x: u64) -> u64 {
    if x.is_multiple_of(16) {
        return step(x, 1);
    }
    step(hostile_library_0(x - 1), x)
}
