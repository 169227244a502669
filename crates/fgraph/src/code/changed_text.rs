//! The mappings whose text was changed, and the settings that the program has made for them.
//!
//! The kernel writes a file's mapping into core files as soon as one of its pages is private, and
//! then all of it. Text can be hundreds of megabytes, and debuggers have it from the file. So text
//! that fgraph changes is left out of core files, unless pages of it were private before.

use core::ops::Range;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::{Mutex, PoisonError};

use crate::os::PAGE;
use crate::os::advice::{self, Advice};
use crate::os::maps::{FileId, FileMapping};
use crate::os::status::{self, ThreadStatus};

/// The mappings whose text was changed, by their addresses.
static CHANGED: Mutex<BTreeMap<usize, ChangedText>> = Mutex::new(BTreeMap::new());

/// A mapping whose text is changed.
#[derive(Clone, Debug)]
pub(super) struct ChangedText {
    range: Range<usize>,
    file: FileId,
    /// The advice that the program gave.
    advice: Advice,
    /// True if pages were private before, or may have been.
    had_private: bool,
}

impl ChangedText {
    /// Finds the settings of a mapping. Returns `None` if the system does not tell them.
    pub(super) fn new(mapping: &FileMapping, pagemap: &PageMap) -> Option<Self> {
        let known = CHANGED.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.get(&mapping.range.start);
        let before = before.filter(|before| before.file == mapping.file).cloned();
        drop(known);
        let advice = match ThreadStatus::own().locked() {
            Some(0) => advice(mapping, pagemap, before.as_ref())?,
            _ => Advice::at(mapping.range.start)?,
        };
        let (had_private, is_left_out) = match before {
            Some(before) => (before.had_private, before.is_left_out()),
            None => (
                pagemap.private(mapping.range.clone())?.contains(&true),
                false,
            ),
        };
        Some(Self {
            range: mapping.range.clone(),
            file: mapping.file,
            advice: if is_left_out {
                advice.dumped(true)
            } else {
                advice
            },
            had_private,
        })
    }

    /// Returns the advice for the changed text.
    pub(super) fn given(&self) -> Advice {
        match self.had_private {
            true => self.advice,
            false => self.advice.dumped(false),
        }
    }

    /// Returns true if core files have the text only when it is not changed.
    fn is_left_out(&self) -> bool {
        self.given() != self.advice
    }

    /// Notes that the text was changed.
    pub(super) fn note(&self) {
        let mut known = CHANGED.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(self.range.start, self.clone());
    }
}

/// Finds the advice for a mapping, in a process that has locked no memory.
fn advice(
    mapping: &FileMapping,
    pagemap: &PageMap,
    before: Option<&ChangedText>,
) -> Option<Advice> {
    /// The number of bytes that are checked at once.
    const ROW: usize = 128 * PAGE;
    let Range { start, mut end } = mapping.range;
    while start < end {
        let row = end.saturating_sub(ROW).max(start)..end;
        let private = pagemap.private(row.clone())?;
        if let Some(clean) = private.iter().rposition(|private| !private) {
            return Advice::of_page(row.start + clean * PAGE).or_else(|| Advice::at(start));
        }
        end = row.start;
    }
    // All pages have jumps from an earlier change, or another tool's changes.
    before.map_or_else(|| Advice::at(start), |before| Some(before.advice))
}

/// Leaves the text around `address` out of core files, before it is written in place. Call it while
/// no module can be unloaded.
pub(crate) fn leave_out(address: usize) {
    let known = CHANGED.lock().unwrap_or_else(PoisonError::into_inner);
    let last = known.range(..=address).next_back();
    let is_known = last.is_some_and(|(_, text)| text.range.contains(&address));
    drop(known);
    if is_known || status::is_debugged() {
        return;
    }
    let changed = || {
        let pagemap = PageMap::open();
        // Without it each page may have been private before, and stays in core files.
        pagemap.0.as_ref()?;
        let mapping = FileMapping::at(address)?;
        let rights = mapping.protection;
        let is_text = rights.executable && !rights.writable;
        is_text.then(|| ChangedText::new(&mapping, &pagemap))?
    };
    if let Some(changed) = changed() {
        if changed.is_left_out() {
            advice::set_dumped(changed.range.clone(), false);
        }
        changed.note();
    }
}

/// Forgets the changed text in `range`, and lets core files have it again where [`leave_out`] or an
/// exchange has left it out. Call it while no module can be unloaded.
pub(super) fn forget(range: &Range<usize>) {
    let mut known = CHANGED.lock().unwrap_or_else(PoisonError::into_inner);
    known.retain(|start, changed| {
        let is_kept = !range.contains(start);
        if !is_kept && changed.is_left_out() {
            advice::set_dumped(*start..changed.range.end.min(range.end), true);
        }
        is_kept
    });
}

/// The kernel's list of the pages of this process.
#[derive(Debug)]
pub(super) struct PageMap(Option<File>);

impl PageMap {
    /// Opens the list. A process that has changed its user may not.
    pub(super) fn open() -> Self {
        Self(File::open("/proc/thread-self/pagemap").ok())
    }

    /// Returns, for each page of `range`, true if it may be private: without the list, each may be.
    /// Returns `None` if the list cannot be read.
    pub(super) fn private(&self, range: Range<usize>) -> Option<Vec<bool>> {
        const PRESENT_OR_SWAPPED: u64 = 3 << 62;
        const OF_FILE: u64 = 1 << 61;
        let pages = range.len() / PAGE;
        let Some(list) = &self.0 else {
            return Some(vec![true; pages]);
        };
        let mut entries = vec![0; pages * size_of::<u64>()];
        let at = range.start / PAGE * size_of::<u64>();
        list.read_exact_at(&mut entries, at as u64).ok()?;
        let (entries, _) = entries.as_chunks();
        let is_private = |entry: &[u8; 8]| {
            let entry = u64::from_ne_bytes(*entry);
            entry & PRESENT_OR_SWAPPED != 0 && entry & OF_FILE == 0
        };
        Some(entries.iter().map(is_private).collect())
    }
}
