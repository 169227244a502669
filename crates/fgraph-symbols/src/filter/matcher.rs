//! Applies a filter to all functions of a module at once.
//!
//! Names without wildcards are looked up: in the module's names to check all functions, and in the
//! filter's names to check one. Globs over modules are compared once for each module. So the time
//! for a filter of many names hardly depends on the number of functions, nor the time for one
//! function on the number of names.

use core::cell::OnceCell;
use core::ops::Range;

use super::bits::Bits;
use super::error::FilterError;
use super::facts::FunctionFacts;
use super::glob::Glob;
use super::index::{self, Hashes, NameIndex};
use super::live::{LiveFilter, Step};
use super::pattern::{Pattern, What, matches_path};
use super::pieces::SymbolPieces;
use super::{Filter, Part};

/// The functions of a module that a filter may select.
#[expect(clippy::len_without_is_empty, reason = "nothing asks for that")]
pub trait Catalog {
    /// Returns the number of indices, including those that are not functions.
    fn len(&self) -> usize;

    /// Returns true if there is a function at an index.
    fn is_function(&self, index: usize) -> bool;

    /// Iterates over all names of a function, demangled, each once; none for an index that is not a
    /// function.
    fn names(&self, index: usize) -> impl Iterator<Item = &str>;

    /// Iterates over the functions that begin in a range of addresses.
    fn within(&self, addresses: Range<usize>) -> impl Iterator<Item = usize>;

    /// Iterates over the indices that are system calls within functions.
    fn system_calls(&self) -> impl Iterator<Item = usize> {
        core::iter::empty()
    }

    /// Calls `with` with all facts about a function.
    fn facts<R>(&self, index: usize, with: impl FnOnce(&FunctionFacts<'_>) -> R) -> R;
}

/// A filter, prepared for many checks.
#[derive(Debug)]
pub struct Matcher<'f> {
    steps: Vec<MatcherStep<'f>>,
    /// The globs over modules, each once.
    modules: Vec<&'f Glob>,
    words: Vec<Word<'f>>,
}

/// A word of the filter.
#[derive(Clone, Copy, Debug)]
struct Word<'f> {
    sign: &'static str,
    /// The pattern; `None` stands for everything.
    pattern: Option<&'f Pattern>,
}

#[derive(Debug)]
struct MatcherStep<'f> {
    adds: bool,
    /// The index of the word for everything, if no functions to trace are listed.
    everything: Option<usize>,
    trace: List<'f>,
    notrace: List<'f>,
}

/// The patterns of a list.
#[derive(Debug, Default)]
struct List<'f> {
    names: Vec<NameEntry<'f>>,
    /// The indices in `names`, by hash.
    by_hash: OnceCell<Hashes>,
    others: Vec<Entry<'f>>,
}

/// A pattern that is a name.
#[derive(Clone, Copy, Debug)]
struct NameEntry<'f> {
    hash: u64,
    name: &'f str,
    entry: Entry<'f>,
}

#[derive(Clone, Copy, Debug)]
struct Entry<'f> {
    what: &'f What,
    /// The index of its glob over modules.
    module: Option<usize>,
    word: usize,
}

/// A [`Matcher`] for one module.
#[derive(Debug)]
pub struct ModuleMatcher<'m, 'f> {
    matcher: &'m Matcher<'f>,
    /// For each glob over modules, true if it matches.
    matching: Vec<bool>,
}

impl<'f> Matcher<'f> {
    /// Makes a matcher for the functions that `filter` selects.
    #[must_use]
    pub fn new(filter: &'f Filter) -> Self {
        Self::of(filter.parts.iter().map(|part| (true, part)))
    }

    /// Makes a matcher for the functions that `filter` selects after all its changes.
    #[must_use]
    pub fn of_live(filter: &'f LiveFilter) -> Self {
        let steps = filter.steps.iter();
        Self::of(steps.map(|Step { adds, part }| (*adds, part)))
    }

