//! Functions that a filter names and that compilers inlined, where no call can be seen.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;

use fgraph_symbols::demangle;
use fgraph_symbols::inlined::InlinedAt;
use fgraph_symbols::lines::Lines;

use crate::text::{calls, counted, file_name};

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

/// Returns a message with the places, and the number of calls that are not inlined.
pub(crate) fn message(name: &str, places: &[InlinedAt], own: Option<u64>) -> String {
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
