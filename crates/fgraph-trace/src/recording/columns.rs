//! Chunks of events as a recording stores them: the kinds in one column and the times in another,
//! which packs better than the words of a ring.
//!
//! ```text
//!   what    0                         the innermost call of the chunk returns
//!           function << 2 | kind      an entry (1), a return (2) or an unwound call (3)
//!           extension << 2            then the number of its words, then these
//!           1024                      then a word as it is, in 8 bytes
//!   times   ticks since the event before, one number for each of the first three
//! ```

use super::block::{pull, push};
use crate::clock::Anchor;
use crate::event::{self, Extension, Kind};
use crate::ring::Chunk;

/// Code of a word that is stored whole.
const WORD: u64 = 1024;

/// Appends the data of a chunk other than its events.
pub(super) fn push_head(out: &mut Vec<u8>, chunk: &Chunk) {
    let Anchor {
        ticks,
        monotonic,
        realtime,
    } = chunk.anchor;
    for number in [
        chunk.ring.into(),
        chunk.sequence,
        chunk.offset.into(),
        chunk.process.into(),
        chunk.thread.into(),
        chunk.time,
        chunk.cpu.map_or(0, |cpu| u64::from(cpu) + 1),
        chunk.events,
        chunk.dropped,
        chunk.own_dropped,
        ticks,
        monotonic,
        realtime,
        chunk.words.len() as u64,
    ] {
        push(out, number);
    }
    if let Some(ends) = chunk.dropped_ends {
        push(out, ends);
    }
}

/// The most words of a chunk: those of the largest sub-buffer.
const MAX_WORDS: usize = 2 << 20;

/// Returns the most bytes that a body with this many words has: two numbers for each.
pub(super) fn longest_body(words: usize) -> usize {
    20 * (words + 1)
}

/// Reads what [`push_head`] has written, and the number of words.
pub(super) fn pull_head(mut head: &[u8]) -> Option<(Chunk, usize)> {
    let mut next = || pull(&mut head);
    let mut chunk = Chunk {
        ring: next()? as u32,
        sequence: next()?,
        offset: next()? as u32,
        process: next()? as u32,
        thread: next()? as u32,
        time: next()?,
        cpu: next()?.checked_sub(1).map(|cpu| cpu as u32),
        events: next()?,
        dropped: next()?,
        own_dropped: next()?,
        dropped_ends: None,
        anchor: Anchor {
            ticks: next()?,
            monotonic: next()?,
            realtime: next()?,
        },
        words: Vec::new(),
    };
    let words = usize::try_from(next()?).ok()?;
    chunk.dropped_ends = next();
    (words <= MAX_WORDS).then_some((chunk, words))
}

/// The number of events that were written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pushed {
    pub(super) events: u64,
    /// The number of entries among these events.
    pub(super) entries: u64,
}

/// The number and the duration of calls of one function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallSum {
    /// The number of calls that began.
    pub begun: u64,
    /// The number of calls that began and ended in the same chunk of events.
    pub whole: u64,
    /// Ticks of the whole calls, excluding the calls inside them.
    pub own: u64,
}

impl CallSum {
    /// The sum of these numbers of calls and ticks.
    #[must_use]
    pub const fn new(begun: u64, whole: u64, own: u64) -> Self {
        Self { begun, whole, own }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.begun = self.begun.saturating_add(other.begun);
        self.whole = self.whole.saturating_add(other.whole);
        self.own = self.own.saturating_add(other.own);
    }
}

/// Counts the calls of each function in a chunk.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// The calls of each function, up to the highest index that was called.
    sums: Vec<CallSum>,
    /// The same of functions of an interpreted language, from the first of their indices on.
    interpreted: Vec<CallSum>,
    /// The functions that were called.
    called: Vec<u32>,
    /// The fewest ticks between an entry and a return that follows it.
    shortest: Option<u64>,
}

impl Tally {
    /// Returns the sums that have the one of a function, and its place in them.
    #[inline(always)]
    fn place(&mut self, function: u32) -> (&mut Vec<CallSum>, usize) {
        match function.checked_sub(event::FIRST_INTERPRETED) {
            None => (&mut self.sums, function as usize),
            Some(at) => (&mut self.interpreted, at as usize),
        }
    }

    /// Counts a call that begins.
    #[inline(always)]
    fn begin(&mut self, function: u32) {
        let (sums, at) = self.place(function);
        if at >= sums.len() {
            sums.resize(at + 1, CallSum::default());
        }
        sums[at].begun += 1;
        if sums[at].begun == 1 {
            self.called.push(function);
        }
    }

