//! Calls the leaf function with an empty user behind a trampoline that replaces the return address,
//! and prints nanoseconds per call: the shortest of many measurements.
//!
//! The arguments are `balanced` or `plain`, and a number of calls.

use std::env;
use std::error::Error;

use fgraph_bench::cases::Case;
use fgraph_bench::functions::Function;
use fgraph_bench::hijack::Handler;

/// Calls of a measurement.
const BATCH: u64 = 10_000;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [handler, calls] = arguments.as_slice() else {
        return Err("usage: hijacked balanced|plain CALLS".into());
    };
    let handler = match handler.as_str() {
        "balanced" => Handler::Balanced,
        "plain" => Handler::Plain,
        other => return Err(format!("there is no handler {other}").into()),
    };
    let calls: u64 = calls.parse()?;
    let active = Case::Hijacked(handler).set_up()?;
    let batches = (0..calls.div_ceil(BATCH)).map(|_| active.time(Function::Leaf, BATCH));
    let shortest = batches.min().ok_or("no calls")?;
    println!("{:.3}", shortest.as_nanos() as f64 / BATCH as f64);
    match active.not_traced() {
        0 => Ok(()),
        calls => Err(format!("{calls} calls were not traced").into()),
    }
}
