//! The functions of one module, and their sites.
//!
//! Functions are read when a filter first refers to the module. Sites are made when a filter first
//! selects one of its functions: records, stubs and relocated prologues for all of them at once. In
//! the lazy mode, they are made only for the functions that filters mention, as long as these are
//! few.
//!
//! # Safety
//!
//! The unsafe code reads text of a loaded module.

use core::mem;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use fgraph_core::MAX_USERS;
use fgraph_core::site::Site;
use fgraph_symbols::filter::ngrams::NgramBloom;
use fgraph_symbols::filter::{Bits, FilterError, Matcher};

use super::candidates::Candidates;
use super::entries::{Entry, LookedAt};
use super::facts::{FileFacts, MAX_PARTS, ModuleFacts};
use super::layout::BuildContext;
use super::linked_module::LinkedModule;
use super::listing::ModuleListing;
use super::module_plan::ModulePlan;
use super::name_search::NameSearch;
use super::planners::Planners;
use super::record::{OFF, ON, original, patched_len};
use super::selection::{Change, Selection, Selections, indices};
use super::stage::Stage;
use super::wanted::{Wanted, Wanting};
use crate::os::maps::Protections;
use crate::process::modules;
use crate::report::error::{RefusalReason, RefusedFunction};

/// A module that is, or was, loaded.
#[derive(Debug)]
pub(crate) struct ModuleSites {
    pub(super) linked: LinkedModule,
    stage: Stage,
    search: NameSearch,
    /// The selection of each user in it.
    selections: Selections,
    pub(crate) is_loaded: bool,
    /// True if not all filters were applied to it.
    pub(crate) is_new: bool,
    /// True if it was loaded when [`take_change`](Self::take_change) was last called.
    pub(crate) is_noted: bool,
    /// The number of functions that each user watched when it was unloaded.
    watched: [usize; MAX_USERS],
}

/// The facts about the file of an unloaded module, so that it is not read again.
#[derive(Debug)]
pub(crate) struct KnownFile {
    pub(super) loaded: modules::LoadedModule,
    facts: &'static FileFacts,
    ngrams: Option<NgramBloom>,
}

/// A module that was loaded or unloaded.
#[derive(Debug)]
pub(crate) struct ModuleChange {
    pub(crate) is_loaded: bool,
    pub(crate) path: String,
    /// Its address range.
    pub(crate) range: Range<usize>,
    /// The number of functions that each user watches, or watched.
    pub(crate) functions: [usize; MAX_USERS],
}

impl ModuleSites {
    /// Makes a module that was loaded, with the facts about its file, if there are any.
    pub(super) fn new(linked: LinkedModule, file: Option<KnownFile>) -> Self {
        let (facts, ngrams) = match file {
            Some(file) => (Some(file.facts.at(linked.loaded.load_bias())), file.ngrams),
            None => (None, None),
        };
        Self {
            linked,
            stage: facts.map_or(Stage::Unread, Stage::Read),
            search: NameSearch::new(ngrams),
            selections: Default::default(),
            is_loaded: true,
            is_new: true,
            is_noted: false,
            watched: [0; MAX_USERS],
        }
    }

    /// Returns the facts about its file, if `loaded` was loaded from the same file.
    pub(crate) fn file_of(&self, loaded: &modules::LoadedModule) -> Option<KnownFile> {
        let known = self.stage.known()?;
        let linked = &self.linked.loaded;
        linked.is_same_file(loaded).then(|| KnownFile {
            loaded: linked.clone(),
            facts: known.of_file(),
            ngrams: None,
        })
    }

    /// Returns the facts about its file, to be kept after it is unloaded.
    pub(crate) fn into_file(self) -> Option<KnownFile> {
        Some(KnownFile {
            facts: self.stage.known()?.of_file(),
            loaded: self.linked.loaded,
            ngrams: self.search.into_ngrams(),
        })
    }

    /// Returns true if its functions were read.
    pub(super) fn is_read(&self) -> bool {
        !matches!(self.stage, Stage::Unread)
    }

