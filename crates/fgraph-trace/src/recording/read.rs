//! Reads a recording.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::ops::{Range, RangeInclusive};
use std::path::Path;

use super::ahead::{Ahead, Unpacked};
use super::block::{self, Header, Kind, Unpacker, pull, pull_text, push, push_text};
use super::{HEADER, MAGIC, VERSION, columns, schedule};
use crate::clock::{Anchor, Clock, ClockKind};
use crate::names::{Description, DescriptionKind, Names};
use crate::ring::Chunk;
use crate::schedule::{CHANGE, Schedule};
use crate::source::{Lanes, Merge, SourceError};

/// Describes the origin of a recording.
///
/// It is exhaustive, since callers write it as a literal: a new field breaks them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// The first recorded process.
    pub process: u32,
    /// The name of the machine.
    pub host: String,
    /// The command line of the process.
    pub command: Vec<String>,
    /// The operating system and the architecture.
    pub system: String,
    /// The environment with which the process was started, as `NAME=value`; empty unless recording
    /// it was requested.
    pub environment: Vec<String>,
}

impl Info {
    /// Describes this process.
    #[must_use]
    pub fn of_this_process() -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname");
        let (system, architecture) = (std::env::consts::OS, std::env::consts::ARCH);
        Self {
            process: std::process::id(),
            host: host.map_or_else(|_| String::new(), |host| host.trim_end().to_owned()),
            command: std::env::args_os()
                .map(|arg| arg.to_string_lossy().into_owned())
                .collect(),
            system: format!("{system} {architecture}"),
            environment: Vec::new(),
        }
    }

    pub(super) fn push(&self, clock: &Clock, out: &mut Vec<u8>) {
        let first = clock.first();
        for number in [
            clock.kind() as u64,
            clock.ticks_per_second(),
            first.ticks,
            first.monotonic,
            first.realtime,
            self.process.into(),
        ] {
            push(out, number);
        }
        push_text(out, &self.host);
        push_text(out, &self.system);
        for texts in [&self.command, &self.environment] {
            push(out, texts.len() as u64);
            texts.iter().for_each(|text| push_text(out, text));
        }
    }

    fn pull(mut body: &[u8], budget: &mut Budget) -> Option<(Self, Clock)> {
        let body = &mut body;
        let kind = ClockKind::from_bits(pull(body)?)?;
        let rate = pull(body)?;
        let first = pull_anchor(body)?;
        let process = pull(body)? as u32;
        let [host, system] = [pull_text(body)?, pull_text(body)?];
        let mut texts = || {
            let count = pull(body)?;
            let text = |_| {
                let text = pull_text(body)?;
                budget.take(size_of::<String>() + text.len())?;
                Some(text)
            };
            (0..count).map(text).collect()
        };
        let command: Option<Vec<String>> = texts();
        let info = Self {
            process,
            host,
            command: command?,
            system,
            // Earlier versions wrote no environment.
            environment: texts().unwrap_or_default(),
        };
        Some((info, Clock::new(kind, first, rate)))
    }
}

fn pull_anchor(body: &mut &[u8]) -> Option<Anchor> {
    Some(Anchor {
        ticks: pull(body)?,
        monotonic: pull(body)?,
        realtime: pull(body)?,
    })
}

fn pull_description(body: &mut &[u8]) -> Option<Option<Description>> {
    let kind = DescriptionKind::from_bits(u8::try_from(pull(body)?).ok()?);
    let fields = [pull(body)?, pull(body)?, pull(body)?, pull(body)?];
    let texts = [pull_text(body)?, pull_text(body)?];
    Some(kind.map(|kind| Description {
        kind,
        fields,
        texts,
    }))
}

/// The memory, in bytes, that the content of a file may still take.
#[derive(Clone, Copy, Debug)]
struct Budget(u64);

impl Budget {
    /// Returns the budget for a file with `len` bytes. Names pack to a tenth, and take twice their
    /// length in memory.
    fn of(len: u64) -> Self {
        Self((24 << 20) + len.saturating_mul(64))
    }

