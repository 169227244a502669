//! Which functions a user wants to watch.
//!
//! A [`Filter`] keeps the globs of a user in their parsed form. Matching is a pure function of a
//! function's name and its module's path, and takes no longer than the product of the lengths of
//! glob and name.

use core::error::Error;
use core::fmt::{self, Display, Formatter, Write};
use core::str::{Chars, FromStr};

use crate::sites::END;

/// What stands between the two globs of a word.
const MODULE_MARK: &str = ":mod:";

/// A set of functions, by name and module.
///
/// It is two lists of patterns, with the meaning they have in the kernel's function tracer: a
/// function is watched if it matches the *trace* list, where an empty list matches everything,
/// and does not match the *notrace* list, which always wins.
///
/// A pattern is a glob over the demangled name of a function, and optionally a second glob over
/// the module, that is, the program or shared library the function lives in. Globs match the
/// whole name:
///
/// | in a glob | matches |
/// |-----------|---------|
/// | `*` | any run of characters, also none, also across `::` |
/// | `?` | exactly one character |
/// | `\c` | the character `c`, whatever it is |
/// | any other | itself |
///
/// A function may have several names, and symbols may have versions: it is watched if any of its names
/// matches the trace list and none the notrace list, with or without the version. So `memcpy`,
/// `memcpy@*` and `memcpy@@GLIBC_2.14` all select it.
///
/// The kernel also knows character classes, `[abc]`. Here **`[` is an ordinary character**, since
/// names such as `<[u8] as core::fmt::Debug>::fmt` are full of them.
///
/// # Filters as text
///
/// A filter is parsed from words separated by white space or commas:
///
/// | word | effect |
/// |------|--------|
/// | `GLOB` | trace these functions |
/// | `!GLOB` | do not trace these functions |
/// | `GLOB:mod:MODULE` | trace these functions of these modules |
/// | `:mod:MODULE` | trace all functions of these modules |
/// | `!GLOB:mod:MODULE`, `!:mod:MODULE` | do not trace them |
///
/// Words add up: `malloc :mod:libz.so*` is `malloc` anywhere and everything in libz. A text
/// without words is the filter that matches everything.
///
/// Rust names contain spaces and commas; in a text these are written with a backslash before
/// them, while [`Filter::trace`] and its siblings take a glob as it is. The `:mod:` of a word
/// stands alone: in `a::mod::b` the colons belong to the path.
///
/// ```
/// use fgraph::Filter;
///
/// # fn main() -> Result<(), fgraph::FilterError> {
/// let filter: Filter = "parser::* !*::fmt :mod:libz.so*".parse()?;
/// assert!(filter.matches("parser::Tree::insert", "/usr/bin/app"));
/// assert!(!filter.matches("parser::Tree::fmt", "/usr/bin/app"));
/// assert!(filter.matches("deflate", "/usr/lib/libz.so.1"));
/// assert!(!filter.matches("deflate", "/usr/bin/app"));
/// # Ok(())
/// # }
/// ```
///
/// The same can be said with calls, one for each pattern:
///
/// ```
/// use fgraph::Filter;
///
/// # fn main() -> Result<(), fgraph::FilterError> {
/// let filter = Filter::new()
///     .trace("<app::Cache<K, V> as *>::get*")?
///     .notrace("*::get_unchecked")?;
/// assert!(filter.matches("<app::Cache<K, V> as app::Store>::get", "/bin/app"));
/// assert!(!filter.matches("<app::Cache<K, V> as app::Store>::get_unchecked", "/bin/app"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    trace: Vec<Pattern>,
    notrace: Vec<Pattern>,
}

