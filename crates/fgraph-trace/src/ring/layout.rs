//! The layout of rings in memory.

use std::io;
use std::ops::Range;

use super::Mode;
use crate::clock::{Clock, ClockKind};
use crate::primitive::{AtomicU64, Ordering};

/// `fgraphr4`, read as the bytes of a file.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"fgraphr4");

/// Words of the header of all rings.
pub(super) mod at {
    pub(in super::super) const MAGIC: usize = 0;
    pub(in super::super) const LEN: usize = 1;
    pub(in super::super) const RINGS: usize = 2;
    pub(in super::super) const SUB_BUFFERS: usize = 3;
    pub(in super::super) const SUB_BUFFER_LEN: usize = 4;
    pub(in super::super) const MODE: usize = 5;
    pub(in super::super) const TABLE_LEN: usize = 6;
    pub(in super::super) const CLOCK: usize = 8;
    pub(in super::super) const RATE: usize = 9;
    pub(in super::super) const ANCHOR: usize = 10;
    pub(in super::super) const PROCESS: usize = 13;
    // Words that threads write while they run, in cache lines of their own.
    pub(in super::super) const TAKEN: usize = 32;
    pub(in super::super) const WITHOUT_RING: usize = 40;
    pub(in super::super) const TABLE_USED: usize = 48;
    pub(in super::super) const LOST_DESCRIPTIONS: usize = 49;
    pub(in super::super) const FINISHED: usize = 56;
    pub(in super::super) const CONSUMER: usize = 57;
    pub(in super::super) const TRIGGERS: usize = 58;
    pub(in super::super) const READER: usize = 59;
    /// The number of times that consumers have made room.
    pub(in super::super) const PROGRESS: usize = 60;
    /// The number of calls of [`Rings::next_number`](super::super::Rings::next_number).
    pub(in super::super) const NUMBERS: usize = 61;
    /// Words of the header. The headers of the rings come next.
    pub(in super::super) const HEADER: usize = if cfg!(loom) { 64 } else { 512 };
}

/// Words of the header of one ring.
pub(super) mod ring {
    /// Process and thread of the owner; 0 if there is none.
    pub(in super::super) const OWNER: usize = 0;
    /// The number of sub-buffers opened.
    pub(in super::super) const HEAD: usize = 1;
    /// The number of events dropped.
    pub(in super::super) const DROPPED: usize = 2;
    /// The number of dropped events that were returns and unwound calls.
    pub(in super::super) const DROPPED_ENDS: usize = 3;
    /// Nanoseconds that the writer has waited for room.
    pub(in super::super) const WAITED: usize = 4;
    /// The number of sub-buffers that the consumer has given back, in a cache line of its own.
    pub(in super::super) const CONSUMED: usize = 8;
    /// 1 while the writer waits for room.
    pub(in super::super) const WAITING: usize = 9;
    pub(in super::super) const HEADER: usize = 16;
}

/// Words of the header of a sub-buffer.
pub(super) mod sub {
    /// Odd while the sub-buffer is opened; twice its number plus two afterwards.
    pub(in super::super) const STATE: usize = 0;
    /// Process and thread.
    pub(in super::super) const OWNER: usize = 1;
    /// The clock from which the first event's time counts.
    pub(in super::super) const TIME: usize = 2;
    /// The number of events in the ring's earlier sub-buffers.
    pub(in super::super) const EVENTS: usize = 3;
    /// The number of events of the ring that were dropped before.
    pub(in super::super) const DROPPED: usize = 4;
    /// The number of dropped events that are of this thread and directly precede the sub-buffer.
    pub(in super::super) const OWN_DROPPED: usize = 5;
    /// The clocks when it was opened: ticks, monotonic, real time.
    pub(in super::super) const ANCHOR: usize = 6;
    /// Words of the table that were in use when it was opened.
    pub(in super::super) const TABLE: usize = 9;
    /// The processor on which the thread ran, from 1; 0 if it is unknown.
    pub(in super::super) const CPU: usize = 10;
    /// The number of events in [`DROPPED`] that were returns and unwound calls.
    pub(in super::super) const DROPPED_ENDS: usize = 11;
    /// Words with events (low half), and the number of them that are not the first of their event
    /// (high half). This is the last word of the header, directly before the first event.
    pub(in super::super) const USED: usize = 15;
    pub(in super::super) const HEADER: usize = 16;
}

/// The lowest bit of the high half of [`sub::USED`].
pub(super) const MORE_SHIFT: u32 = 32;

/// The geometry of rings.
///
/// It is exhaustive, since callers write it as a literal: a new field breaks them.
#[derive(Clone, Debug)]
pub struct RingOptions {
    /// The treatment of events for which there is no room.
    pub mode: Mode,
    /// The number of threads that may have a ring at the same time, and a few spare rings: 1 to
    /// 65,536.
    pub rings: u32,
    /// Sub-buffers of a ring: 2 to 4,096.
    pub sub_buffers: u32,
    /// Bytes of a sub-buffer: a multiple of 128 from 256 to 16 MiB.
    pub sub_buffer_bytes: u32,
    /// Bytes for descriptions of functions: a multiple of 4,096, at most 1 GiB.
    pub table_bytes: u32,
    /// The clock; `None` selects the best one of the machine.
    pub clock: Option<ClockKind>,
}

