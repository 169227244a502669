//! The functions of one module, and the sites made of them.
//!
//! Functions are read when a filter first asks for the module, sites are made when a filter first
//! selects one of its functions: records, stubs and copies for all of them at once. Where that is
//! to take less time, they are made for what filters select, as long as that is little.
//!
//! # Safety
//!
//! The unsafe code reads text of a module that is loaded.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use std::io;
use std::sync::Arc;

use fgraph_core::MAX_USERS;
use fgraph_core::site::Site;
use fgraph_symbols::elf::ElfFile;
use fgraph_symbols::filter::ngrams::NgramBloom;
use fgraph_symbols::filter::{Bits, FilterError, FunctionFacts, Matcher, ModuleMatcher, NameIndex};
use fgraph_symbols::notrace::{self, Notrace};

use super::build::{BuildContext, Prepared, build};
use super::candidates::{Candidates, Found, Source};
use super::classify::{self, classify};
use super::entries::{Entry, LookedAt, Subject};
use super::facts::{FileFacts, MAX_PARTS, ModuleFacts, parse};
use super::function_plan::Planned;
use super::listing::ModuleListing;
use super::record::{OFF, ON, original, patched_len};
use super::reliance::Reliance;
use super::selection::{Change, Selection, SiteCatalog, UnpatchableCatalog, indices};
use super::system_calls;
use super::unpatchable::Unpatchable;
use crate::arch::stub::SITE_LEN;
use crate::arch::system_calls::SystemCallError;
use crate::os::maps::Protections;
use crate::process::ifunc;
use crate::process::loader_event;
use crate::process::modules::{self, ListedEntry};
use crate::report::error::{RefusalReason, RefusedFunction};
use crate::unwinding::{cancellation, shared_stack, stack_pointer};

/// To look through the symbols of a module so often costs about as much as to demangle them.
const MANY_SEARCHES: u32 = 16;

/// A module that is, or was, loaded.
#[derive(Debug)]
pub(crate) struct ModuleSites {
    pub(super) loaded: modules::LoadedModule,
    path: String,
    /// `None` until a filter asks for the module.
    known: Option<Result<&'static ModuleFacts, String>>,
    /// What compilers have listed as entries. Empty until they can be read, which is when the
    /// module is relocated.
    pub(super) listed: Vec<ListedEntry>,
    /// The rule for all of its functions that its file does not tell of.
    pub(super) notrace: Option<Notrace>,
    /// Whether it calls us in place of others, as far as it can be made to.
    is_answered: bool,
    /// Whether it may cancel threads without a call of ours.
    pub(super) may_cancel: bool,
    /// Its file, once it has been read.
    image: Option<&'static [u8]>,
    /// Of all names; `None` until a filter has selected none of them.
    ngrams: Option<NgramBloom>,
    /// How often all symbols were looked through for a filter, and nothing was selected.
    searches: u32,
    /// No filter that is to be applied mentions functions of a lower index, which were not looked
    /// at.
    first_mentioned: usize,
    /// What was made of its functions; `None` until a filter selects one of them.
    prepared: Option<Prepared>,
    /// What each user selects of it.
    selections: [Selection; MAX_USERS],
    pub(crate) is_loaded: bool,
    /// Not all filters have been applied to it.
    pub(crate) is_new: bool,
    /// Whether it was loaded when [`take_change`](Self::take_change) was last called.
    pub(crate) is_noted: bool,
    /// How many functions each user watched when it went.
    watched: [usize; MAX_USERS],
}

/// What is known of the file of a module that was loaded, so that it is not read again.
#[derive(Debug)]
pub(crate) struct KnownFile {
    pub(super) loaded: modules::LoadedModule,
    facts: &'static FileFacts,
    ngrams: Option<NgramBloom>,
}

