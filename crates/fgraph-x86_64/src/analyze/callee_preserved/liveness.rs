//! Computes the registers that are read from each block on before they are written, by iteration
//! until nothing changes.

use alloc::{vec, vec::Vec};

use super::bitset::BitSet;
use super::graph::{End, Graph};
use super::registers::{
    ARGUMENTS, FIRST_ARGUMENT, GUESSED, PRESERVED_VECTORS, SEEN, Set, VECTOR, guess_of,
    guessed_arguments, seen_of, vectors_of,
};
use super::strays::Strays;

/// The reason for which callers expect a function to preserve a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PreservedBy {
    /// Callers rely on registers that the code of a function leaves unchanged.
    Code,
    /// Callers rely on a convention: the code leaves registers unchanged, or saves them.
    Convention,
}

/// The registers that code writes before it returns.
struct Written {
    reason: PreservedBy,
    /// Registers that may be written from each block on, before the function returns.
    may: Vec<Set>,
    /// Registers that are saved from each block on, before they are written and before any call;
    /// empty if no caller relies on that.
    saved: Vec<Set>,
    /// True if an unknown function is certainly called.
    calls: Vec<bool>,
    /// True if it may return.
    returns: Vec<bool>,
}

impl Written {
    /// Returns the registers that may survive a call of a block.
    fn survives(&self, block: usize) -> Set {
        match self.reason {
            PreservedBy::Code => {
                let seen = if self.calls[block] { 0 } else { SEEN };
                seen | GUESSED & !self.may[block]
            }
            PreservedBy::Convention => seen_of(!self.may[block] | self.saved[block]),
        }
    }

    /// Returns the registers that are read after a call and that the called block must therefore
    /// preserve.
    fn wanted(&self, block: usize) -> Set {
        match self.reason {
            PreservedBy::Code => SEEN | GUESSED & !self.may[block],
            PreservedBy::Convention => self.survives(block),
        }
    }
}

