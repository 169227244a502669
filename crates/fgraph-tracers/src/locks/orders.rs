//! The orders of locks.
//!
//! A bit for each pair of locks says that the one was held when the other was taken. The thread
//! that sets a bit first then checks whether the second lock already comes before the first,
//! directly or through others. If so, that is an inversion. When two threads set bits that close a
//! cycle together, both set their bit before they check, so at least one of them finds the cycle.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{CALL, Inversion, LOCKS, Order, shortest_way};
use crate::support::caller::Caller;
use crate::support::mapped::Mapped;
use crate::support::reports::Reports;

/// Number of words with the bits of a lock.
const WORDS: usize = LOCKS / 64;
/// Number of orders for which the place is kept, and of inversions.
const ROOM: usize = 8192;

/// The orders in which locks were taken.
#[derive(Debug)]
pub(super) struct Orders {
    /// For each lock, the locks that were taken while it was held.
    after: Mapped<[[AtomicU64; WORDS]; LOCKS]>,
    /// Place of each order's first occurrence: the two locks, where the first was taken, the call.
    met: Reports<{ 3 + CALL }>,
    /// The two locks of each order that closed a cycle.
    inverted: Reports<2>,
}

impl Orders {
    /// Creates an empty set of orders; `None` without memory.
    pub(super) fn new() -> Option<Self> {
        Some(Self {
            after: Mapped::new()?,
            met: Reports::new(ROOM),
            inverted: Reports::new(ROOM),
        })
    }

    fn bits(&self, lock: usize) -> &[AtomicU64; WORDS] {
        &self.after[lock % LOCKS]
    }

    /// Records that `first` was held when `second` was taken. Returns true if the order is new.
    pub(super) fn add(&self, first: usize, second: usize) -> bool {
        let (word, bit) = (second % LOCKS / 64, 1 << (second % 64));
        let Some(word) = self.bits(first).get(word) else {
            return false;
        };
        if word.load(Ordering::Relaxed) & bit != 0 {
            return false;
        }
        // SeqCst, as are the loads in `leads`: of two threads that close a cycle, one finds it.
        let is_new = word.fetch_or(bit, Ordering::SeqCst) & bit == 0;
        if is_new && self.leads(second, first) {
            self.inverted.push([first, second]);
        }
        is_new
    }

    /// Keeps the place of a new order.
    pub(super) fn explain(&self, first: usize, second: usize, since: usize, call: [usize; CALL]) {
        let mut words = [0; 3 + CALL];
        words[..3].copy_from_slice(&[first, second, since]);
        words[3..].copy_from_slice(&call);
        self.met.push(words);
    }

    /// True if `from` comes before `to`, directly or through other locks.
    fn leads(&self, from: usize, to: usize) -> bool {
        let mut reached = [0_u64; WORDS];
        let mut todo = [0_u64; WORDS];
        let mut next = Some(from);
        while let Some(lock) = next {
            for ((reached, todo), bits) in reached.iter_mut().zip(&mut todo).zip(self.bits(lock)) {
                let new = bits.load(Ordering::SeqCst) & !*reached;
                *reached |= new;
                *todo |= new;
            }
            let is_there = reached
                .get(to / 64)
                .is_some_and(|word| word & 1 << (to % 64) != 0);
            if is_there {
                return true;
            }
            let word = todo.iter().position(|&word| word != 0);
            next = word.and_then(|word| {
                let bits = todo.get_mut(word)?;
                let bit = bits.trailing_zeros() as usize;
                *bits &= *bits - 1;
                Some(word * 64 + bit)
            });
        }
        false
    }

    /// Removes the orders of a lock, at whose address another lock may be made.
    pub(super) fn forget(&self, lock: usize) {
        let word = lock % LOCKS / 64;
        for bits in self.bits(lock) {
            bits.store(0, Ordering::Relaxed);
        }
        for other in 0..LOCKS {
            if let Some(word) = self.bits(other).get(word)
                && word.load(Ordering::Relaxed) & 1 << (lock % 64) != 0
            {
                word.fetch_and(!(1 << (lock % 64)), Ordering::Relaxed);
            }
        }
    }

    /// Returns the inversions, with the orders that contradict each other. `address` maps the
    /// number of a lock to its address.
    pub(super) fn inversions(&self, address: impl Fn(usize) -> usize) -> Vec<Inversion> {
        let mut orders: HashMap<usize, Vec<(usize, usize, Order)>> = HashMap::new();
        for words in self.met.iter() {
            let [first, second, since, call @ ..] = words;
            if let Some(by) = Caller::read(&call) {
                let order = Order {
                    held: address(first),
                    taken: address(second),
                    held_since: since,
                    by,
                };
                orders
                    .entry(first)
                    .or_default()
                    .push((first, second, order));
            }
        }
        let inversions = self.inverted.iter();
        let inversions = inversions.filter_map(|[first, second]| {
            let of = |lock| orders.get(&lock).map_or(&[][..], Vec::as_slice);
            let last = of(first).iter().find(|(_, to, _)| *to == second)?;
            let way = shortest_way(second, first, of, |&(from, to, _)| (from, to))?;
            let way = [last.clone()].into_iter().chain(way);
            Some(Inversion {
                orders: way.map(|(_, _, order)| order).collect(),
            })
        });
        inversions.collect()
    }
}
