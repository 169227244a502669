//! Recordings that were made to keep their reader busy, or to fill its memory.
//!
//! Bytes that are read and bytes that are allocated are counted, so nothing here depends on time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{self, Cursor, Read, Seek, SeekFrom};

use fgraph_trace::names::DescriptionKind;
use fgraph_trace::{Recording, Source};

const MIB: usize = 1 << 20;

/// Counts what a thread has, and how much that was at most.
struct Counting;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static MOST: Cell<usize> = const { Cell::new(0) };
}

fn count(new: usize, old: usize) {
    let held = HELD.get().wrapping_add(new).wrapping_sub(old);
    HELD.set(held);
    // Memory of another thread may be freed here.
    if held < usize::MAX / 2 {
        MOST.set(MOST.get().max(held));
    }
}

// SAFETY: the system's allocator does it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: handed on.
        unsafe { System.dealloc(memory, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Counts the bytes that are read.
struct Counted<'b>(Cursor<&'b [u8]>, usize);

impl Read for Counted<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(into)?;
        self.1 += read;
        Ok(read)
    }
}

impl Seek for Counted<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

/// Cost of reading a file.
struct Cost {
    memory: usize,
    read: usize,
    error: Option<String>,
    events: u64,
}

fn cost(file: &[u8]) -> Cost {
    let before = HELD.get();
    MOST.set(before);
    let mut input = Counted(Cursor::new(file), 0);
    let (mut error, mut events) = (None, 0);
    match Recording::read(&mut input) {
        Err(found) => error = Some(found.to_string()),
        Ok(mut recording) => {
            while recording.next().unwrap().is_some() {
                events += 1;
            }
        }
    }
    Cost {
        memory: MOST.get() - before,
        read: input.1,
        error,
        events,
    }
}

fn start() -> Vec<u8> {
    let mut file = b"FGRAPHRC".to_vec();
    file.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]);
    file
}

/// Appends a block that is whole.
fn push_block(file: &mut Vec<u8>, kind: u8, head: &[u8], body: &[u8], is_packed: bool) {
    let packed = match is_packed {
        true => zstd::bulk::compress(body, 1).unwrap(),
        false => body.to_vec(),
    };
    let mut header = vec![kind, is_packed.into()];
    header.extend_from_slice(&(head.len() as u16).to_le_bytes());
    header.extend_from_slice(&((head.len() + packed.len()) as u32).to_le_bytes());
    header.extend_from_slice(&(body.len() as u32).to_le_bytes());
    let mut hasher = crc32fast::Hasher::new();
    for bytes in [&header[..], head, &packed] {
        hasher.update(bytes);
    }
    file.extend_from_slice(b"FGBK");
    file.extend_from_slice(&header);
    file.extend_from_slice(&hasher.finalize().to_le_bytes());
    file.extend_from_slice(head);
    file.extend_from_slice(&packed);
}

