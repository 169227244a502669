//! Patterns that match no function, and suggestions of similar names.
//!
//! A program says which words of its filter match no function when recording begins. Functions that
//! were called are known by their names. For others the files of the modules are read, and only if
//! a pattern matches no function that was called.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use fgraph_analysis::python::PYTHON;
use fgraph_symbols::demangle;
use fgraph_symbols::elf::ElfFile;
use fgraph_symbols::filter::{Filter, FunctionFacts, Matcher};
use fgraph_symbols::functions::Functions;
use fgraph_symbols::inlined::InlinedAt;
use fgraph_trace::Source as _;
use fgraph_trace::names::{DescriptionKind, FunctionName, ModuleName, Names};
use strsim::osa_distance;

use crate::error::Error;
use crate::inlined;
use crate::input::View;
use crate::sources;
use crate::target::{Pattern, parse_patterns};
use crate::text::{escaped, file_name, named};

/// The most names that are suggested for one pattern.
const NEAR: usize = 3;
/// The most edits by which a suggested name differs.
const MAX_EDITS: usize = 3;

/// The patterns that select no function of a program, or not all that they name.
#[derive(Debug, Default)]
pub(crate) struct Unmatched {
    /// A line about each.
    pub(crate) messages: Vec<String>,
    /// True if there are patterns, and none selects a function.
    pub(crate) is_all: bool,
}

/// Returns the patterns that match no function of a program when its recording begins.
pub(crate) fn at_first(patterns: &[Pattern], names: &Names) -> Vec<Pattern> {
    let words = names.descriptions().iter();
    let words = words.filter(|it| it.kind == DescriptionKind::Unmatched);
    let words: HashSet<&str> = words.map(|it| it.texts[0].as_str()).collect();
    let is_unmatched = |search: &Search<'_>| {
        let matcher = Matcher::new(&search.filter);
        // Python's functions are known once they are called.
        !search.pattern.is_of_python() && matcher.words().all(|word| words.contains(&*word))
    };
    let all = Search::all(patterns).into_iter();
    let unmatched = all.filter(is_unmatched);
    unmatched.map(|search| search.pattern.clone()).collect()
}

/// Reports the functions that patterns name and that are inlined, and the patterns that match no
/// function of the loaded modules. `begun` has the number of calls of each function of a process,
/// if that is known. `is_running` is true while libraries may be loaded.
pub(crate) fn of_program(
    patterns: &[Pattern],
    program: &str,
    names: &Names,
    begun: Option<&HashMap<(u32, u32), u64>>,
    is_running: bool,
) -> Unmatched {
    let mut open = Search::all(patterns);
    let all = open.len();
    let (mut messages, inlined) = of_inlined(&open, names, begun);
    for (_, _, function) in names.functions() {
        open.retain(|search| !search.matches(&[&function.name], &[], &function.module));
    }
    let mut seen = HashSet::new();
    let modules = names.modules().iter();
    for module in modules.filter(|module| seen.insert(&module.path)) {
        if open.is_empty() {
            break;
        }
        look_into(module, &mut open);
    }
    let is_all = all > 0 && open.len() == all && !seen.is_empty();
    open.retain(|search| !inlined.contains(&search.pattern.text));
    // A process without known modules was not recorded, which is reported elsewhere.
    if !seen.is_empty() {
        let files = format!("see `fgraph functions {program}`");
        let message = |search: &Search<'_>| {
            let advice = match search.pattern.is_of_python() {
                true => "Python's functions are known once they are called",
                false => &files,
            };
            let more = match is_running {
                true => " (libraries that are loaded later are searched, too)",
                false => "",
            };
            search.message("", advice) + more
        };
        messages.extend(open.iter().map(message));
    }
    Unmatched { messages, is_all }
}

