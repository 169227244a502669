//! Which functions of a module are entered behind their first instruction, from other functions.

use crate::arch::nop::ENDBR64;
use crate::arch::relocate;

use fgraph_symbols::elf::ElfFile;
use fgraph_symbols::functions::Functions;

/// The functions of a module that branches of other functions lead into the first bytes of.
#[derive(Debug, Default)]
pub(crate) struct Entered {
    /// By index of the function: bit *k* is set if a branch leads to byte *k* behind the entry (and
    /// behind an `endbr64`).
    masks: Vec<(usize, u8)>,
}

impl Entered {
    /// Searches the code of a file.
    pub(crate) fn find(file: &ElfFile<'_>, functions: &Functions<'_>) -> Self {
        let mut masks = Vec::new();
        let entry = |index: usize| {
            let start = functions.get(index).address;
            let has_endbr = file.bytes_at(start, ENDBR64.len()) == Some(&ENDBR64);
            start + if has_endbr { ENDBR64.len() as u64 } else { 0 }
        };
        let entries: Vec<usize> = (0..functions.len())
            .map(|index| entry(index) as usize)
            .collect();
        let start = |at: usize| {
            let index = functions.containing(at as u64)?;
            Some(functions.get(index).address as usize)
        };
        for section in file.text() {
            let len = usize::try_from(section.end - section.start).unwrap_or(0);
            let Some(text) = file.bytes_at(section.start, len) else {
                continue;
            };
            let all = entries.iter().copied();
            for stray in relocate::branches_to(text, section.start as usize, all, start) {
                let to = functions.containing(stray.to as u64);
                let Some(index) = to.filter(|_| functions.containing(stray.from as u64) != to)
                else {
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

    /// Where function `index` is entered.
    pub(crate) fn of(&self, index: usize) -> u8 {
        let found = self.masks.binary_search_by_key(&index, |&(index, _)| index);
        found.map_or(0, |at| self.masks[at].1)
    }
}