fn push(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn push_all(out: &mut Vec<u8>, values: &[u64]) {
    values.iter().for_each(|value| push(out, *value));
}

/// Appends an index of blocks, and the end.
fn push_index(file: &mut Vec<u8>, body: &[u8]) {
    let place = file.len() as u64;
    push_block(file, 5, &[], body, true);
    push_block(file, 6, &[], &place.to_le_bytes(), false);
}

/// The head of a block of events of a ring.
fn head(ring: u64, words: u64) -> Vec<u8> {
    let mut head = Vec::new();
    push(&mut head, ring);
    (0..12).for_each(|_| push(&mut head, 0));
    push(&mut head, words);
    head
}

#[test]
fn headers_of_blocks_that_are_none_are_read_in_linear_time() {
    for distance in [4, 20, 5000] {
        let mut file = start();
        while file.len() < 4 * MIB {
            let at = file.len();
            file.extend_from_slice(b"FGBK\x03\x00\x00\x00");
            if distance > 4 {
                let left = (4 * MIB - at).saturating_sub(64) as u32;
                file.extend_from_slice(&left.to_le_bytes());
                file.extend_from_slice(&left.to_le_bytes());
            }
            file.resize((at + distance).max(file.len()), 0);
        }
        let cost = cost(&file);
        assert!(cost.read < 10 * file.len(), "{distance}: {}", cost.read);
        assert!(cost.memory < 16 * MIB, "{distance}: {}", cost.memory);
    }
}

#[test]
fn names_take_no_more_memory_than_the_budget() {
    // Names of threads, of modules, and of functions that are called the same.
    for kind in [
        DescriptionKind::Thread,
        DescriptionKind::Module,
        DescriptionKind::Function,
    ] {
        for text in [0, 1000] {
            let mut file = start();
            for block in 0..8_u64 {
                let mut body = Vec::new();
                for n in 0.. {
                    if body.len() > MIB {
                        break;
                    }
                    body.push(kind as u8);
                    push_all(&mut body, &[1, block << 32 | n, 1, 1]);
                    for _ in 0..2 {
                        push(&mut body, text);
                        body.resize(body.len() + text as usize, b'a');
                    }
                }
                push_block(&mut file, 2, &[], &body, true);
            }
            let cost = cost(&file);
            let most = 40 * MIB + 64 * file.len();
            assert!(
                cost.memory < most,
                "{kind:?} {text}: {} of {most}",
                cost.memory
            );
        }
    }
}

#[test]
fn states_of_threads_take_no_more_memory_than_the_budget() {
    // Threads with one change each, and one thread with all changes.
    for count in [1, u64::MAX] {
        let mut file = start();
        for block in 0..8_u64 {
            let mut body = Vec::new();
            let all = MIB as u64 / 2;
            for n in 1..=all / (2 * count.min(4)) {
                match count {
                    1 => push_all(&mut body, &[block << 24 | n, 1, 1, n % 2]),
                    _ if n == 1 => push_all(&mut body, &[1, all / 8, 1, 1]),
                    _ => push_all(&mut body, &[1, n % 2]),
                }
            }
            push_block(&mut file, 7, &[], &body, true);
        }
        let cost = cost(&file);
        let most = 40 * MIB + 64 * file.len();
        assert!(cost.memory < most, "{count}: {} of {most}", cost.memory);
    }
    // A number of changes that no file has.
    let mut file = start();
    let mut body = Vec::new();
    push_all(&mut body, &[1, u64::MAX, 1, 1]);
    push_block(&mut file, 7, &[], &body, true);
    assert!(cost(&file).memory < 32 * MIB);
}

#[test]
fn a_body_that_unpacks_to_more_than_the_budget_is_not_unpacked() {
    let zeros = vec![0; 60 * MIB];
    // Zeros are texts without a byte, arguments without end, blocks at 0, or threads without
    // changes.
    for kind in [1, 2, 4, 7] {
        let mut file = start();
        push_block(&mut file, kind, &[], &zeros, true);
        assert!(cost(&file).memory < 32 * MIB, "{kind}");
    }
    let mut file = start();
    push_index(&mut file, &zeros);
    assert!(cost(&file).memory < 32 * MIB);
    let mut file = start();
    push_block(&mut file, 3, &head(0, 60 << 20), &zeros, true);
    push_block(&mut file, 3, &head(1, 1), &zeros, true);
    let cost = cost(&file);
    assert!(cost.memory < 32 * MIB, "{}", cost.memory);
}

#[test]
fn a_program_that_was_started_with_arguments_without_end_is_refused() {
    // The processor's clock.
    let mut body = vec![1, 0, 0, 0, 0, 0];
    push_all(&mut body, &[0, 0, 20 << 20]);
    body.resize(body.len() + (20 << 20), 0);
    let mut file = start();
    push_block(&mut file, 1, &[], &body, true);
    let cost = cost(&file);
    assert!(cost.memory < 64 * MIB, "{}", cost.memory);
}

#[test]
fn an_index_that_names_a_block_again_and_again_is_not_believed() {
    let mut file = start();
    let at = file.len() as u64;
    let mut names = Vec::new();
    names.push(DescriptionKind::Thread as u8);
    names.extend_from_slice(&[1, 1, 1, 1, 0, 0]);
    push_block(&mut file, 2, &[], &names, false);
    push_block(&mut file, 3, &head(0, 0), &vec![0; MIB], true);
    for kind in [2, 3] {
        let mut index = Vec::new();
        for sequence in 0..100_000 {
            push(&mut index, kind);
            push(&mut index, at);
            if kind == 3 {
                push_all(&mut index, &[0, sequence, 0, 0, 0, 0, 0, 0, 0]);
            }
        }
        let mut file = file.clone();
        push_index(&mut file, &index);
        let cost = cost(&file);
        assert!(cost.read < 10 * file.len() + MIB, "{kind}: {}", cost.read);
        assert!(cost.memory < 16 * MIB, "{kind}: {}", cost.memory);
    }
}

#[test]
fn blocks_inside_each_other_are_read_once() {
    let mut nested = Vec::new();
    let mut depth = 0;
    while nested.len() < 128 << 10 {
        let inner = std::mem::take(&mut nested);
        push_block(&mut nested, 3, &head(depth, 0), &inner, false);
        depth += 1;
    }
    let mut file = start();
    let first = file.len() as u64;
    file.extend_from_slice(&nested);
    let mut index = Vec::new();
    for n in 0..depth {
        push(&mut index, 3);
        push(&mut index, first + n * (20 + 14));
        push_all(&mut index, &[n, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
    push_index(&mut file, &index);
    assert!(cost(&file).read < 10 * file.len());
}

#[test]
fn events_of_many_rings_take_no_more_memory_than_the_budget() {
    let words = 1 << 20;
    let mut body = Vec::new();
    push(&mut body, words);
    // An entry of a function each, at the same time.
    body.resize(body.len() + words as usize, 1 << 2 | 1);
    body.resize(body.len() + words as usize, 0);
    let mut file = start();
    for ring in 0..100 {
        push_block(&mut file, 3, &head(ring, words), &body, true);
    }
    let cost = cost(&file);
    assert!(cost.events >= words, "{}", cost.events);
    let most = 64 * MIB + 64 * file.len();
    assert!(cost.memory < most, "{} of {most}", cost.memory);
}

#[test]
fn a_recording_of_many_small_blocks_is_whole() {
    let mut file = start();
    let mut body = Vec::new();
    push(&mut body, 1);
    body.extend_from_slice(&[1 << 2 | 1, 0]);
    for ring in 0..10_000 {
        push_block(&mut file, 3, &head(ring, 1), &body, false);
    }
    let cost = cost(&file);
    assert_eq!((cost.events, cost.error), (10_000, None));
    assert!(cost.memory < 64 * file.len() + 24 * MIB);
}
