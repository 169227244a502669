//! The encoding of events in words of 64 bits.
//!
//! ```text
//!   bits  0..4    kind: entry, return, unwound, or extension
//!   bits  4..28   the function's index; of an extension what it is (8 bits) and how many words
//!                 follow (16 bits)
//!   bits 28..64   ticks of the clock since the event before
//! ```
//!
//! A zero word is no event. An extension follows the entry or return that it belongs to, or stands
//! alone. A reader skips an extension of unknown kind by its length, and a word of unknown kind
//! alone.

/// Function indices are less than this.
pub const MAX_FUNCTIONS: u32 = 1 << 24;
/// The first index for functions of an interpreted language. Functions of the processor's code have
/// lower ones.
pub const FIRST_INTERPRETED: u32 = 15 << 20;
/// Differences of time in one word are less than this; a longer one takes [`Extension::Time`].
pub const MAX_DELTA: u64 = 1 << 36;
/// The longest text of a mark, in bytes.
pub const MAX_MARK: usize = 4096;

const FUNCTION_SHIFT: u32 = 4;
const DELTA_SHIFT: u32 = 28;
const LEN_SHIFT: u32 = 12;

/// The kind of a word.
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

/// The kind of an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Extension {
    /// One word: the clock from which the next event's time counts.
    Time = 1,
    /// The arguments of the preceding entry, one word each.
    Arguments = 2,
    /// The result of the preceding return, one word for each register.
    Result = 3,
    /// A text from the program: one word with its number of bytes, then the bytes.
    Mark = 4,
    /// One word: the processor on which the thread runs from now on.
    Cpu = 5,
    /// One word: the return address of the preceding call.
    Caller = 6,
    /// One word: nanoseconds that the thread had run at the preceding event, see
    /// [`Event::running`](crate::Event::running).
    Running = 7,
    /// The arguments of the preceding entry, or the result of the preceding return, encoded by
    /// type: see [`values`](crate::values).
    Values = 8,
    /// No words: the preceding entry is of an [entry-only](What::Entry::is_entry_only) call.
    EntryOnly = 9,
    /// The return addresses of the calls around the preceding entry, see
    /// [`Event::stack`](crate::Event::stack).
    Stack = 10,
    /// One word: the number of such return addresses that were described before, see
    /// [`Event::stack_number`](crate::Event::stack_number).
    StackNumber = 11,
    /// No words: the call of the preceding [`Unwound`](Kind::Unwound) was
    /// [dropped](What::Dropped).
    Dropped = 12,
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
            11 => Self::StackNumber,
            12 => Self::Dropped,
            _ => return None,
        })
    }
}

/// Returns the word of an entry or a return, without its time.
#[inline(always)]
#[must_use]
pub const fn call(kind: Kind, function: u32) -> u64 {
    kind as u64 | ((function & (MAX_FUNCTIONS - 1)) as u64) << FUNCTION_SHIFT
}

/// Returns the first word of an extension that has `len` further words, without its time.
#[inline(always)]
#[must_use]
pub const fn extension(what: Extension, len: u16) -> u64 {
    extension_of(what as u8, len)
}

/// Returns the bits of a word that hold `delta`, which must be less than [`MAX_DELTA`].
#[inline(always)]
#[must_use]
pub const fn delta(delta: u64) -> u64 {
    delta << DELTA_SHIFT
}

/// Returns kind and function if the word is an entry or a return.
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

/// Returns the number of the extension's kind, known or not, and the number of words that follow.
pub(crate) const fn as_extension(word: u64) -> Option<(u8, usize)> {
    if word & 15 != Kind::Extension as u64 {
        return None;
    }
    let len = (word >> LEN_SHIFT) as u16;
    Some(((word >> FUNCTION_SHIFT) as u8, len as usize))
}

/// Makes the first word of an extension like [`extension`], of a kind that is known or not.
pub(crate) const fn extension_of(what: u8, len: u16) -> u64 {
    Kind::Extension as u64 | (what as u64) << FUNCTION_SHIFT | (len as u64) << LEN_SHIFT
}

