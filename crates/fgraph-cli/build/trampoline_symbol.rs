//! The symbols that debuggers need in the agent, which is stripped of all others.

use object::elf::{
    FileHeader64, SHT_STRTAB, SHT_SYMTAB, STB_LOCAL, STT_FUNC, STT_OBJECT, SectionHeader64,
    SectionType, Sym64, SymbolInfo, SymbolOther, SymbolSection, SymbolType,
};
use object::pod::{bytes_of, bytes_of_slice, from_bytes_mut};
use object::read::elf::{FileHeader as _, SectionHeader as _};
use object::{LittleEndian, U16, U32, U64};

/// The symbols: each names a whole section. Debuggers and profilers show the trampolines' frames by
/// the first one, and gdb finds the return points by the other two.
const SYMBOLS: [(&[u8], &[u8], SymbolType); 3] = [
    (b"fgraph_text", b"fgraph_trampoline", STT_FUNC),
    (b"fgraph_jit_code", b"__jit_debug_register_code", STT_FUNC),
    (b"fgraph_jit_data", b"__jit_debug_descriptor", STT_OBJECT),
];

/// Adds a symbol table with [`SYMBOLS`]. All that is loaded stays as it is: the table, its names
/// and new section headers come behind the end of the file.
pub(crate) fn add(library: &[u8]) -> Option<Vec<u8>> {
    const LE: LittleEndian = LittleEndian;
    const SECTION_NAMES: &[u8] = b".symtab\0.strtab\0";
    let header = FileHeader64::<LittleEndian>::parse(library).ok()?;
    let sections = header.sections(LE, library).ok()?;
    let mut headers = sections.iter().copied().collect::<Vec<_>>();
    let names = usize::from(header.e_shstrndx.get(LE).0);
    let mut section_names = headers[names].data(LE, library).ok()?.to_vec();
    let name = section_names.len() as u32;
    section_names.extend(SECTION_NAMES);

    let mut bytes = library.to_vec();
    let mut append = |part: &[u8]| {
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let at = bytes.len() as u64;
        bytes.extend(part);
        (U64::new(LE, at), U64::new(LE, part.len() as u64))
    };
    let mut symbols = bytes_of(&Sym64::<LittleEndian>::default()).to_vec();
    let mut strings = vec![0];
    for (section, name, kind) in SYMBOLS {
        let (index, section) = sections.section_by_name(LE, section)?;
        symbols.extend(bytes_of(&Sym64 {
            st_name: U32::new(LE, strings.len() as u32),
            st_info: SymbolInfo::new(STB_LOCAL, kind),
            st_other: SymbolOther::default(),
            st_shndx: U16::new(LE, SymbolSection(index.0 as u16)),
            st_value: section.sh_addr,
            st_size: section.sh_size,
        }));
        strings.extend(name);
        strings.push(0);
    }
    let (symbols_at, symbols_len) = append(&symbols);
    let (strings_at, strings_len) = append(&strings);
    let (names_at, names_len) = append(&section_names);
    (headers[names].sh_offset, headers[names].sh_size) = (names_at, names_len);
    let section = |name, kind: SectionType, at, len| SectionHeader64 {
        sh_name: U32::new(LE, name),
        sh_type: U32::new(LE, kind),
        sh_flags: U64::default(),
        sh_addr: U64::new(LE, 0),
        sh_offset: at,
        sh_size: len,
        sh_link: U32::new(LE, 0),
        sh_info: U32::new(LE, 0),
        sh_addralign: U64::new(LE, 8),
        sh_entsize: U64::new(LE, 0),
    };
    let strings = headers.len() as u32 + 1;
    headers.push(SectionHeader64 {
        sh_link: U32::new(LE, strings),
        // Index of the first symbol that is not local.
        sh_info: U32::new(LE, 1 + SYMBOLS.len() as u32),
        sh_entsize: U64::new(LE, size_of::<Sym64<LittleEndian>>() as u64),
        ..section(name, SHT_SYMTAB, symbols_at, symbols_len)
    });
    let strtab = name + ".symtab\0".len() as u32;
    headers.push(section(strtab, SHT_STRTAB, strings_at, strings_len));
    let (headers_at, _) = append(bytes_of_slice(&headers));
    let (header, _) = from_bytes_mut::<FileHeader64<LittleEndian>>(&mut bytes).ok()?;
    header.e_shoff = headers_at;
    header.e_shnum = U16::new(LE, headers.len() as u16);
    Some(bytes)
}