impl Filter {
    /// The filter that matches every function.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            trace: Vec::new(),
            notrace: Vec::new(),
        }
    }

    /// Adds functions to trace, by a glob over their names.
    ///
    /// # Errors
    ///
    /// If the glob is empty or ends in the middle of an escape.
    pub fn trace(mut self, name: &str) -> Result<Self, FilterError> {
        self.trace.push(Pattern::new(name, None)?);
        Ok(self)
    }

    /// Adds functions not to trace, by a glob over their names.
    ///
    /// # Errors
    ///
    /// If the glob is empty or ends in the middle of an escape.
    pub fn notrace(mut self, name: &str) -> Result<Self, FilterError> {
        self.notrace.push(Pattern::new(name, None)?);
        Ok(self)
    }

    /// Adds functions to trace, by a glob over their names and one over their modules.
    ///
    /// The second is compared with a module's file name, or, if it contains a `/`, with its
    /// whole path.
    ///
    /// ```
    /// # fn main() -> Result<(), fgraph::FilterError> {
    /// let filter = fgraph::Filter::new().trace_in("*alloc", "libc.so*")?;
    /// assert!(filter.matches("malloc", "/lib/x86_64-linux-gnu/libc.so.6"));
    /// assert!(!filter.matches("malloc", "/lib/libjemalloc.so.2"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If one of the globs is empty or ends in the middle of an escape.
    pub fn trace_in(mut self, name: &str, module: &str) -> Result<Self, FilterError> {
        self.trace.push(Pattern::new(name, Some(module))?);
        Ok(self)
    }

    /// Adds functions not to trace, by a glob over their names and one over their modules.
    ///
    /// # Errors
    ///
    /// If one of the globs is empty or ends in the middle of an escape.
    pub fn notrace_in(mut self, name: &str, module: &str) -> Result<Self, FilterError> {
        self.notrace.push(Pattern::new(name, Some(module))?);
        Ok(self)
    }

    /// Whether the function `name` of the module at `module_path` is to be traced.
    #[must_use]
    pub fn matches(&self, name: &str, module_path: &str) -> bool {
        let listed = |list: &[Pattern]| list.iter().any(|p| p.matches(name, module_path));
        (self.trace.is_empty() || listed(&self.trace)) && !listed(&self.notrace)
    }

    /// Whether a function that goes by all of `names` is to be traced. One without any goes by the
    /// empty name.
    pub(crate) fn matches_any<'a>(
        &self,
        names: impl Iterator<Item = &'a str> + Clone,
        module_path: &str,
    ) -> bool {
        let unnamed = names.clone().next().is_none();
        let matches = |pattern: &Pattern| {
            pattern.matches_module(module_path)
                && (names.clone().any(|name| pattern.name.matches(name))
                    || unnamed && pattern.name.matches(""))
        };
        (self.trace.is_empty() || self.trace.iter().any(matches))
            && !self.notrace.iter().any(matches)
    }

    /// Whether any function of the module at `module_path` could match.
    ///
    /// If not, its functions need not be looked at one by one.
    #[must_use]
    pub fn module_may_match(&self, module_path: &str) -> bool {
        let traced = |p: &Pattern| p.matches_module(module_path);
        let excluded = |p: &Pattern| p.name.matches_everything() && p.matches_module(module_path);
        (self.trace.is_empty() || self.trace.iter().any(traced))
            && !self.notrace.iter().any(excluded)
    }

    /// Whether a name of the module at `module_path` could match, going by which texts `may_contain`
    /// says that its names may have. There the start and the end of a name are [`END`].
    pub(crate) fn names_may_match(
        &self,
        module_path: &str,
        may_contain: impl Fn(&str) -> bool,
    ) -> bool {
        let traced = |pattern: &Pattern| {
            pattern.matches_module(module_path)
                && pattern.name.texts().iter().all(|text| may_contain(text))
        };
        self.trace.is_empty() || self.trace.iter().any(traced)
    }

    /// Whether a name with a version could match where the one without does not.
    pub(crate) fn asks_for_versions(&self) -> bool {
        let mut patterns = self.trace.iter().chain(&self.notrace);
        patterns.any(|pattern| pattern.name.0.contains(&Token::Char('@')))
    }

    /// Whether a pattern of the trace list asks for this very module.
    pub(crate) fn names_module(&self, path: &str) -> bool {
        self.module_may_match(path)
            && self
                .trace
                .iter()
                .any(|pattern| pattern.module.is_some() && pattern.matches_module(path))
    }

    fn add_word(&mut self, word: &str) -> Result<(), FilterError> {
        let (list, rest) = match word.strip_prefix('!') {
            Some(rest) => (&mut self.notrace, rest),
            None => (&mut self.trace, word),
        };
        let nothing_behind = |mark| FilterError::NothingBehind {
            mark,
            word: word.to_owned(),
        };
        let pattern = match split_module(rest) {
            None if rest.is_empty() => return Err(nothing_behind("!")),
            None => Pattern::new(rest, None)?,
            Some((_, "")) => return Err(nothing_behind(MODULE_MARK)),
            Some((_, module)) if split_module(module).is_some() => {
                return Err(FilterError::TwoModules(word.to_owned()));
            }
            Some(("", module)) => Pattern::new("*", Some(module))?,
            Some((name, module)) => Pattern::new(name, Some(module))?,
        };
        list.push(pattern);
        Ok(())
    }
}

