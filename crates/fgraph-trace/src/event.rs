//! How events are written in words of 64 bits.
//!
//! ```text
//!   bits  0..4    kind: entry, return, unwound, or extension
//!   bits  4..28   the function's index; of an extension what it is (8 bits) and how many words
//!                 follow (16 bits)
//!   bits 28..64   ticks of the clock since the event before
//! ```
//!
//! A zero is no event. An extension stands behind the entry or return that it belongs to, or by
//! itself; one of an unknown kind is skipped by its length, a word of an unknown kind alone.

/// Function indices are less than this.
pub const MAX_FUNCTIONS: u32 = 1 << 24;
/// Differences of time in one word are less than this; a longer one takes [`Extension::Time`].
pub const MAX_DELTA: u64 = 1 << 36;
/// The longest text of a mark, in bytes.
pub const MAX_MARK: usize = 4096;

const FUNCTION_SHIFT: u32 = 4;
const DELTA_SHIFT: u32 = 28;
const LEN_SHIFT: u32 = 12;

/// What a word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A function is entered.
    Entry = 1,
    /// A function returns.
    Return = 2,
    /// A function ends without a result: by a panic, an exception or the end of its thread.
    Unwound = 3,
    /// Something longer, see [`Extension`].
    Extension = 15,
}

/// What an extension is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Extension {
    /// One word: the clock at which the next event counts from.
    Time = 1,
    /// The arguments of the entry before it, a word each.
    Arguments = 2,
    /// The result of the return before it, a word for each register.
    Result = 3,
    /// A text of the program's: a word with the number of its bytes, then the bytes.
    Mark = 4,
    /// One word: the processor on which the thread runs from here on.
    Cpu = 5,
    /// One word: where the call before it returns to.
    Caller = 6,
    /// One word: nanoseconds that the thread had run at the event before it, see
    /// [`Event::running`](crate::Event::running).
    Running = 7,
    /// The arguments of the entry before it, or the result of the return, by their types, see
    /// [`values`](crate::values).
    Values = 8,
    /// No words: the call of the entry before it is [entry only](What::Entry::is_entry_only).
    EntryOnly = 9,
    /// Where the calls around the entry before it return to, see
    /// [`Event::stack`](crate::Event::stack).
    Stack = 10,
}

impl Extension {
    fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            1 => Self::Time,
            2 => Self::Arguments,
            3 => Self::Result,
            4 => Self::Mark,
            5 => Self::Cpu,
            6 => Self::Caller,
            7 => Self::Running,
            8 => Self::Values,
            9 => Self::EntryOnly,
            10 => Self::Stack,
            _ => return None,
        })
    }
}

/// The word of an entry or a return, without its time.
#[inline(always)]
#[must_use]
pub const fn call(kind: Kind, function: u32) -> u64 {
    kind as u64 | ((function & (MAX_FUNCTIONS - 1)) as u64) << FUNCTION_SHIFT
}

/// The first word of an extension of `len` further words, without its time.
#[inline(always)]
#[must_use]
pub const fn extension(what: Extension, len: u16) -> u64 {
    extension_of(what as u8, len)
}

/// The place of `delta`, which must be less than [`MAX_DELTA`], in a word.
#[inline(always)]
#[must_use]
pub const fn delta(delta: u64) -> u64 {
    delta << DELTA_SHIFT
}

/// Kind and function of an entry or a return.
#[inline]
pub(crate) const fn as_call(word: u64) -> Option<(Kind, u32)> {
    let kind = match word & 15 {
        1 => Kind::Entry,
        2 => Kind::Return,
        3 => Kind::Unwound,
        _ => return None,
    };
    Some((kind, (word >> FUNCTION_SHIFT) as u32 & (MAX_FUNCTIONS - 1)))
}

/// What an extension is, known or not, and how many words follow.
pub(crate) const fn as_extension(word: u64) -> Option<(u8, usize)> {
    if word & 15 != Kind::Extension as u64 {
        return None;
    }
    let len = (word >> LEN_SHIFT) as u16;
    Some(((word >> FUNCTION_SHIFT) as u8, len as usize))
}

/// As [`extension`], known or not.
pub(crate) const fn extension_of(what: u8, len: u16) -> u64 {
    Kind::Extension as u64 | (what as u64) << FUNCTION_SHIFT | (len as u64) << LEN_SHIFT
}

/// The difference of time in a word.
#[inline]
pub(crate) const fn delta_of(word: u64) -> u64 {
    word >> DELTA_SHIFT
}

/// The number of words of the text of a mark, with the one that says its length.
pub(crate) const fn mark_words(len: usize) -> usize {
    1 + len.div_ceil(8)
}

