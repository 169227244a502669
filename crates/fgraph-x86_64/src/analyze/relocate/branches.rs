//! Finds the branches that lead back into the first bytes of a function.
//!
//! Decoding every function from end to end takes longer than everything else together, and almost
//! no function has such a branch. So the bytes are searched first for possible operands of one, at
//! any offset, aligned with an instruction or not. A function is decoded only if there are some, to
//! find out if an instruction is there.

use alloc::vec::Vec;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, OpKind, Register};

use crate::analyze::scan;

/// A direct branch; all values are offsets from the patch address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Branch {
    /// The offset of the branch.
    pub(super) from: usize,
    /// The offset of the next instruction.
    pub(super) end: usize,
    /// The offset of the target.
    pub(super) to: usize,
    /// True for a `call`.
    pub(super) is_call: bool,
}

/// Returns the address at which the function at `address` continues permanently, if its first code
/// ends in a direct jump.
pub fn first_jump(body: &[u8], address: usize) -> Option<usize> {
    let mut decoder = Decoder::with_ip(64, body, address as u64, DecoderOptions::NONE);
    let mut flow = decoder
        .iter()
        .map(|instruction| (instruction.flow_control(), instruction));
    let (flow, last) = flow.find(|&(flow, _)| !matches!(flow, FlowControl::Next))?;
    let is_jump = flow == FlowControl::UnconditionalBranch && is_direct(&last);
    is_jump.then(|| last.near_branch_target() as usize)
}

/// Returns the branches at or after the offset `behind` of `body` that lead to an offset below
/// `reach`.
pub(super) fn leading_back(body: &[u8], behind: usize, reach: usize) -> Vec<Branch> {
    // Operands wrap around at 32 bits, and no function is that long.
    let body = &body[..body.len().min(i32::MAX as usize)];
    let Some(last) = last_candidate(body, behind, reach) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    // The function is decoded at address 0: a target before it becomes a number above all offsets.
    let mut decoder = Decoder::with_ip(64, body, 0, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    while decoder.position() <= last {
        let from = decoder.position();
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() {
            // Data: the decoder returns to instruction boundaries soon after it.
            if decoder.set_position(from + 1).is_err() {
                break;
            }
            decoder.set_ip(from as u64 + 1);
            continue;
        }
        if from < behind || !is_direct(&instruction) {
            continue;
        }
        let to = instruction.near_branch_target();
        if to < reach as u64 {
            found.push(Branch {
                from,
                end: decoder.position(),
                to: to as usize,
                is_call: instruction.flow_control() == FlowControl::Call,
            });
        }
    }
    found
}

/// Returns true if there is a jump that may lead to any instruction of `body`: through a register,
/// or through a table in memory.
///
/// Jumps through a fixed word, or through a member of an object, lead to other functions.
pub(super) fn has_table(body: &[u8]) -> bool {
    Decoder::new(64, body, DecoderOptions::NONE)
        .into_iter()
        .any(|instruction| {
            instruction.is_jmp_near_indirect()
                && (instruction.op0_kind() == OpKind::Register
                    || instruction.memory_index() != Register::None)
        })
}

/// Returns true for a branch with the target in the instruction itself.
pub(super) fn is_direct(instruction: &Instruction) -> bool {
    match instruction.flow_control() {
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => true,
        // `syscall` and far calls count as calls, too.
        FlowControl::Call => instruction.is_call_near(),
        _ => false,
    }
}

/// Negative numbers of 32 bits are not below minus this if their upper byte has all bits set.
const NEGATIVE: usize = 1 << 24;

/// Returns the offset of the last bytes that are such a branch if an instruction begins there.
fn last_candidate(body: &[u8], behind: usize, reach: usize) -> Option<usize> {
    let near = |operand: usize| {
        let opcode = operand.checked_sub(1)?;
        match body[opcode] {
            0xe8 | 0xe9 => Some(opcode),
            0x80..=0x8f if operand >= 2 && body[operand - 2] == 0x0f => Some(operand - 2),
            _ => None,
        }
    };
    let mut last = None;
    let mut look = |operand: usize| {
        let Some(bytes) = body.get(operand..operand + 4) else {
            return;
        };
        let value = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        // Wraps around as it does in the CPU; a body is shorter than 2 GiB.
        let to = value.wrapping_add(operand as u32 + 4);
        if (to as usize) < reach {
            last = last.max(near(operand));
        }
    };
    // An operand that leads back from beyond the reach is negative, and its upper byte has all bits
    // set in a body of this length.
    let negative = match body.len() {
        ..=NEGATIVE => behind.max(reach),
        _ => body.len(),
    };
    (behind..negative).for_each(&mut look);
    // The last byte of the opcode precedes the operand.
    let opcodes = negative.saturating_sub(1);
    let rest = body.get(opcodes..).unwrap_or_default();
    scan::places(rest, 4, |opcode, upper| {
        upper.is(0xff) & (opcode.is_like(0xe8, 0xfe) | opcode.is_like(0x80, 0xf0))
    })
    .for_each(|at| look(opcodes + at + 1));
    // A rel8 operand reaches 128 bytes back from its end.
    let short = &body[..body.len().min(128 + reach)];
    let short = short.get(behind..).unwrap_or_default();
    let opcodes = scan::places(short, 1, |opcode, operand| {
        let is_short = opcode.is_like(0x70, 0xf0) | opcode.is_like(0xe0, 0xfc) | opcode.is(0xeb);
        is_short & operand.is_like(0x80, 0x80)
    });
    for at in opcodes {
        let operand = isize::from(short[at + 1].cast_signed());
        if (behind + at + 2).wrapping_add_signed(operand) < reach {
            last = last.max(Some(behind + at));
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::leading_back;

    #[test]
    fn branches_are_found_however_far_behind_they_are() {
        for len in [1 << 7, 1 << 9, (1 << 16) + 64, (1 << 24) + 64] {
            for from in [7, 100, len.min(1 << 16) - 70, len.min(1 << 16) - 5] {
                for to in 0..5_usize {
                    let mut body = alloc::vec![0x90; len];
                    let operand = (to as i32 - from as i32 - 5).to_le_bytes();
                    body[from] = 0xe9;
                    body[from + 1..from + 5].copy_from_slice(&operand);
                    let found = leading_back(&body, 6, 5);
                    assert_eq!(found.len(), 1, "from {from} of {len} to {to}");
                    assert_eq!((found[0].from, found[0].to), (from, to));
                }
            }
        }
    }
}
