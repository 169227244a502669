//! The paths in a source file that lead to other modules and crates.

use super::lexer::{self, Kind, Token};

/// The tokens of `source` without its comments, its literals and what is for tests only.
pub(super) fn code(source: &str) -> Vec<Token<'_>> {
    let mut tokens = lexer::tokens(source);
    tokens.retain(|token| matches!(token.kind, Kind::Word | Kind::HazardSlot));
    let mut kept = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while at < tokens.len() {
        let is_test = ["#", "[", "cfg", "(", "test", ")", "]"]
            .iter()
            .zip(&tokens[at..])
            .filter(|(text, token)| token.is(text))
            .count()
            == 7;
        if is_test {
            at = end_of_item(&tokens, at + 7);
        } else {
            kept.push(tokens[at]);
            at += 1;
        }
    }
    kept
}

/// Behind the item that begins at `at`: behind its block, or its semicolon.
fn end_of_item(tokens: &[Token<'_>], mut at: usize) -> usize {
    let mut depth = 0usize;
    while at < tokens.len() {
        match tokens[at].text {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => {
                depth = depth.saturating_sub(1);
                if depth == 0 && tokens[at].text == "}" {
                    return at + 1;
                }
            }
            ";" if depth == 0 => return at + 1,
            _ => {}
        }
        at += 1;
    }
    at
}

/// All paths in `tokens` that lead into the crate from the file of `module`, each from the crate's
/// root, with the line it begins in. `is_child` says whether a name is that of a module below it.
pub(super) fn paths(
    tokens: &[Token<'_>],
    module: &[String],
    is_child: impl Fn(&str) -> bool,
) -> Vec<Leaf> {
    let mut found = Vec::new();
    // Modules written in this file that the current token is in, with the depth of their braces.
    let mut inner: Vec<(String, usize)> = Vec::new();
    let mut depth = 0;
    let is_path = |at: usize| {
        let mut next = tokens[at..].iter();
        next.next().is_some_and(|token| token.is(":"))
            && next.next().is_some_and(|token| token.is(":"))
    };
    let mut at = 0;
    while at < tokens.len() {
        let token = tokens[at];
        let goes_on = at > 0 && [":", ".", "in"].iter().any(|mark| tokens[at - 1].is(mark));
        let is_start = match token.text {
            "{" => {
                if at >= 2 && tokens[at - 2].is("mod") {
                    inner.push((tokens[at - 1].text.to_owned(), depth));
                }
                depth += 1;
                false
            }
            "}" => {
                depth = usize::saturating_sub(depth, 1);
                inner.pop_if(|(_, outer)| *outer == depth);
                false
            }
            "crate" | "super" | "self" => is_path(at + 1),
            name => {
                token.kind == Kind::Word && inner.is_empty() && is_child(name) && is_path(at + 1)
            }
        };
        if !is_start || goes_on && !token.is("crate") {
            at += 1;
            continue;
        }
        let is_visibility = at > 0 && tokens[at - 1].is("in");
        let mut prefix: Vec<String> = module.to_vec();
        prefix.extend(inner.iter().map(|(name, _)| name.clone()));
        while at < tokens.len() && is_path(at + 1) {
            match tokens[at].text {
                "crate" => prefix.clear(),
                "super" => drop(prefix.pop()),
                "self" => {}
                _ => break,
            }
            at += 3;
        }
        let mut leaves = Vec::new();
        at = use_tree(tokens, at, &prefix, &mut leaves);
        let is_macro = tokens.get(at).is_some_and(|token| token.is("!"));
        if !is_macro && !is_visibility {
            found.extend(leaves);
        }
    }
    found
}

/// The paths of the `use` items in `tokens` that lead to other crates. `is_child` says whether a
/// name is that of a module below.
pub(super) fn imports(tokens: &[Token<'_>], is_child: impl Fn(&str) -> bool) -> Vec<Leaf> {
    let mut leaves = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let Some(first) = tokens.get(at + 1).filter(|_| token.is("use")) else {
            continue;
        };
        let is_own = ["crate", "self", "super"].contains(&first.text) || is_child(first.text);
        if !is_own {
            use_tree(tokens, at + 1, &[], &mut leaves);
        }
    }
    leaves
}

/// A path at the end of a `use`: its line, its parts, and its new name.
pub(super) type Leaf = (usize, Vec<String>, Option<String>);

/// Reads the tree of a `use`, or a plain path, at `at`, and returns where it ends.
pub(super) fn use_tree(
    tokens: &[Token<'_>],
    mut at: usize,
    prefix: &[String],
    leaves: &mut Vec<Leaf>,
) -> usize {
    let mut path = prefix.to_vec();
    while let Some(token) = tokens.get(at) {
        if token.is("{") {
            at += 1;
            while let Some(token) = tokens.get(at) {
                match token.text {
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
        let is_part = token.kind == Kind::Word || token.is("*");
        if !is_part {
            // It goes on by other means: `a::b::<T>`.
            if path.len() > prefix.len() {
                leaves.push((token.line, path, None));
            }
            return at;
        }
        if !token.is("self") && !token.is("*") {
            path.push(token.text.to_owned());
        }
        let line = token.line;
        at += 1;
        let goes_on = |at: usize| tokens.get(at).is_some_and(|token| token.is(":"));
        if goes_on(at) && goes_on(at + 1) {
            at += 2;
            continue;
        }
        let mut name = None;
        if tokens.get(at).is_some_and(|token| token.is("as")) {
            name = tokens.get(at + 1).map(|token| token.text.to_owned());
            at += 2;
        }
        leaves.push((line, path, name));
        return at;
    }
    at
}
