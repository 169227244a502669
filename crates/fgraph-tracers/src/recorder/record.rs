//! The recorder's callbacks.

use core::array;
use core::cell::Cell;
use core::ffi::CStr;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::fs;
use std::sync::Arc;
use std::time::Instant;

use fgraph::{Entry, FgraphOps, Function, LibraryEvent, Return};
use fgraph_trace::clock::ClockKind;
use fgraph_trace::event::{self, Extension, Kind, MAX_FUNCTIONS};
use fgraph_trace::names::{DescriptionKind, process_id, process_number};
use fgraph_trace::ring::{Rings, Writer};

use super::Options;
use super::fetch::Words;
use super::shapes::Wanted;
use super::types::Types;
use super::writers::{Owner, WriterOffset, Writers};
use crate::support::kernel;
use crate::support::processor::ProcessorWord;

/// Writes entries and returns to rings.
#[derive(Debug)]
pub(super) struct Record {
    rings: Arc<Rings>,
    clock: ClockKind,
    shape: Shape,
    arguments: usize,
    result: bool,
    caller: bool,
    running: bool,
    types: Option<Types>,
    processor: ProcessorWord,
    writers: Writers,
    described: FunctionSet,
    /// The process that was described last.
    process: AtomicU32,
    /// What the process was called at the start; empty if the kernel does not say.
    name: String,
    /// The process that has started the recorder.
    first: u32,
    /// How many programs it had executed before this one.
    executed: u32,
    /// Calls inside so many others are left out.
    depth: usize,
}

/// What is written of each call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// Its function and its time.
    Plain,
    /// These, arguments, and the result.
    Registers,
    /// Whatever the options say.
    Any,
}

impl Shape {
    fn of(options: &Options) -> Self {
        let is_more =
            options.caller || options.running || options.types.is_some() || options.depth.is_some();
        match is_more {
            true => Self::Any,
            false if options.arguments > 0 || options.result => Self::Registers,
            false => Self::Plain,
        }
    }
}

impl Record {
    /// `None` if there is no memory.
    pub(super) fn new(rings: Arc<Rings>, options: &Options) -> Option<Self> {
        Some(Self {
            clock: rings.clock().kind(),
            shape: Shape::of(options),
            arguments: options.arguments.min(6),
            result: options.result,
            caller: options.caller,
            running: options.running,
            types: options.types.map(|_| {
                Types::new(Wanted {
                    arguments: options.arguments != 0,
                    result: options.result,
                })
            }),
            processor: ProcessorWord::find(),
            writers: Writers::new(rings.capacity())?,
            described: FunctionSet::new()?,
            process: AtomicU32::new(0),
            name: fs::read_to_string("/proc/self/comm").unwrap_or_default(),
            first: kernel::process(),
            executed: options.executed,
            depth: options.depth.unwrap_or(usize::MAX),
            rings,
        })
    }

    pub(super) fn rings(&self) -> &Arc<Rings> {
        &self.rings
    }

    /// Finds out the types of functions, until the time is over if there is one.
    pub(super) fn learn_types(&self, functions: &[Function], until: Option<Instant>) {
        if let Some(types) = &self.types {
            types.learn(functions, &self.rings, self.process(), until);
        }
    }

    /// The running process's number.
    fn process(&self) -> u32 {
        process_number(kernel::process(), self.executed)
    }

    /// The number of the process that this one comes from.
    fn parent(&self) -> u32 {
        let id = kernel::process();
        match self.executed.checked_sub(1) {
            _ if id != self.first => process_number(kernel::parent(), self.executed),
            Some(before) => process_number(id, before),
            None => kernel::parent(),
        }
    }

    /// Says to readers that it is over.
    pub(super) fn finish(self) -> Arc<Rings> {
        self.rings.finish();
        self.rings.clone()
    }

    /// The writer of the thread whose word this is.
    #[inline(always)]
    fn writer(&self, word: u64) -> &Writer {
        // SAFETY: words are zero or set by `attach`.
        unsafe { self.writers.at(WriterOffset(word)) }
    }

