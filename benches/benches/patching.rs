//! The batches of `cargo xtask cost` under criterion: users are added and removed.

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use fgraph_bench::sites::{Batch, Times};

/// Part of [`Times`] that a bench shows.
type Part = fn(&Times) -> Duration;

fn users(criterion: &mut Criterion) {
    let parts: [(&str, Part); 4] = [
        ("register, patching", |times| times.register),
        ("register, patched already", |times| times.register_again),
        ("unregister, unpatching", |times| times.unregister),
        ("unregister, still wanted", |times| times.unregister_again),
    ];
    for batch in Batch::ALL {
        let mut group = criterion.benchmark_group(format!("{} sites", batch.sites()));
        group.sample_size(20);
        for (name, part) in parts {
            group.bench_function(name, |bencher| {
                bencher.iter_custom(|times| {
                    let time = || part(&batch.time().expect("the machine is supported"));
                    (0..times).map(|_| time()).sum()
                });
            });
        }
    }
}

criterion_group!(benches, users);
criterion_main!(benches);
