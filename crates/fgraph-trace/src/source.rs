//! Where events come from: the rings of a running program, a snapshot of them, or a recording.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::{fmt, io, mem};

use crate::clock::Clock;
use crate::event::{self, Place, Walk, What};
use crate::names::Names;
use crate::ring::Chunk;

/// Something that a thread did, or that is missing there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event<'a> {
    /// When, in ticks of the source's clock. Of the events of a thread none is before another one
    /// that was given earlier.
    pub time: u64,
    /// The thread's process.
    pub process: u32,
    /// The thread.
    pub thread: u32,
    /// The processor that it ran on, if that was recorded.
    pub cpu: Option<u32>,
    /// How long it had run on processors since its beginning, in nanoseconds, if that was recorded.
    pub running: Option<u64>,
    /// The arguments of an entry, or the result of a return, by their types: words that the
    /// [layout](crate::names::FunctionTypes) of the function explains. Empty if they were not
    /// recorded so.
    pub values: &'a [u64],
    /// Of an entry: where it and the calls around it return to, recorded or not, the innermost
    /// first. Empty if that was not recorded.
    pub stack: &'a [u64],
    /// What it did.
    pub what: What<'a>,
}

impl<'a> Event<'a> {
    /// An event of a thread, for sources of other crates; the processor is not known.
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
            what,
        }
    }
}

/// The event that a source gives next of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Upcoming<'a> {
    /// When, in ticks of the source's clock.
    pub time: u64,
    /// As [`Event::running`].
    pub running: Option<u64>,
    /// As [`Event::values`].
    pub values: &'a [u64],
    /// What it is.
    pub what: What<'a>,
}

impl<'a> Upcoming<'a> {
    /// What a thread does next, for sources of other crates.
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

/// When and where an event happened that a source has to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peek {
    /// When, in ticks of the source's clock.
    pub time: u64,
    /// As [`Event::process`].
    pub process: u32,
    /// As [`Event::thread`].
    pub thread: u32,
}

/// Gives the events of all threads in the order of time.
///
/// A view that takes a source works on a running program as on a recording. What is kept in memory
/// depends on the number of threads and functions, not on that of events.
pub trait Source {
    /// The next event; `None` if there is none now, or, once [it is over](Self::is_over), none any
    /// more.
    ///
    /// # Errors
    ///
    /// What keeps the source from going on. What is damaged in a recording is left out, and told as
    /// events that are [lost](What::Lost).
    fn next(&mut self) -> Result<Option<Event<'_>>, SourceError>;

    /// What follows in the thread whose event was given last, as far as that is known now.
    ///
    /// A view finds out by this whether a call has no other call in it.
    fn upcoming(&self) -> Option<Upcoming<'_>>;

    /// Whether no more events come.
    fn is_over(&self) -> bool;

    /// The clock of the events.
    fn clock(&self) -> &Clock;

    /// What functions, threads and processes are, as far as the events need it that were given.
    fn names(&self) -> &Names;
}

/// Why there are no more events.
#[derive(Debug)]
#[non_exhaustive]
pub enum SourceError {
    /// The recording cannot be read.
    Io(io::Error),
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(_) => f.write_str("the recording cannot be read"),
        }
    }
}

impl std::error::Error for SourceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
        }
    }
}

impl From<io::Error> for SourceError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Chunks of events, each lane in its own order: what a [`Merge`] makes one stream of.
pub trait Lanes {
    /// Looks for lanes that have come, and says up to which time events can be given, and whether
    /// that is all.
    fn refresh(&mut self) -> (u64, bool);

    /// The number of lanes.
    fn count(&self) -> usize;

    /// Puts the next chunk of a lane into `chunk`; `false` if there is none now.
    ///
    /// # Errors
    ///
    /// Those of [`Source::next`].
    fn poll(&mut self, lane: usize, chunk: &mut Chunk) -> Result<bool, SourceError>;

    /// As [`Source::clock`].
    fn clock(&self) -> &Clock;

    /// As [`Source::names`].
    fn names(&self) -> &Names;
}

/// An event that is to be given.
#[derive(Clone, Copy, Debug, Default)]
struct Pending {
    place: Place,
    /// Not before the one before it.
    time: u64,
    process: u32,
    thread: u32,
    /// From 1; 0 if it is not known.
    cpu: u32,
    /// How many events are missing here; 0 for an event that is there.
    lost: u64,
    /// How many of the missing events ended calls, if that is known.
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

