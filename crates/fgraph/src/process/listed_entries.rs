//! The function entries that compilers have listed in a module.
//!
//! # Safety
//!
//! The unsafe code reads memory of modules that are loaded and relocated, like that of `modules`.

use fgraph_symbols::elf::{ElfError, ElfFile, EntryList};

use super::modules::when_relocated;
use crate::process::loaded_module::{Kind, LoadedModule, read};

/// An address that a compiler listed as the entry of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ListedEntry {
    /// The address. It is the start of the function, or the instruction after its `endbr64`, or,
    /// with [`EntryList::Mcount`] but without `-mfentry`, a place after its prologue.
    pub(crate) address: usize,
    /// The list that contains it.
    pub(crate) list: EntryList,
}

/// Returns the function entries that compilers listed in a module, in order.
///
/// This waits for any `dlopen` in progress in another thread, including the constructors that it
/// runs, since the list of a module is incomplete before.
///
/// # Errors
///
/// Fails if the module was unloaded, or if `file` is not the file from which it was loaded.
pub(crate) fn listed_entries(
    module: &LoadedModule,
    file: &ElfFile<'_>,
) -> Result<Vec<ListedEntry>, ElfError> {
    if module.kind == Kind::Generated {
        return Ok(Vec::new());
    }
    // SAFETY: the module is loaded and relocated while this is called.
    when_relocated(module, file, || unsafe { read_entries(module, file) })
}

/// Reads the lists of entries of a module that is loaded from `file`.
///
/// # Safety
///
/// The module must be loaded and relocated, and stay so.
unsafe fn read_entries(module: &LoadedModule, file: &ElfFile<'_>) -> Vec<ListedEntry> {
    let mut entries = Vec::new();
    for (list, section) in file.entry_lists() {
        let start = module.bias.wrapping_add(section.start as usize);
        let range = start..start.saturating_add((section.end - section.start) as usize);
        // SAFETY: the caller keeps the same contract.
        let Some(bytes) = (unsafe { read(module, &range) }) else {
            continue;
        };
        let entry = |address| ListedEntry { address, list };
        if list == EntryList::Xray {
            let (sleds, _) = bytes.as_chunks();
            let addresses = (start..).step_by(XRAY_SLED);
            let functions = sleds
                .iter()
                .zip(addresses)
                .filter_map(|(s, at)| xray_entry(s, at));
            entries.extend(functions.map(entry));
        } else {
            let (words, _) = bytes.as_chunks();
            let addresses = words.iter().map(|word| usize::from_ne_bytes(*word));
            entries.extend(addresses.map(entry));
        }
    }
    // A section that the linker discarded leaves null entries.
    entries.retain(|entry| module.is_text(entry.address));
    entries.sort_unstable();
    entries.dedup();
    entries
}

/// The number of bytes in which XRay describes each of its sleds.
const XRAY_SLED: usize = 32;

/// Returns the function whose entry is an XRay sled, described at `at`.
///
/// ```text
///   +0   the sled      from version 2 on relative to this word, else an address
///   +8   its function  the same
///   +16  kind          0 or 3 at the entry, 3 if it hands over the first argument
///   +17  whether it is always instrumented
///   +18  version
/// ```
fn xray_entry(sled: &[u8; XRAY_SLED], at: usize) -> Option<usize> {
    let (kind, version) = (sled[16], sled[18]);
    let function = usize::from_ne_bytes(*sled[8..].first_chunk()?);
    let base = if version >= 2 { at.wrapping_add(8) } else { 0 };
    matches!(kind, 0 | 3).then(|| base.wrapping_add(function))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_entry_sleds_of_xray_count() {
        let mut sled = [0; XRAY_SLED];
        sled[8..16].copy_from_slice(&(-0x108_i64).to_le_bytes());
        sled[18] = 2;
        assert_eq!(xray_entry(&sled, 0x1000), Some(0xf00));
        for (kind, is_entry) in [(0, true), (1, false), (2, false), (3, true), (4, false)] {
            sled[16] = kind;
            assert_eq!(xray_entry(&sled, 0x1000).is_some(), is_entry, "{kind}");
        }
        // Before version 2 it was an address.
        sled[16] = 0;
        sled[18] = 1;
        sled[8..16].copy_from_slice(&0x5000_u64.to_le_bytes());
        assert_eq!(xray_entry(&sled, 0x1000), Some(0x5000));
    }
}
