//! What an ELF file tells about the functions of a program or shared library.
//!
//! Everything here is a pure function of the bytes of a file: where the compiler recorded the
//! function entries it padded, and how the functions are called. Nothing is believed: a file that
//! is cut off or lies gives an [`ElfError`], or less than it promised, but never a panic.
//!
//! Addresses are those of the file, that is, relative to the load bias of the module once it is
//! in memory. What is read from memory instead of the file is in [`modules`](crate::modules).

use core::cmp::Reverse;
use core::error::Error;
use core::ffi::CStr;
use core::fmt::{self, Display, Formatter};
use core::ops::Range;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use object::LittleEndian as Le;
use object::elf::{self, FileHeader64, ProgramHeader64, SectionHeader64, Sym64};
use object::read::StringTable;
use object::read::elf::{FileHeader, ProgramHeader, Rela, SectionHeader, SectionTable, Sym};

/// The sections in which compilers list entries of functions.
const ENTRY_LISTS: [(&[u8], EntryList); 3] = [
    (b"__patchable_function_entries", EntryList::Patchable),
    (b"__mcount_loc", EntryList::Mcount),
    (b"xray_instr_map", EntryList::Xray),
];

/// The sections that hold stubs of the linker instead of functions.
const STUB_SECTIONS: [&[u8]; 4] = [b".plt", b".plt.got", b".plt.sec", b".iplt"];

/// As many executable segments as are looked at. Linkers make one or two.
const MAX_TEXT_SEGMENTS: usize = 64;

/// An ELF file for x86-64: a program or a shared library.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ElfFile<'a> {
    bytes: &'a [u8],
    segments: &'a [ProgramHeader64<Le>],
    sections: SectionTable<'a, FileHeader64<Le>>,
}

