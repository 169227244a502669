//! Permanent facts about a module's functions. They are read from the module's file once, and kept
//! after the module is unloaded, since names of its functions may be in use.

use core::fmt;
use core::ops::{Deref, Range};
use std::io;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use fgraph_core::site::{Site, Source};
use fgraph_symbols::demangle;
use fgraph_symbols::elf::{ElfError, ElfFile};
use fgraph_symbols::filter::{FilterError, FunctionFacts, ModuleMatcher, SymbolPieces};
use fgraph_symbols::functions::{Functions, Name};
#[cfg(feature = "dwarf")]
use fgraph_symbols::lines::Lines;
use fgraph_symbols::notrace::{self, Notrace};
use fgraph_symbols::signature::{NoValue, Signature, Value, ValuePath};

use super::branch_targets::Entered;
use super::callee_preserved::CalleePreserved;
use super::candidate::Callers;
use super::exits::{Exits, FileExits};
use super::file_code::FileCode;
use super::function_names::{all_names, file_name, names_of, symbol, write_name};
use super::names::Names;
use super::planners::Planners;
use super::record::is_function;
use super::restartable::{self, Sequence};
use super::saved_plan::{SavedDecision, SavedFacts};
use super::saving::{Context, Saving};
use super::site_names::{NamedSites, SiteNames};
use super::toolchain::{self, NotraceRules};
use crate::os::{memory, status};
use crate::process::debug_file;
use crate::process::listed_entries::ListedEntry;
#[cfg(feature = "dwarf")]
use crate::threads::untraced::untraced;

/// Permanent facts about a module at one address. Modules that share a file share the facts about
/// the file.
#[derive(Debug)]
pub(super) struct ModuleFacts {
    pub(super) bias: usize,
    /// The sites, in the parts in which they were made.
    sites: [OnceLock<NamedSites>; MAX_PARTS],
    walked: OnceLock<Vec<Range<usize>>>,
    /// Read from memory when functions are first analyzed.
    sequences: OnceLock<Vec<Sequence>>,
    source: &'static FileFacts,
}

/// Permanent facts about a module's file.
#[derive(Debug)]
pub(super) struct FileFacts {
    pub(super) path: &'static str,
    pub(super) functions: Functions<'static>,
    /// The facts for each address at which it was loaded.
    at: Mutex<Vec<&'static ModuleFacts>>,
    /// The places in its code to which the linker writes, as addresses of the file, in order.
    text_relocations: Vec<u64>,
    callers: OnceLock<Callers>,
    notrace: NotraceRules,
    entered: OnceLock<Entered>,
    exits: Exits,
    is_of_ocaml: OnceLock<bool>,
    /// The functions that need more registers preserved; computed when sites are made.
    pub(super) callee_preserved: OnceLock<CalleePreserved>,
    pub(super) file: ElfFile<'static>,
    /// The file's plan that is kept for other processes; `None` if none is.
    pub(super) saving: Option<Saving>,
    /// Another process's decisions about its functions, by index.
    decisions: OnceLock<Vec<SavedDecision>>,
    /// The names of its functions in the symbol tables, by index, if these are kept together with
    /// the plan.
    names: OnceLock<Names>,
    /// Read when a line is first requested; `None` if there are none.
    #[cfg(feature = "dwarf")]
    lines: OnceLock<Option<Mutex<Lines>>>,
}

/// The most parts in which the sites of a module are made.
pub(super) const MAX_PARTS: usize = 4;

impl FileFacts {
    pub(super) fn new(
        path: &'static str,
        file: ElfFile<'static>,
        functions: Functions<'static>,
        notrace: Option<Notrace>,
        saving: Option<Saving>,
    ) -> Self {
        Self {
            path,
            at: Mutex::default(),
            notrace: NotraceRules::new(&file, &functions, notrace),
            functions,
            text_relocations: file.text_relocations(),
            callers: OnceLock::new(),
            entered: OnceLock::new(),
            exits: Exits::default(),
            is_of_ocaml: OnceLock::new(),
            callee_preserved: OnceLock::new(),
            file,
            saving,
            decisions: OnceLock::new(),
            names: OnceLock::new(),
            #[cfg(feature = "dwarf")]
            lines: OnceLock::new(),
        }
    }

