//! Rings of events in memory that several threads and processes share.
//!
//! Each writing thread has its own ring, divided into sub-buffers. A ring has one writer at a time
//! and any number of readers. Except in the mode *block*, the writer never waits, and makes a
//! system call only to find out if the previous owner of a ring is gone.
//!
//! ```text
//!   words of 64 bits
//!   +0        header       geometry, clock, counters: see `layout`
//!   +512      ring headers 16 words for each ring
//!   then      table        descriptions of functions, modules, threads and processes
//!   then      ring 0       the places of its sub-buffers, and these
//!   then      ring 1       ...
//! ```
//!
//! The table and each ring begin on a page boundary. A process maps the headers, and other parts as
//! it uses them: a ring when a thread opens its first sub-buffer, and more with each further
//! sub-buffer. So unused parts are not in core files, and `mlockall` does not fill them.
//!
//! # Protocol
//!
//! The writer opens one sub-buffer after the other; `places` describes where each is.
//!
//! 1. The writer makes the sub-buffer's state odd, writes its header, and makes the state even. As
//!    in a seqlock, a reader that finds the same even state before and after copying has copied one
//!    sub-buffer.
//! 2. The writer stores the words of an event, then the new length of the sub-buffer with release.
//!    A reader that has loaded the length with acquire finds whole events up to there.
//!
//! In the modes *drop* and *block*, a sub-buffer is opened only at a place that was never used, or
//! that the consumer has given back; `wait` describes how a writer waits for that. In the mode
//! *overwrite*, the new sub-buffer replaces the oldest one.
//!
//! # Losses
//!
//! A sub-buffer's header has the number of events that the ring had before it, and the number that
//! were dropped. A reader that counts the events it has seen knows how many are missing, and where.

#[cfg(all(unix, not(miri), not(loom)))]
mod copied;
mod layout;
mod memory;
mod places;
mod read;
mod reader;
mod table;
mod wait;
mod write;

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

pub use layout::RingOptions;
pub use read::{Busy, Chunk};
pub(crate) use read::{Consumer, Cursor};
pub(crate) use table::TableCursor;
pub use write::{Extras, ThreadWriter, Writer};

use crate::clock::{Anchor, Clock, ClockKind};
use crate::primitive::{AtomicU64, Ordering};
use layout::{Geometry, MORE_SHIFT, at, ring, sub};
use memory::Memory;
use wait::{is_waiting_forbidden, never_wait};

/// The treatment of events for which there is no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Mode {
    /// They are dropped until a reader has made room.
    #[default]
    Drop = 0,
    /// They replace the oldest events.
    Overwrite = 1,
    /// The thread sleeps until a reader has made room, if its [`Writer`] is asked to
    /// [wait](Writer::wait); otherwise events are dropped. The reader must be in another process.
    /// If the reader makes no progress for two seconds, or has ended, events are dropped until it
    /// makes progress again.
    Block = 2,
}

/// The rings of a recording, and the table with the names for the numbers in their events.
///
/// Other processes may share the memory and write anything to it: reading is safe and ends,
/// whatever is there.
#[derive(Debug)]
pub struct Rings {
    memory: Memory,
    geometry: Geometry,
}

/// Counts of the events written to a ring. While its thread writes, the numbers may be from
/// different moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RingCounts {
    /// The process of the thread that owns the ring, or owned it last; 0 if it was given back.
    pub process: u32,
    /// The thread that owns the ring, or owned it last.
    pub thread: u32,
    /// Events that were written to the ring, including those of earlier owners.
    pub written: u64,
    /// Events for which the ring had no room.
    pub dropped: u64,
}

impl Rings {
    /// Makes new rings in their own memory, which children of the process share. On systems other
    /// than Linux no process shares it.
    ///
    /// Memory is allocated when it is written to, so rings that no thread uses take none.
    ///
    /// # Errors
    ///
    /// Fails if the memory cannot be mapped, or the geometry is invalid.
    pub fn create(options: &RingOptions) -> io::Result<Self> {
        let geometry = Geometry::new(options)?;
        let memory = Memory::new(&geometry)?;
        Ok(Self::start(memory, geometry, options))
    }

    /// Makes new rings in a file, which any process may read with [`open`](Self::open), and which
    /// stays when this process is killed. An existing file is replaced.
    ///
    /// All of the file's space on the disk is allocated at once, so that no write of an event can
    /// fail.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be made that long, or the geometry is invalid.
    pub fn create_file(path: &Path, options: &RingOptions) -> io::Result<Self> {
        let geometry = Geometry::new(options)?;
        let memory = Memory::new_file(path, &geometry)?;
        Ok(Self::start(memory, geometry, options))
    }