    /// Takes bytes from the budget; `None` if fewer are left.
    fn take(&mut self, bytes: usize) -> Option<()> {
        self.0 = self.0.checked_sub(bytes as u64)?;
        Some(())
    }
}

/// Estimated bytes of a description, excluding its texts and including its entry in the maps of
/// names.
const DESCRIPTION: usize = 512;

/// Estimates the memory of a description: each text is kept twice, and a layout of types is built
/// from it.
fn memory_of(description: &Description) -> usize {
    let each = match description.kind {
        DescriptionKind::Types => 64,
        _ => 2,
    };
    let texts = description.texts.iter().map(String::len).sum::<usize>();
    DESCRIPTION + each * texts
}

/// The index entry of a block. Only blocks of events have the fields after the first two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) kind: Kind,
    /// The offset in the file.
    at: u64,
    /// The largest possible offset of its end: blocks do not overlap.
    end: u64,
    pub(super) ring: u32,
    pub(super) sequence: u64,
    pub(super) offset: u32,
    pub(super) words: u32,
    process: u32,
    thread: u32,
    time: u64,
    /// The number of events of the ring up to the block's end, as far as it is known.
    pub(super) events: u64,
    dropped: u64,
}

impl Block {
    pub(super) fn of(kind: Kind, at: u64) -> Self {
        Self {
            kind,
            at,
            end: u64::MAX,
            ring: 0,
            sequence: 0,
            offset: 0,
            words: 0,
            process: 0,
            thread: 0,
            time: 0,
            events: 0,
            dropped: 0,
        }
    }

    /// Notes the chunk's head and its number of words.
    pub(super) fn note(&mut self, chunk: &Chunk, words: usize) {
        (self.ring, self.sequence, self.offset) = (chunk.ring, chunk.sequence, chunk.offset);
        self.words = u32::try_from(words).unwrap_or(u32::MAX);
        (self.process, self.thread, self.time) = (chunk.process, chunk.thread, chunk.time);
        (self.events, self.dropped) = (chunk.events, chunk.dropped);
    }

    /// Replaces the events of a damaged block: no words, and the number of events that there were.
    fn in_place(&self, chunk: &mut Chunk) {
        chunk.words.clear();
        *chunk = Chunk {
            ring: self.ring,
            sequence: self.sequence,
            offset: self.offset,
            process: self.process,
            thread: self.thread,
            time: self.time,
            events: self.events,
            dropped: self.dropped,
            words: std::mem::take(&mut chunk.words),
            ..Chunk::default()
        };
    }

    pub(super) fn push(&self, out: &mut Vec<u8>) {
        push(out, self.kind as u64);
        push(out, self.at);
        if self.kind != Kind::Events {
            return;
        }
        let [ring, offset, words] = [self.ring, self.offset, self.words].map(u64::from);
        let [process, thread] = [self.process, self.thread].map(u64::from);
        for number in [ring, self.sequence, offset, words, process, thread] {
            push(out, number);
        }
        for number in [self.time, self.events, self.dropped] {
            push(out, number);
        }
    }

    fn pull(body: &mut &[u8]) -> Option<Self> {
        let kind = Kind::from_bits(u8::try_from(pull(body)?).ok()?)?;
        let mut block = Self::of(kind, pull(body)?);
        if kind == Kind::Events {
            block.ring = u32::try_from(pull(body)?).ok()?;
            block.sequence = pull(body)?;
            for place in [
                &mut block.offset,
                &mut block.words,
                &mut block.process,
                &mut block.thread,
            ] {
                *place = u32::try_from(pull(body)?).ok()?;
            }
            for place in [&mut block.time, &mut block.events, &mut block.dropped] {
                *place = pull(body)?;
            }
        }
        Some(block)
    }
}

/// A range of bytes of a recording that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// The range of offsets in the file.
    pub range: Range<u64>,
}