/// What an event says, without its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What<'a> {
    /// A function is entered.
    Entry {
        /// Its index.
        function: u32,
        /// The words of its arguments that were recorded.
        arguments: &'a [u64],
        /// Where it returns to, if that was recorded.
        caller: Option<u64>,
        /// Whether the call's end is not recorded: how long it goes on is not known, and what
        /// follows is taken to be called by the function around it.
        is_entry_only: bool,
    },
    /// A function returns.
    Return {
        /// Its index.
        function: u32,
        /// The registers of its result that were recorded.
        result: &'a [u64],
    },
    /// A function ends without a result.
    Unwound {
        /// Its index.
        function: u32,
    },
    /// The program has said something.
    Mark(&'a [u64]),
    /// Events of the thread are missing here.
    Lost {
        /// How many.
        events: u64,
        /// How many of them ended calls whose entries are among the events that were given: the
        /// innermost calls of the thread. `None` if any number of calls may have ended, and calls
        /// may have begun whose ends follow.
        ends: Option<u64>,
    },
}

/// The text of a mark, from the words of [`What::Mark`].
///
/// What is not UTF-8 is replaced.
#[must_use]
pub fn mark_text(words: &[u64]) -> String {
    let (len, words) = words.split_first().unwrap_or((&0, &[]));
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.truncate(usize::try_from(*len).unwrap_or(usize::MAX));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Where an event stands among words, and when it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// Index of its first word.
    pub(crate) at: usize,
    /// Index behind its last extension.
    pub(crate) end: usize,
    /// By the clock as it was read.
    pub(crate) time: u64,
}

impl Place {
    /// Whether extensions belong to the event.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        self.end > self.at + 1
    }
}

/// Walks over the events in words.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Walk {
    /// The next word.
    pub(crate) at: usize,
    /// The clock at the event before.
    pub(crate) time: u64,
    /// The processor, counted from 1; 0 while it is not known.
    pub(crate) cpu: u32,
}

/// The extension that begins at `at`: what it is, and where its words are.
fn extension_at(words: &[u64], at: usize) -> Option<(Option<Extension>, &[u64])> {
    let word = *words.get(at)?;
    if word & 15 != Kind::Extension as u64 {
        return None;
    }
    let what = Extension::from_bits((word >> FUNCTION_SHIFT) as u8);
    let len = usize::from((word >> LEN_SHIFT) as u16);
    // One that is cut off is taken for as long as there are words.
    let end = words.len().min(at + 1 + len);
    Some((what, &words[at + 1..end]))
}

impl Walk {
    /// The next event: what belongs to no call, and is no mark, is taken note of on the way.
    #[inline]
    pub(crate) fn next(&mut self, words: &[u64]) -> Option<Place> {
        loop {
            let at = self.at;
            let word = *words.get(at)?;
            self.time = self.time.wrapping_add(word >> DELTA_SHIFT);
            match word & 15 {
                1..=3 => {
                    let end = end_of_call(words, at + 1);
                    self.at = end;
                    let time = self.time;
                    return Some(Place { at, end, time });
                }
                15 => {
                    let (what, inner) = extension_at(words, at)?;
                    self.at = at + 1 + inner.len();
                    match (what, inner) {
                        (Some(Extension::Time), [time, ..]) => self.time = *time,
                        (Some(Extension::Cpu), [cpu, ..]) => {
                            self.cpu = (*cpu as u32).wrapping_add(1)
                        }
                        (Some(Extension::Mark), _) => {
                            let (end, time) = (self.at, self.time);
                            return Some(Place { at, end, time });
                        }
                        _ => {}
                    }
                }
                _ => self.at = at + 1,
            }
        }
    }
}

/// Behind the extensions of a call whose word stands before `at`.
#[inline]
fn end_of_call(words: &[u64], mut at: usize) -> usize {
    while let Some((what, inner)) = extension_at(words, at) {
        match what {
            Some(
                Extension::Arguments
                | Extension::Result
                | Extension::Caller
                | Extension::Running
                | Extension::Values
                | Extension::EntryOnly
                | Extension::Stack,
            ) => at += 1 + inner.len(),
            _ => break,
        }
    }
    at
}

/// The words of an extension of the event at a place.
#[inline]
fn find<'w>(words: &'w [u64], place: &Place, wanted: Extension) -> Option<&'w [u64]> {
    let inner = words.get(..place.end)?;
    let mut at = place.at + 1;
    while let Some((what, found)) = extension_at(inner, at) {
        if what == Some(wanted) {
            return Some(found);
        }
        at += 1 + found.len();
    }
    None
}

/// What the extension [`Extension::Running`] of the event at a place says.
#[inline]
pub(crate) fn running(words: &[u64], place: &Place) -> Option<u64> {
    find(words, place, Extension::Running)?.first().copied()
}

/// The words of the extension [`Extension::Values`] of the event at a place.
#[inline]
pub(crate) fn values<'w>(words: &'w [u64], place: &Place) -> &'w [u64] {
    find(words, place, Extension::Values).unwrap_or_default()
}

