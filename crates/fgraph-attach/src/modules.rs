//! Programs and libraries in the memory of another process.
//!
//! Everything is read there and not in files, which may be in another namespace, or removed. The
//! memory of a process is not trusted: a limit applies to the bytes of all its modules, only the
//! wanted functions are kept, and malformed data is treated as missing.

use std::ops::Range;

use fgraph_symbols::mapping::Mapping;
use object::elf::{
    DT_GNU_HASH, DT_HASH, DT_SONAME, DT_STRSZ, DT_STRTAB, DT_SYMTAB, Dyn64, DynamicTag, ELFCLASS64,
    ELFDATA2LSB, ELFMAG, EM_X86_64, FileHeader64, PF_X, PT_DYNAMIC, PT_GNU_EH_FRAME, PT_INTERP,
    PT_LOAD, PT_TLS, ProgramHeader64, SHN_UNDEF, STT_FUNC, STT_GNU_IFUNC, STT_OBJECT, Sym64,
};
use object::pod::{Pod, from_bytes, slice_from_all_bytes};
use object::{LittleEndian, U32, U64};

use crate::memory::Memory;

const LE: LittleEndian = LittleEndian;
/// Most symbols of a module that are read: the largest libraries have a third.
const MAX_SYMBOLS: usize = 1 << 20;
/// Most bytes of names of a module that are read.
const MAX_STRINGS: u64 = 64 << 20;
/// Most bytes of tables that are read of all modules of a process.
pub(crate) const MAX_TABLES: usize = 256 << 20;
/// Most modules: more than a process has mappings by default.
const MAX_MODULES: usize = 1 << 16;
/// Number of words of a chain that are read at once.
const CHAIN: usize = 1024;
/// Beginnings of the names that a module needs if its functions expect several threads, or call the
/// allocator that they replace.
const THREADED: &[&[u8]] = &[b"pthread_", b"mtx_", b"__tls_get_addr", b"__libc_malloc"];
/// Libraries of glibc, by their names: the last two have functions of their own before glibc 2.34.
pub(crate) const GLIBC: &[&[u8]] = &[b"libc.so.6", b"libpthread.so.0", b"libdl.so.2"];

/// Program or library, according to its headers in memory.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) path: String,
    /// Offset between addresses in memory and in its file.
    pub(crate) bias: u64,
    /// Addresses from its first byte to its last.
    pub(crate) range: Range<u64>,
    /// Addresses that its headers call executable, and that are mapped so.
    pub(crate) text: Vec<Range<u64>>,
    pub(crate) interpreter: Option<String>,
    /// True if it has data of each thread.
    has_thread_data: bool,
    dynamic: Option<Range<u64>>,
    /// Where the index of its unwind information starts, and the segment that has both.
    pub(crate) unwind: Option<(u64, Range<u64>)>,
}

/// Symbols that a module exports.
#[derive(Debug, Default)]
pub(crate) struct Exports {
    /// Name by which other modules need it (`DT_SONAME`), or nothing.
    pub(crate) library: Vec<u8>,
    /// True if its functions may be made for several threads.
    pub(crate) is_threaded: bool,
    symbols: Vec<Export>,
}

impl Exports {
    /// Returns the address of a symbol.
    pub(crate) fn find(&self, name: &[u8]) -> Option<u64> {
        let mut symbols = self.symbols.iter();
        let found = symbols.find(|it| it.name == name && !it.is_resolver)?;
        Some(found.start)
    }

    /// True if they are those of a library of glibc, or of its linker.
    pub(crate) fn is_glibcs(&self) -> bool {
        GLIBC.contains(&&*self.library) || self.find(b"_r_debug").is_some()
    }

    #[cfg(any(test, fgraph_testing))]
    pub(crate) fn len(&self) -> usize {
        self.symbols.len()
    }
}

/// Function or variable that a module exports.
#[derive(Debug)]
struct Export {
    name: Vec<u8>,
    start: u64,
    is_resolver: bool,
}

