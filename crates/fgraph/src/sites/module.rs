//! The functions of one module, and the sites made of them.
//!
//! Functions are read when a filter first asks for the module, sites are made when a filter first
//! selects one of its functions: records, stubs and copies for all of them at once.
//!
//! # Safety
//!
//! The unsafe code reads text of a module that stays loaded meanwhile, and follows the pointer from
//! a module's record to what the runtime knows of it, which is never freed.

use core::fmt::{self, Write as _};
use core::ops::Range;
use core::ptr;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, Ordering};

use crate::arch::cpu;
use crate::arch::evex;
use crate::arch::nop;
use crate::arch::poke::Text as _;
use crate::arch::relocate::Window;
use crate::arch::stub::SITE_LEN;
use crate::arch::trampoline::{self, Trampolines};
use crate::arch::trap::TrapRange;
use fgraph_core::MAX_USERS;
use fgraph_core::site::{Module, Site, SiteName, Symbols};

use super::branch_targets::Entered;
use super::classify::{self, Callers, Candidate, Choice, classify};
use super::indices::Indices;
use super::names::Names;
use super::reliance::Reliance;
use super::selection::{Change, LeftCatalog, Selection, SiteCatalog, indices};
use super::{OFF, ON, is_relay, patched_len};
use crate::code::arena::{Arena, CopyUnwind, Unwind};
use crate::code::stub_blocks::StubBlocks;
use crate::code::text_writer::Text;
use crate::os::maps::Protections;
use crate::process::debug_file;
use crate::process::ifunc;
use crate::process::loader_event;
use crate::process::modules::{self, Generation, ListedEntry};
use crate::report::error::{RefusalReason, RefusedFunction};
use crate::report::functions::{SiteInfo, SiteList, TraceMethod};
use fgraph_symbols::demangle;
use fgraph_symbols::elf::{ElfError, ElfFile, EntryList};
use fgraph_symbols::filter::ngrams::NgramBloom;
use fgraph_symbols::filter::{FilterError, FunctionFacts, Matcher, ModuleMatcher, NameIndex};
use fgraph_symbols::functions::Functions;
use fgraph_symbols::notrace::{self, Notrace};

/// What all modules share.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) trampolines: Trampolines,
    pub(crate) stub_blocks: StubBlocks,
    pub(crate) indices: Indices,
    /// For tests: threads between two instructions of a site are not heeded.
    pub(crate) ignore_inner: bool,
    /// Functions that have no room for a jump may get a breakpoint.
    pub(crate) breakpoints: bool,
}

/// What is known of a module for good.
#[derive(Debug)]
pub(super) struct Known {
    path: &'static str,
    bias: usize,
    functions: Functions<'static>,
    callers: Callers,
    /// What must not be traced of functions without a name.
    unnamed: Option<Notrace>,
    /// Found out when it is first needed.
    entered: OnceLock<Entered>,
    /// Which functions need more registers to survive; found out when it is first needed.
    reliance: OnceLock<Reliance>,
    /// Of the sites, once there are any.
    site_names: OnceLock<SiteNames>,
    file: ElfFile<'static>,
}

/// What the sites of a module are called.
#[derive(Debug)]
struct SiteNames {
    sites: &'static [Site],
    names: &'static Names,
    /// In the symbol table, where that is not the best one of `names`: these are demangled.
    symbols: Names,
}

impl Known {
    /// Which function a site is of.
    fn index_of(&self, site: &Site) -> Option<usize> {
        let address = site.address().wrapping_sub(self.bias);
        self.functions.index_at(address as u64)
    }

    fn symbol(&self, index: usize) -> &'static str {
        symbol(&self.functions, index)
    }

    /// Calls `with` with what is known of the function at `address`, which goes by `names`.
    pub(super) fn facts<R>(
        &self,
        address: usize,
        names: &[&str],
        with: impl FnOnce(&FunctionFacts<'_>) -> R,
    ) -> R {
        let in_file = address.wrapping_sub(self.bias) as u64;
        let index = self.functions.index_at(in_file);
        let symbols = index
            .into_iter()
            .flat_map(|index| self.functions.names(index));
        let symbols: Vec<&str> = symbols.map(|name| name.symbol).collect();
        let size = index.map_or(0, |index| self.functions.get(index).size as usize);
        let facts = FunctionFacts::new(names, self.path);
        with(&facts.with_symbols(&symbols).with_place(address, size))
    }

    /// The names of the sites, and the place of this one.
    fn names_of_site(&'static self, site: &Site) -> Option<(&'static SiteNames, usize)> {
        let names = self.site_names.get()?;
        let place = names
            .sites
            .binary_search_by_key(&site.entry, |site| site.entry);
        Some((names, place.ok()?))
    }
}

impl Known {
    /// The path of its file.
    pub(super) fn path(&self) -> &'static str {
        self.path
    }

    /// The function that contains an address, by its index; where it starts, and the number of its
    /// bytes. Neither allocates nor locks.
    pub(super) fn function_at(&self, address: usize) -> Option<(usize, usize, usize)> {
        let in_file = address.wrapping_sub(self.bias) as u64;
        let index = self.functions.containing(in_file)?;
        let function = self.functions.get(index);
        let start = self.bias.wrapping_add(function.address as usize);
        Some((index, start, function.size as usize))
    }

    /// Writes the best name of a function without allocating: that of a C++ function without a site
    /// is not demangled.
    pub(super) fn write_name(
        &'static self,
        index: usize,
        f: &mut fmt::Formatter<'_>,
    ) -> fmt::Result {
        let function = self.functions.get(index);
        let start = self.bias.wrapping_add(function.address as usize);
        if let Some(names) = self.site_names.get()
            && let Ok(place) = names.sites.binary_search_by_key(&start, Site::address)
            && !is_relay(&names.sites[place])
        {
            return f.pad(names.names.best(place));
        }
        match self.symbol(index) {
            "" => write!(f, "{}+{:#x}", file_name(self.path), function.address),
            symbol => demangle::write_without_allocating(symbol, f),
        }
    }
}

