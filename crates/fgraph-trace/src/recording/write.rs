//! Writes a recording.

use std::collections::HashMap;
use std::io::{self, Write};

use super::block::{Kind, Packer, push, push_text};
use super::columns::{CallSum, Pushed};
use super::encode::{Encoded, Encoder};
use super::read::{Block, Info};
use super::{HEADER, MAGIC, VERSION, schedule};
use crate::clock::{Anchor, Clock};
use crate::names::Description;
use crate::ring::Chunk;
use crate::schedule::Change;

/// The most changes of threads' states in one block.
const MOST_CHANGES: usize = 1 << 16;

/// Writes a recording, block by block: each block that is written can be read, however the writer
/// ends.
#[derive(Debug)]
pub struct RecordingWriter<W> {
    out: W,
    /// The number of bytes written.
    len: u64,
    blocks: Vec<Block>,
    /// A block before it is written.
    buffer: Vec<u8>,
    body: Vec<u8>,
    packer: Packer,
    encoder: Encoder,
    /// A chunk before it is written.
    encoded: Encoded,
    written: Pushed,
    /// The calls of each function of each process.
    calls: HashMap<(u32, u32), CallSum>,
    /// The fewest ticks between an entry and a return that follows it.
    shortest: Option<u64>,
}

impl<W: Write> RecordingWriter<W> {
    /// Begins a recording.
    ///
    /// # Errors
    ///
    /// Fails with an error of `out`.
    pub fn new(mut out: W, info: &Info, clock: &Clock) -> io::Result<Self> {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&MAGIC);
        header[8..10].copy_from_slice(&VERSION.to_le_bytes());
        out.write_all(&header)?;
        let mut this = Self::resume(out, HEADER as u64, Vec::new());
        info.push(clock, &mut this.body);
        this.block(Kind::Info)?;
        Ok(this)
    }

    /// Continues a recording that has these blocks and `len` bytes.
    pub(super) fn resume(out: W, len: u64, blocks: Vec<Block>) -> Self {
        Self {
            out,
            len,
            blocks,
            buffer: Vec::new(),
            body: Vec::new(),
            packer: Packer::default(),
            encoder: Encoder::default(),
            encoded: Encoded::default(),
            written: Pushed::default(),
            calls: HashMap::new(),
            shortest: None,
        }
    }

    /// Returns the number of bytes written.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns false: a recording has at least its header.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes `body` as a block. The index has only its place.
    fn block(&mut self, kind: Kind) -> io::Result<()> {
        self.buffer.clear();
        self.packer
            .append(&mut self.buffer, kind, &[], &self.body)?;
        self.body.clear();
        self.out.write_all(&self.buffer)?;
        self.blocks.push(Block::of(kind, self.len));
        self.len += self.buffer.len() as u64;
        Ok(())
    }

    /// Writes events.
    ///
    /// # Errors
    ///
    /// Fails with an error of the file. The recording is good up to where it was before.
    pub fn chunk(&mut self, chunk: &Chunk) -> io::Result<()> {
        self.chunk_of(&mut chunk.clone())
    }

    /// Writes events like [`chunk`](Self::chunk), and leaves the memory of another chunk in its
    /// place.
    pub(super) fn chunk_of(&mut self, chunk: &mut Chunk) -> io::Result<()> {
        std::mem::swap(&mut self.encoded.chunk, chunk);
        let mut encoded = std::mem::take(&mut self.encoded);
        let done = self.encoder.encode(&mut encoded);
        let done = done.and_then(|()| self.encoded(&encoded));
        self.encoded = encoded;
        done
    }

    /// Writes the block of a chunk, with one call to the file.
    pub(super) fn encoded(&mut self, encoded: &Encoded) -> io::Result<()> {
        let Encoded { chunk, pushed, .. } = encoded;
        let mut block = Block::of(Kind::Events, self.len);
        block.note(chunk, chunk.words.len());
        block.events = block.events.wrapping_add(pushed.events);
        self.out.write_all(&encoded.block)?;
        self.blocks.push(block);
        self.len += encoded.block.len() as u64;
        self.written.events = self.written.events.saturating_add(pushed.events);
        self.written.entries = self.written.entries.saturating_add(pushed.entries);
        for &(function, sum) in &encoded.calls {
            self.calls
                .entry((chunk.process, function))
                .or_default()
                .add(sum);
        }
        self.shortest = [self.shortest, encoded.shortest]
            .into_iter()
            .flatten()
            .min();
        Ok(())
    }

    /// Returns the sum of the calls written, for each process and function.
    pub fn calls(&self) -> impl Iterator<Item = (u32, u32, CallSum)> {
        let calls = self.calls.iter();
        calls.map(|(&(process, function), &sum)| (process, function, sum))
    }

    /// Returns the fewest ticks between an entry and a return that follows it, among the events
    /// written. That is about half of the time that recording a call takes, because a short
    /// function is in between.
    #[must_use]
    pub fn shortest_call(&self) -> Option<u64> {
        self.shortest
    }

    /// Returns the number of events written.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.written.events
    }

    /// Returns the number of function entries written.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.written.entries
    }

    /// Writes descriptions. They must come before the events that refer to them.
    ///
    /// # Errors
    ///
    /// Fails like [`chunk`](Self::chunk).
    pub fn describe(&mut self, descriptions: &[Description]) -> io::Result<()> {
        /// The approximate limit of a block, in bytes.
        const FULL: usize = 1 << 20;
        for description in descriptions {
            push(&mut self.body, description.kind as u64);
            for field in description.fields {
                push(&mut self.body, field);
            }
            for text in &description.texts {
                push_text(&mut self.body, text);
            }
            if self.body.len() >= FULL {
                self.block(Kind::Descriptions)?;
            }
        }
        match self.body.is_empty() {
            true => Ok(()),
            false => self.block(Kind::Descriptions),
        }
    }

    /// Writes the values of the clocks, from which readers compute the rate of the ticks.
    ///
    /// # Errors
    ///
    /// Fails like [`chunk`](Self::chunk).
    pub fn anchor(&mut self, anchor: &Anchor) -> io::Result<()> {
        for number in [anchor.ticks, anchor.monotonic, anchor.realtime] {
            push(&mut self.body, number);
        }
        self.block(Kind::Anchor)
    }

    /// Writes news of threads' states, by thread, and the number of changes that the kernel had no
    /// room to report. The changes of a thread are in the order of time.
    ///
    /// # Errors
    ///
    /// Fails like [`chunk`](Self::chunk).
    pub fn schedule(&mut self, changes: &[(u32, Change)], lost: u64) -> io::Result<()> {
        if changes.is_empty() && lost == 0 {
            return Ok(());
        }
        for part in changes.chunks(MOST_CHANGES) {
            schedule::push_changes(&mut self.body, part);
            self.block(Kind::Schedule)?;
        }
        if lost != 0 {
            schedule::push_lost(&mut self.body, lost);
            self.block(Kind::Schedule)?;
        }
        Ok(())
    }

    /// Ends the recording with its index.
    ///
    /// # Errors
    ///
    /// Fails like [`chunk`](Self::chunk).
    pub fn finish(mut self) -> io::Result<W> {
        let index = self.len;
        for block in &self.blocks {
            block.push(&mut self.body);
        }
        self.block(Kind::Index)?;
        self.body.extend_from_slice(&index.to_le_bytes());
        self.block(Kind::End)?;
        self.out.flush()?;
        Ok(self.out)
    }
}