impl FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        let mut filter = Self::new();
        words(text).try_for_each(|word| filter.add_word(word))?;
        Ok(filter)
    }
}

impl TryFrom<&str> for Filter {
    type Error = FilterError;

    fn try_from(text: &str) -> Result<Self, FilterError> {
        text.parse()
    }
}

impl TryFrom<&String> for Filter {
    type Error = FilterError;

    fn try_from(text: &String) -> Result<Self, FilterError> {
        text.parse()
    }
}

/// Writes the filter as a text that parses to an equal filter.
impl Display for Filter {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let traced = self.trace.iter().map(|p| ("", p));
        let excluded = self.notrace.iter().map(|p| ("!", p));
        for (i, (sign, pattern)) in traced.chain(excluded).enumerate() {
            let space = if i == 0 { "" } else { " " };
            write!(f, "{space}{sign}{pattern}")?;
        }
        Ok(())
    }
}

/// The words of a text: what stands between white space and commas that no backslash precedes.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut escaped = false;
    text.split(move |c: char| {
        let is_separator = !escaped && (c.is_whitespace() || c == ',');
        escaped = !escaped && c == '\\';
        is_separator
    })
    .filter(|word| !word.is_empty())
}

/// Splits a word at its `:mod:`, if it has one that is neither escaped nor part of a path.
fn split_module(word: &str) -> Option<(&str, &str)> {
    let mut before = None;
    let mut escaped = false;
    for (at, c) in word.char_indices() {
        let here = &word[at..];
        if !escaped
            && before != Some(':')
            && let Some(module) = here.strip_prefix(MODULE_MARK)
            && !module.starts_with(':')
        {
            return Some((&word[..at], module));
        }
        before = (!escaped).then_some(c);
        escaped = !escaped && c == '\\';
    }
    None
}

/// One entry of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    name: Glob,
    module: Option<Glob>,
}

impl Pattern {
    fn new(name: &str, module: Option<&str>) -> Result<Self, FilterError> {
        Ok(Self {
            name: Glob::new(name)?,
            module: module.map(Glob::new).transpose()?,
        })
    }

    fn matches(&self, name: &str, module_path: &str) -> bool {
        self.matches_module(module_path) && self.name.matches(name)
    }

    fn matches_module(&self, path: &str) -> bool {
        let Some(glob) = &self.module else {
            return true;
        };
        if glob.0.contains(&Token::Char('/')) {
            return glob.matches(path);
        }
        glob.matches(path.rsplit_once('/').map_or(path, |(_, file)| file))
    }
}

impl Display for Pattern {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.module {
            None => write!(f, "{}", self.name),
            Some(module) if self.name.matches_everything() => write!(f, "{MODULE_MARK}{module}"),
            Some(module) => write!(f, "{}{MODULE_MARK}{module}", self.name),
        }
    }
}

/// A glob in its parsed form, in which equal globs are equal however they were written.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Glob(Box<[Token]>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Char(char),
    /// `?`
    AnyChar,
    /// `*`, never twice in a row
    AnyRun,
}