impl RingOptions {
    /// Returns the number of bytes to which the memory or the file of such rings may grow.
    ///
    /// # Errors
    ///
    /// Fails if the geometry is invalid.
    pub fn file_len(&self) -> io::Result<u64> {
        Ok(Geometry::new(self)?.words as u64 * 8)
    }
}

impl Default for RingOptions {
    /// The mode *drop*, 512 rings of 8 sub-buffers with 64 KiB, and 16 MiB of descriptions.
    fn default() -> Self {
        Self {
            mode: Mode::Drop,
            rings: 512,
            sub_buffers: 8,
            sub_buffer_bytes: 64 << 10,
            table_bytes: 16 << 20,
            clock: None,
        }
    }
}

/// Sub-buffers take a multiple of this many words: two cache lines, except in loom's models, which
/// must be small.
const LINE: u64 = if cfg!(loom) { 2 } else { 16 };

/// The most sub-buffers that a ring has.
pub(super) const MAX_SUB_BUFFERS: usize = 4096;

/// Words of the table that are mapped at a time, unless a long table needs longer steps.
const TABLE_STEP: usize = 8 << 10;

/// Words of a page. Each part of the file begins on a page boundary, except in loom's models.
pub(super) const PAGE: usize = if cfg!(loom) { 2 } else { 512 };

/// A part of the memory that is mapped from its start, step by step, as it is used.
#[allow(dead_code, reason = "where nothing can be mapped")]
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// The index of its first word in the memory.
    pub(super) start: usize,
    pub(super) len: usize,
    /// Words before the first step, mapped together with it.
    pub(super) front: usize,
    /// Words that are mapped at a time. There are at most [`Part::STEPS`] steps.
    pub(super) step: usize,
}

#[allow(dead_code, reason = "where nothing can be mapped")]
impl Part {
    /// The most steps that a part has.
    pub(super) const STEPS: usize = MAX_SUB_BUFFERS;

    /// Returns the number of steps for the words up to `end`, at least one.
    pub(super) fn steps(&self, end: usize) -> usize {
        end.saturating_sub(self.front).div_ceil(self.step).max(1)
    }

    /// Returns the number of words in the first `steps`.
    pub(super) fn words(&self, steps: usize) -> usize {
        (self.front + steps * self.step).min(self.len)
    }

    /// Returns the number of words in the whole pages of the first `steps`.
    pub(super) fn mapped(&self, steps: usize) -> usize {
        self.words(steps).next_multiple_of(PAGE)
    }
}

/// The geometry of rings, in words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    pub(super) mode: Mode,
    pub(super) rings: u32,
    pub(super) sub_buffers: u32,
    /// Words of a sub-buffer with its header.
    pub(super) sub_buffer_len: usize,
    pub(super) table_len: usize,
    /// Words of the whole memory.
    pub(super) words: usize,
}

fn invalid(what: &str, value: u64) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{what}: {value}"))
}

impl Geometry {
    pub(super) fn new(options: &RingOptions) -> io::Result<Self> {
        let (sub_buffer, table) = (options.sub_buffer_bytes, options.table_bytes);
        if !sub_buffer.is_multiple_of(8 * LINE as u32) {
            let what = "bytes of a sub-buffer, which must be a multiple of 128";
            return Err(invalid(what, sub_buffer.into()));
        }
        if !table.is_multiple_of(4096) {
            let what = "bytes of descriptions, which must be a multiple of 4096";
            return Err(invalid(what, table.into()));
        }
        let [rings, count] = [options.rings, options.sub_buffers].map(u64::from);
        let [len, table] = [sub_buffer, table].map(|bytes| u64::from(bytes / 8));
        Self::checked(options.mode, rings, count, len, table)
    }

    /// Fails if a value is outside of the bounds of [`RingOptions`].
    fn checked(mode: Mode, rings: u64, count: u64, len: u64, table: u64) -> io::Result<Self> {
        if !(1..=65536).contains(&rings) {
            return Err(invalid("number of rings, which must be 1 to 65536", rings));
        }
        if !(2..=MAX_SUB_BUFFERS as u64).contains(&count) {
            let what = "number of sub-buffers, which must be 2 to 4096";
            return Err(invalid(what, count));
        }
        if !(sub::HEADER as u64 + LINE..=2 << 20).contains(&len) || !len.is_multiple_of(LINE) {
            let what = "words of a sub-buffer, which are 32 to 2097152, a multiple of 16";
            return Err(invalid(what, len));
        }
        if table > 1 << 27 {
            let what = "words of descriptions, which are at most 134217728";
            return Err(invalid(what, table));
        }
        let page = PAGE as u64;
        let headers = (at::HEADER as u64 + rings * ring::HEADER as u64).next_multiple_of(page);
        // At most 2^16 * 2^4 + 2^27 + 2^16 * (2^12 + 2^12 * 2^21), and some pages: no overflow.
        let ring = (count.next_multiple_of(LINE) + count * len).next_multiple_of(page);
        let words = headers + table.next_multiple_of(page) + rings * ring;
        let words = usize::try_from(words)
            .ok()
            .filter(|&words| words < isize::MAX as usize / 8);
        Ok(Self {
            mode,
            rings: rings as u32,
            sub_buffers: count as u32,
            sub_buffer_len: len as usize,
            table_len: table as usize,
            words: words.ok_or_else(|| invalid("number of rings, which is too large", rings))?,
        })
    }

