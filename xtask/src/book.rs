//! `cargo xtask book`: the pages of `docs/` as a book, by mdBook, with a recording to look at.
//!
//! All links between the pages of the book are checked, those to headings included, and that each
//! page of `docs/` is in the book.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;
use fgraph_chores::cargo;
use fgraph_chores::process::succeed;

/// The recording in the book, and the page that it becomes.
const EXAMPLE: [&str; 2] = ["docs/example/rustfmt.data", "example.html"];

/// The list of the book's pages.
const SUMMARY: &str = "SUMMARY.md";

/// Pages that repeat others, or stand for those that are not there.
const APART: [&str; 3] = ["404.html", "print.html", "toc.html"];

/// Options of the command line: none.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {}

/// Builds it. Fails where a link leads nowhere.
pub(crate) fn run(_: &Options) -> io::Result<bool> {
    let workspace = cargo::workspace().canonicalize()?;
    let directory = workspace.join("target/book");
    fs::create_dir_all(&directory)?;
    let directory = directory.canonicalize()?;
    let mut mdbook = Command::new("mdbook");
    mdbook.arg("build").arg(workspace.join("docs"));
    mdbook.arg("--dest-dir").arg(&directory);
    let built = mdbook.stdin(Stdio::null()).output();
    let built = built.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::other("no mdbook (cargo install --locked mdbook)"),
        _ => error,
    })?;
    // It tells some mistakes in warnings only.
    let said = String::from_utf8_lossy(&built.stderr);
    if !built.status.success() || said.contains("WARN") {
        return Err(io::Error::other(format!("mdbook: {said}")));
    }
    let fgraph = cargo::fgraph(None)?;
    let mut export = Command::new(fgraph);
    export.args(["export", "html", "--output"]);
    export.arg(directory.join(EXAMPLE[1]));
    succeed(export.arg(workspace.join(EXAMPLE[0])))?;
    let mut pages = BTreeMap::new();
    collect(&directory, Path::new(""), "html", &mut pages)?;
    let mut broken = broken(&pages, |path| directory.join(path).is_file());
    let docs = workspace.join("docs");
    let summary = fs::read_to_string(docs.join(SUMMARY))?;
    let mut sources = BTreeMap::new();
    collect(&docs, Path::new(""), "md", &mut sources)?;
    broken.extend(left_out(&summary, sources.keys()));
    for line in &broken {
        println!("{line}");
    }
    println!("{}: {} pages", directory.display(), pages.len());
    Ok(broken.is_empty())
}

/// The pages of `docs` that the list of the book's pages lacks.
fn left_out<'a>(
    summary: &str,
    pages: impl Iterator<Item = &'a PathBuf>,
) -> impl Iterator<Item = String> {
    let is_listed = |page: &&PathBuf| summary.contains(&format!("]({})", page.display()));
    let pages = pages.filter(move |page| page.as_path() != Path::new(SUMMARY) && !is_listed(page));
    pages.map(|page| format!("docs/{SUMMARY}: {} is not in it", page.display()))
}

/// The texts of the files below `directory` with an extension, by their paths.
fn collect(
    root: &Path,
    directory: &Path,
    wanted: &str,
    pages: &mut BTreeMap<PathBuf, String>,
) -> io::Result<()> {
    for entry in fs::read_dir(root.join(directory))? {
        let entry = entry?;
        let path = directory.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            collect(root, &path, wanted, pages)?;
        } else if path
            .extension()
            .is_some_and(|extension| extension == wanted)
        {
            pages.insert(path, fs::read_to_string(entry.path())?);
        }
    }
    Ok(())
}

/// The links of `pages` to files that are not there, or to headings that a page lacks.
fn broken(pages: &BTreeMap<PathBuf, String>, is_file: impl Fn(&Path) -> bool) -> BTreeSet<String> {
    let mut broken = BTreeSet::new();
    let is_apart = |path: &Path| {
        let others = APART.iter().chain([&EXAMPLE[1]]);
        others.into_iter().any(|name| path == Path::new(name))
    };
    for (page, text) in pages.iter().filter(|(page, _)| !is_apart(page)) {
        for target in values(text, "href").chain(values(text, "src")) {
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            if path.contains(':') || path.starts_with("//") {
                continue;
            }
            let to = match path {
                "" => page.clone(),
                _ => plain(&page.parent().unwrap_or(Path::new("")).join(path)),
            };
            let has_heading = |text: &String| values(text, "id").any(|id| id == heading);
            let is_well = match pages.get(&to) {
                Some(text) => heading.is_empty() || has_heading(text),
                None => is_file(&to),
            };
            if !is_well {
                broken.insert(format!("{}: {target} leads nowhere", page.display()));
            }
        }
    }
    broken
}

/// The path without `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => _ = plain.pop(),
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

/// The values of an attribute in HTML.
fn values<'a>(html: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let start = format!(" {name}=\"");
    let parts: Vec<&str> = html.split(&start).skip(1).collect();
    parts.into_iter().filter_map(|rest| rest.split('"').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(page: &str) -> Vec<String> {
        let pages = [
            ("index.html", ""),
            ("in/page.html", page),
            ("in/other.html", r#"<h2 id="end">End</h2>"#),
        ];
        let pages = pages.map(|(path, text)| (path.into(), text.to_owned()));
        let is_file = |path: &Path| path == Path::new("picture.png");
        broken(&pages.into(), is_file).into_iter().collect()
    }

    #[test]
    fn links_to_pages_headings_and_files_are_well() {
        let page = r##"<h1 id="top"></h1> <a href="#top"> <a href="../index.html">
            <a class="x" href="other.html#end"> <img src="../picture.png">
            <a href="https://example.org/nothing#at-all">"##;
        assert!(check(page).is_empty(), "{:?}", check(page));
    }

    #[test]
    fn pages_that_the_summary_lacks_are_found() {
        let pages = ["SUMMARY.md", "in/page.md", "page.md"].map(PathBuf::from);
        let summary = "# Summary\n\n- [Page](page.md)\n";
        let found: Vec<String> = left_out(summary, pages.iter()).collect();
        assert_eq!(found, ["docs/SUMMARY.md: in/page.md is not in it"]);
        let summary = "- [Page](page.md)\n  - [In](in/page.md)\n";
        assert_eq!(left_out(summary, pages.iter()).count(), 0);
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let page = r##"<a href="none.html"> <a href="#none"> <a href="other.html#none">
            <img src="picture.png">"##;
        assert_eq!(check(page).len(), 4, "{:?}", check(page));
    }
}
