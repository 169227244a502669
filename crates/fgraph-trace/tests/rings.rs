//! Rings that are written and read, and what is shown of them.

use std::io::Cursor;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use fgraph_trace::clock::ClockKind;
use fgraph_trace::event::{Kind, What, call};
use fgraph_trace::graph::{FunctionGraph, Options, Parts, ResultFormat};
use fgraph_trace::names::DescriptionKind;
use fgraph_trace::recording::{Drain, Info};
use fgraph_trace::ring::{Extras, Mode, RingOptions, Rings};
use fgraph_trace::{Live, Recording, Snapshot, Source};

const PROCESS: u32 = 100;

fn small(mode: Mode) -> Arc<Rings> {
    let options = RingOptions {
        mode,
        rings: 4,
        sub_buffers: 4,
        sub_buffer_bytes: 1024,
        table_bytes: 64 << 10,
        clock: Some(ClockKind::Monotonic),
    };
    Arc::new(Rings::create(&options).unwrap())
}

/// Events of a sub-buffer of [`small`] rings.
const EVENTS: u64 = 1024 / 8 - 16;

#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    events: u64,
    lost: u64,
    /// Functions of entries, in order.
    entries: Vec<u32>,
}

fn read(source: &mut impl Source) -> Seen {
    let mut seen = Seen::default();
    let mut last = 0;
    while let Some(event) = source.next().unwrap() {
        assert!(event.time >= last, "{} after {last}", event.time);
        last = event.time;
        match event.what {
            What::Lost { events, .. } => seen.lost += events,
            What::Entry { function, .. } => {
                seen.events += 1;
                seen.entries.push(function);
            }
            _ => seen.events += 1,
        }
    }
    seen
}

#[test]
fn rings_count_their_events_and_their_losses() {
    let rings = small(Mode::Drop);
    let writer = rings.writer(PROCESS, 1).unwrap();
    let held = 4 * EVENTS;
    for n in 0..held + 5 {
        writer.call(call(Kind::Entry, 1), n);
    }
    let other = rings.writer(PROCESS, 2).unwrap();
    other.mark(1, "a text of several words");
    let counts = rings
        .counts()
        .map(|ring| (ring.thread, ring.written, ring.dropped));
    assert_eq!(counts.collect::<Vec<_>>(), [(1, held, 5), (2, 1, 0)]);
    assert_eq!(
        [1, 2, 3].map(|thread| rings.ring_of(PROCESS, thread)),
        [Some(0), Some(1), None]
    );
}

#[test]
fn a_snapshot_can_end_before_its_time() {
    let rings = small(Mode::Overwrite);
    let writer = rings.writer(PROCESS, 1).unwrap();
    (1..=9).for_each(|n| _ = writer.call(call(Kind::Entry, n), n.into()));
    let mut snapshot = Snapshot::take(&rings).until(5);
    assert_eq!(snapshot.next_time().unwrap(), Some(1));
    assert_eq!(read(&mut snapshot.clone()).entries, [1, 2, 3, 4, 5]);
    assert_eq!(read(&mut snapshot).entries, [1, 2, 3, 4, 5]);
    assert_eq!(snapshot.next_time().unwrap(), None);
}

#[test]
fn a_full_ring_drops_and_says_exactly_how_much_and_where() {
    let rings = small(Mode::Drop);
    let writer = rings.writer(PROCESS, 1).unwrap();
    let mut live = Live::consume(rings.clone()).unwrap();
    let held = 4 * EVENTS;
    for n in 0..held + 5 {
        let written = writer.call(call(Kind::Entry, n as u32), n);
        assert_eq!(written, n < held, "{n}");
    }
    let seen = read(&mut live);
    assert_eq!((seen.events, seen.lost), (held, 0));
    // The reader has made room, so what comes now is told, and before it what is missing.
    assert!(writer.call(call(Kind::Entry, 7), held + 5));
    rings.finish();
    let lost = live.next().unwrap().unwrap();
    let (events, ends) = (5, Some(0));
    assert_eq!((lost.what, lost.thread), (What::Lost { events, ends }, 1));
    let seen = read(&mut live);
    assert_eq!((seen.entries, seen.lost), (vec![7], 0));
    assert!(live.is_over());
}

