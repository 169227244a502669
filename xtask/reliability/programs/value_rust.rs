//! Functions of every convention that Rust has, with values of every size.
//!
//! value_rust WHAT: `rust`, `c` or `win64`.
#![feature(f16)]
#![allow(improper_ctypes_definitions)]

use std::hint::black_box;

#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(C)]
struct Big([u64; 9]);
#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(C)]
struct Mixed(u32, f64);
#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(C)]
struct Pair(f32, f32);
#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(C)]
struct Triple(u64, u64, u64);

macro_rules! functions {
    ($name:ident, $($abi:tt)*) => {
        mod $name {
            use super::*;

            #[inline(never)]
            pub $($abi)* fn integers(
                a: u8, b: i16, c: u32, d: i64, e: u128, f: u64, g: u64, h: u64, i: u64,
            ) -> u128 {
                (u128::from(a) | (b as u128) << 8 | u128::from(c) << 24)
                    ^ (d as u128)
                    ^ e.rotate_left(17)
                    ^ u128::from(f * 3 + g * 5 + h * 7 + i * 11) << 40
            }
            #[inline(never)]
            pub $($abi)* fn floats(
                a: f32, b: f64, c: f32, d: f64, e: f64, f: f64, g: f64, h: f64, i: f64, j: f64,
            ) -> f64 {
                f64::from(a) + b * 2.0 + f64::from(c) * 3.0 + d * 4.0 + e * 5.0 + f * 6.0
                    + g * 7.0 + h * 8.0 + i * 9.0 + j * 10.0
            }
            #[inline(never)]
            pub $($abi)* fn big(a: Big, b: u64) -> Big {
                Big(a.0.map(|word| word.wrapping_mul(b) ^ b))
            }
            #[inline(never)]
            pub $($abi)* fn mixed(a: Mixed, b: Pair, c: Triple) -> Mixed {
                Mixed(a.0 + c.1 as u32, a.1 + f64::from(b.0 * b.1) + c.2 as f64)
            }
            #[inline(never)]
            pub $($abi)* fn pair(a: Pair, b: f32) -> Pair {
                Pair(a.1 * b, a.0 + b)
            }
            #[inline(never)]
            pub $($abi)* fn triple(a: u64, b: Mixed) -> Triple {
                Triple(a, u64::from(b.0), b.1 as u64)
            }
            #[inline(never)]
            pub $($abi)* fn nested(a: u64, b: f64) -> f64 {
                // Values that are live across calls are in registers that the callees save.
                let c = [b * 2.0, b * 3.0, b * 5.0, b * 7.0, b * 11.0];
                let d = pair(Pair(a as f32, 1.0), 2.0);
                let e = triple(a, Mixed(1, b));
                let f = floats(1.0, b, 1.0, b, b, b, b, b, b, b);
                c.iter().sum::<f64>() + f64::from(d.0 + d.1) + (e.0 + e.1 + e.2 + a) as f64 + f
            }

            pub fn all() -> u64 {
                let mut sum = 0u64;
                for n in black_box(1)..200u64 {
                    let (r, x) = (n as f64 / 4.0, n as f32);
                    // Live across all calls.
                    let live = [
                        r * 0.5, r * 0.25, r * 1.5, r * 2.5, r * 3.5, r * 4.5, r * 5.5, r * 6.5,
                        r * 7.5,
                    ];
                    let e = u128::from(n) << 70 | 5;
                    let (a, b, c, d) = (n as u8, -(n as i16), n as u32 * 3, -(n as i64));
                    let u = integers(a, b, c, d, e, n, n + 1, n + 2, n + 3);
                    let f = floats(x, r, x, r, r, r, r, r, r, r);
                    assert_eq!(f, 4.0 * n as f64 + 53.0 * r - 2.0 * r);
                    let b = big(Big([n, 2, 3, 4, 5, 6, 7, 8, 9]), n);
                    assert!((1..9).all(|i| b.0[i as usize] == ((i + 1) * n) ^ n));
                    assert_eq!(b.0[0], (n * n) ^ n);
                    let right = Mixed(n as u32 * 2, r + 2.0 * n as f64 + 3.0);
                    assert_eq!(mixed(Mixed(n as u32, r), Pair(2.0, x), Triple(1, n, 3)), right);
                    assert_eq!(pair(Pair(x, 3.0), 2.0), Pair(6.0, x + 2.0));
                    assert_eq!(triple(n, Mixed(7, r)), Triple(n, 7, r as u64));
                    let sum_of_three = (n * 2 + 1 + r as u64) as f64;
                    let right = r * 28.0 + f64::from(x + 2.0 + 2.0) + sum_of_three + 4.0 + 51.0 * r;
                    assert_eq!(nested(n, r), right);
                    let live: f64 = live.iter().sum();
                    assert_eq!(live, r * 32.25);
                    sum = sum.rotate_left(3) ^ u as u64 ^ (u >> 64) as u64 ^ b.0[3];
                }
                sum
            }
        }
    };
}

functions!(rust,);
functions!(c, extern "C");
functions!(sysv64, extern "sysv64");
functions!(win64, extern "win64");

/// Values that only the convention of Rust passes.
mod more {
    use super::*;

    #[inline(never)]
    fn halves(a: f16, b: f16) -> (f16, f16) {
        (b, a + b)
    }
    #[inline(never)]
    fn singles(a: (f32, f32), b: f32) -> (f32, f32) {
        (a.1 + b, a.0)
    }
    #[inline(never)]
    fn wide(a: u128, b: i128) -> (u128, i128) {
        (a.wrapping_mul(3), -b)
    }
    #[inline(never)]
    fn maybe(a: Option<u64>, b: Result<u32, Box<str>>) -> Option<(u64, u32)> {
        Some((a?, b.ok()?))
    }
    #[inline(never)]
    fn slice<'a>(a: &'a [u64], b: &'a str) -> (&'a [u64], &'a str) {
        (&a[1..], &b[2..])
    }
    #[inline(never)]
    fn array(a: [u8; 3], b: [f32; 4], c: [u64; 33]) -> ([u8; 3], [f32; 4], [u64; 33]) {
        (a.map(|n| n ^ 5), b.map(|n| n * 2.0), c.map(|n| n + 7))
    }

    pub fn all() {
        for n in black_box(1)..200u64 {
            assert_eq!(halves(n as f16, 2.0), (2.0, n as f16 + 2.0));
            assert_eq!(singles((n as f32, 1.5), 2.0), (3.5, n as f32));
            let big = u128::from(n) << 77;
            assert_eq!(wide(big, -(big as i128)), (big * 3, big as i128));
            assert_eq!(maybe(Some(n), Ok(3)), Some((n, 3)));
            assert_eq!(maybe(Some(n), Err("no".into())), None);
            assert_eq!(maybe(None, Ok(3)), None);
            assert_eq!(slice(&[1, n, 3], "abcd"), (&[n, 3][..], "cd"));
            let (a, b, c) = array([n as u8; 3], [n as f32; 4], [n; 33]);
            assert!(a == [n as u8 ^ 5; 3] && b == [n as f32 * 2.0; 4] && c == [n + 7; 33]);
        }
    }
}

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("rust") => {
            println!("{}", rust::all());
            more::all();
        }
        Some("c") => println!("{} {}", c::all(), sysv64::all()),
        Some("win64") => println!("{}", win64::all()),
        _ => std::process::exit(2),
    }
}
