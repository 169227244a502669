//! The writer of a ring: one thread.

use core::cell::Cell;
use core::ptr;

use super::layout::{MORE_SHIFT, at, ring, sub};
use super::wait::Waiting;
use super::{Mode, Rings};
use crate::clock::{Anchor, ClockKind};
use crate::event::{self, Extension, Kind, MAX_DELTA, MAX_MARK};
use crate::primitive::{AtomicU64, Ordering, Step, fence, is_taken};

/// The state of a thread that writes its ring.
///
/// All zeros are a writer without a ring, so the state may be in memory that the system wipes when
/// the process forks: the child's threads then find that they have none.
#[derive(Debug)]
#[repr(C)]
pub struct Writer {
    /// The first event of the current sub-buffer.
    data: Cell<*const AtomicU64>,
    /// The number of words in use in the current sub-buffer, encoded like [`sub::USED`].
    used: Cell<u64>,
    /// Words of the current sub-buffer; 0 if there is none.
    room: Cell<u64>,
    /// The clock at the newest event.
    time: Cell<u64>,
    /// Events dropped since the newest sub-buffer was opened.
    dropped: Cell<u64>,
    /// Process and thread.
    owner: Cell<u64>,
    /// The ring's index plus 1; 0 if there is none.
    ring: Cell<u32>,
    /// The processor plus 1; 0 while it is not known.
    cpu: Cell<u32>,
    /// The consumer's progress plus 1 when this writer gave up waiting for it; 0 if it did not.
    gave_up: Cell<u64>,
}

/// The optional data of a call's event.
///
/// It is exhaustive, since callers write it as a literal: a new field breaks them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extras<'a> {
    /// The processor on which the thread runs.
    pub cpu: Option<u32>,
    /// Words of arguments.
    pub arguments: &'a [u64],
    /// The return address of the call.
    pub caller: Option<u64>,
    /// Registers of the result.
    pub result: &'a [u64],
    /// Nanoseconds that the thread had run on processors.
    pub running: Option<u64>,
    /// Arguments or results, encoded by type.
    pub values: &'a [u64],
    /// The return addresses of the calls around an entry.
    pub stack: &'a [u64],
    /// True if the call is [entry-only](crate::event::What::Entry::is_entry_only).
    pub is_entry_only: bool,
}

/// Process and thread in one word.
pub(super) const fn owner(process: u32, thread: u32) -> u64 {
    (process as u64) << 32 | thread as u64
}

/// Returns the memory order of a store to a sub-buffer's length.
#[inline(always)]
fn length_order() -> Ordering {
    match is_taken(Step::LengthLast) {
        true => Ordering::Release,
        false => Ordering::Relaxed,
    }
}

/// The number of used rings that a thread checks for a free one, before it takes an unused one.
const LOOKED_AT: u32 = 8;