impl<'a> ElfFile<'a> {
    /// Reads the headers of a file.
    ///
    /// The tables of a file are used where they are, so its bytes must be aligned to 8, as those
    /// of a mapped file are.
    ///
    /// # Errors
    ///
    /// If the bytes are not those of a program or shared library for x86-64, or if the tables
    /// that the header announces are not inside the file.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, ElfError> {
        if !bytes.starts_with(&elf::ELFMAG) {
            return Err(ElfError::NotElf);
        }
        let header =
            FileHeader64::<Le>::parse(bytes).map_err(|_| ElfError::Malformed(Part::FileHeader))?;
        let loadable = matches!(header.e_type(Le), elf::ET_EXEC | elf::ET_DYN);
        let endian = header.is_little_endian() && header.is_class_64();
        if !endian || !loadable || header.e_machine(Le) != elf::EM_X86_64 {
            return Err(ElfError::Unsupported);
        }
        Ok(Self {
            bytes,
            segments: header
                .program_headers(Le, bytes)
                .map_err(|_| ElfError::Malformed(Part::ProgramHeaders))?,
            sections: header
                .sections(Le, bytes)
                .map_err(|_| ElfError::Malformed(Part::SectionHeaders))?,
        })
    }

    /// The `len` bytes that the file has for an address, if it has all of them.
    #[must_use]
    pub(crate) fn bytes_at(&self, address: u64, len: usize) -> Option<&'a [u8]> {
        self.segments
            .iter()
            .filter(|segment| segment.p_type(Le) == elf::PT_LOAD)
            .find_map(|segment| {
                let offset = address.checked_sub(segment.p_vaddr(Le))?;
                let offset = usize::try_from(offset).ok()?;
                segment.data(Le, self.bytes).ok()?.get(offset..)?.get(..len)
            })
    }

    /// The program headers as they stand in the file.
    #[must_use]
    pub(crate) fn program_headers(&self) -> &'a [u8] {
        object::pod::bytes_of_slice(self.segments)
    }

    /// The address and content of every note segment. The build id is among them.
    pub(crate) fn notes(&self) -> impl Iterator<Item = (u64, &'a [u8])> + use<'a> {
        let bytes = self.bytes;
        let notes = self
            .segments
            .iter()
            .filter(|s| s.p_type(Le) == elf::PT_NOTE);
        notes.filter_map(move |s| Some((s.p_vaddr(Le), s.data(Le, bytes).ok()?)))
    }

    /// The build id, which the linker makes of the content: two files with the same one belong
    /// together.
    #[must_use]
    pub(crate) fn build_id(&self) -> Option<&'a [u8]> {
        // Sections first: of a debug file, the program headers are those of the file it belongs to.
        let sections = self.sections.iter();
        let in_sections = sections.filter_map(|s| s.notes(Le, self.bytes).ok().flatten());
        let segments = self.segments.iter();
        let in_segments = segments.filter_map(|s| s.notes(Le, self.bytes).ok().flatten());
        in_sections
            .chain(in_segments)
            .flat_map(|notes| notes.map_while(Result::ok))
            .find(|note| {
                note.n_type(Le) == elf::NT_GNU_BUILD_ID && note.name() == elf::ELF_NOTE_GNU
            })
            .map(|note| note.desc())
            .filter(|id| !id.is_empty())
    }

    /// The name of the debug file that was split off this one, and the CRC-32 of its content.
    #[must_use]
    pub(crate) fn debug_link(&self) -> Option<(&'a OsStr, u32)> {
        let content = self.section(b".gnu_debuglink")?;
        let name = CStr::from_bytes_until_nul(content).ok()?.to_bytes();
        // It follows the name and the NUL at a multiple of four.
        let crc = content.get((name.len() + 1).next_multiple_of(4)..)?;
        let crc = u32::from_le_bytes(*crc.first_chunk()?);
        (!name.is_empty()).then_some((OsStr::from_bytes(name), crc))
    }

    /// What compilers say of themselves: `GCC: (Debian 12.2.0-14) 12.2.0`, `rustc version 1.88.0`,
    /// `Debian clang version 14.0.6`.
    pub(crate) fn comment(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let content = self.section(b".comment").unwrap_or_default();
        let texts = content.split(|&byte| byte == 0);
        texts.filter_map(|text| str::from_utf8(text).ok().filter(|text| !text.is_empty()))
    }

    /// For each function that the linker asks a resolver for: where it writes the answer, and the
    /// resolver, which both are addresses relative to the load bias.
    pub(crate) fn irelative(&self) -> impl Iterator<Item = (u64, u64)> {
        let loaded = self.sections.iter();
        let loaded = loaded.filter(|section| section.sh_flags(Le).contains(elf::SHF_ALLOC));
        loaded
            .filter_map(|section| section.rela(Le, self.bytes).ok().flatten())
            .flat_map(|(relocations, _)| relocations)
            .filter(|relocation| relocation.r_type(Le, false) == elf::R_X86_64_IRELATIVE)
            .map(|relocation| (relocation.r_offset(Le), relocation.r_addend(Le) as u64))
    }

    /// The content of a section in the file.
    fn section(&self, name: &[u8]) -> Option<&'a [u8]> {
        let (_, section) = self.sections.section_by_name(Le, name)?;
        section.data(Le, self.bytes).ok()
    }

    /// The address ranges of all sections in which a compiler listed function entries.
    ///
    /// Their content in the file is not yet relocated, often all zero: read it from memory.
    pub(crate) fn entry_lists(&self) -> impl Iterator<Item = (EntryList, Range<u64>)> {
        self.sections.iter().filter_map(|section| {
            if !section.sh_flags(Le).contains(elf::SHF_ALLOC) {
                return None;
            }
            let name = self.sections.section_name(Le, section).ok()?;
            let (_, list) = ENTRY_LISTS.iter().find(|(known, _)| *known == name)?;
            Some((*list, range_of(section)?))
        })
    }

    /// The address ranges that hold functions, in order and apart from each other.
    ///
    /// These are the executable sections, as far as they are loaded as such, without the linker's
    /// stubs. In a file without sections it is the executable segments.
    #[must_use]
    pub(crate) fn text(&self) -> Vec<Range<u64>> {
        let is_text = |s: &&ProgramHeader64<Le>| {
            s.p_type(Le) == elf::PT_LOAD && s.p_flags(Le).contains(elf::PF_X)
        };
        let segments: Vec<Range<u64>> = self
            .segments
            .iter()
            .filter(is_text)
            .filter_map(|s| Some(s.p_vaddr(Le)..s.p_vaddr(Le).checked_add(s.p_memsz(Le))?))
            .take(MAX_TEXT_SEGMENTS)
            .collect();
        let is_executable = |section: &&SectionHeader64<Le>| {
            let flags = section.sh_flags(Le);
            flags.contains(elf::SHF_ALLOC) && flags.contains(elf::SHF_EXECINSTR)
        };
        let mut sections = self.sections.iter().filter(is_executable).peekable();
        let mut text = Vec::new();
        if sections.peek().is_none() {
            text.clone_from(&segments);
        }
        for section in sections {
            let is_stubs = match self.sections.section_name(Le, section) {
                Ok(name) => STUB_SECTIONS.contains(&name),
                Err(_) => false,
            };
            if let Some(range) = range_of(section).filter(|_| !is_stubs) {
                let loaded = |s: &Range<u64>| s.start.max(range.start)..s.end.min(range.end);
                text.extend(segments.iter().map(loaded));
            }
        }
        text.sort_unstable_by_key(|range| range.start);
        let mut end = 0;
        for range in &mut text {
            range.start = range.start.max(end);
            end = range.end.max(end);
        }
        text.retain(|range| !range.is_empty());
        text
    }

    /// One of the symbol tables of the file. It is empty if there is none.
    ///
    /// # Errors
    ///
    /// If the symbol table, its names, or its versions are not inside the file.
    pub(crate) fn symbol_table(&self, source: SymbolSource) -> Result<SymbolTable<'a>, ElfError> {
        let malformed = |_| ElfError::Malformed(Part::Symbols);
        let kind = match source {
            SymbolSource::Symtab => elf::SHT_SYMTAB,
            SymbolSource::Dynsym => elf::SHT_DYNSYM,
        };
        let table = self
            .sections
            .symbols(Le, self.bytes, kind)
            .map_err(malformed)?;
        if table.is_empty() {
            return Ok(SymbolTable::default());
        }
        let versions = self
            .sections
            .gnu_versym(Le, self.bytes)
            .map_err(malformed)?
            .filter(|(_, link)| *link == table.section());
        Ok(SymbolTable {
            symbols: table.symbols(),
            strings: self
                .sections
                .section(table.string_section())
                .and_then(|section| section.data(Le, self.bytes))
                .map_err(malformed)?,
            versions: versions.map_or(&[], |(versions, _)| versions),
        })
    }

    /// The versions of symbols that the file defines, by the index that stands for them.
    ///
    /// A version that cannot be read is left out.
    #[must_use]
    pub(crate) fn versions(&self) -> Vec<(u16, &'a str)> {
        let Ok(Some((mut definitions, link))) = self.sections.gnu_verdef(Le, self.bytes) else {
            return Vec::new();
        };
        let Ok(strings) = self.sections.strings(Le, self.bytes, link) else {
            return Vec::new();
        };
        let mut versions = Vec::new();
        while versions.len() < usize::from(HIDDEN_VERSION)
            && let Ok(Some((definition, mut names))) = definitions.next()
        {
            // The first stands for the file itself.
            if definition.vd_flags.get(Le).contains(elf::VER_FLG_BASE) {
                continue;
            }
            let name = names.next().ok().flatten();
            let name = name.and_then(|name| name.name(Le, strings).ok());
            if let Some(Ok(name)) = name.map(str::from_utf8) {
                versions.push((definition.vd_ndx.get(Le).0, name));
            }
        }
        versions.sort_unstable();
        versions.dedup_by_key(|(index, _)| *index);
        versions
    }

    /// The functions of the file by address.
    ///
    /// # Errors
    ///
    /// If the symbol table or its names are not inside the file.
    pub(crate) fn symbols(&self) -> Result<Symbols<'a>, ElfError> {
        let symtab = self.symbols_from(SymbolSource::Symtab)?;
        if !symtab.is_empty() {
            return Ok(symtab);
        }
        self.symbols_from(SymbolSource::Dynsym)
    }

    fn symbols_from(&self, source: SymbolSource) -> Result<Symbols<'a>, ElfError> {
        let kind = match source {
            SymbolSource::Symtab => elf::SHT_SYMTAB,
            SymbolSource::Dynsym => elf::SHT_DYNSYM,
        };
        let table = self
            .sections
            .symbols(Le, self.bytes, kind)
            .map_err(|_| ElfError::Malformed(Part::Symbols))?;
        let entries = table.iter().filter_map(Entry::new).collect();
        Ok(Symbols::new(
            #[cfg(test)]
            source,
            entries,
            table.strings(),
        ))
    }
}

