//! Addresses in programs, by the functions that they are in.

use std::collections::HashMap;
use std::io::Read as _;

use fgraph_symbols::demangle;
use fgraph_symbols::elf::ElfFile;
use fgraph_symbols::functions::Functions;
use fgraph_trace::names::{ModuleName, Names, process_id};

use crate::sources::{open, place, start};
use crate::text::{escaped, named};

/// Finds the functions that addresses are in. Modules are read when they are first asked for.
#[derive(Debug, Default)]
pub(crate) struct Places {
    modules: HashMap<String, Module>,
}

/// The functions of a file, by the addresses that it has for them.
#[derive(Debug, Default)]
struct Module {
    /// The address that its first byte has.
    first: u64,
    /// Where each begins and ends, and its name, in the order of their beginnings.
    functions: Vec<(u64, u64, String)>,
}

impl Places {
    /// What is at an address of a process: `main+0x12 [program]`, as far as it is known, without
    /// characters that a terminal obeys.
    pub(crate) fn at(&mut self, names: &Names, process: u32, address: u64) -> String {
        let Some(module) = module(names, process, address) else {
            return format!("{address:#x}");
        };
        let path = module.path.as_str();
        let file = path.rsplit('/').next().unwrap_or(path);
        let known = self.modules.entry(path.to_owned());
        let known = known.or_insert_with(|| Module::read(module).unwrap_or_default());
        let offset = address.saturating_sub(start(names, module));
        let name = match known.function(offset) {
            Some((name, distance)) => format!("{name}+{distance:#x}"),
            None => format!("{offset:#x}"),
        };
        escaped(&named(&name, file)).into_owned()
    }
}

/// The module that an address is in: of the process itself, or of one that it comes from.
fn module(names: &Names, process: u32, address: u64) -> Option<&ModuleName> {
    let is_it = |it: &&ModuleName| (it.start..it.end).contains(&address);
    let of = |process: u32| {
        let mut all = names.modules().iter().rev();
        all.find(|it| it.process == process && is_it(it))
    };
    let mut from = process;
    for _ in 0..GENERATIONS {
        if let Some(found) = of(from) {
            return Some(found);
        }
        match names.process(from) {
            Some((parent, _)) if parent != from => from = parent,
            _ => return None,
        }
    }
    None
}

/// How many processes are asked that one comes from.
const GENERATIONS: usize = 64;

impl Module {
    fn read(module: &ModuleName) -> Option<Self> {
        let mut bytes = Vec::new();
        open(&place(module))?.read_to_end(&mut bytes).ok()?;
        let elf = ElfFile::parse(&bytes).ok()?;
        let found = Functions::read(&elf, None).ok()?;
        let function = |index: usize| {
            let symbol = found.get(index);
            let name = found.names(index).next()?;
            let name = demangle::to_string(name.symbol);
            Some((symbol.address, symbol.address + symbol.size.max(1), name))
        };
        Some(Self {
            // Segments are mapped from the page on that they begin in.
            first: elf.load_addresses().map(|(start, _)| start).min()? & !0xfff,
            functions: (0..found.len()).filter_map(function).collect(),
        })
    }

    /// The function that is so far from the beginning of the file's memory, and the distance from
    /// its own.
    fn function(&self, offset: u64) -> Option<(&str, u64)> {
        let address = self.first.checked_add(offset)?;
        let behind = self.functions.partition_point(|it| it.0 <= address);
        let (start, end, name) = self.functions.get(behind.checked_sub(1)?)?;
        (address < *end).then(|| (name.as_str(), address - start))
    }
}

/// A thread: its name, its process and its id.
pub(crate) fn thread(names: &Names, process: u32, thread: u32) -> String {
    let ids = format!("{}/{thread}", process_id(process));
    match names.thread(process, thread) {
        None | Some("") => ids,
        Some(name) => format!("{} {ids}", escaped(name)),
    }
}

/// The name of a function by its index, with its module.
pub(crate) fn function(names: &Names, process: u32, index: u32) -> String {
    let Some(known) = names.function(process, index) else {
        return format!("function {index}");
    };
    let module = known.module.rsplit('/').next().unwrap_or_default();
    let name = match known.name.as_str() {
        "" => format!("{:#x}", known.address),
        name => name.to_owned(),
    };
    escaped(&named(&name, module)).into_owned()
}