/// A reference, since what it gives out lasts as long as what it is of.
#[derive(Debug)]
struct KnownSymbols(&'static Known);

impl Symbols for KnownSymbols {
    fn symbol(&self, site: &Site) -> &'static str {
        let Some((names, place)) = self.0.names_of_site(site) else {
            return "";
        };
        let mut symbols = names.symbols.of(place);
        symbols.next().unwrap_or_else(|| names.names.best(place))
    }

    fn name(&self, site: &Site, nth: usize) -> Option<&'static str> {
        let (names, place) = self.0.names_of_site(site)?;
        names.names.of(place).nth(nth)
    }

    fn size(&self, site: &Site) -> usize {
        let index = self.0.index_of(site);
        index.map_or(0, |index| self.0.functions.get(index).size as usize)
    }

    fn write_full_name(&self, site: &Site, out: &mut dyn fmt::Write) -> fmt::Result {
        match self.symbol(site) {
            "" => out.write_str(site.name.as_str()),
            symbol => demangle::write_full(symbol, out),
        }
    }
}

/// A function that has no site, and why.
#[derive(Debug)]
pub(super) struct Left {
    /// As of a site.
    pub(super) names: Vec<String>,
    pub(super) address: usize,
    reason: RefusalReason,
}

/// The sites of a module.
#[derive(Debug, Default)]
struct Prepared {
    /// By address.
    sites: &'static [Site],
    /// How to unwind from those that are before a function and have its jump. It is known to
    /// unwinders while the module is loaded.
    relay_unwind: Unwind,
    /// Of each site; `None` if there are none.
    names: Option<&'static Names>,
    /// Of these.
    index: NameIndex,
    left: Vec<Left>,
    /// Of their names.
    left_index: NameIndex,
    /// Whether functions could get breakpoints.
    breakpoints: bool,
    /// Says that the module has the numbers of its functions, which others of its build id must not
    /// have. `None` without a build id.
    has_indices: Option<&'static AtomicBool>,
}

/// A module that is, or was, loaded.
#[derive(Debug)]
pub(crate) struct ModuleSites {
    loaded: modules::Module,
    path: String,
    /// `None` until a filter asks for the module.
    known: Option<Result<&'static Known, String>>,
    /// What compilers have listed as entries. Empty until they can be read, which is when the
    /// module is relocated.
    listed: Vec<ListedEntry>,
    /// Of all names; `None` until a filter has selected none of them.
    ngrams: Option<NgramBloom>,
    /// `None` until a filter selects one of its functions.
    prepared: Option<Prepared>,
    /// What each user selects of it.
    selections: [Selection; MAX_USERS],
    pub(crate) is_loaded: bool,
    /// How often it was loaded.
    pub(crate) arrivals: usize,
    /// Not all filters have been applied to it.
    pub(crate) is_new: bool,
}

/// A function on its way to becoming a site.
struct Chosen {
    /// Which function of the module; `None` for an entry that only a list names.
    function: Option<usize>,
    address: usize,
    choice: Choice,
    /// What is at its entry, as far as it goes.
    original: [u8; SITE_LEN],
    /// What is at the start of the NOP before it, if that becomes the jump.
    relay: [u8; SITE_LEN],
}

impl Chosen {
    /// Address of what is patched.
    fn entry(&self) -> usize {
        self.address + self.choice.lead
    }
}

impl ModuleSites {
    pub(crate) fn new(loaded: modules::Module) -> Self {
        Self {
            path: loaded.path().to_string_lossy().into_owned(),
            loaded,
            known: None,
            listed: Vec::new(),
            ngrams: None,
            prepared: None,
            selections: Default::default(),
            is_loaded: true,
            arrivals: 1,
            is_new: true,
        }
    }

    /// Whether it is this module.
    pub(crate) fn is(&self, loaded: &modules::Module) -> bool {
        self.loaded.load_bias() == loaded.load_bias() && self.loaded.path() == loaded.path()
    }

    /// Whether `loaded` has been loaded from the file that the sites were made from.
    pub(crate) fn is_of(&self, loaded: &modules::Module) -> bool {
        let has_indices = self.has_indices();
        // Meanwhile they may have been given to the same file at another place.
        has_indices.is_none_or(|has_indices| !has_indices.load(Ordering::Relaxed))
            && matches!(&self.known, Some(Ok(known)) if modules::check(loaded, &known.file).is_ok())
    }

    /// It is loaded again, where it was: its text is as the compiler made it.
    pub(crate) fn come_back(&mut self, loaded: modules::Module) {
        self.loaded = loaded;
        self.arrivals += 1;
        self.set_loaded(true);
        self.is_new = true;
        if let Some(prepared) = &self.prepared {
            prepared.relay_unwind.register();
        }
        for site in self.sites() {
            site.interest.store(0, Ordering::Relaxed);
            site.state.store(OFF, Ordering::Relaxed);
        }
    }

    /// It is not loaded any more.
    pub(crate) fn leave(&mut self) {
        self.set_loaded(false);
        self.selections = Default::default();
        if let Some(prepared) = &self.prepared {
            prepared.relay_unwind.withdraw();
        }
    }