    /// Describes a function, at its first call. `word` is the thread's.
    ///
    /// A thread that has a ring makes no system call here: it may be in a sandbox by now.
    #[cold]
    #[inline(never)]
    pub(super) fn describe(&self, function: Function, word: &Cell<u64>) {
        let known = self.writer(word.get()).process();
        let [address, size] = [function.address(), function.size()].map(|it| it as u64);
        let fields = [
            known.unwrap_or_else(|| self.process()).into(),
            function.index().into(),
            address,
            size,
        ];
        let texts = [function.name().as_str(), function.module().path];
        self.rings
            .describe(DescriptionKind::Function, fields, texts);
        self.described.set(function.index());
    }

    #[inline(always)]
    pub(super) fn is_described(&self, function: Function) -> bool {
        self.described.has(function.index())
    }

    /// Whether the thread whose word this is has a ring.
    #[inline(always)]
    pub(super) fn has_ring(&self, word: &Cell<u64>) -> bool {
        self.writer(word.get()).ring().is_some()
    }

    /// Whether a call is inside so many others that it is left out.
    #[inline(always)]
    pub(super) fn is_too_deep<D>(&self, call: &Entry<'_, D>) -> bool {
        self.depth != usize::MAX && call.own_depth() >= self.depth
    }

    /// What the clock shows.
    #[inline(always)]
    pub(super) fn now(&self) -> u64 {
        self.clock.now()
    }

    /// The processor that the calling thread runs on, if the system says.
    #[inline(always)]
    pub(super) fn cpu(&self) -> Option<u32> {
        self.processor.read()
    }

    /// The event of a call that begins; its arguments by their types only if asked for.
    #[inline(always)]
    pub(super) fn entry_event<D>(&self, call: &Entry<'_, D>, with_values: bool) -> Words {
        let function = call.function();
        let types = self.types.as_ref().and_then(|types| types.of(function));
        let mut event = Words::new(event::call(Kind::Entry, function.index()));
        if let Some(types) = types {
            if with_values {
                event.extend_with(Extension::Values, |words| types.entry.run(call, words));
            }
        } else if self.arguments > 0 {
            event.push(event::extension(
                Extension::Arguments,
                self.arguments as u16,
            ));
            for index in 0..self.arguments {
                event.push(call.arg(index).unwrap_or(0));
            }
        }
        if self.caller {
            event.extend(Extension::Caller, call.return_address() as u64);
        }
        if self.running {
            event.extend(Extension::Running, kernel::running());
        }
        event
    }

    /// The event of a call that ends.
    #[inline(always)]
    pub(super) fn return_event<D>(&self, call: &Return<'_, D>) -> Words {
        let kind = end_of(call);
        let types = self.types.as_ref();
        let types = types.and_then(|types| types.of(call.function()));
        let mut event = Words::new(event::call(kind, call.function().index()));
        match (types, kind) {
            (Some(types), Kind::Return) => {
                event.extend_with(Extension::Values, |words| types.ret.run(call, words));
            }
            (None, _) if self.result => {
                if let Some(result) = call.result() {
                    event.extend(Extension::Result, result);
                }
            }
            _ => {}
        }
        if self.running {
            event.extend(Extension::Running, kernel::running());
        }
        event
    }

    /// Writes an event that is a word, at the time that the clock shows; `false` if it was lost.
    #[inline(always)]
    fn write_word(&self, word: &Cell<u64>, thread: u32, event: u64) -> bool {
        let cpu = self.processor.read();
        let writer = self.writer(word.get());
        let now = self.clock.now();
        // SAFETY: the writer is the running thread's.
        writer.is_on(cpu) && unsafe { writer.call(event, now) }
            || self.write_slowly(word, thread, &[event], now, cpu)
    }

