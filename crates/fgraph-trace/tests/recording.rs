//! Recordings that are written, read, cut, damaged and completed.

use std::io::Cursor;
use std::sync::{Arc, Mutex};

use fgraph_trace::clock::ClockKind;
use fgraph_trace::event::{Kind, What, call};
use fgraph_trace::graph::{FunctionGraph, Options, Parts};
use fgraph_trace::names::DescriptionKind;
use fgraph_trace::recording::{Drain, Info, recover};
use fgraph_trace::ring::{Extras, Mode, RingOptions, Rings};
use fgraph_trace::schedule::{Change, Schedule, State};
use fgraph_trace::{Live, Recording, Source};
use proptest::collection::vec;
use proptest::prelude::*;

const PROCESS: u32 = 100;

fn options() -> RingOptions {
    RingOptions {
        mode: Mode::Drop,
        rings: 4,
        sub_buffers: 4,
        sub_buffer_bytes: 1024,
        table_bytes: 64 << 10,
        clock: Some(ClockKind::Monotonic),
    }
}

fn info() -> Info {
    let mut info = Info::of_this_process();
    info.process = PROCESS;
    info
}

/// Three threads that call two functions, with arguments now and then.
fn write_some(rings: &Rings, calls: u64) {
    for (function, name) in [(1, "first"), (2, "second")] {
        let fields = [PROCESS.into(), function, 0x1000 * function, 16];
        rings.describe(DescriptionKind::Function, fields, [name, "/a/program"]);
    }
    let start = rings.clock().first().ticks;
    let writers = [1, 2, 3].map(|thread| rings.writer(PROCESS, thread).unwrap());
    for n in 0..calls {
        let writer = &writers[n as usize % 3];
        let function = (n % 2) as u32 + 1;
        let extras = Extras {
            cpu: Some((n / 50) as u32),
            arguments: if n % 10 == 0 { &[5, 6] } else { &[] },
            ..Extras::default()
        };
        writer.call_with(call(Kind::Entry, function), start + n * 100, &extras);
        writer.call(call(Kind::Return, function), start + n * 100 + 40);
    }
    writers[0].mark(start + calls * 100, "the end");
}

fn text(source: &mut impl Source) -> String {
    let mut text = Vec::new();
    let options = Options {
        parts: Parts::default() | Parts::THREAD | Parts::ARGUMENTS,
        ..Options::default()
    };
    FunctionGraph::new(options)
        .write_all(source, &mut text)
        .unwrap();
    String::from_utf8(text).unwrap()
}

/// Events that are there, and events that are told to be lost.
fn count(source: &mut impl Source) -> (u64, u64) {
    let (mut events, mut lost) = (0, 0);
    while let Some(event) = source.next().unwrap() {
        match event.what {
            What::Lost { events, .. } => lost += events,
            _ => events += 1,
        }
    }
    (events, lost)
}

fn open(bytes: &[u8]) -> std::io::Result<Recording<Cursor<&[u8]>>> {
    Recording::read(Cursor::new(bytes))
}

/// A recording of so many calls, and the text of its rings.
fn recording(calls: u64) -> (Vec<u8>, String) {
    recording_with(&options(), calls)
}

fn recording_with(options: &RingOptions, calls: u64) -> (Vec<u8>, String) {
    let rings = Arc::new(Rings::create(options).unwrap());
    write_some(&rings, calls);
    rings.finish();
    let expected = text(&mut Live::watch(rings.clone()));
    let mut drain = Drain::new(rings, Vec::new(), &info()).unwrap();
    drain.drain().unwrap();
    (drain.finish().unwrap(), expected)
}