impl Graph<'_> {
    /// Computes the registers that are read from each block on before they are written, and those
    /// that are read after its function has returned.
    pub(super) fn liveness(&self, reason: PreservedBy) -> (Vec<Set>, Vec<Set>) {
        let written = self.written(reason);
        let mut needs = vec![0; self.blocks.len()];
        let mut open = BitSet::full(self.blocks.len());
        self.needs(&mut open, &mut needs, &written, None);
        let wanted = self.wanted(&written, &needs);
        (needs, wanted)
    }

    /// Computes the registers that each block, and the code reached from there, writes.
    fn written(&self, reason: PreservedBy) -> Written {
        let saved = match reason {
            PreservedBy::Code => vec![0; self.blocks.len()],
            PreservedBy::Convention => self.saved(),
        };
        let mut may: Vec<Set> = self
            .blocks
            .iter()
            .map(|block| block.effect.writes)
            .collect();
        let mut calls = vec![false; self.blocks.len()];
        // For gcc's callers a subset is safe: they do not rely on registers that they see written.
        if reason == PreservedBy::Convention {
            for (at, block) in self.blocks.iter().enumerate() {
                if block.end == End::JumpsByTable {
                    may[at] = self.written_around(at);
                }
            }
        }
        self.until_stable(&mut BitSet::full(self.blocks.len()), |at| {
            let next = at + 1;
            let (more, calls_now) = match self.blocks[at].end {
                End::Falls => (may[next], calls[next]),
                End::Jumps(to) => (may[to as usize], calls[to as usize]),
                End::Branches(to) => {
                    let to = to as usize;
                    (may[next] | may[to], calls[next] && calls[to])
                }
                End::Calls(to) => {
                    let to = to as usize;
                    (may[next] | may[to] & !saved[to], calls[next] || calls[to])
                }
                End::CallsResolver => (may[next], calls[next]),
                End::CallsUnknown | End::JumpsUnknown => (GUESSED, true),
                End::JumpsByTable | End::Returns | End::Stops | End::Unclear => (0, false),
            };
            let changes = more & !may[at] != 0 || calls_now && !calls[at];
            may[at] |= more;
            calls[at] |= calls_now;
            changes
        });
        let mut returns = vec![false; self.blocks.len()];
        self.until_stable(&mut BitSet::full(self.blocks.len()), |at| {
            let next = at + 1;
            let now = match self.blocks[at].end {
                End::Falls | End::CallsUnknown | End::CallsResolver => returns[next],
                End::Jumps(to) => returns[to as usize],
                End::Branches(to) => returns[next] || returns[to as usize],
                End::Calls(to) => returns[next] && returns[to as usize],
                End::JumpsUnknown | End::JumpsByTable | End::Returns | End::Unclear => true,
                End::Stops => false,
            };
            core::mem::replace(&mut returns[at], now) != now
        });
        Written {
            reason,
            saved,
            may,
            calls,
            returns,
        }
    }

    /// Computes the registers that each block, and the code reached from there, saves before they
    /// are written and before any call but that of a helper that saves them.
    fn saved(&self) -> Vec<Set> {
        let mut saved = vec![0; self.blocks.len()];
        self.until_stable(&mut BitSet::full(self.blocks.len()), |at| {
            let next = at + 1;
            let block = &self.blocks[at];
            let behind = match block.end {
                End::Falls => saved[next],
                End::Jumps(to) => saved[to as usize],
                End::Branches(to) => saved[next] | saved[to as usize],
                End::Calls(to) => self.saved_by_helper(to as usize),
                _ => 0,
            };
            let reads = block.effect.reads;
            let now = reads & GUESSED | vectors_of(reads) | behind & !block.effect.kills;
            core::mem::replace(&mut saved[at], now) != now
        });
        saved
    }

    /// Returns the registers that the code from a block on saves for its caller, if it is one of
    /// gcc's `__sse_savms64*`: it stores what the Microsoft ABI preserves, and writes no register.
    fn saved_by_helper(&self, at: usize) -> Set {
        let (mut reads, mut writes) = (0, 0);
        for block in &self.blocks[at..] {
            reads |= block.effect.reads;
            writes |= block.effect.writes;
            match block.end {
                End::Falls => {}
                End::Returns => break,
                _ => return 0,
            }
        }
        match vectors_of(reads) & PRESERVED_VECTORS == PRESERVED_VECTORS && writes == 0 {
            true => guess_of(reads),
            false => 0,
        }
    }

    /// Returns the registers that the function of a block writes, except those that known callees
    /// write.
    fn written_around(&self, block: usize) -> Set {
        let blocks = &self.blocks[self.around(block)];
        blocks.iter().fold(0, |all, block| match block.end {
            End::CallsUnknown | End::JumpsUnknown => GUESSED,
            _ => all | block.effect.writes,
        })
    }

    /// Returns true for the start of a function with variable arguments, which stores all argument
    /// registers, whatever they hold.
    fn saves_arguments(&self, at: usize) -> bool {
        const VECTORS: Set = 0b11_1111 << VECTOR;
        let block = &self.blocks[at];
        block.asks_al
            && matches!(block.end, End::Branches(_))
            && self.blocks[at + 1].effect.reads & VECTORS == VECTORS
    }

    /// Computes the registers that are read from each block on before they are written. `wanted`
    /// has, for each block, the registers that are read after a return, and the callers: the result
    /// of this function without it.
    fn needs(
        &self,
        open: &mut BitSet,
        needs: &mut [Set],
        written: &Written,
        wanted: Option<(&[Set], &[Set])>,
    ) {
        let all = SEEN | GUESSED;
        let (unknown, guessed, unclear, counts) = match written.reason {
            PreservedBy::Code => (ARGUMENTS, GUESSED, all, all),
            PreservedBy::Convention => (FIRST_ARGUMENT, 0, 0, SEEN),
        };
        self.until_stable(open, |at| {
            let next = at + 1;
            let block = &self.blocks[at];
            let behind = match block.end {
                End::Falls => needs[next],
                End::Jumps(to) => needs[to as usize],
                End::Branches(to) => needs[next] | needs[to as usize],
                End::Calls(to) => {
                    let to = to as usize;
                    let callee = wanted.map_or(needs[to], |(_, needs)| needs[to]);
                    if written.returns[to] {
                        callee | needs[next] & written.survives(to)
                    } else {
                        callee
                    }
                }
                End::CallsResolver => needs[next] | guessed,
                End::CallsUnknown | End::JumpsUnknown => unknown,
                End::JumpsByTable => guessed,
                End::Returns => wanted.map_or(0, |(wanted, _)| wanted[at]),
                End::Stops => 0,
                End::Unclear => unclear,
            };
            let mut now = block.effect.reads | behind & !block.effect.kills;
            if self.saves_arguments(at) {
                now = guessed_arguments(now);
            }
            now &= counts;
            core::mem::replace(&mut needs[at], now) != now
        });
    }

    /// Computes the registers that are read after each block's function has returned.
    fn wanted(&self, written: &Written, needs: &[Set]) -> Vec<Set> {
        let mut wanted = vec![0; self.blocks.len()];
        let mut marked = vec![0; self.blocks.len()];
        let mut keeps = needs.to_vec();
        let strays = self.strays();
        let (mut open, mut given) = (BitSet::new(self.blocks.len()), Vec::new());
        loop {
            self.needs(&mut open, &mut keeps, written, Some((&wanted, needs)));
            let mut is_stable = true;
            for (at, block) in self.blocks.iter().enumerate() {
                let End::Calls(to) = block.end else { continue };
                let to = to as usize;
                if !written.returns[to] {
                    continue;
                }
                let more = keeps[at + 1] & written.wanted(to);
                marked[to] |= more;
                if written.may[to] != GUESSED && more & !wanted[to] != 0 {
                    wanted[to] |= more;
                    given.push(to as u32);
                    is_stable = false;
                }
            }
            if is_stable {
                break;
            }
            self.spread(&mut wanted, &mut given, &strays, &mut open);
        }
        for (wanted, marked) in wanted.iter_mut().zip(marked) {
            *wanted |= marked;
        }
        wanted
    }

    /// Passes the wanted registers of the blocks `given` to all code that is reached without a
    /// return, and opens the returns found there.
    fn spread(
        &self,
        wanted: &mut [Set],
        given: &mut Vec<u32>,
        strays: &[Strays],
        returns: &mut BitSet,
    ) {
        let mut by_table = 0;
        loop {
            while let Some(at) = given.pop() {
                let at = at as usize;
                let now = wanted[at];
                let mut hand = |to: usize| {
                    if now & !wanted[to] != 0 {
                        wanted[to] |= now;
                        given.push(to as u32);
                    }
                };
                match self.blocks[at].end {
                    End::Falls | End::Calls(_) | End::CallsUnknown | End::CallsResolver => {
                        hand(at + 1);
                    }
                    End::Jumps(to) => hand(to as usize),
                    End::Branches(to) => {
                        hand(at + 1);
                        hand(to as usize);
                    }
                    End::JumpsByTable | End::Unclear => {
                        by_table |= now;
                        self.around(at).for_each(hand);
                    }
                    End::Returns => returns.set(at as u32),
                    End::JumpsUnknown | End::Stops => {}
                }
            }
            for strays in strays {
                let now = match &strays.part {
                    Some(part) => wanted[part.clone()].iter().fold(0, |all, now| all | now),
                    None => by_table,
                };
                for &to in &strays.blocks {
                    if now & !wanted[to] != 0 {
                        wanted[to] |= now;
                        given.push(to as u32);
                    }
                }
            }
            if given.is_empty() {
                break;
            }
        }
    }
}
