//! Detects code made by GHC, the compiler of Haskell.
//!
//! Such code is entered by jumps: no return address is on top of the stack. It has no unwind
//! information, which all code of C compilers has. Most of it follows an info table, with a symbol
//! after that table:
//!
//! ```text
//!    | layout, 8 bytes | type of the closure, 4 bytes | 4 bytes | code ...
//!                                                               ^ Main_main_info
//! ```

use crate::elf::{ElfFile, SymbolSource, SymbolTable};
use crate::functions::Functions;

/// The suffix of symbols that follow info tables.
const SUFFIX: &str = "_info";
/// The distance from an info table's type to the code, in bytes.
const TYPE: u64 = 8;
/// A bound of the number of types.
const TYPES: u32 = 256;

/// Returns the start addresses, in order, of the code with unwind information, in a file with code
/// made by GHC; `None` for any other file. Code made by GHC begins only at other addresses.
#[must_use]
pub fn described(file: &ElfFile<'_>, functions: &Functions<'_>) -> Option<Vec<u64>> {
    if !functions.may_have_in_name(SUFFIX) {
        return None;
    }
    let (text, starts) = (file.text(), file.unwind_starts());
    // Without a table of unwind information, as in static programs, C code looks the same.
    if starts.is_empty() {
        return None;
    }
    let is_code = |address: u64| {
        text.iter().any(|range| range.contains(&address)) && starts.binary_search(&address).is_err()
    };
    let has_table = |address: u64| {
        let kind = || {
            let kind = file.bytes_at(address.checked_sub(TYPE)?, 4)?;
            Some(u32::from_le_bytes(kind.try_into().ok()?))
        };
        kind().is_some_and(|kind| (1..TYPES).contains(&kind))
    };
    // In shared libraries the symbols may be those of data.
    let tables = [SymbolSource::Symtab, SymbolSource::Dynsym];
    let tables = tables.map(|source| file.symbol_table(source).unwrap_or_default());
    let mut symbols = tables.iter().flat_map(with_suffix);
    // Functions may have their names from a debug file.
    let mut functions = (0..functions.len()).filter_map(|index| {
        let mut names = functions.raw_names(index);
        let is_one = names.any(|(name, _)| name.ends_with(SUFFIX.as_bytes()));
        is_one.then(|| functions.address(index))
    });
    let is_of_ghc = |address| is_code(address) && has_table(address);
    (symbols.any(is_of_ghc) || functions.any(is_of_ghc)).then_some(starts)
}

/// Iterates over the addresses of a table's symbols that may follow info tables.
fn with_suffix<'a>(table: &'a SymbolTable<'_>) -> impl Iterator<Item = u64> + 'a {
    let strings = table.strings();
    let found = table.defined().filter(|symbol| {
        let name = strings.get(symbol.name as usize..).unwrap_or_default();
        let len = memchr::memchr(0, name).unwrap_or(name.len());
        name[..len].ends_with(SUFFIX.as_bytes())
    });
    found.map(|symbol| symbol.address)
}