/// A recording; its events are read when they are taken.
///
/// It keeps the names in memory, one chunk of events for each thread that had a ring, and the
/// places of the blocks: 80 bytes for each sub-buffer. A thread unpacks chunks of a large recording
/// before they are needed, at most 32 MiB of them.
///
/// A file may come from an untrusted source: reading it takes time and memory in proportion to its
/// length and to the number of events that are taken.
pub type Recording<R = BufReader<File>> = Merge<RecordingLanes<R>>;

impl Recording {
    /// Opens a recording, even one that is being written or whose writer was killed.
    ///
    /// # Errors
    ///
    /// Fails with [`InvalidData`](io::ErrorKind::InvalidData) if the file is no recording, or one
    /// of a later version, or with an error of the file.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::read(BufReader::new(File::open(path)?))
    }

    /// Opens a recording that may still be written. Events come as they appear in the file, and the
    /// source [is over](crate::Source::is_over) when its writer has ended it.
    ///
    /// A writer writes a sub-buffer when its thread has filled it, which takes long for a thread
    /// that does little: events of several threads are not in the order of time. A recording whose
    /// writer was killed is never over.
    ///
    /// # Errors
    ///
    /// Fails like [`open`](Recording::open).
    pub fn follow(path: &Path) -> io::Result<Self> {
        let mut lanes = RecordingLanes::open(BufReader::new(File::open(path)?))?;
        lanes.is_growing = !lanes.has_index;
        if lanes.is_growing {
            // Incomplete bytes at the end are about to be completed.
            lanes.damages.retain(|damage| damage.range.end < lanes.len);
        }
        Ok(Self::of(lanes))
    }
}

impl<R: Read + Seek> Recording<R> {
    /// Opens a recording like [`open`](Recording::open), from any seekable input.
    ///
    /// # Errors
    ///
    /// Fails like [`open`](Recording::open).
    pub fn read(input: R) -> io::Result<Self> {
        RecordingLanes::open(input).map(Self::of)
    }
}

impl<R: Read + Seek> Recording<R> {
    /// Calls `each` before each chunk of events is read: with the part of the recording that was
    /// read before, from 0 to 1. When the last chunk is read, it is called once more, with 1.
    ///
    /// Call this before the first event is taken. A recording that [is
    /// growing](RecordingLanes::is_growing) has no end to which a part could be given: there `each`
    /// is not called.
    pub fn on_progress(&mut self, each: impl FnMut(f64) + Send + Sync + 'static) {
        let lanes = self.lanes_mut();
        let blocks = lanes.lanes.iter().flatten();
        let words = blocks.map(|block| u64::from(block.words)).sum();
        lanes.progress = (!lanes.is_growing).then(|| Progress {
            words,
            left: words,
            each: Box::new(each),
        });
    }

    /// Keeps only the chunks of events for which `is_wanted` returns true; events of the others
    /// are given as [lost](crate::event::What::Lost). It takes the process and the thread of a
    /// chunk, the time from which its first event counts, and that of the ring's next chunk.
    ///
    /// Call this before the first event is taken.
    pub fn keep(&mut self, mut is_wanted: impl FnMut(u32, u32, RangeInclusive<u64>) -> bool) {
        for lane in &mut self.lanes_mut().lanes {
            let mut to = u64::MAX;
            // The end of each is known once the next one was looked at.
            let mut kept: VecDeque<Block> = VecDeque::new();
            for block in lane.drain(..).rev() {
                let times = block.time..=to;
                to = block.time;
                if is_wanted(block.process, block.thread, times) {
                    kept.push_front(block);
                }
            }
            *lane = kept;
        }
        if let Some(progress) = self.lanes_mut().progress.take() {
            self.on_progress(progress.each);
        }
    }
}

/// The progress of reading, and the function that wants to know it.
struct Progress {
    words: u64,
    left: u64,
    each: Box<dyn FnMut(f64) + Send + Sync>,
}