/// Returns the difference of time in a word.
#[inline]
pub(crate) const fn delta_of(word: u64) -> u64 {
    word >> DELTA_SHIFT
}

/// Returns the number of words that the text of a mark takes, including the word with its length.
pub(crate) const fn mark_words(len: usize) -> usize {
    1 + len.div_ceil(8)
}

/// The content of an event, without its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What<'a> {
    /// A function is entered.
    Entry {
        /// The index of the function.
        function: u32,
        /// The words of its arguments that were recorded.
        arguments: &'a [u64],
        /// The return address of the call, if it was recorded.
        caller: Option<u64>,
        /// True if the call's end is not recorded. Its duration is unknown, and later calls are
        /// attributed to the function around it.
        is_entry_only: bool,
    },
    /// A function returns.
    Return {
        /// The index of the function.
        function: u32,
        /// The registers of its result that were recorded.
        result: &'a [u64],
    },
    /// A function ends without a result.
    Unwound {
        /// The index of the function.
        function: u32,
    },
    /// A call is found to have been left without a return or an unwinder, as by `longjmp`. It ended
    /// at an unknown time since the thread's previous event.
    Dropped {
        /// The index of the function.
        function: u32,
    },
    /// A text from the program, as words: see [`mark_text`].
    Mark(&'a [u64]),
    /// Events of the thread are missing here.
    Lost {
        /// The number of missing events.
        events: u64,
        /// The number of missing events that ended calls whose entries were given; these were the
        /// thread's innermost calls. `None` if any number of calls may have ended, and calls may
        /// have begun whose ends follow.
        ends: Option<u64>,
    },
}

impl What<'_> {
    /// Returns the entry of a function, recorded without its arguments and its caller.
    #[must_use]
    pub const fn entry(function: u32) -> Self {
        Self::Entry {
            function,
            arguments: &[],
            caller: None,
            is_entry_only: false,
        }
    }

    /// Returns the return of a function without its result.
    #[must_use]
    pub const fn returned(function: u32) -> Self {
        Self::Return {
            function,
            result: &[],
        }
    }
}

/// Returns the text of a mark, from the words of [`What::Mark`].
///
/// Bytes that are not UTF-8 are replaced.
#[must_use]
pub fn mark_text(words: &[u64]) -> String {
    let (len, words) = words.split_first().unwrap_or((&0, &[]));
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.truncate(usize::try_from(*len).unwrap_or(usize::MAX));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The place of an event among words, and its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// Index of the event's first word.
    pub(crate) at: usize,
    /// Index of the first word after the event's last extension.
    pub(crate) end: usize,
    /// The time by the clock as it was read.
    pub(crate) time: u64,
}

impl Place {
    /// Returns true if extensions belong to the event.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        self.end > self.at + 1
    }
}

/// Iterates over the events in words.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Walk {
    /// Index of the next word.
    pub(crate) at: usize,
    /// The clock at the preceding event.
    pub(crate) time: u64,
    /// The processor, counted from 1; 0 while it is unknown.
    pub(crate) cpu: u32,
}

/// Returns kind and words of the extension that begins at `at`.
#[inline]
fn extension_at(words: &[u64], at: usize) -> Option<(Option<Extension>, &[u64])> {
    let word = *words.get(at)?;
    if word & 15 != Kind::Extension as u64 {
        return None;
    }
    let what = Extension::from_bits((word >> FUNCTION_SHIFT) as u8);
    let len = usize::from((word >> LEN_SHIFT) as u16);
    // An extension that is cut off ends with the words.
    let end = words.len().min(at + 1 + len);
    Some((what, &words[at + 1..end]))
}

impl Walk {
    /// Returns the next event like [`next`](Self::next) if it is an entry or an end without
    /// extensions, whose time counts from the preceding event.
    #[inline(always)]
    pub(crate) fn plain(&mut self, words: &[u64]) -> Option<Place> {
        let at = self.at;
        let word = *words.get(at)?;
        let is_extended = words.get(at + 1).is_some_and(|next| next & 15 == 15);
        if is_extended || !matches!(word & 15, 1..=3) {
            return None;
        }
        self.time = self.time.wrapping_add(word >> DELTA_SHIFT);
        self.at = at + 1;
        Some(Place {
            at,
            end: at + 1,
            time: self.time,
        })
    }

