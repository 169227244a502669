//! The functions of one module, and the sites made of them.
//!
//! Functions are read when a filter first asks for the module, sites are made when a filter first
//! selects one of its functions: records, stubs and copies for all of them at once.
//!
//! # Safety
//!
//! The unsafe code reads text of a module that stays loaded meanwhile, and follows the pointer from a
//! module's record to what the runtime knows of it, which is never freed.

use core::ops::Range;
use core::ptr;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};

use fgraph_core::site::{Module, Site};
use fgraph_x86_64::cpu;
use fgraph_x86_64::high;
use fgraph_x86_64::nop::{self, SITE_LEN};
use fgraph_x86_64::poke::Text as _;
use fgraph_x86_64::relocate::Window;
use fgraph_x86_64::trampoline::{self, Trampolines};
use fgraph_x86_64::trap::TrapRange;

use super::classify::{self, Callers, Candidate, Choice, classify};
use super::entered::Entered;
use super::kept::Relied;
use super::names::Names;
use super::pieces::Pieces;
use super::{OFF, ON, is_relay, patched_len};
use crate::arena::{Arena, CopyUnwind, Unwind};
use crate::debug_file;
use crate::demangle;
use crate::elf::{ElfError, ElfFile, EntryList};
use crate::error::{Refusal, Refused};
use crate::filter::Filter;
use crate::functions::Functions;
use crate::ifunc;
use crate::inventory::{SiteInfo, SiteList};
use crate::libraries;
use crate::modules::{self, ListedEntry};
use crate::places::StubPlaces;
use crate::protection::Protections;
use crate::text::Text;

/// What all modules share.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) trampolines: Trampolines,
    pub(crate) places: StubPlaces,
    /// For tests: threads between two instructions of a site are not heeded.
    pub(crate) ignore_inner: bool,
    /// Functions that have no room for a jump may get a breakpoint.
    pub(crate) breakpoints: bool,
}

/// What is known of a module for good.
#[derive(Debug)]
#[repr(C)]
struct Known {
    module: Module,
    bias: usize,
    functions: Functions<'static>,
    callers: Callers,
    /// Found out when it is first needed.
    entered: OnceLock<Entered>,
    /// As well.
    relied: OnceLock<Relied>,
    file: ElfFile<'static>,
}

/// The name of a site in its module's symbol table.
fn symbol_of(site: &'static Site) -> &'static str {
    // SAFETY: every record of a module that has sites is the start of a `Known`, which is never freed
    // and whose address was exposed.
    let known =
        unsafe { &*ptr::with_exposed_provenance::<Known>(ptr::from_ref(site.module).addr()) };
    known.index_of(site).map_or("", |index| known.symbol(index))
}

impl Known {
    /// Which function a site is of.
    fn index_of(&self, site: &'static Site) -> Option<usize> {
        let address = site.address().wrapping_sub(self.bias);
        self.functions.index_at(address as u64)
    }

    fn symbol(&self, index: usize) -> &'static str {
        symbol(&self.functions, index)
    }
}

/// A function that has no site, and why.
#[derive(Debug)]
struct Left {
    names: Vec<String>,
    address: usize,
    reason: Refusal,
}

/// The sites of a module.
#[derive(Debug, Default)]
struct Prepared {
    /// By address.
    sites: &'static [Site],
    /// Those that are before a function and have its jump.
    relays: Vec<&'static Site>,
    /// How to unwind from these. It is known to unwinders while the module is loaded.
    relay_unwind: Unwind,
    /// Of each site; `None` if there are none.
    names: Option<&'static Names>,
    left: Vec<Left>,
    /// Whether functions could get breakpoints.
    breakpoints: bool,
}