/// Losses of a source: how many events were read before each, how many are missing, and how many of
/// these ended calls.
fn losses(source: &mut impl Source) -> Vec<(u64, u64, Option<u64>)> {
    let (mut found, mut events) = (Vec::new(), 0);
    while let Some(event) = source.next().unwrap() {
        match event.what {
            What::Lost { events: lost, ends } => found.push((events, lost, ends)),
            _ => events += 1,
        }
    }
    found
}

#[test]
fn ends_among_dropped_events_are_counted() {
    let rings = small(Mode::Drop);
    let writer = rings.writer(PROCESS, 1).unwrap();
    let mut drain = Drain::new(rings.clone(), Vec::new(), &Info::of_this_process()).unwrap();
    let write = |kinds: &[Kind]| {
        for &kind in kinds {
            writer.call(call(kind, 1), 0);
        }
    };
    let fill = || while writer.call(call(Kind::Entry, 1), 0) {};
    fill();
    write(&[Kind::Return, Kind::Unwound, Kind::Entry]);
    drain.drain().unwrap();
    write(&[Kind::Return]);
    fill();
    write(&[Kind::Return; 4]);
    drain.drain().unwrap();
    write(&[Kind::Return]);
    fill();
    write(&[Kind::Unwound]);
    rings.finish();
    let recording = drain.finish().unwrap();
    // The newest sub-buffer is drained at the end only.
    let expected = [
        (4 * EVENTS, 4, Some(2)),
        (7 * EVENTS, 5, Some(4)),
        (10 * EVENTS, 2, Some(1)),
    ];
    let mut recording = Recording::read(Cursor::new(recording)).unwrap();
    assert_eq!(losses(&mut recording), expected);
}

#[test]
fn ends_among_overwritten_events_are_not_known() {
    let rings = small(Mode::Overwrite);
    let writer = rings.writer(PROCESS, 1).unwrap();
    for n in 0..5 * EVENTS {
        writer.call(call(Kind::Return, 1), n);
    }
    rings.finish();
    let found = losses(&mut Live::watch(rings.clone()));
    assert_eq!(found, [(0, EVENTS, None)]);
}

#[test]
fn no_event_stands_between_a_dropped_one_and_the_place_of_the_loss() {
    let rings = small(Mode::Drop);
    let writer = rings.writer(PROCESS, 1).unwrap();
    let mut live = Live::consume(rings.clone()).unwrap();
    for n in 0..4 * EVENTS - 1 {
        writer.call(call(Kind::Entry, 1), n);
    }
    let long = Extras {
        result: &[7],
        ..Extras::default()
    };
    assert!(!writer.call_with(call(Kind::Return, 1), 4 * EVENTS, &long));
    // One word is left, in which this one has room.
    assert!(!writer.call(call(Kind::Return, 1), 4 * EVENTS));
    read(&mut live);
    assert!(writer.call(call(Kind::Return, 1), 5 * EVENTS));
    rings.finish();
    assert_eq!(losses(&mut live), [(0, 2, Some(2))]);
}

#[test]
fn a_function_graph_goes_on_around_calls_whose_ends_were_dropped() {
    let rings = small(Mode::Drop);
    let writer = rings.writer(PROCESS, 1).unwrap();
    let mut live = Live::consume(rings.clone()).unwrap();
    let mut graph = FunctionGraph::new(Options::default());
    writer.call(call(Kind::Entry, 1), 0);
    for function in [2, 2] {
        writer.call(call(Kind::Entry, function), 1000);
    }
    while writer.call(call(Kind::Entry, 3), 2000) && writer.call(call(Kind::Return, 3), 2000) {}
    // The last end of 3 has found no room. The end of the inner 2 finds none either.
    writer.call(call(Kind::Return, 2), 3000);
    let mut before = Vec::new();
    graph.write_all(&mut live, &mut before).unwrap();
    for (kind, function, time) in [
        (Kind::Entry, 4, 5000),
        (Kind::Return, 4, 6000),
        (Kind::Return, 2, 7000),
        (Kind::Return, 1, 9000),
    ] {
        writer.call(call(kind, function), time);
    }
    rings.finish();
    let mut text = Vec::new();
    graph.write_all(&mut live, &mut text).unwrap();
    let expected = "\
CPU:- [LOST 2 EVENTS]
  1.000 us    |      <lost name 4>();
  6.000 us    |    }
  9.000 us    |  }
