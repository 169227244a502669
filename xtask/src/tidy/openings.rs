//! Openings and phrases that hide the subject of a sentence.

use super::prose;
use super::tree::{Finding, Tree};
use super::words::has_word;

/// Openings of a sentence.
const OPENINGS: &[&str] = &[
    "As for ",
    "Has ",
    "Here ",
    "How ",
    "Of ",
    "So far ",
    "So long ",
    "So many ",
    "So often ",
    "That at ",
    "That of ",
    "Those ",
    "What ",
    "Whatever ",
    "Whether ",
    "Which ",
    "Who ",
    "Whoever ",
];

/// Phrases that are avoided anywhere in a sentence.
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

/// Sentences that begin with an avoided opening and are no questions, and sentences with an avoided
/// phrase.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        let is_history = file.path == "CHANGELOG.md";
        if is_history || file.path.ends_with("tidy/openings.rs") {
            continue;
        }
        let mut passages = prose::passages(file);
        passages.extend(prose::literals(file));
        for (line, sentence) in passages.iter().flat_map(|it| prose::sentences(it)) {
            let start = sentence.trim_start_matches(['*', '_', '(']);
            let is_question = sentence.trim_end_matches(prose::CLOSERS).ends_with('?');
            let opening = OPENINGS.iter().filter(|it| start.starts_with(**it));
            let opening = opening.filter(|_| !is_question);
            let phrases = PHRASES.iter().filter(|it| has_word(&sentence, it));
            for what in opening.chain(phrases) {
                let what = format!("\"{}\": name the subject", what.trim());
                findings.push(file.finding(line, what));
            }
        }
    }
    // A comment in a literal is found twice.
    findings.sort();
    findings.dedup();
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, text: &str) -> Vec<String> {
        let findings = super::check(&Tree::made(&[(path, text)]));
        findings.iter().map(Finding::to_string).collect()
    }

    #[test]
    fn openings_and_phrases_are_found_in_comments_pages_and_literals() {
        for (path, text, expected) in [
            ("a.rs", "/// What a call is.\nfn f() {}", "1: \"What\""),
            ("a.rs", "/// A.\n/// B. Of\n/// what c has.", "2: \"Of\""),
            ("a.rs", "// Here it is.", "1: \"Here\""),
            ("a.rs", "f(); // Those of g.", "1: \"Those\""),
            ("a.rs", "f(\"\nA. Who b.\");", "2: \"Who\""),
            ("a.rs", "f(\"// Who b.\n// C.\n\");", "1: \"Who\""),
            (
                "a.rs",
                "/// A name, the length of\n/// which is 3.",
                "1: \"of which\"",
            ),
            ("a.c", "/* A.\n   Whether b. */", "2: \"Whether\""),
            ("a.toml", "b = 1 # What c is.", "1: \"What\""),
            ("a.md", "7. **What is not** b.", "1: \"What\""),
        ] {
            let expected = format!("{path}:{expected}: name the subject");
            assert_eq!(check(path, text), [expected], "{text}");
        }
    }

    #[test]
    fn questions_headings_code_and_history_are_free() {
        for (path, text) in [
            ("a.rs", "/// What is a call?\nfn f() -> What { What }"),
            ("a.rs", "/// A\n/// What b has ever been."),
            ("a.rs", "/// `a. What b`"),
            ("a.md", "## What it is\n\nA\n```text\nWhat b.\n```"),
            ("CHANGELOG.md", "What is new."),
        ] {
            assert_eq!(check(path, text), [""; 0], "{text}");
        }
    }
}