impl Writer {
    /// Makes a writer without a ring.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            data: Cell::new(ptr::null()),
            used: Cell::new(0),
            room: Cell::new(0),
            time: Cell::new(0),
            dropped: Cell::new(0),
            owner: Cell::new(0),
            ring: Cell::new(0),
            cpu: Cell::new(0),
            gave_up: Cell::new(0),
        }
    }

    /// Returns the ring that it writes.
    #[must_use]
    pub fn ring(&self) -> Option<u32> {
        self.ring.get().checked_sub(1)
    }

    /// Returns the process for which it writes, if it has a ring.
    #[must_use]
    pub fn process(&self) -> Option<u32> {
        self.ring().map(|_| (self.owner.get() >> 32) as u32)
    }

    /// Returns the processor that was written last.
    #[inline(always)]
    #[must_use]
    pub fn cpu(&self) -> Option<u32> {
        self.cpu.get().checked_sub(1)
    }

    /// Returns true if a change of processor need not be written, because the thread runs on the
    /// same processor, or on an unknown one.
    #[inline(always)]
    #[must_use]
    pub fn is_on(&self, cpu: Option<u32>) -> bool {
        cpu.is_none_or(|cpu| self.cpu.get() == cpu.wrapping_add(1))
    }

    /// Gives the writer the ring `index`, which [`Rings::take`] has given to this thread.
    ///
    /// # Safety
    ///
    /// From now on until it has another ring or none, only one thread at a time uses the writer,
    /// and `rings` is alive. No other writer has this ring.
    pub unsafe fn attach(&self, rings: &Rings, index: u32) {
        let Some(place) = rings.ring_header(index).get(ring::OWNER) else {
            return;
        };
        self.room.set(0);
        self.used.set(0);
        self.dropped.set(0);
        self.cpu.set(0);
        self.gave_up.set(0);
        self.owner.set(place.load(Ordering::Relaxed));
        self.ring.set(index + 1);
    }

    /// Writes an entry or a return: `word` is from [`event::call`], `now` is the clock. Returns
    /// `false`, and writes nothing, if that takes [`write`](Self::write).
    ///
    /// # Safety
    ///
    /// The contract of [`attach`](Self::attach) holds.
    #[inline(always)]
    #[must_use]
    pub unsafe fn call(&self, word: u64, now: u64) -> bool {
        let used = self.used.get();
        let at = u64::from(used as u32);
        let delta = now.wrapping_sub(self.time.get());
        if at >= self.room.get() || delta >= MAX_DELTA {
            return false;
        }
        // SAFETY: the sub-buffer has `room` words behind its header, which ends with its length.
        unsafe {
            let data = self.data.get();
            (*data.add(at as usize)).store(word | event::delta(delta), Ordering::Relaxed);
            self.time.set(now);
            self.used.set(used + 1);
            // Release: a reader that sees the length sees the event. Pairs with the load of `USED`
            // in `Cursor::copy`.
            (*data.sub(1)).store(used + 1, length_order());
        }
        true
    }

    /// Writes an event of several words: the first one is from [`event::call`], followed by
    /// [extensions](event::extension). Returns `false`, and writes nothing, if that takes
    /// [`write`](Self::write).
    ///
    /// # Safety
    ///
    /// The contract of [`attach`](Self::attach) holds.
    #[inline(always)]
    #[must_use]
    pub unsafe fn event(&self, words: &[u64], now: u64) -> bool {
        // SAFETY: the caller keeps the same contract.
        unsafe { self.first_words(words, words.len(), now) }
    }

    /// Writes an event like [`event`](Self::event), from the first `len` of these words, 1 to `N`.
    /// The constant `N` makes this faster if it is small.
    ///
    /// # Safety
    ///
    /// The contract of [`attach`](Self::attach) holds.
    #[inline(always)]
    #[must_use]
    pub unsafe fn short_event<const N: usize>(
        &self,
        words: [u64; N],
        len: usize,
        now: u64,
    ) -> bool {
        // SAFETY: the caller keeps the same contract.
        unsafe { self.first_words(&words, len, now) }
    }

    /// Writes all `words` if there is room for them, and counts the first `len` as an event.
    ///
    /// # Safety
    ///
    /// The contract of [`attach`](Self::attach) holds.
    #[inline(always)]
    unsafe fn first_words(&self, words: &[u64], len: usize, now: u64) -> bool {
        let used = self.used.get();
        let (at, all) = (u64::from(used as u32), words.len() as u64);
        let delta = now.wrapping_sub(self.time.get());
        let Some((first, rest)) = words.split_first() else {
            return true;
        };
        if at + all > self.room.get() || delta >= MAX_DELTA {
            return false;
        }
        let len = (len as u64).clamp(1, all);
        // SAFETY: the sub-buffer has `room` words behind its header, which ends with its length.
        unsafe {
            let data = self.data.get().add(at as usize);
            (*data).store(first | event::delta(delta), Ordering::Relaxed);
            for (index, word) in rest.iter().enumerate() {
                (*data.add(index + 1)).store(*word, Ordering::Relaxed);
            }
            let used = used + len + ((len - 1) << MORE_SHIFT);
            self.time.set(now);
            self.used.set(used);
            // Release: a reader that sees the length sees the event, as in `call`.
            (*self.data.get().sub(1)).store(used, length_order());
        }
        true
    }

    /// Writes an event like [`event`](Self::event), after the processor, even if a new sub-buffer
    /// must be opened. Returns `false` if the event was dropped.
    ///
    /// # Safety
    ///
    /// The contract of [`attach`](Self::attach) holds, and `rings` are those to which the writer is
    /// attached.
    #[inline(never)]
    pub unsafe fn write(&self, rings: &Rings, words: &[u64], now: u64, cpu: Option<u32>) -> bool {
        if self.ring.get() == 0 {
            return false;
        }
        let is_other_cpu = !self.is_on(cpu);
        let len = words.len() + 2 * usize::from(is_other_cpu);
        let needs_time = now.wrapping_sub(self.time.get()) >= MAX_DELTA;
        let end = self.used.get() as u32 as usize + len + 2 * usize::from(needs_time);
        if end > self.room.get() as usize {
            // A new sub-buffer begins at this time.
            // SAFETY: the caller keeps the same contract.
            let is_open = len <= rings.geometry.room() && unsafe { self.open(rings, now) };
            if !is_open {
                return self.drop_event(rings, words);
            }
        }
        let used = self.used.get();
        let begin = used as u32 as usize;
        let mut at = begin;
        let mut put = |word| {
            // SAFETY: the sub-buffer has room for all the words, and only this writer stores there.
            unsafe { (*self.data.get().add(at)).store(word, Ordering::Relaxed) };
            at += 1;
        };
        let mut delta = now.wrapping_sub(self.time.get());
        if delta >= MAX_DELTA {
            put(event::extension(Extension::Time, 1));
            put(now);
            delta = 0;
        }
        if let Some(cpu) = cpu
            && is_other_cpu
        {
            put(event::extension(Extension::Cpu, 1));
            put(cpu.into());
            self.cpu.set(cpu.wrapping_add(1));
        }
        let mut delta = event::delta(delta);
        for word in words {
            put(word | delta);
            delta = 0;
        }
        let len = (at - begin) as u64;
        let used = used + len + ((len - 1) << MORE_SHIFT);
        self.time.set(now);
        self.used.set(used);
        // SAFETY: the length is in the last word of the sub-buffer's header. Release: as in `call`.
        unsafe { (*self.data.get().sub(1)).store(used, length_order()) };
        true
    }

    /// Writes a text, cut after [`MAX_MARK`] bytes, and a processor if that is known; `false` if it
    /// was dropped.
    ///
    /// # Safety
    ///
    /// The contract of [`write`](Self::write) holds.
    pub unsafe fn mark(&self, rings: &Rings, now: u64, cpu: Option<u32>, text: &[u8]) -> bool {
        let text = &text[..text.len().min(MAX_MARK)];
        let len = event::mark_words(text.len());
        let mut words = [0; 1 + event::mark_words(MAX_MARK)];
        words[0] = event::extension(Extension::Mark, len as u16);
        words[1] = text.len() as u64;
        for (word, bytes) in words[2..].iter_mut().zip(text.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(whole);
        }
        // SAFETY: the caller keeps the same contract.
        unsafe { self.write(rings, &words[..=len], now, cpu) }
    }

    /// Waits for room, if an event of `len` words has none and the mode of the rings is
    /// [`Block`](Mode::Block). Returns true if it has waited and there is room now. Call this
    /// before [`write`](Self::write), which drops events that have no room.
    ///
    /// `may_wait` returns true if the running thread may sleep here. Sleeping makes system calls;
    /// no thread sleeps after [`Rings::make_no_calls`].
    ///
    /// # Safety
    ///
    /// The contract of [`write`](Self::write) holds.
    pub unsafe fn wait(&self, rings: &Rings, len: usize, may_wait: impl FnOnce() -> bool) -> bool {
        /// Words that may come before an event: its time, and its processor.
        const BEFORE: usize = 4;
        let end = self.used.get() as u32 as usize + BEFORE + len;
        if rings.geometry.mode != Mode::Block || end <= self.room.get() as usize {
            return false;
        }
        let index = self.ring.get().wrapping_sub(1);
        let ring = rings.ring_header(index);
        if ring.is_empty() {
            return false;
        }
        let (head, consumed) = (&ring[ring::HEAD], &ring[ring::CONSUMED]);
        // Acquire: the consumer has copied the words before it gave them back, as in `open`.
        let found = consumed.load(Ordering::Acquire);
        // If no more of the ring can be mapped, the mapped part is all of it.
        let head = head.load(Ordering::Relaxed);
        if rings.free_place(index, head, found).is_some() {
            return false;
        }
        let waiting = Waiting {
            consumed,
            found,
            waiting: &ring[ring::WAITING],
            waited: &ring[ring::WAITED],
            progress: rings.word(at::PROGRESS),
        };
        let is_over = || rings.is_finished() || rings.has_reader() == Some(false);
        waiting.wait(&self.gave_up, is_over, may_wait)
    }

    /// Opens the ring's next sub-buffer; `false` if there is no room for one.
    ///
    /// # Safety
    ///
    /// The contract of [`write`](Self::write) holds.
    unsafe fn open(&self, rings: &Rings, now: u64) -> bool {
        let geometry = &rings.geometry;
        let index = self.ring.get().wrapping_sub(1);
        let header = rings.ring_header(index);
        if header.is_empty() {
            return false;
        }
        let head = header[ring::HEAD].load(Ordering::Relaxed);
        // Acquire: the consumer has copied the words that this writer is about to overwrite.
        let consumed = header[ring::CONSUMED].load(Ordering::Acquire);
        let Some(next) = rings.make_place(index, head, consumed) else {
            return false;
        };
        let mut events = 0;
        if let Some(before) = head.checked_sub(1) {
            let Some(before) = rings.sub_buffer(index, before) else {
                return false;
            };
            let used = before[sub::USED].load(Ordering::Relaxed);
            let found = u64::from(used as u32).wrapping_sub(used >> MORE_SHIFT);
            events = before[sub::EVENTS]
                .load(Ordering::Relaxed)
                .wrapping_add(found);
        }
        let kind = rings.clock().kind();
        let anchor = Anchor::now(kind);
        if is_taken(Step::OddState) {
            let odd = head.wrapping_mul(2).wrapping_add(1);
            next[sub::STATE].store(odd, Ordering::Relaxed);
        }
        // Release: a reader that sees any of the following stores finds the odd state afterwards.
        // Pairs with the fence in `Cursor::copy`.
        if is_taken(Step::WriterFence) {
            fence(Ordering::Release);
        }
        for (at, value) in [
            (sub::OWNER, self.owner.get()),
            (sub::TIME, now),
            (sub::EVENTS, events),
            (sub::DROPPED, header[ring::DROPPED].load(Ordering::Relaxed)),
            (
                sub::DROPPED_ENDS,
                header[ring::DROPPED_ENDS].load(Ordering::Relaxed),
            ),
            (sub::OWN_DROPPED, self.dropped.get()),
            (sub::ANCHOR, anchor.ticks),
            (sub::ANCHOR + 1, anchor.monotonic),
            (sub::ANCHOR + 2, anchor.realtime),
            (sub::TABLE, rings.table_used() as u64),
            (sub::CPU, self.cpu.get().into()),
            (sub::USED, 0),
        ] {
            next[at].store(value, Ordering::Relaxed);
        }
        // Release: a reader that sees the state sees the header.
        next[sub::STATE].store(head.wrapping_mul(2).wrapping_add(2), Ordering::Release);
        // Release: a reader that sees the new count finds the previous sub-buffer complete.
        header[ring::HEAD].store(head.wrapping_add(1), Ordering::Release);
        self.data.set(next[sub::HEADER..].as_ptr());
        self.used.set(0);
        self.room.set(geometry.room() as u64);
        self.time.set(now);
        self.dropped.set(0);
        true
    }

    /// Counts an event that finds no room, and closes the sub-buffer: a later, shorter event must
    /// not come before the place where readers learn of the loss.
    fn drop_event(&self, rings: &Rings, words: &[u64]) -> bool {
        self.room.set(u64::from(self.used.get() as u32));
        let header = rings.ring_header(self.ring.get().wrapping_sub(1));
        let count = |at: usize| {
            if let Some(place) = header.get(at) {
                let count = place.load(Ordering::Relaxed).wrapping_add(1);
                place.store(count, Ordering::Relaxed);
            }
        };
        count(ring::DROPPED);
        let call = words.first().and_then(|&word| event::as_call(word));
        if call.is_some_and(|(kind, _)| kind != Kind::Entry) {
            count(ring::DROPPED_ENDS);
        }
        self.dropped.set(self.dropped.get().wrapping_add(1));
        false
    }
}

