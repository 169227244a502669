//! Readers of rings. A reader copies what is there, and finds out afterwards whether the writer has
//! changed it meanwhile.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::layout::{MORE_SHIFT, at, ring, sub};
use super::{Rings, TableCursor};
use crate::clock::{Anchor, Clock};
use crate::event::Walk;
use crate::names::Names;
use crate::primitive::{AtomicU64, Ordering, fence};
use crate::source::{Lanes, SourceError};

/// Events of one thread that follow one another, as they stand in a sub-buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// The index of the ring.
    pub ring: u32,
    /// The number of the ring's sub-buffer, from 0.
    pub sequence: u64,
    /// Words of the sub-buffer before these.
    pub offset: u32,
    /// The thread's process.
    pub process: u32,
    /// The thread.
    pub thread: u32,
    /// The clock from which the first event counts.
    pub time: u64,
    /// The processor that the thread ran on; `None` if that is not known.
    pub cpu: Option<u32>,
    /// Events that were written to the ring before these.
    pub events: u64,
    /// Events of the ring that were dropped before these.
    pub dropped: u64,
    /// Events dropped that are of this thread, and directly before these.
    pub own_dropped: u64,
    /// What the clocks showed when the sub-buffer was opened.
    pub anchor: Anchor,
    /// The events, see [`event`](crate::event).
    pub words: Vec<u64>,
}

/// How far a reader has got in a ring.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    /// The sub-buffer that comes next.
    sequence: u64,
    /// Words of it that were taken, as [`sub::USED`] has them.
    taken: u64,
    /// The clock and the processor behind those.
    walk: Walk,
    /// Events of the ring that were dropped before what was taken.
    dropped: u64,
    /// Whether what was dropped last was told.
    is_over: bool,
}

/// What copying a sub-buffer came to.
#[derive(Debug, PartialEq, Eq)]
enum Copied {
    /// There are new words.
    Words,
    /// There is nothing new in it.
    Nothing,
    /// It is another one by now.
    Gone,
}

impl Cursor {
    /// Takes what comes next in a ring; `false` if there is nothing now. `is_last` says that
    /// nothing more is written.
    fn poll(&mut self, rings: &Rings, index: u32, chunk: &mut Chunk, is_last: bool) -> bool {
        chunk.words.clear();
        let all = rings.ring(index);
        let Some(header) = all.get(..ring::HEADER) else {
            return false;
        };
        let count = u64::from(rings.geometry.sub_buffers);
        // A writer that overwrites may be faster than we are: then there is nothing this time.
        for _ in 0..2 * count {
            // Acquire: sub-buffers before the newest are complete.
            let head = header[ring::HEAD].load(Ordering::Acquire);
            if self.sequence >= head {
                break;
            }
            if head - self.sequence > count {
                self.move_to(head - count);
            }
            let range = rings.geometry.sub_buffer(self.sequence);
            match self.copy(&all[range], chunk, self.sequence + 1 == head) {
                Copied::Words => {
                    chunk.ring = index;
                    return true;
                }
                Copied::Nothing if self.sequence + 1 >= head => break,
                Copied::Nothing | Copied::Gone => self.move_to(self.sequence + 1),
            }
        }
        let dropped = header[ring::DROPPED].load(Ordering::Relaxed);
        if !is_last || self.is_over || dropped <= self.dropped {
            return false;
        }
        // What was dropped last, behind the newest sub-buffer.
        self.is_over = true;
        let newest = &all[rings.geometry.sub_buffer(self.sequence)];
        let owner = newest[sub::OWNER].load(Ordering::Relaxed);
        let taken = u64::from(self.taken as u32).wrapping_sub(self.taken >> MORE_SHIFT);
        *chunk = Chunk {
            ring: index,
            sequence: self.sequence,
            offset: self.taken as u32,
            process: (owner >> 32) as u32,
            thread: owner as u32,
            time: self.walk.time,
            cpu: self.walk.cpu.checked_sub(1),
            events: newest[sub::EVENTS]
                .load(Ordering::Relaxed)
                .wrapping_add(taken),
            dropped,
            own_dropped: dropped - self.dropped,
            anchor: Anchor::default(),
            words: std::mem::take(&mut chunk.words),
        };
        true
    }

    fn move_to(&mut self, sequence: u64) {
        (self.sequence, self.taken) = (sequence, 0);
    }