/// A module that has come or gone.
#[derive(Debug)]
pub(crate) struct ModuleChange {
    pub(crate) is_loaded: bool,
    pub(crate) path: String,
    /// Where it is, or was.
    pub(crate) range: Range<usize>,
    /// How many functions each user watches, or did.
    pub(crate) functions: [usize; MAX_USERS],
}

impl ModuleSites {
    /// A module that has been loaded, and what is known of its file, if anything is.
    pub(crate) fn new(loaded: modules::LoadedModule, file: Option<KnownFile>) -> Self {
        let (facts, ngrams) = match file {
            Some(file) => (Some(file.facts.at(loaded.load_bias())), file.ngrams),
            None => (None, None),
        };
        Self {
            path: loaded.path().to_string_lossy().into_owned(),
            known: facts.map(Ok),
            loaded,
            listed: Vec::new(),
            notrace: None,
            is_answered: false,
            may_cancel: false,
            image: None,
            ngrams,
            searches: 0,
            first_mentioned: usize::MAX,
            prepared: None,
            selections: Default::default(),
            is_loaded: true,
            is_new: true,
            is_noted: false,
            watched: [0; MAX_USERS],
        }
    }

    /// What is known of its file, if `loaded` has been loaded from the same.
    pub(crate) fn file_of(&self, loaded: &modules::LoadedModule) -> Option<KnownFile> {
        let known = self.known.as_ref()?.as_ref().ok()?;
        self.loaded.is_same_file(loaded).then(|| KnownFile {
            loaded: self.loaded.clone(),
            facts: known.of_file(),
            ngrams: None,
        })
    }

    /// What is known of its file, to be kept when it is gone.
    pub(crate) fn into_file(self) -> Option<KnownFile> {
        Some(KnownFile {
            facts: self.known?.ok()?.of_file(),
            loaded: self.loaded,
            ngrams: self.ngrams,
        })
    }

    /// Whether its functions have been read.
    pub(super) fn is_read(&self) -> bool {
        self.known.is_some()
    }

    /// What the linker says of it.
    pub(super) fn loaded(&self) -> &modules::LoadedModule {
        &self.loaded
    }

    /// Whether it is this module.
    pub(crate) fn is(&self, loaded: &modules::LoadedModule) -> bool {
        self.loaded.is(loaded)
    }

    /// Whether `loaded` has been loaded from the file that the sites were made from.
    pub(crate) fn is_of(&self, loaded: &modules::LoadedModule) -> bool {
        let has_indices = self.has_indices();
        // Meanwhile they may have been given to the same file at another place.
        has_indices.is_none_or(|has_indices| !has_indices.load(Ordering::Relaxed))
            && !self.is_older_than(loaded)
            && matches!(&self.known, Some(Ok(known)) if modules::check(loaded, &known.file).is_ok())
    }

    /// Whether the file was changed since this module was loaded. That may be while it is loaded,
    /// but not if none of its sites is patched any more.
    pub(crate) fn is_older_than(&self, loaded: &modules::LoadedModule) -> bool {
        let is_on = |site: &Site| site.state.load(Ordering::Relaxed) == ON;
        loaded.is_newer_than(&self.loaded) && !(self.is_loaded && self.sites().any(is_on))
    }

    /// It is loaded again, where it was: its text is as the compiler made it.
    pub(crate) fn come_back(&mut self, loaded: modules::LoadedModule) {
        self.loaded = loaded;
        self.is_answered = false;
        self.set_loaded(true);
        self.is_new = true;
        for site in self.sites() {
            site.interest.store(0, Ordering::Relaxed);
            site.state.store(OFF, Ordering::Relaxed);
        }
    }

    /// It is not loaded any more.
    pub(crate) fn leave(&mut self) {
        self.watched = core::array::from_fn(|slot| self.count_selected(slot));
        self.set_loaded(false);
        self.selections = Default::default();
    }

