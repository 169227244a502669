//! Measures.
//!
//! Every disturbance makes a measurement longer, so the shortest of many counts, or the median of a
//! difference. The cases take turns, so that a machine that is slower for a while slows all of
//! them.

use std::hint::black_box;
use std::time::{Duration, Instant};

use fgraph::{Error, MAX_USERS};
use fgraph_bench::baseline;
use fgraph_bench::cases::{self, Case};
use fgraph_bench::depth;
use fgraph_bench::filters::Changes;
use fgraph_bench::functions::{Function, Variant};
use fgraph_bench::instructions;
use fgraph_bench::memory::ShadowStack;
use fgraph_bench::parent;
use fgraph_bench::random_order::RandomOrder;
use fgraph_bench::sites::{Batch, Times};
use fgraph_bench::tracers::{Own, Tracer};
use fgraph_bench::two_threads;
use fgraph_bench::whole_process::Whole;
use fgraph_needs::processor;
use fgraph_trace::clock::ClockKind;
use fgraph_x86_64::cpu;

/// Number of turns of the cases.
const ROUNDS: usize = 80;
/// Number of measurements per turn.
const SAMPLES: usize = 8;
/// Number of calls per measurement: few enough that most are not interrupted.
const CALLS: u64 = 8_000;
/// Number of turns of the tracers.
const TRACER_ROUNDS: usize = 20;
/// Number of turns of the batches.
const PATCHING_ROUNDS: usize = 51;

/// Number of processes that are traced as a whole.
const WHOLE_ROUNDS: usize = 5;

/// Number of processes in which filters are changed.
const CHANGES_ROUNDS: usize = 2;

/// Cases that are also measured on two threads.
const PAIRED: [Case; 2] = [Case::Plain, Case::Users(1)];

/// All measurements.
#[derive(Debug)]
pub(crate) struct Figures {
    /// Bytes of each vector register that fgraph saves here.
    pub(crate) vector_bytes: u32,
    pub(crate) shadow_stack: ShadowStack,
    pub(crate) calls: Vec<Calls>,
    /// ns per call of eight functions in random order, plain and with one user.
    pub(crate) random_order: [f64; 2],
    /// Instructions of a call of the leaf function for each of [`instructions::CASES`], or the
    /// reason why they were not counted.
    pub(crate) instructions: Result<[f64; instructions::CASES.len()], String>,
    /// ns per call of each function under each tracer.
    pub(crate) tracers: Vec<(Tracer, [f64; 2])>,
    /// ns per call of the functions that a tracer watches, without it and with it.
    pub(crate) own: Vec<(Own, [f64; 2])>,
    /// ns for a reading of the clock that recorders use.
    pub(crate) clock: f64,
    /// Empty if there is only one processor.
    pub(crate) pairs: Vec<Pair>,
    pub(crate) patching: Vec<Patching>,
    /// The shortest of each.
    pub(crate) whole: Whole,
    /// The shortest of each.
    pub(crate) changes: Changes,
    /// ns for reading the data of the enclosing call, with this number of foreign frames between.
    pub(crate) parents: [(usize, f64); parent::BETWEEN.len()],
    /// The processor.
    pub(crate) processor: String,
    /// ns for the two calls that a user consists of, in a loop that does nothing else.
    pub(crate) bare_user: f64,
    /// Number of calls that should have been traced and were not.
    pub(crate) not_traced: u64,
}

/// One case on one thread: ns per call of each function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calls {
    pub(crate) case: Case,
    pub(crate) ns: [f64; 2],
}

/// One case on two threads: ns per call of each function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) case: Case,
    pub(crate) alone: [f64; 2],
    pub(crate) together: [f64; 2],
}

/// One batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patching {
    pub(crate) batch: Batch,
    /// The first time, when the kernel has to copy the pages of the text.
    pub(crate) first: Times,
    /// The shortest of each.
    pub(crate) best: Times,
    /// The patching alone.
    pub(crate) patch: Duration,
    /// The unpatching alone.
    pub(crate) unpatch: Duration,
}

impl Figures {
    pub(crate) fn measure() -> Result<Self, Box<dyn std::error::Error>> {
        let whole = (0..WHOLE_ROUNDS)
            .map(|_| Whole::in_another_process())
            .reduce(|a, b| Ok(a?.min(b?)))
            .expect("there are rounds")?;
        let changes = (0..CHANGES_ROUNDS)
            .map(|_| Changes::in_another_process())
            .reduce(|a, b| Ok(a?.min(b?)))
            .expect("there are rounds")?;
        let shadow_stack = ShadowStack::of_a_new_thread()?;
        // Before other threads exist: an idle process.
        let patching = patching()?;
        let mut figures = Self {
            vector_bytes: cpu::vector_bytes(),
            shadow_stack,
            calls: Case::ALL
                .map(|(case, _)| Calls {
                    case,
                    ns: [f64::INFINITY; 2],
                })
                .to_vec(),
            random_order: [f64::INFINITY; 2],
            instructions: instructions::count().map_err(|error| error.to_string()),
            tracers: Tracer::ALL
                .map(|(tracer, _)| (tracer, [f64::INFINITY; 2]))
                .to_vec(),
            own: Own::ALL.map(|own| (own, [f64::INFINITY; 2])).to_vec(),
            clock: f64::INFINITY,
            pairs: PAIRED
                .map(|case| Pair {
                    case,
                    alone: [f64::INFINITY; 2],
                    together: [f64::INFINITY; 2],
                })
                .to_vec(),
            patching,
            whole,
            changes,
            parents: parents()?,
            processor: processor(),
            bare_user: f64::INFINITY,
            not_traced: 0,
        };
        for _ in 0..ROUNDS {
            figures.calls()?;
        }
        for _ in 0..TRACER_ROUNDS {
            figures.tracers()?;
        }
        match two_threads::processors() {
            Some(processors) => {
                for _ in 0..ROUNDS {
                    figures.pairs(processors)?;
                }
            }
            None => figures.pairs.clear(),
        }
        Ok(figures)
    }

