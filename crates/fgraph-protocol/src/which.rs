//! Selection of the calls that are recorded.

use fgraph::{Filter, FilterError};
use fgraph_trace::names::PYTHON;
use serde::{Deserialize, Serialize};

/// Modules that never belong to the program: the kernel's functions, and the agent itself.
pub const NEVER: [&str; 2] = ["[vdso]", "*fgraph-agent*"];

/// Selects functions, and those of their calls that are recorded.
///
/// It is exhaustive, since callers write it as a literal: a new field breaks them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WhichCalls {
    /// Words of filters. Each adds functions. Without any, all functions of the program's
    /// own file are recorded, and those of libraries outside the system's directories.
    pub trace: Vec<String>,
    /// Words of filters. Each removes functions.
    pub notrace: Vec<String>,
    /// True if the system's libraries are recorded too when `trace` is empty.
    pub libraries: bool,
    /// Words of filters: functions that are recorded in addition to the others.
    pub also: Vec<String>,
    /// Words of filters: only these functions and the calls inside them are recorded. Without any,
    /// all calls are.
    pub within: Vec<String>,
    /// Calls nested this deep in recorded calls are left out; 0 for no limit.
    pub depth: usize,
    /// Only calls that take at least this many nanoseconds are recorded, with the calls around
    /// them.
    pub threshold: u64,
    /// Functions that are called more often than this in a second are no longer recorded; 0 for no
    /// limit. See [`Options::max_rate`](fgraph_tracers::recorder::Options::max_rate).
    pub max_rate: u32,
    /// True if only the first call of each function is recorded, without its return.
    pub once: bool,
}

impl WhichCalls {
    /// Returns the functions that words of a filter select, except those of the agent and the
    /// kernel.
    ///
    /// # Errors
    ///
    /// Says what is wrong with one of the words.
    pub fn selected(words: &str) -> Result<Filter, FilterError> {
        let never = NEVER.map(|module| format!("!:mod:{module}"));
        format!("{words} {}", never.join(" ")).parse()
    }

    /// Returns the filter of `trace` and `notrace`, whatever the program; `None` if both are empty.
    ///
    /// # Errors
    ///
    /// Says what is wrong with one of the words.
    pub fn asked(&self) -> Result<Option<Filter>, FilterError> {
        let words: Vec<String> = self.trace.iter().cloned().chain(self.removing()).collect();
        filter_of(&words)
    }

    /// Returns the functions of Python that are recorded: those that words of `trace` with the
    /// module [`PYTHON`] select, or all if there is no such word, without those of `notrace`.
    ///
    /// # Errors
    ///
    /// Says what is wrong with one of the words.
    pub fn python_filter(&self) -> Result<Filter, FilterError> {
        let is_python = |word: &&String| word.ends_with(&format!(":mod:{PYTHON}"));
        let mut words: Vec<String> = self.trace.iter().filter(is_python).cloned().collect();
        if words.is_empty() {
            words.push("*".to_owned());
        }
        words.extend(self.removing());
        words.join(" ").parse()
    }

    /// Returns the functions inside which calls are recorded; `None` for all calls.
    ///
    /// # Errors
    ///
    /// Says what is wrong with one of the words.
    pub fn within(&self) -> Result<Option<Filter>, FilterError> {
        filter_of(&self.within)
    }

    /// Returns true if calls of the selected functions are left out.
    #[must_use]
    pub fn leaves_out_calls(&self) -> bool {
        self.threshold != 0 || self.depth != 0 || !self.within.is_empty()
    }

    /// Iterates over the words of a filter that remove the functions of `notrace`.
    pub(crate) fn removing(&self) -> impl Iterator<Item = String> {
        self.notrace.iter().map(|word| format!("!{word}"))
    }
}

/// Returns the filter with these words; `None` if there are none.
pub(crate) fn filter_of(words: &[String]) -> Result<Option<Filter>, FilterError> {
    if words.is_empty() {
        return Ok(None);
    }
    words.join(" ").parse().map(Some)
}