impl Module {
    /// Returns the module that begins at this mapping, if one does. `executable` has the executable
    /// memory of the process, in the order of the addresses.
    fn at(mapping: &Mapping<'_>, executable: &[Range<u64>], memory: &Memory) -> Option<Self> {
        let base = mapping.range.start;
        let header: FileHeader64<LittleEndian> = pod(memory, base)?;
        let ident = &header.e_ident;
        let is_ours =
            ident.magic == ELFMAG && ident.class == ELFCLASS64 && ident.data == ELFDATA2LSB;
        if !is_ours || header.e_machine.get(LE) != EM_X86_64 {
            return None;
        }
        let count = usize::from(header.e_phnum.get(LE)).min(256);
        let at = base.checked_add(header.e_phoff.get(LE))?;
        let segments: Vec<ProgramHeader64<LittleEndian>> = pods(memory, at, count)?;
        let of = |kind| move |s: &&ProgramHeader64<LittleEndian>| s.p_type.get(LE) == kind;
        let loaded = || segments.iter().filter(of(PT_LOAD));
        let first = loaded().map(|s| s.p_vaddr.get(LE)).min()? & !0xfff;
        let bias = base.wrapping_sub(first);
        let range = |s: &ProgramHeader64<LittleEndian>| {
            let start = bias.wrapping_add(s.p_vaddr.get(LE));
            let end = start.checked_add(s.p_memsz.get(LE))?;
            Some(start..end)
        };
        let one = |kind| segments.iter().find(of(kind)).and_then(range);
        let end = loaded().filter_map(range).map(|range| range.end).max()?;
        let text = loaded().filter(|s| s.p_flags.get(LE).contains(PF_X));
        let text = text.filter_map(range).flat_map(|segment| {
            let first = executable.partition_point(|it| it.end <= segment.start);
            let parts = executable[first..].iter();
            let parts = parts.take_while(move |it| it.start < segment.end);
            parts.map(move |it| it.start.max(segment.start)..it.end.min(segment.end))
        });
        let segment = |at: u64| loaded().filter_map(range).find(|range| range.contains(&at));
        let index = one(PT_GNU_EH_FRAME).map(|index| index.start);
        Some(Self {
            path: String::from_utf8_lossy(&mapping.path).into_owned(),
            bias,
            range: base..end,
            text: text.collect(),
            interpreter: one(PT_INTERP).and_then(|at| memory.text(at.start, 4096).ok()),
            has_thread_data: one(PT_TLS).is_some(),
            dynamic: one(PT_DYNAMIC),
            unwind: index.and_then(|index| Some((index, segment(index)?))),
        })
    }

    pub(crate) fn is_text(&self, address: u64) -> bool {
        self.text.iter().any(|range| range.contains(&address))
    }

    /// Returns the symbols among `wanted` that it exports, and its name for other modules. The
    /// bytes that are read are subtracted from `left`.
    pub(crate) fn exports(&self, memory: &Memory, wanted: &[&[u8]], left: &mut usize) -> Exports {
        let mut tables = Tables { memory, left };
        let found = self.read_exports(&mut tables, wanted);
        found.unwrap_or_default()
    }

    fn read_exports(&self, tables: &mut Tables<'_>, wanted: &[&[u8]]) -> Option<Exports> {
        let dynamic = self.dynamic.clone()?;
        let count = (dynamic.end - dynamic.start) / size_of::<Dyn64<LittleEndian>>() as u64;
        let entries: Vec<Dyn64<LittleEndian>> =
            tables.pods(dynamic.start, count.min(1024) as usize)?;
        let value = |tag: DynamicTag| {
            let entry = entries.iter().find(|e| e.d_tag.get(LE) == tag)?;
            Some(entry.d_val.get(LE))
        };
        // glibc's linker has added the module's address; other linkers leave the value of the file.
        let address = |tag| {
            let value = value(tag)?;
            let is_added = value >= self.range.start;
            Some(if is_added {
                value
            } else {
                self.bias.wrapping_add(value)
            })
        };
        let len = value(DT_STRSZ)?.min(MAX_STRINGS) as usize;
        let strings = tables.bytes(address(DT_STRTAB)?, len)?;
        let count = match address(DT_GNU_HASH) {
            Some(hash) => tables.gnu_hash_count(hash)?,
            None => tables.pods::<U32<LittleEndian>>(address(DT_HASH)?, 2)?[1].get(LE) as usize,
        };
        let symbols: Vec<Sym64<LittleEndian>> =
            tables.pods(address(DT_SYMTAB)?, count.min(MAX_SYMBOLS))?;
        let mut exports: Vec<Export> = Vec::new();
        let mut is_threaded = self.has_thread_data;
        for symbol in symbols {
            let Some(rest) = strings.get(symbol.st_name.get(LE) as usize..) else {
                continue;
            };
            if symbol.st_shndx.get(LE) == SHN_UNDEF {
                let is_it = |name: &&[u8]| rest.starts_with(name);
                is_threaded |= THREADED.iter().any(is_it);
                continue;
            }
            let kind = symbol.st_info.st_type();
            if ![STT_FUNC, STT_GNU_IFUNC, STT_OBJECT].contains(&kind) {
                continue;
            }
            let is_it = |name: &&&[u8]| {
                rest.strip_prefix(**name)
                    .is_some_and(|end| end.starts_with(&[0]))
            };
            let is_resolver = kind == STT_GNU_IFUNC;
            // The first of several versions of a function counts.
            if let Some(name) = wanted.iter().find(is_it)
                && !exports
                    .iter()
                    .any(|it| it.name == *name && it.is_resolver == is_resolver)
            {
                exports.push(Export {
                    name: name.to_vec(),
                    start: self.bias.wrapping_add(symbol.st_value.get(LE)),
                    is_resolver,
                });
            }
        }
        let name = value(DT_SONAME).and_then(|at| strings.get(at as usize..));
        let name = name.and_then(|name| name.split(|&byte| byte == 0).next());
        Some(Exports {
            library: name.unwrap_or_default().to_vec(),
            is_threaded,
            symbols: exports,
        })
    }
}

