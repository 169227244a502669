//! Moves events from rings to a recording, while they are written and after their writers were
//! killed.

use std::fs::File;
use std::io::{self, BufReader, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use super::block::Kind;
use super::encode::Encoders;
use super::read::{Block, RecordingLanes};
use super::{CallSum, Info, RecordingWriter};
use crate::clock::Anchor;
use crate::event::Walk;
use crate::live::RingLanes;
use crate::names::{Description, Names};
use crate::ring::{Busy, Chunk, Consumer, Rings};
use crate::schedule::Change;
use crate::source::Lanes;

/// Takes events out of rings and writes them to a recording.
#[derive(Debug)]
pub struct Drain<W> {
    writer: RecordingWriter<W>,
    lanes: RingLanes,
    /// The number of descriptions that were written.
    described: usize,
    chunk: Chunk,
    /// True if nothing is taken from the rings any more.
    is_ended: bool,
    kept_since: Option<u64>,
    /// The number of older events that the rings no longer had, in a snapshot.
    replaced: u64,
    /// The newest readings of the clocks in a snapshot.
    newest: Anchor,
    /// The number of threads that may pack events.
    threads: usize,
    /// These threads, started when many chunks come at once.
    encoders: Option<Encoders>,
}

/// The number of chunks at once for which threads are started.
const MANY: usize = 16;

impl<W: Write> Drain<W> {
    /// Begins a recording of the events in `rings`, and of later ones.
    ///
    /// # Errors
    ///
    /// Fails with an error of `out`, or with [`ResourceBusy`](io::ErrorKind::ResourceBusy) if
    /// another reader takes the events.
    pub fn new(rings: Arc<Rings>, out: W, info: &Info) -> io::Result<Self> {
        let clock = rings.clock();
        let lanes = consume(rings)?;
        let writer = RecordingWriter::new(out, info, &clock)?;
        Ok(Self::resume(lanes, writer))
    }

    /// Writes the current content of the rings, of each thread from `since` on, in ticks of the
    /// clock. The events stay in the rings, and writers and other readers continue. Older events do
    /// not count as lost: see [`kept_since`](Self::kept_since).
    ///
    /// ```
    /// use std::sync::Arc;
    /// use fgraph_trace::event::{Kind, call};
    /// use fgraph_trace::recording::{Drain, Info};
    /// use fgraph_trace::ring::{RingOptions, Rings};
    ///
    /// let rings = Arc::new(Rings::create(&RingOptions::default())?);
    /// let writer = rings.writer(std::process::id(), 1).expect("there are rings enough");
    /// (1..10).for_each(|time| _ = writer.call(call(Kind::Entry, 7), time * 1000));
    /// let drain = Drain::snapshot(rings.clone(), Vec::new(), &Info::of_this_process(), 5000)?;
    /// let recording = drain.finish()?;
    /// # assert!(!recording.is_empty());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with an error of `out`.
    pub fn snapshot(rings: Arc<Rings>, out: W, info: &Info, since: u64) -> io::Result<Self> {
        Self::copied(RingLanes::new(rings, None), out, info, since)
    }

    fn copied(lanes: RingLanes, out: W, info: &Info, since: u64) -> io::Result<Self> {
        let writer = RecordingWriter::new(out, info, lanes.clock())?;
        let mut this = Self::resume(lanes, writer);
        this.is_ended = true;
        this.lanes.refresh();
        for lane in 0..this.lanes.count() {
            // The events and dropped events before the first chunk that is written.
            let mut before = None;
            // Bounded, so that a writer that is faster than the file does not keep us from the
            // other rings.
            for nth in 0..=this.lanes.sub_buffers() {
                let found = this.lanes.poll(lane, &mut this.chunk);
                if !found.map_err(io::Error::other)? {
                    break;
                }
                let chunk = &mut this.chunk;
                if chunk.anchor.ticks > this.newest.ticks {
                    this.newest = chunk.anchor;
                }
                if nth == 0 {
                    this.replaced = this.replaced.saturating_add(chunk.events);
                }
                let is_overwritten = nth == 0 && chunk.events > 0 && chunk.time > since;
                if is_overwritten {
                    this.kept_since = this.kept_since.max(Some(chunk.time));
                }
                if cut_before(chunk, since) {
                    let own_dropped = chunk.own_dropped;
                    let (events, dropped) = *before
                        .get_or_insert((chunk.events, chunk.dropped.saturating_sub(own_dropped)));
                    chunk.events = chunk.events.wrapping_sub(events);
                    chunk.dropped = chunk.dropped.wrapping_sub(dropped);
                    this.describe()?;
                    this.writer.chunk(&this.chunk)?;
                }
            }
        }
        Ok(this)
    }

    /// Returns the time from which on a [snapshot](Self::snapshot) has the events of all threads.
    /// `None` if that is the requested time; otherwise, older events of a thread had already made
    /// room for newer ones.
    #[must_use]
    pub fn kept_since(&self) -> Option<u64> {
        self.kept_since
    }

    /// Writes all that is left in rings whose process has ended, perhaps long ago and elsewhere:
    /// the clocks of this machine are not read. See [`Rings::copy_of`].
    ///
    /// Events for which the rings had no room count as lost only where they are dropped, and not
    /// where newer ones replace them.
    ///
    /// # Errors
    ///
    /// Fails with an error of `out`.
    pub fn remains(rings: Arc<Rings>, out: W, info: &Info) -> io::Result<Self> {
        Self::copied(RingLanes::of_the_past(rings), out, info, 0)
    }

    /// Returns the number of events that had made room for newer ones, or that a reader had taken,
    /// before [`snapshot`](Self::snapshot) or [`remains`](Self::remains) copied the rest.
    #[must_use]
    pub fn replaced(&self) -> u64 {
        self.replaced
    }

    fn resume(lanes: RingLanes, writer: RecordingWriter<W>) -> Self {
        Self {
            writer,
            lanes,
            described: 0,
            chunk: Chunk::default(),
            is_ended: false,
            kept_since: None,
            replaced: 0,
            newest: Anchor::default(),
            threads: 0,
            encoders: None,
        }
    }

    /// Sets the number of threads that pack events, beside the one that drains. They are started
    /// when many chunks come at once. 0 packs everything in the draining thread, which is the
    /// default.
    #[must_use]
    pub fn packed_by(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Writes the sub-buffers that are full, and returns their number. When the rings are
    /// [finished](Rings::finish), it writes everything left.
    ///
    /// An event that was written, or given to a [packing](Self::packed_by) thread, makes room in
    /// its ring.
    ///
    /// # Errors
    ///
    /// Fails with an error of the file, which may be full. The recording is good up to there;
    /// events that were not taken stay in the rings.
    pub fn drain(&mut self) -> io::Result<usize> {
        if self.is_ended {
            return Ok(0);
        }
        let is_last = self.lanes.refresh().1;
        let mut count = 0;
        for lane in 0..self.lanes.count() {
            // Bounded, so that a writer that is faster than the file does not keep us from the
            // other rings.
            for _ in 0..=self.lanes.sub_buffers() {
                if !is_last && !self.lanes.has_whole(lane) {
                    break;
                }
                let found = self.lanes.poll(lane, &mut self.chunk);
                if !found.map_err(io::Error::other)? {
                    break;
                }
                self.describe()?;
                self.put()?;
                self.lanes.written(lane);
                count += 1;
                if count == MANY && self.threads > 0 && self.encoders.is_none() {
                    self.encoders = Some(Encoders::start(self.threads)?);
                }
            }
        }
        while self.write_oldest()? {}
        Ok(count)
    }

    /// Writes the chunk, or passes it to a packing thread.
    fn put(&mut self) -> io::Result<()> {
        if self.encoders.as_ref().is_some_and(Encoders::is_full) {
            self.write_oldest()?;
        }
        match &mut self.encoders {
            Some(encoders) => encoders.give(&mut self.chunk),
            None => self.writer.chunk_of(&mut self.chunk),
        }
    }

    /// Writes the oldest chunk that was passed to packing threads; `false` if there is none.
    fn write_oldest(&mut self) -> io::Result<bool> {
        let Some(encoders) = &mut self.encoders else {
            return Ok(false);
        };
        let Some(oldest) = encoders.take()? else {
            return Ok(false);
        };
        self.writer.encoded(&oldest)?;
        encoders.give_back(oldest);
        Ok(true)
    }

    fn describe(&mut self) -> io::Result<()> {
        let all = self.lanes.names().descriptions();
        let new = all.get(self.described..).unwrap_or(&[]);
        self.writer.describe(new)?;
        self.described = all.len();
        Ok(())
    }

    /// Returns all names described until now.
    #[must_use]
    pub fn names(&self) -> &Names {
        self.lanes.names()
    }

    /// Writes descriptions that the program does not give: [build
    /// ids](crate::names::DescriptionKind::BuildId) and
    /// [sources](crate::names::DescriptionKind::Source).
    ///
    /// # Errors
    ///
    /// Fails like [`drain`](Self::drain).
    pub fn add(&mut self, descriptions: &[Description]) -> io::Result<()> {
        // They refer to earlier descriptions.
        self.describe()?;
        self.writer.describe(descriptions)
    }

    /// Writes news of threads' states, in the order of time for each thread, and the number of
    /// changes that the kernel had no room to report.
    ///
    /// # Errors
    ///
    /// Fails like [`drain`](Self::drain).
    pub fn schedule(&mut self, changes: &[(u32, Change)], lost: u64) -> io::Result<()> {
        self.writer.schedule(changes, lost)
    }

    /// Returns the number of bytes written.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.writer.len()
    }

    /// Returns the number of events written.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.writer.events()
    }

    /// Returns the number of function entries written.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.writer.entries()
    }

    /// Converts ticks to nanoseconds, by the rate of the clock as it is known now.
    #[must_use]
    pub fn clock_nanoseconds(&self, ticks: u64) -> u64 {
        self.lanes.clock().nanoseconds(ticks)
    }

    /// Returns the sum of the calls written, for each process and function.
    pub fn calls(&self) -> impl Iterator<Item = (u32, u32, CallSum)> {
        self.writer.calls()
    }

    /// Returns the fewest ticks between an entry and a return that follows it, among the events
    /// written: about half of the time that recording a call takes.
    #[must_use]
    pub fn shortest_call(&self) -> Option<u64> {
        self.writer.shortest_call()
    }

    /// Returns false: a recording has at least its header.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.writer.is_empty()
    }

    /// Writes the rest of the rings, which must be [finished](Rings::finish). From then on nothing
    /// is taken from the rings, where processes that still run may write more.
    ///
    /// # Errors
    ///
    /// Fails like [`drain`](Self::drain).
    pub fn end(&mut self) -> io::Result<()> {
        // A pass takes all that is in the rings when it begins.
        self.drain()?;
        self.is_ended = true;
        Ok(())
    }

    /// Writes the rest of the rings, which must be [finished](Rings::finish), and ends the
    /// recording.
    ///
    /// # Errors
    ///
    /// Fails like [`drain`](Self::drain).
    pub fn finish(mut self) -> io::Result<W> {
        self.end()?;
        self.describe()?;
        let anchor = match self.lanes.is_past() {
            true => self.newest,
            false => Anchor::now(self.lanes.clock().kind()),
        };
        self.writer.anchor(&anchor)?;
        self.writer.finish()
    }
}

