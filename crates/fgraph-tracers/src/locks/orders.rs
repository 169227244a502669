//! Which lock comes before which.
//!
//! A bit for each two locks says that the one was held when the other was taken. When a bit is set
//! first, whoever sets it looks whether the second lock comes before the first already, on any way:
//! then it is an inversion. Two threads that set bits which close a circle together both set before
//! they look, so one of them finds it.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use super::{CALL, Inversion, LOCKS, Order};
use crate::support::caller::Caller;
use crate::support::kernel;
use crate::support::reports::Reports;

/// Words of the bits of a lock.
const WORDS: usize = LOCKS / 64;
/// Bytes of all bits.
const LEN: usize = LOCKS * WORDS * size_of::<u64>();
/// Orders of which it is known where they were met, and inversions.
const ROOM: usize = 8192;

/// The orders in which locks were taken.
#[derive(Debug)]
pub(super) struct Orders {
    /// For each lock, those that were taken while it was held.
    after: *mut AtomicU64,
    /// Where each order was met first: the two locks, where the first was taken, the call.
    met: Reports<{ 3 + CALL }>,
    /// The two locks of the order that has closed a circle.
    inverted: Reports<2>,
}

// SAFETY: the bits are atomics.
unsafe impl Send for Orders {}
// SAFETY: as above.
unsafe impl Sync for Orders {}

impl Orders {
    /// None yet; `None` without memory.
    pub(super) fn new() -> Option<Self> {
        Some(Self {
            after: kernel::map(LEN)?.cast(),
            met: Reports::new(ROOM),
            inverted: Reports::new(ROOM),
        })
    }

    fn bits(&self, lock: usize) -> &[AtomicU64; WORDS] {
        // SAFETY: there are so many words for each lock, zeros at first, for as long as this is.
        unsafe { &*self.after.add(lock % LOCKS * WORDS).cast() }
    }

    /// Notes that `first` was held when `second` was taken. Whether that is new.
    pub(super) fn add(&self, first: usize, second: usize) -> bool {
        let (word, bit) = (second % LOCKS / 64, 1 << (second % 64));
        let Some(word) = self.bits(first).get(word) else {
            return false;
        };
        if word.load(Ordering::Relaxed) & bit != 0 {
            return false;
        }
        // SeqCst, as are the loads in `leads`: of two threads that close a circle one finds it.
        let is_new = word.fetch_or(bit, Ordering::SeqCst) & bit == 0;
        if is_new && self.leads(second, first) {
            self.inverted.push([first, second]);
        }
        is_new
    }

    /// Keeps where a new order was met.
    pub(super) fn explain(&self, first: usize, second: usize, since: usize, call: [usize; CALL]) {
        let mut words = [0; 3 + CALL];
        words[..3].copy_from_slice(&[first, second, since]);
        words[3..].copy_from_slice(&call);
        self.met.push(words);
    }

    /// Whether `from` comes before `to` on any way.
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

    /// Forgets a lock, in whose place another one may be made.
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

    /// The inversions, with the orders that contradict each other; `address` knows the locks.
    pub(super) fn inversions(&self, address: impl Fn(usize) -> usize) -> Vec<Inversion> {
        let mut orders: HashMap<usize, Vec<(usize, Order)>> = HashMap::new();
        for words in self.met.iter() {
            let [first, second, since, call @ ..] = words;
            if let Some(by) = Caller::read(&call) {
                let order = Order {
                    held: address(first),
                    taken: address(second),
                    held_since: since,
                    by,
                };
                orders.entry(first).or_default().push((second, order));
            }
        }
        let inversions = self.inverted.iter();
        let inversions = inversions.filter_map(|[first, second]| {
            let last = orders.get(&first)?.iter().find(|(to, _)| *to == second)?;
            let mut way = vec![last.1.clone()];
            way.extend(shortest_way(&orders, second, first)?);
            Some(Inversion { orders: way })
        });
        inversions.collect()
    }
}

/// The shortest way from one lock to another.
fn shortest_way(
    orders: &HashMap<usize, Vec<(usize, Order)>>,
    from: usize,
    to: usize,
) -> Option<Vec<Order>> {
    let mut reached: HashMap<usize, (usize, &Order)> = HashMap::new();
    let mut todo = VecDeque::from([from]);
    while let Some(lock) = todo.pop_front() {
        for (next, order) in orders.get(&lock).into_iter().flatten() {
            if *next != from && !reached.contains_key(next) {
                reached.insert(*next, (lock, order));
                todo.push_back(*next);
            }
        }
    }
    let mut way = Vec::new();
    let mut lock = to;
    while lock != from {
        let (before, order) = reached.get(&lock)?;
        way.push((*order).clone());
        lock = *before;
    }
    way.reverse();
    Some(way)
}

impl Drop for Orders {
    fn drop(&mut self) {
        // SAFETY: mapped so, and nothing refers to it any more.
        unsafe { kernel::unmap(self.after.cast(), LEN) };
    }
}