/// The addresses of a section.
fn range_of(section: &SectionHeader64<Le>) -> Option<Range<u64>> {
    let start = section.sh_addr(Le);
    Some(start..start.checked_add(section.sh_size(Le))?)
}

/// What a list of function entries is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EntryList {
    /// `__patchable_function_entries`: the addresses of padding.
    Patchable,
    /// `__mcount_loc`: the addresses of calls of `__fentry__`, or of the NOPs in their place.
    Mcount,
    /// `xray_instr_map`: the sleds of XRay, and their functions.
    Xray,
}

/// A symbol table as it stands in the file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SymbolTable<'a> {
    symbols: &'a [Sym64<Le>],
    strings: &'a [u8],
    versions: &'a [elf::Versym<Le>],
}

impl<'a> SymbolTable<'a> {
    /// Whether the file has no such table.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }

    /// The bytes of all names.
    #[must_use]
    pub(crate) fn strings(&self) -> &'a [u8] {
        self.strings
    }

    /// The symbols that this file defines at an address.
    pub(crate) fn defined(&self) -> impl Iterator<Item = TableSymbol> + use<'a> {
        let Self {
            symbols, versions, ..
        } = *self;
        symbols
            .iter()
            .enumerate()
            .filter_map(move |(index, symbol)| {
                let kind = match symbol.st_type() {
                    elf::STT_FUNC => SymbolKind::Function,
                    elf::STT_GNU_IFUNC => SymbolKind::Resolver,
                    elf::STT_NOTYPE | elf::STT_OBJECT => SymbolKind::Other,
                    _ => return None,
                };
                let section = symbol.st_shndx(Le);
                if section == elf::SHN_UNDEF
                    || section == elf::SHN_ABS
                    || section == elf::SHN_COMMON
                {
                    return None;
                }
                Some(TableSymbol {
                    kind,
                    address: symbol.st_value(Le),
                    size: symbol.st_size(Le),
                    name: symbol.st_name(Le),
                    binding: Binding::of(symbol),
                    version: versions.get(index).map_or(0, |v| v.0.get(Le).0),
                })
            })
    }
}

