//! Selects functions by filters.
//!
//! A [`Filter`] selects functions; [`Filter::matches`] checks one function against each word. A
//! [`Matcher`] is made of a filter to check all functions of a module at once, in a time that
//! hardly depends on the number of names in the filter.

mod bits;
mod error;
mod facts;
mod glob;
mod index;
mod live;
mod matcher;
pub mod ngrams;
mod pattern;
mod pieces;
mod words;

use core::fmt::{self, Display, Formatter};
use core::ops::Range;
use core::str::FromStr;

pub use bits::Bits;
pub use error::FilterError;
pub use facts::FunctionFacts;
use facts::Predicate;
use glob::Glob;
pub use index::NameIndex;
pub use live::LiveFilter;
pub use matcher::{Catalog, Matcher, ModuleMatcher};
use pattern::{Pattern, What};
pub use pieces::SymbolPieces;
use words::{Word, words};

/// Separates the parts of a union.
const UNION: &str = "+";

/// A set of functions, by name and module, by address, or by any predicate.
///
/// It consists of two lists of patterns, which mean the same as in the kernel's function tracer. A
/// function is selected if it matches the *trace* list, where an empty list matches everything, and
/// does not match the *notrace* list, which takes precedence.
///
/// A pattern is a glob over the demangled name of a function, and optionally a second glob over its
/// module, that is, its program or shared library. Globs match the whole name:
///
/// | in a glob | matches |
/// |-----------|---------|
/// | `*` | any sequence of characters, including none, and including `::` |
/// | `?` | exactly one character |
/// | `\c` | the character `c`, whatever it is |
/// | any other | itself |
///
/// A function may have several names, and symbols may have versions. It is selected if any of its
/// names matches the trace list and none matches the notrace list, with or without the version. So
/// `memcpy`, `memcpy@*` and `memcpy@@GLIBC_2.14` all select it.
///
/// The kernel also has character classes, `[abc]`. In these globs **`[` is an ordinary character**,
/// since names such as `<[u8] as core::fmt::Debug>::fmt` are full of them.
///
/// # Filters as text
///
/// A filter is parsed from words separated by white space or commas:
///
/// | word | effect |
/// |------|--------|
/// | `GLOB` | trace these functions |
/// | `"NAME"` | trace the functions of this name, in which only `\` is special |
/// | `_RNvCs1234_7mycrate4main`, `_ZN3foo3barEv` | trace the function with this mangled symbol |
/// | `0x55d0c0de0140` | trace the function that begins at this address |
/// | `0x55d0c0de0000..0x55d0c0de1000` | trace the functions that begin in this range |
/// | `!WORD` | do not trace these functions |
/// | `WORD:mod:MODULE` | trace these functions of these modules |
/// | `:mod:MODULE` | trace all functions of these modules |
/// | `!WORD:mod:MODULE`, `!:mod:MODULE` | do not trace them |
/// | `:syscalls` | trace the [system calls](Self::system_calls) that functions make themselves |
/// | `:syscalls:mod:MODULE` | trace the system calls that functions of these modules make |
/// | `+` | a union: trace what the words before it select, and what those after it select |
///
/// Words add up: `malloc :mod:libz.so*` is `malloc` anywhere and everything in libz.
///
/// A text without words is an error: the filter that matches everything is `*`, the one that
/// matches nothing is `!*`. A word cannot begin with `!!`.
///
/// White space and commas do not end a word inside quotes, or between matching brackets, `<>`, `()`
/// or `[]`. So `<app::Sq as app::Shape>::area`, pasted from a listing, is one word. A bracket
/// without a partner, as in `operator<`, is an ordinary character, and so is a quote between
/// brackets. Elsewhere a backslash has the same effect: `a\ b`.
///
/// The `:mod:` of a word is recognized only between the two globs: in `a::mod::b` the colons belong
/// to the path.
///
/// ```
/// # use fgraph_symbols::filter as fgraph;
/// use fgraph::{Filter, FunctionFacts};
///
/// # fn main() -> Result<(), fgraph_symbols::filter::FilterError> {
/// let filter: Filter = "parser::* !*::fmt <app::Sq as app::Shape>::area :mod:libz.so*".parse()?;
/// let matches = |name, module| filter.matches(&FunctionFacts::new(&[name], module));
/// assert!(matches("parser::Tree::insert", "/usr/bin/app"));
/// assert!(!matches("parser::Tree::fmt", "/usr/bin/app"));
/// assert!(matches("<app::Sq as app::Shape>::area", "/usr/bin/app"));
/// assert!(matches("deflate", "/usr/lib/libz.so.1"));
/// assert!(!matches("deflate", "/usr/bin/app"));
/// # Ok(())
/// # }
/// ```
///
/// The same filter can be built with calls, one for each pattern:
///
/// ```
/// # use fgraph_symbols::filter as fgraph;
/// use fgraph::{Filter, FunctionFacts};
///
/// # fn main() -> Result<(), fgraph_symbols::filter::FilterError> {
/// let filter = Filter::none()
///     .trace("<app::Cache<K, V> as *>::get*")?
///     .notrace("*::get_unchecked")?;
/// let matches = |name| filter.matches(&FunctionFacts::new(&[name], "/bin/app"));
/// assert!(matches("<app::Cache<K, V> as app::Store>::get"));
/// assert!(!matches("<app::Cache<K, V> as app::Store>::get_unchecked"));
/// # Ok(())
/// # }
/// ```
///
/// # Predicates
///
/// A [predicate](Self::predicate) selects functions that globs cannot express: names regardless of
/// case, regular expressions, sizes.
#[derive(Clone, Debug)]
pub struct Filter {
    /// A function is selected if it matches one of the parts.
    parts: Vec<Part>,
}

