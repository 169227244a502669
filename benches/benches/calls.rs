//! The cases of `cargo xtask cost` under criterion: a traced call.

use criterion::{Criterion, criterion_group, criterion_main};
use fgraph_bench::cases::Case;
use fgraph_bench::functions::{DEPTH, Function};
use fgraph_bench::two_threads;

fn one_thread(criterion: &mut Criterion) {
    for function in Function::ALL {
        let mut group = criterion.benchmark_group(function.name());
        for (case, _) in Case::ALL {
            let active = case.set_up().expect("the machine is supported");
            group.bench_function(case.to_string(), |bencher| {
                // The recursive function makes this number of calls at once.
                bencher.iter_custom(|calls| active.time(function, calls * DEPTH) / DEPTH as u32);
            });
        }
    }
}

fn two_threads(criterion: &mut Criterion) {
    let Some(processors) = two_threads::processors() else {
        return;
    };
    for function in Function::ALL {
        let mut group = criterion.benchmark_group(format!("{}, 2 threads", function.name()));
        for case in [Case::Plain, Case::Users(1)] {
            let active = case.set_up().expect("the machine is supported");
            group.bench_function(case.to_string(), |bencher| {
                bencher.iter_custom(|calls| {
                    let calls = calls * DEPTH;
                    let pair = two_threads::time(function, active.variant(), calls, 1, processors);
                    pair.together / DEPTH as u32
                });
            });
        }
    }
}

criterion_group!(benches, one_thread, two_threads);
criterion_main!(benches);