    /// Writes an event of several words, at a time that is not before the one of the thread's event
    /// before, and on a processor if that is known; `false` if it was lost.
    #[inline(always)]
    pub(super) fn write_words(
        &self,
        word: &Cell<u64>,
        thread: u32,
        event: &[u64],
        now: u64,
        cpu: Option<u32>,
    ) -> bool {
        let writer = self.writer(word.get());
        // SAFETY: the writer is the running thread's.
        writer.is_on(cpu) && unsafe { writer.event(event, now) }
            || self.write_slowly(word, thread, event, now, cpu)
    }

    /// Writes an event of the first `len` of these words; `false` if it was lost.
    #[inline(always)]
    fn write_short<const N: usize>(
        &self,
        word: &Cell<u64>,
        thread: u32,
        event: [u64; N],
        len: usize,
        now: u64,
    ) -> bool {
        let cpu = self.processor.read();
        let writer = self.writer(word.get());
        // SAFETY: the writer is the running thread's.
        writer.is_on(cpu) && unsafe { writer.short_event(event, len, now) }
            || self.write_slowly(word, thread, &event[..len], now, cpu)
    }

    /// Writes an event before which the processor is written, or for which the thread has no room;
    /// `false` if it was lost.
    #[cold]
    #[inline(never)]
    fn write_slowly(
        &self,
        word: &Cell<u64>,
        thread: u32,
        event: &[u64],
        now: u64,
        cpu: Option<u32>,
    ) -> bool {
        if self.writer(word.get()).ring().is_none() && !self.attach(word, thread) {
            self.rings.count_without_ring();
            return false;
        }
        // SAFETY: the writer is the running thread's, as its word says; the rings are ours.
        unsafe { self.writer(word.get()).write(&self.rings, event, now, cpu) }
    }

    /// Writes a text among the running thread's events; `false` if it was lost.
    ///
    /// # Safety
    ///
    /// `thread` is the running thread. Until this returns it runs no callback of this user, and
    /// does not call this again, as a handler of a signal would.
    pub(super) unsafe fn mark(&self, thread: u32, text: &[u8]) -> bool {
        let process = self.process();
        let ring = self.rings.ring_of(process, thread);
        let ours = Owner { process, thread };
        let ring = ring.filter(|&ring| self.writers.is_of(ring, ours));
        let word = Cell::new(ring.map_or(0, |ring| WriterOffset::of_ring(ring).0));
        if self.writer(word.get()).ring().is_none() && !self.attach(&word, thread) {
            self.rings.count_without_ring();
            return false;
        }
        let now = self.clock.now();
        // SAFETY: the ring is this thread's, which writes nothing else to it now; the rings are
        // ours.
        unsafe { self.writer(word.get()).mark(&self.rings, now, text) }
    }

