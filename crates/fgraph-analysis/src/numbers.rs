//! Consecutive numbers for threads, as events name them.

use std::collections::HashMap;

/// A thread as events name it: its process and its id.
pub type ThreadKey = (u32, u32);

/// The number of threads whose numbers are found without hashing.
const RECENT: usize = 16;

/// Numbers threads in the order in which they are met, from 0.
#[derive(Clone, Debug, Default)]
pub struct ThreadNumbers {
    all: HashMap<ThreadKey, usize>,
    /// Threads that were looked up lately, at the lowest bits of their ids.
    recent: [Option<(ThreadKey, usize)>; RECENT],
}

impl ThreadNumbers {
    /// Returns the number of a thread. A new one has the number of earlier ones.
    #[inline]
    pub fn of(&mut self, thread: ThreadKey) -> usize {
        match self.recent[thread.1 as usize % RECENT] {
            Some((known, number)) if known == thread => number,
            _ => self.look_up(thread),
        }
    }

    /// Returns the number of a thread, if it was met.
    pub fn known(&self, thread: ThreadKey) -> Option<usize> {
        self.all.get(&thread).copied()
    }

    #[cold]
    fn look_up(&mut self, thread: ThreadKey) -> usize {
        let next = self.all.len();
        let number = *self.all.entry(thread).or_insert(next);
        self.recent[thread.1 as usize % RECENT] = Some((thread, number));
        number
    }
}

/// Returns the value with a number in a list, which grows up to it.
#[inline]
pub fn grown<T: Default>(list: &mut Vec<T>, number: usize) -> &mut T {
    if list.len() <= number {
        list.resize_with(number + 1, T::default);
    }
    &mut list[number]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_keep_their_numbers() {
        let mut numbers = ThreadNumbers::default();
        let threads: Vec<ThreadKey> = (0..40).map(|n| (n % 3, n / 2)).collect();
        for round in 0..2 {
            for (number, &thread) in threads.iter().enumerate() {
                assert_eq!(numbers.known(thread).is_some(), round > 0);
                assert_eq!(numbers.of(thread), number);
                assert_eq!(numbers.of(thread), number);
            }
        }
        assert_eq!(numbers.known((9, 9)), None);
    }
}
