//! Uses between the files of a crate: by paths, and by names that modules hand on.

use std::collections::BTreeMap;

use super::tokens::{Token, code};
use super::tree::{File, Tree};

/// A path from the root of a crate, or the path of a module there.
type Path = Vec<String>;

/// A use of a file by another one of its crate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use<'t> {
    pub(super) from: &'t File,
    pub(super) line: usize,
    /// The file that the path names; the root's names count as what they stand for.
    pub(super) through: &'t File,
    /// The file that has what the path leads to, if it is in this crate.
    pub(super) to: Option<&'t File>,
}

/// The files of the crate at `source` by their modules, but those of tests and of other programs.
pub(super) fn modules<'t>(tree: &'t Tree, source: &str) -> BTreeMap<Path, &'t File> {
    let module = |file: &'t File| {
        let inner = file.path.strip_prefix(source)?.strip_prefix('/')?;
        let inner = inner.strip_suffix(".rs")?;
        let is_root = inner == "lib" || inner == "main";
        let parts = inner.split('/').filter(|part| !is_root && *part != "mod");
        let path: Path = parts.map(str::to_owned).collect();
        let is_apart = path.iter().any(|part| part == "tests" || part == "bin");
        (!is_apart).then_some((path, file))
    };
    tree.files.iter().filter_map(module).collect()
}

/// The uses between the files of the crate at `source`, those of tests left out.
pub(super) fn uses<'t>(tree: &'t Tree, source: &str) -> Vec<Use<'t>> {
    let modules = modules(tree, source);
    let found: BTreeMap<&Path, Found> = modules
        .iter()
        .map(|(module, file)| (module, Found::of(file, module, &modules)))
        .collect();
    // The file that a path names, and the one that has what it leads to.
    let resolve = |path: &Path| {
        let (mut path, mut through) = (path.clone(), None);
        // Names may be handed on by several modules, but not in a circle.
        for _ in 0..modules.len() {
            let mut lengths = (0..=path.len()).rev();
            let len = lengths.find(|&len| modules.contains_key(&path[..len]))?;
            let (module, rest) = path.split_at(len);
            let file = modules[module];
            if !module.is_empty() {
                through.get_or_insert(file);
            }
            let names = &found[&module.to_vec()].names;
            let own = |name| [module, std::slice::from_ref(name)].concat();
            let target = match rest.first().and_then(|name| Some((name, names.get(name)?))) {
                Some((name, Name::Path(target))) if *target != own(name) => target.clone(),
                Some((name, Name::Import(target))) => {
                    if !names.contains_key(&target[0]) || *name == target[0] {
                        return Some((through?, None));
                    }
                    [module, target].concat()
                }
                _ => return Some((through.unwrap_or(file), Some(file))),
            };
            path = [&target, &rest[1..]].concat();
        }
        None
    };
    let mut uses = Vec::new();
    for (module, found) in &found {
        for (line, path) in &found.paths {
            uses.extend(resolve(path).map(|(through, to)| Use {
                from: modules[*module],
                line: *line,
                through,
                to,
            }));
        }
    }
    uses
}

/// Meaning of a name.
#[derive(Debug)]
enum Name {
    /// Something of this crate.
    Path(Path),
    /// A path that begins with another name of the module, or else with that of another crate.
    Import(Path),
}

/// The paths in a file, each with its line, and the names that its `use` items make.
#[derive(Debug, Default)]
struct Found {
    paths: Vec<(usize, Path)>,
    names: BTreeMap<String, Name>,
}

impl Found {
    fn of(file: &File, module: &Path, modules: &BTreeMap<Path, &File>) -> Self {
        let is_child =
            |name: &str| modules.contains_key(&[module, &[name.to_owned()][..]].concat());
        let tokens = code(&file.text);
        let mut found = Self::default();
        for (_, path, name) in imports(&tokens, is_child) {
            if let Some(name) = name.or_else(|| path.last().cloned()) {
                found.names.insert(name, Name::Import(path));
            }
        }
        for (line, path, name) in paths(&tokens, module, is_child) {
            if let Some(name) = name.or_else(|| path.last().cloned()) {
                found.names.insert(name, Name::Path(path.clone()));
            }
            found.paths.push((line, path));
        }
        found
    }
}

/// True for the token at `at`, if it has this text.
fn is(tokens: &[Token], at: usize, text: &str) -> bool {
    tokens.get(at).is_some_and(|token| token.text == text)
}

/// True if a path goes on at `at`.
fn goes_on(tokens: &[Token], at: usize) -> bool {
    is(tokens, at, ":") && is(tokens, at + 1, ":")
}

/// All paths in `tokens` that lead into the crate from the file of `module`, each from the crate's
/// root. `is_child` says whether a name is that of a module below it.
fn paths(tokens: &[Token], module: &[String], is_child: impl Fn(&str) -> bool) -> Vec<Leaf> {
    let mut found = Vec::new();
    // Modules written in this file that the current token is in, with the depth of their braces.
    let mut inner: Vec<(String, usize)> = Vec::new();
    let mut depth = 0;
    let mut at = 0;
    while at < tokens.len() {
        let text = &*tokens[at].text;
        let is_behind = |mark: &str| at > 0 && is(tokens, at - 1, mark);
        let is_start = match text {
            "{" => {
                if at >= 2 && is(tokens, at - 2, "mod") {
                    inner.push((tokens[at - 1].text.clone(), depth));
                }
                depth += 1;
                false
            }
            "}" => {
                depth = usize::saturating_sub(depth, 1);
                inner.pop_if(|(_, outer)| *outer == depth);
                false
            }
            "crate" => true,
            "super" | "self" => !is_behind(":") && !is_behind("."),
            name => inner.is_empty() && is_child(name) && !is_behind(":") && !is_behind("."),
        };
        if !is_start || !goes_on(tokens, at + 1) || is_behind("in") && text != "crate" {
            at += 1;
            continue;
        }
        let is_visibility = is_behind("in");
        let mut prefix = module.to_vec();
        prefix.extend(inner.iter().map(|(name, _)| name.clone()));
        while goes_on(tokens, at + 1) {
            match &*tokens[at].text {
                "crate" => prefix.clear(),
                "super" => drop(prefix.pop()),
                "self" => {}
                _ => break,
            }
            at += 3;
        }
        let mut leaves = Vec::new();
        at = use_tree(tokens, at, &prefix, &mut leaves);
        if !is(tokens, at, "!") && !is_visibility {
            found.extend(leaves);
        }
    }
    found
}