impl Progress {
    fn advance(&mut self, words: u32) {
        (self.each)((self.words - self.left) as f64 / self.words.max(1) as f64);
        self.left = self.left.saturating_sub(words.into());
        if self.left == 0 {
            (self.each)(1.0);
        }
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { words, left, .. } = self;
        write!(f, "Progress({left} of {words} words left)")
    }
}

/// The blocks of a recording, by the ring of their events.
#[derive(Debug)]
pub struct RecordingLanes<R> {
    input: R,
    /// The length of the file when it was opened.
    len: u64,
    info: Info,
    clock: Clock,
    names: Names,
    schedule: Schedule,
    /// The blocks of each ring, in order.
    lanes: Vec<VecDeque<Block>>,
    /// The lane of each ring.
    rings: HashMap<u32, usize>,
    /// The number of words of each lane's newest chunk, which is in memory.
    words: Vec<usize>,
    /// The sum of `words`.
    all_words: usize,
    budget: Budget,
    /// Bytes that were read in search of blocks and were none.
    in_vain: u64,
    has_index: bool,
    /// True if more blocks may come.
    is_growing: bool,
    /// Blocks that hold no events.
    others: Vec<Block>,
    damages: Vec<Damage>,
    /// The offset at which the good blocks end.
    pub(super) end: u64,
    stored: Vec<u8>,
    /// The number of stored bytes of the last block that was taken or looked at.
    looked_at: usize,
    unpacker: Unpacker,
    /// True if it is worth a thread to unpack chunks before they are taken.
    is_large: bool,
    ahead: Option<Ahead>,
    progress: Option<Progress>,
}

/// The number of words from which on a recording is large.
const LARGE: u64 = 1 << 18;

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl<R> RecordingLanes<R> {
    /// Returns the origin of the recording.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Returns the ranges that could not be read until now. Their events appear as
    /// [lost](crate::event::What::Lost), except at the very end of a recording without an index.
    #[must_use]
    pub fn damages(&self) -> &[Damage] {
        &self.damages
    }

    /// Returns true if the recording has its end and its index: its writer has ended it, and it was
    /// not cut off.
    #[must_use]
    pub fn has_end(&self) -> bool {
        self.has_index
    }

    /// Returns true if more may come: the writer has not ended the part that was read.
    #[must_use]
    pub fn is_growing(&self) -> bool {
        self.is_growing
    }

    /// Returns all blocks except the index, in the order of the file.
    pub(super) fn into_blocks(self) -> Vec<Block> {
        let mut blocks: Vec<Block> = self.lanes.into_iter().flatten().collect();
        blocks.extend(self.others);
        blocks.sort_by_key(|block| block.at);
        blocks
    }
}