    fn has_indices(&self) -> Option<&'static AtomicBool> {
        self.prepared.as_ref()?.has_indices
    }

    fn set_loaded(&mut self, is_loaded: bool) {
        self.is_loaded = is_loaded;
        if let Some(has_indices) = self.has_indices() {
            has_indices.store(is_loaded, Ordering::Relaxed);
        }
    }

    fn bias(&self) -> usize {
        self.loaded.load_bias()
    }

    /// What is known of its functions, if they have been read, and where its code is.
    pub(super) fn symbols(&self) -> Option<(&'static Known, impl Iterator<Item = Range<usize>>)> {
        match self.known {
            Some(Ok(known)) if self.is_loaded => Some((known, self.loaded.text())),
            _ => None,
        }
    }

    pub(crate) fn sites(&self) -> &'static [Site] {
        self.prepared
            .as_ref()
            .map_or(&[], |prepared| prepared.sites)
    }

    /// The site of the function at `address`.
    pub(crate) fn site_at(&self, address: usize) -> Option<&'static Site> {
        let sites = self.sites();
        let index = sites.binary_search_by_key(&address, Site::address);
        index.ok().map(|index| &sites[index])
    }

    /// What the handler of traps needs to know.
    pub(crate) fn traps(&self) -> Option<TrapRange> {
        let sites = self.sites();
        let last = sites.last()?;
        Some(TrapRange {
            first: sites.first()?.entry,
            end: last.entry + patched_len(last),
            records: sites.as_ptr(),
            count: sites.len(),
        })
    }

    /// Whether the same file was unloaded and loaded at the same place again: then its text is as
    /// the compiler made it, also where we have patched it. To be called while it cannot be
    /// unloaded.
    pub(crate) fn is_replaced(&self) -> bool {
        /// All of the text is new then, so a few sites tell. Another patcher may have some.
        const LOOK_AT: usize = 64;
        let is_on = |site: &&Site| site.state.load(Ordering::Relaxed) == ON;
        self.sites().iter().filter(is_on).take(LOOK_AT).any(|site| {
            // SAFETY: a module is loaded there.
            let now = |at| unsafe { ((site.entry + at) as *const u8).read_volatile() };
            let original = super::original(site).bytes;
            (0..patched_len(site)).all(|at| now(at) == original[at])
        })
    }

    /// Whether sites have to be made before the filter of `matcher` can be applied.
    ///
    /// # Errors
    ///
    /// If a predicate panics.
    pub(crate) fn is_wanted(&mut self, matcher: &Matcher<'_>) -> Result<bool, FilterError> {
        if self.prepared.is_some() || !self.is_loaded {
            return Ok(false);
        }
        if self.has_event() {
            return Ok(true);
        }
        let Some(matcher) = matcher.module(&self.path) else {
            return Ok(false);
        };
        let Ok(known) = self.known() else {
            return Ok(false);
        };
        if !self.may_be_selected(&matcher) {
            return Ok(false);
        }
        let unknown = self.ngrams.is_none();
        let mut ngrams = unknown.then(|| NgramBloom::new(known.functions.len()));
        for index in 0..known.functions.len() {
            let names = names_of(known, index);
            if let Some(ngrams) = &mut ngrams {
                names.iter().for_each(|name| ngrams.add(name));
            }
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let address = known.functions.get(index).address as usize;
            let address = known.bias.wrapping_add(address);
            if known.facts(address, &names, |facts| matcher.matches(facts))? {
                return Ok(true);
            }
        }
        if unknown {
            // Complete, since all names have been looked at.
            self.ngrams = ngrams;
        }
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
    fn has_event(&self) -> bool {
        let is_here = |event| self.loaded.text().any(|text| text.contains(&event));
        loader_event::event().is_some_and(is_here)
    }

    fn known(&mut self) -> Result<&'static Known, &str> {
        if self.known.is_none() {
            self.known = Some(self.read());
        }
        match &self.known {
            Some(Ok(known)) => Ok(known),
            Some(Err(error)) => Err(error),
            None => unreachable!("just set"),
        }
    }

    /// Reads the module's file.
    fn read(&self) -> Result<&'static Known, String> {
        let check = |file: &ElfFile<'_>| modules::check(&self.loaded, file);
        let (file, mut functions) = parse(self.loaded.map(), self.loaded.path(), check)?;
        // The resolvers of a library that is not relocated cannot be run.
        if !loader_event::is_loading() {
            let targets = ifunc::targets(&self.loaded, &file, &functions);
            functions.add_names(targets.map_err(|error| error.to_string())?);
        }
        Ok(Box::leak(Box::new(Known {
            path: self.path.clone().leak(),
            bias: self.bias(),
            callers: callers(&file, &functions, self.bias()),
            unnamed: unnamed(&file, &functions),
            functions,
            entered: OnceLock::new(),
            reliance: OnceLock::new(),
            site_names: OnceLock::new(),
            file,
        })))
    }

    /// What a filter selects of the module, and, added to `counts`, how many functions match each
    /// of its words.
    ///
    /// # Errors
    ///
    /// If a predicate panics.
    pub(crate) fn select(
        &mut self,
        matcher: &Matcher<'_>,
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
        if let Some(names) = prepared.names {
            let sites = SiteCatalog {
                known,
                sites: prepared.sites,
                names,
            };
            selection.sites = matcher.select(&sites, &mut prepared.index, counts)?;
        }
        let left = LeftCatalog {
            known,
            left: &prepared.left,
        };
        selection.left = matcher.select(&left, &mut prepared.left_index, counts)?;
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
        for index in indices(differ.as_ref()) {
            let site = &self.sites()[index];
            // Relaxed: the bits only choose whom to ask; the slots say who may be asked.
            site.interest.fetch_xor(1 << slot, Ordering::Relaxed);
            changed.push(site);
        }
    }

    /// The sites that the user in `slot` selects.
    pub(crate) fn selected(&self, slot: usize) -> impl Iterator<Item = &'static Site> {
        let sites = self.sites();
        indices(self.selections[slot].sites.as_ref()).map(|index| &sites[index])
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
        let left = self
            .prepared
            .as_ref()
            .map_or(&[][..], |prepared| &prepared.left);
        let selected = indices(selection.left.as_ref()).map(|index| &left[index]);
        module
            .into_iter()
            .chain(selected.map(|left| RefusedFunction {
                name: left.names.first().cloned().unwrap_or_default(),
                module: self.path.clone(),
                address: left.address,
                reason: left.reason.clone(),
            }))
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

    /// Runs `work` while the module cannot be unloaded; `None` if modules were loaded or unloaded
    /// since `generation`.
    pub(crate) fn while_present<R>(
        &mut self,
        generation: Generation,
        work: impl FnOnce(&mut Self) -> R,
    ) -> Option<R> {
        let loaded = self.loaded.clone();
        modules::while_present(&loaded, generation, || work(self))
    }

    /// Makes the sites. To be called while the module cannot be unloaded.
    pub(crate) fn prepare(&mut self, common: &mut Common, protections: &Protections) {
        let Ok(known) = self.known() else {
            return;
        };
        let mut left = Vec::new();
        let mut refuse = |function: Option<usize>, address, reason| {
            left.push(Left {
                names: function.map_or(Vec::new(), |index| names_of(known, index)),
                address,
                reason,
            });
        };
        let mut chosen = Vec::with_capacity(known.functions.len());
        let breakpoints = common.breakpoints && !blocks_signals(&known.functions);
        known.reliance.get_or_init(|| {
            let is_padded = !self.listed.is_empty();
            Reliance::find(&known.file, &known.functions, known.callers, is_padded)
        });
        self.each_candidate(
            known,
            protections,
            |function, candidate, callers| match candidate {
                Err((address, reason)) => refuse(function, address, reason),
                Ok(candidate) => match classify(&candidate, callers, breakpoints) {
                    Err(reason) => refuse(function, candidate.address, reason),
                    Ok(choice) => chosen.push(Chosen {
                        function,
                        address: candidate.address,
                        original: classify::first(&candidate.text[choice.lead..]),
                        relay: choice.relay.map_or([0; SITE_LEN], |len| {
                            classify::first(&candidate.padding[candidate.padding.len() - len..])
                        }),
                        choice,
                    }),
                },
            },
        );
        // Symbols may be nested.
        chosen.sort_unstable_by_key(Chosen::entry);
        chosen.dedup_by(|next, previous| {
            let overlaps = next.entry() < previous.entry() + previous.choice.patched_len();
            if overlaps {
                refuse(next.function, next.address, RefusalReason::Overlap);
            }
            overlaps
        });
        let prepared = build(known, chosen, breakpoints, common, &mut refuse);
        // Not needed any more.
        self.ngrams = None;
        self.prepared = Some(Prepared {
            left,
            breakpoints,
            ..prepared
        });
    }

    /// Adds every function that `matcher` selects. To be called while the module cannot be
    /// unloaded.
    ///
    /// # Errors
    ///
    /// If a predicate panics.
    pub(crate) fn inventory(
        &mut self,
        common: &Common,
        matcher: &Matcher<'_>,
        list: &mut SiteList,
        protections: &Protections,
    ) -> Result<(), FilterError> {
        let path = self.path.clone();
        let Some(matcher) = matcher.module(&path) else {
            return Ok(());
        };
        if !self.may_be_selected(&matcher) {
            return Ok(());
        }
        let decided = self.prepared.as_ref().map(|prepared| prepared.breakpoints);
        let Ok(known) = self.known() else {
            return Ok(());
        };
        let breakpoints =
            decided.unwrap_or_else(|| common.breakpoints && !blocks_signals(&known.functions));
        if known.functions.is_stripped() {
            list.stripped.push(path.clone());
        }
        let mut result = Ok(());
        self.each_candidate(known, protections, |function, mut candidate, callers| {
            let address = match &candidate {
                Ok(candidate) => candidate.address,
                Err((address, _)) => *address,
            };
            match is_selected(known, function, address, &matcher) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    result = Err(error);
                    return;
                }
            }
            if let Ok(candidate) = &mut candidate
                && let Some(file) = candidate.file
                && let Some(site) = self.site_at(candidate.address)
                && site.state.load(Ordering::Relaxed) == ON
            {
                // What is there now is ours.
                candidate.text = file;
            }
            let decided = match &candidate {
                Ok(candidate) => decide(candidate, callers, breakpoints),
                Err((_, reason)) => (Err(reason.clone()), false),
            };
            let in_file = address.wrapping_sub(known.bias) as u64;
            list.all
                .push(info(&known.functions, function, &path, in_file, decided));
            if let Some(info) = list.all.last_mut() {
                info.address = address;
            }
        });
        result
    }

    /// Calls `each` with every function that may be traced, or that may not because of where it is.
    fn each_candidate<'a>(
        &self,
        known: &'static Known,
        protections: &Protections,
        mut each: impl FnMut(Option<usize>, Result<Candidate<'a>, (usize, RefusalReason)>, Callers),
    ) {
        let callers = known.callers;
        let entered = known
            .entered
            .get_or_init(|| Entered::find(&known.file, &known.functions));
        // It decides only by which trampoline functions go, so who lists them does not need it.
        let reliance = known.reliance.get();
        let own_text = trampoline::own_text();
        let functions = &known.functions;
        // What a list of mcount calls has without a symbol may be in the middle of a function.
        let padded = |entry: &&ListedEntry| entry.list != EntryList::Mcount;
        let mut listed: Vec<usize> = self
            .listed
            .iter()
            .filter(padded)
            .map(|e| e.address)
            .collect();
        listed.dedup();
        // The start of the function that a listed entry belongs to: its padding may begin before
        // it.
        let listed_start = |&address: &usize| {
            let in_file = address.wrapping_sub(known.bias) as u64;
            let around = functions.containing(in_file);
            let start = around.map(|index| functions.get(index).address);
            let start = start.filter(|start| in_file - start <= nop::ENDBR64.len() as u64);
            start.or_else(|| {
                let index = functions.index_at_or_behind(in_file)?;
                let start = functions.get(index).address;
                let len = usize::try_from(start - in_file).ok()?;
                let padding = known.file.bytes_at(in_file, len)?;
                nop::last_of(padding).map(|_| start)
            })
        };
        let mut listed_starts: Vec<u64> = listed.iter().filter_map(listed_start).collect();
        listed_starts.sort_unstable();
        let text = |address: usize, limit: usize| {
            let end = self.loaded.text().find(|text| text.contains(&address));
            let end = end.ok_or(RefusalReason::NotText)?.end.min(limit);
            match protections.of(address) {
                Some(now) if !now.executable => return Err(RefusalReason::NotText),
                Some(now) if now.writable => return Err(RefusalReason::Writable),
                Some(now) if now.readable => {}
                _ => return Err(RefusalReason::Unreadable),
            }
            // SAFETY: text of a module that stays loaded meanwhile, and readable.
            Ok(unsafe { core::slice::from_raw_parts(address as *const u8, end - address) })
        };
        for index in 0..functions.len() {
            let function = functions.get(index);
            let symbol = known.symbol(index);
            let address = known.bias.wrapping_add(function.address as usize);
            let limit = known.bias.wrapping_add(function.limit as usize);
            if own_text.contains(&address) || is_own(symbol) {
                continue;
            }
            let candidate = if function.is_resolver {
                Err(RefusalReason::Resolver)
            } else {
                text(address, limit)
            };
            let candidate = candidate.map(|code| Candidate {
                address,
                size: function.size as usize,
                text: code,
                file: known.file.bytes_at(function.address, code.len()),
                listed: listed_starts.binary_search(&function.address).is_ok(),
                padding: gap(functions, index)
                    .and_then(|gap| text(known.bias.wrapping_add(gap as usize), address).ok())
                    .unwrap_or_default(),
                entered: entered.of(index),
                code_is_relied_on: reliance
                    .is_none_or(|reliance| reliance.by_code(function.address)),
                convention_is_relied_on: reliance
                    .is_some_and(|reliance| reliance.by_convention(function.address)),
                symbol,
                notrace: notrace_of(functions, index, known.unnamed),
            });
            let candidate = candidate.map_err(|reason| (address, reason));
            each(Some(index), candidate, callers);
        }
        let unnamed = |&event: &usize| {
            let in_file = event.wrapping_sub(known.bias) as u64;
            self.has_event() && functions.index_at(in_file).is_none()
        };
        let event = loader_event::event().filter(unnamed);
        for &address in listed.iter().chain(&event) {
            let in_file = address.wrapping_sub(known.bias) as u64;
            if listed_start(&address).is_some() || own_text.contains(&address) {
                continue;
            }
            let candidate = text(address, address + 16).map(|text| Candidate {
                address,
                size: 0,
                text,
                file: known.file.bytes_at(in_file, text.len()),
                listed: event != Some(address),
                padding: &[],
                entered: 0,
                code_is_relied_on: true,
                convention_is_relied_on: false,
                symbol: "",
                notrace: None,
            });
            each(None, candidate.map_err(|reason| (address, reason)), callers);
        }
    }
}