    /// Makes new rings in memory that other processes map through the returned file: a child that
    /// inherits the file, or a process that gets it through a socket. The file has no path, and is
    /// closed when the process executes another program. Readers and writers need it only for
    /// [`open_shared`](Self::open_shared).
    ///
    /// The content stays for as long as a process has the file mapped or open. No process can
    /// change its length.
    ///
    /// ```
    /// use fgraph_trace::ring::{RingOptions, Rings};
    ///
    /// # if cfg!(not(miri)) {
    /// let (rings, file) = Rings::create_shared(&RingOptions::default())?;
    /// // Elsewhere, with the file:
    /// let same = Rings::open_shared(&file)?;
    /// rings.finish();
    /// assert!(same.is_finished());
    /// # }
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// Fails if there is no such memory, if the geometry is invalid, or if this process may not
    /// have a file of [this length](RingOptions::file_len). On systems other than Linux it always
    /// fails.
    pub fn create_shared(options: &RingOptions) -> io::Result<(Self, File)> {
        let geometry = Geometry::new(options)?;
        let (memory, file) = Memory::new_shared(&geometry)?;
        Ok((Self::start(memory, geometry, options), file))
    }

    /// Opens the rings that another process has made with [`create_shared`](Self::create_shared).
    ///
    /// That process may be hostile: nothing that it writes can harm a reader, and it cannot take
    /// the memory away.
    ///
    /// # Errors
    ///
    /// Fails with [`InvalidData`](io::ErrorKind::InvalidData) if the file may become shorter, has
    /// no rings, or has rings of an unknown version; with other errors if the file cannot be
    /// mapped.
    pub fn open_shared(file: &File) -> io::Result<Self> {
        let (memory, geometry) = Memory::map_shared(file)?;
        Ok(Self { memory, geometry })
    }

    fn start(memory: Memory, geometry: Geometry, options: &RingOptions) -> Self {
        let this = Self { memory, geometry };
        let kind = options.clock.unwrap_or_else(ClockKind::of_this_machine);
        geometry.write(&this.memory.headers()[..at::HEADER], &Clock::start(kind));
        this
    }

