//! Records only calls that turn out to be wanted: by the calls around them, and by their duration.
//!
//! A call that may turn out to be too short holds its entry back in its data, until it returns or
//! until a call inside it proves long enough. In the second case all held entries around that call
//! are written first, the outermost first. Each of them began after the event that was written
//! last, which is the end of a call inside the same ones. A thread's events are therefore in the
//! order of time, and every recorded call is inside all the calls that it was made from.

use core::cell::Cell;
use core::mem::MaybeUninit;
use core::ops::Deref;

use fgraph::{Dropped, Entry, FgraphOps, Filter, LibraryEvent, Return, with_registers_saved};
use fgraph_trace::event::{self, Kind};

use super::record::{ENTRY_ONLY, Record, end_of};
use crate::support::selected::Selected;
use crate::support::sink::{Place, WITHOUT_RING};

/// Writes entries and returns to rings, but only of calls inside some functions, or of calls that
/// take long enough.
///
/// `WORDS` is the most words of a held entry: 1 where an entry is its function and its time, else
/// [`WORDS`].
#[derive(Debug)]
pub(super) struct Held<const WORDS: usize> {
    record: Record,
    /// Functions outside which nothing is recorded.
    within: Option<Selected>,
    /// Calls that take fewer ticks are left out.
    threshold: u64,
}

/// Running call.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldCall<const WORDS: usize> {
    time: u64,
    /// Word of the thread, which leads to its ring.
    word: u64,
    state: State,
    len: u8,
    words: [MaybeUninit<u64>; WORDS],
}

/// Most words of a held entry: with six arguments, the caller and the time that the thread ran, and
/// a few more for values.
pub(super) const WORDS: usize = 16;

/// State of a call's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waits,
    Written,
    Lost,
}

impl State {
    fn of(is_written: bool) -> Self {
        match is_written {
            true => Self::Written,
            false => Self::Lost,
        }
    }
}

impl<const WORDS: usize> HeldCall<WORDS> {
    fn new(time: u64, word: u64, state: State) -> Self {
        Self {
            time,
            word,
            state,
            len: 0,
            words: [MaybeUninit::uninit(); WORDS],
        }
    }

    /// Keeps an event; `false` if it has too many words.
    #[inline(always)]
    fn keep(&mut self, event: &[u64]) -> bool {
        let Some(place) = self.words.get_mut(..event.len()) else {
            return false;
        };
        for (place, word) in place.iter_mut().zip(event) {
            place.write(*word);
        }
        self.len = event.len() as u8;
        true
    }

    fn event(&self) -> &[u64] {
        // SAFETY: `keep` has written the first `len` words.
        unsafe { core::slice::from_raw_parts(self.words.as_ptr().cast(), self.len.into()) }
    }
}

/// Number of entries that are searched at once.
const BLOCK: usize = 32;

impl<const WORDS: usize> Held<WORDS> {
    /// Creates the callbacks; `None` without memory.
    pub(super) fn new(record: Record, within: Option<&Filter>, threshold: u64) -> Option<Self> {
        let within = match within {
            Some(filter) => Some(Selected::new(filter)?),
            None => None,
        };
        Some(Self {
            record,
            within,
            threshold,
        })
    }

    pub(super) fn into_record(self) -> Record {
        self.record
    }

    /// Handles an entry with all options.
    #[inline]
    fn any_entry(&self, call: &mut Entry<'_, HeldCall<WORDS>>) -> Option<HeldCall<WORDS>> {
        let function = call.function();
        if !self.is_described(function) {
            if let Some(within) = &self.within {
                within.learn(function);
            }
            self.describe(function, call.thread_word());
        }
        if let Some(within) = &self.within
            && !within.has(function)
            && call.parent_data().is_none()
        {
            return None;
        }
        if self.is_too_deep(call) || self.is_too_often(call) {
            return None;
        }
        let (word, thread) = (call.thread_word(), call.thread_id());
        let mut event = self.entry_event(call, true);
        let now = self.now();
        // On other stacks the enclosing calls cannot be marked as written.
        if call.is_entry_only() && self.threshold != 0 {
            return None;
        }
        if self.threshold == 0 || call.thread_stack().is_none() {
            let place = || Place::of(call.thread_stack(), true);
            let cpu = self.cpu();
            let is_written = self.write_words(word, thread, event.as_slice(), now, cpu, place);
            return Some(HeldCall::new(now, word.get(), State::of(is_written)));
        }
        if !self.has_ring(word) {
            self.attach(word, thread);
        }
        let mut held = HeldCall::new(now, word.get(), State::Waits);
        if !held.keep(event.as_slice()) {
            event = self.entry_event(call, false);
            held.keep(event.as_slice());
        }
        Some(held)
    }

