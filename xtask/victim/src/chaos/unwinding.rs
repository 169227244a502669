//! Panics, caught after any number of traced functions, thrown on, and with destructors on the way.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::thread;

use super::act::Act;
use super::signals::Actor;
use super::towers::Tower;

use crate::failures::{Failure, note};
use crate::rng::Rng;

const MOST_LEVELS: usize = 20;

/// Throws through up to 20 functions, twice so many where what was caught is thrown on.
pub(crate) fn unwind(actor: &Actor, rng: &mut Rng) {
    let thrown = rng.next();
    let throw = || -> u64 { panic::resume_unwind(Box::new(thrown)) };
    let inner = Tower::of_all(rng, actor.sites, &throw);
    let inner_levels = rng.below(MOST_LEVELS + 1);
    let throws_on = rng.once_in(2);
    let was_caught = Cell::new(false);
    let catch = || {
        let caught = panic::catch_unwind(AssertUnwindSafe(|| inner.climb(inner_levels)));
        was_caught.set(is(&caught, thrown));
        match caught {
            Err(caught) if throws_on => panic::resume_unwind(caught),
            _ => thrown,
        }
    };
    let outer = Tower::of_all(rng, actor.sites, &catch);
    let outer_levels = rng.below(MOST_LEVELS + 1);
    let result = panic::catch_unwind(AssertUnwindSafe(|| outer.climb(outer_levels)));
    let is_right = match result {
        Ok(result) => !throws_on && result == outer.result(outer_levels, thrown),
        caught => throws_on && is(&caught, thrown),
    };
    if !is_right || !was_caught.get() {
        note(Failure::Way, Act::Unwind as u64, thrown);
    }
}

/// Returns true if that was thrown.
fn is(caught: &thread::Result<u64>, thrown: u64) -> bool {
    caught
        .as_ref()
        .is_err_and(|caught| caught.downcast_ref() == Some(&thrown))
}
