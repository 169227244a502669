//! Sources of events: the rings of a running program, a snapshot of them, or a recording.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::{io, mem};

use crate::clock::Clock;
use crate::event::{self, Place, Walk, What};
use crate::names::Names;
use crate::ring::Chunk;
use crate::schedule::Schedule;

/// An action of a thread, or a loss of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event<'a> {
    /// The time in ticks of the source's clock. Times of one thread never go back.
    pub time: u64,
    /// The process of the thread.
    pub process: u32,
    /// The thread.
    pub thread: u32,
    /// The processor on which it ran, if that was recorded.
    pub cpu: Option<u32>,
    /// Nanoseconds that the thread had run on processors since its beginning, if that was recorded.
    pub running: Option<u64>,
    /// The arguments of an entry, or the result of a return, encoded by type: words that the
    /// [layout](crate::names::FunctionTypes) of the function explains. Empty if none were recorded.
    pub values: &'a [u64],
    /// For an entry: its return address, and those of the calls around it, recorded or not, the
    /// innermost first. Empty if these were not recorded, or only their number.
    pub stack: &'a [u64],
    /// The number of the addresses that `stack` would have: see [`Names::stack`].
    pub stack_number: Option<u64>,
    /// True if the event has data that a later version of its recorder has added, and that this
    /// version leaves out.
    pub has_unknown: bool,
    /// The kind of the event, with its data.
    pub what: What<'a>,
}

impl<'a> Event<'a> {
    /// Makes an event, for sources of other crates; the processor is unknown.
    #[must_use]
    pub fn new(time: u64, process: u32, thread: u32, what: What<'a>) -> Self {
        Self {
            time,
            process,
            thread,
            cpu: None,
            running: None,
            values: &[],
            stack: &[],
            stack_number: None,
            has_unknown: false,
            what,
        }
    }
}

/// The next event of a thread, before its source gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Upcoming<'a> {
    /// The time in ticks of the source's clock.
    pub time: u64,
    /// See [`Event::running`].
    pub running: Option<u64>,
    /// See [`Event::values`].
    pub values: &'a [u64],
    /// The kind of the event, with its data.
    pub what: What<'a>,
}

impl<'a> Upcoming<'a> {
    /// Makes a thread's next event, for sources of other crates.
    #[must_use]
    pub fn new(time: u64, what: What<'a>) -> Self {
        Self {
            time,
            running: None,
            values: &[],
            what,
        }
    }
}

/// Time and thread of the next event of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peek {
    /// The time in ticks of the source's clock.
    pub time: u64,
    /// See [`Event::process`].
    pub process: u32,
    /// See [`Event::thread`].
    pub thread: u32,
}

/// Gives the events of all threads in the order of time.
///
/// A view that takes a source works on a running program as on a recording. The memory that a
/// source takes depends on the number of threads and functions, not on the number of events.
pub trait Source {
    /// Returns the next event. Returns `None` if there is none now, or, once [it is
    /// over](Self::is_over), none any more.
    ///
    /// # Errors
    ///
    /// Fails if the source cannot continue. Damaged events of a recording are left out, and appear
    /// as [lost](What::Lost).
    fn next(&mut self) -> Result<Option<Event<'_>>, SourceError>;

    /// Returns the next event of the thread whose event was given last, as far as it is known now.
    ///
    /// A view uses this to find out if a call contains no other call.
    fn upcoming(&self) -> Option<Upcoming<'_>>;

    /// Returns true if all events were given, and no more come.
    fn is_over(&self) -> bool;

    /// Returns the clock of the events.
    fn clock(&self) -> &Clock;

    /// Returns the names of functions, threads and processes, as far as the events given until now
    /// need them.
    fn names(&self) -> &Names;

    /// Returns the states of threads, if they are known.
    fn schedule(&self) -> Option<&Schedule> {
        None
    }
}

/// The reason that a source cannot continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The recording cannot be read.
    #[error("the recording cannot be read")]
    Io(#[from] io::Error),
}

/// Chunks of events, each lane in its own order. A [`Merge`] makes one stream of them.
pub trait Lanes {
    /// Looks for new lanes. Returns the time up to which events can be given, and true if no more
    /// come.
    fn refresh(&mut self) -> (u64, bool);

    /// The number of lanes.
    fn count(&self) -> usize;

    /// Puts the next chunk of a lane into `chunk`; `false` if there is none now.
    ///
    /// # Errors
    ///
    /// Fails like [`Source::next`].
    fn poll(&mut self, lane: usize, chunk: &mut Chunk) -> Result<bool, SourceError>;

    /// Returns the clock of the events.
    fn clock(&self) -> &Clock;

    /// Returns the names, see [`Source::names`].
    fn names(&self) -> &Names;