/// Reports the functions that patterns name and that are inlined in a module. Returns these
/// patterns, too.
///
/// If a pattern matches functions that were called, only their modules are read: another module may
/// have another function of this name.
fn of_inlined(
    open: &[Search<'_>],
    names: &Names,
    begun: Option<&HashMap<(u32, u32), u64>>,
) -> (Vec<String>, HashSet<String>) {
    let named: Vec<&Search<'_>> = open.iter().filter(|it| it.names_function()).collect();
    let called_in: Vec<HashSet<&str>> = named
        .iter()
        .map(|search| {
            let called = names.functions().map(|(_, _, function)| function);
            let called = called.filter(|it| search.matches(&[&it.name], &[], &it.module));
            called.map(|function| function.module.as_str()).collect()
        })
        .collect();
    let (mut messages, mut found) = (Vec::new(), HashSet::new());
    let mut seen = HashSet::new();
    for module in names.modules().iter().filter(|it| seen.insert(&it.path)) {
        let path = module.path.as_str();
        let is_here = |modules: &HashSet<&str>| modules.is_empty() || modules.contains(path);
        let both = named.iter().zip(&called_in);
        let here: Vec<_> = both.filter(|(_, modules)| is_here(modules)).collect();
        if here.is_empty() {
            continue;
        }
        let Some(lines) = sources::lines_of_module(module) else {
            continue;
        };
        let is_wanted = |name: &str, symbol: &str| {
            let mut here = here.iter();
            here.any(|(search, _)| search.matches(&[name], &[symbol], path))
        };
        for (name, places) in inlined::of_file(&lines, is_wanted) {
            let own = begun.map(|begun| {
                let is_it = |it: &FunctionName| it.name == name && it.module == module.path;
                let own = names.functions().filter(|(_, _, function)| is_it(function));
                let own = own.filter_map(|(process, index, _)| begun.get(&(process, index)));
                own.sum()
            });
            let own = own.filter(|own| *own > 0);
            messages.push(inlined::message(&name, &places, own));
            for (search, _) in &here {
                let is_it = |it: &InlinedAt| search.matches(&[&name], &[&it.symbol], path);
                if places.iter().any(is_it) {
                    found.insert(search.pattern.text.clone());
                }
            }
        }
    }
    (messages, found)
}

/// Reports the patterns that match none of some functions, each a name and a module. `place` says
/// where the functions are.
pub(crate) fn of_functions(
    patterns: &[Pattern],
    functions: &[(&str, &str)],
    place: &str,
) -> Vec<String> {
    let mut open = Search::all(patterns);
    for (name, module) in functions {
        open.retain(|search| !search.matches(&[name], &[], module));
    }
    for (name, module) in functions {
        open.iter_mut()
            .for_each(|search| search.compare(name, module));
    }
    let has_python = functions.iter().any(|(_, module)| *module == PYTHON);
    let message = |search: &Search<'_>| {
        let advice = match !has_python && search.pattern.is_of_python() {
            true => "`fgraph record --python` records Python's functions",
            false => "see `fgraph report`",
        };
        search.message(place, advice)
    };
    open.iter().map(message).collect()
}

/// Reports the patterns that match none of some functions, as [`of_functions`] does.
///
/// # Errors
///
/// Fails if there are patterns, and none matches a function.
pub(crate) fn check_functions(
    patterns: &[Pattern],
    functions: &[(&str, &str)],
    place: &str,
) -> Result<(), Error> {
    let mut messages = of_functions(patterns, functions, place);
    let is_all = !messages.is_empty() && messages.len() == Search::all(patterns).len();
    let last = messages.pop_if(|_| is_all);
    for text in messages {
        say!("fgraph: {}", escaped(&text));
    }
    last.map_or(Ok(()), |last| Err(Error::Nothing(last)))
}

/// Does the same for the functions of a recording.
pub(crate) fn check(patterns: &[Pattern], names: &Names) -> Result<(), Error> {
    let functions = names.functions().map(|(_, _, it)| it);
    let functions: Vec<_> = functions
        .map(|it| (it.name.as_str(), it.module.as_str()))
        .collect();
    check_functions(patterns, &functions, " of the recording")
}

/// Does the same as [`check`] for globs, and the part of the recording at `path` that was read.
pub(crate) fn check_globs(globs: &[String], view: &View, path: &Path) -> Result<(), Error> {
    let patterns = globs.iter().flat_map(|glob| parse_patterns(glob));
    let patterns: Vec<_> = patterns.flat_map(|patterns| patterns.0).collect();
    let checked = check(&patterns, view.names());
    // An incomplete recording may lack the functions.
    checked.or_else(|error| view.check_whole(path).and(Err(error)))
}

