//! Measures recording: the time of a call, memory and disk space, and the speed of reading
//! recordings. Run `cargo run --release -p fgraph-bench --bin trace`.
//!
//! Everything is measured in one run, in turns, in time on a processor. The best of several turns
//! counts, so that the figures can be compared with each other on a busy machine.

use std::error::Error;
use std::hint::black_box;
use std::io::{self, Cursor};
use std::sync::Arc;
use std::time::Duration;

use fgraph_bench::cases::Case;
use fgraph_bench::functions::{Function, Variant, WATCHED};
use fgraph_bench::processor_time;
use fgraph_trace::clock::ClockKind;
use fgraph_trace::event::{Kind, What, call};
use fgraph_trace::graph::{FunctionGraph, Options};
use fgraph_trace::names::DescriptionKind;
use fgraph_trace::recording::{Drain, Info};
use fgraph_trace::ring::{Mode, RingOptions, Rings};
use fgraph_trace::{Live, Recording, Source};
use fgraph_tracers::recorder::{self, Recorder};

const TURNS: usize = 100;
const CALLS: u64 = 1 << 16;

/// Nanoseconds for each of [`CALLS`].
fn time(work: impl FnOnce()) -> f64 {
    let begin = processor_time();
    work();
    (processor_time() - begin) as f64 / CALLS as f64
}

fn calls(variant: Variant) -> f64 {
    time(|| _ = black_box(Function::Leaf.run(variant, CALLS)))
}

/// The best of several turns of each.
fn best<const N: usize>(
    mut turn: impl FnMut() -> Result<[f64; N], Box<dyn Error>>,
) -> Result<[f64; N], Box<dyn Error>> {
    let mut best = [f64::MAX; N];
    for _ in 0..TURNS {
        let now = turn()?;
        for (best, now) in best.iter_mut().zip(now) {
            *best = best.min(now);
        }
    }
    Ok(best)
}

/// Options for a recorder of rings that are overwritten, with this number of arguments.
fn options(arguments: usize) -> recorder::Options {
    recorder::Options {
        rings: RingOptions {
            mode: Mode::Overwrite,
            ..RingOptions::default()
        },
        arguments,
        result: arguments != 0,
        ..recorder::Options::default()
    }
}

fn recording() -> Result<(), Box<dyn Error>> {
    let kind = ClockKind::of_this_machine();
    let [plain, empty, recorded, more, running, clock] = best(|| {
        let plain = calls(Variant::Plain);
        let active = Case::Users(1).set_up()?;
        let empty = calls(Variant::Patchable);
        drop(active);
        let recorder = Recorder::start_with(WATCHED, &options(0))?;
        // Afterwards the ring's memory is mapped in.
        calls(Variant::Patchable);
        let recorded = calls(Variant::Patchable);
        drop(recorder);
        let recorder = Recorder::start_with(WATCHED, &options(2))?;
        let more = calls(Variant::Patchable);
        drop(recorder);
        let options = recorder::Options {
            running: true,
            ..options(0)
        };
        let recorder = Recorder::start_with(WATCHED, &options)?;
        let running = calls(Variant::Patchable);
        drop(recorder);
        let clock = time(|| (0..CALLS).for_each(|_| _ = black_box(kind.now())));
        Ok([plain, empty, recorded, more, running, clock])
    })?;
    let budget = empty + 2.0 * clock + 8.0;
    println!("a call, ns: plain {plain:.1}, an empty user {empty:.1}, a clock read {clock:.1}");
    println!("  recorded {recorded:.1} (an empty user, two clock reads and 8 ns: {budget:.1})");
    println!("  with two arguments and the result {more:.1}");
    println!("  with the time that the thread has run {running:.1}");
    Ok(())
}

/// Functions with known types.
mod typed {
    use core::hint::black_box;

    #[unsafe(no_mangle)]
    #[inline(never)]
    pub(super) fn typed_numbers(a: u64, b: u32) -> u64 {
        black_box(a) ^ black_box(u64::from(b))
    }

    #[unsafe(no_mangle)]
    #[inline(never)]
    pub(super) fn typed_text(text: &str) -> u64 {
        black_box(text).len() as u64
    }
}