/// What a symbol of a [`SymbolTable`] says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableSymbol {
    /// What it stands for.
    pub(crate) kind: SymbolKind,
    /// Where that is, relative to the load bias.
    pub(crate) address: u64,
    /// The number of its bytes, 0 if the file does not say.
    pub(crate) size: u64,
    /// Where its name starts in the strings of the table.
    pub(crate) name: u32,
    /// Who sees it.
    pub(crate) binding: Binding,
    /// The index of its version, and [`HIDDEN_VERSION`]; 0 or 1 for none.
    pub(crate) version: u16,
}

/// Set in a version's index if the version is not the one that is linked against by default.
pub(crate) const HIDDEN_VERSION: u16 = 0x8000;

/// What a symbol stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SymbolKind {
    /// A function.
    Function,
    /// A function that the linker calls to learn the address of the one that is meant.
    Resolver,
    /// A label or data.
    Other,
}

/// Which symbol table names come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SymbolSource {
    /// `.symtab`, which has all functions.
    Symtab,
    /// `.dynsym`, which has those that are visible to other modules. It is what is left when a
    /// file was stripped.
    Dynsym,
}

/// A function by name and place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Symbol<'a> {
    /// The name as the linker knows it, without the version behind an `@`.
    pub(crate) name: &'a str,
    /// Where the function starts, relative to the load bias.
    pub(crate) address: u64,
    /// The number of its bytes, 0 if the file does not say.
    pub(crate) size: u32,
}

