//! The calls that a stopped thread of another process is in, by the unwind information of modules.
//!
//! ```text
//!   rip, rsp, rbp --row of the module--> the caller's --row--> ... --> outermost function
//! ```

use std::collections::HashMap;

use fgraph_symbols::unwind_rows::{Position, Row, Saved, UnwindTable};

use crate::memory::Memory;
use crate::modules::Module;

/// Maximum number of calls that are followed.
const MAX_CALLS: usize = 100_000;
/// Maximum number of bytes of unwind information that are read, of all modules together.
const MAX_TABLES: u64 = 256 << 20;

/// The words of a stack from the stack pointer up.
#[derive(Debug)]
pub(crate) struct Stack {
    start: u64,
    words: Vec<u64>,
}

impl Stack {
    pub(crate) fn new(start: u64, bytes: &[u8]) -> Self {
        let (words, _) = bytes.as_chunks::<8>();
        Self {
            start,
            words: words.iter().map(|&word| u64::from_le_bytes(word)).collect(),
        }
    }

    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }

    fn word(&self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(self.start)?;
        let index = usize::try_from(offset / 8).ok()?;
        offset
            .is_multiple_of(8)
            .then(|| self.words.get(index).copied())?
    }
}

/// Follows the calls outwards.
#[derive(Debug)]
pub(crate) struct Callers<'a> {
    memory: &'a Memory,
    modules: &'a [Module],
    stack: &'a Stack,
    at: Position,
    /// The segments with unwind information that were read, by the index of their module.
    segments: HashMap<usize, Vec<u8>>,
    /// Bytes that may still be read.
    left: u64,
}

impl<'a> Callers<'a> {
    pub(crate) fn new(
        memory: &'a Memory,
        modules: &'a [Module],
        stack: &'a Stack,
        at: Position,
    ) -> Self {
        Self {
            memory,
            modules,
            stack,
            at,
            segments: HashMap::new(),
            left: MAX_TABLES,
        }
    }

    /// Returns true if all calls are known whose frames begin at or below `address`, and no signal
    /// handler is among them. A handler returns to one of `restorers`.
    pub(crate) fn are_known_until(&mut self, address: u64, restorers: &[u64]) -> bool {
        for _ in 0..MAX_CALLS {
            if self.at.stack_pointer > address {
                return true;
            }
            let Some(row) = self.row() else {
                return false;
            };
            if row.return_address == Saved::Lost {
                // The outermost function.
                return true;
            }
            let Some(caller) = row.caller(self.at, |address| self.stack.word(address)) else {
                return false;
            };
            if row.is_signal || restorers.contains(&caller.address) {
                return false;
            }
            self.at = caller;
        }
        false
    }

    /// The row for the current position.
    fn row(&mut self) -> Option<Row> {
        let address = self.at.address.checked_sub(1)?;
        let at = self
            .modules
            .iter()
            .position(|module| module.is_text(address))?;
        let (index, segment) = self.modules[at].unwind.clone()?;
        if !self.segments.contains_key(&at) {
            let len = segment.end.checked_sub(segment.start)?;
            self.left = self.left.checked_sub(len)?;
            let bytes = self.memory.bytes(segment.start, usize::try_from(len).ok()?);
            self.segments.insert(at, bytes.ok()?);
        }
        let table = UnwindTable {
            bytes: &self.segments[&at],
            address: segment.start,
            index,
        };
        table.row(address)
    }
}
