//! Allowed uses between the modules of a crate: its layers, and what breaks them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::tree::{File, Finding, Tree};
use super::uses::{Use, modules, uses};

/// A crate in layers. Each uses only those below it.
#[derive(Debug)]
pub(super) struct Layers {
    /// The folder of its sources.
    pub(super) source: &'static str,
    /// Names of its top-level modules from top to bottom. `lib.rs` is above all of them.
    pub(super) layers: &'static str,
    /// A layer, and one below it that it must not use.
    pub(super) apart: &'static [(&'static str, &'static str)],
    pub(super) exceptions: &'static [Exception],
}

/// An edge that the layers forbid and that is there.
#[derive(Debug)]
pub(super) struct Exception {
    /// The file that uses it, from the folder of the sources.
    pub(super) from: &'static str,
    /// The layer that it uses.
    pub(super) to: &'static str,
    /// Reason that makes the edge necessary.
    pub(super) why: &'static str,
}

impl Layers {
    fn names(&self) -> impl Iterator<Item = &'static str> + Clone {
        self.layers.split(' ')
    }

    /// The path of a file from the folder of the sources.
    fn inner<'t>(&self, file: &'t File) -> &'t str {
        &file.path[self.source.len() + 1..]
    }

    /// The layer of a file: the name of its top-level module.
    fn of<'t>(&self, file: &'t File) -> &'t str {
        self.inner(file)
            .split(['/', '.'])
            .next()
            .unwrap_or_default()
    }

    /// The uses of one layer by another.
    fn edges<'t>(&self, tree: &'t Tree) -> Vec<Use<'t>> {
        let mut edges = uses(tree, self.source);
        edges.retain(|it| self.of(it.from) != self.of(it.through) && self.of(it.from) != "lib");
        edges
    }

    /// Returns the fault of a use of `to` by `from`, if there is one.
    fn forbidden(&self, from: &str, to: &str) -> Option<String> {
        let height = |name: &str| self.names().position(|layer| layer == name);
        // That the module has no layer is a finding of its own.
        let from_at = height(from)?;
        match height(to) {
            None => Some(format!("{from} uses {to}, which is in no layer below")),
            Some(at) if at < from_at => Some(format!("{from} uses {to}, which is above it")),
            Some(_) => {
                let is_apart = self.apart.contains(&(from, to));
                is_apart.then(|| format!("{from} uses {to}, which it must not"))
            }
        }
    }
}

/// A crate's edges between layers, for its readers.
#[derive(Debug)]
pub(super) struct Drawing {
    source: &'static str,
    rows: Vec<(&'static str, Vec<&'static str>)>,
    exceptions: &'static [Exception],
}

impl fmt::Display for Drawing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.source)?;
        for (layer, uses) in &self.rows {
            writeln!(f, "    {layer:<12} {}", uses.join(" "))?;
        }
        for Exception { from, to, why } in self.exceptions {
            writeln!(f, "    except {from} -> {to}: {why}")?;
        }
        Ok(())
    }
}

/// Edges that point up, modules without a layer, and exceptions that nothing needs any more.
pub(super) fn check(tree: &Tree, table: &Layers) -> Vec<Finding> {
    let mut findings = BTreeSet::new();
    let files = modules(tree, table.source).into_values();
    let layers: BTreeMap<&str, &File> = files.map(|file| (table.of(file), file)).collect();
    for (name, file) in &layers {
        if *name != "lib" && !table.names().any(|layer| layer == *name) {
            let what = format!("module {name} has no row in the table of layers");
            findings.insert(file.finding(1, what));
        }
    }
    for layer in table.names().filter(|layer| !layers.contains_key(layer)) {
        let what = format!("no module {layer}, which is in the table of layers");
        findings.insert(Finding::of(table.source, what));
    }
    let mut needed = BTreeSet::new();
    for edge in table.edges(tree) {
        let (from, to) = (table.inner(edge.from), table.of(edge.through));
        let Some(what) = table.forbidden(table.of(edge.from), to) else {
            continue;
        };
        let exception = |each: &&Exception| each.from == from && each.to == to;
        match table.exceptions.iter().find(exception) {
            Some(exception) => _ = needed.insert((exception.from, exception.to)),
            None => _ = findings.insert(edge.from.finding(edge.line, what)),
        }
    }
    for Exception { from, to, .. } in table.exceptions {
        if !needed.contains(&(*from, *to)) {
            let what = format!("does not use {to}: the exception for it is not needed");
            findings.insert(Finding::of(&format!("{}/{from}", table.source), what));
        }
    }
    findings.into_iter().collect()
}