/// The functions of a file, found by address.
///
/// The names stay in the file: a function costs 24 bytes here.
#[derive(Clone, Debug)]
pub(crate) struct Symbols<'a> {
    #[cfg(test)]
    source: SymbolSource,
    /// By address; of several at one address the best comes last.
    entries: Vec<Entry>,
    strings: StringTable<'a>,
}

/// The index of no entry.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    address: u64,
    size: u32,
    /// Where the name starts in the string table.
    name: u32,
    /// The index of the innermost earlier entry that reaches beyond this entry's address.
    enclosing: u32,
    binding: Binding,
}

const _: () = assert!(size_of::<Entry>() <= 24);

/// Who sees a symbol, the more the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Binding {
    /// Only its own object file.
    Local,
    /// All, unless another has the same name.
    Weak,
    /// All.
    Global,
}

impl Binding {
    fn of(symbol: &Sym64<Le>) -> Self {
        match symbol.st_bind() {
            elf::STB_LOCAL => Self::Local,
            elf::STB_WEAK => Self::Weak,
            _ => Self::Global,
        }
    }
}

impl Entry {
    /// The entry for a symbol, if that is a function with a name that is defined in this file.
    fn new(symbol: &Sym64<Le>) -> Option<Self> {
        let is_function = matches!(symbol.st_type(), elf::STT_FUNC | elf::STT_GNU_IFUNC);
        if !is_function || symbol.is_undefined(Le) || symbol.st_name(Le) == 0 {
            return None;
        }
        Some(Self {
            address: symbol.st_value(Le),
            size: symbol.st_size(Le).try_into().unwrap_or(u32::MAX),
            name: symbol.st_name(Le),
            enclosing: NONE,
            binding: Binding::of(symbol),
        })
    }

    /// The end of the function. One without a size is given its first byte.
    fn end(&self) -> u64 {
        self.address.saturating_add(u64::from(self.size.max(1)))
    }
}

impl<'a> Symbols<'a> {
    fn new(
        #[cfg(test)] source: SymbolSource,
        mut entries: Vec<Entry>,
        strings: StringTable<'a>,
    ) -> Self {
        // An index must fit in 32 bits. No file of a size that exists comes near.
        entries.truncate(NONE as usize);
        let name = |e: &Entry| strings.get(e.name).ok();
        entries.sort_unstable_by(|a, b| {
            (a.address, a.binding, a.size)
                .cmp(&(b.address, b.binding, b.size))
                .then_with(|| Reverse(name(a)).cmp(&Reverse(name(b))))
        });
        link_enclosing(&mut entries);
        Self {
            #[cfg(test)]
            source,
            entries,
            strings,
        }
    }

    /// The table the names come from.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn source(&self) -> SymbolSource {
        self.source
    }

    /// The number of functions.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the file names no function.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The function that contains the address.
    ///
    /// Of functions inside each other the innermost is taken. Of several names for one address,
    /// it is a global before a weak before a local one, then the one of the largest function,
    /// then the first in alphabetical order.
    #[must_use]
    pub(crate) fn symbol_at(&self, address: u64) -> Option<Symbol<'a>> {
        let mut next = self
            .entries
            .partition_point(|e| e.address <= address)
            .checked_sub(1);
        while let Some(entry) = next.and_then(|i| self.entries.get(i)) {
            if address < entry.end()
                && let Some(symbol) = self.symbol(entry)
            {
                return Some(symbol);
            }
            next = usize::try_from(entry.enclosing).ok();
        }
        None
    }

    #[cfg(test)]
    /// All functions by address, also several names for one, the best of them last.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Symbol<'a>> {
        self.entries.iter().filter_map(|entry| self.symbol(entry))
    }

    /// The symbol, unless its name is not text inside the file.
    fn symbol(&self, entry: &Entry) -> Option<Symbol<'a>> {
        let name = str::from_utf8(self.strings.get(entry.name).ok()?).ok()?;
        let name = match name.split_once('@') {
            Some((name, _version)) if !name.is_empty() => name,
            _ => name,
        };
        (!name.is_empty()).then_some(Symbol {
            name,
            address: entry.address,
            size: entry.size,
        })
    }
}

