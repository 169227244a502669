//! Callbacks of the recorder.

use core::array;
use core::cell::Cell;
use core::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use fgraph::{Dropped, Entry, FgraphOps, Function, LibraryEvent, Return, with_registers_saved};
use fgraph_trace::event::{self, Extension, Kind};
use fgraph_trace::names::DescriptionKind;
use fgraph_trace::ring::Rings;

use super::fetch::{MAX_STACK, Words};
use super::rates::{Rates, Verdict};
use super::shapes::Wanted;
use super::types::Types;
use super::{FunctionPlace, InterpretedFunction, Options};
use crate::support::kernel;
use crate::support::processor::ProcessorWord;
use crate::support::selected::Selected;
use crate::support::sink::{Place, Sink};

/// Writes entries and returns to rings.
#[derive(Debug)]
pub(super) struct Record {
    sink: Sink,
    shape: Shape,
    arguments: usize,
    /// Functions whose arguments are recorded; `None` for all.
    arguments_of: Option<Selected>,
    result: bool,
    once: bool,
    caller: bool,
    stack: bool,
    running: bool,
    types: Option<Types>,
    rates: Option<Rates>,
    processor: ProcessorWord,
    /// Calls nested this deep are left out.
    depth: usize,
}

/// Data that is written of each call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Function and time, unless the call is entry-only.
    Plain,
    /// Function, time, arguments, and the result.
    Registers,
    /// The same, with the arguments of some functions only.
    SomeRegisters,
    /// All data that the options choose.
    Any,
}

impl Shape {
    fn of(options: &Options) -> Self {
        let is_more = options.caller
            || options.stack
            || options.running
            || options.types.is_some()
            || options.depth.is_some()
            || options.max_rate.is_some()
            || options.once;
        match is_more {
            true => Self::Any,
            false if options.arguments == 0 && !options.result => Self::Plain,
            false if options.arguments_of.is_some() => Self::SomeRegisters,
            false => Self::Registers,
        }
    }
}

