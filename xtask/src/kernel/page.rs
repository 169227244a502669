//! `cargo xtask kernel --page`: follows `docs/kernel.md` in an empty crate, as a reader would.
//!
//! A line with the path of a file, such as `` `src/main.rs`: ``, comes before a block of the page.
//! Blocks with the same path make one file. The page's crate depends on the published crates; the
//! build takes those of this workspace instead.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use fgraph_chores::cargo;
use tempfile::TempDir;

use super::machine::{Machine, build, compare, end};

/// The page.
const PAGE: &str = "docs/kernel.md";
/// The name of the block with the lines that the kernel prints.
const PRINTED: &str = "serial port";

/// Builds the page's kernel, runs it, and compares what it prints with the page.
pub(super) fn run(builder: &Path, machine: &Machine<'_>) -> io::Result<bool> {
    let workspace = cargo::workspace();
    let text = fs::read_to_string(workspace.join(PAGE))?;
    let mut files = files(&text);
    let printed = files.remove(PRINTED);
    let printed =
        printed.ok_or_else(|| io::Error::other("the page does not say what is printed"))?;
    let directory = TempDir::with_prefix("fgraph-page-")?;
    for (path, text) in &mut files {
        if path == "Cargo.toml" {
            for name in ["fgraph-core", "fgraph-x86_64"] {
                let place = workspace.join("crates").join(name);
                let place = toml_path(&place);
                *text += &format!("\n[patch.crates-io.{name}]\npath = {place}\n");
            }
        }
        let place = directory.path().join(path);
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(place, text)?;
    }
    let kernel = build(directory.path(), builder, "kernel")?;
    let done = machine.start(&kernel, 1, false)?;
    let is_well = end(&done);
    let wanted: Vec<&str> = printed.lines().collect();
    let found: Vec<String> = done.stdout.lines().map(str::to_owned).collect();
    Ok(is_well & compare(&wanted, &found))
}

fn toml_path(path: &Path) -> String {
    format!("'{}'", path.display())
}

/// Returns the blocks of a page that follow a path, by path.
fn files(page: &str) -> BTreeMap<String, String> {
    let mut files: BTreeMap<String, String> = BTreeMap::new();
    let mut path = None;
    let mut is_in_block = false;
    for line in page.lines() {
        if line.starts_with("```") {
            is_in_block = !is_in_block;
            if !is_in_block {
                path = None;
            }
        } else if is_in_block {
            if let Some(path) = &path {
                let file = files.entry(String::clone(path)).or_default();
                *file += line;
                *file += "\n";
            }
        } else if let Some(named) = line.strip_prefix('`')
            && let Some(named) = named.strip_suffix("`:")
        {
            path = Some(named.to_owned());
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_one_path_make_one_file() {
        let page = "`a.rs`:\n\n```rust\none\n```\ntext\n```text\nnot\n```\n\n`a.rs`:\n\n```rust\n\
            two\n```\n\n`b`:\n```\nthree\n```\n";
        let files = files(page);
        let expected = [("a.rs", "one\ntwo\n"), ("b", "three\n")];
        let found = files
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()));
        assert!(found.eq(expected));
    }
}