/// Links every entry to the innermost earlier one that reaches beyond its address.
///
/// Following the links from the last entry at or before an address then visits all entries that
/// contain the address, the innermost first.
fn link_enclosing(entries: &mut [Entry]) {
    let mut innermost = NONE;
    for i in 0..entries.len() {
        let address = entries[i].address;
        while let Some(open) = entries.get(innermost as usize) {
            if open.end() > address {
                break;
            }
            innermost = open.enclosing;
        }
        entries[i].enclosing = innermost;
        innermost = i as u32;
    }
}

/// Why a file cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub(crate) enum ElfError {
    /// The file does not start like an ELF file.
    NotElf,
    /// The file is not a program or shared library for 64-bit x86.
    Unsupported,
    /// A part of the file is not where the file says, or not what it should be.
    Malformed(Part),
    /// The file is not the one the module was loaded from: it was replaced since.
    NotTheLoadedFile,
    /// The module has been unloaded.
    Unloaded,
}

/// A part of an ELF file, see [`ElfError::Malformed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub(crate) enum Part {
    /// The file header.
    FileHeader,
    /// The table of segments.
    ProgramHeaders,
    /// The table of sections or their names.
    SectionHeaders,
    /// The symbol table or the names of symbols.
    Symbols,
}

impl Display for ElfError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotElf => "not an ELF file",
            Self::Unsupported => "not a program or shared library for x86-64",
            Self::Malformed(Part::FileHeader) => "malformed ELF file header",
            Self::Malformed(Part::ProgramHeaders) => "malformed ELF program headers",
            Self::Malformed(Part::SectionHeaders) => "malformed ELF section headers",
            Self::Malformed(Part::Symbols) => "malformed ELF symbol table",
            Self::NotTheLoadedFile => "the file on disk is not the one that was loaded",
            Self::Unloaded => "the module has been unloaded",
        })
    }
}

impl Error for ElfError {}

#[cfg(test)]
mod tests {
    use super::*;

    /// A function symbol of a made-up file: name, address, size, binding.
    type Row = (&'static str, u64, u64, elf::SymbolBind);

    const GLOBAL: elf::SymbolBind = elf::STB_GLOBAL;
    const WEAK: elf::SymbolBind = elf::STB_WEAK;
    const LOCAL: elf::SymbolBind = elf::STB_LOCAL;

    /// A file with the functions in the given symbol table and two patchable sections.
    fn file(table: elf::SectionType, rows: &[Row]) -> Vec<u8> {
        const SECTIONS: u64 = 64;
        const SECTION: u64 = 64;
        let mut names = b"\0__patchable_function_entries\0".to_vec();
        let mut symbols = Vec::new();
        for (name, address, size, binding) in rows {
            symbols.extend((names.len() as u32).to_le_bytes());
            symbols.extend([(binding.0 << 4) | elf::STT_FUNC.0, 0, 1, 0]);
            symbols.extend(address.to_le_bytes());
            symbols.extend(size.to_le_bytes());
            names.extend(name.bytes().chain([0]));
        }
        let symbols_at = SECTIONS + 5 * SECTION;
        let names_at = symbols_at + symbols.len() as u64;

        let mut out = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0];
        out.extend([0; 8]);
        out.extend(3u16.to_le_bytes()); // ET_DYN
        out.extend(62u16.to_le_bytes()); // EM_X86_64
        out.extend(1u32.to_le_bytes());
        out.extend([0; 16]);
        out.extend(SECTIONS.to_le_bytes());
        out.extend([0; 4]);
        for half in [64u16, 56, 0, 64, 5, 4] {
            out.extend(half.to_le_bytes());
        }
        let mut section = |name: u32, kind: u32, flags: u64, at: [u64; 3], link: u32, unit: u64| {
            out.extend(name.to_le_bytes());
            out.extend(kind.to_le_bytes());
            out.extend(flags.to_le_bytes());
            at.iter().for_each(|word| out.extend(word.to_le_bytes()));
            out.extend(link.to_le_bytes());
            out.extend(0u32.to_le_bytes());
            out.extend(8u64.to_le_bytes());
            out.extend(unit.to_le_bytes());
        };
        // Address, offset and size of a section are the three words.
        let alloc = elf::SHF_ALLOC.0;
        section(0, 0, 0, [0; 3], 0, 0);
        section(1, elf::SHT_PROGBITS.0, alloc, [0x1000, 0, 16], 0, 8);
        section(1, elf::SHT_PROGBITS.0, alloc, [0x2000, 0, 8], 0, 8);
        section(0, table.0, 0, [0, symbols_at, symbols.len() as u64], 4, 24);
        section(
            0,
            elf::SHT_STRTAB.0,
            0,
            [0, names_at, names.len() as u64],
            0,
            0,
        );
        out.extend(symbols);
        out.extend(names);
        out
    }

