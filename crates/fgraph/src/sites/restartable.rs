//! Restartable sequences (rseq): a thread that is interrupted within one continues elsewhere. The
//! kernel identifies them by their addresses.

use core::ops::Range;

use fgraph_symbols::notrace::Notrace;

use super::candidate::ENTRY_BYTES;

/// The rule for functions at whose entry such a sequence begins or ends.
pub(super) const NOTRACE: Notrace = Notrace::Entirely(
    "begins with a restartable sequence, which the kernel knows by its address, or ends one",
);

/// A restartable sequence.
#[derive(Debug)]
pub(super) struct Sequence {
    text: Range<usize>,
    /// The address at which an interrupted thread continues.
    abort: usize,
}

impl Sequence {
    /// Bytes of a `struct rseq_cs`.
    const LEN: usize = 32;

    /// Parses a list of sequences that was read from memory.
    pub(super) fn list(list: &[u8]) -> Vec<Self> {
        list.chunks_exact(Self::LEN).map(Self::of).collect()
    }

    fn of(bytes: &[u8]) -> Self {
        let word = |index: usize| {
            let word = bytes.get(8 * index..).and_then(<[u8]>::first_chunk);
            usize::from_ne_bytes(*word.unwrap_or(&[0; 8]))
        };
        Self {
            text: word(1)..word(1).saturating_add(word(2)),
            abort: word(3),
        }
    }

    /// Returns its start, its end, and the address at which an interrupted thread continues.
    pub(super) fn places(&self) -> [usize; 3] {
        [self.text.start, self.text.end, self.abort]
    }

    /// Returns true if the first instructions of the function at `address` are in it, or at its
    /// abort address.
    pub(super) fn concerns(&self, address: usize) -> bool {
        let entry = address..address + ENTRY_BYTES;
        let overlaps = self.text.start < entry.end && entry.start < self.text.end;
        overlaps || entry.contains(&self.abort)
    }
}
