//! Existence of the files that texts name.

use super::tree::{File, Finding, Tree, fenced};

/// Relative links of Markdown, and names of files in Markdown and in comments of Rust, that lead
/// nowhere.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let paths: Vec<&str> = tree.paths().collect();
    let mut findings = Vec::new();
    for file in &tree.files {
        let mut missing = |line: usize, text: &str, also_links: bool| {
            for name in spans(text) {
                if is_file_name(name) && !exists(&paths, name) {
                    findings.push(file.finding(line, format!("there is no file {name}")));
                }
            }
            if also_links {
                let broken = targets(text).filter_map(|target| broken(tree, file, target));
                findings.extend(broken.map(|what| file.finding(line, what)));
            }
        };
        if file.is_markdown() {
            for (line, text) in prose(&file.text) {
                missing(line, text, true);
            }
        } else if file.is_rust() {
            let comment = |line: &'_ str| line.find("// ").or_else(|| line.find("//!"));
            for (line, text) in (1..).zip(file.text.lines()) {
                // Text behind code may be a part of a string.
                if let Some(at) =
                    comment(text).filter(|at| text[..*at].trim_matches('/').trim().is_empty())
                {
                    missing(line, &text[at..], false);
                }
            }
        }
    }
    findings
}

/// The lines of Markdown outside of fenced blocks, counted from 1.
fn prose(markdown: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = (1..).zip(markdown.lines()).zip(fenced(markdown));
    lines.filter_map(|(line, is_fenced)| (!is_fenced).then_some(line))
}

/// Iterates over the texts between backquotes.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Returns true if `name` looks like one of a source file, a document or a folder of sources.
fn is_file_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let ends = [".rs", ".md", ".sh", ".toml"];
    let is_file = ends
        .iter()
        .any(|end| name.ends_with(end) && name.len() > end.len());
    let roots = [
        "crates/", "docs/", "xtask/", "lab/", "benches/", "fuzz/", ".ci/",
    ];
    let is_folder = roots.iter().any(|root| name.starts_with(root));
    name.chars().all(is_plain) && !name.starts_with('/') && (is_file || is_folder)
}

/// Returns true if `name` is the end of some path, or a folder.
fn exists(paths: &[&str], name: &str) -> bool {
    let name = name.trim_start_matches("./").trim_end_matches('/');
    paths.iter().any(|path| {
        let is_end = path.strip_suffix(name);
        let is_folder = path.strip_prefix(name);
        is_end.is_some_and(|before| before.is_empty() || before.ends_with('/'))
            || is_folder.is_some_and(|behind| behind.starts_with('/'))
    })
}

/// The targets of links in a line of Markdown.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    let behind = text.match_indices("](").map(|(at, _)| &text[at + 2..]);
    behind.filter_map(|rest| rest.split([')', ' ']).next())
}

/// Returns the fault of a link of `file` to `target`, if there is one.
fn broken(tree: &Tree, file: &File, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if path.is_empty() {
        file.path.clone()
    } else {
        joined(&file.path, path)
    };
    let is_there = |known: &str| known == path || known.starts_with(&format!("{path}/"));
    if !tree.paths().any(is_there) {
        return Some(format!("the link to {target} leads nowhere"));
    }
    let to = tree.file(&path).filter(|to| to.is_markdown())?;
    let has_anchor = anchor.is_empty() || anchors(&to.text).any(|known| known == anchor);
    (!has_anchor).then(|| format!("{path} has no heading #{anchor}"))
}

/// The path that `relative` is from the folder of `from`.
fn joined(from: &str, relative: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in relative.split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The anchors of the headings of Markdown, made as code hosts make them, and those written out
/// as `<a id="...">`.
fn anchors(markdown: &str) -> impl Iterator<Item = String> {
    prose(markdown).filter_map(|(_, line)| {
        if let Some(rest) = line.trim_start().strip_prefix("<a id=\"") {
            return rest.split('"').next().map(str::to_owned);
        }
        let title = line.strip_prefix('#')?.trim_start_matches('#').trim();
        let plain = title.chars().filter_map(|c| match c {
            ' ' => Some('-'),
            '-' | '_' => Some(c),
            c => c.is_alphanumeric().then(|| c.to_ascii_lowercase()),
        });
        Some(plain.collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, text: &str) -> Vec<String> {
        let tree = Tree::made(&[
            (path, text),
            (
                "docs/limits.md",
                "# Not promised\n\n## What a `debugger` sees, once\n",
            ),
            ("crates/a/src/part.rs", ""),
        ]);
        let findings = super::check(&tree);
        findings.iter().map(Finding::to_string).collect()
    }

    #[test]
    fn links_to_what_is_there_are_well() {
        for target in [
            "docs/limits.md",
            "docs",
            "crates/a/",
            "docs/limits.md#what-a-debugger-sees-once",
            "https://example.org/none.md",
        ] {
            assert_eq!(check("README.md", &format!("a [b]({target}) c")), [""; 0]);
        }
        assert_eq!(
            check("docs/x.md", "# A b\n[c](#a-b) [d](../crates/a/src/part.rs)"),
            [""; 0]
        );
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        assert_eq!(
            check("README.md", "\n[b](docs/none.md)"),
            ["README.md:2: the link to docs/none.md leads nowhere"]
        );
        assert_eq!(
            check("docs/x.md", "[b](limits.md#none)"),
            ["docs/x.md:1: docs/limits.md has no heading #none"]
        );
    }

    #[test]
    fn names_of_files_are_looked_for_by_their_ends() {
        for name in [
            "part.rs",
            "src/part.rs",
            "crates/a/src/part.rs",
            "crates/a",
            "docs/",
        ] {
            assert_eq!(check("README.md", &format!("a `{name}` b")), [""; 0]);
        }
        for name in ["art.rs", "b/part.rs", "crates/b", "none.md"] {
            let expected = format!("README.md:1: there is no file {name}");
            assert_eq!(check("README.md", &format!("a `{name}` b")), [expected]);
            let expected = format!("a.rs:1: there is no file {name}");
            assert_eq!(check("a.rs", &format!("/// See `{name}`.")), [expected]);
        }
    }

    #[test]
    fn commands_and_fenced_blocks_name_no_files() {
        assert_eq!(
            check(
                "README.md",
                "`cargo run none.rs` `*.rs`\n```\n`none.rs`\n```"
            ),
            [""; 0]
        );
        assert_eq!(check("a.rs", "const A: &str = \"`none.rs`\";"), [""; 0]);
    }
}
