//! The items that the published crates show, from the documents that rustdoc of a nightly writes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use fgraph_needs::{Missing, RUSTUP};
use serde_json::Value;

/// The crates that keep to semantic versioning.
const PUBLISHED: [&str; 6] = [
    "fgraph",
    "fgraph-trace",
    "fgraph-tracers",
    "fgraph-protocol",
    "fgraph-export",
    "fgraph-attach",
];
/// Crates that the published ones show items of.
const INNER: [&str; 2] = ["fgraph-core", "fgraph-symbols"];

/// The versions of rustdoc's format that are understood here.
const FORMATS: std::ops::RangeInclusive<u64> = 45..=60;

/// The facts of a crate in the JSON of rustdoc.
pub(crate) struct Docs {
    pub(crate) index: BTreeMap<String, Value>,
    paths: BTreeMap<String, Value>,
    root: String,
}

/// The documents of all crates, by name with `_`.
pub(crate) struct Crates(BTreeMap<String, Docs>);

/// An item that a user of the crates can name.
pub(crate) struct Shown<'a> {
    pub(crate) path: String,
    /// Its entry in the documents: neither a module nor a `use`.
    pub(crate) value: &'a Value,
    /// The documents of the crate that defines it.
    pub(crate) docs: &'a Docs,
}

impl<'a> Shown<'a> {
    /// Returns the kind of the item, and what is said of that kind.
    pub(crate) fn inner(&self) -> (&'a str, &'a Value) {
        inner(self.value)
    }

    /// Returns what is said of each block that implements something for the type.
    pub(crate) fn impls(&self) -> impl Iterator<Item = &'a Value> {
        let (_, inner) = self.inner();
        list(&inner["impls"]).filter_map(|id| Some(&self.docs.index.get(&id)?["inner"]["impl"]))
    }

    /// Returns the items with the ids in `ids`, a list in the documents. Hidden ones are left out.
    pub(crate) fn items(&self, ids: &'a Value) -> impl Iterator<Item = &'a Value> {
        list(ids).filter_map(|id| self.docs.index.get(&id))
    }
}

/// Returns the kind of an item, and what is said of that kind.
pub(crate) fn inner(item: &Value) -> (&str, &Value) {
    let mut kinds = item["inner"].as_object().unwrap().iter();
    let (kind, inner) = kinds.next().unwrap();
    (kind, inner)
}

/// The number of an item: the crate that has it, and its number there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Item(String, String);

pub(crate) fn text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

pub(crate) fn list(value: &Value) -> impl Iterator<Item = String> {
    value.as_array().into_iter().flatten().map(text)
}

/// Runs rustdoc for the published crates and the inner ones, with all features. Fails without a
/// nightly that writes a format which is known here.
pub(crate) fn documented() -> Result<Crates, Missing> {
    let names = || PUBLISHED.iter().chain(&INNER);
    let missing = || Missing::new("no nightly (rustup toolchain install nightly)");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("public_items");
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
    command.args(["doc", "--quiet", "--no-deps", "--lib", "--all-features"]);
    command.arg("--target-dir").arg(&target);
    command.args(names().map(|name| format!("--package={name}")));
    // As users get them.
    command.env("FGRAPH_TESTING", "");
    command.env("RUSTDOCFLAGS", "-Zunstable-options --output-format=json");
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let mut crates = BTreeMap::new();
    for name in names() {
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

    /// Adds the items to which an item with this path leads.
    fn add<'a>(
        &'a self,
        item: &Item,
        path: String,
        seen: &mut BTreeSet<Item>,
        all: &mut Vec<Shown<'a>>,
    ) {
        let Some((found, value)) = self.find(item) else {
            return;
        };
        let (kind, inner) = inner(value);
        let docs = &self.0[&found.0];
        let of = |id: String| Item(found.0.clone(), id);
        match kind {
            "use" => {
                let around = path.rsplit_once("::").map_or("", |(around, _)| around);
                let path = match inner["is_glob"] == true {
                    true => around.to_owned(),
                    false => format!("{around}::{}", text(&inner["name"])),
                };
                self.add(&of(text(&inner["id"])), path, seen, all);
            }
            "module" if seen.insert(found.clone()) => {
                for id in list(&inner["items"]) {
                    let Some(child) = docs.index.get(&id) else {
                        continue;
                    };
                    let is_use = child["inner"].get("use").is_some();
                    if is_use || child["visibility"] == "public" {
                        let name = child["name"].as_str().unwrap_or_default();
                        self.add(&of(id), format!("{path}::{name}"), seen, all);
                    }
                }
            }
            "module" => {}
            _ => all.push(Shown { path, value, docs }),
        }
    }

    /// Returns all items that the published crates show.
    pub(crate) fn shown(&self) -> Vec<Shown<'_>> {
        let mut all = Vec::new();
        for name in PUBLISHED.map(|name| name.replace('-', "_")) {
            let root = Item(name.clone(), self.0[&name].root.clone());
            self.add(&root, name, &mut BTreeSet::new(), &mut all);
        }
        all
    }
}