";
    assert_eq!(String::from_utf8(text).unwrap(), expected);
}

#[test]
fn events_dropped_last_are_reported_at_the_end() {
    let rings = small(Mode::Drop);
    let writer = rings.writer(PROCESS, 1).unwrap();
    for n in 0..4 * EVENTS + 9 {
        writer.call(call(Kind::Entry, 1), n);
    }
    rings.finish();
    let seen = read(&mut Live::watch(rings.clone()));
    assert_eq!((seen.events, seen.lost), (4 * EVENTS, 9));
}

#[test]
fn an_overwriting_ring_keeps_the_newest_and_counts_the_others() {
    let rings = small(Mode::Overwrite);
    let writer = rings.writer(PROCESS, 1).unwrap();
    let written = 10 * EVENTS + 3;
    for n in 0..written {
        assert!(writer.call(call(Kind::Entry, n as u32), n));
    }
    rings.finish();
    let seen = read(&mut Live::watch(rings.clone()));
    assert_eq!(seen.events, 3 * EVENTS + 3);
    assert_eq!(seen.lost, written - seen.events);
    let expected: Vec<u32> = (seen.lost as u32..written as u32).collect();
    assert_eq!(seen.entries, expected);
}

#[test]
fn several_readers_see_everything_and_one_of_them_makes_room() {
    let rings = small(Mode::Drop);
    let writer = rings.writer(PROCESS, 1).unwrap();
    let mut consumer = Live::consume(rings.clone()).unwrap();
    let mut watchers = [Live::watch(rings.clone()), Live::watch(rings.clone())];
    let busy = Live::consume(rings.clone()).unwrap_err();
    let process = std::process::id();
    assert_eq!(busy.process, process);
    let said = format!("process {process} takes the events out of the rings already");
    assert_eq!(busy.to_string(), said);
    let mut seen = [0; 3];
    for round in 0..20 {
        for n in 0..50 {
            assert!(writer.call(call(Kind::Entry, n), u64::from(round * 50 + n)));
        }
        let [first, second] = &mut watchers;
        for (seen, source) in seen.iter_mut().zip([first, second, &mut consumer]) {
            let found = read(source);
            assert_eq!(found.lost, 0);
            *seen += found.events;
        }
    }
    assert_eq!(seen, [1000; 3]);
    drop(consumer);
    assert!(Live::consume(rings.clone()).is_ok());
}

#[test]
fn a_reader_waits_for_an_event_for_the_time_or_for_the_end() {
    let rings = small(Mode::Drop);
    let writer = rings.writer(PROCESS, 1).unwrap();
    let mut live = Live::watch(rings.clone());
    assert!(!live.wait(Duration::ZERO).unwrap());
    assert!(writer.call(call(Kind::Entry, 1), 1));
    // Both would be too long for the test.
    assert!(live.wait(Duration::MAX).unwrap());
    assert_eq!(read(&mut live).entries, [1]);
    rings.finish();
    assert!(!live.wait(Duration::MAX).unwrap());
}

#[test]
fn a_consumer_goes_on_where_the_one_before_has_made_room() {
    let rings = small(Mode::Drop);
    let writer = rings.writer(PROCESS, 1).unwrap();
    let mut written = 0;
    let mut write = |count: u64| {
        for _ in 0..count {
            assert!(writer.call(call(Kind::Entry, written), written.into()));
            written += 1;
        }
    };
    write(2 * EVENTS + 3);
    let seen = read(&mut Live::consume(rings.clone()).unwrap());
    assert_eq!(seen.events, 2 * EVENTS + 3);
    write(4);
    // The third sub-buffer was not given back: it had not all its events.
    let seen = read(&mut Live::consume(rings.clone()).unwrap());
    let first = 2 * EVENTS as u32;
    assert_eq!(seen.entries, (first..first + 7).collect::<Vec<_>>());
}