/// The file at `path`, which has been read, if `check` finds no fault in it, and the functions of
/// it and of its debug file.
///
/// # Errors
///
/// Why it cannot be read.
fn parse(
    bytes: io::Result<&'static [u8]>,
    path: &Path,
    check: impl FnOnce(&ElfFile<'_>) -> Result<(), ElfError>,
) -> Result<(ElfFile<'static>, Functions<'static>), String> {
    let text = |error: ElfError| error.to_string();
    let file = ElfFile::parse(bytes.map_err(|error| error.to_string())?).map_err(text)?;
    check(&file).map_err(text)?;
    let debug = debug_file::find(path, &file);
    let functions = Functions::read(&file, debug.as_ref()).map_err(text)?;
    Ok((file, functions))
}

/// The name that a function goes by in the symbol table; empty if it has none.
fn symbol<'a>(functions: &Functions<'a>, index: usize) -> &'a str {
    let name = functions.names(index).next();
    name.map_or("", |name| name.symbol)
}

/// The end of what is before a function, if that is known.
fn gap(functions: &Functions<'_>, index: usize) -> Option<u64> {
    let previous = functions.get(index.checked_sub(1)?);
    let end = previous.address + previous.size;
    let address = functions.get(index).address;
    (previous.size != 0 && end < address && previous.limit == address).then_some(end)
}

