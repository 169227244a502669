//! The functions of the program and its libraries, and the sites made of them.
//!
//! Each module in which a filter has selected a function has:
//!
//! - the records, sorted by address, in memory that is never freed, because frames on shadow stacks
//!   and threads in stubs refer to them;
//! - the stubs and the relocated prologues;
//! - a range in the list that the trap handlers search.

mod branch_targets;
mod build;
mod callee_preserved;
mod candidate;
mod candidates;
mod classify;
mod entries;
mod exits;
mod facts;
mod file_code;
mod function_names;
mod function_plan;
mod hash;
pub(crate) mod indices;
mod layout;
mod linked_module;
mod listing;
mod module;
mod module_plan;
mod name_search;
mod names;
mod parts;
pub(crate) mod planners;
mod record;
mod restartable;
mod runtimes;
mod saved_plan;
mod saving;
mod selection;
mod site_names;
mod site_symbols;
mod stage;
pub(crate) mod symbol_table;
mod system_calls;
mod toolchain;
mod unpatchable;
mod wanted;

use core::ops::Range;
use std::sync::Arc;

use crate::arch::trampoline::{self, Trampolines};
use crate::threads::FGRAPH;
use fgraph_core::MAX_USERS;
use fgraph_core::site::Site;

use crate::code::stub_blocks::StubBlocks;
use crate::process::call_gate;
use crate::process::linker;
use crate::process::loader_event;
use crate::process::modules::{self, Generation, LoadedModule};
use crate::report::error::RefusedFunction;
use crate::report::functions::SiteList;
use crate::unwinding::{cancellation, rows};
#[cfg(fgraph_testing)]
pub(crate) use callee_preserved::CalleePreserved;
#[cfg(fgraph_testing)]
pub(crate) use candidate::Callers;
use fgraph_symbols::filter::{Filter, FilterError, LiveFilter, Matcher};
use indices::Indices;
use layout::BuildContext;
use linked_module::LinkedModule;
#[cfg(fgraph_testing)]
pub(crate) use listing::list;
pub(crate) use listing::of_file;
pub(crate) use module::ModuleChange;
use module::{KnownFile, ModuleSites};
use planners::Planners;
#[cfg(test)]
pub(crate) use record::Original;
pub(crate) use record::{
    OFF, ON, function_of_padding_jump, is_exchanged, is_function, is_hook, is_padding_jump,
    original, padding_jump_of, patched_len, short_jump,
};
use runtimes::StackUse;
pub(crate) use selection::{Change, Selection};
pub(crate) use wanted::Wanted;
use wanted::Wanting;

/// All functions and sites.
#[derive(Debug)]
pub(crate) struct Sites {
    modules: Vec<ModuleSites>,
    /// Facts about unloaded modules that had no sites.
    files: Vec<KnownFile>,
    generation: Option<Generation>,
    /// The number of modules that had been read when their functions were published.
    published: usize,
    /// Sites that are no longer patched, because their module was unloaded and loaded again at its
    /// address.
    renewed: Vec<&'static Site>,
    context: BuildContext,
    /// Address of [`cancellation::FUNCTION`].
    cancel: usize,
    /// True if there is a runtime that walks frames.
    is_walked: bool,
    /// True if Go has linked the program.
    is_go: bool,
}

impl Sites {
    pub(crate) const fn new() -> Self {
        Self {
            modules: Vec::new(),
            files: Vec::new(),
            generation: None,
            published: 0,
            renewed: Vec::new(),
            cancel: 0,
            is_walked: false,
            is_go: false,
            context: BuildContext {
                trampolines: Trampolines::NONE,
                headers: Vec::new(),
                stub_blocks: StubBlocks::new(),
                indices: Indices::new(),
                ignore_inner: false,
            },
        }
    }

    /// Sets the targets of stubs, and finds special functions of modules.
    pub(crate) fn start(&mut self, trampolines: Trampolines) {
        self.context.trampolines = trampolines;
        self.cancel = linker::symbol(cancellation::FUNCTION).addr();
    }