#[test]
fn a_sub_buffer_that_is_read_in_parts_has_the_same_times_and_processors() {
    let rings = small(Mode::Drop);
    let writer = rings.writer(PROCESS, 1).unwrap();
    let mut live = Live::consume(rings.clone()).unwrap();
    let mut places = Vec::new();
    for n in 0..10 {
        let extras = Extras {
            // It is written where it is another one.
            cpu: Some(3 + n / 4),
            ..Extras::default()
        };
        writer.call_with(call(Kind::Entry, n), 100 * u64::from(n + 1), &extras);
        while let Some(event) = live.next().unwrap() {
            places.push((event.time, event.cpu));
        }
    }
    let expected = (0..10).map(|n| (100 * u64::from(n + 1), Some(3 + n / 4)));
    assert_eq!(places, expected.collect::<Vec<_>>());
}

#[test]
fn threads_are_merged_by_time() {
    let rings = small(Mode::Drop);
    let writers = [1, 2, 3].map(|thread| rings.writer(PROCESS, thread).unwrap());
    for n in 0..300 {
        writers[n as usize % 3].call(call(Kind::Entry, n), u64::from(n) * 10);
    }
    rings.finish();
    let seen = read(&mut Live::watch(rings.clone()));
    assert_eq!(seen.entries, (0..300).collect::<Vec<u32>>());
}

#[test]
fn a_ring_goes_from_a_thread_that_has_ended_to_another() {
    let rings = small(Mode::Drop);
    for thread in 1..=20 {
        let writer = rings.writer(PROCESS, thread).unwrap();
        writer.call(call(Kind::Entry, thread), thread.into());
        if thread % 4 == 0 {
            // Make room.
            read(&mut Live::consume(rings.clone()).unwrap());
        }
    }
    assert_eq!(rings.ring_count(), 1);
    // The same for threads that did not give theirs back.
    let indices = [30, 31, 32].map(|thread| rings.take(PROCESS, thread, |_, _| false).unwrap());
    assert_eq!(
        rings.take(PROCESS, 33, |_, thread| thread == 31),
        Some(indices[1])
    );
    assert_eq!(rings.ring_count(), 3);
}

#[test]
fn a_ring_that_was_given_back_is_taken_before_one_that_nobody_had() {
    let rings = Rings::create(&RingOptions::default()).unwrap();
    let never = |_, _| false;
    for thread in 1..=20 {
        assert_eq!(rings.take(PROCESS, thread, never), Some(thread - 1));
    }
    // SAFETY: nothing was written to it.
    unsafe { rings.give_back(10) };
    assert_eq!(rings.take(PROCESS, 77, never), Some(10));
    assert_eq!(rings.take(PROCESS, 78, never), Some(20));
}

#[test]
fn losses_of_an_ended_thread_are_reported_as_its_own() {
    let rings = small(Mode::Drop);
    let mut consumer = Live::consume(rings.clone()).unwrap();
    let first = rings.writer(PROCESS, 1).unwrap();
    for n in 0..4 * EVENTS + 5 {
        first.call(call(Kind::Entry, 1), n);
    }
    drop(first);
    let second = rings.writer(PROCESS, 2).unwrap();
    for n in 0..3 {
        assert!(!second.call(call(Kind::Entry, 2), n));
    }
    assert_eq!(read(&mut consumer).events, 4 * EVENTS);
    assert!(second.call(call(Kind::Entry, 2), 4 * EVENTS));
    rings.finish();
    let mut losses = Vec::new();
    while let Some(event) = consumer.next().unwrap() {
        if let What::Lost { events, .. } = event.what {
            losses.push((event.thread, events));
        }
    }
    assert_eq!(losses, [(1, 5), (2, 3)]);
}

