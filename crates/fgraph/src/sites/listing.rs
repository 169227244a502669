//! Lists of functions, for modules and for files that are not loaded.

use core::sync::atomic::Ordering;
use std::path::Path;
use std::sync::Arc;

use fgraph_core::site::Site;

use fgraph_symbols::elf::ElfFile;
use fgraph_symbols::filter::{FilterError, ModuleMatcher};
use fgraph_symbols::functions::Functions;

use super::branch_targets::Entered;
use super::candidate::Candidate;
use super::candidates::Candidates;
use super::classify::{Plan, classify};
use super::entries::Subject;
use super::exits::{Exits, FileExits};
use super::facts::{ModuleFacts, parse};
use super::file_code::FileCode;
use super::function_names::{symbol, write_name};
use super::function_plan::Decision;
use super::record::ON;
use super::site_names::NamedSites;
use super::toolchain::{NotraceRules, callers};
use crate::os::memory;
use crate::report::error::{FileError, RefusalReason};
use crate::report::functions::SiteList;
use crate::report::functions::{Listing, SiteInfo, TraceMethod};

/// The way in which a function can be traced, or the reason that it cannot be; and true if its
/// returns are dispatched.
type How = (Result<TraceMethod, RefusalReason>, bool);

/// The functions of a module that a filter has selected.
#[derive(Debug)]
pub(super) struct ModuleListing {
    known: &'static ModuleFacts,
    candidates: Candidates,
    breakpoints: bool,
    /// By their indices.
    functions: Vec<u32>,
    /// Entries that only a list or the linker names.
    others: Vec<usize>,
}

impl ModuleListing {
    /// Lists the functions that `matcher` selects.
    ///
    /// # Errors
    ///
    /// Fails if a predicate panics.
    pub(super) fn new(
        known: &'static ModuleFacts,
        candidates: Candidates,
        breakpoints: bool,
        matcher: &ModuleMatcher<'_, '_>,
    ) -> Result<Self, FilterError> {
        let (mut functions, mut others) = (Vec::new(), Vec::new());
        let pieces = matcher.pieces();
        for index in candidates.functions() {
            if known.may_be_mentioned(index, pieces.as_ref())
                && known.is_selected(Some(index), known.address(index), matcher)?
            {
                functions.push(index as u32);
            }
        }
        for &address in candidates.others() {
            if known.is_selected(None, address, matcher)? {
                others.push(address);
            }
        }
        functions.shrink_to_fit();
        Ok(Self {
            known,
            candidates,
            breakpoints,
            functions,
            others,
        })
    }

    /// Returns the function at a place of the list: its index if it has one, and its address.
    fn at(&self, place: usize) -> (Option<usize>, usize) {
        match self.functions.get(place) {
            Some(&index) => (Some(index as usize), self.known.address(index as usize)),
            None => (None, self.others[place - self.functions.len()]),
        }
    }

    /// Returns true if the site of the function at an address is patched.
    fn is_on(&self, address: usize) -> bool {
        self.known.sites().any(|NamedSites { sites, .. }| {
            let site = sites.binary_search_by_key(&address, Site::address);
            site.is_ok_and(|site| sites[site].state.load(Ordering::Relaxed) == ON)
        })
    }
}

impl Listing for ModuleListing {
    fn path(&self) -> &str {
        self.known.path()
    }

    fn len(&self) -> usize {
        self.functions.len() + self.others.len()
    }

    fn get(&self, place: usize) -> SiteInfo {
        let (index, address) = self.at(place);
        let in_file = address.wrapping_sub(self.known.bias) as u64;
        let decision = self.how(place);
        let functions = &self.known.functions;
        let info = info(functions, index, self.known.path, in_file, decision);
        SiteInfo { address, ..info }
    }

    fn how(&self, place: usize) -> How {
        let (index, address) = self.at(place);
        let (subject, found) = match index {
            Some(index) => (Subject::Function(index), self.candidates.function(index)),
            None => (Subject::Listed, self.candidates.other(address)),
        };
        let callers = || self.known.callers();
        let mut decision = Decision::new(subject, address, &found, callers, self.breakpoints);
        let is_on = self.is_on(address);
        let read = |at, now: &mut [u8]| !is_on && memory::read(at, now).is_ok();
        decision.compare(self.candidates.check_mapping(address), read);
        how(decision.plan.map(|function| function.plan))
    }

