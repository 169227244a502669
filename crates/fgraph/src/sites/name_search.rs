//! Searches for the functions that filters mention by their names.

use core::ops::Range;

use fgraph_symbols::filter::ngrams::NgramBloom;
use fgraph_symbols::filter::{FilterError, FunctionFacts, ModuleMatcher};

use super::entries::{Entry, LookedAt, Subject};
use super::facts::ModuleFacts;
use super::system_calls;
use crate::process::modules::LoadedModule;

/// Number of full symbol scans that cost about as much as demangling once.
const MANY_SEARCHES: u32 = 16;

/// Results of earlier searches of a module's names, which speed up the next one.
#[derive(Debug)]
pub(super) struct NameSearch {
    /// The n-grams of all names; `None` until a filter has selected none of them.
    ngrams: Option<NgramBloom>,
    /// The number of times that all symbols were scanned for a filter, and nothing was selected.
    count: u32,
    /// Index of the first function that a pending filter may mention: lower ones that were not
    /// analyzed are not mentioned.
    first_mentioned: usize,
}

impl NameSearch {
    /// Starts with the n-grams of the names, if they are known.
    pub(super) fn new(ngrams: Option<NgramBloom>) -> Self {
        Self {
            ngrams,
            count: 0,
            first_mentioned: usize::MAX,
        }
    }

    /// Returns the n-grams of all names, if they are known.
    pub(super) fn into_ngrams(self) -> Option<NgramBloom> {
        self.ngrams
    }

    /// Notes that the pending filters were applied; `is_over` is true if no more filters will be
    /// applied to any function.
    pub(super) fn applied(&mut self, is_over: bool) {
        self.first_mentioned = usize::MAX;
        if is_over {
            // Not needed any more.
            self.ngrams = None;
        }
    }

    /// Notes that any of the functions may be mentioned.
    pub(super) fn skip_none(&mut self) {
        self.first_mentioned = 0;
    }

    /// Returns true if a function of a module may be selected, by the n-grams of the names and by
    /// the range of the text.
    pub(super) fn may_select(
        &self,
        loaded: &LoadedModule,
        matcher: &ModuleMatcher<'_, '_>,
    ) -> bool {
        let ngrams = self.ngrams.as_ref();
        let may_contain = |text: &str| ngrams.is_none_or(|ngrams| ngrams.may_contain(text));
        let may_begin = |range: Range<usize>| {
            let mut text = loaded.text();
            text.any(|text| range.start < text.end && text.start < range.end)
        };
        matcher.may_select(may_contain, may_begin)
    }

    /// Returns true if sites must be made before a filter can be applied: it selects one of the
    /// remaining functions, or, with `lazily` or if some were `looked_at`, it mentions one.
    /// `is_first` is true if the functions were read for this call.
    ///
    /// # Errors
    ///
    /// Fails if a predicate panics.
    pub(super) fn is_wanted(
        &mut self,
        known: &'static ModuleFacts,
        matcher: &ModuleMatcher<'_, '_>,
        looked_at: Option<&LookedAt>,
        lazily: bool,
        is_first: bool,
    ) -> Result<bool, FilterError> {
        if matcher.selects_system_calls() && system_calls::may_be_in(&known.file) {
            return Ok(true);
        }
        let pieces = matcher.pieces();
        // They save time for the next filter.
        let is_worth = pieces.is_none() || self.count >= MANY_SEARCHES;
        let unknown = is_worth && self.ngrams.is_none() && !(is_first && lazily);
        let mut ngrams = unknown.then(|| NgramBloom::new(known.functions.len()));
        for index in 0..known.functions.len() {
            let is_done = looked_at.is_some_and(|done| done.functions.contains(index))
                || !known.may_be_mentioned(index, pieces.as_ref());
            if is_done && !unknown {
                continue;
            }
            let names = known.names_of(index);
            if let Some(ngrams) = &mut ngrams {
                names.iter().for_each(|name| ngrams.add(name));
            }
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            // A word counts each function that it matches, selected or not.
            let mut is_mentioned = false;
            let is_wanted = |facts: &FunctionFacts<'_>| {
                is_mentioned = (lazily || looked_at.is_some()) && matcher.mentions(facts)?;
                match looked_at {
                    Some(_) => Ok(is_mentioned),
                    None => matcher.matches(facts),
                }
            };
            let is_wanted = !is_done && known.facts(known.address(index), &names, is_wanted)?;
            if is_mentioned {
                self.first_mentioned = self.first_mentioned.min(index);
            }
            if is_wanted {
                return Ok(true);
            }
        }
        if unknown {
            // Complete, since all names have been looked at.
            self.ngrams = ngrams;
        }
        self.count += 1;
        Ok(false)
    }

    /// Returns the entries among `all` that the filters mention, and the linker's event function,
    /// each with its neighbours on which its plan depends; `None` if they are many.
    pub(super) fn few(
        &self,
        known: &'static ModuleFacts,
        all: &[Entry],
        matchers: &[ModuleMatcher<'_, '_>],
        event: Option<usize>,
    ) -> Option<Vec<Entry>> {
        /// One in this many entries is few.
        const SHARE: usize = 4;
        let is_for_all =
            |one: &ModuleMatcher<'_, '_>| one.mentions_everything() || one.selects_system_calls();
        if matchers.iter().any(is_for_all) {
            return None;
        }
        let pieces: Vec<_> = matchers.iter().map(ModuleMatcher::pieces).collect();
        // A predicate that panics here has not panicked before: all entries are used then.
        let is_mentioned = |entry: &Entry| -> Result<bool, FilterError> {
            if let Subject::Function(index) = entry.subject {
                let may_be = |pieces: &Option<_>| known.may_be_mentioned(index, pieces.as_ref());
                if index < self.first_mentioned || !pieces.iter().any(may_be) {
                    return Ok(false);
                }
            }
            let names = entry.subject.names(known, entry.address);
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            known.facts(entry.address, &names, |facts| {
                for matcher in matchers {
                    if matcher.mentions(facts)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            })
        };
        let mut few = Vec::new();
        let mut rest = all;
        while !rest.is_empty() {
            let group;
            (group, rest) = rest.split_at(Entry::depend_on_each_other(rest));
            let mut is_one = false;
            for entry in group {
                is_one |= event == Some(entry.address) || is_mentioned(entry).ok()?;
            }
            if is_one {
                few.extend_from_slice(group);
            }
            if few.len() > all.len() / SHARE {
                return None;
            }
        }
        Some(few)
    }
}