    /// For tests: ignores threads between two instructions of a site in modules whose sites are
    /// made from now on.
    #[cfg(fgraph_testing)]
    pub(crate) fn ignore_inner(&mut self, ignore: bool) {
        self.context.ignore_inner = ignore;
    }

    /// Frees memory that only makes it faster to make sites.
    pub(crate) fn forget_searches(&mut self) {
        self.context.stub_blocks.forget_searches();
        self.modules.iter().for_each(ModuleSites::forget_searches);
    }

    /// Adds the modules that were loaded since the last time, and removes the unloaded ones;
    /// `false` if nothing has changed.
    pub(crate) fn refresh(&mut self) -> bool {
        modules::while_locked(|generation| {
            let before = self.generation.replace(generation);
            if before == Some(generation) {
                return false;
            }
            self.compare(before.map(|before| before.subs) != Some(generation.subs));
            true
        })
    }

    /// Adds the modules that were loaded, and removes unloaded ones, if any `may_be`. Call it with
    /// the linker's lock held.
    fn compare(&mut self, may_be_gone: bool) {
        // A module that was unloaded stays so: another one at its address has its own text.
        let known: Vec<_> = self.loaded().map(|module| &module.linked.loaded).collect();
        let modules::Comparison { stay, others } = modules::compare(&known, may_be_gone);
        // True if a module was loaded or unloaded whose functions are known.
        let mut is_changed = false;
        let known = self.modules.iter_mut().filter(|known| known.is_loaded);
        for (known, stays) in known.zip(stay) {
            let now = others.iter().find(|module| known.is(module));
            if !stays && now.is_none() {
                is_changed |= known.is_read();
                known.leave();
            } else if may_be_gone {
                let renewed = known.renew();
                match now {
                    Some(now) if known.is_older_than(now) => {
                        is_changed |= known.is_read();
                        known.leave();
                    }
                    _ => self.renewed.extend(renewed),
                }
            }
        }
        for module in others {
            if self.loaded().any(|known| known.is(&module)) {
                continue;
            }
            self.apply_stack_use(runtimes::stack_use(&module));
            let may_cancel = module.may_call(cancellation::FUNCTION, self.cancel);
            if may_cancel {
                // SAFETY: from now on all stubs are made with the trampolines of the context.
                let trampolines = unsafe { trampoline::disable_cancellation() };
                self.context.set_trampolines(trampolines);
            }
            // Stubs may have few possible addresses, so a module that is loaded again at its
            // address gets its old ones.
            let gone = |known: &&mut ModuleSites| !known.is_loaded && known.is(&module);
            match self.modules.iter_mut().find(gone) {
                Some(known) if known.is_of(&module) => {
                    known.come_back(module, may_cancel);
                    is_changed = true;
                }
                _ => {
                    let file = self.take_file(&module);
                    self.is_go |= module.is_program() && module.is_linked_by_go();
                    let notrace = runtimes::notrace(&module, self.is_go);
                    let linked = LinkedModule::new(module, notrace, may_cancel);
                    is_changed |= file.is_some();
                    self.modules.push(ModuleSites::new(linked, file));
                }
            }
        }
        let is_over = |module: &mut ModuleSites| {
            !module.is_loaded && !module.is_noted && module.sites().next().is_none()
        };
        let over = self.modules.extract_if(.., is_over);
        self.files.extend(over.filter_map(ModuleSites::into_file));
        rows::publish(self.loaded().map(|module| &module.linked.loaded));
        self.publish_callers();
        if is_changed {
            self.publish_symbols();
        }
    }

    fn publish_symbols(&mut self) {
        self.published = self.count_read();
        symbol_table::publish(self.loaded().filter_map(ModuleSites::symbols));
    }