    /// Reads the geometry in a header.
    #[cfg(all(unix, not(miri), not(loom)))]
    pub(super) fn read(header: &[u64; at::HEADER]) -> io::Result<Self> {
        let load = |at: usize| header[at];
        if load(at::MAGIC) != MAGIC {
            return Err(invalid(
                "no rings of version 4; the first word is",
                load(at::MAGIC),
            ));
        }
        let mode = match load(at::MODE) {
            0 => Mode::Drop,
            1 => Mode::Overwrite,
            2 => Mode::Block,
            mode => return Err(invalid("unknown mode", mode)),
        };
        let [rings, count, len, table] = [
            at::RINGS,
            at::SUB_BUFFERS,
            at::SUB_BUFFER_LEN,
            at::TABLE_LEN,
        ]
        .map(load);
        let this = Self::checked(mode, rings, count, len, table)?;
        if this.words as u64 != load(at::LEN) {
            let what = "words in place of those that the rings take";
            return Err(invalid(what, load(at::LEN)));
        }
        Ok(this)
    }

    /// Writes the header of rings that are being made.
    pub(super) fn write(&self, header: &[AtomicU64], clock: &Clock) {
        let first = clock.first();
        for (at, value) in [
            (at::LEN, self.words as u64),
            (at::RINGS, self.rings.into()),
            (at::SUB_BUFFERS, self.sub_buffers.into()),
            (at::SUB_BUFFER_LEN, self.sub_buffer_len as u64),
            (at::MODE, self.mode as u64),
            (at::TABLE_LEN, self.table_len as u64),
            (at::CLOCK, clock.kind() as u64),
            (at::RATE, clock.ticks_per_second()),
            (at::ANCHOR, first.ticks),
            (at::ANCHOR + 1, first.monotonic),
            (at::ANCHOR + 2, first.realtime),
            (at::PROCESS, std::process::id().into()),
        ] {
            header[at].store(value, Ordering::Relaxed);
        }
        // Release: a process that sees the magic sees the rest.
        header[at::MAGIC].store(MAGIC, Ordering::Release);
    }

    /// Returns the number of words at the front that are always mapped: the header and the headers
    /// of the rings.
    pub(super) fn headers(&self) -> usize {
        (at::HEADER + self.rings as usize * ring::HEADER).next_multiple_of(PAGE)
    }

    /// Returns the words of the header of a ring.
    pub(super) fn ring_header(&self, index: u32) -> Range<usize> {
        let start = at::HEADER + index as usize * ring::HEADER;
        match index < self.rings {
            true => start..start + ring::HEADER,
            false => 0..0,
        }
    }

    /// Returns the number of parts: the table and the rings.
    #[allow(dead_code, reason = "where nothing can be mapped")]
    pub(super) fn parts(&self) -> usize {
        1 + self.rings as usize
    }

    /// Returns a part: the table for index 0, otherwise ring `index - 1`.
    pub(super) fn part(&self, index: usize) -> Part {
        let table = self.table_len.next_multiple_of(PAGE);
        let Some(ring) = index.checked_sub(1) else {
            let least = self.table_len.div_ceil(Part::STEPS);
            return Part {
                start: self.headers(),
                len: self.table_len,
                front: 0,
                step: least.max(TABLE_STEP).next_multiple_of(PAGE),
            };
        };
        let front = self.places();
        let len = front + self.sub_buffers as usize * self.sub_buffer_len;
        Part {
            start: self.headers() + table + ring * len.next_multiple_of(PAGE),
            len,
            front,
            step: self.sub_buffer_len,
        }
    }

    /// Returns the number of words at the start of a ring that hold the places of its sub-buffers.
    fn places(&self) -> usize {
        (self.sub_buffers as usize).next_multiple_of(LINE as usize)
    }

    /// Returns the index of the word of a ring that holds the place of a sub-buffer.
    pub(super) fn place(&self, number: u64) -> usize {
        (number % u64::from(self.sub_buffers)) as usize
    }

    /// Returns the words of the sub-buffer at a place, within its ring.
    pub(super) fn sub_buffer(&self, place: usize) -> Range<usize> {
        let start = self.places() + place * self.sub_buffer_len;
        start..start + self.sub_buffer_len
    }

    /// Returns the words of a sub-buffer that hold events.
    pub(super) fn room(&self) -> usize {
        self.sub_buffer_len - sub::HEADER
    }
}