/// A module that is, or was, loaded.
#[derive(Debug)]
pub(crate) struct ModuleSites {
    loaded: modules::Module,
    path: String,
    /// `None` until a filter asks for the module.
    known: Option<Result<&'static Known, String>>,
    /// What compilers have listed as entries. Empty until they can be read, which is when the module is
    /// relocated.
    listed: Vec<ListedEntry>,
    /// Of all names; `None` until a filter has selected none of them.
    pieces: Option<Pieces>,
    /// `None` until a filter selects one of its functions.
    prepared: Option<Prepared>,
    pub(crate) is_loaded: bool,
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
            pieces: None,
            prepared: None,
            is_loaded: true,
            is_new: true,
        }
    }

    /// Whether it is this module.
    pub(crate) fn is(&self, loaded: &modules::Module) -> bool {
        self.loaded.load_bias() == loaded.load_bias() && self.loaded.path() == loaded.path()
    }

    /// Whether `loaded` has been loaded from the file that the sites were made from.
    pub(crate) fn is_of(&self, loaded: &modules::Module) -> bool {
        matches!(&self.known, Some(Ok(known)) if modules::check(loaded, &known.file).is_ok())
    }

    /// It is loaded again, where it was: its text is as the compiler made it.
    pub(crate) fn come_back(&mut self, loaded: modules::Module) {
        self.loaded = loaded;
        self.is_loaded = true;
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
        self.is_loaded = false;
        if let Some(prepared) = &self.prepared {
            prepared.relay_unwind.withdraw();
        }
    }

    fn bias(&self) -> usize {
        self.loaded.load_bias()
    }

    pub(crate) fn sites(&self) -> &'static [Site] {
        self.prepared
            .as_ref()
            .map_or(&[], |prepared| prepared.sites)
    }

    /// Those of the sites that are before a function and have its jump.
    pub(crate) fn relays(&self) -> impl Iterator<Item = &'static Site> {
        let prepared = self.prepared.iter();
        prepared.flat_map(|prepared| prepared.relays.iter().copied())
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

    /// Whether the same file was unloaded and loaded at the same place again: then its text is as the
    /// compiler made it, also where we have patched it. To be called while it cannot be unloaded.
    pub(crate) fn is_replaced(&self) -> bool {
        self.sites().iter().any(|site| {
            // SAFETY: a module is loaded there.
            let now = |at| unsafe { ((site.entry + at) as *const u8).read_volatile() };
            let original = super::original(site).bytes;
            site.state.load(Ordering::Relaxed) == ON
                && (0..patched_len(site)).all(|at| now(at) == original[at])
        })
    }

    /// Whether sites have to be made before `filter` can be applied.
    pub(crate) fn is_wanted(&mut self, filter: &Filter) -> bool {
        if self.prepared.is_some() || !self.is_loaded {
            return false;
        }
        if self.has_event() {
            return true;
        }
        if !filter.module_may_match(&self.path) {
            return false;
        }
        let Ok(known) = self.known() else {
            return false;
        };
        let functions = &known.functions;
        let versions = filter.asks_for_versions();
        if let Some(pieces) = &self.pieces
            && !versions
            && !filter.names_may_match(&self.path, |text| pieces.may_contain(text))
        {
            return false;
        }
        let unknown = self.pieces.is_none();
        let mut pieces = unknown.then(|| Pieces::new(functions.len()));
        let mut buffer = String::new();
        let selects = (0..functions.len()).any(|index| {
            let mut names = functions.names(index).peekable();
            // Without a name it is selected as one whose name is empty.
            names.peek().is_none() && filter.matches("", &self.path)
                || names.any(|name| {
                    let plain = demangled(name.symbol, &mut buffer);
                    if let Some(pieces) = &mut pieces {
                        pieces.add(plain);
                    }
                    filter.matches(plain, &self.path)
                        || versions
                            && name.version.is_some()
                            && filter.matches(&name.to_string(), &self.path)
                })
        });
        if !selects && unknown {
            // Complete, since all names have been looked at.
            self.pieces = pieces;
        }
        selects
    }

    /// Whether it is the dynamic linker.
    fn has_event(&self) -> bool {
        let is_here = |event| self.loaded.text().any(|text| text.contains(&event));
        libraries::event().is_some_and(is_here)
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
        if !libraries::is_loading() {
            let targets = ifunc::targets(&self.loaded, &file, &functions);
            functions.add_names(targets.map_err(|error| error.to_string())?);
        }
        let known = Box::leak(Box::new(Known {
            module: Module {
                path: self.path.clone().leak(),
                symbol: symbol_of,
            },
            bias: self.bias(),
            callers: callers(&file, &functions, self.bias()),
            functions,
            entered: OnceLock::new(),
            relied: OnceLock::new(),
            file,
        }));
        ptr::from_ref(known).expose_provenance();
        Ok(known)
    }

    /// Calls `each` with every site, and whether `filter` selects it. No filter selects nothing.
    pub(crate) fn select(
        &self,
        filter: Option<&Filter>,
        mut each: impl FnMut(&'static Site, bool),
    ) {
        let prepared = self.prepared.as_ref();
        let Some(names) = prepared.and_then(|prepared| prepared.names) else {
            return;
        };
        let filter = filter.filter(|filter| filter.module_may_match(&self.path));
        for (index, site) in self.sites().iter().enumerate() {
            if is_relay(site) {
                continue;
            }
            let matches = |filter: &Filter| filter.matches_any(names.of(index), &self.path);
            each(site, filter.is_some_and(matches));
        }
    }

    /// What `filter` selects of this module and cannot be traced.
    pub(crate) fn refused<'a>(
        &'a self,
        filter: &'a Filter,
    ) -> impl Iterator<Item = Refused> + use<'a> {
        let module = match &self.known {
            Some(Err(error)) if filter.names_module(&self.path) => Some(Refused {
                name: String::new(),
                module: self.path.clone(),
                address: 0,
                reason: Refusal::Module(error.clone()),
            }),
            _ => None,
        };
        let left = self.prepared.iter().flat_map(|prepared| &prepared.left);
        let selected = left.filter(|left| {
            let names = left.names.iter().map(String::as_str);
            filter.matches_any(names, &self.path)
        });
        module.into_iter().chain(selected.map(|left| Refused {
            name: left.names.first().cloned().unwrap_or_default(),
            module: self.path.clone(),
            address: left.address,
            reason: left.reason.clone(),
        }))
    }

    /// Reads what compilers have listed. This may wait for libraries to be loaded.
    pub(crate) fn read_lists(&mut self) {
        if let Ok(known) = self.known()
            && self.listed.is_empty()
            && !libraries::is_loading()
        {
            let listed = modules::listed_entries(&self.loaded, &known.file);
            self.listed = listed.unwrap_or_default();
        }
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
        known.relied.get_or_init(|| {
            let is_padded = !self.listed.is_empty();
            Relied::find(&known.file, &known.functions, known.callers, is_padded)
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
                refuse(next.function, next.address, Refusal::Overlap);
            }
            overlaps
        });
        let prepared = build(known, chosen, breakpoints, common, &mut refuse);
        // Not needed any more.
        self.pieces = None;
        self.prepared = Some(Prepared {
            left,
            breakpoints,
            ..prepared
        });
    }

    /// Adds every function. To be called while the module cannot be unloaded.
    pub(crate) fn inventory(
        &mut self,
        common: &Common,
        list: &mut SiteList,
        protections: &Protections,
    ) {
        let path = self.path.clone();
        let decided = self.prepared.as_ref().map(|prepared| prepared.breakpoints);
        let Ok(known) = self.known() else {
            return;
        };
        let breakpoints =
            decided.unwrap_or_else(|| common.breakpoints && !blocks_signals(&known.functions));
        if known.functions.is_stripped() {
            list.stripped.push(path.clone());
        }
        self.each_candidate(known, protections, |function, mut candidate, callers| {
            if let Ok(candidate) = &mut candidate
                && let Some(file) = candidate.file
                && let Some(site) = self.site_at(candidate.address)
                && site.state.load(Ordering::Relaxed) == ON
            {
                // What is there now is ours.
                candidate.text = file;
            }
            let name = function.and_then(|index| names_of(known, index).into_iter().next());
            let name = name.unwrap_or_default();
            list.all.push(match candidate {
                Ok(candidate) => info(name, &path, &candidate, callers, breakpoints),
                Err((address, reason)) => SiteInfo {
                    name,
                    module: path.clone(),
                    address,
                    how: Err(reason),
                    returns: false,
                },
            });
        });
    }

    /// Calls `each` with every function that may be traced, or that may not because of where it is.
    fn each_candidate<'a>(
        &self,
        known: &'static Known,
        protections: &Protections,
        mut each: impl FnMut(Option<usize>, Result<Candidate<'a>, (usize, Refusal)>, Callers),
    ) {
        let callers = known.callers;
        let entered = known
            .entered
            .get_or_init(|| Entered::find(&known.file, &known.functions));
        // It decides only by which trampoline functions go, so who lists them does not need it.
        let relied = known.relied.get();
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
        // The start of the function that a listed entry belongs to: its padding may begin before it.
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
            let end = end.ok_or(Refusal::NotText)?.end.min(limit);
            match protections.of(address) {
                Some(now) if !now.executable => return Err(Refusal::NotText),
                Some(now) if now.writable => return Err(Refusal::Writable),
                Some(now) if now.readable => {}
                _ => return Err(Refusal::Unreadable),
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
                Err(Refusal::Resolver)
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
                code_is_relied_on: relied.is_none_or(|relied| relied.on_code(function.address)),
                convention_is_relied_on: relied
                    .is_some_and(|relied| relied.on_convention(function.address)),
                symbol,
            });
            let candidate = candidate.map_err(|reason| (address, reason));
            each(Some(index), candidate, callers);
        }
        let unnamed = |&event: &usize| {
            let in_file = event.wrapping_sub(known.bias) as u64;
            self.has_event() && functions.index_at(in_file).is_none()
        };
        let event = libraries::event().filter(unnamed);
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
            });
            each(None, candidate.map_err(|reason| (address, reason)), callers);
        }
    }
}