    /// Counts the end of a call that began in the chunk.
    #[inline(always)]
    fn end(&mut self, function: u32, own: u64) {
        let (sums, at) = self.place(function);
        if let Some(sum) = sums.get_mut(at) {
            sum.whole += 1;
            sum.own = sum.own.saturating_add(own);
        }
    }

    /// Moves the calls of each function to `calls`, and returns the duration of the shortest one.
    pub(super) fn take(&mut self, calls: &mut Vec<(u32, CallSum)>) -> Option<u64> {
        let mut called = std::mem::take(&mut self.called);
        for function in called.drain(..) {
            let (sums, at) = self.place(function);
            calls.push((function, std::mem::take(&mut sums[at])));
        }
        // Its memory is used again.
        self.called = called;
        self.shortest.take()
    }
}

/// Writes the words of a chunk, and returns the number of events.
pub(super) fn push_words(out: &mut Vec<u8>, words: &[u64], tally: &mut Tally) -> Pushed {
    let mut pushed = Pushed::default();
    let mut times = Vec::with_capacity(words.len() * 2);
    let mut what = Vec::with_capacity(words.len() * 2);
    // The functions of the calls in progress, and their own ticks until now.
    let mut open: Vec<(u32, u64)> = Vec::new();
    let mut was_entry = false;
    let mut at = 0;
    while let Some(&word) = words.get(at) {
        at += 1;
        if let Some((kind, function)) = event::as_call(word) {
            let took = event::delta_of(word);
            if let Some((_, own)) = open.last_mut() {
                *own += took;
            }
            let ended = if kind == Kind::Entry {
                None
            } else {
                open.pop()
            };
            let ended = ended.filter(|(of, _)| *of == function);
            if let Some((_, own)) = ended
                && !(kind == Kind::Unwound && event::is_dropped(words, at - 1))
            {
                tally.end(function, own);
            }
            if kind == Kind::Return && ended.is_some() {
                push(&mut what, 0);
                if was_entry {
                    tally.shortest = Some(tally.shortest.map_or(took, |it| it.min(took)));
                }
            } else {
                push(&mut what, u64::from(function) << 2 | kind as u64);
            }
            was_entry = kind == Kind::Entry;
            if was_entry {
                open.push((function, 0));
                tally.begin(function);
                pushed.entries += 1;
            }
            pushed.events += 1;
        } else if let Some((of, len)) = event::as_extension(word)
            && of != 0
            && let Some(inner) = words.get(at..at + len)
        {
            push(&mut what, u64::from(of) << 2);
            push(&mut what, len as u64);
            pushed.events += u64::from(of == Extension::Mark as u8);
            inner.iter().for_each(|&word| push(&mut what, word));
            at += len;
        } else {
            push(&mut what, WORD);
            what.extend_from_slice(&word.to_le_bytes());
            continue;
        }
        push(&mut times, event::delta_of(word));
    }
    push(out, what.len() as u64);
    out.extend_from_slice(&what);
    out.extend_from_slice(&times);
    pushed
}