impl Default for Writer {
    fn default() -> Self {
        Self::new()
    }
}

impl Rings {
    /// Takes a ring for a thread: one whose thread `is_gone`, or an unused one. Returns `None` if
    /// there is neither; the caller then [counts](Self::count_without_ring) the thread's events.
    ///
    /// `is_gone` gets process and thread. Apart from `is_gone`, this neither allocates nor locks.
    pub fn take(
        &self,
        process: u32,
        thread: u32,
        is_gone: impl Fn(u32, u32) -> bool,
    ) -> Option<u32> {
        let ours = owner(process, thread);
        let claim = |index: u32| {
            let place = self.ring_header(index).get(ring::OWNER)?;
            let found = place.load(Ordering::Relaxed);
            let is_free = match found {
                0 => true,
                // The owner is an earlier thread with our id, or our own thread after it lost its
                // writer.
                found if found == ours => true,
                _ => is_gone((found >> 32) as u32, found as u32),
            };
            // Acquire: the previous owner's stores to the ring.
            let claimed = is_free
                && place
                    .compare_exchange(found, ours, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok();
            claimed.then_some(index)
        };
        let taken = self.ring_count();
        // A ring that was given back keeps its memory.
        let is_given_back = |index: &u32| {
            let place = self.ring_header(*index).get(ring::OWNER);
            place.is_some_and(|place| place.load(Ordering::Relaxed) == 0)
        };
        let mut given_back = (0..taken).filter(is_given_back);
        let found = given_back.find_map(|index| self.has_room(index).then(|| claim(index))?);
        if found.is_some() {
            return found;
        }
        // Each thread starts at another ring, so that all are checked in the end.
        let start = thread.wrapping_mul(LOOKED_AT);
        let mut looked_at = (0..taken.min(LOOKED_AT)).map(|n| start.wrapping_add(n) % taken);
        let found = looked_at.find_map(|index| self.has_room(index).then(|| claim(index))?);
        if found.is_some() {
            return found;
        }
        let place = self.word(at::TAKEN);
        let mut next = place.load(Ordering::Relaxed);
        while next < u64::from(self.geometry.rings) {
            // Release: readers that see the count find the ring as it was made, all zeros.
            match place.compare_exchange(next, next + 1, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => match claim(next as u32) {
                    Some(index) => return Some(index),
                    None => next += 1,
                },
                Err(found) => next = found,
            }
        }
        (0..self.ring_count()).find_map(claim)
    }

    /// Returns the ring of a thread, if it has one. Neither allocates nor locks.
    #[must_use]
    pub fn ring_of(&self, process: u32, thread: u32) -> Option<u32> {
        let ours = owner(process, thread);
        let is_ours = |index: &u32| {
            let place = self.ring_header(*index).get(ring::OWNER);
            place.is_some_and(|place| place.load(Ordering::Relaxed) == ours)
        };
        (0..self.ring_count()).find(is_ours)
    }

    /// Returns true if a sub-buffer of a ring can be opened now.
    fn has_room(&self, index: u32) -> bool {
        let load = |at: usize| {
            let place = self.ring_header(index).get(at);
            place.map_or(0, |place| place.load(Ordering::Relaxed))
        };
        let used = load(ring::HEAD).wrapping_sub(load(ring::CONSUMED));
        self.geometry.mode == Mode::Overwrite || used < u64::from(self.geometry.sub_buffers)
    }

    /// Gives back a ring that its thread no longer writes.
    ///
    /// # Safety
    ///
    /// The [`Writer`] that has the ring must not be used for it again.
    pub unsafe fn give_back(&self, index: u32) {
        if let Some(place) = self.ring_header(index).get(ring::OWNER) {
            // Release: the next owner finds all words that were written to it.
            place.store(0, Ordering::Release);
        }
    }

    /// Counts an event of a thread that has no ring.
    pub fn count_without_ring(&self) {
        self.word(at::WITHOUT_RING).fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how often this was called before on these rings, by all processes that share them:
    /// a number for each call, from 0.
    pub fn next_number(&self) -> u64 {
        // Relaxed: the number is the only data.
        self.word(at::NUMBERS).fetch_add(1, Ordering::Relaxed)
    }

    /// Makes a writer for the calling thread, which borrows the rings.
    ///
    /// ```
    /// use fgraph_trace::event::{Kind, call};
    /// use fgraph_trace::ring::{RingOptions, Rings};
    ///
    /// let rings = Rings::create(&RingOptions::default())?;
    /// let writer = rings.writer(std::process::id(), 1).expect("there are rings enough");
    /// writer.call(call(Kind::Entry, 7), 1000);
    /// writer.call(call(Kind::Return, 7), 1200);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// Returns `None` if all rings are taken.
    #[must_use]
    pub fn writer(&self, process: u32, thread: u32) -> Option<ThreadWriter<'_>> {
        // A ring of this thread that is in use by a writer must not be taken from it.
        let index = loop {
            let index = self.take_fresh(process, thread)?;
            if let Some(index) = index {
                break index;
            }
        };
        let writer = Writer::new();
        // SAFETY: the rings are borrowed, and no other writer has this ring.
        unsafe { writer.attach(self, index) };
        Some(ThreadWriter {
            rings: self,
            writer,
        })
    }

    /// Takes an unused ring: `None` if there is none, `Some(None)` if another thread was faster.
    fn take_fresh(&self, process: u32, thread: u32) -> Option<Option<u32>> {
        let claim = |index: u32| {
            let place = self.ring_header(index).get(ring::OWNER)?;
            let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
            let claimed = place.compare_exchange(0, owner(process, thread), acquire, relaxed);
            claimed.is_ok().then_some(index)
        };
        let taken = self.ring_count();
        if let Some(index) = (0..taken).find_map(claim) {
            return Some(Some(index));
        }
        if taken == self.geometry.rings {
            return None;
        }
        let place = self.word(at::TAKEN);
        let (release, relaxed) = (Ordering::Release, Ordering::Relaxed);
        let (old, new) = (taken.into(), u64::from(taken) + 1);
        let counted = place.compare_exchange(old, new, release, relaxed).is_ok();
        Some(if counted { claim(taken) } else { None })
    }
}

/// A [`Writer`] that borrows its rings, and gives back its ring when it is dropped.
#[derive(Debug)]
pub struct ThreadWriter<'r> {
    rings: &'r Rings,
    writer: Writer,
}

