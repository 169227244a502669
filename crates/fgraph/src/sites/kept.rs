//! Which functions of a module need more registers to survive than the ABI says.

use core::ops::Range;

use fgraph_x86_64::kept::{Code, Kept};

use super::classify::{Callers, is_rust};
use crate::elf::ElfFile;
use crate::functions::Functions;

/// So much code is looked at: more would take longer than everything else that is done with a module.
const MAX_CODE: u64 = 4 << 20;

/// What Go calls the table of its functions.
const GO: &[u8] = b".gopclntab";

/// A gap between functions that is longer than padding.
const MIN_GAP: u64 = 64;

/// Looks at the code of a file. `None` if that is not needed, if it is too much, if nothing is known of who made it,
/// or if it is of Go, whose functions pass arguments and results as they like.
pub(crate) fn find(
    file: &ElfFile<'_>,
    functions: &Functions<'_>,
    callers: Callers,
) -> Option<Kept> {
    if callers == Callers::Abi || file.comment().next().is_none() || file.has_section(GO) {
        return None;
    }
    let foreign = foreign_code(file, functions);
    if foreign
        .iter()
        .map(|range| range.end - range.start)
        .sum::<u64>()
        > MAX_CODE
    {
        return None;
    }
    let code = foreign.iter().filter_map(|range| {
        let len = usize::try_from(range.end - range.start).ok()?;
        Some(Code {
            address: range.start as usize,
            bytes: file.bytes_at(range.start, len)?,
        })
    });
    let starts = (0..functions.len()).map(|index| functions.get(index).address as usize);
    let starts: Vec<usize> = starts.collect();
    // Without it nobody knows where parts of functions stand.
    let parts: Vec<usize> = file.unwind_starts().iter().map(|&at| at as usize).collect();
    if parts.is_empty() {
        return None;
    }
    Some(Kept::find(&code.collect::<Vec<_>>(), &starts, &parts))
}

/// The code that is not known to be rustc's.
fn foreign_code(file: &ElfFile<'_>, functions: &Functions<'_>) -> Vec<Range<u64>> {
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
