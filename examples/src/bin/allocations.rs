//! A profile of allocations: bytes by the function that asks for them, directly or through
//! functions that are not watched. A strict user: it watches the allocator itself.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use fgraph::{AnywhereOps, EntryOf, FgraphOps};

const ROWS: usize = 1 << 16;

struct Profile {
    /// The number of the allocator's function.
    malloc: AtomicU32,
    bytes: Box<[AtomicU64]>,
    /// Bytes of those that no watched function has called.
    others: AtomicU64,
}

impl FgraphOps for Profile {
    type Data = u32;

    fn entry(&self, call: &mut EntryOf<'_, Self>) -> Option<u32> {
        let function = call.function().index();
        if function != self.malloc.load(Ordering::Relaxed) {
            return Some(function);
        }
        let row = call
            .parent_data()
            .and_then(|&caller| self.bytes.get(caller as usize));
        row.unwrap_or(&self.others)
            .fetch_add(call.arg(0)?, Ordering::Relaxed);
        None
    }
}

// SAFETY: the callback uses atomics in memory that it has.
unsafe impl AnywhereOps for Profile {}

#[inline(never)]
fn asks_for_much() -> Vec<Vec<u8>> {
    (0..100)
        .map(|_| std::hint::black_box(Vec::with_capacity(10_000)))
        .collect()
}

#[inline(never)]
fn asks_for_little() -> Vec<Vec<u8>> {
    (0..100)
        .map(|_| std::hint::black_box(Vec::with_capacity(10)))
        .collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let profile = Profile {
        malloc: AtomicU32::new(u32::MAX),
        bytes: (0..ROWS).map(|_| AtomicU64::new(0)).collect(),
        others: AtomicU64::new(0),
    };
    let user = fgraph::register_anywhere(profile, "*::asks_for_* malloc:mod:libc.so*")?;
    let functions = user.functions()?;
    // Closures have the names of their functions in theirs.
    let indices = |name: &'static str| {
        let has_name =
            move |function: &&fgraph::Function| function.name().to_string().contains(name);
        functions
            .iter()
            .filter(has_name)
            .map(|function| function.index())
    };
    let malloc = indices("malloc").next().expect("is watched");
    user.user().malloc.store(malloc, Ordering::Relaxed);
    drop((asks_for_much(), asks_for_little()));
    let bytes_of = |index: u32| user.user().bytes[index as usize].load(Ordering::Relaxed);
    let bytes = |name| indices(name).map(bytes_of).sum::<u64>();
    let (much, little) = (bytes("asks_for_much"), bytes("asks_for_little"));
    let counters = user.counters();
    assert_eq!(
        (counters.missed, counters.lost, counters.overrun),
        (0, 0, 0)
    );
    // The blocks, and the vector of them that grows or not.
    assert!((1_000_000..1_010_000).contains(&much), "{much}");
    assert!((1_000..11_000).contains(&little), "{little}");
    println!("much: {much} bytes, little: {little} bytes");
    Ok(())
}
