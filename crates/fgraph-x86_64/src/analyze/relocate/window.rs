//! The displaced instructions of a function.

use alloc::vec::Vec;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, Register};

use super::branches::{self, Branch};
use super::error::RelocateError;
use crate::unwind::Rule;

/// A function, or a part of one, that is to be patched at its first byte.
#[derive(Debug, Clone, Copy)]
pub struct Code<'a> {
    /// Text from the patch address on (after an `endbr64`), up to the next function or the end of
    /// the segment, including padding.
    pub bytes: &'a [u8],
    /// Address of the first of the bytes.
    pub address: usize,
    /// The size of the function from there on; 0 if it is unknown.
    pub size: usize,
}

impl<'a> Code<'a> {
    /// Returns the bytes without the padding, as far as that is known. A function ends before the
    /// start of the next one, whatever its size says.
    pub(super) fn body(&self) -> &'a [u8] {
        let len = match self.size {
            0 => self.bytes.len(),
            size => size.min(self.bytes.len()),
        };
        &self.bytes[..len]
    }
}

/// The displaced instructions, with everything needed to write their relocated prologue.
#[derive(Debug, Clone)]
pub struct Window {
    pub(super) address: usize,
    /// The displaced bytes.
    pub(super) bytes: Vec<u8>,
    /// The number of bytes that are overwritten, at most.
    pub(super) patched: usize,
    pub(super) instructions: Vec<Displaced>,
    /// The unwind rule after the last instruction.
    pub(super) after: Rule,
    /// True if the last instruction never continues to the next.
    pub(super) ends: bool,
}

/// One displaced instruction.
#[derive(Debug, Clone, Copy)]
pub(super) struct Displaced {
    pub(super) offset: usize,
    pub(super) len: usize,
    pub(super) kind: Kind,
    /// The unwind rule before the instruction.
    pub(super) before: Rule,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// Means the same at any address.
    Plain,
    /// Contains a rip-relative operand, at the offset `operand` in the instruction.
    RipRelative { operand: usize },
    /// `jmp` to an address.
    Jmp { target: usize },
    /// A conditional jump; `opcode` is the low byte of the opcode of its near form.
    Jcc { opcode: u8, target: usize },
    /// `loop`, `loope`, `loopne`, `jrcxz`, which have no near form: the opcode, and true if it
    /// counts in ecx.
    Count {
        opcode: u8,
        ecx: bool,
        target: usize,
    },
    /// `call` to an address.
    Call { target: usize },
    /// `call` through a register or memory; `opcode` is the offset of the opcode in the
    /// instruction.
    CallIndirect { opcode: usize },
}

/// Bytes of the literal that a displaced call pushes.
pub(super) const LITERAL_LEN: usize = 8;
/// Bytes of `push qword ptr [rip + d]`.
pub(super) const PUSH_LEN: usize = 6;
/// Bytes of `jmp rel32`.
pub(super) const JMP_LEN: usize = 5;

impl Kind {
    /// Returns the number of bytes of the relocated instruction; `len` is that of the original. An
    /// upper bound for indirect calls.
    pub(super) fn relocated_len(self, len: usize) -> usize {
        match self {
            Self::Plain | Self::RipRelative { .. } => len,
            Self::Jmp { .. } => JMP_LEN,
            Self::Jcc { .. } => 6,
            Self::Count { ecx, .. } => usize::from(ecx) + 2 + 2 + JMP_LEN,
            Self::Call { .. } => PUSH_LEN + JMP_LEN + LITERAL_LEN,
            // An operand relative to rsp may get a displacement of 32 bits where it had none.
            Self::CallIndirect { .. } => PUSH_LEN + len + 4 + LITERAL_LEN,
        }
    }

    /// Returns the target of a jump that stays in the function, or may stay there.
    pub(super) fn branches_to(self) -> Option<usize> {
        match self {
            Self::Jmp { target } | Self::Jcc { target, .. } | Self::Count { target, .. } => {
                Some(target)
            }
            _ => None,
        }
    }

    pub(super) fn is_call(self) -> bool {
        matches!(self, Self::Call { .. } | Self::CallIndirect { .. })
    }
}

/// Returns true if the next instruction is not run after this one.
pub(super) fn is_end(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::UnconditionalBranch
            | FlowControl::IndirectBranch
            | FlowControl::Return
            | FlowControl::Exception
    )
}

