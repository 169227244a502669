//! Output of callbacks: rings. Each thread takes one at its first event.
//!
//! # Safety
//!
//! The unsafe code writes to rings through the writers of threads. A word of each thread's own
//! holds its writer, and no other code changes that word.

pub(crate) mod modules;
mod writers;

use core::cell::Cell;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::fs;
use std::sync::Arc;

use fgraph::{Error, Function, LibraryEvent, Unsupported};
use fgraph_trace::clock::ClockKind;
use fgraph_trace::event::{self, Extension, MAX_FUNCTIONS};
use fgraph_trace::names::{DescriptionKind, process_id, process_number};
use fgraph_trace::ring::{Rings, Writer};

use super::mapped::Mapped;
use super::{handler, kernel};
use writers::{Owner, WriterOffset, Writers};

/// Rings, and the writers of threads.
///
/// The thread's word that the functions take is the one that fgraph keeps for the user of this
/// sink: see [`fgraph::Entry::thread_word`].
#[derive(Debug)]
pub(crate) struct Sink {
    rings: Arc<Rings>,
    clock: ClockKind,
    writers: Writers,
    described: FunctionSet,
    /// Process that was described last. In a child of `fork`, the process whose memory it got.
    process: AtomicU32,
    /// The first process that was described from this memory; 0 in a new child of `fork`. `None` if
    /// the kernel cannot tell these apart.
    owner: Option<Mapped<AtomicU32>>,
    /// Name of the process at the start; empty if the kernel does not report it.
    name: String,
    /// Process that has made this sink.
    first: u32,
    /// Number of programs that it had executed before this one.
    executed: u32,
}

/// Place of a thread that writes an event.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    /// End of the thread's own stack if the thread is on it, else 0. On another stack, it is
    /// unknown whether a signal handler runs.
    pub(crate) stack: usize,
    /// True if the event is an entry that happens now, so that any wait for room comes before it.
    pub(crate) is_entry: bool,
}

impl Place {
    /// Returns the place of a thread, given its own stack if it is on that.
    pub(crate) fn of(home: Option<Range<usize>>, is_entry: bool) -> Self {
        Self {
            stack: home.map_or(0, |home| home.end),
            is_entry,
        }
    }
}

/// Most words of a mark that a callback writes.
pub(crate) const MOST: usize = 132;

/// Word of a thread that got no ring.
pub(crate) const WITHOUT_RING: u64 = WriterOffset::WITHOUT_RING.0;

/// A thread without a ring requests one again after this number of lost events.
const ASK_AGAIN: u64 = 1 << 12;

impl Sink {
    /// Creates a sink for a process that has executed this number of programs before, and describes
    /// its modules; `None` without memory.
    pub(crate) fn new(rings: Arc<Rings>, executed: u32) -> Option<Self> {
        modules::describe(&rings, executed);
        Some(Self {
            clock: rings.clock().kind(),
            writers: Writers::new(rings.capacity())?,
            described: FunctionSet::new()?,
            process: AtomicU32::new(0),
            owner: Mapped::wiped_on_fork(),
            name: fs::read_to_string("/proc/self/comm").unwrap_or_default(),
            first: kernel::process(),
            executed,
            rings,
        })
    }

