//! The functions of an export, each once.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;

use fgraph_trace::names::{Names, process_id};

/// The number of a function in an export; they are dense, from 0.
pub(crate) type Symbol = u32;

/// A function as it is exported.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Function {
    /// Never empty.
    pub(crate) name: String,
    /// The number of its module, see [`Symbols::modules`].
    pub(crate) module: usize,
    /// 0 if it is not known.
    pub(crate) address: u64,
    /// Its source file and line, if that was recorded.
    pub(crate) source: Option<(String, u32)>,
}

/// Functions and modules, numbered in the order in which they were met.
///
/// What processes share has one number in all of them.
#[derive(Debug, Default)]
pub(crate) struct Symbols {
    functions: Vec<Function>,
    modules: Vec<String>,
    /// By process and index.
    known: HashMap<(u32, u32), Symbol>,
    distinct: HashMap<Function, Symbol>,
    by_path: HashMap<String, usize>,
}

impl Symbols {
    /// The number of a process's function.
    pub(crate) fn symbol(&mut self, process: u32, index: u32, names: &Names) -> Symbol {
        if let Some(&known) = self.known.get(&(process, index)) {
            return known;
        }
        let function = match names.function(process, index) {
            Some(known) => Function {
                name: match known.name.as_str() {
                    "" => format!("{:#x}", known.address),
                    name => name.to_owned(),
                },
                module: self.module(&known.module),
                address: known.address,
                source: {
                    let source = names.source(process, index);
                    source.map(|(file, line)| (file.to_owned(), line))
                },
            },
            None => Function {
                name: format!("<lost name {index}>"),
                module: self.module(""),
                address: 0,
                source: None,
            },
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

    /// The paths of modules; that of functions whose module is not known is empty.
    pub(crate) fn modules(&self) -> &[String] {
        &self.modules
    }

    pub(crate) fn function(&self, symbol: Symbol) -> &Function {
        &self.functions[symbol as usize]
    }

    pub(crate) fn name(&self, symbol: Symbol) -> &str {
        &self.function(symbol).name
    }

    /// The path of a function's module.
    pub(crate) fn module_of(&self, symbol: Symbol) -> &str {
        &self.modules[self.function(symbol).module]
    }
}

/// The last part of a path.
pub(crate) fn base_name(path: &str) -> &str {
    let name = Path::new(path).file_name();
    name.and_then(|name| name.to_str()).unwrap_or(path)
}

/// What a process is called.
pub(crate) fn process_name(names: &Names, process: u32) -> String {
    match names.process(process) {
        Some((_, name)) if !name.is_empty() => name.to_owned(),
        _ => format!("process {}", process_id(process)),
    }
}

/// What a thread is called.
pub(crate) fn thread_name(names: &Names, process: u32, thread: u32) -> String {
    match names.thread(process, thread) {
        Some(name) if !name.is_empty() => name.to_owned(),
        _ => format!("thread {thread}"),
    }
}

/// A text on one line: control characters become spaces.
pub(crate) fn one_line(text: &str) -> String {
    let visible = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(visible).collect()
}
