//! Functions that the program has generated, as modules: each set is described by a file that is
//! made here, with a symbol for each function and a copy of their code.
//!
//! ```text
//!   file header | program header | section headers | symbols | names | code
//! ```
//!
//! # Safety
//!
//! The unsafe code reads memory that the caller guarantees to be mapped.

use core::ops::Range;
use std::path::PathBuf;

use super::loaded_module::LoadedModule;
use super::{generated_modules, modules};
use crate::os::PAGE;
use crate::report::error::GeneratedError;

/// The largest range of functions that one file describes.
const MAX_LEN: usize = 256 << 20;

/// A function that the program has generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeneratedFunction<'a> {
    /// The name, as in a symbol table: mangled or not. `@` begins a version.
    pub name: &'a str,
    /// The address of its first instruction, at which it is called.
    pub address: usize,
    /// Its size in bytes.
    pub size: usize,
}

/// Makes a module of functions, with the name `path`.
///
/// # Safety
///
/// The functions' readable memory must stay mapped, and unchanged, until this returns.
///
/// # Errors
///
/// Fails if there are none, or they are not where functions can be.
pub(crate) unsafe fn add(
    path: &str,
    functions: &[GeneratedFunction<'_>],
) -> Result<LoadedModule, GeneratedError> {
    let end = |function: &GeneratedFunction<'_>| {
        let end = function.address.checked_add(function.size);
        end.ok_or(GeneratedError::NotText {
            address: function.address,
        })
    };
    for function in functions {
        if function.size == 0 || function.name.is_empty() || function.name.contains('\0') {
            return Err(GeneratedError::Malformed {
                name: function.name.to_owned(),
                address: function.address,
                size: function.size,
            });
        }
    }
    let Some(start) = functions.iter().map(|function| function.address).min() else {
        return Err(GeneratedError::Empty);
    };
    let ends = functions.iter().map(end).collect::<Result<Vec<_>, _>>()?;
    let text = start..ends.into_iter().max().unwrap_or(start);
    if text.len() > MAX_LEN {
        return Err(GeneratedError::TooFarApart {
            first: text.start,
            end: text.end,
        });
    }
    check_place(&text)?;
    // SAFETY: the caller guarantees the functions, and the mapping from the first to the last was
    // just checked.
    let code = unsafe {
        core::slice::from_raw_parts(
            core::ptr::with_exposed_provenance::<u8>(text.start),
            text.len(),
        )
    };
    // Functions have addresses relative to their page.
    let bias = text.start / PAGE * PAGE;
    let file = file(bias, functions, text.start, code).leak();
    let (_, bytes, _) = {
        // SAFETY: words are bytes.
        unsafe { file.align_to::<u8>() }
    };
    let module = LoadedModule::generated(PathBuf::from(path), bias, text, bytes);
    generated_modules::add(module.clone());
    Ok(module)
}

/// Checks that all of `text` is executable, and belongs to no module.
fn check_place(text: &Range<usize>) -> Result<(), GeneratedError> {
    let protections = modules::protections();
    let pages = (text.start / PAGE * PAGE..text.end).step_by(PAGE);
    for address in pages.map(|page| page.max(text.start)) {
        match protections.of(address) {
            Some(now) if now.executable && now.readable => {}
            _ => return Err(GeneratedError::NotText { address }),
        }
    }
    for module in modules::loaded().0 {
        let overlaps =
            |(known, _): &(Range<usize>, u32)| known.start < text.end && text.start < known.end;
        if let Some((known, _)) = module.segments().find(overlaps) {
            return Err(GeneratedError::OfModule {
                address: known.start.max(text.start),
                module: module.path().to_string_lossy().into_owned(),
            });
        }
    }
    Ok(())
}

