//! Switches and counts for tests. Not part of the interface.

use core::sync::atomic::Ordering;
use std::path::Path;

use fgraph_x86_64::trap::TRAPS;

use crate::control::{self, SITE_PATCHES};
use crate::demangle;
use crate::elf::ElfFile;
use crate::error::Error;
use crate::functions::Functions;
use crate::inventory::SiteList;
use crate::sites::{self, Callers, Relied};

pub use fgraph_x86_64::poke::Skip;

/// How many threads have met a site that was being patched.
pub fn traps() -> u64 {
    // Relaxed: a plain count.
    TRAPS.load(Ordering::Relaxed)
}

/// How often a site was patched or put back.
pub fn site_patches() -> u64 {
    // Relaxed: a plain count.
    SITE_PATCHES.load(Ordering::Relaxed)
}

/// Leaves steps of the patching protocol out, so that a test can show that it would notice.
pub fn leave_out(steps: Skip) -> Result<(), Error> {
    control::lock()?.control.leave_out(steps);
    Ok(())
}

/// Every function of the file of a program or library, and whether it could be traced.
///
/// # Errors
///
/// Why the file cannot be read.
pub fn coverage(path: &Path) -> Result<SiteList, String> {
    sites::of_file(path, false)
}

/// [`coverage`] where functions may get breakpoints.
///
/// # Errors
///
/// As [`coverage`].
pub fn coverage_with_breakpoints(path: &Path) -> Result<SiteList, String> {
    sites::of_file(path, true)
}

/// Reads all that there is in bytes that claim to be an ELF file, for the fuzzer. They are to be aligned
/// to 8.
///
/// # Panics
///
/// If what was read contradicts itself.
pub fn read_elf(bytes: &[u8]) {
    let Ok(file) = ElfFile::parse(bytes) else {
        return;
    };
    file.notes().for_each(drop);
    file.comment().for_each(drop);
    file.entry_lists().for_each(drop);
    file.irelative().for_each(drop);
    let _ = (file.slots_of(b"malloc"), file.unwind_starts());
    let _ = (file.program_headers(), file.build_id(), file.debug_link());
    // Its own debug file, which gives all names once more.
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
        plan(&file, &functions);
    }
}

/// Decides for all functions what would be done with them.
fn plan(file: &ElfFile<'_>, functions: &Functions<'_>) {
    for breakpoints in [false, true] {
        let planned = sites::list(file, functions, Path::new("file"), breakpoints);
        assert_eq!(planned.iter().len(), functions.len());
    }
    for callers in [Callers::Abi, Callers::LowRegisters, Callers::AllRegisters] {
        for is_padded in [false, true] {
            let relied = Relied::find(file, functions, callers, is_padded);
            let _ = (relied.on_code(0), relied.on_convention(0));
        }
    }
}

/// Looks at all functions with all their names.
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
            // Writing to a string does not fail.
            let _ = demangle::demangle_to(symbol.symbol, &mut name);
            assert!(!name.is_empty());
        }
    }
}
