//! Conclusions about a module's functions from the compilers and the library that made it.

use core::ops::Range;
use std::sync::OnceLock;

use fgraph_symbols::demangle;
use fgraph_symbols::elf::ElfFile;
use fgraph_symbols::functions::{Functions, Name};
use fgraph_symbols::ghc;
use fgraph_symbols::notrace::{self, Notrace};

use super::candidate::Callers;
use crate::arch::cpu;
use crate::arch::evex;
use crate::arch::relocate;
use crate::arch::trampoline;

/// Returns the registers on which callers in a module may rely, judging by the compilers that have
/// left their names.
pub(super) fn callers(file: &ElfFile<'_>, functions: &Functions<'_>, bias: usize) -> Callers {
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

/// Returns true if functions of a module are called while all signals are blocked: those of the C
/// library are, while it makes threads and processes. It is recognized by a function with which
/// others block signals, or that makes processes: before glibc 2.32 the former is in the library
/// for threads.
fn blocks_signals(functions: &Functions<'_>) -> bool {
    ["pthread_sigmask", "posix_spawn"]
        .iter()
        .any(|name| has_function(functions, name))
}

fn has_function(functions: &Functions<'_>, name: &str) -> bool {
    if !functions.may_have_in_name(name) {
        return false;
    }
    let is_like = |(like, _): (&[u8], _)| like.starts_with(name.as_bytes());
    let has_like = |index: &usize| functions.raw_names(*index).any(is_like);
    let mut like = (0..functions.len()).filter(has_like);
    like.any(|index| functions.names(index).any(|it| it.symbol == name))
}

/// The text that all symbols of fgraph itself contain.
pub(super) const OWN: &str = "fgraph";

/// Returns true if a symbol belongs to fgraph itself, which would only count its own calls as
/// missed.
pub(super) fn is_own(symbol: &str) -> bool {
    if !symbol.contains(OWN) {
        return false;
    }
    let name = demangle::to_string(symbol);
    let start = name.trim_start_matches(['<', '&']);
    [
        "fgraph::",
        "fgraph_core::",
        "fgraph_symbols::",
        "fgraph_trace::",
        "fgraph_tracers::",
        "fgraph_x86_64::",
    ]
    .iter()
    .any(|own| start.starts_with(own))
}

/// Sections that Go leaves in its output; each may be missing, or merged with other data.
const GO_SECTIONS: [&[u8]; 3] = [b".gopclntab", b".go.buildinfo", b".note.go.buildid"];

/// The rules that forbid tracing functions of a module, whatever their code is.
#[derive(Debug)]
pub(super) struct NotraceRules {
    /// The indices of the functions at which the program begins, which no caller has called.
    first: Vec<usize>,
    /// The rule for all of the module.
    all: Option<Notrace>,
    /// The rule for functions without a name; computed when it is first needed.
    unnamed: OnceLock<Option<Notrace>>,
    /// True if its functions are called while all signals are blocked; computed when it is first
    /// needed.
    blocks_signals: OnceLock<bool>,
    /// True if it is a C library whose threads name their stacks; computed when it is first needed.
    names_stacks: OnceLock<bool>,
    /// The starts of code that GHC has not made, if GHC has made some; computed when it is first
    /// needed.
    beside_ghc: OnceLock<Option<Vec<u64>>>,
}

impl NotraceRules {
    /// Makes the rules for a file; `all` is the one for all of its functions, if the process has
    /// one.
    pub(super) fn new(file: &ElfFile<'_>, functions: &Functions<'_>, all: Option<Notrace>) -> Self {
        let is_go = GO_SECTIONS.iter().any(|name| file.has_section(name));
        Self {
            first: first(file, functions),
            all: is_go.then_some(notrace::GO).or(all),
            unnamed: OnceLock::new(),
            blocks_signals: OnceLock::new(),
            names_stacks: OnceLock::new(),
            beside_ghc: OnceLock::new(),
        }
    }

    /// Returns true if the rule for all of the module is that for code of Go's compiler.
    pub(super) fn are_of_go(&self) -> bool {
        self.all == Some(notrace::GO)
    }

    /// Returns the rule for a function of the file, by its place and all of its names.
    pub(super) fn of<'a>(
        &self,
        file: &ElfFile<'_>,
        functions: &Functions<'_>,
        index: usize,
        names: impl Iterator<Item = Name<'a>>,
    ) -> Option<Notrace> {
        if self.first.contains(&index) {
            return Some(notrace::NO_CALL);
        }
        if self.all.is_some() {
            return self.all;
        }
        let beside_ghc = self
            .beside_ghc
            .get_or_init(|| ghc::described(file, functions));
        if let Some(starts) = beside_ghc
            && starts.binary_search(&functions.address(index)).is_err()
        {
            return Some(notrace::GHC);
        }
        let mut names = names.peekable();
        if names.peek().is_none() {
            let unnamed = || unnamed(file, functions, self.blocks_signals(functions));
            return *self.unnamed.get_or_init(unnamed);
        }
        names.find_map(|name| {
            if notrace::runs_blocked(name.symbol) && self.blocks_signals(functions)
                || notrace::makes_stack_name(name.symbol) && self.names_stacks(file, functions)
            {
                return Some(notrace::rule_of_blocked(name.symbol));
            }
            notrace::look_up(name.symbol)
        })
    }

    /// Returns the result of [`blocks_signals`] for the module.
    pub(super) fn blocks_signals(&self, functions: &Functions<'_>) -> bool {
        let known = &self.blocks_signals;
        *known.get_or_init(|| blocks_signals(functions))
    }

    /// Returns true if the module is a C library whose threads name their stacks.
    fn names_stacks(&self, file: &ElfFile<'_>, functions: &Functions<'_>) -> bool {
        *self.names_stacks.get_or_init(|| {
            let mut versions = file.versions().into_iter();
            versions.any(|(_, name)| name == notrace::NAMES_STACKS)
                && self.blocks_signals(functions)
        })
    }
}

