//! Facts in the ELF file of a program or shared library.
//!
//! Everything in this module is a pure function of the bytes of a file: the function entries that
//! the compiler recorded, and the functions' names. Nothing in a file is trusted: one that is cut
//! off or wrong gives an [`ElfError`], or fewer facts than it announces, but never a panic.
//!
//! Addresses are those of the file, that is, relative to the load bias of the module once it is in
//! memory. Crate `fgraph` has the code that reads memory instead of the file.

use core::error::Error;
use core::ffi::CStr;
use core::fmt::{self, Display, Formatter};
use core::ops::Range;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use object::LittleEndian as Le;
use object::elf::{self, FileHeader64, ProgramHeader64, Rela64, SectionHeader64, Sym64};
use object::read::ReadRef;
use object::read::elf::{FileHeader, ProgramHeader, Rela, SectionHeader, SectionTable, Sym};

/// The sections in which compilers list function entries.
const ENTRY_LISTS: [(&[u8], EntryList); 3] = [
    (b"__patchable_function_entries", EntryList::Patchable),
    (b"__mcount_loc", EntryList::Mcount),
    (b"xray_instr_map", EntryList::Xray),
];

/// The sections that hold stubs of the linker instead of functions.
const STUB_SECTIONS: [&[u8]; 4] = [b".plt", b".plt.got", b".plt.sec", b".iplt"];

/// The most executable segments that are read. Linkers make one or two.
const MAX_TEXT_SEGMENTS: usize = 64;

/// An ELF file for x86-64: a program or a shared library.
#[derive(Clone, Copy, Debug)]
pub struct ElfFile<'a> {
    bytes: &'a [u8],
    segments: &'a [ProgramHeader64<Le>],
    sections: SectionTable<'a, FileHeader64<Le>>,
    is_movable: bool,
    /// The entry address in the header.
    entry: u64,
}

/// Bytes of the header of the table of unwind information, for a relative address, an absolute
/// count, and entries relative to the header.
const UNWIND_HEAD: usize = 12;

