//! The functions of a recording, each once.

use std::collections::HashMap;
use std::ops::Deref;

use fgraph_trace::names::Names;

use crate::numbers::grown;
use crate::python::PYTHON;
use crate::text::file_name;

/// The number of a function among those of a recording; they are consecutive, from 0.
pub type Slot = u32;

/// A function of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Function {
    /// The name, never empty.
    pub name: String,
    /// The path of its module; empty if it is unknown.
    pub module: String,
    /// Its start address in a process; 0 if it is unknown.
    pub address: u64,
    /// A process that has called it.
    pub process: u32,
    /// Its source file and line, if these were recorded.
    pub source: Option<(String, u32)>,
}

impl Function {
    /// Returns the facts about a function of a process, without the process.
    #[must_use]
    pub fn of(names: &Names, process: u32, function: u32) -> Self {
        let known = names.function(process, function);
        let source = names.source(process, function);
        Self {
            name: names.function_name(process, function),
            module: known.map_or_else(String::new, |known| known.module.clone()),
            address: known.map_or(0, |known| known.address),
            process: 0,
            source: source.map(|(file, line)| (file.to_owned(), line)),
        }
    }

    /// Returns the last part of the path of its module.
    #[must_use]
    pub fn module_name(&self) -> &str {
        file_name(&self.module)
    }
}

/// Functions and modules, numbered in the order in which they are met.
///
/// A function or a module that processes share has one number in all of them.
#[derive(Debug, Default)]
pub struct Functions {
    all: Vec<Function>,
    slots: HashMap<Function, Slot>,
    /// Slots by the index of a process and that of its function.
    pages: Vec<Pages<Slot>>,
    by_process: HashMap<u32, usize>,
    modules: Vec<String>,
    by_path: HashMap<String, usize>,
    /// The number of the module of each function.
    module_of: Vec<usize>,
}

impl Functions {
    /// Returns a function.
    #[must_use]
    pub fn function(&self, slot: Slot) -> &Function {
        &self.all[slot as usize]
    }

    /// Returns the name of a function.
    #[must_use]
    pub fn name(&self, slot: Slot) -> &str {
        &self.function(slot).name
    }

    /// Returns the paths of modules; the path for functions without a known module is empty.
    #[must_use]
    pub fn modules(&self) -> &[String] {
        &self.modules
    }

    /// Returns the number of a function's module.
    #[must_use]
    pub fn module_number(&self, slot: Slot) -> usize {
        self.module_of[slot as usize]
    }

    /// Returns the path of a function's module.
    #[must_use]
    pub fn module_of(&self, slot: Slot) -> &str {
        &self.function(slot).module
    }

    /// Returns true if a function is one of Python's, among native ones.
    #[must_use]
    pub fn is_python(&self, slot: Slot) -> bool {
        self.module_of(slot) == PYTHON
    }

    /// Returns true if there are functions of Python.
    #[must_use]
    pub fn has_python(&self) -> bool {
        self.by_path.contains_key(PYTHON)
    }

    /// Returns the slot of a function of another pass over the same recording.
    #[must_use]
    pub fn slot_of(&self, function: &Function) -> Option<Slot> {
        let process = 0;
        let function = Function {
            process,
            ..function.clone()
        };
        self.slots.get(&function).copied()
    }

    /// Returns the index of a process, for [`known`](Self::known).
    pub(super) fn process(&mut self, process: u32) -> usize {
        let index = *self.by_process.entry(process).or_insert(self.pages.len());
        if index == self.pages.len() {
            self.pages.push(Pages::default());
        }
        index
    }

    /// Returns the slot of a function of the process with this index, if it was met.
    #[inline]
    pub(super) fn known(&self, process: usize, function: u32) -> Option<Slot> {
        self.pages[process].get(function)
    }

    /// Adds a function of a process, whose facts are `found`. Returns its slot, and true if no
    /// process has called it before.
    #[cold]
    pub(super) fn add(
        &mut self,
        (index, process): (usize, u32),
        function: u32,
        mut found: Function,
    ) -> (Slot, bool) {
        let next = self.all.len() as Slot;
        let slot = match self.slots.get(&found) {
            Some(&slot) => slot,
            None => {
                self.slots.insert(found.clone(), next);
                let module = self.module(&found.module);
                self.module_of.push(module);
                found.process = process;
                self.all.push(found);
                next
            }
        };
        self.pages[index].set(function, slot);
        (slot, slot == next)
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
}

/// The functions by slot.
impl Deref for Functions {
    type Target = [Function];

    fn deref(&self) -> &[Function] {
        &self.all
    }
}

/// A value for each function of a process, by the function's index.
#[derive(Debug, Default)]
pub struct Pages<T>(Vec<Option<Page<T>>>);

type Page<T> = Box<[Option<T>; PAGE]>;

const PAGE: usize = 1024;

impl<T: Copy> Pages<T> {
    /// Returns the value of a function, if it was set.
    #[inline]
    #[must_use]
    pub fn get(&self, function: u32) -> Option<T> {
        match self.0.get(function as usize / PAGE) {
            Some(Some(page)) => page[function as usize % PAGE],
            _ => None,
        }
    }

    /// Sets the value of a function.
    pub fn set(&mut self, function: u32, value: T) {
        let page = function as usize / PAGE;
        let page = grown(&mut self.0, page).get_or_insert_with(|| Box::new([None; PAGE]));
        page[function as usize % PAGE] = Some(value);
    }
}
