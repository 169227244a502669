//! The functions that are patched.
//!
//! 4,096 functions in sixteen shapes, named `fn_0000` to `fn_4095`. Each has a constant of its own,
//! so that no two are the same code, and stands in a table, so that none can be specialised. With
//! the feature `relocated` every other sixteen are in assembly, see `assembly.rs`.

use std::hint::black_box;
use std::panic;
use std::sync::OnceLock;

#[cfg(feature = "relocated")]
use crate::assembly;
use crate::formula::{self, Shape, constant};

/// A result that comes back in an integer and a vector register.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) word: u64,
    pub(crate) float: f64,
}

/// A result that comes back in memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Triple(pub(crate) [u64; 3]);

/// Nine integers. Three travel on the stack.
type Many = extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64) -> u64;
/// Ten floating-point numbers. Two travel on the stack.
type Floats = extern "C" fn(f64, f64, f64, f64, f64, f64, f64, f64, f64, f64) -> f64;

/// A function, by its type.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Signature {
    Int(fn(u64) -> u64),
    Float(extern "C" fn(f64, f64) -> f64),
    Many(Many),
    Floats(Floats),
    Wide(fn(u64) -> u128),
    Pair(extern "C" fn(u64) -> Pair),
    Triple(extern "C" fn(u64) -> Triple),
    Mixed(extern "C" fn(u64, f64, u32, f64, &Triple) -> u64),
    Pointer(fn(&[u64; 4]) -> u64),
    #[cfg(feature = "relocated")]
    Assembly(assembly::Code),
}

/// Makes the macro of each shape, which takes a name, a number and callees: `leaf!(fn_0000, 0);`.
/// Its body has the constant as `C`, and the function itself as `this`.
macro_rules! shapes {
    ($d:tt $(
        $shape:ident($($callee:ident),*) => $abi:literal $args:tt -> $result:ident $body:tt
    )*) => {
        $(macro_rules! $shape {
            ($d name:ident, $d index:literal $(, $d $callee:ident)*) => {
                #[inline(never)]
                extern $abi fn $d name $args -> $result {
                    #[allow(unused_imports)]
                    use self::$d name as this;
                    $(use self::$d $callee as $callee;)*
                    const C: u64 = constant($d index);
                    $body
                }
            };
        })*
    };
}

shapes! { $
    leaf() => "Rust" (x: u64) -> u64 { formula::leaf(C, x) }
    looping() => "Rust" (x: u64) -> u64 { formula::looping(C, x) }
    recursive() => "Rust" (x: u64) -> u64 {
        if formula::recurses(x) {
            formula::recursive_step(this(x - 1), x)
        } else {
            formula::leaf(C, x)
        }
    }
    thrower() => "Rust" (x: u64) -> u64 {
        formula::thrower(C, x).unwrap_or_else(|thrown| throw(thrown))
    }
    catcher(callee) => "Rust" (x: u64) -> u64 {
        formula::catcher(C, catch(callee, x))
    }
    calling(first_callee, second_callee) => "Rust" (x: u64) -> u64 {
        let first = first_callee(x.wrapping_add(1));
        formula::calling(C, first, second_callee(x))
    }
    indirect(callee) => "Rust" (x: u64) -> u64 {
        let callee: fn(u64) -> u64 = black_box(callee);
        formula::indirect(callee(x ^ C))
    }
    tail(callee) => "Rust" (x: u64) -> u64 { callee(x.wrapping_add(C)) }
    float() => "C" (a: f64, b: f64) -> f64 { formula::floating(C, a, b) }
    floats() => "C" (
        a: f64, b: f64, c: f64, d: f64, e: f64, f: f64, g: f64, h: f64, i: f64, j: f64,
    ) -> f64 {
        formula::floats(C, [a, b, c, d, e, f, g, h, i, j])
    }
    many() => "C" (
        a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, g: u64, h: u64, i: u64,
    ) -> u64 {
        formula::many(C, [a, b, c, d, e, f, g, h, i])
    }
    wide() => "Rust" (x: u64) -> u128 { formula::wide(C, x) }
    pair() => "C" (x: u64) -> Pair { formula::pair(C, x) }
    triple() => "C" (x: u64) -> Triple { formula::triple(C, x) }
    mixed() => "C" (a: u64, b: f64, d: u32, e: f64, f: &Triple) -> u64 {
        formula::mixed(C, a, b, d, e, f)
    }
    pointer() => "Rust" (words: &[u64; 4]) -> u64 {
        formula::pointer(C, words)
    }
}

include!(concat!(env!("OUT_DIR"), "/functions.rs"));

#[cold]
fn throw(value: u64) -> ! {
    panic::resume_unwind(Box::new(value))
}

/// Calls a function that may throw.
#[inline(never)]
fn catch(callee: fn(u64) -> u64, x: u64) -> Result<u64, u64> {
    panic::catch_unwind(|| callee(x)).map_err(|thrown| *thrown.downcast().expect("thrown by us"))
}