    /// Returns true if its functions are called while all signals are blocked.
    pub(super) fn blocks_signals(&self) -> bool {
        self.notrace.blocks_signals(&self.functions)
    }

    /// Returns the facts about a module that is loaded from it, without sites.
    pub(super) fn at(&'static self, bias: usize) -> &'static ModuleFacts {
        let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        let has_sites = |facts: &ModuleFacts| facts.sites().next().is_some();
        let is_it = |facts: &&ModuleFacts| facts.bias == bias && !has_sites(facts);
        if let Some(known) = at.iter().copied().find(is_it) {
            return known;
        }
        let new: &ModuleFacts = Box::leak(Box::new(ModuleFacts {
            bias,
            sites: [const { OnceLock::new() }; MAX_PARTS],
            walked: OnceLock::new(),
            sequences: OnceLock::new(),
            source: self,
        }));
        at.push(new);
        new
    }
}

impl Deref for ModuleFacts {
    type Target = FileFacts;

    fn deref(&self) -> &FileFacts {
        self.source
    }
}

impl ModuleFacts {
    /// Returns the facts about its file.
    pub(super) fn of_file(&self) -> &'static FileFacts {
        self.source
    }

    /// Returns the registers on which callers in the module may rely. The first call analyzes all
    /// code.
    pub(super) fn callers(&self) -> Callers {
        let find = || toolchain::callers(&self.file, &self.functions, self.bias);
        *self.callers.get_or_init(find)
    }

    /// Returns the rule that forbids tracing a function with these names, whatever its code is.
    pub(super) fn notrace(
        &self,
        index: usize,
        names: impl Iterator<Item = Name<'static>>,
    ) -> Option<Notrace> {
        let address = self.address(index);
        match self
            .sequences()
            .iter()
            .any(|sequence| sequence.concerns(address))
        {
            true => Some(restartable::NOTRACE),
            false => self.notrace.of(&self.file, &self.functions, index, names),
        }
    }

    /// Returns the restartable sequences of the module, which must be loaded at the first call.
    pub(super) fn sequences(&self) -> &[Sequence] {
        self.sequences.get_or_init(|| self.read_sequences())
    }

    /// Saves the facts, and the `decisions` about all functions if they are made, for other
    /// processes; `listed` are the entries that compilers have listed.
    pub(super) fn save(&self, listed: &[ListedEntry], decisions: Vec<SavedDecision>) {
        let known = (&self.saving, self.callers.get(), self.entered.get());
        let (Some(saving), Some(&callers), Some(entered)) = known else {
            return;
        };
        let facts = SavedFacts {
            context: 0,
            callers,
            entered: entered.clone(),
            callee_preserved: self.callee_preserved.get().cloned(),
            names: match decisions.is_empty() {
                true => Names::default(),
                false => self.names.get().cloned().unwrap_or_default(),
            },
            decisions,
        };
        saving.save(self.path, facts, &self.context(listed));
    }

    fn context<'a>(&'a self, listed: &'a [ListedEntry]) -> Context<'a> {
        Context {
            bias: self.bias,
            listed,
            sequences: self.sequences(),
        }
    }

    /// Restores another process's facts, if they hold here.
    pub(super) fn restore(&self, listed: &[ListedEntry]) {
        let (saving, functions) = (self.saving.as_ref(), self.functions.len());
        let take = |saving: &Saving| saving.take(functions, &self.context(listed));
        let Some(facts) = saving.and_then(take) else {
            return;
        };
        let _ = self.callers.set(facts.callers);
        let _ = self.entered.set(facts.entered);
        let _ = facts
            .callee_preserved
            .map(|callee_preserved| self.callee_preserved.set(callee_preserved));
        if !facts.decisions.is_empty() {
            let _ = self.decisions.set(facts.decisions);
            let _ = self.names.set(facts.names);
        }
    }

