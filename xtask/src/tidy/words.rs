//! One word for one thing: words that are not used, and words that the glossary defines.

use super::tree::{Finding, Tree};

/// A word, or several in a row; what to write instead; and the ends of the paths of files where it
/// means something else.
type Avoided = (&'static str, &'static str, &'static [&'static str]);

/// Names that have given way to better ones.
pub(super) const AVOIDED: &[Avoided] = &[
    ("So many", "at most this many, or how many", &[]),
    ("StubPlaces", "StubBlocks", &[]),
    ("RETURN_KEPT", "RETURN_DEFERRED", &[]),
    ("Refusal", "RefusalReason", &["CHANGELOG.md"]),
    ("relocate::entered", "relocate::inbound_branches", &[]),
    ("trampoline::held", "trampoline::cancellation", &[]),
];

/// Terms that `docs/glossary.md` defines, in the order of the alphabet.
#[rustfmt::skip]
pub(super) const TERMS: &[&str] = &[
    "arena", "batch", "body", "callee-preserved beyond the ABI", "claim", "deferred return",
    "displaced instructions", "entry", "entry only", "epoch", "event", "fast-path user", "filter",
    "frame", "grace period", "hazard slot", "interest", "module", "padding jump", "plan",
    "punned jump", "record", "refused", "registration", "relocated prologue", "return slot", "ring",
    "shadow stack", "site", "slot", "spare stack", "stub", "sub-buffer", "tail call", "text write",
    "thread stack", "trampoline", "trampoline variant", "trap", "user",
];

/// Where the words are defined.
const GLOSSARY: &str = "docs/glossary.md";

/// Uses of words that are avoided, anywhere in sources and documents.
pub(super) fn check(tree: &Tree, avoided: &[Avoided]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        let lists_words = ["tidy/words.rs", "tidy/openings.rs"];
        let lists_words = lists_words.iter().any(|end| file.path.ends_with(end));
        if !file.is_rust() && !file.is_markdown() || lists_words {
            continue;
        }
        for (line, text) in (1..).zip(file.text.lines()) {
            for (word, instead, but_in) in avoided {
                let is_free = but_in.iter().any(|end| file.path.ends_with(end));
                if !is_free && has_word(text, word) {
                    findings.push(file.finding(line, format!("not {word}, but {instead}")));
                }
            }
        }
    }
    findings
}

/// Returns true if `text` has `word`, between characters that are in no word.
pub(super) fn has_word(text: &str, word: &str) -> bool {
    let is_inner = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let behind = text[at + word.len()..].chars().next();
        !before.is_some_and(is_inner) && !behind.is_some_and(is_inner)
    })
}

/// Terms without a definition in the glossary, and definitions that are out of order or that
/// `terms` does not have.
pub(super) fn check_glossary(tree: &Tree, terms: &[&str]) -> Vec<Finding> {
    let Some(file) = tree.file(GLOSSARY) else {
        return vec![Finding::of(GLOSSARY, "there is no glossary")];
    };
    let mut findings = Vec::new();
    let mut defined = Vec::new();
    for (line, text) in (1..).zip(file.text.lines()) {
        let term = text.strip_prefix("**");
        let Some((term, definition)) = term.and_then(|rest| rest.split_once("**")) else {
            continue;
        };
        if definition.trim_matches(['.', ':', ' ']).is_empty() {
            findings.push(file.finding(line, format!("{term} has no definition")));
        }
        if !terms.contains(&term) {
            let what = format!("{term} is not in the list of terms in xtask/src/tidy/words.rs");
            findings.push(file.finding(line, what));
        }
        let last: Option<&&str> = defined.last();
        if last.is_some_and(|before| before.to_lowercase() > term.to_lowercase()) {
            findings.push(file.finding(line, format!("{term} is out of the alphabet's order")));
        }
        defined.push(term);
    }
    for term in terms {
        if !defined.contains(term) {
            findings.push(file.finding(1, format!("{term} is not defined")));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(findings: &[Finding]) -> Vec<String> {
        findings.iter().map(Finding::to_string).collect()
    }

    #[test]
    fn avoided_words_are_found_as_whole_words() {
        const TABLE: &[Avoided] = &[("Way", "Variant", &["free.rs"])];
        let tree = Tree::made(&[
            ("a.rs", "enum Way {}\nstruct AWay; struct Ways; // way\n"),
            ("b.md", "The `Way`.\n"),
            ("free.rs", "enum Way {}"),
            ("c.toml", "Way = 1"),
        ]);
        let expected = [
            "a.rs:1: not Way, but Variant",
            "b.md:1: not Way, but Variant",
        ];
        assert_eq!(whats(&check(&tree, TABLE)), expected);
    }

    fn glossary(text: &str) -> Vec<String> {
        whats(&check_glossary(
            &Tree::made(&[(GLOSSARY, text)]),
            &["epoch", "site"],
        ))
    }

    #[test]
    fn a_glossary_with_all_terms_in_order_is_well() {
        assert_eq!(
            glossary("# Glossary\n\n**epoch**: a number.\n\n**site**: a place.\n"),
            [""; 0]
        );
    }

    #[test]
    fn terms_missing_in_the_glossary_are_found() {
        for (text, what) in [
            ("**site**: a place.", "1: epoch is not defined"),
            ("**epoch**: a\n**site**:", "2: site has no definition"),
            (
                "**site**: a\n**epoch**: b",
                "2: epoch is out of the alphabet's order",
            ),
            (
                "**epoch**: a\n**pet**: b\n**site**: c",
                "2: pet is not in the list of terms in xtask/src/tidy/words.rs",
            ),
        ] {
            assert_eq!(glossary(text), [format!("{GLOSSARY}:{what}")]);
        }
        assert_eq!(check_glossary(&Tree::default(), &[]).len(), 1);
    }
}