/// Functions that match one list and not the other.
#[derive(Clone, Debug, Default)]
struct Part {
    /// Matches everything if it is empty.
    trace: Vec<Pattern>,
    notrace: Vec<Pattern>,
}

impl Part {
    /// Returns the patterns to trace; none if all functions are traced.
    fn trace(&self) -> &[Pattern] {
        match &*self.trace {
            [all] if all.is_everything() => &[],
            list => list,
        }
    }

    fn matches(&self, matches: impl Fn(&Pattern) -> bool) -> bool {
        (self.trace.is_empty() || self.trace.iter().any(&matches))
            && !self.notrace.iter().any(&matches)
    }

    /// Returns true if any function of the module at `path` could match.
    fn module_may_match(&self, path: &str) -> bool {
        let traced = |pattern: &Pattern| pattern.matches_module(path);
        let excluded = |pattern: &Pattern| pattern.matches_all_names() && traced(pattern);
        (self.trace.is_empty() || self.trace.iter().any(traced))
            && !self.notrace.iter().any(excluded)
    }

    /// Returns true if no function can match.
    fn is_nothing(&self) -> bool {
        self.notrace.iter().any(Pattern::is_everything)
    }

    /// Returns true if all functions match.
    fn is_everything(&self) -> bool {
        self.trace().is_empty() && self.notrace.is_empty()
    }

    /// Returns true if a pattern is about the system calls within functions.
    fn has_system_calls(&self) -> bool {
        let mut all = self.trace.iter().chain(&self.notrace);
        all.any(|pattern| pattern.what == What::SystemCalls)
    }

    /// Returns true if it has the same words in the same order.
    fn is_same(&self, other: &Self) -> bool {
        self.trace() == other.trace() && self.notrace == other.notrace
    }

    /// Returns true if it is only a list of patterns.
    fn is_list(&self) -> bool {
        !self.trace().is_empty() && self.notrace.is_empty()
    }
}

impl Filter {
    /// Makes the filter that matches every function, whatever is added to it; calls of
    /// [`notrace`](Self::notrace) and similar ones take functions away.
    ///
    /// ```
    /// # use fgraph_symbols::filter as fgraph;
    /// use fgraph::Filter;
    ///
    /// assert_eq!(Filter::all().notrace("*::fmt")?, "* !*::fmt".parse()?);
    /// # Ok::<(), fgraph_symbols::filter::FilterError>(())
    /// ```
    #[must_use]
    pub fn all() -> Self {
        Self {
            parts: vec![Part {
                trace: vec![Pattern::everything()],
                notrace: Vec::new(),
            }],
        }
    }

    /// Makes the filter that matches no function. It then matches functions that
    /// [`trace`](Self::trace) and similar calls add; [`notrace`](Self::notrace) before these has no
    /// effect.
    ///
    /// ```
    /// # use fgraph_symbols::filter as fgraph;
    /// use fgraph::Filter;
    ///
    /// let mut filter = Filter::none();
    /// for probe in ["malloc", "free"] {
    ///     filter = filter.trace(probe)?;
    /// }
    /// assert_eq!(filter, "malloc free".parse()?);
    /// # Ok::<(), fgraph_symbols::filter::FilterError>(())
    /// ```
    #[must_use]
    pub fn none() -> Self {
        Self { parts: Vec::new() }
    }

    /// Adds functions to trace, with a glob over their names.
    ///
    /// # Errors
    ///
    /// Fails if the glob is empty or ends in the middle of an escape.
    pub fn trace(self, name: &str) -> Result<Self, FilterError> {
        self.add(What::glob(name)?, None)
    }