    fn has_name(&self, place: usize) -> bool {
        let (index, _) = self.at(place);
        has_name(&self.known.functions, index)
    }

    fn is_stripped(&self) -> bool {
        self.known.functions.is_stripped()
    }
}

fn has_name(functions: &Functions<'_>, index: Option<usize>) -> bool {
    index.is_some_and(|index| functions.names(index).next().is_some())
}

fn how(plan: Result<Plan, RefusalReason>) -> How {
    let returns = plan.as_ref().is_ok_and(|plan| plan.variant.returns());
    (plan.map(|plan| plan.how), returns)
}

/// Returns the facts about a function of the module at `path`, by its index if it has one,
/// otherwise by its address in the file.
fn info(
    functions: &Functions<'_>,
    index: Option<usize>,
    path: &str,
    address: u64,
    (how, returns): How,
) -> SiteInfo {
    let mut name = String::new();
    write_name(functions, index, path, address, &mut name);
    SiteInfo {
        name,
        has_name: has_name(functions, index),
        module: path.to_owned(),
        address: address as usize,
        size: index.map_or(0, |index| functions.get(index).size as usize),
        how,
        returns,
    }
}

/// The functions of a file that is not loaded.
#[derive(Debug)]
struct FileListing {
    path: String,
    stripped: bool,
    all: Vec<SiteInfo>,
}

impl Listing for FileListing {
    fn path(&self) -> &str {
        &self.path
    }

    fn len(&self) -> usize {
        self.all.len()
    }

    fn get(&self, place: usize) -> SiteInfo {
        self.all[place].clone()
    }

    fn how(&self, place: usize) -> How {
        let info = &self.all[place];
        (info.how.clone(), info.returns)
    }

    fn has_name(&self, place: usize) -> bool {
        self.all[place].has_name
    }

    fn is_stripped(&self) -> bool {
        self.stripped
    }
}

/// Lists every function of a file that is not loaded; `breakpoints` is true if they may get one.
///
/// # Errors
///
/// Fails with the reason that the file cannot be read.
pub(crate) fn of_file(path: &Path, breakpoints: bool) -> Result<SiteList, FileError> {
    let read = parse(crate::process::image::read_file(path), path, |_| Ok(()));
    let (file, debug) = read.map_err(FileError)?;
    let functions = Functions::read(&file, debug.as_ref());
    let functions = functions.map_err(|error| FileError(error.to_string()))?;
    Ok(list(&file, &functions, path, breakpoints))
}

/// Does the same as [`of_file`], for a file that was read.
pub(crate) fn list(
    file: &ElfFile<'_>,
    functions: &Functions<'_>,
    path: &Path,
    breakpoints: bool,
) -> SiteList {
    let (callers, path) = (callers(file, functions, 0), path.to_string_lossy());
    let entered = Entered::find(file, functions);
    let notrace = NotraceRules::new(file, functions, None);
    let breakpoints = breakpoints && !notrace.blocks_signals(functions);
    let code = FileCode {
        file,
        functions,
        text_relocations: &file.text_relocations(),
        bias: 0,
        // The listing is of the file, not of the process.
        has_shadow_stacks: false,
    };
    let segments: Vec<_> = file.text_segments().collect();
    let segment_end = |address: usize| {
        let segment = segments.iter().find(|it| it.contains(&(address as u64)))?;
        usize::try_from(segment.end).ok()
    };
    let exits = FileExits {
        exits: &Exits::default(),
        file,
        functions,
        notrace: &notrace,
    };
    let info = |index| {
        let function = code.function(index, segment_end).map(|code| Candidate {
            entered: entered.of(index),
            leads_to_misled: exits.lead_to_misled(index),
            symbol: symbol(functions, index),
            notrace: notrace.of(file, functions, index, functions.names(index)),
            ..code
        });
        let decided = match function {
            Ok(function) => how(classify(&function, || callers, breakpoints)),
            Err(reason) => (Err(reason), false),
        };
        info(
            functions,
            Some(index),
            &path,
            functions.address(index),
            decided,
        )
    };
    let listing = FileListing {
        stripped: functions.is_stripped(),
        all: (0..functions.len()).map(info).collect(),
        path: path.into_owned(),
    };
    SiteList {
        modules: vec![Arc::new(listing)],
    }
}