    /// Returns the states of threads, if they are known.
    fn schedule(&self) -> Option<&Schedule> {
        None
    }
}

/// An event before it is given.
#[derive(Clone, Copy, Debug, Default)]
struct Pending {
    place: Place,
    /// The time; never before the time of the previous event.
    time: u64,
    process: u32,
    thread: u32,
    /// The processor, from 1; 0 if it is unknown.
    cpu: u32,
    /// The number of events that are missing here; 0 for an event that is present.
    lost: u64,
    /// The number of missing events that ended calls, if it is known.
    lost_ends: Option<u64>,
}

impl Pending {
    fn what<'a>(&self, words: &'a [u64]) -> What<'a> {
        match self.lost {
            0 => event::what(words, &self.place),
            events => What::Lost {
                events,
                ends: self.lost_ends,
            },
        }
    }

    fn values<'a>(&self, words: &'a [u64]) -> &'a [u64] {
        match self.lost {
            0 => event::values(words, &self.place),
            _ => &[],
        }
    }

    fn running(&self, words: &[u64]) -> Option<u64> {
        match self.lost {
            0 => event::running(words, &self.place),
            _ => None,
        }
    }
}

/// The events of one ring.
#[derive(Clone, Debug, Default)]
struct Lane {
    chunk: Chunk,
    /// The previous chunk, which may contain the current event.
    before: Chunk,
    walk: Walk,
    /// The current event and the upcoming one. They swap roles, because copying them takes time.
    pending: [Pending; 2],
    /// The index of the current one: 0 or 1.
    turn: usize,
    has_current: bool,
    is_current_before: bool,
    has_upcoming: bool,
    /// The losses before the chunk's events: of the previous thread, and of this one.
    losses: [Option<Pending>; 2],
    /// The number of events of the ring that were given, or are known to be missing.
    events: u64,
    dropped: u64,
    /// The number of dropped events that ended calls, if it is known.
    dropped_ends: Option<u64>,
    time: u64,
}

impl Lane {
    #[inline]
    fn current(&self) -> Option<&Pending> {
        self.has_current.then_some(&self.pending[self.turn & 1])
    }

    #[inline]
    fn upcoming(&self) -> Option<&Pending> {
        self.has_upcoming.then_some(&self.pending[!self.turn & 1])
    }

    /// Returns the place of the upcoming event, to be overwritten.
    #[inline]
    fn next_upcoming(&mut self) -> &mut Pending {
        self.has_upcoming = true;
        &mut self.pending[!self.turn & 1]
    }

    /// Makes the upcoming event the current one, and finds the next upcoming one.
    #[inline]
    fn advance(&mut self, index: usize, lanes: &mut impl Lanes) -> Result<(), SourceError> {
        self.turn ^= 1;
        self.has_current = self.has_upcoming;
        self.has_upcoming = false;
        self.is_current_before = false;
        if let [None, None] = self.losses
            && let Some(place) = self.walk.next(&self.chunk.words)
        {
            self.set_upcoming(place);
            return Ok(());
        }
        self.refill(index, lanes)
    }