    /// Reads the functions of all modules, or of the one with code at `address`, and publishes
    /// where they are.
    pub(crate) fn load_symbols(&mut self, address: Option<usize>) {
        let modules = self.modules.iter_mut().filter(|module| module.is_loaded);
        for module in modules.filter(|module| address.is_none_or(|it| module.has_code_at(it))) {
            module.read_functions();
        }
        self.publish_symbols();
    }

    /// Returns the number of modules whose functions have been read.
    fn count_read(&self) -> usize {
        self.loaded().filter(|module| module.is_read()).count()
    }

    /// Returns the facts about the file of a module that was loaded.
    fn take_file(&mut self, module: &LoadedModule) -> Option<KnownFile> {
        let kept = self
            .files
            .iter()
            .position(|file| file.loaded.is_same_file(module));
        match kept {
            Some(at) => Some(self.files.swap_remove(at)),
            None => self.modules.iter().find_map(|known| known.file_of(module)),
        }
    }

    /// Switches the stubs to caller-checking trampolines, if there is code that needs it.
    fn apply_stack_use(&mut self, stack_use: StackUse) {
        match stack_use {
            StackUse::Ordinary => return,
            StackUse::Walks => self.is_walked = true,
            StackUse::Slices => FGRAPH.callers.list_none(),
        }
        self.context.set_trampolines(trampoline::look_at_callers());
    }

    /// Publishes the callers whose calls are traced with their returns, if a runtime walks frames:
    /// all code in modules except the runtime's own.
    fn publish_callers(&self) {
        if !self.is_walked {
            return;
        }
        let mut code: Vec<Range<usize>> =
            self.loaded().flat_map(ModuleSites::ordinary_code).collect();
        code.sort_unstable_by_key(|range| range.start);
        FGRAPH.callers.list(code.into_iter());
    }

    /// Makes the sites of the modules in which a filter selects anything: `new`, or one of `users`
    /// in a new module. `planners` plan them.
    ///
    /// # Errors
    ///
    /// Fails if a predicate of `new` panics.
    pub(crate) fn prepare(
        &mut self,
        users: &[Wanted<'_, '_>],
        new: Option<Wanted<'_, '_>>,
        planners: Planners,
    ) -> Result<(), FilterError> {
        let mut all = None;
        for module in &mut self.modules {
            if module.is_loaded {
                module.linked.redirect_calls();
            }
            let users = if module.is_new { users } else { &[] };
            let Some(wanting) = module.wanting(users, new)? else {
                continue;
            };
            module.read_lists();
            let lazily = match &wanting {
                Wanting::All => None,
                Wanting::Mentioned(matchers) => Some(&matchers[..]),
            };
            let protections = modules::protections_of(&module.linked.loaded, &mut all);
            let Some(plan) = module.plan(&protections, lazily, planners) else {
                continue;
            };
            if !module.build(plan, &mut self.context, planners) {
                module.leave();
            }
        }
        if !self.loaded().any(|module| module.linked.may_cancel) {
            // SAFETY: no loaded module may cancel threads.
            unsafe { trampoline::trust_announcements() };
        }
        if self.loaded().any(ModuleSites::is_walked) {
            self.apply_stack_use(StackUse::Walks);
        }
        self.publish_callers();
        if self.count_read() != self.published {
            self.publish_symbols();
        }
        Ok(())
    }

    /// Returns true if there are modules to which the users' filters were not applied.
    pub(crate) fn has_new(&self) -> bool {
        self.loaded().any(|module| module.is_new)
    }