    /// Copies the words of a sub-buffer that were not taken yet. `is_newest` says that more may
    /// come.
    fn copy(&mut self, buffer: &[AtomicU64], chunk: &mut Chunk, is_newest: bool) -> Copied {
        let load = |at: usize| buffer[at].load(Ordering::Relaxed);
        let state = self.sequence.wrapping_mul(2).wrapping_add(2);
        // Acquire: the header, which is written before the state.
        if buffer[sub::STATE].load(Ordering::Acquire) != state {
            return Copied::Gone;
        }
        // Acquire: the words, which are written before the length. Pairs with `Writer::call`.
        let used = buffer[sub::USED].load(Ordering::Acquire);
        let end = (used as u32 as usize).min(buffer.len() - sub::HEADER);
        let begin = (self.taken as u32 as usize).min(end);
        let words = &buffer[sub::HEADER + begin..sub::HEADER + end];
        chunk.words.clear();
        chunk
            .words
            .extend(words.iter().map(|word| word.load(Ordering::Relaxed)));
        let header = [
            sub::OWNER,
            sub::TIME,
            sub::EVENTS,
            sub::DROPPED,
            sub::OWN_DROPPED,
        ];
        let [owner, time, events, dropped, own_dropped] = header.map(load);
        let [ticks, monotonic, realtime] = [0, 1, 2].map(|n| load(sub::ANCHOR + n));
        let cpu = load(sub::CPU);
        // Acquire: if any of what was loaded is of a later sub-buffer, its odd state or a later one
        // is found now. Pairs with the fence in `Writer::open`.
        fence(Ordering::Acquire);
        if load(sub::STATE) != state {
            return Copied::Gone;
        }
        if chunk.words.is_empty() {
            return Copied::Nothing;
        }
        if begin == 0 {
            let cpu = cpu as u32;
            self.walk = Walk { at: 0, time, cpu };
        }
        let taken = u64::from(self.taken as u32).wrapping_sub(self.taken >> MORE_SHIFT);
        *chunk = Chunk {
            ring: chunk.ring,
            sequence: self.sequence,
            offset: begin as u32,
            process: (owner >> 32) as u32,
            thread: owner as u32,
            time: self.walk.time,
            cpu: self.walk.cpu.checked_sub(1),
            events: events.wrapping_add(taken),
            dropped,
            own_dropped: if begin == 0 { own_dropped } else { 0 },
            anchor: Anchor {
                ticks,
                monotonic,
                realtime,
            },
            words: std::mem::take(&mut chunk.words),
        };
        if is_newest {
            while self.walk.next(&chunk.words).is_some() {}
            self.walk.at = 0;
        }
        self.taken = used;
        self.dropped = dropped;
        Copied::Words
    }
}

/// All rings of a recording, of which a reader takes what comes next.
#[derive(Debug)]
pub struct RingLanes {
    rings: Arc<Rings>,
    cursors: Vec<Cursor>,
    /// Whether what was taken makes room for more.
    is_consumer: bool,
    /// Whether nothing more comes, as it was found before rings were looked at.
    is_last: bool,
    clock: Clock,
    names: Names,
    table: TableCursor,
    /// Events are held back for so long, in ticks, in case a thread tells of earlier ones.
    held_back: u64,
}

/// How long a live reader holds events back.
const HELD_BACK: Duration = Duration::from_millis(1);

impl RingLanes {
    fn new(rings: Arc<Rings>, is_consumer: bool) -> Self {
        let clock = rings.clock();
        let per_ns = clock.ticks_per_second() as f64 / 1e9;
        Self {
            cursors: Vec::new(),
            is_consumer,
            is_last: false,
            names: Names::new(rings.process()),
            table: TableCursor::default(),
            held_back: (HELD_BACK.as_nanos() as f64 * per_ns) as u64,
            clock,
            rings,
        }
    }

    /// Sees all that is there, and what comes, and leaves it there for others.
    pub(crate) fn watching(rings: Arc<Rings>) -> Self {
        Self::new(rings, false)
    }

    /// Sees all that is there, and what comes, and makes room for more.
    ///
    /// # Errors
    ///
    /// [`Busy`] if another reader does.
    pub(crate) fn consuming(rings: Arc<Rings>) -> Result<Self, Busy> {
        let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        let place = rings.word(at::CONSUMER);
        match place.compare_exchange(0, std::process::id().into(), acquire, relaxed) {
            Ok(_) => Ok(Self::new(rings, true)),
            Err(process) => Err(Busy {
                process: process as u32,
            }),
        }
    }

    /// The rings.
    #[must_use]
    pub fn rings(&self) -> &Arc<Rings> {
        &self.rings
    }
}

impl Drop for RingLanes {
    fn drop(&mut self) {
        if self.is_consumer {
            // Release: the next one goes on where this one has given back.
            self.rings.word(at::CONSUMER).store(0, Ordering::Release);
        }
    }
}

impl Lanes for RingLanes {
    fn refresh(&mut self) -> Option<u64> {
        self.is_last = self.rings.is_finished();
        let now = self.clock.kind().now();
        self.clock.refine(&Anchor::now(self.clock.kind()));
        self.cursors
            .resize(self.rings.ring_count() as usize, Cursor::default());
        (!self.is_last).then(|| now.saturating_sub(self.held_back))
    }

    fn count(&self) -> usize {
        self.cursors.len()
    }

    fn poll(&mut self, lane: usize, chunk: &mut Chunk) -> Result<bool, SourceError> {
        let Some(cursor) = self.cursors.get_mut(lane) else {
            return Ok(false);
        };
        if self.is_consumer && cursor.sequence == 0 && cursor.taken == 0 {
            // A consumer before this one may have given some back.
            let place = &self.rings.ring(lane as u32)[ring::CONSUMED];
            cursor.move_to(place.load(Ordering::Acquire));
        }
        let found = cursor.poll(&self.rings, lane as u32, chunk, self.is_last);
        if self.is_consumer {
            let place = &self.rings.ring(lane as u32)[ring::CONSUMED];
            // Release: the writer may overwrite what we have copied. Pairs with `Writer::open`.
            place.fetch_max(cursor.sequence, Ordering::Release);
        }
        // What the events speak of was described before they were written.
        while let Some(new) = self.rings.next_description(&mut self.table, self.is_last) {
            self.names.add(new);
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

/// Another reader makes room in the rings; there is only one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Busy {
    /// The process of that reader.
    pub process: u32,
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { process } = self;
        write!(
            f,
            "process {process} takes the events out of the rings already"
        )
    }
}

impl std::error::Error for Busy {}