    /// Returns the next event. Words that belong to no call and are no mark are processed on the
    /// way.
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

/// Returns the index after the extensions of a call whose word is before `at`.
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
                | Extension::Stack
                | Extension::StackNumber
                | Extension::Dropped,
            ) => at += 1 + inner.len(),
            // A later version has added it. With a time it would be an event of its own.
            None if words[at] >> DELTA_SHIFT == 0 => at += 1 + inner.len(),
            _ => break,
        }
    }
    at
}

/// Returns the words of the wanted extension of the event at a place.
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

/// Returns true if the call of the [`Unwound`](Kind::Unwound) at `at` was dropped.
#[inline]
pub(crate) fn is_dropped(words: &[u64], at: usize) -> bool {
    matches!(
        extension_at(words, at + 1),
        Some((Some(Extension::Dropped), _))
    )
}

/// Returns the value of the extension [`Extension::Running`] of the event at a place.
#[inline]
pub(crate) fn running(words: &[u64], place: &Place) -> Option<u64> {
    find(words, place, Extension::Running)?.first().copied()
}

/// Returns the words of the extension [`Extension::Values`] of the event at a place.
#[inline]
pub(crate) fn values<'w>(words: &'w [u64], place: &Place) -> &'w [u64] {
    find(words, place, Extension::Values).unwrap_or_default()
}

/// Extensions of an event that [`What`] does not have.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct More<'w> {
    pub(crate) running: Option<u64>,
    pub(crate) values: &'w [u64],
    pub(crate) stack: &'w [u64],
    pub(crate) stack_number: Option<u64>,
    pub(crate) has_unknown: bool,
}

/// Returns the extensions of the event at a place.
#[inline]
pub(crate) fn more<'w>(words: &'w [u64], place: &Place) -> More<'w> {
    let mut more = More::default();
    let inner = words.get(..place.end).unwrap_or(words);
    let mut at = place.at + 1;
    while let Some((what, found)) = extension_at(inner, at) {
        at += 1 + found.len();
        match what {
            Some(Extension::Running) => more.running = found.first().copied(),
            Some(Extension::Values) => more.values = found,
            Some(Extension::Stack) => more.stack = found,
            Some(Extension::StackNumber) => more.stack_number = found.first().copied(),
            None => more.has_unknown = true,
            _ => {}
        }
    }
    more
}

/// Decodes the event at a place.
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
        3 if is_dropped(words, place.at) => What::Dropped { function },
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
            call(Kind::Unwound, 8),
            extension(Extension::Dropped, 0),
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
            (8 + MAX_DELTA - 1, What::Dropped { function: 8 }),
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
    fn an_unknown_extension_without_a_time_belongs_to_the_event_before_it() {
        let unknown = u64::from(Kind::Extension as u8) | 200 << FUNCTION_SHIFT | 1 << LEN_SHIFT;
        let words = [
            call(Kind::Entry, 1),
            unknown,
            call(Kind::Entry, 2),
            extension(Extension::EntryOnly, 0),
            call(Kind::Entry, 3),
            unknown | delta(1),
            call(Kind::Entry, 4),
            extension(Extension::EntryOnly, 0),
        ];
        let entry = |time, function, is_entry_only| {
            let what = What::Entry {
                function,
                arguments: &[],
                caller: None,
                is_entry_only,
            };
            (time, what)
        };
        assert_eq!(all(&words), [entry(0, 1, true), entry(0, 3, false)]);
        let mut walk = Walk::default();
        let has_unknown: Vec<bool> = std::iter::from_fn(|| walk.next(&words))
            .map(|place| more(&words, &place).has_unknown)
            .collect();
        assert_eq!(has_unknown, [true, false]);
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
    fn truncated_events_are_read_up_to_the_cut() {
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
