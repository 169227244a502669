//! Checks for fuzzers and tests. Not part of the interface.

use crate::demangle;
use crate::elf::ElfFile;
use crate::functions::Functions;
use crate::ghc;

/// Reads everything in bytes that claim to be an ELF file, and calls `each` with the file and each
/// form of its functions. The bytes must be aligned to 8.
///
/// # Panics
///
/// Panics if the results contradict each other.
pub fn read_elf(bytes: &[u8], mut each: impl FnMut(&ElfFile<'_>, &Functions<'_>)) {
    let Ok(file) = ElfFile::parse(bytes) else {
        return;
    };
    file.notes().for_each(drop);
    file.comment().for_each(drop);
    file.entry_lists().for_each(drop);
    file.irelative().for_each(drop);
    file.imports().for_each(drop);
    let _ = (file.slots_of(b"malloc"), file.unwind_starts());
    let _ = (file.program_headers(), file.build_id(), file.debug_link());
    #[cfg(feature = "dwarf")]
    check_lines(bytes, &file);
    // As its own debug file, which gives all names again.
    for debug in [None, Some(&file)] {
        let Ok(mut functions) = Functions::read(&file, debug) else {
            return;
        };
        check(&functions);
        let text = file.text().into_iter().map(|range| range.start);
        let aliases = (0..functions.len())
            .flat_map(|index| functions.names(index))
            .zip(text.chain([0, u64::MAX]))
            .map(|(name, address)| (address, name))
            .collect::<Vec<_>>();
        functions.add_names(aliases);
        check(&functions);
        let _ = ghc::described(&file, &functions);
        each(&file, &functions);
    }
}

/// Reads a file cut off at each place, and the file with each byte changed.
///
/// # Panics
///
/// Panics like [`read_elf`].
pub fn read_damaged(good: &[u8]) {
    (0..=good.len()).for_each(|len| read_elf(&good[..len], |_, _| ()));
    let mut bad = good.to_vec();
    for at in 0..good.len() {
        for value in [0, 1, 2, 4, 0x7f, 0x80, 0xff, good[at] ^ 1, good[at] ^ 8] {
            bad[at] = value;
            read_elf(&bad, |_, _| ());
        }
        bad[at] = good[at];
    }
}

/// Requests the lines and the signatures of everything that may be code.
#[cfg(feature = "dwarf")]
fn check_lines(bytes: &[u8], file: &ElfFile<'_>) {
    if let Some(lines) = crate::lines::Lines::read(std::io::Cursor::new(bytes), file) {
        let text = file.text().into_iter().map(|range| range.start);
        for address in text.chain(file.unwind_starts()).chain([0, u64::MAX]) {
            assert!(lines.in_function(address).is_none_or(|(_, line)| line != 0));
            let _ = lines.signature(address);
            let _ = lines.member(address, 8);
        }
    }
}

/// Reads all functions with all their names.
fn check(functions: &Functions<'_>) {
    let mut name = String::new();
    let mut before = None;
    for index in 0..functions.len() {
        let function = functions.get(index);
        assert!(before < Some(function.address));
        before = Some(function.address);
        assert!(function.limit > function.address);
        assert_eq!(functions.index_at(function.address), Some(index));
        assert_eq!(functions.containing(function.address), Some(index));
        for symbol in functions.names(index) {
            name.clear();
            demangle::demangle_to(symbol.symbol, &mut name);
            assert!(!name.is_empty());
        }
    }
}