    /// Makes the upcoming event the current one and returns it, if it comes up to a time, is an
    /// entry or an end without extensions, and another event follows in its chunk.
    #[inline(always)]
    fn plain(&mut self, until: u64) -> Option<Event<'static>> {
        let next = self.upcoming()?;
        let (time, cpu, at) = (next.time, next.cpu, next.place.at);
        let has_losses = next.lost != 0 || !matches!(self.losses, [None, None]);
        if time > until || has_losses || next.place.has_more() {
            return None;
        }
        let (kind, function) = event::as_call(*self.chunk.words.get(at)?)?;
        let place = self.walk.plain(&self.chunk.words)?;
        self.turn ^= 1;
        self.has_current = true;
        self.is_current_before = false;
        self.set_upcoming(place);
        let what = match kind {
            event::Kind::Entry => What::entry(function),
            event::Kind::Return => What::returned(function),
            _ => What::Unwound { function },
        };
        let mut event = Event::new(time, self.chunk.process, self.chunk.thread, what);
        event.cpu = cpu.checked_sub(1);
        Some(event)
    }

    #[inline(always)]
    fn set_upcoming(&mut self, place: Place) {
        // For a reader, a clock that goes back stands still.
        self.time = self.time.max(place.time);
        self.events = self.events.wrapping_add(1);
        *self.next_upcoming() = Pending {
            place,
            time: self.time,
            process: self.chunk.process,
            thread: self.chunk.thread,
            cpu: self.walk.cpu,
            lost: 0,
            lost_ends: None,
        };
    }

    /// Finds the upcoming event after the chunk's end, or where events are missing.
    #[cold]
    fn refill(&mut self, index: usize, lanes: &mut impl Lanes) -> Result<(), SourceError> {
        loop {
            if let Some(loss) = self.losses.iter_mut().find_map(Option::take) {
                *self.next_upcoming() = loss;
                return Ok(());
            }
            if let Some(place) = self.walk.next(&self.chunk.words) {
                self.set_upcoming(place);
                return Ok(());
            }
            if !self.is_current_before {
                mem::swap(&mut self.chunk, &mut self.before);
                self.is_current_before = true;
            }
            let thread = self.before.thread;
            self.walk = Walk::default();
            self.chunk.words.clear();
            if !lanes.poll(index, &mut self.chunk)? {
                // The next chunk is compared with this thread.
                (self.chunk.process, self.chunk.thread) = (self.before.process, thread);
                self.chunk.words.clear();
                return Ok(());
            }
            self.begin();
        }
    }

    /// Begins a new chunk: computes the losses before it.
    fn begin(&mut self) {
        let (chunk, before) = (&self.chunk, &self.before);
        self.walk = Walk {
            at: 0,
            time: chunk.time,
            cpu: chunk.cpu.map_or(0, |cpu| cpu.wrapping_add(1)),
        };
        self.time = self.time.max(chunk.time);
        let dropped = chunk.dropped.saturating_sub(self.dropped);
        let lost = chunk
            .events
            .saturating_sub(self.events)
            .saturating_add(dropped);
        let is_same = (before.process, before.thread) == (chunk.process, chunk.thread);
        let ours = if is_same || before.thread == 0 {
            lost
        } else {
            lost.min(chunk.own_dropped)
        };
        // A writer does not write the end of a call whose entry it has dropped, so the ends that it
        // has dropped are those of the innermost calls that were given.
        let ends = match (self.dropped_ends, chunk.dropped_ends) {
            (None, Some(ends)) if self.dropped == 0 => Some(ends),
            (Some(before), Some(ends)) => ends.checked_sub(before),
            _ => None,
        };
        let lost_ends = ends.filter(|_| is_same && lost == chunk.own_dropped);
        let loss = |of: &Chunk, lost| {
            (lost != 0).then_some(Pending {
                place: Place::default(),
                time: self.time,
                process: of.process,
                thread: of.thread,
                cpu: self.walk.cpu,
                lost,
                lost_ends,
            })
        };
        self.losses = [loss(before, lost - ours), loss(chunk, ours)];
        (self.events, self.dropped) = (chunk.events, chunk.dropped);
        self.dropped_ends = chunk.dropped_ends;
    }
}

/// Merges the events of all lanes into one stream, in the order of time.
#[derive(Clone, Debug)]
pub struct Merge<L> {
    lanes: L,
    state: Vec<Lane>,
    /// The time of the upcoming event of each lane that has one, except the running lane.
    heap: BinaryHeap<Reverse<(u64, usize)>>,
    running: Option<usize>,
    /// The time until which the running lane's events come first.
    bound: u64,
    limit: u64,
    /// True if nothing is written to the lanes any more.
    is_complete: bool,
}

impl<L: Lanes> Merge<L> {
    pub(crate) fn of(lanes: L) -> Self {
        Self {
            lanes,
            state: Vec::new(),
            heap: BinaryHeap::new(),
            running: None,
            bound: 0,
            limit: 0,
            is_complete: false,
        }
    }

    /// Returns the lanes.
    #[must_use]
    pub fn lanes(&self) -> &L {
        &self.lanes
    }

    pub(crate) fn lanes_mut(&mut self) -> &mut L {
        &mut self.lanes
    }

    /// Makes the lane with the earliest event the running one; `false` if no event can be given
    /// now.
    fn choose(&mut self) -> Result<bool, SourceError> {
        if let Some(lane) = self.running.take()
            && let Some(next) = self.state[lane].upcoming()
        {
            let next = Reverse((next.time, lane));
            // Another lane is earlier in most cases: the two change places.
            let earlier = self.heap.peek_mut();
            let earlier = earlier.filter(|first| **first > next && first.0.0 <= self.limit);
            let earlier = earlier.map(|mut first| mem::replace(&mut *first, next).0.1);
            if let Some(lane) = earlier {
                self.run(lane);
                return Ok(true);
            }
            self.heap.push(next);
        }
        let is_due = |this: &Self| {
            let first = this.heap.peek();
            first.is_some_and(|Reverse((time, _))| *time <= this.limit)
        };
        if !is_due(self) {
            if self.is_complete {
                return Ok(false);
            }
            // The limit is read first: earlier events are written when the lanes are read.
            (self.limit, self.is_complete) = self.lanes.refresh();
            self.state.resize_with(self.lanes.count(), Lane::default);
            for (index, lane) in self.state.iter_mut().enumerate() {
                if !lane.has_upcoming {
                    lane.refill(index, &mut self.lanes)?;
                    if let Some(next) = lane.upcoming() {
                        self.heap.push(Reverse((next.time, index)));
                    }
                }
            }
            if !is_due(self) {
                return Ok(false);
            }
        }
        let Some(Reverse((_, lane))) = self.heap.pop() else {
            return Ok(false);
        };
        self.run(lane);
        Ok(true)
    }