/// Reads tables, up to a limit.
struct Tables<'a> {
    memory: &'a Memory,
    /// Number of bytes that may still be read.
    left: &'a mut usize,
}

impl Tables<'_> {
    fn bytes(&mut self, at: u64, len: usize) -> Option<Vec<u8>> {
        *self.left = self.left.checked_sub(len)?;
        self.memory.bytes(at, len).ok()
    }

    fn pods<T: Pod>(&mut self, at: u64, count: usize) -> Option<Vec<T>> {
        let bytes = self.bytes(at, count.checked_mul(size_of::<T>())?)?;
        Some(slice_from_all_bytes(&bytes).ok()?.to_vec())
    }

    /// Returns the number of symbols of a GNU hash table: one more than the last in the longest
    /// chain.
    fn gnu_hash_count(&mut self, at: u64) -> Option<usize> {
        type Word = U32<LittleEndian>;
        let header: Vec<Word> = self.pods(at, 4)?;
        let [buckets, first, bloom] = [0, 1, 2].map(|i| header[i].get(LE) as usize);
        let at = at.checked_add(16 + 8 * bloom as u64)?;
        let last: Vec<Word> = self.pods(at, buckets.min(MAX_SYMBOLS))?;
        let last = last.iter().map(|word| word.get(LE) as usize).max()?;
        if last < first {
            return Some(first);
        }
        let chains = at.checked_add(4 * buckets as u64)?;
        // The last word of a chain has the lowest bit set.
        for index in (last..MAX_SYMBOLS).step_by(CHAIN) {
            let at = chains.checked_add(4 * (index - first) as u64)?;
            let chain = self.memory.some(at, 4 * CHAIN).ok()?;
            *self.left = self.left.checked_sub(chain.len())?;
            let (words, _) = chain.as_chunks::<4>();
            if let Some(end) = words.iter().position(|word| word[0] & 1 != 0) {
                return Some(index + end + 1);
            }
            if words.len() < CHAIN {
                return None;
            }
        }
        None
    }
}

fn pods<T: Pod>(memory: &Memory, at: u64, count: usize) -> Option<Vec<T>> {
    let bytes = memory.bytes(at, count.checked_mul(size_of::<T>())?).ok()?;
    Some(slice_from_all_bytes(&bytes).ok()?.to_vec())
}

fn pod<T: Pod>(memory: &Memory, at: u64) -> Option<T> {
    let bytes = memory.bytes(at, size_of::<T>()).ok()?;
    from_bytes::<T>(&bytes).ok().map(|(value, _)| *value)
}

