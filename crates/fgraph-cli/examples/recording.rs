//! Writes a recording of made-up calls, to measure how fast recordings are read.
//!
//! ```text
//! cargo run --release -p fgraph-cli --example recording -- FILE CALLS [THREADS]
//! ```

use std::env;
use std::error::Error;
use std::fs::File;
use std::io::BufWriter;
use std::sync::Arc;

use fgraph_trace::clock::ClockKind;
use fgraph_trace::event::{Kind, call};
use fgraph_trace::names::DescriptionKind;
use fgraph_trace::recording::{Drain, Info};
use fgraph_trace::ring::{RingOptions, Rings};

const FUNCTIONS: u32 = 300;
const DEPTH: usize = 9;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [path, calls, threads @ ..] = arguments.as_slice() else {
        return Err("recording FILE CALLS [THREADS]".into());
    };
    let calls: u64 = calls.parse()?;
    let threads: usize = threads.first().map_or(Ok(2), |threads| threads.parse())?;
    let process = std::process::id();
    let rings = Arc::new(Rings::create(&RingOptions {
        clock: Some(ClockKind::Monotonic),
        ..RingOptions::default()
    })?);
    for function in 0..FUNCTIONS {
        let fields = [
            process.into(),
            function.into(),
            0x1000 + u64::from(function) * 64,
            64,
        ];
        let name = format!("library::module::Type<T>::function_{function}");
        let module = format!("/usr/lib/library{}.so", function % 3);
        rings.describe(DescriptionKind::Function, fields, [&name, &module]);
    }
    let out = BufWriter::new(File::create(path)?);
    let mut drain = Drain::new(rings.clone(), out, &Info::of_this_process())?;
    let writers: Option<Vec<_>> = (0..threads)
        .map(|thread| rings.writer(process, process + thread as u32))
        .collect();
    let writers = writers.ok_or("too many threads")?;
    let mut stacks = vec![Vec::new(); threads];
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut time = rings.clock().first().ticks;
    for event in 0..calls * 2 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        time += 20 + (random >> 40 & 0xff);
        let thread = (event >> 6) as usize % threads;
        let stack: &mut Vec<u32> = &mut stacks[thread];
        let is_entry = stack.len() < 2 || stack.len() < DEPTH && random & 1 == 0;
        if is_entry {
            // Each function calls three others.
            let caller = stack.last().copied().unwrap_or(0);
            let function = (caller * 3 + 1 + (random >> 8) as u32 % 3) % FUNCTIONS;
            stack.push(function);
            writers[thread].call(call(Kind::Entry, function), time);
        } else if let Some(function) = stack.pop() {
            writers[thread].call(call(Kind::Return, function), time);
        }
        if event % 8192 == 0 {
            drain.drain()?;
        }
    }
    drop(writers);
    rings.finish();
    drain.finish()?;
    Ok(())
}