/// The paths of the `use` items in `tokens` that begin with no module of this crate. `is_child`
/// says whether a name is that of a module below.
fn imports(tokens: &[Token], is_child: impl Fn(&str) -> bool) -> Vec<Leaf> {
    let mut leaves = Vec::new();
    for at in (1..tokens.len()).filter(|at| is(tokens, at - 1, "use")) {
        let first = &*tokens[at].text;
        if !["crate", "self", "super"].contains(&first) && !is_child(first) {
            use_tree(tokens, at, &[], &mut leaves);
        }
    }
    leaves.retain(|(_, path, _)| !path.is_empty());
    leaves
}

/// A path at the end of a `use`: its line, its parts, and its new name.
type Leaf = (usize, Path, Option<String>);

/// Reads the tree of a `use`, or a plain path, at `at`, and returns where it ends.
fn use_tree(tokens: &[Token], mut at: usize, prefix: &[String], leaves: &mut Vec<Leaf>) -> usize {
    let mut path = prefix.to_vec();
    while let Some(token) = tokens.get(at) {
        if token.text == "{" {
            at += 1;
            while let Some(token) = tokens.get(at) {
                match &*token.text {
                    "}" => return at + 1,
                    "," => at += 1,
                    _ => {
                        let end = use_tree(tokens, at, &path, leaves);
                        if end == at {
                            return at; // No tree of a `use`.
                        }
                        at = end;
                    }
                }
            }
            return at;
        }
        if !token.is_word() && token.text != "*" {
            // It goes on by other means: `a::b::<T>`.
            if path.len() > prefix.len() {
                leaves.push((token.line, path, None));
            }
            return at;
        }
        if token.text != "self" && token.text != "*" {
            path.push(token.text.clone());
        }
        at += 1;
        if goes_on(tokens, at) {
            at += 2;
            continue;
        }
        let mut name = None;
        if is(tokens, at, "as") {
            name = tokens.get(at + 1).map(|token| token.text.clone());
            at += 2;
        }
        leaves.push((token.line, path, name));
        return at;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The uses by the module `x` with this source, in a crate with other modules.
    fn used(source: &str) -> Vec<(usize, String)> {
        let root = "mod x; mod y;\npub use y::{inner, Other as Renamed};\n\
                    pub use {inner::Thing, outer::Far};";
        let tree = Tree::made(&[
            ("a/src/lib.rs", root),
            ("a/src/x.rs", source),
            ("a/src/y.rs", "mod inner; pub use other::Foreign;"),
            ("a/src/y/inner.rs", ""),
        ]);
        let uses = uses(&tree, "a/src").into_iter();
        let is_one = |it: &Use<'_>| it.from.path == "a/src/x.rs" && it.through.path != it.from.path;
        let ours = uses.filter(is_one);
        ours.map(|it| {
            let to = it
                .to
                .map_or("another crate", |to| &to.path["a/src/".len()..]);
            (it.line, to.to_owned())
        })
        .collect()
    }

    #[test]
    fn a_use_is_found_however_it_is_written() {
        for source in [
            "\nuse crate::y::x;",
            "\nuse crate::{x, y::{self, x}};",
            "\nuse crate::{\n y};",
            "\nuse super::y;",
            "\nfn f() { crate::y::x() }",
            "\nfn f() { crate::y::x::<u8>() }",
            "\ntype T = super::y::X<u8>;",
            "\nuse crate::y::*;",
            "\nuse crate::{Renamed as Again};",
            "\nmacro_rules! m { () => { $crate::y::x() } }",
            "\nmod part { use super::super::y::x; }",
            "#[cfg(test)]\nmod tests { fn f() { g([1]); } } use crate::y;",
        ] {
            let line = if source.contains(" y}") { 3 } else { 2 };
            let found = used(source);
            assert!(
                found.contains(&(line, "y.rs".to_owned())),
                "{source}: {found:?}"
            );
        }
        let used = |source| used(source).pop().map(|(_, to)| to);
        assert_eq!(used("use crate::Thing;").as_deref(), Some("y/inner.rs"));
        // The module hands on what another crate has.
        assert_eq!(
            used("use crate::y::Foreign;").as_deref(),
            Some("another crate")
        );
    }

    #[test]
    fn comments_strings_tests_visibilities_macros_and_other_crates_are_no_uses() {
        for source in [
            "// crate::y::x",
            "/// See [`crate::y`].\nfn f() {}",
            "const S: &str = \"crate::y::x\";",
            "#[cfg(test)]\nmod tests { use crate::y::x; fn f() {} }",
            "#[cfg(test)] use crate::y::x;",
            "pub(in crate::y) fn f() {}",
            "pub(crate) fn f() {}",
            "crate::a_macro!(y);",
            "use crate::Far;",
            "mod inner { use super::y; }",
        ] {
            assert_eq!(used(source), [], "{source}");
        }
    }
}
