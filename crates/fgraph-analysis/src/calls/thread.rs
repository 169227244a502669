//! The threads of a recording.

use std::fmt;

use fgraph_trace::clock::Clock;
use fgraph_trace::names::{Names, process_id};
use fgraph_trace::pairing::{Change, EndedCall, Ending, Pairing};
use fgraph_trace::schedule::Schedule;

use super::context::Context;
use super::counts::Counts;
use super::functions::{Functions, Slot};
use super::visitor::{At, Call, Measured, Open, ThreadId, Values, Visitor};

/// A thread of a recording.
#[derive(Debug)]
pub struct Thread {
    /// The number of its process.
    pub process: u32,
    /// Its id.
    pub id: u32,
    /// Its name; empty if it is unknown.
    pub name: String,
    /// The time of its first event, in ticks.
    pub first: u64,
    /// The time of its last event, in ticks, or of its end as far as that is known.
    pub last: u64,
    /// Its calls in progress.
    pub(super) calls: Pairing<Slot>,
    /// The same calls by the time in the state that counts, if that is not all.
    pub(super) measured: Option<Pairing<Slot>>,
    /// True if its states are unknown.
    pub(super) is_unknown: bool,
    /// Index of its process among those of [`Functions`].
    pub(super) functions: usize,
    /// The place of its last moment among its states.
    pub(super) near: usize,
}

/// A time, and the one in the state that counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) time: u64,
    pub(super) measured: u64,
}

/// Facts about an event apart from its time.
#[derive(Clone, Copy)]
pub(super) struct Scene<'a> {
    thread: ThreadId,
    functions: &'a Functions,
    names: &'a Names,
    clock: &'a Clock,
    schedule: Option<&'a Schedule>,
}

impl<'a> Scene<'a> {
    #[inline]
    pub(super) fn of(
        thread: ThreadId,
        functions: &'a Functions,
        context: &Context<'a>,
        clock: &'a Clock,
    ) -> Self {
        Self {
            thread,
            functions,
            names: context.names,
            clock,
            schedule: context.schedule,
        }
    }

    #[inline]
    pub(super) fn at<'c>(
        &'c self,
        moment: Moment,
        around: &'c [Open],
        values: &'c Values<'c>,
    ) -> At<'c> {
        At {
            thread: self.thread,
            time: moment.time,
            measured: moment.measured,
            functions: self.functions,
            names: self.names,
            clock: self.clock,
            schedule: self.schedule,
            around,
            values,
        }
    }
}

impl Thread {
    /// Returns the thread, whose number is given, as events name it.
    pub(super) fn key(&self, index: usize) -> ThreadId {
        ThreadId {
            index,
            process: self.process,
            id: self.id,
        }
    }

    /// Returns the time of the last event.
    #[inline]
    pub(super) fn moment(&self) -> Moment {
        let time = self.calls.last();
        let measured = self.measured.as_ref().map_or(time, Pairing::last);
        Moment { time, measured }
    }

    /// Passes an event on to the calls by both times.
    pub(super) fn each<T>(&mut self, at: Moment, pass: impl Fn(&mut Pairing<Slot>, u64) -> T) -> T {
        if let Some(calls) = &mut self.measured {
            pass(calls, at.measured);
        }
        pass(&mut self.calls, at.time)
    }

    /// Notes that a thread with calls in progress has run until a time, in ticks.
    pub(super) fn live_on(&mut self, until: u64) {
        if !self.calls.calls().is_empty() {
            self.last = self.last.max(until);
        }
    }

    /// Passes on the calls that an event at `now` has begun and ended. Calls whose ends are lost
    /// end at the event before. `values` are the arguments or the result of the event's call.
    /// Returns the number of ended calls.
    #[cold]
    pub(super) fn settle<V: Visitor + ?Sized>(
        &mut self,
        scene: &Scene<'_>,
        (now, before): (Moment, Moment),
        values: &Values<'_>,
        counts: &mut Counts,
        visitor: &mut V,
    ) -> Result<u64, V::Error> {
        let mut ended = 0;
        while let Some(change) = self.calls.change() {
            // Times make no difference to the order.
            let measured = self.measured.as_mut().and_then(Pairing::change);
            let calls = self.calls.calls();
            let call = match change {
                Change::Began => {
                    counts.calls += 1;
                    if let Some((call, around)) = calls.split_last() {
                        visitor.enter(&scene.at(now, around, values), call)?;
                    }
                    continue;
                }
                Change::Ended(call) => call,
            };
            ended += 1;
            let (mut moment, mut result) = (now, Values::NONE);
            match call.ending {
                Ending::Returned | Ending::Unwound => {
                    counts.end(call.ran);
                    result = values;
                }
                Ending::Lost => {
                    counts.missing_returns += 1;
                    moment = before;
                }
                Ending::Open => counts.open_calls += 1,
                Ending::EntryOnly => {}
            }
            let measured = match measured {
                Some(Change::Ended(EndedCall { ran, own, .. })) => Some(Measured { ran, own }),
                _ => None,
            };
            let call = Call::of(&call, measured);
            visitor.exit(&scene.at(moment, calls, result), &call)?;
        }
        Ok(ended)
    }
}

impl fmt::Display for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_thread(f, &self.name, process_id(self.process), self.id)
    }
}

/// Writes a thread's name, if that is known, and its ids. Text from the program is in it unescaped.
///
/// # Errors
///
/// Errors of `f`.
pub fn write_thread(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    process: u32,
    thread: u32,
) -> fmt::Result {
    let space = if name.is_empty() { "" } else { " " };
    write!(f, "{name}{space}{process}/{thread}")
}