/// Makes records, stubs and copies for what was chosen.
fn build(
    known: &'static Known,
    chosen: Vec<Chosen>,
    breakpoints: bool,
    common: &mut Common,
    refuse: &mut impl FnMut(Option<usize>, usize, RefusalReason),
) -> Prepared {
    let (Some(first), Some(last)) = (chosen.first(), chosen.last()) else {
        return Prepared::default();
    };
    let windows = || {
        chosen
            .iter()
            .filter_map(|chosen| chosen.choice.window.as_ref())
    };
    let stubs: usize = chosen
        .iter()
        .map(|chosen| chosen.choice.variant.stub().stub_len())
        .sum();
    let copies: usize = windows().map(Window::relocated_len).sum();
    let Some(mut arena) = Arena::reserve(first.address, last.address, stubs, copies) else {
        for chosen in chosen {
            refuse(chosen.function, chosen.address, RefusalReason::OutOfReach);
        }
        return Prepared::default();
    };
    let (mut next_stub, mut next_copy) = (arena.stubs(), arena.copies());
    let mut unwind = CopyUnwind::default();
    let mut text = Text::open();
    let mut sites = Vec::with_capacity(chosen.len());
    let mut variants = Vec::with_capacity(chosen.len());
    let (mut names, mut symbols) = (Names::default(), Names::default());
    let (mut indices, is_loaded) = common.indices.of(known.file.build_id());
    let module: &'static Module = Box::leak(Box::new(Module {
        path: known.path,
        symbols: Box::leak(Box::new(KnownSymbols(known))),
    }));
    for one in chosen {
        let entry = one.entry();
        let variant = one.choice.variant;
        let mut patched = one.choice.patched_len();
        let mut body = entry + SITE_LEN;
        let mut inner = [0; 4];
        let mut starts = 1;
        if let Some(window) = &one.choice.window {
            let copy = match window.relocate(next_copy, arena.bytes(next_copy)) {
                Ok(copy) => copy,
                Err(error) => {
                    refuse(one.function, one.address, RefusalReason::Displace(error));
                    continue;
                }
            };
            body = next_copy;
            if !common.ignore_inner {
                starts = window.boundaries();
                for at in (1..SITE_LEN).filter(|at| starts >> at & 1 != 0) {
                    inner[at - 1] = copy.resume[at];
                }
            }
            unwind.add(next_copy, copy.len, &copy.rows);
            next_copy += copy.len;
            if starts == 1 && loader_event::event() == Some(one.address) {
                body = loader_event::take_place_of(body);
            }
        }
        let Some(index) = indices.get(one.address.wrapping_sub(known.bias) as u64) else {
            refuse(one.function, one.address, RefusalReason::NoIndex);
            continue;
        };
        let len = variant.stub().stub_len();
        let previous = sites
            .last()
            .map_or(0, |site: &Site| site.entry + patched_len(site));
        if one.choice.relay.is_some_and(|nop| entry - nop < previous) {
            refuse(one.function, one.address, RefusalReason::NoPlace);
            continue;
        }
        let mut place = None;
        if starts != 1 {
            let blocks = &mut common.stub_blocks;
            place = blocks.take(entry, starts, len, &mut text, &common.trampolines);
            if place.is_none() && !breakpoints {
                refuse(one.function, one.address, RefusalReason::NoPlace);
                continue;
            }
            if place.is_none() {
                // The copy serves as well.
                (patched, inner) = (1, [0; 4]);
            }
        }
        let stub = place.unwrap_or_else(|| {
            next_stub += len;
            next_stub - len
        });
        let site = |entry, body, lead, word| Site {
            entry,
            body,
            interest: AtomicU16::new(0),
            lead,
            state: AtomicU8::new(OFF),
            inner,
            name: SiteName::new(""),
            index,
            module,
            stub,
            runtime: AtomicU64::new(word),
        };
        if let Some(nop) = one.choice.relay {
            // Its own record is right before that of the function.
            names.push(core::iter::empty());
            symbols.push(core::iter::empty());
            variants.push(variant);
            sites.push(site(entry - nop, entry, 0, super::relay_word(one.relay)));
        }
        let all = match one.function {
            Some(index) => names_of(known, index),
            None => {
                let mut name = String::new();
                let address = one.address.wrapping_sub(known.bias) as u64;
                write_name(&known.functions, None, known.path, address, &mut name);
                vec![name]
            }
        };
        names.push(all.iter().map(String::as_str));
        let symbol = one.function.map_or("", |index| known.symbol(index));
        let is_other = all.first().is_none_or(|name| name != symbol);
        symbols.push(is_other.then_some(symbol).into_iter());
        variants.push(variant);
        let lead = one.choice.lead as u8;
        sites.push(site(entry, body, lead, super::word(one.original, patched)));
    }
    drop(indices);
    names.shrink();
    symbols.shrink();
    let names: &'static Names = Box::leak(Box::new(names));
    for (index, site) in sites.iter_mut().enumerate() {
        site.name = SiteName::new(names.best(index));
    }
    let sites: &'static [Site] = sites.leak();
    sites.as_ptr().expose_provenance();
    // Sites are made once.
    let _ = known.site_names.set(SiteNames {
        sites,
        names,
        symbols,
    });
    let written = sites.iter().zip(variants).try_for_each(|(site, variant)| {
        // Its stub is the function's.
        if is_relay(site) {
            return Ok(());
        }
        let record = ptr::from_ref(site).addr() as u64;
        let outside = !arena.contains(site.stub);
        let header = if outside {
            StubBlocks::header(site.stub)
        } else {
            arena.header()
        };
        let stub = variant
            .stub()
            .encode(site.stub, record, variant.word(header));
        let stub = stub.expect("a header is within 2 GiB of its stubs");
        if outside {
            return text.write(site.stub, &stub);
        }
        arena.bytes(site.stub)[..stub.len()].copy_from_slice(&stub);
        Ok(())
    });
    let finished = written.and_then(|()| arena.finish(&common.trampolines, &unwind));
    if let Err(errno) = finished {
        for site in sites {
            let index = known.index_of(site);
            refuse(index, site.address(), RefusalReason::NotExecutable(errno));
        }
        return Prepared::default();
    }
    let mut unwind = CopyUnwind::default();
    for relay in sites.iter().filter(|site| is_relay(site)) {
        unwind.add_jump(relay.entry);
    }
    // Without memory for it they work as well.
    let relay_unwind = unwind.write().unwrap_or_default();
    relay_unwind.register();
    Prepared {
        sites,
        relay_unwind,
        has_indices: is_loaded,
        names: Some(names),
        ..Prepared::default()
    }
}