#[test]
fn a_recording_has_the_same_calls_as_its_rings() {
    let (bytes, expected) = recording(400);
    let mut found = open(&bytes).unwrap();
    assert_eq!(found.lanes().info(), &info());
    assert_eq!(text(&mut found), expected);
    assert!(expected.contains("first(0x5, 0x6);"));
    assert!(expected.contains("/* the end */"));
    assert!(found.lanes().damages().is_empty());
    let names = found.names();
    assert_eq!(names.function(PROCESS, 2).unwrap().module, "/a/program");
}

#[test]
fn states_of_threads_are_read_as_they_were_written() {
    let rings = Arc::new(Rings::create(&options()).unwrap());
    write_some(&rings, 3);
    let mut drain = Drain::new(rings.clone(), Vec::new(), &info()).unwrap();
    let mut expected = Schedule::default();
    let switch = |time, state, cpu| Change::Switch { time, state, cpu };
    let sample = Change::Sample {
        time: 500,
        running: 300,
        runnable: 40,
    };
    let changes = [
        (1, switch(1000, State::Blocked, Some(0))),
        (1, switch(2000, State::Running, Some(7))),
        (1, switch(2500, State::Runnable, None)),
        (2, sample),
    ];
    for part in [&changes[..1], &changes[1..], &[]] {
        drain.schedule(part, 4).unwrap();
    }
    for (thread, change) in changes {
        expected.add(thread, change);
    }
    expected.add_lost(12);
    rings.finish();
    let bytes = drain.finish().unwrap();
    let found = open(&bytes).unwrap();
    let found = found.schedule().unwrap();
    for thread in [1, 2] {
        for time in (0..4000).step_by(100) {
            assert_eq!(found.at(thread, time), expected.at(thread, time));
        }
        let all = |schedule: &Schedule| -> Vec<_> { schedule.intervals(thread, 0, 4000).collect() };
        assert_eq!(all(found), all(&expected));
    }
    assert_eq!((found.lost(), found.is_sampled()), (12, true));
    let (without, _) = recording(3);
    assert!(open(&without).unwrap().schedule().is_none());
}

#[test]
fn changes_of_no_thread_leave_the_other_ones_readable() {
    let rings = Arc::new(Rings::create(&options()).unwrap());
    let mut drain = Drain::new(rings.clone(), Vec::new(), &info()).unwrap();
    let at = |time| Change::Switch {
        time,
        state: State::Running,
        cpu: Some(1),
    };
    let changes = [(0, at(900)), (0, at(1000)), (1, at(2000))];
    drain.schedule(&changes, 0).unwrap();
    rings.finish();
    let bytes = drain.finish().unwrap();
    let found = open(&bytes).unwrap();
    assert!(found.lanes().has_end());
    let found = found.schedule().unwrap();
    assert_eq!(found.lost(), 0);
    let all: Vec<_> = found.intervals(1, 0, 3000).collect();
    assert!(
        all.iter().any(|it| it.state == Some(State::Running)),
        "{all:?}"
    );
}

#[test]
fn it_is_written_while_the_rings_are() {
    let rings = Arc::new(Rings::create(&options()).unwrap());
    let mut drain = Drain::new(rings.clone(), Vec::new(), &info()).unwrap();
    let writer = rings.writer(PROCESS, 1).unwrap();
    let start = rings.clock().first().ticks;
    for n in 0..5000 {
        assert!(writer.call(call(Kind::Entry, 1), start + n));
        drain.drain().unwrap();
    }
    rings.finish();
    let bytes = drain.finish().unwrap();
    assert_eq!(count(&mut open(&bytes).unwrap()), (5000, 0));
}

#[test]
fn events_that_come_after_the_end_are_not_in_the_recording() {
    let rings = Arc::new(Rings::create(&options()).unwrap());
    let mut drain = Drain::new(rings.clone(), Vec::new(), &info()).unwrap();
    write_some(&rings, 400);
    rings.finish();
    drain.end().unwrap();
    let counts = (drain.events(), drain.entries());
    assert_eq!(counts, (801, 400));
    // As a process does that goes on.
    write_some(&rings, 400);
    assert_eq!(drain.drain().unwrap(), 0);
    assert_eq!((drain.events(), drain.entries()), counts);
    let bytes = drain.finish().unwrap();
    assert_eq!(count(&mut open(&bytes).unwrap()).0, 801);
}