impl Record {
    /// Creates the callbacks; `None` without memory.
    pub(super) fn new(rings: Arc<Rings>, options: &Options) -> Option<Self> {
        let second = rings.clock().ticks(1_000_000_000);
        let arguments_of = match &options.arguments_of {
            Some(filter) => Some(Selected::new(filter)?),
            None => None,
        };
        let rates = match options.max_rate {
            Some(calls) => Some(Rates::new(calls, second)?),
            None => None,
        };
        Some(Self {
            sink: Sink::new(rings, options.executed)?,
            shape: Shape::of(options),
            arguments: options.arguments.min(6),
            arguments_of,
            result: options.result,
            once: options.once,
            caller: options.caller,
            stack: options.stack,
            running: options.running,
            types: options.types.map(|_| {
                Types::new(Wanted {
                    arguments: options.arguments != 0,
                    result: options.result,
                    texts: options.texts.clone(),
                    paths: options.paths.clone(),
                })
            }),
            rates,
            processor: ProcessorWord::find(),
            depth: options.depth.unwrap_or(usize::MAX),
        })
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    pub(super) fn rings(&self) -> &Arc<Rings> {
        self.sink.rings()
    }

    /// Finds the types of functions, until the time limit if there is one.
    pub(super) fn learn_types(&self, functions: &[Function], until: Option<Instant>) {
        if let Some(types) = &self.types {
            types.learn(functions, self.rings(), self.sink.process(), until);
        }
    }

    /// Reports to readers that functions are switched off or on from now on.
    pub(super) fn tell_switched(&self, kind: DescriptionKind, functions: &[FunctionPlace]) {
        let now = self.now();
        for function in functions {
            self.sink.tell_switched(kind, function.index, now);
        }
    }

    /// Marks the end of the recording for readers.
    pub(super) fn finish(self) -> Arc<Rings> {
        self.rings().finish();
        self.rings().clone()
    }

    #[inline(always)]
    pub(super) fn is_described(&self, function: Function) -> bool {
        self.sink.is_described(function)
    }

    /// Describes a function, at its first call. `word` is the thread's.
    pub(super) fn describe(&self, function: Function, word: &Cell<u64>) {
        self.learn_arguments(function);
        // SAFETY: `word` is the running thread's.
        unsafe { self.sink.describe(function, word) };
    }

    /// Decides if the arguments of a function are recorded, before it counts as described.
    fn learn_arguments(&self, function: Function) {
        if let Some(of) = &self.arguments_of {
            of.learn(function);
        }
    }

    /// Returns the number of arguments that are recorded of a function.
    #[inline(always)]
    fn arguments_of(&self, function: Function) -> usize {
        match &self.arguments_of {
            Some(of) if !of.has(function) => 0,
            _ => self.arguments,
        }
    }

    /// Returns the number of the running process. `word` is the thread's.
    pub(super) fn process_of(&self, word: &Cell<u64>) -> u32 {
        // SAFETY: `word` is the running thread's.
        unsafe { self.sink.process_of(word) }
    }

    /// True if the thread with this word has a ring.
    #[inline(always)]
    pub(super) fn has_ring(&self, word: &Cell<u64>) -> bool {
        // SAFETY: `word` is the running thread's.
        unsafe { self.sink.has_ring(word) }
    }

    /// Gives the running thread a ring.
    pub(super) fn attach(&self, word: &Cell<u64>, thread: u32) -> bool {
        self.sink.attach(word, thread)
    }

    /// True if a call is nested so deep that it is left out.
    #[inline(always)]
    pub(super) fn is_too_deep<D>(&self, call: &Entry<'_, D>) -> bool {
        self.depth != usize::MAX && call.own_depth() >= self.depth
    }

    /// Counts a call. True if it is not recorded because its function is called too often.
    #[inline(always)]
    pub(super) fn is_too_often<D>(&self, call: &Entry<'_, D>) -> bool {
        let Some(rates) = &self.rates else {
            return false;
        };
        let verdict = rates.count(call.function(), || self.now());
        if verdict == Verdict::SwitchesOff {
            // SAFETY: the word is the running thread's.
            unsafe {
                self.sink
                    .tell_switched_off(call.function(), call.thread_word());
            }
        }
        verdict != Verdict::Recorded
    }

    /// Returns the current time of the clock.
    #[inline(always)]
    pub(super) fn now(&self) -> u64 {
        let clock = self.sink.clock();
        // SAFETY: reading clocks uses no floating-point registers.
        let aside = || unsafe { with_registers_saved(|| clock.now()) }.unwrap_or(0);
        clock.now_at_once().unwrap_or_else(aside)
    }

    /// Returns the processor that the calling thread runs on, if the system reports it.
    #[inline(always)]
    pub(super) fn cpu(&self) -> Option<u32> {
        self.processor.read()
    }

    /// Returns the event of a call that begins. It has arguments by their types, and the calls
    /// around it, only if `with_values` is true.
    #[inline(always)]
    pub(super) fn entry_event<D>(&self, call: &Entry<'_, D>, with_values: bool) -> Words {
        let function = call.function();
        let types = self.types.as_ref().and_then(|types| types.of(function));
        let mut event = Words::new(event::call(Kind::Entry, function.index()));
        if let Some(types) = types {
            if with_values {
                event.extend_with(Extension::Values, |words| types.entry.run(call, words));
            }
        } else if let count @ 1.. = self.arguments_of(function) {
            event.push(event::extension(Extension::Arguments, count as u16));
            for index in 0..count {
                event.push(call.arg(index).unwrap_or(0));
            }
        }
        if self.caller {
            event.extend(Extension::Caller, call.return_address() as u64);
        }
        if self.stack && with_values {
            event.extend_with(Extension::Stack, |words| {
                let mut addresses = [0; MAX_STACK];
                let count = call.unwind(&mut addresses);
                for address in &addresses[..count] {
                    words.push(*address as u64);
                }
            });
        }
        if self.running {
            event.extend(Extension::Running, kernel::running());
        }
        if self.once || call.is_entry_only() {
            event.push(ENTRY_ONLY);
        }
        event
    }

    /// Returns the event of a call that ends.
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

    /// Writes an event of one word, with a time not before the thread's previous event. Returns
    /// false if the event was lost. Callbacks on the fast path may call it.
    #[inline(always)]
    pub(super) fn write_word(
        &self,
        word: &Cell<u64>,
        thread: u32,
        event: u64,
        now: u64,
        place: impl FnOnce() -> Place,
    ) -> bool {
        let cpu = self.processor.read();
        // SAFETY: the word, and so the writer, is the running thread's.
        unsafe {
            let writer = self.sink.writer(word.get());
            writer.is_on(cpu) && writer.call(event, now)
                || self.write_aside(word, thread, &[event], now, cpu, place)
        }
    }

    /// Writes an event that the fast path cannot write.
    ///
    /// # Safety
    ///
    /// `word` is the running thread's.
    #[inline(always)]
    unsafe fn write_aside(
        &self,
        word: &Cell<u64>,
        thread: u32,
        event: &[u64],
        now: u64,
        cpu: Option<u32>,
        place: impl FnOnce() -> Place,
    ) -> bool {
        let sink = &self.sink;
        // SAFETY: the word is the running thread's, as the caller says; writing uses no
        // floating-point registers.
        let is_written = unsafe {
            with_registers_saved(|| sink.write_slowly(word, thread, event, now, cpu, place()))
        };
        is_written.unwrap_or(false)
    }

    /// Writes an event of several words, with a time not before the thread's previous event, and a
    /// processor if that is known; `false` if it was lost.
    #[inline(always)]
    pub(super) fn write_words(
        &self,
        word: &Cell<u64>,
        thread: u32,
        event: &[u64],
        now: u64,
        cpu: Option<u32>,
        place: impl FnOnce() -> Place,
    ) -> bool {
        // SAFETY: the word, and so the writer, is the running thread's.
        unsafe {
            let writer = self.sink.writer(word.get());
            writer.is_on(cpu) && writer.event(event, now)
                || self
                    .sink
                    .write_slowly(word, thread, event, now, cpu, place())
        }
    }

    /// Writes an event of the first `len` of these words, now; `false` if it was lost. For
    /// callbacks on the fast path.
    #[inline(always)]
    pub(super) fn write_short<const N: usize>(
        &self,
        word: &Cell<u64>,
        thread: u32,
        event: [u64; N],
        len: usize,
        place: impl FnOnce() -> Place,
    ) -> bool {
        let (cpu, now) = (self.processor.read(), self.now());
        let words = event.get(..len).unwrap_or(&event);
        // SAFETY: the word, and so the writer, is the running thread's.
        unsafe {
            let writer = self.sink.writer(word.get());
            writer.is_on(cpu) && writer.short_event(event, len, now)
                || self.write_aside(word, thread, words, now, cpu, place)
        }
    }

    /// Writes that a call whose entry was written was dropped.
    pub(super) fn write_dropped<D>(&self, call: &Dropped<'_, D>) {
        let event = [
            event::call(Kind::Unwound, call.function().index()),
            event::extension(Extension::Dropped, 0),
        ];
        let (word, thread) = (call.thread_word(), call.thread_id());
        let place = || Place::of(call.thread_stack(), false);
        self.write_words(word, thread, &event, self.now(), self.cpu(), place);
    }

    /// Writes the entry or the end of a call that no callback sees; `false` if it was lost.
    ///
    /// # Safety
    ///
    /// `word` is the running thread's, and `thread` returns its id. No callback of this user runs
    /// in the thread until this returns, and no signal handler runs now.
    #[inline(always)]
    pub(super) unsafe fn write_outside(
        &self,
        word: &Cell<u64>,
        thread: impl FnOnce() -> u32,
        kind: Kind,
        function: u32,
    ) -> bool {
        let (event, now, cpu) = (event::call(kind, function), self.now(), self.cpu());
        // SAFETY: the word, and so the writer, is the running thread's.
        unsafe {
            let writer = self.sink.writer(word.get());
            let when = (now, kind == Kind::Entry);
            writer.is_on(cpu) && writer.call(event, now)
                || self.sink.write_outside(word, thread(), &[event], when, cpu)
        }
    }

    /// Same as [`write_outside`](Self::write_outside), with an argument, or with a result.
    ///
    /// # Safety
    ///
    /// Same as for [`write_outside`](Self::write_outside).
    pub(super) unsafe fn write_value_outside(
        &self,
        word: &Cell<u64>,
        thread: u32,
        kind: Kind,
        function: u32,
        value: u64,
    ) -> bool {
        let (is_entry, now, cpu) = (kind == Kind::Entry, self.now(), self.cpu());
        let part = match is_entry {
            true => Extension::Arguments,
            false => Extension::Result,
        };
        let event = [
            event::call(kind, function),
            event::extension(part, 1),
            value,
        ];
        // SAFETY: the caller keeps the same contract.
        unsafe {
            self.sink
                .write_outside(word, thread, &event, (now, is_entry), cpu)
        }
    }

    /// Describes a function of an interpreted language, and its source if that is known. `word` is
    /// the running thread's.
    pub(super) fn describe_outside(&self, word: &Cell<u64>, function: &InterpretedFunction<'_>) {
        // SAFETY: `word` is the running thread's.
        let process = unsafe { self.sink.process_of(word) };
        let (process, index) = (process.into(), function.index.into());
        let texts = [function.name, function.module];
        let rings = self.rings();
        rings.describe(DescriptionKind::Function, [process, index, 0, 0], texts);
        if let Some((file, line)) = function.source {
            let fields = [process, index, line.into(), 0];
            rings.describe(DescriptionKind::Source, fields, [file, ""]);
        }
    }

    /// Writes a text among the running thread's events; `false` if it was lost.
    ///
    /// # Safety
    ///
    /// Same as for [`Sink::mark_outside`].
    pub(super) unsafe fn mark(&self, thread: u32, text: &[u8]) -> bool {
        // SAFETY: the caller keeps the same contract.
        unsafe { self.sink.mark_outside(thread, self.cpu(), text) }
    }
}

impl FgraphOps for Record {
    type Data = ();