/// The words of the extension [`Extension::Stack`] of the event at a place.
#[inline]
pub(crate) fn stack<'w>(words: &'w [u64], place: &Place) -> &'w [u64] {
    find(words, place, Extension::Stack).unwrap_or_default()
}

/// What the event at a place says.
#[inline]
pub(crate) fn what<'w>(words: &'w [u64], place: &Place) -> What<'w> {
    let word = words.get(place.at).copied().unwrap_or(0);
    let function = (word >> FUNCTION_SHIFT) as u32 & (MAX_FUNCTIONS - 1);
    let inner = words.get(..place.end).unwrap_or(words);
    match word & 15 {
        1 => {
            let (mut arguments, mut caller, mut is_entry_only) = (&[][..], None, false);
            let mut at = place.at + 1;
            while let Some((what, found)) = extension_at(inner, at) {
                at += 1 + found.len();
                match what {
                    Some(Extension::Arguments) => arguments = found,
                    Some(Extension::Caller) => caller = found.first().copied(),
                    Some(Extension::EntryOnly) => is_entry_only = true,
                    _ => {}
                }
            }
            What::Entry {
                function,
                arguments,
                caller,
                is_entry_only,
            }
        }
        2 => {
            let result = match extension_at(inner, place.at + 1) {
                Some((Some(Extension::Result), found)) => found,
                _ => &[],
            };
            What::Return { function, result }
        }
        3 => What::Unwound { function },
        _ => What::Mark(inner.get(place.at + 1..).unwrap_or(&[])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(words: &[u64]) -> Vec<(u64, What<'_>)> {
        let mut walk = Walk::default();
        let places = std::iter::from_fn(|| walk.next(words));
        places
            .map(|place| (place.time, what(words, &place)))
            .collect()
    }

    #[test]
    fn calls_have_their_arguments_and_results_with_them() {
        let words = [
            call(Kind::Entry, 7) | delta(5),
            extension(Extension::Arguments, 2),
            11,
            12,
            extension(Extension::Caller, 1),
            0x1234,
            call(Kind::Entry, 8) | delta(1),
            extension(Extension::EntryOnly, 0),
            call(Kind::Return, 7) | delta(2),
            extension(Extension::Result, 1),
            99,
            call(Kind::Unwound, MAX_FUNCTIONS - 1) | delta(MAX_DELTA - 1),
        ];
        let expected = [
            (
                5,
                What::Entry {
                    function: 7,
                    arguments: &[11, 12],
                    caller: Some(0x1234),
                    is_entry_only: false,
                },
            ),
            (
                6,
                What::Entry {
                    function: 8,
                    arguments: &[],
                    caller: None,
                    is_entry_only: true,
                },
            ),
            (
                8,
                What::Return {
                    function: 7,
                    result: &[99],
                },
            ),
            (
                8 + MAX_DELTA - 1,
                What::Unwound {
                    function: MAX_FUNCTIONS - 1,
                },
            ),
        ];
        assert_eq!(all(&words), expected);
    }

    #[test]
    fn unknown_words_and_extensions_are_skipped() {
        let words = [
            0,
            9 | delta(4),
            u64::from(Kind::Extension as u8) | 200 << FUNCTION_SHIFT | 2 << LEN_SHIFT,
            call(Kind::Entry, 1),
            call(Kind::Entry, 2),
            call(Kind::Unwound, 3) | delta(1),
        ];
        assert_eq!(all(&words), [(5, What::Unwound { function: 3 })]);
    }

    #[test]
    fn a_mark_is_a_text() {
        let text = u64::from_le_bytes(*b"so it is");
        let words = [extension(Extension::Mark, 2) | delta(2), 5, text];
        assert_eq!(all(&words), [(2, What::Mark(&[5, text]))]);
        assert_eq!(mark_text(&[5, text]), "so it");
        assert_eq!(mark_text(&[u64::MAX, text]), "so it is");
        assert_eq!(mark_text(&[]), "");
    }

    #[test]
    fn a_time_of_its_own_sets_the_clock_also_back() {
        let words = [
            extension(Extension::Time, 1),
            1000,
            call(Kind::Entry, 1),
            extension(Extension::Time, 1),
            10,
            call(Kind::Entry, 1) | delta(1),
        ];
        let times: Vec<u64> = all(&words).into_iter().map(|(time, _)| time).collect();
        assert_eq!(times, [1000, 11]);
    }

    #[test]
    fn what_is_cut_off_is_taken_as_far_as_it_goes() {
        let words = [
            call(Kind::Entry, 1),
            extension(Extension::Arguments, 6),
            1,
            2,
        ];
        for len in 0..words.len() {
            let found = all(&words[..len]);
            assert_eq!(found.len(), len.min(1));
        }
    }
}