    /// Handles a return with all options.
    #[inline]
    fn any_return(
        &self,
        call: &mut Return<'_, HeldCall<WORDS>>,
        mut held: HeldCall<WORDS>,
        now: u64,
    ) {
        if held.state == State::Waits {
            if now.saturating_sub(held.time) < self.threshold {
                return;
            }
            self.write_ancestors(call);
            let place = Place::of(call.thread_stack(), false);
            self.write_entry(call.thread_word(), call.thread_id(), &mut held, place);
        }
        if held.state == State::Written {
            let event = self.return_event(call);
            let (word, thread) = (call.thread_word(), call.thread_id());
            let place = || Place::of(call.thread_stack(), false);
            self.write_words(word, thread, event.as_slice(), now, self.cpu(), place);
        }
    }

    /// Writes the entry of a call, with the processor that the thread runs on now. Writes nothing
    /// of an entry from before its process was forked, which is the parent's.
    fn write_entry(&self, word: &Cell<u64>, thread: u32, held: &mut HeldCall<WORDS>, place: Place) {
        let is_ours = held.word == WITHOUT_RING || held.word == word.get() && self.has_ring(word);
        let (event, time, cpu) = (held.event(), held.time, self.cpu());
        let written = is_ours && self.write_words(word, thread, event, time, cpu, || place);
        held.state = State::of(written);
    }

    /// Writes the held entries of the calls around this one.
    fn write_ancestors(&self, call: &mut Return<'_, HeldCall<WORDS>>) {
        let waits = |held: &&mut HeldCall<WORDS>| held.state == State::Waits;
        let (thread, place) = (call.thread_id(), Place::of(call.thread_stack(), false));
        let mut left = call.ancestors_data_mut().take_while(waits).count();
        // The outermost first, which are found last.
        while left > 0 {
            let first = left.saturating_sub(BLOCK);
            let word = Cell::new(call.thread_word().get());
            let mut block: [Option<&mut HeldCall<WORDS>>; BLOCK] = [const { None }; BLOCK];
            let found = call.ancestors_data_mut().take(left).skip(first);
            for (place, held) in block.iter_mut().zip(found) {
                *place = Some(held);
            }
            for held in block.into_iter().rev().flatten() {
                self.write_entry(&word, thread, held, place);
            }
            call.thread_word().set(word.get());
            left = first;
        }
    }
}

impl<const WORDS: usize> Deref for Held<WORDS> {
    type Target = Record;

    fn deref(&self) -> &Record {
        &self.record
    }
}

impl<const WORDS: usize> FgraphOps for Held<WORDS> {
    type Data = HeldCall<WORDS>;

    #[inline]
    fn entry(&self, call: &mut Entry<'_, HeldCall<WORDS>>) -> Option<HeldCall<WORDS>> {
        if WORDS > 1 {
            return self.any_entry(call);
        }
        let (function, word) = (call.function(), call.thread_word());
        if call.is_entry_only() && self.threshold != 0 {
            return None;
        }
        let is_usual =
            self.is_described(function) && self.has_ring(word) && call.thread_stack().is_some();
        if !is_usual {
            // SAFETY: without types, the code reads no floating-point registers.
            return unsafe { with_registers_saved(|| self.any_entry(call)) }.flatten();
        }
        if let Some(within) = &self.within
            && !within.has(function)
            && call.parent_data().is_none()
        {
            return None;
        }
        let event = event::call(Kind::Entry, function.index());
        if call.is_entry_only() {
            let place = || Place::of(call.thread_stack(), true);
            self.write_short(word, call.thread_id(), [event, ENTRY_ONLY], 2, place);
            return None;
        }
        let now = self.now();
        let mut held = HeldCall::new(now, word.get(), State::Waits);
        if self.threshold == 0 {
            let place = || Place::of(call.thread_stack(), true);
            held.state = State::of(self.write_word(word, call.thread_id(), event, now, place));
        } else {
            held.keep(&[event]);
        }
        Some(held)
    }

    #[inline]
    fn ret(&self, call: &mut Return<'_, HeldCall<WORDS>>, held: HeldCall<WORDS>) {
        // Time for fetching does not count as the call's.
        let now = self.now();
        if held.state == State::Waits && now.saturating_sub(held.time) < self.threshold {
            return;
        }
        if WORDS > 1 {
            self.any_return(call, held, now);
            return;
        }
        match held.state {
            State::Lost => {}
            State::Waits => {
                // SAFETY: as in `entry`, the code reads no floating-point registers.
                unsafe { with_registers_saved(|| self.any_return(call, held, now)) };
            }
            State::Written => {
                let event = event::call(end_of(call), call.function().index());
                let place = || Place::of(call.thread_stack(), false);
                self.write_word(call.thread_word(), call.thread_id(), event, now, place);
            }
        }
    }

    fn dropped(&self, call: &Dropped<'_, HeldCall<WORDS>>, held: HeldCall<WORDS>) {
        // One whose entry waits may have been short.
        if held.state == State::Written {
            self.record.write_dropped(call);
        }
    }

    fn library(&self, event: &LibraryEvent<'_>) {
        self.record.library(event);
    }
}