/// A pattern that has matched nothing until now.
struct Search<'p> {
    pattern: &'p Pattern,
    filter: Filter,
    /// The name to search for, in lower case; empty if the pattern names only a module.
    wanted: String,
    /// Similar names, each with the number of edits, the nearest first.
    near: Vec<(usize, String)>,
}

impl<'p> Search<'p> {
    /// Makes searches for patterns that can match names.
    fn all(patterns: &'p [Pattern]) -> Vec<Self> {
        let is_name = |pattern: &&Pattern| {
            let is_other = pattern.text.starts_with(['!', '+']) || pattern.text.starts_with("0x");
            !is_other && !pattern.text.contains(":syscalls")
        };
        let search = |pattern: &'p Pattern| {
            let word = pattern.words.first()?;
            let name = word.split(":mod:").next().unwrap_or_default();
            Some(Self {
                pattern,
                filter: pattern.words.join(" ").parse().ok()?,
                wanted: name.replace(['*', '?', '"', '\\'], "").to_lowercase(),
                near: Vec::new(),
            })
        };
        patterns.iter().filter(is_name).filter_map(search).collect()
    }

    /// True if the pattern names a function, rather than many by a glob, a module or a crate.
    fn names_function(&self) -> bool {
        let is_one = |word: &String| {
            let name = word.split(":mod:").next().unwrap_or_default();
            !name.is_empty() && !name.contains(['*', '?'])
        };
        self.pattern.words.iter().all(is_one)
    }

    fn matches(&self, names: &[&str], symbols: &[&str], module: &str) -> bool {
        let facts = FunctionFacts::new(names, module).with_symbols(symbols);
        self.filter.matches(&facts)
    }

    /// Keeps a name if it is one of the nearest.
    fn compare(&mut self, name: &str, module: &str) {
        let Some(edits) = self.edits(name) else {
            return;
        };
        let at = self.near.partition_point(|(known, _)| *known <= edits);
        if at == NEAR {
            return;
        }
        let file = file_name(module);
        let name = named(name, file);
        if self.near.iter().all(|(_, known)| *known != name) {
            self.near.insert(at, (edits, name));
            self.near.truncate(NEAR);
        }
    }

    /// Returns the number of edits between this name, or its last part, and the searched one;
    /// `None` if these are too many.
    fn edits(&self, name: &str) -> Option<usize> {
        let wanted = self.wanted.as_str();
        let most = MAX_EDITS.min(wanted.len() / 4).max(1);
        // A single letter is similar to too many names.
        if wanted.len() < 3 {
            return None;
        }
        let last = name.split(['(', '<']).next().unwrap_or(name);
        let last = last.rsplit("::").next().unwrap_or(last);
        let near = [name, last].into_iter().filter_map(|name| {
            if name.len().abs_diff(wanted.len()) > most {
                return None;
            }
            Some(osa_distance(wanted, &name.to_lowercase())).filter(|edits| *edits <= most)
        });
        near.min()
    }

    fn message(&self, place: &str, advice: &str) -> String {
        let least = self.near.first().map_or(0, |(edits, _)| *edits);
        // Nothing is nearer than the same name in another place.
        let near = self
            .near
            .iter()
            .filter(|(edits, _)| least != 0 || *edits == 0);
        let near: Vec<&str> = near.map(|(_, name)| name.as_str()).collect();
        let hint = match near.is_empty() {
            true => advice.to_owned(),
            false => format!("did you mean {}?", near.join(" or ")),
        };
        format!("no function{place} matches '{}'; {hint}", self.pattern.text)
    }
}

/// Returns the names that differ least from a wrong one, if few edits turn one into the other.
pub(crate) fn near<'n>(wrong: &str, names: &[&'n str]) -> Vec<&'n str> {
    let most = MAX_EDITS.min(wrong.len() / 4).max(1);
    let mut near: Vec<_> = names
        .iter()
        .map(|name| {
            (
                osa_distance(&wrong.to_lowercase(), &name.to_lowercase()),
                *name,
            )
        })
        .filter(|(edits, name)| *edits <= most && *edits < name.len())
        .collect();
    near.sort_unstable();
    near.dedup();
    near.into_iter().map(|(_, name)| name).take(NEAR).collect()
}