    /// Adds functions not to trace, with a glob over their names.
    ///
    /// # Errors
    ///
    /// Fails if the glob is empty or ends in the middle of an escape.
    pub fn notrace(self, name: &str) -> Result<Self, FilterError> {
        self.exclude(What::glob(name)?, None)
    }

    /// Adds functions to trace, with a glob over their names and one over their modules.
    ///
    /// The second glob is matched against a module's file name, or, if it contains a `/`, against
    /// its whole path.
    ///
    /// ```
    /// # use fgraph_symbols::filter as fgraph;
    /// use fgraph::{Filter, FunctionFacts};
    ///
    /// # fn main() -> Result<(), fgraph_symbols::filter::FilterError> {
    /// let filter = Filter::none().trace_in("*alloc", "libc.so*")?;
    /// let malloc = |module| FunctionFacts::new(&["malloc"], module);
    /// assert!(filter.matches(&malloc("/lib/x86_64-linux-gnu/libc.so.6")));
    /// assert!(!filter.matches(&malloc("/lib/libjemalloc.so.2")));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if one of the globs is empty or ends in the middle of an escape.
    pub fn trace_in(self, name: &str, module: &str) -> Result<Self, FilterError> {
        self.add(What::glob(name)?, Some(module))
    }

    /// Adds functions not to trace, with a glob over their names and one over their modules.
    ///
    /// # Errors
    ///
    /// Fails if one of the globs is empty or ends in the middle of an escape.
    pub fn notrace_in(self, name: &str, module: &str) -> Result<Self, FilterError> {
        self.exclude(What::glob(name)?, Some(module))
    }

    /// Adds functions to trace, with one of their names, in which no character is special, or with
    /// a mangled symbol of Rust or C++.
    ///
    /// A thousand of these take no longer to look up than to read.
    ///
    /// # Errors
    ///
    /// Fails if the name is empty.
    pub fn name(self, name: &str) -> Result<Self, FilterError> {
        self.add(What::name(name)?, None)
    }

    /// The filter that matches the functions with these names, in which no character is special,
    /// and no others: of no names the one that matches nothing.
    ///
    /// ```
    /// # use fgraph_symbols::filter as fgraph;
    /// use fgraph::Filter;
    ///
    /// let probes = ["malloc", "operator new[](unsigned long)"];
    /// assert_eq!(Filter::names(probes)?, Filter::none().name(probes[0])?.name(probes[1])?);
    /// assert_eq!(Filter::names([""; 0])?, Filter::none());
    /// # Ok::<(), fgraph_symbols::filter::FilterError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If a name is empty.
    pub fn names<I>(names: I) -> Result<Self, FilterError>
    where
        I: IntoIterator<Item: AsRef<str>>,
    {
        let add = |filter: Self, name: I::Item| filter.name(name.as_ref());
        names.into_iter().try_fold(Self::none(), add)
    }

    /// Adds the function to trace that begins at `address`, which may come from a function pointer.
    ///
    /// The address is checked when the filter is applied: if no function begins there, that fails
    /// with [`FilterError::NoFunction`].
    #[must_use]
    pub fn address(self, address: usize) -> Self {
        self.add_pattern(Pattern {
            what: What::Address(address),
            module: None,
        })
    }

    /// Adds the function to trace that begins at `address` in the module with exactly this path.
    ///
    /// # Errors
    ///
    /// Fails if the path is empty.
    pub fn address_in(self, address: usize, path: &str) -> Result<Self, FilterError> {
        if path.is_empty() {
            return Err(FilterError::EmptyGlob);
        }
        Ok(self.add_pattern(Pattern {
            what: What::Address(address),
            module: Some(Glob::literal(path)),
        }))
    }

    /// Adds the functions to trace that begin in a range of addresses.
    ///
    /// # Errors
    ///
    /// Fails if no address is in the range.
    pub fn range(self, addresses: Range<usize>) -> Result<Self, FilterError> {
        self.add(What::range(addresses)?, None)
    }