impl<R: Read + Seek> RecordingLanes<R> {
    pub(super) fn open(mut input: R) -> io::Result<Self> {
        let len = input.seek(SeekFrom::End(0))?;
        input.seek(SeekFrom::Start(0))?;
        let mut header = [0; HEADER];
        input
            .read_exact(&mut header)
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => invalid("not an fgraph recording".to_owned()),
                _ => error,
            })?;
        let [version, features] =
            [8, 12].map(|at| u16::from_le_bytes([header[at], header[at + 1]]));
        if header[..8] != MAGIC {
            return Err(invalid("not an fgraph recording".to_owned()));
        }
        if version > VERSION || features != 0 {
            let what = format!(
                "a recording of version {version} with features {features:#x}; \
                 a newer fgraph reads it"
            );
            return Err(invalid(what));
        }
        let mut this = Self {
            input,
            len,
            info: Info::default(),
            clock: Clock::new(ClockKind::Monotonic, Anchor::default(), 0),
            names: Names::default(),
            schedule: Schedule::default(),
            lanes: Vec::new(),
            rings: HashMap::new(),
            words: Vec::new(),
            all_words: 0,
            budget: Budget::of(len),
            in_vain: 0,
            has_index: false,
            is_growing: false,
            others: Vec::new(),
            damages: Vec::new(),
            end: HEADER as u64,
            stored: Vec::new(),
            looked_at: 0,
            unpacker: Unpacker::default(),
            is_large: false,
            ahead: None,
            progress: None,
        };
        let mut blocks = this.index()?;
        this.has_index = !blocks.is_empty();
        if !this.has_index {
            this.scan(&mut blocks)?;
        }
        let is_other = |block: &Block| block.kind != Kind::Events;
        this.others = blocks.iter().copied().filter(is_other).collect();
        blocks.retain(|block| !is_other(block));
        // A recording that was recovered twice may contain a block twice.
        blocks.sort_by_key(|block| (block.ring, block.sequence, block.offset, block.at));
        blocks.dedup_by_key(|block| (block.ring, block.sequence, block.offset));
        let words: u64 = blocks.iter().map(|block| u64::from(block.words)).sum();
        this.is_large = words >= LARGE;
        for blocks in blocks.chunk_by(|before, block| before.ring == block.ring) {
            this.rings.insert(blocks[0].ring, this.lanes.len());
            this.lanes.push(blocks.iter().copied().collect());
        }
        Ok(this)
    }

    /// Returns the blocks that the index lists, and reads those without events. Returns none if
    /// there is no index, or any part of it is damaged.
    fn index(&mut self) -> io::Result<Vec<Block>> {
        const END: u64 = (block::HEADER + 8) as u64;
        let Some(end) = self.len.checked_sub(END) else {
            return Ok(Vec::new());
        };
        let is = |found: Option<Header>, kind| found.filter(|header| header.kind == Some(kind));
        if is(self.load(end, u64::MAX)?, Kind::End).is_none() {
            return Ok(Vec::new());
        }
        let place = self.stored[..].try_into().map_or(0, u64::from_le_bytes);
        let Some(header) = is(self.load(place, end)?, Kind::Index) else {
            return Ok(Vec::new());
        };
        let mut blocks: Vec<Block> = Vec::new();
        // An index entry has at most 11 numbers.
        let longest = 110 * (place / block::HEADER as u64);
        if header.len as u64 > longest {
            return Ok(blocks);
        }
        let Some(body) = header.body(&self.stored) else {
            return Ok(blocks);
        };
        let mut rest = &body[..];
        let mut end = HEADER as u64;
        while let Some(block) = Block::pull(&mut rest) {
            let next = block.at.saturating_add(block::HEADER as u64);
            if block.at < end || next > place {
                return Ok(Vec::new());
            }
            if let Some(before) = blocks.last_mut() {
                before.end = block.at;
            }
            end = next;
            if block.kind != Kind::Events {
                let Some(header) = self.load(block.at, place)? else {
                    return Ok(Vec::new());
                };
                end += header.stored_len as u64;
                if !self.note(&header)? {
                    return Ok(Vec::new());
                }
            }
            blocks.push(block);
        }
        if let Some(last) = blocks.last_mut() {
            last.end = place;
        }
        self.end = place;
        Ok(blocks)
    }

    /// Finds all blocks, and reads those without events.
    fn scan(&mut self, blocks: &mut Vec<Block>) -> io::Result<()> {
        let mut at = HEADER as u64;
        (self.names, self.damages) = (Names::default(), Vec::new());
        self.schedule = Schedule::default();
        self.budget = Budget::of(self.len);
        while at < self.len {
            let Some(header) = self.load(at, u64::MAX)? else {
                let next = self.find(at + 1)?;
                match self.damages.last_mut() {
                    Some(last) if last.range.end == at => last.range.end = next,
                    _ => self.damages.push(Damage { range: at..next }),
                }
                at = next;
                continue;
            };
            blocks.extend(self.take(at, &header)?);
            at += (block::HEADER + header.stored_len) as u64;
            if !matches!(header.kind, Some(Kind::Index | Kind::End)) {
                self.end = at;
            }
        }
        Ok(())
    }

    /// Processes a block that was loaded; `None` if it is damaged, or the index.
    fn take(&mut self, at: u64, header: &Header) -> io::Result<Option<Block>> {
        let Some(kind) = header.kind else {
            return Ok(None);
        };
        let mut block = Block::of(kind, at);
        Ok(match kind {
            Kind::Index | Kind::End => None,
            Kind::Events => columns::pull_head(header.head(&self.stored)).map(|(chunk, words)| {
                block.note(&chunk, words);
                block
            }),
            _ => self.note(header)?.then_some(block),
        })
    }

    /// Finds the blocks that were written since the last search.
    fn grow(&mut self) -> io::Result<()> {
        let before = std::mem::replace(&mut self.len, self.input.seek(SeekFrom::End(0))?);
        self.budget.0 += Budget::of(self.len).0.saturating_sub(Budget::of(before).0);
        while let Some(header) = self.load(self.end, u64::MAX)? {
            if matches!(header.kind, Some(Kind::Index | Kind::End)) {
                self.is_growing = false;
                break;
            }
            let block = self.take(self.end, &header)?;
            self.end += (block::HEADER + header.stored_len) as u64;
            match block {
                Some(block) if block.kind == Kind::Events => self.add(block),
                other => self.others.extend(other),
            }
        }
        Ok(())
    }

    /// Adds a block after those of its ring.
    fn add(&mut self, block: Block) {
        let lane = *self.rings.entry(block.ring).or_insert(self.lanes.len());
        match self.lanes.get_mut(lane) {
            Some(lane) => lane.push_back(block),
            None => self.lanes.push([block].into()),
        }
    }

    /// Processes the content of a block that was loaded; `false` if it is damaged.
    ///
    /// # Errors
    ///
    /// Fails with [`InvalidData`](io::ErrorKind::InvalidData) if it needs more memory than the
    /// budget allows.
    fn note(&mut self, header: &Header) -> io::Result<bool> {
        let too_large = |len| {
            let what =
                format!("the names and states of {len} bytes of a recording take too much memory");
            io::Error::new(io::ErrorKind::InvalidData, what)
        };
        let len = self.len;
        let mut budget = self.budget;
        if budget.take(header.len).is_none() {
            return Err(too_large(len));
        }
        let Some(body) = header.body(&self.stored) else {
            return Ok(false);
        };
        let mut rest = &body[..];
        let is_well = match header.kind {
            Some(Kind::Info) => match Info::pull(rest, &mut budget) {
                Some((info, clock)) => {
                    self.names = Names::new(info.process);
                    (self.info, self.clock) = (info, clock);
                    true
                }
                None => false,
            },
            Some(Kind::Descriptions) => {
                while let Some(found) = pull_description(&mut rest) {
                    if let Some(description) = found {
                        let memory = memory_of(&description);
                        budget.take(memory).ok_or_else(|| too_large(len))?;
                        self.names.add(description);
                    }
                }
                rest.is_empty()
            }
            Some(Kind::Schedule) => {
                // The entry of a thread.
                const OWN: usize = 2;
                let mut is_too_large = false;
                let take = |changes: u64| {
                    let bytes = usize::try_from(changes).ok()?.checked_add(OWN)?;
                    let bytes = bytes.checked_mul(CHANGE)?;
                    let taken = budget.take(bytes);
                    is_too_large = taken.is_none();
                    taken
                };
                let pulled = schedule::pull_all(&mut rest, &mut self.schedule, take);
                if is_too_large {
                    return Err(too_large(len));
                }
                pulled.is_some()
            }
            Some(Kind::Anchor) => pull_anchor(&mut rest)
                .map(|anchor| self.clock.refine(&anchor))
                .is_some(),
            _ => true,
        };
        self.budget = budget;
        Ok(is_well)
    }

    /// Reads the block at `at` into `stored`; `None` if there is no whole block that ends at `end`
    /// at the latest.
    fn load(&mut self, at: u64, end: u64) -> io::Result<Option<Header>> {
        let Some(header) = self.fetch(at, end)? else {
            return Ok(None);
        };
        let is_whole = header.is_whole(&self.stored);
        self.look_at(self.stored.len(), is_whole, &header);
        Ok(is_whole.then_some(header))
    }

    /// Notes that a block was looked at.
    fn look_at(&mut self, stored: usize, is_whole: bool, header: &Header) {
        self.looked_at = stored;
        if !is_whole {
            self.in_vain += header.stored_len as u64;
        }
    }

    /// Reads the block at `at` into `stored` like [`load`](Self::load), without a look at its
    /// checksum.
    fn fetch(&mut self, at: u64, end: u64) -> io::Result<Option<Header>> {
        let mut bytes = [0; block::HEADER];
        if at >= self.len || self.has_given_up() {
            return Ok(None);
        }
        self.input.seek(SeekFrom::Start(at))?;
        if !read_whole(&mut self.input, &mut bytes)? {
            return Ok(None);
        }
        let Some(header) = Header::read(&bytes) else {
            return Ok(None);
        };
        let len = header.stored_len as u64;
        let room = end.min(self.len).saturating_sub(at);
        if len > room.saturating_sub(block::HEADER as u64) {
            return Ok(None);
        }
        self.stored.clear();
        (&mut self.input).take(len).read_to_end(&mut self.stored)?;
        Ok(Some(header))
    }

    /// Reads and unpacks the words of a block; `None` if it is damaged.
    fn unpack(
        &mut self,
        lane: usize,
        block: &Block,
        words: &mut Vec<u64>,
    ) -> io::Result<Option<Chunk>> {
        if let Some(header) = self.load(block.at, block.end)?
            && let Some((found, count)) = columns::pull_head(header.head(&self.stored))
            && header.len <= columns::longest_body(count)
            && self.has_memory(lane, count)
            && let Some(body) = self.unpacker.body(&header, &self.stored)
            && columns::pull_words(body, count, words).is_some()
        {
            return Ok(Some(found));
        }
        Ok(None)
    }

    /// Gives a block that was unpacked ahead, as [`unpack`](Self::unpack) would have done.
    fn take_unpacked(
        &mut self,
        lane: usize,
        block: &Block,
        mut unpacked: Unpacked,
        chunk: &mut Chunk,
    ) {
        let (header, stored) = (unpacked.header, std::mem::take(&mut unpacked.stored));
        self.look_at(stored.len(), unpacked.is_whole, &header);
        let mut found = None;
        if unpacked.is_whole
            && let Some((head, count)) = columns::pull_head(header.head(&stored))
            && header.len <= columns::longest_body(count)
            && self.has_memory(lane, count)
            && unpacked.is_well
        {
            found = Some(head);
        }
        self.stored = stored;
        std::mem::swap(&mut chunk.words, &mut unpacked.words);
        self.give(block, found, chunk);
        self.request(lane, unpacked.words);
    }

    /// Completes a chunk that has the words of a block, or says what is missing if it is damaged.
    fn give(&mut self, block: &Block, found: Option<Chunk>, chunk: &mut Chunk) {
        match found {
            Some(found) => {
                let words = std::mem::take(&mut chunk.words);
                *chunk = Chunk { words, ..found };
            }
            None => {
                let end = block.at + (block::HEADER + self.looked_at) as u64;
                let range = block.at..end;
                self.damages.push(Damage { range });
                block.in_place(chunk);
            }
        }
    }

    /// Requests that the next block of a lane is unpacked ahead, if it is worth that. `words` is
    /// memory that may be used.
    fn request(&mut self, lane: usize, words: Vec<u64>) {
        if !self.is_large || self.is_growing {
            return;
        }
        let Some(next) = self.lanes.get(lane).and_then(VecDeque::front) else {
            return;
        };
        let (at, end, count) = (next.at, next.end, next.words as usize);
        let ahead = self.ahead.as_ref();
        if ahead.is_some_and(|ahead| !ahead.has_room(lane, count)) {
            return;
        }
        // A block that cannot be read now is found damaged when it is taken.
        let Ok(Some(header)) = self.fetch(at, end) else {
            return;
        };
        let Some((_, count)) = columns::pull_head(header.head(&self.stored)) else {
            return;
        };
        // Writers make no longer ones, and these take memory until they are unpacked.
        if header.stored_len > usize::from(u16::MAX) + columns::longest_body(count) {
            return;
        }
        if self.ahead.is_none() {
            self.ahead = Ahead::start();
            self.is_large = self.ahead.is_some();
        }
        if let Some(ahead) = self.ahead.as_mut()
            && ahead.has_room(lane, count)
        {
            let stored = std::mem::take(&mut self.stored);
            ahead.request(lane, (header, count), stored, words);
        }
    }

    /// Returns true once the search for blocks has read more than damage explains.
    fn has_given_up(&self) -> bool {
        self.in_vain > (16 << 20) + self.len.saturating_mul(2)
    }

    /// Returns true if the words of one more chunk of a lane fit in memory, beside the previous
    /// chunk and those of other lanes.
    fn has_memory(&mut self, lane: usize, count: usize) -> bool {
        self.words.resize(self.lanes.len(), 0);
        let all = self.all_words - self.words[lane] + count;
        let has_room = 2 * size_of::<u64>() as u64 * all as u64 <= Budget::of(self.len).0;
        if has_room {
            (self.words[lane], self.all_words) = (count, all);
        }
        has_room
    }

    /// Returns the next offset at which a block may begin.
    fn find(&mut self, from: u64) -> io::Result<u64> {
        let mut at = from;
        let mut bytes = [0; 4096];
        if self.has_given_up() {
            return Ok(self.len);
        }
        while at < self.len {
            self.input.seek(SeekFrom::Start(at))?;
            let mut filled = 0;
            while filled < bytes.len() {
                match self.input.read(&mut bytes[filled..])? {
                    0 => break,
                    more => filled += more,
                }
            }
            self.in_vain += filled as u64;
            let found = bytes[..filled]
                .windows(4)
                .position(|four| four == block::MAGIC);
            if let Some(found) = found {
                return Ok(at + found as u64);
            }
            if filled < 4 {
                break;
            }
            at += filled as u64 - 3;
        }
        Ok(self.len)
    }
}