impl Glob {
    fn new(glob: &str) -> Result<Self, FilterError> {
        let mut tokens = Vec::with_capacity(glob.len());
        let mut chars = glob.chars();
        while let Some(c) = chars.next() {
            let token = match c {
                '*' if tokens.last() == Some(&Token::AnyRun) => continue,
                '*' => Token::AnyRun,
                '?' => Token::AnyChar,
                '\\' => match chars.next() {
                    Some(c) => Token::Char(c),
                    None => return Err(FilterError::DanglingBackslash(glob.to_owned())),
                },
                c => Token::Char(c),
            };
            tokens.push(token);
        }
        if tokens.is_empty() {
            return Err(FilterError::EmptyGlob);
        }
        Ok(Self(tokens.into()))
    }

    fn matches_everything(&self) -> bool {
        *self.0 == [Token::AnyRun]
    }

    /// Whether the colon at `at`, in a word, could be taken for one of a `:mod:` there or next to
    /// it.
    fn colon_is_ambiguous(&self, at: usize) -> bool {
        let mark = MODULE_MARK.chars().map(Token::Char);
        let starts_mark = self.0[at..]
            .iter()
            .copied()
            .take(MODULE_MARK.len())
            .eq(mark);
        starts_mark || at == 0 || at + 1 == self.0.len()
    }

    /// What is between the wildcards, with an [`END`] before it and behind it: a text between two
    /// of these has all of them in it if it matches.
    fn texts(&self) -> Vec<String> {
        let end = core::iter::once(Some(END));
        let chars = self.0.iter().map(|token| match *token {
            Token::Char(c) => Some(c),
            Token::AnyChar | Token::AnyRun => None,
        });
        let chars: Vec<_> = end.clone().chain(chars).chain(end).collect();
        let texts = chars.split(Option::is_none);
        texts.map(|text| text.iter().flatten().collect()).collect()
    }

    /// Matches the whole of `text`.
    ///
    /// Only the last `*` met is ever retried with a longer run: if the part of the glob before it
    /// could be matched at all, it was matched at the earliest place, which leaves the rest the
    /// most to choose from. So the work is bounded by the product of the two lengths.
    fn matches(&self, text: &str) -> bool {
        // Most names differ at one end already.
        let differs = |token: Option<&Token>, byte: Option<&u8>| match token {
            Some(&Token::Char(c)) => c.is_ascii() && byte != Some(&(c as u8)),
            _ => false,
        };
        let bytes = text.as_bytes();
        if differs(self.0.first(), bytes.first()) || differs(self.0.last(), bytes.last()) {
            return false;
        }
        let mut tokens = &*self.0;
        let mut chars = text.chars();
        let mut retry = None;
        loop {
            match tokens.split_first() {
                Some((Token::AnyRun, [])) => return true,
                Some((Token::AnyRun, rest)) => {
                    if !skip_to(rest, &mut chars) {
                        return false;
                    }
                    tokens = rest;
                    retry = Some((rest, chars.clone()));
                    continue;
                }
                Some((token, rest)) => {
                    let Some(c) = chars.next() else {
                        return false;
                    };
                    if matches!(token, Token::AnyChar) || *token == Token::Char(c) {
                        tokens = rest;
                        continue;
                    }
                }
                None if chars.as_str().is_empty() => return true,
                None => {}
            }
            // A mismatch: let the last `*` take one character more.
            let Some((after_run, start)) = &mut retry else {
                return false;
            };
            if start.next().is_none() || !skip_to(after_run, start) {
                return false;
            }
            tokens = after_run;
            chars = start.clone();
        }
    }
}

/// Goes on to the next place at which `tokens` could match, as far as their first one tells; `false` if
/// there is none.
fn skip_to(tokens: &[Token], chars: &mut Chars<'_>) -> bool {
    let Some(&Token::Char(c)) = tokens.first() else {
        return true;
    };
    let text = chars.as_str();
    let at = if c.is_ascii() {
        find(text.as_bytes(), c as u8)
    } else {
        text.find(c)
    };
    if let Some(at) = at {
        *chars = text[at..].chars();
    }
    at.is_some()
}

