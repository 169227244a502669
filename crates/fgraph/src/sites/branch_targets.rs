//! Functions of a module that are entered after their first instruction, from other functions.

use crate::arch::nop::ENDBR64;
use crate::arch::relocate::{self, InboundBranch};

use fgraph_symbols::elf::ElfFile;
use fgraph_symbols::functions::Functions;

/// The functions of a module into whose first bytes branches of other functions lead.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entered {
    /// By index of the function: bit *k* is set if a branch leads to byte *k* after the entry (and
    /// after an `endbr64`).
    masks: Vec<(usize, u8)>,
}

impl Entered {
    /// Searches the code of a file for branches into all of its functions.
    pub(crate) fn find(file: &ElfFile<'_>, functions: &Functions<'_>) -> Self {
        Self::find_into(file, functions, 0..functions.len())
    }

    /// Searches the code of a file for branches into some of its functions, by their indices.
    pub(crate) fn find_into(
        file: &ElfFile<'_>,
        functions: &Functions<'_>,
        wanted: impl Iterator<Item = usize>,
    ) -> Self {
        let mut masks = Vec::new();
        let entry = |index: usize| {
            let start = functions.address(index);
            let has_endbr = file.bytes_at(start, ENDBR64.len()) == Some(&ENDBR64);
            start + if has_endbr { ENDBR64.len() as u64 } else { 0 }
        };
        let entries: Vec<usize> = wanted.map(|index| entry(index) as usize).collect();
        let start = |at: usize| {
            let index = functions.containing(at as u64)?;
            Some(functions.address(index) as usize)
        };
        for section in file.text() {
            let len = usize::try_from(section.end - section.start).unwrap_or(0);
            let Some(text) = file.bytes_at(section.start, len) else {
                continue;
            };
            let all = entries.iter().copied();
            // Returns the function into which a branch leads, if it comes from another one.
            let into = |branch: InboundBranch| {
                let to = functions.containing(branch.to as u64);
                to.filter(|_| functions.containing(branch.from as u64) != to)
            };
            let counts = |branch| into(branch).is_some();
            let address = section.start as usize;
            for stray in relocate::branches_to(text, address, all, counts, start) {
                let Some(index) = into(stray) else {
                    continue;
                };
                let byte = (stray.to as u64).wrapping_sub(entry(index));
                if (1..5).contains(&byte) {
                    masks.push((index, 1 << byte));
                }
            }
        }
        masks.sort_unstable();
        masks.dedup_by(|next, previous| {
            let same = next.0 == previous.0;
            if same {
                previous.1 |= next.1;
            }
            same
        });
        Self { masks }
    }

    /// Makes it from the entered functions, by index, with the bytes: in the form of
    /// [`masks`](Self::masks).
    pub(super) fn new(masks: Vec<(usize, u8)>) -> Self {
        Self { masks }
    }

    /// Returns the entered functions, by index, with the bytes.
    pub(super) fn masks(&self) -> &[(usize, u8)] {
        &self.masks
    }

    /// Returns the bytes at which function `index` is entered.
    pub(crate) fn of(&self, index: usize) -> u8 {
        let found = self.masks.binary_search_by_key(&index, |&(index, _)| index);
        found.map_or(0, |at| self.masks[at].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::modules;

    #[test]
    fn results_for_some_functions_equal_those_for_all() {
        let mut entered = 0;
        for module in modules::loaded().0 {
            let Ok(file) = module.map().map(|bytes| ElfFile::parse(bytes).unwrap()) else {
                continue;
            };
            let functions = Functions::read(&file, None).unwrap();
            let all = Entered::find(&file, &functions);
            let some = all.masks.iter().step_by(1 + all.masks.len() / 4);
            let some: Vec<usize> = some.map(|&(index, _)| index).collect();
            let found = Entered::find_into(&file, &functions, some.iter().copied());
            for &index in &some {
                assert_eq!(found.of(index), all.of(index));
                entered += 1;
            }
        }
        // For example `memcpy` of the C library.
        assert_ne!(entered, 0);
    }
}