    #[inline]
    fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
        let function = call.function();
        let is_known = self.is_described(function);
        if !is_known {
            self.learn_arguments(function);
            // SAFETY: the word is the running thread's.
            unsafe { self.sink.know(function, call.thread_word()) };
        }
        if self.once && is_known || self.is_too_deep(call) || self.is_too_often(call) {
            return None;
        }
        let event = self.entry_event(call, true);
        let now = self.now();
        let (word, thread, cpu) = (call.thread_word(), call.thread_id(), self.cpu());
        let place = || Place::of(call.thread_stack(), true);
        let is_written = self.write_words(word, thread, event.as_slice(), now, cpu, place);
        (is_written && !self.once && !call.is_entry_only()).then_some(())
    }

    #[inline]
    fn ret(&self, call: &mut Return<'_, ()>, (): ()) {
        // Time for fetching does not count as the call's.
        let now = self.now();
        let event = self.return_event(call);
        let (word, thread, cpu) = (call.thread_word(), call.thread_id(), self.cpu());
        let place = || Place::of(call.thread_stack(), false);
        self.write_words(word, thread, event.as_slice(), now, cpu, place);
    }

    fn dropped(&self, call: &Dropped<'_, ()>, (): ()) {
        self.write_dropped(call);
    }

    fn library(&self, event: &LibraryEvent<'_>) {
        self.sink.library(event);
    }
}