    /// Gives the running thread a ring.
    #[cold]
    #[inline(never)]
    pub(super) fn attach(&self, word: &Cell<u64>, thread: u32) -> bool {
        // Whoever got none asks again now and then: threads end.
        let has_asked = word.get() == WriterOffset::WITHOUT_RING.0;
        if has_asked && !self.rings.events_without_ring().is_multiple_of(ASK_AGAIN) {
            return false;
        }
        let process = self.process();
        // Of other processes nothing is known here: their ids may be of another namespace.
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
        // SAFETY: the rings stay as long as the user, and with it the callbacks; the writer was
        // given to this thread, so no other one uses it.
        unsafe { self.writer(word.get()).attach(&self.rings, index) };
        let mut name = [0; 16];
        let name = kernel::thread_name(&mut name);
        let name = CStr::from_bytes_until_nul(name).unwrap_or_default();
        let name = name.to_str().unwrap_or("");
        let now = self.clock.now();
        if self.process.swap(process, Ordering::Relaxed) != process {
            let fields = [process.into(), self.parent().into(), now, 0];
            // The kernel calls a process as its first thread is called.
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

/// A thread without a ring asks for one once in so many events that were lost for the lack of one.
const ASK_AGAIN: u64 = 1 << 12;

impl FgraphOps for Record {
    type Data = ();

    #[inline]
    fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
        let function = call.function();
        if !self.is_described(function) {
            self.describe(function, call.thread_word());
        }
        let (word, event) = (
            call.thread_word(),
            event::call(Kind::Entry, function.index()),
        );
        match self.shape {
            Shape::Plain => {
                let is_written = self.write_word(word, call.thread_id(), event);
                return is_written.then_some(());
            }
            Shape::Registers => {
                let now = self.clock.now();
                let head = event::extension(Extension::Arguments, self.arguments as u16);
                let [a, b, c, d, e, f] = array::from_fn(|index| call.arg(index).unwrap_or(0));
                let event = [event, head, a, b, c, d, e, f];
                let len = match self.arguments {
                    0 => 1,
                    count => 2 + count,
                };
                let is_written = self.write_short(word, call.thread_id(), event, len, now);
                return is_written.then_some(());
            }
            Shape::Any => {}
        }
        if self.is_too_deep(call) {
            return None;
        }
        let event = self.entry_event(call, true);
        let now = self.clock.now();
        self.write_words(word, call.thread_id(), event.as_slice(), now, self.cpu())
            .then_some(())
    }

    #[inline]
    fn ret(&self, call: &mut Return<'_, ()>, (): ()) {
        let (word, event) = (
            call.thread_word(),
            event::call(end_of(call), call.function().index()),
        );
        match self.shape {
            Shape::Plain => {
                self.write_word(word, call.thread_id(), event);
                return;
            }
            Shape::Registers => {
                let now = self.clock.now();
                let result = call.result().filter(|_| self.result);
                let len = if result.is_some() { 3 } else { 1 };
                let head = event::extension(Extension::Result, 1);
                let event = [event, head, result.unwrap_or(0)];
                self.write_short(word, call.thread_id(), event, len, now);
                return;
            }
            Shape::Any => {}
        }
        // What is fetched then is no time of the call's.
        let now = self.clock.now();
        let event = self.return_event(call);
        self.write_words(word, call.thread_id(), event.as_slice(), now, self.cpu());
    }

    fn library(&self, event: &LibraryEvent<'_>) {
        let kind = match event.is_loaded {
            true => DescriptionKind::Module,
            false => DescriptionKind::UnloadedModule,
        };
        let [start, end] = [event.range.start, event.range.end].map(|it| it as u64);
        let fields = [self.process().into(), start, end, self.clock.now()];
        self.rings.describe(kind, fields, [event.path, ""]);
    }
}

/// How a call ends.
#[inline(always)]
fn end_of<D>(call: &Return<'_, D>) -> Kind {
    match call.unwinding() {
        true => Kind::Unwound,
        false => Kind::Return,
    }
}

/// Functions, a bit for each.
#[derive(Debug)]
pub(super) struct FunctionSet(NonNull<AtomicU64>);

// SAFETY: it is memory with atomics only.
unsafe impl Send for FunctionSet {}
// SAFETY: as above.
unsafe impl Sync for FunctionSet {}

const SET_BYTES: usize = MAX_FUNCTIONS as usize / 8;

impl FunctionSet {
    /// Of no function; `None` if there is no memory.
    pub(super) fn new() -> Option<Self> {
        NonNull::new(kernel::map(SET_BYTES)?.cast()).map(Self)
    }

    #[inline(always)]
    fn word(&self, function: u32) -> &AtomicU64 {
        let at = (function % MAX_FUNCTIONS / 64) as usize;
        // SAFETY: there is a word for each 64 functions.
        unsafe { self.0.add(at).as_ref() }
    }

    #[inline(always)]
    pub(super) fn has(&self, function: u32) -> bool {
        // Acquire: what was done before the function was set. So our events of it come after its
        // description for readers.
        self.word(function).load(Ordering::Acquire) & 1 << (function % 64) != 0
    }

    pub(super) fn set(&self, function: u32) {
        // Release: as in `has`.
        self.word(function)
            .fetch_or(1 << (function % 64), Ordering::Release);
    }
}

impl Drop for FunctionSet {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and nothing refers to it any more.
        unsafe { kernel::unmap(self.0.as_ptr().cast(), SET_BYTES) };
    }
}