    /// Same as [`new`](Self::new).
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported) without memory.
    pub(crate) fn start(rings: impl Into<Arc<Rings>>, executed: u32) -> Result<Self, Error> {
        let no_memory = Error::Unsupported(Unsupported::Memory(libc::ENOMEM));
        Self::new(rings.into(), executed).ok_or(no_memory)
    }

    pub(crate) fn rings(&self) -> &Arc<Rings> {
        &self.rings
    }

    #[inline(always)]
    pub(crate) fn clock(&self) -> ClockKind {
        self.clock
    }

    /// Returns the number of the running process.
    pub(crate) fn process(&self) -> u32 {
        process_number(kernel::process(), self.executed)
    }

    /// Returns the number of the parent process.
    fn parent(&self) -> u32 {
        let id = kernel::process();
        match self.executed.checked_sub(1) {
            _ if id != self.first => process_number(kernel::parent(), self.executed),
            Some(before) => process_number(id, before),
            None => kernel::parent(),
        }
    }

    /// Returns the first process that was described from this memory; 0 in a new child of `fork`.
    fn owner(&self) -> Option<u32> {
        let owner = self.owner.as_ref()?;
        Some(owner.load(Ordering::Relaxed))
    }

    /// Returns the number of the process whose descriptions hold for the running one, too. `before`
    /// was described last from this memory: the parent of a child of `fork` may have described
    /// nothing, may have ended, or be in another namespace.
    fn origin(&self, before: u32) -> u32 {
        match (before, self.owner()) {
            (1.., Some(0)) => before,
            _ => self.parent(),
        }
    }

    /// Returns the writer of the thread with this word.
    ///
    /// # Safety
    ///
    /// `word` is a thread's, as [`Sink`] requires.
    #[inline(always)]
    pub(crate) unsafe fn writer(&self, word: u64) -> &Writer {
        // SAFETY: words are zero or were set by `attach`.
        unsafe { self.writers.at(WriterOffset(word)) }
    }

    /// Describes a function, unless it was described before.
    ///
    /// # Safety
    ///
    /// Same as for [`writer`](Self::writer).
    #[inline(always)]
    pub(crate) unsafe fn know(&self, function: Function, word: &Cell<u64>) {
        if !self.is_described(function) {
            // SAFETY: the caller keeps the same contract.
            unsafe { self.describe(function, word) };
        }
    }

    #[inline(always)]
    pub(crate) fn is_described(&self, function: Function) -> bool {
        self.described.has(function.index())
    }

    /// Describes a function, at its first call.
    ///
    /// A thread with a ring makes no system call here, because it may be in a sandbox by now.
    ///
    /// # Safety
    ///
    /// Same as for [`writer`](Self::writer).
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn describe(&self, function: Function, word: &Cell<u64>) {
        // SAFETY: the caller keeps the same contract.
        let process = unsafe { self.process_of(word) };
        let [address, size] = [function.address(), function.size()].map(|it| it as u64);
        let fields = [process.into(), function.index().into(), address, size];
        let texts = [function.name().as_str(), function.module().path()];
        self.rings
            .describe(DescriptionKind::Function, fields, texts);
        self.described.set(function.index());
    }

    /// Reports to readers that a function is no longer recorded.
    ///
    /// # Safety
    ///
    /// Same as for [`writer`](Self::writer).
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn tell_switched_off(&self, function: Function, word: &Cell<u64>) {
        // SAFETY: the caller keeps the same contract.
        let process = unsafe { self.process_of(word) };
        let fields = [process.into(), function.index().into(), self.clock.now(), 0];
        self.rings
            .describe(DescriptionKind::SwitchedOff, fields, ["", ""]);
    }

    /// Reports to readers that a function of the running process is switched off or on from a tick
    /// of the clock on. Not for callbacks, since it makes a system call.
    pub(crate) fn tell_switched(&self, kind: DescriptionKind, function: u32, time: u64) {
        let fields = [self.process().into(), function.into(), time, 0];
        self.rings.describe(kind, fields, ["", ""]);
    }

    /// Returns the number of the running process, without a system call if the thread has a ring.
    ///
    /// # Safety
    ///
    /// Same as for [`writer`](Self::writer).
    pub(crate) unsafe fn process_of(&self, word: &Cell<u64>) -> u32 {
        // SAFETY: the caller keeps the same contract.
        let known = unsafe { self.writer(word.get()) }.process();
        known.unwrap_or_else(|| self.process())
    }

    /// Writes an event that needs an event with the processor before it, or for which the thread
    /// has no room; `false` if it was lost.
    ///
    /// # Safety
    ///
    /// `word` is the running thread's, as [`Sink`] requires, and `thread` its id.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn write_slowly(
        &self,
        word: &Cell<u64>,
        thread: u32,
        event: &[u64],
        now: u64,
        cpu: Option<u32>,
        place: Place,
    ) -> bool {
        let may_wait = || self.may_wait(place);
        // SAFETY: the caller keeps the same contract.
        unsafe { self.write_waiting(word, thread, event, (now, place.is_entry), cpu, may_wait) }
    }

    /// Same as [`write_slowly`](Self::write_slowly), outside of callbacks, where no signal handler
    /// runs.
    ///
    /// # Safety
    ///
    /// Same as for [`write_slowly`](Self::write_slowly).
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn write_outside(
        &self,
        word: &Cell<u64>,
        thread: u32,
        event: &[u64],
        when: (u64, bool),
        cpu: Option<u32>,
    ) -> bool {
        let may_wait = || self.is_waited_for(kernel::process());
        // SAFETY: the caller keeps the same contract.
        unsafe { self.write_waiting(word, thread, event, when, cpu, may_wait) }
    }

    /// Writes an event at a time. If it is of an entry, the time is read again after a wait.
    ///
    /// # Safety
    ///
    /// Same as for [`write_slowly`](Self::write_slowly).
    unsafe fn write_waiting(
        &self,
        word: &Cell<u64>,
        thread: u32,
        event: &[u64],
        (mut now, is_entry): (u64, bool),
        cpu: Option<u32>,
        may_wait: impl FnOnce() -> bool,
    ) -> bool {
        // SAFETY: `word` is the running thread's, as the caller says.
        if !unsafe { self.ensure_ring(word, thread) } {
            return false;
        }
        // SAFETY: `word` is the running thread's, as the caller says.
        let writer = unsafe { self.writer(word.get()) };
        // SAFETY: the writer is the running thread's, by its word, and belongs to the rings of this
        // sink.
        unsafe {
            let has_waited = writer.wait(&self.rings, event.len(), may_wait);
            if has_waited && is_entry {
                now = self.clock.now();
            }
            writer.write(&self.rings, event, now, cpu)
        }
    }

    /// Returns true if the running thread may wait for a reader. It must not in three places: in a
    /// child of `fork` or `vfork`, whose parent may wait for it; in the process of the reader,
    /// which may need something that the thread holds; and in a signal handler.
    fn may_wait(&self, place: Place) -> bool {
        place.stack != 0
            && self.is_waited_for(kernel::process())
            && !handler::is_running(place.stack)
    }

    /// True if threads of the running process may wait for the reader outside of signal handlers.
    fn is_waited_for(&self, process: u32) -> bool {
        process == self.first && process != self.rings.process()
    }

    /// Writes words among the thread's events as a mark; `false` if they were lost. It takes at
    /// most [`MOST`] words, since more would need too much of a small stack.
    ///
    /// # Safety
    ///
    /// Same as for [`write_slowly`](Self::write_slowly).
    pub(crate) unsafe fn mark_words(
        &self,
        word: &Cell<u64>,
        thread: u32,
        words: &[u64],
        place: Place,
    ) -> bool {
        let words = &words[..words.len().min(MOST)];
        let mut event = [0; 2 + MOST];
        let count = words.len();
        event[0] = event::extension(Extension::Mark, 1 + count as u16);
        event[1] = 8 * count as u64;
        event[2..2 + count].copy_from_slice(words);
        let now = self.clock.now();
        // SAFETY: the caller keeps the same contract.
        unsafe { self.write_slowly(word, thread, &event[..2 + count], now, None, place) }
    }

    /// Writes a text as a mark, outside of callbacks, with the processor if that is known.
    ///
    /// # Safety
    ///
    /// `thread` is the running thread. Until this returns, it runs no callback of the user of this
    /// sink, and does not call this again, as a signal handler would.
    pub(crate) unsafe fn mark_outside(&self, thread: u32, cpu: Option<u32>, text: &[u8]) -> bool {
        let process = self.process();
        let ring = self.rings.ring_of(process, thread);
        let ours = Owner { process, thread };
        let ring = ring.filter(|&ring| self.writers.is_of(ring, ours));
        let word = Cell::new(ring.map_or(0, |ring| WriterOffset::of_ring(ring).0));
        // SAFETY: the ring is this thread's, which writes nothing else to it now, as the caller
        // says.
        unsafe {
            let has_ring = self.ensure_ring(&word, thread);
            let now = self.clock.now();
            has_ring && self.writer(word.get()).mark(&self.rings, now, cpu, text)
        }
    }

    /// Describes a library that is loaded or unloaded.
    pub(crate) fn library(&self, event: &LibraryEvent<'_>) {
        let kind = match event.is_loaded {
            true => DescriptionKind::Module,
            false => DescriptionKind::UnloadedModule,
        };
        let [start, end] = [event.range.start, event.range.end].map(|it| it as u64);
        let fields = [self.process().into(), start, end, self.clock.now()];
        self.rings.describe(kind, fields, [event.path, ""]);
    }

    /// Makes sure that the running thread has a ring. If it returns false, the event is lost.
    ///
    /// # Safety
    ///
    /// Same as for [`write_slowly`](Self::write_slowly).
    unsafe fn ensure_ring(&self, word: &Cell<u64>, thread: u32) -> bool {
        // SAFETY: the caller keeps the same contract.
        let has_one = unsafe { self.has_ring(word) } || self.attach(word, thread);
        if !has_one {
            self.rings.count_without_ring();
        }
        has_one
    }

    /// True if the thread with this word has a ring.
    ///
    /// # Safety
    ///
    /// Same as for [`writer`](Self::writer).
    #[inline(always)]
    pub(crate) unsafe fn has_ring(&self, word: &Cell<u64>) -> bool {
        // SAFETY: the caller keeps the same contract.
        unsafe { self.writer(word.get()) }.ring().is_some()
    }

    /// Gives the running thread a ring.
    #[cold]
    #[inline(never)]
    pub(crate) fn attach(&self, word: &Cell<u64>, thread: u32) -> bool {
        // A thread that got no ring asks again now and then, because other threads end.
        let has_asked = word.get() == WriterOffset::WITHOUT_RING.0;
        if has_asked && !self.rings.events_without_ring().is_multiple_of(ASK_AGAIN) {
            return false;
        }
        let process = self.process();
        // Other processes' threads are unknown here: their ids may be of another namespace.
        let is_gone = |of, thread| of == process && kernel::is_gone(process_id(process), thread);
        let ring = self.rings.take(process, thread, is_gone);
        let ours = Owner { process, thread };
        let has_ended = |owner: Owner| is_gone(owner.process, owner.thread);
        let ring = ring.filter(|&ring| self.writers.claim(ring, ours, has_ended));
        let Some(index) = ring else {
            word.set(WriterOffset::WITHOUT_RING.0);
            return false;
        };
        word.set(WriterOffset::of_ring(index).0);
        // SAFETY: the rings live as long as the user, and so as the callbacks; the writer was given
        // to this thread, so no other one uses it.
        unsafe { self.writer(word.get()).attach(&self.rings, index) };
        let mut name = [0; 16];
        let name = kernel::thread_name(&mut name).to_str().unwrap_or("");
        let now = self.clock.now();
        let before = self.process.swap(process, Ordering::Relaxed);
        if before != process && self.owner() != Some(process) {
            let fields = [process.into(), self.origin(before).into(), now, 0];
            if let Some(owner) = &self.owner {
                // A child of `vfork` shares the memory with its owner.
                let (new, order) = (0, Ordering::Relaxed);
                let _ = owner.compare_exchange(new, process, order, order);
            }
            // The kernel gives a process the name of its first thread.
            let process_name = if thread == process_id(process) {
                name
            } else {
                self.name.trim_end()
            };
            self.rings
                .describe(DescriptionKind::Process, fields, [process_name, ""]);
        }
        let fields = [process.into(), thread.into(), now, 0];
        self.rings
            .describe(DescriptionKind::Thread, fields, [name, ""]);
        true
    }
}

/// Set of functions, one bit each.
#[derive(Debug)]
pub(crate) struct FunctionSet(Mapped<[AtomicU64; MAX_FUNCTIONS as usize / 64]>);

impl FunctionSet {
    /// Creates an empty set; `None` without memory.
    pub(crate) fn new() -> Option<Self> {
        Mapped::new().map(Self)
    }

    #[inline(always)]
    fn word(&self, function: u32) -> &AtomicU64 {
        &self.0[(function % MAX_FUNCTIONS / 64) as usize]
    }

    #[inline(always)]
    pub(crate) fn has(&self, function: u32) -> bool {
        // Acquire: makes visible the work that was done before the function was added. For readers,
        // this thread's events of it come after its description.
        self.word(function).load(Ordering::Acquire) & 1 << (function % 64) != 0
    }

    pub(crate) fn set(&self, function: u32) {
        // Release: pairs with the load in `has`.
        self.word(function)
            .fetch_or(1 << (function % 64), Ordering::Release);
    }
}
