//! Rings of events in memory that several threads and processes share.
//!
//! Each thread that writes has a ring to itself, which is divided into sub-buffers. There is one
//! writer of a ring at a time and any number of readers. But in the mode *block* the writer never
//! waits, and never makes a system call but to find out whether the thread is gone that a ring
//! belonged to.
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
//! The table and each ring begin with a page. A process maps the headers, and of the other parts as
//! much as it uses: a ring when a thread opens its first sub-buffer, and more with each further
//! one. So unused parts are not in core files, and `mlockall` does not fill them.
//!
//! # Protocol
//!
//! The writer opens sub-buffers one after the other; `places` has where each one is. It makes the
//! sub-buffer's state odd, writes its header, and makes the state even: a reader that finds the
//! same even state before and after it has copied has copied one sub-buffer, as in a seqlock. The
//! words of an event come before the new length of the sub-buffer, which is stored with release; so
//! a reader that has loaded the length with acquire finds whole events up to there.
//!
//! In the modes *drop* and *block*, a sub-buffer is opened only at a place that never had one, or
//! whose one the consumer has given back; `wait` has how a writer waits for that. In the mode
//! *overwrite*, the oldest one goes.
//!
//! # Losses
//!
//! A sub-buffer's header says how many events the ring had before it, and how many were dropped. A
//! reader that knows how many it has seen knows how many are missing, and where.

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

/// What becomes of events for which there is no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Mode {
    /// They are dropped, until a reader has made room.
    #[default]
    Drop = 0,
    /// They take the place of the oldest ones.
    Overwrite = 1,
    /// The thread sleeps until a reader has made room, where a [`Writer`] is asked to
    /// [wait](Writer::wait); elsewhere they are dropped. The reader must be in another
    /// process. Where it makes no progress for two seconds, or is gone, events are dropped until it
    /// goes on.
    Block = 2,
}

/// The rings of a recording, and the table that says what their events mean.
///
/// The memory may be shared with other processes, which may write what they like: whatever is
/// there, reading is safe and ends.
#[derive(Debug)]
pub struct Rings {
    memory: Memory,
    geometry: Geometry,
}

/// What was written to a ring. While its thread writes, the numbers may be those of different
/// moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RingCounts {
    /// The process of the thread that has the ring, or had it last; 0 if it was given back.
    pub process: u32,
    /// The thread.
    pub thread: u32,
    /// Events that were written to it, also by threads that had it before.
    pub written: u64,
    /// Events for which it had no room.
    pub dropped: u64,
}

impl Rings {
    /// New rings in memory of their own, which children of the process share. On other systems than
    /// Linux nobody shares it.
    ///
    /// The memory is there when it is written to, so rings that no thread uses take none.
    ///
    /// # Errors
    ///
    /// If there is no such memory, or no such geometry.
    pub fn create(options: &RingOptions) -> io::Result<Self> {
        let geometry = Geometry::new(options)?;
        let memory = Memory::new(&geometry)?;
        Ok(Self::start(memory, geometry, options))
    }

    /// New rings in a file, which any process may read with [`open`](Self::open), and which stays
    /// when this process is killed. A file that is there is replaced.
    ///
    /// All of the file's room on the disk is taken at once, so that no write of an event can fail.
    ///
    /// # Errors
    ///
    /// If the file cannot be made that long, or there is no such geometry.
    pub fn create_file(path: &Path, options: &RingOptions) -> io::Result<Self> {
        let geometry = Geometry::new(options)?;
        let memory = Memory::new_file(path, &geometry)?;
        Ok(Self::start(memory, geometry, options))
    }

    /// New rings in memory that other processes map through the file which comes with them: a child
    /// that inherits it, or one that gets it through a socket. It has no path, and is closed when
    /// the process executes another program; readers and writers need it only for
    /// [`open_shared`](Self::open_shared).
    ///
    /// What is in it stays for as long as a process has it mapped or open. Nobody can change its
    /// length.
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
    /// # Errors
    ///
    /// If there is no such memory, or no such geometry, or this process may not have
    /// [so long](RingOptions::file_len) a file; on other systems than Linux always.
    pub fn create_shared(options: &RingOptions) -> io::Result<(Self, File)> {
        let geometry = Geometry::new(options)?;
        let (memory, file) = Memory::new_shared(&geometry)?;
        Ok((Self::start(memory, geometry, options), file))
    }

