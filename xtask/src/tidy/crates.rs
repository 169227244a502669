//! Which crate may depend on which.

use super::tree::{Finding, Tree};

/// Each crate of `crates/` with the crates of `crates/` that it may depend on.
pub(super) const CRATES: &[(&str, &[&str])] = &[
    ("fgraph-core", &[]),
    ("fgraph-symbols", &[]),
    ("fgraph-x86_64", &["fgraph-core"]),
    (
        "fgraph",
        &["fgraph-core", "fgraph-symbols", "fgraph-x86_64"],
    ),
    ("fgraph-trace", &[]),
    (
        "fgraph-tracers",
        &["fgraph", "fgraph-symbols", "fgraph-trace"],
    ),
    ("fgraph-export", &["fgraph-trace"]),
    ("fgraph-attach", &["fgraph-symbols"]),
    (
        "fgraph-agent",
        &["fgraph", "fgraph-symbols", "fgraph-trace", "fgraph-tracers"],
    ),
    (
        "fgraph-cli",
        &[
            "fgraph",
            "fgraph-agent",
            "fgraph-attach",
            "fgraph-export",
            "fgraph-symbols",
            "fgraph-trace",
            "fgraph-tracers",
        ],
    ),
    (
        "cargo-fgraph",
        &["fgraph", "fgraph-symbols", "fgraph-x86_64"],
    ),
];

/// Dependencies that `allowed` does not have, and crates that it does not know. Dependencies of
/// tests are free.
pub(super) fn check(tree: &Tree, allowed: &[(&str, &[&str])]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        let Some(name) = file
            .path
            .strip_prefix("crates/")
            .and_then(|path| path.strip_suffix("/Cargo.toml"))
            .filter(|name| !name.contains('/'))
        else {
            continue;
        };
        let Some((_, may)) = allowed.iter().find(|(known, _)| *known == name) else {
            findings
                .push(file.finding(1, format!("crate {name} has no row in the table of crates")));
            continue;
        };
        for (line, dependency) in dependencies(&file.text) {
            let ours = tree
                .file(&format!("crates/{dependency}/Cargo.toml"))
                .is_some();
            if ours && !may.contains(&dependency) {
                let what =
                    format!("{name} depends on {dependency}: arrows between crates point down");
                findings.push(file.finding(line, what));
            }
        }
    }
    findings
}

/// The names in all tables of dependencies of a manifest but those of its tests, with their lines.
fn dependencies(manifest: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut inside = false;
    for (line, text) in (1..).zip(manifest.lines()) {
        let text = text.trim();
        if let Some(header) = text.strip_prefix('[') {
            let header = header.split(']').next().unwrap_or_default();
            let is_table = |end: &str| header == end || header.ends_with(&format!(".{end}"));
            inside = is_table("dependencies") || is_table("build-dependencies");
            if let Some((table, name)) = header.rsplit_once('.')
                && (table.ends_with("dependencies") && !table.ends_with("dev-dependencies"))
            {
                found.push((line, name));
            }
        } else if inside && let Some((key, _)) = text.split_once('=') {
            let name = key.trim().split('.').next().unwrap_or_default();
            found.push((line, name.trim_matches('"')));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[(&str, &[&str])] = &[("low", &[]), ("high", &["low"])];

    fn check(low: &str, high: &str) -> Vec<String> {
        let tree = Tree::made(&[
            ("crates/low/Cargo.toml", low),
            ("crates/high/Cargo.toml", high),
            ("Cargo.toml", "[dependencies]\nlow.workspace = true"),
        ]);
        let findings = super::check(&tree, TABLE);
        findings.iter().map(Finding::to_string).collect()
    }

    #[test]
    fn an_arrow_down_is_well() {
        assert!(check("", "[dependencies]\nlow.workspace = true\nlibc = \"1\"").is_empty());
    }

    #[test]
    fn an_arrow_up_is_found_in_every_table_of_dependencies() {
        for (line, manifest) in [
            (2, "[dependencies]\nhigh.workspace = true"),
            (2, "[dependencies]\nhigh = { path = \"../high\" }"),
            (
                3,
                "[package]\n[target.'cfg(unix)'.dependencies]\n\"high\" = \"1\"",
            ),
            (1, "[dependencies.high]\npath = \"../high\""),
            (2, "[build-dependencies]\nhigh = \"1\""),
        ] {
            let expected = format!(
                "crates/low/Cargo.toml:{line}: low depends on high: \
                 arrows between crates point down"
            );
            assert_eq!(check(manifest, ""), [expected], "{manifest}");
        }
    }

    #[test]
    fn tests_may_depend_on_any_crate() {
        assert!(check("[dev-dependencies]\nhigh.workspace = true", "").is_empty());
        assert!(check("[dev-dependencies.high]\npath = \"../high\"", "").is_empty());
    }

    #[test]
    fn a_crate_without_a_row_is_found() {
        let tree = Tree::made(&[("crates/new/Cargo.toml", "")]);
        assert_eq!(super::check(&tree, TABLE).len(), 1);
    }
}