    fn of(parts: impl Iterator<Item = (bool, &'f Part)>) -> Self {
        let mut this = Self {
            steps: Vec::new(),
            modules: Vec::new(),
            words: Vec::new(),
        };
        for (adds, part) in parts {
            let everything = part.trace.is_empty().then_some(this.words.len());
            if everything.is_some() {
                this.words.push(Word {
                    sign: if adds { "" } else { "!" },
                    pattern: None,
                });
            }
            let step = MatcherStep {
                adds,
                everything,
                trace: this.list(if adds { "" } else { "!" }, &part.trace),
                notrace: this.list("!", &part.notrace),
            };
            this.steps.push(step);
        }
        this
    }

    fn list(&mut self, sign: &'static str, patterns: &'f [Pattern]) -> List<'f> {
        let mut list = List::default();
        for pattern in patterns {
            let module = pattern.module.as_ref().map(|module| {
                let known = self.modules.iter().position(|known| *known == module);
                known.unwrap_or_else(|| {
                    self.modules.push(module);
                    self.modules.len() - 1
                })
            });
            let entry = Entry {
                what: &pattern.what,
                module,
                word: self.words.len(),
            };
            self.words.push(Word {
                sign,
                pattern: Some(pattern),
            });
            match &pattern.what {
                What::Name(name) | What::Symbol { name, .. } => list.names.push(NameEntry {
                    hash: index::hash(name),
                    name,
                    entry,
                }),
                _ => list.others.push(entry),
            }
        }
        list
    }

    /// Returns the number of words of the filter.
    #[expect(clippy::len_without_is_empty, reason = "nothing asks for that")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Iterates over the words of the filter: selected functions, and with a `!` excluded ones.
    pub fn words(&self) -> impl Iterator<Item = String> {
        self.words.iter().map(|word| match word.pattern {
            Some(pattern) => format!("{}{pattern}", word.sign),
            None => format!("{}*", word.sign),
        })
    }

    /// Returns the matcher for the module at `path`; `None` if the globs over modules rule out
    /// every function there.
    #[must_use]
    pub fn module(&self, path: &str) -> Option<ModuleMatcher<'_, 'f>> {
        let matching = self.modules.iter().map(|glob| matches_path(glob, path));
        let module = ModuleMatcher {
            matcher: self,
            matching: matching.collect(),
        };
        let may_match = |step: &MatcherStep<'_>| {
            let is_active = step.everything.is_some() || step.trace.is_active(&module);
            step.adds && is_active && !step.notrace.is_for_all(&module)
        };
        self.steps.iter().any(may_match).then_some(module)
    }
}

impl<'f> List<'f> {
    /// Returns true if a pattern applies to this module.
    fn is_active(&self, module: &ModuleMatcher<'_, '_>) -> bool {
        self.entries().any(|entry| module.has(entry))
    }

    /// Returns true if a pattern matches all functions of this module.
    fn is_for_all(&self, module: &ModuleMatcher<'_, '_>) -> bool {
        let mut others = self.others.iter().filter(|entry| module.has(**entry));
        others.any(|entry| entry.what.matches_everything())
    }