#[test]
fn it_is_the_same_however_many_threads_pack_it() {
    let written = |threads| {
        let options = RingOptions {
            sub_buffers: 64,
            ..options()
        };
        let rings = Arc::new(Rings::create(&options).unwrap());
        write_some(&rings, 3000);
        let drain = Drain::new(rings.clone(), Vec::new(), &info()).unwrap();
        let mut drain = drain.packed_by(threads);
        assert!(drain.drain().unwrap() > 16);
        write_some(&rings, 1000);
        rings.finish();
        let bytes = drain.finish().unwrap();
        let blocks = text(&mut open(&bytes).unwrap());
        (blocks.lines().count(), count(&mut open(&bytes).unwrap()))
    };
    let one = written(0);
    assert_eq!(one.1, (8002, 0));
    for threads in [1, 3] {
        assert_eq!(written(threads), one, "{threads}");
    }
}

#[test]
fn it_is_followed_while_it_is_written() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let rings = Arc::new(Rings::create(&options()).unwrap());
    let writer = rings.writer(PROCESS, 1).unwrap();
    let start = rings.clock().first().ticks;
    let mut drain = Drain::new(rings.clone(), file.reopen().unwrap(), &info()).unwrap();
    let describe = |function: u32, name: &str| {
        let fields = [PROCESS.into(), function.into(), 0x1000, 16];
        rings.describe(DescriptionKind::Function, fields, [name, "/a/program"]);
    };
    let mut now = start;
    let mut calls = |function: u32, calls: u32| {
        for _ in 0..calls {
            now += 100;
            writer.call(call(Kind::Entry, function), now);
            writer.call(call(Kind::Return, function), now + 40);
        }
    };
    // More than a sub-buffer, and not all of the next one.
    describe(1, "first");
    calls(1, 100);
    assert!(drain.drain().unwrap() > 0);
    let mut followed = Recording::follow(file.path()).unwrap();
    assert!(followed.lanes().is_growing());
    let before = count(&mut followed);
    assert!(before.0 > 0 && before.0 < 200, "{before:?}");
    assert!(!followed.is_over());
    assert_eq!(count(&mut followed), (0, 0));
    describe(2, "second");
    calls(2, 100);
    drain.drain().unwrap();
    let more = count(&mut followed);
    assert!(more.0 > 0, "{more:?}");
    // Another thread.
    let other = rings.writer(PROCESS, 2).unwrap();
    other.call(call(Kind::Entry, 2), start);
    rings.finish();
    drain.finish().unwrap();
    let rest = count(&mut followed);
    assert!(followed.is_over() && !followed.lanes().is_growing());
    assert_eq!(before.0 + more.0 + rest.0, 401);
    assert_eq!((before.1, more.1, rest.1), (0, 0, 0));
    let name = followed.names().function(PROCESS, 2);
    assert_eq!(name.map(|it| it.name.as_str()), Some("second"));
    assert_eq!(followed.lanes().damages(), []);
}

#[test]
fn a_block_that_is_not_whole_yet_is_read_when_it_is() {
    let (bytes, _) = recording(600);
    let file = tempfile::NamedTempFile::new().unwrap();
    let whole = count(&mut open(&bytes).unwrap());
    let (first, rest) = bytes.split_at(bytes.len() / 2);
    std::fs::write(file.path(), first).unwrap();
    let mut followed = Recording::follow(file.path()).unwrap();
    let before = count(&mut followed);
    let mut out = std::fs::File::options()
        .append(true)
        .open(file.path())
        .unwrap();
    std::io::Write::write_all(&mut out, rest).unwrap();
    let after = count(&mut followed);
    assert!(before.0 > 0 && after.0 > 0, "{before:?} {after:?}");
    assert_eq!((before.0 + after.0, before.1 + after.1), whole);
    assert_eq!(followed.lanes().damages(), []);
}

