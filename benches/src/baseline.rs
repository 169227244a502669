//! Cost of calls by themselves.
//!
//! A user is two calls through pointers, to its entry and its return function. This module times a
//! loop that only makes such calls, to functions that do nothing. No dispatch that calls users can
//! be faster on this machine.

use core::hint::black_box;
use std::time::{Duration, Instant};

use fgraph::MAX_USERS;

use crate::users::with_constant;

type Callback = extern "C" fn(usize) -> usize;

extern "C" fn nothing<const N: usize>(_: usize) -> usize {
    N
}

/// Times `rounds` rounds of two calls for each of 16 users.
pub fn time(rounds: u64) -> Duration {
    macro_rules! callback {
        ($n:literal) => {
            nothing::<$n> as Callback
        };
    }
    let table: [Callback; MAX_USERS] = core::array::from_fn(|n| with_constant!(n, callback));
    let table = black_box(&table);
    let start = Instant::now();
    for _ in 0..2 * rounds {
        for (index, callback) in table.iter().enumerate() {
            black_box(callback(index));
        }
    }
    start.elapsed()
}