impl<'a> ElfFile<'a> {
    /// Reads the headers of a file.
    ///
    /// The tables of a file are used in place, so its bytes must be aligned to 8, as those of a
    /// mapped file are.
    ///
    /// # Errors
    ///
    /// Fails if the bytes are not those of a program or shared library for x86-64, or if the tables
    /// that the header announces are not inside the file.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ElfError> {
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
            is_movable: header.e_type(Le) == elf::ET_DYN,
            entry: header.e_entry(Le),
        })
    }

    /// Returns true if the file runs at any address, so that its code contains only relative
    /// addresses.
    #[must_use]
    pub(crate) fn is_movable(&self) -> bool {
        self.is_movable
    }

    /// Returns the program's entry point, if it is a program that the dynamic linker loads: the
    /// value that linkers write in libraries means nothing.
    #[must_use]
    pub fn entry_point(&self) -> Option<u64> {
        let is_interpreted = |segment: &ProgramHeader64<Le>| segment.p_type(Le) == elf::PT_INTERP;
        let is_program = self.segments.iter().any(is_interpreted);
        (is_program && self.entry != 0).then_some(self.entry)
    }

    /// Iterates over the address and content of each loaded part of the file.
    pub(crate) fn loaded(&self) -> impl Iterator<Item = (u64, &'a [u8])> + use<'a> {
        let bytes = self.bytes;
        let segments = self.segments.iter();
        let loaded = segments.filter(|segment| segment.p_type(Le) == elf::PT_LOAD);
        loaded.filter_map(move |s| Some((s.p_vaddr(Le), s.data(Le, bytes).ok()?)))
    }

    /// Returns the address and content of the section for unwinders, `.eh_frame`.
    #[must_use]
    pub(crate) fn unwind_entries(&self) -> Option<(u64, &'a [u8])> {
        let (_, section) = self.sections.section_by_name(Le, b".eh_frame")?;
        Some((section.sh_addr(Le), section.data(Le, self.bytes).ok()?))
    }

    /// Returns the `len` bytes of the file for an address, if it has all of them.
    #[must_use]
    pub fn bytes_at(&self, address: u64, len: usize) -> Option<&'a [u8]> {
        self.segments
            .iter()
            .filter(|segment| segment.p_type(Le) == elf::PT_LOAD)
            .find_map(|segment| {
                let offset = address.checked_sub(segment.p_vaddr(Le))?;
                let offset = usize::try_from(offset).ok()?;
                segment.data(Le, self.bytes).ok()?.get(offset..)?.get(..len)
            })
    }

    /// Iterates over all bytes of the file except sections for debuggers, `.debug_*`.
    pub fn bytes_but_debug(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let bytes = self.bytes;
        let is_debug = |section: &&SectionHeader64<Le>| {
            let name = self.sections.section_name(Le, section).unwrap_or_default();
            let is_loaded = section.sh_flags(Le).contains(elf::SHF_ALLOC);
            !is_loaded && (name.starts_with(b".debug_") || name.starts_with(b".zdebug_"))
        };
        let debug = self.sections.iter().filter(is_debug);
        let mut debug: Vec<Range<usize>> = debug
            .filter_map(|section| {
                let (start, len) = section.file_range(Le)?;
                let start = usize::try_from(start).ok()?;
                let end = start.checked_add(usize::try_from(len).ok()?)?;
                (end <= bytes.len()).then_some(start..end)
            })
            .collect();
        debug.sort_unstable_by_key(|range| range.start);
        let end = bytes.len()..bytes.len();
        let mut at = 0;
        debug.into_iter().chain([end]).filter_map(move |debug| {
            let before = at..debug.start;
            at = at.max(debug.end);
            bytes.get(before).filter(|bytes| !bytes.is_empty())
        })
    }

    /// Returns the program headers as they are in the file.
    #[must_use]
    pub fn program_headers(&self) -> &'a [u8] {
        object::pod::bytes_of_slice(self.segments)
    }

    /// Iterates over the loaded segments: address, and number of bytes.
    #[cfg(feature = "dwarf")]
    pub fn load_addresses(&self) -> impl Iterator<Item = (u64, u64)> {
        load_addresses(self.segments)
    }

    /// Iterates over the address and content of every note segment. The build id is among them.
    pub fn notes(&self) -> impl Iterator<Item = (u64, &'a [u8])> + use<'a> {
        let bytes = self.bytes;
        let notes = self
            .segments
            .iter()
            .filter(|s| s.p_type(Le) == elf::PT_NOTE);
        notes.filter_map(move |s| Some((s.p_vaddr(Le), s.data(Le, bytes).ok()?)))
    }

    /// Returns the start addresses, in order, of the stretches of code with unwind information:
    /// functions, and parts of functions that are elsewhere. Empty if there is no table of them.
    #[must_use]
    pub fn unwind_starts(&self) -> Vec<u64> {
        let is_table = |s: &&ProgramHeader64<Le>| s.p_type(Le) == elf::PT_GNU_EH_FRAME;
        let Some(segment) = self.segments.iter().find(is_table) else {
            return Vec::new();
        };
        let bytes = segment.data(Le, self.bytes).unwrap_or_default();
        let Some((head, entries)) = bytes.split_first_chunk::<UNWIND_HEAD>() else {
            return Vec::new();
        };
        let [1, _, 0x03, 0x3b, _, _, _, _, count @ ..] = *head else {
            return Vec::new();
        };
        let count = u32::from_le_bytes(count) as usize;
        let start = |entry: &[u8]| {
            let offset: [u8; 4] = entry.get(..4)?.try_into().ok()?;
            Some((segment.p_vaddr(Le)).wrapping_add_signed(i32::from_le_bytes(offset).into()))
        };
        let mut starts: Vec<u64> = entries
            .chunks_exact(8)
            .take(count)
            .filter_map(start)
            .collect();
        starts.sort_unstable();
        starts.dedup();
        starts
    }

    /// Returns the build id, which the linker computes from the content: two files with the same
    /// one belong together.
    #[must_use]
    pub fn build_id(&self) -> Option<&'a [u8]> {
        build_id(self.segments, &self.sections, self.bytes)
    }

    /// Returns the name of the debug file that was split off this one, and the CRC-32 of its
    /// content.
    #[must_use]
    pub fn debug_link(&self) -> Option<(&'a OsStr, u32)> {
        let content = self.section(b".gnu_debuglink")?;
        let name = CStr::from_bytes_until_nul(content).ok()?.to_bytes();
        // It follows the name and the NUL at a multiple of four.
        let crc = content.get((name.len() + 1).next_multiple_of(4)..)?;
        let crc = u32::from_le_bytes(*crc.first_chunk()?);
        (!name.is_empty()).then_some((OsStr::from_bytes(name), crc))
    }

    /// Returns true if there is a section of this name.
    #[must_use]
    pub fn has_section(&self, name: &[u8]) -> bool {
        self.section(name).is_some()
    }

    /// Iterates over the compilers' version strings: `GCC: (Debian 12.2.0-14) 12.2.0`, `rustc
    /// version 1.88.0`, `Debian clang version 14.0.6`.
    pub fn comment(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let content = self.section(b".comment").unwrap_or_default();
        let texts = content.split(|&byte| byte == 0);
        texts.filter_map(|text| str::from_utf8(text).ok().filter(|text| !text.is_empty()))
    }

    /// Iterates over the functions that the linker gets from a resolver: the slot for the result,
    /// and the resolver, both as addresses relative to the load bias.
    pub fn irelative(&self) -> impl Iterator<Item = (u64, u64)> {
        let loaded = self.sections.iter();
        let loaded = loaded.filter(|section| section.sh_flags(Le).contains(elf::SHF_ALLOC));
        loaded
            .filter_map(|section| section.rela(Le, self.bytes).ok().flatten())
            .flat_map(|(relocations, _)| relocations)
            .filter(|relocation| relocation.r_type(Le, false) == elf::R_X86_64_IRELATIVE)
            .map(|relocation| (relocation.r_offset(Le), relocation.r_addend(Le) as u64))
    }

    /// Returns the addresses at which the linker writes to code when it loads the file, up to eight
    /// bytes each, relative to the load bias and in order.
    pub fn text_relocations(&self) -> Vec<u64> {
        let is_text = |address: &u64| {
            let code = self.segments.iter();
            let mut code = code.filter(|s| s.p_flags(Le).contains(elf::PF_X));
            code.any(|s| address.wrapping_sub(s.p_vaddr(Le)) < s.p_memsz(Le))
        };
        let loaded = self.sections.iter();
        let loaded = loaded.filter(|section| section.sh_flags(Le).contains(elf::SHF_ALLOC));
        let mut places: Vec<u64> = loaded
            .flat_map(|section| {
                let named = section.rela(Le, self.bytes).ok().flatten();
                let named = named.map_or(&[][..], |(relocations, _)| relocations);
                let packed = section.relr(Le, self.bytes).ok().flatten();
                let named = named.iter().map(|relocation| relocation.r_offset(Le));
                named.chain(packed.into_iter().flatten())
            })
            .filter(is_text)
            .collect();
        places.sort_unstable();
        places
    }

    /// Returns the slots to which the linker writes the address of a function of another module, or
    /// of one that others may replace, for calls or in data: addresses relative to the load bias.
    pub fn slots_of(&self, function: &[u8]) -> Vec<u64> {
        let Ok(symbols) = self.sections.symbols(Le, self.bytes, elf::SHT_DYNSYM) else {
            return Vec::new();
        };
        let is_slot = |relocation: &Rela64<Le>| {
            let kind = relocation.r_type(Le, false);
            let is_address = [
                elf::R_X86_64_JUMP_SLOT,
                elf::R_X86_64_GLOB_DAT,
                elf::R_X86_64_64,
            ];
            is_address.contains(&kind)
                && relocation.symbol(Le, false).is_some_and(|index| {
                    let symbol = symbols.symbol(index);
                    symbol.and_then(|symbol| symbols.symbol_name(Le, symbol)) == Ok(function)
                })
        };
        let sections = self.sections.iter();
        let lists = sections.filter_map(|section| section.rela(Le, self.bytes).ok().flatten());
        lists
            .filter(|(_, link)| *link == symbols.section())
            .flat_map(|(relocations, _)| relocations)
            .filter(|relocation| is_slot(relocation))
            .map(|relocation| relocation.r_offset(Le))
            .collect()
    }

    /// Returns the words to which the linker writes an address, by their own address, relative to
    /// the load bias.
    pub fn pointers(&self) -> Vec<(u64, Pointer<'a>)> {
        let symbols = self.sections.symbols(Le, self.bytes, elf::SHT_DYNSYM);
        let symbols = symbols.unwrap_or_default();
        let pointer = |relocation: &Rela64<Le>| {
            let addend = relocation.r_addend(Le);
            let of_symbol = [
                elf::R_X86_64_JUMP_SLOT,
                elf::R_X86_64_GLOB_DAT,
                elf::R_X86_64_64,
            ];
            match relocation.r_type(Le, false) {
                elf::R_X86_64_RELATIVE => Some(Pointer::Address(addend as u64)),
                kind if of_symbol.contains(&kind) => {
                    let symbol = symbols.symbol(relocation.symbol(Le, false)?).ok()?;
                    Some(match symbol.st_shndx(Le) {
                        elf::SHN_UNDEF => Pointer::Import(symbols.symbol_name(Le, symbol).ok()?),
                        _ => Pointer::Address(symbol.st_value(Le)),
                    })
                }
                _ => None,
            }
        };
        let sections = self.sections.iter();
        let lists = sections.filter_map(|section| section.rela(Le, self.bytes).ok().flatten());
        let all = lists.flat_map(|(relocations, _)| relocations);
        let mut pointers: Vec<_> = all
            .filter_map(|relocation| Some((relocation.r_offset(Le), pointer(relocation)?)))
            .collect();
        pointers.sort_unstable_by_key(|&(at, _)| at);
        pointers
    }

    /// Iterates over the names of symbols that it imports from other files.
    pub fn imports(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let symbols = self.sections.symbols(Le, self.bytes, elf::SHT_DYNSYM);
        let symbols = symbols.unwrap_or_default();
        let imports = symbols
            .iter()
            .filter(|symbol| symbol.st_shndx(Le) == elf::SHN_UNDEF);
        imports.filter_map(move |symbol| symbols.symbol_name(Le, symbol).ok())
    }

    /// Returns the content of a section in the file.
    pub(crate) fn section(&self, name: &[u8]) -> Option<&'a [u8]> {
        let (_, section) = self.sections.section_by_name(Le, name)?;
        section.data(Le, self.bytes).ok()
    }

    /// Returns the address range of the section that lists restartable sequences (`struct
    /// rseq_cs`).
    ///
    /// The content in the file is not relocated yet: read it from memory.
    #[must_use]
    pub fn restartable_sequences(&self) -> Option<Range<u64>> {
        let (_, section) = self.sections.section_by_name(Le, b"__rseq_cs")?;
        let is_loaded = section.sh_flags(Le).contains(elf::SHF_ALLOC);
        is_loaded.then(|| range_of(section))?
    }

    /// Iterates over the address ranges of all sections in which a compiler listed function
    /// entries.
    ///
    /// The content in the file is not relocated yet, often all zero: read it from memory.
    pub fn entry_lists(&self) -> impl Iterator<Item = (EntryList, Range<u64>)> {
        self.sections.iter().filter_map(|section| {
            if !section.sh_flags(Le).contains(elf::SHF_ALLOC) {
                return None;
            }
            let name = self.sections.section_name(Le, section).ok()?;
            let (_, list) = ENTRY_LISTS.iter().find(|(known, _)| *known == name)?;
            Some((*list, range_of(section)?))
        })
    }

    /// Iterates over the addresses of the segments that are loaded as code.
    pub fn text_segments(&self) -> impl Iterator<Item = Range<u64>> + use<'a> {
        let is_text = |s: &&ProgramHeader64<Le>| {
            s.p_type(Le) == elf::PT_LOAD && s.p_flags(Le).contains(elf::PF_X)
        };
        let text = self.segments.iter().filter(is_text);
        text.filter_map(|s| Some(s.p_vaddr(Le)..s.p_vaddr(Le).checked_add(s.p_memsz(Le))?))
    }

    /// Returns the address ranges that hold functions, in order and without overlaps.
    ///
    /// These are the executable sections, as far as they are loaded as code, without the linker's
    /// stubs. In a file without sections they are the executable segments.
    #[must_use]
    pub fn text(&self) -> Vec<Range<u64>> {
        let segments: Vec<Range<u64>> = self.text_segments().take(MAX_TEXT_SEGMENTS).collect();
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

    /// Returns one of the symbol tables of the file; empty if there is none.
    ///
    /// # Errors
    ///
    /// Fails if the symbol table, its names, or its versions are not inside the file.
    pub fn symbol_table(&self, source: SymbolSource) -> Result<SymbolTable<'a>, ElfError> {
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

    /// Returns the versions of symbols that the file defines, with the index that stands for each.
    ///
    /// A version that cannot be read is left out.
    #[must_use]
    pub fn versions(&self) -> Vec<(u16, &'a str)> {
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
            // The first one stands for the file itself.
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
}

/// Iterates over the loaded segments among `all`: address, and number of bytes.
#[cfg(feature = "dwarf")]
pub(crate) fn load_addresses(all: &[ProgramHeader64<Le>]) -> impl Iterator<Item = (u64, u64)> {
    let loaded = all.iter().filter(|s| s.p_type(Le) == elf::PT_LOAD);
    loaded.map(|s| (s.p_vaddr(Le), s.p_memsz(Le)))
}

/// Returns the build id among the notes of a file.
pub(crate) fn build_id<'a, R: ReadRef<'a>>(
    segments: &[ProgramHeader64<Le>],
    sections: &SectionTable<'a, FileHeader64<Le>, R>,
    data: R,
) -> Option<&'a [u8]> {
    // Sections first: the program headers of a debug file are those of the file to which it
    // belongs.
    let in_sections = sections.iter();
    let in_sections = in_sections.filter_map(|section| section.notes(Le, data).ok().flatten());
    let in_segments = segments.iter();
    let in_segments = in_segments.filter_map(|segment| segment.notes(Le, data).ok().flatten());
    in_sections
        .chain(in_segments)
        .flat_map(|notes| notes.map_while(Result::ok))
        .find(|note| note.n_type(Le) == elf::NT_GNU_BUILD_ID && note.name() == elf::ELF_NOTE_GNU)
        .map(|note| note.desc())
        .filter(|id| !id.is_empty())
}