/// Makes the file that describes functions. Its addresses count from `bias`; `code` is at `start`.
fn file(bias: usize, functions: &[GeneratedFunction<'_>], start: usize, code: &[u8]) -> Vec<u64> {
    const SECTION_NAMES: &[u8] = b"\0.text\0.symtab\0.strtab\0";
    const TEXT: u64 = 1;
    const SYMTAB: u64 = 7;
    const STRTAB: u64 = 15;
    /// Bytes of the file header, the program header and four section headers.
    const HEADERS: u64 = 64 + 56 + 4 * 64;
    /// Bytes of a symbol.
    const SYMBOL: u64 = 24;
    let in_file = |address: usize| (address - bias) as u64;
    let mut names = SECTION_NAMES.to_vec();
    // The first symbol stands for none.
    let mut symbols = vec![0; SYMBOL as usize / 8];
    for function in functions {
        // A global function in section 1.
        let kind = 0x12 << 32 | 1 << 48;
        symbols.push(names.len() as u64 | kind);
        symbols.extend([in_file(function.address), function.size as u64]);
        names.extend(function.name.as_bytes());
        names.push(0);
    }
    let (symbols_len, names_len) = (8 * symbols.len() as u64, names.len() as u64);
    let names_at = HEADERS + symbols_len;
    let code_at = (names_at + names_len).next_multiple_of(8);
    let (code_start, code_len) = (in_file(start), code.len() as u64);
    let mut out = vec![
        // The magic bytes, 64 bits, little endian; a shared library for x86-64.
        u64::from_le_bytes(*b"\x7fELF\x02\x01\x01\0"),
        0,
        1 << 32 | 0x3e << 16 | 3,
        0,
        // The places of the headers, their lengths and numbers, and the section with the names of
        // all.
        64,
        64 + 56,
        64 << 32 | 56 << 48,
        1 | 64 << 16 | 4 << 32 | 3 << 48,
        // All of the code is loaded, readable and executable.
        1 | 5 << 32,
        code_at,
        code_start,
        code_start,
        code_len,
        code_len,
        8,
    ];
    out.extend([0; 8]);
    // Allocated and executable.
    out.extend([TEXT | 1 << 32, 6, code_start, code_at, code_len, 0, 8, 0]);
    // Linked to section 3, which has the names.
    out.extend([
        SYMTAB | 2 << 32,
        0,
        0,
        HEADERS,
        symbols_len,
        3 | 1 << 32,
        8,
        SYMBOL,
    ]);
    out.extend([STRTAB | 3 << 32, 0, 0, names_at, names_len, 0, 1, 0]);
    out.extend(symbols);
    for bytes in [&names, code] {
        let chunks = bytes.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        });
        out.extend(chunks);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use fgraph_symbols::elf::ElfFile;
    use fgraph_symbols::functions::Functions;

    #[test]
    fn a_file_tells_what_was_generated() {
        let function = |name, address, size| GeneratedFunction {
            name,
            address,
            size,
        };
        let functions = [
            function("second", 0x12348, 3),
            function("first", 0x12345, 2),
            function("third", 0x12350, 1),
        ];
        let code: Vec<u8> = (0..12).collect();
        let words = file(0x12000, &functions, 0x12345, &code);
        // SAFETY: words are bytes.
        let (_, bytes, _) = unsafe { words.align_to::<u8>() };
        let file = ElfFile::parse(bytes).unwrap();
        let read = Functions::read(&file, None).unwrap();
        let found: Vec<_> = (0..read.len())
            .map(|index| {
                let function = read.get(index);
                let name = read.names(index).next().unwrap().symbol;
                (name, function.address, function.size)
            })
            .collect();
        let expected = [
            ("first", 0x345, 2),
            ("second", 0x348, 3),
            ("third", 0x350, 1),
        ];
        assert_eq!(found, expected);
        assert_eq!(file.bytes_at(0x348, 3), Some(&[3, 4, 5][..]));
        assert_eq!(file.text().first(), Some(&(0x345..0x351)));
        assert!(!read.is_stripped());
    }
}
