//! Functions that a filter names and that compilers inlined, where no call can be seen.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use std::slice;

use fgraph_symbols::demangle;
use fgraph_symbols::inlined::InlinedAt;
use fgraph_symbols::lines::Lines;
use fgraph_trace::names::{FunctionName, Names};

use crate::sources::Sources;
use crate::target::Pattern;
use crate::text::{calls, counted, file_name};
use crate::unmatched::Search;

/// The most places of a function that are named.
const SHOWN: usize = 3;

/// Returns the inlined functions of a file for whose name and symbol `is_wanted` returns true: each
/// by its name, with the places by caller and line.
pub(crate) fn of_file(
    lines: &Lines,
    is_wanted: impl Fn(&str, &str) -> bool,
) -> BTreeMap<String, Vec<InlinedAt>> {
    let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for place in lines.inlined(|symbol| is_wanted(&demangle::to_string(symbol), symbol)) {
        let name = demangle::to_string(&place.symbol);
        found.entry(name).or_default().push(place);
    }
    for places in found.values_mut() {
        places.sort_by(|a, b| (&a.caller, &a.place).cmp(&(&b.caller, &b.place)));
    }
    found
}

/// Describes a place: `main at cache.c:12`.
pub(crate) fn describe(place: &InlinedAt) -> String {
    let mut text = match &place.caller {
        Some(caller) => demangle::to_string(caller),
        None => format!("{:#x}", place.address),
    };
    if let Some((file, line)) = &place.place {
        // Writing to a string does not fail.
        _ = write!(text, " at {}:{line}", file_name(file));
    }
    text
}

/// Reports the functions that patterns name and that are inlined in a module of the program, and
/// keeps the other patterns. A pattern with `*` or `?` names no function.
///
/// `begun` has the number of calls of each function of a process that began, if that is known.
pub(crate) fn of_program(
    patterns: &mut Vec<Pattern>,
    names: &Names,
    begun: Option<&HashMap<(u32, u32), u64>>,
) -> Vec<String> {
    let mut messages = Vec::new();
    let mut sources = Sources::default();
    patterns.retain(|pattern| {
        let search = Search::all(slice::from_ref(pattern)).pop();
        let Some(search) = search.filter(|_| !pattern.text.contains(['*', '?'])) else {
            return true;
        };
        let before = messages.len();
        let mut seen = HashSet::new();
        for module in names.modules().iter().filter(|it| seen.insert(&it.path)) {
            let Some(lines) = sources.lines(module) else {
                continue;
            };
            let is_wanted =
                |name: &str, symbol: &str| search.matches(&[name], &[symbol], &module.path);
            for (name, places) in of_file(lines, is_wanted) {
                let is_it = |it: &FunctionName| it.name == name && it.module == module.path;
                let own = begun.map(|begun| {
                    let own = names.functions().filter(|(_, _, function)| is_it(function));
                    let own = own.filter_map(|(process, index, _)| begun.get(&(process, index)));
                    own.sum()
                });
                messages.push(message(&name, &places, own));
            }
        }
        messages.len() == before
    });
    messages
}

/// Returns a message with the places, and the number of calls that are not inlined.
fn message(name: &str, places: &[InlinedAt], own: Option<u64>) -> String {
    let mut known = HashSet::new();
    let different = places
        .iter()
        .map(describe)
        .filter(|it| known.insert(it.clone()));
    let different: Vec<String> = different.collect();
    let shown = different.len().min(SHOWN);
    let more = different.len() - shown;
    let more = (more > 0).then(|| format!("{more} more"));
    let listed: Vec<String> = different.into_iter().take(shown).chain(more).collect();
    let own = own.map(|own| format!("; {} of its own", calls(own)));
    format!(
        "{name} is inlined at {}, where no call can be seen: in {}{}",
        counted(places.len() as u64, "place"),
        listed.join(", "),
        own.unwrap_or_default()
    )
}
