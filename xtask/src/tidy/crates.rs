//! Allowed dependencies between crates.

use std::collections::BTreeMap;

use serde_json::Value;

use super::tree::Finding;

/// Each crate of `crates/` with the crates of `crates/` that it may depend on.
pub(super) const CRATES: &[(&str, &str)] = &[
    ("fgraph-core", ""),
    ("fgraph-symbols", ""),
    ("fgraph-x86_64", "fgraph-core"),
    ("fgraph", "fgraph-core fgraph-symbols fgraph-x86_64"),
    ("fgraph-trace", ""),
    ("fgraph-tracers", "fgraph fgraph-symbols fgraph-trace"),
    ("fgraph-protocol", "fgraph fgraph-trace fgraph-tracers"),
    ("fgraph-analysis", "fgraph-symbols fgraph-trace"),
    ("fgraph-export", "fgraph-analysis fgraph-trace"),
    ("fgraph-attach", "fgraph-symbols"),
    (
        "fgraph-agent",
        "fgraph fgraph-protocol fgraph-symbols fgraph-trace fgraph-tracers",
    ),
    (
        "fgraph-cli",
        "fgraph fgraph-agent fgraph-analysis fgraph-attach fgraph-export fgraph-protocol \
         fgraph-symbols fgraph-trace fgraph-tracers",
    ),
    ("cargo-fgraph", "fgraph fgraph-symbols fgraph-x86_64"),
];

/// Dependencies that `allowed` does not have, and crates that it does not know, by what cargo says
/// of the workspace. Dependencies of tests are free.
pub(super) fn check(metadata: &Value, allowed: &[(&str, &str)]) -> Vec<Finding> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let packages = packages.filter_map(|package| {
        let manifest = package["manifest_path"]
            .as_str()?
            .strip_suffix("/Cargo.toml")?;
        let (folder, name) = manifest.rsplit_once('/')?;
        folder.ends_with("/crates").then_some((name, package))
    });
    let packages: BTreeMap<&str, &Value> = packages.collect();
    let mut findings = Vec::new();
    for (name, package) in &packages {
        let mut found =
            |what| findings.push(Finding::of(&format!("crates/{name}/Cargo.toml"), what));
        let Some((_, may)) = allowed.iter().find(|(known, _)| known == name) else {
            found(format!("crate {name} has no row in the table of crates"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let other = dependency["name"].as_str().unwrap_or_default();
            let is_ours = packages.contains_key(other) && dependency["kind"] != "dev";
            if is_ours && !may.split(' ').any(|may| may == other) {
                found(format!(
                    "{name} depends on {other}: arrows between crates point down"
                ));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(from: &str, to: &str, kind: Option<&str>) -> Vec<String> {
        let package = |name: &str| {
            let is_from = (name == from).then(|| json!({ "name": to, "kind": kind }));
            let manifest = format!("/w/crates/{name}/Cargo.toml");
            let dependencies: Vec<Value> = is_from.into_iter().collect();
            json!({ "name": name, "manifest_path": manifest, "dependencies": dependencies })
        };
        let metadata = json!({ "packages": [package("low"), package("high")] });
        let findings = super::check(&metadata, &[("low", ""), ("high", "low")]);
        findings.iter().map(Finding::to_string).collect()
    }

    #[test]
    fn an_arrow_down_one_to_another_source_and_one_of_tests_are_well() {
        assert!(check("high", "low", None).is_empty());
        assert!(check("low", "libc", None).is_empty());
        assert!(check("low", "high", Some("dev")).is_empty());
    }

    #[test]
    fn an_arrow_up_is_found() {
        for kind in [None, Some("build")] {
            let what = "low depends on high: arrows between crates point down";
            assert_eq!(
                check("low", "high", kind),
                [format!("crates/low/Cargo.toml:1: {what}")]
            );
        }
    }

    #[test]
    fn a_crate_without_a_row_is_found() {
        let metadata = json!({ "packages": [{ "manifest_path": "/w/crates/new/Cargo.toml" }] });
        assert_eq!(super::check(&metadata, &[]).len(), 1);
    }
}
