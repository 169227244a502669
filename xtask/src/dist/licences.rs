//! The licences of all crates that are in the command.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use fgraph_chores::toolchain;

/// The format of a line of `cargo tree`.
pub(super) const LINE: &str = "{p}\t{l}";

/// Beginnings of the names of files with licences.
const NAMES: [&str; 4] = ["COPYING", "COPYRIGHT", "LICENSE", "NOTICE"];

/// A list of the crates in the output of `cargo tree`, with their licences, and all texts of these,
/// each once with the names of its crates.
pub(super) fn collect(tree: &str) -> io::Result<String> {
    let crates: BTreeSet<Crate> = tree.lines().filter_map(Crate::parse).collect();
    let sources = sources(&toolchain::cargo_home()?)?;
    let mut list = String::from("The command fgraph contains these crates:\n\n");
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for it in &crates {
        let name = format!("{}-{}", it.name, it.version);
        list += &format!("{name}: {}\n", it.licence);
        let mut found = sources.iter().map(|source| source.join(&name));
        let Some(source) = found.find(|source| source.is_dir()) else {
            return Err(io::Error::other(format!("the source of {name} is gone")));
        };
        for text in licence_texts(&source)? {
            texts.entry(text).or_default().push(name.clone());
        }
    }
    for (text, names) in &texts {
        list += &format!(
            "\n{}\n{}\n\n{}\n",
            "-".repeat(72),
            names.join(", "),
            text.trim_end()
        );
    }
    Ok(list)
}

/// A crate from a registry.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Crate {
    name: String,
    version: String,
    licence: String,
}

impl Crate {
    /// Reads a line of `cargo tree`. A crate of ours has a path behind its version.
    fn parse(line: &str) -> Option<Self> {
        let (package, licence) = line.split_once('\t')?;
        let mut words = package.split(' ');
        let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
        if words.any(|word| word.contains('/')) {
            return None;
        }
        Some(Self {
            name: name.to_owned(),
            version: version.to_owned(),
            licence: licence.trim_end_matches(" (*)").to_owned(),
        })
    }
}

/// The directories in which cargo keeps the sources of crates.
fn sources(home: &Path) -> io::Result<Vec<PathBuf>> {
    let registries = fs::read_dir(home.join("registry/src"))?;
    registries.map(|entry| Ok(entry?.path())).collect()
}

/// The texts of all files with licences in the root of a crate.
fn licence_texts(source: &Path) -> io::Result<BTreeSet<String>> {
    let mut texts = BTreeSet::new();
    for entry in fs::read_dir(source)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = name.to_uppercase();
        if path.is_file() && NAMES.iter().any(|start| name.starts_with(start)) {
            texts.insert(fs::read_to_string(&path)?);
        }
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_of_a_registry_are_read_from_a_tree() {
        let made = Crate {
            name: "libc".to_owned(),
            version: "0.2.1".to_owned(),
            licence: "MIT OR Apache-2.0".to_owned(),
        };
        assert_eq!(
            Crate::parse("libc v0.2.1\tMIT OR Apache-2.0 (*)"),
            Some(made)
        );
        assert_eq!(Crate::parse("fgraph v0.1.0 (/home/me/fgraph)\tMIT"), None);
        assert_eq!(Crate::parse(""), None);
    }

    #[test]
    fn files_with_licences_are_found_in_either_case() {
        let directory = tempfile::tempdir().expect("a directory can be made");
        for (name, text) in [("LICENSE-MIT", "a"), ("license.txt", "b"), ("README", "c")] {
            fs::write(directory.path().join(name), text).expect("it can be written");
        }
        let texts = licence_texts(directory.path()).expect("it can be read");
        assert_eq!(texts.into_iter().collect::<Vec<_>>(), ["a", "b"]);
    }
}
