//! Files of a crate that use each other in a circle.

use std::collections::{BTreeMap, BTreeSet};

use super::paths::{code, imports, paths};
use super::tree::{File, Finding, Tree};

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
    let finding = |path: &str, what| Finding {
        path: path.to_owned(),
        line: 1,
        what,
    };
    let all: Vec<Vec<&str>> = sources(tree)
        .iter()
        .flat_map(|source| circles(&uses(tree, source)))
        .collect();
    let is_new = |circle: &&Vec<&str>| !allowed.iter().any(|it| it == *circle);
    let new = all.iter().filter(is_new).map(|circle| {
        let others = circle[1..].join(" ");
        finding(circle[0], format!("is in a circle with {others}"))
    });
    let is_over = |allowed: &&Vec<String>| !all.iter().any(|circle| *allowed == circle);
    let over = allowed.iter().filter(is_over).map(|allowed| {
        let others = allowed[1..].join(" ");
        let what = format!("the list of circles has one with {others}, which is none");
        finding(&allowed[0], what)
    });
    new.chain(over).collect()
}

/// The folders of the sources of all crates.
fn sources(tree: &Tree) -> Vec<&str> {
    let roots = ["/lib.rs", "/main.rs"];
    let folder = |path: &'_ str| {
        let source = roots.iter().find_map(|root| path.strip_suffix(root))?;
        let is_source = source.ends_with("/src") || source == "src";
        is_source.then_some(source.len())
    };
    let found = tree.files.iter().filter_map(|file| {
        let len = folder(&file.path)?;
        Some(&file.path[..len])
    });
    let found: BTreeSet<&str> = found.collect();
    found.into_iter().collect()
}

/// Which file of the crate at `source` uses which: by paths, and by names that a module hands on.
fn uses<'t>(tree: &'t Tree, source: &str) -> Uses<'t> {
    let mut modules: BTreeMap<Vec<String>, &File> = BTreeMap::new();
    for file in &tree.files {
        if let Some(module) = module_of(&file.path, source) {
            modules.insert(module, file);
        }
    }
    /// The paths in a file, and the names that its `use` items make, each with what it stands for,
    /// if that is in this crate.
    type Found = (Vec<Vec<String>>, BTreeMap<String, Option<Vec<String>>>);
    let mut found: BTreeMap<&Vec<String>, Found> = BTreeMap::new();
    for (module, file) in &modules {
        let is_child = |name: &str| {
            let mut child = module.clone();
            child.push(name.to_owned());
            modules.contains_key(&child)
        };
        let (mut all, mut names) = (Vec::new(), BTreeMap::new());
        let tokens = code(&file.text);
        for (_, path, name) in imports(&tokens, is_child) {
            names.extend(
                name.or_else(|| path.last().cloned())
                    .map(|name| (name, None)),
            );
        }
        for (_, path, renamed) in paths(&tokens, module, is_child) {
            if let Some(name) = renamed.or_else(|| path.last().cloned()) {
                names.insert(name, Some(path.clone()));
            }
            all.push(path);
        }
        found.insert(module, (all, names));
    }
    // The file that has what a path leads to.
    let resolve = |path: &[String]| {
        let mut path = path.to_vec();
        // Names may be handed on by several modules, but not in a circle.
        for _ in 0..modules.len() {
            let len = (0..=path.len()).rev();
            let len = len
                .clone()
                .find(|&len| modules.contains_key(&path[..len]))?;
            let (module, rest) = path.split_at(len);
            let module = module.to_vec();
            let handed_on = rest.first().and_then(|name| found[&module].1.get(name));
            match handed_on {
                Some(None) => return None,
                Some(Some(target)) if *target != path[..=len] => {
                    path = [target, &rest[1..]].concat();
                }
                _ => return Some(modules[&module]),
            }
        }
        None
    };
    let mut uses = Uses::new();
    for (module, (paths, _)) in &found {
        let from = modules[*module].path.as_str();
        let used = paths.iter().filter_map(|path| resolve(path));
        let used = used.map(|file| file.path.as_str());
        uses.insert(from, used.filter(|to| *to != from).collect());
    }
    uses
}

/// The module that a file of the crate at `source` is, from the crate's root; `None` if it is for
/// tests only, or no module.
fn module_of(path: &str, source: &str) -> Option<Vec<String>> {
    let inner = path.strip_prefix(source)?.strip_prefix('/')?;
    let inner = inner.strip_suffix(".rs")?;
    let parts: Vec<String> = inner.split('/').map(str::to_owned).collect();
    let is_root = |name: &str| ["lib", "main"].contains(&name) && parts.len() == 1;
    let parts = parts.iter().filter(|part| !is_root(part) && *part != "mod");
    let parts: Vec<String> = parts.cloned().collect();
    let is_apart = |part: &String| part == "tests" || part == "bin";
    (!parts.iter().any(is_apart)).then_some(parts)
}

/// The files that lead to each other, those of a circle in order.
fn circles<'t>(uses: &Uses<'t>) -> Vec<Vec<&'t str>> {
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
    let mut circles: BTreeSet<Vec<&str>> = BTreeSet::new();
    for (file, seen) in &reached {
        let circle = seen.iter().copied().filter(|other| leads(other, file));
        let circle: Vec<&str> = circle.collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
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

    const CIRCLE: &str = "a/src/x.rs:1: is in a circle with a/src/y.rs";

    #[test]
    fn files_that_use_each_other_are_a_circle_however_it_is_written() {
        for (x, y) in [
            ("use crate::y::Y;", "use super::x::X;"),
            ("use super::{y::{self, Y}};", "fn f() { crate::x::g() }"),
            ("use crate::y;", "type T = super::x::X<u8>;"),
        ] {
            let files = [("a/src/x.rs", x), ("a/src/y.rs", y)];
            assert_eq!(check(&files, &[]), [CIRCLE], "{x} {y}");
        }
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
    fn a_name_that_the_root_hands_on_from_another_crate_is_no_arrow() {
        let files = [
            ("a/src/x.rs", "use crate::Far;"),
            (
                "a/src/lib.rs",
                "mod x; pub use other::{near, Far}; pub use x::X;",
            ),
        ];
        assert_eq!(check(&files, &[]), [""; 0]);
    }

    #[test]
    fn arrows_in_one_direction_and_those_of_tests_are_no_circle() {
        let tests = "#[cfg(test)] mod tests { use crate::x::X; }";
        let files = [("a/src/x.rs", "use crate::y::Y;"), ("a/src/y.rs", tests)];
        assert_eq!(check(&files, &[]), [""; 0]);
    }

    #[test]
    fn a_circle_is_allowed_by_the_names_of_all_of_its_files() {
        let files = [
            ("a/src/x.rs", "use crate::y::Y;"),
            ("a/src/y.rs", "use crate::x::X;"),
        ];
        assert_eq!(check(&files, &[("a/src", "x y")]), [""; 0]);
        let over = "a/src/x.rs:1: the list of circles has one with a/src/y.rs, which is none";
        let one_way = [("a/src/x.rs", "use crate::y::Y;"), ("a/src/y.rs", "")];
        assert_eq!(check(&one_way, &[("a/src", "x y")]), [over]);
    }
}