/// Where a byte is first. For texts as short as names this takes less time than `str::find`.
fn find(bytes: &[u8], byte: u8) -> Option<usize> {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    let (words, rest) = bytes.as_chunks();
    for (index, word) in words.iter().enumerate() {
        let differs = u64::from_le_bytes(*word) ^ (ONES * u64::from(byte));
        // The lowest bit that is set is in the first byte that does not differ.
        let same = differs.wrapping_sub(ONES) & !differs & (ONES << 7);
        if same != 0 {
            return Some(8 * index + same.trailing_zeros() as usize / 8);
        }
    }
    let at = rest.iter().position(|&other| other == byte)?;
    Some(bytes.len() - rest.len() + at)
}

/// Writes the glob so that, as a part of a word, it is read as the same glob.
impl Display for Glob {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (i, token) in self.0.iter().enumerate() {
            let c = match *token {
                Token::AnyRun => '*',
                Token::AnyChar => '?',
                Token::Char(c) => {
                    if matches!(c, '*' | '?' | '\\' | ',')
                        || c.is_whitespace()
                        || (c == '!' && i == 0)
                        || (c == ':' && self.colon_is_ambiguous(i))
                    {
                        f.write_char('\\')?;
                    }
                    c
                }
            };
            f.write_char(c)?;
        }
        Ok(())
    }
}

/// Why a glob or a filter text was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FilterError {
    /// A glob without a character matches no function.
    EmptyGlob,
    /// The glob ends in a backslash with nothing to escape.
    DanglingBackslash(String),
    /// A word of the text ends where a glob should follow.
    NothingBehind {
        /// What should be followed by a glob, `!` or `:mod:`.
        mark: &'static str,
        /// The whole word.
        word: String,
    },
    /// The word has more than one `:mod:`.
    TwoModules(String),
}

impl Display for FilterError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyGlob => write!(f, "a filter glob is empty"),
            Self::DanglingBackslash(glob) => {
                write!(f, "the filter glob `{glob}` ends in a backslash")
            }
            Self::NothingBehind { mark, word } => {
                write!(f, "nothing follows `{mark}` in the filter word `{word}`")
            }
            Self::TwoModules(word) => {
                write!(
                    f,
                    "the filter word `{word}` has more than one `{MODULE_MARK}`"
                )
            }
        }
    }
}

impl Error for FilterError {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    const APP: &str = "/usr/bin/app";
    const LIBC: &str = "/lib/x86_64-linux-gnu/libc.so.6";

    fn parse(text: &str) -> Filter {
        text.parse().unwrap()
    }

    fn glob(glob: &str, name: &str) -> bool {
        Filter::new().trace(glob).unwrap().matches(name, APP)
    }

    #[test]
    fn empty_trace_list_matches_everything() {
        assert!(Filter::new().matches("anything", APP));
        assert!(parse(" ,\n").matches("", ""));
        assert!(parse("!b").matches("a", APP));
    }

    #[test]
    fn notrace_wins() {
        let filter = parse("!foo_slow foo* foo_slow");
        assert!(filter.matches("foo_fast", APP));
        assert!(!filter.matches("foo_slow", APP));
        assert!(!filter.matches("bar", APP));
    }

    #[test]
    fn globs_match_the_whole_name() {
        assert!(glob("foo", "foo"));
        assert!(!glob("foo", "foo2"));
        assert!(!glob("foo", "afoo"));
        assert!(glob("foo*", "foo") && glob("foo*", "foo2") && !glob("foo*", "afoo"));
        assert!(glob("*foo", "foo") && glob("*foo", "foofoo") && !glob("*foo", "foo2"));
        assert!(glob("*foo*", "a foo b") && !glob("*foo*", "fo o"));
        assert!(glob("a*b", "ab") && glob("a*b", "axbxb") && !glob("a*b", "axbx"));
        assert!(glob("a*b*c*", "a1b2b3c") && !glob("a*b*c", "acb"));
        assert!(glob("*", "") && glob("**", "x") && !glob("?*", ""));
    }

    #[test]
    fn star_crosses_path_separators() {
        assert!(glob("core::*::fmt", "core::fmt::num::imp::fmt"));
        assert!(glob("*::new", "alloc::vec::Vec<T>::new"));
    }