    fn symbol_at(rows: &[Row], address: u64) -> Option<&'static str> {
        let bytes = file(elf::SHT_SYMTAB, rows);
        let symbols = ElfFile::parse(&bytes).unwrap().symbols().unwrap();
        let name = symbols.symbol_at(address)?.name;
        rows.iter()
            .map(|row| row.0)
            .find(|n| n.split('@').next() == Some(name))
    }

    #[test]
    fn every_list_of_entries_is_found() {
        let bytes = file(elf::SHT_SYMTAB, &[]);
        let file = ElfFile::parse(&bytes).unwrap();
        let lists = [0x1000..0x1010, 0x2000..0x2008].map(|range| (EntryList::Patchable, range));
        assert!(file.entry_lists().eq(lists));
    }

    #[test]
    fn addresses_between_functions_have_no_symbol() {
        let rows = [("b", 0x20, 4, GLOBAL), ("a", 0x10, 4, GLOBAL)];
        let found = [0xf, 0x10, 0x13, 0x14, 0x20, 0x24].map(|at| symbol_at(&rows, at));
        assert_eq!(found, [None, Some("a"), Some("a"), None, Some("b"), None]);
    }

    #[test]
    fn global_goes_before_weak_before_local() {
        let rows = [("l", 1, 9, LOCAL), ("w", 1, 8, WEAK), ("g", 1, 2, GLOBAL)];
        assert_eq!(symbol_at(&rows, 1), Some("g"));
        assert_eq!(symbol_at(&rows, 5), Some("w"));
        assert_eq!(symbol_at(&rows, 9), Some("l"));
    }

    #[test]
    fn longest_goes_before_first_name() {
        let rows = [("a", 1, 3, WEAK), ("c", 1, 4, WEAK), ("b", 1, 4, WEAK)];
        assert_eq!(symbol_at(&rows, 1), Some("b"));
    }

    #[test]
    fn innermost_function_wins() {
        let rows = [
            ("outer", 0x10, 0x40, GLOBAL),
            ("inner", 0x20, 8, LOCAL),
            ("later", 0x30, 8, LOCAL),
            ("across", 0x48, 0x20, LOCAL),
        ];
        let found = [0x1f, 0x20, 0x28, 0x37, 0x38, 0x48, 0x60].map(|at| symbol_at(&rows, at));
        let [outer, inner, later, across] = rows.map(|row| Some(row.0));
        assert_eq!(found, [outer, inner, outer, later, outer, across, across]);
    }

    #[test]
    fn a_function_without_size_has_its_first_byte() {
        let rows = [("sized", 0x10, 8, LOCAL), ("bare", 0x10, 0, GLOBAL)];
        assert_eq!(symbol_at(&rows, 0x10), Some("bare"));
        assert_eq!(symbol_at(&rows, 0x11), Some("sized"));
    }

    #[test]
    fn lookup_agrees_with_a_linear_search() {
        // Some two hundred overlapping functions from a little generator.
        let mut state = 1u32;
        let mut next = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % below
        };
        let entries: Vec<_> = (0..200)
            .map(|_| Entry {
                address: next(300).into(),
                size: next(20),
                name: 0,
                enclosing: NONE,
                binding: Binding::Local,
            })
            .collect();
        let strings = StringTable::new(&b"f\0"[..], 0, 2);
        let symbols = Symbols::new(SymbolSource::Symtab, entries, strings);
        for address in 0..330 {
            let holds = |e: &&Entry| (e.address..e.end()).contains(&address);
            let expected = symbols
                .entries
                .iter()
                .rev()
                .find(holds)
                .map(|e| (e.address, e.size));
            let found = symbols.symbol_at(address).map(|s| (s.address, s.size));
            assert_eq!(found, expected, "{address}");
        }
    }

    #[test]
    fn dynsym_is_the_fall_back() {
        let rows = [("f", 1, 2, GLOBAL)];
        for (table, source) in [
            (elf::SHT_SYMTAB, SymbolSource::Symtab),
            (elf::SHT_DYNSYM, SymbolSource::Dynsym),
        ] {
            let bytes = file(table, &rows);
            let symbols = ElfFile::parse(&bytes).unwrap().symbols().unwrap();
            assert_eq!((symbols.source(), symbols.len()), (source, 1));
        }
    }

    #[test]
    fn symbol_versions_are_dropped() {
        let bytes = file(elf::SHT_SYMTAB, &[("memcpy@@GLIBC_2.14", 1, 2, GLOBAL)]);
        let symbols = ElfFile::parse(&bytes).unwrap().symbols().unwrap();
        assert_eq!(symbols.iter().next().unwrap().name, "memcpy");
    }

    #[test]
    fn other_files_are_refused() {
        let good = file(elf::SHT_SYMTAB, &[]);
        let refused = |bytes: &[u8]| ElfFile::parse(bytes).unwrap_err();
        let with = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            refused(&bytes)
        };
        assert_eq!(refused(b""), ElfError::NotElf);
        assert_eq!(refused(b"#!/bin/sh\n"), ElfError::NotElf);
        assert_eq!(refused(&good[..40]), ElfError::Malformed(Part::FileHeader));
        assert_eq!(
            refused(&good[..100]),
            ElfError::Malformed(Part::SectionHeaders)
        );
        assert_eq!(with(18, 183), ElfError::Unsupported); // EM_AARCH64
        assert_eq!(with(16, 1), ElfError::Unsupported); // ET_REL
    }

    #[test]
    fn damaged_files_never_panic() {
        fn use_all_of(bytes: &[u8]) {
            let Ok(file) = ElfFile::parse(bytes) else {
                return;
            };
            file.entry_lists().for_each(drop);
            let _ = file.program_headers();
            file.notes().count();
            if let Ok(symbols) = file.symbols() {
                symbols.iter().count();
                for address in [0, 1, 0x15, u64::MAX] {
                    let _ = symbols.symbol_at(address);
                }
            }
        }
        let rows = [
            ("a", 1, 3, WEAK),
            ("b", 1, 4, LOCAL),
            ("c", u64::MAX - 1, 9, LOCAL),
        ];
        let good = file(elf::SHT_SYMTAB, &rows);
        (0..good.len()).for_each(|len| use_all_of(&good[..len]));
        let mut bad = good.clone();
        for at in 0..good.len() {
            for value in [0, 1, 2, 4, 0x7f, 0x80, 0xff, good[at] ^ 1, good[at] ^ 8] {
                bad[at] = value;
                use_all_of(&bad);
            }
            bad[at] = good[at];
        }
    }

    #[test]
    fn the_test_program_knows_its_own_functions() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let symbols = ElfFile::parse(&bytes).unwrap().symbols().unwrap();
        let name = "::elf::tests::the_test_program_knows_its_own_functions";
        assert!(
            symbols
                .iter()
                .any(|s| crate::demangle::to_string(s.name).ends_with(name))
        );
        let wanted = symbols.iter().find(|s| s.name == "main").unwrap();
        let inside = wanted.address + u64::from(wanted.size) / 2;
        assert_eq!(symbols.symbol_at(inside).unwrap().address, wanted.address);
    }
}
