//! The table of rings: functions, modules, threads and processes, each described once.
//!
//! ```text
//!   +0   words of the description (bits 0..32), its kind (32..40), whether it is complete (63)
//!   +1   four words that depend on the kind
//!   +5   bytes of the first text (bits 0..32) and of the second (32..64)
//!   +6   the texts, one behind the other
//! ```
//!
//! Descriptions follow each other. A writer claims words by storing their number in the first one,
//! and marks the description complete at the end. A thread that ends in between leaves an
//! incomplete description, over which readers step when no more are to come.

use super::Rings;
use super::layout::at;
use crate::names::{Description, DescriptionKind};
use crate::primitive::{AtomicU64, Ordering};

/// Words before the texts.
const FIXED: usize = 6;
const COMPLETE: u64 = 1 << 63;
const KIND_SHIFT: u32 = 32;
/// The longest text, in bytes.
const MAX_TEXT: usize = 64 << 10;

/// Part of the table up to which there is room for stacks, which programs may have any number of.
const STACKS: (usize, usize) = (3, 4);

/// The position of a reader in the table.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TableCursor(usize);

impl Rings {
    /// Returns the number of words of the table in use, as far as it is known.
    pub(super) fn table_used(&self) -> usize {
        let used = self.word(at::TABLE_USED).load(Ordering::Relaxed);
        usize::try_from(used)
            .unwrap_or(usize::MAX)
            .min(self.geometry.table_len)
    }