    #[test]
    fn question_mark_is_one_character_not_one_byte() {
        assert!(glob("na?ve", "naïve"));
        assert!(glob("?", "→"));
        assert!(!glob("na??ve", "naïve"));
        assert!(glob("*?é", "日é"));
    }

    #[test]
    fn backslash_takes_the_next_character_literally() {
        assert!(glob(r"a\*b", "a*b"));
        assert!(!glob(r"a\*b", "axb"));
        assert!(glob(r"\\\?", r"\?"));
        assert!(parse(r"a\ b\,c").matches("a b,c", APP));
    }

    #[test]
    fn brackets_are_ordinary_characters() {
        let name = "<[u8] as core::fmt::Debug>::fmt";
        assert!(glob("<[u8] as *", name));
        assert!(!glob("<[u]8 as *", name));
    }

    #[test]
    fn builder_takes_names_with_spaces_and_commas_verbatim() {
        let name = "<std::collections::HashMap<K, V> as app::mod::Get>::get";
        assert!(glob(name, name));
    }

    #[test]
    fn module_globs_see_the_file_name() {
        let filter = parse("*alloc:mod:libc.so*");
        assert!(filter.matches("malloc", LIBC));
        assert!(!filter.matches("free", LIBC));
        assert!(!filter.matches("malloc", APP));
        assert!(parse(":mod:app").matches("main", "app"));
    }

    #[test]
    fn module_globs_with_a_slash_see_the_whole_path() {
        assert!(parse(":mod:/lib/*").matches("free", LIBC));
        assert!(!parse(":mod:/libc.so*").matches("free", LIBC));
        assert!(parse(":mod:*/libc.so*").matches("free", LIBC));
    }

    #[test]
    fn words_add_up() {
        let filter = parse("main,:mod:libc.so*\t!mem*:mod:libc*");
        assert!(filter.matches("main", APP));
        assert!(!filter.matches("other", APP));
        assert!(filter.matches("free", LIBC));
        assert!(!filter.matches("memcpy", LIBC));
    }

    #[test]
    fn colons_of_a_path_are_no_module_mark() {
        let filter = parse("app::mod::run:mod:app");
        assert!(filter.matches("app::mod::run", APP));
        assert!(!filter.matches("app::mod::run", LIBC));
    }

    #[test]
    fn whole_modules_can_be_skipped() {
        assert!(Filter::new().module_may_match(LIBC));
        assert!(parse("foo").module_may_match(LIBC));
        assert!(!parse("foo:mod:app").module_may_match(LIBC));
        assert!(parse("foo:mod:app bar").module_may_match(LIBC));
        assert!(!parse("!:mod:libc*").module_may_match(LIBC));
        assert!(!parse("!*").module_may_match(LIBC));
        assert!(parse("!free:mod:libc*").module_may_match(LIBC));
    }

    #[test]
    fn a_module_that_may_not_match_never_matches() {
        for text in [
            "",
            "a",
            "!a",
            "a:mod:app",
            "!:mod:lib*",
            ":mod:app !*",
            "!*:mod:app",
        ] {
            let filter = parse(text);
            for module in [APP, LIBC] {
                if !filter.module_may_match(module) {
                    assert!(!filter.matches("a", module), "{text} {module}");
                }
            }
        }
    }

    #[test]
    fn text_round_trips() {
        for text in [
            "",
            "foo* !bar :mod:libc.so* a?b:mod:*/x !:mod:app",
            r"\!not a\ b\,c x\*y\? \\ a\:mod:b a::mod::b",
        ] {
            let filter = parse(text);
            assert_eq!(filter.to_string().parse(), Ok(filter), "{text}");
        }
        let built = Filter::new()
            .trace("!x, y:mod:z a::mod::b:mod:\u{a0}é")
            .and_then(|f| f.notrace("**\\*"))
            .and_then(|f| f.trace_in("a:", ":mod:b"))
            .and_then(|f| f.trace_in("a", ":b"))
            .and_then(|f| f.trace_in("!", "!m"))
            .unwrap();
        assert_eq!(built.to_string().parse(), Ok(built));
    }

