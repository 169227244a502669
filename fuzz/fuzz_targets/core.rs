//! Reads bytes as the core file of a recorded process, as `fgraph recover` does: no bytes may make
//! that panic, take long, or take more memory than their length allows.
//!
//! An input that begins with `E` is a list of changes of a core file that has rings: each is the
//! place of a word, and the word. Any other input is the core file itself.

#![no_main]

use std::io::{self, Cursor, Read as _, Write};
use std::sync::{Arc, LazyLock};

use fgraph_symbols::core_file::CoreFile;
use fgraph_trace::Recording;
use fgraph_trace::event::{Kind, call};
use fgraph_trace::graph::{FunctionGraph, Options};
use fgraph_trace::names::DescriptionKind;
use fgraph_trace::recording::{Drain, Info};
use fgraph_trace::ring::{Mode, RingOptions, Rings};

#[path = "../../crates/fgraph-cli/src/commands/recover/rings.rs"]
#[allow(dead_code)]
mod rings;

/// The address of the rings in the core file.
const ADDRESS: u64 = 0x7000_0000_0000;
/// Bytes of a change: the place of a word, and the word.
const CHANGE: usize = 12;

/// Discards text up to a limit: a few bytes may be millions of events.
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

fn longs(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|it| it.to_le_bytes()).collect()
}

/// Returns the memory of rings with events of two threads.
fn memory() -> Vec<u8> {
    let options = RingOptions {
        mode: Mode::Overwrite,
        rings: 2,
        sub_buffers: 2,
        sub_buffer_bytes: 1024,
        table_bytes: 4096,
        ..RingOptions::default()
    };
    let (rings, mut file) = Rings::create_shared(&options).unwrap();
    rings.describe(DescriptionKind::Thread, [7, 1, 0, 0], ["main", ""]);
    let mut time = 0;
    for thread in [1, 2] {
        let writer = rings.writer(7, thread).unwrap();
        for function in 1..100 {
            for kind in [Kind::Entry, Kind::Return] {
                time += 10;
                writer.call(call(kind, function), time);
            }
        }
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

/// A core file of a process with rings.
static CORE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let memory = memory();
    let note = |kind: u32, content: &[u8]| {
        let head = [5, content.len() as u32, kind].map(u32::to_le_bytes);
        let mut note = [head.as_flattened(), b"CORE\0\0\0\0", content].concat();
        note.resize(note.len().next_multiple_of(4), 0);
        note
    };
    let mut files = longs(&[1, 1, ADDRESS, ADDRESS + memory.len() as u64, 0]);
    files.extend(b"/memfd:fgraph-rings (deleted)\0");
    let [mut status, mut process] = [vec![0; 336], vec![0; 136]];
    status[32] = 7;
    process[24] = 7;
    process[56..59].copy_from_slice(b"./a");
    let notes = [note(1, &status), note(3, &process), note(0x4649_4c45, &files)].concat();
    let mut core = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x04\0\x3e\0\x01\0\0\0".to_vec();
    core.extend(longs(&[0, 64, 0]));
    core.extend([0, 0, 0, 0, 64, 0, 56, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    let mut offset = 64 + 2 * 56;
    for (kind, address, len) in [(4_u32, 0, notes.len()), (1, ADDRESS, memory.len())] {
        core.extend([kind, 0].map(u32::to_le_bytes).as_flattened());
        core.extend(longs(&[offset, address, 0, len as u64, len as u64, 1]));
        offset += len as u64;
    }
    [core, notes, memory].concat()
});

/// Returns the core file with the changes in the bytes.
fn changed(changes: &[u8]) -> Vec<u8> {
    let mut core = CORE.clone();
    for change in changes.chunks_exact(CHANGE) {
        let (place, word) = change.split_first_chunk().unwrap();
        let place = u32::from_le_bytes(*place) as usize % (core.len() - 8);
        core[place..][..8].copy_from_slice(word);
    }
    core
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let core = match bytes.split_first() {
        Some((b'E', changes)) => changed(changes),
        _ => bytes.to_vec(),
    };
    let len = core.len() as u64;
    let Ok(mut core) = CoreFile::read(Cursor::new(core)) else {
        return;
    };
    _ = core.program();
    for file in core.files().to_vec() {
        core.build_id(file.addresses.start);
    }
    let Ok(search) = rings::find(&mut core, len) else {
        return;
    };
    for found in search.found {
        let rings = Arc::new(found.rings);
        let drain = Drain::remains(rings, Vec::new(), &Info::of_this_process());
        let recording = drain.unwrap().finish().unwrap();
        let mut recording = Recording::read(Cursor::new(recording)).unwrap();
        let mut graph = FunctionGraph::new(Options::default());
        _ = graph.write_all(&mut recording, &mut Limited(1 << 20));
    }
});
