//! Readers of rings. A reader copies events, and checks afterwards if the writer has changed them
//! meanwhile.

use std::sync::Arc;

use super::layout::{MORE_SHIFT, at, ring, sub};
use super::wait::tell;
use super::{Mode, Rings};
use crate::clock::Anchor;
use crate::event::Walk;
use crate::primitive::{AtomicU64, Ordering, Step, fence, is_taken};

/// Consecutive events of one thread, in words as in a sub-buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Chunk {
    /// The index of the ring.
    pub ring: u32,
    /// The number of the ring's sub-buffer, from 0.
    pub sequence: u64,
    /// The number of earlier words of the sub-buffer.
    pub offset: u32,
    /// The process of the thread.
    pub process: u32,
    /// The thread.
    pub thread: u32,
    /// The clock from which the first event's time counts.
    pub time: u64,
    /// The processor on which the thread ran; `None` if it is unknown.
    pub cpu: Option<u32>,
    /// Events that were written to the ring before these.
    pub events: u64,
    /// Events of the ring that were dropped before these.
    pub dropped: u64,
    /// Dropped events of this thread that directly precede these events.
    pub own_dropped: u64,
    /// The number of events in `dropped` that were returns and unwound calls, if it is known.
    pub dropped_ends: Option<u64>,
    /// The clocks when the sub-buffer was opened.
    pub anchor: Anchor,
    /// The events, see [`event`](crate::event).
    pub words: Vec<u64>,
}

/// The position of a reader in a ring.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    /// The next sub-buffer.
    sequence: u64,
    /// The words of it that were taken, encoded like [`sub::USED`].
    taken: u64,
    /// The clock and the processor after those words.
    walk: Walk,
    /// Events of the ring that were dropped before this position.
    dropped: u64,
    /// True if the last dropped events were reported.
    is_over: bool,
}

/// The result of copying a sub-buffer.
#[derive(Debug, PartialEq, Eq)]
enum Copied {
    /// New words were copied.
    Words,
    /// The sub-buffer has no new words.
    Nothing,
    /// The place has another sub-buffer by now.
    Gone,
}

impl Cursor {
    /// Takes the next events of a ring; `false` if there are none now. `is_last` says that no more
    /// are written.
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
        // A writer that overwrites may be faster than this loop: then the call returns nothing.
        for _ in 0..2 * count {
            // Acquire: all sub-buffers before the newest are complete.
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
        // The events that were dropped last, after the newest sub-buffer.
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

    /// Returns true if the next sub-buffer has all the events that it will have.
    pub(crate) fn has_whole(&self, rings: &Rings, index: u32) -> bool {
        let head = rings.ring_header(index).get(ring::HEAD);
        // Acquire: all sub-buffers before the newest are complete.
        head.is_some_and(|head| head.load(Ordering::Acquire) > self.sequence.wrapping_add(1))
    }

    /// Moves to the next sub-buffer if this one has no more events.
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
        // Acquire: the header is written before the state.
        if buffer[sub::STATE].load(Ordering::Acquire) != state {
            return Copied::Gone;
        }
        // Acquire: the words are written before the length. Pairs with `Writer::call`.
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
        // Acquire: if any of the loaded words is of a later sub-buffer, the next load finds its odd
        // state or a later one. Pairs with the fence in `Writer::open`.
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

/// The right to make room in rings. One reader has it at a time.
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

    /// Returns a cursor of a ring, after the sub-buffers that consumers have given back.
    pub(crate) fn cursor(&self, index: u32) -> Cursor {
        let consumed = self.0.ring_header(index).get(ring::CONSUMED);
        Cursor {
            // Acquire: the previous consumer has copied the sub-buffers that it gave back.
            sequence: consumed.map_or(0, |place| place.load(Ordering::Acquire)),
            ..Cursor::default()
        }
    }

    /// Gives back the sub-buffers before a cursor of a ring.
    pub(crate) fn give_back(&self, index: u32, cursor: &Cursor) {
        let header = self.0.ring_header(index);
        if let Some(place) = header.get(ring::CONSUMED) {
            // Release: the writer may overwrite the copied words. Pairs with `Writer::open`.
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
        // Release: the next consumer continues where this one has given back.
        self.0.word(at::CONSUMER).store(0, Ordering::Release);
    }
}

/// The error that another reader makes room in the rings. Only one may at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("process {process} takes the events out of the rings already")]
#[non_exhaustive]
pub struct Busy {
    /// The process of that reader.
    pub process: u32,
}
