//! Adds on several threads, which name themselves after their first calls.

use std::thread;

#[inline(never)]
fn leaf(sum: u64, n: u64) -> u64 {
    std::hint::black_box(sum + n)
}

fn main() {
    let work = |n| {
        let named = thread::Builder::new().name(format!("adder {n}"));
        named.spawn(|| (0..1000).fold(0, leaf)).unwrap()
    };
    let threads: Vec<_> = (0..4).map(work).collect();
    let sums: Vec<u64> = threads.into_iter().map(|it| it.join().unwrap()).collect();
    println!("{sums:?}");
}