#[test]
fn a_call_takes_less_than_six_bytes() {
    let mut options = options();
    options.sub_buffer_bytes = 64 << 10;
    let rings = Arc::new(Rings::create(&options).unwrap());
    let writer = rings.writer(PROCESS, 1).unwrap();
    let mut time = rings.clock().first().ticks;
    let mut random = 1_u64;
    const CALLS: u64 = 10_000;
    for n in 0..CALLS {
        // Times as irregular as those of a machine.
        for kind in [Kind::Entry, Kind::Return] {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            time += 60 + (random >> 58);
            writer.call(call(kind, (n * n % 97) as u32), time);
        }
    }
    rings.finish();
    let drain = Drain::new(rings.clone(), Vec::new(), &info()).unwrap();
    let bytes = drain.finish().unwrap();
    assert!((bytes.len() as u64) < 6 * CALLS, "{} bytes", bytes.len());
}

/// Every event that a cut recording has is one of the whole one, in the same order.
#[test]
fn a_recording_cut_at_any_byte_is_read_up_to_there() {
    let (bytes, expected) = recording(150);
    let whole = count(&mut open(&bytes).unwrap()).0;
    let mut last = 0;
    for len in 0..bytes.len() {
        let Ok(mut found) = open(&bytes[..len]) else {
            assert!(len < 16, "cut at {len}");
            continue;
        };
        let events = count(&mut found).0;
        assert!(events >= last && events <= whole, "cut at {len}");
        last = events;
    }
    assert_eq!(last, whole);
    assert_eq!(text(&mut open(&bytes).unwrap()), expected);
}

#[test]
fn chunks_that_are_unpacked_ahead_have_the_same_events() {
    let options = RingOptions {
        sub_buffers: 64,
        sub_buffer_bytes: 32 << 10,
        ..options()
    };
    let (mut bytes, expected) = recording_with(&options, 150_000);
    assert!(text(&mut open(&bytes).unwrap()) == expected);
    let whole = count(&mut open(&bytes).unwrap()).0;
    let mut of_second = open(&bytes).unwrap();
    of_second.keep(|_, thread, _| thread == 2);
    let mut kept = 0;
    while let Some(event) = of_second.next().unwrap() {
        if !matches!(event.what, What::Lost { .. }) {
            assert_eq!(event.thread, 2);
            kept += 1;
        }
    }
    assert_eq!(kept, 100_000);
    for part in 1..4 {
        let at = bytes.len() * part / 4;
        bytes[at] ^= 0x41;
    }
    let mut damaged = open(&bytes).unwrap();
    let (events, lost) = count(&mut damaged);
    assert_eq!(events + lost, whole);
    assert!(events > whole * 9 / 10 && lost > 0);
    assert_eq!(damaged.lanes().damages().len(), 3);
}

#[test]
fn reading_tells_its_progress_from_none_to_all_of_the_kept_chunks() {
    let (bytes, _) = recording(400);
    for of in [0, 2] {
        let mut found = open(&bytes).unwrap();
        let parts = Arc::new(Mutex::new(Vec::new()));
        let each = Arc::clone(&parts);
        found.on_progress(move |part| each.lock().unwrap().push(part));
        found.keep(|_, thread, _| of == 0 || thread == of);
        count(&mut found);
        let parts = parts.lock().unwrap();
        assert!(parts.len() > 2 && parts.is_sorted(), "{parts:?}");
        assert_eq!((parts[0], parts[parts.len() - 1]), (0.0, 1.0));
    }
}

