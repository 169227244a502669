//! The functions of the program and its libraries, and the sites made of them.
//!
//! For each module of which a filter has selected anything: the records, sorted by address, in memory
//! that is never freed, because frames on shadow stacks and threads on their way through stubs refer to
//! them; the stubs and copies of displaced instructions; and a row in the table that the handlers of
//! traps search.

mod classify;
mod entered;
mod kept;
mod module;
mod names;
mod pieces;

use core::ffi::CStr;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use fgraph_core::site::Site;
use fgraph_x86_64::nop::SITE_LEN;
use fgraph_x86_64::poke::Content;
use fgraph_x86_64::stub;
use fgraph_x86_64::trampoline::{self, Trampolines};
use fgraph_x86_64::trap::{TRAP_TABLE, TrapRange, TrapTable};

use crate::error::Refused;
use crate::filter::Filter;
use crate::inventory::SiteList;
use crate::libraries;
use crate::linker;
use crate::modules::{self, Generation};
use crate::places::StubPlaces;
use crate::protection::Protections;
pub(crate) use classify::Callers;
pub(crate) use kept::Relied;
use module::{Common, ModuleSites};
pub(crate) use module::{list, of_file};
pub(crate) use pieces::END;

/// The entry is as the compiler made it.
pub(crate) const OFF: u8 = 0;
/// The entry jumps to the stub, or traps for good.
pub(crate) const ON: u8 = 1;

/// Who names it may cancel threads.
const CANCEL: &CStr = c"pthread_cancel";

/// All functions and sites.
#[derive(Debug)]
pub(crate) struct Sites {
    modules: Vec<ModuleSites>,
    generation: Option<Generation>,
    common: Common,
    /// Address of [`CANCEL`].
    cancel: usize,
    /// All that were ever published. Never freed; kept here so that leak checkers find them.
    trap_tables: Vec<AtomicPtr<TrapTable>>,
}

impl Sites {
    pub(crate) const fn new() -> Self {
        Self {
            modules: Vec::new(),
            generation: None,
            cancel: 0,
            trap_tables: Vec::new(),
            common: Common {
                trampolines: Trampolines::NONE,
                places: StubPlaces::new(),
                ignore_inner: false,
                breakpoints: false,
            },
        }
    }

    /// Says where the stubs jump to, and finds what is looked for in modules.
    pub(crate) fn start(&mut self, trampolines: Trampolines) {
        self.common.trampolines = trampolines;
        self.cancel = linker::symbol(CANCEL).addr();
    }

    /// For tests: threads between two instructions of a site are not heeded in modules whose sites are
    /// made from now on.
    pub(crate) fn ignore_inner(&mut self, ignore: bool) {
        self.common.ignore_inner = ignore;
    }

    /// Whether functions may get breakpoints in modules whose sites are made from now on.
    pub(crate) fn allow_breakpoints(&mut self, allow: bool) {
        self.common.breakpoints = allow;
    }

    /// Takes in the modules that were loaded since the last time, and leaves out those that are gone;
    /// `false` if nothing has changed.
    pub(crate) fn refresh(&mut self) -> bool {
        if self.generation == Some(modules::generation()) {
            return false;
        }
        let (loaded, generation) = modules::loaded();
        let unloaded = self.generation.map(|known| known.subs) != Some(generation.subs);
        // Whether nothing was loaded or unloaded meanwhile; what could not be looked at is left for the
        // next time.
        let mut complete = true;
        for known in &mut self.modules {
            let is_listed = || loaded.iter().any(|module| known.is(module));
            // One that was gone stays so: what is at its place now is another, with its own text.
            if known.is_loaded && !is_listed() {
                known.leave();
            }
            if known.is_loaded && unloaded {
                match modules::while_loaded(generation, || known.is_replaced()) {
                    Some(true) => known.leave(),
                    Some(false) => {}
                    None => complete = false,
                }
            }
        }
        for module in loaded {
            if self.loaded().any(|known| known.is(&module)) {
                continue;
            }
            if !trampoline::holds_cancellation() {
                match modules::while_loaded(generation, || module.may_call(CANCEL, self.cancel)) {
                    Some(true) => self.common.trampolines = trampoline::hold_cancellation(),
                    Some(false) => {}
                    None => {
                        complete = false;
                        continue;
                    }
                }
            }
            // Stubs may have few places, so what comes back to where it was gets those that it had.
            let gone = |known: &&mut ModuleSites| !known.is_loaded && known.is(&module);
            match self.modules.iter_mut().find(gone) {
                Some(known) if known.is_of(&module) => known.come_back(module),
                _ => self.modules.push(ModuleSites::new(module)),
            }
        }
        self.modules
            .retain(|module| module.is_loaded || !module.sites().is_empty());
        self.publish_traps();
        self.generation = complete.then_some(generation);
        true
    }

    /// Makes the sites of the modules in which `filter` selects anything. If it is not new, only modules
    /// that came since the last [`settle`](Self::settle) are looked at. `None` if modules were loaded or
    /// unloaded since the last `refresh`.
    pub(crate) fn prepare(&mut self, filter: &Filter, is_new: bool) -> Option<()> {
        let generation = self.generation?;
        let mut prepared = false;
        let mut protections = None;
        for module in &mut self.modules {
            if (is_new || module.is_new) && module.is_wanted(filter) {
                module.read_lists();
                let common = &mut self.common;
                let now = || Protections::now(&modules::loaded().0);
                let protections = protections.get_or_insert_with(now);
                modules::while_loaded(generation, || module.prepare(common, protections))?;
                prepared = true;
            }
        }
        if prepared {
            self.publish_traps();
        }
        Some(())
    }

