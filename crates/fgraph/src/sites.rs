//! The sites of the program and its libraries.
//!
//! For each module that has any: the records, sorted by address, in memory that is never freed,
//! because frames on shadow stacks and threads on their way through stubs refer to them; an arena
//! with a stub for each; and a row in the table that the handler of SIGTRAP searches.
//!
//! # Safety
//!
//! The unsafe code reads the bytes at function entries of loaded modules.

use core::ptr;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};

use arrayvec::ArrayVec;
use fgraph_core::site::{Function, Module, Site};
use fgraph_x86_64::nop::{self, SITE_LEN};
use fgraph_x86_64::poke::Content;
use fgraph_x86_64::trampoline;
use fgraph_x86_64::trap::{TRAP_TABLE, TrapRange, TrapTable};

use crate::arena::Arena;
use crate::demangle;
use crate::elf::ElfFile;
use crate::error::{Refusal, Refused};
use crate::filter::Filter;
use crate::modules::{self, Generation};

/// The entry is as the compiler made it.
pub(crate) const OFF: u8 = 0;
/// The entry jumps to the stub.
pub(crate) const ON: u8 = 1;

/// Bytes that are read at an entry: an endbr64 and the longest pad worth telling apart.
const ENTRY_BYTES: usize = 16;

/// A module's part of the table.
#[derive(Debug)]
struct ModuleSites {
    module: &'static Module,
    /// Where it is loaded: with the path, what tells two modules apart.
    bias: usize,
    sites: &'static [Site],
    names: Names,
    refused: Vec<Refused>,
    loaded: bool,
}

/// All sites.
#[derive(Debug, Default)]
pub(crate) struct Sites {
    modules: Vec<ModuleSites>,
    generation: Option<Generation>,
    trampoline: usize,
}

impl Sites {
    pub(crate) const fn new() -> Self {
        Self {
            modules: Vec::new(),
            generation: None,
            trampoline: 0,
        }
    }

    /// Says where the stubs jump to.
    pub(crate) fn set_trampoline(&mut self, entry: usize) {
        self.trampoline = entry;
    }

    /// Takes in the modules that were loaded since the last time, and leaves out those that are gone;
    /// `false` if nothing has changed.
    pub(crate) fn refresh(&mut self) -> bool {
        if self.generation == Some(modules::generation()) {
            return false;
        }
        let (loaded, generation) = modules::loaded();
        let unloaded = self.generation.map(|known| known.subs) != Some(generation.subs);
        // Whether nothing was loaded or unloaded meanwhile; what could not be read is left for the next
        // time.
        let mut complete = true;
        for known in &mut self.modules {
            let is_listed = || {
                loaded
                    .iter()
                    .any(|module| known.is(&path_of(module), module.load_bias()))
            };
            // One that was gone stays so: what is at its place now is another, with its own text.
            known.loaded = known.loaded && is_listed();
            if known.loaded && unloaded {
                match modules::while_loaded(generation, || known.is_replaced()) {
                    Some(replaced) => known.loaded = !replaced,
                    None => complete = false,
                }
            }
        }
        for module in &loaded {
            let path = path_of(module);
            let bias = module.load_bias();
            if !self
                .modules
                .iter()
                .any(|known| known.loaded && known.is(&path, bias))
            {
                match ModuleSites::find(module, path, self.trampoline, generation) {
                    Some(module) => self.modules.push(module),
                    None => complete = false,
                }
            }
        }
        self.publish_traps();
        self.generation = complete.then_some(generation);
        true
    }

    /// Runs `work` while no library can be loaded or unloaded; `None` if one was since the last
    /// `refresh`.
    pub(crate) fn while_loaded<R>(&self, work: impl FnOnce() -> R) -> Option<R> {
        modules::while_loaded(self.generation?, work)
    }

