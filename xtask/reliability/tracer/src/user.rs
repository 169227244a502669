//! The users: they check that each return is that of an entry of theirs, with their data, in order.
//!
//! The data of a call, of a size that differs from user to user:
//!
//! ```text
//!   63        40 39                             0
//!   +-----------+-------------------------------+
//!   |   depth   |  number of the call           |   word 0
//!   +-----------+-------------------------------+
//!   |  follows from word 0, user and function   |   the others
//!   +-------------------------------------------+
//! ```
//!
//! The depth counts what the users of this thread have accepted and have not got back. Returns in
//! reverse order find it as they left it; one that finds it higher shows that entries never
//! returned; one that finds it lower has returned before, or its outer call has.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;

use fgraph::{Entry, FgraphOps, Function, Return};

use crate::clobber;
use crate::count;
use crate::record::Count;
use crate::thread;

const DEPTH_SHIFT: u32 = 40;

/// Numbers the calls of a process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// True if returns are to be in reverse order.
pub(crate) static IN_ORDER: AtomicBool = AtomicBool::new(true);
/// True if the users decline one call of three.
pub(crate) static DECLINE: AtomicBool = AtomicBool::new(false);
/// Microseconds that the first user sleeps in each callback.
pub(crate) static SLEEP: AtomicU64 = AtomicU64::new(0);
/// True if the users are no longer registered.
pub(crate) static GONE: AtomicBool = AtomicBool::new(false);

/// User `id`, who keeps `N` words for each call.
#[derive(Debug)]
pub(crate) struct User<const N: usize>(pub(crate) u64);

impl<const N: usize> User<N> {
    /// The data of the call that `first` tells.
    fn data(&self, first: u64, function: Function) -> [u64; N] {
        let mut word = first;
        core::array::from_fn(|_| {
            let this = word;
            word = (word ^ self.0 ^ function.address() as u64)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29);
            this
        })
    }

    /// Keeps the thread in the callback.
    fn sleep(&self) {
        let time = SLEEP.load(Ordering::Relaxed);
        if time != 0 && self.0 == 0 {
            std::thread::sleep(Duration::from_micros(time));
        }
    }

    /// Compares the depth with that at the entry.
    fn check_order(first: u64) {
        let (then, now) = (first >> DEPTH_SHIFT, thread::depth());
        match now.checked_sub(then) {
            Some(above) => {
                count(Count::Skipped, above);
                thread::set_depth(then - 1);
            }
            None => count(Count::Disordered, 1),
        }
    }
}

impl<const N: usize> FgraphOps for User<N> {
    type Data = [u64; N];

    fn entry(&self, call: &mut Entry<'_, [u64; N]>) -> Option<[u64; N]> {
        clobber::at_entry();
        // Before anything of `self` is looked at.
        if GONE.load(Ordering::Relaxed) {
            count(Count::Late, 1);
            return None;
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed) & ((1 << DEPTH_SHIFT) - 1);
        if DECLINE.load(Ordering::Relaxed) && (number + self.0).is_multiple_of(3) {
            count(Count::Declined, 1);
            return None;
        }
        if N == 0 {
            count(Count::EmptyEntries, 1);
            return Some([0; N]);
        }
        self.sleep();
        let mut depth = 0;
        // Without order nothing would ever make it less.
        if IN_ORDER.load(Ordering::Relaxed) {
            depth = thread::depth() + 1;
            // In this order: in a child that is forked here by a signal handler the call may seem
            // to be inherited, and without return, but never to return without having been entered.
            thread::set_depth(depth);
        }
        count(Count::Entries, 1);
        Some(self.data(depth << DEPTH_SHIFT | number, call.function()))
    }

    fn ret(&self, call: &mut Return<'_, [u64; N]>, data: [u64; N]) {
        clobber::at_return();
        if GONE.load(Ordering::Relaxed) {
            return count(Count::Late, 1);
        }
        let Some(&first) = data.first() else {
            return count(Count::EmptyReturns, 1);
        };
        self.sleep();
        count(Count::Returns, 1);
        count(Count::Unwound, u64::from(call.unwinding()));
        if data != self.data(first, call.function()) {
            count(Count::Mismatched, 1);
        } else if IN_ORDER.load(Ordering::Relaxed) {
            Self::check_order(first);
        }
    }
}