/// Calls function `index` with arguments made of `x`; returns true if the result is right.
///
/// With an odd `x` it neither throws nor allocates, so that a signal handler may do it.
#[inline(never)]
pub(crate) fn is_right(index: usize, x: u64) -> bool {
    let c = constant(index);
    let word = |index| formula::word(x, index);
    let float = |index| formula::float(x, index);
    match FUNCTIONS[index] {
        Signature::Int(function) => {
            // Thrown to us, it would go too far.
            let x = if Shape::of(index) == Shape::Compiled(7) {
                x | 1
            } else {
                x
            };
            Ok(function(x)) == formula::int(index, x)
        }
        Signature::Float(function) => same(
            function(float(0), float(1)),
            formula::floating(c, float(0), float(1)),
        ),
        Signature::Many(function) => {
            let args = [0, 1, 2, 3, 4, 5, 6, 7, 8].map(word);
            let [a, b, d, e, f, g, h, i, j] = args;
            function(a, b, d, e, f, g, h, i, j) == formula::many(c, args)
        }
        Signature::Floats(function) => {
            let args = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(float);
            let [a, b, d, e, f, g, h, i, j, k] = args;
            same(
                function(a, b, d, e, f, g, h, i, j, k),
                formula::floats(c, args),
            )
        }
        Signature::Wide(function) => function(x) == formula::wide(c, x),
        Signature::Pair(function) => {
            let (found, right) = (function(x), formula::pair(c, x));
            found.word == right.word && same(found.float, right.float)
        }
        Signature::Triple(function) => function(x) == formula::triple(c, x),
        Signature::Mixed(function) => {
            let triple = Triple([1, 2, 3].map(word));
            function(x, float(0), x as u32, float(1), &triple)
                == formula::mixed(c, x, float(0), x as u32, float(1), &triple)
        }
        Signature::Pointer(function) => {
            let words = [0, 1, 2, 3].map(word);
            function(&words) == formula::pointer(c, &words)
        }
        #[cfg(feature = "relocated")]
        Signature::Assembly(function) => Ok(function(x)) == formula::int(index, x),
    }
}

/// Returns true if two numbers are the same to the last bit.
#[inline(always)]
fn same(a: f64, b: f64) -> bool {
    a.to_bits() == b.to_bits()
}

/// Returns the address of function `index`.
pub(crate) fn address(index: usize) -> usize {
    let address: *const () = match FUNCTIONS[index] {
        Signature::Int(function) => function as _,
        Signature::Float(function) => function as _,
        Signature::Many(function) => function as _,
        Signature::Floats(function) => function as _,
        Signature::Wide(function) => function as _,
        Signature::Pair(function) => function as _,
        Signature::Triple(function) => function as _,
        Signature::Mixed(function) => function as _,
        Signature::Pointer(function) => function as _,
        #[cfg(feature = "relocated")]
        Signature::Assembly(function) => function as _,
    };
    address.addr()
}

/// Alignment of the functions in bytes.
const ALIGN: usize = 16;

/// The numbers of the functions, by address.
#[derive(Debug)]
struct Map {
    first: usize,
    /// Number plus one of the function that begins at `first + ALIGN * position`.
    numbers: Box<[u16]>,
}

static MAP: OnceLock<Map> = OnceLock::new();

/// Makes [`index_of`] work.
pub(crate) fn prepare() {
    MAP.get_or_init(|| {
        let addresses: Vec<usize> = (0..FUNCTIONS.len()).map(address).collect();
        let first = *addresses.iter().min().expect("not empty");
        let last = *addresses.iter().max().expect("not empty");
        let mut numbers = vec![0; (last - first) / ALIGN + 1].into_boxed_slice();
        for (index, address) in addresses.into_iter().enumerate() {
            assert!(
                address.is_multiple_of(ALIGN),
                "fn_{index:04} is not aligned"
            );
            let place = &mut numbers[(address - first) / ALIGN];
            assert_eq!(
                *place, 0,
                "fn_{index:04} is the same code as another function"
            );
            *place = u16::try_from(index + 1).expect("fewer than 65,536 functions");
        }
        Map { first, numbers }
    });
}

/// The number of the function at `address`; `None` if it is none of these.
#[inline(always)]
pub(crate) fn index_of(address: usize) -> Option<usize> {
    let map = MAP.get()?;
    let offset = address.checked_sub(map.first)?;
    let number = *map.numbers.get(offset / ALIGN)?;
    (number != 0 && offset.is_multiple_of(ALIGN)).then(|| usize::from(number) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_computes_its_formula_and_is_found_by_its_address() {
        prepare();
        for index in 0..FUNCTIONS.len() {
            for x in [0, 1, 7, 1024, 0x0123_4567_89ab_cdef, u64::MAX] {
                assert!(is_right(index, x), "fn_{index:04}({x})");
            }
            assert_eq!(index_of(address(index)), Some(index));
        }
        assert_eq!(index_of(address(0) + 1), None);
    }
}
