//! Switches and counts for tests. Not part of the interface.

use core::sync::atomic::Ordering;
use std::path::Path;

use crate::arch::trap::TRAPS;
use crate::control;
use crate::control::filters::SITE_PATCHES;
use crate::report::error::Error;
use crate::sites::{self, CalleePreserved, Callers};
use fgraph_symbols::elf::ElfFile;
use fgraph_symbols::functions::Functions;

pub use crate::arch::Skip;

/// Returns the number of times that a thread has hit a site that was being patched.
pub fn traps() -> u64 {
    // Relaxed: a counter without other data.
    TRAPS.load(Ordering::Relaxed)
}

/// Returns the number of times that a site was patched or restored.
pub fn site_patches() -> u64 {
    // Relaxed: a counter without other data.
    SITE_PATCHES.load(Ordering::Relaxed)
}

/// Returns the number of instructions that the jump at `address` displaces; `None` if there is no
/// site.
pub fn displaced(address: usize) -> Option<u32> {
    control::lock().ok()?.control.displaced(address)
}

/// Leaves out steps of the patching protocol, so that a test can show that it notices.
pub fn leave_out(steps: Skip) -> Result<(), Error> {
    control::lock()?.control.leave_out(steps);
    Ok(())
}

/// Reads everything in bytes that claim to be an ELF file, and plans the tracing of each of its
/// functions, for the fuzzer. The bytes must be aligned to 8.
///
/// # Panics
///
/// Panics if the results contradict each other.
pub fn read_elf(bytes: &[u8]) {
    fgraph_symbols::testing::read_elf(bytes, plan);
}

/// Plans the tracing of all functions.
fn plan(file: &ElfFile<'_>, functions: &Functions<'_>) {
    for breakpoints in [false, true] {
        let planned = sites::list(file, functions, Path::new("file"), breakpoints);
        assert_eq!(planned.iter().len(), functions.len());
    }
    for callers in [Callers::Abi, Callers::LowRegisters, Callers::AllRegisters] {
        for is_padded in [false, true] {
            let callee_preserved = CalleePreserved::find(file, functions, callers, is_padded);
            let _ = (
                callee_preserved.by_code(0),
                callee_preserved.by_convention(0),
            );
        }
    }
}
