//! The functions that contain return addresses; and the names of threads and functions.

use std::collections::HashMap;
use std::ffi::CStr;

use fgraph_analysis::addresses::{self, Addresses, caller, module_at};
use fgraph_symbols::demangle;
use fgraph_symbols::elf::{ElfFile, SymbolKind, SymbolSource};
use fgraph_symbols::functions::Functions;
use fgraph_trace::Source as _;
use fgraph_trace::names::{Description, DescriptionKind, FunctionName, ModuleName, Names};

use crate::debuginfod::Debuginfod;
use crate::generated::Generated;
use crate::input::View;
use crate::json;
use crate::sources::{self, Sources};
use crate::text::{escaped, file_name, named};

/// Finds the functions that contain return addresses, traced or not. Modules are read when they are
/// first needed.
#[derive(Debug, Default)]
pub(crate) struct Places {
    modules: HashMap<String, Option<Module>>,
    callers: HashMap<(u32, u64), String>,
    sources: Sources,
    /// Names of generated code, of processes that run.
    generated: Option<Generated>,
}

/// The functions of a file, by their addresses in it.
#[derive(Debug)]
struct Module {
    /// Start, end and symbol of each function, in the order of their starts.
    functions: Vec<(u64, u64, String)>,
    /// The same for data.
    objects: Vec<(u64, u64, String)>,
    /// The address of its first byte.
    first: u64,
}

impl Places {
    /// Makes it for processes that run and generate code.
    pub(crate) fn of_running(generated: Generated) -> Self {
        Self {
            generated: Some(generated),
            ..Self::default()
        }
    }
}

impl Addresses for Places {
    fn function(&mut self, names: &Names, process: u32, address: u64) -> Option<(String, u64)> {
        let (_, known, in_file) = self.module(names, process, address)?;
        known?.function(in_file)
    }

    fn variable(&mut self, names: &Names, process: u32, address: u64) -> Option<String> {
        let (module, known, in_file) = self.module(names, process, address)?;
        let (start, _, symbol) = known?.object(in_file)?;
        let (start, symbol) = (*start, demangle::to_string(symbol));
        let distance = known?.first.checked_add(in_file)? - start;
        let name = match self.sources.member(module, start, distance) {
            Some(path) => format!("{symbol}{path}"),
            None if distance == 0 => symbol,
            None => format!("{symbol}+{distance:#x}"),
        };
        Some(escaped(&named(&name, file_name(&module.path))).into_owned())
    }

    fn generated(
        &mut self,
        names: &Names,
        process: u32,
        address: u64,
    ) -> Option<addresses::Generated> {
        addresses::recorded(names, process, address).or_else(|| {
            let found = self.generated.as_ref()?.find(names, process, address)?;
            Some(addresses::Generated {
                name: found.name,
                file: found.file,
                start: found.start,
            })
        })
    }

    fn caller(&mut self, names: &Names, process: u32, address: u64) -> String {
        if let Some(known) = self.callers.get(&(process, address)) {
            return known.clone();
        }
        let name = caller(self.place(names, process, address).as_ref(), address);
        self.callers.insert((process, address), name.clone());
        name
    }
}

impl Places {
    /// Returns the module that contains an address, its file, and the distance of the address from
    /// its first byte.
    fn module<'n>(
        &mut self,
        names: &'n Names,
        process: u32,
        address: u64,
    ) -> Option<(&'n ModuleName, Option<&Module>, u64)> {
        let module = module_at(names, process, address)?;
        let known = self.modules.entry(module.path.clone());
        let known = known.or_insert_with(|| Module::read(module)).as_ref();
        Some((module, known, address.checked_sub(module.start)?))
    }
}

