//! Measures a user's access to the data of its enclosing call, with frames of another user between.
//!
//! ```text
//!   outer      watched by the user, which keeps data
//!   between    watched by another one, as often as is asked for
//!   inner      watched by the user, which looks for the data
//! ```

use core::hint::black_box;
use core::time::Duration;
use std::time::Instant;

use fgraph::{Entry, Error, FgraphOps};

/// Numbers of frames of another user between the two calls.
pub const BETWEEN: [usize; 4] = [0, 1, 10, 100];

/// Added to the depth in the first argument of [`outer`].
const OUTER: u64 = 1 << 32;

/// Reads the data of the enclosing call, or does not: the difference is the cost.
#[derive(Debug)]
struct Looking<const LOOKS: bool>;

impl<const LOOKS: bool> FgraphOps for Looking<LOOKS> {
    type Data = u64;

    fn entry(&self, call: &mut Entry<'_, u64>) -> Option<u64> {
        let first = call.arg(0)?;
        if first >= OUTER {
            return Some(first);
        }
        if LOOKS {
            let data = call.parent_data();
            debug_assert!(data.is_some());
            black_box(data);
        }
        None
    }
}

/// Keeps no data.
#[derive(Debug)]
struct Between;

impl FgraphOps for Between {
    type Data = ();

    fn entry(&self, _call: &mut Entry<'_, ()>) -> Option<()> {
        Some(())
    }
}

type Code = extern "C" fn(u64, u64) -> u64;

#[inline(never)]
extern "C" fn outer(depth: u64, calls: u64) -> u64 {
    below(depth - OUTER)(depth - OUTER, calls).wrapping_add(1)
}

#[inline(never)]
extern "C" fn between(depth: u64, calls: u64) -> u64 {
    below(depth - 1)(depth - 1, calls).wrapping_add(1)
}

/// Returns the function to call with this number of frames left to make.
fn below(depth: u64) -> Code {
    // The black box keeps compilers from turning the calls into a loop.
    black_box(if depth == 0 { time } else { between })
}

#[inline(never)]
extern "C" fn inner(a: u64, b: u64) -> u64 {
    a.wrapping_mul(3).wrapping_add(b)
}

/// Returns the ns of this number of calls of `inner`.
#[inline(never)]
extern "C" fn time(_depth: u64, calls: u64) -> u64 {
    let inner: Code = black_box(inner);
    let start = Instant::now();
    let mut sum = 0;
    for _ in 0..calls {
        sum = inner(sum & 0xff, 1);
    }
    black_box(sum);
    start.elapsed().as_nanos() as u64
}

/// Times calls that read the data of the enclosing call, and calls that do not.
pub fn measure(between: usize, calls: u64) -> Result<[Duration; 2], Error> {
    Ok([
        of(Looking::<true>, between, calls)?,
        of(Looking::<false>, between, calls)?,
    ])
}

fn of<const LOOKS: bool>(
    user: Looking<LOOKS>,
    between: usize,
    calls: u64,
) -> Result<Duration, Error> {
    let own = concat!(module_path!(), "::outer ", module_path!(), "::inner");
    let user = crate::register(user, own)?;
    let other = crate::register(Between, concat!(module_path!(), "::between"))?;
    assert_eq!((user.report()?.traced, other.report()?.traced), (2, 1));
    let outer: Code = black_box(outer);
    // Each frame adds one.
    let ns = outer(OUTER + between as u64, calls) - 1 - between as u64;
    Ok(Duration::from_nanos(ns))
}
