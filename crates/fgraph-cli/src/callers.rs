//! The functions that return addresses are in, traced or not.

use std::collections::HashMap;

use fgraph_symbols::demangle;
use fgraph_symbols::elf::ElfFile;
use fgraph_symbols::functions::Functions;
use fgraph_trace::names::{ModuleName, Names};

use crate::sources;

/// Looks up in which functions addresses are. Modules are read when they are first asked for.
#[derive(Debug, Default)]
pub(crate) struct Callers {
    modules: HashMap<String, Option<Module>>,
    known: HashMap<(u32, u64), String>,
}

#[derive(Debug)]
struct Module {
    /// Where each function begins in the file, and ends, with its symbol, by where it begins.
    functions: Vec<(u64, u64, String)>,
    /// The address in the file that its first byte has.
    first: u64,
}

impl Callers {
    /// The function that an address of a process is in, with its module; the address itself where
    /// that is not known.
    pub(crate) fn name(&mut self, names: &Names, process: u32, address: u64) -> String {
        if let Some(known) = self.known.get(&(process, address)) {
            return known.clone();
        }
        let found = self.find(names, process, address);
        let name = found.unwrap_or_else(|| format!("{address:#x}"));
        self.known.insert((process, address), name.clone());
        name
    }

    fn find(&mut self, names: &Names, process: u32, address: u64) -> Option<String> {
        let module = sources::module_at(names, process, address)?;
        let read = || Module::read(module);
        let place = self.modules.entry(module.path.clone());
        let known = place.or_insert_with(read);
        let in_file = address.checked_sub(module.start)?;
        let file = module.path.rsplit('/').next().unwrap_or(&module.path);
        let unnamed = Some(format!("{file}+{in_file:#x}"));
        let Some(known) = known else { return unnamed };
        // A call may be the last instruction of a function.
        let inside = in_file.checked_add(known.first)?.checked_sub(1)?;
        let next = known.functions.partition_point(|it| it.0 <= inside);
        let before = next.checked_sub(1).and_then(|at| known.functions.get(at));
        let Some((_, _, symbol)) = before.filter(|it| inside < it.1) else {
            return unnamed;
        };
        let mut name = String::new();
        // Writing to a string does not fail.
        _ = demangle::demangle_to(symbol, &mut name);
        Some(format!("{name} [{file}]"))
    }
}

impl Module {
    fn read(module: &ModuleName) -> Option<Self> {
        let bytes = sources::bytes_of(module)?;
        let elf = ElfFile::parse(&bytes).ok()?;
        let debug = sources::debug_bytes_of(&elf);
        let debug = debug.as_ref().and_then(|bytes| ElfFile::parse(bytes).ok());
        let all = Functions::read(&elf, debug.as_ref()).ok()?;
        let function = |index| {
            let function = all.get(index);
            let end = match function.size {
                0 => function.limit,
                size => function.address.saturating_add(size),
            };
            let symbol = all.names(index).next()?.symbol.to_owned();
            Some((function.address, end, symbol))
        };
        Some(Self {
            functions: (0..all.len()).filter_map(function).collect(),
            first: sources::first_address(&elf)?,
        })
    }
}