    /// The rings that another process has made by [`create_shared`](Self::create_shared).
    ///
    /// That process may be hostile: what it writes harms nobody who reads, and it cannot take the
    /// memory away.
    ///
    /// # Errors
    ///
    /// [`InvalidData`](io::ErrorKind::InvalidData) if the file may become shorter, or has no rings
    /// or those of a version that this one does not know; others where the file cannot be mapped.
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

    /// The rings in a file that another process, or an earlier one, has made.
    ///
    /// # Errors
    ///
    /// [`InvalidData`](io::ErrorKind::InvalidData) if these are no rings, or of a version that this
    /// one does not know; others where the file cannot be mapped.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::map(&File::options().read(true).write(true).open(path)?)
    }

    /// As [`open`](Self::open), of a file that is open for reading and writing. It must keep its
    /// length: who reads behind its end is killed by the system.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn map(file: &File) -> io::Result<Self> {
        let (memory, geometry) = Memory::map(file)?;
        Ok(Self { memory, geometry })
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.memory.headers()[at]
    }

    /// The header of a ring; no words if there is no such ring.
    fn ring_header(&self, index: u32) -> &[AtomicU64] {
        &self.memory.headers()[self.geometry.ring_header(index)]
    }

    /// The words of the table, up to `end` at least; `None` if it has fewer, or they cannot be
    /// mapped. Neither allocates nor locks.
    fn table(&self, end: usize) -> Option<&[AtomicU64]> {
        self.memory.part(0, &self.geometry.part(0), end)
    }

    /// The clock of the events, with the rate that is known now.
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

    /// What becomes of events for which there is no room.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.geometry.mode
    }

    /// Sub-buffers of each ring.
    pub(crate) fn sub_buffers(&self) -> u32 {
        self.geometry.sub_buffers
    }

    /// Takes the right to make room from a reader that is gone.
    pub(crate) fn abandon(&self) {
        self.word(at::CONSUMER).store(0, Ordering::Relaxed);
    }

    /// How many rings there are.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.geometry.rings
    }

    /// How many rings threads have had so far.
    #[must_use]
    pub fn ring_count(&self) -> u32 {
        let taken = self.word(at::TAKEN).load(Ordering::Acquire);
        taken.min(self.geometry.rings.into()) as u32
    }

    /// What was written to each ring so far, in the order in which threads first took them.
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

    /// Events of threads that got no ring, because there is none left.
    #[must_use]
    pub fn events_without_ring(&self) -> u64 {
        self.word(at::WITHOUT_RING).load(Ordering::Relaxed)
    }

    /// Descriptions that the table had no room for.
    #[must_use]
    pub fn lost_descriptions(&self) -> u64 {
        self.word(at::LOST_DESCRIPTIONS).load(Ordering::Relaxed)
    }

    /// Has writers of this process make no system calls for their rings from now on, but for what
    /// a thread makes that takes one. None waits, also in the mode [block](Mode::Block), and rings
    /// are mapped up to their limit: those in use now, each other one when a thread takes it.
    ///
    /// For a program that is about to forbid itself system calls. Neither allocates nor locks.
    pub fn make_no_calls(&self) {
        if !is_waiting_forbidden() {
            never_wait();
            self.memory.map_rest();
        }
    }

    /// Says that no more events come: readers end when they have seen all.
    pub fn finish(&self) {
        // Release: whoever sees it sees all events that were written before.
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

    /// How long threads have waited for room, all together: see [`Mode::Block`].
    #[must_use]
    pub fn waited(&self) -> Duration {
        let of = |index| {
            let place = self.ring_header(index).get(ring::WAITED);
            place.map_or(0, |place| place.load(Ordering::Relaxed))
        };
        Duration::from_nanos((0..self.ring_count()).map(of).fold(0, u64::wrapping_add))
    }

    /// Tells readers that something has happened which they wait for. Neither allocates nor locks.
    pub fn trigger(&self) {
        // Release: whoever sees it finds the events that were written before.
        self.word(at::TRIGGERS).fetch_add(1, Ordering::Release);
    }

    /// How often [`trigger`](Self::trigger) was called.
    #[must_use]
    pub fn triggers(&self) -> u64 {
        self.word(at::TRIGGERS).load(Ordering::Acquire)
    }

    /// Whether no more events come.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.word(at::FINISHED).load(Ordering::Acquire) != 0
    }

    /// The process that has made the rings.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.word(at::PROCESS).load(Ordering::Relaxed) as u32
    }
}
