//! The protocol of the rings, checked by loom in all interleavings up to a bound on the
//! preemptions. Run by `.ci/loom.sh`.
//!
//! Writers and readers are the real ones, on rings of two sub-buffers with two events each. A test
//! that should panic is the twin of a model with one step left out: it shows that the model
//! notices.

#![cfg(loom)]

use std::sync::Arc;

use fgraph_trace::clock::ClockKind;
use fgraph_trace::event::{Kind, What, call};
use fgraph_trace::names::DescriptionKind;
use fgraph_trace::primitive::{Step, leave_out};
use fgraph_trace::ring::{Mode, RingOptions, Rings};
use fgraph_trace::{Live, Source};
use loom::thread;

fn rings(mode: Mode) -> Arc<Rings> {
    let options = RingOptions {
        mode,
        rings: 2,
        sub_buffers: 2,
        sub_buffer_bytes: 18 * 8,
        table_bytes: 0,
        clock: Some(ClockKind::Monotonic),
    };
    Arc::new(Rings::create(&options).unwrap())
}

/// The functions of the events that a reader has seen, and the number of lost events.
#[derive(Debug, Default)]
struct Seen {
    functions: Vec<u32>,
    lost: u64,
}

impl Seen {
    /// Reads what there is. Function and time of an event are the same number.
    fn read(&mut self, source: &mut Live, start: u64, at_most: usize) {
        for _ in 0..at_most {
            let Some(event) = source.next().unwrap() else {
                break;
            };
            let time = event.time;
            match event.what {
                What::Entry { function, .. } => {
                    assert_eq!(time, start + u64::from(function), "half an event");
                    self.functions.push(function);
                }
                What::Lost { events, .. } => self.lost += events,
                other => panic!("{other:?} was never written"),
            }
        }
    }
}

/// A thread writes the events from `before` on while another one reads; then all is read that is
/// left. Events that are written before both begin make the model small.
///
/// The reader is the thread that is started: loom looks for other orders where a load follows a
/// store of another thread, and would not find them where the writer loads what it stores next.
fn write_and_read(mode: Mode, before: u32, events: u32, left_out: Option<Step>) {
    let mut model = loom::model::Builder::new();
    // Each load that may be stale doubles the number of executions, however few preemptions there
    // are: the 20,000 of `overwrite` take 10 s with one, and minutes with two.
    model.preemption_bound = Some(match mode {
        Mode::Drop | Mode::Block => 3,
        Mode::Overwrite => 1,
    });
    model.check(move || {
        leave_out(left_out);
        let rings = rings(mode);
        // In the past, so that nothing is held back.
        let start = rings.clock().first().ticks - 1_000_000_000;
        let mut live = match mode {
            Mode::Drop | Mode::Block => Live::consume(rings.clone()).unwrap(),
            Mode::Overwrite => Live::watch(rings.clone()),
        };
        let writer = rings.writer(1, 1).unwrap();
        let write = |n| writer.call(call(Kind::Entry, n), start + u64::from(n));
        let mut written: Vec<u32> = (0..before).filter(|&n| write(n)).collect();
        let reader = thread::spawn(move || {
            let mut seen = Seen::default();
            seen.read(&mut live, start, 1);
            (live, seen)
        });
        written.extend((before..events).filter(|&n| write(n)));
        let (mut live, mut seen) = reader.join().unwrap();
        rings.finish();
        seen.read(&mut live, start, usize::MAX);
        let is_rising = seen.functions.windows(2).all(|pair| pair[0] < pair[1]);
        assert!(is_rising, "{seen:?}");
        let count = seen.functions.len() as u64 + seen.lost;
        assert_eq!(count, events.into(), "{seen:?}");
        if mode == Mode::Drop {
            assert_eq!(seen.functions, written, "what was not dropped is seen");
        }
    });
}

/// The writer takes the place of a sub-buffer that the reader may be copying.
fn overwrite(left_out: Option<Step>) {
    write_and_read(Mode::Overwrite, 4, 5, left_out);
}

/// The ring is full, and the reader may make room before the writer asks.
fn make_room(left_out: Option<Step>) {
    write_and_read(Mode::Drop, 4, 6, left_out);
}

/// The reader copies the sub-buffer that the writer adds an event to.
fn append(left_out: Option<Step>) {
    write_and_read(Mode::Overwrite, 1, 2, left_out);
}