/// What can be done with a function, and whether its returns are told.
fn decide(
    candidate: &Candidate<'_>,
    callers: Callers,
    breakpoints: bool,
) -> (Result<TraceMethod, RefusalReason>, bool) {
    let choice = classify(candidate, callers, breakpoints);
    let returns = choice.as_ref().is_ok_and(|choice| choice.variant.returns());
    (choice.map(|choice| choice.how), returns)
}

/// What is known of a function of the module at `path`, by its index if it has one, or else by
/// where it is in the file.
fn info(
    functions: &Functions<'_>,
    index: Option<usize>,
    path: &str,
    address: u64,
    (how, returns): (Result<TraceMethod, RefusalReason>, bool),
) -> SiteInfo {
    let mut name = String::new();
    write_name(functions, index, path, address, &mut name);
    SiteInfo {
        name,
        has_name: index.is_some_and(|index| functions.names(index).next().is_some()),
        module: path.to_owned(),
        address: address as usize,
        size: index.map_or(0, |index| functions.get(index).size as usize),
        how,
        returns,
    }
}

/// Every function of a file that is not loaded; `breakpoints` says whether they may get one.
///
/// # Errors
///
/// Why the file cannot be read.
#[cfg(feature = "testing")]
pub(crate) fn of_file(path: &Path, breakpoints: bool) -> Result<SiteList, String> {
    let (file, functions) = parse(crate::process::image::read_file(path), path, |_| Ok(()))?;
    Ok(list(&file, &functions, path, breakpoints))
}

