//! Threads that plan a module together.

use core::num::NonZeroUsize;
use std::thread::{self, Scope, ScopedJoinHandle};
use std::{io, panic};

use crate::os::signal_mask::Quiet;
use crate::threads::untraced::untraced;

/// The number of threads that plan a module together, including this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Planners(NonZeroUsize);

impl Planners {
    /// This thread alone.
    pub(crate) const ONE: Self = Self(NonZeroUsize::MIN);

    pub(crate) const fn new(threads: NonZeroUsize) -> Self {
        Self(threads)
    }

    /// Runs both functions, in parallel if possible.
    pub(super) fn both(self, one: impl FnOnce(), other: impl Fn() + Sync) {
        thread::scope(|scope| {
            let others = (self != Self::ONE).then(|| start(scope, &other));
            one();
            match others {
                Some(Ok(thread)) => join(thread),
                _ => other(),
            }
        });
    }

    /// Runs `work` on parts of a list of functions, and returns the results in the order of the
    /// parts. This thread does the parts for which no thread can be made.
    pub(super) fn split<T: Sync, R: Send>(
        self,
        functions: &[T],
        work: impl Fn(&[T]) -> R + Sync,
    ) -> Vec<R> {
        /// The fewest functions for which a thread is made.
        const FEWEST: usize = 256;
        let len = functions.len().div_ceil(self.0.get()).max(FEWEST);
        if len >= functions.len() {
            return vec![work(functions)];
        }
        let (first, others) = functions.split_at(len);
        let work = &work;
        thread::scope(|scope| {
            let start = |part| start(scope, move || work(part)).map_err(|_| part);
            let others: Vec<_> = others.chunks(len).map(start).collect();
            let mut results = vec![work(first)];
            results.extend(others.into_iter().map(|other| match other {
                Ok(thread) => join(thread),
                Err(part) => work(part),
            }));
            results
        })
    }
}

fn start<'scope, R: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> R + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, R>> {
    let _quiet = Quiet::new();
    thread::Builder::new().spawn_scoped(scope, || untraced(work))
}

fn join<R>(thread: ScopedJoinHandle<'_, R>) -> R {
    thread
        .join()
        .unwrap_or_else(|panic| panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planners(threads: usize) -> Planners {
        Planners::new(NonZeroUsize::new(threads).unwrap())
    }

    #[test]
    fn results_are_in_the_order_of_the_functions() {
        let functions: Vec<usize> = (0..10_000).collect();
        for threads in [1, 2, 3, 64] {
            let parts = planners(threads).split(&functions, <[usize]>::to_vec);
            assert_eq!(parts.len(), threads.min(10_000usize.div_ceil(256)));
            assert_eq!(parts.concat(), functions);
        }
        assert_eq!(
            planners(2).split(&functions[..9], <[usize]>::to_vec),
            [&functions[..9]]
        );
    }

    #[test]
    #[should_panic(expected = "part 1")]
    fn a_panic_of_another_thread_is_this_threads() {
        let functions: Vec<usize> = (0..1_000).collect();
        planners(2).split(&functions, |part| assert_eq!(part[0], 0, "part 1"));
    }
}