/// Returns the modules among these mappings, which are in the order of their addresses.
pub(crate) fn of(maps: &[Mapping<'_>], memory: &Memory) -> Vec<Module> {
    let mut executable: Vec<Range<u64>> = Vec::new();
    for mapping in maps.iter().filter(|it| it.protection.executable) {
        match executable.last_mut() {
            Some(last) if last.end == mapping.range.start => last.end = mapping.range.end,
            _ => executable.push(mapping.range.clone()),
        }
    }
    let starts = maps
        .iter()
        .filter(|mapping| mapping.offset == 0 && mapping.path.starts_with(b"/"));
    starts
        .take(MAX_MODULES)
        .filter_map(|mapping| Module::at(mapping, &executable, memory))
        .collect()
}

/// Returns the indices of the modules that the linker has loaded for the program, in the order in
/// which it searches them. Others are data to the program, or belong to another linker or to
/// another namespace of this one. `list` is the address of the linker's `_r_debug`.
pub(crate) fn linked(modules: &[Module], list: u64, memory: &Memory) -> Vec<usize> {
    /// Words of a `link_map`: bias, name, address of the dynamic section, next entry.
    const WORDS: usize = 4;
    // Behind a version of four bytes.
    let mut next = memory.word(list.wrapping_add(8)).unwrap_or(0);
    let mut linked = Vec::new();
    for _ in 0..MAX_MODULES {
        let Some(entry) = pods::<U64<LittleEndian>>(memory, next, WORDS).filter(|_| next != 0)
        else {
            break;
        };
        let dynamic = entry[2].get(LE);
        let is_it = |it: &Module| it.dynamic.as_ref().is_some_and(|at| at.start == dynamic);
        linked.extend(modules.iter().position(is_it));
        next = entry[3].get(LE);
    }
    linked
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt as _;

    use super::*;
    use crate::sharing;

    /// Address of the tables of [`module`].
    const STRINGS: u64 = 0x1000;
    const SYMBOLS: u64 = 0x40_0000;

    /// Makes a module in memory of this process, which claims to have this number of symbols, with
    /// names of `len` bytes in all.
    fn module(symbols: u32, len: u64) -> (Module, Memory, File) {
        let file = sharing::memory_file(c"module", false).unwrap();
        let (hash, dynamic) = (0x200_0000, 0x200);
        let words = |words: &[u32]| words.iter().flat_map(|it| it.to_le_bytes()).collect();
        let header: Vec<u8> = words(&[1, 0, 0, 0, symbols - 1, 1]);
        // The one chain ends where it begins.
        file.write_all_at(&header, hash).unwrap();
        let last = hash + 20 + 4 * u64::from(symbols - 1);
        file.write_all_at(&[1, 0, 0, 0], last).unwrap();
        let entries = [
            (DT_STRSZ.0, len),
            (DT_STRTAB.0, STRINGS),
            (DT_SYMTAB.0, SYMBOLS),
            (DT_GNU_HASH.0, hash),
        ];
        for (index, (tag, value)) in entries.into_iter().enumerate() {
            let entry = [tag.to_le_bytes(), value.to_le_bytes()].concat();
            file.write_all_at(&entry, dynamic + 16 * index as u64)
                .unwrap();
        }
        let module = Module {
            has_thread_data: false,
            path: "/lib".into(),
            bias: 0,
            range: 0..u64::MAX,
            text: Vec::new(),
            interpreter: None,
            dynamic: Some(dynamic..dynamic + 64),
            unwind: None,
        };
        let memory = Memory::of_file(file.try_clone().unwrap());
        (module, memory, file)
    }

    /// Makes the symbol of a function whose name is `name` bytes behind the first.
    fn symbol(name: u32) -> Vec<u8> {
        let mut bytes = name.to_le_bytes().to_vec();
        bytes.extend([STT_FUNC.0, 0, 1, 0]);
        bytes.extend([0; 16]);
        bytes
    }

    #[test]
    fn names_that_lie_in_each_other_are_not_copied() {
        // All symbols have one name, of the whole table.
        let (module, memory, file) = module(40_000, 1 << 20);
        let names = vec![b'x'; (1 << 20) - 1];
        file.write_all_at(&names, STRINGS).unwrap();
        file.write_all_at(&symbol(0).repeat(40_000), SYMBOLS)
            .unwrap();
        let mut left = MAX_TABLES;
        assert_eq!(module.exports(&memory, &[b"malloc"], &mut left).len(), 0);
        file.write_all_at(b"malloc\0", STRINGS + 960_000).unwrap();
        file.write_all_at(&symbol(960_000).repeat(2), SYMBOLS)
            .unwrap();
        let found = module.exports(&memory, &[b"dlopen", b"malloc"], &mut left);
        assert_eq!(found.find(b"malloc"), Some(0));
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn there_is_a_limit_to_what_all_modules_have() {
        let (module, memory, file) = module(40_000, 1 << 20);
        file.write_all_at(b"malloc\0", STRINGS + 960_000).unwrap();
        file.write_all_at(&symbol(960_000), SYMBOLS).unwrap();
        let mut left = 5 << 20;
        let mut found = || module.exports(&memory, &[b"malloc"], &mut left).len();
        assert_eq!([found(), found(), found()], [1, 1, 0]);
        // Sizes that no memory has.
        let (huge, memory, _file) = self::module(u32::MAX, u64::MAX);
        assert_eq!(
            huge.exports(&memory, &[b"malloc"], &mut MAX_TABLES.clone())
                .len(),
            0
        );
    }
}
