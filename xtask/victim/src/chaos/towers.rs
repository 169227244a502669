//! Towers: traced functions that call one another, and an act at the bottom.
//!
//! ```text
//!   level 3   hostile_tail::<17>        a random one of five shapes on each level
//!   level 2   hostile_rethrowing::<4>
//!   level 1   hostile_tail::<22>
//!   level 0   hostile_plain::<10>
//!             the bottom                throws, jumps, switches the stack, forks, ...
//! ```
//!
//! Each makes its result of that of the next lower one, so that the whole result tells whether
//! everything came back the way that it should.

use std::hint::black_box;
use std::panic::{self, AssertUnwindSafe};
use std::sync::OnceLock;

use super::act::Act;

use crate::failures::{Failure, note};
use crate::formula::{constant, mix};
use crate::rng::Rng;
use crate::workers;

/// Functions.
const COUNT: usize = 40;
/// Shapes: function *n* has the one with number *n* modulo this.
const SHAPES: usize = 5;
/// The first of them leave nothing to clean up when they are left by a jump.
const PLAIN_SHAPES: usize = 3;

/// A tower to be climbed down.
pub(crate) struct Tower<'a> {
    seed: u64,
    shapes: usize,
    sites: usize,
    bottom: &'a dyn Fn() -> u64,
}

type Level = fn(&Tower<'_>, usize) -> u64;

impl<'a> Tower<'a> {
    /// One of any functions. Destructors call one of the first `sites` functions of the victim.
    pub(crate) fn of_all(rng: &mut Rng, sites: usize, bottom: &'a dyn Fn() -> u64) -> Self {
        Self {
            seed: rng.next(),
            shapes: SHAPES,
            sites,
            bottom,
        }
    }

    /// One of functions that have nothing to clean up, and may be left by a jump.
    pub(crate) fn of_plain(rng: &mut Rng, bottom: &'a dyn Fn() -> u64) -> Self {
        Self {
            seed: rng.next(),
            shapes: PLAIN_SHAPES,
            sites: 0,
            bottom,
        }
    }

    /// Calls `levels` functions, and returns what the outermost does.
    #[inline(always)]
    pub(crate) fn climb(&self, levels: usize) -> u64 {
        if levels == 0 {
            (self.bottom)()
        } else {
            black_box(LEVELS[self.function(levels - 1)])(self, levels - 1)
        }
    }

    /// Returns the result of [`climb`](Self::climb) if the bottom returns `bottom`.
    pub(crate) fn result(&self, levels: usize, bottom: u64) -> u64 {
        (0..levels).fold(bottom, |inner, level| {
            step(self.function(level), level, inner)
        })
    }

    /// Climbs down, and notes a failure of `act` if the bottom returns `bottom` and the outermost
    /// function something wrong.
    #[inline(always)]
    pub(crate) fn check(&self, levels: usize, bottom: u64, act: Act) {
        if self.climb(levels) != self.result(levels, bottom) {
            note(Failure::Way, act as u64, levels as u64);
        }
    }

    #[inline(always)]
    fn function(&self, level: usize) -> usize {
        let random = mix(self.seed ^ level as u64) as usize;
        random / SHAPES % (COUNT / SHAPES) * SHAPES + random % self.shapes
    }

    #[cold]
    #[inline(never)]
    fn clean_up(&self, level: usize) {
        let random = mix(self.seed.wrapping_add(level as u64));
        workers::call(random as usize % self.sites, random | 1);
    }
}

/// Computes the result of function `index` from the result of the next lower level.
#[inline(always)]
fn step(index: usize, level: usize, inner: u64) -> u64 {
    match index % SHAPES {
        2 => inner,
        _ => mix(inner ^ constant(index)).wrapping_add(level as u64),
    }
}

/// Calls a traced function when it is dropped.
struct CleanUp<'a>(&'a Tower<'a>, usize);

impl Drop for CleanUp<'_> {
    fn drop(&mut self) {
        self.0.clean_up(self.1);
    }
}

// Function `N` of each shape. No two may be the same code, and each has its number.

#[inline(never)]
fn hostile_plain<const N: usize>(tower: &Tower<'_>, level: usize) -> u64 {
    step(N, level, tower.climb(level))
}

/// A step with a larger frame.
#[inline(never)]
fn hostile_roomy<const N: usize>(tower: &Tower<'_>, level: usize) -> u64 {
    let room = black_box([level ^ N; 32]);
    let inner = tower.climb(level);
    if black_box(&room).iter().any(|&word| word != level ^ N) {
        return 0;
    }
    step(N, level, inner)
}

/// A step that leaves by a jump to the next one.
#[inline(never)]
fn hostile_tail<const N: usize>(tower: &Tower<'_>, level: usize) -> u64 {
    black_box(N);
    tower.climb(level)
}

/// With a destructor that calls a traced function.
#[inline(never)]
fn hostile_cleaning<const N: usize>(tower: &Tower<'_>, level: usize) -> u64 {
    let _clean_up = CleanUp(tower, level);
    step(N, level, tower.climb(level))
}

/// Catches what is thrown, and throws it on.
#[inline(never)]
fn hostile_rethrowing<const N: usize>(tower: &Tower<'_>, level: usize) -> u64 {
    match panic::catch_unwind(AssertUnwindSafe(|| tower.climb(level))) {
        Ok(inner) => step(N, level, inner),
        Err(thrown) => panic::resume_unwind(thrown),
    }
}

macro_rules! levels {
    ($($n:literal)*) => {
        [$(
            hostile_plain::<$n>,
            hostile_roomy::<{ $n + 1 }>,
            hostile_tail::<{ $n + 2 }>,
            hostile_cleaning::<{ $n + 3 }>,
            hostile_rethrowing::<{ $n + 4 }>,
        )*]
    };
}

static LEVELS: [Level; COUNT] = levels!(0 5 10 15 20 25 30 35);

static ADDRESSES: OnceLock<[usize; COUNT]> = OnceLock::new();

/// Makes [`contains`] work.
pub(crate) fn prepare() {
    ADDRESSES.get_or_init(|| {
        let mut addresses = LEVELS.map(|function| (function as *const ()).addr());
        addresses.sort_unstable();
        addresses
    });
}

/// Returns true if one of the functions begins at `address`.
#[inline(always)]
pub(crate) fn contains(address: usize) -> bool {
    ADDRESSES
        .get()
        .is_some_and(|addresses| addresses.binary_search(&address).is_ok())
}