    /// ns per call of a function, on one thread.
    pub(crate) fn ns(&self, case: Case, function: usize) -> f64 {
        let row = self.calls.iter().find(|row| row.case == case);
        row.map_or(f64::NAN, |row| row.ns[function])
    }

    /// Instructions of a call of the leaf function.
    pub(crate) fn instructions(&self, case: Case) -> f64 {
        let index = instructions::CASES.iter().position(|of| *of == case);
        let count = |index: usize| {
            self.instructions
                .as_ref()
                .map_or(f64::NAN, |all| all[index])
        };
        index.map_or(f64::NAN, count)
    }

    /// ns per call of a function under a tracer.
    pub(crate) fn traced(&self, tracer: Tracer, function: usize) -> f64 {
        let row = self.tracers.iter().find(|(of, _)| *of == tracer);
        row.map_or(f64::NAN, |(_, ns)| ns[function])
    }

    fn calls(&mut self) -> Result<(), Error> {
        const ROUNDS: u64 = 500;
        let bare = baseline::time(ROUNDS).as_secs_f64() * 1e9 / (ROUNDS as f64 * MAX_USERS as f64);
        self.bare_user = self.bare_user.min(bare);
        for row in &mut self.calls {
            let active = row.case.set_up()?;
            for (function, best) in Function::ALL.into_iter().zip(&mut row.ns) {
                for sample in 0..SAMPLES {
                    let time = depth::at(sample, || active.time(function, CALLS));
                    *best = best.min(per_call(time));
                }
            }
            self.not_traced += active.not_traced();
        }
        for (is_watched, best) in [false, true].into_iter().zip(&mut self.random_order) {
            let mut functions = RandomOrder::set_up(is_watched)?;
            for sample in 0..SAMPLES {
                let time = depth::at(sample, || functions.time(CALLS));
                *best = best.min(per_call(time));
            }
        }
        Ok(())
    }

    fn tracers(&mut self) -> Result<(), Box<dyn std::error::Error>> {
        for (tracer, ns) in &mut self.tracers {
            let active = tracer.set_up()?;
            for (function, best) in Function::ALL.into_iter().zip(ns) {
                for sample in 0..SAMPLES {
                    let run = || cases::time(function, Variant::Patchable, CALLS);
                    *best = best.min(per_call(depth::at(sample, run)));
                }
            }
            drop(active);
        }
        for (own, [plain, traced]) in &mut self.own {
            *plain = plain.min(per_call(own.time_plain(CALLS)));
            *traced = traced.min(per_call(own.time(CALLS, SAMPLES)?));
        }
        let kind = ClockKind::of_this_machine();
        let start = Instant::now();
        (0..CALLS).for_each(|_| _ = black_box(kind.now()));
        self.clock = self.clock.min(per_call(start.elapsed()));
        Ok(())
    }

    fn pairs(&mut self, processors: [usize; 2]) -> Result<(), Error> {
        for row in &mut self.pairs {
            let active = row.case.set_up()?;
            for (index, function) in Function::ALL.into_iter().enumerate() {
                let pair =
                    two_threads::time(function, active.variant(), CALLS, SAMPLES, processors);
                row.alone[index] = row.alone[index].min(per_call(pair.alone));
                row.together[index] = row.together[index].min(per_call(pair.together));
            }
            self.not_traced += active.not_traced();
        }
        Ok(())
    }
}

fn parents() -> Result<[(usize, f64); parent::BETWEEN.len()], Error> {
    let mut rows = parent::BETWEEN.map(|between| (between, f64::NAN));
    for (between, ns) in &mut rows {
        let mut best = [f64::INFINITY; 2];
        for sample in 0..ROUNDS * SAMPLES / 8 {
            let times = depth::at(sample, || parent::measure(*between, CALLS))?;
            for (best, time) in best.iter_mut().zip(times) {
                *best = best.min(per_call(time));
            }
        }
        *ns = best[0] - best[1];
    }
    Ok(rows)
}

fn patching() -> Result<Vec<Patching>, Error> {
    // The largest first, so that no page of its text has been patched before.
    let mut rounds: [Vec<Times>; Batch::ALL.len()] = Default::default();
    for _ in 0..PATCHING_ROUNDS {
        for (batch, times) in Batch::ALL.into_iter().zip(&mut rounds).rev() {
            times.push(batch.time()?);
        }
    }
    let rows = Batch::ALL.into_iter().zip(rounds);
    Ok(rows
        .map(|(batch, times)| Patching {
            batch,
            first: times[0],
            best: times.iter().copied().fold(Times::MAX, Times::min),
            patch: median(times.iter().map(|times| times.patch())),
            unpatch: median(times.iter().map(|times| times.unpatch())),
        })
        .collect())
}

/// The median and not the shortest: a difference is also too short if the subtracted time was
/// disturbed.
fn median(times: impl Iterator<Item = Duration>) -> Duration {
    let mut times: Vec<_> = times.collect();
    times.sort_unstable();
    times[times.len() / 2]
}

fn per_call(time: Duration) -> f64 {
    time.as_secs_f64() * 1e9 / CALLS as f64
}