    /// All sites of the modules that are loaded.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &'static Site> {
        self.loaded().flat_map(|module| module.sites)
    }

    fn loaded(&self) -> impl Iterator<Item = &ModuleSites> {
        self.modules.iter().filter(|module| module.loaded)
    }

    /// Calls `each` with every site, and whether `filter` selects it. No filter selects nothing.
    pub(crate) fn select(
        &self,
        filter: Option<&Filter>,
        mut each: impl FnMut(&'static Site, bool),
    ) {
        for module in self.loaded() {
            let path = module.module.path;
            let filter = filter.filter(|filter| filter.module_may_match(path));
            for (index, site) in module.sites.iter().enumerate() {
                let name = module.names.get(index);
                each(
                    site,
                    filter.is_some_and(|filter| filter.matches(name, path)),
                );
            }
        }
    }

    /// What `filter` selects and cannot be traced.
    pub(crate) fn refused(&self, filter: &Filter) -> Vec<Refused> {
        self.loaded()
            .flat_map(|module| &module.refused)
            .filter(|refused| {
                if refused.address == 0 {
                    filter.names_module(&refused.module)
                } else {
                    filter.matches(&refused.name, &refused.module)
                }
            })
            .cloned()
            .collect()
    }

    /// Makes the table for the handler of SIGTRAP. The old one is leaked: a handler may be reading it.
    fn publish_traps(&self) {
        let ranges: Vec<TrapRange> = self
            .loaded()
            .filter_map(|module| {
                let (first, last) = (module.sites.first()?, module.sites.last()?);
                Some(TrapRange {
                    first: first.entry,
                    end: last.entry + SITE_LEN,
                    records: module.sites.as_ptr(),
                    count: module.sites.len(),
                })
            })
            .collect();
        let ranges = ranges.leak();
        let table = Box::leak(Box::new(TrapTable {
            len: ranges.len(),
            ranges: ranges.as_ptr(),
        }));
        // Release: whoever traps sees the table complete. It is published before the first
        // breakpoint is written.
        TRAP_TABLE.store(ptr::from_mut(table), Ordering::Release);
    }
}

/// The demangled names of a module's sites: filters change often, and demangling takes longer than
/// matching.
#[derive(Debug, Default)]
struct Names {
    text: String,
    /// Where in the text each name ends.
    ends: Vec<u32>,
}

impl Names {
    fn of(sites: &'static [Site]) -> Self {
        use core::fmt::Write as _;
        let mut names = Self::default();
        for site in sites {
            // Writing to a string does not fail.
            let _ = write!(names.text, "{}", Function::of(site).name());
            names.ends.push(names.text.len() as u32);
        }
        names.text.shrink_to_fit();
        names
    }

    fn get(&self, index: usize) -> &str {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[start as usize..self.ends[index] as usize]
    }
}

fn path_of(module: &modules::Module) -> String {
    module.path().to_string_lossy().into_owned()
}

impl ModuleSites {
    fn is(&self, path: &str, bias: usize) -> bool {
        self.bias == bias && self.module.path == path
    }

    /// Whether the same file was unloaded and loaded at the same place again: then its text is as the
    /// compiler made it, also where we have patched it. To be called while it cannot be unloaded.
    fn is_replaced(&self) -> bool {
        self.sites.iter().any(|site| {
            // SAFETY: a module is loaded there.
            let now = || unsafe { (site.entry as *const [u8; SITE_LEN]).read_volatile() };
            site.state.load(Ordering::Relaxed) == ON && now() == original(site).bytes
        })
    }

    /// Reads a module's list of patchable entries, its symbols, and the bytes at the entries.
    /// `None` if modules were loaded or unloaded since `generation`.
    fn find(
        loaded: &modules::Module,
        path: String,
        trampoline: usize,
        generation: Generation,
    ) -> Option<Self> {
        let bias = loaded.load_bias();
        let module = Box::leak(Box::new(Module {
            path: path.leak(),
            demangle: demangle::demangle_to,
        }));
        let mut this = Self {
            module,
            bias,
            sites: &[],
            names: Names::default(),
            refused: Vec::new(),
            loaded: true,
        };
        match this.read(loaded, trampoline, generation) {
            Ok(true) => {}
            Ok(false) => return None,
            Err(error) => this.refuse(String::new(), 0, Refusal::Module(error)),
        }
        Some(this)
    }

    fn refuse(&mut self, name: String, address: usize, reason: Refusal) {
        self.refused.push(Refused {
            name,
            module: self.module.path.to_owned(),
            address,
            reason,
        });
    }