    fn stack<'a>(&self, words: &'a [u64]) -> &'a [u64] {
        match self.lost {
            0 => event::stack(words, &self.place),
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
    /// The chunk before, which the current event may be in.
    before: Chunk,
    walk: Walk,
    /// The current event and the upcoming one. They change places, as copying them takes time.
    pending: [Pending; 2],
    /// Which of them is the current one: 0 or 1.
    turn: usize,
    has_current: bool,
    is_current_before: bool,
    has_upcoming: bool,
    /// What comes before the chunk's events: what is missing of the thread before, and of this one.
    losses: [Option<Pending>; 2],
    /// How many events of the ring were given or are known to be missing.
    events: u64,
    dropped: u64,
    /// How many of the dropped events ended calls, if that is known.
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

    /// The place of the upcoming event, which is to be written there.
    #[inline]
    fn next_upcoming(&mut self) -> &mut Pending {
        self.has_upcoming = true;
        &mut self.pending[!self.turn & 1]
    }

    /// Makes the upcoming event the current one, and looks for what comes then.
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

    #[inline]
    fn set_upcoming(&mut self, place: Place) {
        // A clock that goes back stands still for the reader.
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

    /// Finds the upcoming event where the chunk's are at an end, or some are missing.
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
                // The next one is compared with this thread.
                (self.chunk.process, self.chunk.thread) = (self.before.process, thread);
                self.chunk.words.clear();
                return Ok(());
            }
            self.begin();
        }
    }

    /// Begins a new chunk: what is missing before it?
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
        // A writer does not write the end of a call whose entry it has dropped: the ends that it
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

/// One stream of events made of those of all lanes, in the order of time.
#[derive(Clone, Debug)]
pub struct Merge<L> {
    lanes: L,
    state: Vec<Lane>,
    /// Time of the upcoming event of each lane that has one, but the running one's.
    heap: BinaryHeap<Reverse<(u64, usize)>>,
    running: Option<usize>,
    /// The running lane's events come first until then.
    bound: u64,
    limit: u64,
    is_over: bool,
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
            is_over: false,
        }
    }

    /// Where the events come from.
    #[must_use]
    pub fn lanes(&self) -> &L {
        &self.lanes
    }

    pub(crate) fn lanes_mut(&mut self) -> &mut L {
        &mut self.lanes
    }

    /// Makes the lane with the earliest event the running one; `false` if nothing can be given now.
    fn choose(&mut self) -> Result<bool, SourceError> {
        if let Some(lane) = self.running.take()
            && let Some(next) = self.state[lane].upcoming()
        {
            self.heap.push(Reverse((next.time, lane)));
        }
        let is_due = |this: &Self| {
            let first = this.heap.peek();
            first.is_some_and(|Reverse((time, _))| *time <= this.limit)
        };
        if !is_due(self) {
            if self.is_over {
                return Ok(false);
            }
            // Limit first: what is before it was written when the lanes are asked.
            (self.limit, self.is_over) = self.lanes.refresh();
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
        self.running = Some(lane);
        let next = self
            .heap
            .peek()
            .map_or(u64::MAX, |Reverse((time, _))| *time);
        self.bound = next.min(self.limit);
        Ok(true)
    }

    /// Whether [`next`](Source::next) has an event to give.
    ///
    /// # Errors
    ///
    /// Those of [`next`](Source::next).
    pub fn is_ready(&mut self) -> Result<bool, SourceError> {
        let is_first = |lane: usize| {
            let next = self.state[lane].upcoming();
            next.is_some_and(|next| next.time <= self.bound)
        };
        Ok(self.running.is_some_and(is_first) || self.choose()?)
    }
}

impl<L: Lanes> Merge<L> {
    /// When and where the event happened that [`next`](Source::next) has to give.
    ///
    /// # Errors
    ///
    /// Those of [`next`](Source::next).
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

    /// The time of the event that [`next`](Source::next) has to give, in ticks.
    ///
    /// # Errors
    ///
    /// Those of [`next`](Source::next).
    pub fn next_time(&mut self) -> Result<Option<u64>, SourceError> {
        Ok(self.peek()?.map(|next| next.time))
    }
}

impl<L: Lanes> Source for Merge<L> {
    #[inline]
    fn next(&mut self) -> Result<Option<Event<'_>>, SourceError> {
        if !self.is_ready()? {
            return Ok(None);
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
                what: event.what(&chunk.words),
            };
            if event.place.has_more() {
                given.running = event.running(&chunk.words);
                given.values = event.values(&chunk.words);
                given.stack = event.stack(&chunk.words);
            }
            given
        }))
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
        self.is_over
    }

    fn clock(&self) -> &Clock {
        self.lanes.clock()
    }

    fn names(&self) -> &Names {
        self.lanes.names()
    }
}
