//! Finds another copy of this crate in the process.
//!
//! A program and its plugin may each have a copy linked in, of one version or of two. Their states
//! are apart: the later one would take the jumps of the earlier one for code that others have
//! patched. So the later one does nothing, and says why. It finds the earlier one by the name of
//! that one's memory file with return points, which has the version.

use core::sync::atomic::{AtomicBool, Ordering};

use fgraph_symbols::mapping::Mapping;

use super::shadow_memory;
use crate::os::maps::{Maps, range_of};
use crate::report::error::Error;

/// Begins the name of the memory file of each copy; its version follows.
const NAME: &[u8] = b"/memfd:fgraph-points-";

/// True if this copy is known to be the first one.
static IS_FIRST: AtomicBool = AtomicBool::new(false);

/// Checks that there is no earlier copy. To be called before this copy changes anything that would
/// outlive its library. Without memory files, or `/proc`, no copy is found.
///
/// # Errors
///
/// Fails with [`AnotherCopy`](Error::AnotherCopy).
pub(crate) fn check() -> Result<(), Error> {
    // Relaxed: a thread that does not see it checks again.
    if IS_FIRST.load(Ordering::Relaxed) {
        return Ok(());
    }
    let maps = Maps::now();
    let own = shadow_memory::masters();
    let of_copies = || {
        let named = |mapping: &Mapping<'_>| mapping.path.starts_with(NAME);
        maps.all().filter(named)
    };
    let is_own = |mapping: &Mapping<'_>| own.iter().any(|own| range_of(mapping).contains(own));
    let own: Vec<u64> = of_copies()
        .filter(is_own)
        .map(|mapping| mapping.inode)
        .collect();
    if let Some(other) = of_copies().find(|mapping| !own.contains(&mapping.inode)) {
        let name = String::from_utf8_lossy(&other.path[NAME.len()..]);
        let version = name.split(' ').next().unwrap_or_default().to_owned();
        return Err(Error::AnotherCopy { version });
    }
    IS_FIRST.store(true, Ordering::Relaxed);
    Ok(())
}
