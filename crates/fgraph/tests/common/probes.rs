//! Functions that tests of filters select.

use std::hint::black_box;

#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn probe_one(n: u64) -> u64 {
    black_box(n) + 1
}

#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn probe_two(n: u64) -> u64 {
    black_box(n) + 2
}

#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn other_one(n: u64) -> u64 {
    black_box(n) + 3
}