    /// Adds a description; `false` if there is no room for it. A text is cut after 64 KiB. Stacks
    /// get only a part of the room.
    ///
    /// Neither allocates nor locks, and may be called in a signal handler.
    pub fn describe(&self, kind: DescriptionKind, fields: [u64; 4], texts: [&str; 2]) -> bool {
        let texts = texts.map(|text| &text.as_bytes()[..text.len().min(MAX_TEXT)]);
        let bytes = texts[0].len() + texts[1].len();
        let len = FIXED + bytes.div_ceil(8);
        let Some((start, table)) = self.claim(len, kind) else {
            // Events have the addresses of stacks that are not described.
            if kind != DescriptionKind::Stack {
                self.word(at::LOST_DESCRIPTIONS)
                    .fetch_add(1, Ordering::Relaxed);
            }
            return false;
        };
        for (place, field) in table[start + 1..].iter().zip(fields) {
            place.store(field, Ordering::Relaxed);
        }
        let lens = texts[0].len() as u64 | (texts[1].len() as u64) << 32;
        table[start + FIXED - 1].store(lens, Ordering::Relaxed);
        let mut all = texts[0].iter().chain(texts[1]).copied();
        for place in &table[start + FIXED..start + len] {
            let bytes = [(); 8].map(|()| all.next().unwrap_or(0));
            place.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
        // Release: a reader that sees the completion sees the whole description.
        let word = len as u64 | (kind as u64) << KIND_SHIFT | COMPLETE;
        table[start].store(word, Ordering::Release);
        true
    }

    /// Claims words at the end of the table. Returns their start, and the table.
    fn claim(&self, len: usize, kind: DescriptionKind) -> Option<(usize, &[AtomicU64])> {
        let mut start = self.table_used();
        let most = self.geometry.table_len / STACKS.1 * STACKS.0;
        if kind == DescriptionKind::Stack && start >= most {
            return None;
        }
        loop {
            let table = self.table(start.checked_add(len)?)?;
            let word = len as u64 | (kind as u64) << KIND_SHIFT;
            let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
            match table[start].compare_exchange(0, word, acquire, relaxed) {
                Ok(_) => {
                    let end = (start + len) as u64;
                    self.word(at::TABLE_USED).fetch_max(end, Ordering::Relaxed);
                    return Some((start, table));
                }
                // A smaller number would make this loop endless.
                Err(found) => start = start.checked_add((found as u32 as usize).max(FIXED))?,
            }
        }
    }

    /// Returns the next description; `None` if there is none, or if the next one is incomplete and
    /// `is_last` is false.
    pub(crate) fn next_description(
        &self,
        cursor: &mut TableCursor,
        is_last: bool,
    ) -> Option<Description> {
        loop {
            let start = cursor.0;
            let first = self.table(start.checked_add(1)?)?[start].load(Ordering::Acquire);
            let len = first as u32 as usize;
            let is_complete = first & COMPLETE != 0;
            if first == 0 || !is_complete && !is_last {
                return None;
            }
            if len < FIXED {
                return None;
            }
            let end = start.checked_add(len)?;
            let words = &self.table(end)?[start..end];
            cursor.0 = start + len;
            let load = |at: usize| words[at].load(Ordering::Relaxed);
            let kind = DescriptionKind::from_bits((first >> KIND_SHIFT) as u8);
            let (Some(kind), true) = (kind, is_complete) else {
                continue;
            };
            let lens = load(FIXED - 1);
            let bytes: Vec<u8> = (FIXED..len).flat_map(|at| load(at).to_le_bytes()).collect();
            let first_end = (lens as u32 as usize).min(bytes.len());
            let second_end = first_end
                .saturating_add((lens >> 32) as usize)
                .min(bytes.len());
            let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
            return Some(Description {
                kind,
                fields: [1, 2, 3, 4].map(load),
                texts: [
                    text(&bytes[..first_end]),
                    text(&bytes[first_end..second_end]),
                ],
            });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::ring::RingOptions;

    fn rings(table_bytes: u32) -> Rings {
        let options = RingOptions {
            rings: 1,
            table_bytes,
            ..RingOptions::default()
        };
        Rings::create(&options).unwrap()
    }

    fn all(rings: &Rings, is_last: bool) -> Vec<Description> {
        let mut cursor = TableCursor::default();
        std::iter::from_fn(|| rings.next_description(&mut cursor, is_last)).collect()
    }

    #[test]
    fn descriptions_come_back_as_they_were() {
        let rings = rings(4096);
        assert!(rings.describe(
            DescriptionKind::Function,
            [1, 2, 3, 4],
            ["naïve", "/lib/m.so"]
        ));
        assert!(rings.describe(DescriptionKind::Thread, [5, 6, 0, 0], ["", ""]));
        let found = all(&rings, false);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].fields, [1, 2, 3, 4]);
        assert_eq!(found[0].texts, ["naïve".to_owned(), "/lib/m.so".to_owned()]);
        assert_eq!(found[1].kind, DescriptionKind::Thread);
    }

    #[test]
    fn a_full_table_says_so_and_keeps_what_it_has() {
        let rings = rings(4096);
        let long = "x".repeat(1000);
        let added = (0..10)
            .filter(|&n| rings.describe(DescriptionKind::Module, [n, 0, 0, 0], [&long, ""]))
            .count();
        assert_eq!((added, rings.lost_descriptions()), (3, 7));
        assert_eq!(all(&rings, false).len(), 3);
    }

    #[test]
    fn stacks_leave_room_for_others() {
        let rings = rings(4096);
        let text = "x".repeat(80);
        while rings.describe(DescriptionKind::Stack, [0; 4], [&text, ""]) {}
        assert!(rings.describe(DescriptionKind::Module, [0; 4], [&text, ""]));
        assert_eq!(rings.lost_descriptions(), 0);
    }

    #[test]
    fn one_that_never_gets_complete_is_stepped_over_at_the_end() {
        let rings = rings(4096);
        assert!(rings.claim(8, DescriptionKind::Module).is_some());
        assert!(rings.describe(DescriptionKind::Thread, [1, 2, 3, 4], ["a", "b"]));
        assert_eq!(all(&rings, false).len(), 0);
        assert_eq!(all(&rings, true).len(), 1);
    }

    #[test]
    fn threads_describe_at_the_same_time() {
        let rings = rings(64 << 10);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let rings = &rings;
                scope.spawn(move || {
                    for n in 0..50 {
                        let name = format!("{thread} {n}");
                        let fields = [thread, n, 0, 0];
                        assert!(rings.describe(DescriptionKind::Thread, fields, [&name, ""]));
                    }
                });
            }
        });
        let found = all(&rings, false);
        assert_eq!(found.len(), 200);
        for description in found {
            let [thread, n, ..] = description.fields;
            assert_eq!(description.texts[0], format!("{thread} {n}"));
        }
    }
}