/// Returns the uses between the layers.
pub(super) fn drawing(tree: &Tree, table: &Layers) -> Drawing {
    let edges: BTreeSet<(&str, &str)> = table
        .edges(tree)
        .iter()
        .map(|it| (table.of(it.from), table.of(it.through)))
        .collect();
    let row = |layer: &'static str| {
        let uses = table.names().filter(|to| edges.contains(&(layer, to)));
        (layer, uses.collect())
    };
    Drawing {
        source: table.source,
        rows: table.names().map(row).collect(),
        exceptions: table.exceptions,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: Layers = Layers {
        source: "crates/a/src",
        layers: "top middle bottom",
        apart: &[],
        exceptions: &[],
    };

    fn tree(middle: &str) -> Tree {
        Tree::made(&[
            ("crates/a/src/lib.rs", "mod top;"),
            ("crates/a/src/top.rs", "use crate::middle::x;"),
            ("crates/a/src/middle/mod.rs", ""),
            ("crates/a/src/middle/part.rs", middle),
            ("crates/a/src/bottom.rs", ""),
        ])
    }

    fn check(table: &Layers, tree: &Tree) -> Vec<String> {
        let findings = super::check(tree, table);
        findings.iter().map(Finding::to_string).collect()
    }

    #[test]
    fn edges_down_and_within_a_layer_are_well_and_others_are_not() {
        let well = "use crate::bottom::{a, b};\nuse crate::middle::c; use super::d;";
        assert_eq!(check(&TABLE, &tree(well)), [""; 0]);
        for (source, what) in [
            ("\nuse crate::top::x;", "middle uses top, which is above it"),
            (
                "\nuse crate::lonely;",
                "middle uses lib, which is in no layer below",
            ),
        ] {
            let expected = format!("crates/a/src/middle/part.rs:2: {what}");
            assert_eq!(check(&TABLE, &tree(source)), [expected]);
        }
    }

    #[test]
    fn modules_in_no_layer_and_rows_without_a_module_are_found() {
        let mut tree = tree("");
        tree.files.pop();
        tree.files
            .extend(Tree::made(&[("crates/a/src/new/part.rs", "")]).files);
        let expected = [
            "crates/a/src:1: no module bottom, which is in the table of layers",
            "crates/a/src/new/part.rs:1: module new has no row in the table of layers",
        ];
        assert_eq!(check(&TABLE, &tree), expected);
    }

    #[test]
    fn layers_that_are_apart_do_not_use_each_other() {
        let table = Layers {
            apart: &[("middle", "bottom")],
            ..TABLE
        };
        let findings = super::check(&tree("use crate::bottom;"), &table);
        assert_eq!(findings[0].what, "middle uses bottom, which it must not");
    }

    #[test]
    fn an_exception_holds_for_its_file_and_only_while_it_is_needed() {
        const EXCEPTIONS: &[Exception] = &[Exception {
            from: "middle/part.rs",
            to: "top",
            why: "",
        }];
        let table = Layers {
            exceptions: EXCEPTIONS,
            ..TABLE
        };
        assert!(super::check(&tree("use crate::top;"), &table).is_empty());
        let findings = super::check(&tree(""), &table);
        let what = "does not use top: the exception for it is not needed";
        assert_eq!(findings[0].what, what);
    }

    #[test]
    fn the_drawing_says_what_each_layer_uses() {
        let drawing = drawing(&tree("use crate::bottom::a;"), &TABLE).to_string();
        let lines: Vec<_> = drawing.lines().map(str::trim).collect();
        let rows = ["top          middle", "middle       bottom", "bottom"];
        assert_eq!(lines, [&["crates/a/src"], &rows[..]].concat());
    }
}
