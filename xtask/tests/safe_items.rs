//! The items of the published crates that code without `unsafe` can use, and why each does no harm.
//!
//! rustdoc of a nightly lists the items, with those that a crate shows of another one, and
//! `safe_items.txt` has the reasons: a line for each item or type, `path: reason`. A path that ends
//! with `::*` is that of all functions of a type or module which have no line of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use fgraph_needs::{Missing, RUSTUP, needs};
use serde_json::Value;

/// The crates whose items users can call.
const PUBLISHED: [&str; 5] = [
    "fgraph",
    "fgraph-trace",
    "fgraph-tracers",
    "fgraph-export",
    "fgraph-attach",
];
/// Crates that the published ones show items of.
const INNER: [&str; 2] = ["fgraph-core", "fgraph-symbols"];

const REASONS: &str = include_str!("safe_items.txt");

/// The versions of rustdoc's format that are understood here.
const FORMATS: std::ops::RangeInclusive<u64> = 45..=60;

/// The facts of a crate in the JSON of rustdoc.
struct Docs {
    index: BTreeMap<String, Value>,
    paths: BTreeMap<String, Value>,
    root: String,
}

/// The items of all crates, by name with `_`.
struct Crates(BTreeMap<String, Docs>);

/// An item: the crate that has it, and its number there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Item(String, String);

fn text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

fn list(value: &Value) -> impl Iterator<Item = String> {
    value.as_array().into_iter().flatten().map(text)
}

/// Runs rustdoc; `Err` without a nightly that writes a format which is known here.
fn documented(names: &[&str]) -> Result<Crates, Missing> {
    let missing = || Missing::new("no nightly (rustup toolchain install nightly)");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("safe_items");
    let rustup = RUSTUP.find()?;
    let nightly = || {
        let mut command = Command::new(&rustup);
        command.args(["run", "nightly", "cargo"]).current_dir(root);
        for variable in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "RUSTC", "RUSTDOC"] {
            command.env_remove(variable);
        }
        command
    };
    let version = nightly().arg("--version").output();
    if !version.is_ok_and(|output| output.status.success()) {
        return Err(missing());
    }
    let mut command = nightly();
    command.args(["doc", "--quiet", "--no-deps", "--lib", "--target-dir"]);
    command.arg(&target);
    command.args(names.iter().map(|name| format!("--package={name}")));
    // As users get them.
    command.env("FGRAPH_TESTING", "");
    command.env("RUSTDOCFLAGS", "-Zunstable-options --output-format=json");
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let mut crates = BTreeMap::new();
    for name in names {
        let name = name.replace('-', "_");
        let file = fs::read(target.join(format!("doc/{name}.json"))).unwrap();
        let mut docs: Value = serde_json::from_slice(&file).unwrap();
        let format = docs["format_version"].as_u64().unwrap();
        if !FORMATS.contains(&format) {
            return Err(Missing::new(format_args!(
                "the nightly's rustdoc writes format {format}, which is not known here"
            )));
        }
        let mut map = |key: &str| match docs[key].take() {
            Value::Object(map) => map.into_iter().collect(),
            other => panic!("{key} is {other}"),
        };
        let (index, paths) = (map("index"), map("paths"));
        let root = text(&docs["root"]);
        crates.insert(name, Docs { index, paths, root });
    }
    Ok(Crates(crates))
}

impl Crates {
    /// The item with a number in the documents of a crate, wherever it is defined.
    fn find(&self, Item(name, id): &Item) -> Option<(Item, &Value)> {
        let docs = &self.0[name];
        if let Some(item) = docs.index.get(id) {
            return Some((Item(name.clone(), id.clone()), item));
        }
        let path = &docs.paths.get(id)?["path"];
        let (name, docs) = self.0.get_key_value(path[0].as_str()?)?;
        let mut paths = docs.paths.iter();
        let (id, _) = paths.find(|(_, known)| known["crate_id"] == 0 && known["path"] == *path)?;
        Some((Item(name.clone(), id.clone()), docs.index.get(id)?))
    }

    /// Adds all that safe code can call of an item with this path.
    fn add(&self, item: &Item, path: &str, seen: &mut BTreeSet<Item>, all: &mut BTreeSet<String>) {
        let Some((found, value)) = self.find(item) else {
            return;
        };
        let kinds = value["inner"].as_object().unwrap();
        let (kind, inner) = kinds.iter().next().unwrap();
        let of = |id: String| Item(found.0.clone(), id);
        let is_safe = |function: &Value| function["header"]["is_unsafe"] == false;
        match kind.as_str() {
            "use" => {
                let around = path.rsplit_once("::").map_or("", |(around, _)| around);
                let path = match inner["is_glob"] == true {
                    true => around.to_owned(),
                    false => format!("{around}::{}", text(&inner["name"])),
                };
                self.add(&of(text(&inner["id"])), &path, seen, all);
            }
            "module" if seen.insert(found.clone()) => {
                for id in list(&inner["items"]) {
                    let Some(child) = self.0[&found.0].index.get(&id) else {
                        continue;
                    };
                    let is_use = child["inner"].get("use").is_some();
                    if is_use || child["visibility"] == "public" {
                        let name = child["name"].as_str().unwrap_or_default();
                        self.add(&of(id), &format!("{path}::{name}"), seen, all);
                    }
                }
            }
            "function" if is_safe(inner) => {
                all.insert(path.to_owned());
            }
            "macro" | "static" => {
                all.insert(path.to_owned());
            }
            "struct" | "enum" | "union" => {
                for id in list(&inner["impls"]) {
                    let Some(block) = self.0[&found.0].index.get(&id) else {
                        continue;
                    };
                    let block = &block["inner"]["impl"];
                    if block["trait"].is_null() {
                        self.add_functions(
                            &found,
                            block,
                            path,
                            |it| it["visibility"] == "public",
                            all,
                        );
                    }
                }
            }
            "trait" => self.add_functions(&found, inner, path, |_| true, all),
            _ => {}
        }
    }

    /// Adds the safe functions of a type or a trait.
    fn add_functions(
        &self,
        item: &Item,
        block: &Value,
        path: &str,
        is_shown: impl Fn(&Value) -> bool,
        all: &mut BTreeSet<String>,
    ) {
        for id in list(&block["items"]) {
            let item = &self.0[&item.0].index[&id];
            let function = &item["inner"]["function"];
            if is_shown(item) && function["header"]["is_unsafe"] == false {
                all.insert(format!("{path}::{}", text(&item["name"])));
            }
        }
    }

    /// All that safe code can call of the published crates.
    fn safe_items(&self) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        for name in PUBLISHED.map(|name| name.replace('-', "_")) {
            let root = Item(name.clone(), self.0[&name].root.clone());
            self.add(&root, &name, &mut BTreeSet::new(), &mut all);
        }
        all
    }
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
    let crates = needs!(documented(&[&PUBLISHED[..], &INNER[..]].concat()));
    let items = crates.safe_items();
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
