//! Readers of rings. A reader copies what is there, and finds out afterwards whether the writer has
//! changed it meanwhile.

use std::fmt;
use std::sync::Arc;

use super::layout::{MORE_SHIFT, at, ring, sub};
use super::wait::tell;
use super::{Mode, Rings};
use crate::clock::Anchor;
use crate::event::Walk;
use crate::primitive::{AtomicU64, Ordering, Step, fence, is_taken};

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
    /// How many of the events in `dropped` were returns and unwound calls, if that is known.
    pub dropped_ends: Option<u64>,
    /// What the clocks showed when the sub-buffer was opened.
    pub anchor: Anchor,
    /// The events, see [`event`](crate::event).
    pub words: Vec<u64>,
}

/// How far a reader has got in a ring.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
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
    pub(crate) fn poll(
        &mut self,
        rings: &Rings,
        index: u32,
        chunk: &mut Chunk,
        is_last: bool,
    ) -> bool {
        chunk.words.clear();
        let header = rings.ring_header(index);
        if header.is_empty() {
            return false;
        }
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
            let Some(buffer) = rings.sub_buffer(index, self.sequence) else {
                return false;
            };
            match self.copy(buffer, chunk, self.sequence + 1 == head) {
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
        let Some(newest) = rings.sub_buffer(index, self.sequence) else {
            return false;
        };
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
            dropped_ends: Some(header[ring::DROPPED_ENDS].load(Ordering::Relaxed)),
            anchor: Anchor::default(),
            words: std::mem::take(&mut chunk.words),
        };
        true
    }

    /// Whether the next sub-buffer has all the events that it will have.
    pub(crate) fn has_whole(&self, rings: &Rings, index: u32) -> bool {
        let head = rings.ring_header(index).get(ring::HEAD);
        // Acquire: as in `poll`.
        head.is_some_and(|head| head.load(Ordering::Acquire) > self.sequence.wrapping_add(1))
    }

    /// Goes on to the next sub-buffer if this one has no more events.
    pub(crate) fn pass_whole(&mut self, rings: &Rings, index: u32) {
        if self.has_whole(rings, index)
            && let Some(buffer) = rings.sub_buffer(index, self.sequence)
            && buffer[sub::USED].load(Ordering::Relaxed) == self.taken
        {
            self.move_to(self.sequence + 1);
        }
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
            sub::DROPPED_ENDS,
        ];
        let [owner, time, events, dropped, own_dropped, dropped_ends] = header.map(load);
        let [ticks, monotonic, realtime] = [0, 1, 2].map(|n| load(sub::ANCHOR + n));
        let cpu = load(sub::CPU);
        // Acquire: if any of what was loaded is of a later sub-buffer, its odd state or a later one
        // is found now. Pairs with the fence in `Writer::open`.
        if is_taken(Step::ReaderFence) {
            fence(Ordering::Acquire);
        }
        if is_taken(Step::LookAgain) && load(sub::STATE) != state {
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
            dropped_ends: Some(dropped_ends),
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

/// The right to make room in rings, which one reader has at a time.
#[derive(Debug)]
pub(crate) struct Consumer(Arc<Rings>);

impl Consumer {
    pub(crate) fn claim(rings: Arc<Rings>) -> Result<Self, Busy> {
        let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        let place = rings.word(at::CONSUMER);
        match place.compare_exchange(0, std::process::id().into(), acquire, relaxed) {
            Ok(_) => Ok(Self(rings)),
            Err(process) => Err(Busy {
                process: process as u32,
            }),
        }
    }

    /// A cursor of a ring, at what no consumer has given back yet.
    pub(crate) fn cursor(&self, index: u32) -> Cursor {
        let consumed = self.0.ring_header(index).get(ring::CONSUMED);
        Cursor {
            // Acquire: what the consumer before has given back it has copied.
            sequence: consumed.map_or(0, |place| place.load(Ordering::Acquire)),
            ..Cursor::default()
        }
    }

    /// Gives back what a cursor of a ring has behind it.
    pub(crate) fn give_back(&self, index: u32, cursor: &Cursor) {
        let header = self.0.ring_header(index);
        if let Some(place) = header.get(ring::CONSUMED) {
            // Release: the writer may overwrite what was copied. Pairs with `Writer::open`.
            let before = place.fetch_max(cursor.sequence, Ordering::Release);
            if before < cursor.sequence && self.0.mode() == Mode::Block {
                let progress = self.0.word(at::PROGRESS);
                tell(progress, &header[ring::WAITING], place);
            }
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        // Release: the next one goes on where this one has given back.
        self.0.word(at::CONSUMER).store(0, Ordering::Release);
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
