//! Programs and libraries in the memory of another process.
//!
//! All is read there and not in files, which may be in another namespace, or gone. What a process
//! holds is not to be trusted: sizes are bounded, and what does not fit is not there.

use std::ops::Range;

use object::elf::{
    DT_GNU_HASH, DT_HASH, DT_STRSZ, DT_STRTAB, DT_SYMTAB, Dyn64, DynamicTag, ELFCLASS64,
    ELFDATA2LSB, ELFMAG, EM_X86_64, FileHeader64, PF_X, PT_DYNAMIC, PT_INTERP, PT_LOAD,
    ProgramHeader64, SHN_UNDEF, STT_FUNC, STT_GNU_IFUNC, Sym64,
};
use object::pod::{Pod, from_bytes, slice_from_all_bytes};
use object::{LittleEndian, U32};

use crate::maps::Mapping;
use crate::memory::Memory;

const LE: LittleEndian = LittleEndian;
/// More symbols than this are not looked at: the largest libraries have a tenth.
const MAX_SYMBOLS: usize = 4 << 20;
/// More bytes of names than this are not looked at.
const MAX_STRINGS: u64 = 256 << 20;

/// A program or library, as its headers in memory say.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) path: String,
    /// What is added to the addresses in its file.
    pub(crate) bias: u64,
    /// From its first byte to its last.
    pub(crate) range: Range<u64>,
    pub(crate) text: Vec<Range<u64>>,
    pub(crate) interpreter: Option<String>,
    dynamic: Option<Range<u64>>,
}

/// A function that a module exports.
#[derive(Debug)]
pub(crate) struct Export {
    name: Vec<u8>,
    start: u64,
    is_resolver: bool,
}

impl Module {
    /// The module that begins at this mapping, if one does.
    fn at(mapping: &Mapping, memory: &Memory) -> Option<Self> {
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
        Some(Self {
            path: mapping.path.clone(),
            bias,
            range: base..end,
            text: text.filter_map(range).collect(),
            interpreter: one(PT_INTERP).and_then(|at| memory.text(at.start, 4096).ok()),
            dynamic: one(PT_DYNAMIC),
        })
    }

    pub(crate) fn is_text(&self, address: u64) -> bool {
        self.text.iter().any(|range| range.contains(&address))
    }

    /// The functions that it exports.
    pub(crate) fn exports(&self, memory: &Memory) -> Vec<Export> {
        self.read_exports(memory).unwrap_or_default()
    }

    fn read_exports(&self, memory: &Memory) -> Option<Vec<Export>> {
        let dynamic = self.dynamic.clone()?;
        let count = (dynamic.end - dynamic.start) / size_of::<Dyn64<LittleEndian>>() as u64;
        let entries: Vec<Dyn64<LittleEndian>> =
            pods(memory, dynamic.start, count.min(1024) as usize)?;
        let value = |tag: DynamicTag| {
            let entry = entries.iter().find(|e| e.d_tag.get(LE) == tag)?;
            Some(entry.d_val.get(LE))
        };
        // glibc's linker has added where the module is; others leave it as in the file.
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
        let strings = memory.bytes(address(DT_STRTAB)?, len).ok()?;
        let count = match address(DT_GNU_HASH) {
            Some(hash) => gnu_hash_count(memory, hash)?,
            None => pods::<U32<LittleEndian>>(memory, address(DT_HASH)?, 2)?[1].get(LE) as usize,
        };
        let symbols: Vec<Sym64<LittleEndian>> =
            pods(memory, address(DT_SYMTAB)?, count.min(MAX_SYMBOLS))?;
        let exports = symbols.iter().filter_map(|symbol| {
            let kind = symbol.st_info.st_type();
            let is_function = [STT_FUNC, STT_GNU_IFUNC].contains(&kind);
            if !is_function || symbol.st_shndx.get(LE) == SHN_UNDEF {
                return None;
            }
            let name = strings.get(symbol.st_name.get(LE) as usize..)?;
            let name = &name[..memchr::memchr(0, name)?];
            Some(Export {
                name: name.into(),
                start: self.bias.wrapping_add(symbol.st_value.get(LE)),
                is_resolver: kind == STT_GNU_IFUNC,
            })
        });
        Some(exports.collect())
    }
}

/// How many symbols a table of the GNU's has: one more than the last in the longest chain.
fn gnu_hash_count(memory: &Memory, at: u64) -> Option<usize> {
    type Word = U32<LittleEndian>;
    let header: Vec<Word> = pods(memory, at, 4)?;
    let [buckets, first, bloom] = [0, 1, 2].map(|i| header[i].get(LE) as usize);
    let at = at.checked_add(16 + 8 * bloom as u64)?;
    let last: Vec<Word> = pods(memory, at, buckets.min(MAX_SYMBOLS))?;
    let last = last.iter().map(|word| word.get(LE) as usize).max()?;
    if last < first {
        return Some(first);
    }
    let chains = at.checked_add(4 * buckets as u64)?;
    // The last of a chain has the lowest bit set.
    for index in last..MAX_SYMBOLS {
        let word: Word = pod(memory, chains.checked_add(4 * (index - first) as u64)?)?;
        if word.get(LE) & 1 != 0 {
            return Some(index + 1);
        }
    }
    None
}

fn pods<T: Pod>(memory: &Memory, at: u64, count: usize) -> Option<Vec<T>> {
    let bytes = memory.bytes(at, count.checked_mul(size_of::<T>())?).ok()?;
    Some(slice_from_all_bytes(&bytes).ok()?.to_vec())
}

fn pod<T: Pod>(memory: &Memory, at: u64) -> Option<T> {
    let bytes = memory.bytes(at, size_of::<T>()).ok()?;
    from_bytes::<T>(&bytes).ok().map(|(value, _)| *value)
}

/// The modules among these mappings.
pub(crate) fn of(maps: &[Mapping], memory: &Memory) -> Vec<Module> {
    let starts = maps
        .iter()
        .filter(|mapping| mapping.offset == 0 && mapping.path.starts_with('/'));
    starts
        .filter_map(|mapping| Module::at(mapping, memory))
        .collect()
}

/// Where a function is that one of these exports.
pub(crate) fn find(exports: &[Export], name: &[u8]) -> Option<u64> {
    let found = exports
        .iter()
        .find(|export| export.name == name && !export.is_resolver)?;
    Some(found.start)
}