    /// Makes a lane, which is not in the heap, the running one.
    fn run(&mut self, lane: usize) {
        self.running = Some(lane);
        let next = self.heap.peek();
        let next = next.map_or(u64::MAX, |Reverse((time, _))| *time);
        self.bound = next.min(self.limit);
    }

    /// Returns true if [`next`](Source::next) has an event.
    ///
    /// # Errors
    ///
    /// Fails like [`next`](Source::next).
    pub fn is_ready(&mut self) -> Result<bool, SourceError> {
        let is_first = |lane: usize| {
            let next = self.state[lane].upcoming();
            next.is_some_and(|next| next.time <= self.bound)
        };
        Ok(self.running.is_some_and(is_first) || self.choose()?)
    }
}

impl<L: Lanes> Merge<L> {
    /// Returns the next event in the most frequent case: see [`Lane::plain`].
    #[inline(always)]
    fn plain(&mut self) -> Option<Event<'static>> {
        self.state.get_mut(self.running?)?.plain(self.bound)
    }

    /// Returns the next event in any case.
    fn any(&mut self) -> Result<Option<Event<'_>>, SourceError> {
        if !self.is_ready()? {
            return Ok(None);
        }
        // It may be one of another lane.
        if let Some(event) = self.plain() {
            return Ok(Some(event));
        }
        let Some((index, lane)) = self
            .running
            .and_then(|at| Some((at, self.state.get_mut(at)?)))
        else {
            return Ok(None);
        };
        lane.advance(index, &mut self.lanes)?;
        let chunk = if lane.is_current_before {
            &lane.before
        } else {
            &lane.chunk
        };
        Ok(lane.current().map(|event| {
            let mut given = Event {
                time: event.time,
                process: event.process,
                thread: event.thread,
                cpu: event.cpu.checked_sub(1),
                running: None,
                values: &[],
                stack: &[],
                stack_number: None,
                has_unknown: false,
                what: event.what(&chunk.words),
            };
            if event.place.has_more() && event.lost == 0 {
                let more = event::more(&chunk.words, &event.place);
                (given.running, given.values) = (more.running, more.values);
                (given.stack, given.stack_number) = (more.stack, more.stack_number);
                given.has_unknown = more.has_unknown;
            }
            given
        }))
    }

    /// Returns time and thread of the event that [`next`](Source::next) will give.
    ///
    /// # Errors
    ///
    /// Fails like [`next`](Source::next).
    pub fn peek(&mut self) -> Result<Option<Peek>, SourceError> {
        if !self.is_ready()? {
            return Ok(None);
        }
        let lane = self.running.and_then(|lane| self.state.get(lane));
        Ok(lane.and_then(Lane::upcoming).map(|next| Peek {
            time: next.time,
            process: next.process,
            thread: next.thread,
        }))
    }

    /// Returns the time of the event that [`next`](Source::next) will give, in ticks.
    ///
    /// # Errors
    ///
    /// Fails like [`next`](Source::next).
    pub fn next_time(&mut self) -> Result<Option<u64>, SourceError> {
        Ok(self.peek()?.map(|next| next.time))
    }
}

impl<L: Lanes> Source for Merge<L> {
    #[inline]
    fn next(&mut self) -> Result<Option<Event<'_>>, SourceError> {
        if let Some(event) = self.plain() {
            return Ok(Some(event));
        }
        self.any()
    }

    fn upcoming(&self) -> Option<Upcoming<'_>> {
        let lane = self.state.get(self.running?)?;
        let (next, current) = (lane.upcoming()?, lane.current()?);
        let is_same = (next.process, next.thread) == (current.process, current.thread);
        is_same.then(|| Upcoming {
            time: next.time,
            running: next.running(&lane.chunk.words),
            values: next.values(&lane.chunk.words),
            what: next.what(&lane.chunk.words),
        })
    }

    fn is_over(&self) -> bool {
        // A lane may have events after the limit, which are never given.
        let is_due = |time: u64| time <= self.limit;
        let running = self.running.and_then(|lane| self.state[lane].upcoming());
        let first = self.heap.peek();
        self.is_complete
            && !running.is_some_and(|next| is_due(next.time))
            && !first.is_some_and(|Reverse((time, _))| is_due(*time))
    }

    fn clock(&self) -> &Clock {
        self.lanes.clock()
    }

    fn names(&self) -> &Names {
        self.lanes.names()
    }

    fn schedule(&self) -> Option<&Schedule> {
        self.lanes.schedule()
    }
}