fn consume(rings: Arc<Rings>) -> io::Result<RingLanes> {
    let busy = |busy: Busy| io::Error::new(io::ErrorKind::ResourceBusy, busy);
    let consumer = Consumer::claim(rings.clone()).map_err(busy)?;
    Ok(RingLanes::new(rings, Some(consumer)))
}

/// Completes the recording of a program that was killed, from the file with its rings. The
/// recording then has all events of the rings, and its index. Returns the number of chunks of
/// events that were added.
///
/// It may be repeated. The program must not run any more.
///
/// # Errors
///
/// Fails with an error of the files, or like [`Rings::open`] and
/// [`Recording::open`](super::Recording::open).
pub fn recover(recording: &Path, rings: &Path) -> io::Result<usize> {
    let rings = Arc::new(Rings::open(rings)?);
    rings.abandon();
    rings.finish();
    let mut file = File::options().read(true).write(true).open(recording)?;
    let known = RecordingLanes::open(BufReader::new(&file))?;
    let end = known.end;
    let blocks = known.into_blocks();
    // After the last good block there is half a block, or an index that a longer one will replace.
    file.set_len(end)?;
    file.seek(SeekFrom::Start(end))?;
    let mut writer = RecordingWriter::resume(&file, end, blocks.clone());
    let mut lanes = consume(rings)?;
    lanes.refresh();
    let (mut chunk, mut count, mut described) = (Chunk::default(), 0, 0);
    for lane in 0..lanes.count() {
        let is_of_lane = |block: &&Block| block.kind == Kind::Events && block.ring as usize == lane;
        let of_lane = blocks.iter().filter(is_of_lane);
        let last = of_lane.max_by_key(|block| (block.sequence, block.offset));
        while lanes.poll(lane, &mut chunk).map_err(io::Error::other)? {
            if let Some(last) = last {
                let is_before = chunk.sequence < last.sequence;
                if is_before && !chunk.words.is_empty() {
                    continue;
                }
                if chunk.sequence == last.sequence {
                    let taken = last.offset.saturating_add(last.words);
                    if !skip(&mut chunk, taken) {
                        continue;
                    }
                }
            }
            let all = lanes.names().descriptions();
            writer.describe(&all[described..])?;
            described = all.len();
            writer.chunk(&chunk)?;
            count += 1;
        }
    }
    writer.finish()?;
    file.sync_all()?;
    Ok(count)
}

