//! Errors in filters.

use core::error::Error;
use core::fmt::{self, Display, Formatter};

/// The mark between the two globs of a word.
pub(super) const MODULE_MARK: &str = ":mod:";

/// The reason that a filter, or a part of one, was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FilterError {
    /// The text has no words. The filter that matches everything is `*`, or
    /// [`Filter::all`](super::Filter::all).
    Empty,
    /// A glob or a name without a character matches no function.
    EmptyGlob,
    /// The glob ends in a backslash with nothing to escape.
    DanglingBackslash(String),
    /// A quote without its end.
    UnclosedQuote(
        /// The text from the beginning of the word on.
        String,
    ),
    /// A word of the text ends where a glob should follow.
    NothingBehind {
        /// The mark that a glob should follow: `!`, `:mod:`, `+` or `-`.
        mark: &'static str,
        /// The whole word of the filter.
        word: String,
    },
    /// A word with two `!` at its beginning. A name that begins with one is written in quotes.
    TwoExclamationMarks(
        /// The whole word of the filter.
        String,
    ),
    /// A `+` or `-` that no word precedes.
    NothingBefore(
        /// The `+` or `-`.
        &'static str,
    ),
    /// The word has more than one `:mod:`.
    TwoModules(String),
    /// A word that begins like an address, with `0x`, and is not one.
    Address {
        /// The part that should be a hexadecimal number of at most 64 bits.
        part: String,
        /// The whole word of the filter.
        word: String,
    },
    /// A range that contains no address.
    EmptyRange {
        /// The first address.
        start: usize,
        /// The address after the last one.
        end: usize,
    },
    /// The text of a filter with a predicate, which cannot be parsed.
    PredicateAsText,
    /// A predicate panicked.
    PredicatePanicked {
        /// The function for which it was called.
        function: String,
        /// The message of the panic.
        message: String,
    },
    /// No function begins at an address.
    NoFunction {
        /// The address.
        address: usize,
    },
}

impl Display for FilterError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "the filter has no words; `*` matches everything"),
            Self::EmptyGlob => write!(f, "a filter glob is empty"),
            Self::DanglingBackslash(glob) => {
                write!(f, "the filter glob `{glob}` ends in a backslash")
            }
            Self::UnclosedQuote(text) => {
                write!(f, "a quote is not closed in the filter at `{text}`")
            }
            Self::NothingBehind { mark, word } => {
                write!(f, "nothing follows `{mark}` in the filter word `{word}`")
            }
            Self::TwoExclamationMarks(word) => write!(
                f,
                "the filter word `{word}` begins with two `!`; quote a name that begins with one"
            ),
            Self::NothingBefore(mark) => write!(f, "nothing precedes `{mark}` in the filter"),
            Self::TwoModules(word) => write!(
                f,
                "the filter word `{word}` has more than one `{MODULE_MARK}`"
            ),
            Self::Address { part, word } => {
                write!(f, "`{part}` in the filter word `{word}` is no address")
            }
            Self::EmptyRange { start, end } => {
                write!(f, "no address is in the filter's {start:#x}..{end:#x}")
            }
            Self::PredicateAsText => {
                write!(f, "a predicate cannot be made of a filter's text")
            }
            Self::PredicatePanicked { function, message } => write!(
                f,
                "a predicate of the filter panicked when asked about `{function}`: {message}"
            ),
            Self::NoFunction { address } => {
                write!(f, "no function begins at the filter's address {address:#x}")
            }
        }
    }
}

impl Error for FilterError {}