    /// Writes the names of all functions if they must be kept, and are unknown.
    pub(super) fn find_names(&self, planners: Planners) {
        if self.saving.is_some() {
            let write = || all_names(&self.functions, self.path, planners);
            self.names.get_or_init(write);
        }
    }

    /// Returns the names of all functions in the symbol tables, by index, if they are known.
    pub(super) fn names(&self) -> Option<&Names> {
        self.names.get()
    }

    /// Returns another process's decision about a function.
    pub(super) fn saved_decision(&self, index: usize) -> Option<SavedDecision> {
        self.decisions.get()?.get(index).copied()
    }

    fn read_sequences(&self) -> Vec<Sequence> {
        /// A bound of the number in any module.
        const MAX: usize = 1 << 20;
        let Some(range) = self.file.restartable_sequences() else {
            return Vec::new();
        };
        let len = (range.end - range.start).min(MAX as u64) as usize;
        let mut list = vec![0; len];
        if memory::read(self.bias.wrapping_add(range.start as usize), &mut list).is_err() {
            return Vec::new();
        }
        Sequence::list(&list)
    }

    /// Returns the places at which functions are entered after their first instruction. The first
    /// call analyzes all code.
    pub(super) fn entered(&self) -> &Entered {
        let find = || Entered::find(&self.file, &self.functions);
        self.entered.get_or_init(find)
    }

    /// Computes the functions that need more registers preserved, if they are unknown; `is_padded`
    /// is true if compilers have listed functions in the module.
    pub(super) fn find_callee_preserved(&self, is_padded: bool) {
        let find = || CalleePreserved::find(&self.file, &self.functions, self.callers(), is_padded);
        self.callee_preserved.get_or_init(find);
    }

    /// Returns true if the places at which functions are entered are known.
    pub(super) fn has_entered(&self) -> bool {
        self.entered.get().is_some()
    }

    /// Returns the code, in memory and in order, whose runtime walks its frames.
    pub(super) fn walked(&self) -> &[Range<usize>] {
        self.walked.get_or_init(|| {
            let mut found: Vec<Range<usize>> = Vec::new();
            let is_walked = |&index: &usize| {
                let mut raw_names = self.functions.raw_names(index);
                let may_be = self.notrace.are_of_go()
                    || raw_names.any(|(name, _)| notrace::may_be_walked(name));
                let notrace = || self.notrace(index, self.functions.names(index));
                may_be && matches!(notrace(), Some(notrace::WALKED | notrace::GO))
            };
            for index in (0..self.functions.len()).filter(is_walked) {
                let limit = self.functions.get(index).limit as usize;
                let code = self.address(index)..self.bias.wrapping_add(limit);
                match found.last_mut().filter(|last| last.end == code.start) {
                    Some(last) => last.end = code.end,
                    None => found.push(code),
                }
            }
            found
        })
    }

    /// Returns true if OCaml's compiler has made functions of the module: its runtime survives an
    /// overflow of the stack if the fault is in their text.
    pub(super) fn is_of_ocaml(&self) -> bool {
        *self.is_of_ocaml.get_or_init(|| {
            let is_ocaml = |(name, _): (&[u8], _)| {
                notrace::may_be_walked(name)
                    && core::str::from_utf8(name).is_ok_and(notrace::is_ocaml)
            };
            (0..self.functions.len()).any(|index| self.functions.raw_names(index).any(is_ocaml))
        })
    }

    /// Returns the address of a `ret` in the text of a function, after the first `skipped` bytes.
    pub(super) fn ret_in(&self, index: usize, skipped: usize) -> Option<usize> {
        const RET: u8 = 0xc3;
        let function = self.functions.get(index);
        let len = usize::try_from(function.limit.checked_sub(function.address)?).ok()?;
        let text = self.file.bytes_at(function.address, len)?.get(skipped..)?;
        let at = skipped + text.iter().position(|&byte| byte == RET)?;
        Some(self.address(index) + at)
    }