impl Window {
    /// Returns the number of displaced bytes: at least as many as are overwritten, unless the
    /// function ends before.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns false: there is at least one instruction.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns a bit mask: bit k, for k from 0 to 4, is set if an instruction of the original
    /// starts at byte k.
    ///
    /// Bit 0 is always set, and is the only one after
    /// [`plan_breakpoint`](super::plan_breakpoint). Padding after the end of the function does not
    /// count: it never runs.
    #[must_use]
    pub fn boundaries(&self) -> u8 {
        self.instructions
            .iter()
            .filter(|instruction| instruction.offset < self.patched)
            .fold(0, |mask, instruction| mask | 1 << instruction.offset)
    }

    /// Returns the offset of the first call. When relocated, it pushes the return address, which is
    /// not on the processor's shadow stack: if there is one, the return faults.
    #[must_use]
    pub fn call(&self) -> Option<usize> {
        let mut calls = self.instructions.iter().filter(|one| one.kind.is_call());
        calls.next().map(|call| call.offset)
    }

    /// Returns the most bytes that the relocated prologue takes.
    #[must_use]
    pub fn relocated_len(&self) -> usize {
        let displaced = self.instructions.iter();
        displaced
            .map(|instruction| instruction.kind.relocated_len(instruction.len))
            .sum::<usize>()
            + if self.goes_on() { JMP_LEN } else { 0 }
    }

    /// Returns how far below the return address the displaced instructions use the stack, in bytes,
    /// as far as they do that by rsp.
    #[must_use]
    pub fn depth(&self) -> usize {
        let depth = |one: &Displaced| {
            let bytes = self.bytes.get(one.offset..)?;
            let instruction = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
            let below = one.before.offset - Rule::DEFAULT.offset;
            if !one.before.by_stack_pointer() {
                None
            } else if instruction.stack_pointer_increment() < 0
                && instruction.is_stack_instruction()
            {
                Some(below - instruction.stack_pointer_increment())
            } else if instruction.memory_base() == Register::RSP
                && instruction.mnemonic() != Mnemonic::Lea
            {
                let up = i32::try_from(instruction.memory_displacement64().cast_signed()).ok()?;
                Some(below - up)
            } else {
                None
            }
        };
        let most = self.instructions.iter().filter_map(depth).max();
        most.and_then(|most| usize::try_from(most).ok())
            .unwrap_or(0)
    }

    /// Returns true if the relocated prologue ends with a jump back.
    pub(super) fn goes_on(&self) -> bool {
        // A displaced call returns to the original itself.
        let call = self
            .instructions
            .last()
            .is_some_and(|last| last.kind.is_call());
        !self.ends && !call
    }

    /// Returns the branches from after the window that lead into its first `reach` bytes, and must
    /// not.
    pub(super) fn intruders(&self, code: &Code<'_>, reach: usize) -> Vec<Branch> {
        let mut branches = branches::leading_back(code.body(), self.len(), reach);
        // Calls of the entry are recursion. So are jumps if the function sets up its frame there:
        // each round of a loop would do that again.
        let sets_up = self.sets_up_frame();
        branches.retain(|branch| branch.to != 0 || !(branch.is_call || sets_up));
        branches
    }

    /// Returns true if the first instructions, up to any branch, move the stack pointer.
    pub(super) fn sets_up_frame(&self) -> bool {
        let straight = self
            .instructions
            .iter()
            .take_while(|one| matches!(one.kind, Kind::Plain | Kind::RipRelative { .. }));
        let next = self.instructions.iter().skip(1).map(|one| one.before);
        straight
            .zip(next.chain([self.after]))
            .any(|(_, after)| after.offset != Rule::DEFAULT.offset)
    }

    /// Checks the targets of displaced branches.
    pub(super) fn check_own_branches(&self) -> Result<(), RelocateError> {
        for instruction in &self.instructions {
            let (target, is_call) = match (instruction.kind, instruction.kind.branches_to()) {
                (_, Some(target)) => (target, false),
                (Kind::Call { target }, _) => (target, true),
                _ => continue,
            };
            let to = target.wrapping_sub(self.address);
            let within = to != 0 && to < self.patched.min(self.len());
            // A call would have to return to the relocated form of the instructions that it skips.
            if within && (is_call || self.relocated_offset(to).is_none()) {
                let from = instruction.offset;
                return Err(RelocateError::Target { from, to });
            }
        }
        Ok(())
    }

    /// Returns the offset in the relocated prologue of the instruction at `offset`; `None` if there
    /// is none.
    pub(super) fn relocated_offset(&self, offset: usize) -> Option<usize> {
        let mut start = 0;
        for instruction in &self.instructions {
            if instruction.offset == offset {
                return Some(start);
            }
            start += instruction.kind.relocated_len(instruction.len);
        }
        None
    }
}