/// Returns the address range of a section.
fn range_of(section: &SectionHeader64<Le>) -> Option<Range<u64>> {
    let start = section.sh_addr(Le);
    Some(start..start.checked_add(section.sh_size(Le))?)
}

/// The kind of a list of function entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryList {
    /// `__patchable_function_entries`: the addresses of padding.
    Patchable,
    /// `__mcount_loc`: the addresses of calls of `__fentry__`, or of the NOPs that replace them.
    Mcount,
    /// `xray_instr_map`: the sleds of XRay, and their functions.
    Xray,
}

/// The address that the linker writes to a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pointer<'a> {
    /// An address in this file.
    Address(u64),
    /// The symbol of another file with this name.
    Import(&'a [u8]),
}

/// A symbol table as it is in the file.
#[derive(Clone, Copy, Debug, Default)]
pub struct SymbolTable<'a> {
    symbols: &'a [Sym64<Le>],
    strings: &'a [u8],
    versions: &'a [elf::Versym<Le>],
}

impl<'a> SymbolTable<'a> {
    /// Returns true if the file has no such table.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }

    /// Returns the bytes of all names.
    #[must_use]
    pub fn strings(&self) -> &'a [u8] {
        self.strings
    }

    /// Iterates over the symbols that this file defines at an address.
    pub fn defined(&self) -> impl Iterator<Item = TableSymbol> + use<'a> {
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

