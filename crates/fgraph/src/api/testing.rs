//! Switches and counts for tests. Not part of the interface.

use core::sync::atomic::Ordering;
use std::path::Path;

use crate::arch::trap::TRAPS;
use crate::control;
use crate::control::filters::SITE_PATCHES;
use crate::report::error::Error;
use crate::sites::{self, Callers, Reliance};
use fgraph_symbols::elf::ElfFile;
use fgraph_symbols::functions::Functions;

pub use crate::arch::Skip;

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

/// Returns the number of instructions that the jump at `address` displaces; `None` where none is
/// made.
pub fn displaced(address: usize) -> Option<u32> {
    control::lock().ok()?.control.displaced(address)
}

/// Leaves steps of the patching protocol out, so that a test can show that it would notice.
pub fn leave_out(steps: Skip) -> Result<(), Error> {
    control::lock()?.control.leave_out(steps);
    Ok(())
}

/// Reads all that there is in bytes that claim to be an ELF file, and decides what would be done
/// with each of its functions, for the fuzzer. The bytes are to be aligned to 8.
///
/// # Panics
///
/// If what was read contradicts itself.
pub fn read_elf(bytes: &[u8]) {
    fgraph_symbols::testing::read_elf(bytes, plan);
}

/// Decides for all functions what would be done with them.
fn plan(file: &ElfFile<'_>, functions: &Functions<'_>) {
    for breakpoints in [false, true] {
        let planned = sites::list(file, functions, Path::new("file"), breakpoints);
        assert_eq!(planned.iter().len(), functions.len());
    }
    for callers in [Callers::Abi, Callers::LowRegisters, Callers::AllRegisters] {
        for is_padded in [false, true] {
            let reliance = Reliance::find(file, functions, callers, is_padded);
            let _ = (reliance.by_code(0), reliance.by_convention(0));
        }
    }
}