    /// Returns the index of a site's function.
    pub(super) fn index_of(&self, site: &Site) -> Option<usize> {
        let address = site.address().wrapping_sub(self.bias);
        self.functions.index_at(address as u64)
    }

    /// Returns the address in memory of the function at an index.
    pub(super) fn address(&self, index: usize) -> usize {
        self.bias
            .wrapping_add(self.functions.address(index) as usize)
    }

    /// Returns the functions to which its functions leave by jumps.
    pub(super) fn exits(&self) -> FileExits<'_> {
        FileExits {
            exits: &self.exits,
            file: &self.file,
            functions: &self.functions,
            notrace: &self.notrace,
        }
    }

    /// Frees what was analyzed to find these.
    pub(super) fn forget_exits(&self) {
        self.exits.forget();
    }

    /// Returns the code of its functions.
    pub(super) fn code(&self) -> FileCode<'_> {
        FileCode {
            file: &self.file,
            functions: &self.functions,
            text_relocations: &self.text_relocations,
            bias: self.bias,
            has_shadow_stacks: status::has_shadow_stacks(),
        }
    }

    pub(super) fn symbol(&self, index: usize) -> &'static str {
        symbol(&self.functions, index)
    }

    /// Returns true if a filter may mention a function, by the filter's pieces. Reads only its
    /// symbols.
    pub(super) fn may_be_mentioned(&self, index: usize, pieces: Option<&SymbolPieces>) -> bool {
        pieces.is_none_or(|pieces| pieces.may_match(self.functions.raw_names(index)))
    }

    /// Calls `with` with the facts about the function at `address`, which has the names `names`.
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

    /// Returns all names of a function as programmers know them, the best first.
    pub(super) fn names_of(&self, index: usize) -> Vec<String> {
        match self.names.get().filter(|all| all.has(index)) {
            Some(all) => all.of(index).map(str::to_owned).collect(),
            None => names_of(&self.functions, self.path, index),
        }
    }

    /// Returns true if `matcher` selects the function at `address`, by its index if it has one.
    pub(super) fn is_selected(
        &self,
        index: Option<usize>,
        address: usize,
        matcher: &ModuleMatcher<'_, '_>,
    ) -> Result<bool, FilterError> {
        if matcher.is_everything() {
            return Ok(true);
        }
        let names = match index {
            Some(index) => self.names_of(index),
            None => {
                let (functions, in_file) = (&self.functions, address.wrapping_sub(self.bias));
                let mut name = String::new();
                write_name(functions, None, self.path, in_file as u64, &mut name);
                vec![name]
            }
        };
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        self.facts(address, &names, |facts| matcher.matches(facts))
    }

    /// Iterates over the sites, in the parts in which they were made.
    pub(super) fn sites(&self) -> impl Iterator<Item = NamedSites> {
        let parts = self.sites.iter().map_while(OnceLock::get);
        parts.copied()
    }

    /// Adds sites that were made; there may be no more parts than [`MAX_PARTS`].
    pub(super) fn add_sites(&self, mut sites: NamedSites) {
        for place in &self.sites {
            match place.set(sites) {
                Ok(()) => return,
                Err(others) => sites = others,
            }
        }
    }

    /// Returns the names of the sites made together with this one, and its place among them.
    pub(super) fn names_of_site(&self, site: &Site) -> Option<(&'static SiteNames, usize)> {
        self.sites().find_map(|part| {
            let sites = part.sites;
            let place = sites.binary_search_by_key(&site.entry, |site| site.entry);
            Some((part.names, place.ok()?))
        })
    }
}

