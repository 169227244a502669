//! What lists tell of functions, of modules and of files that are not loaded.

#[cfg(feature = "testing")]
use std::path::Path;

#[cfg(feature = "testing")]
use fgraph_symbols::elf::ElfFile;
use fgraph_symbols::functions::Functions;

#[cfg(feature = "testing")]
use super::branch_targets::Entered;
#[cfg(feature = "testing")]
use super::candidates::gap;
use super::classify::{Callers, Candidate, classify};
use super::facts::write_name;
#[cfg(feature = "testing")]
use super::facts::{parse, relocated_behind, symbol};
#[cfg(feature = "testing")]
use super::toolchain::{blocks_signals, callers, notrace_of, unnamed};
use crate::report::error::RefusalReason;
#[cfg(feature = "testing")]
use crate::report::functions::SiteList;
use crate::report::functions::{SiteInfo, TraceMethod};

/// What can be done with a function, and whether its returns are told.
pub(super) fn decide(
    candidate: &Candidate<'_>,
    callers: Callers,
    breakpoints: bool,
) -> (Result<TraceMethod, RefusalReason>, bool) {
    let plan = classify(candidate, callers, breakpoints);
    let returns = plan.as_ref().is_ok_and(|plan| plan.variant.returns());
    (plan.map(|plan| plan.how), returns)
}

/// What is known of a function of the module at `path`, by its index if it has one, or else by
/// where it is in the file.
pub(super) fn info(
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
    let relocations = file.text_relocations();
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
            relocated: relocated_behind(&relocations, function.address),
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