/// Reads what [`push_words`] has written: exactly `count` words, or `None`.
pub(super) fn pull_words(mut body: &[u8], count: usize, words: &mut Vec<u64>) -> Option<()> {
    words.clear();
    let len = usize::try_from(pull(&mut body)?).ok()?;
    let (mut what, mut times) = body.split_at_checked(len)?;
    // Each word takes at least a byte.
    words.reserve(count.min(what.len()));
    let mut open: Vec<u32> = Vec::new();
    while !what.is_empty() && words.len() <= count {
        let code = pull(&mut what)?;
        if code == WORD {
            let (word, rest) = what.split_first_chunk()?;
            what = rest;
            words.push(u64::from_le_bytes(*word));
            continue;
        }
        let delta = event::delta(pull(&mut times)?);
        match code & 3 {
            0 if code != 0 => {
                let len = pull(&mut what)?;
                let of = u8::try_from(code >> 2).ok()?;
                words.push(event::extension_of(of, u16::try_from(len).ok()?) | delta);
                for _ in 0..len {
                    words.push(pull(&mut what)?);
                }
            }
            kind => {
                let (kind, function) = match kind {
                    0 => (Kind::Return, open.pop()?),
                    1 => (Kind::Entry, (code >> 2) as u32),
                    kind => {
                        open.pop();
                        let kind = if kind == 2 {
                            Kind::Return
                        } else {
                            Kind::Unwound
                        };
                        (kind, (code >> 2) as u32)
                    }
                };
                if kind == Kind::Entry {
                    open.push(function);
                }
                words.push(event::call(kind, function) | delta);
            }
        }
    }
    (words.len() == count && times.is_empty()).then_some(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::RefCell;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::test_runner::TestRunner;

    use super::*;
    use crate::event::{call, delta, extension};

    fn there_and_back(words: &[u64], tally: &mut Tally) -> Vec<u64> {
        let (mut body, mut found) = (Vec::new(), Vec::new());
        push_words(&mut body, words, tally);
        pull_words(&body, words.len(), &mut found).unwrap();
        found
    }

    #[test]
    fn calls_and_what_belongs_to_them_come_back() {
        let words = [
            call(Kind::Entry, 1) | delta(5),
            call(Kind::Entry, 70_000) | delta(1 << 35),
            extension(Extension::Arguments, 2),
            u64::MAX,
            0,
            call(Kind::Entry, 2) | delta(3),
            extension(Extension::EntryOnly, 0),
            call(Kind::Return, 70_000) | delta(9),
            call(Kind::Return, 3),
            call(Kind::Unwound, 1),
            extension(Extension::Dropped, 0),
            0,
            7,
            extension(Extension::Mark, 9) | delta(1),
            1,
        ];
        assert_eq!(there_and_back(&words, &mut Tally::default()), words);
    }

    #[test]
    fn a_call_takes_few_bytes() {
        let mut words = Vec::new();
        for n in 0..1000 {
            words.extend([
                call(Kind::Entry, n % 7) | delta(90),
                call(Kind::Return, n % 7) | delta(60),
            ]);
        }
        let mut body = Vec::new();
        let mut tally = Tally::default();
        let pushed = push_words(&mut body, &words, &mut tally);
        assert!(body.len() <= 1000 * 4 + 8, "{}", body.len());
        assert_eq!((pushed.events, pushed.entries), (2000, 1000));
        for shortest in [Some(60), None] {
            let mut calls = Vec::new();
            assert_eq!(tally.take(&mut calls), shortest);
            // 143 calls of the first six functions, and 142 of the last one.
            let expected = (0..7).map(|n| {
                let calls = 143 - u64::from(n) / 6;
                let sum = CallSum {
                    begun: calls,
                    whole: calls,
                    own: 60 * calls,
                };
                (n, sum)
            });
            let expected: Vec<_> = expected.filter(|_| shortest.is_some()).collect();
            assert_eq!(calls, expected);
        }
    }

    #[test]
    fn time_of_calls_inside_is_not_a_calls_own() {
        let words = [
            // A call that began in an earlier chunk.
            call(Kind::Return, 9) | delta(1),
            call(Kind::Entry, 1) | delta(2),
            call(Kind::Entry, 2) | delta(10),
            call(Kind::Return, 2) | delta(20),
            call(Kind::Entry, 2) | delta(30),
            call(Kind::Unwound, 2) | delta(40),
            call(Kind::Return, 1) | delta(50),
            call(Kind::Entry, 3) | delta(60),
            // A dropped call has no duration.
            call(Kind::Entry, 2) | delta(70),
            call(Kind::Unwound, 2) | delta(80),
            extension(Extension::Dropped, 0),
        ];
        let (mut tally, mut calls) = (Tally::default(), Vec::new());
        push_words(&mut Vec::new(), &words, &mut tally);
        tally.take(&mut calls);
        let sum = |begun, whole, own| CallSum { begun, whole, own };
        let expected = [(1, sum(1, 1, 90)), (2, sum(3, 2, 60)), (3, sum(1, 0, 0))];
        assert_eq!(calls, expected);
    }

    #[test]
    fn any_words_come_back() {
        let word = prop_oneof![
            any::<u64>(),
            0..64_u64,
            any::<u64>().prop_map(|word| word << 28 | 1)
        ];
        // It is as large as the highest function, and is made once.
        let tally = RefCell::new(Tally::default());
        let come_back = |words: Vec<u64>| {
            let mut tally = tally.borrow_mut();
            prop_assert_eq!(there_and_back(&words, &mut tally), words);
            tally.take(&mut Vec::new());
            Ok(())
        };
        let run = TestRunner::default().run(&vec(word, 0..200), come_back);
        run.unwrap_or_else(|failure| panic!("{failure}"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(body in vec(any::<u8>(), 0..300), count in 0..300_usize) {
            let mut words = Vec::new();
            let _ = pull_words(&body, count, &mut words);
            let _ = pull_head(&body);
        }
    }
}