#[cfg(test)]
mod tests {
    use super::super::linked_module::LinkedModule;
    use super::*;
    use crate::process::modules;
    use fgraph_symbols::filter::{Filter, Matcher};

    /// The functions of all modules that are loaded, each with a search of its own.
    fn modules() -> Vec<(LinkedModule, &'static ModuleFacts, NameSearch)> {
        let linked = modules::loaded().0.into_iter();
        let linked = linked.map(|loaded| LinkedModule::new(loaded, None, false));
        let known = linked.filter_map(|mut module| {
            let known = module.read().ok()?;
            Some((module, known, NameSearch::new(None)))
        });
        known.collect()
    }

    fn is_wanted(
        (module, known, search): &mut (LinkedModule, &'static ModuleFacts, NameSearch),
        glob: &str,
    ) -> bool {
        let filter = Filter::none().trace(glob).unwrap();
        let matcher = Matcher::new(&filter);
        let matcher = matcher.module(&module.path).unwrap();
        let may_be = search.may_select(&module.loaded, &matcher);
        may_be
            && search
                .is_wanted(known, &matcher, None, false, false)
                .unwrap()
    }

    fn exactly(name: &str) -> String {
        name.chars().flat_map(|c| ['\\', c]).collect()
    }

    /// Some of the names of a module.
    fn names(known: &'static ModuleFacts) -> impl Iterator<Item = String> {
        let some = (0..known.functions.len()).step_by(1 + known.functions.len() / 32);
        some.flat_map(|index| known.names_of(index))
    }

    #[test]
    fn many_filters_that_select_nothing_leave_what_tells_it_of_the_next() {
        let modules = modules();
        assert!(!modules.is_empty());
        for mut module in modules {
            let nothing = "*no_such_function_anywhere*";
            for _ in 0..=MANY_SEARCHES {
                assert!(module.2.ngrams.is_none());
                assert!(!is_wanted(&mut module, nothing));
            }
            assert!(module.2.ngrams.is_some());
            for name in names(module.1) {
                assert!(is_wanted(&mut module, &exactly(&name)), "{name}");
            }
        }
    }

    #[test]
    fn every_name_is_wanted_also_after_a_filter_that_selects_nothing() {
        let modules = modules();
        assert!(!modules.is_empty());
        for mut module in modules {
            // Nothing of it would be in symbols.
            let nothing = "::::";
            assert!(!is_wanted(&mut module, nothing));
            assert!(module.2.ngrams.is_some());
            assert!(!is_wanted(&mut module, nothing));
            for name in names(module.1) {
                assert!(is_wanted(&mut module, &exactly(&name)), "{name}");
                let mut chars = name.chars();
                chars.next();
                chars.next_back();
                let middle = exactly(chars.as_str());
                assert!(is_wanted(&mut module, &format!("?{middle}*")), "{name}");
            }
        }
    }
}