    /// All filters have been [applied](Self::prepare) to all modules.
    pub(crate) fn settle(&mut self) {
        for module in &mut self.modules {
            module.is_new = false;
        }
    }

    /// Every function there is. `None` if modules were loaded or unloaded since the last `refresh`.
    pub(crate) fn inventory(&mut self) -> Option<SiteList> {
        let generation = self.generation?;
        let protections = Protections::now(&modules::loaded().0);
        let mut all = SiteList::default();
        for module in self.modules.iter_mut().filter(|module| module.is_loaded) {
            module.read_lists();
            let common = &self.common;
            modules::while_loaded(generation, || {
                module.inventory(common, &mut all, &protections)
            })?;
        }
        Some(all)
    }

    /// Runs `work` while no library can be loaded or unloaded; `None` if one was since the last
    /// `refresh`.
    pub(crate) fn while_loaded<R>(&self, work: impl FnOnce() -> R) -> Option<R> {
        modules::while_loaded(self.generation?, work)
    }

    /// All sites of the modules that are loaded.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &'static Site> {
        self.loaded().flat_map(ModuleSites::sites)
    }

    /// The sites that are before a function and have its jump.
    pub(crate) fn relays(&self) -> impl Iterator<Item = &'static Site> {
        self.loaded().flat_map(ModuleSites::relays)
    }

    /// The site of the linker's function that tells of libraries, if there is one.
    pub(crate) fn event(&self) -> Option<&'static Site> {
        let event = libraries::event().filter(|&event| libraries::is_event(event))?;
        self.loaded().find_map(|module| module.site_at(event))
    }

    fn loaded(&self) -> impl Iterator<Item = &ModuleSites> {
        self.modules.iter().filter(|module| module.is_loaded)
    }

    /// Calls `each` with every site, and whether `filter` selects it. No filter selects nothing.
    pub(crate) fn select(
        &self,
        filter: Option<&Filter>,
        mut each: impl FnMut(&'static Site, bool),
    ) {
        for module in self.loaded() {
            module.select(filter, &mut each);
        }
    }

    /// What `filter` selects and cannot be traced.
    pub(crate) fn refused(&self, filter: &Filter) -> Vec<Refused> {
        self.loaded()
            .flat_map(|module| module.refused(filter))
            .collect()
    }

    /// Makes the table for the handlers of traps. The old one is kept: a handler may be reading it.
    fn publish_traps(&mut self) {
        let ranges: Vec<TrapRange> = self.loaded().filter_map(ModuleSites::traps).collect();
        let ranges = ranges.leak();
        let table = Box::into_raw(Box::new(TrapTable {
            len: ranges.len(),
            ranges: ranges.as_ptr(),
        }));
        self.trap_tables.push(AtomicPtr::new(table));
        // Release: whoever traps sees the table complete. It is published before the first
        // breakpoint is written.
        TRAP_TABLE.store(table, Ordering::Release);
    }
}

/// What [`Site::runtime`] holds: the bytes at the entry, and how many of them are patched.
fn word(original: [u8; SITE_LEN], patched: usize) -> u64 {
    let mut word = [0; 8];
    word[..SITE_LEN].copy_from_slice(&original);
    word[SITE_LEN] = patched as u8;
    u64::from_le_bytes(word)
}

/// As [`word`], for the NOP before a function that becomes its jump.
fn relay_word(original: [u8; SITE_LEN]) -> u64 {
    word(original, SITE_LEN) | 1 << (8 * RELAY)
}

/// The byte of the word that is not 0 for a relay.
const RELAY: usize = SITE_LEN + 1;

/// Whether a site is the NOP before a function that becomes its jump, because the function's own entry has
/// no room for it. The function's record is right behind that of the NOP.
pub(crate) fn is_relay(site: &Site) -> bool {
    site.runtime.load(Ordering::Relaxed).to_le_bytes()[RELAY] != 0
}

/// The site of the function that `relay` is for.
pub(crate) fn relayed(relay: &Site) -> &'static Site {
    // SAFETY: records of a module are in one slice, which is never freed, and that of the function is
    // right behind.
    unsafe { &*ptr::with_exposed_provenance::<Site>(ptr::from_ref(relay).addr()).add(1) }
}

/// The short jump of a site to its relay.
pub(crate) fn short_jump(site: &Site) -> Option<[u8; 2]> {
    // SAFETY: as in `relayed`: only sites with a relay have a short jump, and it is right before.
    let relay =
        unsafe { &*ptr::with_exposed_provenance::<Site>(ptr::from_ref(site).addr()).sub(1) };
    stub::jmp_rel8(site.entry, relay.entry)
}

/// How many bytes of a site are patched: one for a breakpoint, two for a short jump, else five.
pub(crate) fn patched_len(site: &Site) -> usize {
    site.runtime.load(Ordering::Relaxed).to_le_bytes()[SITE_LEN].into()
}

/// What the compiler made at a site. Of a breakpoint's only the first byte counts.
pub(crate) fn original(site: &Site) -> Content {
    let [a, b, c, d, e, ..] = site.runtime.load(Ordering::Relaxed).to_le_bytes();
    let starts = site
        .inner
        .iter()
        .rev()
        .fold(0, |starts, &copy| (starts | u8::from(copy != 0)) << 1);
    Content {
        bytes: [a, b, c, d, e],
        starts: starts | 1,
    }
}