/// Removes the events of a chunk before a time; `false` if no event is left.
fn cut_before(chunk: &mut Chunk, since: u64) -> bool {
    let mut walk = start_of(chunk);
    while let Some(place) = walk.next(&chunk.words) {
        if place.time >= since {
            return skip(chunk, chunk.offset.saturating_add(place.at as u32));
        }
    }
    // The last dropped events have no words.
    chunk.words.is_empty() && chunk.own_dropped != 0
}

/// Returns the position before the first event of a chunk.
fn start_of(chunk: &Chunk) -> Walk {
    Walk {
        at: 0,
        time: chunk.time,
        cpu: chunk.cpu.map_or(0, |cpu| cpu.wrapping_add(1)),
    }
}

/// Removes the words of a chunk before word `taken` of its sub-buffer; `false` if no word is left.
fn skip(chunk: &mut Chunk, taken: u32) -> bool {
    let count = taken.saturating_sub(chunk.offset) as usize;
    if count == 0 {
        return true;
    }
    if count >= chunk.words.len() {
        // The last dropped events have no words, and may be new.
        return chunk.words.is_empty() && chunk.own_dropped != 0;
    }
    let mut walk = start_of(chunk);
    while walk.next(&chunk.words[..count]).is_some() {
        chunk.events = chunk.events.wrapping_add(1);
    }
    chunk.words.drain(..count);
    (chunk.offset, chunk.own_dropped) = (taken, 0);
    (chunk.time, chunk.cpu) = (walk.time, walk.cpu.checked_sub(1));
    true
}