fn read_whole(input: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match input.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

impl<R: Read + Seek> Lanes for RecordingLanes<R> {
    fn refresh(&mut self) -> (u64, bool) {
        // A read that fails now may succeed later.
        let is_read = !self.is_growing || self.grow().is_ok();
        (u64::MAX, is_read && !self.is_growing)
    }

    fn count(&self) -> usize {
        self.lanes.len()
    }

    fn poll(&mut self, lane: usize, chunk: &mut Chunk) -> Result<bool, SourceError> {
        let Some(block) = self.lanes.get_mut(lane).and_then(VecDeque::pop_front) else {
            return Ok(false);
        };
        if let Some(progress) = &mut self.progress {
            progress.advance(block.words);
        }
        let ahead = self.ahead.as_mut().and_then(|ahead| ahead.take(lane));
        match ahead.filter(|_| !self.has_given_up()) {
            Some(unpacked) => self.take_unpacked(lane, &block, unpacked, chunk),
            None => {
                let mut words = std::mem::take(&mut chunk.words);
                let found = self.unpack(lane, &block, &mut words)?;
                chunk.words = words;
                self.give(&block, found, chunk);
                self.request(lane, Vec::new());
            }
        }
        Ok(true)
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn names(&self) -> &Names {
        &self.names
    }

    fn schedule(&self) -> Option<&Schedule> {
        Some(&self.schedule).filter(|it| !it.is_empty())
    }
}
