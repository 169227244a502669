//! The source files of functions, from the debug information of modules on this machine.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;

use fgraph_symbols::elf::ElfFile;
use fgraph_symbols::lines::Lines;
use fgraph_trace::names::Names;

use crate::calls::Function;

/// Looks source files up. Modules are read when they are first asked for.
#[derive(Debug)]
pub(crate) struct Sources {
    /// Where each module begins in each process.
    starts: HashMap<(u32, String), u64>,
    modules: HashMap<String, Option<Module>>,
}

#[derive(Debug)]
struct Module {
    lines: Lines,
    /// The address in the file that its first byte has.
    first: u64,
}

impl Sources {
    /// Knows where the modules were loaded.
    pub(crate) fn new(names: &Names) -> Self {
        let mut starts = HashMap::new();
        for module in names.modules() {
            let start = starts.entry((module.process, module.path.clone()));
            let start: &mut u64 = start.or_insert(module.start);
            *start = module.start.min(*start);
        }
        Self {
            starts,
            modules: HashMap::new(),
        }
    }

    /// The source file of a function; `None` if there is no debug information for it here.
    pub(crate) fn file(&mut self, function: &Function) -> Option<String> {
        let path = &function.module;
        let here = (function.process, path.clone());
        let known = self.starts.get(&here).copied();
        // A child has its parent's modules.
        let start = known.or_else(|| {
            let mut all = self.starts.iter();
            all.find(|((_, of), _)| of == path).map(|(_, &start)| start)
        })?;
        let module = self.modules.entry(path.clone());
        let module = module.or_insert_with(|| Module::read(path)).as_ref()?;
        let address = function.address.checked_sub(start)?;
        let found = module.lines.at(address.checked_add(module.first)?);
        found.map(|(file, _)| file)
    }
}

impl Module {
    fn read(path: &str) -> Option<Self> {
        let bytes = std::fs::read(path).ok()?;
        let elf = ElfFile::parse(&bytes).ok()?;
        let lines = Lines::read(BufReader::new(File::open(path).ok()?), &elf)?;
        // Segments are mapped from the page on that they begin in.
        let first = elf.load_addresses().map(|(start, _)| start).min()? & !0xfff;
        Some(Self { lines, first })
    }
}