/// A symbol of a [`SymbolTable`].
#[derive(Clone, Copy, Debug)]
pub struct TableSymbol {
    /// The kind of the symbol.
    pub kind: SymbolKind,
    /// The address of the function or data, relative to the load bias.
    pub address: u64,
    /// The size in bytes; 0 if the file does not have it.
    pub size: u64,
    /// The offset of its name in the strings of the table.
    pub name: u32,
    /// The visibility of the symbol for other modules.
    pub binding: Binding,
    /// The index of its version, with [`HIDDEN_VERSION`]; 0 or 1 for none.
    pub version: u16,
}

/// Set in a version's index if the version is not the one that is linked against by default.
pub const HIDDEN_VERSION: u16 = 0x8000;

/// The kind of a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SymbolKind {
    /// A function.
    Function,
    /// A function that the linker calls to get the address of the actual function.
    Resolver,
    /// A label or data.
    Other,
}

/// The symbol table from which names are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SymbolSource {
    /// `.symtab`, which has all functions.
    Symtab,
    /// `.dynsym`, which has the functions that are visible to other modules. It is the only one
    /// left in a stripped file.
    Dynsym,
}

/// The visibility of a symbol; greater values are visible more widely.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Binding {
    /// Visible in its own object file only.
    Local,
    /// Visible in all modules, unless another symbol has the same name.
    Weak,
    /// Visible in all modules.
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

