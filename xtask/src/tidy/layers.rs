//! Which module of a crate may use which: the layers of each crate, and what breaks them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::lexer::Token;
use super::paths::{code, paths, use_tree};
use super::tree::{File, Finding, Tree};

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
}

/// A use of one top-level module by another one.
#[derive(Debug)]
struct Edge<'t> {
    file: &'t File,
    line: usize,
    from: String,
    to: String,
}

/// A crate's edges between layers, for who reads them.
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
    let known = Crate::of(tree, table.source);
    let mut findings = Vec::new();
    for (name, file) in &known.modules {
        if !table.names().any(|layer| layer == name) {
            let what = format!("module {name} has no row in the table of layers");
            findings.push(file.finding(1, what));
        }
    }
    for layer in table.names() {
        if !known.modules.contains_key(layer) {
            let what = format!("no module {layer}, which is in the table of layers");
            findings.push(Finding {
                path: table.source.to_owned(),
                line: 1,
                what,
            });
        }
    }
    let mut needed = BTreeSet::new();
    for edge in known.edges() {
        let Some(what) = forbidden(table, &edge) else {
            continue;
        };
        let from = &edge.file.path[table.source.len() + 1..];
        let exception = |each: &&Exception| each.from == from && each.to == edge.to;
        match table.exceptions.iter().find(exception) {
            Some(exception) => {
                needed.insert((exception.from, exception.to));
            }
            None => findings.push(edge.file.finding(edge.line, what)),
        }
    }
    for Exception { from, to, .. } in table.exceptions {
        if !needed.contains(&(*from, *to)) {
            findings.push(Finding {
                path: format!("{}/{from}", table.source),
                line: 1,
                what: format!("does not use {to}: the exception for it is not needed"),
            });
        }
    }
    findings.sort();
    findings.dedup();
    findings
}

/// Which layer uses which.
pub(super) fn drawing(tree: &Tree, table: &Layers) -> Drawing {
    let known = Crate::of(tree, table.source);
    let edges = known.edges();
    let row = |layer: &'static str| {
        let uses = |to: &&str| {
            let mut edges = edges.iter();
            edges.any(|edge| edge.from == layer && edge.to == **to)
        };
        (layer, table.names().filter(uses).collect())
    };
    Drawing {
        source: table.source,
        rows: table.names().map(row).collect(),
        exceptions: table.exceptions,
    }
}

/// Returns the fault of `edge`, if there is one.
fn forbidden(table: &Layers, edge: &Edge<'_>) -> Option<String> {
    let Edge { from, to, .. } = edge;
    let height = |name: &str| table.names().position(|layer| layer == name);
    let Some(from_at) = height(from) else {
        return None; // It is reported that the module has no layer.
    };
    match height(to) {
        None => Some(format!(
            "{from} uses crate::{to}, which is in no layer below"
        )),
        Some(to_at) if to_at < from_at => Some(format!("{from} uses {to}, which is above it")),
        Some(_) => {
            let is_apart = table.apart.contains(&(from, to));
            is_apart.then(|| format!("{from} uses {to}, which it must not"))
        }
    }
}

/// The modules of a crate.
struct Crate<'t> {
    /// Every top-level module and its file.
    modules: BTreeMap<String, &'t File>,
    /// What `lib.rs` makes other paths of: the name behind `crate::`, and the path that it stands
    /// for.
    renamed: BTreeMap<String, Vec<String>>,
    /// All files but those of tests, with their modules' paths.
    files: Vec<(&'t File, Vec<String>)>,
}

impl<'t> Crate<'t> {
    fn of(tree: &'t Tree, source: &str) -> Self {
        let mut this = Self {
            modules: BTreeMap::new(),
            renamed: BTreeMap::new(),
            files: Vec::new(),
        };
        for file in &tree.files {
            let Some(inner) = file.path.strip_prefix(source) else {
                continue;
            };
            let Some(inner) = inner
                .strip_prefix('/')
                .and_then(|it| it.strip_suffix(".rs"))
            else {
                continue;
            };
            let path: Vec<String> = inner
                .split('/')
                .filter(|part| *part != "mod")
                .map(str::to_owned)
                .collect();
            if inner == "lib" {
                this.renamed = renamed(&file.text);
                continue;
            }
            if path.iter().any(|part| part == "tests") {
                continue;
            }
            let module = this.modules.entry(path[0].clone()).or_insert(file);
            if path.len() == 1 {
                *module = file;
            }
            this.files.push((file, path));
        }
        this
    }

    /// Uses between different top-level modules, those of tests left out.
    fn edges(&self) -> Vec<Edge<'t>> {
        let mut edges = Vec::new();
        for (file, module) in &self.files {
            let tokens = code(&file.text);
            for (line, path, _) in paths(&tokens, module, |_| false) {
                let Some(to) = self.resolve(&path) else {
                    continue;
                };
                if to != module[0] {
                    edges.push(Edge {
                        file,
                        line,
                        from: module[0].clone(),
                        to,
                    });
                }
            }
        }
        edges
    }

    /// The top-level module that `path` leads to; `None` if it leads to another crate.
    fn resolve(&self, path: &[String]) -> Option<String> {
        let mut first = path.first()?;
        // A new name may be made of a new name; they cannot go round in a crate that builds.
        for _ in 0..self.renamed.len() {
            if self.modules.contains_key(first) {
                break;
            }
            match self.renamed.get(first) {
                Some(target) => first = &target[0],
                None => return (first == &path[0]).then(|| first.clone()),
            }
        }
        Some(first.clone())
    }
}