/// Measures the cost of recording values by their types.
fn types() -> Result<(), Box<dyn Error>> {
    let record = |filter, types: bool, words, calls: &dyn Fn() -> f64| {
        let options = recorder::Options {
            types: types.then_some(Duration::from_secs(60)),
            ..options(words)
        };
        let _recorder = Recorder::start_with(filter, &options)?;
        // Afterwards the ring's memory is mapped in.
        calls();
        Ok::<_, Box<dyn Error>>(calls())
    };
    let numbers = || time(|| (0..CALLS).for_each(|n| _ = typed::typed_numbers(n, 7)));
    let texts = || time(|| (0..CALLS).for_each(|_| _ = typed::typed_text("eleven byte")));
    let [bare, words, typed, text_words, text] = best(|| {
        Ok([
            record("typed_numbers", false, 0, &numbers)?,
            record("typed_numbers", false, 2, &numbers)?,
            record("typed_numbers", true, 2, &numbers)?,
            record("typed_text", false, 2, &texts)?,
            record("typed_text", true, 2, &texts)?,
        ])
    })?;
    println!("values, ns: a call without {bare:.1}");
    println!("  with two arguments and the result as words {words:.1}, by type {typed:.1}");
    println!("  with a text and the result as words {text_words:.1}, by type {text:.1}");
    Ok(())
}

/// Fills rings with this number of events of threads that make nested calls, at times as irregular
/// as a machine's.
fn filled(events: u64) -> Result<Arc<Rings>, Box<dyn Error>> {
    const THREADS: u32 = 4;
    const FUNCTIONS: u64 = 400;
    let options = RingOptions {
        sub_buffers: 4096,
        rings: THREADS,
        ..RingOptions::default()
    };
    let rings = Arc::new(Rings::create(&options)?);
    for function in 0..FUNCTIONS {
        let fields = [1, function, 0x1000 + function * 64, 64];
        let name = format!("some_module::function_{function}");
        rings.describe(DescriptionKind::Function, fields, [&name, "/a/program"]);
    }
    let start = rings.clock().first().ticks;
    for thread in 1..=THREADS {
        let writer = rings.writer(1, thread).ok_or("no ring")?;
        let (mut random, mut time) = (u64::from(thread), start);
        let mut open = Vec::new();
        for _ in 0..events / u64::from(THREADS) {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            time += 50 + (random >> 58);
            let goes_in = open.len() < 2 || open.len() < 20 && random >> 40 & 1 == 0;
            let event = if goes_in {
                // Some functions are called more often than others.
                let function = ((random >> 33) % 20 * (random >> 44) % FUNCTIONS) as u32;
                open.push(function);
                call(Kind::Entry, function)
            } else {
                call(Kind::Return, open.pop().unwrap_or(0))
            };
            writer.call(event, time);
        }
    }
    rings.finish();
    Ok(rings)
}

fn reading() -> Result<(), Box<dyn Error>> {
    const EVENTS: u64 = 8_000_000;
    let rings = filled(EVENTS)?;
    let rate = |begin: u64| EVENTS as f64 / (processor_time() - begin) as f64 * 1e3;
    let begin = processor_time();
    let bytes = Drain::new(rings.clone(), Vec::new(), &Info::of_this_process())?.finish()?;
    let mut rates = [rate(begin), 0.0, 0.0, 0.0];
    for _ in 0..3 {
        let begin = processor_time();
        let scanned = scan(&mut Recording::read(Cursor::new(&bytes))?)?;
        let scan_file = rate(begin);
        let begin = processor_time();
        let watched = scan(&mut Live::watch(rings.clone()))?;
        let scan_rings = rate(begin);
        let begin = processor_time();
        let mut graph = FunctionGraph::new(Options::default());
        graph.write_all(&mut Recording::read(Cursor::new(&bytes))?, &mut io::sink())?;
        let formatted = rate(begin);
        if [scanned, watched] != [EVENTS; 2] {
            return Err(format!("{scanned} and {watched} events of {EVENTS}").into());
        }
        for (best, now) in rates
            .iter_mut()
            .zip([0.0, scan_file, scan_rings, formatted])
        {
            *best = best.max(now);
        }
    }
    let [wrote, scan_file, scan_rings, formatted] = rates;
    println!(
        "a call on disk: {:.2} bytes",
        bytes.len() as f64 * 2.0 / EVENTS as f64
    );
    println!("million events a second: written {wrote:.1}, scanned {scan_file:.1}");
    println!("  scanned in rings {scan_rings:.1}, formatted {formatted:.1}");
    Ok(())
}

fn scan(source: &mut impl Source) -> Result<u64, Box<dyn Error>> {
    let mut events = 0;
    while let Some(event) = source.next()? {
        events += u64::from(!matches!(event.what, What::Lost { .. }));
    }
    Ok(events)
}

fn main() -> Result<(), Box<dyn Error>> {
    recording()?;
    types()?;
    reading()
}