/// The reason that a file cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ElfError {
    /// The file does not start like an ELF file.
    NotElf,
    /// The file is not a program or shared library for 64-bit x86.
    Unsupported,
    /// A part of the file is not at its announced place, or has invalid content.
    Malformed(Part),
    /// The file is not the one from which the module was loaded: it was replaced since.
    NotTheLoadedFile,
    /// The module has been unloaded.
    Unloaded,
}

/// A part of an ELF file, for [`ElfError::Malformed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
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
            Self::NotElf => "not a program or library (no ELF file)",
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
    use crate::testing;

    /// A file with two sections that list padded entries.
    fn file() -> Vec<u8> {
        const SECTIONS: u64 = 64;
        const SECTION: u64 = 64;
        let names = b"\0__patchable_function_entries\0";
        let names_at = SECTIONS + 4 * SECTION;

        let mut out = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0];
        out.extend([0; 8]);
        out.extend(3u16.to_le_bytes()); // ET_DYN
        out.extend(62u16.to_le_bytes()); // EM_X86_64
        out.extend(1u32.to_le_bytes());
        out.extend([0; 16]);
        out.extend(SECTIONS.to_le_bytes());
        out.extend([0; 4]);
        for half in [64u16, 56, 0, 64, 4, 3] {
            out.extend(half.to_le_bytes());
        }
        // Address, offset and size of a section are the three words.
        let mut section = |name: u32, kind: u32, flags: u64, at: [u64; 3]| {
            out.extend(name.to_le_bytes());
            out.extend(kind.to_le_bytes());
            out.extend(flags.to_le_bytes());
            at.iter().for_each(|word| out.extend(word.to_le_bytes()));
            out.extend([0; 8]);
            out.extend(8u64.to_le_bytes());
            out.extend(8u64.to_le_bytes());
        };
        let alloc = elf::SHF_ALLOC.0;
        section(0, 0, 0, [0; 3]);
        section(1, elf::SHT_PROGBITS.0, alloc, [0x1000, 0, 16]);
        section(1, elf::SHT_PROGBITS.0, alloc, [0x2000, 0, 8]);
        section(0, elf::SHT_STRTAB.0, 0, [0, names_at, names.len() as u64]);
        out.extend(names);
        out
    }

    #[test]
    fn every_list_of_entries_is_found() {
        let bytes = file();
        let file = ElfFile::parse(&bytes).unwrap();
        let lists = [0x1000..0x1010, 0x2000..0x2008].map(|range| (EntryList::Patchable, range));
        assert!(file.entry_lists().eq(lists));
    }

    #[test]
    fn program_headers_are_as_in_the_file() {
        let mut bytes = file();
        let at = bytes.len().next_multiple_of(8);
        bytes.resize(at + 56, 0);
        bytes[at..].fill(1);
        bytes[32..40].copy_from_slice(&at.to_le_bytes());
        bytes[56] = 1;
        let file = ElfFile::parse(&bytes).unwrap();
        assert_eq!(file.program_headers(), &bytes[at..]);
    }

    #[test]
    fn other_files_are_refused() {
        let good = file();
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
        testing::read_damaged(&file());
    }
}
