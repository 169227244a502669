//! Reading rings while they are written, and taking snapshots of them.

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
/// The events of one thread are in the order in which it wrote them, those of several in the order
/// of time. For that, events are held back for a millisecond; what a thread tells later than that,
/// because it lost its processor between reading the clock and writing, comes when it is there.
pub type Live = Merge<RingLanes>;

/// What was in rings at one moment, as the kernel's `snapshot`.
pub type Snapshot = Merge<SnapshotLanes>;

/// How long events are held back.
const HELD_BACK: Duration = Duration::from_millis(1);
/// How long a waiting reader sleeps.
const NAP: Duration = Duration::from_millis(2);

impl Live {
    /// Sees all that is in the rings, and what comes, and leaves it there: any number of readers
    /// may do so. One that is slower than the writers finds events
    /// [lost](crate::event::What::Lost).
    #[must_use]
    pub fn watch(rings: Arc<Rings>) -> Self {
        Self::of(RingLanes::new(rings, None))
    }

    /// Sees all that is in the rings, and what comes, and makes room for more, as the kernel's
    /// `trace_pipe`.
    ///
    /// # Errors
    ///
    /// [`Busy`] if another reader does so.
    pub fn consume(rings: Arc<Rings>) -> Result<Self, Busy> {
        let consumer = Consumer::claim(rings.clone())?;
        Ok(Self::of(RingLanes::new(rings, Some(consumer))))
    }

    /// Waits until there is an event to give, for `time` at most, and says whether there is. It
    /// does not wait longer when [it is over](Source::is_over).
    ///
    /// Writers do not wake readers: this looks every two milliseconds.
    ///
    /// # Errors
    ///
    /// Those of [`next`](Source::next).
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
    /// Copies what is in the rings now, of each thread up to this moment. Writers and other readers
    /// go on.
    #[must_use]
    pub fn take(rings: &Rings) -> Self {
        Self::of(SnapshotLanes::new(rings))
    }

    /// Without the events after so many ticks of the clock. To be asked before the first event.
    #[must_use]
    pub fn until(mut self, ticks: u64) -> Self {
        let lanes = self.lanes_mut();
        lanes.taken = lanes.taken.min(ticks);
        self
    }
}

/// Rings of which a reader takes what comes next.
#[derive(Debug)]
pub struct RingLanes {
    rings: Arc<Rings>,
    cursors: Vec<Cursor>,
    consumer: Option<Consumer>,
    /// Whether nothing more comes, as it was found before rings were looked at.
    is_last: bool,
    clock: Clock,
    names: Names,
    table: TableCursor,
    /// [`HELD_BACK`] in ticks.
    held_back: u64,
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
        }
    }

    /// Sub-buffers of a ring.
    pub(crate) fn sub_buffers(&self) -> u32 {
        self.rings.sub_buffers()
    }

    /// Whether the next sub-buffer of a ring has all the events that it will have.
    pub(crate) fn has_whole(&self, lane: usize) -> bool {
        let cursor = self.cursors.get(lane);
        cursor.is_some_and(|cursor| cursor.has_whole(&self.rings, lane as u32))
    }

    /// Makes room where the chunks of a ring were that were taken last, if all of their sub-buffer
    /// was.
    pub(crate) fn written(&mut self, lane: usize) {
        if let (Some(consumer), Some(cursor)) = (&self.consumer, self.cursors.get_mut(lane)) {
            cursor.pass_whole(&self.rings, lane as u32);
            consumer.give_back(lane as u32, cursor);
        }
    }

    /// The rings.
    #[must_use]
    pub fn rings(&self) -> &Arc<Rings> {
        &self.rings
    }
}

impl Rings {
    /// All that was described so far.
    #[must_use]
    pub fn names(&self) -> Names {
        let mut names = Names::new(self.process());
        let is_last = self.is_finished();
        learn(self, &mut TableCursor::default(), &mut names, is_last);
        names
    }
}

/// Takes note of what was described since.
fn learn(rings: &Rings, table: &mut TableCursor, names: &mut Names, is_last: bool) {
    while let Some(new) = rings.next_description(table, is_last) {
        names.add(new);
    }
}

impl Lanes for RingLanes {
    fn refresh(&mut self) -> (u64, bool) {
        self.is_last = self.rings.is_finished();
        let now = Anchor::now(self.clock.kind());
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
        // What the events speak of was described before they were written.
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

/// What was in rings at one moment.
#[derive(Clone, Debug)]
pub struct SnapshotLanes {
    lanes: Vec<VecDeque<Chunk>>,
    /// Events after that are left out.
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