#[test]
fn a_changed_byte_costs_one_block_and_is_reported() {
    let (bytes, expected) = recording(150);
    let whole = count(&mut open(&bytes).unwrap()).0;
    let mut damaged = 0;
    for at in 16..bytes.len() {
        let mut bad = bytes.clone();
        bad[at] ^= 0x41;
        let Ok(mut found) = open(&bad) else {
            continue;
        };
        let (events, lost) = count(&mut found);
        assert!(events <= whole, "changed at {at}");
        if events < whole {
            damaged += 1;
            assert_eq!(events + lost, whole, "changed at {at}");
            assert!(!found.lanes().damages().is_empty(), "changed at {at}");
        }
    }
    assert!(damaged > 100);
    assert_eq!(text(&mut open(&bytes).unwrap()), expected);
}

#[test]
fn blocks_of_unknown_kinds_are_skipped_and_later_versions_refused() {
    let (bytes, expected) = recording(150);
    // An unknown kind with a right checksum.
    let mut block = b"FGBK\x77\x00\x00\x00\x03\x00\x00\x00\x03\x00\x00\x00".to_vec();
    let checksum = crc32fast::hash(&[&block[4..], b"abc"].concat());
    block.extend_from_slice(&checksum.to_le_bytes());
    block.extend_from_slice(b"abc");
    let mut longer = bytes.clone();
    longer.splice(16..16, block);
    assert_eq!(text(&mut open(&longer).unwrap()), expected);
    for (at, what) in [
        (0, "not an fgraph recording"),
        (8, "version"),
        (12, "features"),
    ] {
        let mut other = bytes.clone();
        other[at] += 1;
        let error = open(&other).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
        assert!(error.to_string().contains(what), "{error}");
    }
}

#[test]
fn a_full_disk_is_an_error_and_written_blocks_stay_good() {
    /// Writer that takes this number of bytes.
    #[derive(Debug)]
    struct Disk(Vec<u8>, usize);
    impl std::io::Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let room = (self.1 - self.0.len()).min(bytes.len());
            if room == 0 {
                return Err(std::io::ErrorKind::StorageFull.into());
            }
            self.0.extend_from_slice(&bytes[..room]);
            Ok(room)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let rings = Arc::new(Rings::create(&options()).unwrap());
    let room = recording(400).0.len() * 3 / 4;
    let mut disk = Disk(Vec::new(), room);
    let mut drain = Drain::new(rings.clone(), &mut disk, &info()).unwrap();
    write_some(&rings, 400);
    rings.finish();
    let error = drain.drain().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    drop(drain);
    let (events, _) = count(&mut open(&disk.0).unwrap());
    assert!(events > 0);
    // Events that were not written are still in the rings.
    let left = count(&mut Live::consume(rings).unwrap()).0;
    assert!(events + left >= 801, "{events} {left}");
}

