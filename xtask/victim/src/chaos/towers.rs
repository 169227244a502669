//! Towers: traced functions that call one another, and an act at the bottom.
//!
//! ```text
//!   level 3   hostile_17      a random one of five shapes on each level
//!   level 2   hostile_04
//!   level 1   hostile_22
//!   level 0   hostile_10
//!             the bottom      throws, jumps, switches the stack, forks, ends the thread, ...
//! ```
//!
//! Each makes its result of that of the next lower one, so that the whole result tells whether
//! everything came back the way that it should.

use std::hint::black_box;
use std::panic::{self, AssertUnwindSafe};
use std::sync::OnceLock;

use crate::formula::{constant, mix};
use crate::rng::Rng;
use crate::workers;

/// Functions.
const COUNT: usize = 40;
/// Shapes, of which function *n* has the one with number *n* modulo this.
const SHAPES: usize = 5;
/// The first so many leave nothing to clean up when they are left by a jump.
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

    /// What [`climb`](Self::climb) returns if the bottom returns `bottom`.
    pub(crate) fn result(&self, levels: usize, bottom: u64) -> u64 {
        (0..levels).fold(bottom, |inner, level| {
            step(self.function(level), level, inner)
        })
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

macro_rules! plain {
    ($name:ident, $index:literal) => {
        #[inline(never)]
        fn $name(tower: &Tower<'_>, level: usize) -> u64 {
            step($index, level, tower.climb(level))
        }
    };
}

/// With a larger frame.
macro_rules! roomy {
    ($name:ident, $index:literal) => {
        #[inline(never)]
        fn $name(tower: &Tower<'_>, level: usize) -> u64 {
            let room = black_box([level as u64 ^ $index; 32]);
            let inner = tower.climb(level);
            if black_box(&room)
                .iter()
                .any(|&word| word != level as u64 ^ $index)
            {
                return 0;
            }
            step($index, level, inner)
        }
    };
}

/// By a jump.
macro_rules! tail {
    ($name:ident, $index:literal) => {
        #[inline(never)]
        fn $name(tower: &Tower<'_>, level: usize) -> u64 {
            // No two functions may be the same code.
            black_box($index);
            tower.climb(level)
        }
    };
}

/// With a destructor that calls a traced function.
macro_rules! cleaning {
    ($name:ident, $index:literal) => {
        #[inline(never)]
        fn $name(tower: &Tower<'_>, level: usize) -> u64 {
            let _clean_up = CleanUp(tower, level);
            step($index, level, tower.climb(level))
        }
    };
}

/// Catches what is thrown, and throws it on.
macro_rules! rethrowing {
    ($name:ident, $index:literal) => {
        #[inline(never)]
        fn $name(tower: &Tower<'_>, level: usize) -> u64 {
            match panic::catch_unwind(AssertUnwindSafe(|| tower.climb(level))) {
                Ok(inner) => step($index, level, inner),
                Err(thrown) => panic::resume_unwind(thrown),
            }
        }
    };
}

macro_rules! levels {
    ($($shape:ident $name:ident $index:literal,)*) => {
        $($shape!($name, $index);)*
        static LEVELS: [Level; COUNT] = [$($name),*];
    };
}

levels! {
    plain hostile_00 0,
    roomy hostile_01 1,
    tail hostile_02 2,
    cleaning hostile_03 3,
    rethrowing hostile_04 4,
    plain hostile_05 5,
    roomy hostile_06 6,
    tail hostile_07 7,
    cleaning hostile_08 8,
    rethrowing hostile_09 9,
    plain hostile_10 10,
    roomy hostile_11 11,
    tail hostile_12 12,
    cleaning hostile_13 13,
    rethrowing hostile_14 14,
    plain hostile_15 15,
    roomy hostile_16 16,
    tail hostile_17 17,
    cleaning hostile_18 18,
    rethrowing hostile_19 19,
    plain hostile_20 20,
    roomy hostile_21 21,
    tail hostile_22 22,
    cleaning hostile_23 23,
    rethrowing hostile_24 24,
    plain hostile_25 25,
    roomy hostile_26 26,
    tail hostile_27 27,
    cleaning hostile_28 28,
    rethrowing hostile_29 29,
    plain hostile_30 30,
    roomy hostile_31 31,
    tail hostile_32 32,
    cleaning hostile_33 33,
    rethrowing hostile_34 34,
    plain hostile_35 35,
    roomy hostile_36 36,
    tail hostile_37 37,
    cleaning hostile_38 38,
    rethrowing hostile_39 39,
}

static ADDRESSES: OnceLock<[usize; COUNT]> = OnceLock::new();

/// Makes [`contains`] work.
pub(crate) fn prepare() {
    ADDRESSES.get_or_init(|| {
        let mut addresses = LEVELS.map(|function| (function as *const ()).addr());
        addresses.sort_unstable();
        addresses
    });
}

/// Whether one of the functions begins at `address`.
#[inline(always)]
pub(crate) fn contains(address: usize) -> bool {
    ADDRESSES
        .get()
        .is_some_and(|addresses| addresses.binary_search(&address).is_ok())
}
