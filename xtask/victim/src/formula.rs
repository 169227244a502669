//! The result of each function, as a formula.
//!
//! A function's body is its shape's formula with a constant of its own, inlined; whoever calls the
//! function evaluates the formula once more, inlined at the place of the check, and compares. So a
//! register that is lost on the way into or out of the function shows.

use crate::functions::{Pair, Triple};

/// Every so many arguments, a thrower throws.
pub(crate) const THROWS_EVERY: u64 = 1024;

/// Spreads the bits of `x` (the finisher of splitmix64).
#[inline(always)]
pub(crate) const fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The constant of function `index`.
#[inline(always)]
pub(crate) const fn constant(index: usize) -> u64 {
    mix((index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// A constant as a number that a `f64` holds exactly, with room for sums and products.
#[inline(always)]
fn small(constant: u64) -> f64 {
    (constant >> 44) as f64
}

/// Makes the floating-point arguments of a call.
#[inline(always)]
pub(crate) fn float(x: u64, index: u32) -> f64 {
    (x.rotate_left(5 * index) & 0xffff) as f64 + 0.5
}

/// Makes the integer arguments of a call.
#[inline(always)]
pub(crate) fn word(x: u64, index: u32) -> u64 {
    x.rotate_left(7 * index) ^ u64::from(index)
}

#[inline(always)]
pub(crate) fn leaf(c: u64, x: u64) -> u64 {
    mix(x ^ c)
}

#[inline(always)]
pub(crate) fn looping(c: u64, x: u64) -> u64 {
    let mut sum = c;
    for turn in 0..x % 16 {
        sum = sum.rotate_left(9).wrapping_mul(c | 1) ^ turn;
    }
    sum
}

/// Computes the result of a recursive function from that of its inner call.
#[inline(always)]
pub(crate) fn recursive_step(inner: u64, x: u64) -> u64 {
    mix(inner ^ x)
}

/// Returns true if a recursive function calls itself for `x - 1`.
#[inline(always)]
pub(crate) fn recurses(x: u64) -> bool {
    !x.is_multiple_of(8)
}

#[inline(always)]
fn recursive(c: u64, x: u64) -> u64 {
    let levels = x % 8;
    let mut result = leaf(c, x - levels);
    for level in x - levels + 1..=x {
        result = recursive_step(result, level);
    }
    result
}

/// Computes what a thrower returns, or else throws.
#[inline(always)]
pub(crate) fn thrower(c: u64, x: u64) -> Result<u64, u64> {
    if x.is_multiple_of(THROWS_EVERY) {
        Err(mix(x ^ c))
    } else {
        Ok(mix(x.wrapping_sub(c)))
    }
}

#[inline(always)]
pub(crate) fn catcher(c: u64, inner: Result<u64, u64>) -> u64 {
    match inner {
        Ok(value) => value ^ c,
        Err(thrown) => thrown.wrapping_add(c),
    }
}

#[inline(always)]
pub(crate) fn calling(c: u64, first: u64, second: u64) -> u64 {
    mix(c ^ first).wrapping_add(second)
}

#[inline(always)]
pub(crate) fn indirect(inner: u64) -> u64 {
    inner.wrapping_add(1)
}

#[inline(always)]
pub(crate) fn floating(c: u64, a: f64, b: f64) -> f64 {
    a * b + small(c)
}

#[inline(always)]
pub(crate) fn floats(c: u64, args: [f64; 10]) -> f64 {
    let mut sum = small(c);
    for (index, arg) in args.into_iter().enumerate() {
        sum += arg * (index + 1) as f64;
    }
    sum
}

#[inline(always)]
pub(crate) fn many(c: u64, args: [u64; 9]) -> u64 {
    let mut sum = c;
    for arg in args {
        sum = sum.rotate_left(11) ^ arg;
    }
    mix(sum)
}

#[inline(always)]
pub(crate) fn wide(c: u64, x: u64) -> u128 {
    u128::from(x ^ c) * u128::from(c | 1)
}

#[inline(always)]
pub(crate) fn pair(c: u64, x: u64) -> Pair {
    Pair {
        word: mix(x ^ c),
        float: float(x, 1) + small(c),
    }
}

#[inline(always)]
pub(crate) fn triple(c: u64, x: u64) -> Triple {
    Triple([mix(x ^ c), x.wrapping_add(c), mix(c.wrapping_sub(x))])
}

#[inline(always)]
pub(crate) fn mixed(c: u64, a: u64, b: f64, d: u32, e: f64, f: &Triple) -> u64 {
    let sum = (b * e + small(c)).to_bits();
    mix(a ^ sum ^ u64::from(d) ^ f.0[0] ^ f.0[2].rotate_left(1))
}

#[inline(always)]
pub(crate) fn pointer(c: u64, words: &[u64; 4]) -> u64 {
    words.iter().fold(c, |sum, &word| mix(sum ^ word))
}

/// Shape of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One of `functions.rs`.
    Compiled(usize),
    /// One of `assembly.rs`.
    Assembly(usize),
}

impl Shape {
    /// Returns the shape of function `index`, as `build.rs` has it.
    #[inline(always)]
    pub(crate) const fn of(index: usize) -> Self {
        if cfg!(feature = "relocated") && index / 16 % 2 == 1 {
            Self::Assembly(index % 16)
        } else {
            Self::Compiled(index % 16)
        }
    }
}

/// At which of the first five bytes of an assembly function of `shape` instructions start, a bit
/// each.
pub(crate) const fn starts(shape: usize) -> u8 {
    // The shapes are in the order of these bits, read from the left.
    (shape as u8).reverse_bits() >> 3 | 1
}

/// Computes the results of the assembly functions.
#[inline(always)]
fn assembly(shape: usize, index: usize, x: u64) -> u64 {
    let c = constant(index);
    match shape {
        0 | 3 | 10 => x ^ c,
        1 | 6 | 12 => x.wrapping_add(c),
        2 => x,
        4 | 15 => c.wrapping_mul(x),
        5 if (x as i32) < 0 => c.wrapping_sub(x),
        5 => c.wrapping_add(x),
        7 => x.wrapping_add(c).wrapping_add(1),
        8 => assembly(3, index - 5, x) ^ c,
        9 => x.wrapping_sub(c),
        11 => x.wrapping_add(c.wrapping_mul(2)),
        13 => x.rotate_left(7) ^ c,
        14 => c.wrapping_sub(x),
        shape => unreachable!("there is no shape {shape}"),
    }
}

/// The result of function `index`, one with the signature `Int`, for `x`. `Err` when it throws.
#[inline(always)]
pub(crate) fn int(index: usize, x: u64) -> Result<u64, u64> {
    let own = constant(index);
    let group = index - index % 16;
    let of_calling = |x: u64| {
        calling(
            constant(group + 10),
            leaf(constant(group), x.wrapping_add(1)),
            recursive(constant(group + 5), x),
        )
    };
    let shape = match Shape::of(index) {
        Shape::Compiled(shape) => shape,
        Shape::Assembly(shape) => return Ok(assembly(shape, index, x)),
    };
    match shape {
        0 => Ok(leaf(own, x)),
        4 => Ok(looping(own, x)),
        5 => Ok(recursive(own, x)),
        7 => thrower(own, x),
        10 => Ok(of_calling(x)),
        11 => Ok(indirect(of_calling(x ^ own))),
        12 => Ok(looping(constant(group + 4), x.wrapping_add(own))),
        13 => Ok(catcher(own, thrower(constant(group + 7), x))),
        shape => unreachable!("shape {shape} has another signature"),
    }
}

/// Returns the result of function `index` for its first argument if that is cheap to compute: for
/// leaves, functions that throw, and functions in assembly.
#[inline(always)]
pub(crate) fn foretold(index: usize, x: u64) -> Option<Result<u64, u64>> {
    match Shape::of(index) {
        Shape::Compiled(0 | 7) | Shape::Assembly(_) => Some(int(index, x)),
        _ => None,
    }
}