    /// Applies the users' filters to the new modules; `breakpoints` has the users that may have
    /// them. Returns the sites that they select, and those of modules that were loaded again.
    pub(crate) fn join(
        &mut self,
        users: &[Option<LiveFilter>],
        breakpoints: impl Fn(usize) -> bool,
    ) -> Vec<&'static Site> {
        let mut changed = core::mem::take(&mut self.renewed);
        let matchers: Vec<_> = if self.has_new() {
            let users = users.iter().enumerate();
            let users = users.filter_map(|(slot, user)| Some((slot, user.as_ref()?)));
            users
                .map(|(slot, user)| (slot, Matcher::of_live(user)))
                .collect()
        } else {
            Vec::new()
        };
        for module in self.modules.iter_mut().filter(|module| module.is_loaded) {
            if !core::mem::take(&mut module.is_new) {
                continue;
            }
            for (slot, matcher) in &matchers {
                let mut counts = vec![0; matcher.len()];
                // A predicate that panics selects nothing.
                let selection = module.select(matcher, breakpoints(*slot), &mut counts);
                let selection = selection.unwrap_or_default();
                module.change(*slot, selection, Change::Set, &mut changed);
            }
        }
        changed
    }

    /// Applies a filter to each loaded module, for a user that may or may not have breakpoints.
    /// Returns the selections, and the number of functions that match each word.
    ///
    /// # Errors
    ///
    /// Fails if a predicate panics.
    pub(crate) fn select(
        &mut self,
        matcher: &Matcher<'_>,
        breakpoints: bool,
    ) -> Result<(Vec<Selection>, Vec<usize>), FilterError> {
        let mut counts = vec![0; matcher.len()];
        let modules = self.modules.iter_mut().filter(|module| module.is_loaded);
        let selections = modules.map(|module| module.select(matcher, breakpoints, &mut counts));
        Ok((selections.collect::<Result<_, _>>()?, counts))
    }

    /// Changes the selection of the user in `slot` by the [selection](Self::select) of a filter.
    /// Returns the sites that were selected and are not any more, or are and were not.
    pub(crate) fn change(
        &mut self,
        slot: usize,
        selections: Vec<Selection>,
        change: Change,
    ) -> Vec<&'static Site> {
        let mut changed = Vec::new();
        let modules = self.modules.iter_mut().filter(|module| module.is_loaded);
        for (module, selection) in modules.zip(selections) {
            module.change(slot, selection, change, &mut changed);
        }
        changed
    }

    /// Clears the selection of the user in `slot`. Returns the sites that it selected.
    pub(crate) fn clear(&mut self, slot: usize) -> Vec<&'static Site> {
        let mut changed = Vec::new();
        for module in self.modules.iter_mut().filter(|module| module.is_loaded) {
            module.change(slot, Selection::default(), Change::Set, &mut changed);
        }
        changed
    }

    /// Returns the modules that were loaded and unloaded since the last time.
    pub(crate) fn take_changes(&mut self) -> Vec<ModuleChange> {
        let changes = self.modules.iter_mut().filter_map(ModuleSites::take_change);
        changes.collect()
    }

    /// Clears all users' selections in a module. Returns the sites that a user selected.
    pub(crate) fn clear_module(&mut self, module: &LoadedModule) -> Vec<&'static Site> {
        let mut changed = Vec::new();
        let modules = self.modules.iter_mut().filter(|known| known.is_loaded);
        for known in modules.filter(|known| known.is(module)) {
            for slot in 0..MAX_USERS {
                known.change(slot, Selection::default(), Change::Set, &mut changed);
            }
        }
        changed
    }

    /// Checks that functions begin at all addresses in `filter`.
    ///
    /// # Errors
    ///
    /// Fails if no function begins at one of them.
    pub(crate) fn check_addresses(&mut self, filter: &Filter) -> Result<(), FilterError> {
        for (address, is_in) in filter.addresses() {
            let mut modules = self.modules.iter_mut().filter(|module| module.is_loaded);
            if !modules.any(|module| is_in(module.path()) && module.has_function_at(address)) {
                return Err(FilterError::NoFunction { address });
            }
        }
        Ok(())
    }

    /// Lists every function that a filter selects, for a user that may have breakpoints or not.
    ///
    /// # Errors
    ///
    /// If a predicate panics.
    pub(crate) fn inventory(
        &mut self,
        matcher: &Matcher<'_>,
        breakpoints: bool,
    ) -> Result<SiteList, FilterError> {
        let protections = Arc::new(modules::protections());
        let mut all = SiteList::default();
        for module in self.modules.iter_mut().filter(|module| module.is_loaded) {
            module.read_lists();
            let listing = module.inventory(breakpoints, matcher, &protections)?;
            all.modules
                .extend(listing.map(|listing| Arc::new(listing) as _));
        }
        self.publish_symbols();
        Ok(all)
    }

    /// Runs `work` while no library can be loaded or unloaded. It gets the sites, in parts, of each
    /// module that was unloaded since the last `refresh`.
    pub(crate) fn while_locked<R>(&self, work: impl FnOnce(&[&'static [Site]]) -> R) -> R {
        modules::while_locked(|generation| {
            let mut gone = Vec::new();
            if self.generation != Some(generation) {
                loader_event::set_pending();
                let modules = self.loaded().filter(|module| !module.linked.is_present());
                gone.extend(modules.flat_map(ModuleSites::parts));
            }
            work(&gone)
        })
    }

    /// Iterates over all sites of the loaded modules.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &'static Site> {
        self.loaded().flat_map(ModuleSites::sites)
    }

    /// Iterates over the sites that are patched as long as there is a user, whatever the filters
    /// select.
    pub(crate) fn hooks(&self) -> impl Iterator<Item = &'static Site> {
        let event = loader_event::event().filter(|&event| loader_event::is_event(event));
        let functions = event.into_iter().chain(call_gate::functions());
        functions.filter_map(|function| self.loaded().find_map(|module| module.site_at(function)))
    }

    /// Returns the ranges of text of the modules that have sites, each with a part of these.
    pub(crate) fn changed_text(&self) -> impl Iterator<Item = (&'static [Site], Range<usize>)> {
        let modules = self
            .loaded()
            .filter(|module| module.linked.loaded.has_file());
        modules.flat_map(|module| {
            let part = module.parts().next();
            let text = module.linked.loaded.text();
            text.filter_map(move |text| Some((part?, text)))
        })
    }

    /// Returns true if threads run code of the module that contains `site` with all signals
    /// blocked.
    pub(crate) fn runs_blocked(&self, site: &'static Site) -> bool {
        let has = |part: &'static [Site]| part.as_ptr_range().contains(&core::ptr::from_ref(site));
        // From the newest on, whose sites are the patched ones while it is loaded.
        let mut modules = self.modules.iter().rev();
        let module = modules.find(|module| module.is_loaded && module.parts().any(has));
        module.is_some_and(ModuleSites::runs_blocked)
    }

    fn loaded(&self) -> impl Iterator<Item = &ModuleSites> {
        self.modules.iter().filter(|module| module.is_loaded)
    }

    /// Iterates over the sites that the user in `slot` selects.
    pub(crate) fn selected(&self, slot: usize) -> impl Iterator<Item = &'static Site> {
        self.loaded().flat_map(move |module| module.selected(slot))
    }

    /// Returns the number of sites that the user in `slot` selects.
    pub(crate) fn count_selected(&self, slot: usize) -> usize {
        self.loaded()
            .map(|module| module.count_selected(slot))
            .sum()
    }

    /// Returns the functions of a [selection](Self::select) that cannot be traced.
    pub(crate) fn refused_of(&self, selections: &[Selection]) -> Vec<RefusedFunction> {
        let modules = self.loaded().zip(selections);
        let refused = modules.flat_map(|(module, selection)| module.refused_of(selection));
        refused.collect()
    }

    /// Returns the functions that the user in `slot` selects and that cannot be traced.
    pub(crate) fn refused(&self, slot: usize) -> Vec<RefusedFunction> {
        let refused = self.loaded().flat_map(|module| module.refused(slot));
        refused.collect()
    }
}