impl ModuleFacts {
    /// Returns the path of its file.
    pub(super) fn path(&self) -> &'static str {
        self.path
    }

    /// Returns the function that contains an address: its index, its start, and its size in bytes.
    /// Neither allocates nor locks.
    pub(super) fn function_at(&self, address: usize) -> Option<(usize, usize, usize)> {
        let in_file = address.wrapping_sub(self.bias) as u64;
        let index = self.functions.containing(in_file)?;
        let function = self.functions.get(index);
        let start = self.bias.wrapping_add(function.address as usize);
        Some((index, start, function.size as usize))
    }

    /// Returns the source location, in its function, of the instruction at an address in memory.
    #[cfg(feature = "dwarf")]
    pub(super) fn source(&self, address: usize) -> Option<Source> {
        let in_file = address.wrapping_sub(self.bias) as u64;
        let (file, line) = self.with_lines(|lines| lines.in_function(in_file))?;
        Some(Source::new(file, line))
    }

    /// Returns the signature of the function that begins at an address in memory.
    #[cfg(feature = "dwarf")]
    pub(super) fn signature(&self, address: usize) -> Option<Signature> {
        let in_file = address.wrapping_sub(self.bias) as u64;
        self.with_lines(|lines| lines.signature(in_file))
    }

    /// Returns the value to which a path leads, in the function that begins at an address in
    /// memory.
    #[cfg(feature = "dwarf")]
    pub(super) fn value(&self, address: usize, path: &ValuePath) -> Result<Value, NoValue> {
        let in_file = address.wrapping_sub(self.bias) as u64;
        let found = self.with_lines(|lines| Some(lines.value(in_file, path)));
        found.unwrap_or_else(|| Err(NoValue::unknown()))
    }

    #[cfg(feature = "dwarf")]
    fn with_lines<R>(&self, with: impl FnOnce(&Lines) -> Option<R>) -> Option<R> {
        // Functions called meanwhile must not call this again, which would wait for itself.
        untraced(|| {
            let lines = self.lines.get_or_init(|| {
                let lines = debug_file::lines(Path::new(self.path), &self.file);
                lines.map(Mutex::new)
            });
            let lines = lines.as_ref()?.lock();
            with(&lines.unwrap_or_else(PoisonError::into_inner))
        })
    }

    /// Returns nothing without the feature `dwarf`.
    #[cfg(not(feature = "dwarf"))]
    pub(super) fn signature(&self, _address: usize) -> Option<Signature> {
        None
    }

    /// Returns nothing without the feature `dwarf`.
    #[cfg(not(feature = "dwarf"))]
    pub(super) fn value(&self, _address: usize, _path: &ValuePath) -> Result<Value, NoValue> {
        Err(NoValue::unknown())
    }

    /// Returns nothing without the feature `dwarf`.
    #[cfg(not(feature = "dwarf"))]
    pub(super) fn source(&self, _address: usize) -> Option<Source> {
        None
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
        for NamedSites { sites, names } in self.sites() {
            if let Ok(place) = sites.binary_search_by_key(&start, Site::address)
                && is_function(&sites[place])
            {
                return f.pad(names.best(place));
            }
        }
        match self.symbol(index) {
            "" => write!(f, "{}+{:#x}", file_name(self.path), function.address),
            symbol => demangle::write_without_allocating(symbol, f),
        }
    }
}

/// Parses the file at `path`, which has been read, if `check` accepts it, and its debug file.
///
/// # Errors
///
/// Fails with the reason that it cannot be read.
pub(super) fn parse(
    bytes: io::Result<&'static [u8]>,
    path: &Path,
    check: impl FnOnce(&ElfFile<'_>) -> Result<(), ElfError>,
) -> Result<(ElfFile<'static>, Option<ElfFile<'static>>), String> {
    let text = |error: ElfError| error.to_string();
    let file = ElfFile::parse(bytes.map_err(|error| error.to_string())?).map_err(text)?;
    check(&file).map_err(text)?;
    Ok((file, debug_file::find(path, &file)))
}
