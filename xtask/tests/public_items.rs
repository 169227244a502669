//! The items of the published crates: all of them, and why those that code without `unsafe` can use
//! do no harm.
//!
//! rustdoc of a nightly lists the items, with those that a crate shows of another one.
//!
//! - `public_items.txt` has a line for each item. A change of an interface changes the list, so a
//!   commit shows it. `FGRAPH_UPDATE=1` makes the test write the list.
//! - `safe_items.txt` has the reasons: a line for each item or type, `path: reason`. A path that
//!   ends with `::*` is that of all functions of a type or module which have no line of their own.

mod rustdoc;
mod signature;

use std::collections::{BTreeMap, BTreeSet};
use std::{env, fs};

use fgraph_needs::needs;
use serde_json::Value;

use rustdoc::Shown;

const REASONS: &str = include_str!("safe_items.txt");

/// The file with the list of all items.
const LIST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/public_items.txt");

/// Returns true if a function, or none, can be called without `unsafe`.
fn is_safe(function: &Value) -> bool {
    function["header"]["is_unsafe"] == false
}

/// Returns the paths of all that safe code can call.
fn safe_items(shown: &[Shown<'_>]) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for item in shown {
        let path = &item.path;
        let functions = |ids: &Value, is_shown: &dyn Fn(&Value) -> bool| {
            let functions = item.items(ids).filter(|it| is_shown(it));
            let safe = functions.filter(|it| is_safe(&it["inner"]["function"]));
            safe.map(|it| format!("{path}::{}", rustdoc::text(&it["name"])))
                .collect::<Vec<_>>()
        };
        let (kind, inner) = item.inner();
        match kind {
            "function" if is_safe(inner) => all.extend([path.clone()]),
            "macro" | "static" => all.extend([path.clone()]),
            "struct" | "enum" | "union" => {
                for block in item.impls().filter(|block| block["trait"].is_null()) {
                    let is_public = |it: &Value| it["visibility"] == "public";
                    all.extend(functions(&block["items"], &is_public));
                }
            }
            "trait" => all.extend(functions(&inner["items"], &|_| true)),
            _ => {}
        }
    }
    all
}

/// The reasons, by path.
fn reasons() -> BTreeMap<&'static str, &'static str> {
    let lines = REASONS
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut reasons = BTreeMap::new();
    for line in lines {
        let (path, reason) = line
            .split_once(": ")
            .unwrap_or_else(|| panic!("no reason: {line}"));
        assert!(reason.len() > 10, "no reason: {line}");
        assert!(reasons.insert(path, reason).is_none(), "twice: {path}");
    }
    reasons
}

#[test]
fn each_item_that_safe_code_can_call_has_a_reason_why_it_is_harmless() {
    let crates = needs!(rustdoc::documented());
    let items = safe_items(&crates.shown());
    // rustdoc has been understood.
    for known in [
        "fgraph::sites",
        "fgraph::Handle::set_enabled",
        "fgraph::Entry::arg",
    ] {
        assert!(
            items.contains(known),
            "{known} is not among {} items",
            items.len()
        );
    }
    assert!(!items.contains("fgraph::register") && !items.contains("fgraph::Entry::rewrite"));
    let reasons = reasons();
    let mut unused: BTreeSet<&str> = reasons.keys().copied().collect();
    let mut without = Vec::new();
    for item in &items {
        let around = item
            .rsplit_once("::")
            .map(|(around, _)| format!("{around}::*"));
        let all = around
            .as_ref()
            .and_then(|around| reasons.get_key_value(around.as_str()));
        match reasons.get_key_value(item.as_str()).or(all) {
            Some((path, _)) => drop(unused.remove(path)),
            None => without.push(item),
        }
    }
    assert!(
        without.is_empty(),
        "say in safe_items.txt why these are harmless: {without:#?}"
    );
    assert!(
        unused.is_empty(),
        "safe_items.txt has lines for nothing: {unused:#?}"
    );
}

#[test]
fn the_public_items_are_those_of_the_list() {
    let crates = needs!(rustdoc::documented());
    let items: BTreeSet<String> = crates.shown().iter().flat_map(signature::lines).collect();
    let text: String = items.iter().map(|line| format!("{line}\n")).collect();
    if env::var_os("FGRAPH_UPDATE").is_some() {
        fs::write(LIST, text).unwrap();
        return;
    }
    let known = fs::read_to_string(LIST).unwrap_or_default();
    let known: BTreeSet<&str> = known.lines().collect();
    let items: BTreeSet<&str> = items.iter().map(String::as_str).collect();
    let gone: Vec<_> = known.difference(&items).collect();
    let new: Vec<_> = items.difference(&known).collect();
    assert!(
        gone.is_empty() && new.is_empty(),
        "the interface has changed. Gone: {gone:#?}\nNew: {new:#?}\nIf that is meant, write the \
         list: FGRAPH_UPDATE=1 cargo test -p xtask --test it public_items"
    );
}
