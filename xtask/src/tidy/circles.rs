//! Files of a crate that use each other in a circle.

use std::collections::{BTreeMap, BTreeSet};

use super::tree::{Finding, Tree};
use super::uses::uses;

/// The files of a crate, each with those that it uses.
type Uses<'t> = BTreeMap<&'t str, BTreeSet<&'t str>>;

/// Circles that are not among `allowed`, and those of `allowed` that are none any more. Each of
/// these is a folder and the names of the files below it, in order.
pub(super) fn check(tree: &Tree, allowed: &[(&str, &str)]) -> Vec<Finding> {
    let path = |(folder, names): &(&str, &str)| {
        let names = names.split(' ');
        names.map(|name| format!("{folder}/{name}.rs")).collect()
    };
    let allowed: Vec<Vec<String>> = allowed.iter().map(path).collect();
    let all: Vec<Vec<&str>> = sources(tree)
        .into_iter()
        .flat_map(|source| {
            let mut files = Uses::new();
            for it in uses(tree, source) {
                let to = it.to.filter(|to| to.path != it.from.path);
                let used = files.entry(&it.from.path).or_default();
                used.extend(to.map(|to| to.path.as_str()));
            }
            circles(&files)
        })
        .collect();
    let is_new = |circle: &&Vec<&str>| !allowed.iter().any(|it| it == *circle);
    let new = all.iter().filter(is_new).map(|circle| {
        let others = circle[1..].join(" ");
        Finding::of(circle[0], format!("is in a circle with {others}"))
    });
    let is_over = |allowed: &&Vec<String>| !all.iter().any(|circle| *allowed == circle);
    let over = allowed.iter().filter(is_over).map(|allowed| {
        let others = allowed[1..].join(" ");
        let what = format!("the list of circles has one with {others}, which is none");
        Finding::of(&allowed[0], what)
    });
    new.chain(over).collect()
}

/// The folders of the sources of all crates.
fn sources(tree: &Tree) -> BTreeSet<&str> {
    let roots = tree
        .paths()
        .filter_map(|path| path.strip_suffix(".rs")?.rsplit_once('/'));
    let sources = roots.filter(|(folder, name)| {
        ["lib", "main"].contains(name) && (folder.ends_with("/src") || *folder == "src")
    });
    sources.map(|(folder, _)| folder).collect()
}

/// The files that lead to each other, those of a circle in order.
fn circles<'t>(uses: &Uses<'t>) -> BTreeSet<Vec<&'t str>> {
    let reached = |from: &'t str| {
        let (mut seen, mut left) = (BTreeSet::new(), vec![from]);
        while let Some(file) = left.pop() {
            let next = uses.get(file).into_iter().flatten();
            left.extend(next.filter(|next| seen.insert(**next)));
        }
        seen
    };
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        uses.keys().map(|file| (*file, reached(file))).collect();
    let leads = |from: &str, to: &str| reached.get(from).is_some_and(|seen| seen.contains(to));
    let circle = |(file, seen): (&&str, &BTreeSet<&'t str>)| {
        let circle = seen.iter().copied().filter(|other| leads(other, file));
        circle.collect::<Vec<_>>()
    };
    let circles = reached.iter().map(circle);
    circles.filter(|circle| circle.len() > 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[(&str, &str)], allowed: &[(&str, &str)]) -> Vec<String> {
        let root = [("a/src/lib.rs", "mod x; mod y; use x::X;")];
        let tree = Tree::made(&[&root[..], files].concat());
        let findings = super::check(&tree, allowed);
        findings.iter().map(Finding::to_string).collect()
    }

    const CIRCLE: [(&str, &str); 2] = [
        ("a/src/x.rs", "use crate::y::Y;"),
        ("a/src/y.rs", "use super::x::X;"),
    ];

    #[test]
    fn files_that_use_each_other_are_a_circle() {
        assert_eq!(
            check(&CIRCLE, &[]),
            ["a/src/x.rs:1: is in a circle with a/src/y.rs"]
        );
        let one_way = [CIRCLE[0], ("a/src/y.rs", "")];
        assert_eq!(check(&one_way, &[]), [""; 0]);
    }

    #[test]
    fn a_name_that_a_module_hands_on_is_of_the_file_that_it_stands_for() {
        let files = [
            ("a/src/x.rs", "use super::Y;"),
            ("a/src/y.rs", "use crate::x::X;"),
            ("a/src/lib.rs", "mod x; mod y; pub(crate) use y::inner::Y;"),
            ("a/src/y/inner.rs", ""),
        ];
        assert_eq!(check(&files, &[]), [""; 0]);
        let files = [
            ("a/src/x.rs", "mod part; use part::f; pub fn g() {}"),
            ("a/src/x/part.rs", "use super::g;"),
        ];
        assert_eq!(
            check(&files, &[]),
            ["a/src/x.rs:1: is in a circle with a/src/x/part.rs"]
        );
    }

    #[test]
    fn a_circle_is_allowed_by_the_names_of_all_of_its_files() {
        assert_eq!(check(&CIRCLE, &[("a/src", "x y")]), [""; 0]);
        let over = "a/src/x.rs:1: the list of circles has one with a/src/y.rs, which is none";
        let one_way = [CIRCLE[0], ("a/src/y.rs", "")];
        assert_eq!(check(&one_way, &[("a/src", "x y")]), [over]);
    }
}
