//! Blocks that are reached only by jumps through tables.

use alloc::{vec, vec::Vec};
use core::ops::Range;

use super::graph::{End, Graph};

/// Blocks of a part that are reached only by jumps through tables.
pub(super) struct Strays {
    /// The part, if the sources of its other blocks are known; otherwise it may belong to any
    /// function.
    pub(super) part: Option<Range<usize>>,
    pub(super) blocks: Vec<usize>,
}

impl Graph<'_> {
    /// Returns the blocks without a known source, of parts that are not functions: only a jump
    /// through a table in another part may lead there.
    pub(super) fn strays(&self) -> Vec<Strays> {
        let mut is_called = vec![false; self.blocks.len()];
        let mut is_reached = is_called.clone();
        let mut open = self.functions.clone();
        open.extend(self.blocks.iter().filter_map(|block| match block.end {
            End::Calls(to) => Some(to),
            _ => None,
        }));
        for &at in &open {
            is_called[at as usize] = true;
        }
        while let Some(at) = open.pop() {
            if core::mem::replace(&mut is_reached[at as usize], true) {
                continue;
            }
            match self.blocks[at as usize].end {
                End::Falls | End::Calls(_) | End::CallsUnknown | End::CallsResolver => {
                    open.push(at + 1);
                }
                End::Jumps(to) => open.push(to),
                End::Branches(to) => open.extend([at + 1, to]),
                _ => {}
            }
        }
        let mut strays = Vec::new();
        let mut start = 0;
        while start < self.blocks.len() {
            let part = self.around(start);
            start = part.end;
            if is_called[part.start] {
                continue;
            }
            let blocks: Vec<usize> = part.clone().filter(|&at| !is_reached[at]).collect();
            if !blocks.is_empty() {
                let part = (blocks.len() < part.len()).then_some(part);
                strays.push(Strays { part, blocks });
            }
        }
        strays
    }
}