/// The writer takes a place that was given back while a watcher may be copying what was there.
fn take_again(left_out: Option<Step>) {
    let mut model = loom::model::Builder::new();
    // With two it takes minutes, as that of `overwrite`.
    model.preemption_bound = Some(1);
    model.check(move || {
        leave_out(left_out);
        let rings = rings(Mode::Drop);
        let start = rings.clock().first().ticks - 1_000_000_000;
        let writer = rings.writer(1, 1).unwrap();
        let write = |n| assert!(writer.call(call(Kind::Entry, n), start + u64::from(n)));
        (0..4).for_each(write);
        let mut consumer = Live::consume(rings.clone()).unwrap();
        Seen::default().read(&mut consumer, start, 4);
        let mut live = Live::watch(rings.clone());
        let watcher = thread::spawn(move || {
            let mut seen = Seen::default();
            seen.read(&mut live, start, 1);
            (live, seen)
        });
        write(4);
        let (mut live, mut seen) = watcher.join().unwrap();
        rings.finish();
        seen.read(&mut live, start, usize::MAX);
        assert!(seen.functions.is_sorted(), "{seen:?}");
        assert_eq!(seen.functions.len() as u64 + seen.lost, 5, "{seen:?}");
    });
}

#[test]
fn a_watcher_of_a_ring_that_overwrites_sees_whole_events_and_exact_losses() {
    overwrite(None);
}

#[test]
fn a_consumer_of_a_ring_that_drops_sees_whole_events_and_exact_losses() {
    make_room(None);
}

#[test]
fn a_reader_of_a_sub_buffer_that_grows_sees_whole_events() {
    append(None);
}

#[test]
fn a_watcher_of_a_ring_that_drops_sees_whole_events_and_exact_losses() {
    take_again(None);
}

#[test]
#[should_panic = "Seen"]
fn twin_a_reader_that_does_not_look_at_the_state_again() {
    overwrite(Some(Step::LookAgain));
}

#[test]
#[should_panic = "Seen"]
fn twin_a_watcher_that_does_not_look_at_the_state_again() {
    take_again(Some(Step::LookAgain));
}

#[test]
#[should_panic = "Seen"]
fn twin_a_writer_that_does_not_say_that_it_opens_a_sub_buffer() {
    overwrite(Some(Step::OddState));
}

#[test]
#[should_panic = "Seen"]
fn twin_a_writer_without_a_fence_behind_the_odd_state() {
    overwrite(Some(Step::WriterFence));
}

#[test]
#[should_panic = "Seen"]
fn twin_a_reader_without_a_fence_before_it_looks_again() {
    overwrite(Some(Step::ReaderFence));
}

#[test]
#[should_panic = "Seen"]
fn twin_a_length_that_comes_before_its_event() {
    append(Some(Step::LengthLast));
}

#[test]
#[should_panic = "what was not dropped is seen"]
fn twin_a_writer_that_does_not_wait_for_the_consumer() {
    make_room(Some(Step::Room));
}

#[test]
#[should_panic = "Seen"]
fn twin_a_writer_that_does_not_say_where_a_sub_buffer_is() {
    make_room(Some(Step::Place));
}

/// Two threads ask for rings at the same time.
#[test]
fn no_ring_is_given_to_two_threads() {
    loom::model(|| {
        leave_out(None);
        let rings = rings(Mode::Drop);
        let other = {
            let rings = rings.clone();
            thread::spawn(move || rings.take(1, 2, |_, _| false).unwrap())
        };
        let ours = rings.take(1, 1, |_, _| false).unwrap();
        assert_ne!(ours, other.join().unwrap());
    });
}

/// A thread describes a function and then writes of it; whoever sees the event finds the name.
#[test]
fn a_function_is_known_before_its_events() {
    loom::model(|| {
        leave_out(None);
        let options = RingOptions {
            mode: Mode::Drop,
            rings: 1,
            sub_buffers: 2,
            sub_buffer_bytes: 18 * 8,
            table_bytes: 4096,
            clock: Some(ClockKind::Monotonic),
        };
        let rings = Arc::new(Rings::create(&options).unwrap());
        let start = rings.clock().first().ticks - 1_000_000_000;
        let mut live = Live::watch(rings.clone());
        let reader = thread::spawn(move || {
            if live.next().unwrap().is_some() {
                assert!(live.names().function(1, 7).is_some());
            }
        });
        let writer = rings.writer(1, 1).unwrap();
        rings.describe(DescriptionKind::Function, [1, 7, 0, 0], ["f", ""]);
        writer.call(call(Kind::Entry, 7), start);
        reader.join().unwrap();
    });
}