#[test]
fn a_thread_without_a_ring_gets_no_writer() {
    let rings = small(Mode::Drop);
    let writers: Vec<_> = (1..=4)
        .map(|thread| rings.writer(PROCESS, thread).unwrap())
        .collect();
    assert!(rings.writer(PROCESS, 5).is_none());
    assert_eq!(rings.take(PROCESS, 5, |_, _| false), None);
    drop(writers);
    assert!(rings.writer(PROCESS, 5).is_some());
}

#[test]
fn losses_are_exact_while_a_slow_reader_and_fast_writers_run() {
    for mode in [Mode::Drop, Mode::Overwrite] {
        let rings = small(mode);
        const CALLS: u64 = if cfg!(miri) { 300 } else { 100_000 };
        let mut live = Live::consume(rings.clone()).unwrap();
        let mut seen = Seen::default();
        thread::scope(|scope| {
            for thread in 1..=2 {
                let rings = &rings;
                scope.spawn(move || {
                    let writer = rings.writer(PROCESS, thread).unwrap();
                    for _ in 0..CALLS {
                        writer.call(call(Kind::Entry, thread), writer.clock().now());
                    }
                });
            }
            for _ in 0..10 {
                let found = read_unordered(&mut live);
                (seen.events, seen.lost) = (seen.events + found.events, seen.lost + found.lost);
                thread::yield_now();
            }
        });
        rings.finish();
        let found = read_unordered(&mut live);
        assert_eq!(
            seen.events + seen.lost + found.events + found.lost,
            2 * CALLS,
            "{mode:?}"
        );
    }
}

/// Reads events of threads that may write later than readers wait for them.
fn read_unordered(source: &mut impl Source) -> Seen {
    let mut seen = Seen::default();
    while let Some(event) = source.next().unwrap() {
        match event.what {
            What::Lost { events, .. } => seen.lost += events,
            _ => seen.events += 1,
        }
    }
    seen
}

#[test]
fn a_clock_that_goes_back_stands_still() {
    let rings = small(Mode::Drop);
    let writer = rings.writer(PROCESS, 1).unwrap();
    for time in [1000, 500, 600, 2000, u64::MAX, 3000] {
        assert!(writer.call(call(Kind::Entry, 1), time));
    }
    rings.finish();
    let mut live = Live::watch(rings.clone());
    let mut times = Vec::new();
    while let Some(event) = live.next().unwrap() {
        times.push(event.time);
    }
    assert_eq!(times, [1000, 1000, 1000, 2000, u64::MAX, u64::MAX]);
}

#[test]
fn the_text_is_laid_out_as_the_kernels() {
    let rings = small(Mode::Drop);
    for (index, name) in [(1, "sys_open"), (2, "getname"), (3, "kmem_cache_alloc")] {
        rings.describe(
            DescriptionKind::Function,
            [PROCESS.into(), index, 0x1000 * index, 0x100],
            [name, "/program"],
        );
    }
    rings.describe(
        DescriptionKind::Thread,
        [PROCESS.into(), 1, 0, 0],
        ["migration", ""],
    );
    let writer = rings.writer(PROCESS, 1).unwrap();
    let start = rings.clock().first().ticks;
    let entry = |function, at, extras: &Extras<'_>| {
        writer.call_with(call(Kind::Entry, function), start + at, extras);
    };
    let ret = |function, at, result| {
        let extras = Extras {
            result: &[result],
            ..Extras::default()
        };
        writer.call_with(call(Kind::Return, function), start + at, &extras);
    };
    let on_cpu = |cpu| Extras {
        cpu: Some(cpu),
        ..Extras::default()
    };
    entry(1, 0, &on_cpu(0));
    entry(
        2,
        100,
        &Extras {
            arguments: &[1, 0xff],
            caller: Some(0x1010),
            ..Extras::default()
        },
    );
    entry(3, 200, &Extras::default());
    ret(3, 1582, 0);
    let entry_only = Extras {
        is_entry_only: true,
        ..Extras::default()
    };
    entry(4, 1590, &entry_only);
    writer.mark(start + 1600, "half way");
    ret(2, 12_578, u64::MAX - 1);
    writer.call_with(call(Kind::Entry, 9), start + 12_600, &on_cpu(1));
    writer.call(call(Kind::Unwound, 9), start + 12_700);
    ret(1, 2_000_012_800, 0x8000_0000);
    rings.finish();

    let text = |options| {
        let mut text = Vec::new();
        FunctionGraph::new(options)
            .write_all(&mut Live::watch(rings.clone()), &mut text)
            .unwrap();
        String::from_utf8(text).unwrap()
    };
    let expected = "\
# tracer: function_graph
#
# CPU  DURATION                  FUNCTION CALLS
# |     |   |                     |   |   |   |
 0)               |  sys_open() {
 0)               |    getname() {
 0)   1.382 us    |      kmem_cache_alloc();
 0)               |      <lost name 4>();
 0)               |      /* half way */
 0) + 12.478 us   |    }
 1)               |    <lost name 9>() {
 1)   0.100 us    |    } /* <lost name 9> unwound */
 1) $ 2000012 us  |  }