/// Returns the function at the entry point of a program, and those to which it continues with a
/// jump: there is no return address yet.
fn first(file: &ElfFile<'_>, functions: &Functions<'_>) -> Vec<usize> {
    let mut found = Vec::new();
    let mut next = file.entry_point();
    while let Some(index) = next.and_then(|address| functions.index_at(address))
        && !found.contains(&index)
    {
        found.push(index);
        let function = functions.get(index);
        let len = function.limit.saturating_sub(function.address);
        let body = file.bytes_at(function.address, usize::try_from(len).unwrap_or(0));
        let target = body.and_then(|body| relocate::first_jump(body, function.address as usize));
        next = target.map(|target| target as u64);
    }
    found
}

/// Returns the rule for the functions of a file that have no name: if named functions are not
/// traced because of their names, there may be more of their kind.
fn unnamed(file: &ElfFile<'_>, functions: &Functions<'_>, blocks_signals: bool) -> Option<Notrace> {
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
    let is_entire = |known: &Notrace| !matches!(known, Notrace::Return(_));
    if blocks_signals || is_linker() || known.iter().any(is_entire) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_functions_of_fgraph_are_its_own() {
        assert!(is_own("_ZN6fgraph8register17h0123456789abcdefE"));
        assert!(is_own("_ZN11fgraph_core4slot17h0123456789abcdefE"));
        // Functions that the callbacks of ready-made users call.
        assert!(is_own(
            "_ZN75_$LT$fgraph_tracers..syscalls..Record$u20$as$u20$fgraph..ops..FgraphOps$GT$3ret\
             17h0123456789abcdefE"
        ));
        assert!(is_own(
            "_ZN14fgraph_tracers7control4read17h0123456789abcdefE"
        ));
        assert!(!is_own("_ZN11fgraph_demo4main17h0123456789abcdefE"));
        assert!(!is_own("_ZN4demo6fgraph17h0123456789abcdefE"));
        assert!(!is_own("main"));
    }
}
