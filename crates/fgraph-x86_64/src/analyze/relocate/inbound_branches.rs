//! Finds the branches of one function that lead into the first bytes of another.
//!
//! Compilers do not make such branches, but people do: in the C library `mempcpy` sets up its
//! result and goes on behind the first instruction of `memcpy`. A thread that comes this way would
//! trap at each call, if not worse.
//!
//! As in [`branches`](super::branches), the bytes are searched for what could be the operand of a
//! branch, and where there is one the instructions around are decoded.

use alloc::{vec, vec::Vec};

use iced_x86::{Decoder, DecoderOptions, Instruction};

use super::branches::is_direct;

/// How far before a possible branch decoding starts. Wherever that is, it finds to where
/// instructions start soon.
const RUN_UP: usize = 4096;

/// A branch, by addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InboundBranch {
    /// Address of the branch.
    pub from: usize,
    /// Address that the branch leads to.
    pub to: usize,
}

/// The direct branches in `text`, which is at `address`, that lead to one of the addresses
/// `targets`.
///
/// `start` says where the function starts that an address is in, as far as it is known.
pub fn branches_to(
    text: &[u8],
    address: usize,
    targets: impl Iterator<Item = usize>,
    start: impl Fn(usize) -> Option<usize>,
) -> Vec<InboundBranch> {
    let mut wanted = vec![0_u64; text.len().div_ceil(64)];
    let mut any = false;
    for target in targets {
        if let Some(offset) = target.checked_sub(address).filter(|&at| at < text.len()) {
            wanted[offset / 64] |= 1 << (offset % 64);
            any = true;
        }
    }
    let mut branches = Vec::new();
    if !any {
        return branches;
    }
    let is_wanted = |at: usize| {
        wanted
            .get(at / 64)
            .is_some_and(|word| word >> (at % 64) & 1 != 0)
    };
    let near = |operand: usize| {
        let bytes = text.get(operand..operand + 4)?;
        let value = i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        Some((operand + 4).wrapping_add_signed(value as isize))
    };
    for (at, pair) in text.windows(2).enumerate() {
        let to = match pair {
            [0xe8 | 0xe9, _] => near(at + 1),
            [0x0f, 0x80..=0x8f] => near(at + 2),
            &[0x70..=0x7f | 0xe0..=0xe3 | 0xeb, operand] => {
                Some((at + 2).wrapping_add_signed(isize::from(operand.cast_signed())))
            }
            _ => continue,
        };
        if let Some(to) = to.filter(|&to| is_wanted(to))
            && is_branch(text, address, at, to, &start)
        {
            branches.push(InboundBranch {
                from: address + at,
                to: address + to,
            });
        }
    }
    branches
}

/// Whether decoding comes to a branch from the offset `at` to `to`.
fn is_branch(
    text: &[u8],
    address: usize,
    at: usize,
    to: usize,
    start: &impl Fn(usize) -> Option<usize>,
) -> bool {
    let start = start(address + at).and_then(|start| start.checked_sub(address));
    let begin = at.saturating_sub(RUN_UP).max(start.unwrap_or(0)).min(at);
    let mut decoder = Decoder::with_ip(
        64,
        &text[begin..],
        (address + begin) as u64,
        DecoderOptions::NONE,
    );
    let mut instruction = Instruction::default();
    while decoder.can_decode() && begin + decoder.position() < at {
        let before = decoder.position();
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() && decoder.set_position(before + 1).is_ok() {
            decoder.set_ip((address + begin + before + 1) as u64);
        }
    }
    // A prefix may stand before the opcode.
    let comes_by = begin + decoder.position() == at;
    if !comes_by {
        return is_direct(&instruction)
            && instruction.near_branch_target() == (address + to) as u64;
    }
    decoder.decode_out(&mut instruction);
    is_direct(&instruction) && instruction.near_branch_target() == (address + to) as u64
}

#[cfg(test)]
mod tests {
    use super::{InboundBranch, branches_to};
    use alloc::vec::Vec;

    const BASE: usize = 0x40_0000;

    fn branches(text: &[u8], targets: &[usize]) -> Vec<InboundBranch> {
        let targets = targets.iter().map(|target| BASE + target);
        branches_to(text, BASE, targets, |_| Some(BASE))
    }

    #[test]
    fn every_form_of_branch_is_found() {
        for (branch, len) in [
            (&[0xeb, 0x10][..], 2),
            (&[0x74, 0x10], 2),
            (&[0xe3, 0x10], 2),
            (&[0xe9, 0x10, 0, 0, 0], 5),
            (&[0xe8, 0x10, 0, 0, 0], 5),
            (&[0x0f, 0x84, 0x10, 0, 0, 0], 6),
            // With a prefix.
            (&[0x2e, 0x74, 0x10], 3),
        ] {
            let mut text = [&[0x48, 0x89, 0xf8][..], branch].concat();
            text.resize(64, 0x90);
            let to = 3 + len + 0x10;
            let found = branches(&text, &[1, to, 60]);
            assert_eq!(found.len(), 1, "{branch:x?}");
            assert_eq!(found[0].to, BASE + to);
            assert_eq!(branches(&text, &[to - 1, to + 1]), []);
        }
    }

    #[test]
    fn operands_of_other_instructions_are_no_branches() {
        // mov eax, 0x90909074; mov ecx, 0x000001e9
        let mut text = alloc::vec![0xb8, 0x74, 0x10, 0x90, 0x90, 0xb9, 0xe9, 1, 0, 0, 0];
        text.resize(64, 0x90);
        let everything: Vec<usize> = (0..64).collect();
        assert_eq!(branches(&text, &everything), []);
    }

    #[test]
    fn targets_outside_of_the_text_are_not_found() {
        let text = [0xeb, 0x7f, 0xe9, 0xff, 0xff, 0xff, 0xff];
        assert_eq!(branches(&text, &[usize::MAX - BASE, 0x81, 1000]), []);
    }
}
