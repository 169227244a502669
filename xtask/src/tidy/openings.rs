//! Openings and phrases that hide the subject of a sentence, in doc comments and pages.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::doc_lines;
use super::tree::{File, Finding, Tree};
use super::words::has_word;

/// Openings of a doc comment, a paragraph or an item of a list.
const OPENINGS: &[&str] = &[
    "As for ",
    "Has ",
    "Here ",
    "How far ",
    "How long ",
    "How many ",
    "How much ",
    "How often ",
    "Of ",
    "So far ",
    "So long ",
    "So many ",
    "So often ",
    "Those ",
    "What ",
    "Whether ",
    "Who ",
    "Whoever ",
];

/// Phrases that are avoided anywhere in a line.
const PHRASES: &[&str] = &[
    "are gone through",
    "as ever",
    "is gone through",
    "is heeded",
    "no more than so",
    "of which",
    "such that",
    "that which",
];

/// The list of the files that still have some, from the repository's root. Each line is a count and
/// a path.
pub(super) const LIST: &str = "xtask/src/tidy/openings.txt";

/// Files with more of them than `allowed` says, or with fewer, so that the list shrinks.
pub(super) fn check(tree: &Tree, allowed: &str) -> Vec<Finding> {
    let allowed = parsed(allowed);
    let mut findings = Vec::new();
    for file in &tree.files {
        let found = found(file);
        let count = allowed.get(file.path.as_str()).copied().unwrap_or(0);
        if found.len() > count {
            let has = found.len();
            let finding = |(line, what): &(usize, &str)| {
                let more = format!("of these, this file may have {count} and has {has}");
                let what = format!("\"{}\": name the subject ({more})", what.trim());
                file.finding(*line, what)
            };
            findings.extend(found.iter().map(finding));
        } else if found.len() < count {
            let what = format!(
                "{LIST} allows {count} avoided openings, and there are {}: \
                 run `cargo xtask tidy --shrink`",
                found.len()
            );
            findings.push(file.finding(1, what));
        }
    }
    for path in allowed.keys().filter(|path| tree.file(path).is_none()) {
        let what = format!("{LIST} has this file, which is not there");
        findings.push(Finding::of(path, what));
    }
    findings
}

/// The list with each count that is too high lowered, and no file that has none.
pub(super) fn shrunk(tree: &Tree, allowed: &str) -> String {
    let mut list = String::new();
    for (path, count) in parsed(allowed) {
        let now = tree.file(path).map_or(0, |file| found(file).len());
        if now.min(count) > 0 {
            let _ = writeln!(list, "{} {path}", now.min(count));
        }
    }
    list
}

/// The counts of a list.
fn parsed(list: &str) -> BTreeMap<&str, usize> {
    let lines = list.lines().filter_map(|line| line.split_once(' '));
    let counts = lines.filter_map(|(count, path)| Some((path, count.parse().ok()?)));
    counts.collect()
}

/// Returns the lines of `file` with an avoided opening or phrase, each with that text.
fn found(file: &File) -> Vec<(usize, &'static str)> {
    let is_history = file.path == "CHANGELOG.md";
    let lines = doc_lines::of(file).into_iter().filter(|_| !is_history);
    let found = lines.flat_map(|line| {
        let opening = OPENINGS.iter();
        let opening = opening.filter(move |start| line.opens && line.text.starts_with(**start));
        let phrases = PHRASES.iter();
        let phrases = phrases.filter(move |phrase| has_word(line.text, phrase));
        opening.chain(phrases).map(move |what| (line.line, *what))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[(&str, &str)], allowed: &str) -> Vec<String> {
        let findings = super::check(&Tree::made(files), allowed);
        findings.iter().map(Finding::to_string).collect()
    }

    const RUST: &str = "/// What a call is.\nfn f() {}\n/// A name, the length of which is 3.\n";

    #[test]
    fn avoided_openings_and_phrases_are_found_in_doc_comments() {
        assert_eq!(
            check(&[("a.rs", RUST)], ""),
            [
                "a.rs:1: \"What\": name the subject (of these, this file may have 0 and has 2)",
                "a.rs:3: \"of which\": name the subject (of these, this file may have 0 and has 2)",
            ]
        );
        assert_eq!(
            check(
                &[("a.rs", "// What?\n/// A\n/// What b has ever been.\n")],
                ""
            ),
            [""; 0]
        );
        assert_eq!(check(&[("a.md", "## What it is\n\nA\n")], ""), [""; 0]);
    }

    #[test]
    fn the_list_allows_a_count_and_only_shrinks() {
        assert_eq!(check(&[("a.rs", RUST)], "2 a.rs\n"), [""; 0]);
        let over = format!(
            "a.rs:1: {LIST} allows 3 avoided openings, and there are 2: \
             run `cargo xtask tidy --shrink`"
        );
        assert_eq!(check(&[("a.rs", RUST)], "3 a.rs\n"), [over]);
        let gone = format!("b.rs:1: {LIST} has this file, which is not there");
        assert_eq!(check(&[], "1 b.rs\n"), [gone]);
    }

    #[test]
    fn a_shrunk_list_is_never_higher_than_the_list_or_the_files() {
        let tree = Tree::made(&[("a.rs", RUST), ("b.rs", RUST), ("c.rs", "")]);
        assert_eq!(
            shrunk(&tree, "3 a.rs\n1 b.rs\n4 c.rs\n1 d.rs\n"),
            "2 a.rs\n1 b.rs\n"
        );
    }
}
