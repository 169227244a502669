//! Interpreters of Python in processes: their threads and coroutines.

use std::fs;

use fgraph_analysis::python::is_interpreter;
use fgraph_symbols::elf::{ElfFile, SymbolSource};
use fgraph_symbols::mapping::Mapping;
use fgraph_symbols::python::{self, Coroutine, CoroutineTypes, PythonError, PythonThread};

use super::memory::{ProcessMemory, begin_of, file_of};
use crate::sources;
use crate::text::file_name;

/// An interpreter in a process.
pub(crate) struct Interpreter {
    /// The address of its state.
    runtime: u64,
    /// Minor version of Python 3.
    pub(crate) minor: u8,
    types: Option<CoroutineTypes>,
}

/// Symbols of an interpreter.
const SYMBOLS: [&[u8]; 6] = [
    b"_PyRuntime",
    b"Py_Version",
    b"PyCode_Type",
    b"PyCoro_Type",
    b"PyGen_Type",
    b"PyAsyncGen_Type",
];

impl Interpreter {
    /// Returns the interpreter of a process; `None` if it has none, or one without symbols. `read`
    /// reads the memory of the process.
    pub(crate) fn find(
        process: u32,
        maps: &[Mapping<'_>],
        read: &python::Read<'_>,
    ) -> Option<Self> {
        let program = fs::read_link(format!("/proc/{process}/exe")).unwrap_or_default();
        let mut known: Vec<&[u8]> = Vec::new();
        for mapping in maps.iter().filter(|it| it.inode != 0) {
            let path = &*mapping.path;
            // A program may have one inside.
            let may_be_it = is_interpreter(&String::from_utf8_lossy(path))
                || path == program.as_os_str().as_encoded_bytes();
            if !may_be_it || known.contains(&path) {
                continue;
            }
            known.push(path);
            let bytes = sources::bytes(&file_of(process, path)).unwrap_or_default();
            if let Ok(elf) = ElfFile::parse(&bytes)
                && let Some(first) = sources::first_address(&elf)
                && let start = begin_of(maps, mapping).range.start
                && let [Some(runtime), version, types @ ..] =
                    addresses(&elf, start.wrapping_sub(first))
            {
                let types = match types {
                    [
                        Some(code),
                        Some(coroutine),
                        Some(generator),
                        Some(async_generator),
                    ] => Some(CoroutineTypes {
                        code,
                        coroutine,
                        generator,
                        async_generator,
                    }),
                    _ => None,
                };
                return Some(Self {
                    runtime,
                    minor: minor(version, maps, read)?,
                    types,
                });
            }
        }
        None
    }

    /// Returns the threads of the interpreter.
    pub(crate) fn threads(
        &self,
        read: &python::Read<'_>,
    ) -> Result<Vec<PythonThread>, PythonError> {
        python::threads(self.runtime, self.minor, read)
    }

    /// Returns the coroutines that no other one awaits. `heap` are the mappings that may have
    /// objects.
    pub(super) fn coroutines<'m>(
        &self,
        memory: &ProcessMemory,
        heap: impl Iterator<Item = &'m Mapping<'m>>,
    ) -> Result<Vec<Coroutine>, PythonError> {
        let Some(types) = self.types else {
            return Ok(Vec::new());
        };
        // A coroutine is read again until it does not change.
        let read = |at: u64, into: &mut [u8]| memory.read_now(at, into);
        let offset = python::coroutine_type_offset(self.runtime, self.minor, &read)?;
        let mut objects = Vec::new();
        for mapping in heap {
            memory.words(mapping.range.clone(), |at, word| {
                if word == types.coroutine {
                    objects.push(at.checked_sub(offset)?);
                }
                Some(())
            });
        }
        python::coroutines(self.runtime, self.minor, types, &objects, &read)
    }
}

/// Returns the addresses of the symbols in a process.
fn addresses(elf: &ElfFile<'_>, bias: u64) -> [Option<u64>; SYMBOLS.len()] {
    let mut found = [None; SYMBOLS.len()];
    let table = elf.symbol_table(SymbolSource::Dynsym).unwrap_or_default();
    for symbol in table.defined() {
        let name = table.strings().get(symbol.name as usize..);
        let name = name.and_then(|rest| rest.split(|&byte| byte == 0).next());
        if let Some(name) = name
            && let Some(at) = SYMBOLS.iter().position(|symbol| *symbol == name)
        {
            found[at] = Some(symbol.address.wrapping_add(bias));
        }
    }
    found
}

/// Returns the minor version of Python 3, from its number, which an interpreter has from 3.11 on,
/// or from the names of files.
fn minor(version: Option<u64>, maps: &[Mapping<'_>], read: &python::Read<'_>) -> Option<u8> {
    if let Some(at) = version {
        let mut bytes = [0; 4];
        read(at, &mut bytes)?;
        return (bytes[3] == 3).then_some(bytes[2]);
    }
    let mut paths = maps.iter().map(|it| String::from_utf8_lossy(&it.path));
    paths.find_map(|path| {
        let (_, rest) = file_name(&path).split_once("python3.")?;
        let digits = rest.find(|c: char| !c.is_ascii_digit());
        rest[..digits.unwrap_or(rest.len())].parse().ok()
    })
}