    /// Adds the functions to trace for which `predicate` returns true.
    ///
    /// The predicate is called when the filter is applied, for every function of the process, and
    /// later for those of each library that is loaded. Then the thread that loads the library calls
    /// it and holds locks of the dynamic linker, so it must not load libraries itself. If it
    /// panics, the filter is not applied ([`FilterError::PredicatePanicked`]); if it panics when a
    /// library is loaded, no function of that library is selected.
    ///
    /// A filter with a predicate has no text that could be parsed again.
    ///
    /// # Examples
    ///
    /// Names regardless of case:
    ///
    /// ```
    /// # use fgraph_symbols::filter as fgraph;
    /// use fgraph::{Filter, FunctionFacts};
    ///
    /// let filter = Filter::none().predicate(|function| {
    ///     let mut names = function.names().iter();
    ///     names.any(|name| name.eq_ignore_ascii_case("readfile"))
    /// });
    /// assert!(filter.matches(&FunctionFacts::new(&["ReadFile"], "/bin/app")));
    /// assert!(!filter.matches(&FunctionFacts::new(&["ReadFiles"], "/bin/app")));
    /// ```
    ///
    /// Regular expressions, with the crate `regex`:
    ///
    /// ```
    /// # use fgraph_symbols::filter as fgraph;
    /// use fgraph::{Filter, FunctionFacts};
    ///
    /// let getters = regex::Regex::new(r"^app::\w+::(get|peek)_\d+$")?;
    /// let filter = Filter::none()
    ///     .predicate(move |function| function.names().iter().any(|name| getters.is_match(name)));
    /// assert!(filter.matches(&FunctionFacts::new(&["app::Cache::peek_32"], "/bin/app")));
    /// assert!(!filter.matches(&FunctionFacts::new(&["app::Cache::peek_all"], "/bin/app")));
    /// # Ok::<(), regex::Error>(())
    /// ```
    ///
    /// Large functions:
    ///
    /// ```
    /// # use fgraph_symbols::filter as fgraph;
    /// let large = fgraph::Filter::none().predicate(|function| function.size() >= 4096);
    /// ```
    #[must_use]
    pub fn predicate(
        self,
        predicate: impl Fn(&FunctionFacts<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.add_pattern(Pattern {
            what: What::Predicate(Predicate::new(predicate)),
            module: None,
        })
    }

    /// Adds the system calls that functions make themselves, with a `syscall` instruction of their
    /// own: all that can be traced.
    ///
    /// They are not functions, and no other pattern selects them, not even one for everything; one
    /// that excludes everything excludes them. To users each looks like a call of a function that
    /// only makes the system call. They happen anywhere, including in the allocator and with locks
    /// held, so their callbacks must neither allocate nor lock.
    ///
    /// ```
    /// # use fgraph_symbols::filter as fgraph;
    /// use fgraph::Filter;
    ///
    /// assert_eq!(Filter::none().system_calls().to_string(), ":syscalls");
    /// ```
    #[must_use]
    pub fn system_calls(self) -> Self {
        self.add_pattern(Pattern {
            what: What::SystemCalls,
            module: None,
        })
    }

    /// Adds the [system calls](Self::system_calls) that functions of some modules make themselves,
    /// with a glob over the modules.
    ///
    /// # Errors
    ///
    /// Fails if the glob is empty or ends in the middle of an escape.
    pub fn system_calls_in(self, module: &str) -> Result<Self, FilterError> {
        self.add(What::SystemCalls, Some(module))
    }

    /// Makes the filter that matches a function if either of the two does.
    ///
    /// ```
    /// # use fgraph_symbols::filter as fgraph;
    /// use fgraph::Filter;
    ///
    /// let parser: Filter = "parser::* !*::fmt".parse()?;
    /// let both = parser.union("lexer::Token::fmt".parse()?);
    /// assert_eq!(both.to_string(), "parser::* !*::fmt + lexer::Token::fmt");
    /// # Ok::<(), fgraph_symbols::filter::FilterError>(())
    /// ```
    #[must_use]
    pub fn union(mut self, other: Self) -> Self {
        for part in other.parts {
            match self.parts.last_mut() {
                Some(last) if last.is_list() && part.is_list() => last.trace.extend(part.trace),
                _ => self.parts.push(part),
            }
        }
        self
    }

    /// Returns true if a function is selected.
    ///
    /// # Panics
    ///
    /// Panics if a [predicate](Self::predicate) does.
    #[must_use]
    pub fn matches(&self, function: &FunctionFacts<'_>) -> bool {
        let mut parts = self.parts.iter();
        parts.any(|part| part.matches(|pattern| pattern.matches(function)))
    }

    /// Returns true if any function of the module at `path` could match.
    ///
    /// Otherwise its functions need not be checked one by one.
    #[must_use]
    pub fn module_may_match(&self, path: &str) -> bool {
        self.parts.iter().any(|part| part.module_may_match(path))
    }

    /// Iterates over the addresses in the filter at which functions begin, each with a function
    /// that returns true if the module at a path is the right one.
    pub fn addresses(&self) -> impl Iterator<Item = (usize, impl Fn(&str) -> bool)> {
        let patterns = self.parts.iter();
        let patterns = patterns.flat_map(|part| part.trace.iter().chain(&part.notrace));
        patterns.filter_map(|pattern| match pattern.what {
            What::Address(address) => Some((address, |path: &str| pattern.matches_module(path))),
            _ => None,
        })
    }

    fn add(self, what: What, module: Option<&str>) -> Result<Self, FilterError> {
        let module = module.map(Glob::new).transpose()?;
        Ok(self.add_pattern(Pattern { what, module }))
    }

    fn add_pattern(mut self, pattern: Pattern) -> Self {
        match self.parts.last_mut() {
            Some(last) => last.trace.push(pattern),
            None => self.parts.push(Part {
                trace: vec![pattern],
                notrace: Vec::new(),
            }),
        }
        self
    }

    fn exclude(mut self, what: What, module: Option<&str>) -> Result<Self, FilterError> {
        let module = module.map(Glob::new).transpose()?;
        if let Some(last) = self.parts.last_mut() {
            last.notrace.push(Pattern { what, module });
        }
        Ok(self)
    }

    /// Returns the two lists of each part, in the form in which they are written and compared:
    /// without parts that select nothing, and with a plain list joined to the list before it.
    fn canonical(&self) -> Vec<[Vec<&Pattern>; 2]> {
        let mut parts: Vec<[Vec<&Pattern>; 2]> = Vec::new();
        let mut was_list = false;
        for part in self.parts.iter().filter(|part| !part.is_nothing()) {
            let trace = part.trace().iter();
            match parts.last_mut() {
                Some([last, _]) if was_list && part.is_list() => last.extend(trace),
                _ => parts.push([trace.collect(), part.notrace.iter().collect()]),
            }
            was_list = part.is_list();
        }
        parts
    }
}

/// Splits the text of a filter into its words, as they are written.
///
/// ```
/// use fgraph_symbols::filter::split;
///
/// let text = "malloc, <app::Sq as app::Shape>::area !free";
/// let words = ["malloc", "<app::Sq as app::Shape>::area", "!free"];
/// assert_eq!(split(text)?, words);
/// # Ok::<(), fgraph_symbols::filter::FilterError>(())
/// ```
///
/// # Errors
///
/// Fails with [`UnclosedQuote`](FilterError::UnclosedQuote), or with
/// [`EmptyGlob`](FilterError::EmptyGlob) if a quote is empty.
pub fn split(text: &str) -> Result<Vec<&str>, FilterError> {
    let words = words(text)?.into_iter();
    Ok(words.map(|word| word.source).collect())
}

/// Filters are equal if they have the same words in the same order.
impl PartialEq for Filter {
    fn eq(&self, other: &Self) -> bool {
        self.canonical() == other.canonical()
    }
}

impl Eq for Filter {}

impl FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        let mut filter = Self::none();
        // The part for the words since the last `+`.
        let mut part = None;
        let mut behind = None;
        for Word { source, unquoted } in words(text)? {
            if source == UNION {
                let part = part.take().ok_or(FilterError::NothingBefore(UNION))?;
                filter = filter.union(Self { parts: vec![part] });
                behind = Some(source);
                continue;
            }
            behind = None;
            let part = part.get_or_insert_with(Part::default);
            match unquoted.strip_prefix('!') {
                Some(rest) if rest.starts_with('!') => {
                    return Err(FilterError::TwoExclamationMarks(source.to_owned()));
                }
                Some(rest) => part.notrace.push(Pattern::parse(rest, source)?),
                None => part.trace.push(Pattern::parse(&unquoted, source)?),
            }
        }
        if let Some(word) = behind {
            return Err(FilterError::NothingBehind {
                mark: UNION,
                word: word.to_owned(),
            });
        }
        let parts = vec![part.ok_or(FilterError::Empty)?];
        Ok(filter.union(Self { parts }))
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

/// Writes the filter as a text that parses to an equal filter, except for
/// [predicates](Filter::predicate).
impl Display for Filter {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let parts = self.canonical();
        if parts.is_empty() {
            return f.write_str("!*");
        }
        for (i, [trace, notrace]) in parts.iter().enumerate() {
            if i != 0 {
                write!(f, " {UNION} ")?;
            }
            if trace.is_empty() && notrace.is_empty() {
                f.write_str("*")?;
            }
            let traced = trace.iter().map(|pattern| ("", pattern));
            let excluded = notrace.iter().map(|pattern| ("!", pattern));
            for (i, (sign, pattern)) in traced.chain(excluded).enumerate() {
                let space = if i == 0 { "" } else { " " };
                write!(f, "{space}{sign}{pattern}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
