//! Reads rings while they are written, and takes snapshots of them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::clock::{Anchor, Clock};
use crate::names::Names;
use crate::ring::{Busy, Chunk, Consumer, Cursor, Rings, TableCursor};
use crate::source::{Lanes, Merge, Source, SourceError};

/// Reads rings while they are written.
///
/// The events of one thread come in the order in which it wrote them, those of several threads in
/// the order of time. For that, events are held back for a millisecond. A thread that loses its
/// processor between reading the clock and writing may write later than that; its event then comes
/// as soon as it is written.
pub type Live = Merge<RingLanes>;

/// The content of rings at one moment, like the kernel's `snapshot`.
pub type Snapshot = Merge<SnapshotLanes>;

/// The time for which events are held back.
const HELD_BACK: Duration = Duration::from_millis(1);
/// The time for which a waiting reader sleeps.
const NAP: Duration = Duration::from_millis(2);

impl Live {
    /// Reads all events in the rings, and later ones, and leaves them there: any number of readers
    /// may do so. A reader that is slower than the writers finds events
    /// [lost](crate::event::What::Lost).
    #[must_use]
    pub fn watch(rings: Arc<Rings>) -> Self {
        Self::of(RingLanes::new(rings, None))
    }

    /// Reads all events in the rings, and later ones, and makes room for more, like the kernel's
    /// `trace_pipe`.
    ///
    /// # Errors
    ///
    /// Fails with [`Busy`] if another reader is consuming.
    pub fn consume(rings: Arc<Rings>) -> Result<Self, Busy> {
        let consumer = Consumer::claim(rings.clone())?;
        Ok(Self::of(RingLanes::new(rings, Some(consumer))))
    }

    /// Waits for an event, for `time` at most, and returns true if there is one. Returns at once
    /// when the source [is over](Source::is_over).
    ///
    /// Writers do not wake readers: this looks every two milliseconds.
    ///
    /// # Errors
    ///
    /// Fails with the errors of [`next`](Source::next).
    pub fn wait(&mut self, time: Duration) -> Result<bool, SourceError> {
        let begin = Instant::now();
        loop {
            let is_ready = self.is_ready()?;
            if is_ready || self.is_over() || begin.elapsed() >= time {
                return Ok(is_ready);
            }
            thread::sleep(NAP.min(time));
        }
    }
}

impl Snapshot {
    /// Copies the current content of the rings, of each thread up to this moment. Writers and other
    /// readers continue.
    #[must_use]
    pub fn take(rings: &Rings) -> Self {
        Self::of(SnapshotLanes::new(rings))
    }

    /// Leaves out the events after `ticks` of the clock. Call this before the first event is taken.
    #[must_use]
    pub fn until(mut self, ticks: u64) -> Self {
        let lanes = self.lanes_mut();
        lanes.taken = lanes.taken.min(ticks);
        self
    }
}

/// Reads rings, chunk by chunk.
#[derive(Debug)]
pub struct RingLanes {
    rings: Arc<Rings>,
    cursors: Vec<Cursor>,
    consumer: Option<Consumer>,
    /// True if nothing more comes; read before the rings are.
    is_last: bool,
    clock: Clock,
    names: Names,
    table: TableCursor,
    /// [`HELD_BACK`], in ticks.
    held_back: u64,
    /// True if the clocks of this machine may have nothing to do with those of the rings.
    is_past: bool,
}

impl RingLanes {
    pub(crate) fn new(rings: Arc<Rings>, consumer: Option<Consumer>) -> Self {
        let clock = rings.clock();
        let per_ns = clock.ticks_per_second() as f64 / 1e9;
        Self {
            cursors: Vec::new(),
            consumer,
            is_last: false,
            names: Names::new(rings.process()),
            table: TableCursor::default(),
            held_back: (HELD_BACK.as_nanos() as f64 * per_ns) as u64,
            clock,
            rings,
            is_past: false,
        }
    }

    /// Reads [finished](Rings::finish) rings of another time, or another machine.
    pub(crate) fn of_the_past(rings: Arc<Rings>) -> Self {
        Self {
            is_past: true,
            ..Self::new(rings, None)
        }
    }

    pub(crate) fn is_past(&self) -> bool {
        self.is_past
    }

    /// Returns the number of sub-buffers of a ring.
    pub(crate) fn sub_buffers(&self) -> u32 {
        self.rings.sub_buffers()
    }

