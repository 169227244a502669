//! The lines of prose that readers meet: doc comments, and pages of Markdown.

use super::tree::File;

/// A line of a doc comment or of a page, without its marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DocLine<'t> {
    /// Counted from 1.
    pub(super) line: usize,
    pub(super) text: &'t str,
    /// True for the first line of a doc comment, a paragraph or an item of a list.
    pub(super) opens: bool,
}

/// The lines of prose of `file`: none of a fenced block, a table, a heading or an empty line.
pub(super) fn of(file: &File) -> Vec<DocLine<'_>> {
    let mut lines = Vec::new();
    let (mut fenced, mut opens) = (false, true);
    for (line, text) in (1..).zip(file.text.lines()) {
        let Some(text) = prose(file, text) else {
            (fenced, opens) = (false, true);
            continue;
        };
        let is_fence = text.starts_with("```");
        fenced ^= is_fence;
        let is_apart = text.is_empty() || text.starts_with(['#', '|']);
        if fenced || is_fence || is_apart {
            opens = true;
            continue;
        }
        let (is_item, text) = item(text);
        lines.push(DocLine {
            line,
            text,
            opens: opens || is_item,
        });
        opens = false;
    }
    lines
}

/// Returns the text behind the marker of a doc comment, or the line of a page; `None` for code.
fn prose<'t>(file: &File, line: &'t str) -> Option<&'t str> {
    let line = line.trim();
    if file.is_markdown() {
        return Some(line);
    }
    let text = ["///", "//!"]
        .iter()
        .find_map(|marker| line.strip_prefix(marker))?;
    (file.is_rust() && !text.starts_with('/')).then(|| text.trim_start())
}

/// True for an item of a list, and the text without the item's bullet or number.
fn item(line: &str) -> (bool, &str) {
    let number = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let rest = if number.len() < line.len() {
        number.strip_prefix(". ")
    } else {
        line.strip_prefix("- ").or_else(|| line.strip_prefix("* "))
    };
    rest.map_or((false, line), |rest| (true, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<(usize, String, bool)> {
        let file = File {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let lines = of(&file);
        let owned = lines.iter().map(|l| (l.line, l.text.to_owned(), l.opens));
        owned.collect()
    }

    fn line(line: usize, text: &str, opens: bool) -> (usize, String, bool) {
        (line, text.to_owned(), opens)
    }

    #[test]
    fn lines_of_doc_comments_are_prose_and_other_comments_are_not() {
        let rust =
            "//! A\n//! b.\n\n// No.\n    /// C.\n    ///\n    /// D.\nfn f() {}\n//// No.\n";
        assert_eq!(
            lines("a.rs", rust),
            [
                line(1, "A", true),
                line(2, "b.", false),
                line(5, "C.", true),
                line(7, "D.", true)
            ]
        );
        assert_eq!(lines("a.toml", "/// A"), []);
    }

    #[test]
    fn fenced_blocks_tables_and_headings_are_no_prose() {
        let page = "# A\nb\n```text\nc\n```\n| d |\n- e\n  f\n1. g\n2nd\n";
        assert_eq!(
            lines("a.md", page),
            [
                line(2, "b", true),
                line(7, "e", true),
                line(8, "f", false),
                line(9, "g", true),
                line(10, "2nd", false)
            ]
        );
    }
}
