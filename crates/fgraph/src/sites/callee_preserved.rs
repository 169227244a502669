//! Functions of a module that must preserve more registers than the ABI says.

use core::ops::Range;

use super::candidate::{Callers, is_rust};
use crate::arch::callee_preserved::{Code, PreservingFunctions, Search};
use fgraph_symbols::elf::ElfFile;
use fgraph_symbols::functions::Functions;

/// The most code that is analyzed: more would take longer than everything else that is done with a
/// module.
const MAX_CODE: u64 = 4 << 20;

/// The name of Go's table of functions.
const GO: &[u8] = b".gopclntab";

/// A gap between functions that is longer than padding.
const MIN_GAP: u64 = 64;

/// The functions of a module whose callers may rely on more than the ABI; `None` if they are
/// unknown.
#[derive(Clone, Debug)]
pub(crate) struct CalleePreserved {
    /// The functions whose callers rely on registers that their code leaves unchanged.
    by_code: Option<PreservingFunctions>,
    /// The functions whose convention preserves more registers than the ABI.
    by_convention: Option<PreservingFunctions>,
}

impl Default for CalleePreserved {
    /// For code that is not analyzed: each caller may know the code that it calls, and conventions
    /// are the ABI's.
    fn default() -> Self {
        Self {
            by_code: None,
            by_convention: Some(PreservingFunctions::default()),
        }
    }
}

impl CalleePreserved {
    /// Analyzes the code of a file, if that is needed, if the code is not too large, and if the
    /// file names the compiler that made it. Go's functions pass arguments and results in their own
    /// way, so Go's code is not analyzed.
    ///
    /// `is_padded` is true if compilers have listed functions in it.
    pub(crate) fn find(
        file: &ElfFile<'_>,
        functions: &Functions<'_>,
        callers: Callers,
        is_padded: bool,
    ) -> Self {
        if !is_readable(file) {
            return Self::default();
        }
        let text = file.text();
        let non_rust = match callers {
            Callers::Abi => Vec::new(),
            Callers::LowRegisters | Callers::AllRegisters => non_rust_code(file, functions),
        };
        let has_others = len(&non_rust) != len(&text);
        let by_code = callers != Callers::Abi && len(&non_rust) <= MAX_CODE;
        // Callers that know the code of all functions know their conventions, too.
        let by_convention = (has_others || is_padded) && len(&text) <= MAX_CODE;
        let parts: Vec<usize> = file.unwind_starts().iter().map(|&at| at as usize).collect();
        // Without it, the places of functions' parts are unknown.
        if parts.is_empty() || !by_code && !by_convention {
            return Self::default();
        }
        let starts = (0..functions.len()).map(|index| functions.address(index) as usize);
        let starts: Vec<usize> = starts.collect();
        let (all, non_rust) = (code_at(file, &text), code_at(file, &non_rust));
        let thunks = return_thunks(functions);
        let search = |code| Search::new(code, &starts, &parts, &thunks);
        let whole = by_convention.then(|| search(&all));
        let by_convention = whole.as_ref().map(Search::by_convention);
        let by_code = by_code.then(|| {
            let same = whole.filter(|_| !has_others);
            same.unwrap_or_else(|| search(&non_rust)).by_code()
        });
        Self {
            by_code,
            by_convention: Some(by_convention.unwrap_or_default()),
        }
    }

    /// Makes it from the functions by code, and by convention.
    pub(super) fn new([by_code, by_convention]: [Option<Vec<usize>>; 2]) -> Self {
        Self {
            by_code: by_code.map(PreservingFunctions::new),
            by_convention: by_convention.map(PreservingFunctions::new),
        }
    }

    /// Returns the arguments of [`new`](Self::new).
    pub(super) fn parts(&self) -> [Option<&[usize]>; 2] {
        [&self.by_code, &self.by_convention]
            .map(|part| part.as_ref().map(PreservingFunctions::functions))
    }

    /// Returns the result for a file whose code was not analyzed: everything that an analysis could
    /// find counts as found.
    pub(crate) fn unknown(file: &ElfFile<'_>) -> Self {
        let could_show = is_readable(file) && len(&file.text()) <= MAX_CODE;
        Self {
            by_code: None,
            by_convention: (!could_show).then(PreservingFunctions::default),
        }
    }

    /// Returns true if a caller may rely on registers that the code of the function at `address`
    /// leaves unchanged.
    pub(crate) fn by_code(&self, address: u64) -> bool {
        let preserved = self.by_code.as_ref();
        preserved.is_none_or(|preserved| preserved.contains(address as usize))
    }

    /// Returns true if a caller relies on the convention of the function at `address`.
    pub(crate) fn by_convention(&self, address: u64) -> bool {
        let preserved = self.by_convention.as_ref();
        preserved.is_none_or(|preserved| preserved.contains(address as usize))
    }
}

/// Returns true if the file names the compiler that made it, and that is not Go's.
fn is_readable(file: &ElfFile<'_>) -> bool {
    file.comment().next().is_some() && !file.has_section(GO)
}

/// Returns the functions with which `-mfunction-return=thunk` makes functions end.
fn return_thunks(functions: &Functions<'_>) -> Vec<usize> {
    const NAME: &str = "__x86_return_thunk";
    if !functions.may_have_in_name(NAME) {
        return Vec::new();
    }
    let is_thunk = |&index: &usize| functions.names(index).any(|name| name.symbol == NAME);
    let thunks = (0..functions.len()).filter(is_thunk);
    thunks
        .map(|index| functions.address(index) as usize)
        .collect()
}

/// Returns the number of bytes.
fn len(code: &[Range<u64>]) -> u64 {
    code.iter().map(|range| range.end - range.start).sum()
}

/// Returns the bytes of code.
fn code_at<'a>(file: &ElfFile<'a>, ranges: &[Range<u64>]) -> Vec<Code<'a>> {
    let code = ranges.iter().filter_map(|range| {
        let len = usize::try_from(range.end - range.start).ok()?;
        Some(Code {
            address: range.start as usize,
            bytes: file.bytes_at(range.start, len)?,
        })
    });
    code.collect()
}

/// Returns the code that is not known to come from rustc.
fn non_rust_code(file: &ElfFile<'_>, functions: &Functions<'_>) -> Vec<Range<u64>> {
    let mut code: Vec<Range<u64>> = Vec::new();
    let mut add = |range: Range<u64>| match code.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ if range.is_empty() => {}
        _ => code.push(range),
    };
    for section in file.text() {
        let mut at = section.start;
        let first = functions.index_at_or_behind(at).unwrap_or(functions.len());
        for index in first..functions.len() {
            let function = functions.get(index);
            if function.address >= section.end {
                break;
            }
            let mut names = functions.names(index);
            if function.address < at || !names.any(|name| is_rust(name.symbol)) {
                continue;
            }
            add(at..function.address);
            let end = function.address + function.size;
            at = if function.limit.saturating_sub(end) < MIN_GAP {
                function.limit
            } else {
                end
            };
            at = at.clamp(function.address, section.end);
        }
        add(at..section.end);
    }
    code
}