impl Module {
    fn read(module: &ModuleName) -> Option<Self> {
        let bytes = sources::bytes_of(module)?;
        let elf = ElfFile::parse(&bytes).ok()?;
        let build_id = sources::hexadecimal(elf.build_id().unwrap_or_default());
        if !module.build_id.is_empty() && module.build_id != build_id {
            return None;
        }
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
            objects: objects(&elf, debug.as_ref()),
            first: sources::first_address(&elf)?,
        })
    }

    /// Returns start, end and symbol of the variable at this distance from the first byte.
    fn object(&self, in_file: u64) -> Option<&(u64, u64, String)> {
        let address = in_file.checked_add(self.first)?;
        let next = self.objects.partition_point(|it| it.0 <= address);
        let object = self.objects.get(next.checked_sub(1)?)?;
        (address < object.1).then_some(object)
    }

    /// Returns the function to which a call returns at this distance from the first byte, and the
    /// distance from its entry.
    fn function(&self, in_file: u64) -> Option<(String, u64)> {
        let address = in_file.checked_add(self.first)?;
        // A call may be the last instruction of a function.
        let call = address.checked_sub(1)?;
        let next = self.functions.partition_point(|it| it.0 <= call);
        let (start, end, symbol) = self.functions.get(next.checked_sub(1)?)?;
        (call < *end).then(|| (demangle::to_string(symbol), address - start))
    }
}

/// Returns the variables of a file with symbols, by address; `debug` may have more symbols.
fn objects(elf: &ElfFile<'_>, debug: Option<&ElfFile<'_>>) -> Vec<(u64, u64, String)> {
    let mut objects = Vec::new();
    for (file, source) in [
        (Some(elf), SymbolSource::Symtab),
        (Some(elf), SymbolSource::Dynsym),
        (debug, SymbolSource::Symtab),
    ] {
        let Some(Ok(table)) = file.map(|file| file.symbol_table(source)) else {
            continue;
        };
        let data = table
            .defined()
            .filter(|symbol| symbol.kind == SymbolKind::Other);
        objects.extend(data.filter(|symbol| symbol.size > 0).filter_map(|symbol| {
            let names = table.strings().get(symbol.name as usize..)?;
            let name = CStr::from_bytes_until_nul(names).ok()?;
            let end = symbol.address.checked_add(symbol.size)?;
            Some((symbol.address, end, name.to_string_lossy().into_owned()))
        }));
    }
    objects.sort_unstable();
    objects.dedup_by_key(|object| object.0);
    objects
}

/// Returns the names of functions that had none when they were recorded, as far as there are debug
/// files.
pub(crate) fn names_of_functions(names: &Names) -> Vec<Description> {
    let mut places = Places::default();
    let mut found = Vec::new();
    for (process, index, function) in names.functions() {
        let FunctionName {
            name,
            module,
            address,
            size,
            ..
        } = function;
        let file = file_name(module);
        let is_made_up = name
            .strip_prefix(file)
            .is_some_and(|it| it.starts_with("+0x"));
        if !is_made_up {
            continue;
        }
        // Like a return address after the first byte.
        let function = places.function(names, process, address.saturating_add(1));
        if let Some((name, 1)) = function {
            found.push(Description {
                kind: DescriptionKind::Function,
                fields: [process.into(), index.into(), *address, *size],
                texts: [name, module.clone()],
            });
        }
    }
    found
}

/// Names the functions of a recording, and finds their sources, with debug files of servers, if
/// these may be used.
pub(crate) fn name_functions(view: &mut View, asked: Debuginfod) {
    if asked.allow() {
        let mut found = names_of_functions(view.names());
        found.extend(sources::of_functions(view.names(), || false));
        view.describe(found);
    }
}

/// Formats a thread: its name, its process and its id.
pub(crate) fn thread(names: &Names, process: u32, thread: u32) -> String {
    let thread = json::Thread::of(names, process, thread).to_string();
    escaped(&thread).into_owned()
}

/// Returns the name of a function by its index, with its module.
pub(crate) fn function(names: &Names, process: u32, index: u32) -> String {
    let known = names.function(process, index);
    let module = known.map_or("", |known| file_name(&known.module));
    let name = names.function_name(process, index);
    escaped(&named(&name, module)).into_owned()
}