    /// Whether it has come or gone since the last time.
    pub(super) fn take_change(&mut self) -> Option<ModuleChange> {
        if self.is_noted == self.is_loaded {
            return None;
        }
        self.is_noted = self.is_loaded;
        let segments = || self.loaded.segments().map(|(range, _)| range);
        let start = segments().map(|range| range.start).min().unwrap_or(0);
        let end = segments().map(|range| range.end).max().unwrap_or(0);
        Some(ModuleChange {
            is_loaded: self.is_loaded,
            path: self.path.clone(),
            range: start..end,
            functions: match self.is_loaded {
                true => core::array::from_fn(|slot| self.count_selected(slot)),
                false => self.watched,
            },
        })
    }

    /// The code whose callees are traced with their returns: by address, without what a runtime
    /// walks. That of functions which the program has generated is not known to be such.
    pub(super) fn ordinary_code(&self) -> Vec<Range<usize>> {
        let walked = match self.known {
            Some(Ok(known)) => known.walked(),
            _ => &[],
        };
        let mut ordinary = Vec::new();
        let is_other = self.loaded.is_generated() || self.notrace == Some(notrace::MONO);
        let text = self.loaded.text().filter(|_| !is_other);
        for text in text {
            let mut start = text.start;
            for walked in walked.iter().filter(|walked| text.contains(&walked.start)) {
                ordinary.push(start..walked.start);
                start = walked.end;
            }
            ordinary.push(start..text.end);
        }
        ordinary.retain(|range| !range.is_empty());
        ordinary
    }

    /// Whether a runtime walks the frames of code that is known to be in the module.
    pub(super) fn is_walked(&self) -> bool {
        let known = self.known.as_ref().filter(|_| self.prepared.is_some());
        known.is_some_and(|known| known.as_ref().is_ok_and(|known| !known.walked().is_empty()))
    }