#[cfg(not(miri))]
#[test]
fn events_in_the_rings_of_a_killed_program_are_added() {
    let folder = std::env::temp_dir().join(format!("fgraph-recover-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let [file, ring_file] = ["a.fgraph", "a.rings"].map(|name| folder.join(name));
    for drained in [0, 1, 200, 399] {
        let mut options = options();
        options.sub_buffers = 16;
        let rings = Arc::new(Rings::create_file(&ring_file, &options).unwrap());
        let out = std::fs::File::create(&file).unwrap();
        let mut drain = Drain::new(rings.clone(), out, &info()).unwrap();
        write_some(&rings, drained);
        drain.drain().unwrap();
        write_some(&rings, 400 - drained);
        // As if both were killed here, while half a block was written.
        std::mem::forget(drain);
        let mut bytes = std::fs::read(&file).unwrap();
        let len = bytes.len();
        bytes.extend_from_within(len / 2..);
        std::fs::write(&file, &bytes).unwrap();
        let added = recover(&file, &ring_file).unwrap();
        assert!(added > 0);
        for again in [false, true] {
            if again {
                assert_eq!(recover(&file, &ring_file).unwrap(), 0);
            }
            let mut found = Recording::open(&file).unwrap();
            assert!(found.lanes().damages().is_empty());
            let (events, lost) = count(&mut found);
            assert_eq!((events, lost), (2 * 400 + 2, 0));
            assert!(found.names().function(PROCESS, 1).is_some());
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A recorder that could not be ended goes on behind the end of its recording.
#[cfg(not(miri))]
#[test]
fn events_after_a_read_part_of_a_sub_buffer_are_added_without_that_part() {
    let folder = std::env::temp_dir().join(format!("fgraph-part-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let [file, ring_file] = ["a.fgraph", "a.rings"].map(|name| folder.join(name));
    let rings = Arc::new(Rings::create_file(&ring_file, &options()).unwrap());
    let out = std::fs::File::create(&file).unwrap();
    let mut drain = Drain::new(rings.clone(), out, &info()).unwrap();
    let writer = rings.writer(PROCESS, 1).unwrap();
    let start = rings.clock().first().ticks;
    let write = |n: u32| {
        let extras = Extras {
            cpu: Some(n / 4),
            ..Extras::default()
        };
        writer.call_with(call(Kind::Entry, n), start + u64::from(n) * 100, &extras);
    };
    (0..6).for_each(write);
    rings.finish();
    drain.drain().unwrap();
    std::mem::forget(drain);
    (6..10).for_each(write);
    assert_eq!(recover(&file, &ring_file).unwrap(), 1);
    let mut found = Recording::open(&file).unwrap();
    let mut seen = Vec::new();
    while let Some(event) = found.next().unwrap() {
        let What::Entry { function, .. } = event.what else {
            panic!("{:?} was never written", event.what);
        };
        seen.push((function, event.time - start, event.cpu));
    }
    let expected = (0..10).map(|n: u32| (n, u64::from(n) * 100, Some(n / 4)));
    assert_eq!(seen, expected.collect::<Vec<_>>());
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A block with a right checksum.
fn block(kind: u8, head: &[u8], body: &[u8]) -> Vec<u8> {
    let mut block = b"FGBK".to_vec();
    block.extend_from_slice(&[kind, 0]);
    block.extend_from_slice(&(head.len() as u16).to_le_bytes());
    block.extend_from_slice(&((head.len() + body.len()) as u32).to_le_bytes());
    block.extend_from_slice(&(body.len() as u32).to_le_bytes());
    let checksum = crc32fast::hash(&[&block[4..], head, body].concat());
    block.extend_from_slice(&checksum.to_le_bytes());
    block.extend_from_slice(head);
    block.extend_from_slice(body);
    block
}

proptest! {
    /// A hostile writer may have made any blocks: each is whole, and makes no sense.
    #[test]
    fn any_blocks_are_survived(
        blocks in vec((1..9_u8, vec(any::<u8>(), 0..40), vec(any::<u8>(), 0..60)), 0..8),
        numbers in vec(prop_oneof![any::<u64>(), 0..3_u64], 14),
        words in vec(any::<u8>(), 0..60),
        is_ended in any::<bool>(),
    ) {
        let mut bytes = b"FGRAPHRC\x01\0\0\0\0\0\0\0".to_vec();
        // A head of events whose numbers are far out.
        let mut head = Vec::new();
        for mut number in numbers {
            while number >= 0x80 {
                head.push(number as u8 | 0x80);
                number >>= 7;
            }
            head.push(number as u8);
        }
        for is_again in [false, true] {
            let body = if is_again { &[1, 5, 3][..] } else { &words };
            bytes.extend(block(3, &head, body));
        }
        for (kind, head, body) in &blocks {
            bytes.extend(block(*kind, head, body));
        }
        if is_ended {
            bytes.extend(block(6, &[], &16_u64.to_le_bytes()));
        }
        if let Ok(mut found) = open(&bytes) {
            text(&mut found);
        }
    }
}