";
    assert_eq!(text(Options::default()), expected);

    let options = Options {
        result: Some(ResultFormat::ErrnoName),
        parts: Parts::ARGUMENTS | Parts::CALLER | Parts::DURATION | Parts::THREAD,
        max_depth: 2,
        ..Options::default()
    };
    let text = text(options);
    let lines: Vec<&str> = text.lines().skip(2).collect();
    let expected = [
        "#  TASK/PID         DURATION                  FUNCTION CALLS",
        "#   |    |           |   |                     |   |   |   |",
        "  migrati-1    |               |  sys_open() {",
        "  migrati-1    |               |    getname(0x1, 0xff) { /* <-sys_open+0x10/0x100 */",
        "  migrati-1    |               |      /* half way */",
        "  migrati-1    |   12.478 us   |    } /* getname ret=-ENOENT */",
    ];
    assert_eq!(lines[..6].join("\n"), expected.join("\n"));
}

#[test]
fn there_is_no_column_of_processors_that_are_not_known() {
    let rings = small(Mode::Drop);
    let writer = rings.writer(PROCESS, 1).unwrap();
    let start = rings.clock().first().ticks;
    writer.call(call(Kind::Entry, 9), start);
    writer.call(call(Kind::Unwound, 9), start + 100);
    rings.finish();
    let mut text = Vec::new();
    FunctionGraph::default()
        .write_all(&mut Live::watch(rings.clone()), &mut text)
        .unwrap();
    let expected = "\
# tracer: function_graph
#
#  DURATION                  FUNCTION CALLS
#   |   |                     |   |   |   |
              |  <lost name 9>() {
  0.100 us    |  } /* <lost name 9> unwound */
";
    assert_eq!(String::from_utf8(text).unwrap(), expected);
}

#[test]
fn a_dropped_call_ends_without_a_duration_before_what_shows_it() {
    let rings = small(Mode::Drop);
    let writer = rings.writer(PROCESS, 1).unwrap();
    let start = rings.clock().first().ticks;
    writer.call(call(Kind::Entry, 9), start);
    for time in (start..).step_by(1000).take(3) {
        writer.call(call(Kind::Entry, 9), time);
        writer.call(call(Kind::Entry, 8), time + 100);
        writer.dropped(8, time + 900);
        writer.dropped(9, time + 900);
    }
    writer.call(call(Kind::Return, 9), start + 5000);
    let mut text = Vec::new();
    FunctionGraph::default()
        .write_all(&mut Snapshot::take(&rings), &mut text)
        .unwrap();
    let dropped = [
        "              |    <lost name 9>() {\n",
        "              |      <lost name 8>() {\n",
        "              |      } /* <lost name 8> dropped */\n",
        "              |    } /* <lost name 9> dropped */\n",
    ];
    let text = String::from_utf8(text).unwrap();
    let calls: Vec<_> = text.split_inclusive('\n').skip(4).collect();
    let first = ["              |  <lost name 9>() {\n"];
    let last = ["  5.000 us    |  }\n"];
    assert_eq!(calls, [&first[..], &dropped.repeat(3), &last].concat());
}

