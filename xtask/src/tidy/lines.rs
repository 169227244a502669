//! Limit of the length of lines.

use super::tokens::literals;
use super::tree::{File, Finding, Tree, fenced};

/// Columns that a line may have.
const COLUMNS: usize = 100;

/// A comment that lets the string literals of its file be longer; a reason follows.
const MARKER: &str = "// Long strings: ";

/// Lines of code and prose with more than [`COLUMNS`] columns. Rows of tables may be longer, fenced
/// blocks of Markdown, and string literals in files that say why.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        let is_free = match () {
            () if file.is_markdown() => unbreakable(&file.text),
            () if file.is_rust() => in_strings(&file.text),
            () => continue,
        };
        for (index, line) in file.text.lines().enumerate() {
            let columns = line.chars().count();
            if columns > COLUMNS && !is_free[index] {
                let what = format!("{columns} columns, more than {COLUMNS}");
                findings.push(file.finding(index + 1, what));
            }
        }
        findings.extend(unneeded(file));
    }
    findings
}

/// A marker in a file without a long line.
fn unneeded(file: &File) -> Option<Finding> {
    let line = file.is_rust().then(|| marker(&file.text))??;
    let mut lines = file.text.lines();
    (!lines.any(|line| line.chars().count() > COLUMNS)).then(|| {
        file.finding(
            line,
            "no line of this file is long: the marker is not needed",
        )
    })
}

/// The line of the marker.
fn marker(rust: &str) -> Option<usize> {
    let is_marker = |line: &str| line.starts_with(MARKER);
    rust.lines().position(is_marker).map(|index| index + 1)
}

/// For each line of Markdown, whether a break would change its meaning.
fn unbreakable(markdown: &str) -> Vec<bool> {
    let rows = markdown
        .lines()
        .map(|line| line.trim_start().starts_with('|'));
    rows.zip(fenced(markdown))
        .map(|(is_row, is_fenced)| is_row || is_fenced)
        .collect()
}

/// For each line of Rust, whether it is a row of a table, or its excess is in a string that may be
/// long.
fn in_strings(rust: &str) -> Vec<bool> {
    let is_row = |line: &str| {
        let line = line.trim_start();
        line.starts_with("/// |") || line.starts_with("//! |")
    };
    let mut is_free: Vec<bool> = rust.lines().map(is_row).collect();
    if marker(rust).is_none() {
        return is_free;
    }
    let lines: Vec<&str> = rust.lines().collect();
    for span in literals(rust) {
        let (start, end) = (span.start(), span.end());
        for line in start.line..=end.line {
            let begins = if line == start.line { start.column } else { 0 };
            let whole = lines[line - 1].chars().count();
            let ends = if line == end.line { end.column } else { whole };
            is_free[line - 1] |= begins <= COLUMNS && ends + 2 >= COLUMNS;
        }
    }
    is_free
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, text: &str) -> Vec<usize> {
        let findings = super::check(&Tree::made(&[(path, text)]));
        findings.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_line_may_have_100_columns_and_no_more() {
        for path in ["a.rs", "a.md"] {
            let fits = format!("// {}", "ä".repeat(97));
            assert_eq!(check(path, &fits), [0; 0]);
            assert_eq!(check(path, &format!("\n{fits}x\n")), [2]);
        }
        assert_eq!(check("a.toml", &"x".repeat(101)), [0; 0]);
    }

    #[test]
    fn tables_and_fenced_blocks_may_be_longer() {
        let long = "x".repeat(101);
        let text = format!("| {long} |\n```text\n{long}\n```\n{long}\n");
        assert_eq!(check("a.md", &text), [5]);
        let text = format!("//! | {long} |\n    /// | {long} |\n// | {long} |\n");
        assert_eq!(check("a.rs", &text), [3]);
    }

    #[test]
    fn strings_may_be_longer_where_a_marker_says_why() {
        let long = "x".repeat(101);
        let code = format!("const A: &str = \"{long}\";\nlet {long} = 1; // \"\"\n");
        assert_eq!(check("a.rs", &code), [1, 2]);
        assert_eq!(check("a.rs", &format!("{MARKER}C code.\n{code}")), [3]);
        let lines = format!("{MARKER}C code.\nf(r\"\n{long}\n\");\n");
        assert_eq!(check("a.rs", &lines), [0; 0]);
    }

    #[test]
    fn a_marker_that_nothing_needs_is_found() {
        assert_eq!(check("a.rs", &format!("\n{MARKER}C code.\n\"short\"")), [2]);
    }
}
