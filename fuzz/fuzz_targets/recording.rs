//! Reads bytes as a recording: no bytes may make that panic, take long, or take more memory than
//! their length allows.

#![no_main]

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{self, Cursor, Write};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use fgraph_trace::Recording;
use fgraph_trace::graph::{FunctionGraph, Options, Parts, ResultFormat};

/// Counts what is allocated, and how much that was at most.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator does it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Relaxed) + layout.size();
        MOST.fetch_max(held, Relaxed);
        // SAFETY: handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: handed on.
        unsafe { System.dealloc(memory, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Takes so many bytes of text: a few bytes may be millions of events.
struct Limited(usize);

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.0.checked_sub(bytes.len());
        self.0 = left.ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Gives blocks the right checksums, which a fuzzer does not find by chance.
fn repair(bytes: &[u8]) -> Vec<u8> {
    const HEADER: usize = 20;
    let mut file = bytes.to_vec();
    let mut at = 16;
    while let Some(block) = file.get_mut(at..).filter(|rest| rest.len() >= HEADER) {
        let len = u32::from_le_bytes([block[8], block[9], block[10], block[11]]) as usize;
        let Some(stored) = block.get(HEADER..).and_then(|rest| rest.get(..len)) else {
            break;
        };
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&block[4..16]);
        hasher.update(stored);
        block[16..HEADER].copy_from_slice(&hasher.finalize().to_le_bytes());
        at += HEADER + len;
    }
    file
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let bytes = repair(bytes);
    let before = HELD.load(Relaxed);
    MOST.store(before, Relaxed);
    if let Ok(mut recording) = Recording::read(Cursor::new(&bytes)) {
        let mut graph = FunctionGraph::new(Options {
            parts: Parts::default() | Parts::ARGUMENTS,
            result: Some(ResultFormat::Kernel),
            ..Options::default()
        });
        let _ = graph.write_all(&mut recording, &mut Limited(1 << 20));
    }
    // Names, words of events, and a body that is unpacked beside them.
    let most = (112 << 20) + 256 * bytes.len();
    let held = MOST.load(Relaxed) - before;
    assert!(held < most, "{held} bytes of memory for {}", bytes.len());
});