    /// Opens the rings in a file that another process has made, or an earlier one.
    ///
    /// # Errors
    ///
    /// Fails with [`InvalidData`](io::ErrorKind::InvalidData) if the file has no rings, or rings of
    /// an unknown version; with other errors if the file cannot be mapped.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::map(&File::options().read(true).write(true).open(path)?)
    }

    /// Opens rings like [`open`](Self::open), from a file that is open for reading and writing. The
    /// file must keep its length: the system kills a process that reads beyond its end.
    ///
    /// # Errors
    ///
    /// Fails like [`open`](Self::open).
    pub fn map(file: &File) -> io::Result<Self> {
        let (memory, geometry) = Memory::map(file)?;
        Ok(Self { memory, geometry })
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.memory.headers()[at]
    }

    /// Returns the header of a ring; no words if there is no such ring.
    fn ring_header(&self, index: u32) -> &[AtomicU64] {
        &self.memory.headers()[self.geometry.ring_header(index)]
    }

    /// Returns the words of the table, at least up to `end`; `None` if it has fewer, or they cannot
    /// be mapped. Neither allocates nor locks.
    fn table(&self, end: usize) -> Option<&[AtomicU64]> {
        self.memory.part(0, &self.geometry.part(0), end)
    }

    /// Returns the clock of the events, with the rate as it is known now.
    #[must_use]
    pub fn clock(&self) -> Clock {
        let load = |at| self.word(at).load(Ordering::Relaxed);
        let kind = ClockKind::from_bits(load(at::CLOCK)).unwrap_or(ClockKind::Monotonic);
        let first = Anchor {
            ticks: load(at::ANCHOR),
            monotonic: load(at::ANCHOR + 1),
            realtime: load(at::ANCHOR + 2),
        };
        Clock::new(kind, first, load(at::RATE))
    }

    /// Returns the treatment of events for which there is no room.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.geometry.mode
    }

    /// Returns the number of sub-buffers of each ring.
    pub(crate) fn sub_buffers(&self) -> u32 {
        self.geometry.sub_buffers
    }

    /// Takes the right to make room away from a reader that has ended.
    pub(crate) fn abandon(&self) {
        self.word(at::CONSUMER).store(0, Ordering::Relaxed);
    }

    /// Returns the number of rings.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.geometry.rings
    }

    /// Returns the number of rings that threads have used until now.
    #[must_use]
    pub fn ring_count(&self) -> u32 {
        let taken = self.word(at::TAKEN).load(Ordering::Acquire);
        taken.min(self.geometry.rings.into()) as u32
    }

    /// Returns the counts of each ring, in the order in which threads first took them.
    pub fn counts(&self) -> impl Iterator<Item = RingCounts> {
        (0..self.ring_count()).filter_map(|index| self.counts_of(index))
    }

    fn counts_of(&self, index: u32) -> Option<RingCounts> {
        let words = self.ring_header(index);
        let load = |at: usize| Some(words.get(at)?.load(Ordering::Relaxed));
        let owner = load(ring::OWNER)?;
        let written = match load(ring::HEAD)?.checked_sub(1) {
            None => 0,
            Some(newest) => {
                let newest = self.sub_buffer(index, newest)?;
                let used = newest[sub::USED].load(Ordering::Relaxed);
                let found = u64::from(used as u32).wrapping_sub(used >> MORE_SHIFT);
                let before = newest[sub::EVENTS].load(Ordering::Relaxed);
                before.wrapping_add(found)
            }
        };
        Some(RingCounts {
            process: (owner >> 32) as u32,
            thread: owner as u32,
            written,
            dropped: load(ring::DROPPED)?,
        })
    }

    /// Returns the time at which the newest sub-buffer was opened, in ticks; 0 if there is none.
    #[must_use]
    pub fn newest_sub_buffer(&self) -> u64 {
        let of = |index| {
            let head = self.ring_header(index).get(ring::HEAD)?;
            let newest = head.load(Ordering::Acquire).checked_sub(1)?;
            let newest = self.sub_buffer(index, newest)?;
            Some(newest[sub::TIME].load(Ordering::Relaxed))
        };
        (0..self.ring_count()).filter_map(of).max().unwrap_or(0)
    }

    /// Returns the number of events of threads that got no ring, because none was free.
    #[must_use]
    pub fn events_without_ring(&self) -> u64 {
        self.word(at::WITHOUT_RING).load(Ordering::Relaxed)
    }

    /// Returns the number of descriptions for which the table had no room.
    #[must_use]
    pub fn lost_descriptions(&self) -> u64 {
        self.word(at::LOST_DESCRIPTIONS).load(Ordering::Relaxed)
    }

    /// Stops writers of this process from making system calls for their rings from now on, except
    /// when a thread takes a ring. No writer waits, even in the mode [block](Mode::Block), and
    /// rings are mapped up to their limit: those in use now, each other one when a thread takes it.
    ///
    /// Meant for a program that is about to forbid itself system calls. Neither allocates nor
    /// locks.
    pub fn make_no_calls(&self) {
        if !is_waiting_forbidden() {
            never_wait();
            self.memory.map_rest();
        }
    }

    /// Marks the rings as finished: no more events come, and readers end when they have seen all.
    pub fn finish(&self) {
        // Release: a reader that sees it sees all events that were written before.
        self.word(at::FINISHED).store(1, Ordering::Release);
        for index in 0..self.ring_count() {
            let ring = self.ring_header(index);
            if let (Some(waiting), Some(consumed)) =
                (ring.get(ring::WAITING), ring.get(ring::CONSUMED))
            {
                wait::wake(waiting, consumed);
            }
        }
    }

    /// Returns the sum of the times that threads have waited for room: see [`Mode::Block`].
    #[must_use]
    pub fn waited(&self) -> Duration {
        let of = |index| {
            let place = self.ring_header(index).get(ring::WAITED);
            place.map_or(0, |place| place.load(Ordering::Relaxed))
        };
        Duration::from_nanos((0..self.ring_count()).map(of).fold(0, u64::wrapping_add))
    }

    /// Signals to readers that an event they wait for has happened. Neither allocates nor locks.
    pub fn trigger(&self) {
        // Release: a reader that sees it finds the events that were written before.
        self.word(at::TRIGGERS).fetch_add(1, Ordering::Release);
    }

    /// Returns the number of calls of [`trigger`](Self::trigger).
    #[must_use]
    pub fn triggers(&self) -> u64 {
        self.word(at::TRIGGERS).load(Ordering::Acquire)
    }

    /// Returns true if no more events come.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.word(at::FINISHED).load(Ordering::Acquire) != 0
    }

    /// Returns the process that has made the rings.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.word(at::PROCESS).load(Ordering::Relaxed) as u32
    }
}