impl ThreadWriter<'_> {
    /// Returns the clock of the rings.
    #[must_use]
    pub fn clock(&self) -> ClockKind {
        self.rings.clock().kind()
    }

    /// Writes an entry or a return; `word` is from [`event::call`]. Returns `false` if it was
    /// dropped.
    #[inline]
    pub fn call(&self, word: u64, now: u64) -> bool {
        // SAFETY: the writer cannot be shared with other threads, and borrows the rings.
        unsafe { self.writer.call(word, now) || self.writer.write(self.rings, &[word], now, None) }
    }

    /// Writes an event like [`call`](Self::call), with more data. Each part is cut after 64 words.
    pub fn call_with(&self, word: u64, now: u64, extras: &Extras<'_>) -> bool {
        let parts = [
            (Extension::Arguments, extras.arguments),
            (Extension::Caller, extras.caller.as_slice()),
            (Extension::Result, extras.result),
            (Extension::Running, extras.running.as_slice()),
            (Extension::Values, extras.values),
            (Extension::Stack, extras.stack),
        ];
        let mut event = vec![word];
        for (what, words) in parts.iter().filter(|(_, words)| !words.is_empty()) {
            let words = &words[..words.len().min(64)];
            event.push(event::extension(*what, words.len() as u16));
            event.extend_from_slice(words);
        }
        if extras.is_entry_only {
            event.push(event::extension(Extension::EntryOnly, 0));
        }
        // SAFETY: the writer cannot be shared with other threads, and borrows the rings.
        unsafe { self.writer.write(self.rings, &event, now, extras.cpu) }
    }

    /// Writes that a call of a function was [dropped](crate::event::What::Dropped). Returns `false`
    /// if the event was dropped.
    pub fn dropped(&self, function: u32, now: u64) -> bool {
        let event = [
            event::call(Kind::Unwound, function),
            event::extension(Extension::Dropped, 0),
        ];
        // SAFETY: the writer cannot be shared with other threads, and borrows the rings.
        unsafe { self.writer.write(self.rings, &event, now, None) }
    }

    /// Writes a text, cut after [`MAX_MARK`] bytes. Returns `false` if it was dropped.
    pub fn mark(&self, now: u64, text: &str) -> bool {
        // SAFETY: the writer cannot be shared with other threads, and borrows the rings.
        unsafe { self.writer.mark(self.rings, now, None, text.as_bytes()) }
    }
}

impl Drop for ThreadWriter<'_> {
    fn drop(&mut self) {
        if let Some(index) = self.writer.ring() {
            // SAFETY: the writer that has the ring is being dropped.
            unsafe { self.rings.give_back(index) };
        }
    }
}