    fn entries(&self) -> impl Iterator<Item = Entry<'f>> {
        let names = self.names.iter().map(|name| name.entry);
        names.chain(self.others.iter().copied())
    }

    /// Returns true if a function matches.
    fn matches(
        &self,
        module: &ModuleMatcher<'_, '_>,
        function: &FunctionFacts<'_>,
    ) -> Result<bool, FilterError> {
        Ok(self.is_for_all(module) || self.mentions(module, function)?)
    }

    /// Returns true if a function matches a pattern that does not match all functions.
    fn mentions(
        &self,
        module: &ModuleMatcher<'_, '_>,
        function: &FunctionFacts<'_>,
    ) -> Result<bool, FilterError> {
        if !self.names.is_empty() {
            let by_hash = self.by_hash.get_or_init(|| {
                let hashes = self.names.iter().map(|name| name.hash);
                Hashes::new(hashes.zip(0..).collect())
            });
            for name in function.names() {
                for at in by_hash.of(index::hash(name)) {
                    let NameEntry {
                        name: wanted,
                        entry,
                        ..
                    } = self.names[at];
                    let is_it = wanted == *name && module.has(entry);
                    if is_it && (is_name(entry.what) || entry.what.matches_place(function)) {
                        return Ok(true);
                    }
                }
            }
        }
        for entry in self.others.iter().filter(|entry| module.has(**entry)) {
            let matches = match entry.what {
                What::Predicate(predicate) => predicate.try_matches(function)?,
                What::Glob(glob) if glob.matches_everything() => false,
                what => what.matches_place(function) || what.matches_names(function.names()),
            };
            if matches {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Selects all functions that match, and counts them for each word.
    fn select<C: Catalog>(
        &self,
        module: &ModuleMatcher<'_, '_>,
        functions: &C,
        index: &mut NameIndex,
        counts: &mut [usize],
    ) -> Result<Selection, FilterError> {
        let mut selection = Selection::Nothing;
        let names = self.names.iter().filter(|name| module.has(name.entry));
        for NameEntry { hash, name, entry } in names {
            let mut last = None;
            for function in index.by_name(functions).of(*hash) {
                let is_it = last != Some(function)
                    && functions.names(function).any(|other| other == *name)
                    && (is_name(entry.what)
                        || functions.facts(function, |facts| entry.what.matches_place(facts)));
                if is_it {
                    // A function's names follow each other.
                    last = Some(function);
                    counts[entry.word] += 1;
                    selection.insert(function, functions.len());
                }
            }
        }
        for entry in self.others.iter().filter(|entry| module.has(**entry)) {
            let mut take = |function| {
                counts[entry.word] += 1;
                selection.insert(function, functions.len());
            };
            let all = || (0..functions.len()).filter(|&index| functions.is_function(index));
            match entry.what {
                What::Glob(glob) if glob.matches_everything() => {
                    counts[entry.word] += all().count();
                    selection = Selection::Everything;
                }
                What::Glob(glob) => {
                    let found = index.by_glob(glob, functions);
                    counts[entry.word] += found.count();
                    selection.add(found);
                }
                What::Address(address) => functions
                    .within(*address..address.saturating_add(1))
                    .for_each(take),
                What::Range(range) => functions.within(range.clone()).for_each(take),
                // System calls are not functions, and are selected separately.
                What::SystemCalls => counts[entry.word] += functions.system_calls().count(),
                What::Predicate(predicate) => {
                    for function in all() {
                        if functions.facts(function, |facts| predicate.try_matches(facts))? {
                            take(function);
                        }
                    }
                }
                What::Name(_) | What::Symbol { .. } => unreachable!("names are apart"),
            }
        }
        Ok(selection)
    }
}

/// Returns true if a pattern consists only of a function's name.
fn is_name(what: &What) -> bool {
    matches!(what, What::Name(_))
}

/// Some functions of a module.
#[derive(Debug)]
enum Selection {
    Nothing,
    Some(Bits),
    Everything,
}

impl Selection {
    fn insert(&mut self, index: usize, len: usize) {
        if let Self::Nothing = self {
            *self = Self::Some(Bits::new(len));
        }
        if let Self::Some(bits) = self {
            bits.insert(index);
        }
    }

    fn add(&mut self, functions: &Bits) {
        match self {
            Self::Nothing if functions.is_empty() => {}
            Self::Nothing => *self = Self::Some(functions.clone()),
            Self::Some(bits) => bits.add(functions),
            Self::Everything => {}
        }
    }
}

impl ModuleMatcher<'_, '_> {
    fn has(&self, entry: Entry<'_>) -> bool {
        entry.module.is_none_or(|module| self.matching[module])
    }

    /// Returns true if the filter selects all functions, and has no other effect.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        let [step] = &*self.matcher.steps else {
            return false;
        };
        step.adds && step.everything.is_some() && step.notrace.entries().next().is_none()
    }

    /// Returns true if the filter names this module.
    #[must_use]
    pub fn is_asked_for(&self) -> bool {
        let mut steps = self.matcher.steps.iter().filter(|step| step.adds);
        steps.any(|step| {
            let mut all = step.trace.entries();
            all.any(|entry| entry.module.is_some() && self.has(entry))
        })
    }

    /// Returns true if the filter selects the system calls within functions of the module.
    #[must_use]
    pub fn selects_system_calls(&self) -> bool {
        let has = |list: &List<'_>, with_all: bool| {
            let mut all = list.others.iter().filter(|entry| self.has(**entry));
            all.any(|entry| match entry.what {
                What::SystemCalls => true,
                what => with_all && what.matches_everything(),
            })
        };
        // A word that excludes everything excludes them, too.
        let decides = |step: &&MatcherStep<'_>| {
            let is_meant = has(&step.trace, !step.adds) || !step.adds && step.everything.is_some();
            is_meant && !has(&step.notrace, true)
        };
        let last = self.matcher.steps.iter().rev().find(decides);
        last.is_some_and(|step| step.adds)
    }

    /// Returns true if the filter could select a function of the module. `may_contain` returns true
    /// for texts that the module's names may contain, where [`END`](super::ngrams::END) stands for
    /// the start and the end of a name; `may_begin` returns true if a function may begin in a range
    /// of addresses.
    pub fn may_select(
        &self,
        may_contain: impl Fn(&str) -> bool,
        may_begin: impl Fn(Range<usize>) -> bool,
    ) -> bool {
        let may_match = |what: &What| match what {
            What::Address(address) => may_begin(*address..address.saturating_add(1)),
            What::Range(range) => may_begin(range.clone()),
            what => what
                .texts()
                .is_none_or(|texts| texts.iter().all(|text| may_contain(text))),
        };
        let mut steps = self.matcher.steps.iter().filter(|step| step.adds);
        steps.any(|step| {
            let mut all = step.trace.entries();
            step.everything.is_some() || all.any(|entry| self.has(entry) && may_match(entry.what))
        })
    }

    /// Returns true if a word of the filter [mentions](Self::mentions) all functions of the module.
    #[must_use]
    pub fn mentions_everything(&self) -> bool {
        self.matcher.steps.iter().any(|step| {
            let mut trace = step.trace.entries();
            step.everything.is_some()
                || trace.any(|entry| self.has(entry) && entry.what.matches_everything())
        })
    }

    /// Returns texts in the symbols of each function that a word of the filter
    /// [mentions](Self::mentions); `None` if these are unknown.
    #[must_use]
    pub fn pieces(&self) -> Option<SymbolPieces> {
        let steps = &self.matcher.steps;
        if steps.iter().any(|step| step.everything.is_some()) {
            return None;
        }
        let words = steps.iter().flat_map(|step| {
            let notrace = step.notrace.entries();
            let notrace = notrace.filter(|entry| !entry.what.matches_everything());
            step.trace.entries().chain(notrace)
        });
        let words = words.filter(|entry| self.has(*entry) && *entry.what != What::SystemCalls);
        SymbolPieces::of(words.map(|entry| entry.what))
    }

    /// Returns true if the filter selects a function of the module.
    ///
    /// # Errors
    ///
    /// Fails if a predicate panics.
    pub fn matches(&self, function: &FunctionFacts<'_>) -> Result<bool, FilterError> {
        for step in self.matcher.steps.iter().rev() {
            if (step.everything.is_some() || step.trace.matches(self, function)?)
                && !step.notrace.matches(self, function)?
            {
                return Ok(step.adds);
            }
        }
        Ok(false)
    }

    /// Returns true if a word of the filter matches a function of the module, to select it or to
    /// exclude it. Words that exclude all of the module do not count.
    ///
    /// # Errors
    ///
    /// Fails if a predicate panics.
    pub fn mentions(&self, function: &FunctionFacts<'_>) -> Result<bool, FilterError> {
        for step in &self.matcher.steps {
            if step.everything.is_some()
                || step.trace.matches(self, function)?
                || step.notrace.mentions(self, function)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the indices of all functions that the filter selects; `None` if there are none. Adds
    /// the number of functions that match each of the [words](Matcher::words) to `counts`.
    ///
    /// # Errors
    ///
    /// Fails if a predicate panics.
    ///
    /// # Panics
    ///
    /// Panics if there are fewer counts than words.
    pub fn select(
        &self,
        functions: &impl Catalog,
        index: &mut NameIndex,
        counts: &mut [usize],
    ) -> Result<Option<Bits>, FilterError> {
        let len = functions.len();
        let everything = || {
            let mut all = Bits::new(len);
            let indices = (0..len).filter(|&index| functions.is_function(index));
            indices.for_each(|index| all.insert(index));
            all
        };
        let mut selected: Option<Bits> = None;
        for step in &self.matcher.steps {
            let trace = match step.everything {
                Some(word) => {
                    counts[word] += (0..len).filter(|&i| functions.is_function(i)).count();
                    Selection::Everything
                }
                None => step.trace.select(self, functions, index, counts)?,
            };
            let mut chosen = match trace {
                Selection::Nothing if step.notrace.names.len() + step.notrace.others.len() == 0 => {
                    continue;
                }
                Selection::Nothing => Bits::new(len),
                Selection::Some(bits) => bits,
                Selection::Everything => everything(),
            };
            match step.notrace.select(self, functions, index, counts)? {
                Selection::Nothing => {}
                Selection::Some(bits) => chosen.remove(&bits),
                Selection::Everything => chosen = Bits::new(len),
            }
            match &mut selected {
                Some(selected) if step.adds => selected.add(&chosen),
                Some(selected) => selected.remove(&chosen),
                None if step.adds => selected = Some(chosen),
                None => {}
            }
        }
        if self.selects_system_calls() {
            let selected = selected.get_or_insert_with(|| Bits::new(len));
            functions
                .system_calls()
                .for_each(|index| selected.insert(index));
        }
        Ok(selected.filter(|selected| !selected.is_empty()))
    }
}