    /// Returns true if it is this module.
    pub(crate) fn is(&self, loaded: &modules::LoadedModule) -> bool {
        self.linked.loaded.is(loaded)
    }

    /// Returns true if `loaded` was loaded from the file from which the sites were made.
    pub(crate) fn is_of(&self, loaded: &modules::LoadedModule) -> bool {
        let has_indices = self.has_indices();
        // Meanwhile the indices may have been given to the same file at another address.
        has_indices.is_none_or(|has_indices| !has_indices.load(Ordering::Relaxed))
            && !self.is_older_than(loaded)
            && self
                .stage
                .known()
                .is_some_and(|known| modules::check(loaded, &known.file).is_ok())
    }

    /// Returns true if the file was changed since this module was loaded. It may change while it is
    /// loaded, but not if none of its sites is patched any more.
    pub(crate) fn is_older_than(&self, loaded: &modules::LoadedModule) -> bool {
        let is_on = |site: &Site| site.state.load(Ordering::Relaxed) == ON;
        loaded.is_newer_than(&self.linked.loaded) && !(self.is_loaded && self.sites().any(is_on))
    }

    /// Handles that it is loaded again, at its address: its text is as the compiler made it.
    pub(crate) fn come_back(&mut self, loaded: modules::LoadedModule, may_cancel: bool) {
        self.linked.come_back(loaded, may_cancel);
        self.set_loaded(true);
        self.is_new = true;
        for site in self.sites() {
            site.interest.store(0, Ordering::Relaxed);
            site.state.store(OFF, Ordering::Relaxed);
        }
    }

    /// Handles that it is unloaded.
    pub(crate) fn leave(&mut self) {
        self.watched = core::array::from_fn(|slot| self.count_selected(slot));
        self.set_loaded(false);
        self.selections = Default::default();
    }

    /// Returns the change, if it was loaded or unloaded since the last time.
    pub(super) fn take_change(&mut self) -> Option<ModuleChange> {
        if self.is_noted == self.is_loaded {
            return None;
        }
        self.is_noted = self.is_loaded;
        let segments = || self.linked.loaded.segments().map(|(range, _)| range);
        let start = segments().map(|range| range.start).min().unwrap_or(0);
        let end = segments().map(|range| range.end).max().unwrap_or(0);
        Some(ModuleChange {
            is_loaded: self.is_loaded,
            path: self.linked.path.clone(),
            range: start..end,
            functions: match self.is_loaded {
                true => core::array::from_fn(|slot| self.count_selected(slot)),
                false => self.watched,
            },
        })
    }

    /// Returns the code whose callees are traced with their returns, by address.
    pub(super) fn ordinary_code(&self) -> Vec<Range<usize>> {
        let walked = self.stage.known().map_or(&[][..], ModuleFacts::walked);
        self.linked.ordinary_code(walked)
    }

    /// Returns true if a runtime walks the frames of code that is known to be in the module.
    pub(super) fn is_walked(&self) -> bool {
        matches!(self.stage, Stage::Built(known, _) if !known.walked().is_empty())
    }