/// [`of_file`] for a file that was read.
#[cfg(feature = "testing")]
pub(crate) fn list(
    file: &ElfFile<'_>,
    functions: &Functions<'_>,
    path: &Path,
    breakpoints: bool,
) -> SiteList {
    let (callers, path) = (callers(file, functions, 0), path.to_string_lossy());
    let breakpoints = breakpoints && !blocks_signals(functions);
    let entered = Entered::find(file, functions);
    let unnamed = unnamed(file, functions);
    let info = |index| {
        let function = functions.get(index);
        let symbol = symbol(functions, index);
        let len = function.limit.saturating_sub(function.address);
        let text = file.bytes_at(function.address, usize::try_from(len).unwrap_or(0));
        let candidate = Candidate {
            address: function.address as usize,
            size: function.size as usize,
            text: text.unwrap_or_default(),
            file: None,
            listed: false,
            padding: gap(functions, index)
                .and_then(|gap| file.bytes_at(gap, (function.address - gap) as usize))
                .unwrap_or_default(),
            entered: entered.of(index),
            code_is_relied_on: true,
            convention_is_relied_on: false,
            symbol,
            notrace: notrace_of(functions, index, unnamed),
        };
        let decided = if function.is_resolver {
            (Err(RefusalReason::Resolver), false)
        } else if text.is_none() {
            (Err(RefusalReason::NotText), false)
        } else {
            decide(&candidate, callers, breakpoints)
        };
        info(functions, Some(index), &path, function.address, decided)
    };
    SiteList {
        all: (0..functions.len()).map(info).collect(),
        stripped: functions
            .is_stripped()
            .then(|| path.to_string())
            .into_iter()
            .collect(),
    }
}

/// What must not be traced of a function, by all of its names; `unnamed` if it has none.
fn notrace_of(
    functions: &Functions<'_>,
    index: usize,
    unnamed: Option<Notrace>,
) -> Option<Notrace> {
    let mut names = functions.names(index).peekable();
    if names.peek().is_none() {
        return unnamed;
    }
    names.find_map(|name| notrace::look_up(name.symbol))
}

/// What must not be traced of the functions of a file that have no name: where others are left
/// alone for what they are called, there may be more of their kind.
fn unnamed(file: &ElfFile<'_>, functions: &Functions<'_>) -> Option<Notrace> {
    const BESIDE: &str = "has no name, in a module with functions that must not be traced";
    const UNWINDS: &str = "has no name, in a module that may have a copy of the unwinder in it";
    let all = 0..functions.len();
    // Every program has a `_start`.
    let named = all.flat_map(|index| functions.names(index));
    let known: Vec<Notrace> = named
        .filter(|name| name.symbol != "_start")
        .filter_map(|name| notrace::look_up(name.symbol))
        .collect();
    let is_linker = || known.contains(&notrace::PARTIAL);
    let is_entire = |known: &Notrace| matches!(known, Notrace::Entirely(_));
    if blocks_signals(functions) || is_linker() || known.iter().any(is_entire) {
        return Some(Notrace::Entirely(BESIDE));
    }
    if !known.is_empty() {
        return Some(Notrace::Return(BESIDE));
    }
    let imports = |wanted: fn(&[u8]) -> bool| file.imports().any(wanted);
    let unwinds = imports(|name| name == b"dl_iterate_phdr")
        && !imports(|name| name.starts_with(b"_Unwind_"));
    unwinds.then_some(Notrace::Return(UNWINDS))
}

