//! Functions of an export, each once.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;

use fgraph_trace::names::{Names, process_id};
use fgraph_trace::text::is_visible;

/// Number of a function in an export; the numbers are dense, from 0.
pub(crate) type Symbol = u32;

/// Exported function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Function {
    /// Name of the function, never empty.
    pub(crate) name: String,
    /// Number of its module, see [`Symbols::modules`].
    pub(crate) module: usize,
    /// Address of the function; 0 if it is not known.
    pub(crate) address: u64,
    /// Source file and line, if they were recorded.
    pub(crate) source: Option<(String, u32)>,
}

/// Functions and modules, numbered in the order of first occurrence.
///
/// A function or module that processes share has one number in all of them.
#[derive(Debug, Default)]
pub(crate) struct Symbols {
    functions: Vec<Function>,
    modules: Vec<String>,
    /// Numbers by process and index.
    known: HashMap<(u32, u32), Symbol>,
    distinct: HashMap<Function, Symbol>,
    by_path: HashMap<String, usize>,
}

/// Text in place of a path for the module of Python's functions.
const PYTHON: &str = "py";

impl Symbols {
    /// Returns the number of a process's function.
    pub(crate) fn symbol(&mut self, process: u32, index: u32, names: &Names) -> Symbol {
        if let Some(&known) = self.known.get(&(process, index)) {
            return known;
        }
        let known = names.function(process, index);
        let source = names.source(process, index);
        let function = Function {
            name: names.function_name(process, index),
            module: self.module(known.map_or("", |known| &known.module)),
            address: known.map_or(0, |known| known.address),
            source: source.map(|(file, line)| (file.to_owned(), line)),
        };
        let symbol = match self.distinct.entry(function) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(free) => {
                self.functions.push(free.key().clone());
                *free.insert(self.functions.len() as Symbol - 1)
            }
        };
        self.known.insert((process, index), symbol);
        symbol
    }

    fn module(&mut self, path: &str) -> usize {
        if let Some(&known) = self.by_path.get(path) {
            return known;
        }
        self.modules.push(path.to_owned());
        let number = self.modules.len() - 1;
        self.by_path.insert(path.to_owned(), number);
        number
    }

    pub(crate) fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// Returns the paths of modules; the path for functions without a known module is empty.
    pub(crate) fn modules(&self) -> &[String] {
        &self.modules
    }

    pub(crate) fn function(&self, symbol: Symbol) -> &Function {
        &self.functions[symbol as usize]
    }

    pub(crate) fn name(&self, symbol: Symbol) -> &str {
        &self.function(symbol).name
    }

    /// Returns true if a function is one of Python's, among native ones.
    pub(crate) fn is_python(&self, symbol: Symbol) -> bool {
        self.module_of(symbol) == PYTHON
    }

    /// Returns true if there are functions of Python.
    pub(crate) fn has_python(&self) -> bool {
        self.by_path.contains_key(PYTHON)
    }

    /// Returns the path of a function's module.
    pub(crate) fn module_of(&self, symbol: Symbol) -> &str {
        &self.modules[self.function(symbol).module]
    }
}

/// Returns the last part of a path.
pub(crate) fn base_name(path: &str) -> &str {
    let name = Path::new(path).file_name();
    name.and_then(|name| name.to_str()).unwrap_or(path)
}

/// Returns the name of a process.
pub(crate) fn process_name(names: &Names, process: u32) -> String {
    match names.process(process) {
        Some((_, name)) if !name.is_empty() => name.to_owned(),
        _ => format!("process {}", process_id(process)),
    }
}

/// Returns the name of a thread.
pub(crate) fn thread_name(names: &Names, process: u32, thread: u32) -> String {
    match names.thread(process, thread) {
        Some(name) if !name.is_empty() => name.to_owned(),
        _ => format!("thread {thread}"),
    }
}

/// Returns a text in one line: characters that a terminal may interpret become spaces.
pub(crate) fn one_line(text: &str) -> String {
    let visible = |c: char| if is_visible(c) { c } else { ' ' };
    text.chars().map(visible).collect()
}
