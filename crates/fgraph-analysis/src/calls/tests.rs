//! Calls of events that are made up.

use std::convert::Infallible;
use std::sync::Arc;

use fgraph_trace::clock::{Anchor, ClockKind};
use fgraph_trace::event::{Kind, What, call};
use fgraph_trace::names::Names;
use fgraph_trace::ring::{RingOptions, Rings};
use fgraph_trace::{Event, Live};

use super::*;

/// Function, time, own time and ending of each call.
#[derive(Default)]
struct Ended(Vec<(String, Option<u64>, u64, Ending)>, Vec<String>);

impl Visitor for Ended {
    type Error = Infallible;

    fn function(&mut self, function: &Function) {
        self.1.push(function.name.clone());
    }

    fn exit(&mut self, _: &At<'_>, call: &Call) -> Result<(), Infallible> {
        let name = self.1[call.slot as usize].clone();
        self.0.push((name, call.duration(), call.own, call.ending));
        Ok(())
    }
}

/// A clock of nanoseconds.
fn clock() -> Clock {
    Clock::new(ClockKind::Monotonic, Anchor::default(), 1_000_000_000)
}

/// Follows events: thread, kind, function, and ticks since the beginning.
fn ended(events: &[(u32, Kind, u32, u64)]) -> Vec<(String, Option<u64>, u64, Ending)> {
    let rings = Arc::new(Rings::create(&RingOptions::default()).unwrap());
    let start = rings.clock().first().ticks;
    let writers = [1, 2].map(|thread| rings.writer(9, thread).unwrap());
    for &(thread, kind, function, time) in events {
        writers[thread as usize - 1].call(call(kind, function), start + time);
    }
    rings.finish();
    let mut ended = Ended::default();
    follow(&mut Live::watch(rings.clone()), &mut ended).unwrap();
    ended.0
}

#[test]
fn a_call_whose_end_is_missing_has_no_duration() {
    let found = ended(&[
        (1, Kind::Return, 8, 5),
        (1, Kind::Entry, 1, 10),
        (1, Kind::Entry, 2, 20),
        (1, Kind::Entry, 3, 30),
        (1, Kind::Unwound, 2, 60),
        (1, Kind::Return, 1, 100),
    ]);
    let call =
        |function: u32, took, own, ending| (format!("<lost name {function}>"), took, own, ending);
    let expected = [
        call(3, None, 0, Ending::Lost),
        call(2, Some(40), 10, Ending::Unwound),
        call(1, Some(90), 50, Ending::Returned),
    ];
    assert_eq!(found, expected);
}

#[test]
fn calls_whose_ends_were_lost_have_no_durations_and_those_around_them_have() {
    let (names, clock) = (Names::default(), clock());
    let context = Context {
        names: &names,
        clock: &clock,
        schedule: None,
    };
    let (mut calls, mut ended) = (Calls::<Views>::default(), Ended::default());
    let mut step = |time, what| {
        let event = Event::new(time, 9, 1, what);
        let Ok(()) = calls.step(Step::of(&event), &context, &mut ended);
    };
    let entry = What::entry;
    let end = What::returned;
    let lost = |ends| What::Lost { events: 7, ends };
    step(0, entry(1));
    step(10, entry(2));
    step(20, entry(3));
    step(24, lost(Some(2)));
    step(1000, entry(4));
    step(1100, end(4));
    step(1200, end(1));
    // It is unknown which calls end.
    step(2000, entry(5));
    step(2010, entry(5));
    step(2030, lost(None));
    step(3000, end(5));
    let call =
        |function: u32, took, own, ending| (format!("<lost name {function}>"), took, own, ending);
    let expected = [
        call(3, None, 0, Ending::Lost),
        call(2, None, 10, Ending::Lost),
        call(4, Some(100), 100, Ending::Returned),
        call(1, Some(1200), 110, Ending::Returned),
        call(5, None, 0, Ending::Lost),
        call(5, None, 10, Ending::Lost),
    ];
    assert_eq!(ended.0, expected);
    assert_eq!((calls.losses.events(), calls.losses.calls), (14, 4));
    // A loss lasts until the next event of its thread.
    let loss = calls.losses.threads[&(9, 1)];
    assert_eq!((loss.from, loss.to), (20, 3000));
}

#[test]
fn calls_after_an_entry_only_call_are_in_the_enclosing_one() {
    let (names, clock) = (Names::default(), clock());
    let context = Context {
        names: &names,
        clock: &clock,
        schedule: None,
    };
    let (mut calls, mut ended) = (Calls::<Views>::default(), Ended::default());
    let mut step = |time, what| {
        let event = Event::new(time, 9, 1, what);
        let Ok(()) = calls.step(Step::of(&event), &context, &mut ended);
    };
    let entry = |function, is_entry_only| What::Entry {
        function,
        arguments: &[],
        caller: None,
        is_entry_only,
    };
    let end = What::returned;
    step(0, entry(1, false));
    step(10, entry(2, true));
    step(20, entry(3, false));
    step(50, end(3));
    step(100, end(1));
    let call =
        |function: u32, took, own, ending| (format!("<lost name {function}>"), took, own, ending);
    let expected = [
        call(2, None, 0, Ending::EntryOnly),
        call(3, Some(30), 30, Ending::Returned),
        call(1, Some(100), 70, Ending::Returned),
    ];
    assert_eq!(ended.0, expected);
    assert_eq!(calls.counts.calls, 3);
}

#[test]
fn a_call_that_goes_on_ends_with_the_last_event_of_its_thread() {
    let found = ended(&[
        (1, Kind::Entry, 1, 0),
        (1, Kind::Entry, 2, 40),
        (2, Kind::Entry, 3, 50),
        (2, Kind::Return, 3, 1_000_000),
    ]);
    let times: Vec<_> = found
        .iter()
        .map(|(name, took, own, ending)| (&name[..], *took, *own, *ending))
        .collect();
    let expected = [
        ("<lost name 3>", Some(999_950), 999_950, Ending::Returned),
        ("<lost name 2>", None, 0, Ending::Open),
        ("<lost name 1>", None, 40, Ending::Open),
    ];
    assert_eq!(times, expected);
}
