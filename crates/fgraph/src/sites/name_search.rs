//! Looking for the functions that filters mention by their names.

use core::ops::Range;

use fgraph_symbols::filter::ngrams::NgramBloom;
use fgraph_symbols::filter::{FilterError, FunctionFacts, ModuleMatcher};

use super::entries::{Entry, LookedAt, Subject};
use super::facts::ModuleFacts;
use super::system_calls;
use crate::process::modules::LoadedModule;

/// To look through the symbols of a module so often costs about as much as to demangle them.
const MANY_SEARCHES: u32 = 16;

/// Results of earlier searches of a module's names, which make the next one faster.
#[derive(Debug)]
pub(super) struct NameSearch {
    /// Of all names; `None` until a filter has selected none of them.
    ngrams: Option<NgramBloom>,
    /// How often all symbols were looked through for a filter, and nothing was selected.
    count: u32,
    /// No filter that is to be applied mentions functions of a lower index, which were not looked
    /// at.
    first_mentioned: usize,
}

impl NameSearch {
    /// Starts with what is known of the names, if anything is.
    pub(super) fn new(ngrams: Option<NgramBloom>) -> Self {
        Self {
            ngrams,
            count: 0,
            first_mentioned: usize::MAX,
        }
    }

    /// The pieces of all names, if they are known.
    pub(super) fn into_ngrams(self) -> Option<NgramBloom> {
        self.ngrams
    }

    /// The filters that were searched for have been applied; `is_over` says whether to none of the
    /// functions one is to be applied any more.
    pub(super) fn applied(&mut self, is_over: bool) {
        self.first_mentioned = usize::MAX;
        if is_over {
            // Not needed any more.
            self.ngrams = None;
        }
    }

    /// Any of the functions may be mentioned.
    pub(super) fn skip_none(&mut self) {
        self.first_mentioned = 0;
    }

    /// True if a function of a module may be selected, by the pieces of the names and by where the
    /// text is.
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

    /// True if sites have to be made before a filter can be applied: it selects, or with `lazily`
    /// or where some were `looked_at` mentions, one of the other functions. `is_first` says whether
    /// the functions were read for this.
    ///
    /// # Errors
    ///
    /// If a predicate panics.
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
        // They save time when it is the next filter's turn.
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

    /// The entries among `all` that the filters mention, and that of the linker's event, each with
    /// those beside it on which it depends what can be done with it; `None` if they are many.
    pub(super) fn few(
        &self,
        known: &'static ModuleFacts,
        all: &[Entry],
        matchers: &[ModuleMatcher<'_, '_>],
        event: Option<usize>,
    ) -> Option<Vec<Entry>> {
        /// One in so many is few.
        const SHARE: usize = 4;
        let is_for_all =
            |one: &ModuleMatcher<'_, '_>| one.mentions_everything() || one.selects_system_calls();
        if matchers.iter().any(is_for_all) {
            return None;
        }
        let pieces: Vec<_> = matchers.iter().map(ModuleMatcher::pieces).collect();
        // A predicate that panics here has not panicked before: all are looked at.
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
        let filter = Filter::new().trace(glob).unwrap();
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