    #[test]
    fn malformed_text_is_refused_with_its_reason() {
        let refused = |text: &str| text.parse::<Filter>().unwrap_err();
        let nothing_behind = |mark, word: &str| FilterError::NothingBehind {
            mark,
            word: word.to_owned(),
        };
        assert_eq!(refused("a ! b"), nothing_behind("!", "!"));
        assert_eq!(refused("a:mod:"), nothing_behind(":mod:", "a:mod:"));
        assert_eq!(refused("!:mod:,x"), nothing_behind(":mod:", "!:mod:"));
        assert_eq!(refused(r"a\"), FilterError::DanglingBackslash(r"a\".into()));
        assert_eq!(
            refused("a:mod:b:mod:c"),
            FilterError::TwoModules("a:mod:b:mod:c".into())
        );
        assert_eq!(Filter::new().trace(""), Err(FilterError::EmptyGlob));
        assert_eq!(Filter::new().trace_in("a", ""), Err(FilterError::EmptyGlob));
        assert_eq!(
            refused("a:mod:").to_string(),
            "nothing follows `:mod:` in the filter word `a:mod:`"
        );
    }

    #[test]
    fn pathological_stars_stay_linear() {
        let pattern = "*a".repeat(50) + "*b";
        let name = "a".repeat(20_000);
        let start = Instant::now();
        assert!(!glob(&pattern, &name));
        assert!(glob(&pattern, &(name + "b")));
        assert!(start.elapsed() < Duration::from_secs(2));
    }

    #[test]
    fn a_byte_is_found_where_it_is_first() {
        let bytes: Vec<u8> = (0..40).map(|n: u8| (n % 20).wrapping_mul(13)).collect();
        for from in 0..bytes.len() {
            for byte in 0..=u8::MAX {
                let rest = &bytes[from..];
                assert_eq!(find(rest, byte), rest.iter().position(|&b| b == byte));
            }
        }
    }

    #[test]
    fn texts_are_what_is_between_wildcards() {
        let texts = |glob| Glob::new(glob).unwrap().texts();
        assert_eq!(texts("main"), ["\0main\0"]);
        assert_eq!(texts("*fn_?1*"), ["\0", "fn_", "1", "\0"]);
        assert_eq!(texts(r"a\*::né*"), ["\0a*::né", "\0"]);
    }

    #[test]
    fn names_may_match_by_any_pattern_of_the_trace_list() {
        let has_abc = |text: &str| "\0abc\0".contains(text);
        let may = |text: &str| parse(text).names_may_match(LIBC, has_abc);
        assert!(may("") && may("*") && may("!abc") && may("x abc") && may("ab* !abc"));
        assert!(!may("b") && !may("ab") && !may("x*") && !may("abc:mod:app"));
    }

    #[test]
    fn agrees_with_the_obvious_recursive_matcher() {
        fn obvious(glob: &[u8], text: &[u8]) -> bool {
            match (glob, text) {
                ([], []) => true,
                ([b'*', rest @ ..], _) => {
                    obvious(rest, text) || (!text.is_empty() && obvious(glob, &text[1..]))
                }
                ([b'?', g @ ..], [_, t @ ..]) => obvious(g, t),
                ([a, g @ ..], [b, t @ ..]) => a == b && obvious(g, t),
                _ => false,
            }
        }
        fn all(alphabet: &[char], len: u32) -> impl Iterator<Item = String> {
            let base = alphabet.len();
            (1..=len).flat_map(move |len| {
                (0..base.pow(len)).map(move |mut n| {
                    let next = |_| {
                        let c = alphabet[n % base];
                        n /= base;
                        c
                    };
                    (0..len).map(next).collect()
                })
            })
        }
        for pattern in all(&['a', 'b', '*', '?'], 5) {
            let parsed = Glob::new(&pattern).unwrap();
            for text in all(&['a', 'b'], 5) {
                let whole = format!("{END}{text}{END}");
                let has_texts = parsed.texts().iter().all(|part| whole.contains(part));
                let expected = obvious(pattern.as_bytes(), text.as_bytes());
                assert_eq!(parsed.matches(&text), expected, "{pattern} {text}");
                assert!(has_texts || !expected, "{pattern} {text}");
            }
        }
    }
}
