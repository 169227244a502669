//! The names of the kernel's functions: the symbol table of its own file, which QEMU passes as the
//! first module (`-initrd`).

use alloc::string::String;
use alloc::vec::Vec;
use core::slice;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::memory;

/// A function of the kernel.
#[derive(Debug)]
pub(crate) struct Symbol {
    /// Its address.
    pub(crate) address: usize,
    /// Bytes of its code.
    pub(crate) size: usize,
    /// Its name in the source, without rustc's hash.
    pub(crate) name: &'static str,
}

/// The functions, by address; null until they are read.
static SYMBOLS: AtomicPtr<Vec<Symbol>> = AtomicPtr::new(core::ptr::null_mut());

/// Returns all functions, by address.
pub(crate) fn all() -> &'static [Symbol] {
    // SAFETY: null, or a list that is never freed. Acquire pairs with the Release of `read`.
    unsafe { SYMBOLS.load(Ordering::Acquire).as_ref() }.map_or(&[], Vec::as_slice)
}

/// Returns the function that contains an address.
pub(crate) fn find(address: usize) -> Option<&'static Symbol> {
    let symbols = all();
    let behind = symbols.partition_point(|symbol| symbol.address <= address);
    let symbol = symbols[..behind].last()?;
    (address - symbol.address < symbol.size.max(1)).then_some(symbol)
}

/// Reads an integer of an ELF file.
fn word<const BYTES: usize>(file: &[u8], at: usize) -> Option<usize> {
    let bytes = file.get(at..at + BYTES)?;
    Some(
        bytes
            .iter()
            .rev()
            .fold(0, |word, &byte| word << 8 | usize::from(byte)),
    )
}

/// Reads the functions of the file at a physical address; returns their number.
///
/// # Safety
///
/// The file must be there, and stay.
pub(crate) unsafe fn read(physical: usize, len: usize) -> usize {
    // SAFETY: the caller knows the file, which is in the direct map.
    let file = unsafe { slice::from_raw_parts(memory::direct(physical) as *const u8, len) };
    let mut symbols = functions(file).unwrap_or_default();
    symbols.sort_by_key(|symbol| symbol.address);
    symbols.dedup_by_key(|symbol| symbol.address);
    let count = symbols.len();
    let list = alloc::boxed::Box::into_raw(alloc::boxed::Box::new(symbols));
    // Release: whoever reads the pointer reads the list.
    SYMBOLS.store(list, Ordering::Release);
    count
}

fn functions(file: &'static [u8]) -> Option<Vec<Symbol>> {
    const SYMTAB: usize = 2;
    const FUNCTION: usize = 2;
    if file.get(..4)? != b"\x7fELF" {
        return None;
    }
    let (sections, size, count) = (
        word::<8>(file, 40)?,
        word::<2>(file, 58)?,
        word::<2>(file, 60)?,
    );
    let section = |nth: usize| sections + nth * size;
    let is_symtab = |&nth: &usize| word::<4>(file, section(nth) + 4) == Some(SYMTAB);
    let symtab = section((0..count).find(is_symtab)?);
    let (start, len) = (word::<8>(file, symtab + 24)?, word::<8>(file, symtab + 32)?);
    let strings = section(word::<4>(file, symtab + 40)?);
    let (names, names_len) = (
        word::<8>(file, strings + 24)?,
        word::<8>(file, strings + 32)?,
    );
    let names = file.get(names..names + names_len)?;
    let mut found = Vec::new();
    for entry in file.get(start..start + len)?.chunks_exact(24) {
        if usize::from(entry[4] & 15) != FUNCTION {
            continue;
        }
        let name = names.get(word::<4>(entry, 0)?..)?;
        let name = &name[..name.iter().position(|&byte| byte == 0)?];
        found.push(Symbol {
            address: word::<8>(entry, 8)?,
            size: word::<8>(entry, 16)?,
            name: demangle(core::str::from_utf8(name).ok()?),
        });
    }
    Some(found)
}

/// Returns the name in the source of a symbol of rustc's, in the older mangling: a list of parts,
/// each after its length, the last one a hash.
fn demangle(symbol: &'static str) -> &'static str {
    let parts = || -> Option<String> {
        let mut rest = symbol.strip_prefix("_ZN")?;
        let mut name = String::new();
        loop {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            if digits == 0 {
                return Some(name);
            }
            let len: usize = rest[..digits].parse().ok()?;
            let part = rest.get(digits..digits + len)?;
            rest = &rest[digits + len..];
            let is_hash = part.len() == 17 && part.starts_with('h');
            if is_hash && rest.starts_with('E') {
                return Some(name);
            }
            if !name.is_empty() {
                name.push_str("::");
            }
            push_part(&mut name, part);
        }
    };
    parts()
        .or_else(|| path(symbol))
        .map_or(symbol, |name| name.leak())
}

/// Returns the name of a symbol in the newer mangling, if it is a plain path.
fn path(symbol: &str) -> Option<String> {
    let mut rest = symbol.strip_prefix("_R")?;
    let mut parts = 1;
    while rest.starts_with('N') {
        rest = rest.get(2..)?;
        parts += 1;
    }
    rest = rest.strip_prefix('C')?;
    let mut name = String::new();
    for nth in 0..parts {
        // A number that distinguishes things of the same name.
        if rest.starts_with('s') {
            rest = rest.split_once('_')?.1;
        }
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let len: usize = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        rest = rest.strip_prefix('_').unwrap_or(rest);
        if nth > 0 {
            name.push_str("::");
        }
        name.push_str(rest.get(..len)?);
        rest = &rest[len..];
    }
    rest.is_empty().then_some(name)
}

/// Adds a part, with its escapes replaced.
fn push_part(name: &mut String, part: &str) {
    const ESCAPES: [(&str, &str); 12] = [
        ("$LT$", "<"),
        ("$GT$", ">"),
        ("$RF$", "&"),
        ("$BP$", "*"),
        ("$LP$", "("),
        ("$RP$", ")"),
        ("$C$", ","),
        ("$u20$", " "),
        ("$u7b$", "{"),
        ("$u7d$", "}"),
        ("$u5b$", "["),
        ("..", "::"),
    ];
    // An underscore keeps a part from beginning with an escape.
    let mut rest = match part.strip_prefix("_$") {
        Some(_) => &part[1..],
        None => part,
    };
    'rest: while let Some(next) = rest.chars().next() {
        for (escape, text) in ESCAPES {
            if let Some(behind) = rest.strip_prefix(escape) {
                name.push_str(text);
                rest = behind;
                continue 'rest;
            }
        }
        name.push(next);
        rest = &rest[next.len_utf8()..];
    }
}