/// The file at `path`, which has been mapped, if `check` finds no fault in it, and the functions of it and
/// of its debug file.
///
/// # Errors
///
/// Why it cannot be read.
fn parse(
    mapped: io::Result<&'static [u8]>,
    path: &Path,
    check: impl FnOnce(&ElfFile<'_>) -> Result<(), ElfError>,
) -> Result<(ElfFile<'static>, Functions<'static>), String> {
    let text = |error: ElfError| error.to_string();
    let file = ElfFile::parse(mapped.map_err(|error| error.to_string())?).map_err(text)?;
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
    refuse: &mut impl FnMut(Option<usize>, usize, Refusal),
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
        .map(|chosen| chosen.choice.way.stub().stub_len())
        .sum();
    let copies: usize = windows().map(Window::relocated_len).sum();
    let Some(mut arena) = Arena::reserve(first.address, last.address, stubs, copies) else {
        for chosen in chosen {
            refuse(chosen.function, chosen.address, Refusal::OutOfReach);
        }
        return Prepared::default();
    };
    let (mut next_stub, mut next_copy) = (arena.stubs(), arena.copies());
    let mut unwind = CopyUnwind::default();
    let mut text = Text::open();
    let mut sites = Vec::with_capacity(chosen.len());
    let mut ways = Vec::with_capacity(chosen.len());
    let mut names = Names::default();
    for one in chosen {
        let entry = one.entry();
        let way = one.choice.way;
        let mut patched = one.choice.patched_len();
        let mut body = entry + SITE_LEN;
        let mut inner = [0; 4];
        let mut starts = 1;
        if let Some(window) = &one.choice.window {
            let copy = match window.relocate(next_copy, arena.bytes(next_copy)) {
                Ok(copy) => copy,
                Err(error) => {
                    refuse(one.function, one.address, Refusal::Displace(error));
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
            if starts == 1 && libraries::event() == Some(one.address) {
                body = libraries::take_place_of(body);
            }
        }
        let len = way.stub().stub_len();
        let previous = sites
            .last()
            .map_or(0, |site: &Site| site.entry + patched_len(site));
        if one.choice.relay.is_some_and(|nop| entry - nop < previous) {
            refuse(one.function, one.address, Refusal::NoPlace);
            continue;
        }
        let mut place = None;
        if starts != 1 {
            let places = &mut common.places;
            place = places.take(entry, starts, len, &mut text, &common.trampolines);
            if place.is_none() && !breakpoints {
                refuse(one.function, one.address, Refusal::NoPlace);
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
            name: "",
            module: &known.module,
            stub,
            runtime: AtomicU64::new(word),
        };
        if let Some(nop) = one.choice.relay {
            // Its own record is right before that of the function.
            names.push(core::iter::empty());
            ways.push(way);
            sites.push(site(entry - nop, entry, 0, super::relay_word(one.relay)));
        }
        let all = one
            .function
            .map_or(Vec::new(), |index| names_of(known, index));
        names.push(all.iter().map(String::as_str));
        ways.push(way);
        let lead = one.choice.lead as u8;
        sites.push(site(entry, body, lead, super::word(one.original, patched)));
    }
    names.shrink();
    let names: &'static Names = Box::leak(Box::new(names));
    for (index, site) in sites.iter_mut().enumerate() {
        site.name = names.best(index);
    }
    let sites: &'static [Site] = sites.leak();
    sites.as_ptr().expose_provenance();
    let written = sites.iter().zip(ways).try_for_each(|(site, way)| {
        // Its stub is the function's.
        if is_relay(site) {
            return Ok(());
        }
        let record = ptr::from_ref(site).addr() as u64;
        let outside = !arena.contains(site.stub);
        let header = if outside {
            StubPlaces::header(site.stub)
        } else {
            arena.header()
        };
        let stub = way.stub().encode(site.stub, record, way.word(header));
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
            refuse(index, site.address(), Refusal::NotExecutable(errno));
        }
        return Prepared::default();
    }
    let relays: Vec<_> = sites.iter().filter(|site| is_relay(site)).collect();
    let mut unwind = CopyUnwind::default();
    for relay in &relays {
        unwind.add_jump(relay.entry);
    }
    // Without memory for it they work as well.
    let relay_unwind = unwind.write().unwrap_or_default();
    relay_unwind.register();
    Prepared {
        sites,
        relays,
        relay_unwind,
        names: Some(names),
        ..Prepared::default()
    }
}

/// What can be done with a function.
fn info(
    name: String,
    module: &str,
    candidate: &Candidate<'_>,
    callers: Callers,
    breakpoints: bool,
) -> SiteInfo {
    let choice = classify(candidate, callers, breakpoints);
    SiteInfo {
        name,
        module: module.to_owned(),
        address: candidate.address,
        returns: choice
            .as_ref()
            .is_ok_and(|choice| !choice.way.is_entry_only()),
        how: choice.map(|choice| choice.how),
    }
}

/// Every function of a file that is not loaded; `breakpoints` says whether they may get one.
///
/// # Errors
///
/// Why the file cannot be read.
pub(crate) fn of_file(path: &Path, breakpoints: bool) -> Result<SiteList, String> {
    let (file, functions) = parse(modules::map_file(path), path, |_| Ok(()))?;
    Ok(list(&file, &functions, path, breakpoints))
}

/// [`of_file`] for a file that was read.
pub(crate) fn list(
    file: &ElfFile<'_>,
    functions: &Functions<'_>,
    path: &Path,
    breakpoints: bool,
) -> SiteList {
    let (callers, path) = (callers(file, functions, 0), path.to_string_lossy());
    let breakpoints = breakpoints && !blocks_signals(functions);
    let entered = Entered::find(file, functions);
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
        };
        let name = demangle::to_string(symbol);
        let mut info = info(name, &path, &candidate, callers, breakpoints);
        if function.is_resolver {
            info.how = Err(Refusal::Resolver);
        } else if text.is_none() {
            info.how = Err(Refusal::NotText);
        }
        info
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

/// The names of a function as programmers know them, the best first, and behind them those with a
/// version.
fn names_of(known: &Known, index: usize) -> Vec<String> {
    let symbols = || known.functions.names(index);
    let plain = symbols().map(|name| demangle::to_string(name.symbol));
    let versioned = symbols().filter(|name| name.version.is_some());
    plain
        .chain(versioned.map(|name| name.to_string()))
        .collect()
}

/// The name that a symbol has in the source; written to `buffer` if it has to be.
fn demangled<'a>(symbol: &'a str, buffer: &'a mut String) -> &'a str {
    if !symbol.starts_with('_') {
        return symbol;
    }
    buffer.clear();
    // Writing to a string does not fail.
    let _ = demangle::demangle_to(symbol, buffer);
    buffer
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
        bytes.is_some_and(|bytes| high::keeps_high_registers(bytes, address as usize))
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

/// Whether functions of a module are called while all signals are blocked: those of the C library are,
/// where it makes threads and processes. It is known by a function that others block signals with.
fn blocks_signals(functions: &Functions<'_>) -> bool {
    (0..functions.len())
        .flat_map(|index| functions.names(index))
        .any(|name| name.symbol == "pthread_sigmask")
}

/// Whether a symbol is of fgraph itself, which would only count its own calls as missed.
fn is_own(symbol: &str) -> bool {
    struct Start(String);
    impl core::fmt::Write for Start {
        fn write_str(&mut self, text: &str) -> core::fmt::Result {
            self.0.push_str(text);
            // Enough is known: demangling the rest would be a waste.
            if self.0.len() < 16 {
                Ok(())
            } else {
                Err(core::fmt::Error)
            }
        }
    }
    if !symbol.contains("fgraph") {
        return false;
    }
    let mut start = Start(String::new());
    let _ = demangle::demangle_to(symbol, &mut start);
    let start = start.0.trim_start_matches(['<', '&']);
    ["fgraph::", "fgraph_core::", "fgraph_x86_64::"]
        .iter()
        .any(|own| start.starts_with(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_wanted_also_after_a_filter_that_selects_nothing() {
        let exactly = |name: &str| -> String { name.chars().flat_map(|c| ['\\', c]).collect() };
        let trace = |glob: &str| Filter::new().trace(glob).unwrap();
        let mut modules = 0;
        for loaded in modules::loaded().0 {
            let mut module = ModuleSites::new(loaded);
            let nothing = trace("no such function");
            if module.is_wanted(&nothing) || module.pieces.is_none() {
                continue;
            }
            modules += 1;
            assert!(!module.is_wanted(&nothing));
            let known = module.known().unwrap();
            let some = (0..known.functions.len()).step_by(1 + known.functions.len() / 32);
            for name in some.flat_map(|index| names_of(known, index)) {
                assert!(module.is_wanted(&trace(&exactly(&name))), "{name}");
                let mut chars = name.chars();
                chars.next();
                chars.next_back();
                let middle = exactly(chars.as_str());
                assert!(module.is_wanted(&trace(&format!("?{middle}*"))), "{name}");
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