/// Ends the searches that match a function of a module, and compares the others with its names.
fn look_into(module: &ModuleName, open: &mut Vec<Search<'_>>) {
    let path = module.path.as_str();
    let file = file_name(path);
    // A function without a name is called by its place.
    let unnamed = format!("{file}+0x0");
    open.retain(|search| {
        let is_pasted = search.pattern.text.contains("+0x");
        !is_pasted && !search.matches(&[&unnamed], &[], path)
    });
    let Some(bytes) = sources::bytes_of(module) else {
        return;
    };
    let Ok(elf) = ElfFile::parse(&bytes) else {
        return;
    };
    let debug = sources::debug_bytes_of(&elf);
    let debug = debug.as_ref().and_then(|bytes| ElfFile::parse(bytes).ok());
    let Ok(functions) = Functions::read(&elf, debug.as_ref()) else {
        return;
    };
    for index in 0..functions.len() {
        if open.is_empty() {
            return;
        }
        let mut names = Vec::new();
        let mut symbols = Vec::new();
        for name in functions.names(index) {
            names.push(demangle::to_string(name.symbol));
            symbols.push(name.symbol);
            if name.version.is_some() {
                names.push(name.to_string());
            }
        }
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let Some(best) = names.first() else {
            continue;
        };
        open.retain(|search| !search.matches(&names, &symbols, path));
        open.iter_mut()
            .for_each(|search| search.compare(best, path));
    }
}

#[cfg(test)]
mod tests {
    use fgraph_trace::names::{Description, DescriptionKind};

    use super::*;

    fn names(functions: &[(&str, &str)]) -> Names {
        let mut names = Names::new(1);
        for (index, (name, module)) in (1..).zip(functions) {
            names.add(Description {
                kind: DescriptionKind::Function,
                fields: [1, index, 0x1000 * index, 16],
                texts: [(*name).to_owned(), (*module).to_owned()],
            });
        }
        names
    }

    #[test]
    fn near_names_are_suggested_and_far_ones_are_not() {
        let names = names(&[
            ("malloc", "/lib/libc.so.6"),
            ("free", "/lib/libc.so.6"),
            ("app::parser::parse", "/bin/app"),
            ("Widget::draw(int, char*)", "/bin/app"),
            ("PyObject_GetAttr", "/bin/python"),
        ]);
        let functions = names.functions().map(|(_, _, it)| it);
        let functions: Vec<_> = functions
            .map(|it| (it.name.as_str(), it.module.as_str()))
            .collect();
        let unmatched = |text: &str| {
            let patterns = parse_patterns(text).unwrap();
            of_functions(&patterns.0, &functions, " of the recording").join("\n")
        };
        for (text, near) in [
            ("mallocc", "did you mean malloc [libc.so.6]?"),
            ("mlaloc", "did you mean malloc [libc.so.6]?"),
            ("app:malloc", "did you mean malloc [libc.so.6]?"),
            ("parse", "did you mean app::parser::parse [app]?"),
            ("draw", "did you mean Widget::draw(int, char*) [app]?"),
            ("pyobject_getatr", "did you mean PyObject_GetAttr [python]?"),
            ("nothing_like_it", "see `fgraph report`"),
            (":mod:libz.so*", "see `fgraph report`"),
        ] {
            let expected = format!("no function of the recording matches '{text}'; {near}");
            assert_eq!(unmatched(text), expected);
        }
        for text in [
            "malloc",
            "libc:free",
            "*::parse",
            ":mod:libc.so*",
            "!nosuch",
            "0x1234",
            ":syscalls",
        ] {
            assert_eq!(unmatched(text), "", "{text}");
        }
        assert_eq!(unmatched("malloc nosuch1 free nosuch2").lines().count(), 2);
    }

    #[test]
    fn a_pattern_without_globs_names_a_function() {
        for (text, is_name) in [
            ("malloc", true),
            ("libc:malloc", true),
            ("app::Cache::get", true),
            ("app::Cache::*", false),
            ("g?t", false),
            ("crate:app|b", false),
            (":mod:libc.so.6", false),
        ] {
            let patterns = parse_patterns(text).unwrap();
            let names_function = Search::all(&patterns.0).iter().any(Search::names_function);
            assert_eq!(names_function, is_name, "{text}");
        }
    }
}
