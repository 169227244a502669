//! Encodes chunks of events as blocks: in the thread that takes them out of the rings, or in
//! others.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

use super::block::{Kind, Packer};
use super::columns::{self, CallSum, Pushed, Tally};
use crate::ring::Chunk;

/// Encodes chunks as blocks.
#[derive(Debug, Default)]
pub(super) struct Encoder {
    packer: Packer,
    head: Vec<u8>,
    body: Vec<u8>,
    tally: Tally,
}

impl Encoder {
    /// Encodes the chunk of `encoded`, and fills in its block and its counts.
    pub(super) fn encode(&mut self, encoded: &mut Encoded) -> io::Result<()> {
        let Encoded { chunk, block, .. } = encoded;
        block.clear();
        encoded.calls.clear();
        self.head.clear();
        self.body.clear();
        columns::push_head(&mut self.head, chunk);
        encoded.pushed = columns::push_words(&mut self.body, &chunk.words, &mut self.tally);
        encoded.shortest = self.tally.take(&mut encoded.calls);
        self.packer
            .append(block, Kind::Events, &self.head, &self.body)
    }
}

/// A chunk before and after its encoding.
#[derive(Debug, Default)]
pub(super) struct Encoded {
    pub(super) chunk: Chunk,
    pub(super) block: Vec<u8>,
    pub(super) pushed: Pushed,
    /// The calls of each function.
    pub(super) calls: Vec<(u32, CallSum)>,
    /// The fewest ticks between an entry and a return that follows it.
    pub(super) shortest: Option<u64>,
}

/// Threads that encode chunks. Chunks go to the threads in turns and blocks are taken in the same
/// turns, so blocks come back in the order of the chunks.
#[derive(Debug)]
pub(super) struct Encoders {
    threads: Vec<Thread>,
    /// Index of the thread that gets the next chunk.
    next: usize,
    /// The number of chunks whose blocks were not taken yet.
    pending: usize,
    /// Memory for later chunks.
    spare: VecDeque<Encoded>,
}

/// Chunks that may wait for one thread.
const QUEUED: usize = 4;

#[derive(Debug)]
struct Thread {
    /// The channel to the thread; `None` at the end.
    chunks: Option<SyncSender<Encoded>>,
    blocks: Receiver<io::Result<Encoded>>,
    thread: Option<JoinHandle<()>>,
}

impl Thread {
    fn start() -> io::Result<Self> {
        let (chunks, to_encode) = sync_channel::<Encoded>(QUEUED);
        let (encoded, blocks) = sync_channel(QUEUED);
        let work = move || {
            let mut encoder = Encoder::default();
            for mut next in to_encode {
                let done = encoder.encode(&mut next).map(|()| next);
                if encoded.send(done).is_err() {
                    break;
                }
            }
        };
        let thread = Builder::new().name("fgraph-encoder".to_owned());
        Ok(Self {
            chunks: Some(chunks),
            blocks,
            thread: Some(thread.spawn(work)?),
        })
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // The thread ends when its channels are closed.
        self.chunks = None;
        (_, self.blocks) = sync_channel(0);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Encoders {
    /// Starts `count` threads.
    pub(super) fn start(count: usize) -> io::Result<Self> {
        let threads: io::Result<Vec<Thread>> = (0..count).map(|_| Thread::start()).collect();
        Ok(Self {
            threads: threads?,
            next: 0,
            pending: 0,
            spare: VecDeque::new(),
        })
    }

    /// Returns true if a block must be taken before the next chunk is given.
    pub(super) fn is_full(&self) -> bool {
        self.pending >= QUEUED * self.threads.len()
    }

    /// Passes a chunk to a thread; `chunk` gets the memory of another one.
    pub(super) fn give(&mut self, chunk: &mut Chunk) -> io::Result<()> {
        let mut job = self.spare.pop_front().unwrap_or_default();
        std::mem::swap(&mut job.chunk, chunk);
        let thread = &self.threads[self.next];
        let chunks = thread.chunks.as_ref();
        if chunks.is_none_or(|chunks| chunks.send(job).is_err()) {
            return Err(io::Error::other("a thread that packs events has ended"));
        }
        self.next = (self.next + 1) % self.threads.len();
        self.pending += 1;
        Ok(())
    }

    /// Returns the oldest chunk with its block; `None` if no chunk is being encoded.
    pub(super) fn take(&mut self) -> io::Result<Option<Encoded>> {
        if self.pending == 0 {
            return Ok(None);
        }
        let count = self.threads.len();
        let oldest = (self.next + count * QUEUED - self.pending) % count;
        self.pending -= 1;
        match self.threads[oldest].blocks.recv() {
            Ok(done) => done.map(Some),
            Err(_) => Err(io::Error::other("a thread that packs events has ended")),
        }
    }

    /// Keeps memory for later chunks.
    pub(super) fn give_back(&mut self, encoded: Encoded) {
        self.spare.push_back(encoded);
    }
}