    /// Returns true if the next sub-buffer of a ring is complete.
    pub(crate) fn has_whole(&self, lane: usize) -> bool {
        let cursor = self.cursors.get(lane);
        cursor.is_some_and(|cursor| cursor.has_whole(&self.rings, lane as u32))
    }

    /// Gives the last sub-buffer that was taken from a ring back to its writer, if all of it was
    /// taken.
    pub(crate) fn written(&mut self, lane: usize) {
        if let (Some(consumer), Some(cursor)) = (&self.consumer, self.cursors.get_mut(lane)) {
            cursor.pass_whole(&self.rings, lane as u32);
            consumer.give_back(lane as u32, cursor);
        }
    }

    /// Returns the rings.
    #[must_use]
    pub fn rings(&self) -> &Arc<Rings> {
        &self.rings
    }
}

impl Rings {
    /// Returns all names described until now.
    #[must_use]
    pub fn names(&self) -> Names {
        let mut names = Names::new(self.process());
        let is_last = self.is_finished();
        learn(self, &mut TableCursor::default(), &mut names, is_last);
        names
    }
}

/// Learns the names that were described since the last call.
fn learn(rings: &Rings, table: &mut TableCursor, names: &mut Names, is_last: bool) {
    while let Some(new) = rings.next_description(table, is_last) {
        names.add(new);
    }
}

impl Lanes for RingLanes {
    fn refresh(&mut self) -> (u64, bool) {
        self.is_last = self.rings.is_finished();
        let now = match self.is_past {
            true => Anchor::default(),
            false => Anchor::now(self.clock.kind()),
        };
        // An anchor before the first one changes nothing.
        self.clock.refine(&now);
        for index in self.cursors.len() as u32..self.rings.ring_count() {
            let consumer = self.consumer.as_ref();
            let cursor = consumer.map(|consumer| consumer.cursor(index));
            self.cursors.push(cursor.unwrap_or_default());
        }
        if self.cursors.is_empty() {
            // No ring is polled.
            learn(&self.rings, &mut self.table, &mut self.names, self.is_last);
        }
        match self.is_last {
            true => (u64::MAX, true),
            false => (now.ticks.saturating_sub(self.held_back), false),
        }
    }

    fn count(&self) -> usize {
        self.cursors.len()
    }

    fn poll(&mut self, lane: usize, chunk: &mut Chunk) -> Result<bool, SourceError> {
        let Some(cursor) = self.cursors.get_mut(lane) else {
            return Ok(false);
        };
        let found = cursor.poll(&self.rings, lane as u32, chunk, self.is_last);
        if let Some(consumer) = &self.consumer {
            consumer.give_back(lane as u32, cursor);
        }
        // The names in events were described before the events were written.
        learn(&self.rings, &mut self.table, &mut self.names, self.is_last);
        Ok(found)
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn names(&self) -> &Names {
        &self.names
    }
}

/// The content of rings at one moment.
#[derive(Clone, Debug)]
pub struct SnapshotLanes {
    lanes: Vec<VecDeque<Chunk>>,
    /// The time of the snapshot: later events are left out.
    taken: u64,
    clock: Clock,
    names: Names,
}

impl SnapshotLanes {
    fn new(rings: &Rings) -> Self {
        let mut clock = rings.clock();
        let now = Anchor::now(clock.kind());
        clock.refine(&now);
        let is_last = rings.is_finished();
        let taken = if is_last { u64::MAX } else { now.ticks };
        let lane = |index| {
            let (mut cursor, mut chunk) = (Cursor::default(), Chunk::default());
            let mut chunks = VecDeque::new();
            while cursor.poll(rings, index, &mut chunk, is_last) && chunk.time <= taken {
                chunks.push_back(std::mem::take(&mut chunk));
            }
            chunks
        };
        let lanes = (0..rings.ring_count()).map(lane).collect();
        let mut names = Names::new(rings.process());
        learn(rings, &mut TableCursor::default(), &mut names, is_last);
        Self {
            lanes,
            taken,
            clock,
            names,
        }
    }
}

impl Lanes for SnapshotLanes {
    fn refresh(&mut self) -> (u64, bool) {
        (self.taken, true)
    }

    fn count(&self) -> usize {
        self.lanes.len()
    }

    fn poll(&mut self, lane: usize, chunk: &mut Chunk) -> Result<bool, SourceError> {
        let next = self.lanes.get_mut(lane).and_then(VecDeque::pop_front);
        let found = next.is_some();
        if let Some(next) = next {
            *chunk = next;
        }
        Ok(found)
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn names(&self) -> &Names {
        &self.names
    }
}