/// A path without its directories.
fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Writes the best name of a function of the module at `path`: `module+0x1234`, with its address in
/// the file, if it has none.
fn write_name(
    functions: &Functions<'_>,
    index: Option<usize>,
    path: &str,
    address: u64,
    out: &mut String,
) {
    let symbol = index.map_or("", |index| symbol(functions, index));
    let file = file_name(path);
    // Writing to a string does not fail.
    let _ = if symbol.is_empty() {
        write!(out, "{file}+{address:#x}")
    } else {
        demangle::demangle_to(symbol, out)
    };
}

/// The names of a function as programmers know them, the best first, and behind them those with a
/// version.
fn names_of(known: &Known, index: usize) -> Vec<String> {
    let symbols = || known.functions.names(index);
    if symbols().next().is_none() {
        let mut name = String::new();
        let address = known.functions.get(index).address;
        write_name(
            &known.functions,
            Some(index),
            known.path,
            address,
            &mut name,
        );
        return vec![name];
    }
    let plain = symbols().map(|name| demangle::to_string(name.symbol));
    let versioned = symbols().filter(|name| name.version.is_some());
    plain
        .chain(versioned.map(|name| name.to_string()))
        .collect()
}

/// Whether `matcher` selects the function at `address`, by its index if it has one.
fn is_selected(
    known: &Known,
    index: Option<usize>,
    address: usize,
    matcher: &ModuleMatcher<'_, '_>,
) -> Result<bool, FilterError> {
    if matcher.is_everything() {
        return Ok(true);
    }
    let names = match index {
        Some(index) => names_of(known, index),
        None => {
            let (functions, in_file) = (&known.functions, address.wrapping_sub(known.bias));
            let mut name = String::new();
            write_name(functions, None, known.path, in_file as u64, &mut name);
            vec![name]
        }
    };
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    known.facts(address, &names, |facts| matcher.matches(facts))
}

/// What callers in a module may rely on, going by the compilers that have left their names.
fn callers(file: &ElfFile<'_>, functions: &Functions<'_>, bias: usize) -> Callers {
    let mut comments = file.comment().peekable();
    let unknown = comments.peek().is_none();
    if !unknown && !comments.any(|comment| comment.starts_with("GCC")) {
        return Callers::Abi;
    }
    let keeps_high_registers = |address: u64, size: u64| {
        let bytes = file.bytes_at(address, usize::try_from(size).unwrap_or(0));
        bytes.is_some_and(|bytes| evex::uses_evex_across_calls(bytes, address as usize))
    };
    let own_text = trampoline::own_text();
    let function = |index| {
        let function = functions.get(index);
        let is_own = own_text.contains(&bias.wrapping_add(function.address as usize));
        !is_own && keeps_high_registers(function.address, function.size)
    };
    let section = |text: Range<u64>| keeps_high_registers(text.start, text.end - text.start);
    let all = cpu::vector_bytes() == 64
        && if functions.is_stripped() {
            // There may be functions without a symbol.
            file.text().into_iter().any(section)
        } else {
            (0..functions.len()).any(function)
        };
    if all {
        Callers::AllRegisters
    } else {
        Callers::LowRegisters
    }
}

/// Whether functions of a module are called while all signals are blocked: those of the C library
/// are, where it makes threads and processes. It is known by a function that others block signals
/// with.
fn blocks_signals(functions: &Functions<'_>) -> bool {
    (0..functions.len())
        .flat_map(|index| functions.names(index))
        .any(|name| name.symbol == "pthread_sigmask")
}

/// Whether a symbol is of fgraph itself, which would only count its own calls as missed.
fn is_own(symbol: &str) -> bool {
    struct Start(String);
    impl fmt::Write for Start {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.push_str(text);
            // Enough is known: demangling the rest would be a waste.
            if self.0.len() < 16 {
                Ok(())
            } else {
                Err(fmt::Error)
            }
        }
    }
    if !symbol.contains("fgraph") {
        return false;
    }
    let mut start = Start(String::new());
    let _ = demangle::demangle_to(symbol, &mut start);
    let start = start.0.trim_start_matches(['<', '&']);
    [
        "fgraph::",
        "fgraph_core::",
        "fgraph_symbols::",
        "fgraph_x86_64::",
    ]
    .iter()
    .any(|own| start.starts_with(own))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fgraph_symbols::filter::Filter;

    #[test]
    fn every_name_is_wanted_also_after_a_filter_that_selects_nothing() {
        let exactly = |name: &str| -> String { name.chars().flat_map(|c| ['\\', c]).collect() };
        let is_wanted = |module: &mut ModuleSites, glob: &str| {
            let filter = Filter::new().trace(glob).unwrap();
            module.is_wanted(&Matcher::new(&filter)).unwrap()
        };
        let mut modules = 0;
        for loaded in modules::loaded().0 {
            let mut module = ModuleSites::new(loaded);
            let nothing = "no such function";
            if is_wanted(&mut module, nothing) || module.ngrams.is_none() {
                continue;
            }
            modules += 1;
            assert!(!is_wanted(&mut module, nothing));
            let known = module.known().unwrap();
            let some = (0..known.functions.len()).step_by(1 + known.functions.len() / 32);
            for name in some.flat_map(|index| names_of(known, index)) {
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

    #[test]
    fn only_functions_of_fgraph_are_its_own() {
        assert!(is_own("_ZN6fgraph8register17h0123456789abcdefE"));
        assert!(is_own("_ZN11fgraph_core4slot17h0123456789abcdefE"));
        assert!(!is_own("_ZN11fgraph_demo4main17h0123456789abcdefE"));
        assert!(!is_own("_ZN4demo6fgraph17h0123456789abcdefE"));
        assert!(!is_own("main"));
    }
}