#[test]
fn the_end_of_a_dropped_call_is_one_of_the_ends_that_are_lost() {
    let rings = small(Mode::Drop);
    let writer = rings.writer(PROCESS, 1).unwrap();
    let mut live = Live::consume(rings.clone()).unwrap();
    let held = 4 * EVENTS;
    for n in 0..held {
        assert!(writer.call(call(Kind::Entry, n as u32), n));
    }
    assert!(!writer.dropped(held as u32 - 1, held));
    assert!(!writer.dropped(held as u32 - 2, held));
    assert_eq!(read(&mut live).events, held);
    assert!(writer.dropped(held as u32 - 3, held + 1));
    rings.finish();
    assert_eq!(losses(&mut live), [(0, 2, Some(2))]);
}

#[test]
fn only_selected_calls_are_shown() {
    let rings = small(Mode::Drop);
    for (index, name) in [(1, "main"), (2, "parse"), (3, "token")] {
        rings.describe(
            DescriptionKind::Function,
            [PROCESS.into(), index, 0, 0],
            [name, ""],
        );
    }
    let writer = rings.writer(PROCESS, 1).unwrap();
    let start = rings.clock().first().ticks;
    let calls = [
        (1, 1),
        (1, 3),
        (0, 3),
        (1, 2),
        (1, 3),
        (0, 3),
        (0, 2),
        (0, 1),
    ];
    for (n, (is_entry, function)) in (0..).zip(calls) {
        let kind = if is_entry == 1 {
            Kind::Entry
        } else {
            Kind::Return
        };
        writer.call(call(kind, function), start + n * 1000);
    }
    rings.finish();
    let text = |options| {
        let (mut text, mut live) = (String::new(), Live::watch(rings.clone()));
        let mut graph = FunctionGraph::new(options);
        while graph.write_event(&mut live, &mut text).unwrap() {}
        let lines = text
            .lines()
            .skip(4)
            .map(|line| line.split('|').nth(1).unwrap()[2..].to_owned());
        lines.collect::<Vec<_>>()
    };
    let only = |name: &'static str| -> fgraph_trace::graph::Matcher {
        Box::new(move |found, _| found == name)
    };
    let functions = Options {
        functions: Some(only("parse")),
        ..Options::default()
    };
    assert_eq!(text(functions), ["parse() {", "  token();", "}"]);
    let without = Options {
        without: Some(only("parse")),
        ..Options::default()
    };
    assert_eq!(text(without), ["main() {", "  token();", "}"]);
    let depth = Options {
        max_depth: 1,
        ..Options::default()
    };
    assert_eq!(text(depth), ["main() {", "}"]);
    let slow = Options {
        threshold: 3000,
        ..Options::default()
    };
    assert_eq!(text(slow), ["  } /* parse */", "} /* main */"]);
}

