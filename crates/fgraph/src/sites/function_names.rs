//! The names of functions as programmers know them.

use core::fmt::Write as _;

use fgraph_symbols::demangle;
use fgraph_symbols::functions::{Functions, Name};

use super::names::Names;
use super::planners::Planners;

/// Returns the best name of a function in the symbol table; empty if it has none.
pub(super) fn symbol<'a>(functions: &Functions<'a>, index: usize) -> &'a str {
    let name = functions.names(index).next();
    name.map_or("", |name| name.symbol)
}

/// Returns a path without its directories.
pub(super) fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Writes the best name of a function of the module at `path`: `module+0x1234`, with its address in
/// the file, if it has none.
pub(super) fn write_name(
    functions: &Functions<'_>,
    index: Option<usize>,
    path: &str,
    address: u64,
    out: &mut String,
) {
    let symbol = index.map_or("", |index| symbol(functions, index));
    if symbol.is_empty() {
        // Writing to a string does not fail.
        let _ = write!(out, "{}+{address:#x}", file_name(path));
    } else {
        demangle::demangle_to(symbol, out);
    }
}

/// The names of all functions of the module at `path` that symbol tables have, by index.
pub(super) fn all_names(functions: &Functions<'_>, path: &str, planners: Planners) -> Names {
    let all: Vec<usize> = (0..functions.len()).collect();
    Names::joined(planners.split(&all, |part| {
        let mut written = Names::with_capacity(part.len());
        let mut names = Vec::new();
        for &index in part {
            names.clear();
            names.extend(functions.names(index));
            match names.is_empty() {
                true => written.push(core::iter::empty()),
                false => written.push_written(written_names(functions, path, index, &names)),
            }
        }
        written
    }))
}

/// Returns the names of a function of the module at `path` as programmers know them, the best
/// first; those with a version come last.
pub(super) fn names_of(functions: &Functions<'_>, path: &str, index: usize) -> Vec<String> {
    let names: Vec<_> = functions.names(index).collect();
    let names = written_names(functions, path, index, &names).map(|write| {
        let mut name = String::new();
        write(&mut name);
        name
    });
    names.collect()
}

/// Returns the [`names_of`] a function with these names in symbol tables, each as a function that
/// appends it to a text.
pub(super) fn written_names<'a>(
    functions: &'a Functions<'a>,
    path: &'a str,
    index: usize,
    names: &'a [Name<'a>],
) -> impl Iterator<Item = impl FnOnce(&mut String)> {
    #[derive(Clone, Copy)]
    enum Form {
        Source,
        WithVersion,
    }
    let plain = names.iter().map(|name| Some((name, Form::Source)));
    let versioned = names.iter().filter(|name| name.version.is_some());
    let versioned = versioned.map(|name| Some((name, Form::WithVersion)));
    let unnamed = names.is_empty().then_some(None);
    let all = plain.chain(versioned).chain(unnamed);
    all.map(move |name| {
        move |text: &mut String| match name {
            Some((name, Form::Source)) => demangle::demangle_to(name.symbol, text),
            // Writing to a string does not fail.
            Some((name, Form::WithVersion)) => _ = write!(text, "{name}"),
            None => {
                let address = functions.get(index).address;
                write_name(functions, Some(index), path, address, text);
            }
        }
    })
}
