//! Small thread numbers that are reused.
//!
//! An index belongs to the state of a thread or waits in a pool. It moves between them by an
//! exchange, so no two states have the same index. A state that gets a new thread puts its index
//! into the next place of the pool and takes the index that was there:
//!
//! ```text
//!   state           pool
//!   +---+          +---+---+---+- ... -+---+
//!   | 9 | <------> | 4 | 6 | 3 |       | 8 |
//!   +---+          +---+---+---+- ... -+---+
//! ```
//!
//! So the data under the index of a thread that has ended stays until [`WAITING`] other threads
//! have begun, and there are as many indices as states and places. An index that a thread is
//! exchanging when the process forks is not used in the child.

use core::sync::atomic::{AtomicU32, Ordering};

/// The number of indices that wait.
const WAITING: usize = 64;

/// The indices of all states.
#[derive(Debug)]
pub(crate) struct Indices {
    /// The number of indices.
    count: AtomicU32,
    /// The number of exchanges until now.
    exchanges: AtomicU32,
    /// Indices, or 0.
    pool: [AtomicU32; WAITING],
}

impl Indices {
    /// Starts without indices.
    pub(crate) const fn new() -> Self {
        Self {
            count: AtomicU32::new(0),
            exchanges: AtomicU32::new(0),
            pool: [const { AtomicU32::new(0) }; WAITING],
        }
    }

    /// Exchanges an unused index, or 0, for another index. The first is 1.
    pub(crate) fn exchange(&self, index: u32) -> u32 {
        let place = self.exchanges.fetch_add(1, Ordering::Relaxed) as usize % WAITING;
        // Release and Acquire: accesses under an index come before those of its next owner.
        match self.pool[place].swap(index, Ordering::AcqRel) {
            0 => self.count.fetch_add(1, Ordering::Relaxed) + 1,
            waited => waited,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn an_index_waits_for_as_many_exchanges_as_there_are_places() {
        let indices = Indices::new();
        let mut index = 0;
        let mut given = || {
            index = indices.exchange(index);
            index
        };
        let first: Vec<_> = (0..=WAITING as u32).map(|_| given()).collect();
        assert!(first.iter().copied().eq(1..=WAITING as u32 + 1));
        assert!((0..3).all(|_| first.iter().all(|&index| index == given())));
    }

    #[test]
    fn states_that_exchange_at_the_same_time_have_different_indices() {
        const STATES: usize = 4;
        const EXCHANGES: usize = 10_000;
        let indices = Indices::new();
        let users = [const { AtomicU32::new(0) }; STATES + WAITING + 1];
        let last: HashSet<u32> = std::thread::scope(|scope| {
            let state = || {
                (0..EXCHANGES).fold(0, |index, _| {
                    users[index as usize].fetch_sub(index.min(1), Ordering::Relaxed);
                    let index = indices.exchange(index);
                    assert_eq!(users[index as usize].fetch_add(1, Ordering::Relaxed), 0);
                    index
                })
            };
            let states: Vec<_> = (0..STATES).map(|_| scope.spawn(state)).collect();
            states
                .into_iter()
                .map(|state| state.join().unwrap())
                .collect()
        });
        assert_eq!(last.len(), STATES);
    }
}
