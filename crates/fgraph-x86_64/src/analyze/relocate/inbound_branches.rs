//! Finds the branches of one function that lead into the first bytes of another.
//!
//! Compilers do not make such branches, but authors of assembly do: in the C library `mempcpy` sets
//! up its result and continues after the first instruction of `memcpy`. A thread that comes this
//! way would trap at each call, or worse.
//!
//! As in [`branches`](super::branches), the bytes are searched for possible operands of a branch,
//! and only the instructions around these are decoded.

use alloc::{vec, vec::Vec};

use iced_x86::{Decoder, DecoderOptions, Instruction};

use super::branches::is_direct;
use crate::analyze::scan;
use crate::stub::SITE_LEN;

/// The distance before a possible branch at which decoding starts. From any start, decoding soon
/// reaches instruction boundaries.
const RUN_UP: usize = 4096;

/// A branch, by addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InboundBranch {
    /// The address of the branch.
    pub from: usize,
    /// The address to which the branch leads.
    pub to: usize,
}

/// The number of bytes after an entry whose branches are found: those of a jump.
const BEHIND: usize = SITE_LEN - 1;

/// Finds the direct branches in `text`, which is at `address`, that lead into the first bytes of
/// one of the `entries`: after the first byte, up to the end of a jump.
///
/// `counts` returns true if a branch counts. `start` returns the start of the function that
/// contains an address, as far as it is known.
pub fn branches_to(
    text: &[u8],
    address: usize,
    entries: impl Iterator<Item = usize>,
    counts: impl Fn(InboundBranch) -> bool,
    start: impl Fn(usize) -> Option<usize>,
) -> Vec<InboundBranch> {
    let mut wanted = vec![0_u64; text.len().div_ceil(64)];
    // The distances of entries from multiples of 16, which rule out most other targets.
    let mut distances = 0_u16;
    let mut found = Vec::new();
    for entry in entries {
        let first = entry.wrapping_add(1).checked_sub(address);
        let Some(first) = first.filter(|&first| first < text.len()) else {
            continue;
        };
        for target in first..text.len().min(first + BEHIND) {
            wanted[target / 64] |= 1 << (target % 64);
            distances |= 1 << (target % 16);
        }
        short_branches(text, first, &mut found);
    }
    let is_wanted = |at: usize| {
        let word = (distances >> (at % 16) & 1 != 0).then(|| wanted.get(at / 64));
        word.flatten()
            .is_some_and(|word| word >> (at % 64) & 1 != 0)
    };
    let near = |operand: usize| {
        let bytes = text.get(operand..operand + 4)?;
        let value = i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        Some((operand + 4).wrapping_add_signed(value as isize))
    };
    let opcodes = scan::places(text, 1, |first, second| {
        first.is_like(0xe8, 0xfe) | first.is(0x0f) & second.is_like(0x80, 0xf0)
    });
    for at in opcodes {
        let operand = at + if text[at] == 0x0f { 2 } else { 1 };
        if let Some(to) = near(operand).filter(|&to| is_wanted(to)) {
            found.push((at, to));
        }
    }
    found.sort_unstable();
    found.dedup();
    let branch = |(at, to)| InboundBranch {
        from: address + at,
        to: address + to,
    };
    let is_one = |&(at, to): &(usize, usize)| {
        is_wanted(to) && counts(branch((at, to))) && is_branch(text, address, at, to, &start)
    };
    found.into_iter().filter(is_one).map(branch).collect()
}

/// Adds possible branches with an operand of one byte to the target at `first`, or to a target
/// directly after it: offset in `text`, and target.
fn short_branches(text: &[u8], first: usize, found: &mut Vec<(usize, usize)>) {
    /// The length of such a branch.
    const LEN: usize = 2;
    /// The number of offsets that are compared at once.
    const STEP: usize = 16;
    let is_branch =
        |opcode: u8| (opcode & 0xf0 == 0x70) | (opcode & 0xfc == 0xe0) | (opcode == 0xeb);
    // It reaches from 128 bytes before its end to 127 bytes after it.
    let from = first.saturating_sub(127 + LEN);
    let end = (first + BEHIND + 128 - LEN).min(text.len().saturating_sub(1));
    let mut at = from;
    while at < end {
        // Nearly none is a branch. The processor compares several at once, by the lowest byte of
        // the distance to the first target.
        let any = text[at..]
            .first_chunk()
            .is_none_or(|bytes: &[u8; STEP + 1]| {
                let behind = (at + LEN).wrapping_sub(first) as u8;
                (0..STEP).fold(false, |any, place| {
                    let to = behind
                        .wrapping_add(place as u8)
                        .wrapping_add(bytes[place + 1]);
                    any | is_branch(bytes[place]) & (to < BEHIND as u8)
                })
            });
        let next = end.min(at + STEP);
        if any {
            let candidates = (at..next).filter(|&at| is_branch(text[at]));
            let leads = candidates.map(|at| {
                let operand = isize::from(text[at + 1].cast_signed());
                (at, (at + LEN).wrapping_add_signed(operand))
            });
            found.extend(leads.filter(|(_, to)| (first..first + BEHIND).contains(to)));
        }
        at = next;
    }
}

/// Returns true if decoding reaches a branch from the offset `at` to `to`.
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
    // A prefix may precede the opcode.
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

    fn branches(text: &[u8], entries: &[usize]) -> Vec<InboundBranch> {
        let entries = entries.iter().map(|entry| BASE + entry);
        branches_to(text, BASE, entries, |_| true, |_| Some(BASE))
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
            for entry in to - 4..to {
                let found = branches(&text, &[0, entry, 60]);
                assert_eq!(found.len(), 1, "{branch:x?}");
                assert_eq!(found[0].to, BASE + to);
            }
            assert_eq!(branches(&text, &[to - 5, to]), []);
        }
    }

    #[test]
    fn short_branches_are_found_as_far_as_they_reach() {
        // A jump from each place behind and before the entry, as far as its operand reaches.
        const ENTRY: usize = 200;
        for target in ENTRY + 1..ENTRY + 5 {
            for operand in i8::MIN..=i8::MAX {
                let at = (target - 2).wrapping_add_signed(-isize::from(operand));
                let mut text = alloc::vec![0x90; 400];
                text[at] = 0xeb;
                text[at + 1] = operand.cast_unsigned();
                // The operand may be a branch itself, but none that an instruction begins with.
                let found = branches(&text, &[ENTRY]);
                let expected = InboundBranch {
                    from: BASE + at,
                    to: BASE + target,
                };
                assert_eq!(found, [expected], "{operand}");
                assert_eq!(
                    branches(&text[..at + 2], &[ENTRY]).len(),
                    usize::from(at + 2 > target)
                );
            }
        }
    }

    #[test]
    fn branches_that_do_not_count_are_left_out() {
        // jmp +16
        let mut text = alloc::vec![0xeb, 0x10];
        text.resize(64, 0x90);
        let entry = || core::iter::once(BASE + 16);
        let all = branches_to(&text, BASE, entry(), |_| true, |_| Some(BASE));
        let expected = InboundBranch {
            from: BASE,
            to: BASE + 18,
        };
        assert_eq!(all, [expected]);
        let counts = |branch| branch != expected;
        assert_eq!(branches_to(&text, BASE, entry(), counts, |_| None), []);
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
        assert_eq!(branches(&text, &[usize::MAX - BASE, 0x80, 1000]), []);
    }
}
