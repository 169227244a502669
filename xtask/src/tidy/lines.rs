//! Limit of the length of lines.

use super::lexer::{self, Kind};
use super::tree::{File, Finding, Tree};

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

/// Of each line of Markdown, whether a break would change what it means.
fn unbreakable(markdown: &str) -> Vec<bool> {
    let mut fenced = false;
    let is_free = |line: &str| {
        let text = line.trim_start();
        let is_fence = text.starts_with("```");
        fenced ^= is_fence;
        fenced || is_fence || text.starts_with('|')
    };
    markdown.lines().map(is_free).collect()
}

/// Of each line of Rust, whether it is a row of a table, or what is too much of it is a string that
/// may be long.
fn in_strings(rust: &str) -> Vec<bool> {
    let is_row = |line: &str| {
        let line = line.trim_start();
        line.starts_with("/// |") || line.starts_with("//! |")
    };
    let mut is_free: Vec<bool> = rust.lines().map(is_row).collect();
    if marker(rust).is_none() {
        return is_free;
    }
    let strings = lexer::tokens(rust);
    for string in strings.iter().filter(|token| token.kind == Kind::Text) {
        let line_start = rust[..string.start].rfind('\n').map_or(0, |at| at + 1);
        let mut begins = rust[line_start..string.start].chars().count();
        for (index, part) in (string.line - 1..).zip(string.text.split('\n')) {
            let ends = begins + part.chars().count();
            if begins <= COLUMNS && ends + 2 >= COLUMNS {
                is_free[index] = true;
            }
            begins = 0;
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