    fn has_indices(&self) -> Option<&'static AtomicBool> {
        self.stage.built()?.has_indices
    }

    fn set_loaded(&mut self, is_loaded: bool) {
        self.is_loaded = is_loaded;
        if let Some(built) = self.stage.built() {
            built.set_loaded(is_loaded);
        }
    }

    /// Returns the facts about its functions, if they were read, and the ranges of its code.
    pub(super) fn symbols(
        &self,
    ) -> Option<(&'static ModuleFacts, impl Iterator<Item = Range<usize>>)> {
        let known = self.stage.known().filter(|_| self.is_loaded)?;
        Some((known, self.linked.loaded.text()))
    }

    /// Returns true if threads run its code with all signals blocked, as they do in the C library.
    pub(super) fn runs_blocked(&self) -> bool {
        let known = self.stage.known();
        known.is_some_and(|known| known.blocks_signals())
    }

    /// Returns its sites, in the parts in which they were made.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &'static [Site]> {
        let built = self.stage.built().into_iter();
        let parts = built.flat_map(|built| built.parts.iter());
        parts.map(|part| part.named.sites)
    }

    pub(crate) fn sites(&self) -> impl Iterator<Item = &'static Site> {
        self.parts().flatten()
    }

    /// Returns the site of the function at `address`.
    pub(crate) fn site_at(&self, address: usize) -> Option<&'static Site> {
        self.stage.built()?.parts.site_at(address)
    }

    /// Returns the patched sites whose text is as the compiler made it, because the same file was
    /// unloaded and loaded again at the same address. They count as unpatched from now on. Call it
    /// while the module cannot be unloaded.
    pub(crate) fn renew(&self) -> Vec<&'static Site> {
        /// The number of sites that are checked. If none of these was reloaded, no site was,
        /// because text is loaded as a whole. A debugger may have changed one.
        const WITNESSES: usize = 4;
        let is_on = |site: &&Site| site.state.load(Ordering::Relaxed) == ON;
        let is_renewed = |site: &&Site| {
            // SAFETY: a module is loaded there.
            let now = |at| unsafe { ((site.entry + at) as *const u8).read_volatile() };
            let original = original(site).bytes;
            is_on(site) && (0..patched_len(site)).all(|at| now(at) == original[at])
        };
        // Sites that no user selects are not patched.
        let selected = (0..MAX_USERS).flat_map(|slot| self.selected(slot));
        let mut witnesses = selected.filter(is_on).take(WITNESSES);
        if !witnesses.any(|site| is_renewed(&site)) {
            return Vec::new();
        }
        let renewed: Vec<_> = self.sites().filter(is_renewed).collect();
        for site in &renewed {
            site.state.store(OFF, Ordering::Relaxed);
        }
        renewed
    }

    /// The filters for which sites have to be made: of all functions if one of these is not lazy,
    /// else of those that they mention. `None` if there are none.
    ///
    /// # Errors
    ///
    /// If a predicate of `new` panics.
    pub(super) fn wanting<'a, 'f>(
        &mut self,
        users: &[Wanted<'a, 'f>],
        new: Option<Wanted<'a, 'f>>,
    ) -> Result<Option<Wanting<'a, 'f>>, FilterError> {
        let mut mentioned = Vec::new();
        // Users without lazy sites first: if one of them wants a function, all sites are made, and
        // the others need not be asked.
        for is_lazy in [false, true] {
            for user in users.iter().filter(|user| user.is_lazy == is_lazy) {
                // A predicate that panics selects nothing.
                if self.is_wanted(user.matcher, is_lazy).unwrap_or(false) {
                    if !is_lazy {
                        return Ok(Some(Wanting::All));
                    }
                    mentioned.push(user.matcher);
                }
            }
            if let Some(new) = new.filter(|new| new.is_lazy == is_lazy)
                && self.is_wanted(new.matcher, is_lazy)?
            {
                if !is_lazy {
                    return Ok(Some(Wanting::All));
                }
                mentioned.push(new.matcher);
            }
        }
        Ok((!mentioned.is_empty()).then_some(Wanting::Mentioned(mentioned)))
    }

    /// Returns true if sites must be made before the filter of `matcher` can be applied. With
    /// `lazily`, only functions that it mentions count.
    ///
    /// # Errors
    ///
    /// Fails if a predicate panics.
    pub(crate) fn is_wanted(
        &mut self,
        matcher: &Matcher<'_>,
        lazily: bool,
    ) -> Result<bool, FilterError> {
        let is_first = !self.is_read();
        let built = self.stage.built();
        if !self.is_loaded || built.is_some_and(|built| built.looked_at.is_none()) {
            return Ok(false);
        }
        if built.is_none() && self.linked.event().is_some() {
            self.search.skip_none();
            return Ok(true);
        }
        let Some(matcher) = matcher.module(&self.linked.path) else {
            return Ok(false);
        };
        let Some(known) = self.known() else {
            return Ok(false);
        };
        if !self.search.may_select(&self.linked.loaded, &matcher) {
            return Ok(false);
        }
        let looked_at = self
            .stage
            .built()
            .and_then(|built| built.looked_at.as_ref());
        let search = &mut self.search;
        search.is_wanted(known, &matcher, looked_at, lazily, is_first)
    }

    /// Returns the facts about its functions, and reads them if necessary; `None` if they cannot be
    /// read.
    fn known(&mut self) -> Option<&'static ModuleFacts> {
        if let Stage::Unread = self.stage {
            self.stage = self
                .linked
                .read()
                .map_or_else(Stage::Unreadable, Stage::Read);
        }
        self.stage.known()
    }

    /// Returns the filter's selection in the module for a user that may or may not have
    /// breakpoints. Adds the number of functions that match each word to `counts`.
    ///
    /// # Errors
    ///
    /// Fails if a predicate panics.
    pub(crate) fn select(
        &mut self,
        matcher: &Matcher<'_>,
        breakpoints: bool,
        counts: &mut [usize],
    ) -> Result<Selection, FilterError> {
        let mut selection = Selection::default();
        let Some(matcher) = matcher.module(&self.linked.path) else {
            return Ok(selection);
        };
        match &mut self.stage {
            Stage::Built(known, built) => {
                Selection::new(&matcher, known, built, breakpoints, counts)
            }
            Stage::Unreadable(_) => {
                selection.unreadable = matcher.is_asked_for();
                Ok(selection)
            }
            Stage::Unread | Stage::Read(_) => Ok(selection),
        }
    }

    /// Changes the selection of the user in `slot`. Adds the sites that were selected and are not
    /// any more, or are and were not, to `changed`.
    pub(crate) fn change(
        &mut self,
        slot: usize,
        selection: Selection,
        change: Change,
        changed: &mut Vec<&'static Site>,
    ) {
        let differ = self.selections.change(slot, selection, change);
        for site in self.sites_of(differ.as_ref()) {
            // Relaxed: the bits only select the slots that are read.
            site.interest.fetch_xor(1 << slot, Ordering::Relaxed);
            changed.push(site);
        }
    }

    /// Iterates over the sites of a selection.
    fn sites_of(&self, selected: Option<&Bits>) -> impl Iterator<Item = &'static Site> {
        let parts = self.stage.built().map(|built| &built.parts);
        indices(selected).filter_map(move |index| Some(parts?.site(index)))
    }

    /// Iterates over the sites that the user in `slot` selects.
    pub(crate) fn selected(&self, slot: usize) -> impl Iterator<Item = &'static Site> {
        self.sites_of(self.selections.of(slot).sites.as_ref())
    }

    /// Returns the number of sites that the user in `slot` selects.
    pub(crate) fn count_selected(&self, slot: usize) -> usize {
        let sites = self.selections.of(slot).sites.as_ref();
        sites.map_or(0, Bits::count)
    }

    /// Returns the functions of this module that the user in `slot` selects and that cannot be
    /// traced.
    pub(crate) fn refused(&self, slot: usize) -> impl Iterator<Item = RefusedFunction> {
        self.refused_of(self.selections.of(slot))
    }

    /// Returns the functions of a selection in this module that cannot be traced.
    pub(crate) fn refused_of(
        &self,
        selection: &Selection,
    ) -> impl Iterator<Item = RefusedFunction> {
        let module = match &self.stage {
            Stage::Unreadable(error) if selection.unreadable => Some(RefusedFunction {
                name: String::new(),
                module: self.linked.path.clone(),
                address: 0,
                reason: RefusalReason::Module(error.clone()),
            }),
            _ => None,
        };
        let built = self.stage.built().into_iter();
        let functions = built.flat_map(|built| selection.refused(built, &self.linked.path));
        module.into_iter().chain(functions)
    }

    /// Frees memory that only makes it faster to make sites.
    pub(super) fn forget_searches(&self) {
        if let Some(known) = self.stage.known() {
            known.forget_exits();
        }
    }

    /// Returns true if a function begins at `address`.
    pub(crate) fn has_function_at(&mut self, address: usize) -> bool {
        if !self.linked.loaded.is_text(address) {
            return false;
        }
        let mut listed = self.linked.listed.iter();
        let is_listed = listed.any(|listed| listed.address == address);
        let Some(known) = self.known() else {
            return false;
        };
        let in_file = address.wrapping_sub(known.bias) as u64;
        is_listed || known.functions.index_at(in_file).is_some()
    }

    pub(crate) fn path(&self) -> &str {
        &self.linked.path
    }

    /// True if there is text of the module at `address`.
    pub(super) fn has_code_at(&self, address: usize) -> bool {
        self.linked
            .loaded
            .text()
            .any(|text| text.contains(&address))
    }

    /// Reads its functions, unless they were or cannot be read.
    pub(super) fn read_functions(&mut self) {
        let _ = self.known();
    }

    /// Reads the entries that compilers have listed. This may wait for libraries to be loaded.
    pub(crate) fn read_lists(&mut self) {
        if let Some(known) = self.known() {
            self.linked.read_lists(known);
        }
    }

    /// Returns the plan for its functions; `None` if they cannot be read.
    ///
    /// With `lazily`, the filters that select something of the module, the plan has only the
    /// functions that these mention, if they are few.
    pub(super) fn plan(
        &mut self,
        protections: &Arc<Protections>,
        lazily: Option<&[&Matcher<'_>]>,
        planners: Planners,
    ) -> Option<ModulePlan> {
        let known = self.known()?;
        let candidates = Candidates::new(known, &self.linked, protections);
        known.restore(&self.linked.listed);
        let all = Entry::all(known, &candidates);
        // The last part contains all remaining functions.
        let lazily = lazily.filter(|_| known.sites().count() + 1 < MAX_PARTS);
        let few = lazily.and_then(|matchers| {
            let matchers = matchers
                .iter()
                .filter_map(|one| one.module(&self.linked.path));
            let matchers: Vec<_> = matchers.collect();
            let event = self.linked.event();
            self.search.few(known, &all, &matchers, event)
        });
        let done = self
            .stage
            .built()
            .and_then(|built| built.looked_at.as_ref());
        let listed = &self.linked.listed[..];
        let is_padded = !listed.is_empty();
        let plan = ModulePlan::new(known, candidates, &all, few, done, is_padded, planners);
        plan.save(listed);
        Some(plan)
    }

    /// Makes the sites of a plan; returns true if the module is still loaded.
    pub(super) fn build(
        &mut self,
        mut plan: ModulePlan,
        context: &mut BuildContext,
        planners: Planners,
    ) -> bool {
        let loaded = self.linked.loaded.clone();
        let build = || {
            let mut built = match mem::replace(&mut self.stage, Stage::Unread) {
                Stage::Built(_, built) => built,
                _ => Box::default(),
            };
            let (known, few) = (plan.known, plan.few.take());
            // SAFETY: the module stays loaded.
            let live = unsafe { plan.in_memory(|range| built.parts.overlap(range)) };
            built.build(known, live, context, planners);
            let done = built.looked_at.take();
            built.looked_at = few.map(|few| LookedAt::new(done, known, &few));
            let (sites, unpatchable) = (built.parts.len(), built.unpatchable.len());
            self.selections.grow(sites, unpatchable);
            self.search.applied(built.looked_at.is_none());
            self.stage = Stage::Built(known, built);
        };
        modules::while_present(&loaded, build).is_some()
    }

    /// Returns the functions that `matcher` selects; `None` if there are none.
    ///
    /// # Errors
    ///
    /// Fails if a predicate panics.
    pub(crate) fn inventory(
        &mut self,
        breakpoints: bool,
        matcher: &Matcher<'_>,
        protections: &Arc<Protections>,
    ) -> Result<Option<ModuleListing>, FilterError> {
        let path = self.linked.path.clone();
        let Some(matcher) = matcher.module(&path) else {
            return Ok(None);
        };
        if !self.search.may_select(&self.linked.loaded, &matcher) {
            return Ok(None);
        }
        let Some(known) = self.known() else {
            return Ok(None);
        };
        let breakpoints = breakpoints && !known.blocks_signals();
        let candidates = Candidates::new(known, &self.linked, protections);
        let listing = ModuleListing::new(known, candidates, breakpoints, &matcher)?;
        Ok(Some(listing))
    }
}
