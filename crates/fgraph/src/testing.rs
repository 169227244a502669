//! Switches and counts for tests. Not part of the interface.

use core::sync::atomic::Ordering;
use std::path::Path;

use fgraph_x86_64::trap::TRAPS;

use crate::control::{self, SITE_PATCHES};
use crate::error::Error;
use crate::inventory::SiteList;
use crate::sites;

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
    control::lock()?.control.leave_out = steps;
    Ok(())
}

/// Every function of the file of a program or library, and whether it could be traced.
///
/// # Errors
///
/// Why the file cannot be read.
pub fn coverage(path: &Path) -> Result<SiteList, String> {
    sites::of_file(path).map(SiteList::new)
}