/// The names that the `use` items of `lib.rs` make, with what they stand for.
fn renamed(lib: &str) -> BTreeMap<String, Vec<String>> {
    let tokens = code(lib);
    let mut names = BTreeMap::new();
    for (at, token) in tokens.iter().enumerate() {
        if !token.is("use") {
            continue;
        }
        let mut leaves = Vec::new();
        let is_own = |token: &Token<'_>| token.is("crate") || token.is("self");
        let skipped = if tokens.get(at + 1).is_some_and(is_own) {
            4
        } else {
            1
        };
        use_tree(&tokens, at + skipped, &[], &mut leaves);
        for (_, path, name) in leaves {
            if let Some(name) = name.or_else(|| path.last().cloned()) {
                names.insert(name, path);
            }
        }
    }
    names
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
            (
                "crates/a/src/lib.rs",
                "mod top;\npub use top::{inner, Other as Renamed};\n\
                 pub use {inner::Thing, outer::Far};",
            ),
            ("crates/a/src/top.rs", "use crate::middle::x;"),
            ("crates/a/src/middle/mod.rs", ""),
            ("crates/a/src/middle/part.rs", middle),
            ("crates/a/src/bottom.rs", ""),
        ])
    }

    fn check(middle: &str) -> Vec<String> {
        let findings = super::check(&tree(middle), &TABLE);
        findings.iter().map(Finding::to_string).collect()
    }

    fn up(line: usize) -> Vec<String> {
        let file = "crates/a/src/middle/part.rs";
        vec![format!("{file}:{line}: middle uses top, which is above it")]
    }

    #[test]
    fn edges_down_and_within_a_layer_are_well() {
        assert!(
            check("use crate::bottom::{a, b};\nuse crate::middle::c; use super::d;").is_empty()
        );
    }

    #[test]
    fn an_edge_up_is_found_however_it_is_written() {
        for source in [
            "\nuse crate::top::x;",
            "\nuse crate::{bottom, top::{self, x}, middle};",
            "\nuse crate::{\n top};",
            "\nuse super::super::top;",
            "\nfn f() { crate::top::x() }",
            "\nfn f() { crate::top::x::<u8>() }",
            "\nuse crate::top::*;",
            "\nuse crate::Thing;",
            "\nuse crate::{Renamed as Again};",
            "\nmacro_rules! m { () => { $crate::top::x() } }",
            "\nmod inner { use super::super::super::top::x; }",
        ] {
            let line = if source.contains(" top}") { 3 } else { 2 };
            assert_eq!(check(source), up(line), "{source}");
        }
    }

    #[test]
    fn comments_strings_tests_and_visibilities_are_no_edges() {
        for source in [
            "// crate::top::x",
            "/// See [`crate::top`].\nfn f() {}",
            "const S: &str = \"crate::top::x\";",
            "#[cfg(test)]\nmod tests { use crate::top::x; fn f() {} }",
            "#[cfg(test)] use crate::top::x;",
            "pub(in crate::top) fn f() {}",
            "pub(crate) fn f() {}",
            "crate::a_macro!(top);",
            "use crate::Far;",
            "mod inner { use super::super::top; }",
        ] {
            assert_eq!(check(source), [""; 0], "{source}");
        }
    }

    #[test]
    fn code_behind_tests_is_looked_at() {
        assert_eq!(
            check("#[cfg(test)]\nmod tests { fn f() { g([1]); } }\nuse crate::top;"),
            up(3)
        );
    }

    #[test]
    fn modules_in_no_layer_are_found() {
        assert_eq!(
            check("use crate::lonely;"),
            [
                "crates/a/src/middle/part.rs:1: middle uses crate::lonely, which is in no layer \
                 below"
            ]
        );
        let mut tree = tree("");
        tree.files.push(File {
            path: "crates/a/src/new/part.rs".to_owned(),
            text: String::new(),
        });
        let findings = super::check(&tree, &TABLE);
        assert_eq!(
            findings[0].what,
            "module new has no row in the table of layers"
        );
    }

    #[test]
    fn a_row_without_a_module_is_found() {
        let mut tree = tree("");
        tree.files.pop();
        let findings = super::check(&tree, &TABLE);
        assert_eq!(
            findings[0].what,
            "no module bottom, which is in the table of layers"
        );
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
        assert_eq!(
            findings[0].what,
            "does not use top: the exception for it is not needed"
        );
    }

    #[test]
    fn the_drawing_says_what_each_layer_uses() {
        let drawing = drawing(&tree("use crate::bottom::a;"), &TABLE).to_string();
        let lines: Vec<_> = drawing.lines().map(|line| line.trim()).collect();
        assert_eq!(
            lines,
            [
                "crates/a/src",
                "top          middle",
                "middle       bottom",
                "bottom"
            ]
        );
    }
}
