//! Halves of sentences and of tables that an edit has left behind.

use super::tree::{File, Finding, Tree};

/// Lines of documentation and pages that go on with a sentence that has ended, and rows of tables
/// that go on in another line, where no reader sees a row.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let files = tree.files.iter();
    let files = files.filter(|file| file.is_rust() || file.is_markdown());
    files.flat_map(of_file).collect()
}

fn of_file(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut before = "";
    let mut is_code = false;
    for (number, line) in (1..).zip(file.text.lines()) {
        let line = line.trim();
        let text = match file.is_markdown() {
            true => Some(line),
            false => line.strip_prefix("///").or(line.strip_prefix("//!")),
        };
        let text = text.unwrap_or_default().trim();
        let is_fence = text.starts_with("```");
        is_code ^= is_fence;
        if is_code || is_fence || text.is_empty() {
            before = "";
            continue;
        }
        let is_cut = before.starts_with('|') && !text.starts_with(['|', '<']);
        if is_cut {
            findings.push(file.finding(number, "a row of a table is one line"));
        } else if ends_sentence(before) && is_second_half(text) {
            findings.push(file.finding(number, "the rest of a sentence that has ended"));
        }
        before = text;
    }
    findings
}

/// Returns true if a sentence ends with the line, and not only an abbreviation.
fn ends_sentence(line: &str) -> bool {
    let word = line.rsplit(' ').next().unwrap_or_default();
    let word = word.strip_suffix('.').unwrap_or_default();
    word.ends_with(|c: char| c.is_ascii_lowercase() || c == ')')
        && !word.contains('.')
        && word != "etc"
}

/// Returns true if a line begins with a word with which no sentence begins.
fn is_second_half(line: &str) -> bool {
    /// Names in lower case.
    const NAMES: &[&str] = &["fgraph", "gcc", "gdb", "glibc", "libgcc", "perf", "rustc"];
    let word = line.split([' ', ',', '.', '\'']).next().unwrap_or_default();
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase()) && !NAMES.contains(&word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, text: &str) -> Vec<String> {
        let findings = super::check(&Tree::made(&[(path, text)]));
        findings.iter().map(Finding::to_string).collect()
    }

    #[test]
    fn halves_of_sentences_and_rows_are_found() {
        let half = "the rest of a sentence that has ended";
        let row = "a row of a table is one line";
        for (path, text, what) in [
            ("a.rs", "/// It ends.\n/// and goes on.", half),
            ("a.rs", "//! The newest then.\n//! then.", half),
            ("a.md", "It (or that).\nand more", half),
            ("a.rs", "/// | a |\n/// |---|\n/// | b", ""),
            ("a.rs", "/// | a | b\n/// c |", row),
            ("a.md", "| a | b\nc |", row),
        ] {
            let expected: Vec<_> = [what]
                .iter()
                .filter(|what| !what.is_empty())
                .map(|what| format!("{path}:2: {what}"))
                .collect();
            assert_eq!(check(path, text), expected, "{text}");
        }
    }

    #[test]
    fn whole_sentences_lists_and_code_are_free() {
        for text in [
            "/// It ends.\n/// It goes on.",
            "/// It ends.\n/// libgcc's own goes on.",
            "/// It is e.g. that, etc.\n/// and more.",
            "/// It ends.\n///\n/// and more",
            "/// ```text\n/// a.\n/// b\n/// ```",
            "// A comment within code.\n// is free",
        ] {
            assert_eq!(check("a.rs", text), [""; 0], "{text}");
        }
    }
}