#[cfg(not(miri))]
#[test]
fn rings_in_a_file_are_read_by_any_process_and_damaged_ones_refused() {
    let path = std::env::temp_dir().join(format!("fgraph-rings-{}", std::process::id()));
    let options = RingOptions {
        rings: 2,
        table_bytes: 4096,
        ..RingOptions::default()
    };
    let rings = Rings::create_file(&path, &options).unwrap();
    let writer = rings.writer(PROCESS, 1).unwrap();
    writer.call(call(Kind::Entry, 5), rings.clock().first().ticks);
    let other = Arc::new(Rings::open(&path).unwrap());
    other.finish();
    let seen = read(&mut Live::watch(other));
    assert_eq!(seen.entries, [5]);

    let good = std::fs::read(&path).unwrap();
    // Another file: this one is mapped.
    std::fs::remove_file(&path).unwrap();
    for (what, at, value) in [
        ("magic", 0, 1),
        ("length", 8, 1),
        ("rings", 16, 255),
        ("mode", 40, 2),
    ] {
        let mut bad = good[..8192].to_vec();
        bad[at] ^= value;
        std::fs::write(&path, &bad).unwrap();
        let error = Rings::open(&path).expect_err(what);
        assert_eq!(
            error.kind(),
            std::io::ErrorKind::InvalidData,
            "{what}: {error}"
        );
    }
    std::fs::write(&path, b"short").unwrap();
    assert!(Rings::open(&path).is_err());
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn the_last_seconds_of_a_thousand_threads_are_kept_in_little_memory() {
    const THREADS: u32 = if cfg!(miri) { 4 } else { 1000 };
    const SECOND: u64 = 1_000_000_000;
    const STEP: u64 = 2_000_000;
    let options = RingOptions {
        mode: Mode::Overwrite,
        rings: THREADS,
        sub_buffers: 4,
        sub_buffer_bytes: 4096,
        table_bytes: 4096,
        clock: Some(ClockKind::Monotonic),
    };
    let rings = Arc::new(Rings::create(&options).unwrap());
    let end = 10 * SECOND;
    let all_have_rings = Barrier::new(THREADS as usize);
    thread::scope(|scope| {
        for thread in 1..=THREADS {
            let (rings, all_have_rings) = (&rings, &all_have_rings);
            scope.spawn(move || {
                let writer = rings.writer(PROCESS, thread).unwrap();
                all_have_rings.wait();
                let times = (STEP..=end).step_by(STEP as usize);
                times.for_each(|time| assert!(writer.call(call(Kind::Entry, thread), time)));
            });
        }
    });
    let since = end - 2 * SECOND;
    let info = Info::of_this_process();
    // The rings do not reach back to the beginning.
    let all = Drain::snapshot(rings.clone(), Vec::new(), &info, 0).unwrap();
    assert!(
        all.kept_since()
            .is_some_and(|kept| kept > STEP && kept < since)
    );
    let drain = Drain::snapshot(rings.clone(), Vec::new(), &info, since).unwrap();
    assert_eq!(drain.kept_since(), None);
    let bytes = drain.finish().unwrap();
    let mut recording = Recording::read(Cursor::new(bytes)).unwrap();
    // For each thread: its events, its missing events, and the first time.
    let mut found = vec![(0, 0, 0); THREADS as usize];
    while let Some(event) = recording.next().unwrap() {
        let of_thread = &mut found[event.thread as usize - 1];
        match event.what {
            What::Lost { events, .. } => of_thread.1 += events,
            _ if of_thread.0 == 0 => (of_thread.0, of_thread.2) = (1, event.time),
            _ => of_thread.0 += 1,
        }
    }
    let kept = (end - since) / STEP + 1;
    // Events that had to make room are not missing.
    let expected = (kept, 0, since);
    assert!(
        found.iter().all(|found| *found == expected),
        "{:?} {expected:?}",
        found[0]
    );
    // Nothing was taken away.
    assert_eq!(
        rings.counts().map(|ring| ring.written).sum::<u64>(),
        u64::from(THREADS) * end / STEP
    );
}

#[test]
fn a_call_that_is_nested_too_deep_for_a_line_has_its_depth_as_a_number() {
    const CALLS: u64 = 70;
    let rings = small(Mode::Drop);
    let writer = rings.writer(PROCESS, 1).unwrap();
    (0..CALLS).for_each(|n| _ = writer.call(call(Kind::Entry, 1), n));
    (0..CALLS).for_each(|n| _ = writer.call(call(Kind::Return, 1), CALLS + n));
    rings.finish();
    let options = Options {
        parts: Parts::CPU,
        ..Options::default()
    };
    let mut text = String::new();
    let (mut graph, mut live) = (FunctionGraph::new(options), Live::watch(rings.clone()));
    while graph.write_event(&mut live, &mut text).unwrap() {}
    let lines: Vec<&str> = text.lines().skip_while(|it| it.starts_with('#')).collect();
    assert_eq!(lines.len(), 2 * CALLS as usize - 1);
    let widest = " ".repeat(128);
    for (at, line) in [
        (0, "<lost name 1>() {".to_owned()),
        (64, format!("{widest}<lost name 1>() {{")),
        (65, format!("{widest}(65) <lost name 1>() {{")),
        (69, format!("{widest}(69) <lost name 1>();")),
        (70, format!("{widest}(68) }}")),
        (74, format!("{widest}}}")),
        (138, "}".to_owned()),
    ] {
        assert_eq!(lines[at], line, "{at}");
    }
}
