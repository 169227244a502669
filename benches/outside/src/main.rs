//! Measures a traced call in a program that is built with its author's own settings.
//!
//! Prints, for each case, ns per call of a leaf function and of a recursive one: the shortest of
//! many measurements. The first argument is the number of turns of the cases. `cargo xtask cost
//! --outside` builds this program in the workspace and outside of it, and compares; `docs/cost.md`
//! has the result.

#[path = "../../src/depth.rs"]
#[expect(unreachable_pub, reason = "it is public in the library of the benches")]
mod depth;

use std::any::Any;
use std::env;
use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use fgraph::{Entry, FgraphOps, Return};

/// Functions that are called.
const FUNCTIONS: &str = concat!(module_path!(), "::leaf ", module_path!(), "::recursive");

/// Number of calls in one measurement: few enough that most measurements are not interrupted.
const CALLS: u64 = 8_000;

/// Number of calls that one call of [`recursive`] makes, itself included.
const DEPTH: u64 = 16;

#[inline(never)]
extern "C" fn leaf(a: u64, b: u64) -> u64 {
    a.wrapping_mul(3).wrapping_add(b).wrapping_add(1)
}

#[inline(never)]
extern "C" fn recursive(a: u64) -> u64 {
    if a == 0 {
        return 0;
    }
    // The black box keeps compilers from turning it into a loop.
    black_box(recursive(a - 1)).wrapping_add(a)
}

/// Wants every return and does nothing. Each `N` is another type, since users have different ones.
#[derive(Debug)]
struct Empty<const N: usize>;

impl<const N: usize> FgraphOps for Empty<N> {
    type Data = ();

    fn entry(&self, _call: &mut Entry<'_, ()>) -> Option<()> {
        Some(())
    }

    fn ret(&self, _call: &mut Return<'_, ()>, _data: ()) {}
}

/// Wants no return.
#[derive(Debug)]
struct Declining;

impl FgraphOps for Declining {
    type Data = ();

    fn entry(&self, _call: &mut Entry<'_, ()>) -> Option<()> {
        None
    }
}

/// Handle that keeps a user registered.
type User = Box<dyn Any>;

fn watch<T: FgraphOps>(ops: T) -> Result<User, Box<dyn Error>> {
    // SAFETY: these users do nothing, which is allowed everywhere.
    let handle = unsafe { fgraph::register(ops, FUNCTIONS) }?;
    let traced = handle.report()?.traced;
    if traced != 2 {
        return Err(format!("{traced} of 2 functions are traced").into());
    }
    Ok(Box::new(handle))
}

/// Registers `users` users, each of a type of its own.
fn empty(users: usize) -> Result<Vec<User>, Box<dyn Error>> {
    let mut registered = Vec::new();
    macro_rules! register {
        ($($n:literal)*) => {
            $(if $n < users {
                registered.push(watch(Empty::<$n>)?);
            })*
        };
    }
    register!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    Ok(registered)
}

/// Users that watch the functions.
#[derive(Clone, Copy)]
enum Case {
    /// None, and none has yet.
    Plain,
    /// None any more.
    Off,
    Declined,
    Users(usize),
}

impl Case {
    /// The first must be first: its functions were never patched.
    const ALL: [(Self, &'static str); 7] = [
        (Self::Plain, "plain"),
        (Self::Off, "site off"),
        (Self::Declined, "declined return"),
        (Self::Users(1), "1 user"),
        (Self::Users(2), "2 users"),
        (Self::Users(4), "4 users"),
        (Self::Users(16), "16 users"),
    ];

    fn set_up(self) -> Result<Vec<User>, Box<dyn Error>> {
        match self {
            Self::Plain => Ok(Vec::new()),
            Self::Off => empty(1).map(|_| Vec::new()),
            Self::Declined => Ok(vec![watch(Declining)?]),
            Self::Users(users) => empty(users),
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let turns: usize = env::args().nth(1).map_or(Ok(20), |turns| turns.parse())?;
    let mut best = [[f64::INFINITY; 2]; Case::ALL.len()];
    for turn in 0..turns {
        for ((case, _), best) in Case::ALL.into_iter().zip(&mut best) {
            if matches!(case, Case::Plain) && turn > 0 {
                continue;
            }
            let users = case.set_up()?;
            // Plain calls have only one turn, so that one is as long as all others together.
            let samples = if matches!(case, Case::Plain) {
                8 * turns
            } else {
                8
            };
            for sample in 0..samples {
                depth::at(sample, || {
                    best[0] = best[0].min(ns_per_call(leaf_calls));
                    best[1] = best[1].min(ns_per_call(recursive_calls));
                });
            }
            drop(users);
        }
    }
    for ((_, name), [leaf, recursive]) in Case::ALL.into_iter().zip(best) {
        println!("{name}\t{leaf:.3}\t{recursive:.3}");
    }
    Ok(())
}

fn ns_per_call(calls: fn()) -> f64 {
    let start = Instant::now();
    calls();
    start.elapsed().as_secs_f64() * 1e9 / CALLS as f64
}

#[inline(never)]
fn leaf_calls() {
    let code = black_box(leaf as extern "C" fn(u64, u64) -> u64);
    // Each call waits for the result of the previous one, like most calls.
    black_box((0..CALLS).fold(0, |value, _| code(value, 1)));
}

#[inline(never)]
fn recursive_calls() {
    let code = black_box(recursive as extern "C" fn(u64) -> u64);
    let sum = |sum: u64, _| sum.wrapping_add(code(DEPTH - 1));
    black_box((0..CALLS / DEPTH).fold(0, sum));
}