    fn has_indices(&self) -> Option<&'static AtomicBool> {
        self.prepared.as_ref()?.has_indices
    }

    fn set_loaded(&mut self, is_loaded: bool) {
        self.is_loaded = is_loaded;
        if let Some(prepared) = &self.prepared {
            prepared.set_loaded(is_loaded);
        }
    }

    fn bias(&self) -> usize {
        self.loaded.load_bias()
    }

    /// What is known of its functions, if they have been read, and where its code is.
    pub(super) fn symbols(
        &self,
    ) -> Option<(&'static ModuleFacts, impl Iterator<Item = Range<usize>>)> {
        match self.known {
            Some(Ok(known)) if self.is_loaded => Some((known, self.loaded.text())),
            _ => None,
        }
    }

    /// Whether threads run its code with all signals blocked, as they do that of the C library.
    pub(super) fn runs_blocked(&self) -> bool {
        matches!(&self.known, Some(Ok(known)) if known.blocks_signals())
    }

    /// Its sites, in the parts in which they were made.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &'static [Site]> {
        let parts = self.prepared.iter().flat_map(|made| made.parts.iter());
        parts.map(|part| part.sites)
    }

    pub(crate) fn sites(&self) -> impl Iterator<Item = &'static Site> {
        self.parts().flatten()
    }

    /// The site of the function at `address`.
    pub(crate) fn site_at(&self, address: usize) -> Option<&'static Site> {
        self.prepared.as_ref()?.parts.site_at(address)
    }

    /// The sites that are as the compiler made them although they were patched: the same file was
    /// unloaded and loaded at the same place again. They count as not patched from now on. To be
    /// called while the module cannot be unloaded.
    pub(crate) fn renew(&self) -> Vec<&'static Site> {
        /// If none of this many was, none was: text is loaded as a whole. A debugger may have
        /// changed one.
        const WITNESSES: usize = 4;
        let is_on = |site: &&Site| site.state.load(Ordering::Relaxed) == ON;
        let is_renewed = |site: &&Site| {
            // SAFETY: a module is loaded there.
            let now = |at| unsafe { ((site.entry + at) as *const u8).read_volatile() };
            let original = original(site).bytes;
            is_on(site) && (0..patched_len(site)).all(|at| now(at) == original[at])
        };
        // Those that nobody selects are not patched.
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

    /// Whether sites have to be made before the filter of `matcher` can be applied. `lazily` says
    /// whether only those may be made then that it mentions.
    ///
    /// # Errors
    ///
    /// If a predicate panics.
    pub(crate) fn is_wanted(
        &mut self,
        matcher: &Matcher<'_>,
        lazily: bool,
    ) -> Result<bool, FilterError> {
        let is_complete = |prepared: &Prepared| prepared.looked_at.is_none();
        if !self.is_loaded || self.prepared.as_ref().is_some_and(is_complete) {
            return Ok(false);
        }
        if self.prepared.is_none() && self.has_event() {
            self.first_mentioned = 0;
            return Ok(true);
        }
        let is_read = self.is_read();
        let Some(matcher) = matcher.module(&self.path) else {
            return Ok(false);
        };
        let Ok(known) = self.known() else {
            return Ok(false);
        };
        if !self.may_be_selected(&matcher) {
            return Ok(false);
        }
        if matcher.selects_system_calls() && system_calls::may_be_in(&known.file) {
            return Ok(true);
        }
        let pieces = matcher.pieces();
        // They save time when it is the next filter's turn.
        let is_worth = pieces.is_none() || self.searches >= MANY_SEARCHES;
        let unknown = is_worth && self.ngrams.is_none() && (is_read || !lazily);
        let mut ngrams = unknown.then(|| NgramBloom::new(known.functions.len()));
        let prepared = self.prepared.as_ref();
        let looked_at = prepared.and_then(|prepared| prepared.looked_at.as_ref());
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
            // What a word matches is counted, whether it is selected or not.
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
        self.searches += 1;
        Ok(false)
    }

    /// Whether a function may be selected, by the pieces of the names and by where the text is.
    fn may_be_selected(&self, matcher: &ModuleMatcher<'_, '_>) -> bool {
        let ngrams = self.ngrams.as_ref();
        let may_contain = |text: &str| ngrams.is_none_or(|ngrams| ngrams.may_contain(text));
        let may_begin = |range: Range<usize>| {
            let mut text = self.loaded.text();
            text.any(|text| range.start < text.end && text.start < range.end)
        };
        matcher.may_select(may_contain, may_begin)
    }

    /// Whether it is the dynamic linker.
    pub(super) fn has_event(&self) -> bool {
        let is_here = |event| self.loaded.text().any(|text| text.contains(&event));
        loader_event::event().is_some_and(is_here)
    }

    fn known(&mut self) -> Result<&'static ModuleFacts, &str> {
        if self.known.is_none() {
            self.known = Some(self.read());
        }
        match &self.known {
            Some(Ok(known)) => Ok(known),
            Some(Err(error)) => Err(error),
            None => unreachable!("just set"),
        }
    }

    /// The module's file, which is read once.
    fn image(&mut self) -> io::Result<&'static [u8]> {
        if self.image.is_none() {
            self.image = Some(self.loaded.map()?);
        }
        Ok(self.image.unwrap_or_default())
    }

    /// Reads what is known of the module from its file.
    fn read(&mut self) -> Result<&'static ModuleFacts, String> {
        let image = self.image();
        let check = |file: &ElfFile<'_>| modules::check(&self.loaded, file);
        let (file, mut functions) = parse(image, self.loaded.path(), check)?;
        // The resolvers of a library that is not relocated cannot be run.
        if !loader_event::is_loading() {
            let targets = ifunc::targets(&self.loaded, &file, &functions);
            functions.add_names(targets.map_err(|error| error.to_string())?);
        }
        let path = self.path.clone().leak();
        let facts = FileFacts::new(path, file, functions, self.notrace);
        let facts: &FileFacts = Box::leak(Box::new(facts));
        Ok(facts.at(self.bias()))
    }

    /// What a filter selects of the module for a user that may have breakpoints or not, and, added
    /// to `counts`, how many functions match each of its words.
    ///
    /// # Errors
    ///
    /// If a predicate panics.
    pub(crate) fn select(
        &mut self,
        matcher: &Matcher<'_>,
        breakpoints: bool,
        counts: &mut [usize],
    ) -> Result<Selection, FilterError> {
        let mut selection = Selection::default();
        let Some(matcher) = matcher.module(&self.path) else {
            return Ok(selection);
        };
        selection.unreadable = matches!(self.known, Some(Err(_))) && matcher.is_asked_for();
        let (Some(Ok(known)), Some(prepared)) = (&self.known, &mut self.prepared) else {
            return Ok(selection);
        };
        let sites = SiteCatalog {
            known,
            parts: &prepared.parts,
        };
        selection.sites = matcher.select(&sites, &mut prepared.index, counts)?;
        if !breakpoints {
            let breakpoints = prepared.breakpoints.iter().map(|(site, _)| *site);
            selection.withhold(breakpoints, prepared.parts.len());
        }
        let unpatchable = UnpatchableCatalog {
            known,
            unpatchable: &prepared.unpatchable,
        };
        selection.unpatchable =
            matcher.select(&unpatchable, &mut prepared.unpatchable_index, counts)?;
        Ok(selection)
    }

    /// Changes what the user in `slot` selects. Adds the sites that it selected and does not, or
    /// does and did not, to `changed`.
    pub(crate) fn change(
        &mut self,
        slot: usize,
        selection: Selection,
        change: Change,
        changed: &mut Vec<&'static Site>,
    ) {
        let differ = self.selections[slot].change(selection, change);
        for site in self.sites_of(differ.as_ref()) {
            // Relaxed: the bits only choose whom to ask; the slots say who may be asked.
            site.interest.fetch_xor(1 << slot, Ordering::Relaxed);
            changed.push(site);
        }
    }

    /// The sites of a selection.
    fn sites_of(&self, selected: Option<&Bits>) -> impl Iterator<Item = &'static Site> {
        let parts = self.prepared.as_ref().map(|prepared| &prepared.parts);
        indices(selected).filter_map(move |index| Some(parts?.site(index)))
    }

    /// The sites that the user in `slot` selects.
    pub(crate) fn selected(&self, slot: usize) -> impl Iterator<Item = &'static Site> {
        self.sites_of(self.selections[slot].sites.as_ref())
    }

    /// How many sites the user in `slot` selects.
    pub(crate) fn count_selected(&self, slot: usize) -> usize {
        let sites = self.selections[slot].sites.as_ref();
        sites.map_or(0, |sites| sites.count())
    }

    /// What the user in `slot` selects of this module and cannot be traced.
    pub(crate) fn refused(&self, slot: usize) -> impl Iterator<Item = RefusedFunction> {
        let selection = &self.selections[slot];
        let module = match &self.known {
            Some(Err(error)) if selection.unreadable => Some(RefusedFunction {
                name: String::new(),
                module: self.path.clone(),
                address: 0,
                reason: RefusalReason::Module(error.clone()),
            }),
            _ => None,
        };
        let unpatchable = self
            .prepared
            .as_ref()
            .map_or(&[][..], |prepared| &prepared.unpatchable);
        let withheld = self.withheld(slot).map(|(site, reason)| RefusedFunction {
            name: site.name.as_str().to_owned(),
            module: self.path.clone(),
            address: site.address(),
            reason: reason.clone(),
        });
        let selected = indices(selection.unpatchable.as_ref()).map(|index| &unpatchable[index]);
        module
            .into_iter()
            .chain(withheld)
            .chain(selected.map(|unpatchable| RefusedFunction {
                name: unpatchable.names.first().cloned().unwrap_or_default(),
                module: self.path.clone(),
                address: unpatchable.address,
                reason: unpatchable.reason.clone(),
            }))
    }

    /// The sites that the user in `slot` selects and may not have, and why they get a breakpoint.
    fn withheld(&self, slot: usize) -> impl Iterator<Item = (&'static Site, &RefusalReason)> {
        let withheld = self.selections[slot].withheld.as_ref();
        let all = self.prepared.iter().flat_map(|prepared| {
            let sites = prepared.breakpoints.iter();
            sites.map(|(index, reason)| (*index, prepared.parts.site(*index), reason))
        });
        let is_withheld =
            move |index: &usize| withheld.is_some_and(|withheld| withheld.contains(*index));
        all.filter(move |(index, ..)| is_withheld(index))
            .map(|(_, site, reason)| (site, reason))
    }

    /// Whether a function begins at `address`.
    pub(crate) fn has_function_at(&mut self, address: usize) -> bool {
        if !self.loaded.is_text(address) {
            return false;
        }
        let is_listed = self.listed.iter().any(|listed| listed.address == address);
        let Ok(known) = self.known() else {
            return false;
        };
        let in_file = address.wrapping_sub(known.bias) as u64;
        is_listed || known.functions.index_at(in_file).is_some()
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Reads what compilers have listed. This may wait for libraries to be loaded.
    pub(crate) fn read_lists(&mut self) {
        if let Ok(known) = self.known()
            && self.listed.is_empty()
            && !loader_event::is_loading()
        {
            let listed = modules::listed_entries(&self.loaded, &known.file);
            self.listed = listed.unwrap_or_default();
        }
    }

    /// Has it learn the stack pointers of frames from us, and say before it cancels threads or
    /// makes processes, once it is relocated. This may wait for libraries to be loaded.
    pub(crate) fn answer(&mut self) {
        if self.is_loaded && !self.is_answered && !loader_event::is_loading() {
            self.is_answered = true;
            let loaded = self.loaded.clone();
            stack_pointer::answer(&loaded, || self.image().ok());
            shared_stack::heed(&loaded, || self.image().ok());
            self.may_cancel =
                self.may_cancel && !cancellation::announce(&loaded, || self.image().ok());
        }
    }

    /// Runs `work` while the module cannot be unloaded; `None` if it is gone.
    pub(crate) fn while_present<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> Option<R> {
        let loaded = self.loaded.clone();
        modules::while_present(&loaded, || work(self))
    }

    /// Whether the module is loaded. To be called with the linker's lock held.
    pub(crate) fn is_present(&self) -> bool {
        modules::is_present(&self.loaded)
    }

    /// Makes sites. To be called while the module cannot be unloaded.
    ///
    /// With `lazily`, which are filters that select something of the module, only the functions
    /// count that these mention, if they are few.
    pub(crate) fn prepare(
        &mut self,
        context: &mut BuildContext,
        protections: &Arc<Protections>,
        lazily: Option<&[&Matcher<'_>]>,
    ) {
        let Ok(known) = self.known() else {
            return;
        };
        let mut candidates = Candidates::new(self, known, protections);
        let all = Entry::all(known, &candidates);
        // The last part has all that is left.
        let lazily = lazily.filter(|_| known.site_names().count() + 1 < MAX_PARTS);
        let few = lazily.and_then(|matchers| self.few(known, &all, matchers));
        self.first_mentioned = usize::MAX;
        let mut prepared = self.prepared.take().unwrap_or_default();
        let done = prepared.looked_at.take();
        let is_new = |entry: &Entry| done.as_ref().is_none_or(|done| !done.has(entry));
        let mut unpatchable = Vec::new();
        let mut refuse = |subject: Subject, address, reason| {
            unpatchable.push(Unpatchable {
                names: match subject {
                    Subject::Listed => Vec::new(),
                    subject => subject.names(known, address),
                },
                address,
                is_system_call: subject.is_system_call(),
                reason,
            });
        };
        let wanted: Vec<&Entry> = match &few {
            Some(few) => few.iter().filter(|entry| is_new(entry)).collect(),
            None => all.iter().filter(|entry| is_new(entry)).collect(),
        };
        let mut planned = Vec::with_capacity(wanted.len());
        let mut calls = Vec::new();
        // Who may have the functions of these is asked when a filter selects them.
        let blocks_signals = known.blocks_signals();
        let breakpoints = !blocks_signals;
        let callers = || known.callers();
        if let Some(few) = &few {
            let functions = few.iter().filter_map(|entry| match entry.subject {
                Subject::Function(index) => Some(index),
                _ => None,
            });
            candidates = candidates.with_reliance(Reliance::unknown(&known.file));
            candidates = candidates.only(functions);
        } else {
            known.reliance.get_or_init(|| {
                let is_padded = !self.listed.is_empty();
                Reliance::find(&known.file, &known.functions, callers(), is_padded)
            });
        }
        let mut plan = |subject, address, found: Found<'static>| {
            let plan = found.and_then(|candidate| {
                let (plan, no_jump) = match classify(&candidate, callers, false) {
                    Err(reason) if breakpoints => {
                        (classify(&candidate, callers, true)?, Some(reason))
                    }
                    plan => (plan?, None),
                };
                Ok((candidate, plan, no_jump))
            });
            match plan {
                Err(reason) => refuse(subject, address, reason),
                Ok((candidate, plan, no_jump)) => planned.push(Planned {
                    subject,
                    address,
                    original: classify::first_bytes(&candidate.text[plan.lead..]),
                    relay: plan.relay.map_or([0; SITE_LEN], |len| {
                        classify::first_bytes(&candidate.padding[candidate.padding.len() - len..])
                    }),
                    plan,
                    no_jump,
                }),
            }
        };
        for entry in wanted {
            let found = match entry.subject {
                Subject::Function(index) => candidates.function(index, Source::Memory),
                _ => candidates.other(entry.address, Source::Memory),
            };
            if let (Subject::Function(index), Ok(function)) = (entry.subject, &found) {
                calls.extend(system_calls::of(index, function, blocks_signals));
            }
            plan(entry.subject, entry.address, found);
        }
        for (subject, address, call) in calls {
            match call {
                Ok(call) => planned.push(call),
                Err(reason) => refuse(subject, address, reason),
            }
        }
        // Symbols may be nested.
        // A function goes before a system call that it begins with.
        planned.sort_unstable_by_key(|one| (one.entry(), one.subject.is_system_call()));
        planned.dedup_by(|next, previous| {
            let overlaps = next.entry() < previous.entry() + previous.plan.patched_len();
            if overlaps {
                let reason = match next.subject {
                    Subject::SystemCall(_) => RefusalReason::SystemCall(SystemCallError::AtEntry),
                    _ => next.no_jump.take().unwrap_or(RefusalReason::Overlap),
                };
                refuse(next.subject, next.address, reason);
            }
            overlaps
        });
        planned.retain_mut(|one| {
            let patched = one.entry()..one.entry() + one.plan.patched_len();
            let overlaps = prepared.parts.overlap(&patched);
            if overlaps {
                let reason = one.no_jump.take().unwrap_or(RefusalReason::Overlap);
                refuse(one.subject, one.address, reason);
            }
            !overlaps
        });
        let made = &mut prepared;
        build(known, planned, breakpoints, context, made, &mut refuse);
        prepared.unpatchable.append(&mut unpatchable);
        prepared.unpatchable_index = NameIndex::new();
        prepared.looked_at = few.map(|few| LookedAt::new(done, known, &few));
        for selection in &mut self.selections {
            selection.grow(prepared.parts.len(), prepared.unpatchable.len());
        }
        if prepared.looked_at.is_none() {
            // Not needed any more.
            self.ngrams = None;
        }
        self.prepared = Some(prepared);
    }

    /// The entries among `all` that the filters mention, and that of the linker's event, each with
    /// those beside it on which it depends what can be done with it; `None` if they are many.
    fn few(
        &self,
        known: &'static ModuleFacts,
        all: &[Entry],
        matchers: &[&Matcher<'_>],
    ) -> Option<Vec<Entry>> {
        /// One in so many is few.
        const SHARE: usize = 4;
        let event = loader_event::event().filter(|_| self.has_event());
        let matchers = matchers.iter().filter_map(|one| one.module(&self.path));
        let matchers: Vec<_> = matchers.collect();
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
                for matcher in &matchers {
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

    /// The functions that `matcher` selects; `None` if there are none.
    ///
    /// # Errors
    ///
    /// If a predicate panics.
    pub(crate) fn inventory(
        &mut self,
        breakpoints: bool,
        matcher: &Matcher<'_>,
        protections: &Arc<Protections>,
    ) -> Result<Option<ModuleListing>, FilterError> {
        let path = self.path.clone();
        let Some(matcher) = matcher.module(&path) else {
            return Ok(None);
        };
        if !self.may_be_selected(&matcher) {
            return Ok(None);
        }
        let Ok(known) = self.known() else {
            return Ok(None);
        };
        let breakpoints = breakpoints && !known.blocks_signals();
        let candidates = Candidates::new(self, known, protections);
        let listing = ModuleListing::new(known, candidates, breakpoints, &matcher)?;
        Ok(Some(listing))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fgraph_symbols::filter::Filter;

    fn is_wanted(module: &mut ModuleSites, glob: &str) -> bool {
        let filter = Filter::new().trace(glob).unwrap();
        module.is_wanted(&Matcher::new(&filter), false).unwrap()
    }

    fn exactly(name: &str) -> String {
        name.chars().flat_map(|c| ['\\', c]).collect()
    }

    #[test]
    fn many_filters_that_select_nothing_leave_what_tells_it_of_the_next() {
        let mut modules = 0;
        for loaded in modules::loaded().0 {
            let mut module = ModuleSites::new(loaded, None);
            let nothing = "*no_such_function_anywhere*";
            if is_wanted(&mut module, nothing) || module.known().is_err() || module.has_event() {
                continue;
            }
            modules += 1;
            for _ in 0..MANY_SEARCHES {
                assert!(module.ngrams.is_none());
                assert!(!is_wanted(&mut module, nothing));
            }
            assert!(module.ngrams.is_some());
            let known = module.known().unwrap();
            let some = (0..known.functions.len()).step_by(1 + known.functions.len() / 32);
            for name in some.flat_map(|index| known.names_of(index)) {
                assert!(is_wanted(&mut module, &exactly(&name)), "{name}");
            }
        }
        assert!(modules != 0);
    }

    #[test]
    fn every_name_is_wanted_also_after_a_filter_that_selects_nothing() {
        let mut modules = 0;
        for loaded in modules::loaded().0 {
            let mut module = ModuleSites::new(loaded, None);
            // Nothing of it would be in symbols.
            let nothing = "::::";
            if is_wanted(&mut module, nothing) || module.ngrams.is_none() {
                continue;
            }
            modules += 1;
            assert!(!is_wanted(&mut module, nothing));
            let known = module.known().unwrap();
            let some = (0..known.functions.len()).step_by(1 + known.functions.len() / 32);
            for name in some.flat_map(|index| known.names_of(index)) {
                assert!(is_wanted(&mut module, &exactly(&name)), "{name}");
                let mut chars = name.chars();
                chars.next();
                chars.next_back();
                let middle = exactly(chars.as_str());
                assert!(is_wanted(&mut module, &format!("?{middle}*")), "{name}");
            }
        }
        assert!(modules != 0);
    }
}