/// Extension of an entry-only call.
pub(super) const ENTRY_ONLY: u64 = event::extension(Extension::EntryOnly, 0);

/// Shapes of [`Usual`].
pub(super) const PLAIN: u8 = Shape::Plain as u8;
pub(super) const REGISTERS: u8 = Shape::Registers as u8;
pub(super) const SOME_REGISTERS: u8 = Shape::SomeRegisters as u8;

/// Writes data of one of these shapes, from general registers.
///
/// The code for most calls is seen to change little (see [`fgraph::Handle::fast_path`]), so they
/// take the fast path.
#[derive(Debug)]
pub(super) struct Usual<const SHAPE: u8>(pub(super) Record);

impl<const SHAPE: u8> Deref for Usual<SHAPE> {
    type Target = Record;

    fn deref(&self) -> &Record {
        &self.0
    }
}

impl<const SHAPE: u8> FgraphOps for Usual<SHAPE> {
    type Data = ();

    #[inline]
    fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
        let function = call.function();
        if !self.is_described(function) {
            // SAFETY: without types, the code reads no floating-point registers.
            return unsafe { with_registers_saved(|| self.0.entry(call)) }.flatten();
        }
        let (word, thread) = (call.thread_word(), call.thread_id());
        let event = event::call(Kind::Entry, function.index());
        let place = || Place::of(call.thread_stack(), true);
        let is_written = if SHAPE != PLAIN {
            let count = match SHAPE {
                SOME_REGISTERS => self.arguments_of(function),
                _ => self.arguments,
            };
            let head = event::extension(Extension::Arguments, count as u16);
            let [a, b, c, d, e, f] = array::from_fn(|index| call.arg(index).unwrap_or(0));
            let mut event = [event, head, a, b, c, d, e, f, 0];
            let mut len = match count {
                0 => 1,
                count => 2 + count,
            };
            if let Some(place) = event.get_mut(len).filter(|_| call.is_entry_only()) {
                *place = ENTRY_ONLY;
                len += 1;
            }
            self.write_short(word, thread, event, len, place)
        } else if call.is_entry_only() {
            self.write_short(word, thread, [event, ENTRY_ONLY], 2, place)
        } else {
            self.write_word(word, thread, event, self.now(), place)
        };
        is_written.then_some(())
    }

    #[inline]
    fn ret(&self, call: &mut Return<'_, ()>, (): ()) {
        let (word, thread) = (call.thread_word(), call.thread_id());
        let event = event::call(end_of(call), call.function().index());
        let place = || Place::of(call.thread_stack(), false);
        if SHAPE != PLAIN {
            let result = call.result().filter(|_| self.result);
            let len = if result.is_some() { 3 } else { 1 };
            let head = event::extension(Extension::Result, 1);
            let event = [event, head, result.unwrap_or(0)];
            self.write_short(word, thread, event, len, place);
        } else {
            self.write_word(word, thread, event, self.now(), place);
        }
    }

    fn dropped(&self, call: &Dropped<'_, ()>, (): ()) {
        self.0.write_dropped(call);
    }

    fn library(&self, event: &LibraryEvent<'_>) {
        self.0.library(event);
    }
}

/// Returns how a call ends.
#[inline(always)]
pub(super) fn end_of<D>(call: &Return<'_, D>) -> Kind {
    match call.unwinding() {
        true => Kind::Unwound,
        false => Kind::Return,
    }
}