    /// `false` if modules were loaded or unloaded since `generation`.
    fn read(
        &mut self,
        loaded: &modules::Module,
        trampoline: usize,
        generation: Generation,
    ) -> Result<bool, String> {
        let bytes = loaded.map().map_err(|error| error.to_string())?;
        let file = ElfFile::parse(bytes).map_err(|error| error.to_string())?;
        let entries =
            modules::patchable_entries(loaded, &file).map_err(|error| error.to_string())?;
        if entries.is_empty() {
            return Ok(true);
        }
        let Some(text) = modules::while_loaded(generation, || entry_bytes(loaded, &entries)) else {
            return Ok(false);
        };
        let symbols = file.symbols().map_err(|error| error.to_string())?;
        let own_text = trampoline::own_text();
        let mut sites = Vec::with_capacity(entries.len());
        for (address, bytes) in entries.into_iter().zip(text) {
            let symbol = symbols.symbol_at((address - self.bias) as u64);
            let (name, start) = symbol.map_or(("", address), |symbol| {
                (symbol.name, symbol.address as usize + self.bias)
            });
            if own_text.contains(&address) || is_own(name) {
                continue;
            }
            let offset = match nop::find(bytes.as_slice()) {
                Ok(offset) => offset,
                Err(error) => {
                    self.refuse(demangle::to_string(name), address, Refusal::Entry(error));
                    continue;
                }
            };
            let mut original = [0; 8];
            original[..SITE_LEN].copy_from_slice(&bytes[offset..offset + SITE_LEN]);
            let entry = address + offset;
            sites.push(Site {
                entry,
                body: entry + SITE_LEN,
                interest: AtomicU16::new(0),
                lead: u8::try_from(entry - start).unwrap_or(0),
                state: AtomicU8::new(OFF),
                inner: [0; 4],
                symbol: name,
                module: self.module,
                stub: 0,
                runtime: AtomicU64::new(u64::from_le_bytes(original)),
            });
        }
        self.finish(sites, trampoline);
        Ok(true)
    }

    /// Gives each site its stub.
    fn finish(&mut self, mut sites: Vec<Site>, trampoline: usize) {
        sites.sort_unstable_by_key(|site| site.entry);
        sites.dedup_by_key(|site| site.entry);
        let (Some(first), Some(last)) = (sites.first(), sites.last()) else {
            return;
        };
        let Some(arena) = Arena::reserve(first.entry, last.entry, sites.len()) else {
            return self.refuse_all(&sites, &Refusal::OutOfReach);
        };
        for (index, site) in sites.iter_mut().enumerate() {
            site.stub = arena.stub(index);
        }
        let sites = sites.leak();
        let records = sites.iter().map(|site| ptr::from_ref(site) as u64);
        if let Err(errno) = arena.finish(trampoline, records) {
            return self.refuse_all(sites, &Refusal::NotExecutable(errno));
        }
        self.sites = sites;
        self.names = Names::of(self.sites);
    }

    fn refuse_all(&mut self, sites: &[Site], reason: &Refusal) {
        for site in sites {
            self.refuse(demangle::to_string(site.symbol), site.entry, reason.clone());
        }
    }
}

/// The bytes at function entries, as far as the text segment goes. To be called while the module cannot be
/// unloaded.
fn entry_bytes(loaded: &modules::Module, entries: &[usize]) -> Vec<ArrayVec<u8, ENTRY_BYTES>> {
    let read = |&address: &usize| {
        let text = loaded.text().find(|text| text.contains(&address));
        let len = text.map_or(0, |text| ENTRY_BYTES.min(text.end - address));
        // SAFETY: within a text segment of a module that stays loaded meanwhile.
        let bytes = unsafe { core::slice::from_raw_parts(address as *const u8, len) };
        bytes.iter().copied().collect()
    };
    entries.iter().map(read).collect()
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

/// What the compiler made at a site.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_functions_of_fgraph_are_its_own() {
        assert!(is_own("_ZN6fgraph8register17h0123456789abcdefE"));
        assert!(is_own("_ZN11fgraph_core4slot17h0123456789abcdefE"));
        assert!(!is_own("_ZN11fgraph_demo4main17h0123456789abcdefE"));
        assert!(!is_own("_ZN4demo6fgraph17h0123456789abcdefE"));
        assert!(!is_own("main"));
    }
}
